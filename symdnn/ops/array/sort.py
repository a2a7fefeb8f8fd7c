"""Sorting, ranking and searching along an axis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import AxisError, OptionError, ShapeMismatch, TypeMismatch
from symdnn.graph.dims import Dim, dim_where, known, normal_axis
from symdnn.graph.names.torch_words import torch_words
from symdnn.graph.op import Axes, Batched, Grads, Host, MultiOp, Op, Shapes, Types, Vars
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType, Type, numpy_dtype
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Apply, Variable, as_variable
from symdnn.ops.array.take import put_along_axis, take_along_axis
from symdnn.ops.array.view import flatten
from symdnn.ops.core.dtype import upcast
from symdnn.ops.core.lanes import on_lanes
from symdnn.ops.core.shape import as_dim, static_dim

__all__ = [
    "ArgSort",
    "SearchSorted",
    "Sort",
    "TopK",
    "Unique",
    "ordered",
    "unique_of_range",
    "unique_of_sorted",
]

#: The length of a table of integers: so many times their number, or this. Fewer are sorted.
_TABLE_NUMBERS, _SMALL_TABLE, _FEW = 4, 1 << 10, 256
_KINDS = ("quicksort", "mergesort", "heapsort", "stable")


@dataclass(frozen=True)
class Sort(Op):
    """``x`` in ascending order along ``axis``; NaNs come last, 0 and -0 in any order."""

    shaped_as: ClassVar[int | None] = 0
    axis: int

    def infer(self, x: TensorType) -> TensorType:
        return _with_axis(self, x, self.axis)

    def reference(self, x: Array) -> Array:
        return np.sort(ordered(x), axis=self.axis).astype(x.dtype, copy=False)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        # The inverse of a permutation is its argsort, so that this is a gather.
        rank = ArgSort(self.axis)(ArgSort(self.axis)(inputs[0]))
        return [take_along_axis(cotangents[0], rank, self.axis)]

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        return [take_along_axis(tangents[0], ArgSort(self.axis)(inputs[0]), self.axis)]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return on_lanes(replace(self, axis=self.axis + 1), inputs, axes)


@dataclass(frozen=True)
class ArgSort(Op):
    """The int64 indices that sort ``x`` along ``axis``; equal elements keep their order."""

    shaped_as: ClassVar[int | None] = 0
    no_gradients: ClassVar[bool] = True
    axis: int

    def infer(self, x: TensorType) -> TensorType:
        return _with_axis(self, x, self.axis).with_dtype("int64")

    def reference(self, x: Array) -> Array:
        found = np.argsort(ordered(x), axis=self.axis, kind="stable")
        return found.astype(np.int64, copy=False)

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return on_lanes(replace(self, axis=self.axis + 1), inputs, axes)


def ordered(x: Array) -> Array:
    """Numbers that NumPy sorts and searches rightly: in bfloat16 NaN is not last, and long vectors
    of float16 come out of order on processors with AVX-512."""
    return x.astype(np.float32) if x.dtype in (np.float16, numpy_dtype("bfloat16")) else x


def _with_axis(op: Op, x: TensorType, axis: int) -> TensorType:
    if not 0 <= axis < x.ndim:
        raise AxisError(op, f"a tensor with a dimension {axis}", x)
    return x


def _prepared(
    what: str, a: TensorLike, axis: int | None, kind: str, order: Any
) -> tuple[Variable, int]:
    if kind not in _KINDS:
        raise OptionError(f"{what}: kind={kind!r}: wanted one of {', '.join(_KINDS)}")
    if order is not None:
        raise TypeMismatch(what, "order=None (it is for NumPy's structured arrays)", order)
    v = as_variable(a)
    if axis is None or v.type.ndim == 0:
        v, axis = flatten(v, 1), 0
    return v, normal_axis(what, axis, v.type.ndim)


@torch_words("sort", "descending", "stable")
def sort(
    a: TensorLike, axis: int | None = -1, kind: str = "quicksort", order: Any = None
) -> Variable:
    """``a`` in ascending order along ``axis`` (flattened when None).

    Equal elements can't be told apart but for 0 and -0, whose order is not said.
    """
    v, where = _prepared("sort", a, axis, kind, order)
    return Sort(where)(v)


@torch_words("argsort", "descending", "stable")
def argsort(
    a: TensorLike, axis: int | None = -1, kind: str = "quicksort", order: Any = None
) -> Variable:
    """The int64 indices that put ``a`` in ascending order along ``axis`` (flattened when None)."""
    v, where = _prepared("argsort", a, axis, kind, order)
    return ArgSort(where)(v)


@dataclass(frozen=True)
class TopK(MultiOp):
    """The ``k`` largest elements along ``axis`` and their indices; the ``-k`` smallest if k < 0.

    Inputs: ``x``, ``k`` (an integer scalar). The best come first; of equal elements the one with
    the lower index. NaN counts as the largest.
    """

    host_inputs: ClassVar[tuple[int, ...]] = (1,)
    axis: int
    index_dtype: str = "int64"
    static: int | None = None

    def infer(self, x: TensorType, k: TensorType) -> tuple[Type, ...]:
        shape = list(_with_axis(self, x, self.axis).shape)
        count = None if self.static is None else abs(self.static)
        self._check(count, shape[self.axis])
        shape[self.axis] = count
        return x.with_shape(shape), TensorType(self.index_dtype, shape)

    def _check(self, count: Dim | None, size: Dim | None) -> None:
        m, n = (None if d is None else known(d) for d in (count, size))
        if m is not None and n is not None and m > n:
            raise ShapeMismatch(self, f"at most {n} elements of axis {self.axis}", f"k = {m}")

    def reference(self, x: Array, k: Array) -> tuple[Array, ...]:
        count, n = int(k), x.shape[self.axis]
        self._check(abs(count), n)
        x, whole = ordered(x), x
        if count < 0:
            order = np.argsort(x, axis=self.axis, kind="stable")
        else:
            # Reversed twice, so that equal elements are in the order of their indices.
            back = np.argsort(np.flip(x, self.axis), axis=self.axis, kind="stable")
            order = n - 1 - np.flip(back, self.axis)
        best = np.take(order, np.arange(abs(count)), axis=self.axis)
        values = np.take_along_axis(whole, best, axis=self.axis)
        return values, best.astype(TensorType(self.index_dtype).numpy)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        k = host[1] if self.static is None else self.static
        count = abs(n) if (n := known(k)) is not None else dim_where(k < 0, -1 * k, k)
        shape = list(shapes[0])
        self._check(count, shape[self.axis])
        shape[self.axis] = count
        return [tuple(shape), tuple(shape)]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Grads) -> Grads:
        if cotangents[0] is None:
            return [None, None]
        zeros = operator("zeros_like")(inputs[0])
        return [put_along_axis(zeros, outputs[1], cotangents[0], self.axis, add=True), None]

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        if tangents[0] is None:
            return [None, None]
        return [take_along_axis(tangents[0], outputs[1], self.axis), None]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return on_lanes(replace(self, axis=self.axis + 1), inputs, axes)


def topk_and_argtopk(
    x: TensorLike,
    kth: TensorLike,
    axis: int | None = -1,
    sorted: bool = True,
    idx_dtype: str = "int64",
) -> tuple[Variable, Variable]:
    """The ``kth`` largest elements along ``axis`` (smallest if negative) and their indices.

    They are sorted, the best first, for any value of ``sorted``. ``kth`` is an int or an integer
    scalar; more than there are raises :class:`ShapeMismatch`, 0 gives none.
    """
    v = as_variable(x)
    if axis is None:
        v, axis = flatten(v, 1), 0
    k = as_dim(kth)
    dtype = TensorType(idx_dtype).dtype
    op = TopK(normal_axis("topk", axis, v.type.ndim), dtype, static_dim(k))
    values, indices = op(v, k)
    return values, indices


@torch_words("topk", "k", "largest")
def topk(
    x: TensorLike,
    kth: TensorLike,
    axis: int | None = -1,
    sorted: bool = True,
    idx_dtype: str = "int64",
) -> Variable:
    """The values of :func:`topk_and_argtopk`."""
    return topk_and_argtopk(x, kth, axis, sorted, idx_dtype)[0]


def argtopk(
    x: TensorLike,
    kth: TensorLike,
    axis: int | None = -1,
    sorted: bool = True,
    idx_dtype: str = "int64",
) -> Variable:
    """The indices of :func:`topk_and_argtopk`."""
    return topk_and_argtopk(x, kth, axis, sorted, idx_dtype)[1]


@dataclass(frozen=True)
class SearchSorted(Op):
    """The int64 index at which each element of ``v`` would be inserted in the sorted vector ``x``.

    ``side`` ``"left"`` is before equal elements, ``"right"`` after them.
    """

    no_gradients: ClassVar[bool] = True
    side: str = "left"

    def infer(self, x: TensorType, v: TensorType) -> TensorType:
        if x.ndim != 1 or x.dtype != v.dtype:
            raise TypeMismatch(self, "a vector and values of its dtype", [x, v])
        return v.with_dtype("int64")

    def reference(self, x: Array, v: Array) -> Array:
        side: Any = self.side
        return np.asarray(np.searchsorted(ordered(x), ordered(v), side=side)).astype(np.int64)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return [shapes[1]]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return on_lanes(self, inputs, axes, same=(0,))


def searchsorted(
    x: TensorLike,
    v: TensorLike,
    side: str = "left",
    sorter: TensorLike | None = None,
    *,
    right: bool = False,
) -> Variable:
    """Indices at which elements of ``v`` keep the vector ``x`` sorted (by ``sorter`` if given).

    ``right=True`` is PyTorch's word for the side ``"right"``.
    """
    side = "right" if right else side
    if side not in ("left", "right"):
        raise OptionError(f"searchsorted: side={side!r}: wanted 'left' or 'right'")
    table, values = as_variable(x), as_variable(v)
    if sorter is not None:
        table = table[as_variable(sorter)]
    dtype = upcast(table.type.dtype, values.type.dtype)
    pair = [t if t.type.dtype == dtype else operator("cast")(t, dtype) for t in (table, values)]
    return SearchSorted(side)(*pair)


@dataclass(frozen=True)
class Unique(MultiOp):
    """The different elements of ``x``, flattened and sorted; their number depends on the data.

    With an ``axis`` the different slices across it, in lexical order, and the indices are of these.
    Further outputs, by the op's fields: int64 indices of their first occurrences, the indices that
    rebuild the flattened ``x``, and the counts. Called directly it returns these outputs, as
    Theano's op does.
    """

    return_index: bool = False
    return_inverse: bool = False
    return_counts: bool = False
    axis: int | None = None

    @property
    def sorts_values(self) -> bool:
        """Whether the sorted elements have all that is asked for."""
        return self.axis is None and not self.return_index and not self.return_inverse

    def infer(self, x: TensorType) -> tuple[Type, ...]:
        vector = TensorType("int64", (None,))
        flat: int | None = 1
        for d in x.shape if self.axis is None else (x.shape[self.axis],):
            flat = None if d is None or flat is None else flat * d
        kept = [None if i == self.axis else d for i, d in enumerate(x.shape)]
        more = [(self.return_index, vector), (self.return_inverse, TensorType("int64", (flat,)))]
        more.append((self.return_counts, vector))
        shape = (None,) if self.axis is None else tuple(kept)
        return (TensorType(x.dtype, shape), *(t for wanted, t in more if wanted))

    def reference(self, x: Array) -> tuple[Array, ...]:
        ask: Any = {"return_index": self.return_index, "return_inverse": self.return_inverse,
                    "return_counts": self.return_counts, "axis": self.axis}  # fmt: skip
        flat = x.reshape(-1) if self.axis is None else x
        keys = ordered(flat)
        sorts = self.sorts_values and keys.dtype.kind in "iubf"
        few = sorts and x.size < _FEW
        if self.axis is None and not few and (found := unique_of_range(flat, **ask)) is not None:
            return found
        if sorts:  # NumPy hashes integers if nothing is counted, which takes six times as long
            first, *rest = unique_of_sorted(np.sort(keys), _by_mask, self.return_counts)
            return (first.astype(x.dtype, copy=False), *rest)
        made = np.unique(keys, **ask)
        first, *rest = made if isinstance(made, tuple) else (made,)
        more = (r.reshape(-1).astype(np.int64, copy=False) for r in rest)
        return (first.astype(x.dtype, copy=False), *more)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> None:
        return None

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Grads) -> Grads:
        x, dy = inputs[0], cotangents[0]
        if dy is None:
            return [None]
        _, first = Unique(return_index=True, axis=self.axis)(x)
        if self.axis is not None:
            index = (*(slice(None),) * self.axis, first)
            return [operator("inc_subtensor")(operator("zeros_like")(x)[index], dy)]
        zeros = operator("zeros_like")(flatten(x, 1))
        flat = operator("inc_subtensor")(zeros[first], dy)
        return [operator("reshape")(flat, operator("shape")(x))]

    def results(self, node: Apply) -> Any:
        return node.outputs if len(node.outputs) > 1 else node.outputs[0]


def unique_of_sorted(
    x: Array, compress: Callable[[Array, Array], Array], return_counts: bool
) -> tuple[Array, ...]:
    """What :class:`Unique` gives of sorted numbers, of which NaN are one.

    ``compress(mask, x)`` has the elements of ``x`` where the mask holds.
    """
    begins = np.empty(x.size, bool)
    begins[:1] = True
    np.not_equal(x[1:], x[:-1], out=begins[1:])
    if x.size and x[-1] != x[-1]:
        begins[np.searchsorted(x, x[-1]) + 1 :] = False
    found = compress(begins, x)
    if not return_counts:
        return (found,)
    return found, np.diff(np.flatnonzero(begins), append=x.size)


def _by_mask(mask: Array, x: Array) -> Array:
    return np.asarray(x[mask])


def unique_of_range(
    x: Array, return_index: bool, return_inverse: bool, return_counts: bool, axis: None
) -> tuple[Array, ...] | None:
    """What :class:`Unique` gives of integers, by a table of the numbers from the least to the
    largest; None where the table would be much longer than ``x``.
    """
    if not x.size or x.dtype.kind not in "iu":
        return None
    low, high = int(np.minimum.reduce(x)), int(np.maximum.reduce(x))
    size = high - low + 1
    if size > max(_TABLE_NUMBERS * x.size, _SMALL_TABLE):
        return None
    # Differences of unsigned numbers wrap, but are less than the table is long.
    places = (x.view(f"u{x.itemsize}") - x.dtype.type(low).view(f"u{x.itemsize}")).astype(np.intp)
    if return_counts:
        counts = np.bincount(places, minlength=size)
        numbers = np.flatnonzero(counts)
    else:
        seen = np.zeros(size, bool)
        seen[places] = True
        numbers = np.flatnonzero(seen)
    ranks = np.empty(size, np.int64)
    results = [(numbers.astype(f"u{x.itemsize}") + x.dtype.type(low).view(f"u{x.itemsize}"))]
    results[0] = results[0].view(x.dtype)
    if return_index:
        ranks[places[::-1]] = np.arange(x.size - 1, -1, -1)  # the first one is written last
        results.append(ranks[numbers])
    if return_inverse:
        ranks[numbers] = np.arange(numbers.size)
        results.append(ranks[places])
    if return_counts:
        results.append(counts[numbers].astype(np.int64, copy=False))
    return tuple(results)


@torch_words()
def unique(
    x: TensorLike,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
) -> TensorLike:
    """The different elements of ``x`` in ascending order; a tuple if further outputs are wanted.

    With an ``axis``, the different slices across it: rows for 0.
    """
    v = as_variable(x)
    along = None if axis is None else normal_axis("unique", axis, v.type.ndim)
    return Unique(return_index, return_inverse, return_counts, along)(v)


OPERATORS = {
    "argsort": argsort,
    "searchsorted": searchsorted,
    "sort": sort,
    "unique": unique,
}
