"""LLVM IR of scatters: elements are changed whose place in some axes is read from index arrays.

A task has an equal share of the first index array's axis and visits all lanes. So one thread
updates an element, in the order of the indices.
"""

from __future__ import annotations

from symdnn.cpu.elementwise.indexed_ir import GatherPlan, IndexedBuilder
from symdnn.cpu.ir.loops_ir import ACCESS, COPY_ROW
from symdnn.cpu.ir.scalar_ir import STORED


def scatter_ir(plan: GatherPlan) -> str:
    """The module of ``kernel``."""
    rows = _ScatterBuilder(plan)
    rows.loops()
    return rows.task_module(*COPY_ROW)


class _ScatterBuilder(IndexedBuilder):
    """Builds the function of tasks."""

    def loops(self) -> None:
        """Append the function ``rows`` but its end."""
        self.begin()
        shares = [self.times(r, "%a0.size") for r in ("%r", self.affine("%r", 1, 1))]
        self._low, high = (self.new(f"udiv i64 {share}, %tasks") for share in shares)
        self._share = self.minus(high, self._low)
        with self.each("part", 0, "%all") as number:
            part, first, count = self.part(number)
            self._change(self.begun(part, first), count)

    def _change(self, begun: dict[str, str], count: str) -> None:
        """Append code that adds or sets the lanes whose first index is in this task's share."""
        plan, base = self.plan, begun["x"]
        kinds = enumerate(plan.index)
        alone, varying = list[int](), list[int]()
        for k, o in kinds:
            (alone if o.inner == "one" else varying).append(k)
        fixed = {k: self.number(k, begun[f"a{k}"])[0] for k in alone}
        # Lanes are different elements unless an index has them, or the same one is meant by all.
        parallel = not varying and plan.indexed.inner != "one"

        def lanes() -> None:
            start = base
            for k, number in fixed.items():
                start = self.bytes_at(start, (number, f"%a{k}.step"))

            with self.each("lane", 0, count, parallel=parallel) as i:
                y = self.lane("y", begun["y"], i)
                numbers = {k: self.number(k, self.lane(f"a{k}", begun[f"a{k}"], i))[0]
                           for k in varying}  # fmt: skip

                def touch() -> None:
                    at = self.lane("x", start, i)
                    for k, number in numbers.items():
                        at = self.along(k, at, number)
                    self._touch(at, y, ACCESS if parallel else "")

                if 0 in numbers:
                    with self.when("own", self._is_own(numbers[0])):
                        touch()
                else:
                    touch()

        if 0 in fixed:
            with self.when("own", self._is_own(fixed[0])):
                lanes()
        else:
            lanes()

    def _is_own(self, number: str) -> str:
        """Whether this task changes the elements at this number along the first index's axis."""
        return self.new(f"icmp ult i64 {self.new(f'sub i64 {number}, {self._low}')}, {self._share}")

    def _touch(self, at: str, y: str, more: str) -> None:
        """Append code that updates an indexed element with the dense one."""
        t, what = STORED[self.plan.dense.dtype], self.plan.what
        value = self.new(f"load {t}, ptr {y}{more}")
        if what != "set":
            old = self.new(f"load {t}, ptr {at}{more}")
            value = self._combined(t, old, value)
        self.put(f"store {t} {value}, ptr {at}{more}")

    def _combined(self, t: str, old: str, value: str) -> str:
        """The element that is stored for an old one and the dense one."""
        what, floats = self.plan.what, t in ("float", "double")
        if what in ("add", "mul"):
            return self.new(f"{'f' * floats}{what} {t} {old}, {value}")
        word = "gt" if what == "max" else "lt"
        if floats:  # NaN stays, and is taken
            beyond = self.new(f"fcmp o{word} {t} {value}, {old}")
            nan = self.new(f"fcmp uno {t} {value}, {value}")
            taken = self.new(f"or i1 {beyond}, {nan}")
        else:
            sign = "s" if self.plan.dense.dtype.startswith("int") else "u"
            taken = self.new(f"icmp {sign}{word} {t} {value}, {old}")
        return self.new(f"select i1 {taken}, {t} {value}, {t} {old}")
