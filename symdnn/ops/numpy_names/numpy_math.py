"""Functions of NumPy and PyTorch on elements and vectors, composed of ops."""

from __future__ import annotations

from typing import Any

import numpy as np

from symdnn.errors import NdimMismatch, OptionError, ShapeMismatch
from symdnn.graph.dims import normal_axis
from symdnn.graph.names.torch_words import torch_words
from symdnn.graph.operators import operator
from symdnn.graph.type import float_limits
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Variable, as_variable, constant
from symdnn.ops.array.create import arange
from symdnn.ops.array.join import flip, join, stack
from symdnn.ops.array.reduce import sum as sum_of
from symdnn.ops.array.sort import searchsorted
from symdnn.ops.array.take import take
from symdnn.ops.array.view import flatten, moveaxis
from symdnn.ops.core.dtype import float_of, upcast
from symdnn.ops.core.gradient_control import disconnected_grad
from symdnn.ops.core.python_numbers import settled
from symdnn.ops.core.shape import alloc, shape_i
from symdnn.ops.elementwise.arithmetic import abs as absolute
from symdnn.ops.elementwise.arithmetic import cast, clip, inv, maximum, minimum, sqr, sqrt
from symdnn.ops.elementwise.comparison import and_, eq, invert, isinf, isnan, neq, or_, switch, xor
from symdnn.ops.elementwise.math import exp2, log1p, sin
from symdnn.ops.elemwise import like
from symdnn.ops.linalg.dot import dot, tensordot
from symdnn.ops.nn import softmax as along
from symdnn.ops.nn.conv_builders import conv1d

__all__ = [
    "convolve", "copysign", "correlate", "cross", "fabs", "float_power", "fmax", "fmin", "fmod",
    "heaviside", "hypot", "inner", "interp", "isneginf", "isposinf", "lerp", "log_softmax",
    "logaddexp2", "logical_and", "logical_not", "logical_or", "logical_xor", "nan_to_num",
    "positive", "rsqrt", "signbit", "sinc", "softmax", "trapezoid", "vdot",
]  # fmt: skip


def _floating(x: TensorLike) -> Variable:
    v = as_variable(x)
    return cast(v, "floatX") if v.type.is_discrete else v


def _two_floating(x: TensorLike, y: TensorLike) -> tuple[Variable, Variable]:
    """Both in their common dtype: an int64 with a float64 keeps its digits."""
    a, b = settled([as_variable(x), as_variable(y)])
    dtype = float_of(a.type.dtype, b.type.dtype)
    return cast(a, dtype), cast(b, dtype)


# -- elements --------------------------------------------------------------------------------------


@torch_words()
def softmax(x: TensorLike, axis: int = -1) -> Variable:
    """The softmax along ``axis``, in the shape of ``x`` (``T.nnet.softmax`` of a vector is a row).

    >>> softmax([0.0, 0.0]).eval().tolist()
    [0.5, 0.5]
    """
    v = _floating(x)
    return along.softmax(v, normal_axis("softmax", axis, v.type.ndim))


@torch_words()
def log_softmax(x: TensorLike, axis: int = -1) -> Variable:
    """The logarithm of :func:`softmax`, exact also where that underflows."""
    v = _floating(x)
    return along.logsoftmax(v, normal_axis("log_softmax", axis, v.type.ndim))


def rsqrt(x: TensorLike) -> Variable:
    """``1 / sqrt(x)``."""
    return inv(sqrt(x))


def lerp(start: TensorLike, end: TensorLike, weight: TensorLike) -> Variable:
    """``start + weight * (end - start)``, in the result's dtype throughout."""
    a, b, w = map(as_variable, (start, end, weight))
    dtype = (a + w * b).type.dtype
    a, b = cast(a, dtype), cast(b, dtype)
    return a + w * (b - a)


