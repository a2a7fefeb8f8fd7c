"""Writes of one element to each row of zeros, as a comparison: gradients of ``x[i, labels[i]]``.

Filling with zeros and scattering into them are two passes; a comparison with the labels is one, and
it is fused with what reads it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from symdnn.graph.operators import operator
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor, InBounds
from symdnn.ops.array.create import ARange
from symdnn.ops.array.slices import FULL
from symdnn.ops.array.view import specify_shape
from symdnn.ops.core.shape import DimShuffle
from symdnn.rewriting.facts import is_zero, made_by, node_of, number
from symdnn.rewriting.rewrite import Context, node_rewrite


@node_rewrite(AdvancedIncSubtensor, phase="lower", tags=("indexing",))
def one_per_row(node: Apply, context: Context) -> Variable | None:
    """``inc_subtensor(zeros[arange(n), i], y) -> switch(eq(i, arange(columns)), y, 0)``.

    The indices and their number are checked as before; negative ones count from the end.
    """
    op: Any = node.op
    x, y, *rest = node.inputs
    if len(rest) != 2 or op.index[:2] != ("a", "a") or any(e != FULL for e in op.index[2:]):
        return None
    # Indices of one column, as of ``take_along_axis``, are those of a vector.
    rank = rest[0].type.ndim
    if rank > 1 and all(all(v.type.broadcastable[1:rank]) for v in (*rest, y)):
        rest = [v.dimshuffle(0) for v in rest]
        y = y.dimshuffle(0, *range(rank, y.type.ndim))
    rows, labels = rest
    flat = rows.type.ndim == 1 and not any(v.type.broadcastable[0] for v in rest)
    fits = y.type.broadcastable[1:] == x.type.broadcastable[2:]
    if not (flat and fits and is_zero(x) and _counts_rows(rows, x, context)):
        return None
    count, size = context.shapes.dims(x)[:2]
    if y.type.broadcastable[0]:
        labels = _of_size(labels, count, context)
    else:  # with whose size that of the labels is compared
        y = _of_size(y, count, context)
    place = labels if op.in_bounds else InBounds()(labels, size)
    place = place.dimshuffle(0, "x")
    columns = operator("arange")(size).dimshuffle("x", 0)
    hot = operator("eq")(place, columns)
    if not labels.type.dtype.startswith("u"):  # beside it, so that they are fused
        hot = operator("or_")(hot, operator("eq")(place + size, columns))
    wide = ["x"] * (x.type.ndim - 2)
    value = y.dimshuffle(0, "x", *range(1, y.type.ndim))
    zero = np.zeros((), x.type.numpy)
    out: Variable = operator("switch")(hot.dimshuffle(0, 1, *wide), value, zero)
    return out if out.type.dtype == x.type.dtype else None


def _of_size(v: Variable, count: Any, context: Context) -> Variable:
    """``v``, whose first dimension is checked where it is not known to be ``count``."""
    first, *others = context.shapes.dims(v)
    if context.shapes.same(first, count):
        return v
    return specify_shape(v, [count, *(None for _ in others)])


def _counts_rows(rows: Variable, x: Variable, context: Context) -> bool:
    """Whether ``rows`` are the numbers of all rows of ``x`` in order."""
    while made_by(rows, DimShuffle):
        (rows,) = node_of(rows).inputs
    if isinstance(rows, Constant):
        count = rows.data.size
        return x.type.shape[0] == count and bool((rows.data.ravel() == np.arange(count)).all())
    if not made_by(rows, ARange):
        return False
    start, stop, step = node_of(rows).inputs
    if number(start) != 0 or number(step) != 1:
        return False
    return context.shapes.same(context.shapes.dims(x)[0], stop)


RULES = (one_per_row,)
