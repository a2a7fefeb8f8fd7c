"""Special functions: error, gamma and zeta functions, logit, exprel.

The references are SciPy's (``scipy.special``). Ints give ``floatX``.
"""

from __future__ import annotations

from math import factorial, log, pi, sqrt
from typing import Any

import numpy as np

from symdnn.graph.names.torch_words import advises
from symdnn.graph.op import Grads, Vars
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.core.dtype import float_of
from symdnn.ops.core.scalar import Scalar
from symdnn.ops.elementwise.arithmetic import cast, maximum, minimum, sqr
from symdnn.ops.elementwise.comparison import lt, switch
from symdnn.ops.elementwise.math import exp
from symdnn.ops.elementwise.of_order import OfOrder, SpecialFunction
from symdnn.ops.elementwise.special_values import (
    erfcx_slope_formula,
    erfcx_slope_of,
    log_erfc_formula,
    log_erfc_of,
    log_half_erfc_formula,
    log_half_erfc_of,
    scipy_function,
)
from symdnn.ops.elemwise import apply_elemwise, like

__all__ = [
    "Erf", "ErfInv", "Erfc", "ErfcInv", "Erfcx", "ErfcxSlope", "ExpRel", "Gamma", "GammaLn",
    "LogErfc", "LogHalfErfc", "Logit", "Ndtri", "PolyGamma", "Psi", "TriGamma", "Zeta", "erf",
    "erfc", "erfcinv", "erfcx", "erfinv", "exprel", "gamma", "gammaln", "log_erfc", "log_half_erfc",
    "log_ndtr", "logit", "ndtr", "ndtri", "polygamma", "psi", "tri_gamma", "zeta",
]  # fmt: skip


class Erf(SpecialFunction):
    """The error function, ``2 / sqrt(pi)`` times the integral of ``exp(-t^2)`` from 0 to x."""

    function = scipy_function("erf")
    formula = "erf"

    def slope(self, x: Variable, y: Variable) -> Variable:
        return like(2 / sqrt(pi), y) * exp(-sqr(x))


class Erfc(SpecialFunction):
    """``1 - erf(x)``, exact where that is small."""

    function = scipy_function("erfc")
    formula = "erfc"

    def slope(self, x: Variable, y: Variable) -> Variable:
        return like(-2 / sqrt(pi), y) * exp(-sqr(x))


class Erfcx(SpecialFunction):
    """``exp(x^2) erfc(x)``, which neither under- nor overflows for large x."""

    function = scipy_function("erfcx")
    formula = "erfcx"

    def slope(self, x: Variable, y: Variable) -> Variable:
        return apply_elemwise(ErfcxSlope(), x)


class ErfcxSlope(SpecialFunction):
    """The derivative of :class:`Erfcx`, to full precision also for large x."""

    function = erfcx_slope_of
    formula = erfcx_slope_formula

    def slope(self, x: Variable, y: Variable) -> Variable:
        return 2 * (erfcx(x) + x * y)


class LogErfc(SpecialFunction):
    """``log(erfc(x))``, exact also where ``erfc(x)`` is rounded to 0."""

    function = log_erfc_of
    formula = log_erfc_formula

    def slope(self, x: Variable, y: Variable) -> Variable:
        # Below the cut erfc is 2, and erfcx and its derivatives would overflow.
        cut = like(-2.6 if y.type.dtype == "float16" else -6, y)
        far = like(-1 / sqrt(pi), y) * exp(-sqr(x))
        return switch(lt(x, cut), far, like(-2 / sqrt(pi), y) / erfcx(maximum(x, cut)))


class ErfInv(SpecialFunction):
    """The inverse of ``erf``, on (-1, 1)."""

    function = scipy_function("erfinv")
    formula = "erfinv"

    def slope(self, x: Variable, y: Variable) -> Variable:
        return like(sqrt(pi) / 2, y) * exp(sqr(y))


class ErfcInv(SpecialFunction):
    """The inverse of ``erfc``, on (0, 2)."""

    function = scipy_function("erfcinv")
    formula = "erfcinv"

    def slope(self, x: Variable, y: Variable) -> Variable:
        return like(-sqrt(pi) / 2, y) * exp(sqr(y))


class Ndtri(SpecialFunction):
    """The inverse of ``ndtr``, on (0, 1)."""

    function = scipy_function("ndtri")
    formula = "ndtri"

    def slope(self, x: Variable, y: Variable) -> Variable:
        return like(sqrt(2 * pi), y) * exp(like(0.5, y) * sqr(y))


#: From here on exp is the square of a root, so that it does not overflow before the quotient.
_MIN_X_BY_ROOTS, _MAX_DIVISOR = 40.0, 1e30
#: sinh(h) / h has the slope h times this series in h^2, the highest power first.
_EXPREL_SERIES = [(2 * k + 2) / factorial(2 * k + 3) for k in reversed(range(8))]


