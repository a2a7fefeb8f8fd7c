"""Concatenations (``Join``) and splits that cancel, that have one piece or empty pieces; indexing
of concatenations."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from symdnn.graph.dims import at_least_zero
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.array.index import IncSubtensor, Subtensor, subtensor
from symdnn.ops.array.join import Join, Roll, Split, join
from symdnn.ops.array.slices import FULL, is_slice
from symdnn.ops.array.view import specify_shape
from symdnn.ops.core.shape import alloc, reshape
from symdnn.ops.elementwise.arithmetic import Add
from symdnn.ops.elemwise import Elemwise
from symdnn.opt.canonicalize.dimshuffle_rules import fields_of
from symdnn.opt.canonicalize.indexing_rules import entries_of
from symdnn.rewriting.facts import is_zero, made_by, node_of
from symdnn.rewriting.rewrite import Context, node_rewrite, reads

PHASE = "canonicalize"
TAGS = ("fast_compile", "joining")


@node_rewrite(Join, phase=PHASE, tags=(*TAGS, "local_join_1"))
def join_of_one(node: Apply, context: Context) -> Variable | None:
    """A join of one tensor is the tensor."""
    return node.inputs[0] if len(node.inputs) == 1 else None


@node_rewrite(Roll, phase=PHASE, tags=TAGS)
def roll_by_zero(node: Apply, context: Context) -> Variable | None:
    """A roll by 0 is the tensor."""
    x, shift = node.inputs
    return x if is_zero(shift) else None


@node_rewrite(Join, phase=PHASE, tags=(*TAGS, "local_join_empty"))
def join_without_empty(node: Apply, context: Context) -> Variable | None:
    """A tensor without elements is left out, where its other sizes are known to fit."""
    op: Any = node.op
    full = [v for v in node.inputs if v.type.shape[op.axis] != 0]
    empty = [v for v in node.inputs if v.type.shape[op.axis] == 0]
    if not empty or not full:
        return None
    others = [d for d in range(node.outputs[0].type.ndim) if d != op.axis]
    dims = context.shapes.dims
    if not all(context.shapes.same(dims(v)[d], dims(full[0])[d]) for v in empty for d in others):
        return None
    return join(op.axis, *full)


@node_rewrite(Join, phase=PHASE, tags=(*TAGS, "local_join_of_join"))
def join_of_join(node: Apply, context: Context) -> Variable | None:
    """A join inside of a join along the same axis is one join."""
    if not any(_same_join(v, node) for v in node.inputs):
        return None
    flat = [
        w for v in node.inputs
        for w in (node_of(v).inputs if _same_join(v, node) else [v])
    ]  # fmt: skip
    return node.op(*flat)


def _same_join(v: Variable, node: Apply) -> bool:
    return v.owner is not None and node_of(v).op == node.op


@node_rewrite(Join, phase=PHASE, tags=(*TAGS, "local_join_split"))
def join_of_split(node: Apply, context: Context) -> Variable | None:
    """All pieces of a split, joined again in their order, are the tensor that was split."""
    first = node.inputs[0].owner
    if first is None or not isinstance(first.op, Split) or first.op.axis != fields_of(node).axis:
        return None
    whole = first.inputs[0]
    same = node.inputs == first.outputs and _fits(first, context)
    return whole if same else None


def _fits(split: Apply, context: Context) -> bool:
    """Whether the sizes of a split are known to add up to the size of the tensor."""
    axis, size = fields_of(split).axis, context.shapes.dims(split.inputs[0])
    pieces = split.inputs[1:]
    static = fields_of(split).static
    if split.inputs[0].type.shape[axis] is not None and None not in static:
        return True
    return len(pieces) == 1 and context.shapes.same(pieces[0], size[axis])


@node_rewrite(Split, phase=PHASE, tags=(*TAGS, "local_useless_split"))
def split_into_one(node: Apply, context: Context) -> Variable | None:
    """A split into one piece of the whole size is the tensor."""
    return node.inputs[0] if len(node.outputs) == 1 and _fits(node, context) else None


@node_rewrite(Split, phase=PHASE, tags=(*TAGS, "local_split_join"))
def split_of_join(node: Apply, context: Context) -> Sequence[Variable] | None:
    """A split of a join at the same positions gives the joined tensors; also of ``f(join)``.

    There ``f`` is a tree of elementwise ops, whose other operands have one element along the axis.
    """
    v, *sizes = node.inputs
    pieces = _Pieces(v, fields_of(node).axis, sizes, context)
    found = pieces.of(v)
    return found if found is not None and pieces.alone(node) else None


class _Pieces:
    """What the operands of ``whole``, of elementwise ops and joins, are at its pieces."""

    def __init__(
        self, whole: Variable, axis: int, sizes: Sequence[Variable], context: Context
    ) -> None:
        self._whole, self._axis, self._sizes, self._context = whole, axis, sizes, context
        self._found: dict[Variable, list[Variable] | None] = {}
        self._inner: list[Variable] = []

    def alone(self, node: Apply) -> bool:
        """Whether only ``node`` and the ops among the operands read the results of these."""
        nodes = {node, *map(node_of, self._inner)}
        return all(self._context.read_by(v, nodes) for v in self._inner if v is not self._whole)

    def of(self, v: Variable) -> list[Variable] | None:
        """The pieces of ``v``; None: it would have to be split."""
        if v not in self._found:
            self._found[v] = self._of(v)
        return self._found[v]

    def _of(self, v: Variable) -> list[Variable] | None:
        axis, context = self._axis, self._context
        if made_by(v, Join) and node_of(v).op.axis == axis:
            parts = node_of(v).inputs
            own = [context.shapes.dims(p)[axis] for p in parts]
            fit = len(own) == len(self._sizes) and all(map(context.shapes.same, own, self._sizes))
            return [_beside(p, parts, axis, context) for p in parts] if fit else None
        if v is not self._whole and v.type.shape[axis] == 1:
            return [v] * len(self._sizes)
        if not made_by(v, Elemwise) or len(node_of(v).outputs) != 1:
            return None
        operands = node_of(v).inputs
        if all(w.type.shape[axis] == 1 for w in operands):
            return None
        self._inner.append(v)
        kept = [f for f in map(self.of, operands) if f is not None]
        if len(kept) < len(operands):
            return None
        return [node_of(v).op(*p) for p in zip(*kept, strict=True)]


def _beside(v: Variable, parts: Sequence[Variable], axis: int, context: Context) -> Variable:
    """``v``, checked to have the sizes of the others that it is joined with, where not known."""
    own = context.shapes.dims(v)
    for other in parts:
        dims = context.shapes.dims(other)
        asked = [
            None if d == axis or context.shapes.same(n, own[d]) else n for d, n in enumerate(dims)
        ]
        v = v if all(n is None for n in asked) else specify_shape(v, asked)
    return v


@node_rewrite(Subtensor, phase=PHASE, tags=(*TAGS, "local_subtensor_of_join"))
def index_of_join(node: Apply, context: Context) -> Variable | None:
    """A slice or entry within one of the joined tensors, whose sizes are known."""
    v = node.inputs[0]
    if not made_by(v, Join):
        return None
    axis, parts = node_of(v).op.axis, node_of(v).inputs
    entries = entries_of(node)
    others = [d for d in range(v.type.ndim) if d != axis]
    dims = context.shapes.dims
    if not all(context.shapes.same(dims(p)[d], dims(parts[0])[d]) for p in parts for d in others):
        return None
    start = 0
    for part in parts:
        size = part.type.shape[axis]
        if size is None:
            return None
        moved = _inside(entries[axis], start, size)
        if moved is not None:
            new = [*entries[:axis], moved, *entries[axis + 1 :]]
            return subtensor(part, [slice(*e) if isinstance(e, tuple) else e for e in new])
        start += size
    return None


def _inside(e: Any, start: int, size: int) -> Any:
    """The index entry relative to the part that begins at ``start``; None if it is not inside."""
    if not is_slice(e):
        inside = isinstance(e, int) and start <= e < start + size
        return e - start if inside else None
    low, high, step = e
    low = 0 if low is None else low
    known = isinstance(low, int) and isinstance(high, int) and step in (None, 1)
    if not known or not start <= low < high <= start + size:
        return None
    return (low - start, high - start, None)


@node_rewrite(IncSubtensor, phase=PHASE, tags=(*TAGS, "local_join_increments"))
def join_of_increments(node: Apply, context: Context) -> Variable | None:
    """Zeros of which slices along one axis are set, all of them, are the joined slices.

    So the gradient of ``x[:, :n]`` and ``x[:, n:]``, of ``x[0]``, ``x[1]`` and ``x[2]``, or of
    ``x[::2]`` and ``x[1::2]``, is written once.
    """
    places: dict[Any, _Place] = {}
    v: Variable = node.outputs[0]
    while made_by(v, IncSubtensor):
        place = _place_of(node_of(v))
        # A place that is written twice ends the search, which is begun at each of a long chain.
        if place is None or place.start in places:
            return None
        places[place.start] = place
        v = node_of(v).inputs[0]
        if made_by(v, IncSubtensor) and not context.only_user(v):
            return None
    parts = [*places.values()]
    if not is_zero(v) or len(parts) < 2 or len({(p.axis, p.step) for p in parts}) != 1:
        return None
    if parts[0].step != 1:
        return _interleaved(parts, v, context)
    axis = parts[0].axis
    parts = _in_order(parts, v.type.shape[axis])
    if not parts or _goes_on(node, parts[-1], context):
        return None
    values = [y for p in parts if (y := _value_of(p, context)) is not None]
    if len(values) < len(parts):
        return None
    if isinstance(parts[-1].stop, int) and v.type.shape[axis] is None:
        dims = [*context.shapes.dims(v)]
        dims[axis] = at_least_zero(dims[axis] - parts[-1].stop)  # most often nothing
        values.append(alloc(np.zeros((), v.type.numpy), *dims))
    return join(axis, *values)


@node_rewrite(IncSubtensor, phase=PHASE, tags=TAGS, admits=reads(Join, at=0))
def increment_of_joined(node: Apply, context: Context) -> Variable | None:
    """An increment of one operand of a join is added to that."""
    x, place = node.inputs[0], _place_of(node)
    if place is None or place.step != 1 or fields_of(node).set_instead_of_inc:
        return None
    pieces, sizes = node_of(x).inputs, [v.type.shape[place.axis] for v in node_of(x).inputs]
    if fields_of(node_of(x)).axis != place.axis or None in sizes or not context.only_user(x):
        return None
    ends = list(accumulate(int(n or 0) for n in sizes))
    ranges = list(zip([0, *ends[:-1]], ends, strict=True))
    where = place.start, ends[-1] if place.stop is None else place.stop
    value = _value_of(place, context) if where in ranges else None
    if value is None:
        return None
    k = ranges.index(where)
    return join(place.axis, *pieces[:k], Add()(pieces[k], value), *pieces[k + 1 :])


def _interleaved(parts: Sequence[_Place], v: Variable, context: Context) -> Variable | None:
    """The parts ``x[k::n]`` of ``v`` for each k, stacked along an axis behind theirs."""
    axis, step, rank = parts[0].axis, parts[0].step, v.type.ndim
    size, ends = v.type.shape[axis], {p.start: p for p in parts if p.stop is None}
    whole = len(parts) == step and all(k in ends for k in range(step))
    if not whole or size is None or size % step:
        return None
    values = [y for k in range(step) if (y := _value_of(ends[k], context)) is not None]
    if len(values) < step:
        return None
    pattern = [*range(axis + 1), "x", *range(axis + 1, rank)]
    stacked = join(axis + 1, *(y.dimshuffle(*pattern) for y in values))
    return reshape(stacked, context.shapes.dims(v), rank)


def _goes_on(node: Apply, last: _Place, context: Context) -> bool:
    """Whether the only reader of the result sets the slice behind the last part, or adds zeros of
    which that slice is set, and so will set it."""
    v = node.outputs[0]
    readers = context.fgraph.clients.get(v, {})
    if len(readers) != 1:
        return False
    ((reader, place),) = readers
    if reader is not None and isinstance(reader.op, Add):
        (other,) = [x for x in reader.inputs if x is not v] or [v]
        if not made_by(other, IncSubtensor):
            return False
        zeros = node_of(other).inputs[0]
        if not is_zero(zeros) or not context.shapes.same_shape(v, zeros):
            return False
        reader = node_of(other)
    elif reader is None or place != 0 or not isinstance(reader.op, IncSubtensor):
        return False
    after = _place_of(reader)
    if after is None or _value_of(after, context) is None:
        return False
    return (after.axis, after.start, after.step) == (last.axis, last.stop, 1)


class _Place(NamedTuple):
    """Where a node writes: from ``start`` up to ``stop`` (None: the end) along an axis."""

    node: Apply
    axis: int
    start: Any
    stop: Any
    slice: bool
    step: int = 1


def _place_of(node: Apply) -> _Place | None:
    entries = entries_of(node)
    axes = [d for d, e in enumerate(entries) if e != FULL]
    if len(axes) != 1:
        return None
    (axis,) = axes
    entry = entries[axis]
    if isinstance(entry, int):
        return _Place(node, axis, entry, entry + 1, False)
    if not is_slice(entry):
        return None
    start, stop, step = entry
    step = 1 if step is None else step
    if not isinstance(step, int) or step < 1:
        return None
    return _Place(node, axis, 0 if start is None else start, stop, True, step)


def _value_of(place: _Place, context: Context) -> Variable | None:
    """What is written to a place, with its shape."""
    x, y, *bounds = place.node.inputs
    value = _of_shape(y, fields_of(place.node).getter()(x, *bounds), context)
    if value is None or place.slice:
        return value
    axis = place.axis
    return value.dimshuffle(*range(axis), "x", *range(axis, value.type.ndim))


def _of_shape(y: Variable, place: Variable, context: Context) -> Variable | None:
    """``y`` with the shape of where it is written, which is checked if unknown; None: it is spread.

    Sizes within a loop are most often unknown.
    """
    same, dims = context.shapes.same, context.shapes.dims
    if y.type.ndim != place.type.ndim:
        return None
    equal = [same(a, b) for a, b in zip(dims(y), dims(place), strict=True)]
    if all(equal):
        return y
    known = zip(y.type.shape, place.type.shape, equal, strict=True)
    if any(own == 1 and size != 1 and not e for own, size, e in known):
        return None
    return specify_shape(y, [None if e else d for d, e in zip(dims(place), equal, strict=True)])


def _in_order(parts: Sequence[_Place], size: int | None) -> list[_Place]:
    """The parts by their position; empty if they leave something out or overlap."""
    numbers = all(isinstance(p.start, int) and isinstance(p.stop, int | None) for p in parts)
    if numbers and size is not None:
        found = sorted(parts, key=lambda p: int(p.start))
        stops = [size if p.stop is None else p.stop for p in found]
        # An end beyond the size would make the last part shorter than its bounds say.
        if [p.start for p in found] == [0, *stops[:-1]] and stops[-1] == size:
            return found
    if numbers and size is None and all(p.slice for p in parts):
        # Where the size is less than a bound says, the parts are shorter as well.
        found = sorted(parts, key=lambda p: int(p.start))
        stops = [p.stop for p in found]
        ordered = all(p.stop is None or p.start <= p.stop for p in found)
        if ordered and [p.start for p in found] == [0, *stops[:-1]]:
            return found
    if len(parts) > 2:
        return []
    # Two slices that meet, at whatever bound, leave nothing out: x[:n] and x[n:].
    first, last = sorted(parts, key=lambda p: p.stop is None)
    whole = first.start == 0 and last.stop is None and first.stop is not None
    meets = first.stop is last.start or (numbers and first.stop == last.start)
    return [first, last] if whole and meets and last.slice and first.slice else []


RULES = [
    join_of_increments,
    increment_of_joined,
    roll_by_zero,
    join_of_one,
    join_without_empty,
    join_of_join,
    join_of_split,
    split_into_one,
    split_of_join,
    index_of_join,
]