def hypot(x: TensorLike, y: TensorLike) -> Variable:
    """``sqrt(x^2 + y^2)``, without overflow of the squares; inf beside NaN is inf, as in C.

    The gradient at (0, 0) is 0.
    """
    a, b = _two_floating(x, y)
    infinite, big = isinf(a) | isinf(b), maximum(absolute(a), absolute(b))
    plain = infinite | eq(big, 0)
    # The result does not depend on the scale: no gradient goes through the larger of the two.
    scale = disconnected_grad(switch(plain, like(1, big), big))
    parts = [sqr(switch(plain, like(1, big), v / scale)) for v in (a, b)]
    edge = switch(infinite, like(np.inf, big), like(0, big))
    return switch(plain, edge, scale * sqrt(parts[0] + parts[1]))


#: ``sin(z) / z`` below ``_SINC_NEAR`` is ``1 - z^2 / 6 (1 - z^2 / 20 (...))``: its slopes of all
#: orders keep their digits, where those of the quotient cancel.
_SINC_NEAR, _SINC_DIVISORS = 0.5, tuple(2.0 * k * (2 * k + 1) for k in range(8, 0, -1))


def sinc(x: TensorLike) -> Variable:
    """``sin(pi x) / (pi x)``, 1 at 0."""
    v = _floating(x)
    at = v * like(np.pi, v)
    near = absolute(at) < _SINC_NEAR
    square = sqr(switch(near, at, like(0, at)))
    series: Variable = like(1, at)
    for divisor in _SINC_DIVISORS:
        series = 1 - square / divisor * series
    return switch(near, series, sin(at) / switch(near, like(1, at), at))


def positive(x: TensorLike) -> Variable:
    """``x`` itself."""
    return as_variable(x)


def logaddexp2(x: TensorLike, y: TensorLike) -> Variable:
    """``log2(2**x + 2**y)`` without overflow."""
    a, b = _two_floating(x, y)
    equal = eq(a, b)  # infinities among them, whose difference is nothing
    apart = absolute(switch(equal, like(1, a), a - b))
    more = log1p(exp2(-apart)) * like(1 / np.log(2), a)
    return switch(equal, a / like(2, a) + b / like(2, b) + like(1, a), maximum(a, b) + more)


def heaviside(x: TensorLike, at_zero: Any) -> Variable:
    """0 below 0, 1 above, ``at_zero`` at 0."""
    v = _floating(x)
    step = switch(v > 0, like(1, v), switch(isnan(v), v, like(0, v)))
    return switch(eq(v, 0), at_zero, step)


def fmax(x: TensorLike, y: TensorLike) -> Variable:
    """The larger of two; if one is NaN, the other."""
    a, b = as_variable(x), as_variable(y)
    return switch(_nan(a), b, switch(_nan(b), a, maximum(a, b)))


def fmin(x: TensorLike, y: TensorLike) -> Variable:
    """The smaller of two; if one is NaN, the other."""
    a, b = as_variable(x), as_variable(y)
    return switch(_nan(a), b, switch(_nan(b), a, minimum(a, b)))


def _nan(v: Variable) -> Variable:
    return neq(v, v)


def fmod(x: TensorLike, y: TensorLike) -> Variable:
    """The remainder of the division rounded towards 0, with the sign of ``x``."""
    a, b = settled([as_variable(x), as_variable(y)])
    dtype = upcast(a.type.dtype, b.type.dtype)
    if dtype in ("float16", "bfloat16", "float32", "float64"):
        a, b = cast(a, dtype), cast(b, dtype)
        sign = switch(signbit(a), like(-1, a), like(1, a))
        return sign * ((sign * a) % absolute(b))
    rest = a % b  # with the sign of b
    return switch(and_(neq(rest, 0), neq(a < 0, b < 0)), rest - b, rest)


def float_power(x: TensorLike, y: TensorLike) -> Variable:
    """``x ** y`` in float64."""
    return operator("pow")(cast(x, "float64"), cast(y, "float64"))


def signbit(x: TensorLike) -> Variable:
    """Whether an element is negative; -0.0 is."""
    v = as_variable(x)
    if v.type.is_discrete:
        return v < 0
    return (v < 0) | (eq(v, 0) & (inv(v) < 0))


