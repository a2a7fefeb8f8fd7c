"""Softmax and its kin over rows, as LLVM IR: a few passes over a row in the cache.

A row is met two or three times: its maximum, the sum of its exponentials, its results. Short rows
have their length in the source, which makes vector code of them; others read it from the block.
All is computed in float32; numbers of 16 bits are widened when they are read, and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from symdnn.cpu.ir.loops_ir import ACCESS, data_of, exponential_module, next_task, renamed, word
from symdnn.cpu.ir.narrow_ir import NARROW, narrowed, narrowing, widened, widening
from symdnn.cpu.ir.scalar_ir import VALUES
from symdnn.cpu.ir.source_ir import Source

__all__ = ["FLAG", "KINDS", "SOFTMAX", "RowPlan", "row_ir"]

#: The word of the block that a label out of range sets; the length of rows is in the next one.
FLAG = 3
#: Operands and results of softmax and its kin: ``m`` all values, ``v`` one of each row.
SOFTMAX = {
    "softmax": ("m", "m"),
    "log_softmax": ("m", "m"),
    "softmax_grad": ("mm", "m"),
    "log_softmax_grad": ("mm", "m"),
    "logsumexp": ("m", "v"),
}
#: Operands and results of each kind: ``m`` a matrix, ``v`` one value a row, ``l`` labels.
KINDS = {
    **SOFTMAX,
    "crossentropy": ("ml", "vm"),
    "crossentropy_grad": ("vml", "m"),
}
_ZERO, _ONE = "0.0", "1.0"


@dataclass(frozen=True)
class RowPlan:
    """One kernel: ``length`` of rows where it is in the source, else 0; labels, values."""

    kind: str
    length: int = 0
    label: str = "int64"
    dtype: str = "float32"


def row_ir(plan: RowPlan) -> str:
    """The module of ``kernel``; its block: threads, rows, 1, flag, length, operands, results."""
    narrow = {widening(plan.dtype), narrowing(plan.dtype)} if plan.dtype in NARROW else set()
    return exponential_module(_Rows(plan).text(), narrow)


class _Rows(Source):
    """The function ``rows``: loops over the elements of one row after the other."""

    def __init__(self, plan: RowPlan) -> None:
        super().__init__()
        self.plan, self.n = plan, str(plan.length) if plan.length else "%n"
        self.kind = VALUES[plan.dtype]

    def text(self) -> list[str]:
        """All lines."""
        reads, writes = KINDS[self.plan.kind]
        roles = [*reads, *writes]
        operands = [line for i in range(len(roles)) for line in data_of(f"%a{i}", FLAG + 2 + i)]
        self.tasks([*word("%n", FLAG + 1), *operands], "row")
        self.lines.append(f"%start = mul i64 %r, {self.n}")
        self.at = [self._place(i, role) for i, role in enumerate(roles)]
        getattr(self, f"_{self.plan.kind}")()
        self.lines += next_task("row")
        return self.lines

    def _place(self, i: int, role: str) -> str:
        """The address of this row of an operand."""
        kind = VALUES[self.plan.label] if role == "l" else self.kind
        return self.new(f"getelementptr {kind}, ptr %a{i}, i64 {'%start' if role == 'm' else '%r'}")

    # -- loops ------------------------------------------------------------------------------------

    def loop(self, name: str, first: str | None, step: Sequence[str]) -> str:
        """A loop over the row, ``%i``; ``%acc`` begins as ``first`` and is ``%acc_next``.

        Names are made unique by ``name``; the register of the last ``%acc_next`` is returned.
        """
        self.lines += [f"br label %{name}", f"{name}:"]
        body = [f"%i = phi i64 [0, %{self.block}], [%i_next, %{name}]"]
        if first is not None:
            body.append(f"%acc = phi float [{first}, %{self.block}], [%acc_next, %{name}]")
        body += [
            *step,
            "%i_next = add nuw nsw i64 %i, 1",
            f"%more = icmp slt i64 %i_next, {self.n}",
            f"br i1 %more, label %{name}, label %{name}_end, !llvm.loop !1",
        ]
        self.lines += renamed(body, name)
        self.lines.append(f"{name}_end:")
        self.block = f"{name}_end"
        return f"%acc_next.{name}"

    def load(self, operand: int, out: str, index: str = "%i", more: str = ACCESS) -> list[str]:
        """Lines that read an element of this row of an operand."""
        kind, at, dtype = self.kind, self.at[operand], self.plan.dtype
        lines = [f"{out}_p = getelementptr {kind}, ptr {at}, i64 {index}"]
        if dtype not in NARROW:
            return [*lines, f"{out} = load {kind}, ptr {out}_p{more}"]
        narrow = f"{out}_narrow = load {kind}, ptr {out}_p{more}"
        return [*lines, narrow, f"{out} = {widened(dtype, f'{out}_narrow')}"]

    def store(self, operand: int, value: str, index: str = "%i", more: str = ACCESS) -> list[str]:
        """Lines that write an element of this row of a result."""
        kind, at, name = self.kind, self.at[operand], f"%out{operand}"
        lines = [f"{name}_p = getelementptr {kind}, ptr {at}, i64 {index}"]
        if self.plan.dtype in NARROW:
            lines.append(f"{name}_narrow = {narrowed(self.plan.dtype, value)}")
            value = f"{name}_narrow"
        return [*lines, f"store {kind} {value}, ptr {name}_p{more}"]

    def maximum(self, operand: int) -> str:
        """The largest element; NaN if there is one."""
        call = "call nsz float @llvm.maximum.f32(float %acc, float %x)"
        step = [*self.load(operand, "%x"), f"%acc_next = {call}"]
        return self.loop("top", "0xFFF0000000000000", step)

    # -- kinds ------------------------------------------------------------------------------------

    def power(self, top: str) -> list[str]:
        """Lines for ``%e``, the exponential of an element of operand 0 less ``top``."""
        return [
            *self.load(0, "%x"), f"%d = fsub float %x, {top}", "%e = call float @s_exp(float %d)",
        ]  # fmt: skip

    def powers(self, top: str, kept: Sequence[str] = ()) -> str:
        """The sum of them; ``kept`` are lines that store them."""
        return self.loop(
            "sum", _ZERO, [*self.power(top), *kept, "%acc_next = fadd reassoc float %acc, %e"]
        )

    def _softmax(self) -> None:
        top = self.maximum(0)
        # They would be rounded in 16 bits: then they are computed again.
        kept = self.plan.dtype not in NARROW
        total = self.powers(top, self.store(1, "%e") if kept else ())
        inverse = self.new(f"fdiv float {_ONE}, {total}")
        again = self.load(1, "%e") if kept else self.power(top)
        self.loop("scale", None, [*again, f"%y = fmul float %e, {inverse}", *self.store(1, "%y")])

    def _log_softmax(self, out: int = 1) -> None:
        top = self.maximum(0)
        total = self.powers(top)
        log = self.new(f"call float @s_log(float {total})")
        result = [
            *self.load(0, "%x"), f"%d = fsub float %x, {top}", f"%y = fsub float %d, {log}",
            *self.store(out, "%y"),
        ]  # fmt: skip
        self.loop("shift", None, result)

    def _logsumexp(self) -> None:
        top = self.maximum(0)
        size = self.new(f"call float @llvm.fabs.f32(float {top})")
        fine = self.new(f"fcmp olt float {size}, 0x7FF0000000000000")
        # Of infinities alone: their differences would be NaN.
        top = self.new(f"select i1 {fine}, float {top}, float {_ZERO}")
        total = self.powers(top)
        log = self.new(f"call float @s_log(float {total})")
        self.lines += self.store(1, self.new(f"fadd float {log}, {top}"), "0", "")

    def _softmax_grad(self) -> None:
        step = [
            *self.load(0, "%y"), *self.load(1, "%dy"), "%p = fmul float %y, %dy",
            "%acc_next = fadd reassoc float %acc, %p",
        ]  # fmt: skip
        dot = self.loop("dot", _ZERO, step)
        result = [
            *self.load(0, "%y"), *self.load(1, "%dy"), f"%d = fsub float %dy, {dot}",
            "%p = fmul float %y, %d", *self.store(2, "%p"),
        ]  # fmt: skip
        self.loop("scale", None, result)

    def _log_softmax_grad(self) -> None:
        step = [*self.load(1, "%dy"), "%acc_next = fadd reassoc float %acc, %dy"]
        total = self.loop("sum", _ZERO, step)
        result = [
            *self.load(0, "%y"), *self.load(1, "%dy"), "%e = call float @s_exp(float %y)",
            f"%p = fmul float %e, {total}", "%d = fsub float %dy, %p", *self.store(2, "%d"),
        ]  # fmt: skip
        self.loop("scale", None, result)

    def _crossentropy(self) -> None:
        self._log_softmax(out=3)
        label = self._label(1)
        self.lines += self.load(3, "%chosen", label, "")
        self.lines += self.store(2, self.new("fneg float %chosen"), "0", "")

    def _crossentropy_grad(self) -> None:
        self.lines += self.load(0, "%weight", "0", "")
        scaled = ["%e = call float @s_exp(float %y)", "%d = fmul float %e, %weight"]
        self.loop("scale", None, [*self.load(1, "%y"), *scaled, *self.store(3, "%d")])
        label = self._label(2)
        self.lines += [
            *self.load(1, "%y", label, ""), *scaled, "%less = fsub float %d, %weight",
            *self.store(3, "%less", label, ""),
        ]  # fmt: skip

    def _label(self, operand: int) -> str:
        """The row's label as an index; one out of range sets the flag and counts as 0."""
        kind = VALUES[self.plan.label]
        label = self.new(f"load {kind}, ptr {self.at[operand]}")
        if kind != "i64":
            extend = "sext" if self.plan.label.startswith("int") else "zext"
            label = self.new(f"{extend} {kind} {label} to i64")
        fine = self.new(f"icmp ult i64 {label}, {self.n}")
        flag = self.new(f"getelementptr i64, ptr %w, i64 {FLAG}")
        self.lines += [
            f"br i1 {fine}, label %labelled, label %bad",
            "bad:",
            f"store atomic i64 1, ptr {flag} monotonic, align 8",
            "br label %labelled",
            "labelled:",
        ]
        return self.new(f"select i1 {fine}, i64 {label}, i64 0")
