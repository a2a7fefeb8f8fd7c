"""Incomplete gamma and beta functions, their inverses and derivatives; Owen's T function."""

from __future__ import annotations

import mpmath
import numpy as np
import scipy.integrate
import scipy.special as sp

from symdnn.ops.elementwise import incomplete as I
from tests.op_table.record import OpCase, normal, uniform

K, POSITIVE, UNIT = uniform(0.5, 9, 2, 3), uniform(0.5, 3, 2, 3), uniform(0.05, 0.95, 2, 3)


@np.vectorize
def beta_integral(a, b, x):
    f = lambda t: t ** (a - 1) * (1 - t) ** (b - 1)  # noqa: E731
    return scipy.integrate.quad(f, 0, x)[0] / scipy.integrate.quad(f, 0, 1)[0]


@np.vectorize
def beta_slope(which, a, b, x):
    """By a difference that is so small that it is exact."""
    with mpmath.workdps(60):
        h = mpmath.mpf(10) ** -20
        orders = [mpmath.mpf(a), mpmath.mpf(b)]
        ends = []
        for sign in (1, -1):
            moved = list(orders)
            moved[which] += sign * h
            ends.append(mpmath.betainc(*moved, 0, x, regularized=True))
        return float((ends[0] - ends[1]) / (2 * h))


@np.vectorize
def draw_slope(k, log_x):
    """The motion of a quantile of the gamma distribution, by differences."""
    with mpmath.workdps(60):
        x, h = mpmath.exp(log_x), mpmath.mpf(10) ** -20
        ends = [mpmath.gammainc(mpmath.mpf(k) + s, 0, x, regularized=True) for s in (h, -h)]
        density = mpmath.exp(k * mpmath.log(x) - x) / mpmath.gamma(k)
        return float((ends[1] - ends[0]) / (2 * h) / density)


@np.vectorize
def owens_integral(h, a):
    f = lambda t: np.exp(-0.5 * h * h * (1 + t * t)) / (1 + t * t)  # noqa: E731
    return scipy.integrate.quad(f, 0, a)[0] / (2 * np.pi)


def turned(k, x):
    """The motion of a quantile of von Mises' distribution, by differences of SciPy's integral."""

    def below(k, x):
        f = lambda t: np.exp(k * (np.cos(t) - 1))  # noqa: E731
        return scipy.integrate.quad(f, 0, x, epsabs=1e-14)[0] / (2 * np.pi * sp.i0e(k))

    h = 1e-4
    slope = 8 * (below(k + h, x) - below(k - h, x)) - below(k + 2 * h, x) + below(k - 2 * h, x)
    return -slope / (12 * h) * 2 * np.pi * sp.i0e(k) / np.exp(k * (np.cos(x) - 1))


CASES = [
    OpCase("von_mises_draw_slope", (I.VonMisesDrawSlope,), I.von_mises_draw_slope,
           (uniform(0.5, 6, 4, 5), uniform(-2, 2, 4, 5)), np.vectorize(turned), rtol=1e-7),
    OpCase("betaln", (I.BetaLn,), I.betaln, (POSITIVE, K),
           lambda a, b: sp.gammaln(a) + sp.gammaln(b) - sp.gammaln(a + b), rtol=1e-12),
    OpCase("betaln_far", (I.BetaLn,), I.betaln,
           (lambda rng: 10 ** rng.uniform(-3, 9, (5, 9)), lambda rng: 10 ** rng.uniform(-3, 4, 9)),
           np.vectorize(lambda a, b: float(mpmath.log(mpmath.beta(a, b)))), grad=False, rtol=1e-12),
    OpCase("betainc", (I.BetaInc,), I.betainc, (K, POSITIVE, UNIT), beta_integral, rtol=1e-9),
    OpCase("betainc_of_point", (I.BetaInc,), lambda x: I.betainc(2.5, 3.5, x), (UNIT,),
           lambda x: beta_integral(2.5, 3.5, x), rtol=1e-9),
    OpCase("betaincc", (I.BetaIncC,), I.betaincc, (K, POSITIVE, UNIT),
           lambda a, b, x: 1 - beta_integral(a, b, x), rtol=1e-9),
    OpCase("betainc_slope_a", (I.BetaIncSlopeA,), I.BetaIncSlopeA(), (K, POSITIVE, UNIT),
           lambda a, b, x: beta_slope(0, a, b, x), rtol=1e-12),
    OpCase("betainc_slope_b", (I.BetaIncSlopeB,), I.BetaIncSlopeB(), (K, POSITIVE, UNIT),
           lambda a, b, x: beta_slope(1, a, b, x), rtol=1e-12),
    OpCase("betaincinv", (I.BetaIncInv,), I.betaincinv, (K, POSITIVE, UNIT),
           sp.betaincinv, rtol=1e-12),
    OpCase("betainccinv", (I.BetaIncCInv,), I.betainccinv, (K, POSITIVE, UNIT),
           sp.betainccinv, rtol=1e-12),
    OpCase("gamma_draw_slope", (I.GammaDrawSlope,), I.gamma_draw_slope,
           (uniform(0.2, 20, 4, 5), uniform(-3, 4, 4, 5)), draw_slope, rtol=1e-12),
    OpCase("gammaincinv", (I.GammaIncInv,), I.gammaincinv, (K, UNIT), sp.gammaincinv, rtol=1e-12),
    OpCase("gammainccinv", (I.GammaIncCInv,), I.gammainccinv, (K, UNIT), sp.gammainccinv,
           rtol=1e-12),
    OpCase("owens_t", (I.OwensT,), I.owens_t, (normal(4, 5), normal(4, 5, scale=3.0)),
           owens_integral, rtol=1e-9),
]  # fmt: skip
