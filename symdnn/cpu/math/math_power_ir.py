"""pow, asinh, acosh and atanh as LLVM IR.

``pow``: exp(y log abs(x)), with the sign of x where y is odd. 0, 1, infinities and NaN give the
same as in C. The logarithm is a sum of two numbers. Its mantissa is divided by the middle of one of
16 intervals, whose logarithms are in a table. Errors are below 1 ulp.

The inverse hyperbolic functions are log(1 + t), computed in float64; of a large x, log(x) + log(2).
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, localcontext
from functools import partial
from math import log
from typing import NamedTuple

from symdnn.cpu.math.lanes_ir import (
    ROUND,
    Formula,
    Lane,
    LaneFormula,
    Lanes,
    Number,
    coefficients,
    in_double,
)
from symdnn.cpu.math.math_double_ir import LN2_HIGH, LN2_LOW, whole_exponent
from symdnn.cpu.math.tables_ir import looked_up


def _log_of_large(k: Lanes, a: Lane, near: Lane) -> Lane:
    """log(1 + ``near``), or of a large ``a``, whose square may be infinite, log(2 a)."""
    far = a > 1.0e10
    return k.log1p(far.where(a - 1.0, near)) + far.where(log(2), 0.0)


def _asinh(k: Lanes, x: Lane) -> Lane:
    a, z = k.abs(x), x * x
    near = a + z / (k.intrinsic("sqrt", z + 1.0) + 1.0)
    return k.intrinsic("copysign", _log_of_large(k, a, near), x)


def _acosh(k: Lanes, x: Lane) -> Lane:
    less = x - 1.0
    near = less + k.intrinsic("sqrt", less * (x + 1.0))
    return (x >= 1.0).where(_log_of_large(k, x + 0.0, near), float("nan"))


def _atanh(k: Lanes, x: Lane) -> Lane:
    a = k.abs(x)
    size = k.log1p((a + a) / (1.0 - a)) * 0.5
    return k.intrinsic("copysign", size, x)


# -- powers ---------------------------------------------------------------------------------------


class _Kind(NamedTuple):
    """A type of floats: its integers, their bits of a mantissa, and the largest exponent."""

    t: str
    whole: str
    digits: int
    largest: int
    #: ln 2 as two numbers, of which products of the first with exponents are exact.
    ln2: tuple[float, float]
    #: Those of logarithms of ``_RECIPROCALS`` are multiples of this.
    grid: int
    #: (log(1 + t) - t + t^2 / 2) / t^3 and (exp(r) - 1 - r) / r^2: Chebyshev interpolants.
    log: Sequence[float]
    exp: Sequence[float]

    def logarithms(self) -> tuple[list[float], list[float]]:
        """Those of the intervals' middles, as sums of two numbers."""
        with localcontext() as context:
            context.prec = 40
            exact = [-(Decimal(n) / 64).ln() for n in _RECIPROCALS]
            high = [float(round(v * self.grid)) / self.grid for v in exact]
            return high, [float(v - Decimal(h)) for v, h in zip(exact, high)]


#: Of the middle of each of 16 intervals from 45/64 to 45/32, times 64. Products with numbers of the
#: interval less 1 are exact.
_RECIPROCALS = (88, 86, 82, 78, 76, 74, 70, 68, 66, 64, 60, 57, 54, 51, 49, 46)
#: The integers whose bits are those of ``ROUND``.
_ROUND_BITS = {"float": 0x4B400000, "double": 0x4338000000000000}
_SINGLE = _Kind(
    "float", "i32", 23, 127, (float.fromhex("0x1.63p-1"), log(2) - float.fromhex("0x1.63p-1")),
    1 << 16,
    (0.3333333122346689, -0.24999990564346142, 0.20015531501876166, -0.16694231742363003),
    coefficients(
        "0x1.6d0fdcp-10", "0x1.120b68p-7", "0x1.55551ap-5", "0x1.5554dcp-3", "0x1p-1",
    ),
)  # fmt: skip
_DOUBLE = _Kind(
    "double", "i64", 52, 1023, (LN2_HIGH, LN2_LOW), 1 << 36,
    (0.3333333333333333, -0.24999999999999592, 0.19999999999995943, -0.16666666671680982,
     0.1428571431067301, -0.12499983385806708, 0.11111060832237814, -0.10020387769757963,
     0.09128115152416685),
    (0.5, 0.16666666666666669, 0.041666666666624164, 0.008333333333330065, 0.001388888891719689,
     0.00019841269863040675, 2.480152132210459e-05, 2.7557268480106926e-06,
     2.762007600563138e-07, 2.5100375929185925e-08),
)  # fmt: skip


def _exponent(k: Lanes, kind: _Kind, bits: Lane) -> Lane:
    """What is above the mantissa, as a float."""
    if kind is _SINGLE:
        return k.two("ashr", bits, kind.digits).cast(kind.t, "sitofp")
    return whole_exponent(bits)


