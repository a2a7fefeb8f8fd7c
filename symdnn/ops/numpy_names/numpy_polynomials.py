"""Polynomials, differences and statistics of pairs under NumPy's names, composed of ops."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np

from symdnn.errors import InputError, NdimMismatch, OptionError, ShapeMismatch
from symdnn.graph.dims import normal_axis
from symdnn.graph.names.torch_words import advises
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.array.create import arange, diagonal
from symdnn.ops.array.join import concatenate, stack
from symdnn.ops.array.moments import mean
from symdnn.ops.array.reduce import normal_axes
from symdnn.ops.array.view import atleast_nd, moveaxis
from symdnn.ops.control.loops import scan
from symdnn.ops.core.dtype import float_of, is_narrow_float, upcast
from symdnn.ops.core.python_numbers import settled
from symdnn.ops.core.shape import alloc, as_dim, dims_of, ones_like, zeros_like
from symdnn.ops.elementwise.arithmetic import cast, clip, maximum, sqrt
from symdnn.ops.elemwise import like
from symdnn.ops.linalg.dot import dot
from symdnn.ops.matrix.eigen import eigvals
from symdnn.ops.matrix.svd import lstsq
from symdnn.ops.numpy_names.numpy_math import convolve
from symdnn.ops.numpy_names.numpy_reductions import average

__all__ = [
    "corrcoef", "cov", "gradient", "poly", "polyadd", "polyder", "polyfit", "polyint", "polymul",
    "polysub", "polyval", "roots", "vander",
]  # fmt: skip


def _vector(name: str, x: TensorLike) -> Variable:
    v = as_variable(x)
    v = v if v.type.ndim else v.dimshuffle("x")
    if v.type.ndim != 1:
        raise NdimMismatch(name, "a vector of coefficients", v.type)
    return v


def _vectors(name: str, *given: TensorLike) -> list[Variable]:
    """Vectors, of which Python numbers have the others' dtype."""
    return [_vector(name, v) for v in settled([as_variable(v) for v in given])]


def _degree(name: str, p: Variable) -> int:
    size = p.type.shape[0]
    if size is None:
        raise NdimMismatch(name, "a vector of known length", p.type, "See T.specify_shape")
    return size - 1


def polyval(p: TensorLike, x: TensorLike) -> Variable:
    """The polynomial with coefficients ``p``, the highest power first, at ``x`` (Horner)."""
    coefficients, at = settled([as_variable(p), as_variable(x)])
    c = _vector("polyval", coefficients)
    total: Variable = zeros_like(at, upcast(at.type.dtype, c.type.dtype))
    if c.type.shape[0] is None:
        return scan(lambda value, a: (value * at + a, None), total, c)[0]  # type: ignore[no-any-return]
    for k in range(c.type.shape[0]):
        total = total * at + c[k]
    return total


def _powers(c: Variable) -> Variable:
    """The powers of coefficients, each plus one: n, n - 1, ..., 1."""
    return cast(arange(dims_of(c)[0], 0, -1), c.type.dtype)


def polyder(p: TensorLike, m: int = 1) -> Variable:
    """The coefficients of the ``m``-th derivative."""
    c = _vector("polyder", p)
    for _ in range(m):
        c = c[:-1] * _powers(c[:-1])
    return c


def polyint(p: TensorLike, m: int = 1, k: Any = None) -> Variable:
    """The coefficients of the ``m``-th antiderivative, with the constants ``k`` (0)."""
    c = _vector("polyint", p)
    c = cast(c, float_of(c.type.dtype))
    constants = list(np.ravel(k)) * (m if np.size(k) == 1 else 1) if k is not None else [0.0] * m
    for constant in constants[:m]:
        last = like(constant, c).dimshuffle("x")
        c = concatenate([c / _powers(c), last])
    return c


def _aligned(name: str, *given: TensorLike) -> list[Variable]:
    """Two vectors, the shorter with zeros before it."""
    both = _vectors(name, *given)
    (n,), (m,) = map(dims_of, both)
    missing = [maximum(as_dim(m) - n, 0), maximum(as_dim(n) - m, 0)]
    return [concatenate([alloc(like(0, v), d), v]) for v, d in zip(both, missing)]


def polyadd(a1: TensorLike, a2: TensorLike) -> Variable:
    """The sum of two polynomials."""
    a, b = _aligned("polyadd", a1, a2)
    return a + b


