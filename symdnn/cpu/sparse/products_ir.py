"""Products of a matrix in compressed rows with dense ones, as LLVM IR.

Rows are divided among tasks so that each has about as many elements. A vector's lanes are
neighbouring columns of the dense matrix. Places that no matrix has are not read: the kernel sets
the word :data:`FLAG`.
"""

from __future__ import annotations

from dataclasses import dataclass

from symdnn.cpu.ir.builder import Builder
from symdnn.cpu.ir.loops_ir import ACCESS, data_of, word

#: Words before those of the arrays: threads, tasks, 1, and these.
HEAD = ("threads", "tasks", "one", "flag", "rows", "count", "minor", "width")
FLAG = HEAD.index("flag")
_DECLARED = ["declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)"]


@dataclass(frozen=True)
class ProductPlan:
    """What is compiled: ``what`` is ``"dot"``, ``"transposed"`` or ``"sampled"``.

    ``vector``: the dense operands have one column. Else ``blocks`` vectors of lanes are added up at
    a time, and ``masked`` says that the width is no multiple of these lanes.
    """

    what: str
    dtype: str
    index: str
    vector: bool
    blocks: int = 1
    masked: bool = True


def lanes_of(dtype: str) -> int:
    """Elements of a vector: 64 bytes."""
    return 16 if dtype == "float32" else 8


def product_ir(plan: ProductPlan) -> str:
    """The module of ``kernel``."""
    rows = _ProductBuilder(plan)
    rows.loops()
    return rows.task_module(*_DECLARED, *_bound(plan.index))


def _bound(index: str) -> list[str]:
    """The function ``bound``: the first row of task ``t``, whose elements begin at its share."""
    t = "i32" if index == "int32" else "i64"
    wide = "%at = sext i32 %raw to i64" if t == "i32" else "%at = add i64 %raw, 0"
    return f"""
define internal i64 @bound(ptr %indptr, i64 %rows, i64 %count, i64 %t, i64 %tasks) #0 {{
entry:
%first = icmp eq i64 %t, 0
br i1 %first, label %none, label %inner
none:
ret i64 0
inner:
%last = icmp sge i64 %t, %tasks
br i1 %last, label %every, label %search
every:
ret i64 %rows
search:
%share = mul i64 %count, %t
%wanted = udiv i64 %share, %tasks
br label %step
step:
%low = phi i64 [0, %search], [%low_next, %look]
%high = phi i64 [%rows, %search], [%high_next, %look]
%more = icmp slt i64 %low, %high
br i1 %more, label %look, label %found
look:
%sum = add i64 %low, %high
%middle = udiv i64 %sum, 2
%place = getelementptr {t}, ptr %indptr, i64 %middle
%raw = load {t}, ptr %place
{wide}
%below = icmp slt i64 %at, %wanted
%after = add i64 %middle, 1
%low_next = select i1 %below, i64 %after, i64 %low
%high_next = select i1 %below, i64 %high, i64 %middle
br label %step
found:
ret i64 %low
}}
""".strip().splitlines()


