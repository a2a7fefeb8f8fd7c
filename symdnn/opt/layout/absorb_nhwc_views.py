"""Ops on transposed views of NHWC arrays take the layout NHWC, so that they read contiguously.

A program that keeps its activations as (N, sizes, C) passes them to a pooling or a batch
normalisation through a dimshuffle. Without a convolution that gains from NHWC the phase ``layout``
changes no layouts, and the kernel would read with large strides. Therefore the op takes the layout
of its input's memory. Softmax works along any axis, so a dimshuffle before it moves behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symdnn.graph.variable import Apply, Variable
from symdnn.ops.core.shape import DimShuffle, dimshuffle
from symdnn.ops.lowered.lowered import Lowered
from symdnn.ops.nn.batchnorm import BatchNormGrad, BatchNormTrain
from symdnn.ops.nn.channels_last import first_order, is_image, last_order
from symdnn.ops.nn.pool import AveragePoolGrad, MaxPoolGrad, Pool
from symdnn.ops.nn.softmax import AlongAxis
from symdnn.rewriting.rewrite import Context, node_rewrite


def _nhwc_view(v: Variable) -> Variable | None:
    """``v`` in NHWC as a view; None where that would take a copy.

    ``v`` is a dimshuffle of an NHWC array, or a parameter with one value for each channel.
    """
    made, order = v.owner, first_order(v.type.ndim)
    if made is not None and isinstance(made.op, DimShuffle) and made.op.pattern == order:
        return made.inputs[0]
    wide = [one for i, one in enumerate(v.type.broadcastable) if i != 1]
    return dimshuffle(v, last_order(v.type.ndim)) if all(wide) else None


@node_rewrite(Lowered, phase="layout", tags=("fast_compile",), name="images_seen_last")
def images_seen_last(node: Apply, context: Context) -> Sequence[Variable] | None:
    """Pooling and batch normalisation of activations that are a dimshuffle of an NHWC array."""
    op: Any = node.op
    if context.target.kind != "cuda" or "NHWC" not in op.layouts or not _applies(node):
        return None
    low = op.channels_last(node.inputs[0].type.ndim)
    nhwc_inputs = [_nhwc_view(v) if is_image(v.type) else v for v in node.inputs]
    if low is None or any(v is None for v in nhwc_inputs):
        return None
    found = low(*nhwc_inputs)
    outputs = [found] if isinstance(found, Variable) else list(found)
    return [dimshuffle(v, first_order(v.type.ndim)) if is_image(v.type) else v for v in outputs]


def _applies(node: Apply) -> bool:
    """Whether a node is a pooling or batch normalisation by channel of a dimshuffle."""
    op: Any = node.op
    kind = op.unlowered
    norm = isinstance(kind, BatchNormTrain | BatchNormGrad) and kind.axes != (0,)
    pool = isinstance(kind, Pool | MaxPoolGrad | AveragePoolGrad)
    if not (norm or pool) or node.hints.backend == "cudnn":
        return False
    made = node.inputs[0].owner
    return made is not None and isinstance(made.op, DimShuffle)


@node_rewrite(Lowered, phase="layout", tags=("fast_compile",), name="softmax_of_permuted")
def softmax_of_permuted(node: Apply, context: Context) -> Sequence[Variable] | None:
    """A softmax, or its gradient, whose inputs are dimshuffles by one permutation."""
    op: Any = node.op
    kind = op.unlowered
    if context.target.kind != "cuda" or node.hints.backend == "cudnn":
        return None
    if not isinstance(kind, AlongAxis):
        return None
    makers = [v.owner for v in node.inputs if v.owner and isinstance(v.owner.op, DimShuffle)]
    orders = {m.op.pattern for m in makers if isinstance(m.op, DimShuffle)}
    if len(makers) < len(node.inputs) or len(orders) > 1:
        return None
    order: Any = orders.pop()
    if set(order) != set(range(makers[0].inputs[0].type.ndim)) or len(set(order)) < len(order):
        return None  # no permutation
    low = op.along(order[kind.axis])
    return None if low is None else [dimshuffle(low(*(m.inputs[0] for m in makers)), order)]


RULES = (images_seen_last, softmax_of_permuted)
