"""Masks of windows: of scores whose stack is divided into images and windows for a mask.

Attention in shifted windows has a mask for each window of an image, the same for all images.
"""

from __future__ import annotations

from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.core.shape import DimShuffle, Reshape, alloc
from symdnn.ops.elementwise.arithmetic import Add
from symdnn.rewriting.facts import made_by, node_of
from symdnn.rewriting.rewrite import Context

__all__ = ["undivided"]


def undivided(v: Variable, context: Context) -> tuple[Variable, Variable] | None:
    """(scores, mask) of ``v = (scores.reshape(a, b, heads, ..) + mask).reshape(scores.shape)``.

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
