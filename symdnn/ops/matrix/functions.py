"""Norms, conditions, and arrangements of matrices: expressions of other ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from symdnn.errors import AxisError, NdimMismatch, OptionError, ShapeMismatch
from symdnn.graph.dims import normal_axis, product
from symdnn.graph.names.torch_words import advises, torch_words
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.array import norms
from symdnn.ops.array.create import diagonal as diagonal_of
from symdnn.ops.array.create import zeros
from symdnn.ops.array.join import join
from symdnn.ops.array.reduce import any as any_
from symdnn.ops.array.reduce import max as max_
from symdnn.ops.array.reduce import min as min_
from symdnn.ops.array.reduce import sum as sum_
from symdnn.ops.array.view import expand_dims, moveaxis
from symdnn.ops.core.python_numbers import alike
from symdnn.ops.core.shape import dims_of
from symdnn.ops.elementwise.arithmetic import abs as abs_
from symdnn.ops.elementwise.comparison import isnan, switch
from symdnn.ops.elemwise import like
from symdnn.ops.linalg.einsum import einsum
from symdnn.ops.matrix.base import column, matrices, matrix_of
from symdnn.ops.matrix.solve import inv, solve
from symdnn.ops.matrix.svd import svdvals
from symdnn.options import as_list

__all__ = [
    "block_diag", "cond", "diagonal", "matrix_norm", "multi_dot", "norm", "tensorinv",
    "tensorsolve", "trace", "vector_norm",
]  # fmt: skip

_MATRIX_ORDERS = (None, "fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf)


@torch_words()
def norm(x: TensorLike, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Variable:
    """A norm of vectors or of matrices, by NumPy's rules. (``numpy.linalg.norm``.)

    Args:
        ord: of a vector a number p, for ``sum(|x|^p)^(1/p)``, ``inf``, ``-inf``, or 0 for the
            count of elements that are not 0; of a matrix ``"fro"``, ``"nuc"`` (the sum of the
            singular values), 2 and -2 (the largest and smallest one), 1, -1, ``inf``, ``-inf``
            (the largest and smallest sum of a column or row). None is the 2-norm of all elements.
        axis: an int for vectors, a pair for matrices. None: ``x`` is a vector or a matrix, or has
            any shape if ``ord`` is None.

    ``keepdims`` keeps the axes, with size 1. The gradient of the 2-norm at 0 is 0.
    """
    (v,) = matrices("norm", x, ndim=0, factored=False)
    if axis is None and ord is None:
        return norms.norm(v, 2, None, keepdims)
    if axis is None and v.type.ndim not in (1, 2):
        raise NdimMismatch("norm", "a vector or a matrix, or an axis", v.type)
    axes = tuple(range(v.type.ndim)) if axis is None else axis
    axes = tuple(axes) if isinstance(axes, list | tuple) else (axes,)
    axes = tuple(normal_axis("norm", a, v.type.ndim) for a in axes)
    if len(axes) == 1:
        return vector_norm(v, axis=axes[0], keepdims=keepdims, ord=2 if ord is None else ord)
    if len(axes) != 2 or axes[0] == axes[1]:
        raise AxisError("norm", "an axis, or two different ones", str(axis))
    found = matrix_norm(moveaxis(v, axes, (-2, -1)), ord="fro" if ord is None else ord)
    return expand_dims(found, axes) if keepdims else found


@torch_words()
def vector_norm(x: TensorLike, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Variable:
    """The norm of order ``ord`` over ``axis`` (None: of all elements); see :func:`norm`.

    (``numpy.linalg.vector_norm``.)
    """
    (v,) = matrices("vector_norm", x, ndim=0, factored=False)
    if isinstance(ord, str):
        raise OptionError(f"norm: the order of a vector's norm is a number, got {ord!r}")
    return norms.norm(v, ord, axis, keepdims)


@advises(
    keepdim="keepdims", dim="norm(x, ord, axis) takes axes", axis="norm(x, ord, axis) takes axes"
)
def matrix_norm(x: TensorLike, keepdims: bool = False, ord: Any = "fro") -> Variable:
    """The norm of order ``ord`` of matrices (..., m, n); see :func:`norm`.

    (``numpy.linalg.matrix_norm``.)
    """
    if ord not in _MATRIX_ORDERS:
        orders = ", ".join(map(str, _MATRIX_ORDERS))
        raise OptionError(f"norm: the order of a matrix's norm is one of {orders}, got {ord!r}")
    (v,) = matrices("matrix_norm", x, factored=ord in ("nuc", 2, -2))
    if ord in (None, "fro"):
        found = norms.norm(v, 2, (-2, -1))
    elif ord == "nuc":
        found = sum_(svdvals(v), axis=-1)
    elif ord in (2, -2):
        found = (max_ if ord > 0 else min_)(svdvals(v), axis=-1)
    else:
        sums = sum_(abs_(v), axis=-2 if abs(ord) == 1 else -1)
        found = (max_ if ord > 0 else min_)(sums, axis=-1)
    return column(column(found)) if keepdims else found


def cond(x: TensorLike, p: Any = None) -> Variable:
    """The condition of matrices (..., m, n): the ratio of the largest to the smallest singular
    value, or with an order ``p`` of :func:`norm` the product of the norms of ``x`` and its inverse.

    Infinite for a singular matrix. (``numpy.linalg.cond``.)
    """
    v = matrix_of("cond", x)
    if p in (None, 2, -2):
        s = svdvals(v)
        found = s[..., 0] / s[..., -1] if p != -2 else s[..., -1] / s[..., 0]
    else:
        found = matrix_norm(v, ord=p) * matrix_norm(inv(v, check=False), ord=p)
    unknown = isnan(found) & ~any_(isnan(abs_(v)), axis=(-2, -1))
    return switch(unknown, like(np.inf, found), found)


def trace(x: TensorLike, offset: int = 0) -> Variable:
    """The sum of the diagonal ``offset`` of matrices (..., m, n). (``numpy.linalg.trace``.)"""
    return sum_(diagonal(x, offset), axis=-1)


def diagonal(x: TensorLike, offset: int = 0) -> Variable:
    """The diagonal ``offset`` of matrices (..., m, n), a view. (``numpy.linalg.diagonal``, which
    takes the last two axes, where ``numpy.diagonal`` takes the first two.)"""
    return diagonal_of(x, offset, -2, -1)


def multi_dot(arrays: Sequence[TensorLike]) -> Variable:
    """The product of at least two matrices, in the order of fewest operations where sizes are
    known. The first and the last may be vectors. (``numpy.linalg.multi_dot``.)"""
    vs = alike([as_variable(a) for a in as_list("multi_dot: arrays", arrays, "matrices")])
    if len(vs) < 2:
        raise OptionError(f"multi_dot: wanted at least two factors, got {len(vs)}")
    for i, v in enumerate(vs):
        if v.type.ndim != 2 and (v.type.ndim != 1 or i not in (0, len(vs) - 1)):
            raise NdimMismatch("multi_dot", "matrices, and vectors only at the ends", v.type)
    names = [chr(97 + i) + chr(98 + i) for i in range(len(vs))]
    names[0] = names[0][-vs[0].type.ndim :]
    names[-1] = names[-1][: vs[-1].type.ndim]
    ends = (names[0][0] if vs[0].type.ndim == 2 else "") + names[-1][1:]
    return einsum(f"{','.join(names)}->{ends}", *vs)


def block_diag(*arrays: TensorLike) -> Variable:
    """A matrix with these matrices as blocks on its diagonal, and zeros elsewhere.

    Vectors are rows, numbers are (1, 1). (``scipy.linalg.block_diag``.)

    >>> from symdnn.graph.evaluate import evaluate
    >>> evaluate([block_diag(np.ones((1, 2)), 3.0)], {})[0].tolist()
    [[1.0, 1.0, 0.0], [0.0, 0.0, 3.0]]
    """
    if not arrays:
        raise OptionError("block_diag: wanted at least one matrix, got none")
    vs = alike([as_variable(a) for a in arrays])
    blocks = [v.dimshuffle(["x"] * (2 - v.type.ndim) + [*range(v.type.ndim)]) for v in vs]
    if any(b.type.ndim != 2 for b in blocks):
        raise NdimMismatch("block_diag", "matrices, vectors and numbers", [v.type for v in vs])
    widths = [dims_of(b)[1] for b in blocks]
    rows = []
    for i, b in enumerate(blocks):
        n, dtype = dims_of(b)[0], b.type.dtype
        before, after = sum(widths[:i]), sum(widths[i + 1 :])
        rows.append(join(1, zeros((n, before), dtype), b, zeros((n, after), dtype)))
    return join(0, *rows)


def tensorinv(a: TensorLike, ind: int = 2) -> Variable:
    """The inverse of ``a`` as a linear map from its last dimensions to its first ``ind`` ones.

    ``tensordot(tensorinv(a, ind), a, ind)`` is the identity. (``numpy.linalg.tensorinv``; Theano's
    ``TensorInv``.)
    """
    (v,) = matrices("tensorinv", a, ndim=0)
    if not isinstance(ind, int | np.integer) or not 0 < ind < max(v.type.ndim, 1):
        raise OptionError(f"tensorinv: wanted ind in 1..{v.type.ndim - 1}, got {ind!r}")
    dims = dims_of(v)
    flat = v.reshape([product(dims[:ind]), product(dims[ind:])])
    return inv(flat).reshape([*dims[ind:], *dims[:ind]])


def tensorsolve(a: TensorLike, b: TensorLike, axes: Sequence[int] | None = None) -> Variable:
    """The ``x`` with ``tensordot(a, x, x.ndim) == b``.

    ``axes`` of ``a`` are moved behind its others first. (``numpy.linalg.tensorsolve``.)
    """
    m, v = matrices("tensorsolve", a, b, ndim=0)
    if axes is not None:
        m = moveaxis(m, tuple(axes), tuple(range(m.type.ndim - len(axes), m.type.ndim)))
    dims = dims_of(m)[v.type.ndim :]
    size = product(dims_of(v))
    rest = product(dims)
    if isinstance(size, int) and isinstance(rest, int) and size != rest:
        raise ShapeMismatch("tensorsolve", "a that is square as a map", [m.type, v.type])
    return solve(m.reshape([size, rest]), v.reshape([size])).reshape(list(dims))
