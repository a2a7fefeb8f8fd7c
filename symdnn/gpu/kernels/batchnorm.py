"""Batch normalisation in training, and layer norm: one sweep for all sums, one elementwise kernel.

Planes whose channels fit into shared memory have a kernel that does all
(:mod:`symdnn.gpu.kernels.norm_planes`). Else statistics are found in one pass (``Moments`` in
reduce.cuh), the gradient's two sums in another, whatever the layout. The elementwise half is a
generated kernel, alone here; where ``opt/fuse/norm_rules.py`` has taken the op apart, it is fused
with what surrounds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from symdnn.config import config
from symdnn.gpu.codegen.device_source import CTYPES
from symdnn.gpu.codegen.launches import CudaKernel, KernelLaunch, View, scratch
from symdnn.gpu.codegen.reduce_source import Finish, Reducer
from symdnn.gpu.kernels.norm import normalised, of_each, work_dtype
from symdnn.gpu.kernels.norm_planes import planes_gradient, planes_norm
from symdnn.gpu.kernels.reduce import scratch_bytes, swept
from symdnn.gpu.kernels.softmax import prefers_cudnn
from symdnn.graph.kernel import Call, Row
from symdnn.ops.core.scalar import ScalarProgram, identity_program
from symdnn.ops.nn.batchnorm import BatchNormGrad, BatchNormTrain, LayerNorm
from symdnn.ops.vendor.gpudnn import GpuDnnBatchNorm, GpuDnnBatchNormGrad
from symdnn.ops.vendor.norm_formulas import grad_program, grad_terms
from symdnn.ops.vendor.norm_parts import BatchMoments, BatchSums, axes_of

__all__ = ["batch_moments", "batch_sums", "KERNELS"]

_FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
#: A state of moments is no larger than two others.
_MOMENTS, _SUMS = 2, 2


def batch_moments(
    x: View, axes: Sequence[int], epsilon: float, outputs: Sequence[View],
    running: Sequence[View] = (), factor: View | float = 0.0,
) -> list[KernelLaunch]:  # fmt: skip
    """Mean and 1 / sqrt(variance + epsilon) of ``x``; of ``running`` values the new ones too."""
    work = work_dtype(x.dtype)
    kind = CTYPES[work]
    m = float(prod(x.shape[a] for a in axes))
    lines = [
        f"const {kind} mean = s.s0.mean(), variance = s.s0.variance();",
        "p.y0[at] = mean;",
        f"p.y1[at] = ({kind})1 / s_sqrt(variance + ({kind})p.c0);",
    ]
    reads = list(running)
    numbers = [epsilon]
    if running:
        given = isinstance(factor, View)
        numbers.append(m / max(m - 1, 1.0))
        if isinstance(factor, View):
            reads.append(factor)
        else:
            numbers.append(factor)
        lines += [
            f"const {kind} factor = {'p.z2[at * p.z2_s]' if given else f'({kind})p.c2'};",
            "p.y2[at] = p.z0[at * p.z0_s] * (1 - factor) + mean * factor;",
            f"const {kind} unbiased = variance * ({kind})p.c1;",
            "p.y3[at] = p.z1[at * p.z1_s] * (1 - factor) + unbiased * factor;",
        ]
    finish = Finish(
        tuple(lines), tuple(v.dtype for v in reads), len(numbers), tuple(v.dtype for v in outputs)
    )
    reducers = (Reducer("Moments", work, work),)
    program = identity_program(x.dtype)
    return swept(program, reducers, axes, [x], outputs, x.shape, finish, reads, numbers)


def batch_sums(
    program: ScalarProgram, inputs: Sequence[View], axes: Sequence[int], outputs: Sequence[View],
    shape: tuple[int, ...],
) -> list[KernelLaunch]:  # fmt: skip
    """The sums and means of :class:`BatchSums`."""
    work = outputs[0].dtype
    m = float(prod(shape[a] for a in axes))
    lines = tuple(
        f"p.y{i}[at] = s.s{i % 2}.total{f' / ({CTYPES[work]})p.c0' if i > 1 else ''};"
        for i in range(4)
    )
    finish = Finish(lines, (), 1, (work,) * 4)
    reducers = (Reducer("Sum", work, work),) * 2
    return swept(program, reducers, axes, inputs, outputs, shape, finish, (), [m])


def _scratch(shape: Sequence[int], outputs: int, states: int) -> int:
    return scratch_bytes(outputs, prod(shape) // max(outputs, 1), states)


def _shape(t: Any) -> tuple[int, ...]:
    return tuple(t.shape)


# -- the parts ------------------------------------------------------------------------------------


class MomentsKernel(CudaKernel):
    """One pass over x; a second small kernel where a statistic's elements are cut into chunks."""

    name = "cuda.batch_moments"
    dtypes = _FLOATS
    contiguous_inputs = frozenset({1, 2, 3})

    def workspace_bytes(self, call: Call) -> int:
        """Partial results."""
        return _scratch(_shape(call.inputs[0]), prod(_shape(call.outputs[0])), _MOMENTS)

    def launches(
        self, call: Call, inputs: Sequence[Any], outputs: Sequence[View]
    ) -> Sequence[KernelLaunch]:
        """The sweep."""
        op: Any = call.op
        factor = inputs[1] if op.running else 0.0
        return batch_moments(inputs[0], op.axes, op.epsilon, outputs, inputs[2:], factor)


