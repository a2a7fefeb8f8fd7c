"""Index arrays that count along an axis select all of it: ``x[i[:, None], arange(n)] -> x[i]``.

PyTorch's gathers and scatters have an index for each element. Where it is that of a row, repeated,
whole rows are read and written.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor, AdvancedSubtensor
from symdnn.ops.array.create import ARange
from symdnn.ops.array.scatter_reduce import ScatterReduce
from symdnn.ops.array.slices import FULL
from symdnn.ops.core.shape import Alloc, DimShuffle, alloc, dimshuffle
from symdnn.rewriting.facts import made_by, node_of, number
from symdnn.rewriting.rewrite import Context, node_rewrite

PHASE = "canonicalize"
TAGS = ("fast_compile", "indexing")


@node_rewrite(AdvancedSubtensor, phase=PHASE, tags=TAGS)
def gather_along_whole_axis(node: Apply, context: Context) -> Variable | None:
    """``x[i, arange(n)]``, where ``i`` is the same along the second axis, is ``x[i]``."""
    op: Any = node.op
    x, *arrays = node.inputs
    found = _without_counted(op, x, arrays, context)
    if found is None:
        return None
    index, kept, before, after = found
    read: Variable = AdvancedSubtensor(index)(x, *kept)
    return dimshuffle(read, tuple(after.index(label) for label in before))


@node_rewrite(AdvancedIncSubtensor, ScatterReduce, phase=PHASE, tags=TAGS)
def scatter_along_whole_axis(node: Apply, context: Context) -> Variable | None:
    """The same for elements that are changed."""
    op: Any = node.op
    x, y, *arrays = node.inputs
    found = _without_counted(op.getter(), x, arrays, context)
    if found is None:
        return None
    index, kept, before, after = found
    y = dimshuffle(y, tuple(before.index(label) for label in after))
    changed: Variable = replace(op, index=index)(x, y, *kept)
    return changed


_Found = tuple[Any, list[Variable], list[Hashable], list[Hashable]]


def _without_counted(
    op: AdvancedSubtensor, x: Variable, arrays: Sequence[Variable], context: Context
) -> _Found | None:
    """(entries, index arrays, labels of the part's dimensions before, after); None if no array
    counts along an axis of ``x``."""
    if len(arrays) < 2 or arrays[0].type.ndim < 2 or any(e not in ("a", FULL) for e in op.index):
        return None
    for axis, v in zip(op.arrays, arrays):
        counted = _counted(v)
        if counted is None:
            continue
        d, size = counted
        others = [_narrow(w, d, size, context) for k, w in zip(op.arrays, arrays) if k != axis]
        kept = [w for w in others if w is not None]
        if len(kept) < len(others) or not context.shapes.same(context.shapes.dims(x)[axis], size):
            continue
        index = tuple(FULL if k == axis else e for k, e in enumerate(op.index))
        places = range(v.type.ndim)
        before = _labels(op, list(places))
        after = _labels(AdvancedSubtensor(index), [j for j in places if j != d])
        return index, kept, before, [d if label == ("axis", axis) else label for label in after]
    return None


def _labels(op: AdvancedSubtensor, common: Sequence[Hashable]) -> list[Hashable]:
    """What each dimension of the part is: one of ``common``, or an axis without an array."""
    kept = [("axis", k) for k, e in enumerate(op.index) if e != "a"]
    at = op.arrays[0] if op.side_by_side else 0
    return [*kept[:at], *common, *kept[at:]]


def _counted(v: Variable) -> tuple[int, Any] | None:
    """The dimension along which an index array has 0, 1, 2 and so on, and its size."""
    if isinstance(v, Constant):
        long = [d for d, n in enumerate(v.type.shape) if n != 1]
        same = len(long) == 1 and np.array_equal(v.data.ravel(), np.arange(v.data.size))
        return (long[0], v.data.size) if same else None
    if not made_by(v, DimShuffle):
        return None
    pattern, (base,) = node_of(v).op.pattern, node_of(v).inputs
    if not made_by(base, ARange) or base.type.shape[0] == 1:
        return None
    start, stop, step = node_of(base).inputs
    if number(start) != 0 or number(step) != 1:
        return None
    return pattern.index(0), stop


def _narrow(v: Variable, d: int, size: Any, context: Context) -> Variable | None:
    """An index array that is the same along dimension ``d`` without it; None for others."""
    kept = [k for k in range(v.type.ndim) if k != d]
    if v.type.broadcastable[d]:
        return dimshuffle(v, tuple(kept))
    if not made_by(v, Alloc):
        return None
    value, *dims = node_of(v).inputs
    own = d - (v.type.ndim - value.type.ndim)
    if not context.shapes.same(context.shapes.dims(v)[d], size):
        return None
    if own >= 0:
        if not value.type.broadcastable[own]:
            return None
        value = dimshuffle(value, tuple(k for k in range(value.type.ndim) if k != own))
    return alloc(value, *(dims[k] for k in kept))


RULES = [gather_along_whole_axis, scatter_along_whole_axis]
