"""What is behind views, casts and dropouts that nothing else reads."""

from __future__ import annotations

from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.core.shape import DimShuffle, Reshape, alloc
from symdnn.ops.elementwise.arithmetic import Add, Cast
from symdnn.ops.nn.dropout import Dropout
from symdnn.rewriting.facts import made_by, node_of
from symdnn.rewriting.rewrite import Context


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


# -- masks of windows ----------------------------------------------------------------------------


def undivided(v: Variable, context: Context) -> tuple[Variable, Variable] | None:
    """(scores, mask) of ``v = (scores.reshape(a, b, heads, ..) + mask).reshape(scores.shape)``.

    Attention in shifted windows has a mask for each window of an image, the same for all images.
    The mask is repeated, so that its stack is that of the scores.
    """
    if not _divides(v) or v.type.ndim != 4:
        return None
    total = as_variable(node_of(v).inputs[0])
    if not made_by(total, Add) or total.type.ndim <= 4 or not context.only_reader(total):
        return None
    for divided, mask in (node_of(total).inputs, node_of(total).inputs[::-1]):
        if not _divides(divided) or not context.only_reader(divided):
            continue
        scores = as_variable(node_of(divided).inputs[0])
        if not context.shapes.same_shape(scores, v) or mask.type.ndim != total.type.ndim:
            continue
        first, *rest = context.shapes.dims(scores)
        *lead, heads, queries, keys = context.shapes.dims(total)
        if not all(map(context.shapes.same, rest, (heads, queries, keys))):
            continue
        own = context.shapes.dims(mask)[-3:]
        return scores, alloc(mask, *lead, *own).reshape((first, *own))
    return None


def _divides(v: Variable) -> bool:
    """Whether ``v`` has the elements of its operand in their order."""
    if not made_by(v, DimShuffle):
        return made_by(v, Reshape)
    kept = [axis for axis in node_of(v).op.pattern if axis != "x"]
    return kept == sorted(kept)