def _exprel(x: Array) -> Array:
    root, some = np.exp(x / 2), np.where(x == 0, 1, x)
    small = np.where(x == 0, 1, np.expm1(x) / some)
    return np.where(x > _MIN_X_BY_ROOTS, root * (root / np.minimum(x, _MAX_DIVISOR)), small)


class ExpRel(SpecialFunction):
    """``(exp(x) - 1) / x``, 1 at 0, exact near there, and finite where ``exp`` alone is not."""

    function = _exprel

    @staticmethod
    def formula(x: Scalar) -> Scalar:
        root = (0.5 * x).call("exp")
        zero = x.call("eq", 0)
        small = zero.where(1, x.call("expm1") / zero.where(1, x))
        return (x > _MIN_X_BY_ROOTS).where(root * (root / x.call("min", _MAX_DIVISOR)), small)

    def slope(self, x: Variable, y: Variable) -> Variable:
        near = lt(abs(x), like(1, x))
        half, far = switch(near, x / 2, like(0, x)), switch(near, like(1, x), x)
        # y is exp(half) sinh(half) / half: the second factor's slope is a series of few terms.
        series: Variable = like(_EXPREL_SERIES[0], x)
        for term in _EXPREL_SERIES[1:]:
            series = series * sqr(half) + like(term, x)
        below = (exp(minimum(far, like(0, x))) - y) / far
        above = y * (1 - 1 / far) + 1 / far
        outside = switch(lt(x, like(0, x)), below, above)
        return switch(near, (y + exp(half) * half * series) / 2, outside)


class Logit(SpecialFunction):
    """``log(x / (1 - x))``, exact also where ``x`` is near 1/2."""

    function = scipy_function("logit")

    @staticmethod
    def formula(x: Scalar) -> Scalar:
        # Its size, from the nearer end: 1 - x is exact from 1/2 on, and so is 2 x - 1. The quotient
        # by a subnormal number would overflow.
        low, tiny, twice = x < 0.5, x.call("abs") < 2.0**-120, 2 * x - 1
        end = low.where(tiny.where(x * 2.0**54, x), 1 - x)
        size = (low.where(-twice, twice) / end).call("log1p") + tiny.where(x.like(54 * log(2)), 0.0)
        return low.where(-size, size)

    def slope(self, x: Variable, y: Variable) -> Variable:
        return 1 / x + 1 / (1 - x)


class Gamma(SpecialFunction):
    """The gamma function."""

    function = scipy_function("gamma")
    formula = "tgamma"

    def slope(self, x: Variable, y: Variable) -> Variable:
        return y * psi(x)


class GammaLn(SpecialFunction):
    """``log |gamma(x)|``."""

    function = scipy_function("gammaln")
    formula = "lgamma"

    def slope(self, x: Variable, y: Variable) -> Variable:
        return psi(x)


class Psi(SpecialFunction):
    """The digamma function: the slope of ``gammaln``."""

    function = scipy_function("psi")
    formula = "digamma"

    def slope(self, x: Variable, y: Variable) -> Variable:
        return tri_gamma(x)


def _polygamma(n: Any, x: Any) -> Array:
    """SciPy's, by recurrence from ``x`` up to 9; far below 0 by reflection (NIST's DLMF 5.15.6)."""
    n, x = np.broadcast_arrays(np.asarray(n, np.float64), np.asarray(x, np.float64))
    far = (x < _REFLECTED_BELOW) & (n > 0)
    y = np.asarray(_stepped(n, np.where(far, 1.0, x)))
    with np.errstate(all="ignore"):
        for order in np.unique(n[far]):
            at = far & (n == order)
            y[at] = _reflected(int(order), x[at])
    return y


#: Below this ``x`` the reflection is used. For larger orders the factorial overflows.
_REFLECTED_BELOW, _MAX_REFLECTED_ORDER = -1000.0, 170
_stepped = scipy_function("polygamma")


def _reflected(n: int, x: Any) -> Array:
    to_pole = x - np.round(x)
    if n > _MAX_REFLECTED_ORDER:  # the factorial of the order alone overflows
        return np.where((to_pole > 0) & (n % 2 == 0), -np.inf, np.inf)
    angle = np.pi * to_pole
    slope = np.polynomial.Polynomial([0, 1])  # of the cotangent, as a polynomial in it
    for _ in range(n):
        slope = slope.deriv() * np.polynomial.Polynomial([-1, 0, -1])
    pole = slope(1 / np.tan(angle)) * np.pi ** (n + 1)
    found = (-1.0) ** n * _stepped(n, 1 - x) - pole
    return np.where(angle == 0, np.inf, found)


def _trigamma(x: Any) -> Array:
    return _polygamma(1.0, x)


class TriGamma(SpecialFunction):
    """The trigamma function: the slope of ``psi``."""

    function = _trigamma
    formula = "trigamma"

    def slope(self, x: Variable, y: Variable) -> Variable:
        return polygamma(2, x)