class SumsKernel(CudaKernel):
    """One pass over what the program reads."""

    name = "cuda.batch_sums"
    dtypes = frozenset(CTYPES)

    def workspace_bytes(self, call: Call) -> int:
        """Partial results."""
        return _scratch(self.whole(call), prod(_shape(call.outputs[0])), _SUMS)

    def whole(self, call: Call) -> tuple[int, ...]:
        """The shape that is reduced."""
        shapes = [_shape(t) for t in call.inputs]
        return tuple(next((n for n in dims if n != 1), 1) for dims in zip(*shapes))

    def launches(
        self, call: Call, inputs: Sequence[Any], outputs: Sequence[View]
    ) -> Sequence[KernelLaunch]:
        """The sweep."""
        op: Any = call.op
        return batch_sums(op.program, inputs, op.axes, outputs, self.whole(call))


def _left_to_cudnn(call: Call) -> str | None:
    """Why an op of cuDNN's is left to cuDNN."""
    cudnns = isinstance(call.op, GpuDnnBatchNorm | GpuDnnBatchNormGrad)
    if cudnns and str(config.dnn.batch_norm) == "cudnn":
        return "dnn.batch_norm=cudnn"
    return prefers_cudnn(call)


# -- the whole ------------------------------------------------------------------------------------


class BatchNormKernel(CudaKernel):
    """Moments, then the normalisation; of (x, scale, bias[, factor], running values)."""

    name = "cuda.batch_norm"
    dtypes = _FLOATS
    contiguous_inputs = frozenset({3, 4, 5})

    def refuses(self, call: Call) -> str | None:
        """What is left to cuDNN."""
        return super().refuses(call) or _left_to_cudnn(call)

    def workspace_bytes(self, call: Call) -> int:
        """Partial results."""
        return _scratch(_shape(call.inputs[0]), prod(_shape(call.outputs[1])), _MOMENTS)

    def launches(
        self, call: Call, inputs: Sequence[Any], outputs: Sequence[View]
    ) -> Sequence[KernelLaunch]:
        """One kernel where it can be, else a sweep and an elementwise kernel."""
        op: Any = call.op
        (x, gamma, beta, *rest), (y, *statistics) = inputs, outputs
        factor = rest.pop(0) if len(rest) == 3 else getattr(op, "running_average_factor", 0.0)
        kept = planes_norm(x, gamma, beta, axes_of(op), op.epsilon, outputs, rest, factor)
        if kept is not None:
            return kept
        found = batch_moments(x, axes_of(op), op.epsilon, statistics, rest, factor)
        return [*found, *of_each(normalised, [x, gamma, beta, *statistics[:2]], [y])]


class BatchNormGradKernel(CudaKernel):
    """Both sums in a sweep, then dx; of (x, dy, scale, mean, invstd)."""

    name = "cuda.batch_norm_grad"
    dtypes = _FLOATS

    def refuses(self, call: Call) -> str | None:
        """Parameters that several statistics share, and what is left to cuDNN."""
        gamma, mean = call.inputs[2:4]
        if gamma.broadcastable != mean.broadcastable:
            return "a parameter is shared by several statistics"
        return super().refuses(call) or _left_to_cudnn(call)

    def workspace_bytes(self, call: Call) -> int:
        """Partial results, and two means for each statistic."""
        kept = prod(_shape(call.inputs[3]))
        return _scratch(_shape(call.inputs[0]), kept, _SUMS) + 2 * 8 * (kept + 2)

    def launches(
        self, call: Call, inputs: Sequence[Any], outputs: Sequence[View]
    ) -> Sequence[KernelLaunch]:
        """One kernel where it can be, else a sweep and an elementwise kernel."""
        op: Any = call.op
        (x, dy, gamma, mean, invstd), (dx, dgamma, dbeta) = inputs, outputs
        kept = planes_gradient(x, dy, gamma, mean, invstd, axes_of(op), outputs)
        if kept is not None:
            return kept
        after = _scratch(x.shape, mean.size, _SUMS)
        a = scratch(after, mean.dtype, mean.shape)
        b = scratch(after + 8 * (mean.size + mean.size % 2), mean.dtype, mean.shape)
        terms = grad_terms((x.dtype, dy.dtype, mean.dtype, mean.dtype))
        found = batch_sums(
            terms, [x, dy, mean, invstd], axes_of(op), [dbeta, dgamma, a, b], x.shape
        )
        return [*found, *of_each(grad_program, [x, dy, gamma, mean, invstd, a, b], [dx])]


KERNELS: tuple[Row, ...] = (
    ((BatchMoments,), (MomentsKernel(),)),
    ((BatchSums,), (SumsKernel(),)),
    ((LayerNorm, BatchNormTrain, GpuDnnBatchNorm), (BatchNormKernel(),)),
    ((BatchNormGrad, GpuDnnBatchNormGrad), (BatchNormGradKernel(),)),
)