def _log_in_two(k: Lanes, kind: _Kind, a: Lane, more: Number = 0.0) -> tuple[Lane, Lane]:
    """The logarithm as a sum of two numbers, and ln 2 times ``more``; of positive normal numbers.

    Names with an x at the end are low parts.
    """
    one, step = kind.largest << kind.digits, 1 << kind.digits - 4
    least = one - step // 2 - 9 * step
    bits = a.cast(kind.whole) - least
    e = _exponent(k, kind, bits)
    e = e + more if isinstance(more, Lane) else e
    m = ((bits & (1 << kind.digits) - 1) + least).cast(kind.t)
    place = bits >> kind.digits - 4 & 15
    r = looked_up(k, [n / 64 for n in _RECIPROCALS], place)
    log_m, log_mx = (looked_up(k, values, place) for values in kind.logarithms())
    high, low = kind.ln2
    # a = 2^e m and m r = 1 + t, so log(a) = e ln 2 - log(r) + t - t^2 / 2 + ...
    t = k.fma(m, r, -1.0)
    s = k.fma(e, high, log_m)
    v = s + t
    vx = s - v + t
    z = t * t
    zx = k.fma(t, t, -z)
    w = k.fma(z, -0.5, v)
    wx = k.fma(z, -0.5, v - w)
    rest = k.fma(zx, -0.5, k.fma(e, low, log_mx))
    return w, vx + wx + k.fma(t * z, k.polynomial(kind.log, t), rest)


def _exp_of_two(k: Lanes, kind: _Kind, p: Lane, px: Lane) -> tuple[Lane, Lane]:
    """What has n in its lowest bits, and q = exp(r) - 1, where p + px = n ln 2 + r."""
    high, low = kind.ln2
    bits = k.multiply_add(p + px, 1 / log(2), ROUND[kind.t])
    minus = ROUND[kind.t] - bits
    r0, r1 = k.fma(minus, high, p), k.fma(minus, low, px)
    r = r0 + r1
    rx = r0 - r + r1
    return bits, r + k.fma(k.polynomial(kind.exp, r), r * r, rx)


def _power_of_two(kind: _Kind, n: Lane) -> Lane:
    """2^n of what has n in its lowest bits."""
    return (n + kind.largest << kind.digits).cast(kind.t)


def _is_normal(k: Lanes, kind: _Kind, x: Lane) -> Lane:
    """Whether it is positive and no denormal, infinity or NaN."""
    least, infinity = 1 << kind.digits, (2 * kind.largest + 1) << kind.digits
    return k.test("ult", x.cast(kind.whole) - least, infinity - least)


def _pow(kind: _Kind, k: Lanes, x: Lane, x2: Lane) -> Lane:
    """More is computed where a number is negative, or one or its power is not a normal number."""
    a = k.abs(x)
    high, low = _log_in_two(k, kind, a)
    p = x2 * high
    bits, q = _exp_of_two(k, kind, p, k.fma(x2, low, k.fma(x2, high, -p)))
    scale = _power_of_two(kind, bits.cast(kind.whole))
    found = k.fma(scale, q, scale)
    held = k.abs(p) < (kind.largest - 1) * log(2)

    def others() -> Lane:
        strange = ~(_is_normal(k, kind, a) & held)
        size = k.where_any(strange, lambda: _size_of_any(k, kind, a, x2), found)
        return _signs_and_ones(k, x, x2, a, size)

    return k.where_any(~(_is_normal(k, kind, x) & held), others, found)


def _size_of_any(k: Lanes, kind: _Kind, a: Lane, x2: Lane) -> Lane:
    """The power of any magnitude."""
    infinity = float("inf")
    small, digits = a < 2.0 ** (1 - kind.largest), float(kind.digits + 1)
    high, low = _log_in_two(
        k, kind, small.where(a * 2.0**digits, a), small.where(-digits, 0.0, kind.t)
    )
    p = x2 * high
    px = k.fma(x2, low, k.fma(x2, high, -p))
    most, least = kind.largest * 0.7, (kind.largest + kind.digits) * -0.7
    above, below = p > most, p < least
    p = below.where(least, above.where(most, p))
    bits, q = _exp_of_two(k, kind, p, (above | below).where(0.0, px))
    # In two steps, so that large results and denormals are right.
    n = bits.cast(kind.whole) - _ROUND_BITS[kind.t]
    half = k.two("ashr", n, 1)
    scale = _power_of_two(kind, half)
    found = k.fma(scale, q, scale) * _power_of_two(kind, n - half)
    # Of 0, infinity, and powers to infinity.
    end = a.equals(0.0) | a.equals(infinity) | k.abs(x2).equals(infinity)
    shrinks = (a > 1.0) ^ (x2 > 0.0)
    size = end.where(shrinks.where(0.0, infinity, kind.t), found)
    return k.test("uno", a, x2).where(a + x2, size)


def _signs_and_ones(k: Lanes, x: Lane, x2: Lane, a: Lane, size: Lane) -> Lane:
    """The power of x by that of its magnitude ``a``: with its sign, and where it is 1 or NaN."""
    whole = k.intrinsic("floor", x2).equals(x2)
    halved = x2 * 0.5
    odd = whole & k.test("une", k.intrinsic("floor", halved), halved)
    signed = k.intrinsic("copysign", size, odd.where(x, 1.0))
    # A finite negative number to a power that is no integer is NaN.
    bad = (x < 0.0) & k.test("one", a, float("inf")) & ~whole
    found = bad.where(float("nan"), signed)
    # 1 to any power, -1 to an infinite one, and anything to the power 0 are 1.
    endless = a.equals(1.0) & k.abs(x2).equals(float("inf"))
    return (x2.equals(0.0) | x.equals(1.0) | endless).where(1.0, found)


_AREAS = {"asinh": _asinh, "acosh": _acosh, "atanh": _atanh}
POWER = [
    LaneFormula("s_pow", partial(_pow, _SINGLE), 2, t="float"),
    LaneFormula("f_pow", partial(_pow, _DOUBLE), 2),
    *(Formula(f"s_{name}", in_double(write), "float") for name, write in _AREAS.items()),
    *(Formula(f"f_{name}", write) for name, write in _AREAS.items()),
]
