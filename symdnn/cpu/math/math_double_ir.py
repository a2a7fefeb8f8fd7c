"""exp and log in float64 as helpers of float32 functions.

In float64 a polynomial with an error of 1e-10 needs few terms, and nothing overflows, underflows or
cancels. Each function widens its argument, calls these helpers, and rounds once.

``exp``: 2^n times the Taylor polynomial of r, where x = n ln 2 + r and abs(r) <= ln(2) / 2.
``log``: e ln 2 + 2 artanh(s), where x = 2^e m, 1/sqrt(2) <= m < sqrt(2), s = (m - 1) / (m + 1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import factorial, log

from symdnn.cpu.math.lanes_ir import ROUND, Formula, Lane, Lanes, in_double

LN2_HIGH = float.fromhex("0x1.62e42fefa0000p-1")
LN2_LOW = float.fromhex("0x1.cf79abc9e3b39p-40")
#: The bits of 1/sqrt(2); with these subtracted, the exponent of x / sqrt(1/2) is that of 2^e m with
#: an m around 1.
_ROOT_BITS = 4604544271217802189
#: Those less the bits of 2^1024 / 2, so that exponents are not negative.
_LEAST_BITS = _ROOT_BITS - (1024 << 52)
#: 2^52: its low bits are an integer that is added to them, whose exponents have 1024 too many.
_INTEGER, _TWICE = 0x4330000000000000, float(2**52 + 1024)
#: (exp(r) - 1 - r) / r^2.
_EXP = [1 / factorial(k) for k in range(2, 10)]
#: (2 artanh(s) - 2 s) / s^3 in s^2.
_LOG = [2 / k for k in range(3, 16, 2)]


def power_of_two(n: Lane) -> Lane:
    """2^n of what has n in its lowest bits."""
    return (n.cast("i64") + 1023 << 52).cast("double")


def less_one(k: Lanes, terms: Sequence[float], r: Lane) -> Lane:
    """exp(r) - 1 of a small r; ``terms`` are coefficients of (exp(r) - 1 - r) / r^2."""
    return k.multiply_add(k.polynomial(terms, r), r * r, r)


def split(
    k: Lanes, terms: Sequence[float], least: float, most: float, x: Lane
) -> tuple[Lane, Lane, Lane]:
    """What has n in its lowest bits, n, and q = exp(r) - 1, where x = n ln 2 + r."""
    x = k.held(least, most, x)
    bits = x * (1 / log(2)) + ROUND["double"]
    n = bits - ROUND["double"]
    minus = -n
    r = k.multiply_add(minus, LN2_LOW, k.multiply_add(minus, LN2_HIGH, x))
    return bits, n, less_one(k, terms, r)


def logarithm_ends(found: Lane, x: Lane, least: float = 0.0) -> Lane:
    """A logarithm that is -inf at ``least`` and NaN below; that of inf is inf.

    log(1 + x), whose least x is -1, keeps the sign of zero.
    """
    found = x.equals(least).where(float("-inf"), found)
    same = x.equals(float("inf"))
    found = (same | x.equals(0.0) if least else same).where(x, found)
    return (x >= least).where(found, float("nan"))


def whole_exponent(bits: Lane) -> Lane:
    """The integer above the lowest 52 bits, as a number."""
    return (bits + (1024 << 52) >> 52 | _INTEGER).cast("double") - _TWICE


def exponent_and_mantissa(x: Lane) -> tuple[Lane, Lane, Lane]:
    """e, f and g = f + 2 of a positive x = 2^e (1 + f), where 1/sqrt(2) <= 1 + f < sqrt(2)."""
    small = x < 2.0**-1022
    bits = small.where(x * 2.0**54, x).cast("i64")
    e0 = bits - _LEAST_BITS >> 52
    e = (e0 | _INTEGER).cast("double") - _TWICE
    e = small.where(e - 54.0, e)
    f = (bits - (e0 - 1024 << 52)).cast("double") - 1.0
    return e, f, f + 2.0


def _exponential(less: bool, k: Lanes, x: Lane) -> Lane:
    """x is clamped so that 2^n is a normal float64."""
    bits, _, q = split(k, _EXP, -700.0, 700.0, x)
    scale = power_of_two(bits)
    return k.multiply_add(scale, q, scale - 1.0 if less else scale)


def _log(k: Lanes, x: Lane) -> Lane:
    bits = x.cast("i64")
    e0 = k.two("ashr", bits - _ROOT_BITS, 52)
    m = (bits - (e0 << 52)).cast("double")
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    tail = k.multiply_add(k.polynomial(_LOG, z), z * s, s + s)
    e = e0.cast("i32", "trunc").cast("double", "sitofp")
    return logarithm_ends(k.multiply_add(e, log(2), tail), x)


def _log1p(k: Lanes, x: Lane) -> Lane:
    """log(1 + x), corrected by the rounding error of 1 + x."""
    u = x + 1.0
    found = k.call("d_log", u)
    right = (x > 1.0) | (x <= -1.0)
    value = right.where(found, found + (x - (u - 1.0)) / u)
    return x.equals(0.0).where(x, value)


def _log10(k: Lanes, x: Lane) -> Lane:
    return k.log(x) * (1 / log(10))


def _sinh(k: Lanes, x: Lane) -> Lane:
    """With E = exp(|x|) - 1: sinh |x| = (E + E / (E + 1)) / 2."""
    e = k.expm1(k.abs(x))
    return k.intrinsic("copysign", (e + e / (e + 1.0)) * 0.5, x)


def _cosh(k: Lanes, x: Lane) -> Lane:
    e = k.exp(k.abs(x))
    return (e + 1.0 / e) * 0.5


_WIDE: dict[str, Callable[..., Lane]] = {
    "log10": _log10, "sinh": _sinh, "cosh": _cosh,
}  # fmt: skip
#: The helpers, and functions of float32 that are little else.
DOUBLE = [
    Formula("d_expm1", partial(_exponential, True)),
    Formula("d_exp", partial(_exponential, False)),
    Formula("d_log", _log),
    Formula("d_log1p", _log1p),
    *(Formula(f"s_{name}", in_double(write), "float") for name, write in _WIDE.items()),
]
