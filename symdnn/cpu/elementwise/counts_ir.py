"""LLVM IR of counts: numbers are added to a vector where an index array says.

A sum that is read right after it was written waits for that write. So of a short vector
neighbouring elements are added to tables of their own, which are added to the vector at the end.
The order of sums of integers does not matter: threads have equal shares of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from symdnn.cpu.elementwise.indexed_ir import LANES_OF_TASK, GatherPlan, IndexedBuilder
from symdnn.cpu.ir.loops_ir import COPY_ROW
from symdnn.cpu.ir.scalar_ir import STORED
from symdnn.graph.type import numpy_dtype

#: The longest vector that has tables, and how many.
MOST_COUNTS, _TABLES = 1 << 11, 4


def counts_ir(plan: GatherPlan) -> str:
    """The module of ``kernel``, which looks at the indices, too, if it has to ``count``.

    What a thread adds stays away from the vector where it finds one out of range.
    """
    rows = _CountsBuilder(plan)
    rows.loops()
    return rows.task_module(*COPY_ROW)


class _CountsBuilder(IndexedBuilder):
    """Builds the function of tasks: ``each`` elements each, of ``n``."""

    def __init__(self, plan: GatherPlan) -> None:
        super().__init__(plan)
        self._kind, self._checks = STORED[plan.indexed.dtype], plan.what == "count"
        self._plus = "fadd" if self._kind in ("float", "double") else "add"
        self._tables = [f"%table{t}" for t in range(_TABLES)] if plan.short else ["%x.data"]
        self._value = ""

    def loops(self) -> None:
        """Append the function ``rows`` but its end."""
        made = self._tables if self.plan.short else []
        table = f"[{MOST_COUNTS} x {self._kind}]"
        tables = [f"{name} = alloca {table}, align 64" for name in made]
        self.begin(["%wrong = alloca i64", *tables])
        nbytes = self.affine("%a0.size", int(numpy_dtype(self.plan.indexed.dtype).itemsize))
        self.declared.add("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
        for name in made:
            self.put(f"call void @llvm.memset.p0.i64(ptr {name}, i8 0, i64 {nbytes}, i1 false)")
        if self.plan.dense.inner == "one":
            self._value = self._number("%y.data")
        low = self.times("%r", "%each")
        count = self.least(self.minus("%n", low), "%each")
        last = self.new(f"udiv i64 {self.new(f'sub i64 {count}, 1')}, {LANES_OF_TASK}")

        def block(i: str, sofar: list[str]) -> list[str]:
            first = self.affine(i, LANES_OF_TASK)
            some = self.least(self.minus(count, first), str(LANES_OF_TASK))
            return [self._block(self.begun("0", self.plus(low, first)), some, *sofar)]

        blocks = self.affine(last, 1, 1)
        (wrong,) = self.counted("block", 0, blocks, block, ["0"], "i64")
        if not self._checks:
            if made:
                self._merge()
            return
        self.report(wrong)
        with self.when("fine", self.new(f"icmp eq i64 {wrong}, 0")):
            self._merge()

    def _block(self, begun: Mapping[str, str], count: str, wrong: str) -> str:
        """Append the additions of some elements; a number that is not 0 if an index is bad.

        Indices that count from the end, or are wrong, are rare: without them there is less to do.
        """

        def look(i: str, sofar: list[str]) -> list[str]:
            return [self.strange([0], begun, i, sofar[0])]

        self.put(f"store i64 {wrong}, ptr %wrong")

        def either(plain: bool, _: str) -> None:
            several = len(self._tables)
            groups = self.new(f"udiv i64 {count}, {several}")
            self._each("0", groups, begun, several, plain)
            if several > 1:
                self._each(self.affine(groups, several), count, begun, 1, plain)

        if not self._checks:
            either(True, "")
            return wrong
        (strange,) = self.counted("look", 0, count, look, ["0"], "i64", parallel=True)
        self.choose("all", self.new(f"icmp eq i64 {strange}, 0"), either)
        return self.new("load i64, ptr %wrong")

    def _each(
        self, first: str, last: str, begun: Mapping[str, str], together: int, plain: bool
    ) -> None:
        """Append the loop that adds so many elements at once, each to its table."""

        def some(i: str, sofar: list[str]) -> list[str]:
            wrong = sofar[0]
            for t in range(together):
                wrong = self._add(begun, self.affine(i, together, t), t, wrong, plain)
            return [wrong]

        with self.when(self.tag(), self.new(f"icmp slt i64 {first}, {last}")):
            (found,) = self.counted(self.tag(), first, last, some, ["0"], "i64")
            before = self.new("load i64, ptr %wrong")
            self.put(f"store i64 {self.new(f'or i64 {before}, {found}')}, ptr %wrong")

    def _add(self, begun: Mapping[str, str], i: str, t: int, wrong: str, plain: bool) -> str:
        """Append the addition of an element; whether it or an earlier one has a bad index."""
        place = self.lane("a0", begun["a0"], i)
        if plain:
            number = self.loaded(0, place)
        else:
            number, wrong = self.sound(0, place, wrong)
        value = self._value or self._number(self.lane("y", begun["y"], i))
        self._increase(self._at(t, number), value)
        return wrong

    def _at(self, t: int, number: str) -> str:
        """The address of a sum."""
        return self.new(f"getelementptr {self._kind}, ptr {self._tables[t]}, i64 {number}")

    def _number(self, place: str) -> str:
        """What is added, in the dtype of the sums."""
        kind = STORED[self.plan.dense.dtype]
        value = self.new(f"load {kind}, ptr {place}")
        return value if kind == self._kind else self.new(f"fpext {kind} {value} to {self._kind}")

    def _increase(self, place: str, value: str) -> None:
        old = self.new(f"load {self._kind}, ptr {place}")
        total = self.new(f"{self._plus} {self._kind} {old}, {value}")
        self.put(f"store {self._kind} {total}, ptr {place}")

    def _merge(self) -> None:
        """Append the loop that adds the tables to the vector."""
        with self.each("bin", 0, "%a0.size") as i:
            total = ""
            for t in range(_TABLES):
                value = self.new(f"load {self._kind}, ptr {self._at(t, i)}")
                total = self.new(f"{self._plus} {self._kind} {total}, {value}") if total else value
            to = self.bytes_at("%x.data", (i, "%a0.step"))
            if self.plan.one_part:
                self._increase(to, total)
            else:
                self.new(f"atomicrmw add ptr {to}, {self._kind} {total} monotonic")
