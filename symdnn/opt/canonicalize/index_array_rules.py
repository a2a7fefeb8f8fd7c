"""Known index arrays become slices: positions 0, 1, ... of a table, or one row for all.

A slice is a view, or a copy that fuses, and its gradient is no scatter. Only where the size of the
dimension is known, so that an index out of range goes on failing. A mask of several dimensions
becomes one of a single dimension.

The other way round, many elements of an axis, each by a number, are one selection. Half of the
products of all pairs of features, stacked, is one gather by a constant index instead of as many
slices. In the gradient their increments, one behind the other, are one scatter to known places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from math import prod
from typing import Any, NamedTuple

import numpy as np

from symdnn.graph.dims import product
from symdnn.graph.typing import Array
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor, AdvancedSubtensor
from symdnn.ops.array.getitem import Nonzero
from symdnn.ops.array.index import IncSubtensor, Subtensor, encode, subtensor
from symdnn.ops.array.join import Join, Split, join
from symdnn.ops.array.reduce import Sum
from symdnn.ops.array.slices import FULL
from symdnn.ops.array.view import SpecifyShape, moveaxis
from symdnn.ops.core.dtype import work_dtype
from symdnn.ops.core.shape import Alloc, DimShuffle, alloc, dimshuffle, reshape
from symdnn.opt.canonicalize.dimshuffle_rules import fields_of
from symdnn.rewriting.facts import made_by, node_of, number
from symdnn.rewriting.rewrite import Context, node_rewrite

#: The fewest parts by numbers that are selected together.
_FEWEST = 8
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
        work = work_dtype(kept)
        y, at = Sum(tuple(across), True, kept, work)(y), slice(row, row + 1)
        gone = [d for d in across if d != axis]
        y = dimshuffle(y, tuple(d for d in range(y.type.ndim) if d not in gone))
    entries, bounds = encode([*[slice(None)] * axis, at, *rest])
    return IncSubtensor(entries, op.set_instead_of_inc)(x, y, *bounds)


def _flat_mask(node: Apply, context: Context, arrays: Sequence[Variable]) -> int | None:
    """The first dimension of those that a mask covers; None for other indices."""
    op: Any = node.op
    places = op.getter().arrays if isinstance(op, AdvancedIncSubtensor) else op.arrays
    first, made = places[0], arrays[0].owner
    if made is None or not isinstance(made.op, Nonzero) or len(made.outputs) < 2:
        return None
    whole = all(e in ("a", (None, None, None)) for e in op.index)
    if not whole or places != tuple(range(first, first + len(places))):
        return None
    if tuple(arrays[: len(places)]) != tuple(made.outputs):
        return None
    masked = context.shapes.dims(node.inputs[0])[first : first + len(places)]
    return first if all(map(context.shapes.same, masked, _mask_dims(made, context))) else None


def _mask_dims(made: Apply, context: Context) -> Sequence[Any]:
    """The sizes of a mask: those that it is checked to have."""
    (mask,) = made.inputs
    own = context.shapes.dims(mask)
    if not made_by(mask, SpecifyShape):
        return own
    checked = node_of(mask).inputs[1:]
    return [d if isinstance(d, int) else c for d, c in zip(own, checked, strict=True)]


def _joined(v: Variable, first: int, count: int, dims: Sequence[Any]) -> Variable:
    """``v`` with ``count`` dimensions from ``first`` as one."""
    along = product(dims[first : first + count])
    return reshape(v, (*dims[:first], along, *dims[first + count :]))


@node_rewrite(AdvancedSubtensor, phase=PHASE, tags=TAGS)
def gather_by_flat_mask(node: Apply, context: Context) -> Variable | None:
    """``x[mask] -> x.ravel()[mask.ravel()]``, which reads one index for each element."""
    x, *arrays = node.inputs
    first = _flat_mask(node, context, arrays)
    if first is None:
        return None
    (index,), count = _flat_index(arrays[0], context), len(arrays)
    entries, _ = encode(_flat_entries(x.type.ndim, first, count))
    return AdvancedSubtensor(entries)(_joined(x, first, count, context.shapes.dims(x)), index)


@node_rewrite(AdvancedIncSubtensor, phase=PHASE, tags=TAGS)
def scatter_by_flat_mask(node: Apply, context: Context) -> Variable | None:
    """The same for elements that are written."""
    x, y, *arrays = node.inputs
    op: Any = node.op
    first = _flat_mask(node, context, arrays)
    if first is None:
        return None
    (index,), count, dims = _flat_index(arrays[0], context), len(arrays), context.shapes.dims(x)
    entries, _ = encode(_flat_entries(x.type.ndim, first, count))
    put = replace(op, index=entries)
    return reshape(put(_joined(x, first, count, dims), y, index), dims)


def _flat_entries(ndim: int, first: int, count: int) -> list[Any]:
    return [*[slice(None)] * first, "a", *[slice(None)] * (ndim - first - count)]


def _flat_index(index: Variable, context: Context) -> Sequence[Variable]:
    """The indices of the flat mask that an index array is of."""
    (mask,) = node_of(index).inputs
    dims = _mask_dims(node_of(index), context)
    return Nonzero()(_joined(mask, 0, mask.type.ndim, dims))


# -- many elements, each by a number --------------------------------------------------------------


class _Part(NamedTuple):
    """A part of ``x`` by numbers ``at``, which an index has in some dimensions, others whole."""

    x: Variable
    entries: tuple[Any, ...]
    at: tuple[int, ...]

    @property
    def axis(self) -> int:
        """The dimension of all such parts in what is selected at once."""
        get = AdvancedSubtensor(self.entries)
        return get.arrays[0] if get.side_by_side else 0


def _part(x: Variable, index: Sequence[Any], bounds: Sequence[Variable]) -> _Part | None:
    """The part of an index; None if it has no number, or anything but numbers and whole axes."""
    entries = [*index, *(FULL,) * (x.type.ndim - len(index))]
    pairs = [(e, n) for e, n in zip(entries, x.type.shape, strict=True) if e != FULL]
    known = all(isinstance(e, int) and n is not None and -n <= e < n for e, n in pairs)
    if bounds or not pairs or not known:
        return None
    return _Part(x, tuple(e if e == FULL else "a" for e in entries), tuple(e % n for e, n in pairs))


def _in_one_axis(
    x: Variable, parts: Sequence[_Part], context: Context
) -> tuple[Variable, tuple[Any, ...], list[Variable]]:
    """``x``, an index and its arrays for all parts, with neighbouring dimensions of numbers as one.

    What is turned would be copied for that.
    """
    get = AdvancedSubtensor(parts[0].entries)
    arrays: list[Array] = [np.array(at) for at in zip(*(p.at for p in parts), strict=True)]
    if len(arrays) == 1 or not get.side_by_side or made_by(x, DimShuffle):
        return x, get.index, [Constant(a) for a in arrays]
    first, end = get.arrays[0], get.arrays[-1] + 1
    sizes: Any = x.type.shape[first:end]
    dims = context.shapes.dims(x)
    flat = reshape(x, [*dims[:first], prod(sizes), *dims[end:]])
    at: Any = np.ravel_multi_index(tuple(arrays), sizes)
    return flat, (*get.index[:first], "a", *get.index[end:]), [Constant(at)]


@node_rewrite(Join, phase=PHASE, tags=TAGS)
def join_of_numbered(node: Apply, context: Context) -> Variable | None:
    """``stack([x[:, 3], x[:, 5], x[:, 6], ...], 1) -> x[:, [3, 5, 6, ...]]``."""
    axis = fields_of(node).axis
    if len(node.inputs) < _FEWEST:
        return None
    found, changed = list[Variable](), False
    pairs = [(v, _stacked(v, axis)) for v in node.inputs]
    for key, run in groupby(pairs, lambda pair: pair[1] and pair[1][:2]):
        own = list(run)
        parts = [p for _, p in own if p is not None]
        if key is None or len(own) < _FEWEST:
            found += [v for v, _ in own]
            continue
        x, index, arrays = _in_one_axis(parts[0].x, parts, context)
        selected = AdvancedSubtensor(index, in_bounds=True)(x, *arrays)
        found.append(moveaxis(selected, parts[0].axis, axis))
        changed = True
    return join(axis, *found) if changed else None


def _stacked(v: Variable, axis: int) -> _Part | None:
    """The part that is stacked along an axis by a joined operand."""
    if not made_by(v, DimShuffle):
        return None
    part = node_of(v).inputs[0]
    pattern = [*range(axis), "x", *range(axis, part.type.ndim)]
    if list(fields_of(node_of(v)).pattern) != pattern or not made_by(part, Subtensor):
        return None
    op: Any = node_of(part).op
    return _part(node_of(part).inputs[0], op.index, node_of(part).inputs[1:])


@node_rewrite(IncSubtensor, phase=PHASE, tags=TAGS)
def increments_of_numbered(node: Apply, context: Context) -> Variable | None:
    """``x[:, 3] += y[:, 0]``, ``x[:, 5] += y[:, 1]``, ... of a split ``y`` add it all at once."""
    (v,) = node.outputs
    if any(isinstance(user.op, IncSubtensor) for user in context.fgraph.user_nodes(v)):
        return None  # the last one of a chain replaces all of them
    found = list[tuple[_Part, Variable]]()
    while made_by(v, IncSubtensor) and (not found or context.only_user(v)):
        op: Any = node_of(v).op
        x, y, *bounds = node_of(v).inputs
        part = None if op.set_instead_of_inc else _part(x, op.index, bounds)
        if part is None or (found and part.entries != found[0][0].entries):
            break
        found.append((part, y))
        v = x
    if len(found) < _FEWEST or (pieces := _pieces([y for _, y in found])) is None:
        return None
    split, order = pieces
    parts = [found[order.index(k)][0] for k in range(len(found))]
    y = moveaxis(split.inputs[0], fields_of(split).axis, parts[0].axis)
    x, index, arrays = _in_one_axis(v, parts, context)
    added = AdvancedIncSubtensor(index, in_bounds=True)(x, y, *arrays)
    return added if x is v else reshape(added, context.shapes.dims(v))


def _pieces(ys: Sequence[Variable]) -> tuple[Apply, list[int]] | None:
    """The split of which these are all pieces, of one element each, and their numbers."""
    if not all(made_by(y, DimShuffle) and made_by(node_of(y).inputs[0], Split) for y in ys):
        return None
    split = node_of(node_of(ys[0]).inputs[0])
    axis = fields_of(split).axis
    kept = [d for d in range(split.inputs[0].type.ndim) if d != axis]
    pieces = [node_of(y).inputs[0] for y in ys]
    ones = all(piece.type.shape[axis] == 1 for piece in split.outputs)
    whole = split.inputs[0].type.shape[axis] == len(ys) == len(set(pieces))
    own = all(list(fields_of(node_of(y)).pattern) == kept for y in ys)
    if not ones or not whole or not own or set(pieces) != set(split.outputs):
        return None
    return split, [split.outputs.index(piece) for piece in pieces]


RULES = [
    gather_of_known_rows, scatter_to_known_rows, gather_by_flat_mask, scatter_by_flat_mask,
    join_of_numbered, increments_of_numbered,
]  # fmt: skip
