"""Batch norm in inference, and norm gradients where several statistics share a parameter.

The forward kernels are in :mod:`symdnn.gpu.norm.batchnorm`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from symdnn.gpu.codegen.device_source import CTYPES
from symdnn.gpu.codegen.launches import CudaKernel, KernelLaunch, View, Views, scratch
from symdnn.gpu.codegen.reduce_plan import scratch_bytes
from symdnn.gpu.kernels.elementwise import elementwise
from symdnn.gpu.kernels.reduce import reduction
from symdnn.graph.kernel import Call, Row
from symdnn.ops.array.reduce import Sum
from symdnn.ops.core.dtype import work_dtype
from symdnn.ops.core.scalar import Scalar
from symdnn.ops.lowered.norm_formulas import formula, normalised
from symdnn.ops.nn.batchnorm import (
    BatchNormGrad,
    BatchNormInference,
    LayerNormGrad,
)

__all__ = [
    "KERNELS", "NormGradKernel", "elementwise_of", "normalised", "parameter_gradients",
]  # fmt: skip


def _sums(
    compute: Any, inputs: Views, outputs: Views, shape: tuple[int, ...]
) -> list[KernelLaunch]:
    """Sums of the results of ``compute`` over the dimensions that are 1 in ``outputs``."""
    work = outputs[0].dtype
    program = formula([v.dtype for v in inputs], compute)
    axes = tuple(i for i, n in enumerate(outputs[0].shape) if n == 1 != shape[i])
    ops = [Sum(axes, True, work, work)] * len(outputs)
    return reduction(program, ops, inputs, outputs, shape)


def elementwise_of(compute: Any, inputs: Sequence[Any], outputs: Views) -> list[KernelLaunch]:
    """An elementwise kernel of ``compute``; numbers among the inputs have the work dtype."""
    work = work_dtype(outputs[0].dtype)
    dtypes = [v.dtype if isinstance(v, View) else work for v in inputs]
    return elementwise(formula(dtypes, compute, *(v.dtype for v in outputs)), inputs, outputs)


def parameter_gradients(inputs: Views, outputs: Views) -> list[KernelLaunch]:
    """(dgamma, dbeta) of (x, dy, mean, invstd)."""
    return _sums(_parameter_sums, inputs, outputs, inputs[0].shape)


# -- formulas -------------------------------------------------------------------------------------


def _invstd(variance: Scalar, epsilon: Scalar) -> Scalar:
    return 1 / (variance + epsilon).call("sqrt")


def _inference(x: Scalar, gamma: Scalar, beta: Scalar, mean: Scalar, *rest: Scalar) -> Scalar:
    return normalised(x, gamma, beta, mean, _invstd(*rest))


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


class NormGradKernel(CudaKernel[LayerNormGrad | BatchNormGrad]):
    """The sums for each statistic, the sums for each parameter, then dx."""

    name = "cuda.norm"
    dtypes = frozenset(CTYPES)

    def workspace_bytes(self, call: Call[LayerNormGrad | BatchNormGrad]) -> int:
        """Partial sums, and two sums for each mean."""
        shape = call.inputs[0].shape
        rows, own = (prod(call.inputs[i].shape) for i in (3, 2))
        return max(_partial(shape, rows, 2), _partial(shape, own, 2)) + 2 * 8 * (rows + 2)

    def launches(
        self,
        call: Call[LayerNormGrad | BatchNormGrad],
        inputs: Sequence[Any],
        outputs: Views,
    ) -> Sequence[KernelLaunch]:
        """Two reductions and an elementwise kernel."""
        op = call.op
        (x, dy, gamma, mean, invstd), (dx, dgamma, dbeta) = inputs, outputs
        count = float(prod(x.shape[a] for a in op.axes))
        after = max(_partial(x.shape, n, 2) for n in (mean.size, gamma.size))
        a = scratch(after, mean.dtype, mean.shape)
        b = scratch(after + 8 * (mean.size + mean.size % 2), mean.dtype, mean.shape)
        operands = [x, dy, gamma, mean, invstd]
        found = _sums(_row_sums, operands, [a, b], x.shape)
        found += parameter_gradients([x, dy, mean, invstd], [dgamma, dbeta])
        return [*found, *elementwise_of(_dx, [*operands, a, b, count], [dx])]


class InferenceKernel(CudaKernel[BatchNormInference]):
    """One elementwise kernel."""

    name = "cuda.norm"
    dtypes = frozenset(CTYPES)

    def launches(
        self, call: Call[BatchNormInference], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """The kernel."""
        return elementwise_of(_inference, [*inputs, float(call.op.epsilon)], outputs)


def _partial(shape: Sequence[int], outputs: int, sums: int) -> int:
    """Room for the partial sums of a reduction."""
    return scratch_bytes(outputs, prod(shape) // max(outputs, 1), sums)


KERNELS: tuple[Row, ...] = (
    ((BatchNormGrad,), (NormGradKernel(),)),
    ((BatchNormInference,), (InferenceKernel(),)),
)
