"""Inverse functions, powers and those near 1 of complex numbers, as scalar programs in float64.

The inverse sines and cosines are W. Kahan's ("Branch cuts for complex elementary functions", 1987):
products of two roots whose parts do not cancel. Signs of zeros choose the side of a cut.
"""

from __future__ import annotations

import numpy as np

from symdnn.ops.core.scalar import Scalar
from symdnn.ops.elementwise.complex_formulas import (
    Pair,
    exponential,
    logarithm,
    product,
    root,
)

#: Sizes from which squares are left to a quotient, and below which one adds nothing to 1.
_HUGE, _TINY = 1e150, 1e-150


def _finite(x: Pair) -> Scalar:
    return x[0].call("isfinite").call("and", x[1].call("isfinite"))


def _end(x: Pair) -> Scalar:
    """Infinity if a part is infinite, else NaN: the size where a part is not finite."""
    wide = x[0].call("isinf").call("or", x[1].call("isinf"))
    return wide.where(x[0].like(np.inf), np.nan)


def _roots(x: Pair) -> tuple[Pair, Pair]:
    """The roots of ``1 + x`` and ``1 - x``."""
    a, b = x
    return root((a + 1, b)), root((a.like(1) - a, -b))


def arc_sine_h(x: Pair) -> Pair:
    """``asinh(x)``: i times the inverse sine of ``-i x``."""
    a, b = x
    plus, minus = _roots((-b, a))
    first = (minus[0] * plus[1] - minus[1] * plus[0]).call("asinh")
    second = b.call("atan2", plus[0] * minus[0] - plus[1] * minus[1])
    far = b.call("atan2", a.call("abs"))
    far = b.call("eq", 0).where(b, far)
    there = _finite(x)
    first = there.where(first.call("abs"), _end(x)).call("copysign", a)
    return first, there.where(second, far)


def arc_sine(x: Pair) -> Pair:
    """``asin(x)``"""
    first, second = arc_sine_h((-x[1], x[0]))
    return second, -first


def arc_cosine(x: Pair) -> Pair:
    """``acos(x)``"""
    a, b = x
    plus, minus = _roots(x)
    first = minus[0].call("atan2", plus[0]) * 2
    second = (plus[0] * minus[1] - plus[1] * minus[0]).call("asinh")
    far = b.call("abs").call("atan2", a)
    far = a.call("eq", 0).where(np.pi / 2, far)
    there = _finite(x)
    second = there.where(second.call("abs"), _end(x)).call("copysign", b)
    return there.where(first, far), -second


def arc_cosine_h(x: Pair) -> Pair:
    """``acosh(x)``, a quarter of a turn from ``acos(x)``."""
    first, second = arc_cosine(x)
    return second.call("abs"), first.call("copysign", x[1])


def arc_tangent_h(x: Pair) -> Pair:
    """``atanh(x)`` of logarithms and angles of ``1 + x`` and ``1 - x``."""
    a, b = x
    size, side = a.call("abs"), b.call("abs")
    most = size.call("max", side)
    huge = most > _HUGE
    low, high = size.call("min", side), huge.where(most, 1)
    ratio = low / high
    apart = a.like(1) - size
    below = apart * apart + b * b
    edge = apart.call("eq", 0).call("and", side < _TINY)
    inner = huge.where(0, size) * 4 / edge.where(1, below)
    near = inner.call("log1p") / 4
    near = edge.where((side / 2).call("log") * -0.5, near)
    outer = size / high / high / (ratio * ratio + 1)
    first = huge.where(_is_endless(x).where(0, outer), near).call("copysign", a)
    second = (b * 2).call("atan2", apart * (size + 1) - b * b) / 2
    second = huge.where(b.like(np.pi / 2).call("copysign", b), second)
    lost = a.call("isnan").call("or", b.call("isnan"))
    keeps = a.call("eq", 0).call("or", a.call("isinf"))
    bound = b.call("isinf")
    nothing = a.like(0).call("copysign", a)
    first = lost.where(keeps.call("or", bound).where(nothing, np.nan), first)
    turn = b.like(np.pi / 2).call("copysign", b)
    return first, lost.where(bound.where(turn, np.nan), second)


def _is_endless(x: Pair) -> Scalar:
    return x[0].call("isinf").call("or", x[1].call("isinf"))


def arc_tangent(x: Pair) -> Pair:
    """``atan(x)``"""
    first, second = arc_tangent_h((-x[1], x[0]))
    return second, -first


def exponential_less_1(x: Pair) -> Pair:
    """``e^x - 1``"""
    a, b = x
    half = (b / 2).call("sin")
    first, second = exponential(x)
    near = a.call("expm1") * b.call("cos") - half * half * 2
    small = (a.call("abs") < 1).call("and", b.call("abs") < 1)
    return small.where(near, first - 1), second


def logarithm_of_1_more(x: Pair) -> Pair:
    """``log(1 + x)``, without cancellation near 0."""
    a, b = x
    first, second = logarithm()((a + 1, b))
    near = a * a + b * b < 0.25
    inner = near.where(a * (a + 2) + b * b, 0).call("log1p") / 2
    return near.where(inner, first), second


def power(x: Pair, y: Pair) -> Pair:
    """``x^y``; 0 to a power whose real part is positive is 0, and to 0 it is 1."""
    first, second = exponential(product(y, logarithm()(x)))
    one = y[0].call("eq", 0).call("and", y[1].call("eq", 0))
    nought = x[0].call("eq", 0).call("and", x[1].call("eq", 0))
    less = y[0] > 0
    first = one.where(1, nought.where(less.where(x[0].like(0), np.nan), first))
    return first, one.where(0, nought.where(less.where(x[0].like(0), np.nan), second))
