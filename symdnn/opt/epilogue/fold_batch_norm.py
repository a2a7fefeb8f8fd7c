"""Folds batch normalisation with given statistics into its neighbours.

Into the filters of a convolution before it:

``scale * (conv(x, w) - mean) + beta`` is ``conv(x, scale * w) + (beta - scale * mean)``, where
``scale = gamma / sqrt(var + epsilon)`` has a value for each output channel. The shift is a bias,
which the convolution's epilogue adds (:mod:`symdnn.opt.epilogue.epilogue`). Two small kernels
compute the scaled filters and the bias from the parameters, whose values may change between calls.
Filters are scaled in the dtype of the statistics, float32 beside 16-bit activations, and rounded
once.

Where no convolution is before it, as in networks that normalise first (DenseNet, ResNet v2), it is
written out on a GPU for an elementwise op behind it: one kernel of both reads memory once. Beside
16-bit activations it computes in float32 and is rounded once. On a CPU
:mod:`symdnn.opt.fuse.norm_rules` writes it out in any case.

The tag ``fold_batch_norm`` switches both off, on a GPU also the flag ``gpu.fold_batch_norm``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from symdnn.config import config
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.core.shape import dimshuffle
from symdnn.ops.elementwise.arithmetic import cast, sqrt
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.lowered.epilogue import EpilogueOp
from symdnn.ops.lowered.lowered import Lowered, neutral_of
from symdnn.ops.nn.batchnorm import BatchNormInference
from symdnn.ops.nn.conv import Conv
from symdnn.rewriting.facts import only_axis
from symdnn.rewriting.rewrite import Context, node_rewrite, reads


def _convolution(v: Variable, context: Context) -> Apply | None:
    """The convolution that makes ``v``, if ``v`` has one reader and there is no epilogue yet."""
    node = context.sole_maker(v)
    op = None if node is None else node.op
    plain = isinstance(op, EpilogueOp) and isinstance(op.unlowered, Conv) and op.is_plain
    return node if plain else None


def _allowed(norm: object, kind: str) -> bool:
    """Whether an op normalises each channel, and no flag of its target switches folding off."""
    off = kind == "cuda" and str(config.gpu.fold_batch_norm) == "off"
    return isinstance(norm, BatchNormInference) and norm.axes != (0,) and not off


@node_rewrite(Lowered, phase="lower", tags=("cudnn", "onednn", "fold_batch_norm", "fast_compile"))
def fold_batch_norm(node: Apply, context: Context) -> Variable | None:
    """conv -> batch normalisation with given statistics: a conv with scaled filters and a bias."""
    op: Any = node.op
    norm = op.unlowered
    if op.layout != "NCHW" or not _allowed(norm, context.target.kind):
        return None
    x, gamma, beta, mean, var = node.inputs
    conv = _convolution(x, context)
    if conv is None or any(only_axis(v) != 1 for v in (gamma, beta, mean, var)):
        return None
    scale = gamma / sqrt(var + _number(norm.epsilon, var))
    shift = beta - mean * scale
    conv_x, w, *more = conv.inputs
    y = conv.op(conv_x, _scaled(w, scale), *more, hints=conv.hints)
    return y + cast(shift, y.type.dtype)


@node_rewrite(
    Elemwise, phase="lower", tags=("cudnn", "fold_batch_norm"),
    admits=reads(Lowered, BatchNormInference),
)  # fmt: skip
def gpu_batch_norm_into_elementwise(node: Apply, context: Context) -> Variable | None:
    """relu(batch_norm(x)) with given statistics -> relu((x - mean) * scale + beta) on a GPU.

    That is before layouts are chosen: elementwise ops take any.
    """
    off = context.target.kind != "cuda" or str(config.gpu.fold_batch_norm) == "off"
    if off or len(node.outputs) != 1:
        return None
    found = [_written_out(v, node.outputs[0], context) for v in node.inputs]
    if found == list(node.inputs):
        return None
    return node.op(*found, hints=node.hints)


def _written_out(v: Variable, out: Variable, context: Context) -> Variable:
    """A batch normalisation with given statistics that only ``out`` reads, as elementwise ops."""
    node = context.sole_maker(v)
    if node is None:
        return v
    norm = node.op.unlowered if isinstance(node.op, Lowered) else node.op
    if not isinstance(norm, BatchNormInference) or v.type.broadcastable != out.type.broadcastable:
        return v
    x, gamma, beta, mean, var = node.inputs
    made = context.sole_maker(x)
    if made and isinstance(neutral_of(made.op), Conv):
        return v  # it is folded into the filters
    narrow = is_narrow_float(x.type.dtype)
    if any(p.type.dtype != "float32" for p in node.inputs[narrow:]):
        return v
    scale = gamma / sqrt(var + _number(norm.epsilon, var))
    return cast((cast(x, "float32") - mean) * scale + beta, x.type.dtype)


def _number(value: float, like: Variable) -> Constant:
    return Constant(np.full((1,) * like.type.ndim, value, like.type.numpy))


def _scaled(w: Variable, scale: Variable) -> Variable:
    """Filters (K, C, ...) times a scale (1, K, 1, ...), computed in the scale's dtype."""
    order = (1, 0, *range(2, scale.type.ndim))
    wide = cast(w, scale.type.dtype) * dimshuffle(scale, order)
    return cast(wide, w.type.dtype)


RULES = (fold_batch_norm, gpu_batch_norm_into_elementwise)
