"""Special functions: error functions, gamma functions, Bessel functions, ``x log y``.

The references are SciPy's (``scipy.special``). Ints give ``floatX``.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from math import pi, sqrt
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import NonDifferentiable
from symdnn.graph.op import Grads, Vars
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Constant, Variable, as_variable
from symdnn.ops.core.dtype import float_of
from symdnn.ops.core.python_numbers import settled
from symdnn.ops.elementwise.arithmetic import cast, maximum, sqr
from symdnn.ops.elementwise.comparison import eq, isnan, lt, switch
from symdnn.ops.elementwise.math import exp, log, log1p
from symdnn.ops.elementwise.special_values import (
    erfcx_slope_of,
    log_erfc_of,
    log_half_erfc_of,
    scipy_function,
)
from symdnn.ops.elemwise import FloatElemwise, apply_elemwise, as_computed, like

__all__ = [
    "Erf", "ErfInv", "Erfc", "ErfcInv", "Erfcx", "ErfcxSlope", "Gamma", "GammaInc", "GammaIncC",
    "GammaLn", "Iv", "Jv", "LogErfc", "LogHalfErfc", "OrderSlope", "PolyGamma", "Psi", "XLog1pY",
    "XLogX", "XLogY", "chi2sf", "erf", "erfc", "erfcinv", "erfcx", "erfinv", "gamma", "gammainc",
    "gammaincc", "gammaln", "i0", "i1", "iv", "j0", "j1", "jv", "log_erfc", "log_half_erfc",
    "log_ndtr", "ndtr", "polygamma", "psi", "tri_gamma", "xlog1py", "xlogx", "xlogy0",
]  # fmt: skip


@dataclass(frozen=True)
class SpecialFunction(FloatElemwise):
    """Base of the functions of real operands that SciPy computes."""

    abstract: ClassVar[bool] = True
    kinds: ClassVar[str] = "bif"


@dataclass(frozen=True)
class Erf(SpecialFunction):
    """The error function, ``2 / sqrt(pi)`` times the integral of ``exp(-t^2)`` from 0 to x."""

    function = scipy_function("erf")

    def slope(self, x: Variable, y: Variable) -> Variable:
        return like(2 / sqrt(pi), y) * exp(-sqr(x))


@dataclass(frozen=True)
class Erfc(SpecialFunction):
    """``1 - erf(x)``, exact where that is small."""

    function = scipy_function("erfc")

    def slope(self, x: Variable, y: Variable) -> Variable:
        return like(-2 / sqrt(pi), y) * exp(-sqr(x))


@dataclass(frozen=True)
class Erfcx(SpecialFunction):
    """``exp(x^2) erfc(x)``, which neither under- nor overflows for large x."""

    function = scipy_function("erfcx")

    def slope(self, x: Variable, y: Variable) -> Variable:
        return apply_elemwise(ErfcxSlope(), x)


@dataclass(frozen=True)
class ErfcxSlope(SpecialFunction):
    """The derivative of :class:`Erfcx`, to full precision also for large x."""

    function = erfcx_slope_of

    def slope(self, x: Variable, y: Variable) -> Variable:
        return 2 * (erfcx(x) + x * y)


@dataclass(frozen=True)
class LogErfc(SpecialFunction):
    """``log(erfc(x))``, exact also where ``erfc(x)`` is rounded to 0."""

    function = log_erfc_of

    def slope(self, x: Variable, y: Variable) -> Variable:
        # Below the cut erfc is 2, and erfcx and its derivatives would overflow.
        cut = like(-2.6 if y.type.dtype == "float16" else -6, y)
        far = like(-1 / sqrt(pi), y) * exp(-sqr(x))
        return switch(lt(x, cut), far, like(-2 / sqrt(pi), y) / erfcx(maximum(x, cut)))


@dataclass(frozen=True)
class ErfInv(SpecialFunction):
    """The inverse of ``erf``, on (-1, 1)."""

    function = scipy_function("erfinv")

    def slope(self, x: Variable, y: Variable) -> Variable:
        return like(sqrt(pi) / 2, y) * exp(sqr(y))


@dataclass(frozen=True)
class ErfcInv(SpecialFunction):
    """The inverse of ``erfc``, on (0, 2)."""

    function = scipy_function("erfcinv")

    def slope(self, x: Variable, y: Variable) -> Variable:
        return like(-sqrt(pi) / 2, y) * exp(sqr(y))


@dataclass(frozen=True)
class Gamma(SpecialFunction):
    """The gamma function."""

    function = scipy_function("gamma")

    def slope(self, x: Variable, y: Variable) -> Variable:
        return y * psi(x)


@dataclass(frozen=True)
class GammaLn(SpecialFunction):
    """``log |gamma(x)|``."""

    function = scipy_function("gammaln")

    def slope(self, x: Variable, y: Variable) -> Variable:
        return psi(x)


@dataclass(frozen=True)
class Psi(SpecialFunction):
    """The digamma function: the slope of ``gammaln``."""

    function = scipy_function("psi")

    def slope(self, x: Variable, y: Variable) -> Variable:
        return tri_gamma(x)


@dataclass(frozen=True)
class OfOrder(SpecialFunction):
    """Base of functions of an order ``n`` and a point ``x``."""

    abstract: ClassVar[bool] = True
    arity: ClassVar[int] = 2

    def point_slope(self, n: Variable, x: Variable, y: Variable) -> Variable:
        """The derivative with respect to ``x``."""
        raise NotImplementedError

    def scalar_vjp(self, inputs: Vars, output: Variable, cotangent: Variable) -> Grads:
        order = inputs[0]
        n, x = as_computed(inputs, output)
        to_point = cotangent * self.point_slope(n, x, output)
        if not order.type.is_differentiable or isinstance(order, Constant):
            return [None, to_point]
        return [cotangent * OrderSlope(self)(n, x), to_point]

    def step(self, n: Array) -> Array:
        """The step in the order of :class:`OrderSlope`, by which the function changes little."""
        return np.full(n.shape, 0.1)


@dataclass(frozen=True)
class OrderSlope(SpecialFunction):
    """The derivative of ``of`` with respect to its order, for which no formula is known.

    Central differences at five steps, each half of the one before, extrapolated to 0 (Richardson
    1911) in float64: ten digits where the function itself has full precision.
    """

    arity: ClassVar[int] = 2
    of: OfOrder

    def reference(self, *inputs: Array) -> Array:
        out = TensorType(self.out_dtype(*(a.dtype.name for a in inputs))).numpy
        n, x = np.broadcast_arrays(*(np.asarray(a, np.float64) for a in inputs))
        step, table = self.of.step(n), []
        for _ in range(5):
            sides = (type(self.of).function(n + s, x) for s in (step, -step))
            table.append((next(sides) - next(sides)) / (2 * step))
            step = step / 2
        for power in range(1, 5):
            table = [(4**power * b - a) / (4**power - 1) for a, b in itertools.pairwise(table)]
        return np.asarray(table[0]).astype(out)

    def scalar_vjp(self, inputs: Vars, output: Variable, cotangent: Variable) -> Grads:
        raise NonDifferentiable(f"{self.of}: its second derivative in the order is not known")


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


@dataclass(frozen=True)
class PolyGamma(OfOrder):
    """The ``n``-th derivative of ``psi`` at ``x``; ``n`` is a whole number, and has no gradient."""

    function = _polygamma

    def scalar_vjp(self, inputs: Vars, output: Variable, cotangent: Variable) -> Grads:
        return [None, super().scalar_vjp(inputs, output, cotangent)[1]]

    def point_slope(self, n: Variable, x: Variable, y: Variable) -> Variable:
        return polygamma(n + 1, x)


@dataclass(frozen=True)
class GammaInc(OfOrder):
    """The regularised lower incomplete gamma function of ``k`` and ``x``."""

    function = scipy_function("gammainc")

    def step(self, n: Array) -> Any:
        return np.minimum(n / 4, np.sqrt(n) / 5)

    def point_slope(self, n: Variable, x: Variable, y: Variable) -> Variable:
        return exp((n - 1) * log(x) - x - gammaln(n))


@dataclass(frozen=True)
class GammaIncC(OfOrder):
    """The regularised upper incomplete gamma function of ``k`` and ``x``."""

    function = scipy_function("gammaincc")

    step = GammaInc.step

    def point_slope(self, n: Variable, x: Variable, y: Variable) -> Variable:
        return -exp((n - 1) * log(x) - x - gammaln(n))


@dataclass(frozen=True)
class Jv(OfOrder):
    """The Bessel function of the first kind, of order ``n``."""

    function = scipy_function("jv")

    def point_slope(self, n: Variable, x: Variable, y: Variable) -> Variable:
        return (jv(n - 1, x) - jv(n + 1, x)) * like(0.5, y)


@dataclass(frozen=True)
class Iv(OfOrder):
    """The modified Bessel function of the first kind, of order ``n``."""

    function = scipy_function("iv")

    def point_slope(self, n: Variable, x: Variable, y: Variable) -> Variable:
        return (iv(n - 1, x) + iv(n + 1, x)) * like(0.5, y)


def _xlogx(x: Array) -> Array:
    return np.where(x == 0, 0, x * np.log(np.where(x == 0, 1, x)))


@dataclass(frozen=True)
class XLogX(FloatElemwise):
    """``x log(x)``, 0 at 0."""

    function = _xlogx
    kinds: ClassVar[str] = "bif"

    def slope(self, x: Variable, y: Variable) -> Variable:
        return 1 + log(x)


def _xlogy(x: Array, y: Array) -> Array:
    return np.where(x == 0, 0, x * np.log(np.where(x == 0, 1, y)))


@dataclass(frozen=True)
class XLogY(FloatElemwise):
    """``x log(y)``, 0 where ``x`` is 0."""

    function = _xlogy
    arity: ClassVar[int] = 2
    kinds: ClassVar[str] = "bif"

    def scalar_vjp(self, inputs: Vars, output: Variable, cotangent: Variable) -> Grads:
        x, y = as_computed(inputs, output)
        zero = eq(x, 0)
        to_y = switch(zero, like(0, cotangent), cotangent * x / switch(zero, like(1, y), y))
        return [cotangent * log(y), to_y]


@dataclass(frozen=True)
class XLog1pY(SpecialFunction):
    """``x log(1 + y)``, 0 where ``x`` is 0 and ``y`` is a number, exact where ``y`` is near 0."""

    function: ClassVar[Any] = scipy_function("xlog1py")
    arity: ClassVar[int] = 2

    def scalar_vjp(self, inputs: Vars, output: Any, cotangent: Any) -> Grads:
        x, y = as_computed(inputs, output)
        zero = eq(x, 0) & ~isnan(y)
        to_y = switch(zero, like(0, cotangent), cotangent * x / switch(zero, like(1, y), 1 + y))
        return [cotangent * log1p(y), to_y]


@dataclass(frozen=True)
class LogHalfErfc(SpecialFunction):
    """``log(erfc(x) / 2)``, to full precision also where that is near to 0."""

    function = log_half_erfc_of

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


def _floating(x: TensorLike) -> Variable:
    v = as_variable(x)
    return v if v.type.is_float else cast(v, float_of(v.type.dtype))


def erfinv(x: TensorLike) -> Variable:
    """The inverse of ``erf``."""
    return apply_elemwise(ErfInv(), x)


def erfcinv(x: TensorLike) -> Variable:
    """The inverse of ``erfc``."""
    return apply_elemwise(ErfcInv(), x)


def gamma(x: TensorLike) -> Variable:
    """The gamma function."""
    return apply_elemwise(Gamma(), x)


def gammaln(x: TensorLike) -> Variable:
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
    return polygamma(1, x)


def gammainc(k: TensorLike, x: TensorLike) -> Variable:
    """The regularised lower incomplete gamma function."""
    return apply_elemwise(GammaInc(), k, x)


def gammaincc(k: TensorLike, x: TensorLike) -> Variable:
    """The regularised upper incomplete gamma function."""
    return apply_elemwise(GammaIncC(), k, x)


def chi2sf(x: TensorLike, k: TensorLike) -> Variable:
    """The survival function of chi squared with ``k`` degrees of freedom."""
    half = np.float32(0.5)
    dof, v = settled([as_variable(k), as_variable(x)])
    return gammaincc(dof * half, v * half)


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


def xlogx(x: TensorLike) -> Variable:
    """``x log(x)``, 0 at 0."""
    return apply_elemwise(XLogX(), x)


def xlog1py(x: Any, y: Any) -> Variable:
    """``x log(1 + y)`` exact for ``y`` near 0; 0 where ``x`` is 0, also where ``y`` is -1."""
    return apply_elemwise(XLog1pY(), x, y)


def xlogy0(x: TensorLike, y: TensorLike) -> Variable:
    """``x log(y)``, 0 where ``x`` is 0, also where ``y`` is 0."""
    return apply_elemwise(XLogY(), x, y)


OPERATORS = {"erf": erf, "gammaln": gammaln}
