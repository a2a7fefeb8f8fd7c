"""Functions of complex numbers as scalar programs of their two parts.

Zeros keep their signs, and infinities and NaNs give what annex G of C's standard says, as NumPy's
functions do.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp, log

import numpy as np

from symdnn.ops.core.scalar import Scalar

#: The two parts of a number.
Pair = tuple[Scalar, Scalar]

#: Exponents beyond which e^x is computed of so much less; beyond the other ones tanh(x) is 1.
_MAX_EXPONENT = {"float32": 80.0, "float64": 700.0}
_FLAT = {"float32": 10.0, "float64": 22.0}
#: 2^27 + 1: the product with it splits a float64 into halves of 26 bits.
_SPLITTER = float(2**27 + 1)
#: Numbers below this, or above its reciprocal, have squares that lose digits, or overflow; factors.
_SQUARED = {
    "float32": (2.0**-60, 2.0**100, 2.0**-70), "float64": (2.0**-500, 2.0**700, 2.0**-600)
}  # fmt: skip
#: Numbers whose sums of sizes may overflow, and those whose squares lose digits; factors for them.
_HUGE, _TINY, _LESS, _MORE = 2.0**1021, 2.0**-900, 0.25, 2.0**200


def _finite(x: Scalar) -> Scalar:
    return x.call("isfinite")


def _is(x: Scalar, value: float) -> Scalar:
    return x.call("eq", value)


def _zero_of(x: Scalar) -> Scalar:
    """0 with the sign of x."""
    return x.like(0).call("copysign", x)


def product(x: Pair, y: Pair) -> Pair:
    """``x y``"""
    return x[0] * y[0] - x[1] * y[1], x[0] * y[1] + x[1] * y[0]


def quotient(x: Pair, y: Pair) -> Pair:
    """``x / y`` by R. L. Smith's algorithm (1962), which squares no number; so is NumPy's."""
    a, b = y[0].call("abs"), y[1].call("abs")
    tall = a < b
    large, small = tall.where(y[1], y[0]), tall.where(y[0], y[1])
    ratio = small / large
    scale = large + small * ratio
    first = tall.where(x[0] * ratio + x[1], x[0] + x[1] * ratio) / scale
    second = tall.where(x[1] * ratio - x[0], x[1] - x[0] * ratio) / scale
    none = a.call("add", b).call("eq", 0)
    return none.where(x[0] / a, first), none.where(x[1] / a, second)


def reciprocal(y: Pair) -> Pair:
    """``1 / y``, likewise."""
    tall = y[0].call("abs") < y[1].call("abs")
    large, small = tall.where(y[1], y[0]), tall.where(y[0], y[1])
    ratio = small / large
    scale = large + small * ratio
    return tall.where(ratio, 1) / scale, -(tall.where(1, ratio) / scale)


def absolute(x: Pair) -> Pair:
    """``|x|``, of which a part that is infinite makes infinity."""
    a, b = x[0].call("abs"), x[1].call("abs")
    large = (a < b).where(b, a)
    limit, more, less = _SQUARED[a.dtype]
    huge, tiny = large > 1 / limit, large < limit
    scale = huge.where(less, tiny.where(more, a.like(1)))
    back = huge.where(1 / less, tiny.where(1 / more, a.like(1)))
    infinite = _is(a, np.inf).call("or", _is(b, np.inf))
    a, b = a * scale, b * scale
    return infinite.where(a.like(np.inf), (a * a + b * b).call("sqrt") * back), a


def angle(x: Pair) -> Pair:
    """The angle in the complex plane."""
    return x[1].call("atan2", x[0]), x[0]


def root(x: Pair) -> Pair:
    """The square root, whose cut is below 0."""
    a, b = x
    size, side = a.call("abs"), b.call("abs")
    half, other = (_halves_of_float32 if a.dtype == "float32" else _halves)(size, side)
    left = a < 0
    first, second = left.where(other, half), left.where(half, other).call("copysign", b)
    zero = _is(size.call("max", side), 0)
    wide = _is(side, np.inf)
    return wide.where(np.inf, zero.where(0, first)), wide.call("or", zero).where(b, second)


def _halves(size: Scalar, side: Scalar) -> Pair:
    """The root's larger and smaller part, of the sizes of a number's parts."""
    most = size.call("max", side)
    huge, tiny = most > _HUGE, most < _TINY
    scale = huge.where(_LESS, tiny.where(_MORE, size.like(1)))
    back = huge.where(_LESS**-0.5, tiny.where(_MORE**-0.5, size.like(1)))
    size, side = size * scale, side * scale
    half = ((size + absolute((size, side))[0]) / 2).call("sqrt")
    return half * back, side / (half * 2) * back


def _halves_of_float32(size: Scalar, side: Scalar) -> Pair:
    """The same by squares in float64, where none of them overflows or loses digits."""
    a, b = size.cast("float64"), side.cast("float64")
    length = _is(size, np.inf).where(a, (a * a + b * b).call("sqrt"))
    half = ((a + length) / 2).call("sqrt").cast("float32")
    return half, side / (half * 2)


def _squared(x: Scalar) -> Pair:
    """The square, and what its rounding left out, by T. J. Dekker's product (1971)."""
    part = x * _SPLITTER
    high = part - (part - x)
    low = x - high
    whole = x * x
    return whole, (high * high - whole + high * low * 2) + low * low