def polysub(a1: TensorLike, a2: TensorLike) -> Variable:
    """The difference of two polynomials."""
    a, b = _aligned("polysub", a1, a2)
    return a - b


def polymul(a1: TensorLike, a2: TensorLike) -> Variable:
    """The product of two polynomials."""
    a, b = _vectors("polymul", a1, a2)
    return convolve(a, b)


def poly(seq_of_zeros: TensorLike) -> Variable:
    """The coefficients of the polynomial with these zeros (a vector)."""
    z = _vector("poly", seq_of_zeros)
    z = cast(z, float_of(z.type.dtype))
    c = like(1, z).dimshuffle("x")
    for k in range(_degree("poly", z) + 1):
        c = convolve(c, stack([like(1, z), -z[k]]))
    return c


def roots(p: TensorLike) -> Variable:
    """The zeros of a polynomial, complex; the first coefficient is not 0."""
    c = _vector("roots", p)
    n = _degree("roots", c)
    c = cast(c, float_of(c.type.dtype))
    if n < 1:
        return cast(c[:0], "complex128" if c.type.dtype == "float64" else "complex64")
    row = (-c[1:] / c[0]).dimshuffle("x", 0)
    below = as_variable(np.eye(n - 1, n, dtype=c.type.dtype))
    return eigvals(concatenate([row, below], axis=0))


def vander(x: TensorLike, N: int | None = None, increasing: bool = False) -> Variable:
    """The powers of the vector ``x`` as columns, the highest first unless ``increasing``."""
    v = as_variable(x)
    if v.type.ndim != 1:
        raise NdimMismatch("vander", "a vector", v.type)
    count = _degree("vander", v) + 1 if N is None else index(N)
    one = ones_like(v)
    columns = [one]
    for _ in range(count - 1):
        columns.append(columns[-1] * v)
    columns = columns[:count]
    if not columns:
        return v.dimshuffle(0, "x")[:, :0]
    return stack(columns if increasing else columns[::-1], axis=1)


def polyfit(x: TensorLike, y: TensorLike, deg: int, w: TensorLike | None = None) -> Variable:
    """The coefficients of the polynomial of degree ``deg`` that fits best, by least squares.

    ``y`` is a vector, or a matrix of columns; ``w`` weighs the residuals.
    """
    v, t = as_variable(x), as_variable(y)
    dtype = float_of(v.type.dtype, t.type.dtype)
    left, right = vander(cast(v, dtype), deg + 1), cast(t, dtype)
    if w is not None:
        weights = cast(w, dtype)
        left = left * weights.dimshuffle(0, "x")
        right = right * (weights if right.type.ndim == 1 else weights.dimshuffle(0, "x"))
    scale = sqrt((left * left).sum(axis=0))
    found = lstsq(left / scale, right)[0]
    return found / (scale if found.type.ndim == 1 else scale.dimshuffle(0, "x"))


# -- differences -----------------------------------------------------------------------------------


@advises(dim="axis", spacing="steps are given by position: gradient(f, dx)")
def gradient(
    f: TensorLike, *varargs: TensorLike, axis: int | Sequence[int] | None = None,
    edge_order: int = 1,
) -> Any:  # fmt: skip
    """The slope of ``f`` along each axis (or ``axis``) by central differences, as NumPy's.

    ``varargs`` are steps, one for all or one for each axis, or vectors of places. At both ends the
    difference is one-sided, of order ``edge_order`` (1 or 2). One axis gives one variable, several
    a list.
    """
    if edge_order not in (1, 2):
        raise OptionError(f"gradient: edge_order={edge_order!r}; wanted 1 or 2")
    v = as_variable(f)
    v = cast(v, float_of(v.type.dtype))
    normal_axes(axis, v.type.ndim, "gradient")
    several = range(v.type.ndim) if axis is None else np.atleast_1d(axis)
    axes = [normal_axis("gradient", int(a), v.type.ndim) for a in several]
    steps = list(varargs) or [1.0]
    if len(steps) == 1:
        steps = steps * len(axes)
    if len(steps) != len(axes):
        raise InputError(f"gradient: wanted one step, or one for each of {len(axes)} axes")
    found = [_slope(v, d, s, edge_order) for d, s in zip(axes, steps, strict=True)]
    return found[0] if len(found) == 1 else found