class _ProductBuilder(Builder):
    """Builds the function of tasks."""

    def __init__(self, plan: ProductPlan) -> None:
        super().__init__(lanes_of(plan.dtype), plan.dtype)
        self.plan = plan
        self._index = "i32" if plan.index == "int32" else "i64"

    def loops(self) -> None:
        """Append the function ``rows`` but its end."""
        names = ["u", "v"] if self.plan.what == "sampled" else ["x"]
        arrays = ["indices", "indptr", *names, "y"]
        if self.plan.what != "sampled":
            arrays = ["data", *arrays]
        entry = [line for i, n in enumerate(HEAD) for line in word(f"%{n}", i)]
        for i, n in enumerate(arrays, len(HEAD)):
            entry += data_of(f"%{n}", i)
        self.tasks([*entry, "%kept = alloca i64", "store i64 0, ptr %kept"], "task")
        if self.plan.what == "transposed":
            self._by_columns()
        else:
            self._by_rows()
        self._report()

    # -- places ---------------------------------------------------------------------------------

    def _integer(self, base: str, at: str, more: str = "") -> str:
        """An element of an index array as i64."""
        place = self.new(f"getelementptr {self._index}, ptr {base}, i64 {at}")
        raw = self.new(f"load {self._index}, ptr {place}{more}")
        return raw if self._index == "i64" else self.new(f"sext i32 {raw} to i64")

    def _span(self, row: str) -> tuple[str, str]:
        """Where a row's elements begin and end; it has none, and is wrong, if that cannot be."""
        begin = self._integer("%indptr", row)
        end = self._integer("%indptr", self.affine(row, 1, 1))
        tests = [f"icmp sge i64 {begin}, 0", f"icmp sle i64 {begin}, {end}",
                 f"icmp sle i64 {end}, %count"]  # fmt: skip
        right = self.new(tests[0])
        for test in tests[1:]:
            right = self.new(f"and i1 {right}, {self.new(test)}")
        self._note(self.new(f"zext i1 {self.new(f'xor i1 {right}, true')} to i64"))
        return begin, self.new(f"select i1 {right}, i64 {end}, i64 {begin}")

    def _column(self, k: str, more: str = "") -> tuple[str, str]:
        """The column of element ``k``, 0 if there is no such column, and 1 in that case."""
        j = self._integer("%indices", k, more)
        wrong = self.new(f"icmp uge i64 {j}, %minor")
        return self.new(f"select i1 {wrong}, i64 0, i64 {j}"), self.new(f"zext i1 {wrong} to i64")

    def _note(self, wrong: str) -> None:
        """Remember that something is wrong where an i64 is not 0."""
        old = self.new("load i64, ptr %kept")
        self.put(f"store i64 {self.new(f'or i64 {old}, {wrong}')}, ptr %kept")

    def _report(self) -> None:
        """Set the flag where something was wrong."""
        flag = self.new(f"getelementptr i64, ptr %w, i64 {FLAG}")
        some = self.new(f"icmp ne i64 {self.new('load i64, ptr %kept')}, 0")
        store = f"store atomic i64 1, ptr {flag} monotonic, align 8"
        with self.when("wrong", some):
            self.put(store)

    def _number(self, base: str, at: str, more: str = "") -> str:
        """An element of a dense vector."""
        return self.new(f"load {self.element}, ptr {self.at(base, at)}{more}")

    # -- by rows --------------------------------------------------------------------------------

    def _by_rows(self) -> None:
        """A task has the rows of its share of the elements."""
        low, high = (
            self.new(f"call i64 @bound(ptr %indptr, i64 %rows, i64 %count, i64 {t}, i64 %tasks)")
            for t in ("%r", self.affine("%r", 1, 1))
        )
        work = {"dot": self._dot_row, "sampled": self._sampled_row}[self.plan.what]
        with (
            self.when("some", self.new(f"icmp slt i64 {low}, {high}")),
            self.each("row", low, high) as i,
        ):
            work(i, *self._span(i))

    def _dot_row(self, row: str, begin: str, end: str) -> None:
        some = self.new(f"icmp slt i64 {begin}, {end}")
        if self.plan.vector:
            place = self.at("%y", row)
            self.put(f"store {self.element} 0.0, ptr {place}")
            with self.when("nonempty", some):
                self._dot_of_vectors(place, begin, end)
            return
        start = self.at("%y", self.times(row, "%width"))

        def filled(holds: bool, name: str) -> None:
            if holds:
                self._columns(start, begin, end)
                return
            size = self.times("%width", self._align)
            self.put(f"call void @llvm.memset.p0.i64(ptr {start}, i8 0, i64 {size}, i1 false)")

        self.choose("nonempty", some, filled)

    def _dot_of_vectors(self, place: str, begin: str, end: str) -> None:
        def element(k: str, carried: list[str]) -> list[str]:
            column, bad = self._column(k, ACCESS)
            x = self._number("%x", column, ACCESS)
            product = self.new(
                f"fmul contract {self.element} {self._number('%data', k, ACCESS)}, {x}"
            )
            total = self.new(f"fadd reassoc contract {self.element} {carried[0]}, {product}")
            return [total, self.new(f"or i64 {carried[1]}, {bad}")]

        total, bad = self.counted(
            "element", begin, end, element, ["0.0", "0"], [self.element, "i64"], parallel=True
        )
        self.put(f"store {self.element} {total}, ptr {place}")
        self._note(bad)

    def _columns(self, start: str, begin: str, end: str) -> None:
        """A row of the result: blocks of columns, each a sum over the row's elements."""
        step = self.plan.blocks * self.width
        with self.each("block", 0, "%width", step=step) as first:
            places = [self.affine(first, 1, v * self.width) for v in range(self.plan.blocks)]
            masks = [self._mask(p, "%width") for p in places]

            def element(k: str, sums: list[str]) -> list[str]:
                column, bad = self._column(k)
                number = self.splat(self._number("%data", k))
                base = self.at("%x", self.times(column, "%width"))
                loaded = [self.load(self.at(base, p), m) for p, m in zip(places, masks)]
                added = [self.multiply_add(number, x, s) for x, s in zip(loaded, sums)]
                return [*added, self.new(f"or i64 {sums[-1]}, {bad}")]

            zeros = ["zeroinitializer"] * self.plan.blocks
            kinds = [*[self.vector] * self.plan.blocks, "i64"]
            *sums, bad = self.counted("element", begin, end, element, [*zeros, "0"], kinds)
            for place, total, mask in zip(places, sums, masks):
                self.store(total, self.at(start, place), mask)
            self._note(bad)

    def _mask(self, first: str, high: str) -> str:
        return self.lanes_below(first, high) if self.plan.masked else ""

    def _sampled_row(self, row: str, begin: str, end: str) -> None:
        some = self.new(f"icmp slt i64 {begin}, {end}")
        left = self.at("%u", row if self.plan.vector else self.times(row, "%width"))

        def element(k: str, wrong: list[str]) -> list[str]:
            column, bad = self._column(k)
            if self.plan.vector:
                pair = self._number(left, "0"), self._number("%v", column)
                total = self.new(f"fmul {self.element} {pair[0]}, {pair[1]}")
            else:
                total = self._inner(left, self.at("%v", self.times(column, "%width")))
            self.put(f"store {self.element} {total}, ptr {self.at('%y', k)}")
            return [self.new(f"or i64 {wrong[0]}, {bad}")]

        def every() -> None:
            (bad,) = self.counted("element", begin, end, element, ["0"], "i64")
            self._note(bad)

        with self.when("nonempty", some):
            every()

    def _inner(self, u: str, v: str) -> str:
        """The inner product of two rows of ``width`` numbers."""

        def part(p: str, sums: list[str]) -> list[str]:
            mask = self._mask(p, "%width")
            left, right = (self.load(self.at(base, p), mask) for base in (u, v))
            return [self.multiply_add(left, right, sums[0])]

        (total,) = self.counted(
            "part", 0, "%width", part, ["zeroinitializer"], self.vector, step=self.width
        )
        return self.reduce_add(total)

    # -- by columns -----------------------------------------------------------------------------

    def _by_columns(self) -> None:
        """A task has a part of the columns of the result, to which all rows of A add."""
        if self.plan.vector:
            size = self.times("%minor", self._align)
            self.put(f"call void @llvm.memset.p0.i64(ptr %y, i8 0, i64 {size}, i1 false)")
            self._all_rows("0", "1")
            return
        parts = self.new(f"udiv i64 {self.affine('%width', 1, self.width - 1)}, {self.width}")
        low, high = (
            self.new(f"mul i64 {self.new(f'udiv i64 {share}, %tasks')}, {self.width}")
            for share in (
                self.times(parts, "%r"),
                self.times(parts, self.affine("%r", 1, 1)),
            )
        )
        high = self.least(high, "%width")

        def own() -> None:
            size = self.new(f"mul i64 {self.new(f'sub i64 {high}, {low}')}, {self._align}")
            with self.each("zero", 0, "%minor") as i:
                place = self.at("%y", self.times(i, "%width"), low)
                self.put(f"call void @llvm.memset.p0.i64(ptr {place}, i8 0, i64 {size}, i1 false)")
            self._all_rows(low, high)

        with self.when("some", self.new(f"icmp slt i64 {low}, {high}")):
            own()

    def _all_rows(self, low: str, high: str) -> None:
        with self.each("row", 0, "%rows") as i:
            begin, end = self._span(i)
            some = self.new(f"icmp slt i64 {begin}, {end}")
            with self.when("nonempty", some):
                self._scatter(i, begin, end, low, high)

    def _scatter(self, row: str, begin: str, end: str, low: str, high: str) -> None:
        base = self.at("%x", row if self.plan.vector else self.times(row, "%width"))

        def element(k: str, wrong: list[str]) -> list[str]:
            column, bad = self._column(k)
            number = self._number("%data", k)
            if self.plan.vector:
                self._add_number(column, number, self._number(base, "0"))
            else:
                self._add_columns(column, self.splat(number), base, low, high)
            return [self.new(f"or i64 {wrong[0]}, {bad}")]

        (found,) = self.counted("element", begin, end, element, ["0"], "i64")
        self._note(found)

    def _add_number(self, column: str, a: str, x: str) -> None:
        place = self.at("%y", column)
        product = self.new(f"fmul contract {self.element} {a}, {x}")
        old = self.new(f"load {self.element}, ptr {place}")
        self.put(
            f"store {self.element} {self.new(f'fadd contract {self.element} {old}, {product}')}, "
            f"ptr {place}"
        )

    def _add_columns(self, column: str, a: str, base: str, low: str, high: str) -> None:
        start = self.at("%y", self.times(column, "%width"))
        with self.each("part", low, high, step=self.width) as j:
            mask, place = self._mask(j, high), self.at(start, j)
            total = self.multiply_add(a, self.load(self.at(base, j), mask), self.load(place, mask))
            self.store(total, place, mask)
