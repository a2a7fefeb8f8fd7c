"""PyTorch's distances between vectors: ``cdist``, ``pdist``, ``pairwise_distance``, ..."""

from __future__ import annotations

import numpy as np

from symdnn.errors import NdimMismatch, OptionError
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.array.create import arange
from symdnn.ops.array.reduce import max as largest
from symdnn.ops.array.reduce import sum as total
from symdnn.ops.array.take import flatnonzero
from symdnn.ops.array.view import flatten
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.core.python_numbers import alike
from symdnn.ops.core.shape import dimshuffle, shape_i
from symdnn.ops.elementwise.arithmetic import abs as absolute
from symdnn.ops.elementwise.arithmetic import cast, maximum, pow, sqrt
from symdnn.ops.elementwise.comparison import neq, switch
from symdnn.options import as_number

__all__ = ["cdist", "cosine_similarity", "pairwise_distance", "pdist"]


def cdist(x1: TensorLike, x2: TensorLike, p: float = 2.0) -> Variable:
    """Distances of all rows of ``x1`` (..., n, features) from all of ``x2`` (..., m, features).

    The result is (..., n, m): the ``p``-norms of the differences, ``p=inf`` the largest one. It is
    computed from the differences, so that small distances keep their digits. The gradient of a
    distance of 0 is 0. Raises :class:`~symdnn.errors.NdimMismatch` for vectors.
    (``torch.cdist``, and ``scipy.spatial.distance.cdist`` for the metric "minkowski".)

    >>> import numpy as np
    >>> import symdnn.tensor as T
    >>> T.cdist(np.array([[0.0, 0.0]]), np.array([[3.0, 4.0], [0.0, 1.0]])).eval()
    array([[5., 1.]])
    """
    a, b = alike([as_variable(x1), as_variable(x2)])
    if min(a.type.ndim, b.type.ndim) < 2:
        raise NdimMismatch("cdist", "two tensors of at least 2 dimensions", [a.type, b.type])
    rows = dimshuffle(a, [*range(a.type.ndim - 1), "x", a.type.ndim - 1])
    columns = dimshuffle(b, [*range(b.type.ndim - 2), "x", *range(b.type.ndim - 2, b.type.ndim)])
    return _norm(rows - columns, p)


def pdist(x: TensorLike, p: float = 2.0) -> Variable:
    """The distances of all pairs i < j of rows of a matrix, row by row, as a vector.

    They are those of :func:`cdist`. (``torch.nn.functional.pdist``)
    """
    v = as_variable(x)
    if v.type.ndim != 2:
        raise NdimMismatch("pdist", "a matrix", v.type)
    numbers = arange(shape_i(v, 0))
    pairs = flatnonzero(numbers.dimshuffle("x", 0) > numbers.dimshuffle(0, "x"))
    return flatten(cdist(v, v, as_number("pdist: p", p)), 1)[pairs]


def pairwise_distance(
    x1: TensorLike, x2: TensorLike, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Variable:
    """The ``p``-norms of ``x1 - x2 + eps`` along the last axis (``torch.pairwise_distance``)."""
    a, b = alike([as_variable(x1), as_variable(x2)])
    return _norm(a - b + eps, p, keepdim)


def cosine_similarity(x1: TensorLike, x2: TensorLike, dim: int = 1, eps: float = 1e-8) -> Variable:
    """The cosines of the angles between the vectors along ``dim``; norms are at least ``eps``."""
    a, b = alike([as_variable(x1), as_variable(x2)])
    if is_narrow_float(a.type.dtype):
        wide = cosine_similarity(cast(a, "float32"), cast(b, "float32"), dim, eps)
        return cast(wide, a.type.dtype)
    lengths = [sqrt(maximum(total(v * v, axis=dim, keepdims=True), eps * eps)) for v in (a, b)]
    return total(a / lengths[0] * (b / lengths[1]), axis=dim)


def _norm(d: Variable, p: float, keepdims: bool = False) -> Variable:
    """The ``p``-norm along the last axis, with a gradient of 0 where it is 0.

    Powers of 16-bit floats are computed in float32.
    """
    if is_narrow_float(d.type.dtype):
        return cast(_norm(cast(d, "float32"), p, keepdims), d.type.dtype)
    if p < 0:
        raise OptionError(f"distances: wanted p of at least 0, got {p!r}")
    if p == 0:
        return total((d * 0 + 1) * neq(d, 0), axis=-1, keepdims=keepdims)
    if np.isinf(p):
        return largest(absolute(d), axis=-1, keepdims=keepdims)
    if p == 1:
        return total(absolute(d), axis=-1, keepdims=keepdims)
    size = total(d * d if p == 2 else pow(absolute(d), p), axis=-1, keepdims=keepdims)
    apart = neq(size, 0)  # also where it is NaN
    safe = switch(apart, size, 1)
    return switch(apart, sqrt(safe) if p == 2 else pow(safe, 1 / p), 0)
