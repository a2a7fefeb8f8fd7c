"""What is behind views, casts and dropouts that nothing else reads."""

from __future__ import annotations

from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.core.shape import DimShuffle, Reshape
from symdnn.ops.elementwise.arithmetic import Cast
from symdnn.ops.nn.dropout import Dropout
from symdnn.rewriting.facts import made_by, node_of
from symdnn.rewriting.rewrite import Context

__all__ = ["behind", "dropped", "in_order", "without_views"]


def without_views(v: Variable, context: Context) -> Variable:
    """What is behind casts and a view that keeps the order of elements."""
    x = behind(v, context, Cast)
    x = behind(x, context, Reshape, DimShuffle)
    return behind(x, context, Cast)


def dropped(x: Variable, context: Context) -> tuple[Variable, list[Variable]]:
    """What a dropout drops, and its state and rate; ``x`` itself if it is none."""
    if not _is_plain_dropout(x, context):
        return x, []
    state, inside, rate = node_of(x).inputs
    return as_variable(inside), [state, rate]


def _is_plain_dropout(v: Variable, context: Context) -> bool:
    """Whether ``v`` is a scaled dropout, without shared decisions, whose mask nothing reads."""
    if not made_by(v, Dropout) or v.index != 0 or not context.only_reader(v):
        return False
    node = node_of(v)
    return node.op == Dropout() and context.unread(node.outputs[1])


def behind(v: Variable, context: Context, *kinds: type) -> Variable:
    """The operand of a node of these ``kinds`` that only this reads; ``v`` itself otherwise."""
    if not made_by(v, *kinds) or not context.only_reader(v):
        return v
    x = as_variable(node_of(v).inputs[0])
    if made_by(v, Cast) and not (x.type.is_float and v.type.is_float):
        return v
    return v if made_by(v, DimShuffle) and not in_order(v) else x


def in_order(v: Variable) -> bool:
    """Whether a dimshuffle only drops and adds dimensions of size 1, before the last two."""
    pattern, ndim = node_of(v).op.pattern, node_of(v).inputs[0].type.ndim
    kept = [axis for axis in pattern if axis != "x"]
    return kept == sorted(kept) and pattern[-2:] == (ndim - 2, ndim - 1)
