"""Reductions whose innermost dimension is kept: a block of columns is reduced together."""

from __future__ import annotations

from symdnn.cpu.ir.loops_ir import ACCESS, LoopOperand, address, renamed
from symdnn.cpu.ir.scalar_ir import VALUES, load_as, store_as
from symdnn.cpu.reduce.reduce_parts import Combined, ReduceSource, identity, part_range, task_end

__all__ = ["BLOCK_COLUMNS", "ColumnSource"]

#: Columns of a block.
BLOCK_COLUMNS = 256
#: How many rows are combined before they are added to the totals (unrolling over rows). Programs
#: of one operand that cost at most so many additions take more: a row's address is one register.
_UNROLL_ROWS, _UNROLL_ROWS_OF_UNARY, _MAX_COST_OF_UNARY = 4, 8, 8


class ColumnSource(ReduceSource):
    """The function ``rows`` of reductions whose innermost dimension is kept."""

    def loops(self) -> list[str]:
        """Its lines: a task reduces a chunk of rows of one block of columns."""
        kept, k_index = self.split("%k", "k", self.shape.kept, "k")
        every = list(enumerate(self.combined))
        names = [f"x{i}" for i in range(len(self.reads))]
        simple = len(names) == 1 and self.program.cost <= _MAX_COST_OF_UNARY
        rows = _UNROLL_ROWS_OF_UNARY if simple else _UNROLL_ROWS
        return [
            "define internal void @rows(ptr %w, i64 %r0, i64 %r1, i64 %i0, i64 %i1) noinline #0 {",
            "entry:", *self.sizes(), *self.operands(), *self.results(),
            *(f"%sum{r} = alloca [{BLOCK_COLUMNS} x {_stored(c.total)}], align 64"
              for r, c in every),
            "br label %task",
            "task:",
            "%t = phi i64 [%r0, %entry], [%t_next, %task_end]",
            "%c = urem i64 %t, %C", "%tc = udiv i64 %t, %C",
            "%jb = urem i64 %tc, %JB", "%k = udiv i64 %tc, %JB",
            *kept,
            *(x for n in names for x in self.moved(f"%{n}_data", n, "k", k_index, f"kept_{n}")),
            *part_range("j", "%jb", str(BLOCK_COLUMNS), "%m"),
            *part_range("q", "%c", "%Q", "%QT"),
            "br label %clear",
            *self._loop("clear", "task", [
                x for r, c in every for x in (
                    self._sum_at(r), *store_as(c.total, identity(c, c.total), f"%g_sum{r}", ACCESS)
                )
            ]),
            "clear_end:",
            f"%q_many = sub i64 %q_to, {rows - 1}",
            "%some = icmp slt i64 %q_from, %q_many",
            "br i1 %some, label %many, label %few_check",
            *self._passes("many", "clear_end", rows, "%q_many", "%q_from"),
            "many_done:", "br label %few_check",
            "few_check:",
            "%q_left = phi i64 [%q_from, %clear_end], [%many_next, %many_done]",
            "%some_left = icmp slt i64 %q_left, %q_to",
            "br i1 %some_left, label %few, label %summed",
            *self._passes("few", "few_check", 1, "%q_to", "%q_left"),
            "few_done:", "br label %summed",
            "summed:",
            "%alone = icmp eq i64 %C, 1",
            "br i1 %alone, label %direct, label %partial",
            "direct:",
            *(x for r, c in every
              for x in self.moved(f"%y{r}_data", f"y{r}", "k", k_index, f"at{r}")),
            "br label %out",
            *self._loop("out", "direct", [x for r, c in every for x in self._column_out(r, c)]),
            "out_end:", "br label %task_end",
            "partial:",
            "%kC = mul i64 %k, %C", "%kc = add i64 %kC, %c", "%pm = mul i64 %kc, %m",
            "br label %keep",
            *self._loop("keep", "partial", [x for r, c in every for x in self._column_kept(r, c)]),
            "keep_end:", "br label %task_end",
            *task_end(),
        ]  # fmt: skip

    def _loop(self, name: str, before: str, body: list[str]) -> list[str]:
        """A loop over the task's columns: ``%i`` is the column, ``%j`` its index in the block."""
        return [
            f"{name}:",
            *renamed(
                [
                    f"%i = phi i64 [%j_from, %{before}], [%i_next, %{name}]",
                    "%j = sub i64 %i, %j_from",
                    *body,
                    "%i_next = add nuw nsw i64 %i, 1",
                    "%i_more = icmp slt i64 %i_next, %j_to",
                    f"br i1 %i_more, label %{name}, label %{name}_end, !llvm.loop !1",
                ],
                name,
            ),
        ]

    def _sum_at(self, r: int) -> str:
        return f"%g_sum{r} = getelementptr {_stored(self.combined[r].total)}, ptr %sum{r}, i64 %j"

    def _passes(self, name: str, before: str, count: int, end: str, start: str) -> list[str]:
        """A loop over rows, ``count`` at a time, which adds them to the totals of the columns."""
        every = list(enumerate(self.combined))
        body, results = [], []
        setup: list[str] = []
        for u in range(count):
            tag = f"{name}{u}_"
            setup.append(f"%{tag}q = add i64 %{name}_q, {u}")
            lines, index = self.split(f"%{tag}q", "r", self.shape.reduced, f"{tag}r")
            setup += lines
            for i in range(len(self.reads)):
                n = f"x{i}"
                setup += self.moved(f"%kept_{n}", n, "r", index, f"base_{tag}{n}")
            lines, found = self.values(tag)
            body += lines
            results.append(found)
        for r, c in every:
            body += self._tree(r, c, name, [found[r] for found in results])
        return [
            f"{name}:",
            f"%{name}_q = phi i64 [{start}, %{before}], [%{name}_next, %{name}_cols_end]",
            *setup,
            f"br label %{name}_cols",
            *self._loop(f"{name}_cols", name, body),
            f"{name}_cols_end:",
            f"%{name}_next = add i64 %{name}_q, {count}",
            f"%{name}_more = icmp slt i64 %{name}_next, {end}",
            f"br i1 %{name}_more, label %{name}, label %{name}_done",
        ]

    def _tree(self, r: int, c: Combined, name: str, values: list[str]) -> list[str]:
        """Lines that add the values of several rows, in a tree, to a column's total."""
        lines, step = [], 0
        while len(values) > 1:
            pairs = list(zip(values[::2], values[1::2]))
            values = []
            for a, b in pairs:
                out = f"%{name}_t{r}_{step}"
                lines += self.combine(c, c.dtype, out, a, b, False)
                values.append(out)
                step += 1
        wide, old, new = (f"%{name}_{w}{r}" for w in ("wide", "old", "new"))
        lines += [*self.widened(c, wide, values[0]), self._sum_at(r)]
        lines += load_as(c.total, old, f"%g_sum{r}", ACCESS)
        lines += self.combine(c, c.total, new, old, wide, False)
        return [*lines, *store_as(c.total, new, f"%g_sum{r}", ACCESS)]

    def _read_sum(self, r: int, c: Combined, name: str) -> list[str]:
        return [self._sum_at(r), *load_as(c.total, name, f"%g_sum{r}", ACCESS)]

    def _column_out(self, r: int, c: Combined) -> list[str]:
        out = LoopOperand(c.finish.output_dtypes[0], "dense" if self.dense else "strided")
        lines = self._read_sum(r, c, f"%got{r}")
        lines += [f"%base_y{r} = getelementptr i8, ptr %at{r}, i64 0"]
        lines += [f"%s_y{r} = add i64 %y{r}.i, 0", *address(f"y{r}", out)]
        return [*lines, *self.stored(r, f"%got{r}", f"%p_y{r}", ACCESS)]

    def _column_kept(self, r: int, c: Combined) -> list[str]:
        return [
            *self._read_sum(r, c, f"%got{r}"),
            f"%n_slot{r} = add i64 %pm, %i",
            f"%slot{r} = getelementptr i64, ptr %p{r}, i64 %n_slot{r}",
            *store_as(c.total, f"%got{r}", f"%slot{r}", ACCESS),
        ]


def _stored(dtype: str) -> str:
    return "i8" if dtype == "bool" else VALUES[dtype]
