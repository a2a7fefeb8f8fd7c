"""Softmax ops along the last axis as LLVM IR: a few passes over a row, which stays in the cache.

There are two or three passes: for the maximum, for the sum of exponentials, for the results. The
length of short rows is a constant of the code, so that LLVM vectorises them; that of long rows is
read from the block. Everything is computed in float32, or in float64 for operands of that; 16-bit
numbers are widened when loaded, and rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from symdnn.cpu.ir.builder import FunctionBuilder
from symdnn.cpu.ir.loops_ir import ACCESS, data_of, exponential_module, next_task, renamed, word
from symdnn.cpu.ir.narrow_ir import NARROW, narrowed, narrowing, widened, widening
from symdnn.cpu.ir.scalar_ir import VALUES

__all__ = ["FLAG", "KINDS", "SOFTMAX", "LastAxisPlan", "last_axis_ir"]

#: Index of the word that is set if a label is out of range; the next word is the length of rows.
FLAG = 3
#: Operands and results of softmax ops: ``m`` a matrix, ``v`` one value for each row.
SOFTMAX = {
    "softmax": ("m", "m"),
    "log_softmax": ("m", "m"),
    "softmax_grad": ("mm", "m"),
    "log_softmax_grad": ("mm", "m"),
    "logsumexp": ("m", "v"),
}
#: Operands and results of all kinds; ``l`` labels.
KINDS = {
    **SOFTMAX,
    "crossentropy": ("ml", "vm"),
    "crossentropy_grad": ("vml", "m"),
}
_ZERO, _ONE = "0.0", "1.0"


@dataclass(frozen=True)
class LastAxisPlan:
    """One kernel: the constant ``length`` of rows or 0, the dtypes of labels and of values."""

    kind: str
    length: int = 0
    label: str = "int64"
    dtype: str = "float32"


def last_axis_ir(plan: LastAxisPlan) -> str:
    """The module of ``kernel``.

    Words of its block: threads, rows, 1, flag, length, operands, results.
    """
    narrow = {widening(plan.dtype), narrowing(plan.dtype)} if plan.dtype in NARROW else set()
    return exponential_module(_LastAxisSource(plan).text(), narrow, plan.dtype == "float64")


class _LastAxisSource(FunctionBuilder):
    """Builds the function ``rows``, a task of which is one row."""

    def __init__(self, plan: LastAxisPlan) -> None:
        super().__init__()
        self.plan, self.n = plan, str(plan.length) if plan.length else "%n"
        self.kind = VALUES[plan.dtype]
        wide = plan.dtype == "float64"
        #: The type that is computed in, its name in intrinsics, and that of exp and log here.
        self.t, self.suffix, self.own = ("double", "f64", "f") if wide else ("float", "f32", "s")

    def text(self) -> list[str]:
        """The lines of the function."""
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
        """A loop over the elements ``%i`` of the row; returns the last ``%acc_next``.

        ``%acc`` is ``first`` at the beginning and then the previous ``%acc_next``. Registers get
        the suffix ``name``.
        """
        self.lines += [f"br label %{name}", f"{name}:"]
        body = [f"%i = phi i64 [0, %{self.block}], [%i_next, %{name}]"]
        if first is not None:
            body.append(f"%acc = phi {self.t} [{first}, %{self.block}], [%acc_next, %{name}]")
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
        """Lines that load an element of this row of an operand."""
        kind, at, dtype = self.kind, self.at[operand], self.plan.dtype
        lines = [f"{out}_p = getelementptr {kind}, ptr {at}, i64 {index}"]
        if dtype not in NARROW:
            return [*lines, f"{out} = load {kind}, ptr {out}_p{more}"]
        narrow = f"{out}_narrow = load {kind}, ptr {out}_p{more}"
        return [*lines, narrow, f"{out} = {widened(dtype, f'{out}_narrow')}"]

    def store(self, operand: int, value: str, index: str = "%i", more: str = ACCESS) -> list[str]:
        """Lines that store an element of this row of a result."""
        kind, at, name = self.kind, self.at[operand], f"%out{operand}"
        lines = [f"{name}_p = getelementptr {kind}, ptr {at}, i64 {index}"]
        if self.plan.dtype in NARROW:
            lines.append(f"{name}_narrow = {narrowed(self.plan.dtype, value)}")
            value = f"{name}_narrow"
        return [*lines, f"store {kind} {value}, ptr {name}_p{more}"]

    def maximum(self, operand: int) -> str:
        """The maximum of the row; NaN if an element is NaN."""
        call = f"call nsz {self.t} @llvm.maximum.{self.suffix}({self.t} %acc, {self.t} %x)"
        step = [*self.load(operand, "%x"), f"%acc_next = {call}"]
        return self.loop("top", "0xFFF0000000000000", step)

    # -- kinds ------------------------------------------------------------------------------------

    def exp(self, x: str) -> str:
        """The line of ``%e``, exp of a number."""
        return f"%e = call {self.t} @{self.own}_exp({self.t} {x})"

    def exponential(self, top: str) -> list[str]:
        """Lines for ``%e``: exp of an element of operand 0 minus ``top``."""
        return [
            *self.load(0, "%x"), f"%d = fsub {self.t} %x, {top}", self.exp("%d"),
        ]  # fmt: skip

    def sum_of_exponentials(self, top: str, store: Sequence[str] = ()) -> str:
        """The sum of the row's exponentials; the lines ``store`` may store each ``%e``."""
        add = f"%acc_next = fadd reassoc {self.t} %acc, %e"
        return self.loop("sum", _ZERO, [*self.exponential(top), *store, add])

    def _softmax(self) -> None:
        top = self.maximum(0)
        # In 16 bits stored exponentials would be rounded, so they are computed twice.
        stored = self.plan.dtype not in NARROW
        total = self.sum_of_exponentials(top, self.store(1, "%e") if stored else ())
        inverse = self.new(f"fdiv {self.t} {_ONE}, {total}")
        again = self.load(1, "%e") if stored else self.exponential(top)
        scaled = f"%y = fmul {self.t} %e, {inverse}"
        self.loop("scale", None, [*again, scaled, *self.store(1, "%y")])

    def _log_softmax(self, out: int = 1) -> None:
        top = self.maximum(0)
        total = self.sum_of_exponentials(top)
        log = self.new(f"call {self.t} @{self.own}_log({self.t} {total})")
        result = [
            *self.load(0, "%x"), f"%d = fsub {self.t} %x, {top}", f"%y = fsub {self.t} %d, {log}",
            *self.store(out, "%y"),
        ]  # fmt: skip
        self.loop("shift", None, result)

    def _logsumexp(self) -> None:
        top = self.maximum(0)
        size = self.new(f"call {self.t} @llvm.fabs.{self.suffix}({self.t} {top})")
        fine = self.new(f"fcmp olt {self.t} {size}, 0x7FF0000000000000")
        # An infinite maximum: differences of infinities would be NaN.
        top = self.new(f"select i1 {fine}, {self.t} {top}, {self.t} {_ZERO}")
        total = self.sum_of_exponentials(top)
        log = self.new(f"call {self.t} @{self.own}_log({self.t} {total})")
        self.lines += self.store(1, self.new(f"fadd {self.t} {log}, {top}"), "0", "")

    def _softmax_grad(self) -> None:
        step = [
            *self.load(0, "%y"), *self.load(1, "%dy"), f"%p = fmul {self.t} %y, %dy",
            f"%acc_next = fadd reassoc {self.t} %acc, %p",
        ]  # fmt: skip
        dot = self.loop("dot", _ZERO, step)
        result = [
            *self.load(0, "%y"), *self.load(1, "%dy"), f"%d = fsub {self.t} %dy, {dot}",
            f"%p = fmul {self.t} %y, %d", *self.store(2, "%p"),
        ]  # fmt: skip
        self.loop("scale", None, result)

    def _log_softmax_grad(self) -> None:
        step = [*self.load(1, "%dy"), f"%acc_next = fadd reassoc {self.t} %acc, %dy"]
        total = self.loop("sum", _ZERO, step)
        result = [
            *self.load(0, "%y"), *self.load(1, "%dy"), self.exp("%y"),
            f"%p = fmul {self.t} %e, {total}", f"%d = fsub {self.t} %dy, %p", *self.store(2, "%d"),
        ]  # fmt: skip
        self.loop("scale", None, result)

    def _crossentropy(self) -> None:
        self._log_softmax(out=3)
        label = self._label(1)
        self.lines += self.load(3, "%chosen", label, "")
        self.lines += self.store(2, self.new(f"fneg {self.t} %chosen"), "0", "")

    def _crossentropy_grad(self) -> None:
        self.lines += self.load(0, "%weight", "0", "")
        scaled = [self.exp("%y"), f"%d = fmul {self.t} %e, %weight"]
        self.loop("scale", None, [*self.load(1, "%y"), *scaled, *self.store(3, "%d")])
        label = self._label(2)
        self.lines += [
            *self.load(1, "%y", label, ""), *scaled, f"%less = fsub {self.t} %d, %weight",
            *self.store(3, "%less", label, ""),
        ]  # fmt: skip

    def _label(self, operand: int) -> str:
        """The row's label as an index; a label out of range sets the flag and becomes 0."""
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
