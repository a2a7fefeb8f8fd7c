"""LLVM IR of searches in a sorted vector: a block of values goes down all levels together.

Each value keeps where it has got to in the memory of its result. A level compares every value of a
block with one element of the vector, without a branch, so that LLVM makes vectors of the loop.
Of a short vector all elements that are left of a value are counted, which needs no gathers.
"""

from __future__ import annotations

from dataclasses import dataclass

from symdnn.cpu.ir.loops_ir import ACCESS
from symdnn.cpu.ir.scalar_ir import STORED
from symdnn.cpu.nest.lines_ir import LineBuilder
from symdnn.ops.core.scalar import Builder as ProgramBuilder
from symdnn.ops.core.scalar import ScalarProgram
from symdnn.ops.nest.monoid import ranks_before

#: Values of a task: they and their results fit the first cache.
BLOCK = 1024
#: Elements of a vector that are counted, at most, and those that a loop over a block counts.
MOST_COUNTED, TOGETHER = 64, 8
#: Words of the block: ``n`` elements of the vector ``x0``, ``m`` values ``x1``, levels to go down.
SEARCH_WORDS = ("threads", "tasks", "one", "n", "m", "levels", "x0", "x1", "y0")


@dataclass(frozen=True)
class SearchPlan:
    """The dtype, whether a value comes ``right`` of equal elements, and whether the vector is
    ``short``: not empty, and of up to :data:`MOST_COUNTED` elements.

    ``rest`` are the elements that are left where a loop over a block counts :data:`TOGETHER`.
    """

    dtype: str
    right: bool
    short: bool = False
    rest: int = 0


def search_ir(plan: SearchPlan) -> str:
    """The module of ``kernel``."""
    s = _SearchBuilder(plan)
    s.loops()
    return s.module()


def _is_left(plan: SearchPlan) -> ScalarProgram:
    """Whether an element of the vector is left of the value: NaN is behind all numbers."""
    b = ProgramBuilder([plan.dtype, plan.dtype])
    element, value = b.input(0), b.input(1)
    if plan.right:
        return b.program([b.call("not", ranks_before(b, value, element, False))])
    return b.program([ranks_before(b, element, value, False)])


class _SearchBuilder(LineBuilder):
    """Builds the function of tasks, a block of values each."""

    def __init__(self, plan: SearchPlan) -> None:
        super().__init__()
        self.plan, self.kind = plan, STORED[plan.dtype]
        self.is_left = _is_left(plan)

    def loops(self) -> None:
        """Append the function ``rows`` but its end."""
        self.begin(SEARCH_WORDS, ("x0", "x1", "y0"), 0)
        first = self.times("%r", BLOCK)
        last = self.least(self.plus(first, BLOCK), "%m")

        def level(_: str, sofar: list[str]) -> list[str]:
            half = self.new(f"lshr i64 {sofar[0]}, 1")
            self._step(first, last, half)
            return [self.minus(sofar[0], half)]

        def searched() -> None:
            self.counted("level", 0, "%levels", level, ["%n"], "i64")
            some = self.new("icmp sgt i64 %n, 0")
            with self.when("some", some):
                self._step(first, last, "1")

        with self.each("begin", first, last, parallel=True) as i:
            self.put(f"store i64 0, ptr {self._at(i)}{ACCESS}")
        if not self.plan.short:
            searched()
        elif self.kind in ("float", "double"):
            number = self._element("x0", self.minus("%n", 1))
            known = self.new(f"fcmp ord {self.kind} {number}, {number}")  # NaN is last
            self.choose(
                "known", known, lambda yes, _: self._count_left(first, last) if yes else searched()
            )
        else:
            self._count_left(first, last)

    def _count_left(self, first: str, last: str) -> None:
        """Append the loops that count the elements left of each value; none of them is NaN."""
        whole = self.new(f"udiv i64 %n, {TOGETHER}")
        with (
            self.when("many", self.new(f"icmp sgt i64 {whole}, 0")),
            self.each("whole", 0, whole) as k,
        ):
            self._add_left(self.times(k, TOGETHER), TOGETHER, first, last)
        if self.plan.rest:
            self._add_left(self.times(whole, TOGETHER), self.plan.rest, first, last)

    def _add_left(self, start: str, count: int, first: str, last: str) -> None:
        """Append the loop that adds how many of these elements are left of each value."""
        order = "le" if self.plan.right else "lt"
        if self.kind in ("float", "double"):
            compare = f"fcmp u{order}"  # all numbers are left of NaN
        else:
            compare = f"icmp {'s' if self.plan.dtype.startswith('int') else 'u'}{order}"
        elements = [self._element("x0", self.affine(start, 1, j)) for j in range(count)]
        with self.each(self.tag(), first, last, parallel=True) as i:
            value, sofar = self._element("x1", i), "0"
            for element in elements:
                left = self.new(f"{compare} {self.kind} {element}, {value}")
                sofar = self.new(f"add i32 {sofar}, {self.new(f'zext i1 {left} to i32')}")
            place = self.new(f"load i64, ptr {self._at(i)}{ACCESS}")
            more = self.new(f"zext i32 {sofar} to i64")
            self.put(f"store i64 {self.new(f'add i64 {place}, {more}')}, ptr {self._at(i)}{ACCESS}")

    def _element(self, name: str, i: str) -> str:
        """A number of the vector ``x0``, or of the values ``x1``."""
        pointer = self.new(f"getelementptr {self.kind}, ptr %{name}.data, i64 {i}")
        return self.value(self.plan.dtype, pointer, ACCESS)

    def _at(self, i: str) -> str:
        return self.new(f"getelementptr i64, ptr %y0.data, i64 {i}")

    def _step(self, first: str, last: str, half: str) -> None:
        """Move each value behind so many elements if the last of them is left of it."""
        with self.each(self.tag(), first, last, parallel=True) as i:
            place = self.new(f"load i64, ptr {self._at(i)}{ACCESS}")
            behind = self.plus(place, half)
            element = self.minus(behind, 1)
            x, value = self._element("x0", element), self._element("x1", i)
            left = self.one(self.is_left, [x, value])
            moved = self.new(f"select i1 {left}, i64 {behind}, i64 {place}")
            self.put(f"store i64 {moved}, ptr {self._at(i)}{ACCESS}")