def copysign(x: TensorLike, y: TensorLike) -> Variable:
    """``|x|`` with the sign of ``y``."""
    a = absolute(_two_floating(x, y)[0])
    return switch(signbit(y), -a, a)


def fabs(x: TensorLike) -> Variable:
    """``|x|`` as a float."""
    return absolute(_floating(x))


def isposinf(x: TensorLike) -> Variable:
    """Whether an element is positive infinity."""
    return eq(as_variable(x), np.inf)


def isneginf(x: TensorLike) -> Variable:
    """Whether an element is negative infinity."""
    return eq(as_variable(x), -np.inf)


def _truth(x: TensorLike) -> Variable:
    v = as_variable(x)
    return v if v.type.dtype == "bool" else neq(v, 0)


def logical_and(x: TensorLike, y: TensorLike) -> Variable:
    """Whether both are not 0."""
    return and_(_truth(x), _truth(y))


def logical_or(x: TensorLike, y: TensorLike) -> Variable:
    """Whether one is not 0."""
    return or_(_truth(x), _truth(y))


def logical_xor(x: TensorLike, y: TensorLike) -> Variable:
    """Whether one of two is not 0 and the other is."""
    return xor(_truth(x), _truth(y))


def logical_not(x: TensorLike) -> Variable:
    """Whether an element is 0."""
    return invert(_truth(x))


def nan_to_num(x: TensorLike, nan: float = 0.0, posinf: Any = None, neginf: Any = None) -> Variable:
    """``x`` with numbers in place of NaN and infinities (default: 0 and the dtype's largest)."""
    v = as_variable(x)
    if v.type.is_discrete:
        return v
    most = float(float_limits(v.type.dtype).max)
    above = like(most if posinf is None else posinf, v)
    below = like(-most if neginf is None else neginf, v)
    finite = switch(eq(v, np.inf), above, switch(eq(v, -np.inf), below, v))
    return switch(isnan(v), like(nan, v), finite)


# -- vectors ---------------------------------------------------------------------------------------


def inner(a: TensorLike, b: TensorLike) -> Variable:
    """The sum of products over the last dimensions of both; a plain product with a scalar."""
    x, y = as_variable(a), as_variable(b)
    if 0 in (x.type.ndim, y.type.ndim):
        return x * y
    return tensordot(x, y, axes=[[x.type.ndim - 1], [y.type.ndim - 1]])


def vdot(a: TensorLike, b: TensorLike) -> Variable:
    """The sum of products of all elements, with the complex conjugate of the first operand."""
    x, y = flatten(as_variable(a), 1), flatten(as_variable(b), 1)
    return dot(operator("conj")(x), y)


@torch_words()
def cross(a: TensorLike, b: TensorLike, axis: int = -1) -> Variable:
    """The cross product of vectors of three elements along ``axis``."""
    x, y = as_variable(a), as_variable(b)
    x, y = (moveaxis(v, normal_axis("cross", axis, v.type.ndim), -1) for v in (x, y))
    for v in (x, y):
        if v.type.shape[-1] not in (3, None):
            raise ShapeMismatch("cross", "3 elements along the axis", v.type)
    x, y = (operator("specify_type")(v, v.type.with_shape((*v.type.shape[:-1], 3))) for v in (x, y))
    parts = [x[..., i] * y[..., j] - x[..., j] * y[..., i] for i, j in ((1, 2), (2, 0), (0, 1))]
    return moveaxis(stack(parts, axis=parts[0].type.ndim), -1, axis)


def convolve(a: TensorLike, v: TensorLike, mode: str = "full") -> Variable:
    """The convolution of two vectors, ``mode`` ``"full"``, ``"same"`` or ``"valid"``."""
    return _full_convolution("convolve", as_variable(a), as_variable(v), mode)


def correlate(a: TensorLike, v: TensorLike, mode: str = "valid") -> Variable:
    """The correlation of the vector ``a`` with the conjugate of ``v``, as ``numpy.correlate``."""
    return _full_convolution("correlate", as_variable(a), flip(operator("conj")(v)), mode)


