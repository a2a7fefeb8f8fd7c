"""Incomplete gamma and beta functions, their inverses, and Owen's T function.

The references are SciPy's. Derivatives in the orders are exact, too: those of
:mod:`symdnn.ops.core.incomplete_values`.
"""

from __future__ import annotations

from functools import partial
from math import pi, sqrt
from typing import Any, ClassVar

import numpy as np

from symdnn.graph.op import Grads, Vars
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.core.incomplete_values import (
    beta_inc_of,
    beta_inc_slope_of,
    betaln_of,
    gamma_draw_slope_of,
    von_mises_draw_slope_of,
)
from symdnn.ops.core.python_numbers import settled
from symdnn.ops.elementwise.arithmetic import sqr
from symdnn.ops.elementwise.bessel import i0e, i1e
from symdnn.ops.elementwise.entropy import xlog1py, xlogy0
from symdnn.ops.elementwise.math import cos, exp, log, log1p, sin
from symdnn.ops.elementwise.of_order import OfOrder, SpecialFunction
from symdnn.ops.elementwise.special import erf, gammaln, psi
from symdnn.ops.elementwise.special_values import scipy_function
from symdnn.ops.elemwise import apply_elemwise, as_computed, like

__all__ = [
    "BetaInc", "BetaIncC", "BetaIncCInv", "BetaIncInv", "BetaIncSlopeA", "BetaIncSlopeB", "BetaLn",
    "GammaDrawSlope", "GammaInc", "GammaIncC", "GammaIncCInv", "GammaIncInv", "OwensT",
    "VonMisesDrawSlope", "betainc", "betaincc", "betainccinv", "betaincinv", "betaln", "chi2sf",
    "gamma_draw_slope", "gammainc", "gammaincc", "gammainccinv", "gammaincinv", "owens_t",
    "von_mises_draw_slope",
]  # fmt: skip


# -- gamma ----------------------------------------------------------------------------------------


class GammaInc(OfOrder):
    """The regularised lower incomplete gamma function of ``k`` and ``x``."""

    function = scipy_function("gammainc")
    formula = "gammainc"
    sign: ClassVar[int] = 1

    def point_slope(self, *operands: Variable) -> Variable:
        k, x, _ = operands
        return self.sign * exp(xlogy0(k - 1, x) - x - gammaln(k))

    def order_slope(self, order: int, *operands: Variable) -> Variable:
        k, x, _ = operands
        return -self.sign * exp(xlogy0(k, x) - x - gammaln(k)) * gamma_draw_slope(k, log(x))

    def step(self, order: int, *operands: Array) -> Any:
        return np.minimum(operands[0] / 4, np.sqrt(operands[0]) / 5)


class GammaIncC(GammaInc):
    """The regularised upper incomplete gamma function of ``k`` and ``x``."""

    function = scipy_function("gammaincc")
    formula = "gammaincc"
    sign: ClassVar[int] = -1


class GammaDrawSlope(OfOrder):
    """The derivative in ``k`` of ``log(x)``, where ``gammainc(k, x)`` is constant.

    The gradient of a gamma variate in its shape, of the shape and the variate's logarithm (Figurnov
    et al. 2018).
    """

    function = gamma_draw_slope_of
    formula = "gamma_draw_slope"

    def point_slope(self, *operands: Variable) -> Variable:
        k, log_x, y = operands
        return psi(k) - log_x + y * (exp(log_x) - k)

    def step(self, order: int, *operands: Array) -> Any:
        return np.minimum(operands[0] / 4, np.sqrt(operands[0]) / 5)


class GammaIncInv(OfOrder):
    """The ``x`` for which ``gammainc(k, x)`` is ``p``."""

    function = scipy_function("gammaincinv")
    formula = "gammaincinv"
    sign: ClassVar[int] = 1

    def point_slope(self, *operands: Variable) -> Variable:
        k, _, x = operands
        return self.sign * exp(gammaln(k) + x - xlogy0(k - 1, x))

    def order_slope(self, order: int, *operands: Variable) -> Variable:
        k, _, x = operands
        return x * gamma_draw_slope(k, log(x))


class GammaIncCInv(GammaIncInv):
    """The ``x`` for which ``gammaincc(k, x)`` is ``p``."""

    function = scipy_function("gammainccinv")
    formula = "gammainccinv"
    sign: ClassVar[int] = -1


