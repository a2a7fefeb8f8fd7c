"""Batch normalisation and local response normalisation to cuDNN's ops.

cuDNN takes 4 or 5 dimensions. Fewer are padded with size 1, more are merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symdnn.graph.dims import product
from symdnn.graph.variable import Apply, Variable
from symdnn.libraries.cudnn.backend import BACKEND, dtype_reason
from symdnn.ops.core.shape import dims_of, reshape, specify_type
from symdnn.ops.nn.batchnorm import BatchNormGrad, BatchNormInference, BatchNormTrain
from symdnn.ops.nn.lrn import LRN, LRNGrad
from symdnn.ops.vendor.gpudnn_norm import (
    MIN_EPSILON,
    GpuDnnBatchNorm,
    GpuDnnBatchNormGrad,
    GpuDnnBatchNormInference,
    GpuDnnLRN,
    GpuDnnLRNGrad,
)
from symdnn.rewriting.facts import number
from symdnn.rewriting.rewrite import Context

__all__ = ["LOWERINGS"]


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
        short = [
            i for i, (d, n) in enumerate(zip(p.type.shape, x.type.shape, strict=True))
            if i not in op.axes and d == 1 and n != 1
        ]  # fmt: skip
        if short:
            return f"a parameter of type {p.type} broadcasts over axis {short[0]}"
    return dtype_reason(context.target, x.type.dtype, GpuDnnBatchNorm)


class _CudnnShape:
    """Reshapes arrays to the dimensions that cuDNN takes, and back."""

    def __init__(self, mode: str, x: Variable) -> None:
        self.mode, self.x, self.ndim = mode, x, x.type.ndim

    @property
    def cudnn_ndim(self) -> int:
        """The number of dimensions that cuDNN gets."""
        return self.ndim if self.ndim in (4, 5) else 4

    def to_cudnn(self, v: Variable) -> Variable:
        """The input, a parameter or a cotangent with ``cudnn_ndim`` dimensions."""
        if self.ndim in (4, 5):
            return v
        if self.ndim < 4:
            return v.dimshuffle([*range(self.ndim), *["x"] * (4 - self.ndim)])
        return self._joined(v)

    def _joined(self, v: Variable) -> Variable:
        """(N, C, rest, 1) in the mode spatial, else (N, rest, 1, 1); ``rest`` is merged."""
        kept = 2 if self.mode == "spatial" else 1
        dims = dims_of(v)
        joined = product(dims[kept:])
        shape = (*dims[:kept], joined, *[1] * (3 - kept))
        return reshape(v, shape, ndim=4)

    def from_cudnn(self, v: Variable, like: Variable) -> Variable:
        """A result of cuDNN's op in the shape of ``like``, the node's own output."""
        if self.ndim in (4, 5):
            return v
        if self.ndim < 4:
            return v.dimshuffle(list(range(self.ndim)))
        dims = dims_of(self.x)
        one = like.type.broadcastable
        shape = tuple(1 if b else d for b, d in zip(one, dims, strict=True))
        return specify_type(reshape(v, shape, ndim=self.ndim), like.type)


def _shape_of(node: Apply) -> _CudnnShape:
    op: Any = node.op
    x = node.inputs[0]
    return _CudnnShape(_mode(op.axes, x.type.ndim) or "", x)


def _lowered(
    node: Apply, op: Any, shaping: _CudnnShape, inputs: Sequence[Variable]
) -> list[Variable]:
    out = op(*map(shaping.to_cudnn, inputs))
    found = [out] if isinstance(out, Variable) else list(out)
    return [shaping.from_cudnn(v, like) for v, like in zip(found, node.outputs, strict=True)]


@BACKEND.lowering("local_abstract_batch_norm_train_cudnn", BatchNormTrain, refuses=refuses)
def train(node: Apply, context: Context) -> Sequence[Variable]:
    """Batch normalisation in training to GpuDnnBatchNorm."""
    op: Any = node.op
    shaping = _shape_of(node)
    fields: dict[str, Any] = {"epsilon": op.epsilon, "ndim": shaping.cudnn_ndim}
    inputs = list(node.inputs)
    if op.running:
        fields["running_average_factor"] = float(number(inputs.pop(3)))
    low = GpuDnnBatchNorm(shaping.mode, op.running, **fields)
    return _lowered(node, low, shaping, inputs)


@BACKEND.lowering("local_abstract_batch_norm_inference_cudnn", BatchNormInference, refuses=refuses)
def inference(node: Apply, context: Context) -> Sequence[Variable]:
    """Batch normalisation with given statistics to GpuDnnBatchNormInference."""
    op: Any = node.op
    shaping = _shape_of(node)
    low = GpuDnnBatchNormInference(shaping.mode, epsilon=op.epsilon, ndim=shaping.cudnn_ndim)
    return _lowered(node, low, shaping, node.inputs)


@BACKEND.lowering("local_abstract_batch_norm_train_grad_cudnn", BatchNormGrad, refuses=refuses)
def train_grad(node: Apply, context: Context) -> Sequence[Variable]:
    """The gradient of batch normalisation to GpuDnnBatchNormGrad."""
    op: Any = node.op
    shaping = _shape_of(node)
    low = GpuDnnBatchNormGrad(shaping.mode, epsilon=op.epsilon, ndim=shaping.cudnn_ndim)
    return _lowered(node, low, shaping, node.inputs)


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
    return dtype_reason(context.target, x.type.dtype)


@BACKEND.lowering("local_dnn_lrn", LRN, refuses=lrn_refuses)
def lrn(node: Apply, context: Context) -> Variable:
    """Local response normalisation to GpuDnnLRN."""
    op: Any = node.op
    return GpuDnnLRN(op.n, op.alpha, op.beta, op.k)(*node.inputs)


@BACKEND.lowering("local_dnn_lrn_grad", LRNGrad, refuses=lrn_refuses)
def lrn_grad(node: Apply, context: Context) -> Variable:
    """Its gradient to GpuDnnLRNGrad."""
    op: Any = node.op
    return GpuDnnLRNGrad(op.n, op.alpha, op.beta, op.k)(*node.inputs)


LOWERINGS = (train, inference, train_grad, lrn, lrn_grad)
