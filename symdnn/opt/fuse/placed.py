"""What is added to parts of zeros is computed where it is added, on a GPU.

The gradient of differences of neighbours adds a function of them to two parts. As an array it would
be written, and read for each part. The kernel of the sums computes it for each part instead.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from symdnn.graph.origin import inherit
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.core.scalar import Builder, ScalarProgram
from symdnn.ops.lowered.gathered import FusedPlacedSums, PlacedSums
from symdnn.opt.fuse.fuse import joined_origin
from symdnn.opt.fuse.groups import MAX_INPUTS, fusable_program, number_in
from symdnn.opt.fuse.recompute import VALUE_LIMIT_ADDITIONS
from symdnn.opt.fuse.transfer import Places
from symdnn.rewriting.rewrite import Context, graph_rewrite

__all__ = ["RULES", "fuse_placed"]

#: The most operands of its shape of a function that several parts compute: they read each again.
_MOST_READ_AGAIN = 2


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
        reads = list(dict.fromkeys(v for v in maker.inputs if number_in(v) is None))
        b = Builder([v.type.dtype for v in reads])
        given = [
            b.const(number_in(v), v.type.dtype) if v not in reads else b.input(reads.index(v))
            for v in maker.inputs
        ]
        (value,) = [b.inline(joined[maker], given)[maker.outputs.index(y)]]
        programs.append(b.program(b.inline(own, [value])))
        operands += reads
    made = FusedPlacedSums(op.static, op.parts, tuple(programs))
    result: Variable = made(*operands, *node.inputs[count:])
    return result


RULES = (fuse_placed,)