# -- beta -----------------------------------------------------------------------------------------


class BetaLn(SpecialFunction):
    """``log |B(a, b)|`` of the beta function ``gamma(a) gamma(b) / gamma(a + b)``."""

    function = betaln_of
    formula = "betaln"
    arity: ClassVar[int] = 2
    commutative: ClassVar[bool] = True

    def scalar_vjp(self, inputs: Vars, output: Variable, cotangent: Variable) -> Grads:
        a, b = as_computed(inputs, output)
        both = psi(a + b)
        return [cotangent * (psi(a) - both), cotangent * (psi(b) - both)]


def _log_density(a: Variable, b: Variable, x: Variable) -> Variable:
    """The logarithm of the beta distribution's density."""
    return xlogy0(a - 1, x) + xlog1py(b - 1, -x) - betaln(a, b)


class BetaInc(OfOrder):
    """The regularised incomplete beta function of ``a``, ``b`` and ``x``."""

    function = partial(beta_inc_of, "betainc")
    formula = "betainc"
    arity: ClassVar[int] = 3
    sign: ClassVar[int] = 1

    def point_slope(self, *operands: Variable) -> Variable:
        a, b, x, _ = operands
        return self.sign * exp(_log_density(a, b, x))

    def order_slope(self, order: int, *operands: Variable) -> Variable:
        return self.sign * _SLOPES[order](*operands[:-1])


class BetaIncC(BetaInc):
    """``1 - betainc(a, b, x)``, exact where that is small."""

    function = partial(beta_inc_of, "betaincc")
    formula = "betaincc"
    sign: ClassVar[int] = -1


class BetaIncSlope(OfOrder):
    """The derivative of ``betainc(a, b, x)`` in ``a`` (``which`` 0) or ``b`` (1)."""

    abstract: ClassVar[bool] = True
    arity: ClassVar[int] = 3
    which: ClassVar[int]

    def point_slope(self, *operands: Variable) -> Variable:
        a, b, x, _ = operands
        here = log1p(-x) - psi(b) if self.which else log(x) - psi(a)
        return exp(_log_density(a, b, x)) * (here + psi(a + b))

    def step(self, order: int, *operands: Array) -> Any:
        return np.minimum(operands[order] / 4, np.sqrt(operands[order]) / 5)


class BetaIncSlopeA(BetaIncSlope):
    """The derivative of ``betainc(a, b, x)`` in ``a``."""

    function = partial(beta_inc_slope_of, 0)
    formula = "betainc_slope_a"
    which: ClassVar[int] = 0


class BetaIncSlopeB(BetaIncSlope):
    """The derivative of ``betainc(a, b, x)`` in ``b``."""

    function = partial(beta_inc_slope_of, 1)
    formula = "betainc_slope_b"
    which: ClassVar[int] = 1


_SLOPES = (BetaIncSlopeA(), BetaIncSlopeB())


class BetaIncInv(OfOrder):
    """The ``x`` for which ``betainc(a, b, x)`` is ``p``."""

    function = partial(beta_inc_of, "betaincinv")
    formula = "betaincinv"
    arity: ClassVar[int] = 3
    sign: ClassVar[int] = 1

    def point_slope(self, *operands: Variable) -> Variable:
        a, b, _, x = operands
        return self.sign * exp(-_log_density(a, b, x))

    def order_slope(self, order: int, *operands: Variable) -> Variable:
        a, b, _, x = operands
        return -_SLOPES[order](a, b, x) * exp(-_log_density(a, b, x))


class BetaIncCInv(BetaIncInv):
    """The ``x`` for which ``betaincc(a, b, x)`` is ``p``."""

    function = partial(beta_inc_of, "betainccinv")
    formula = "betainccinv"
    sign: ClassVar[int] = -1


# -- Owen's T -------------------------------------------------------------------------------------


class OwensT(SpecialFunction):
    """The probability of ``X > h`` and ``0 < Y < a X`` for two standard normal variables."""

    function = scipy_function("owens_t")
    formula = "owens_t"
    arity: ClassVar[int] = 2

    def scalar_vjp(self, inputs: Vars, output: Variable, cotangent: Variable) -> Grads:
        h, a = as_computed(inputs, output)
        decay, width = exp(like(-0.5, output) * sqr(h)), 1 + sqr(a)
        to_h = like(-sqrt(0.125 / pi), output) * decay * erf(like(sqrt(0.5), output) * a * h)
        to_a = exp(like(-0.5, output) * sqr(h) * width) / (width * like(2 * pi, output))
        return [cotangent * to_h, cotangent * to_a]