def _less_1(large: Scalar, small: Scalar) -> Pair:
    """``|x|^2`` and ``|x|^2 - 1``, exactly added where it is near; squares of float32 are exact."""
    if large.dtype == "float32":
        square, square2 = (v * v for v in (large.cast("float64"), small.cast("float64")))
        return square + square2, ((square - 1) + square2).cast("float32")
    (high, rest), (high2, rest2) = _squared(large), _squared(small)
    whole = high + high2
    return whole, (whole - 1) + ((high2 - (whole - high)) + (rest + rest2))


def logarithm(scale: float = 1) -> Callable[[Pair], Pair]:
    """The logarithm times a ``scale``: near the unit circle of ``|x|^2 - 1``."""

    def function(x: Pair) -> Pair:
        a, b = x[0].call("abs"), x[1].call("abs")
        low = a < b
        large, small = low.where(b, a), low.where(a, b)
        whole, excess = _less_1(large, small)
        near = (whole > 0.5).call("and", whole < 2)
        ratio = _is(large, 0).where(small, small / large)
        term = near.where(excess, ratio * ratio)
        size = near.where(0, large.call("log")) + term.call("log1p") / 2
        infinite = _is(a, np.inf).call("or", _is(b, np.inf))
        size, turn = infinite.where(np.inf, size), x[1].call("atan2", x[0])
        return (size, turn) if scale == 1 else (size * scale, turn * scale)

    return function


#: Scales for other bases.
LOG2, LOG10 = 1 / log(2), 1 / log(10)


def exponential(x: Pair) -> Pair:
    """``e^x``; where e to the real part would overflow it is two factors."""
    a, b = x
    far = _MAX_EXPONENT[a.dtype]
    beyond = a > far
    size = beyond.where(a - far, a).call("exp")
    factor = beyond.where(exp(far), a.like(1))
    first, second = b.call("cos") * factor * size, b.call("sin") * factor * size
    lost = _finite(b).call("not").call("and", _is(a.call("abs"), np.inf))
    real, infinite = _is(b, 0), size * factor
    second = real.where(b, lost.call("and", a < 0).where(_zero_of(b), second))
    return real.call("or", lost).where(infinite, first), second


def _hyperbolic(a: Scalar) -> tuple[Scalar, Scalar, Scalar]:
    """sinh and cosh of ``|a|`` by one exponential, and a factor for both, without overflow."""
    far = _MAX_EXPONENT[a.dtype]
    size = a.call("abs")
    beyond = size > far
    less = beyond.where(size - far, size).call("expm1")
    whole = less + 1
    sine = beyond.where(whole, (less + less / whole) / 2)
    cosine = beyond.where(whole, (whole + 1 / whole) / 2)
    return sine, cosine, beyond.where(exp(far) / 2, a.like(1))


def sine_h(x: Pair) -> Pair:
    """``sinh(x)``"""
    a, b = x
    sine, cosine, factor = _hyperbolic(a)
    first = b.call("cos") * factor * sine.call("copysign", a)
    second = b.call("sin") * factor * cosine
    edge = _is(a, 0).call("or", a.call("isinf"))
    lost = _finite(b).call("not").call("and", edge)
    return lost.where(a, first), _is(b, 0).where(b, second)


def cosine_h(x: Pair) -> Pair:
    """``cosh(x)``"""
    a, b = x
    sine, cosine, factor = _hyperbolic(a)
    first, second = b.call("cos") * factor * cosine, b.call("sin") * factor * sine
    lost, sign = _finite(b).call("not"), a.like(1).call("copysign", a)
    first = lost.call("and", a.call("isinf")).where(a.call("abs"), first)
    zero = lost.call("and", _is(a, 0))
    return first, zero.where(a, _is(b, 0).where(sign * b, second * sign))


def tangent_h(x: Pair) -> Pair:
    """``tanh(x)``"""
    a, b = x
    far = a.call("abs") > _FLAT[a.dtype]
    less = a.call("abs").call("expm1")
    whole = less + 1
    sine, cosine = (less + less / whole) / 2, (whole + 1 / whole) / 2
    s, c = b.call("sin"), b.call("cos")
    below = sine * sine + c * c
    first = far.where(1, sine * cosine / below).call("copysign", a)
    second = far.where(s * c * 4 / whole / whole, s * c / below)
    endless = _finite(b).call("not").call("and", a.call("isinf"))
    nought = _finite(b).call("not").call("and", _is(a, 0))
    first = nought.where(a, _finite(b).call("or", endless).where(first, np.nan))
    return first, _is(b, 0).where(b, endless.where(_zero_of(b), second))


def _turned(function: Callable[[Pair], Pair]) -> Callable[[Pair], Pair]:
    """``-i f(i x)``"""

    def found(x: Pair) -> Pair:
        first, second = function((-x[1], x[0]))
        return second, -first

    return found


sine, tangent = _turned(sine_h), _turned(tangent_h)


def cosine(x: Pair) -> Pair:
    """``cos(x)``"""
    return cosine_h((-x[1], x[0]))
