"""Functions of NumPy and PyTorch that split, stack and index arrays, composed of ops."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from symdnn.errors import ArgumentError, AxisError, InputError, NdimMismatch, OptionError
from symdnn.graph.dims import normal_axis
from symdnn.graph.names.torch_words import advises, torch_words
from symdnn.graph.operators import operator
from symdnn.graph.typing import ShapeLike, TensorLike
from symdnn.graph.variable import Variable, as_variable, constant
from symdnn.ops.array.create import arange, tri
from symdnn.ops.array.getitem import nonzero
from symdnn.ops.array.join import concatenate, flip, stack
from symdnn.ops.array.sets import contained
from symdnn.ops.array.view import flatten, swapaxes, transpose
from symdnn.ops.core.gradient_control import assert_
from symdnn.ops.core.python_numbers import settled
from symdnn.ops.core.shape import shape_entries, shape_i
from symdnn.ops.elementwise.arithmetic import cast, maximum, minimum
from symdnn.ops.elementwise.comparison import invert as negation
from symdnn.ops.elementwise.comparison import switch
from symdnn.options import as_int

__all__ = [
    "append", "argwhere", "array_split", "chunk", "column_stack", "diag_indices", "dsplit",
    "dstack", "fliplr", "flipud", "hsplit", "in1d", "isin", "matrix_transpose",
    "permute_dims", "ravel_multi_index", "rot90", "row_stack", "tril_indices", "triu_indices",
    "unravel_index", "unstack", "vsplit", "where",
]  # fmt: skip


# -- stacking --------------------------------------------------------------------------------------


def dstack(tensors: Sequence[TensorLike]) -> Variable:
    """Tensors stacked along axis 2, which vectors and matrices get as a new one."""
    return concatenate([_deep(v) for v in _all(tensors)], axis=2)


def _all(tensors: Sequence[TensorLike]) -> list[Variable]:
    if not isinstance(tensors, list | tuple):
        raise InputError(f"wanted a list or tuple of tensors to stack, got {tensors!r:.80}")
    return [as_variable(t) for t in tensors]


def _deep(v: Variable) -> Variable:
    """``v`` with three dimensions: a vector is a row, a matrix gets a last dimension of size 1."""
    patterns: dict[int, list[Any]] = {0: ["x", "x", "x"], 1: ["x", 0, "x"], 2: [0, 1, "x"]}
    return v.dimshuffle(patterns[v.type.ndim]) if v.type.ndim in patterns else v


def column_stack(tensors: Sequence[TensorLike]) -> Variable:
    """Vectors (as columns) and matrices side by side in a matrix."""
    vs = _all(tensors)
    return concatenate([v.dimshuffle(0, "x") if v.type.ndim == 1 else v for v in vs], axis=1)


def row_stack(tensors: Sequence[TensorLike]) -> Variable:
    """NumPy's other name of ``vstack``."""
    vs = _all(tensors)
    return concatenate([v.dimshuffle("x", 0) if v.type.ndim == 1 else v for v in vs], axis=0)


def append(arr: TensorLike, values: TensorLike, axis: int | None = None) -> Variable:
    """``values`` after ``arr`` along ``axis``, or both flattened."""
    parts = settled([as_variable(arr), as_variable(values)])
    if axis is None:
        return concatenate([flatten(v, 1) for v in parts])
    return concatenate(parts, axis)


# -- splitting -------------------------------------------------------------------------------------


def _cut(v: Variable, bounds: Sequence[TensorLike | None], axis: int) -> list[Variable]:
    before = (slice(None),) * axis
    return [v[(*before, slice(a, b))] for a, b in itertools.pairwise(bounds)]


def array_split(x: TensorLike, indices_or_sections: Any, axis: int = 0) -> list[Variable]:
    """``x`` cut along ``axis`` into a number of nearly equal parts, or before these indices.

    >>> [p.eval().tolist() for p in array_split(np.arange(5), 2)]
    [[0, 1, 2], [3, 4]]
    """
    v = as_variable(x)
    where = normal_axis("array_split", axis, v.type.ndim)
    if not isinstance(indices_or_sections, int | np.integer):
        return _cut(v, [0, *shape_entries(indices_or_sections), None], where)
    count = int(indices_or_sections)
    if count < 1:
        raise OptionError(f"array_split: wanted at least 1 part, got {count}")
    size = shape_i(v, where)
    whole, more = size // count, size % count
    return _cut(v, [i * whole + minimum(more, i) for i in range(count + 1)], where)


