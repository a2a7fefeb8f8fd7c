from __future__ import annotations

import mpmath
import numpy as np
import scipy.integrate
import scipy.special as sp

from symdnn.ops.elementwise import bessel as B
from symdnn.ops.elementwise import entropy as E
from symdnn.ops.elementwise import incomplete as I
from symdnn.ops.elementwise import of_order as F
from symdnn.ops.elementwise import special as S
from tests.op_table.record import OpCase, integers, normal, uniform

X, POSITIVE = normal(2, 3), uniform(0.5, 3, 2, 3)
ORDERS = integers(0, 4, 2, 1, dtype="int8")


@np.vectorize
def erf_integral(x):
    return 2 / np.sqrt(np.pi) * scipy.integrate.quad(lambda t: np.exp(-t * t), 0, x)[0]


@np.vectorize
def gamma_integral(x):
    return scipy.integrate.quad(lambda t: t ** (x - 1) * np.exp(-t), 0, np.inf)[0]


@np.vectorize
def gammainc_integral(k, x):
    return scipy.integrate.quad(lambda t: t ** (k - 1) * np.exp(-t), 0, x)[0] / gamma_integral(k)


@np.vectorize
def bessel_integral(n, x):
    return scipy.integrate.quad(lambda t: np.cos(n * t - x * np.sin(t)), 0, np.pi)[0] / np.pi


@np.vectorize
def modified_bessel_integral(n, x):
    return scipy.integrate.quad(lambda t: np.exp(x * np.cos(t)) * np.cos(n * t) / np.pi, 0, np.pi)[
        0
    ]


@np.vectorize
def trigamma_series(x):
    k = np.arange(200_000)
    return np.sum(1 / (x + k) ** 2) + 1 / (x + 200_000)


@np.vectorize
def slope_of_gammainc(k, x):
    """The derivative of the integrals' quotient, by differentiating under the integral."""
    rising = scipy.integrate.quad(lambda t: np.log(t) * t ** (k - 1) * np.exp(-t), 0, x,
                                  epsabs=1e-13, epsrel=1e-13)[0]  # fmt: skip
    return rising / sp.gamma(k) - sp.gammainc(k, x) * sp.psi(k)


def zero_sometimes(*shape):
    return lambda rng: np.where(rng.random(shape) < 0.4, 0.0, rng.uniform(0.5, 2, shape))


def slope_of_erfcx(x):
    """By an integral: erfcx(x) is 2 / sqrt(pi) times that of exp(-t^2 - 2 x t) over t > 0."""
    t, w = np.polynomial.legendre.leggauss(400)
    t, w = 6 * (t + 1), 6 * w
    return 2 / np.sqrt(np.pi) * np.sum(w * -2 * t * np.exp(-t * t - 2 * x[..., None] * t), axis=-1)


