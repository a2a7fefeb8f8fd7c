"""Common float64 functions as LLVM IR without branches or tables, which LLVM vectorises.

Errors are below 1 ulp for exp, log, log2 and log10, 1.5 for log1p, 2 for expm1 and 2.5 for the
others, but 4 for tan and 3.5 for inverse functions. NaN, infinities, zeros and denormals give the
same as in C, and so do exp2 and log2 of powers of two. Special functions are in
:mod:`symdnn.cpu.math.math_special64_ir` and :mod:`symdnn.cpu.math.functions_ir`.

``exp``: 2^n times the Taylor polynomial of r, where x = n ln 2 + r and abs(r) <= ln(2) / 2. The
power is multiplied in two steps, so that large results and denormals are right. So is ``exp2``.
``sinh`` and ``cosh``: H -+ 1 / (4 H), H = exp(abs(x)) / 2; sinh below 1 from exp(x) - 1.
``log``: e ln 2 + log(1 + f), where x = 2^e (1 + f), 1/sqrt(2) <= 1 + f < sqrt(2). With
s = f / (2 + f) and R the series of 2 artanh(s) / s - 2 it is f - (f^2/2 - s (f^2/2 + R)). For
``log2`` and ``log10`` that is a sum of two numbers, and so is the factor of the base.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, localcontext
from functools import partial
from math import factorial, log
from typing import Any

from symdnn.cpu.math.lanes_ir import ROUND, Formula, Lane, Lanes
from symdnn.cpu.math.math_double_ir import (
    LN2_HIGH,
    LN2_LOW,
    exponent_and_mantissa,
    less_one,
    logarithm_ends,
    power_of_two,
    split,
)

#: (exp(r) - 1 - r) / r^2.
_EXP = [1 / factorial(k) for k in range(2, 14)]
#: (2 artanh(s) - 2 s) / s^3 in s^2.
_LOG = [2 / k for k in range(3, 24, 2)]
_ROUND = ROUND["double"]

#: log10(2), whose high part times an exponent is exact.
_LOG2_HIGH, _LOG2_LOW = (
    float.fromhex("0x1.34413509f7000p-2"),
    float.fromhex("0x1.3fde623e2566bp-43"),
)


# -- exponentials ---------------------------------------------------------------------------------


def _scaled(k: Lanes, n: Lane, q: Lane, less: float = 0.0) -> Lane:
    """(1 + q) 2^n; of a power that is ``less`` by so much."""
    first = n * 0.5 + _ROUND
    second = n - (first - _ROUND) + (_ROUND - less)
    scale = power_of_two(first)
    return k.multiply_add(scale, q, scale) * power_of_two(second)


def _exp(k: Lanes, x: Lane) -> Lane:
    return _scaled(k, *split(k, _EXP, -746.0, 710.0, x)[1:])


def _half_exp(k: Lanes, x: Lane) -> Lane:
    return _scaled(k, *split(k, _EXP, -746.0, 711.0, x)[1:], less=1.0)


def _exp2(k: Lanes, x: Lane) -> Lane:
    x = k.held(-1080.0, 1025.0, x)
    n = x + _ROUND - _ROUND
    return _scaled(k, n, less_one(k, _EXP, (x - n) * log(2)))


def _expm1_within(k: Lanes, x: Lane) -> Lane:
    """exp(x) - 1 for abs(x) <= 700."""
    bits, _, q = split(k, _EXP, -700.0, 700.0, x)
    scale = power_of_two(bits)
    return k.multiply_add(scale, q, scale - 1.0)


def _expm1(k: Lanes, x: Lane) -> Lane:
    found = (x > 700.0).where(k.call("f_exp", x), k.call("f_expm1_within", x))
    return x.equals(0.0).where(x, found)  # keeps the sign of zero


def _tanh(k: Lanes, x: Lane) -> Lane:
    """With E = exp(2 |x|) - 1: tanh |x| = E / (E + 2)."""
    a = k.abs(x)
    twice = a + a
    e = k.call("f_expm1_within", (twice > 44.0).where(44.0, twice))
    return k.intrinsic("copysign", e / (e + 2.0), x)


def _cosh(k: Lanes, x: Lane) -> Lane:
    half = k.call("f_half_exp", k.abs(x))
    return half + 0.25 / half


def _sinh(k: Lanes, x: Lane) -> Lane:
    a = k.abs(x)
    half, e = k.call("f_half_exp", a), k.call("f_expm1_within", a)
    near = (e + e / (e + 1.0)) * 0.5
    size = (a < 1.0).where(near, half - 0.25 / half)
    return k.intrinsic("copysign", size, x)


# -- logarithms -----------------------------------------------------------------------------------


def _logarithm(finish: Callable[..., Lane], k: Lanes, x: Lane) -> Lane:
    """``finish`` makes it of e, f, square = f^2/2 and part = s (square + R)."""
    e, f, g = exponent_and_mantissa(x)
    s = f / g
    z = s * s
    series = k.polynomial(_LOG, z) * z
    square = f * 0.5 * f
    return logarithm_ends(finish(k, e, f, square, s * (square + series)), x)


def _natural(k: Lanes, e: Lane, f: Lane, square: Lane, part: Lane) -> Lane:
    low = k.multiply_add(e, LN2_LOW, part)
    return e * LN2_HIGH - (square - low - f)


def _in_base(base: float, high: float, low: float, *given: Any) -> Lane:
    """In a base in which the logarithm of 2 is ``high + low``."""
    with localcontext() as context:
        context.prec = 40
        exact = 1 / Decimal(base).ln()
        factor = float(exact)
        less = float(exact - Decimal(factor))
    k, e, f, square, part = given
    of_mantissa = f - square
    more = f - of_mantissa - square + part
    tail = k.multiply_add(more, factor, k.multiply_add(of_mantissa, less, e * low))
    return k.multiply_add(e, high, k.multiply_add(of_mantissa, factor, tail))


def _log1p(k: Lanes, x: Lane) -> Lane:
    """log(1 + x), corrected by the rounding error of 1 + x."""
    u = x + 1.0
    found = k.call("f_log", u)
    # Of a large x it is 1 that is rounded.
    lost = (x > 1.0).where(1.0 - (u - x), x - (u - 1.0))
    value = (x > 2.0**54).where(found, found + lost / u)
    value = (x <= -1.0).where(found, value)
    return x.equals(0.0).where(x, value)


_WRITTEN: dict[str, Callable[..., Lane]] = {
    "exp": _exp, "half_exp": _half_exp, "exp2": _exp2, "expm1_within": _expm1_within,
    "expm1": _expm1, "tanh": _tanh, "cosh": _cosh, "sinh": _sinh, "log1p": _log1p,
    "log": partial(_logarithm, _natural),
    "log2": partial(_logarithm, partial(_in_base, 2.0, 1.0, 0.0)),
    "log10": partial(_logarithm, partial(_in_base, 10.0, _LOG2_HIGH, _LOG2_LOW)),
}  # fmt: skip
FULL = [Formula(f"f_{name}", write) for name, write in _WRITTEN.items()]
