"""Reductions as LLVM IR: results of an elementwise program are reduced and never stored.

Dimensions are kept or reduced. If the innermost is reduced, a row is reduced in one register. If it
is kept, a block of columns is reduced together (:mod:`symdnn.cpu.reduce.columns_ir`).

Sums of floats are exact to a few units in the last place, whatever the length. Vector lanes add up
blocks of a few thousand elements, the only additions that LLVM may reorder; blocks are added in
float64 with the rounding error carried along. A long reduction is cut into chunks that depend on
its size alone, and the results of chunks are added in order. So a result does not depend on the
number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence

from symdnn.cpu.ir.loops_ir import METADATA, THREADS, LoopOperand, word
from symdnn.cpu.ir.math_ir import definitions
from symdnn.cpu.ir.scalar_ir import VALUES, literal, load_as, store_as
from symdnn.cpu.reduce.columns_ir import BLOCK_COLUMNS, ColumnSource
from symdnn.cpu.reduce.reduce_parts import (
    Combined,
    ReduceShape,
    ReduceSource,
    compensated,
    identity,
    part_range,
    task_end,
    word_names,
)
from symdnn.ops.core.scalar import ScalarProgram

__all__ = ["BLOCK_COLUMNS", "Combined", "ReduceShape", "reduce_ir", "word_names"]


def reduce_ir(
    program: ScalarProgram,
    combined: Sequence[Combined],
    shape: ReduceShape,
    reads: Sequence[LoopOperand],
    dense: bool,
) -> str:
    """The module of ``kernel``. ``dense``: results of neighbouring columns are contiguous."""
    kind = ColumnSource if shape.columns else _RowSource
    source = kind(program, combined, shape, reads, dense)
    loops, finish = source.loops(), _finish(source)
    lines = [
        *sorted(source.declared),
        *definitions(source.helpers),
        *(line.replace("@kernel(", "@parts(") for line in THREADS),
        *loops,
        *finish,
        "define void @kernel(ptr %w) {",
        "entry:",
        "call void @parts(ptr %w)",
        *word("%C", source.at["C"]),
        "%several = icmp sgt i64 %C, 1",
        "br i1 %several, label %rest, label %done",
        "rest:",
        "call void @finish(ptr %w)",
        "br label %done",
        "done:",
        "ret void",
        "}",
        *METADATA,
    ]
    return "\n".join(lines) + "\n"


class _RowSource(ReduceSource):
    """The function ``rows`` of reductions whose innermost dimension is reduced."""

    def loops(self) -> list[str]:
        """Its lines: a task reduces a chunk of one result."""
        kept, k_index = self.split("%k", "k", self.shape.kept, "k")
        reduced, r_index = self.split("%row", "r", self.shape.reduced, "row_")
        names = [f"x{i}" for i in range(len(self.reads))]
        values, results = self.values("")
        every = list(enumerate(self.combined))
        lines = [
            "define internal void @rows(ptr %w, i64 %r0, i64 %r1, i64 %i0, i64 %i1) noinline #0 {",
            "entry:", *self.sizes(), *self.operands(), *self.results(), "br label %task",
            "task:",
            "%t = phi i64 [%r0, %entry], [%t_next, %task_end]",
            "%c = urem i64 %t, %C", "%k = udiv i64 %t, %C",
            *kept,
            *(x for n in names for x in self.moved(f"%{n}_data", n, "k", k_index, f"kept_{n}")),
            *part_range("q", "%c", "%Q", "%QT"),
            "br label %part",
            "part:",
            "%q = phi i64 [%q_from, %task], [%q_next, %part_end]",
            *(self._total_phi(r, c) for r, c in every),
            *(f"%low{r} = phi double [{literal('0x0p0', 'float64')}, %task], "
              f"[%low_next{r}, %part_end]" for r, c in every if compensated(c)),
            "%s = urem i64 %q, %S", "%row = udiv i64 %q, %S",
            *part_range("i", "%s", "%seg", "%n"),
            *reduced,
            *(x for n in names for x in self.moved(f"%kept_{n}", n, "r", r_index, f"base_{n}")),
            "br label %element",
            "element:",
            "%i = phi i64 [%i_from, %part], [%i_next, %element]",
            *(f"%acc{r} = phi {VALUES[c.dtype]} [{identity(c, c.dtype)}, %part], "
              f"[%acc_next{r}, %element]" for r, c in every),
            *values,
            *(x for r, c in every
              for x in self.combine(c, c.dtype, f"%acc_next{r}", f"%acc{r}", results[r], True)),
            "%i_next = add nuw nsw i64 %i, 1",
            "%more = icmp slt i64 %i_next, %i_to",
            "br i1 %more, label %element, label %part_end, !llvm.loop !1",
            "part_end:",
            *(x for r, c in every for x in self._into_total(r, c)),
            "%q_next = add i64 %q, 1",
            "%q_more = icmp slt i64 %q_next, %q_to",
            "br i1 %q_more, label %part, label %parts_end",
            "parts_end:",
            *(x for r, c in every for x in self._whole(r, c)),
            "%alone = icmp eq i64 %C, 1",
            "br i1 %alone, label %direct, label %partial",
            "direct:",
            *(x for r, c in every
              for x in (*self.moved(f"%y{r}_data", f"y{r}", "k", k_index, f"at{r}"),
                        *self.stored(r, f"%whole{r}", f"%at{r}"))),
            "br label %task_end",
            "partial:",
            *(x for r, c in every
              for x in (f"%slot{r} = getelementptr i64, ptr %p{r}, i64 %t",
                        *store_as(c.total, f"%whole{r}", f"%slot{r}"))),
            "br label %task_end",
            *task_end(),
        ]  # fmt: skip
        return lines

    def _total_phi(self, r: int, c: Combined) -> str:
        return (
            f"%total{r} = phi {VALUES[c.total]} [{identity(c, c.total)}, %task], "
            f"[%total_next{r}, %part_end]"
        )

    def _into_total(self, r: int, c: Combined) -> list[str]:
        wide = self.widened(c, f"%wide{r}", f"%acc_next{r}")
        new = f"%total_next{r}"
        lines = [*wide, *self.combine(c, c.total, new, f"%total{r}", f"%wide{r}", False)]
        if compensated(c):  # the rounding error of the addition (two-sum)
            lines += [
                f"%v{r}a = fsub double {new}, %total{r}",
                f"%v{r}b = fsub double {new}, %v{r}a",
                f"%v{r}c = fsub double %total{r}, %v{r}b",
                f"%v{r}d = fsub double %wide{r}, %v{r}a",
                f"%v{r}e = fadd double %v{r}c, %v{r}d",
                f"%low_next{r} = fadd double %low{r}, %v{r}e",
            ]
        return lines

    def _whole(self, r: int, c: Combined) -> list[str]:
        t, total = VALUES[c.total], f"%total_next{r}"
        if not compensated(c):
            return [f"%whole{r} = bitcast {t} {total} to {t}"]
        return [  # the error of infinite totals is NaN and must not be added
            f"%lost{r} = fcmp uno double %low_next{r}, %low_next{r}",
            f"%none{r} = fcmp oeq double %low_next{r}, 0.0",
            f"%keep{r} = or i1 %lost{r}, %none{r}",
            f"%both{r} = fadd double {total}, %low_next{r}",
            f"%whole{r} = select i1 %keep{r}, double {total}, double %both{r}",
        ]


def _finish(source: ReduceSource) -> list[str]:
    """The function ``finish``, which combines the chunks of every result in order."""
    kept, k_index = source.split("%k", "k", source.shape.kept, "k")
    every = list(enumerate(source.combined))
    lines = [
        "define internal void @finish(ptr %w) {",
        "entry:", *source.sizes(), *source.results(), *source.load("outputs"), "br label %each",
        "each:",
        "%o = phi i64 [0, %entry], [%o_next, %chunks_end]",
        "%j = urem i64 %o, %m", "%k = udiv i64 %o, %m",
        "%kC = mul i64 %k, %C", "%km = mul i64 %kC, %m", "%first = add i64 %km, %j",
        *kept,
        "br label %chunk",
        "chunk:",
        "%c = phi i64 [0, %each], [%c_next, %chunk]",
        *(f"%total{r} = phi {VALUES[c.total]} [{identity(c, c.total)}, %each], "
          f"[%total_next{r}, %chunk]" for r, c in every),
        "%cm = mul i64 %c, %m", "%n_slot = add i64 %first, %cm",
    ]  # fmt: skip
    for r, c in every:
        lines.append(f"%slot{r} = getelementptr i64, ptr %p{r}, i64 %n_slot")
        lines += load_as(c.total, f"%part{r}", f"%slot{r}")
        lines += source.combine(c, c.total, f"%total_next{r}", f"%total{r}", f"%part{r}", False)
    lines += [
        "%c_next = add i64 %c, 1",
        "%c_more = icmp slt i64 %c_next, %C",
        "br i1 %c_more, label %chunk, label %chunks_end",
        "chunks_end:",
    ]
    for r, _ in every:
        lines += source.moved(f"%y{r}_data", f"y{r}", "k", k_index, f"row{r}")
        lines += [
            f"%jo{r} = mul i64 %j, %y{r}.i",
            f"%at{r} = getelementptr i8, ptr %row{r}, i64 %jo{r}",
            *source.stored(r, f"%total_next{r}", f"%at{r}"),
        ]
    return [
        *lines,
        "%o_next = add i64 %o, 1",
        "%o_more = icmp slt i64 %o_next, %outputs",
        "br i1 %o_more, label %each, label %done",
        "done:", "ret void", "}",
    ]  # fmt: skip
