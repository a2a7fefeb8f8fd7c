"""Bessel functions, and those that are scaled so that they do not overflow."""

from __future__ import annotations

from math import factorial

from symdnn.errors import NotScalarConstantError
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Variable
from symdnn.ops.core.constant_value import get_scalar_constant_value
from symdnn.ops.core.incomplete_values import bessel_of, modified_bessel_of
from symdnn.ops.elementwise.arithmetic import abs as absolute
from symdnn.ops.elementwise.arithmetic import maximum, sgn, sqr
from symdnn.ops.elementwise.comparison import lt, switch
from symdnn.ops.elementwise.math import exp
from symdnn.ops.elementwise.of_order import OfOrder, SpecialFunction
from symdnn.ops.elementwise.special_values import scipy_function
from symdnn.ops.elemwise import apply_elemwise, like


class Jv(OfOrder):
    """The Bessel function of the first kind, of order ``n``."""

    function = bessel_of
    formula = "jv"

    def point_slope(self, *operands: Variable) -> Variable:
        n, x, y = operands
        if _is(0, n):
            return -jv(1, x).astype(y.type.dtype)
        if _is(1, n):
            return jv(0, x).astype(y.type.dtype) - _over_point(-1, x, y)
        return (jv(n - 1, x) - jv(n + 1, x)) * like(0.5, y)


class Iv(OfOrder):
    """The modified Bessel function of the first kind, of order ``n``."""

    function = modified_bessel_of
    formula = "iv"

    def point_slope(self, *operands: Variable) -> Variable:
        n, x, y = operands
        if _is(0, n):
            return iv(1, x).astype(y.type.dtype)
        if _is(1, n):
            return iv(0, x).astype(y.type.dtype) - _over_point(1, x, y)
        return (iv(n - 1, x) + iv(n + 1, x)) * like(0.5, y)


def _is(wanted: int, order: Variable) -> bool:
    """Whether an order is known to be this one: those of -n and n are the same but for a sign."""
    try:
        return bool(get_scalar_constant_value(order) == wanted)
    except NotScalarConstantError:
        return False


#: Sizes of ``x`` below which the series has all digits of float64, and its terms.
_NEAR, _TERMS = 0.5, 7


def _over_point(sign: int, x: Variable, y: Variable, factor: Variable | None = None) -> Variable:
    """``y / x`` of a function of order 1: near 0 its series in ``sign * x ** 2 / 4``, times the
    factor that ``y`` has.

    The derivatives of the quotient cancel there (NIST's DLMF, 10.2.2 and 10.25.2).
    """
    x = x.astype(y.type.dtype)
    near = lt(absolute(x), like(_NEAR, x))
    u = sqr(switch(near, x, like(0, x))) * like(sign / 4, x)
    total: Variable = like(0, x)
    for k in reversed(range(_TERMS)):
        total = total * u + like(1 / (2 * factorial(k) * factorial(k + 1)), x)
    total = total if factor is None else total * factor
    return switch(near, total, y / switch(near, like(1, x), x))


#: The derivatives of ``i0e`` and ``i1e`` over ``i0e``, as polynomials of ``1 / x`` for large ``x``
#: (from the series 10.40.1 of NIST's DLMF): as differences they would cancel.
_FAR_SLOPES = (
    (0, -1 / 2, -1 / 8, -1 / 8, -25 / 128, -13 / 32, -1073 / 1024),
    (0, -1 / 2, 5 / 8, 1 / 4, 41 / 128, 77 / 128, 1489 / 1024),
)


def _slope(order: int, x: Variable, zero: Variable, near: Variable) -> Variable:
    """The derivative: ``near``, from some ``x`` on the polynomial times ``zero``, which is i0e."""
    size = absolute(x)
    start = like(300 if x.type.dtype == "float64" else 20, x)
    u = 1 / maximum(size, start)
    total: Variable = like(0, x)
    for c in reversed(_FAR_SLOPES[order]):
        total = total * u + like(c, x)
    far = zero * total * (like(1, x) if order else sgn(x))
    return switch(lt(size, start), near, far)


class I0e(SpecialFunction):
    """``exp(-|x|)`` times the modified Bessel function of order 0 (SciPy's name)."""

    function = scipy_function("i0e")
    formula = "i0e"

    def slope(self, x: Variable, y: Variable) -> Variable:
        return _slope(0, x, y, i1e(x) - sgn(x) * y)


class I1e(SpecialFunction):
    """``exp(-|x|)`` times the modified Bessel function of order 1 (SciPy's name)."""

    function = scipy_function("i1e")
    formula = "i1e"

    def slope(self, x: Variable, y: Variable) -> Variable:
        ratio = _over_point(1, x, y, exp(-absolute(x)))
        return _slope(1, x, i0e(x), i0e(x) - sgn(x) * y - ratio)


def jv(n: TensorLike, x: TensorLike) -> Variable:
    """The Bessel function of the first kind, of order ``n``."""
    return apply_elemwise(Jv(), n, x)


def j0(x: TensorLike) -> Variable:
    """The Bessel function of the first kind, of order 0."""
    return jv(0, x)


def j1(x: TensorLike) -> Variable:
    """The Bessel function of the first kind, of order 1."""
    return jv(1, x)


def iv(n: TensorLike, x: TensorLike) -> Variable:
    """The modified Bessel function of the first kind, of order ``n``."""
    return apply_elemwise(Iv(), n, x)


def i0(x: TensorLike) -> Variable:
    """The modified Bessel function of the first kind, of order 0."""
    return iv(0, x)


def i1(x: TensorLike) -> Variable:
    """The modified Bessel function of the first kind, of order 1."""
    return iv(1, x)


def i0e(x: TensorLike) -> Variable:
    """``exp(-|x|) i0(x)``, which does not overflow.

    >>> round(float(i0e(1000.0).eval()), 6)
    0.012617
    """
    return apply_elemwise(I0e(), x)


def i1e(x: TensorLike) -> Variable:
    """``exp(-|x|) i1(x)``, which does not overflow."""
    return apply_elemwise(I1e(), x)
