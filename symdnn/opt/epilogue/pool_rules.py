"""Elementwise gradients that are cheaper before the gradient of a pooling than behind it.

Max pooling passes the gradient to elements that equal the maximum. So a factor that depends only on
that value, as the slope of a relu does, may be applied to the gradient of the maxima instead, of
which there are fewer.
"""

from __future__ import annotations

from symdnn.graph.variable import Apply, Variable
from symdnn.ops.elementwise.arithmetic import Cast, Mul
from symdnn.ops.elementwise.comparison import Gt
from symdnn.ops.lowered.lowered import neutral_of
from symdnn.ops.nn.pool import MaxPoolGrad
from symdnn.rewriting.facts import number
from symdnn.rewriting.rewrite import Context, node_rewrite, reads


def _gradient_of_maximum(v: Variable, context: Context) -> Apply | None:
    """The node that makes ``v`` as the gradient of max pooling, if ``v`` has one reader."""
    node = context.sole_maker(v)
    return node if node is not None and isinstance(neutral_of(node.op), MaxPoolGrad) else None


def _above_0(factor: Variable, x: Variable) -> Variable | None:
    """The constant 0 of ``factor``, if that is ``cast(x > 0)``; else None."""
    cast = factor.owner
    compared = cast.inputs[0].owner if cast is not None and isinstance(cast.op, Cast) else None
    if compared is None or not isinstance(compared.op, Gt) or compared.inputs[0] is not x:
        return None
    return compared.inputs[1] if number(compared.inputs[1]) == 0 else None


@node_rewrite(Mul, phase="lower", tags=("fast_compile",), admits=reads(Cast))
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
