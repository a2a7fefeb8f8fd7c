"""Powers, the gamma function, its logarithm and the beta function's, on the lanes of a vector.

``log_pair``: the logarithm as a sum of two numbers, to 2^-65: with s = f / (2 + f) and x =
2^e (1 + f), 1/sqrt(2) <= 1 + f < sqrt(2), it is e ln 2 + 2 s + 2 s^3 / 3 + ..., of which the first
two terms are sums of two numbers, too.
``lgamma``: up to 8 by the recurrence to [1, 2), where it is (x - 1) (x - 2) times a polynomial;
from there Stirling's series (NIST's DLMF 5.11.1); below 0 by reflection (5.5.3).
``tgamma``: likewise, with the logarithm of Stirling's formula as the sum of two numbers.
``betaln``: where the logarithms of gamma functions cancel, by Stirling's series.
"""

from __future__ import annotations

from fractions import Fraction
from math import log, pi

from symdnn.cpu.math.lanes_ir import Lane, Lanes
from symdnn.cpu.math.math_double_ir import LN2_HIGH, LN2_LOW, exponent_and_mantissa
from symdnn.cpu.math.math_special64_ir import COS_PI, SIN_PI

__all__ = [
    "betaln", "distance_to_log", "lgamma", "log_gamma_of_next", "power", "stirling_rest", "tgamma",
    "whole_power",
]  # fmt: skip

#: log(gamma(t + 1)) / (t (t - 1)) in t - 1/2, from 0 to 1, interpolated at Chebyshev's points.
_LGAMMA = [
    0.4831289505409809,
    -0.14595989591430594,
    0.06291140107456485,
    -0.03130848750105327,
    0.01679709863121395,
    -0.009425622444829649,
    0.005446457842219553,
    -0.0032120742206072908,
    0.0019229162321227923,
    -0.001164411377219605,
    0.0007115202752051298,
    -0.00043803516132580534,
    0.00027130273545114005,
    -0.0001685717945035172,
    0.00010541715222185904,
    -6.793733027397047e-05,
    4.281642862794779e-05,
    -2.148770252062576e-05,
    1.3584275459130943e-05,
    -1.8527803997032962e-05,
    1.1820969445467145e-05,
]
#: Of Stirling's series, in 1 / x^2.
_STIRLING = [
    Fraction(*n) for n in (
        (1, 12), (-1, 360), (1, 1260), (-1, 1680), (1, 1188), (-691, 360360), (1, 156),
        (-3617, 122400), (43867, 244188),
    )
]  # fmt: skip
#: (2 artanh(s) - 2 s - 2 s^3 / 3) / s^5 in s^2.
_LOG = [2 / k for k in range(5, 26, 2)]
_HALF_LOG_2PI = log(2 * pi) / 2


def log_pair(k: Lanes, x: Lane) -> tuple[Lane, Lane]:
    """The logarithm of a positive finite number, as the sum of two numbers."""
    e, f, g = exponent_and_mantissa(x)
    g_low = f - (g - 2.0)
    inverse = 1.0 / g
    s = f * inverse
    s_low = (k.fma(-s, g, f) - s * g_low) * inverse
    z = s * s
    z_low = k.fma(s, s, -z) + 2.0 * (s * s_low)
    rest = z * k.polynomial(_LOG, z)
    third = float(Fraction(2, 3))
    p = rest + third
    p_low = (third - p) + rest + float(Fraction(2, 3) - Fraction(third))
    cube = s * z
    cube_low = k.fma(s, z, -cube) + (s * z_low + s_low * z)
    t = cube * p
    t_low = k.fma(cube, p, -t) + (cube * p_low + cube_low * p)
    twice = s + s
    near = twice + t
    near_low = ((twice - near) + t) + (s_low + s_low + t_low)
    whole = e * LN2_HIGH
    high = whole + near
    away = high - whole
    lost = (whole - (high - away)) + (near - away)
    return high, lost + (near_low + e * LN2_LOW)


def sine_of_turns(k: Lanes, x: Lane) -> Lane:
    """``sin(pi x)`` for ``x`` from 0 to 1/2."""
    turned = x > 0.25
    b = turned.where(0.5 - x, x)
    square = b * b
    return turned.where(k.polynomial(COS_PI, square), b * k.polynomial(SIN_PI, square))


def power(k: Lanes, x: Lane, exponent: Lane) -> Lane:
    """``x^exponent`` of a positive finite number."""
    if k.short:
        return k.exp(exponent * k.log(x))
    high, low = log_pair(k, x)
    product = exponent * high
    inside = k.abs(product) < 800.0
    rest = k.fma(exponent, high, -product) + exponent * low
    found = k.exp((product > 800.0).where(800.0, (product < -800.0).where(-800.0, product)))
    return inside.where(k.fma(found, rest, found), found)


def whole_power(k: Lanes, x: Lane, exponent: Lane, bits: int) -> Lane:
    """``x^exponent`` of a whole number from 0 to 2^bits - 1, by squares."""
    number = exponent.cast("i32", "fptosi")
    found: Lane | None = None
    for bit in range(bits):
        taken = (number >> bit & 1).equals(1)
        found = taken.where(x, 1.0) if found is None else taken.where(found * x, found)
        x = x * x
    assert found is not None
    return found


