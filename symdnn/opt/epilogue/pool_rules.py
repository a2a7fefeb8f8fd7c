"""Gradients behind pooling that are cheaper in front of it.

The gradient of a maximum goes to elements that have the maximum's value. So a factor that depends
on that value alone, as the slope of relu does, may as well be applied to the gradient of the
maxima, of which there are fewer.
"""

from __future__ import annotations

from symdnn.graph.variable import Apply, Variable
from symdnn.ops.elementwise.arithmetic import Cast, Mul
from symdnn.ops.elementwise.comparison import Gt
from symdnn.ops.nn.pool import MaxPoolGrad
from symdnn.ops.vendor.gpudnn import GpuDnnPoolGrad
from symdnn.rewriting.facts import number
from symdnn.rewriting.rewrite import Context, node_rewrite

__all__ = ["RULES"]


def _gradient_of_maximum(v: Variable, context: Context) -> Apply | None:
    """The node that makes ``v`` as the gradient of max pooling, for one reader alone."""
    node = v.owner
    if node is None or not context.only_user(v):
        return None
    op = node.op
    is_max = isinstance(op, MaxPoolGrad) or (isinstance(op, GpuDnnPoolGrad) and op.is_max)
    return node if is_max else None


def _above_0(factor: Variable, x: Variable) -> Variable | None:
    """The number 0 that ``x`` is compared with, if ``factor`` is 1 where it is above, else 0."""
    cast = factor.owner
    compared = cast.inputs[0].owner if cast is not None and isinstance(cast.op, Cast) else None
    if compared is None or not isinstance(compared.op, Gt) or compared.inputs[0] is not x:
        return None
    return compared.inputs[1] if number(compared.inputs[1]) == 0 else None


@node_rewrite(Mul, phase="lower", tags=("fast_compile",))
def relu_gradient_before_pooling(node: Apply, context: Context) -> Variable | None:
    """pool_grad(x, y, dy) * (x > 0) -> pool_grad(x, y, dy * (y > 0)), ``y`` the maxima of ``x``."""
    for g, factor in (node.inputs, node.inputs[::-1]):
        pooled = _gradient_of_maximum(g, context)
        zero = None if pooled is None else _above_0(factor, pooled.inputs[0])
        if pooled is None or zero is None:
            continue
        x, y, dy = pooled.inputs
        slope = Cast(factor.type.dtype)(Gt()(y, zero))
        return pooled.op(x, y, Mul()(dy, slope), hints=pooled.hints)
    return None


RULES = (relu_gradient_before_pooling,)