def _slope(v: Variable, axis: int, step: TensorLike, edge_order: int) -> Variable:
    size = v.type.shape[axis]
    if size is not None and size < edge_order + 1:
        raise ShapeMismatch("gradient", f"at least {edge_order + 1} elements along it", v.type)
    y = moveaxis(v, axis, 0)
    h = cast(step, v.type.dtype)
    if h.type.ndim > 1:
        raise NdimMismatch("gradient", "a step or a vector of places", h.type)
    wide = ["x"] * (v.type.ndim - 1)
    d = (h[1:] - h[:-1]).dimshuffle(0, *wide) if h.type.ndim else None
    if d is None:
        inner = (y[2:] - y[:-2]) / (2 * h)
        a = b = c = e = h
    else:
        a, b = d[:-1], d[1:]
        slopes = (y[1:] - y[:-1]) / d
        inner = (a * slopes[1:] + b * slopes[:-1]) / (a + b)
        a, b, c, e = (
            d[0],
            d[1] if edge_order == 2 else d[0],
            d[-1],
            d[-2 if edge_order == 2 else -1],
        )
    first, last = (y[1] - y[0]) / a, (y[-1] - y[-2]) / c
    if edge_order == 2:
        first = first - a * ((y[2] - y[1]) / b - first) / (a + b)
        last = last + c * (last - (y[-2] - y[-3]) / e) / (c + e)
    ends = [e.dimshuffle("x", *range(e.type.ndim)) for e in (first, last)]
    parts = [moveaxis(part, 0, axis) for part in (ends[0], inner, ends[1])]
    return concatenate(parts, axis=axis)


# -- statistics of pairs ---------------------------------------------------------------------------


def cov(
    m: TensorLike, y: TensorLike | None = None, rowvar: bool = True, bias: bool = False,
    ddof: int | None = None, fweights: TensorLike | None = None, aweights: TensorLike | None = None,
) -> Variable:  # fmt: skip
    """The covariances of the rows (``rowvar``) or columns of ``m``, as NumPy's.

    Of what is known to have one row they are a scalar.
    """
    rows = _observations(m, rowvar)
    if y is not None:
        rows = concatenate([rows, _observations(y, rowvar)], axis=0)
    correction = (0 if bias else 1) if ddof is None else ddof
    weights: Variable | None = None
    for w in (fweights, aweights):
        if w is not None:
            part = cast(w, rows.type.dtype)
            weights = part if weights is None else weights * part
    if weights is None:
        x = rows - mean(rows, axis=1, keepdims=True)
        count: Any = cast(dims_of(rows)[1], rows.type.dtype) - like(correction, rows)
        made = dot(x, x.T) / count
    else:
        total = weights.sum()
        x = rows - average(rows, 1, weights).dimshuffle(0, "x")
        count = total
        if correction and aweights is not None:
            count = total - correction * (weights * cast(aweights, x.type.dtype)).sum() / total
        elif correction:
            count = total - correction
        made = dot(x * weights, x.T) / count
    found: Variable = made[0, 0] if rows.type.shape[0] == 1 else made
    return found


def _observations(m: TensorLike, rowvar: bool) -> Variable:
    v = as_variable(m)
    v = cast(v, float_of(v.type.dtype))
    if v.type.ndim > 2:
        raise NdimMismatch("cov", "a matrix or a vector", v.type)
    if v.type.ndim < 2:
        return atleast_nd(v, 2)
    return v if rowvar else v.T


def corrcoef(x: TensorLike, y: TensorLike | None = None, rowvar: bool = True) -> Variable:
    """The correlations of the rows (``rowvar``) or columns, limited to -1 .. 1, as NumPy's.

    Those of 16-bit floats are computed in float32.
    """
    x, y = as_variable(x), None if y is None else as_variable(y)
    dtype = upcast(x.type.dtype, x.type.dtype if y is None else y.type.dtype)
    if is_narrow_float(dtype):
        return cast(corrcoef(cast(x, "float32"), y, rowvar), dtype)
    c = cov(x, y, rowvar)
    if c.type.ndim == 0:
        return c / c
    scale = sqrt(diagonal(c))
    return clip(c / scale.dimshuffle(0, "x") / scale, like(-1, c), like(1, c))