class PolyGamma(OfOrder):
    """The ``n``-th derivative of ``psi`` at ``x``; ``n`` is a whole number, and has no gradient."""

    function = _polygamma
    formula = "polygamma"

    def scalar_vjp(self, inputs: Vars, output: Variable, cotangent: Variable) -> Grads:
        return [None, super().scalar_vjp(inputs, output, cotangent)[1]]

    def point_slope(self, *operands: Variable) -> Variable:
        n, x, _ = operands
        return polygamma(n + 1, x)


def _zeta(s: Any, q: Any) -> Array:
    """SciPy's, which is NaN at an infinite order for some ``q`` above 1."""
    return np.where((s == np.inf) & (q > 1), 0, _scipy_zeta(s, q)).astype(np.result_type(s, q))


_scipy_zeta = scipy_function("zeta")


class Zeta(OfOrder):
    """Hurwitz' zeta function: the sum of ``(q + k)^-s`` over ``k = 0, 1, ...``, for ``s > 1``."""

    function = _zeta
    formula = "zeta"

    def point_slope(self, *operands: Variable) -> Variable:
        s, q, _ = operands
        return -s * zeta(s + 1, q)

    def step(self, order: int, *operands: Array) -> Any:
        return np.minimum(0.1, (operands[0] - 1) / 4)


class LogHalfErfc(SpecialFunction):
    """``log(erfc(x) / 2)``, to full precision also where that is near to 0."""

    function = log_half_erfc_of
    formula = log_half_erfc_formula

    slope = LogErfc.slope


def erf(x: Any) -> Variable:
    """The error function."""
    return apply_elemwise(Erf(), x)


def erfc(x: Any) -> Variable:
    """``1 - erf(x)``, exact where that is small."""
    return apply_elemwise(Erfc(), x)


def erfcx(x: Any) -> Variable:
    """``exp(x^2) erfc(x)``."""
    return apply_elemwise(Erfcx(), x)


def log_erfc(x: TensorLike) -> Variable:
    """``log(erfc(x))``, exact also where ``erfc(x)`` is rounded to 0, with its gradient."""
    return apply_elemwise(LogErfc(), x)


def log_half_erfc(x: TensorLike) -> Variable:
    """``log(erfc(x) / 2)``."""
    return apply_elemwise(LogHalfErfc(), x)


def ndtr(x: TensorLike) -> Variable:
    """The normal distribution's probability below ``x`` (SciPy's name)."""
    v = _floating(x)
    return like(0.5, v) * erfc(like(-sqrt(0.5), v) * v)


def log_ndtr(x: TensorLike) -> Variable:
    """The logarithm of :func:`ndtr`, also far below 0 (SciPy's name)."""
    v = _floating(x)
    return log_half_erfc(like(-sqrt(0.5), v) * v)


def ndtri(p: TensorLike) -> Variable:
    """The normal distribution's ``x`` with the probability ``p`` below it (SciPy's name).

    >>> round(float(ndtri(0.975).eval()), 5)
    1.95996
    """
    return apply_elemwise(Ndtri(), p)


def exprel(x: Any) -> Variable:
    """``(exp(x) - 1) / x`` with its limit 1 at 0 (SciPy's name).

    >>> print(exprel([0.0, 1e-9, 1.0]).eval())
    [1.         1.         1.71828183]
    """
    return apply_elemwise(ExpRel(), x)


@advises(eps="clip(p, eps, 1 - eps) has that limit", x="p", input="p")
def logit(p: TensorLike) -> Variable:
    """``log(p / (1 - p))``, the inverse of ``sigmoid``."""
    return apply_elemwise(Logit(), p)


def _floating(x: TensorLike) -> Variable:
    v = as_variable(x)
    return v if v.type.is_float else cast(v, float_of(v.type.dtype))


def erfinv(x: TensorLike) -> Variable:
    """The inverse of ``erf``."""
    return apply_elemwise(ErfInv(), x)


def erfcinv(x: TensorLike) -> Variable:
    """The inverse of ``erfc``."""
    return apply_elemwise(ErfcInv(), x)


def gamma(x: Any) -> Variable:
    """The gamma function."""
    return apply_elemwise(Gamma(), x)


def gammaln(x: Any) -> Variable:
    """``log |gamma(x)|``."""
    return apply_elemwise(GammaLn(), x)


def psi(x: TensorLike) -> Variable:
    """The digamma function. Also ``digamma``."""
    return apply_elemwise(Psi(), x)


def polygamma(n: TensorLike, x: TensorLike) -> Variable:
    """The ``n``-th derivative of ``psi``."""
    return apply_elemwise(PolyGamma(), n, x)


def tri_gamma(x: TensorLike) -> Variable:
    """The trigamma function: the slope of ``psi``."""
    return apply_elemwise(TriGamma(), x)


def zeta(s: TensorLike, q: TensorLike = 1) -> Variable:
    """Hurwitz' zeta function; with ``q=1`` Riemann's. NaN for ``s < 1``, as SciPy's.

    >>> round(float(zeta(2.0).eval()), 6)
    1.644934
    """
    return apply_elemwise(Zeta(), s, q)


OPERATORS = {"erf": erf, "gammaln": gammaln}
