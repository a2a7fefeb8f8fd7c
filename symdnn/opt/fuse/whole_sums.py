"""Elementwise nodes take reductions over all elements that read what they read or make, on a GPU.

A loss and its gradient are functions of the same arrays: one kernel reads them, stores the gradient
and adds up the loss. Of a node with several reductions those leave of which the elementwise node
does not depend, as the sum of the loss from the number of elements that it is divided by.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from symdnn.graph.inner import InnerGraphOp
from symdnn.graph.origin import inherit
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.array.reduce import AllTrue, AnyTrue, Max, Min, Prod, Reduce, Sum
from symdnn.ops.core.scalar import ScalarProgram
from symdnn.ops.lowered.fused import FusedElemwise, FusedElemwiseReduce, FusedReduce
from symdnn.ops.nest.monoid import picked, reads_of
from symdnn.opt.fuse.fuse import joined_origin, joined_programs
from symdnn.opt.fuse.groups import MAX_REDUCTIONS, GraphFacts, fusable_program, reductions_in
from symdnn.rewriting.facts import all_ones
from symdnn.rewriting.rewrite import Context, graph_rewrite

__all__ = ["RULES", "fuse_whole_sums"]

#: Limits of a kernel, which should fit several times on a multiprocessor: operands, stored
#: results, instructions.
_MOST_INPUTS, _MOST_STORED, _MOST_INSTRUCTIONS = 8, 4, 150
#: Reductions join where that saves this part of what they and the elementwise node read.
_LEAST_SAVED = 1 / 8


@graph_rewrite("fuse", tags=("fusion",), name="fuse_whole_sums")
def fuse_whole_sums(context: Context) -> None:
    """``sum(f(x)), g(x)`` are one node, if neither depends on the other or ``g(x)`` is summed."""
    fgraph = context.fgraph
    if context.target.kind != "cuda" or context.inner:
        return
    order = fgraph.toposort()
    if any(isinstance(n.op, InnerGraphOp) for n in order):
        return  # what is around loops is compiled with them
    graph = _Graph(context, order)
    for node in order:
        sums = graph.sums(node)
        if sums is not None:
            graph.join_best(sums)


@dataclass(frozen=True)
class _Sums:
    """A node of reductions over all elements of its operands, whose broadcast pattern it has."""

    node: Apply
    program: ScalarProgram
    reductions: tuple[Reduce, ...]
    pattern: tuple[bool, ...]

    def part(self, numbers: Collection[int]) -> _Sums:
        """Some of its reductions, as a node of their own."""
        chosen = sorted(numbers)
        if len(chosen) == len(self.reductions):
            return self
        program, used = _part(self.program, chosen)
        op = FusedReduce(program, tuple(self.reductions[i] for i in chosen))
        made = op.make_node(*(self.node.inputs[i] for i in used))
        return replace(self, node=made, program=program, reductions=op.reductions)


@dataclass(frozen=True)
class _Elements:
    """An elementwise node, perhaps with reductions that it took before."""

    node: Apply
    program: ScalarProgram
    reductions: tuple[Reduce, ...]

    @property
    def stored(self) -> Sequence[Variable]:
        """The results of its size."""
        return self.node.outputs[len(self.reductions) :]


def _part(program: ScalarProgram, outputs: Sequence[int]) -> tuple[ScalarProgram, list[int]]:
    """The program of some results, of the inputs that they need, and the numbers of those."""
    used = _reads(program, outputs)
    return picked(program, used, outputs), used


def _reads(program: ScalarProgram, outputs: Sequence[int]) -> list[int]:
    """The numbers of the inputs that some results need."""
    return sorted(reads_of(program, [program.outputs[i] for i in outputs]))


class _Graph(GraphFacts):
    """What the rule knows of a graph, and changes in it."""

    def is_ours(self, node: Apply) -> bool:
        """Whether a node is there, on the target, and not left to a library."""
        there = node in self.fgraph.nodes and node in self.paths
        return there and super().is_ours(node)

    def sums(self, node: Apply) -> _Sums | None:
        """The reductions of a node that is a candidate."""
        found = reductions_in(node)
        if found is None:
            return None
        program, reductions = found
        kinds = Sum | Prod | Max | Min | AllTrue | AnyTrue
        if not self.is_ours(node) or not all(isinstance(r, kinds) for r in reductions):
            return None
        patterns = [v.type.broadcastable for v in node.inputs]
        pattern = tuple(all(ones) for ones in zip(*patterns))
        whole = all(one or i in reductions[0].axes for i, one in enumerate(pattern))
        if not whole or all(pattern) or any(v.type.is_complex for v in node.inputs):
            return None
        return _Sums(node, program, reductions, pattern)

    def elements(self, node: Apply | None, like: _Sums) -> _Elements | None:
        """An elementwise node of the same size that is needed in the same calls."""
        if node is None or not self.is_ours(node) or self.paths[node] != self.paths[like.node]:
            return None
        op = node.op
        taken = op.reductions if isinstance(op, FusedElemwiseReduce) else ()
        program = op.program if isinstance(op, FusedElemwiseReduce) else fusable_program(node)
        if program is None or node.hints != like.node.hints:
            return None
        found = _Elements(node, program, taken)
        alike = all(v.type.broadcastable == like.pattern for v in found.stored)
        kept = [v for v in found.stored if self.fgraph.user_nodes(v) != [like.node]]
        few = len(kept) <= _MOST_STORED and not any(map(self.fgraph.is_update, found.stored))
        return found if alike and few else None

    # -- which reductions ---------------------------------------------------------------------

    def join_best(self, sums: _Sums) -> None:
        """Join reductions with the elementwise node for which that saves most bytes."""
        full = [v for v in sums.node.inputs if v.type.broadcastable == sums.pattern]
        near = {v.owner: None for v in full}
        near.update({n: None for v in full for n in self.fgraph.user_nodes(v)})
        best, most = None, 0.0
        for node in near:
            found = None if node is sums.node else self.elements(node, sums)
            if found is None:
                continue
            free = self._free(sums, found)
            saved = self._saved(sums, found, free) if free else 0
            if saved > most:
                best, most = (found, free), saved
        if best is not None:
            self._join(sums, *best)

    def _free(self, sums: _Sums, elements: _Elements) -> set[int]:
        """The reductions that may join."""
        node = elements.node
        own = [v for v in sums.node.inputs if v not in elements.stored]
        room = MAX_REDUCTIONS - len(elements.reductions)
        if room < 1 or self._read(own, node, _all_inputs):
            return set()
        read = self._read(node.inputs, sums.node, _all_inputs)
        read = read and self._read(node.inputs, sums.node, _inputs_of)
        alike = {(r.axes, r.keepdims) for r in (*sums.reductions, *elements.reductions)}
        free = set(range(len(sums.reductions))) - read
        return free if len(alike) == 1 and len(free) <= room else set()

    def _read(
        self, by: Iterable[Variable], of: Apply, inputs: Callable[[Variable], Iterable[Variable]]
    ) -> set[int]:
        """The results of a node from which variables follow."""
        first = self.first[of]
        pending, seen, found = list(by), set[Variable](), set[int]()
        while pending:
            v = pending.pop()
            node = v.owner
            if node is of:
                found.add(node.outputs.index(v))
            elif node is not None and v not in seen and self.numbers.get(node, first) >= first:
                seen.add(v)
                pending += inputs(v)
                before = self.before.get(node)
                pending += before.outputs if before is not None else ()
        return found

    def _saved(self, sums: _Sums, elements: _Elements, free: set[int]) -> float:
        """Bytes for each element that need not be read; 0 where they are too few."""
        part, rest = sums.part(free), set(range(len(sums.reductions))) - free
        reads = set(elements.node.inputs)
        joined = (reads | set(part.node.inputs)) - set(elements.node.outputs)
        steps = len(part.program.body) + len(elements.program.body)
        if len(joined) > _MOST_INPUTS or steps > _MOST_INSTRUCTIONS:
            return 0.0
        now = self._bytes(sums.node.inputs, sums) + self._bytes(reads, sums)
        left = self._bytes(sums.part(rest).node.inputs, sums) if rest else 0
        saved = now - left - self._bytes(joined, sums)
        return saved if saved >= _LEAST_SAVED * now else 0.0

    def _bytes(self, variables: Iterable[Variable], sums: _Sums) -> float:
        full = {v for v in variables if v.type.broadcastable == sums.pattern}
        return float(sum(v.type.numpy.itemsize for v in full if not isinstance(v, Constant)))

    # -- changes ------------------------------------------------------------------------------

    def _join(self, sums: _Sums, elements: _Elements, free: set[int]) -> None:
        if self._read(elements.node.inputs, sums.node, _all_inputs):
            self._split_scalars(elements.node.inputs, sums.node)
        if len(free) < len(sums.reductions):
            rest = set(range(len(sums.reductions))) - free
            with inherit(sums.node.origin, sums.node.hints):
                part, others = sums.part(free), sums.part(rest)
            made = zip(sorted(free), part.node.outputs), zip(sorted(rest), others.node.outputs)
            pairs = [(sums.node.outputs[i], v) for some in made for i, v in some]
            self._replace(pairs, [part.node, others.node], [sums.node])
            sums = part
        both = [(elements.node, elements.program), (sums.node, sums.program)]
        operands, builder, values = joined_programs(both)
        taken = len(elements.reductions)
        old = [*elements.node.outputs[:taken], *sums.node.outputs]
        old += [
            v for v in elements.stored if any(u is not sums.node for u, _ in self.fgraph.users(v))
        ]
        if len(old) == taken + len(sums.node.outputs):
            return
        op = FusedElemwiseReduce(
            builder.program([values[v] for v in old]), (*elements.reductions, *sums.reductions)
        )
        with inherit(joined_origin([elements.node, sums.node]), elements.node.hints):
            node = op.make_node(*operands)
        pairs = list(zip(old, node.outputs, strict=True))
        self._replace(pairs, [node], [elements.node, sums.node])

    def _replace(
        self, pairs: Sequence[tuple[Variable, Variable]], made: Iterable[Apply],
        old: Sequence[Apply],
    ) -> None:  # fmt: skip
        """Replace variables by those of nodes that are new in the place of others."""
        made = list(made)
        self.context.replace(pairs, "fuse_whole_sums")
        self.replaced(made, old)
        for node in made:
            self.places.node[node], self.paths[node] = self.places(old[0]), self.paths[old[0]]

    def _split_scalars(self, by: Iterable[Variable], of: Apply) -> None:
        """Nodes of scalars between compute what ``by`` needs alone."""
        needed = dict[Apply, set[int]]()

        def inputs(v: Variable) -> Iterable[Variable]:
            if _is_of_scalars(v) and v.owner is not None:
                needed.setdefault(v.owner, set()).add(v.owner.outputs.index(v))
            return _inputs_of(v)

        self._read(by, of, inputs)
        for node, own in needed.items():
            program, every = fusable_program(node), set(range(len(node.outputs)))
            if program is None or (
                own == every and len(_reads(program, [*own])) == len(node.inputs)
            ):
                continue
            pairs, parts = [], []
            for numbers in filter(None, (sorted(own), sorted(every - own))):
                part, used = _part(program, numbers)
                with inherit(node.origin, node.hints):
                    made = FusedElemwise(part).make_node(*(node.inputs[i] for i in used))
                pairs += [(node.outputs[i], v) for i, v in zip(numbers, made.outputs)]
                parts.append(made)
            self._replace(pairs, parts, [node])


def _all_inputs(v: Variable) -> Iterable[Variable]:
    return () if v.owner is None else v.owner.inputs


def _is_of_scalars(v: Variable) -> bool:
    """Whether an elementwise node of single elements makes it."""
    return v.owner is not None and all_ones(v) and isinstance(v.owner.op, FusedElemwise)


def _inputs_of(v: Variable) -> Iterable[Variable]:
    """What is needed for a result: of nodes of scalars only what its program reads."""
    node: Any = v.owner
    if not _is_of_scalars(v):
        return () if node is None else node.inputs
    return [node.inputs[i] for i in _reads(node.op.program, [node.outputs.index(v)])]


RULES = (fuse_whole_sums,)
