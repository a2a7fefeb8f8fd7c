"""erfc, gelu and gelu's derivative in float32 as LLVM IR: one exponential and one division each.

With a = abs(x), the upper tail of the normal distribution is Q(a) = exp(-a^2 / 2) R(a). R falls
from 1/2 to 0.03; it is a polynomial in y = a / (a + k), divided by a + k. The other two functions
have factors of the same form.

``erfc``: exp(-a^2) times such a factor for x >= 0; erfc(-x) = 2 - erfc(x).
``gelu``: x times the normal distribution function: max(x, 0) - a Q(a).
``gelu_slope``: gelu's derivative. For x < 0 it is exp(-a^2 / 2) (1 - a / z) times a polynomial in
1 / (a + k), where its zero is at a = z = 0.75; slope(-x) = 1 - slope(x).

``exp``: 2^n exp(-s r), where r = a^2 + n ln(2) / s and abs(s r) <= ln(2) / 2. The square a^2 is not
rounded: n times ln(2) / s, cut to 7 bits, is exact, and an fma adds it to a^2. The rest of ln(2) is
applied as a small multiple of the rounded square and of r, since n is about -a^2 s / ln 2.

Errors are below 4 ulp down to the smallest denormal number, for the derivative also near its zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log

from symdnn.cpu.math.lanes_ir import Formula, Lane, Lanes, coefficients

#: (exp(r) - 1) / r for abs(r) <= ln(2) / 2. All polynomials here are minimax.
_EXP = coefficients(
    "0x1.6a3d08p-10", "0x1.123856p-7", "0x1.5558bep-5", "0x1.555494p-3", "0x1.fffffcp-2", "0x1p+0",
)  # fmt: skip
#: Q(a) (a + k) / exp(-a^2 / 2) in y - 1/2 for 0 <= a <= 14.6; k.
_GELU = coefficients(
    "0x1.d8f4dcp-4", "0x1.0fe682p-4", "-0x1.119f2cp-2", "0x1.3890a4p-5", "0x1.33279ap-1",
    "-0x1.364f82p+0", "0x1.6968eap+0", "-0x1.2d2708p+0", "0x1.80268cp-1",
)  # fmt: skip
_GELU_K = 3.75
#: erfc(a) exp(a^2) (a + k) in y - 1/2 for 0 <= a <= 10.35; k.
_ERFC = coefficients(
    "0x1.4d3ffep-3", "0x1.7b2ef4p-4", "-0x1.8209a4p-2", "0x1.d246e4p-5", "0x1.affecap-1",
    "-0x1.b5e3fap+0", "0x1.fea08ep+0", "-0x1.a9c052p+0", "0x1.0f9e00p+0",
)  # fmt: skip
_ERFC_K = 2.65
#: gelu_slope(-a) / (exp(-a^2 / 2) (1 - a / z)) in 1 / (a + k) - c for 0 <= a <= 14.6; k and c.
_SLOPE = coefficients(
    "-0x1.3d83bep+11", "-0x1.bdc88ap+9", "0x1.95bca4p+7", "0x1.ed8a2ep+7", "0x1.97f0e8p+6",
    "0x1.bd1148p+4", "0x1.6d0a7ep+2", "0x1.d956c4p-1", "0x1.76d02ap-2",
)  # fmt: skip
_SLOPE_K, _SLOPE_C = 4.5, 0.140625
#: 1 / z as the sum of two float32, where z is the zero of the slope.
_ZERO_HIGH, _ZERO_LOW = float.fromhex("0x1.54851ap+0"), 2.1596791910383217e-08
#: From these a on, gelu(-a) (and the slope) and erfc(a) round to zero.
_GELU_IS_ZERO, _ERFC_IS_ZERO = 14.625, 10.3

#: A sum with _ROUND has n + 192 in its lowest bits, which shifted by 23 are the exponent of
#: 2^(n + _EXPONENT_SHIFT). _ROUND has so few bits that its product with a number of 7 bits is
#: exact. n is between -156 and 0.
_ROUND, _EXPONENT_SHIFT = float((1 << 23) + 192), 65
#: ln 2 in 7 bits, and the relative error of that.
_LN2_7_BITS = 89 / 128
_LN2_ERROR = log(2) / _LN2_7_BITS - 1
#: gelu's y is scaled by 2^8, so that it keeps its bits where a is denormal.
_Y_SHIFT = 8


def _magnitude(k: Lanes, end: float, x: Lane) -> Lane:
    a = k.abs(x)
    return (a > end).where(end, a)


def _times_exp(
    k: Lanes, share: float, a: Lane, terms: Sequence[float], v: Lane, up: int = 0
) -> tuple[Lane, Lane]:
    """Two factors of P(v) exp(-share a^2), of which the second is 2^(n + 65).

    The polynomial is scaled by 2^-65, to cancel :data:`_EXPONENT_SHIFT`, and by 2^-up. It is
    multiplied last, so that only one rounding matters.
    """
    step, scale = _LN2_7_BITS / share, -share * (1 + _LN2_ERROR)
    p = k.polynomial([c * 2.0 ** (-_EXPONENT_SHIFT - up) for c in terms], v)
    h = a * a
    bits = k.multiply_add(h, -share / log(2), _ROUND)
    r = k.fma(a, a, k.fma(bits, step, -_ROUND * step))
    r = k.multiply_add(h, -_LN2_ERROR / (1 + _LN2_ERROR), r)
    rest = k.polynomial([c * scale**i for i, c in enumerate(_EXP, 1)], r)
    return k.multiply_add(p * r, rest, p), (bits.cast("i32") << 23).cast("float")


def _erfc(k: Lanes, x: Lane) -> Lane:
    a = _magnitude(k, _ERFC_IS_ZERO, x)
    inverse = 1.0 / (a + _ERFC_K)
    f, power = _times_exp(k, 1.0, a, _ERFC, k.multiply_add(a, inverse, -0.5))
    low = power * inverse
    right = f * low
    return (x < 0.0).where(k.fma(-f, low, 2.0), right)


def _gelu(k: Lanes, x: Lane) -> Lane:
    a, down = _magnitude(k, _GELU_IS_ZERO, x), 2.0**-_Y_SHIFT
    y = a / k.multiply_add(a, down, _GELU_K * down)
    f, power = _times_exp(k, 0.5, a, _GELU, k.multiply_add(y, down, -0.5), _Y_SHIFT)
    return k.fma(-f, power * y, (x < 0.0).where(0.0, x))


def _gelu_slope(k: Lanes, x: Lane) -> Lane:
    a = _magnitude(k, _GELU_IS_ZERO, x)
    f, power = _times_exp(k, 0.5, a, _SLOPE, 1.0 / (a + _SLOPE_K) - _SLOPE_C)
    low = power * k.multiply_add(a, -_ZERO_LOW, k.fma(a, -_ZERO_HIGH, 1.0))
    return (x < 0.0).where(f * low, k.fma(-f, low, 1.0))


_WRITTEN = {"erfc": _erfc, "gelu": _gelu, "gelu_slope": _gelu_slope}
GELU_ERFC = [Formula(f"s_{name}", write, "float") for name, write in _WRITTEN.items()]
