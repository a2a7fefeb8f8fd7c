"""Known index arrays become slices: positions 0, 1, ... of a table, or one row for all.

A slice is a view, or a copy that fuses, and its gradient is no scatter. Only where the size of the
dimension is known, so that an index out of range goes on failing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from symdnn.graph.typing import Array
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor, AdvancedSubtensor
from symdnn.ops.array.index import IncSubtensor, encode, subtensor
from symdnn.ops.array.reduce import Sum
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.core.shape import Alloc, DimShuffle, alloc, dimshuffle
from symdnn.rewriting.facts import made_by, node_of, number
from symdnn.rewriting.rewrite import Context, node_rewrite

__all__ = ["RULES"]

PHASE = "canonicalize"
TAGS = ("fast_compile", "indexing")


def _array_axis(node: Apply, index: Variable) -> int | None:
    """The dimension of an index that is an array, all others ``:``; None for other indices."""
    op: Any = node.op
    plain = op.index.count("a") == 1 and all(e in ("a", (None, None, None)) for e in op.index)
    sized = None not in index.type.shape and 0 not in index.type.shape
    return op.index.index("a") if plain and sized else None


def _slice_of(array: Array, size: int | None) -> slice | None:
    """The slice that selects what a vector of indices does; None if there is none."""
    if size is None or array.ndim != 1 or not array.size:
        return None
    index = array.astype(np.int64)
    index = np.where(index < 0, index + size, index)
    if index.min() < 0 or index.max() >= size:
        return None
    step = int(index[1] - index[0]) if index.size > 1 else 1
    if not step or np.any(np.diff(index) != step):
        return None
    stop = int(index[-1]) + (1 if step > 0 else -1)
    return slice(int(index[0]), stop if stop >= 0 else None, step)


def _only_number(index: Variable, size: int | None) -> int | None:
    """The number that all entries of an index are, from the front; None if they differ."""
    while made_by(index, Alloc, DimShuffle):
        index = node_of(index).inputs[0]
    n = number(index)
    if n is None or size is None or not -size <= int(n) < size:
        return None
    return int(n) % size


@node_rewrite(AdvancedSubtensor, phase=PHASE, tags=TAGS)
def gather_of_known_rows(node: Apply, context: Context) -> Variable | None:
    """``x[[0, 1, 2]] -> x[0:3]``, and ``x[[2, 2]]`` is row 2 for all."""
    x, index = node.inputs[:2]
    axis = _array_axis(node, index)
    if axis is None:
        return None
    size, before = x.type.shape[axis], [slice(None)] * axis
    at = _slice_of(index.data, size) if isinstance(index, Constant) else None
    if at is not None:
        return subtensor(x, [*before, at, *[slice(None)] * (x.type.ndim - axis - 1)])
    row = _only_number(index, size)
    if row is None:
        return None
    one = subtensor(x, [*before, row, *[slice(None)] * (x.type.ndim - axis - 1)])
    places = ["x"] * index.type.ndim
    wide = dimshuffle(one, (*range(axis), *places, *range(axis, one.type.ndim)))
    return alloc(wide, *context.shapes.dims(node.outputs[0]))


@node_rewrite(AdvancedIncSubtensor, phase=PHASE, tags=TAGS)
def scatter_to_known_rows(node: Apply, context: Context) -> Variable | None:
    """``x[[0, 1, 2]] += y`` is ``x[0:3] += y``, and ``x[[2, 2]] += y`` adds the sum of y's rows."""
    x, y, index = node.inputs[:3]
    op: Any = node.op
    axis = _array_axis(node, index)
    if axis is None:
        return None
    size = x.type.shape[axis]
    rest = [slice(None)] * (x.type.ndim - axis - 1)
    at = _slice_of(index.data, size) if isinstance(index, Constant) else None
    if at is None:
        row = _only_number(index, size)
        across = range(axis, axis + index.type.ndim)
        covers = [y.type.shape[d] for d in across] == list(index.type.shape)
        if row is None or not across or op.set_instead_of_inc or not covers:
            return None
        kept = y.type.dtype
        work = "float32" if is_narrow_float(kept) else kept
        y, at = Sum(tuple(across), True, kept, work)(y), slice(row, row + 1)
        gone = [d for d in across if d != axis]
        y = dimshuffle(y, tuple(d for d in range(y.type.ndim) if d not in gone))
    entries, bounds = encode([*[slice(None)] * axis, at, *rest])
    return IncSubtensor(entries, op.set_instead_of_inc)(x, y, *bounds)


RULES = [gather_of_known_rows, scatter_to_known_rows]
