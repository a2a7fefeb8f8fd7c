"""Batch normalisation in training, and layer norm: a reduction, then an elementwise kernel.

If a channel fits into shared memory, one kernel does both
(:mod:`symdnn.gpu.norm.planes`). Otherwise one pass computes the statistics (``Moments`` in
reduce.cuh), or the gradient's two sums, in any layout. The elementwise half is a generated kernel.
Where ``opt/fuse/norm_rules.py`` has split the op into parts, that half is fused with its
neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from symdnn.config import config
from symdnn.gpu.codegen.device_source import CTYPES
from symdnn.gpu.codegen.launches import (
    CudaKernel,
    KernelLaunch,
    View,
    Views,
    prefers_cudnn,
    scratch,
)
from symdnn.gpu.codegen.reduce_form import Finish, Reducer
from symdnn.gpu.codegen.reduce_plan import scratch_bytes
from symdnn.gpu.kernels.elementwise import elementwise
from symdnn.gpu.kernels.reduce import custom_reduction
from symdnn.gpu.norm.norm import elementwise_of, normalised
from symdnn.gpu.norm.planes import planes_gradient, planes_norm
from symdnn.graph.kernel import Call, Row
from symdnn.ops.core.dtype import work_dtype
from symdnn.ops.core.scalar import ScalarProgram, identity_program
from symdnn.ops.lowered.norm_formulas import grad_program, grad_terms
from symdnn.ops.lowered.norm_parts import BatchMoments, BatchSums, axes_of
from symdnn.ops.nn.batchnorm import BatchNormGrad, BatchNormTrain, LayerNorm
from symdnn.ops.vendor.gpudnn import GpuDnnBatchNorm, GpuDnnBatchNormGrad

_FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
#: Room in states of 16 bytes: one state of moments counts as two.
_MOMENTS_STATES, _SUMS_STATES = 2, 2


def batch_moments(
    x: View, axes: Sequence[int], epsilon: float, outputs: Views,
    running: Views = (), factor: View | float = 0.0,
) -> list[KernelLaunch]:  # fmt: skip
    """Launches for mean and 1 / sqrt(variance + epsilon) of ``x``, and for new running values."""
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
    return custom_reduction(program, reducers, axes, [x], outputs, x.shape, finish, reads, numbers)


def batch_sums(
    program: ScalarProgram, inputs: Views, axes: Sequence[int], outputs: Views,
    shape: tuple[int, ...], written: Views = (),
) -> list[KernelLaunch]:  # fmt: skip
    """Launches for the sums and means of :class:`BatchSums`, and for what is ``written``.

    None of them if one kernel can't do all.
    """
    work = outputs[0].dtype
    m = float(prod(shape[a] for a in axes))
    lines = tuple(
        f"p.y{i}[at] = s.s{i % 2}.total{f' / ({CTYPES[work]})p.c0' if i > 1 else ''};"
        for i in range(4)
    )
    finish = Finish(lines, (), 1, (work,) * 4)
    reducers = (Reducer("Sum", work, work),) * 2
    return custom_reduction(
        program, reducers, axes, inputs, outputs, shape, finish, (), [m], written
    )


def _scratch(shape: Sequence[int], outputs: int, states: int) -> int:
    return scratch_bytes(outputs, prod(shape) // max(outputs, 1), states)


def _shape(t: Any) -> tuple[int, ...]:
    return tuple(t.shape)


# -- parts of a norm ------------------------------------------------------------------------------


class MomentsKernel(CudaKernel[BatchMoments]):
    """One pass over x."""

    name = "cuda.batch_moments"
    dtypes = _FLOATS
    contiguous_inputs = frozenset({1, 2, 3})

    def workspace_bytes(self, call: Call[BatchMoments]) -> int:
        """Partial results."""
        return _scratch(_shape(call.inputs[0]), prod(_shape(call.outputs[0])), _MOMENTS_STATES)

    def launches(
        self, call: Call[BatchMoments], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """The reduction."""
        op = call.op
        factor = inputs[1] if op.running else 0.0
        return batch_moments(inputs[0], op.axes, op.epsilon, outputs, inputs[2:], factor)


class SumsKernel(CudaKernel[BatchSums]):
    """One pass over the program's inputs."""

    name = "cuda.batch_sums"
    dtypes = frozenset(CTYPES)

    def workspace_bytes(self, call: Call[BatchSums]) -> int:
        """Partial results."""
        return _scratch(self.full_shape(call), prod(_shape(call.outputs[0])), _SUMS_STATES)

    def full_shape(self, call: Call[BatchSums]) -> tuple[int, ...]:
        """The shape before the reduction."""
        shapes = [_shape(t) for t in call.inputs]
        return tuple(next((n for n in dims if n != 1), 1) for dims in zip(*shapes))

    def launches(
        self, call: Call[BatchSums], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """The reduction; where it can't write the third result, another kernel does."""
        op, shape = call.op, self.full_shape(call)
        if not op.written:
            return batch_sums(op.program, inputs, op.axes, outputs, shape)
        *sums, whole = outputs
        if found := batch_sums(op.program, inputs, op.axes, sums, shape, [whole]):
            return found
        two, last = (replace(op.program, outputs=o) for o in
                     (op.program.outputs[:2], op.program.outputs[2:]))  # fmt: skip
        found = batch_sums(two, inputs, op.axes, sums, shape)
        return [*found, *elementwise(last, inputs, [whole])]


def _left_to_cudnn(call: Call) -> str | None:
    """The flag by which an op of cuDNN is left to cuDNN; None without one."""
    cudnns = isinstance(call.op, GpuDnnBatchNorm | GpuDnnBatchNormGrad)
    if cudnns and str(config.dnn.batch_norm) == "cudnn":
        return "dnn.batch_norm=cudnn"
    return prefers_cudnn(call)


# -- whole norms ----------------------------------------------------------------------------------


class BatchNormKernel(CudaKernel[LayerNorm | BatchNormTrain | GpuDnnBatchNorm]):
    """Moments, then the normalisation. Inputs are x, scale, bias[, factor], running values."""

    name = "cuda.batch_norm"
    dtypes = _FLOATS
    contiguous_inputs = frozenset({3, 4, 5})

    def refuses(self, call: Call[LayerNorm | BatchNormTrain | GpuDnnBatchNorm]) -> str | None:
        """Unsupported dtypes, and ops for cuDNN by flags."""
        return super().refuses(call) or _left_to_cudnn(call)

    def workspace_bytes(self, call: Call[LayerNorm | BatchNormTrain | GpuDnnBatchNorm]) -> int:
        """Partial results."""
        return _scratch(_shape(call.inputs[0]), prod(_shape(call.outputs[1])), _MOMENTS_STATES)

    def launches(
        self,
        call: Call[LayerNorm | BatchNormTrain | GpuDnnBatchNorm],
        inputs: Sequence[Any],
        outputs: Views,
    ) -> Sequence[KernelLaunch]:
        """One kernel if shared memory is enough, else a reduction and an elementwise kernel."""
        op = call.op
        (x, gamma, beta, *rest), (y, *statistics) = inputs, outputs
        factor = rest.pop(0) if len(rest) == 3 else getattr(op, "running_average_factor", 0.0)
        kept = planes_norm(x, gamma, beta, axes_of(op), op.epsilon, outputs, rest, factor)
        if kept is not None:
            return kept
        found = batch_moments(x, axes_of(op), op.epsilon, statistics, rest, factor)
        return [*found, *elementwise_of(normalised, [x, gamma, beta, *statistics[:2]], [y])]


class BatchNormGradKernel(CudaKernel[BatchNormGrad | GpuDnnBatchNormGrad]):
    """Both sums in one reduction, then dx. Inputs are x, dy, scale, mean, invstd."""

    name = "cuda.batch_norm_grad"
    dtypes = _FLOATS

    def refuses(self, call: Call[BatchNormGrad | GpuDnnBatchNormGrad]) -> str | None:
        """Parameters that several statistics share, and ops for cuDNN by flags."""
        gamma, mean = call.inputs[2:4]
        if gamma.broadcastable != mean.broadcastable:
            return "a parameter is shared by several statistics"
        return super().refuses(call) or _left_to_cudnn(call)

    def workspace_bytes(self, call: Call[BatchNormGrad | GpuDnnBatchNormGrad]) -> int:
        """Partial results, and two means for each statistic."""
        kept = prod(_shape(call.inputs[3]))
        return _scratch(_shape(call.inputs[0]), kept, _SUMS_STATES) + 2 * 8 * (kept + 2)

    def launches(
        self,
        call: Call[BatchNormGrad | GpuDnnBatchNormGrad],
        inputs: Sequence[Any],
        outputs: Views,
    ) -> Sequence[KernelLaunch]:
        """One kernel if shared memory is enough, else a reduction and an elementwise kernel."""
        op = call.op
        (x, dy, gamma, mean, invstd), (dx, dgamma, dbeta) = inputs, outputs
        kept = planes_gradient(x, dy, gamma, mean, invstd, axes_of(op), outputs)
        if kept is not None:
            return kept
        after = _scratch(x.shape, mean.size, _SUMS_STATES)
        a = scratch(after, mean.dtype, mean.shape)
        b = scratch(after + 8 * (mean.size + mean.size % 2), mean.dtype, mean.shape)
        terms = grad_terms((x.dtype, dy.dtype, mean.dtype, mean.dtype))
        found = batch_sums(
            terms, [x, dy, mean, invstd], axes_of(op), [dbeta, dgamma, a, b], x.shape
        )
        return [*found, *elementwise_of(grad_program, [x, dy, gamma, mean, invstd, a, b], [dx])]


KERNELS: tuple[Row, ...] = (
    ((BatchMoments,), (MomentsKernel(),)),
    ((BatchSums,), (SumsKernel(),)),
    ((BatchNormTrain, GpuDnnBatchNorm), (BatchNormKernel(),)),
    ((BatchNormGrad, GpuDnnBatchNormGrad), (BatchNormGradKernel(),)),
)