def hsplit(x: TensorLike, indices_or_sections: TensorLike) -> list[Variable]:
    """:func:`array_split` along axis 1, of vectors along axis 0."""
    v = as_variable(x)
    return array_split(v, indices_or_sections, 0 if v.type.ndim == 1 else 1)


def vsplit(x: TensorLike, indices_or_sections: TensorLike) -> list[Variable]:
    """:func:`array_split` along axis 0."""
    return array_split(x, indices_or_sections, 0)


def dsplit(x: TensorLike, indices_or_sections: TensorLike) -> list[Variable]:
    """:func:`array_split` along axis 2."""
    return array_split(x, indices_or_sections, 2)


@torch_words()
def chunk(x: TensorLike, chunks: int, axis: int = 0) -> list[Variable]:
    """``x`` cut along ``axis`` into ``chunks`` parts, all but the last of one size (PyTorch's).

    If the size does not suffice, PyTorch returns fewer parts; here the last ones are empty.
    """
    v = as_variable(x)
    where = normal_axis("chunk", axis, v.type.ndim)
    parts = as_int("chunk: chunks", chunks)
    if parts < 1:
        raise OptionError(f"chunk: wanted at least 1 part, got {parts}")
    size = shape_i(v, where)
    each = (size + (parts - 1)) // parts
    return _cut(v, [minimum(i * each, size) for i in range(parts + 1)], where)


def unstack(x: TensorLike, axis: int = 0) -> list[Variable]:
    """The parts of ``x`` along ``axis``, whose size must be known when the graph is built."""
    v = as_variable(x)
    where = normal_axis("unstack", axis, v.type.ndim)
    size = v.type.shape[where]
    if size is None:
        raise NdimMismatch("unstack", "an axis of known size", v.type, "See T.specify_shape")
    return [v[(slice(None),) * where + (i,)] for i in range(size)]


# -- order of axes and elements --------------------------------------------------------------------


def permute_dims(x: TensorLike, axes: Sequence[int] | None = None) -> Variable:
    """``transpose`` under the array API's name."""
    return transpose(x, axes)


def matrix_transpose(x: TensorLike) -> Variable:
    """The last two dimensions exchanged."""
    return swapaxes(x, -1, -2)


def fliplr(m: TensorLike) -> Variable:
    """``m`` in reverse order along axis 1."""
    return flip(m, 1)


def flipud(m: TensorLike) -> Variable:
    """``m`` in reverse order along axis 0."""
    return flip(m, 0)


