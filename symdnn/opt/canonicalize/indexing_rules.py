"""Indexing moved towards the inputs, through views, allocs and elementwise ops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from symdnn.graph.dims import known
from symdnn.graph.dims import product as multiplied
from symdnn.graph.operators import operator
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.array.cumulative import CumMax, CumMin, CumProd, CumSum
from symdnn.ops.array.index import IncSubtensor, Subtensor, encode, subtensor
from symdnn.ops.array.slices import FULL, fill_in, is_slice
from symdnn.ops.core.make_vector import MakeVector, make_vector
from symdnn.ops.core.shape import (
    Alloc,
    DimShuffle,
    Reshape,
    alloc,
    dimshuffle,
    static_dim,
)
from symdnn.ops.elementwise.arithmetic import Add, Cast
from symdnn.ops.elemwise import Elemwise, pad_left
from symdnn.ops.linalg.products import Dot
from symdnn.ops.nest.of_ops import CUMULATIVE
from symdnn.ops.nn.conv import Conv
from symdnn.opt.canonicalize.dimshuffle_rules import fields_of
from symdnn.rewriting.facts import all_ones, is_zero, made_by, node_of
from symdnn.rewriting.rewrite import Context, node_rewrite, reads

PHASE = "canonicalize"
#: Values between a product and what could be its epilogue: a written GELU has 14.
_EPILOGUE_NODES = 24
#: An axis backwards.
_FLIPPED = (None, None, -1)
#: Slices of an array that are each converted, in place of the array.
_MOST_SLICES = 16
TAGS = ("fast_compile", "indexing")


def entries_of(node: Apply) -> list[Any]:
    """The index of a node as ints, scalars and ``(start, stop, step)`` triples."""
    op: Any = node.op
    first = 1 if isinstance(op, Subtensor) else 2
    return list(fill_in(op.index, node.inputs[first:]))


def _python(entries: Sequence[Any]) -> list[Any]:
    return [slice(*e) if isinstance(e, tuple) else e for e in entries]


def _static_bounds(e: Any) -> Any:
    if isinstance(e, tuple):
        return tuple(_static_bounds(b) for b in e)
    return static_dim(e) if isinstance(e, Constant) else e


@node_rewrite(Subtensor, IncSubtensor, phase=PHASE, tags=(*TAGS, "local_useless_slice"))
def index_in_plain_form(node: Apply, context: Context) -> Variable | None:
    """Constant bounds become part of the index, and ``0:n`` of ``n`` elements is ``:``."""
    x, entries = node.inputs[0], entries_of(node)
    sizes = context.shapes.dims(x)
    pairs = zip(map(_static_bounds, entries), sizes, strict=True)
    new = [_normalised(e, size, context) for e, size in pairs]
    index, bounds = encode(_python(new))
    if index == fields_of(node).index:
        return None
    if isinstance(node.op, Subtensor):
        return Subtensor(index)(x, *bounds)
    assert isinstance(node.op, IncSubtensor)
    put = IncSubtensor(index, node.op.set_instead_of_inc)
    return put(x, node.inputs[1], *bounds)


def _normalised(e: Any, size: Any, context: Context) -> Any:
    if not isinstance(e, tuple) or e[2] not in (None, 1):
        return e
    start, stop = (None if isinstance(e[0], int) and e[0] == 0 else e[0]), e[1]
    whole = stop is not None and context.shapes.same(stop, size)
    if isinstance(stop, int) and isinstance(size, int) and stop >= size:
        whole = True
    return (start, None if whole else stop, None)


@node_rewrite(Subtensor, phase=PHASE, tags=(*TAGS, "local_useless_subtensor"))
def index_of_everything(node: Apply, context: Context) -> Variable | None:
    """``x[:, :]`` is ``x``."""
    return node.inputs[0] if all(e == FULL for e in fields_of(node).index) else None


def _dropped(x: Variable, entries: Sequence[Any]) -> list[int]:
    """The axes of static size 1 whose element the entries take, where they take all else whole."""
    pairs = list(zip(entries, x.type.shape, strict=True))
    ones = [n == 1 and isinstance(e, int) and e in (0, -1) for e, n in pairs]
    whole = all(one or e == FULL for one, (e, _) in zip(ones, pairs))
    return [a for a, one in enumerate(ones) if one] if whole else []


@node_rewrite(Subtensor, phase=PHASE, tags=TAGS)
def index_of_size_one(node: Apply, context: Context) -> Variable | None:
    """``x[:, 0] -> x.dimshuffle(0)`` where that dimension has size 1."""
    x = node.inputs[0]
    ones = _dropped(x, entries_of(node))
    return dimshuffle(x, [a for a in range(x.type.ndim) if a not in ones]) if ones else None


@node_rewrite(IncSubtensor, phase=PHASE, tags=TAGS)
def increment_of_size_one(node: Apply, context: Context) -> Variable | None:
    """``inc_subtensor(x[:, 0], y)``, where that dimension has size 1, is of ``x.dimshuffle(0)``."""
    op, (x, y, *_) = node.op, node.inputs
    assert isinstance(op, IncSubtensor)
    ones = _dropped(x, entries_of(node))
    if not ones:
        return None
    kept = [a for a in range(x.type.ndim) if a not in ones]
    put = replace(op, index=(FULL,) * len(kept))(dimshuffle(x, kept), y)
    return dimshuffle(put, [kept.index(a) if a in kept else "x" for a in range(x.type.ndim)])


# -- of indexed parts -----------------------------------------------------------------------------


@node_rewrite(Subtensor, phase=PHASE, tags=(*TAGS, "local_subtensor_merge"))
def index_of_index(node: Apply, context: Context) -> Variable | None:
    """``x[2:][3] -> x[5]``, for static bounds that are not negative."""
    v = node.inputs[0]
    if not made_by(v, Subtensor):
        return None
    outer = iter(entries_of(node))
    merged = []
    for e in entries_of(node_of(v)):
        merged.append(_merge(e, next(outer)) if is_slice(e) else e)
        if merged[-1] is None:
            return None
    return subtensor(node_of(v).inputs[0], _python(merged))


def _merge(inner: Any, outer: Any) -> Any:
    """The index entry for ``inner`` followed by ``outer``; None where it is not static."""
    if outer == FULL or inner == FULL:
        return inner if outer == FULL else outer
    if not _from_front(inner):
        return None
    start, stop, step = inner[0] or 0, inner[1], inner[2] or 1
    if isinstance(outer, int) and outer >= 0:
        at = start + outer * step
        return at if stop is None or at < stop else None
    if not _from_front(outer):
        return None
    low, high, stride = outer[0] or 0, outer[1], outer[2] or 1
    ends = [e for e in (stop, None if high is None else start + high * step) if e is not None]
    return (start + low * step, min(ends, default=None), step * stride)


def _from_front(e: Any) -> bool:
    return isinstance(e, tuple) and all(
        b is None or (isinstance(b, int) and b >= low) for b, low in zip(e, (0, 0, 1))
    )


# -- of vectors of scalars, and of broadcasts ------------------------------------------------------


@node_rewrite(Subtensor, phase=PHASE, tags=(*TAGS, "cleanup", "local_subtensor_make_vector"))
def index_of_make_vector(node: Apply, context: Context) -> Variable | None:
    """An element of a vector of scalars is the scalar."""
    v = node.inputs[0]
    (entry,) = fields_of(node).index if v.type.ndim == 1 else (None,)
    if entry is None or not made_by(v, MakeVector):
        return None
    scalars = node_of(v).inputs
    if isinstance(entry, int):
        return scalars[entry] if -len(scalars) <= entry < len(scalars) else None
    if entry == "?" or "?" in entry:
        return None
    chosen = scalars[slice(*entry)]
    return make_vector(chosen) if chosen else None


@node_rewrite(Subtensor, phase=PHASE, tags=(*TAGS, "local_subtensor_of_alloc"))
def index_of_alloc(node: Apply, context: Context) -> Variable | None:
    """``alloc(x)[i] -> alloc(x[i])``. An integer index must be known to be in range."""
    v = node.inputs[0]
    if not made_by(v, Alloc):
        return None
    value = pad_left(node_of(v).inputs[0], v.type.ndim)
    entries = entries_of(node)
    inner = []
    for axis, e in enumerate(entries):
        repeated = value.type.shape[axis] == 1 and v.type.shape[axis] != 1
        if repeated and not is_slice(e) and not _fits(e, v.type.shape[axis]):
            return None
        inner.append((FULL if is_slice(e) else 0) if repeated else e)
    sizes = context.shapes.dims(node.outputs[0])
    return alloc(subtensor(value, _python(inner)), *sizes)


def _fits(index: object, size: int | None) -> bool:
    return isinstance(index, int) and size is not None and -size <= index < size


@node_rewrite(Subtensor, phase=PHASE, tags=(*TAGS, "local_subtensor_dimshuffle"))
def index_of_dimshuffle(node: Apply, context: Context) -> Variable | None:
    """``x.T[i] -> x[:, i]``: indexed first, transposed after."""
    v = node.inputs[0]
    if not made_by(v, DimShuffle):
        return None
    pattern, x = node_of(v).op.pattern, node_of(v).inputs[0]
    inner: list[Any] = [0] * x.type.ndim
    left: list[Any] = []
    for d, e in zip(pattern, entries_of(node), strict=True):
        if d == "x" and e != FULL and e not in (0, -1):
            return None
        if d != "x":
            inner[int(d)] = e
        if is_slice(e):
            left.append(d)
    kept = [d for d in range(x.type.ndim) if is_slice(inner[d])]
    moved = ["x" if d == "x" else kept.index(int(d)) for d in left]
    return dimshuffle(subtensor(x, _python(inner)), moved)


@node_rewrite(Subtensor, phase=PHASE, tags=(*TAGS, "local_subtensor_lift"))
def index_of_elemwise(node: Apply, context: Context) -> Variable | None:
    """``f(x, y)[i] -> f(x[i], y[i])``, for shapes that are known to agree.

    All readers take parts that no other one takes, so nothing is computed twice; or ``f`` is a cast
    to a dtype of no fewer bytes, which the loops that read the parts then do themselves. What is
    added to a product stays whole where several parts of it are read: it is its epilogue.
    """
    v = node.inputs[0]
    if not made_by(v, Elemwise):
        return None
    if not context.only_user(v):
        apart = _are_apart(v, context) and not _follows_product(v)
        if not apart and not _is_cast_in_loops(v, context):
            return None
    entries = entries_of(node)
    if all(e == FULL for e in entries) or not _smaller(node.outputs[0], v, context):
        return None
    operands = node_of(v).inputs
    for axis, e in enumerate(entries):
        if e != FULL and not _agree(operands, axis, context):
            return None
    parts = [subtensor(w, _python(_entries_for(w, entries))) for w in operands]
    return node_of(v).op(*parts)  # type: ignore[no-any-return]


@node_rewrite(
    Subtensor, phase=PHASE, tags=(*TAGS, "local_subtensor_lift"), admits=reads(Dot, Reshape)
)
def rows_of_product(node: Apply, context: Context) -> Variable | None:
    """``(x @ w)[i] -> x[i] @ w``, also of a stack of rows: only those that are read."""
    v, entries = node.inputs[0], entries_of(node)
    product = node_of(v).inputs[0] if made_by(v, Reshape) else v
    if not made_by(product, Dot) or not all(map(context.only_reader, (v, product))):
        return None
    x, w = node_of(product).inputs
    *lead, columns = context.shapes.dims(v)
    if x.type.ndim != 2 or w.type.ndim != 2 or all(map(is_slice, entries[:-1])):
        return None
    if entries[-1] != FULL or not context.shapes.same(columns, context.shapes.dims(w)[1]):
        return None
    if v is product:
        return operator("dot")(subtensor(x, _python(entries)), w)
    count, terms = context.shapes.dims(x)
    # A product of no columns has any rows.
    if not (known(columns) or context.shapes.same(multiplied(lead), count)):
        return None
    rows = operator("reshape")(x, (*lead, terms))
    return operator("dot")(subtensor(rows, _python(entries)), w)


def _follows_product(v: Variable) -> bool:
    """Whether ``v`` is computed elementwise from a product or a convolution, in few steps."""
    left, seen = list(node_of(v).inputs), 0
    while left and seen < _EPILOGUE_NODES:
        w, seen = left.pop(), seen + 1
        if made_by(w, Dot, Conv):
            return True
        if made_by(w, DimShuffle, Reshape):
            left.append(node_of(w).inputs[0])
        elif made_by(w, Elemwise):
            left.extend(node_of(w).inputs)
    return False


def _are_apart(v: Variable, context: Context) -> bool:
    """Whether all readers of ``v`` take parts along one axis, of which no two overlap."""
    parts: list[tuple[int, int]] = []
    axes = set[int]()
    for user, _ in context.fgraph.users(v):
        if user is None or not isinstance(user.op, Subtensor):
            return False
        some = [(a, e) for a, e in enumerate(entries_of(user)) if e != FULL]
        part = _bounds(some[0][1], v.type.shape[some[0][0]]) if len(some) == 1 else None
        if part is None:
            return False
        parts.append(part)
        axes.add(some[0][0])
    parts.sort()
    return len(axes) == 1 and all(a[1] <= b[0] for a, b in pairwise(parts))


def _is_cast_in_loops(v: Variable, context: Context) -> bool:
    """Whether ``v`` is a widening cast of which elementwise ops, and nothing else, read slices."""
    if not made_by(v, Cast):
        return False
    wide, narrow = v.type, node_of(v).inputs[0].type
    if wide.is_complex or narrow.is_complex or wide.numpy.itemsize < narrow.numpy.itemsize:
        return False
    users = [user for user, _ in context.fgraph.users(v)]
    if len(users) > _MOST_SLICES:
        return False
    return all(
        user is not None
        and isinstance(user.op, Subtensor)
        and all(map(is_slice, entries_of(user)))
        and all(
            reader is not None and isinstance(reader.op, Elemwise)
            for reader, _ in context.fgraph.users(user.outputs[0])
        )
        for user in users
    )


def _bounds(e: Any, size: int | None) -> tuple[int, int] | None:
    """The first element that an entry takes and the one behind the last; None if not known."""
    if isinstance(e, int):
        start = e + size if size is not None and e < 0 else e
        return (start, start + 1) if start >= 0 else None
    if (
        size is None
        or not isinstance(e, tuple)
        or not all(b is None or isinstance(b, int) for b in e)
    ):
        return None
    start, stop, step = slice(*e).indices(size)
    return (start, stop) if step > 0 else None


def _smaller(part: Variable, whole: Variable, context: Context) -> bool:
    # A slice with negative step or clamped bounds may be as large; it is never larger.
    return part.type.ndim < whole.type.ndim or not context.shapes.same_shape(part, whole)


def _agree(operands: Sequence[Variable], axis: int, context: Context) -> bool:
    wide = [context.shapes.dims(w)[axis] for w in operands if w.type.shape[axis] != 1]
    return all(context.shapes.same(wide[0], d) for d in wide[1:]) and bool(wide)


def _entries_for(v: Variable, entries: Sequence[Any]) -> list[Any]:
    shape = v.type.shape
    return [(FULL if is_slice(e) else 0) if shape[a] == 1 else e for a, e in enumerate(entries)]


# -- increments -----------------------------------------------------------------------------------


@node_rewrite(IncSubtensor, phase=PHASE, tags=(*TAGS, "local_useless_inc_subtensor"))
def increment_by_zero(node: Apply, context: Context) -> Variable | None:
    """``inc_subtensor(x[i], 0) -> x``, where the shape of the increment is known to fit."""
    op, (x, y, *bounds) = node.op, node.inputs
    assert isinstance(op, IncSubtensor)
    if op.set_instead_of_inc or not is_zero(y) or not all(is_slice(e) for e in op.index):
        return None
    part = op.getter()(x, *bounds)
    return x if all_ones(y) or context.shapes.covers(part, y) else None


@node_rewrite(IncSubtensor, phase=PHASE, tags=(*TAGS, "local_useless_inc_subtensor"))
def increment_of_everything(node: Apply, context: Context) -> Variable | None:
    """``inc_subtensor(x[:], y) -> x + y`` and ``set_subtensor(x[:], y) -> y``.

    So is ``x[::-1]`` of zeros, of ``y[::-1]``: the gradient of a flip is a flip.
    """
    op, (x, y, *_) = node.op, node.inputs
    assert isinstance(op, IncSubtensor)
    if any(e not in (FULL, _FLIPPED) for e in op.index):
        return None
    if _FLIPPED in op.index:
        alone = op.set_instead_of_inc or is_zero(x)  # else one of several parts of a sum
        if y.type.ndim != x.type.ndim or not alone:
            return None
        y = subtensor(y, _python(_entries_for(y, op.index)))
    if not op.set_instead_of_inc:
        return Add()(x, y)
    if context.shapes.same_shape(x, y):
        return y
    return alloc(y, *context.shapes.dims(x))


@node_rewrite(Subtensor, phase=PHASE, tags=(*TAGS, "local_subtensor_inc_subtensor"))
def read_what_was_set(node: Apply, context: Context) -> Variable | None:
    """``set_subtensor(x[i], y)[i] -> y``; with ``x`` zeros also for ``inc_subtensor``."""
    v = node.inputs[0]
    if not made_by(v, IncSubtensor):
        return None
    put, (x, y, *bounds) = node_of(v).op, node_of(v).inputs
    assert isinstance(put, IncSubtensor)
    if put.index != fields_of(node).index or list(node.inputs[1:]) != bounds:
        return None
    if not put.set_instead_of_inc and not is_zero(x):
        return None
    # An integer index out of range must go on failing.
    if not all(is_slice(e) or _fits(e, n) for e, n in zip(put.index, x.type.shape)):
        return None
    part = node.outputs[0]
    return y if context.shapes.same_shape(part, y) else None


@node_rewrite(Add, phase=PHASE, tags=(*TAGS, "local_add_inc_subtensor"), admits=reads(IncSubtensor))
def add_to_increment_of_zeros(node: Apply, context: Context) -> Variable | None:
    """``x + inc_subtensor(zeros[i], y) -> inc_subtensor(x[i], y)``: gradients add up in place."""
    for x, v in (node.inputs, node.inputs[::-1]):
        if not made_by(v, IncSubtensor):
            continue
        op, (zeros, y, *bounds) = node_of(v).op, node_of(v).inputs
        assert isinstance(op, IncSubtensor)
        if is_zero(zeros) and context.shapes.same_shape(x, zeros) and x.type.dtype == y.type.dtype:
            return IncSubtensor(op.index)(x, y, *bounds)
    return None


@node_rewrite(Subtensor, phase=PHASE, tags=TAGS, admits=reads(*CUMULATIVE))
def flipped_scan_of_flipped(node: Apply, context: Context) -> Variable | None:
    """A scan of a flipped array, flipped back, runs from the other end."""
    scan: Any = node.inputs[0].owner
    whole: list[Any] = [FULL] * len(fields_of(node).index)
    whole[scan.op.axis] = _FLIPPED
    flips = [node, *(v.owner for v in scan.inputs)]
    for flip in flips:
        if flip is None or not isinstance(flip.op, Subtensor) or flip.op.index != tuple(whole):
            return None
    plain = [v.owner.inputs[0] for v in scan.inputs]
    found: Variable = replace(scan.op, reverse=not scan.op.reverse)(*plain, hints=scan.hints)
    return found


#: What the last element of a scan is.
_TOTALS: dict[Any, str] = {CumSum: "sum", CumProd: "prod", CumMax: "max", CumMin: "min"}


@node_rewrite(Subtensor, phase=PHASE, tags=TAGS, admits=reads(*_TOTALS))
def last_of_scan(node: Apply, context: Context) -> Variable | None:
    """``cumsum(x)[-1] -> sum(x)``, and likewise of products and extremes, of a known size."""
    v = node.inputs[0]
    scan: Any = node_of(v).op
    (x,), entries = node_of(v).inputs, entries_of(node)
    size, last = x.type.shape[scan.axis], entries.pop(scan.axis)
    if not size or not isinstance(last, int):
        return None
    ends = (0, -size) if scan.reverse else (-1, size - 1)
    if last not in ends or not context.only_user(v) or getattr(scan, "exclusive", False):
        return None
    total = operator(_TOTALS[type(scan)])(x, axis=scan.axis)
    return subtensor(total, _python(entries))


RULES = [
    index_in_plain_form,
    index_of_everything,
    flipped_scan_of_flipped,
    last_of_scan,
    index_of_index,
    index_of_make_vector,
    index_of_size_one,
    index_of_alloc,
    index_of_dimshuffle,
    index_of_elemwise,
    rows_of_product,
    increment_by_zero,
    increment_of_size_one,
    increment_of_everything,
    read_what_was_set,
    add_to_increment_of_zeros,
]
