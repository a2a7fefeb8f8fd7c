"""Inverse trigonometric functions, and sin, cos and tan of large float32, as LLVM IR.

They are computed in float64 without branches or tables. :mod:`symdnn.cpu.math.math_trig_ir` has
sin, cos and tan of other arguments, :mod:`symdnn.cpu.math.math_arcs_ir` the arcs of float32.

**Reduction** takes any float32, also 3e38, by the method of Payne and Hanek (1983). Bits of 2/pi
that would only add whole turns to x * 2/pi are skipped. The next 28, 28 and 53 bits are multiplied
by x, the first two products without rounding. The exponent of x decides which bits:
:data:`_EXPONENTS_PER_GROUP` exponents share one choice. The result is right to 2^-54 of a quarter
turn; no float32 is nearer to a multiple than 2^-30.

**Inverses** are the arctangent of a quotient, reduced to abs(t) <= tan(pi/8).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import factorial, pi

from symdnn.cpu.math.lanes_ir import ROUND, Formula, Lane, Lanes, Number, coefficients, in_double
from symdnn.cpu.math.math_trig_ir import by_quarters, sine_and_cosine

#: 2/pi times 2^288, in full.
TWO_OVER_PI_BITS = 0xA2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163ABDEBBC561B7246E3A
_FRACTION_BITS = 288
#: Exponents that share the same bits of 2/pi: as many as a float32 has bits.
_EXPONENTS_PER_GROUP = 24


def _bits(low: int, count: int) -> float:
    """``count`` bits of 2/pi as a number; the lowest is worth 2^low."""
    return float((TWO_OVER_PI_BITS >> (_FRACTION_BITS + low)) % (1 << count)) * 2.0**low


def _parts(group: int) -> tuple[float, float, float]:
    """The three factors of x >= 2^(24 group), whose last bit is worth 2^(24 group - 23) or more."""
    low = -3 - _EXPONENTS_PER_GROUP * group
    return _bits(low, 28), _bits(low - 28, 28), _bits(low - 28 - 53, 53)


#: (sin(r) / r - 1) / r^2 and cos(r) in r^2.
SIN = [(-1) ** k / factorial(2 * k + 1) for k in range(1, 7)]
COS = [(-1) ** k / factorial(2 * k) for k in range(7)]
#: (arctan(t) / t - 1) / t^2 in t^2 for abs(t) <= tan(pi/8): Chebyshev interpolants, the second of
#: which is right to 2^-57.
_ATAN = coefficients(
    "0x1.0e4d689060889p-5", "-0x1.edf36f92e7014p-5", "0x1.37840359fe036p-4",
    "-0x1.741668d04d54cp-4", "0x1.c7196e65ff7a5p-4", "-0x1.24924102d4124p-3",
    "0x1.99999988ce687p-3", "-0x1.55555555527aep-2",
)  # fmt: skip
_ATAN64 = coefficients(
    "-0x1.3a31b1c0fd3b7p-6", "0x1.4162c02b1dda3p-5", "-0x1.a0999c632b6edp-5",
    "0x1.dfe6497e96323p-5", "-0x1.10fa77b1a6d57p-4", "0x1.3b1263064f6b9p-4",
    "-0x1.745d0b28a7e37p-4", "0x1.c71c71853d7fap-4", "-0x1.2492492436201p-3",
    "0x1.999999999934cp-3", "-0x1.5555555555555p-2",
)  # fmt: skip
_TAN_EIGHTH = 2**0.5 - 1
#: What is added to the float64 nearest to pi, as a part of it.
_PI_REST = float.fromhex("0x1.1a62633145c07p-53") / pi


def _arctangent(terms: Sequence[float], k: Lanes, u: Lane, v: Lane) -> Lane:
    """arctan(u / v) for u, v >= 0; 0 / 0 is 0 and inf / inf pi/4."""
    both = u.equals(float("inf")) & v.equals(float("inf"))
    u, v = both.where(1.0, u), both.where(1.0, v)
    v = (u.equals(0.0) & v.equals(0.0)).where(1.0, v)
    middle, high = u > v * _TAN_EIGHTH, u > v * (1 / _TAN_EIGHTH)
    top = high.where(-v, middle.where(u - v, u))
    under = high.where(u, middle.where(u + v, v))
    base = high.where(pi / 2, middle.where(pi / 4, 0.0))
    t = top / under
    z = t * t
    near = k.multiply_add(t * z, k.polynomial(terms, z), t)
    # What the float64 of pi/4 lacks.
    return base + k.multiply_add(base, _PI_REST, near)


def _factors(a: Lane) -> list[Number]:
    """Those of x by its magnitude."""
    groups = [_parts(g) for g in range(6)]
    found: list[Number] = [*groups[0]]
    for g in range(1, 6):
        above = a >= 2.0 ** (_EXPONENTS_PER_GROUP * g)
        found = [above.where(new, old) for new, old in zip(groups[g], found, strict=True)]
    return found


def _turn(k: Lanes, x: Lane) -> tuple[Lane, Lane, Lane]:
    """sin(r), cos(r) and q, where x = q pi/2 + r; only the lowest two bits of q matter."""
    p0, p1, p2 = (x * c for c in _factors(k.abs(x)))
    n0, n1 = p0 + ROUND["double"], p1 + ROUND["double"]
    f0, f1 = p0 - (n0 - ROUND["double"]), p1 - (n1 - ROUND["double"])
    n2 = f0 + f1 + ROUND["double"]
    f = f0 - (n2 - ROUND["double"]) + f1 + p2
    q = n0.cast("i64") + n1.cast("i64") + n2.cast("i64")
    return *sine_and_cosine(k, f * (pi / 2), SIN, COS), q


def _whole(name: str, k: Lanes, x: Lane) -> Lane:
    return by_quarters(k, name, x, *_turn(k, x))


def _angle(k: Lanes, u: Lane, v: Lane | float) -> Lane:
    return k.call("d_atan_of" if k.short else "f_atan_of", u, v)


def _root(k: Lanes, x: Lane) -> Lane:
    """sqrt(1 - x^2), NaN where abs(x) > 1."""
    return k.intrinsic("sqrt", k.fma(-x, x, 1.0))


def _left_where_negative(k: Lanes, x: Lane, right: Lane) -> Lane:
    """The angle ``right``, or pi less it where the adjacent side x is negative."""
    return k.test("slt", x.cast("i64"), 0).where(pi - right, right)


def _atan(k: Lanes, x: Lane) -> Lane:
    return k.intrinsic("copysign", _angle(k, k.abs(x), 1.0), x)


def _asin(k: Lanes, x: Lane) -> Lane:
    """The tangent is x / sqrt(1 - x^2)."""
    return k.intrinsic("copysign", _angle(k, k.abs(x), _root(k, x)), x)


def _acos(k: Lanes, x: Lane) -> Lane:
    return _left_where_negative(k, x, _angle(k, _root(k, x), k.abs(x))) + 0.0


def _atan2(large: float, k: Lanes, x: Lane, x2: Lane) -> Lane:
    """Operands above ``large``, unless it is 0, are made smaller."""
    a, b = k.abs(x), k.abs(x2)
    if large:
        factor = ((a > large) | (b > large)).where(2.0**-100, 1.0)
        a, b = a * factor, b * factor
    return k.intrinsic("copysign", _left_where_negative(k, x2, _angle(k, a, b)), x)


_SLOW = "noinline nounwind memory(none)"
_INVERSE: dict[str, Callable[..., Lane]] = {"atan": _atan, "asin": _asin, "acos": _acos}
INVERSE_TRIG = [
    Formula("d_atan_of", partial(_arctangent, _ATAN), "double", "double", short=True),
    Formula("f_atan_of", partial(_arctangent, _ATAN64), "double", "double"),
    Formula("s_atan2", in_double(partial(_atan2, 0.0)), "float", "float"),
    # Of two large numbers the sum must not be infinite.
    Formula("f_atan2", partial(_atan2, 2.0**1000), "double", "double"),
    *(Formula(f"f_{name}", write, "double") for name, write in _INVERSE.items()),
    *(
        Formula(f"s_{name}_whole", in_double(partial(_whole, name)), "float", attributes=_SLOW)
        for name in ("sin", "cos", "tan")
    ),
]
