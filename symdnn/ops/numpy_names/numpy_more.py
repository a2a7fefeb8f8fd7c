"""NumPy's functions that make, choose, insert and compare arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from symdnn.errors import InputError, NdimMismatch
from symdnn.graph.dims import normal_axis
from symdnn.graph.names.torch_words import torch_words
from symdnn.graph.typing import DtypeLike, ShapeLike, TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.array.create import arange, diag, eye, linspace
from symdnn.ops.array.getitem import set_subtensor
from symdnn.ops.array.join import concatenate, stack
from symdnn.ops.array.reduce import all as all_true
from symdnn.ops.array.reduce import normal_axes
from symdnn.ops.array.view import broadcast_to, expand_dims, flatten, moveaxis
from symdnn.ops.core.shape import dims_of, ones_like, zeros_like
from symdnn.ops.elementwise.arithmetic import abs as absolute
from symdnn.ops.elementwise.arithmetic import cast, pow, sgn
from symdnn.ops.elementwise.comparison import eq, invert, switch
from symdnn.ops.elementwise.math import log10
from symdnn.ops.numpy_names.numpy_arrays import in1d, tril_indices, triu_indices
from symdnn.ops.numpy_names.numpy_reductions import _edges, histogram
from symdnn.options import as_int

__all__ = [
    "apply_along_axis", "apply_over_axes", "array", "array_equal", "array_equiv", "asarray",
    "astype", "block", "broadcast_arrays", "delete", "diag_indices_from", "diagflat", "extract",
    "fromfunction", "geomspace", "histogram2d", "histogram_bin_edges", "identity", "indices",
    "insert", "iscomplex", "isreal", "ix_", "logspace", "matvec", "ndim", "piecewise", "resize",
    "select", "tril_indices_from", "triu_indices_from", "vecdot", "vecmat",
]  # fmt: skip


# -- making ----------------------------------------------------------------------------------------


def asarray(a: Any, dtype: DtypeLike | None = None) -> Variable:
    """``a`` as a variable: a constant, or a variable as it is; of ``dtype`` if given.

    Nested lists of variables are stacked.
    """
    made = _stacked(a)
    return made if dtype is None else cast(made, dtype)


def _stacked(a: Any) -> Variable:
    if isinstance(a, list | tuple) and _holds_variables(a):
        return stack([_stacked(v) for v in a])
    return as_variable(a)


def _holds_variables(a: Any) -> bool:
    if isinstance(a, list | tuple):
        return any(map(_holds_variables, a))
    return isinstance(a, Variable)


def array(object: Any, dtype: DtypeLike | None = None) -> Variable:
    """:func:`asarray`."""
    return asarray(object, dtype)


def astype(x: TensorLike, dtype: DtypeLike) -> Variable:
    """The same values in another dtype."""
    return cast(as_variable(x), dtype)


def identity(n: Any, dtype: DtypeLike | None = None) -> Variable:
    """The identity matrix of ``n`` rows."""
    return eye(n, dtype=dtype)


def diagflat(v: TensorLike, k: int = 0) -> Variable:
    """A matrix with the flattened ``v`` on its ``k``-th diagonal."""
    return diag(flatten(as_variable(v), 1), k)


def indices(dimensions: Sequence[Any], dtype: DtypeLike = "int64") -> Variable:
    """For each axis the index of every element along it, stacked."""
    if not isinstance(dimensions, list | tuple):
        raise InputError(f"indices: wanted a list of sizes, got {dimensions!r:.60}")
    parts = []
    for d, n in enumerate(dimensions):
        pattern = [0 if e == d else "x" for e in range(len(dimensions))]
        parts.append(broadcast_to(arange(n).dimshuffle(pattern), list(dimensions)))
    return cast(stack(parts), dtype)


def fromfunction(
    function: Callable[..., Any], shape: Sequence[Any], *, dtype: DtypeLike = "float64",
    **options: Any,
) -> Any:  # fmt: skip
    """``function`` of the :func:`indices` of each axis."""
    _check_callable("fromfunction", function)
    table = indices(shape, dtype)
    return function(*(table[d] for d in range(len(shape))), **options)


def _check_callable(name: str, function: Any) -> None:
    if not callable(function):
        raise InputError(f"{name}: wanted a function, got {function!r:.60}")


def ix_(*args: TensorLike) -> tuple[Variable, ...]:
    """Vectors as indices of the product of their places; those of bools: where they are true."""
    n = len(args)
    vs = [as_variable(a) for a in args]
    return tuple(
        (v.nonzero()[0] if v.type.dtype == "bool" else v).dimshuffle(
            *["x"] * d, 0, *["x"] * (n - 1 - d)
        )
        for d, v in enumerate(vs)
    )


def logspace(
    start: TensorLike, stop: TensorLike, num: int = 50, endpoint: bool = True, base: float = 10.0,
    dtype: DtypeLike | None = None,
) -> Variable:  # fmt: skip
    """``base`` to powers that are evenly spaced from ``start`` to ``stop``.

    The dtype is that of :func:`linspace`; the powers are float64 before.
    """
    out = linspace(start, stop, num, endpoint, dtype).type.dtype
    powers = linspace(start, stop, num, endpoint, "float64")
    return cast(pow(np.asarray(base, "float64"), powers), out)


def geomspace(
    start: TensorLike, stop: TensorLike, num: int = 50, endpoint: bool = True,
    dtype: DtypeLike | None = None,
) -> Variable:  # fmt: skip
    """Numbers of one sign in a geometric series from ``start`` to ``stop``, both exact.

    The dtype is that of :func:`linspace`; the numbers are float64 before.
    """
    out = linspace(start, stop, num, endpoint, dtype).type.dtype
    a, b = (cast(as_variable(v), "float64") for v in (start, stop))
    made = sgn(a) * logspace(log10(absolute(a)), log10(absolute(b)), num, endpoint)
    for at, end in [(0, a)] * (num > 0) + [(-1, b)] * (num > 1 and endpoint):
        made = set_subtensor(made[at], end)
    return cast(made, out)


def block(arrays: Any) -> Variable:
    """Nested lists of blocks as one array: the innermost lists along the last axis."""
    depth = _depth(arrays)

    def widest(part: Any) -> int:
        if isinstance(part, list):
            return max(map(widest, part), default=0)
        return as_variable(part).type.ndim

    total = max(depth, widest(arrays))

    def joined(part: Any, level: int) -> Variable:
        if not isinstance(part, list):
            v = as_variable(part)
            return v.dimshuffle(*["x"] * (total - v.type.ndim), *range(v.type.ndim))
        return concatenate([joined(p, level + 1) for p in part], axis=level - depth)

    return joined(arrays, 0)


def _depth(arrays: Any) -> int:
    if not isinstance(arrays, list):
        return 0
    depths = {_depth(a) for a in arrays}
    if len(depths) != 1:
        raise InputError("block: wanted lists of one depth everywhere")
    return 1 + depths.pop()


def broadcast_arrays(*args: TensorLike) -> list[Variable]:
    """All of them in their common shape."""
    vs = [as_variable(a) for a in args]
    shape: Any = np.broadcast_shapes
    if all(None not in v.type.shape for v in vs):
        wanted: Any = shape(*(v.type.shape for v in vs))
        return [broadcast_to(v, wanted) for v in vs]
    total: Any = None
    for v in vs:
        none = cast(zeros_like(v), "int8")
        total = none if total is None else total + none
    return [broadcast_to(v, dims_of(total)) for v in vs]


def resize(a: TensorLike, new_shape: ShapeLike) -> Variable:
    """The elements repeated, in order, to fill ``new_shape``, sizes that are known."""
    v = flatten(as_variable(a), 1)
    given = np.atleast_1d(np.asarray(new_shape)).tolist()
    shape = [as_int("resize: a size", n) for n in given]
    count = int(np.prod(shape))
    return v[arange(count) % dims_of(v)[0]].reshape(shape)


# -- choosing --------------------------------------------------------------------------------------


def select(
    condlist: Sequence[TensorLike], choicelist: Sequence[TensorLike], default: TensorLike = 0
) -> Variable:
    """The element of the choice whose condition is the first true one, else ``default``."""
    lists = isinstance(condlist, list | tuple) and isinstance(choicelist, list | tuple)
    if not lists or len(condlist) != len(choicelist) or not condlist:
        raise InputError("select: wanted as many choices as conditions, at least one")
    found: Any = default
    for condition, choice in zip(reversed(condlist), reversed(choicelist), strict=True):
        found = switch(condition, choice, found)
    return as_variable(found)


def piecewise(
    x: TensorLike, condlist: Sequence[TensorLike], funclist: Sequence[Any], *args: Any
) -> Variable:
    """``funclist[i]``, a function of ``x`` or a number, where the last true one is condition i.

    One function more is for where no condition is true, else 0; in the dtype of ``x``.
    """
    v = as_variable(x)
    n = len(condlist)
    if len(funclist) not in (n, n + 1):
        raise InputError(f"piecewise: wanted {n} or {n + 1} functions, got {len(funclist)}")

    def value(of: Any) -> Variable:
        return cast(of(v, *args) if callable(of) else as_variable(of), v.type.dtype)

    found = value(funclist[n]) if len(funclist) > n else zeros_like(v)
    for condition, of in zip(condlist, funclist):
        found = switch(condition, value(of), found)
    return found


def extract(condition: TensorLike, arr: TensorLike) -> Variable:
    """The elements for which ``condition`` holds, as a vector."""
    return flatten(as_variable(arr), 1)[cast(flatten(as_variable(condition), 1), "bool")]


def _places(name: str, obj: Any, size: Any) -> Any:
    """``obj`` (an int, ints or a slice) as ints of an axis of ``size``."""
    if isinstance(obj, slice):
        if not isinstance(size, int):
            raise NdimMismatch(name, "an axis of known size for a slice", obj)
        return np.arange(size)[obj]
    if isinstance(obj, Variable):
        return obj
    return np.asarray(obj)


def delete(arr: TensorLike, obj: Any, axis: int | None = None) -> Variable:
    """``arr`` without the entries ``obj`` (an int, ints, a bool mask or a slice) along ``axis``."""
    v = as_variable(arr)
    if axis is None:
        v, axis = flatten(v, 1), 0
    where = normal_axis("delete", axis, v.type.ndim)
    size = dims_of(v)[where]
    places = _places("delete", obj, size)
    lead = (slice(None),) * where
    if isinstance(places, np.ndarray) and isinstance(size, int):
        rest = np.delete(np.arange(size), places)
        return v[(*lead, rest)]
    at = as_variable(places)
    if at.type.dtype == "bool":
        kept = invert(at)
    else:
        at = flatten(at, 1)
        kept = invert(in1d(arange(size), switch(at < 0, at + size, at)))
    return v[(*lead, kept.nonzero()[0])]


def insert(arr: TensorLike, obj: Any, values: TensorLike, axis: int | None = None) -> Variable:
    """``arr`` with ``values`` before the entries ``obj`` (an int, ints or a slice) of ``axis``.

    The places are known when the graph is built; so is the size of the axis, unless ``obj`` is an
    int.
    """
    v, new = as_variable(arr), as_variable(values)
    if axis is None:
        v, axis = flatten(v, 1), 0
    where = normal_axis("insert", axis, v.type.ndim)
    new, size = cast(new, v.type.dtype), dims_of(v)[where]
    lead = (slice(None),) * where
    if np.ndim(obj) == 0 and not isinstance(obj, slice):
        part = moveaxis(new, 0, where) if new.type.ndim == v.type.ndim else new
        if new.type.ndim < v.type.ndim:
            part = expand_dims(part, where) if part.type.ndim else part
        dims = [n if d != where else 1 for d, n in enumerate(dims_of(v))]
        wide = part.type.ndim == v.type.ndim and part.type.shape[where] != 1
        if wide:
            dims[where] = dims_of(part)[where]
        if v.type.ndim == 1 and new.type.ndim == 1:
            part, dims = new, [dims_of(new)[0]]
        part = broadcast_to(part, dims)
        return concatenate(
            [v[(*lead, slice(None, obj))], part, v[(*lead, slice(obj, None))]], where
        )
    places = _places("insert", obj, size)
    if not isinstance(places, np.ndarray) or not isinstance(size, int):
        raise NdimMismatch("insert", "known places and an axis of known size", v.type)
    at = np.where(places < 0, places + size, places)
    order = np.argsort(at, kind="stable")
    at = at.copy()
    at[order] += np.arange(len(at))
    source = np.full(size + len(at), -1)
    rest = np.setdiff1d(np.arange(size + len(at)), at)
    source[rest] = np.arange(size)
    source[at] = size + np.arange(len(at))
    dims = [len(at) if d == where else n for d, n in enumerate(dims_of(v))]
    return concatenate([v, broadcast_to(new, dims)], where)[(*lead, source)]


def apply_along_axis(
    func1d: Callable[..., Any], axis: int, arr: TensorLike, *args: Any, **kwargs: Any
) -> Variable:
    """``func1d`` of each vector along ``axis``, whose result takes the place of the axis.

    The sizes of the other axes must be known when the graph is built: the function is called for
    each vector. (``symdnn.vmap`` calls it once.)
    """
    v = as_variable(arr)
    _check_callable("apply_along_axis", func1d)
    where = normal_axis("apply_along_axis", axis, v.type.ndim)
    lead: Any = [n for d, n in enumerate(v.type.shape) if d != where]
    if None in lead:
        raise NdimMismatch("apply_along_axis", "axes of known sizes", v.type, "See symdnn.vmap")
    rows = moveaxis(v, where, -1).reshape((int(np.prod(lead)), dims_of(v)[where]))
    each = [as_variable(func1d(rows[i], *args, **kwargs)) for i in range(int(np.prod(lead)))]
    found = stack(each)
    inner = dims_of(found)[1:]
    found = found.reshape((*lead, *inner))
    ends = list(range(len(lead), len(lead) + len(inner)))
    return moveaxis(found, ends, list(range(where, where + len(inner)))) if ends else found


def apply_over_axes(func: Callable[..., Any], a: TensorLike, axes: Any) -> Variable:
    """``func(a, axis)`` for each of ``axes`` in turn; a dimension that is lost comes back as 1."""
    v = as_variable(a)
    _check_callable("apply_over_axes", func)
    normal_axes(axes, v.type.ndim, "apply_over_axes")
    for axis in np.atleast_1d(axes):
        where = normal_axis("apply_over_axes", int(axis), as_variable(v).type.ndim)
        found = as_variable(func(v, where))
        v = expand_dims(found, where) if found.type.ndim == v.type.ndim - 1 else found
    return v


# -- comparing -------------------------------------------------------------------------------------


def array_equal(a1: TensorLike, a2: TensorLike) -> Variable:
    """Whether all elements are equal; False for static shapes that differ."""
    a, b = as_variable(a1), as_variable(a2)
    pairs = zip(a.type.shape, b.type.shape, strict=False)
    if a.type.ndim != b.type.ndim or any(None not in p and p[0] != p[1] for p in pairs):
        return as_variable(np.asarray(False))
    return all_true(eq(a, b))


def array_equiv(a1: TensorLike, a2: TensorLike) -> Variable:
    """Whether all elements are equal after broadcasting."""
    return all_true(eq(a1, a2))


def isreal(x: TensorLike) -> Variable:
    """Whether the imaginary part is 0."""
    v = as_variable(x)
    return eq(v.imag, 0) if v.type.dtype.startswith("complex") else cast(ones_like(v), "bool")


def iscomplex(x: TensorLike) -> Variable:
    """Whether the imaginary part is not 0."""
    return invert(isreal(x))


def ndim(a: TensorLike) -> int:
    """The number of dimensions, an int."""
    return as_variable(a).type.ndim


# -- indices ---------------------------------------------------------------------------------------


def _sides(name: str, arr: TensorLike, wanted: int | None) -> Variable:
    v = as_variable(arr)
    if v.type.ndim < 2 or v.type.ndim != (wanted or v.type.ndim):
        raise NdimMismatch(name, "a matrix", v.type)
    return v


def tril_indices_from(arr: TensorLike, k: TensorLike = 0) -> tuple[Variable, Variable]:
    """:func:`tril_indices` of the shape of a matrix."""
    rows, columns = dims_of(_sides("tril_indices_from", arr, 2))
    return tril_indices(rows, k, columns)


def triu_indices_from(arr: TensorLike, k: TensorLike = 0) -> tuple[Variable, Variable]:
    """:func:`triu_indices` of the shape of a matrix."""
    rows, columns = dims_of(_sides("triu_indices_from", arr, 2))
    return triu_indices(rows, k, columns)


def diag_indices_from(arr: TensorLike) -> tuple[Variable, ...]:
    """The indices of the diagonal of a tensor whose sides are equal."""
    v = _sides("diag_indices_from", arr, None)
    return (arange(dims_of(v)[0]),) * v.type.ndim


# -- products and counts ---------------------------------------------------------------------------


@torch_words()
def vecdot(x1: TensorLike, x2: TensorLike, axis: int = -1) -> Variable:
    """The sum over ``axis`` of ``conj(x1) x2``."""
    a, b = as_variable(x1), as_variable(x2)
    a = a.conj() if a.type.dtype.startswith("complex") else a
    return (moveaxis(a, axis, -1) * moveaxis(b, axis, -1)).sum(axis=-1)


def matvec(x1: TensorLike, x2: TensorLike) -> Variable:
    """Matrices (..., m, n) by vectors (..., n)."""
    return (as_variable(x1) @ expand_dims(as_variable(x2), -1))[..., 0]


def vecmat(x1: TensorLike, x2: TensorLike) -> Variable:
    """Vectors (..., n), conjugated, by matrices (..., n, m)."""
    a = as_variable(x1)
    a = a.conj() if a.type.dtype.startswith("complex") else a
    row = expand_dims(a, -2) @ as_variable(x2)
    return row[..., 0, :]


def histogram_bin_edges(
    a: TensorLike, bins: TensorLike = 10, range: Any = None, weights: TensorLike | None = None
) -> Variable:
    """The edges of the bins of :func:`histogram`."""
    return cast(_edges(cast(flatten(as_variable(a), 1), "float64"), bins, range), "float64")


def histogram2d(
    x: TensorLike, y: TensorLike, bins: Any = 10, range: Any = None, density: bool = False,
    weights: TensorLike | None = None,
) -> tuple[Variable, Variable, Variable]:  # fmt: skip
    """(counts (bins of x, bins of y), edges of x, edges of y), as ``numpy.histogram2d``."""
    pair = bins if isinstance(bins, list | tuple) and len(bins) == 2 else (bins, bins)
    limits = (None, None) if range is None else range
    edges, places, inside = [], [], None
    for v, b, r in zip((x, y), pair, limits, strict=True):
        values = cast(flatten(as_variable(v), 1), "float64")
        edge = histogram_bin_edges(values, b, r)
        within = (values >= edge[0]) & (values <= edge[-1])
        inside = within if inside is None else inside & within
        count = edge.shape[0] - 1
        at = edge.searchsorted(values, side="right") - 1
        places.append(at.clip(0, count - 1))
        edges.append(edge)
    rows, columns = (e.shape[0] - 1 for e in edges)
    one: Any = 1.0 if weights is None else flatten(as_variable(weights), 1)
    kept = cast(switch(inside, one, 0.0), "float64")
    flat, _ = histogram(
        places[0] * columns + places[1], arange(rows * columns + 1) - 0.5, weights=kept
    )
    found = flat.reshape((rows, columns))
    if density:
        area = (edges[0][1:] - edges[0][:-1]).dimshuffle(0, "x") * (edges[1][1:] - edges[1][:-1])
        found = found / area / found.sum()
    return found, edges[0], edges[1]
