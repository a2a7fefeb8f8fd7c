"""Batch normalisation and local response normalisation to cuDNN's ops.

cuDNN takes 4 or 5 dimensions. Fewer are padded with size 1, more are merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symdnn.graph.dims import product
from symdnn.graph.op import Op
from symdnn.graph.variable import Apply, Variable
from symdnn.libraries.cudnn.backend import BACKEND
from symdnn.ops.core.shape import dims_of, reshape, specify_type
from symdnn.ops.elementwise.arithmetic import cast
from symdnn.ops.nn.batchnorm import BatchNormGrad, BatchNormInference, BatchNormTrain
from symdnn.ops.nn.lrn import LRN, ChannelSum, LRNGrad
from symdnn.ops.vendor.gpudnn_norm import (
    MIN_EPSILON,
    GpuDnnBatchNorm,
    GpuDnnBatchNormBase,
    GpuDnnBatchNormGrad,
    GpuDnnBatchNormInference,
    GpuDnnLRN,
    GpuDnnLRNGrad,
)
from symdnn.ops.vendor.gpudnn_pool import GpuDnnPool
from symdnn.opt.lower.lowering import Lowering
from symdnn.rewriting.facts import broadcast_axis, number
from symdnn.rewriting.rewrite import Context


def _mode(axes: Sequence[int], ndim: int) -> str | None:
    """cuDNN's mode for statistics over these axes."""
    if tuple(axes) == (0,):
        return "per-activation"
    return "spatial" if tuple(axes) == (0, *range(2, ndim)) else None


def _parameters(node: Apply) -> list[Variable]:
    """gamma, beta and statistics: the inputs that have a value for each channel."""
    if isinstance(node.op, BatchNormTrain):
        return [*node.inputs[1:3], *node.inputs[4:]]
    return list(node.inputs[2:] if isinstance(node.op, BatchNormGrad) else node.inputs[1:])


def refuses(node: Apply, context: Context) -> str | None:
    """Only axes (0,) or all but 1, epsilon large enough, a constant factor, full parameters."""
    op: Any = node.op
    x = node.inputs[0]
    if _mode(op.axes, x.type.ndim) is None:
        return f"cuDNN normalises over axis 0 or over all but axis 1, not over {op.axes}"
    if op.epsilon < MIN_EPSILON:
        return f"epsilon {op.epsilon} is less than {MIN_EPSILON}"
    if isinstance(op, BatchNormTrain) and op.running and number(node.inputs[3]) is None:
        return "running_average_factor is computed: cuDNN reads it on the host"
    for p in _parameters(node):
        if (axis := broadcast_axis(p, x, op.axes)) is not None:
            return f"a parameter of type {p.type} broadcasts over axis {axis}"
    return None


def _to_4d(v: Variable, mode: str) -> Variable:
    """The input, a parameter or a cotangent with cuDNN's number of dimensions.

    In the mode spatial that is (N, C, 1, positions), as convolutions have it, or (N, C, rest, 1),
    else (N, rest, 1, 1); ``rest`` is merged.
    """
    ndim = v.type.ndim
    if ndim in (4, 5):
        return v
    if ndim == 3 and mode == "spatial":
        return v.dimshuffle(0, 1, "x", 2)
    if ndim < 4:
        return v.dimshuffle([*range(ndim), *["x"] * (4 - ndim)])
    kept = 2 if mode == "spatial" else 1
    dims = dims_of(v)
    return reshape(v, (*dims[:kept], product(dims[kept:]), *[1] * (3 - kept)), ndim=4)


def _from_4d(v: Variable, x: Variable, like: Variable, mode: str) -> Variable:
    """A result of cuDNN's op in the shape of ``like``, the output of a node that normalises x."""
    ndim = x.type.ndim
    if ndim in (4, 5):
        return v
    if ndim == 3 and mode == "spatial":
        return v.dimshuffle(0, 1, 3)
    if ndim < 4:
        return v.dimshuffle(list(range(ndim)))
    shape = [1 if one else d for one, d in zip(like.type.broadcastable, dims_of(x), strict=True)]
    return specify_type(reshape(v, shape, ndim=ndim), like.type)


def _lowering(name: str, kind: type[Op], low: type[GpuDnnBatchNormBase]) -> Lowering:
    def build(node: Apply, context: Context) -> Sequence[Variable]:
        op: Any = node.op
        x, *rest = node.inputs
        mode = _mode(op.axes, x.type.ndim) or ""
        settings: dict[str, Any] = {"mode": mode, "ndim": 5 if x.type.ndim == 5 else 4}
        if isinstance(op, BatchNormTrain) and op.running:
            factor = float(number(rest.pop(2)))
            settings |= {"running_averages": True, "running_average_factor": factor}
        out = low.of(op, **settings)(*(_to_4d(v, mode) for v in (x, *rest)))
        found = [out] if isinstance(out, Variable) else list(out)
        return [_from_4d(v, x, like, mode) for v, like in zip(found, node.outputs, strict=True)]

    return BACKEND.lowering(name, low, kind, refuses=refuses)(build)


# -- local response normalisation -----------------------------------------------------------------


def lrn_refuses(node: Apply, context: Context) -> str | None:
    """Only 4 or 5 dimensions, and parameters within cuDNN's limits."""
    op: Any = node.op
    x = node.inputs[0]
    if x.type.ndim not in (4, 5):
        return f"cuDNN normalises across channels in 4 or 5 dimensions, not {x.type.ndim}"
    if op.axis != 1:
        return f"cuDNN normalises across the second dimension, not axis {op.axis}"
    if not 1 <= op.n <= 16 or op.k < 1e-5 or op.beta < 0.01:
        return "cuDNN wants a window of 1 to 16, k of at least 1e-5 and beta of at least 0.01"
    return None


def _lrn(name: str, low: type[GpuDnnLRN | GpuDnnLRNGrad], kind: type[Op]) -> Lowering:
    def build(node: Apply, context: Context) -> Variable:
        dtype = node.inputs[0].type.dtype
        wide = "float32" if dtype == "bfloat16" else dtype
        inputs = (cast(v, wide) for v in node.inputs)
        return cast(low.of(node.op)(*inputs, hints=node.hints), dtype)

    text = f"{kind.__name__} to {low.__name__}, bfloat16 in float32"
    return BACKEND.lowering(name, None, kind, refuses=lrn_refuses, text=text)(build)


@BACKEND.lowering("local_dnn_channel_sum", GpuDnnPool, ChannelSum)
def _channel_sum(node: Apply, context: Context) -> Variable:
    """Sums over neighbouring channels as sums over windows of images, whose rows are channels."""
    op: Any = node.op
    found: Variable = op.written_out(*node.inputs, hints=node.hints)
    return found


LOWERINGS = (
    _lowering("local_abstract_batch_norm_train_cudnn", BatchNormTrain, GpuDnnBatchNorm),
    _lowering(
        "local_abstract_batch_norm_inference_cudnn", BatchNormInference, GpuDnnBatchNormInference
    ),
    _lowering("local_abstract_batch_norm_train_grad_cudnn", BatchNormGrad, GpuDnnBatchNormGrad),
    _lrn("local_dnn_lrn", GpuDnnLRN, LRN),
    _lrn("local_dnn_lrn_grad", GpuDnnLRNGrad, LRNGrad),
    _channel_sum,
)
