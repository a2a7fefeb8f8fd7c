"""Increments: in the other term of a sum, as sums of the places that are known, or as assignments.

The gradient of a table that is read by rows, and by a product as well (tied embeddings), is a sum
of both. Zeros to scatter into would be filled, written, and read again for the sum.

The gradient of padding by a mirror image, by the edge or by the other side adds each border to
places that are known when the graph is built. On a GPU each element then adds its few terms, in
one order, instead of atomic additions to zeros. A place that each call says is an array on a GPU.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from symdnn.graph.inner import InnerGraphOp
from symdnn.graph.op import Op
from symdnn.graph.typing import Array
from symdnn.graph.variable import Apply, Constant, Shared, Variable
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor, AdvancedSubtensor
from symdnn.ops.array.create import full
from symdnn.ops.array.index import IncSubtensor, Subtensor
from symdnn.ops.array.scatter_reduce import ScatterReduce
from symdnn.ops.array.slices import FULL, fill_in, is_slice
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.core.shape import Alloc, ShapeI, as_dim, dims_of, dimshuffle
from symdnn.ops.elementwise.arithmetic import Add, Cast, Mul, Neg
from symdnn.ops.elemwise import Elemwise, pad_left
from symdnn.ops.lowered.gathered import ListedSums, PlacedSums
from symdnn.rewriting.facts import is_zero, made_by, node_of, number
from symdnn.rewriting.rewrite import Context, node_rewrite, reads


@node_rewrite(Add, phase="lower", tags=("indexing", "inplace"), admits=reads(AdvancedIncSubtensor))
def sum_with_rows_of_zeros(node: Apply, context: Context) -> Variable | None:
    """``x + inc_subtensor(zeros[i], y) -> inc_subtensor(x[i], y)`` for arrays ``i`` of rows.

    An elementwise ``x`` is left alone: it is computed with the sum, without memory of its own.
    """
    for x, v in (node.inputs, node.inputs[::-1]):
        whole = x.owner is not None and not isinstance(x.owner.op, Elemwise)
        if not whole or not made_by(v, AdvancedIncSubtensor) or x.type.dtype != v.type.dtype:
            continue  # sizes are compared last: that makes expressions of them
        if context.only_user(x) and context.shapes.same_shape(x, v):
            found = _onto(x, v, context)
            if found is not None:
                return found
    return None


def _onto(x: Variable, v: Variable, context: Context) -> Variable | None:
    """The increments that make ``v`` of zeros, made of ``x`` in their place."""
    if not made_by(v, AdvancedIncSubtensor) or not context.only_user(v):
        return None
    op: Any = node_of(v).op
    base, y, *rest = node_of(v).inputs
    if not _adds_to_rows(op):
        return None
    start = x if is_zero(base) else _onto(x, base, context)
    return None if start is None else op(start, y, *rest)


def _adds_to_rows(op: Op) -> bool:
    assert isinstance(op, AdvancedIncSubtensor), "the caller asks for these"
    rows = op.index[:1] == ("a",) and all(e in ("a", FULL) for e in op.index[1:])
    return rows and not op.set_instead_of_inc


@node_rewrite(AdvancedIncSubtensor, ScatterReduce, phase="lower", tags=("indexing",), target="cpu")
def narrow_increments_in_float32(node: Apply, context: Context) -> Variable | None:
    """``inc_subtensor(x[i], y)`` of 16 bits is ``x`` plus increments of zeros in float32; extremes
    and products of indexed elements are those of ``x`` and ``y`` in float32.

    The ops compute in float32, too; compiled loops combine numbers of 32 bits.
    """
    x, y, *rest = node.inputs
    op: Any = node.op
    if not is_narrow_float(x.type.dtype) or context.inner:
        return None
    wide, back = Cast("float32"), Cast(x.type.dtype)
    if isinstance(op, ScatterReduce):
        return back(op(wide(x), wide(y), *rest))
    if op.set_instead_of_inc:
        return None
    sums: Variable = op(full(dims_of(x), 0, "float32"), wide(y), *rest)
    return back(sums if is_zero(x) else wide(x) + sums)


#: The most terms along an axis, and how many times more elements the result may have than is added.
_MOST_TERMS, _SPARSEST = 8, 4


@node_rewrite(AdvancedIncSubtensor, phase="lower", tags=("indexing",), target="cuda")
def increments_at_known_places(node: Apply, context: Context) -> Variable | None:
    """``inc_subtensor(x[i], y)`` for constant ``i`` is ``x`` and sums of elements of ``y``."""
    x, y, *rest = node.inputs
    op: Any = node.op
    places = op.getter().arrays
    if op.set_instead_of_inc or op.host_inputs:
        return None
    if any(e not in ("a", FULL) for e in op.index) or not op.getter().side_by_side:
        return None
    if not (x.type.is_float or x.type.is_integer) or x.type.ndim != y.type.ndim:
        return None
    sizes = [x.type.shape[a] for a in places]
    lists = [_terms(v, k, len(places), n) for k, (v, n) in enumerate(zip(rest, sizes))]
    found = [rows for rows in lists if rows is not None]
    part = op.getter().infer(x.type, *(v.type for v in rest))
    if len(found) < len(lists) or part.broadcastable != y.type.broadcastable:
        return None
    if any(y.type.shape[a] != part.shape[a] for a in places):
        return None  # only a call knows whether it fits
    sums: Variable = ListedSums(places)(y, *map(Constant, found))
    return sums if is_zero(x) else Add()(x, sums)


def _terms(index: Variable, k: int, count: int, size: int | None) -> Array | None:
    """For each place along an axis the positions in an index that name it, then -1.

    None for an index of the ``k``-th of ``count`` axes that varies along another one, that is not
    constant or not in range, or that names places too often or too rarely.
    """
    if not isinstance(index, Constant) or size is None or index.data.ndim != count:
        return None
    if any(n != 1 for d, n in enumerate(index.data.shape) if d != k) or not index.data.size:
        return None
    at = index.data.astype(np.int64).ravel()
    at = np.where(at < 0, at + size, at)
    if at.min() < 0 or at.max() >= size or size > _SPARSEST * at.size:
        return None
    counts = np.bincount(at, minlength=size)
    if counts.max() > _MOST_TERMS:
        return None
    rows = np.full((size, int(counts.max())), -1, np.int32)
    order = np.argsort(at, kind="stable")
    column = np.arange(at.size) - np.repeat(np.cumsum(counts) - counts, counts)
    rows[at[order], column] = order
    return rows


@node_rewrite(IncSubtensor, phase="lower", tags=("indexing",), target="cpu")
def increment_of_zeros_is_set(node: Apply, context: Context) -> Variable | None:
    """``inc_subtensor(zeros[i], y) -> set_subtensor(zeros[i], y)``, which does not read them."""
    op: Any = node.op
    if op.set_instead_of_inc or not is_zero(node.inputs[0]):
        return None
    return IncSubtensor(op.index, True)(*node.inputs)


#: The most parts that each element of a result on a GPU looks at.
_MOST_PARTS = 16


@node_rewrite(IncSubtensor, phase="lower", tags=("indexing",))
def increments_of_zeros_are_one_pass(node: Apply, context: Context) -> Variable | None:
    """``inc_subtensor(inc_subtensor(zeros[i], y)[j], 2 * z) -> PlacedSums(y, z)``.

    The slices ``i`` and ``j`` have known bounds. Zeros would be written first, and then the parts.
    Gradients of differences have one ``y`` with other factors. Steps are positive on a CPU.
    A GPU takes another array than zeros as the first ``y``, if as many elements are added to it.
    """
    (out,) = node.outputs
    on_cpu = context.target.kind == "cpu"
    if context.inner or out.type.dtype == "bool" or not out.type.ndim:
        return None  # compiled steps of loops have code for increments
    if any(isinstance(reader.op, IncSubtensor) for reader in context.fgraph.user_nodes(out)):
        return None  # the last one of a chain replaces all of them
    parts, values, numbered, v = list[Any](), list[Variable](), list[Any](), out
    while made_by(v, IncSubtensor) and (v is out or context.only_user(v)):
        x, y, *_ = node_of(v).inputs
        op: Any = node_of(v).op
        part = _slices(node_of(v), on_cpu)
        if part is None:
            break
        parts.insert(0, part)
        values.insert(0, y)
        numbered.insert(0, op.index)
        v = x
    zeros, whole = made_by(v, Alloc) and is_zero(v), (FULL,) * out.type.ndim
    if not parts or not (zeros or (not on_cpu and _is_covered(v, parts))):
        return None
    if v.owner is None and context.fgraph.is_update(out):
        return None  # a shared variable changes where it lies
    if any(isinstance(n.op, InnerGraphOp) for n in context.fgraph.nodes):
        return None  # what is around loops is compiled with them
    if not zeros:
        parts, values, numbered = [whole, *parts], [v, *values], [whole, *numbered]
    if not on_cpu and (len(parts) > _MOST_PARTS or out.type.is_complex):
        return None
    factors, bases = zip(*(_factor(y, context) for y in values), strict=True)
    terms = [_with_axes(y, index) for y, index in zip(bases, numbered, strict=True)]
    sizes = node_of(v).inputs[1:] if zeros else dims_of(v)
    return PlacedSums(v.type.shape, tuple(parts), factors)(*terms, *sizes)


def _slices(node: Apply, on_cpu: bool) -> Any:
    """The slices of an increment; None where bounds are not known, or it sets elements."""
    op: Any = node.op
    x, _, *bounds = node.inputs
    if bounds or (op.set_instead_of_inc and not is_zero(x)):
        return None
    entries = [*op.index, *(FULL,) * (x.type.ndim - len(op.index))]
    if on_cpu:
        known = all(isinstance(e, tuple) and (e[2] or 1) > 0 for e in entries)
        return tuple(entries) if known else None
    found = [_slice_of(e, n) for e, n in zip(entries, x.type.shape, strict=True)]
    return None if None in found else tuple(found)


def _slice_of(entry: Any, size: int | None) -> Any:
    """A slice, also of one element where its number is known to be in range; or None."""
    if isinstance(entry, int) and size is not None and -size <= entry < size:
        return (entry, entry + 1 or None, None)
    return entry if isinstance(entry, tuple) else None


def _with_axes(y: Variable, index: Any) -> Variable:
    """``y`` with axes of one element where the index has numbers."""
    if all(isinstance(e, tuple) for e in index):
        return y
    kept = iter(range(y.type.ndim))
    return dimshuffle(y, [*("x" if isinstance(e, int) else next(kept) for e in index), *kept])


def _is_covered(v: Variable, parts: Any) -> bool:
    """Whether as many elements as ``v`` has, about, are added to it, or more.

    Then each would be read and written twice. Few are added where an array lies.
    """
    shares = [[_share(e, n) for e, n in zip(part, v.type.shape, strict=True)] for part in parts]
    return sum(map(prod, shares)) > 0.99


def _share(entry: Any, size: int | None) -> float:
    """The share of an axis that a slice has, about; 0 where that depends on an unknown size."""
    if size is not None:
        return len(range(size)[slice(*entry)]) / max(size, 1)
    start, stop, step = entry
    first, last = (start, stop) if (step or 1) > 0 else (stop, start)
    near = (first is None or first >= 0) and (last is None or last < 0)
    return 1 / abs(step or 1) if near else 0.0


def _factor(y: Variable, context: Context) -> tuple[float, Variable]:
    """What is added is so many times this value: ``y`` itself where something else reads it."""
    readers = context.fgraph.user_nodes(y)
    if not y.type.is_float or is_narrow_float(y.type.dtype):
        return 1.0, y
    found = 1.0, y
    if all(isinstance(reader.op, IncSubtensor) for reader in readers):
        if made_by(y, Neg):
            found = -1.0, node_of(y).inputs[0]
        elif made_by(y, Mul) and len(node_of(y).inputs) == 2:
            a, b = node_of(y).inputs
            known = ((number(u), v) for u, v in ((a, b), (b, a)))
            scaled = [(float(k), v) for k, v in known if k is not None and np.isfinite(k)]
            found = scaled[0] if scaled else found
    _, base = found
    return found if base.type == y.type and not _has_gaps(base) else (1.0, y)


def _has_gaps(v: Variable) -> bool:
    """Whether it is a view of every second number: an elementwise loop reads it better."""
    if not made_by(v, Subtensor):
        return False
    index: Any = node_of(v).op.index
    last = index[-1] if len(index) == v.type.ndim else FULL
    return isinstance(last, tuple) and last[2] not in (None, 1)


@node_rewrite(Subtensor, IncSubtensor, phase="lower", tags=("indexing",), target="cuda")
def places_on_device(node: Apply, context: Context) -> Variable | None:
    """``set_subtensor(x[n], y) -> set_subtensor(x[[n]], y)`` where a call says ``n``.

    ``x[n]`` is read so from a shared variable, and from what is computed.
    A kernel reads the place from an array, and is part of a captured graph; a number of the host
    would be asked for in the middle of one.
    """
    op: Any = node.op
    x, puts = node.inputs[0], isinstance(op, IncSubtensor)
    bounds = node.inputs[1 + puts :]
    if context.inner or all(map(_follows_from_shapes, bounds)) or not (puts or _stays(x)):
        return None
    if any(is_slice(e) and "?" in e for e in op.index):
        return None
    index = tuple(e if is_slice(e) else "a" for e in op.index)
    arrays = [dimshuffle(as_dim(e), ("x",)) for e in fill_in(op.index, bounds) if not is_slice(e)]
    get = AdvancedSubtensor(index)
    at = get.arrays[0] if get.side_by_side else 0
    count = x.type.ndim - len(arrays)
    if not puts:
        return dimshuffle(get(x, *arrays), [d for d in range(count + 1) if d != at])
    y = pad_left(node.inputs[1], count)
    y = dimshuffle(y, [*range(at), "x", *range(at, count)])
    put = AdvancedIncSubtensor(index, set_instead_of_inc=op.set_instead_of_inc)
    found: Variable = put(x, y, *arrays)
    return found


def _follows_from_shapes(v: Variable) -> bool:
    if isinstance(v, Constant) or made_by(v, ShapeI):
        return True
    return v.owner is not None and all(map(_follows_from_shapes, v.owner.inputs))


def _stays(x: Variable) -> bool:
    """Whether it is on the device before a call, or computed there."""
    return x.owner is not None or isinstance(x, Shared)


RULES = (
    places_on_device, sum_with_rows_of_zeros, increments_at_known_places,
    increments_of_zeros_are_one_pass, increment_of_zeros_is_set, narrow_increments_in_float32,
)  # fmt: skip
