"""Further functions of PyTorch, with its arguments: bins, pairs, diagonals, masks, integrals."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from symdnn.errors import NdimMismatch, OptionError, TypeMismatch
from symdnn.graph.dims import normal_axis
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.array.create import alloc_diag, arange, meshgrid
from symdnn.ops.array.cumulative import cumsum
from symdnn.ops.array.getitem import set_subtensor
from symdnn.ops.array.join import concatenate, split, stack
from symdnn.ops.array.sort import searchsorted, sort
from symdnn.ops.array.take import take_along_axis
from symdnn.ops.array.view import broadcast_to, flatten, moveaxis, swapaxes
from symdnn.ops.core.python_numbers import alike
from symdnn.ops.core.shape import dims_of, reshape
from symdnn.ops.elementwise import complexes
from symdnn.ops.elementwise.arithmetic import cast
from symdnn.ops.elementwise.comparison import eq, neq, switch
from symdnn.ops.elementwise.special import gammaln
from symdnn.ops.matrix.determinant import slogdet
from symdnn.ops.matrix.solve import solve_triangular
from symdnn.ops.numpy_names.numpy_arrays import tril_indices, triu_indices
from symdnn.ops.numpy_names.numpy_math import trapezoid, trapezoids
from symdnn.ops.numpy_names.numpy_more import broadcast_arrays
from symdnn.ops.numpy_names.numpy_reductions import histogram
from symdnn.options import as_list

__all__ = [
    "adjoint", "broadcast_tensors", "bucketize", "cartesian_prod", "combinations",
    "cumulative_trapezoid", "diag_embed", "diagonal_scatter", "histc", "lgamma", "logdet",
    "masked_scatter", "msort", "mvlgamma", "polar", "select_scatter", "slice_scatter",
    "split_with_sizes", "take_along_dim", "trapz", "unique_consecutive", "view_as_complex",
    "view_as_real",
]  # fmt: skip

lgamma = gammaln
trapz = trapezoid
polar = complexes.complex_from_polar


# -- indices and bins ------------------------------------------------------------------------------


def take_along_dim(x: TensorLike, indices: TensorLike, dim: int | None = None) -> Variable:
    """``x`` at ``indices`` along ``dim``, matched in the other axes; of all elements for None."""
    v, i = as_variable(x), as_variable(indices)
    return take_along_axis(v, i if dim is not None else flatten(i, 1), dim)


def bucketize(
    x: TensorLike, boundaries: TensorLike, *, out_int32: bool = False, right: bool = False
) -> Variable:
    """How many of the ascending ``boundaries`` are below each element (``right``: or equal to it).

    So ``boundaries[i - 1] < x <= boundaries[i]``. int64, or int32 with ``out_int32``.

    >>> import symdnn.tensor as T
    >>> T.bucketize([3, 6, 9], [1, 3, 5, 7, 9]).eval()
    array([1, 3, 4])
    """
    edges = as_variable(boundaries)
    if edges.type.ndim != 1:
        raise NdimMismatch("bucketize", "boundaries of 1 dimension", edges.type)
    at = searchsorted(edges, x, side="right" if right else "left")
    return cast(at, "int32" if out_int32 else "int64")


def histc(x: TensorLike, bins: int = 100, min: float = 0, max: float = 0) -> Variable:
    """The number of elements in each of ``bins`` equal parts of ``min`` .. ``max``, in the dtype
    of ``x``.

    Elements outside are left out. If both are 0 (or equal) the range is that of the data.
    """
    v = as_variable(x)
    limits = None if min == max == 0 else (min, max)
    return cast(histogram(v, bins, limits)[0], v.type.dtype)


def unique_consecutive(
    x: TensorLike, return_inverse: bool = False, return_counts: bool = False
) -> Any:
    """The elements without those that repeat the one before; a tuple if more is wanted.

    ``return_inverse``: the place in the result of each element. ``return_counts``: the lengths.
    """
    v = as_variable(x)
    flat = flatten(v, 1)
    new = concatenate([eq(arange(flat.shape[0])[:1], 0), neq(flat[1:], flat[:-1])])
    starts = new.nonzero()[0]
    found = [flat[starts]]
    if return_inverse:
        found.append(reshape(cumsum(cast(new, "int64")) - 1, dims_of(v)))
    if return_counts:
        ends = concatenate([starts[1:], flat.shape[0].dimshuffle("x")])
        found.append(ends[: starts.shape[0]] - starts)
    return found[0] if len(found) == 1 else tuple(found)


def msort(x: TensorLike) -> Variable:
    """``x`` sorted along its first axis."""
    return sort(as_variable(x), 0)


# -- pairs -----------------------------------------------------------------------------------------


def cartesian_prod(*tensors: TensorLike) -> Variable:
    """All choices of one element of each vector, a row each; the last one changes first.

    >>> import symdnn.tensor as T
    >>> T.cartesian_prod([1, 2], [3, 4]).eval().tolist()
    [[1, 3], [1, 4], [2, 3], [2, 4]]
    """
    vs = alike([as_variable(v) for v in tensors])
    if not vs or any(v.type.ndim != 1 for v in vs):
        raise NdimMismatch("cartesian_prod", "vectors", [v.type for v in vs])
    if len(vs) == 1:
        return vs[0]
    return stack([flatten(g, 1) for g in meshgrid(*vs, indexing="ij")], axis=1)


def combinations(x: TensorLike, r: int = 2, with_replacement: bool = False) -> Variable:
    """All choices of ``r`` elements of a vector, a row each, in the order of ``itertools``.

    The length of the vector must be known when the program is written.
    """
    v = as_variable(x)
    size = v.type.shape[0] if v.type.ndim == 1 else None
    if not isinstance(size, int):
        raise TypeMismatch("combinations", "a vector of known size", v.type)
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    return v[np.array(list(choose(range(size), r)), "int64").reshape(-1, r)]


def broadcast_tensors(*tensors: TensorLike) -> tuple[Variable, ...]:
    """All tensors in the shape to which they broadcast."""
    return tuple(broadcast_arrays(*tensors))


def split_with_sizes(x: TensorLike, split_sizes: Sequence[int], dim: int = 0) -> list[Variable]:
    """Parts of these sizes along ``dim``."""
    sizes = as_list("split_with_sizes: split_sizes", split_sizes, "sizes")
    return split(x, sizes, len(sizes), dim)


# -- parts that are replaced -----------------------------------------------------------------------


def masked_scatter(x: TensorLike, mask: TensorLike, source: TensorLike) -> Variable:
    """``x`` where ``mask`` is false; elsewhere the elements of ``source``, in their order.

    ``mask`` broadcasts to the shape of ``x``; ``source`` has at least as many elements as are true.
    """
    v, m, s = as_variable(x), as_variable(mask), as_variable(source)
    if m.type.dtype != "bool":
        raise TypeMismatch("masked_scatter", "a mask of bools", m.type)
    wide = broadcast_to(m, dims_of(v))
    flat = flatten(wide, 1)
    place = switch(flat, cumsum(cast(flat, "int64")) - 1, 0)
    return switch(wide, reshape(flatten(s, 1)[place], dims_of(v)), v)


def select_scatter(x: TensorLike, src: TensorLike, dim: int, index: TensorLike) -> Variable:
    """``x`` with ``src`` at one ``index`` along ``dim``."""
    return _replaced("select_scatter", x, src, dim, index)


def slice_scatter(
    x: TensorLike, src: TensorLike, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Variable:
    """``x`` with ``src`` in the slice ``start:end:step`` along ``dim``."""
    return _replaced("slice_scatter", x, src, dim, slice(start, end, step))


def _replaced(name: str, x: TensorLike, src: TensorLike, dim: int, index: Any) -> Variable:
    v = as_variable(x)
    lead = (slice(None),) * normal_axis(name, dim, v.type.ndim)
    return set_subtensor(v[(*lead, index)], src)


# -- diagonals -------------------------------------------------------------------------------------


def diag_embed(x: TensorLike, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Variable:
    """Matrices, in the axes ``dim1`` and ``dim2`` of the result, with the vectors along the last
    axis of ``x`` on the diagonal ``offset``, and zeros elsewhere."""
    v = as_variable(x)
    ndim = v.type.ndim + 1
    rows, columns = (normal_axis("diag_embed", d, ndim) for d in (dim1, dim2))
    if rows == columns:
        raise OptionError(f"diag_embed: wanted two axes, got dim1={dim1} and dim2={dim2}")
    return moveaxis(alloc_diag(v, offset), (-2, -1), (rows, columns))


def diagonal_scatter(
    x: TensorLike, src: TensorLike, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Variable:
    """``x`` with ``src`` (its last axis) on the diagonal ``offset`` of ``dim1`` and ``dim2``."""
    v = moveaxis(as_variable(x), (dim1, dim2), (-2, -1))
    count = as_variable(src).shape[-1]
    at = arange(count)
    places = (..., at + max(-offset, 0), at + max(offset, 0))
    return moveaxis(set_subtensor(v[places], src), (-2, -1), (dim1, dim2))


# -- numbers ---------------------------------------------------------------------------------------


def mvlgamma(x: TensorLike, p: int) -> Variable:
    """The logarithm of the multivariate gamma function of dimension ``p``.

    (``torch.mvlgamma``, ``scipy.special.multigammaln``)
    """
    if not isinstance(p, int) or p < 1:
        raise OptionError(f"mvlgamma: wanted an int p of at least 1, got {p!r}")
    v = as_variable(x)
    terms = [gammaln(v - j / 2) for j in range(p)]
    return sum(terms[1:], terms[0]) + p * (p - 1) / 4 * math.log(math.pi)


def logdet(x: TensorLike) -> Variable:
    """The logarithm of the determinant: -inf of a singular matrix, NaN of a negative one."""
    sign, size = slogdet(x)
    return switch(sign < 0, np.nan, size)


def adjoint(x: TensorLike) -> Variable:
    """The conjugate transpose of the last two axes."""
    v = as_variable(x)
    if v.type.ndim < 2:
        raise NdimMismatch("adjoint", "a tensor of at least 2 dimensions", v.type)
    return complexes.conj(moveaxis(v, -1, -2))


def view_as_real(x: TensorLike) -> Variable:
    """Real and imaginary parts along a new last axis of size 2."""
    v = as_variable(x)
    if not v.type.is_complex:
        raise TypeMismatch("view_as_real", "a complex tensor", v.type)
    return stack([complexes.real(v), complexes.imag(v)], axis=-1)


def view_as_complex(x: TensorLike) -> Variable:
    """Complex numbers of the real and imaginary parts along a last axis of size 2."""
    v = as_variable(x)
    if v.type.is_complex or v.type.ndim == 0:
        raise TypeMismatch("view_as_complex", "a real tensor with a last axis of size 2", v.type)
    return complexes.complex(v[..., 0], v[..., 1])


def cumulative_trapezoid(
    y: TensorLike, x: TensorLike | None = None, dx: TensorLike = 1.0, dim: int = -1
) -> Variable:
    """Integrals up to each point but the first, by trapezoids (``trapezoid`` is the whole)."""
    areas = trapezoids("cumulative_trapezoid", y, x, dx, dim)
    return moveaxis(cumsum(areas, -1), -1, dim)


# -- where NumPy and SciPy have the name with other arguments --------------------------------------


def torch_solve_triangular(
    A: TensorLike, B: TensorLike, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Variable:
    """The solution of ``A X = B``, or of ``X A = B`` where ``left`` is False."""
    if left:
        return solve_triangular(A, B, 0, not upper, unitriangular)
    turned = swapaxes(as_variable(B), -1, -2)
    return swapaxes(solve_triangular(A, turned, 1, not upper, unitriangular), -1, -2)


def _triangle(
    of: Callable[..., tuple[Variable, Variable]], row: TensorLike, col: TensorLike,
    offset: TensorLike = 0, dtype: str = "int64",
) -> Variable:  # fmt: skip
    """The indices of a triangle: its rows and its columns as one matrix of two rows."""
    return cast(stack(of(row, offset, col)), dtype)


#: What functions are where PyTorch's words are given.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "solve_triangular": torch_solve_triangular,
    "tril_indices": partial(_triangle, tril_indices),
    "triu_indices": partial(_triangle, triu_indices),
}
