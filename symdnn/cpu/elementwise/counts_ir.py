"""LLVM IR of counts: integers are added to a short vector where an index array says.

A sum that is read right after it was written waits for that write. So neighbouring elements are
added to tables of their own, which are added to the vector at the end. The order of sums of
integers does not matter. Threads have equal shares of the elements.
"""

from __future__ import annotations

from collections.abc import Mapping

from symdnn.cpu.elementwise.indexed_ir import LANES_OF_TASK, GatherPlan, IndexedBuilder
from symdnn.cpu.ir.scalar_ir import STORED
from symdnn.graph.type import numpy_dtype

__all__ = ["MOST_COUNTS", "counts_ir"]

#: The longest vector: its tables fit the first cache.
MOST_COUNTS = 512
_TABLES = 4


def counts_ir(plan: GatherPlan) -> str:
    """The module of ``kernel``, which looks at the indices, too.

    The vector stays as it is where a thread finds one out of range.
    """
    rows = _CountsBuilder(plan)
    rows.loops()
    return rows.module()


class _CountsBuilder(IndexedBuilder):
    """Builds the function of tasks: ``each`` elements each, of ``n``."""

    def __init__(self, plan: GatherPlan) -> None:
        super().__init__(plan)
        self._kind = STORED[plan.dense.dtype]

    def loops(self) -> None:
        """Append the function ``rows`` but its end."""
        table = f"[{MOST_COUNTS} x {self._kind}]"
        tables = [f"%table{t} = alloca {table}, align 64" for t in range(_TABLES)]
        self.begin(["%wrong = alloca i64", *tables])
        nbytes = self.affine("%a0.size", int(numpy_dtype(self.plan.dense.dtype).itemsize))
        self.declared.add("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
        for t in range(_TABLES):
            self.put(f"call void @llvm.memset.p0.i64(ptr %table{t}, i8 0, i64 {nbytes}, i1 false)")
        low = self.new("mul i64 %r, %each")
        count = self.least(self.new(f"sub i64 %n, {low}"), "%each")
        last = self.new(f"udiv i64 {self.new(f'sub i64 {count}, 1')}, {LANES_OF_TASK}")

        def block(i: str, sofar: list[str]) -> list[str]:
            first = self.affine(i, LANES_OF_TASK)
            some = self.least(self.new(f"sub i64 {count}, {first}"), str(LANES_OF_TASK))
            return [self._block(self.begun("0", self.new(f"add i64 {low}, {first}")), some, *sofar)]

        blocks = self.affine(last, 1, 1)
        (wrong,) = self.counted("block", 0, blocks, block, ["0"], "i64")
        self.report(wrong)
        self.when("fine", self.new(f"icmp eq i64 {wrong}, 0"), self._merge)

    def _block(self, begun: Mapping[str, str], count: str, wrong: str) -> str:
        """Append the additions of some elements; a number that is not 0 if an index is bad.

        Indices that count from the end, or are wrong, are rare: without them there is less to do.
        """

        def look(i: str, sofar: list[str]) -> list[str]:
            return [self.strange([0], begun, i, sofar[0])]

        (strange,) = self.counted("look", 0, count, look, ["0"], "i64", parallel=True)
        self.put(f"store i64 {wrong}, ptr %wrong")

        def either(plain: bool, _: str) -> None:
            groups = self.new(f"udiv i64 {count}, {_TABLES}")
            self._each("0", groups, begun, _TABLES, plain)
            self._each(self.affine(groups, _TABLES), count, begun, 1, plain)

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

        def loop() -> None:
            (found,) = self.counted(self.tag(), first, last, some, ["0"], "i64")
            before = self.new("load i64, ptr %wrong")
            self.put(f"store i64 {self.new(f'or i64 {before}, {found}')}, ptr %wrong")

        self.when(self.tag(), self.new(f"icmp slt i64 {first}, {last}"), loop)

    def _add(self, begun: Mapping[str, str], i: str, t: int, wrong: str, plain: bool) -> str:
        """Append the addition of an element; whether it or an earlier one has a bad index."""
        place = self.lane("a0", begun["a0"], i)
        if plain:
            number = self.loaded(0, place)
        else:
            number, wrong = self.sound(0, place, wrong)
        value = self.new(f"load {self._kind}, ptr {self.lane('y', begun['y'], i)}")
        place = self.new(f"getelementptr {self._kind}, ptr %table{t}, i64 {number}")
        old = self.new(f"load {self._kind}, ptr {place}")
        self.put(f"store {self._kind} {self.new(f'add {self._kind} {old}, {value}')}, ptr {place}")
        return wrong

    def _merge(self) -> None:
        """Append the loop that adds the tables to the vector."""

        def bin_(i: str, _: list[str]) -> list[str]:
            total = ""
            for t in range(_TABLES):
                place = self.new(f"getelementptr {self._kind}, ptr %table{t}, i64 {i}")
                value = self.new(f"load {self._kind}, ptr {place}")
                total = self.new(f"add {self._kind} {total}, {value}") if total else value
            to = self.bytes_at("%x.data", self.new(f"mul i64 {i}, %a0.step"))
            if not self.plan.one_part:
                self.new(f"atomicrmw add ptr {to}, {self._kind} {total} monotonic")
                return []
            old = self.new(f"load {self._kind}, ptr {to}")
            self.put(f"store {self._kind} {self.new(f'add {self._kind} {old}, {total}')}, ptr {to}")
            return []

        self.counted("bin", 0, "%a0.size", bin_)