def _full_convolution(what: str, x: Variable, w: Variable, mode: str) -> Variable:
    if (x.type.ndim, w.type.ndim) != (1, 1):
        raise NdimMismatch(what, "two vectors", [x.type, w.type])
    if mode not in ("full", "same", "valid"):
        raise OptionError(f"{what}: mode={mode!r}: wanted 'full', 'same' or 'valid'")
    n, m = shape_i(x, 0), shape_i(w, 0)
    dtype = upcast(x.type.dtype, w.type.dtype)
    if dtype in ("float16", "bfloat16", "float32", "float64"):
        planes = [cast(t, dtype).dimshuffle("x", "x", 0) for t in (x, w)]
        found = conv1d(planes[0], planes[1], border_mode="full")[0, 0]
    else:
        found = _exact_convolution(x, w, n, m, dtype)
    short, long = minimum(n, m), maximum(n, m)
    if mode == "valid":
        found = found[short - 1 : long]
    elif mode == "same":
        start = (short - 1) // 2
        if what == "correlate":  # NumPy swaps the operands if v is longer, and reverses the result
            start = switch(m > n, short // 2, start)
        found = found[start : start + long]
    return cast(found, dtype)


def _exact_convolution(x: Variable, w: Variable, n: Variable, m: Variable, dtype: str) -> Variable:
    """Sums of products in ``dtype``, for complex numbers and for ints, which wrap around."""
    work = "int64" if dtype == "bool" else dtype
    edge = alloc(constant(0, dtype=work), maximum(m - 1, 0))
    spread = join(0, edge, cast(x, work), edge)
    place = arange(n + m - 1).dimshuffle(0, "x") + arange(m).dimshuffle("x", 0)
    return dot(take(spread, place), flip(cast(w, work)))


def _in(value: Any, dtype: str) -> Variable:
    return cast(value, dtype) if isinstance(value, Variable) else constant(value, dtype=dtype)


def interp(
    x: TensorLike, xp: Any, fp: Any, left: TensorLike | None = None, right: TensorLike | None = None
) -> Variable:
    """Values at ``x`` of the line through the points ``(xp, fp)``, vectors with ``xp`` increasing.

    Outside it is ``left`` and ``right``, by default the first and the last of ``fp``.
    """
    at, table, values = map(as_variable, (x, xp, fp))
    dtype = float_of(at.type.dtype, table.type.dtype, values.type.dtype)
    at, table, values = (cast(v, dtype) for v in (at, table, values))
    last = shape_i(table, 0) - 1
    low = clip(searchsorted(table, at, side="right") - 1, 0, maximum(last - 1, 0))
    high = minimum(low + 1, last)
    x0, x1, y0, y1 = (take(t, i) for t in (table, values) for i in (low, high))
    width = x1 - x0
    flat = eq(width, 0)
    inside = y0 + (y1 - y0) * ((at - x0) / switch(flat, like(1, width), width))
    first = values[0] if left is None else _in(left, dtype)
    end = values[-1] if right is None else _in(right, dtype)
    outside = switch(at < table[0], first, switch(at > table[-1], end, inside))
    return switch(eq(at, table[-1]), values[-1], outside)


@torch_words()
def trapezoid(
    y: TensorLike, x: TensorLike | None = None, dx: TensorLike = 1.0, axis: int = -1
) -> Variable:
    """The integral along ``axis`` by trapezoids between the points ``x`` (or steps ``dx``)."""
    return sum_of(trapezoids("trapezoid", y, x, dx, axis), axis=-1)


def trapezoids(
    name: str, y: TensorLike, x: TensorLike | None, dx: TensorLike, axis: int
) -> Variable:
    """The areas between neighbours along ``axis``, which comes last."""
    v, places = (_floating(y), None) if x is None else _two_floating(y, x)
    where = normal_axis(name, axis, v.type.ndim)
    v = moveaxis(v, where, -1)
    steps = as_variable(dx)
    if places is not None:
        places = moveaxis(places, where, -1) if places.type.ndim > 1 else places
        steps = places[..., 1:] - places[..., :-1]
    return (v[..., 1:] + v[..., :-1]) * steps * like(0.5, v)
