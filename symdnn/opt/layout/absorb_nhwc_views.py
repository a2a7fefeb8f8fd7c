"""Values that lie in another order already: ops that take either order work on them as they lie.

A program that keeps its images as (N, sizes, C) shows them to a pooling or a batch normalisation
through a dimshuffle. Without a convolution that asks for it the phase ``layout`` changes nothing,
and the kernel would work across the order in memory; so the op takes the layout of its images. A
softmax has an axis, which it finds in any order.
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
from symdnn.rewriting.rewrite import Context, node_rewrite

__all__ = ["RULES", "images_seen_last", "softmax_of_permuted"]


def _lying(v: Variable) -> Variable | None:
    """What lies channels last behind ``v``; a parameter's dimensions are moved at no cost."""
    made, order = v.owner, first_order(v.type.ndim)
    if made is not None and isinstance(made.op, DimShuffle) and made.op.pattern == order:
        return made.inputs[0]
    wide = [one for i, one in enumerate(v.type.broadcastable) if i != 1]
    return dimshuffle(v, last_order(v.type.ndim)) if all(wide) else None


@node_rewrite(Lowered, phase="layout", tags=("fast_compile",), name="images_seen_last")
def images_seen_last(node: Apply, context: Context) -> Sequence[Variable] | None:
    """Pooling and batch normalisation of images that are seen through a dimshuffle."""
    op: Any = node.op
    if context.target.kind != "cuda" or "NHWC" not in op.layouts or not _applies(node):
        return None
    low = op.channels_last(node.inputs[0].type.ndim)
    lying = [_lying(v) if is_image(v.type) else v for v in node.inputs]
    if low is None or any(v is None for v in lying):
        return None
    found = low(*lying)
    outputs = [found] if isinstance(found, Variable) else list(found)
    return [dimshuffle(v, first_order(v.type.ndim)) if is_image(v.type) else v for v in outputs]


def _applies(node: Apply) -> bool:
    """Whether an image is seen so, and parameters are of the channels."""
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
    """A softmax, or its gradient, of values that are all seen in one other order."""
    op: Any = node.op
    axis = getattr(op.unlowered, "axis", None)
    if context.target.kind != "cuda" or axis is None or node.hints.backend == "cudnn":
        return None
    makers = [v.owner for v in node.inputs if v.owner and isinstance(v.owner.op, DimShuffle)]
    orders = {m.op.pattern for m in makers if isinstance(m.op, DimShuffle)}
    if len(makers) < len(node.inputs) or len(orders) > 1:
        return None
    order: Any = orders.pop()
    if set(order) != set(range(makers[0].inputs[0].type.ndim)) or len(set(order)) < len(order):
        return None  # not only another order
    low = op.along(order[axis])
    return None if low is None else [dimshuffle(low(*(m.inputs[0] for m in makers)), order)]


RULES = (images_seen_last, softmax_of_permuted)
