"""Normalisation by given statistics behind a convolution, done by the convolution's own kernels.

``scale * (conv(x, w) - mean) + beta`` is ``conv(x, scale * w) + (beta - scale * mean)``, where
``scale = gamma / sqrt(var + epsilon)`` has a value for each channel of the result. What is left is
a bias, which a convolution takes in (:mod:`symdnn.opt.epilogue.epilogue`), and two small kernels on
the parameters, which run at each call: statistics may have changed. Parameters are scaled in their
own dtype, float32 beside 16-bit images, and rounded once.

The tag ``fold_batch_norm`` switches it off, on a GPU also the flag ``gpu.fold_batch_norm``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from symdnn.config import config
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.core.shape import dimshuffle
from symdnn.ops.elementwise.arithmetic import cast, sqrt
from symdnn.ops.vendor.gpudnn_conv import GpuDnnConv
from symdnn.ops.vendor.gpudnn_norm import GpuDnnBatchNormInference
from symdnn.ops.vendor.onednn import OneDnnBatchNormInference, OneDnnConv
from symdnn.rewriting.rewrite import Context, node_rewrite

__all__ = ["RULES", "fold_batch_norm"]


def _convolution(v: Variable, context: Context) -> Apply | None:
    """The convolution that makes ``v`` for one reader alone, and does nothing else to it."""
    node = v.owner
    if node is None or not context.only_user(v):
        return None
    op: Any = node.op
    return node if type(op) in (GpuDnnConv, OneDnnConv) and op.is_plain else None


def _by_channel(v: Variable) -> bool:
    """Whether parameters (1, K, 1, ...) have a value for each channel."""
    ones = v.type.broadcastable
    return bool(not ones[1] and all(ones[:1]) and all(ones[2:]))


def _allowed(op: Any) -> bool:
    """Whether an op normalises by channels, and its target's flag lets it be folded."""
    if op.layout != "NCHW":
        return False
    if isinstance(op, OneDnnBatchNormInference):
        return True
    return str(config.gpu.fold_batch_norm) != "off" and bool(op.mode == "spatial")


@node_rewrite(
    GpuDnnBatchNormInference, OneDnnBatchNormInference,
    phase="lower", tags=("cudnn", "onednn", "fold_batch_norm", "fast_compile"),
)  # fmt: skip
def fold_batch_norm(node: Apply, context: Context) -> Variable | None:
    """conv -> batch normalisation by given statistics: scaled kernels and a bias."""
    op: Any = node.op
    x, gamma, beta, mean, var = node.inputs
    conv = _convolution(x, context)
    if conv is None or not _allowed(op) or not all(map(_by_channel, (gamma, beta, mean, var))):
        return None
    own: Any = op.op if isinstance(op, OneDnnBatchNormInference) else op
    scale = gamma / sqrt(var + _number(own.epsilon, var))
    shift = beta - mean * scale
    images, kernels, *more = conv.inputs
    folded = _scaled(kernels, scale)
    y = conv.op(images, folded, *more, hints=conv.hints)
    return y + cast(shift, y.type.dtype)


def _number(value: float, like: Variable) -> Constant:
    return Constant(np.full((1,) * like.type.ndim, value, like.type.numpy))


def _scaled(kernels: Variable, scale: Variable) -> Variable:
    """Kernels (K, C, ...) times a scale (1, K, 1, ...), computed in the scale's dtype."""
    order = (1, 0, *range(2, scale.type.ndim))
    wide = cast(kernels, scale.type.dtype) * dimshuffle(scale, order)
    return cast(wide, kernels.type.dtype)


RULES = (fold_batch_norm,)
