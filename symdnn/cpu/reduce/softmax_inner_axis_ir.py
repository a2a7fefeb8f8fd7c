"""Softmax and logsumexp along an axis that is not the last, as LLVM IR.

An operand has the shape (outer, n, inner). A task is a band: up to :data:`BAND_COLUMNS` contiguous
columns of one outer index. Maxima and sums of its columns are on the stack. Each pass goes over the
n rows of the band; the innermost loop is over columns, so that LLVM vectorises it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from symdnn.cpu.ir.builder import FunctionBuilder
from symdnn.cpu.ir.loops_ir import ACCESS, data_of, exponential_module, next_task, renamed, word
from symdnn.cpu.ir.scalar_ir import VALUES, literal
from symdnn.cpu.reduce.softmax_last_axis_ir import SOFTMAX

__all__ = ["SIZES_WORD", "BAND_COLUMNS", "InnerAxisPlan", "inner_axis_ir"]

#: Columns of a band, so that with some rows it stays in the L1 cache.
BAND_COLUMNS = 256
#: Index of the word with n; then come inner, the bands of an outer index, and the operands.
SIZES_WORD = 3


@dataclass(frozen=True)
class InnerAxisPlan:
    """One kernel."""

    kind: str


def inner_axis_ir(plan: InnerAxisPlan) -> str:
    """The module of ``kernel``. Words of its block: threads, bands, 1, sizes, operands, results."""
    return exponential_module(_InnerAxisSource(plan).text())


class _InnerAxisSource(FunctionBuilder):
    """Builds the function ``rows``, a task of which is one band."""

    def __init__(self, plan: InnerAxisPlan) -> None:
        super().__init__()
        self.plan, self.t = plan, VALUES["float32"]

    def text(self) -> list[str]:
        """The lines of the function."""
        roles = [*SOFTMAX[self.plan.kind][0], *SOFTMAX[self.plan.kind][1]]
        entry = [
            *(x for i, n in enumerate(("%n", "%inner", "%bands")) for x in word(n, SIZES_WORD + i)),
            *(x for i in range(len(roles)) for x in data_of(f"%a{i}", SIZES_WORD + 3 + i)),
            f"%top = alloca [{BAND_COLUMNS} x {self.t}], align 64",
            f"%sum = alloca [{BAND_COLUMNS} x {self.t}], align 64",
            "%whole = mul i64 %n, %inner",
        ]
        self.tasks(entry, "band")
        self.lines += [
            "%outer = udiv i64 %r, %bands",
            "%which = urem i64 %r, %bands",
            f"%first = mul i64 %which, {BAND_COLUMNS}",
            "%left = sub i64 %inner, %first",
            f"%wide = icmp sgt i64 %left, {BAND_COLUMNS}",
            f"%count = select i1 %wide, i64 {BAND_COLUMNS}, i64 %left",
        ]
        for i, role in enumerate(roles):
            self._place(i, role)
        getattr(self, f"_{self.plan.kind}")()
        self.lines += next_task("band")
        return self.lines

    def _place(self, i: int, role: str) -> None:
        """Append lines for ``%at{i}``, the address of the band in an operand or result."""
        self.lines += [
            f"%o{i} = mul i64 %outer, {'%whole' if role == 'm' else '%inner'}",
            f"%b{i} = add i64 %o{i}, %first",
            f"%at{i} = getelementptr {self.t}, ptr %a{i}, i64 %b{i}",
        ]

    # -- loops ------------------------------------------------------------------------------------

    def across(self, name: str, body: Sequence[str]) -> None:
        """A loop over the columns ``%j`` of the band, in one row: ``%k``, at offset ``%row``."""
        lines = [
            f"%j = phi i64 [0, %{self.block}], [%j_next, %{name}]",
            *body,
            "%j_next = add nuw nsw i64 %j, 1",
            "%j_more = icmp slt i64 %j_next, %count",
            f"br i1 %j_more, label %{name}, label %{name}_end, !llvm.loop !1",
        ]
        self.lines += [f"br label %{name}", f"{name}:", *renamed(lines, name), f"{name}_end:"]
        self.block = f"{name}_end"

    def down(self, name: str, body: Sequence[str]) -> None:
        """A loop over the rows of the band, and in it over the columns."""
        self.lines += [f"br label %{name}_rows", f"{name}_rows:"]
        begin, self.block = self.block, f"{name}_rows"
        self.lines += [
            f"%k.{name} = phi i64 [0, %{begin}], [%k_next.{name}, %{name}_end]",
            f"%row.{name} = mul i64 %k.{name}, %inner",
        ]
        named = [b.replace("%row", f"%row.{name}").replace("%k,", f"%k.{name},") for b in body]
        self.across(name, named)
        self.lines += [
            f"%k_next.{name} = add nuw nsw i64 %k.{name}, 1",
            f"%k_more.{name} = icmp slt i64 %k_next.{name}, %n",
            f"br i1 %k_more.{name}, label %{name}_rows, label %{name}_after",
            f"{name}_after:",
        ]
        self.block = f"{name}_after"

    def _element(self, operand: int, name: str) -> list[str]:
        """Lines for the address of this row's and column's element."""
        return [
            f"{name}_i = add i64 %row, %j",
            f"{name}_p = getelementptr {self.t}, ptr %at{operand}, i64 {name}_i",
        ]

    def load(self, operand: int, name: str) -> list[str]:
        """Lines that load an element of an operand."""
        return [
            *self._element(operand, name),
            f"{name} = load {self.t}, ptr {name}_p{ACCESS}",
        ]

    def store(self, operand: int, value: str) -> list[str]:
        """Lines that store an element of a result."""
        return [*self._element(operand, "%y"), f"store {self.t} {value}, ptr %y_p{ACCESS}"]

    def load_column(self, where: str, name: str) -> list[str]:
        """Lines that load a column's value from an array on the stack."""
        return [
            f"{name}_p = getelementptr {self.t}, ptr {where}, i64 %j",
            f"{name} = load {self.t}, ptr {name}_p{ACCESS}",
        ]

    def store_column(self, where: str, value: str) -> list[str]:
        """Lines that store a column's value in an array on the stack."""
        return [
            f"%kept_p = getelementptr {self.t}, ptr {where}, i64 %j",
            f"store {self.t} {value}, ptr %kept_p{ACCESS}",
        ]

    # -- kinds ------------------------------------------------------------------------------------

    def _maxima(self) -> None:
        least = literal("-inf", "float32")
        self.across("clear", [*self.store_column("%top", least)])
        call = "call nsz float @llvm.maximum.f32(float %m, float %x)"
        self.down(
            "max", [*self.load(0, "%x"), *self.load_column("%top", "%m"), f"%t = {call}",
                    *self.store_column("%top", "%t")],
        )  # fmt: skip

    def _exponentials(self, result: int | None) -> None:
        """Append the pass that sums the exponentials, and stores them if there is a ``result``."""
        self.across("zero", [*self.store_column("%sum", "0.0")])
        self.down(
            "exp",
            [
                *self.load(0, "%x"), *self.load_column("%top", "%m"), "%d = fsub float %x, %m",
                "%e = call float @s_exp(float %d)", *self.load_column("%sum", "%s"),
                "%t = fadd float %s, %e", *self.store_column("%sum", "%t"),
                *(self.store(result, "%e") if result is not None else []),
            ],
        )  # fmt: skip

    def _softmax(self) -> None:
        self._maxima()
        self._exponentials(1)
        one = ["%q = fdiv float 1.0, %s", *self.store_column("%sum", "%q")]
        self.across("invert", [*self.load_column("%sum", "%s"), *one])
        self.down(
            "scale", [*self.load(1, "%e"), *self.load_column("%sum", "%q"),
                      "%v = fmul float %e, %q", *self.store(1, "%v")],
        )  # fmt: skip

    def _log_softmax(self) -> None:
        self._maxima()
        self._exponentials(None)
        log = ["%l = call float @s_log(float %s)", *self.store_column("%sum", "%l")]
        self.across("log", [*self.load_column("%sum", "%s"), *log])
        self.down(
            "shift", [*self.load(0, "%x"), *self.load_column("%top", "%m"),
                      *self.load_column("%sum", "%l"),
                      "%d = fsub float %x, %m", "%v = fsub float %d, %l", *self.store(1, "%v")],
        )  # fmt: skip

    def _logsumexp(self) -> None:
        self._maxima()
        # An infinite maximum: differences of infinities would be NaN.
        self.across(
            "tame",
            [
                *self.load_column("%top", "%m"), "%size = call float @llvm.fabs.f32(float %m)",
                f"%fine = fcmp olt float %size, {literal('inf', 'float32')}",
                "%t = select i1 %fine, float %m, float 0.0", *self.store_column("%top", "%t"),
            ],
        )  # fmt: skip
        self._exponentials(None)
        self.across(
            "out",
            [
                *self.load_column("%sum", "%s"), *self.load_column("%top", "%m"),
                "%l = call float @s_log(float %s)", "%v = fadd float %l, %m",
                "%out_p = getelementptr float, ptr %at1, i64 %j",
                f"store float %v, ptr %out_p{ACCESS}",
            ],
        )  # fmt: skip

    def _softmax_grad(self) -> None:
        both = [*self.load(0, "%u"), *self.load(1, "%d"), *self.load_column("%sum", "%s")]
        self.across("zero", [*self.store_column("%sum", "0.0")])
        product = [
            "%p = fmul float %u, %d",
            "%t = fadd float %s, %p",
            *self.store_column("%sum", "%t"),
        ]
        self.down("dot", [*both, *product])
        result = ["%c = fsub float %d, %s", "%v = fmul float %u, %c", *self.store(2, "%v")]
        self.down("scale", [*both, *result])

    def _log_softmax_grad(self) -> None:
        self.across("zero", [*self.store_column("%sum", "0.0")])
        total = ["%t = fadd float %s, %d", *self.store_column("%sum", "%t")]
        self.down("total", [*self.load(1, "%d"), *self.load_column("%sum", "%s"), *total])
        self.down(
            "scale",
            [
                *self.load(0, "%u"), *self.load(1, "%d"), *self.load_column("%sum", "%s"),
                "%e = call float @s_exp(float %u)", "%p = fmul float %e, %s",
                "%v = fsub float %d, %p", *self.store(2, "%v"),
            ],
        )  # fmt: skip
