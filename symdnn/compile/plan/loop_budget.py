"""Loops within a memory budget: at given sizes, which run in segments, and which steps are stored.

The plain program is judged first. If it needs more than the budget, loops whose gradients read the
values of all steps are put in segments (:mod:`symdnn.opt.scan.scan_segments`), as many as
:mod:`~symdnn.compile.plan.loop_choice` finds by estimate. The program of that is compiled and
judged by its own memory, which corrects the room for the next choice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from symdnn.compile.plan.call_memory import CallMemory, call_memory
from symdnn.compile.plan.known_sizes import known_sizes
from symdnn.compile.plan.loop_choice import (
    LoopFacts,
    bytes_of,
    chosen_pieces,
    corrected,
    facts_of,
    time_of,
    working_of,
)
from symdnn.compile.program.program import Program, Region, Segment, with_budget
from symdnn.errors import DataDependentShape, OverBudget
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.place import Place
from symdnn.graph.target import Target
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.control.scan import Scan
from symdnn.opt.engine import RewriteProfile, run_rewrites
from symdnn.opt.scan import scan_contained, scan_rules
from symdnn.opt.scan.scan_pairs import Pair, pairs_of
from symdnn.opt.scan.scan_segments import Piece, put_in_segments
from symdnn.rewriting.rewrite import Context
from symdnn.tuning.allowance import visiting

#: How often the room for loops is corrected by the memory of a program that was compiled.
_MOST_ROUNDS = 5
#: Room in proportion to the budget that is worth another program.
_ROOM = 0.04
#: The least share of the budget that a loop has if it is put in segments.
_SMALL = 0.02


@dataclass(frozen=True)
class LoopWithin:
    """A loop with a gradient, and what was done with it for a memory budget.

    ``pieces`` are consecutive steps: segments, the steps of each, and whether they are stored.
    Without pieces it runs as it is, and ``why`` says the reason.
    """

    loop: str
    line: str
    pieces: tuple[Piece, ...] = ()
    why: str = ""

    @property
    def steps(self) -> int:
        """The number of steps; 0 where it is not in segments."""
        return sum(p.all_steps for p in self.pieces)

    @property
    def steps_again(self) -> int:
        """How many steps the gradient runs again."""
        return sum(p.all_steps for p in self.pieces if not p.kept)

    def __str__(self) -> str:
        if not self.pieces:
            return f"loop {self.loop}  {self.line}: as it is, {self.why}"
        parts = [
            f"{p.segments} x {p.steps} steps {'stored' if p.kept else 'run again'}"
            for p in self.pieces
        ]
        share = self.steps_again / self.steps
        return f"loop {self.loop}  {self.line}: {', '.join(parts)} ({share:.0%} of its steps again)"


@dataclass(frozen=True)
class Within:
    """The program for some sizes: ``inputs`` are its own, or None for those of the plain one.

    ``memory`` is that of a call, before plans compute values again; None if it is not known.
    """

    program: Program
    inputs: Sequence[Variable] | None
    loops: tuple[LoopWithin, ...]
    memory: CallMemory | None = None


def source_of_loops(fgraph: FunctionGraph, target: Target) -> FunctionGraph | None:
    """A copy of a graph before rewriting, with one loop for each that was written; None without.

    A loop whose gradient needs histories was applied again with these, which is made one here.
    """
    if not any(isinstance(n.op, Scan) for n in fgraph.nodes):
        return None
    source, _ = fgraph.clone()
    rules = (*scan_contained.RULES, *scan_rules.RULES)
    run_rewrites(rules, Context(source, target), RewriteProfile())
    return source


class LoopBudget:
    """The budget of a function with loops.

    ``source`` is its graph before rewriting, ``program`` the plain program, without bounds, and
    ``compiled`` makes the program of another graph.
    """

    def __init__(
        self, budget: int, source: FunctionGraph, program: Program, place: Place,
        compiled: Callable[[FunctionGraph], Program],
    ) -> None:  # fmt: skip
        self.budget, self.source, self.program, self.place = budget, source, program, place
        self.compiled = compiled
        self.pairs, self.left = pairs_of(source)

    def within(
        self, inputs: Sequence[Variable], shapes: Mapping[Variable, tuple[int, ...]],
        values: Mapping[Variable, Any],
    ) -> Within:  # fmt: skip
        """The program for these sizes. ``inputs`` are those of the plain program, in order.

        Raises :class:`~symdnn.errors.OverBudget`, with the least that was found.
        """
        with visiting(may_measure=False):
            try:
                memory = call_memory(self.program, shapes, values)
            except DataDependentShape:
                return Within(with_budget(self.program, self.budget), None, self._left_alone(
                    dict.fromkeys(self.loops, "sizes of the call follow from data")))  # fmt: skip
            if memory.peak <= self.budget:
                return self._bounded(self.program, None, memory, dict.fromkeys(
                    self.loops, "the budget has room for it"))  # fmt: skip
            return self._in_segments(memory, inputs, shapes, values)

    @property
    def loops(self) -> list[Apply]:
        """The loops that have a gradient."""
        return [*(p.forward for p in self.pairs), *self.left]

    def _in_segments(
        self, plain: CallMemory, inputs: Sequence[Variable],
        shapes: Mapping[Variable, tuple[int, ...]], values: Mapping[Variable, Any],
    ) -> Within:  # fmt: skip
        own = dict(zip(inputs, self.source.inputs, strict=True))
        here = {own.get(v, v): s for v, s in shapes.items()}
        numbers = {own.get(v, v): a for v, a in values.items()}
        known = known_sizes(self.source.toposort(), here, numbers)
        facts = {p: f for p in self.pairs if (f := facts_of(p, *known, self.place)) is not None}
        why = dict(self.left)
        why |= {p.forward: "its sizes follow from data" for p in self.pairs if p not in facts}
        large = {p: f for p, f in facts.items()
                 if f.steps > 1 and f.bytes_of_steps >= _SMALL * self.budget}  # fmt: skip
        why |= {p.forward: "it is small" for p in facts if p not in large}
        if not large:
            return self._bounded(self.program, None, plain, why)
        rounds = _Rounds(self, large, own, shapes, values, why)
        return rounds.run(plain)

    def _bounded(
        self, program: Program, inputs: Sequence[Variable] | None, memory: CallMemory,
        why: Mapping[Apply, str], chosen: Mapping[Apply, Sequence[Piece]] | None = None,
    ) -> Within:  # fmt: skip
        """A program whose segments keep to what is left beside what waits for later regions."""
        regions: list[Region] = []
        for region, own, beside in zip(program.regions, memory.own, memory.beside, strict=True):
            left = max(1, self.budget - beside)
            if own > left and not isinstance(region, Segment):
                raise self._over(memory)
            one = replace(program, regions=(region,))
            regions += with_budget(one, left).regions
        said = [LoopWithin(str(n.op), str(n.origin), tuple(p)) for n, p in (chosen or {}).items()]
        bounded = replace(program, regions=tuple(regions))
        return Within(bounded, inputs, (*said, *self._left_alone(why)), memory)

    def _over(self, memory: CallMemory) -> OverBudget:
        return OverBudget(
            f"memory_budget={self.budget}: with its loops in segments, {memory.peak} is the least "
            "that was found for a call beside its arguments and shared variables. Give that much, "
            "a smaller batch, or fewer results"
        )

    def _left_alone(self, why: Mapping[Apply, str]) -> tuple[LoopWithin, ...]:
        return tuple(LoopWithin(str(n.op), str(n.origin), (), w) for n, w in why.items())

    def made(self, chosen: Mapping[Pair, Sequence[Piece]]) -> tuple[Program, Sequence[Variable]]:
        """The program with these loops in segments, and its inputs."""
        fgraph, copies = self.source.clone()
        pairs = [(_copied(p, copies), pieces) for p, pieces in chosen.items()]
        put_in_segments(fgraph, pairs)
        return self.compiled(fgraph), fgraph.inputs


def _copied(pair: Pair, copies: Mapping[Variable, Variable]) -> Pair:
    forward, backward = (copies[n.outputs[0]].owner for n in (pair.forward, pair.backward))
    assert forward is not None
    assert backward is not None
    sequences = tuple(copies.get(r, r) if isinstance(r, Variable) else r for r in pair.sequences)
    return Pair(forward, backward, sequences)


class _Rounds:
    """Choices by estimate, each corrected by the memory of the last one's program."""

    def __init__(
        self, budget: LoopBudget, loops: Mapping[Pair, LoopFacts],
        own: Mapping[Variable, Variable], shapes: Mapping[Variable, tuple[int, ...]],
        values: Mapping[Variable, Any], why: Mapping[Apply, str],
    ) -> None:  # fmt: skip
        self.budget, self.loops, self.why = budget, loops, why
        self.own, self.shapes, self.values = own, shapes, values

    def run(self, plain: CallMemory) -> Within:
        """The program of the least time within the budget, or else that of the fewest bytes."""
        bound, first = self.budget.budget, list(self.loops.values())
        facts, measured = first, list[tuple[float, float]]()
        room, seen = float(bound), set()
        best: tuple[tuple[float, float], Any] | None = None
        for _ in range(_MOST_ROUNDS):
            pieces = chosen_pieces(facts, room, self.budget.place)
            key = tuple(map(tuple, pieces))
            if key in seen:
                break
            seen.add(key)
            chosen = dict(zip(self.loops, pieces, strict=True))
            program, inputs = self.budget.made(chosen)
            memory = self._memory(program, inputs)
            rank = max(memory.peak, bound), time_of(facts, pieces, self.budget.place)
            if best is None or rank < best[0]:
                best = rank, (program, inputs, memory, chosen)
            if 0 <= bound - memory.peak < _ROOM * bound:
                break
            measured.append((working_of(first, pieces), float(memory.steps)))
            facts = corrected(first, measured)
            room = 0.99 * bound - max(memory.peak - bytes_of(facts, pieces), 0.0)
        assert best is not None
        program, inputs, memory, chosen = best[1]
        if memory.peak >= plain.peak:
            return self.budget._bounded(self.budget.program, None, plain, self._in_vain())
        of_loops = {p.forward: pieces for p, pieces in chosen.items()}
        return self.budget._bounded(program, inputs, memory, self.why, of_loops)

    def _in_vain(self) -> Mapping[Apply, str]:
        return {**self.why, **dict.fromkeys((p.forward for p in self.loops), "segments of it "
                "would need as much")}  # fmt: skip

    def _memory(self, program: Program, inputs: Sequence[Variable]) -> CallMemory:
        there = dict(zip(self.own.values(), inputs, strict=True))
        here = {v: there[u] for v, u in self.own.items()}
        shapes = {here.get(v, v): s for v, s in self.shapes.items()}
        values = {here.get(v, v): a for v, a in self.values.items()}
        return call_memory(program, shapes, values)
