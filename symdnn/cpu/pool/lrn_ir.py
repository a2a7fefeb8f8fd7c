"""Local response normalisation across channels and its gradient as LLVM IR.

A task is a block of pixels with all their channels that fits the cache: columns of the planes in
NCHW, some pixels in NHWC. Its squares are stored in scratch memory, padded with zeros for channels
that do not exist, so that the loops over windows need no bounds checks. Windows are summed
directly: differences of running sums would lose digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from symdnn.cpu.ir.loops_ir import ACCESS, data_of, word
from symdnn.cpu.ir.math_ir import definitions
from symdnn.cpu.ir.program_ir import LoopBuilder
from symdnn.ops.core.scalar import Scalar, ScalarProgram
from symdnn.ops.lowered.fused_rows import program

#: Elements of scratch memory for squares, and the limit of columns of a block.
_SCRATCH_ELEMENTS, _MAX_COLUMNS = 1 << 15, 1024


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
    source.loops()
    return source.task_module(*definitions(source.helpers))


class _Normalisation(LoopBuilder):
    """Builds the function ``rows``."""

    def __init__(self, plan: LrnPlan) -> None:
        super().__init__()
        self.plan = plan
        self.declared.add("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")

    def loops(self) -> None:
        """Append the function but its end."""
        plan, n = self.plan, self.plan.n
        entry = [*word("%outer", 3)]
        for i, name in enumerate(plan.operands, 4):
            entry += data_of(f"%{name}", i)
        for name in ("squares", "factors") if plan.backward else ("squares",):
            entry += [
                f"%{name} = alloca [{plan.scratch} x float], align 64",
                f"call void @llvm.memset.p0.i64(ptr %{name}, i8 0, i64 {4 * plan.scratch}, i1 0)",
            ]
        self.tasks(entry)
        self._place()
        before, after = (n - 1) // 2 * plan.step, n // 2 * plan.step
        self._each("square", _square(), ["x"], [("squares", before)])
        if not plan.backward:
            self._each("normal", _normal(plan), ["x"], ["out"], "squares")
            return
        direct: list[str | tuple[str, int]] = ["out", ("factors", after)]
        self._each("direct", _direct(plan), ["y", "dy"], direct, "squares")
        self._each("windows", _windowed(plan), ["x", "out"], ["out"], "factors")

    def _place(self) -> None:
        """Append the task's offset in an operand and its numbers of rows and columns."""
        plan = self.plan
        if plan.channels_last:
            first = self.affine("%r", plan.block)
            left = self.minus("%outer", first)
            self.rows, self.columns = self.least(left, plan.block), str(plan.channels)
            self.base, self.row_step = self.affine(first, plan.channels), plan.channels
            return
        image = self.new(f"udiv i64 %r, {plan.blocks}")
        first = self.affine(self.new(f"urem i64 %r, {plan.blocks}"), plan.block)
        left = self.minus(plan.inner, first)
        self.rows, self.columns = str(plan.channels), self.least(left, plan.block)
        begin = self.affine(image, plan.channels * plan.inner)
        self.base, self.row_step = self.plus(begin, first), plan.inner

    def _each(
        self, name: str, own: ScalarProgram, reads: Sequence[str],
        writes: Sequence[str | tuple[str, int]], window: str = "",
    ) -> None:  # fmt: skip
        """A program for all elements of the task: of operands, and of a window in scratch memory.

        Results go to an operand, or to scratch memory from an offset on.
        """
        plan = self.plan
        with self.each(f"{name}_row", 0, self.rows) as i:
            row = self.plus(self.base, self.affine(i, self.row_step))
            kept_row = self.affine(i, plan.pitch)
            with self.each(f"{name}_column", 0, self.columns, parallel=True) as j:
                at, kept = self.plus(row, j), self.plus(kept_row, j)
                places = [self._at(x, at) for x in reads]
                places += [
                    self._at(window, kept, k * plan.step) for k in range(plan.n if window else 0)
                ]
                values = [self.value("float32", p, ACCESS) for p in places]
                for value, to in zip(self.program(own, values), writes, strict=True):
                    place = (
                        self._at(to, at) if isinstance(to, str) else self._at(to[0], kept, to[1])
                    )
                    self.put(f"store float {value}, ptr {place}{ACCESS}")

    def _at(self, base: str, at: str, offset: int = 0) -> str:
        return self.new(f"getelementptr float, ptr %{base}, i64 {self.affine(at, 1, offset)}")


# -- programs -------------------------------------------------------------------------------------


def _square() -> ScalarProgram:
    return program(("float32",), lambda x: x * x)


def _base(plan: LrnPlan, squares: Sequence[Scalar]) -> Scalar:
    return sum(squares[1:], squares[0]) * (plan.alpha / plan.n) + plan.k


def _over_power(x: Scalar, base: Scalar, beta: float) -> Scalar:
    """x * base ** -beta, for common beta by square roots."""
    if beta not in (0, 0.5, 0.75, 1):
        return x * base.call("pow", -beta)
    root = base.call("sqrt")
    return {0: x, 0.5: x / root, 0.75: x / (root * root.call("sqrt")), 1: x / base}[beta]


def _normal(plan: LrnPlan) -> ScalarProgram:
    """The result, of x and the squares in its window."""

    def result(x: Scalar, *squares: Scalar) -> Scalar:
        return _over_power(x, _base(plan, squares), plan.beta)

    return program(("float32",) * (1 + plan.n), result)


def _direct(plan: LrnPlan) -> ScalarProgram:
    """The direct part of dx, and the factor for the window's channels; of y, dy and the squares."""

    def both(y: Scalar, dy: Scalar, *squares: Scalar) -> tuple[Scalar, Scalar]:
        base = _base(plan, squares)
        return _over_power(dy, base, plan.beta), dy * y / base

    return program(("float32",) * (2 + plan.n), both)


def _windowed(plan: LrnPlan) -> ScalarProgram:
    """dx, of x, its direct part and the factors in the window."""

    def whole(x: Scalar, direct: Scalar, *factors: Scalar) -> Scalar:
        total = sum(factors[1:], factors[0]) * (-2 * plan.alpha * plan.beta / plan.n)
        return x * total + direct

    return program(("float32",) * (2 + plan.n), whole)
