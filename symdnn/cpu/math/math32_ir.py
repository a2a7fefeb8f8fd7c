"""Functions of float32 that are computed in float32: three times as fast as in float64.

These are the functions that neural networks use most. Errors are below 2 ulp. There are no branches
and no tables; NaN, infinities, zeros and denormals give the same as in C. Polynomials are Chebyshev
interpolants or minimax, rounded to float32. gelu and erfc are in
:mod:`symdnn.cpu.math.math_gelu_erfc_ir`, sin, cos and tan in :mod:`symdnn.cpu.math.math_trig_ir`,
asin, acos and atan in :mod:`symdnn.cpu.math.math_arcs_ir`.

``exp``: 2^n exp(r), where x = n ln 2 + r and abs(r) <= ln(2) / 2; 2^n as two factors, so that
denormal results are rounded once and nothing overflows early. ``exp2``: r = (x - n) ln 2.
``log``: e ln 2 + log(1 + f), where x = 2^e (1 + f), 1/sqrt(2) <= 1 + f < sqrt(2). ``log2``: e +
log(1 + f) / ln 2. Those of whole powers of two are exact.
``log1p``: e ln 2 + log(1 + f), where 1 + x has the exponent e and f = x / 2^e + (1 / 2^e - 1).
``expm1``: 2^n (exp(r) - 1) + (2^n - 1), of halves so that 2^n may be as large as a float32.
``tanh``: an odd polynomial below 0.625, above it 1 - 2 / (exp(2 x) + 1).
``erf``: an odd polynomial below 0.9, above it 1 - exp(P(x)).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import log

from symdnn.cpu.math.lanes_ir import ROUND, Formula, Lane, Lanes, coefficients
from symdnn.cpu.math.math_double_ir import logarithm_ends

#: (exp(r) - 1 - r) / r^2 for |r| <= 0.347.
_EXP = coefficients(
    "0x1.6a452cp-10", "0x1.1239aap-7", "0x1.5558b8p-5", "0x1.555492p-3", "0x1.fffffcp-2",
)  # fmt: skip
#: (log(1 + f) - f + f^2 / 2) / f^3 for -0.293 <= f <= 0.415.
_LOG = coefficients(
    "0x1.1d7b2ap-4", "-0x1.d63002p-4", "0x1.dea674p-4", "-0x1.fcf5b6p-4", "0x1.23d1f8p-3",
    "-0x1.555b44p-3", "0x1.999d5cp-3", "-0x1.fffffcp-3", "0x1.555554p-2",
)  # fmt: skip
#: (tanh(x) / x - 1) / x^2 in x^2, for x <= 0.625.
_TANH = coefficients(
    "0x1.2c7d78p-9", "-0x1.1168b4p-7", "0x1.64a940p-6", "-0x1.ba08c2p-5", "0x1.1110eap-3",
    "-0x1.555556p-2",
)  # fmt: skip
#: erf(x) / x - 1 in x^2, for x <= 0.9: minimax, as those below.
_ERF = coefficients(
    "-0x1.3d1bcep-11", "0x1.47f206p-8", "-0x1.b6a90ep-6", "0x1.ce1c5ap-4", "-0x1.8126f0p-2",
    "0x1.06eba6p-3",
)  # fmt: skip
#: log(erfc(x)) for 0.9 <= x <= 4.
_LOG_ERFC = coefficients(
    "0x1.9fba8cp-13", "-0x1.91d060p-9", "0x1.6d9e0ap-6", "-0x1.aa738cp-4", "-0x1.4621b0p-1",
    "-0x1.20b754p+0", "-0x1.5d0670p-13",
)  # fmt: skip
_ROUND_BITS = 0x4B400000
_LN2_HIGH = float.fromhex("0x1.63p-1")  # few bits: its products with exponents are exact
_LN2_LOW = log(2) - _LN2_HIGH
_PER_LN2_HIGH = float.fromhex("0x1.715476p+0")  # of 1 / ln 2
_PER_LN2_LOW = 1 / log(2) - _PER_LN2_HIGH


def reduced(k: Lanes, x: Lane, base2: bool = False) -> tuple[Lane, Lane]:
    """exp(r) - 1, and what has the exponent n in its bits; ``base2``: of 2^x, with r of x - n."""
    if base2:
        bits = x + ROUND["float"]
        r = (x - (bits - ROUND["float"])) * log(2)
    else:
        bits = k.multiply_add(x, 1 / log(2), ROUND["float"])
        n = bits - ROUND["float"]
        r = k.multiply_add(n, -_LN2_LOW, k.multiply_add(n, -_LN2_HIGH, x))
    return k.multiply_add(k.polynomial(_EXP, r), r * r, r), bits


def power_of_two(n: Lane) -> Lane:
    """2^n, where the lowest bits of this integer are n."""
    return (n + 127 << 23).cast("float")


def _exp_of_normal(k: Lanes, x: Lane) -> Lane:
    """exp(x) for x whose result is a normal number; not for NaN."""
    q, bits = reduced(k, x)
    return ((q + 1.0).cast("i32") + (bits.cast("i32") << 23)).cast("float")


def _exponential(least: float, most: float, base2: bool, k: Lanes, x: Lane) -> Lane:
    """A function of which results are 0 below ``least`` and infinite above ``most``."""
    q, bits = reduced(k, k.held(least, most, x), base2)
    e = bits.cast("i32") - _ROUND_BITS
    first = k.two("ashr", e, 1)
    return (q + 1.0) * power_of_two(first) * power_of_two(e - first)


def _expm1(k: Lanes, x: Lane) -> Lane:
    q, bits = reduced(k, k.held(-18.0, 89.0, x))
    half = ((bits.cast("i32") << 23) + (126 << 23)).cast("float")  # 2^n / 2
    y = k.multiply_add(half, q, half - 0.5)
    # A small x is its own result, also zeros and denormals.
    return (k.abs(x) < 2.0**-26).where(x, y + y)


def _log_of(k: Lanes, e: Lane, f: Lane) -> Lane:
    """e ln 2 + log(1 + f)"""
    p, z = k.polynomial(_LOG, f), f * f
    rest = k.multiply_add(e, _LN2_LOW, z * f * p)
    return k.multiply_add(e, _LN2_HIGH, f + k.multiply_add(z, -0.5, rest))


def _log2_of(k: Lanes, e: Lane, f: Lane) -> Lane:
    """e + log(1 + f) / ln 2"""
    p, z = k.polynomial(_LOG, f), f * f
    rest = k.multiply_add(z, -0.5, z * f * p)
    rest = k.multiply_add(rest, _PER_LN2_HIGH, f * _PER_LN2_LOW)
    return e + k.multiply_add(f, _PER_LN2_HIGH, rest)


def _exponent(bits: Lane) -> Lane:
    """The exponent of x / sqrt(1/2), so that 1 + f is around 1."""
    return bits.k.two("ashr", bits - 1060439283, 23)


def _logarithm(of_mantissa: Callable[..., Lane], k: Lanes, x: Lane) -> Lane:
    """A logarithm by that of the exponent e and of 1 + f."""
    small = x < 2.0**-126
    bits = small.where(x * 2.0**23, x).cast("i32")
    e = _exponent(bits)
    m = (bits - (e << 23)).cast("float")
    exponent = e.cast("float", "sitofp") + small.where(-23.0, 0.0)
    return logarithm_ends(of_mantissa(k, exponent, m - 1.0), x)


def _log1p(k: Lanes, x: Lane) -> Lane:
    # A large x is scaled by 2^-64, so that 2^e and 2^-e are both normal numbers.
    big = x > 2.0**64
    moved, one = big.where(x * 2.0**-64, x), big.where(0.0, 1.0)
    e = _exponent((moved + one).cast("i32"))
    up = (0x3F800000 - (e << 23)).cast("float")
    f = k.multiply_add(moved, up, one * up - 1.0)
    found = _log_of(k, e.cast("float", "sitofp") + big.where(64.0, 0.0), f)
    return logarithm_ends(found, x, -1.0)


def _tanh(k: Lanes, x: Lane) -> Lane:
    a = k.abs(x)
    held = (a > 9.5).where(9.5, a)
    far = 1.0 - 2.0 / (k.call("s_exp_of_normal", held + held) + 1.0)
    z = a * a
    p = k.polynomial(_TANH, z)
    near = k.multiply_add(a * z, p, a)
    return k.intrinsic("copysign", (a > 0.625).where(far, near), x)


def _erf(k: Lanes, x: Lane) -> Lane:
    a = k.abs(x)
    held = (a > 4.0).where(4.0, a)
    far = 1.0 - k.call("s_exp_of_normal", k.polynomial(_LOG_ERFC, held))
    near = k.multiply_add(a, k.polynomial(_ERF, a * a), a)
    return k.intrinsic("copysign", (a > 0.9).where(far, near), x)


_WRITTEN: dict[str, Callable[..., Lane]] = {
    "exp": partial(_exponential, -104.0, 89.0, False),
    "exp2": partial(_exponential, -151.0, 129.0, True), "expm1": _expm1,
    "log": partial(_logarithm, _log_of), "log2": partial(_logarithm, _log2_of), "log1p": _log1p,
    "exp_of_normal": _exp_of_normal, "tanh": _tanh, "erf": _erf,
}  # fmt: skip
SINGLE = [Formula(f"s_{name}", write, "float") for name, write in _WRITTEN.items()]
