"""Layer norm, and batch norm where cuDNN does not take it: reductions and elementwise kernels."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from symdnn.gpu.k_elemwise import elementwise
from symdnn.gpu.k_reduce import reduction, scratch_bytes
from symdnn.gpu.launches import CudaKernel, KernelLaunch, View, scratch
from symdnn.gpu.source import CTYPES
from symdnn.graph.kernel import Call, register_kernel
from symdnn.ops.batchnorm import (
    BatchNormGrad,
    BatchNormInference,
    BatchNormTrain,
    LayerNorm,
    LayerNormGrad,
)
from symdnn.ops.dtype import is_narrow_float
from symdnn.ops.reduce import Sum
from symdnn.ops.scalar import Builder, Scalar, ScalarProgram

__all__ = ["NormGradKernel", "NormKernel", "register"]


def work_dtype(dtype: str) -> str:
    """The dtype of statistics and parameters, in which everything is computed."""
    return "float32" if is_narrow_float(dtype) else dtype


def _program(dtypes: Sequence[str], formula: Any, *out: str) -> ScalarProgram:
    """The results of ``formula`` of values in the work dtype, cast to ``out``."""
    builder = Builder(dtypes)
    work = work_dtype(dtypes[0])
    results = formula(*(builder.input(i).cast(work) for i in range(len(dtypes))))
    results = results if isinstance(results, tuple) else (results,)
    return builder.program([r.cast(d) for r, d in zip(results, out or (work,) * len(results))])


def _sums(
    formula: Any, inputs: Sequence[View], outputs: Sequence[View], shape: tuple[int, ...]
) -> list[KernelLaunch]:
    """Sums of the results of ``formula`` over the dimensions that are 1 in ``outputs``."""
    work = outputs[0].dtype
    program = _program([v.dtype for v in inputs], formula)
    axes = tuple(i for i, n in enumerate(outputs[0].shape) if n == 1 != shape[i])
    ops = [Sum(axes, True, work, work)] * len(outputs)
    return reduction(program, ops, inputs, outputs, shape)


def _each(formula: Any, inputs: Sequence[Any], outputs: Sequence[View]) -> list[KernelLaunch]:
    """``formula`` on each element; numbers among the inputs are of the work dtype."""
    work = work_dtype(outputs[0].dtype)
    dtypes = [v.dtype if isinstance(v, View) else work for v in inputs]
    return elementwise(_program(dtypes, formula, *(v.dtype for v in outputs)), inputs, outputs)


# -- formulas -------------------------------------------------------------------------------------


def _squared_distance(x: Scalar, mean: Scalar) -> Scalar:
    return (x - mean) * (x - mean)


def _normalised(x: Scalar, gamma: Scalar, beta: Scalar, mean: Scalar, r: Scalar) -> Scalar:
    return (x - mean) * (r * gamma) + beta


def _invstd(variance: Scalar, epsilon: Scalar) -> Scalar:
    return 1 / (variance + epsilon).call("sqrt")


def _inference(x: Scalar, gamma: Scalar, beta: Scalar, mean: Scalar, *rest: Scalar) -> Scalar:
    return _normalised(x, gamma, beta, mean, _invstd(*rest))


def _running(
    mean: Scalar, squares: Scalar, count: Scalar, unbiased: Scalar, factor: Scalar,
    old_mean: Scalar, old_variance: Scalar,
) -> tuple[Scalar, Scalar]:  # fmt: skip
    keep = 1 - factor
    variance = squares / count * unbiased
    return old_mean * keep + mean * factor, old_variance * keep + variance * factor


def _row_sums(x: Scalar, dy: Scalar, gamma: Scalar, mean: Scalar, r: Scalar) -> tuple[Scalar, ...]:
    g = dy * gamma
    return g, g * ((x - mean) * r)


def _dx(
    x: Scalar, dy: Scalar, gamma: Scalar, mean: Scalar, r: Scalar, a: Scalar, b: Scalar, m: Scalar
) -> Scalar:
    return r * (dy * gamma - a / m - (x - mean) * r * (b / m))


def _parameter_sums(x: Scalar, dy: Scalar, mean: Scalar, r: Scalar) -> tuple[Scalar, ...]:
    return dy * ((x - mean) * r), dy


# -- kernels --------------------------------------------------------------------------------------


class NormKernel(CudaKernel):
    """Mean, variance by a second pass, then the normalisation."""

    name = "cuda.norm"
    dtypes = frozenset(CTYPES)

    def workspace_bytes(self, call: Call) -> int:
        """Partial sums, and the squares of running statistics."""
        x: Any = call.inputs[0]
        kept = prod(call.outputs[1].shape)  # type: ignore[attr-defined]
        return _partial(x.shape, kept, 1) + 16 * (kept + 1)

    def launches(
        self, call: Call, inputs: Sequence[Any], outputs: Sequence[View]
    ) -> Sequence[KernelLaunch]:
        """Two reductions, and elementwise kernels on their results and on the input."""
        op: Any = call.op
        (x, gamma, beta, *running), (y, mean, invstd, *new) = inputs, outputs
        count = float(prod(x.shape[a] for a in op.axes))
        after = _partial(x.shape, mean.size, 1)
        squares = scratch(after, mean.dtype, mean.shape)
        found = _sums(lambda v: v, [x], [mean], x.shape)
        found += _each(lambda s, m: s / m, [mean, count], [mean])
        found += _sums(_squared_distance, [x, mean], [squares], x.shape)
        found += _each(
            lambda s, m, e: _invstd(s / m, e), [squares, count, float(op.epsilon)], [invstd]
        )
        if new:
            unbiased = count / max(count - 1, 1.0)
            found += _each(_running, [mean, squares, count, unbiased, *running], new)
        return [*found, *_each(_normalised, [x, gamma, beta, mean, invstd], [y])]


class NormGradKernel(CudaKernel):
    """Sums over what was normalised together, sums over what shares a parameter, then dx."""

    name = "cuda.norm"
    dtypes = frozenset(CTYPES)

    def workspace_bytes(self, call: Call) -> int:
        """Partial sums, and two sums for each mean."""
        shape: Any = call.inputs[0].shape  # type: ignore[attr-defined]
        rows, own = (prod(call.inputs[i].shape) for i in (3, 2))  # type: ignore[attr-defined]
        return max(_partial(shape, rows, 2), _partial(shape, own, 2)) + 2 * 8 * (rows + 2)

    def launches(
        self, call: Call, inputs: Sequence[Any], outputs: Sequence[View]
    ) -> Sequence[KernelLaunch]:
        """Two reductions and an elementwise kernel."""
        op: Any = call.op
        (x, dy, gamma, mean, invstd), (dx, dgamma, dbeta) = inputs, outputs
        count = float(prod(x.shape[a] for a in op.axes))
        after = max(_partial(x.shape, n, 2) for n in (mean.size, gamma.size))
        a = scratch(after, mean.dtype, mean.shape)
        b = scratch(after + 8 * (mean.size + mean.size % 2), mean.dtype, mean.shape)
        operands = [x, dy, gamma, mean, invstd]
        found = _sums(_row_sums, operands, [a, b], x.shape)
        found += _sums(_parameter_sums, [x, dy, mean, invstd], [dgamma, dbeta], x.shape)
        return [*found, *_each(_dx, [*operands, a, b, count], [dx])]


class InferenceKernel(CudaKernel):
    """One elementwise kernel."""

    name = "cuda.norm"
    dtypes = frozenset(CTYPES)

    def launches(
        self, call: Call, inputs: Sequence[Any], outputs: Sequence[View]
    ) -> Sequence[KernelLaunch]:
        """The kernel."""
        return _each(_inference, [*inputs, float(call.op.epsilon)], outputs)  # type: ignore[attr-defined]


def _partial(shape: Sequence[int], outputs: int, sums: int) -> int:
    """Room for the partial sums of a reduction."""
    return scratch_bytes(outputs, prod(shape) // max(outputs, 1), sums)


def register() -> None:
    """Enter the kernels into the table."""
    for op in (LayerNorm, BatchNormTrain):
        register_kernel(op, "cuda", NormKernel())
    for gradient in (LayerNormGrad, BatchNormGrad):
        register_kernel(gradient, "cuda", NormGradKernel())
    register_kernel(BatchNormInference, "cuda", InferenceKernel())