# -- von Mises ------------------------------------------------------------------------------------


class VonMisesDrawSlope(OfOrder):
    """The derivative in ``k`` of an angle ``x`` of which von Mises' probability is constant.

    The gradient of a variate of mean 0 and concentration ``k`` (Figurnov et al. 2018).
    """

    function = von_mises_draw_slope_of
    formula = "von_mises_draw_slope"

    def point_slope(self, *operands: Variable) -> Variable:
        k, x, y = operands
        return i1e(k) / i0e(k) - cos(x) + y * k * sin(x)

    def step(self, order: int, *operands: Array) -> Any:
        return np.minimum(0.1, operands[0] / 4)


# -- builders -------------------------------------------------------------------------------------


def gammainc(k: TensorLike, x: TensorLike) -> Variable:
    """The regularised lower incomplete gamma function."""
    return apply_elemwise(GammaInc(), k, x)


def gammaincc(k: TensorLike, x: TensorLike) -> Variable:
    """The regularised upper incomplete gamma function."""
    return apply_elemwise(GammaIncC(), k, x)


def gammaincinv(k: TensorLike, p: TensorLike) -> Variable:
    """The ``x`` for which ``gammainc(k, x)`` is ``p`` (SciPy's name)."""
    return apply_elemwise(GammaIncInv(), k, p)


def gammainccinv(k: TensorLike, p: TensorLike) -> Variable:
    """The ``x`` for which ``gammaincc(k, x)`` is ``p`` (SciPy's name)."""
    return apply_elemwise(GammaIncCInv(), k, p)


def gamma_draw_slope(k: TensorLike, log_x: TensorLike) -> Variable:
    """The derivative in ``k`` of ``log(x)``, where ``gammainc(k, x)`` is constant."""
    return apply_elemwise(GammaDrawSlope(), k, log_x)


def von_mises_draw_slope(k: TensorLike, x: TensorLike) -> Variable:
    """The derivative in ``k`` of an angle ``x`` of which von Mises' probability is constant."""
    return apply_elemwise(VonMisesDrawSlope(), k, x)


def chi2sf(x: TensorLike, k: TensorLike) -> Variable:
    """The survival function of chi squared with ``k`` degrees of freedom."""
    half = np.float32(0.5)
    dof, v = settled([as_variable(k), as_variable(x)])
    return gammaincc(dof * half, v * half)


def betaln(a: TensorLike, b: TensorLike) -> Variable:
    """The logarithm of the beta function's absolute value (SciPy's name).

    It is infinite where ``a`` or ``b`` is 0 or a negative integer, for which SciPy has the limit
    with some integers as the other operand.
    """
    return apply_elemwise(BetaLn(), a, b)


def betainc(a: TensorLike, b: TensorLike, x: TensorLike) -> Variable:
    """The regularised incomplete beta function, with gradients in all operands (SciPy's name).

    >>> float(betainc(2.0, 3.0, 0.5).eval())
    0.6875
    """
    return apply_elemwise(BetaInc(), a, b, x)


def betaincc(a: TensorLike, b: TensorLike, x: TensorLike) -> Variable:
    """``1 - betainc(a, b, x)``, exact where that is small (SciPy's name)."""
    return apply_elemwise(BetaIncC(), a, b, x)


def betaincinv(a: TensorLike, b: TensorLike, p: TensorLike) -> Variable:
    """The ``x`` for which ``betainc(a, b, x)`` is ``p`` (SciPy's name)."""
    return apply_elemwise(BetaIncInv(), a, b, p)


def betainccinv(a: TensorLike, b: TensorLike, p: TensorLike) -> Variable:
    """The ``x`` for which ``betaincc(a, b, x)`` is ``p`` (SciPy's name)."""
    return apply_elemwise(BetaIncCInv(), a, b, p)


def owens_t(h: TensorLike, a: TensorLike) -> Variable:
    """Owen's T function (SciPy's name): of the cumulative skew normal and bivariate normal.

    >>> round(float(owens_t(0.5, 1.0).eval()), 6)
    0.106671
    """
    return apply_elemwise(OwensT(), h, a)
