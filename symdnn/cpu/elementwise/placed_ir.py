"""LLVM IR of parts that are added to zeros, by pieces of rows that are each written once.

A part lies in the result along slices. Where all parts have elements and one step along rows, one
loop adds them: an iteration writes as many neighbours as the step has, of which LLVM makes vectors.
Elsewhere a piece is filled with zeros, and then each part is added to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from symdnn.cpu.ir.loops_ir import ACCESS, EVERY, data_of, word
from symdnn.cpu.ir.math_ir import definitions
from symdnn.cpu.ir.program_ir import LoopBuilder
from symdnn.cpu.ir.scalar_ir import store_as
from symdnn.graph.type import numpy_dtype
from symdnn.ops.core.scalar import ScalarProgram

_MEMSET = "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)"


@dataclass(frozen=True)
class PlacedPart:
    """Steps of a part in the result along its axes, the last of which is that of rows.

    ``whole`` are the axes outside of rows along which it has every element. ``inner`` is the kind
    of its own stride along rows (see :class:`~symdnn.cpu.ir.loops_ir.LoopOperand`). ``first`` is
    where it begins along rows, modulo its step. ``scaled`` is what is added for an element.
    """

    steps: tuple[int, ...]
    whole: tuple[bool, ...]
    inner: str
    first: int
    scaled: ScalarProgram


@dataclass(frozen=True)
class PlacedPlan:
    """What the text depends on; ``total`` adds two numbers, ``zero`` is one."""

    dtype: str
    parts: tuple[PlacedPart, ...]
    total: ScalarProgram
    zero: ScalarProgram

    @property
    def outer(self) -> int:
        """The number of axes outside of rows."""
        return len(self.parts[0].whole)

    @property
    def step(self) -> int:
        """The step of all parts along rows; 0 where there are several."""
        steps = {p.steps[-1] for p in self.parts}
        return steps.pop() if len(steps) == 1 else 0


def placed_words(plan: PlacedPlan) -> list[str]:
    """Names of the words of the block.

    A row has ``L`` elements, in ``C`` pieces of ``W``. Part ``p0`` begins at ``p0.at0`` along the
    first axis, and covers ``p0.n0`` places from there on; along rows it begins in the group
    ``p0.g`` of as many places as its step has (at place ``p0.p``), and has ``p0.n`` elements, which
    are ``p0.i`` bytes apart.
    """
    names = ["threads", "tasks", "one", "C", "W", "L"]
    names += [f"kn{d}" for d in range(1, plan.outer)]
    names += ["y", *(f"y.k{d}" for d in range(plan.outer))]
    for k in range(len(plan.parts)):
        names += [f"p{k}", *(f"p{k}.{w}" for w in ("g", "p", "n", "i"))]
        names += [f"p{k}.{w}{d}" for d in range(plan.outer) for w in ("k", "at", "n")]
    return names


def placed_ir(plan: PlacedPlan) -> str:
    """The module of ``kernel``."""
    rows = _PlacedBuilder(plan)
    rows.loops()
    return rows.task_module(_MEMSET, *definitions(rows.helpers))


class _PlacedBuilder(LoopBuilder):
    """Builds the function of tasks, a piece of a row each."""

    def __init__(self, plan: PlacedPlan) -> None:
        super().__init__()
        self.plan = plan
        self.size = int(numpy_dtype(plan.dtype).itemsize)

    def loops(self) -> None:
        """Append the function ``rows`` but its end."""
        plan, entry = self.plan, list[str]()
        arrays = {"y", *(f"p{k}" for k in range(len(plan.parts)))}
        for i, name in enumerate(placed_words(plan)):
            entry += data_of(f"%{name}.data", i) if name in arrays else word(f"%{name}", i)
        self.tasks(entry, "task")
        piece, row = self.new("urem i64 %r, %C"), self.new("udiv i64 %r, %C")
        low = self.times(piece, "%W")
        high = self.least(self.plus(low, "%W"), "%L")
        places = self.split(row, "k", plan.outer)
        out = self.moved("%y.data", "y", "k", places)
        found = [self._row_of(k, places) for k in range(len(plan.parts))]
        inside, begun = [f for f, _ in found], [b for _, b in found]
        before, after = self._together(out, low, high, inside, begun) if plan.step else (high, high)
        with self.each("end", 0, "2") as number:
            first = self.new(f"icmp eq i64 {number}, 0")
            a = self.new(f"select i1 {first}, i64 {low}, i64 {after}")
            b = self.new(f"select i1 {first}, i64 {before}, i64 {high}")
            some = self.new(f"icmp slt i64 {a}, {b}")
            with self.when("apart", some):
                self._apart(out, a, b, inside, begun)

    def _row_of(self, k: int, places: Sequence[str]) -> tuple[str, str]:
        """Whether part ``k`` has a row at these places, and the address of that row."""
        part, inside, base = self.plan.parts[k], "true", f"%p{k}.data"
        for d, (place, step) in enumerate(zip(places, part.steps)):
            if not part.whole[d]:
                place = self.minus(place, f"%p{k}.at{d}")
                inside = self._both(inside, self.new(f"icmp ult i64 {place}, %p{k}.n{d}"))
                if step != 1:
                    rest = self.new(f"urem i64 {place}, {step}")
                    inside = self._both(inside, self.new(f"icmp eq i64 {rest}, 0"))
                    place = self.new(f"udiv i64 {place}, {step}")
            base = self.bytes_at(base, (place, f"%p{k}.k{d}"))
        return inside, base

    def _both(self, a: str, b: str) -> str:
        return b if a == "true" else self.new(f"and i1 {a}, {b}")

    def _together(
        self, out: str, low: str, high: str, inside: Sequence[str], begun: Sequence[str]
    ) -> tuple[str, str]:
        """Append the loop over groups of places where all parts are; where it begins and ends.

        Both are ``high`` if there are none.
        """
        plan, step = self.plan, self.plan.step
        first = self.new(f"udiv i64 {self.affine(low, 1, step - 1)}, {step}")
        last = self.new(f"udiv i64 {high}, {step}")
        every = "true"
        for k, here in enumerate(inside):
            every = self._both(every, here) if here != "true" else every
            first = self.most(first, f"%p{k}.g")
            last = self.least(last, self.plus(f"%p{k}.g", f"%p{k}.n"))
        some = self._both(every, self.new(f"icmp slt i64 {first}, {last}"))
        with self.when("together", some), self.each("group", first, last, parallel=True) as g:
            own = [self.minus(g, f"%p{k}.g") for k in range(len(plan.parts))]
            for r in range(step):
                of_lane = [k for k, p in enumerate(plan.parts) if p.first == r]
                values = [self._element(k, begun[k], own[k]) for k in of_lane]
                total = values[0] if values else self.program(plan.zero, [])
                for value in values[1:]:
                    total = self.program(plan.total, [*total, *value])
                self._store(total, out, self.affine(g, step, r))
        ends = [self.times(g, step) for g in (first, last)]
        before, after = (self.new(f"select i1 {some}, i64 {e}, i64 {high}") for e in ends)
        return before, after

    def _apart(
        self, out: str, low: str, high: str, inside: Sequence[str], begun: Sequence[str]
    ) -> None:
        """Append what fills a piece with zeros, and adds each part to it."""
        target = self.bytes_at(out, self.affine(low, self.size))
        nbytes = self.affine(self.minus(high, low), self.size)
        self.put(f"call void @llvm.memset.p0.i64(ptr {target}, i8 0, i64 {nbytes}, i1 false)")
        for k in range(len(self.plan.parts)):
            self._added(k, out, (low, high), inside[k], begun[k])

    def _added(self, k: int, out: str, piece: tuple[str, str], inside: str, base: str) -> None:
        """Append what adds part ``k`` to a piece of a row."""
        step, at = self.plan.parts[k].steps[-1], f"%p{k}.p"
        first, last = (
            self.new(f"udiv i64 {self.affine(self.most(past, '0'), 1, step - 1)}, {step}")
            for past in [self.minus(x, at) for x in piece]
        )
        last = self.least(last, f"%p{k}.n")
        some = self._both(inside, self.new(f"icmp slt i64 {first}, {last}"))
        with self.when(f"has{k}", some), self.each(f"part{k}", first, last, parallel=True) as i:
            to = self.plus(self.affine(i, step), at)
            old = self.parts_of(self.plan.dtype, self._at(out, to), ACCESS)
            value = self._element(k, base, i)
            self._store(self.program(self.plan.total, [*old, *value]), out, to)

    def _at(self, base: str, i: str) -> str:
        return self.new(f"getelementptr i{8 * self.size}, ptr {base}, i64 {i}")

    def _element(self, k: int, base: str, i: str) -> list[str]:
        """What is added for element ``i`` of the row of part ``k``."""
        kind = self.plan.parts[k].inner
        if kind in ("dense", "one"):
            place = self._at(base, i if kind == "dense" else "0")
        elif kind.startswith(EVERY):
            place = self._at(base, self.affine(i, int(kind.removeprefix(EVERY))))
        else:
            place = self.bytes_at(base, (i, f"%p{k}.i"))
        values = self.parts_of(self.plan.dtype, place, ACCESS)
        return self.program(self.plan.parts[k].scaled, values)

    def _store(self, values: Sequence[str], base: str, i: str) -> None:
        self.put(*store_as(self.plan.dtype, values, self._at(base, i), ACCESS))
