"""Batch normalisation and local response normalisation by cuDNN.

Inputs have four or five dimensions, parameters and statistics as many. The new running averages
are ordinary outputs: the old ones are copied to them, and cuDNN updates the copies. The program's
guarded update writes them back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from symdnn.gpu import libcudnn
from symdnn.gpu.cudnn.descriptor import LRNDescription, descriptor
from symdnn.gpu.cudnn.fallback import with_fallbacks
from symdnn.gpu.cudnn.kernel import (
    ANY_LAYOUT,
    MAX_ELEMENTS,
    WITH_BFLOAT16,
    CudnnKernel,
    by_pieces,
    copy,
    factor,
    rows,
    tensor,
    tensor_pieces,
)
from symdnn.gpu.cudnn.pool import too_large
from symdnn.graph.kernel import Call, Row
from symdnn.ops.vendor.gpudnn import (
    GpuDnnBatchNorm,
    GpuDnnBatchNormGrad,
    GpuDnnBatchNormInference,
    GpuDnnLRN,
    GpuDnnLRNGrad,
)

if TYPE_CHECKING:
    from symdnn.gpu.device.array import RawArray
    from symdnn.gpu.device.env import LaunchEnv

# Batch sizes up to which cuDNN is known to normalise in training; it failed on larger ones.
_MAX_BATCH = {"per-activation": 131070, "spatial": 880801}


def _mode(op: Any) -> str:
    word = "SPATIAL" if op.mode == "spatial" else "PER_ACTIVATION"
    return f"CUDNN_BATCHNORM_{word}"


@dataclass(frozen=True)
class _Training(CudnnKernel):
    """Base of forward and backward in training."""

    dtypes = WITH_BFLOAT16
    layouts = ANY_LAYOUT

    def refuses_sizes(self, call: Call) -> str | None:
        """Empty arrays, too many elements, and batches that cuDNN is known to fail on."""
        op: Any = call.op
        shape: tuple[int, ...] = call.inputs[0].shape
        if 0 in shape:
            return "there is nothing to normalise"
        if prod(shape) > MAX_ELEMENTS or shape[0] > _MAX_BATCH[op.mode]:
            return f"cuDNN does not normalise a batch of shape {shape}"
        return None

    def details(self, call: Call) -> str:
        """Mode, epsilon, shapes."""
        op: Any = call.op
        return f"{_mode(op)}, epsilon {op.epsilon}, of {', '.join(map(str, call.inputs))}"


@dataclass(frozen=True)
class BatchNormKernel(_Training):
    """``cudnnBatchNormalizationForwardTraining`` of (x, scale, bias[, running mean, var])."""

    name: str = "cudnn.batch_norm"

    def refuses_sizes(self, call: Call) -> str | None:
        """A running variance of one element each: cuDNN would divide by zero."""
        op: Any = call.op
        reason = super().refuses_sizes(call)
        x, mean = (prod(t.shape) for t in (call.inputs[0], call.outputs[1]))
        if reason is None and op.running_averages and x < 2 * mean:
            return "cuDNN's running variance needs two elements for each statistic"
        return reason

    def launcher(self, call: Call) -> Any:
        """One call."""
        op: Any = call.op
        x, scale = call.inputs[:2]
        xd = tensor(x.dtype, x.shape, op.layout)
        sd = tensor(scale.dtype, scale.shape, op.layout)
        dtype: str = x.dtype
        mode, rate = _mode(op), op.running_average_factor if op.running_averages else 0.0

        def launch(env: LaunchEnv, inputs: Sequence[RawArray], outputs: Sequence[RawArray]) -> None:
            running: Sequence[Any] = (None, None)
            if op.running_averages:
                for old, new in zip(inputs[3:5], outputs[3:5]):
                    copy(env, old, new)
                running = (outputs[3].ptr, outputs[4].ptr)
            y, mean, invstd = (v.ptr for v in outputs[:3])
            at, gamma, beta = (v.ptr for v in inputs[:3])
            libcudnn.cudnnBatchNormalizationForwardTraining(
                env.cudnn, mode, factor(dtype, 1.0), factor(dtype, 0.0), xd.handle, at, xd.handle,
                y, sd.handle, gamma, beta, rate, *running, op.epsilon, mean, invstd,
            )  # fmt: skip

        return launch


@dataclass(frozen=True)
class BatchNormGradKernel(_Training):
    """``cudnnBatchNormalizationBackward`` of (x, dy, scale, mean, invstd)."""

    name: str = "cudnn.batch_norm_grad"

    def launcher(self, call: Call) -> Any:
        """One call."""
        op: Any = call.op
        x, scale = call.inputs[0], call.inputs[2]
        xd = tensor(x.dtype, x.shape, op.layout)
        sd = tensor(scale.dtype, scale.shape, op.layout)
        dtype: str = x.dtype
        mode = _mode(op)

        def launch(env: LaunchEnv, inputs: Sequence[RawArray], outputs: Sequence[RawArray]) -> None:
            at, dy, gamma, mean, invstd = (v.ptr for v in inputs)
            dx, dgamma, dbeta = (v.ptr for v in outputs)
            one, none = factor(dtype, 1.0), factor(dtype, 0.0)
            libcudnn.cudnnBatchNormalizationBackward(
                env.cudnn, mode, one, none, one, none, xd.handle, at, xd.handle, dy, xd.handle, dx,
                sd.handle, gamma, dgamma, dbeta, op.epsilon, mean, invstd,
            )  # fmt: skip

        return launch


@dataclass(frozen=True)
class BatchNormInferenceKernel(CudnnKernel[GpuDnnBatchNormInference]):
    """``cudnnBatchNormalizationForwardInference`` of (x, scale, bias, mean, variance)."""

    name: str = "cudnn.batch_norm_inference"
    dtypes = WITH_BFLOAT16
    layouts = ANY_LAYOUT

    def refuses_sizes(self, call: Call[GpuDnnBatchNormInference]) -> str | None:
        """Samples that are too large."""
        return too_large(call.inputs[0])

    def details(self, call: Call[GpuDnnBatchNormInference]) -> str:
        """Mode, epsilon, shapes."""
        op = call.op
        return f"{_mode(op)}, epsilon {op.epsilon}, of {', '.join(map(str, call.inputs))}"

    def launcher(self, call: Call[GpuDnnBatchNormInference]) -> Any:
        """One call for each piece of the batch."""
        op = call.op
        x, scale = call.inputs[:2]
        dtype: str = x.dtype
        parts = tensor_pieces(dtype, x.shape, layout=op.layout)
        sd = tensor(scale.dtype, scale.shape, op.layout)
        mode = _mode(op)

        def launch(env: LaunchEnv, inputs: Sequence[RawArray], outputs: Sequence[RawArray]) -> None:
            statistics = [v.ptr for v in inputs[1:]]
            for start, count, (d,) in parts:
                at, y = (rows(v, start, count).ptr for v in (inputs[0], outputs[0]))
                libcudnn.cudnnBatchNormalizationForwardInference(
                    env.cudnn, mode, factor(dtype, 1.0), factor(dtype, 0.0), d.handle, at,
                    d.handle, y, sd.handle, *statistics, op.epsilon,
                )  # fmt: skip

        return launch


# -- local response normalisation -----------------------------------------------------------------

_LRN_MODE = "CUDNN_LRN_CROSS_CHANNEL_DIM1"


@dataclass(frozen=True)
class LRNKernel(CudnnKernel):
    """``cudnnLRNCrossChannelForward`` of x, or ``cudnnLRNCrossChannelBackward`` of (x, y, dy)."""

    name: str
    layouts = ANY_LAYOUT

    def refuses_types(self, call: Call) -> str | None:
        """Dtypes and ranks."""
        x = call.inputs[0]
        if x.ndim not in (4, 5):
            return f"cuDNN normalises across channels in 4 or 5 dimensions, not {x.ndim}"
        return super().refuses_types(call)

    def refuses_sizes(self, call: Call) -> str | None:
        """Samples that are too large."""
        return too_large(call.inputs[0])

    def details(self, call: Call) -> str:
        """The formula's numbers."""
        op: Any = call.op
        return f"{LRNDescription(op.n, op.alpha, op.beta, op.k)} of {call.inputs[0]}"

    def launcher(self, call: Call) -> Any:
        """One call for each piece of the batch."""
        op: Any = call.op
        x = call.inputs[0]
        how = descriptor(LRNDescription(op.n, op.alpha, op.beta, op.k))
        parts = [(i, n, d) for i, n, (d,) in tensor_pieces(x.dtype, x.shape, layout=op.layout)]
        one, none = factor(x.dtype, 1.0), factor(x.dtype, 0.0)

        def forward(env: LaunchEnv, d: Any, x: int, y: int) -> None:
            libcudnn.cudnnLRNCrossChannelForward(
                env.cudnn, how.handle, _LRN_MODE, one, d.handle, x, none, d.handle, y
            )

        def backward(env: LaunchEnv, d: Any, x: int, y: int, dy: int, dx: int) -> None:
            libcudnn.cudnnLRNCrossChannelBackward(
                env.cudnn, how.handle, _LRN_MODE, one, d.handle, y, d.handle, dy, d.handle, x,
                none, d.handle, dx,
            )  # fmt: skip

        enqueue = forward if len(call.inputs) == 1 else backward
        return by_pieces(parts, enqueue, reads=len(call.inputs))


KERNELS: tuple[Row, ...] = (
    with_fallbacks(GpuDnnBatchNorm, BatchNormKernel()),
    with_fallbacks(GpuDnnBatchNormGrad, BatchNormGradKernel()),
    with_fallbacks(GpuDnnBatchNormInference, BatchNormInferenceKernel()),
    with_fallbacks(GpuDnnLRN, LRNKernel("cudnn.lrn")),
    with_fallbacks(GpuDnnLRNGrad, LRNKernel("cudnn.lrn_grad")),
)