@advises(dims="axes")
def rot90(m: TensorLike, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Variable:
    """``m`` rotated ``k`` times by 90 degrees, from the first of ``axes`` towards the second."""
    v = as_variable(m)
    both = list(axes) if isinstance(axes, list | tuple) else [axes]
    chosen = [normal_axis("rot90", x, v.type.ndim) for x in both]
    if len(set(chosen)) != 2 or len(chosen) != 2:
        raise AxisError("rot90", "two different axes", str(axes))
    a, b = chosen
    turns = as_int("rot90: k", k) % 4
    if turns == 0:
        return v
    if turns == 2:
        return flip(v, (a, b))
    return flip(swapaxes(v, a, b), a) if turns == 1 else swapaxes(flip(v, a), a, b)


# -- indices ---------------------------------------------------------------------------------------


def _columns(name: str, n: TensorLike, m: TensorLike | None) -> TensorLike:
    if isinstance(m, int | np.integer) and m < 0:
        raise OptionError(
            f"{name}: m={m}; wanted 0 columns or more. NumPy's order is (n, k, m); PyTorch's "
            f"{name}(row, col, offset) is {name}(row, col, offset=...)"
        )
    return n if m is None else m


@torch_words("tril_indices", "offset", "row", "col")
def tril_indices(
    n: TensorLike, k: TensorLike = 0, m: TensorLike | None = None
) -> tuple[Variable, Variable]:
    """(rows, columns) of the lower triangle of an ``(n, m)`` matrix up to the diagonal ``k``.

    With ``offset``, ``row`` or ``col`` it is PyTorch's ``tril_indices(row, col, offset)``.
    """
    rows, columns = nonzero(tri(n, _columns("tril_indices", n, m), k, dtype="bool"))
    return rows, columns


@torch_words("triu_indices", "offset", "row", "col")
def triu_indices(
    n: TensorLike, k: TensorLike = 0, m: TensorLike | None = None
) -> tuple[Variable, Variable]:
    """(rows, columns) of the upper triangle of an ``(n, m)`` matrix from the diagonal ``k``.

    With ``offset``, ``row`` or ``col`` it is PyTorch's ``triu_indices(row, col, offset)``.
    """
    below = tri(n, _columns("triu_indices", n, m), as_variable(k) - 1, dtype="bool")
    rows, columns = nonzero(negation(below))
    return rows, columns


def diag_indices(n: TensorLike, ndim: int = 2) -> tuple[Variable, ...]:
    """``ndim`` times the indices of the main diagonal of an array with sides ``n``."""
    return (arange(n),) * ndim


def argwhere(a: TensorLike) -> Variable:
    """The indices of the elements that are not 0, one row for each."""
    v = as_variable(a)
    if v.type.ndim == 0:
        raise NdimMismatch("argwhere", "a tensor with dimensions", v.type)
    return stack(list(nonzero(v)), axis=1)


@advises(input="x", other="y")
def where(condition: TensorLike, x: Any = None, y: Any = None) -> Any:
    """``x`` where ``condition`` is not zero, else ``y``; the three broadcast. Both are computed.

    Of a condition alone the indices where it is not zero, as :func:`nonzero` gives them.
    """
    if x is None and y is None:
        return nonzero(condition)
    if x is None or y is None:
        raise ArgumentError("where: wanted a condition alone, or both x and y, got one of them")
    return switch(condition, x, y)


def unravel_index(indices: TensorLike, shape: ShapeLike) -> tuple[Variable, ...]:
    """The index along each dimension of ``shape`` of the elements with these flat ``indices``.

    A flat index that is out of range raises ``AssertionFailed`` in a call.
    """
    flat = cast(indices, "int64")
    sizes = [as_variable(d) for d in shape_entries(shape)]
    total: Variable = constant(np.int64(1))
    for size in sizes:
        total = total * size
    words = "unravel_index: an index is out of range"
    rest = assert_(flat, operator("all")((flat >= 0) & (flat < total)), message=words)
    found = []
    for size in reversed(sizes):
        found.append(cast(rest % size, "int64"))
        rest = rest // maximum(size, 1)
    return tuple(reversed(found))


def ravel_multi_index(multi_index: Sequence[Any], dims: Any) -> Variable:
    """The flat index of the elements of an array of shape ``dims`` with an index along each."""
    sizes, parts = shape_entries(dims), [cast(i, "int64") for i in multi_index]
    if len(sizes) != len(parts):
        raise NdimMismatch("ravel_multi_index", f"{len(sizes)} arrays of indices", len(parts))
    flat: Variable | None = None
    for part, size in zip(parts, sizes):
        words = "ravel_multi_index: an index is out of range"
        inside = operator("all")((part >= 0) & (part < size))
        part = assert_(part, inside, message=words)
        flat = part if flat is None else flat * size + part
    assert flat is not None
    return cast(flat, "int64")


def isin(element: TensorLike, test_elements: TensorLike, invert: bool = False) -> Variable:
    """Whether each element is one of ``test_elements``."""
    found = contained(as_variable(element), flatten(as_variable(test_elements), 1))
    return negation(found) if invert else found


def in1d(ar1: TensorLike, ar2: TensorLike, invert: bool = False) -> Variable:
    """:func:`isin` of the flattened first argument."""
    return isin(flatten(as_variable(ar1), 1), ar2, invert)
