"""Layer, group and instance norm over any axes, and their gradients: nests and elementwise loops.

Sums are added in float64. The variance is that of differences from the mean, in a second pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from math import prod
from typing import Any

import numpy as np

from symdnn.cpu.elementwise.elementwise import elementwise_launch
from symdnn.cpu.launch.contiguous_launch import compile_refusal
from symdnn.cpu.launch.series_launch import Part, SeriesLaunch
from symdnn.cpu.launch.strided_launch import StridedLaunch
from symdnn.cpu.launch.traits import LLVM_ASKS_THREADS
from symdnn.cpu.nest.kernels import reduction_block
from symdnn.cpu.nest.row_stages import RowLaunch, RowOperand, lies_in_bands
from symdnn.graph.kernel import Call, Kernel, Launch, Row
from symdnn.graph.typing import Array
from symdnn.ops.core.scalar import Builder, Scalar, ScalarProgram
from symdnn.ops.lowered.fused_rows import FusedRows, layer_norm_grad_rows, layer_norm_rows
from symdnn.ops.nest.monoid import Monoid, total
from symdnn.ops.nest.nest import Fold
from symdnn.ops.nn.batchnorm import LayerNorm, LayerNormGrad

#: With fewer elements NumPy is as fast.
_MIN_ELEMENTS_TO_COMPILE = 1 << 12
#: Rows that are read once: at least so many, so that threads have some each; of so many elements.
_MIN_ROWS, _MIN_ROW_LENGTH = 8, 16
#: Sums over rows of up to so many elements stay in the second cache, beside a row.
_MAX_SUMMED_LENGTH, _MIN_SUMMED_ROWS = 1 << 14, 64
_DTYPES = ("float32", "float64", "float16", "bfloat16")


def _mean(element: str, count: int, out: str) -> Monoid:
    """The sum of elements over their number."""
    b = Builder(["float64"])
    leave = b.program([b.cast(b.input(0) / float(count), out)])
    return replace(total("add", element, "float64", out), leave=leave)


def _inverse_deviation(element: str, count: int, epsilon: float, out: str) -> Monoid:
    """1 / sqrt(mean + epsilon) of elements that are squares."""
    b = Builder(["float64"])
    root = (b.input(0) / float(count) + epsilon).call("sqrt")
    return replace(
        total("add", element, "float64", out), leave=b.program([b.cast(1.0 / root, out)])
    )


def _reduced(fold: Fold, shape: tuple[int, ...], axes: Sequence[int]) -> StridedLaunch:
    return StridedLaunch(partial(reduction_block, fold, shape, tuple(axes)))


@lru_cache(maxsize=256)
def _forward(dtype: str, work: str, count: int, epsilon: float) -> tuple[Fold, Fold, ScalarProgram]:
    """Folds of x to the mean, of (x, mean) to invstd, and (x, gamma, beta, mean, invstd) -> y."""
    b = Builder([dtype])
    mean = Fold(b.program([b.cast(b.input(0), work)]), (_mean(work, count, work),))
    b = Builder([dtype, work])
    apart = b.cast(b.input(0), work) - b.input(1)
    invstd = Fold(b.program([apart * apart]), (_inverse_deviation(work, count, epsilon, work),))
    b = Builder([dtype, work, work, work, work])
    x, gamma, beta, centre, scale = (b.input(i) for i in range(5))
    y = (b.cast(x, work) - centre) * (scale * gamma) + beta
    return mean, invstd, b.program([b.cast(y, dtype)])


@lru_cache(maxsize=256)
def _backward(dtype: str, work: str, count: int) -> tuple[Fold, ScalarProgram, Fold]:
    """Of (x, dy, gamma, mean, invstd): means of g = dy gamma and of g xhat; dx, which takes them
    too; sums of dy xhat and of dy."""

    def parts(b: Builder) -> tuple[Scalar, Scalar, Scalar, Scalar]:
        x, dy = (b.cast(b.input(i), work) for i in (0, 1))
        return (x - b.input(3)) * b.input(4), dy, dy * b.input(2), b.input(4)

    given = [dtype, dtype, work, work, work]
    b = Builder(given)
    xhat, _, g, _ = parts(b)
    mean = _mean(work, count, work)
    means = Fold(b.program([g, g * xhat]), (mean, mean))
    b = Builder([*given, work, work])
    xhat, _, g, invstd = parts(b)
    dx = b.program([b.cast(invstd * (g - b.input(5) - xhat * b.input(6)), dtype)])
    b = Builder(given)
    xhat, dy, _, _ = parts(b)
    whole = total("add", work, "float64", work)
    return means, dx, Fold(b.program([dy * xhat, dy]), (whole, whole))


class _NormKernel(Kernel[LayerNorm | LayerNormGrad]):
    name = "llvm.norm"
    traits = LLVM_ASKS_THREADS

    def refuses(self, call: Call[LayerNorm | LayerNormGrad]) -> str | None:
        """Needs floats, and enough elements."""
        x = call.inputs[0]
        if x.dtype not in _DTYPES:
            return "it takes floats"
        return compile_refusal(call.inputs, lambda: prod(x.shape), _MIN_ELEMENTS_TO_COMPILE)

    def never_fails(self, call: Call[LayerNorm | LayerNormGrad]) -> bool:
        """Whether shared variables may be updated before it: always, since it cannot fail."""
        return True


def _reads_rows_once(shape: tuple[int, ...], axes: Sequence[int]) -> bool:
    """Whether rows are read once, instead of by a nest for each statistic."""
    if lies_in_bands(shape, axes):
        return False
    length = prod(shape[a] for a in axes)
    first = len(shape)
    while first - 1 in axes:
        first -= 1
    return prod(shape) // length >= _MIN_ROWS and prod(shape[first:]) >= _MIN_ROW_LENGTH


def _row_launch(op: FusedRows, call: Call[LayerNorm | LayerNormGrad], names: str) -> Launch[Array]:
    """The launch of an op's stages, of operands by their names in it (:class:`RowPlan`)."""
    shape, _, work, _ = _facts(call)
    column = tuple(n if d in call.op.axes else 1 for d, n in enumerate(shape))
    types = (*call.inputs, *call.outputs)
    operands: list[RowOperand] = [
        (name, t.dtype, column if name[0] == "s" else tuple(t.shape))
        for name, t in zip(names.split(), types, strict=True)
    ]
    return RowLaunch(op, shape, operands, len(call.inputs), work, "float64")