def lgamma(k: Lanes, x: Lane) -> Lane:
    """``log |gamma(x)|``; infinite at 0, negative integers and -inf."""
    y = (x < 0.0).where(1.0 - x, x)
    value = _lgamma_of_positive(k, y)

    def reflected() -> Lane:
        to_whole = x - k.intrinsic("rint", x)
        return log(pi) - k.log(sine_of_turns(k, k.abs(to_whole))) - value

    value = k.where_any(x < 0.0, reflected, value)
    return (k.abs(x).equals(float("inf")) | (x < 0.0) & k.intrinsic("floor", x).equals(x)).where(
        float("inf"), value
    )


def _lgamma_of_positive(k: Lanes, y: Lane) -> Lane:
    small = y < 1.0
    t, product = _from_1_to_2(y)
    near = log_gamma_of_next(k, t)
    far = y >= 8.0
    logarithm = k.log(far.where(y, small.where(y, product)))
    near = near + small.where(-logarithm, logarithm)
    large = (y - 0.5) * (logarithm - 1.0) + ((_HALF_LOG_2PI - 0.5) + stirling_rest(k, y))
    return far.where(large, near)


def _from_1_to_2(y: Lane) -> tuple[Lane, Lane]:
    """``t`` and ``p`` with ``gamma(y) = p gamma(1 + t)`` for ``y`` from 1 to 8; ``t = y`` below."""
    u, product = y, (y < 0.0).where(y, 1.0)
    for _ in range(6):
        more = u >= 2.0
        u = more.where(u - 1.0, u)
        product = more.where(product * u, product)
    return (y < 1.0).where(u, u - 1.0), product


def tgamma(k: Lanes, x: Lane) -> Lane:
    """``gamma(x)``; NaN at negative integers and -inf."""
    y = k.abs(x)
    small, far = y < 1.0, y >= 8.0
    t, product = _from_1_to_2(y)
    first, second = _by_stirling(k, y)
    first = far.where(first, k.exp(log_gamma_of_next(k, t)) * product)
    second = far.where(second, 1.0)

    def reflected() -> Lane:  # 1 - x would be rounded
        whole = k.intrinsic("rint", x)
        away = x - whole
        half = whole * 0.5
        sign = k.intrinsic("floor", half).equals(half).where(pi, -pi)
        sine = k.intrinsic("copysign", sine_of_turns(k, k.abs(away)), away)
        found = sign / sine / first / second / small.where(1.0, y)
        return (away.equals(0.0) | x.equals(-float("inf"))).where(float("nan"), found)

    value = small.where(first / y, first * second)
    value = k.where_any(x < 0.0, reflected, value)
    return x.equals(0.0).where(1.0 / x, value)


def _by_stirling(k: Lanes, y: Lane) -> tuple[Lane, Lane]:
    """Two factors of ``gamma(y)`` for ``y`` from 8 on, neither of which is infinite before 300."""
    inside = (y < 300.0).where(y, 300.0)
    inside = (inside < 8.0).where(8.0, inside)
    exponent, rest = inside - 0.5, stirling_rest(k, inside) + _HALF_LOG_2PI
    if k.short:
        whole = exponent * k.log(inside) - inside + rest
        less = whole - whole
    else:
        high, low = log_pair(k, inside)
        product = exponent * high
        most = product - inside
        rest = rest + ((product - most) - inside)
        rest = rest + (k.fma(exponent, high, -product) + exponent * low)
        whole = most + rest
        less = rest - (whole - most)
    root = k.exp(whole * 0.5)
    beyond, inf = y > 300.0, float("inf")
    return beyond.where(inf, root), beyond.where(inf, k.multiply_add(root, less, root))


def log_gamma_of_next(k: Lanes, t: Lane) -> Lane:
    """``log(gamma(1 + t))`` for ``t`` from 0 to 1."""
    return t * (t - 1.0) * k.polynomial(_LGAMMA, t - 0.5)


def stirling_rest(k: Lanes, x: Lane) -> Lane:
    """The rest of Stirling's formula for ``log(gamma(x))``, from 8 on."""
    w = 1.0 / x
    return w * k.polynomial(_STIRLING, w * w)


def betaln(k: Lanes, a: Lane, b: Lane) -> Lane:
    """``log |B(a, b)|``; infinite where an operand is 0 or a negative integer."""
    name = "z_lgamma_short" if k.short else "z_lgamma"
    p, q = (a < b).where(a, b), (a < b).where(b, a)
    both, high, low = p + q, k.most(q, 10.0), k.most(p, 10.0)
    of_p = k.call(name, p)

    def by_stirling() -> Lane:
        ratio = k.log1p(p / q)
        rest = stirling_rest(k, high) - stirling_rest(k, k.most(both, 10.0))
        one = of_p - (q - 0.5) * ratio - p * (k.log(both) - 1.0) + rest
        two = _HALF_LOG_2PI - 0.5 * k.log(q) + (p - 0.5) * k.log(p / both) - q * ratio
        return (p < 10.0).where(one, two + stirling_rest(k, low) + rest)

    of_q = k.call(name, q)
    apart = of_p + of_q
    plain = apart.equals(float("inf")).where(apart, apart - k.call(name, both))
    far = (p > 0.0) & (q >= 10.0)
    found = k.where_any(far, by_stirling, plain)
    return (a + b).is_nan().where(float("nan"), found)


def distance_to_log(k: Lanes, mu: Lane, ratio: Lane) -> Lane:
    """``mu - log(ratio)`` for ``ratio = 1 + mu``, without cancellation near 0."""
    s = mu / (mu + 2.0)
    z = s * s
    near = mu * s - s * z * (z * k.polynomial(_LOG, z) + 2 / 3)
    return (k.abs(mu) < 0.25).where(near, mu - k.log(ratio))
