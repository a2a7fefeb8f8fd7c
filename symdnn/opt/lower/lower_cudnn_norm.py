"""Batch normalisation and local response normalisation to cuDNN's.

cuDNN takes four or five dimensions: fewer are padded with 1, more are joined into one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symdnn.graph.dims import product
from symdnn.graph.variable import Apply, Variable
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
from symdnn.opt.lower.lowering import dtype_reason, lowering
from symdnn.rewriting.facts import number
from symdnn.rewriting.rewrite import Context

__all__ = ["LOWERINGS"]


def _mode(axes: Sequence[int], ndim: int) -> str | None:
    """cuDNN's mode for statistics over these axes."""
    if tuple(axes) == (0,):
        return "per-activation"
    return "spatial" if tuple(axes) == (0, *range(2, ndim)) else None


def _parameters(node: Apply) -> list[Variable]:
    """gamma, beta, statistics: whatever has their shape."""
    if isinstance(node.op, BatchNormTrain):
        return [*node.inputs[1:3], *node.inputs[4:]]
    return list(node.inputs[2:] if isinstance(node.op, BatchNormGrad) else node.inputs[1:])


def refuses(node: Apply, context: Context) -> str | None:
    """Axes (0,) or all but 1, a large enough epsilon, a constant factor, full parameters."""
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
    return dtype_reason(context.target, x.type.dtype, bfloat16=True)


class _Shaping:
    """To the dimensions that cuDNN takes, and back."""

    def __init__(self, mode: str, x: Variable) -> None:
        self.mode, self.x, self.ndim = mode, x, x.type.ndim

    @property
    def low_ndim(self) -> int:
        """How many dimensions cuDNN gets."""
        return self.ndim if self.ndim in (4, 5) else 4

    def there(self, v: Variable) -> Variable:
        """The input, a parameter or a cotangent."""
        if self.ndim in (4, 5):
            return v
        if self.ndim < 4:
            return v.dimshuffle([*range(self.ndim), *["x"] * (4 - self.ndim)])
        return self._joined(v)

    def _joined(self, v: Variable) -> Variable:
        """Spatial: (N, C, all the rest, 1); per activation: (N, all the rest, 1, 1)."""
        kept = 2 if self.mode == "spatial" else 1
        dims = dims_of(v)
        joined = product(dims[kept:])
        shape = (*dims[:kept], joined, *[1] * (3 - kept))
        return reshape(v, shape, ndim=4)

    def back(self, v: Variable, like: Variable) -> Variable:
        """A result, in the shape of ``like`` (the node's own output)."""
        if self.ndim in (4, 5):
            return v
        if self.ndim < 4:
            return v.dimshuffle(list(range(self.ndim)))
        dims = dims_of(self.x)
        one = like.type.broadcastable
        shape = tuple(1 if b else d for b, d in zip(one, dims, strict=True))
        return specify_type(reshape(v, shape, ndim=self.ndim), like.type)


def _shaping(node: Apply) -> _Shaping:
    op: Any = node.op
    x = node.inputs[0]
    return _Shaping(_mode(op.axes, x.type.ndim) or "", x)


def _lowered(node: Apply, op: Any, shaping: _Shaping, inputs: Sequence[Variable]) -> list[Variable]:
    out = op(*map(shaping.there, inputs))
    found = [out] if isinstance(out, Variable) else list(out)
    return [shaping.back(v, like) for v, like in zip(found, node.outputs, strict=True)]


@lowering("local_abstract_batch_norm_train_cudnn", BatchNormTrain, refuses=refuses)
def train(node: Apply, context: Context) -> Sequence[Variable]:
    """Batch normalisation in training to GpuDnnBatchNorm."""
    op: Any = node.op
    shaping = _shaping(node)
    fields: dict[str, Any] = {"epsilon": op.epsilon, "ndim": shaping.low_ndim}
    inputs = list(node.inputs)
    if op.running:
        fields["running_average_factor"] = float(number(inputs.pop(3)))
    low = GpuDnnBatchNorm(shaping.mode, op.running, **fields)
    return _lowered(node, low, shaping, inputs)


@lowering("local_abstract_batch_norm_inference_cudnn", BatchNormInference, refuses=refuses)
def inference(node: Apply, context: Context) -> Sequence[Variable]:
    """Batch normalisation by given statistics to GpuDnnBatchNormInference."""
    op: Any = node.op
    shaping = _shaping(node)
    low = GpuDnnBatchNormInference(shaping.mode, epsilon=op.epsilon, ndim=shaping.low_ndim)
    return _lowered(node, low, shaping, node.inputs)


@lowering("local_abstract_batch_norm_train_grad_cudnn", BatchNormGrad, refuses=refuses)
def train_grad(node: Apply, context: Context) -> Sequence[Variable]:
    """The gradient of batch normalisation to GpuDnnBatchNormGrad."""
    op: Any = node.op
    shaping = _shaping(node)
    low = GpuDnnBatchNormGrad(shaping.mode, epsilon=op.epsilon, ndim=shaping.low_ndim)
    return _lowered(node, low, shaping, node.inputs)


# -- local response normalisation -----------------------------------------------------------------


def lrn_refuses(node: Apply, context: Context) -> str | None:
    """Four or five dimensions, and parameters within cuDNN's limits."""
    op: Any = node.op
    x = node.inputs[0]
    if x.type.ndim not in (4, 5):
        return f"cuDNN normalises across channels in 4 or 5 dimensions, not {x.type.ndim}"
    if op.axis != 1:
        return f"cuDNN normalises across the second dimension, not axis {op.axis}"
    if not 1 <= op.n <= 16 or op.k < 1e-5 or op.beta < 0.01:
        return "cuDNN wants a window of 1 to 16, k of at least 1e-5 and beta of at least 0.01"
    return dtype_reason(context.target, x.type.dtype)


@lowering("local_dnn_lrn", LRN, refuses=lrn_refuses)
def lrn(node: Apply, context: Context) -> Variable:
    """Local response normalisation to GpuDnnLRN."""
    op: Any = node.op
    return GpuDnnLRN(op.n, op.alpha, op.beta, op.k)(*node.inputs)


@lowering("local_dnn_lrn_grad", LRNGrad, refuses=lrn_refuses)
def lrn_grad(node: Apply, context: Context) -> Variable:
    """Its gradient to GpuDnnLRNGrad."""
    op: Any = node.op
    return GpuDnnLRNGrad(op.n, op.alpha, op.beta, op.k)(*node.inputs)


LOWERINGS = (train, inference, train_grad, lrn, lrn_grad)