def _facts(call: Call[LayerNorm | LayerNormGrad]) -> tuple[tuple[int, ...], str, str, int]:
    """(shape, dtype, the dtype of statistics, elements of a statistic)"""
    x = call.inputs[0]
    shape = tuple(x.shape)
    return shape, x.dtype, call.inputs[-1].dtype, prod(shape[a] for a in call.op.axes)


class NormKernel(_NormKernel):
    """``LayerNorm``: the mean, the deviation, then every element."""

    def bind(self, call: Call[LayerNorm | LayerNormGrad]) -> Launch[Array]:
        """A launch for any strides."""
        shape, dtype, work, count = _facts(call)
        if _reads_rows_once(shape, call.op.axes):
            return _row_launch(layer_norm_rows(call.op, dtype), call, "x0 x1 x2 y0 r0 r1")
        mean, invstd, y = _forward(dtype, work, count, float(call.op.epsilon))
        axes = call.op.axes
        n = len(call.inputs)
        result, own_mean, own_invstd = n, n + 1, n + 2
        everything = (*range(n), own_mean, own_invstd)
        return SeriesLaunch([
            Part(_reduced(mean, shape, axes), (0,), (own_mean,)),
            Part(_reduced(invstd, shape, axes), (0, own_mean), (own_invstd,)),
            Part(elementwise_launch(y, shape), everything, (result,)),
        ])  # fmt: skip


class NormGradKernel(_NormKernel):
    """``LayerNormGrad``: two means of each statistic's elements, dx, sums for the parameters."""

    def refuses(self, call: Call[LayerNorm | LayerNormGrad]) -> str | None:
        """Needs also parameters that broadcast."""
        gamma, x = call.inputs[2], call.inputs[0]
        if gamma.is_static and x.is_static and not _spread(x.shape, gamma.shape):
            return "each element has its own parameters"
        return super().refuses(call)

    def bind(self, call: Call[LayerNorm | LayerNormGrad]) -> Launch[Array]:
        """A launch for any strides."""
        shape, dtype, work, count = _facts(call)
        own = call.inputs[2].shape
        column = tuple(n if d in call.op.axes else 1 for d, n in enumerate(shape))
        few = count > _MAX_SUMMED_LENGTH or prod(shape) < count * _MIN_SUMMED_ROWS
        if own == column and not few and _reads_rows_once(shape, call.op.axes):
            rows = layer_norm_grad_rows(call.op, dtype, True)
            return _row_launch(rows, call, "x0 x1 x3 x2 x4 y0 s0 s1")
        means, dx, sums = _backward(dtype, work, count)
        statistic = tuple(1 if d in call.op.axes else n for d, n in enumerate(shape))
        scratch = [np.empty(statistic, work) for _ in range(2)]
        axes = _spread(shape, call.inputs[2].shape)
        n = len(call.inputs)
        return SeriesLaunch([  # dx comes last, since it may be where x or dy was
            Part(_reduced(means, shape, call.op.axes), range(n), scratch),
            Part(_reduced(sums, shape, axes), range(n), (n + 1, n + 2)),
            Part(elementwise_launch(dx, shape), (*range(n), *scratch), (n,)),
        ])  # fmt: skip


def _spread(shape: Sequence[Any], parameter: Sequence[Any]) -> list[int]:
    """The axes along which a parameter broadcasts."""
    return [d for d, (n, own) in enumerate(zip(shape, parameter)) if own == 1 != n]


KERNELS: tuple[Row, ...] = (
    ((LayerNorm,), (NormKernel(),)),
    ((LayerNormGrad,), (NormGradKernel(),)),
)