CASES = [
    OpCase("erf", (S.Erf,), S.erf, (X,), erf_integral),
    OpCase("erf_float32", (S.Erf,), S.erf, (normal(2, 3, dtype="float32"),), erf_integral,
           rtol=1e-5),
    OpCase("erf_int", (S.Erf,), S.erf, (ORDERS,), lambda x: erf_integral(x).astype("float32"),
           rtol=1e-5),
    OpCase("erfc", (S.Erfc,), S.erfc, (X,), lambda x: 1 - erf_integral(x)),
    OpCase("erfcx", (S.Erfcx,), S.erfcx, (X,), lambda x: np.exp(x * x) * sp.erfc(x)),
    OpCase("erfcx_slope", (S.ErfcxSlope,), lambda x: S.ErfcxSlope()(x),
           (uniform(-2, 30, 3, 5),), slope_of_erfcx, rtol=1e-11),
    OpCase("exprel", (S.ExpRel,), S.exprel, (normal(3, 4),), lambda x: (np.exp(x) - 1) / x),
    OpCase("exprel_near", (S.ExpRel,), S.exprel, (normal(9, scale=1e-4),),
           lambda x: 1 + x / 2 + x * x / 6),
    OpCase("exprel_far", (S.ExpRel,), S.exprel, (uniform(-50, 90, 40),), sp.exprel),
    OpCase("exprel_int", (S.ExpRel,), S.exprel, (ORDERS,), lambda x: sp.exprel(x).astype("float32"),
           rtol=1e-5),
    OpCase("exprel_empty", (S.ExpRel,), S.exprel, (normal(0, 2),), sp.exprel, grad=False),
    OpCase("log_erfc", (S.LogErfc,), S.log_erfc, (uniform(-3, 40, 3, 5),),
           lambda x: sp.log_ndtr(-np.sqrt(2) * x) + np.log(2), rtol=1e-12),
    OpCase("log_erfc_float32", (S.LogErfc,), S.log_erfc, (uniform(-3, 40, 3, 5, dtype="float32"),),
           lambda x: (sp.log_ndtr(-np.sqrt(2) * x.astype("float64")) + np.log(2)).astype("float32"),
           rtol=1e-6),
    OpCase("log_ndtr", (S.LogHalfErfc,), S.log_ndtr, (uniform(-3, 3, 3, 5),), sp.log_ndtr,
           rtol=1e-12),
    OpCase("ndtr", (S.Erfc,), S.ndtr, (X,), sp.ndtr),
    OpCase("erfinv", (S.ErfInv,), lambda x: S.erfinv(S.erf(x)), (X,), lambda x: x),
    OpCase("erfinv_plain", (S.ErfInv,), S.erfinv, (uniform(-0.9, 0.9, 2, 3),)),
    OpCase("erfcinv", (S.ErfcInv,), lambda x: S.erfcinv(S.erfc(x)), (X,), lambda x: x),
    OpCase("erfcinv_plain", (S.ErfcInv,), S.erfcinv, (uniform(0.1, 1.9, 2, 3),)),
    OpCase("gamma", (S.Gamma,), S.gamma, (POSITIVE,), gamma_integral),
    OpCase("gammaln", (S.GammaLn,), S.gammaln, (POSITIVE,),
           lambda x: np.log(gamma_integral(x))),
    OpCase("psi", (S.Psi,), S.psi, (POSITIVE,), np.vectorize(lambda x: float(mpmath.psi(0, x)))),
    OpCase("tri_gamma", (S.TriGamma,), S.tri_gamma, (POSITIVE,), trigamma_series),
    OpCase("polygamma", (S.PolyGamma,), S.polygamma, (ORDERS, POSITIVE), sp.polygamma),
    OpCase("gammainc", (I.GammaInc,), lambda x: I.gammainc(2.5, x), (POSITIVE,),
           lambda x: gammainc_integral(2.5, x)),
    OpCase("gammaincc", (I.GammaIncC,), lambda x: I.gammaincc(2.5, x), (POSITIVE,),
           lambda x: 1 - gammainc_integral(2.5, x)),
    OpCase("gammainc_of_both", (I.GammaInc,), I.gammainc, (uniform(0.5, 9, 2, 3), POSITIVE),
           gammainc_integral),
    OpCase("gammaincc_of_both", (I.GammaIncC,), I.gammaincc, (uniform(0.5, 9, 2, 3), POSITIVE),
           lambda k, x: 1 - gammainc_integral(k, x)),
    OpCase("chi2sf_of_both", (I.GammaIncC,), I.chi2sf, (POSITIVE, uniform(0.5, 9, 2, 3)),
           lambda x, k: sp.chdtrc(k, x)),
    OpCase("jv_of_both", (B.Jv,), B.jv, (uniform(0.5, 3, 2, 3), POSITIVE), sp.jv),
    OpCase("iv_of_both", (B.Iv,), B.iv, (uniform(0.5, 3, 2, 3), POSITIVE), sp.iv),
    OpCase("order_slope", (F.OrderSlope,), F.OrderSlope(I.GammaInc()),
           (uniform(0.5, 9, 2, 3), POSITIVE), slope_of_gammainc, rtol=1e-8),
    OpCase("chi2sf", (I.GammaIncC,), lambda x: I.chi2sf(x, 3), (POSITIVE,),
           lambda x: sp.chdtrc(3, x)),
    OpCase("jv", (B.Jv,), B.jv, (ORDERS, X), bessel_integral),
    OpCase("j0", (B.Jv,), B.j0, (X,), lambda x: bessel_integral(0, x)),
    OpCase("j1", (B.Jv,), B.j1, (X,), lambda x: bessel_integral(1, x)),
    OpCase("iv", (B.Iv,), B.iv, (ORDERS, X), modified_bessel_integral),
    OpCase("i0", (B.Iv,), B.i0, (X,), sp.i0),
    OpCase("i1", (B.Iv,), B.i1, (X,), sp.i1),
    OpCase("i0e", (B.I0e,), B.i0e, (normal(4, 9, scale=20.0),), sp.i0e, rtol=1e-14),
    OpCase("i0e_near", (B.I0e,), B.i0e, (X,), sp.i0e, rtol=1e-14),
    OpCase("i1e", (B.I1e,), B.i1e, (normal(4, 9, scale=20.0),), sp.i1e, rtol=1e-14),
    OpCase("i1e_near", (B.I1e,), B.i1e, (X,), sp.i1e, rtol=1e-14),
    OpCase("ndtri", (S.Ndtri,), S.ndtri, (uniform(0.01, 0.99, 2, 3),),
           lambda p: -np.sqrt(2) * sp.erfcinv(2 * p), rtol=1e-12),
    OpCase("logit", (S.Logit,), S.logit, (uniform(0.01, 0.99, 4, 9),),
           lambda p: np.log(p / (1 - p)), rtol=1e-13),
    OpCase("zeta", (S.Zeta,), S.zeta, (uniform(1.1, 9, 2, 3), uniform(0.5, 30, 2, 3)),
           np.vectorize(lambda s, q: float(mpmath.zeta(s, q))), rtol=1e-12),
    OpCase("xlogx", (E.XLogX,), E.xlogx, (POSITIVE,), lambda x: x * np.log(x)),
    OpCase("xlogx_zeros", (E.XLogX,), E.xlogx, (zero_sometimes(3, 4),), lambda x: sp.xlogy(x, x),
           grad=False),
    OpCase("xlogy0", (E.XLogY,), E.xlogy0, (X, POSITIVE), lambda x, y: x * np.log(y)),
    OpCase("xlogy0_zeros", (E.XLogY,), lambda x, y: E.xlogy0(x, x * y),
           (zero_sometimes(3, 4), uniform(1, 2, 4)),
           lambda x, y: sp.xlogy(x, x * y), grad=False),
    OpCase("rel_entr", (E.RelEntr,), E.rel_entr, (POSITIVE, uniform(0.2, 9, 3)),
           lambda x, y: x * np.log(x / y)),
    OpCase("rel_entr_near", (E.RelEntr,), lambda x, d: E.rel_entr(x, x * (1 - d)),
           (POSITIVE, normal(2, 3, scale=1e-9)), lambda x, d: x * (d + d * d / 2), rtol=1e-6,
           grad=False),
    OpCase("rel_entr_zeros", (E.RelEntr,), lambda x, y: E.rel_entr(x, x * y - 1),
           (zero_sometimes(3, 4), uniform(-2, 2, 4)),
           lambda x, y: sp.rel_entr(x, x * y - 1), grad=False),
    OpCase("rel_entr_int", (E.RelEntr,), E.rel_entr, (ORDERS, integers(1, 4, 3, dtype="int8")),
           lambda x, y: (x * np.log(np.maximum(x, 1) / y)).astype("float32"), rtol=1e-5),
    OpCase("kl_div", (E.KlDiv,), E.kl_div, (POSITIVE, uniform(0.2, 9, 3)),
           lambda x, y: x * np.log(x / y) - x + y),
    OpCase("kl_div_near", (E.KlDiv,), lambda x, d: E.kl_div(x, x * (1 - d)),
           (POSITIVE, normal(2, 3, scale=1e-3)), lambda x, d: x * d * d * (1 / 2 + d / 6),
           rtol=1e-4, grad=False),
    OpCase("kl_div_zeros", (E.KlDiv,), lambda x, y: E.kl_div(x, x * y - 1),
           (zero_sometimes(3, 4), uniform(-2, 2, 4)),
           lambda x, y: sp.kl_div(x, x * y - 1), grad=False),
    OpCase("kl_div_int", (E.KlDiv,), E.kl_div, (ORDERS, integers(1, 4, 3, dtype="int8")),
           lambda x, y: sp.kl_div(x, y).astype("float32"), rtol=1e-5),
    OpCase("kl_div_empty", (E.KlDiv,), E.kl_div, (normal(0, 2), normal(2)),
           lambda x, y: x + y, grad=False),
    OpCase("xlog1py", (E.XLog1pY,), E.xlog1py, (X, POSITIVE), lambda x, y: x * np.log(1 + y)),
    OpCase("xlog1py_near", (E.XLog1pY,), E.xlog1py, (X, normal(2, 3, scale=1e-9)),
           lambda x, y: x * (y - y * y / 2), rtol=1e-14, grad=False),
    OpCase("xlog1py_zeros", (E.XLog1pY,), lambda x, y: E.xlog1py(x, x * y - 1),
           (zero_sometimes(3, 4), uniform(1, 2, 4)),
           lambda x, y: sp.xlogy(x, x * y), grad=False),
    OpCase("xlog1py_int", (E.XLog1pY,), E.xlog1py, (ORDERS, ORDERS),
           lambda x, y: (x * np.log(1.0 + y)).astype("float32"), rtol=1e-5),
    OpCase("xlog1py_empty", (E.XLog1pY,), E.xlog1py, (normal(0, 2), normal(2)),
           lambda x, y: x * y, grad=False),
]  # fmt: skip
