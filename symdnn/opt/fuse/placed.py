"""What is added to parts of zeros is computed where it is added, on a GPU.

The gradient of differences of neighbours adds a function of them to two parts. As an array it would
be written, and read for each part. The kernel of the sums computes it for each part instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from symdnn.graph.origin import inherit
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.array.reduce import Sum
from symdnn.ops.core.scalar import Builder, ScalarProgram
from symdnn.ops.lowered.gathered import FusedPlacedSums, PlacedSums
from symdnn.opt.fuse.fuse import joined_origin, without_numbers
from symdnn.opt.fuse.groups import (
    MAX_INPUTS,
    MAX_REDUCTIONS,
    GraphFacts,
    fusable_program,
    number_in,
    reductions_in,
)
from symdnn.opt.fuse.recompute import VALUE_LIMIT_ADDITIONS
from symdnn.opt.fuse.transfer import Places
from symdnn.rewriting.rewrite import Context, graph_rewrite

__all__ = ["RULES", "fuse_placed", "totals_of_placed"]

#: The most operands of its shape of a function that several parts compute: they read each again.
_MOST_READ_AGAIN = 2
#: The most instructions of a sum that a part takes.
_MOST_INSTRUCTIONS = 40


@graph_rewrite("fuse", tags=("fusion",), name="fuse_placed")
def fuse_placed(context: Context) -> None:
    """``PlacedSums(f(x), g(y)) -> FusedPlacedSums(x, y)``, where nothing else reads ``f(x)``."""
    order = context.fgraph.toposort()
    found = [node for node in order if isinstance(node.op, PlacedSums)]
    if context.target.kind != "cuda" or not found:
        return
    places = Places(context.fgraph, context.target, inner=context.inner)
    for node in found:
        joined = _joined(node, places, context)
        if joined and places(node) == context.target.place:
            with inherit(joined_origin([*joined, node]), node.hints):
                made = _made(node, joined)
            context.replace([(node.outputs[0], made)], "fuse_placed")


def _joined(node: Apply, places: Places, context: Context) -> dict[Apply, ScalarProgram]:
    """The makers of what is added that become parts of the kernel, with their programs."""
    op: Any = node.op
    terms = Counter(v.owner for v in node.inputs[: len(op.parts)] if v.owner is not None)
    found, count = dict[Apply, ScalarProgram](), len(op.parts)
    for maker, times in terms.items():
        program = fusable_program(maker)
        if program is None or places(maker) != context.target.place:
            continue
        users = [user for v in maker.outputs for user, _ in context.fgraph.users(v)]
        more = times * (len(maker.inputs) - 1)
        repeats = _pattern(maker) != _pattern(node)  # along axes of its parts
        again = program.cost * (times - 1 + repeats) <= VALUE_LIMIT_ADDITIONS["cuda"]
        again = again and (times == 1 or _large(maker) <= _MOST_READ_AGAIN)
        reads = count + more <= MAX_INPUTS and any(number_in(v) is None for v in maker.inputs)
        alone = maker not in places.read_on_host and all(user is node for user in users)
        if reads and again and alone:
            found[maker] = program
            count += more
    return found


def _pattern(node: Apply) -> tuple[bool, ...]:
    return node.outputs[0].type.broadcastable


def _large(maker: Apply) -> int:
    """How many operands have the shape of the result."""
    return sum(v.type.broadcastable == _pattern(maker) for v in maker.inputs)


def _made(node: Apply, joined: dict[Apply, ScalarProgram]) -> Variable:
    op: Any = node.op
    count = len(op.parts)
    programs, operands = list[ScalarProgram](), list[Variable]()
    for y, own in zip(node.inputs[:count], op.programs(node.outputs[0].type.dtype), strict=True):
        maker = y.owner
        if maker not in joined:
            programs.append(own)
            operands.append(y)
            continue
        part, reads = without_numbers(joined[maker], maker.inputs)
        b = Builder([v.type.dtype for v in reads])
        given = [b.input(i) for i in range(len(reads))]
        value = b.inline(part, given)[maker.outputs.index(y)]
        programs.append(b.program(b.inline(own, [value])))
        operands += reads
    made = FusedPlacedSums(op.static, op.parts, tuple(programs))
    return made.make_node(*operands, *node.inputs[count:]).outputs[0]


@graph_rewrite("fuse", tags=("fusion",), name="totals_of_placed")
def totals_of_placed(context: Context) -> None:
    """A loss that is a sum over what a part reads is added up where that is read."""
    order = context.fgraph.toposort()
    if context.target.kind != "cuda" or context.inner:
        return
    if any(isinstance(node.op, FusedPlacedSums) for node in order):
        graph = GraphFacts(context, order)
        for node in order:
            if isinstance(node.op, FusedPlacedSums) and graph.is_ours(node):
                _take_totals(node, node.op, graph)


def _take_totals(node: Apply, op: FusedPlacedSums, graph: GraphFacts) -> None:
    found = dict[Apply, list[tuple[int, ScalarProgram, Sum]]]()
    count = 0
    for k, own in enumerate(op.apart(node.inputs)[:-1]):
        for user in {u: None for v in own for u in graph.fgraph.user_nodes(v)}:
            sums = _sums_over(user, own, node) if graph.is_ours(user) else []
            if not sums or user in found or graph.paths[user] != graph.paths[node]:
                continue
            if count + len(sums) <= MAX_REDUCTIONS:
                found[user] = [(k, program, fold) for program, fold in sums]
                count += len(sums)
    before = _before(node, set(found))
    found = {user: totals for user, totals in found.items() if user not in before}
    every = [total for totals in found.values() for total in totals]
    if not every or len({fold.out_dtype(p.output_dtypes[0]) for _, p, fold in every}) > 1:
        return
    with inherit(joined_origin([*found, node]), node.hints):
        made = replace(op, totals=tuple(every)).make_node(*node.inputs)
    old = [node.outputs[0], *(v for user in found for v in user.outputs)]
    graph.context.replace(list(zip(old, made.outputs, strict=True)), "totals_of_placed")


def _sums_over(
    user: Apply, own: Sequence[Variable], node: Apply
) -> list[tuple[ScalarProgram, Sum]]:
    """The sums of floats over all elements that a node has of operands of a part; each with a
    program of all those operands."""
    found = reductions_in(user)
    if found is None or not set(user.inputs) <= set(own):
        return []
    program, folds = found
    patterns = [v.type.broadcastable for v in user.inputs]
    pattern = tuple(all(ones) for ones in zip(*patterns))
    whole = all(one or i in folds[0].axes for i, one in enumerate(pattern))
    if not whole or pattern != _pattern(node) or len(program.body) > _MOST_INSTRUCTIONS:
        return []
    b = Builder([v.type.dtype for v in own])
    results = b.inline(program, [b.input(list(own).index(v)) for v in user.inputs])
    sums = [(b.program([value]), fold) for value, fold in zip(results, folds, strict=True)]
    floats = [
        (p, fold) for p, fold in sums
        if isinstance(fold, Sum) and fold.acc_dtype in ("float32", "float64")
    ]  # fmt: skip
    return floats if len(floats) == len(sums) else []


def _before(node: Apply, some: set[Apply]) -> set[Apply]:
    """Those of some nodes from which a node follows."""
    pending, seen = [node], set[Apply]()
    while pending:
        for v in pending.pop().inputs:
            if v.owner is not None and v.owner not in seen:
                seen.add(v.owner)
                pending.append(v.owner)
    return seen & some


RULES = (fuse_placed, totals_of_placed)
