"""Local response normalisation across channels and its gradient as LLVM IR.

A task is a block of pixels with all their channels that fits the cache: columns of the planes in
NCHW, some pixels in NHWC. Its squares are stored in scratch memory, padded with zeros for channels
that do not exist, so that the loops over windows need no bounds checks. Windows are summed
directly: differences of running sums would lose digits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from symdnn.cpu.ir.builder import FunctionBuilder
from symdnn.cpu.ir.loops_ir import ACCESS, METADATA, THREADS, data_of, next_task, word
from symdnn.cpu.ir.math_ir import declarations, definitions
from symdnn.cpu.ir.scalar_ir import literal

__all__ = ["LrnPlan", "lrn_ir"]

#: Elements of scratch memory for squares, and the limit of columns of a block.
_SCRATCH_ELEMENTS, _MAX_COLUMNS = 1 << 15, 1024
#: Exponents beta for which square roots and divisions suffice.
_ROOT_EXPONENTS = (0, 0.5, 0.75, 1)


@dataclass(frozen=True)
class LrnPlan:
    """One kernel: windows of ``n`` channels, the constants of the formula, and the layout.

    ``inner`` is the number of contiguous pixels of a channel; 1 stands for NHWC.
    """

    backward: bool
    n: int
    alpha: float
    beta: float
    k: float
    channels: int
    inner: int

    @property
    def channels_last(self) -> bool:
        """Whether the channels of a pixel are contiguous."""
        return self.inner == 1

    @property
    def block(self) -> int:
        """Pixels of a task: columns of the planes in NCHW."""
        fits = max(16, _SCRATCH_ELEMENTS // (self.channels + self.n - 1))
        if self.channels_last:
            return fits
        parts = -(-self.inner // min(fits, _MAX_COLUMNS))
        return -(-self.inner // (16 * parts)) * 16

    @property
    def blocks(self) -> int:
        """Blocks of one sample, in NCHW."""
        return -(-self.inner // self.block)

    def tasks(self, outer: int) -> int:
        """The number of tasks for ``outer`` samples (NHWC: pixels of all samples)."""
        return -(-outer // self.block) if self.channels_last else outer * self.blocks

    # -- scratch memory: a row for each channel (NHWC: pixel), zeros for channels beyond the ends -

    @property
    def step(self) -> int:
        """Stride of channels, in elements."""
        return 1 if self.channels_last else self.block

    @property
    def pitch(self) -> int:
        """Stride of rows, in elements."""
        return self.channels + self.n - 1 if self.channels_last else self.block

    @property
    def scratch(self) -> int:
        """Elements of all rows."""
        return self.block * (self.channels + self.n - 1)

    @property
    def operands(self) -> tuple[str, ...]:
        """Names of the operands whose array objects are the words after the fourth."""
        return ("x", "y", "dy", "out") if self.backward else ("x", "out")


def lrn_ir(plan: LrnPlan) -> str:
    """The module of ``kernel``.

    Words of its block: threads, tasks, 1, samples (NHWC: pixels), the operands, the result.
    """
    source = _Normalisation(plan)
    functions = set() if plan.beta in _ROOT_EXPONENTS else {"pow"}
    lines = [
        "declare float @llvm.sqrt.f32(float)",
        "declare float @llvm.fmuladd.f32(float, float, float)",
        "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)",
        *sorted(declarations(functions)),
        *definitions(functions),
        *THREADS,
        *source.text(),
        *METADATA,
    ]
    return "\n".join(lines) + "\n"


def _number(value: float) -> str:
    return literal(float(np.float32(value)).hex(), "float32")


class _Normalisation(FunctionBuilder):
    """Builds the function ``rows``."""

    def __init__(self, plan: LrnPlan) -> None:
        super().__init__()
        self.plan = plan

    def text(self) -> Sequence[str]:
        """The lines of the function."""
        plan = self.plan
        entry = [*word("%outer", 3)]
        for i, name in enumerate(plan.operands, 4):
            entry += data_of(f"%{name}", i)
        for name in ("squares", "inner") if plan.backward else ("squares",):
            entry += [
                f"%{name} = alloca [{plan.scratch} x float], align 64",
                f"call void @llvm.memset.p0.i64(ptr %{name}, i8 0, i64 {4 * plan.scratch}, i1 0)",
            ]
        self.tasks(entry)
        self._place()
        self._each("squares", self._square)
        self._each("normal", self._direct_gradient if plan.backward else self._normal)
        if plan.backward:
            self._each("window", self._windowed)
        self.lines += next_task("task")
        return self.lines

    def _place(self) -> None:
        """Append the task's offset in an operand and its numbers of rows and columns."""
        plan = self.plan
        if plan.channels_last:
            first = self.affine("%r", plan.block)
            left = self.minus("%outer", first)
            self.rows, self.columns = self._least(left, plan.block), str(plan.channels)
            self.base, self.row_step = self.affine(first, plan.channels), plan.channels
            return
        image = self.new(f"udiv i64 %r, {plan.blocks}")
        first = self.affine(self.new(f"urem i64 %r, {plan.blocks}"), plan.block)
        left = self.minus(plan.inner, first)
        self.rows, self.columns = str(plan.channels), self._least(left, plan.block)
        begin = self.affine(image, plan.channels * plan.inner)
        self.base, self.row_step = self.plus(begin, first), plan.inner

    def _least(self, a: str, b: int) -> str:
        less = self.new(f"icmp slt i64 {a}, {b}")
        return self.new(f"select i1 {less}, i64 {a}, i64 {b}")

    # -- loops ------------------------------------------------------------------------------------

    def _each(self, name: str, body: Callable[[str, str], None]) -> None:
        """``body(offset in an operand, offset in scratch memory)`` for all elements of the task."""
        with self.each(f"{name}_row", 0, self.rows) as i:
            at = self.plus(self.base, self.affine(i, self.row_step))
            kept = self.affine(i, self.plan.pitch)
            with self.each(f"{name}_column", 0, self.columns) as j:
                body(self.plus(at, j), self.plus(kept, j))
            self.lines[-2] += ", !llvm.loop !1"  # the back edge: iterations are independent

    def _load(self, base: str, at: str, offset: int = 0) -> str:
        pointer = self.new(f"getelementptr float, ptr {base}, i64 {self.affine(at, 1, offset)}")
        return self.new(f"load float, ptr {pointer}{ACCESS}")

    def _store(self, value: str, base: str, at: str, offset: int = 0) -> None:
        pointer = self.new(f"getelementptr float, ptr {base}, i64 {self.affine(at, 1, offset)}")
        self.lines.append(f"store float {value}, ptr {pointer}{ACCESS}")

    def _product(self, a: str, b: str) -> str:
        return self.new(f"fmul float {a}, {b}")

    def _quotient(self, a: str, b: str) -> str:
        return self.new(f"fdiv float {a}, {b}")

    def _sum(self, a: str, b: str, c: str) -> str:
        """a * b + c"""
        return self.new(f"call float @llvm.fmuladd.f32(float {a}, float {b}, float {c})")

    # -- passes -----------------------------------------------------------------------------------

    def _square(self, at: str, kept: str) -> None:
        plan, x = self.plan, self._load("%x", at)
        before = (plan.n - 1) // 2 * plan.step
        self._store(self._product(x, x), "%squares", kept, before)

    def _window(self, scratch: str, kept: str) -> str:
        """The sum of the window that begins at an offset of scratch memory."""
        total = self._load(scratch, kept)
        for j in range(1, self.plan.n):
            value = self._load(scratch, kept, j * self.plan.step)
            total = self.new(f"fadd float {total}, {value}")
        return total

    def _base(self, kept: str) -> str:
        plan, total = self.plan, self._window("%squares", kept)
        return self._sum(total, _number(plan.alpha / plan.n), _number(plan.k))

    def _over_power(self, x: str, base: str) -> str:
        """x * base ** -beta, for common beta by square roots."""
        beta = self.plan.beta
        if beta == 0:
            return x
        if beta == 1:
            return self._quotient(x, base)
        if beta not in _ROOT_EXPONENTS:
            exponent = _number(-beta)
            power = self.new(f"call float @s_pow(float {base}, float {exponent})")
            return self._product(x, power)
        root = self.new(f"call float @llvm.sqrt.f32(float {base})")
        if beta == 0.75:
            half = self.new(f"call float @llvm.sqrt.f32(float {root})")
            root = self._product(root, half)
        return self._quotient(x, root)

    def _normal(self, at: str, kept: str) -> None:
        self._store(self._over_power(self._load("%x", at), self._base(kept)), "%out", at)

    def _direct_gradient(self, at: str, kept: str) -> None:
        """Store the direct part of dx; put the factor for the window's channels in scratch."""
        plan, base = self.plan, self._base(kept)
        dy, y = self._load("%dy", at), self._load("%y", at)
        self._store(self._over_power(dy, base), "%out", at)
        self._store(
            self._quotient(self._product(dy, y), base), "%inner", kept, plan.n // 2 * plan.step
        )

    def _windowed(self, at: str, kept: str) -> None:
        plan, x = self.plan, self._load("%x", at)
        factor = _number(-2 * plan.alpha * plan.beta / plan.n)
        total = self._product(self._window("%inner", kept), factor)
        self._store(self._sum(x, total, self._load("%out", at)), "%out", at)
