"""Inverse trigonometric functions, and sin, cos and tan of large float32, as LLVM IR.

They are computed in float64 without branches or tables. :mod:`symdnn.cpu.math.math_trig_ir` has
sin, cos and tan of other arguments.

**Reduction** takes any float32, also 3e38, by the method of Payne and Hanek (1983). Bits of 2/pi
that would only add whole turns to x * 2/pi are skipped. The next 28, 28 and 53 bits are multiplied
by x, the first two products without rounding. The exponent of x decides which bits:
:data:`_EXPONENTS_PER_GROUP` exponents share one choice. The result is right to 2^-54 of a quarter
turn; no float32 is nearer to a multiple than 2^-30.

**Inverses** are the arctangent of a quotient, reduced to abs(t) <= tan(pi/8).
"""

from __future__ import annotations

from functools import partial
from math import factorial, pi

from symdnn.cpu.math.lanes_ir import Lane, Lanes, double_function, single_function
from symdnn.cpu.math.math_double_ir import ROUND, horner, number, wrapped

__all__ = ["INVERSE_TRIG", "INVERSE_TRIG64", "TRIG_HELPERS", "COS", "SIN", "TWO_OVER_PI_BITS"]

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


def _choice() -> list[str]:
    """Lines for the factors ``%c0`` to ``%c2``, chosen by the magnitude ``%a`` of x."""
    groups = [_parts(g) for g in range(6)]
    lines = []
    for g in range(1, 6):
        lines.append(f"%from{g} = fcmp oge double %a, {number(2.0 ** (_EXPONENTS_PER_GROUP * g))}")
    for part in range(3):
        value = number(groups[0][part])
        for g in range(1, 6):
            name = f"%c{part}" if g == 5 else f"%c{part}_{g}"
            lines.append(
                f"{name} = select i1 %from{g}, double {number(groups[g][part])}, double {value}"
            )
            value = name
    return lines


def _nearest(out: str, x: str) -> list[str]:
    """Lines for the nearest integer ``out``; ``{out}_k`` has it in its lowest bits."""
    return [
        f"{out}_k = fadd double {x}, {number(ROUND)}",
        f"{out} = fsub double {out}_k, {number(ROUND)}",
        f"{out}_b = bitcast double {out}_k to i64",
    ]


#: (sin(r) / r - 1) / r^2 and (cos(r) - 1) / r^2 in r^2, highest degree first.
SIN = [(-1) ** k / factorial(2 * k + 1) for k in range(6, 0, -1)]
COS = [(-1) ** k / factorial(2 * k) for k in range(6, 0, -1)]
#: (arctan(t) / t - 1) / t^2 in t^2 for abs(t) <= tan(pi/8): Chebyshev interpolants, the second of
#: which is right to 2^-57.
_ATAN = [
    float.fromhex(c)
    for c in (
        "0x1.0e4d689060889p-5", "-0x1.edf36f92e7014p-5", "0x1.37840359fe036p-4",
        "-0x1.741668d04d54cp-4", "0x1.c7196e65ff7a5p-4", "-0x1.24924102d4124p-3",
        "0x1.99999988ce687p-3", "-0x1.55555555527aep-2",
    )
]  # fmt: skip
_ATAN64 = [
    float.fromhex(c)
    for c in (
        "-0x1.3a31b1c0fd3b7p-6", "0x1.4162c02b1dda3p-5", "-0x1.a0999c632b6edp-5",
        "0x1.dfe6497e96323p-5", "-0x1.10fa77b1a6d57p-4", "0x1.3b1263064f6b9p-4",
        "-0x1.745d0b28a7e37p-4", "0x1.c71c71853d7fap-4", "-0x1.2492492436201p-3",
        "0x1.999999999934cp-3", "-0x1.5555555555555p-2",
    )
]  # fmt: skip
_TAN_EIGHTH = 2**0.5 - 1
#: What is added to the float64 nearest to pi, as a part of it.
_PI_REST = float.fromhex("0x1.1a62633145c07p-53") / pi


def _arctangent(terms: list[float], k: Lanes, u: Lane, v: Lane) -> Lane:
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
    near = k.multiply_add(t * z, k.polynomial(terms[::-1], z), t)
    # What the float64 of pi/4 lacks.
    return base + k.multiply_add(base, _PI_REST, near)


TRIG_HELPERS = {
    # (sin(r), cos(r), q), where x = q pi/2 + r; only the lowest two bits of q matter.
    "d_turn": [
        "define internal {double, double, i64} @d_turn(double %x) alwaysinline {",
        "%a = call double @llvm.fabs.f64(double %x)",
        *_choice(),
        "%p0 = fmul double %x, %c0",
        "%p1 = fmul double %x, %c1",
        "%p2 = fmul double %x, %c2",
        *_nearest("%n0", "%p0"),
        "%f0 = fsub double %p0, %n0",
        *_nearest("%n1", "%p1"),
        "%f1 = fsub double %p1, %n1",
        "%f2 = fadd double %f0, %f1",
        *_nearest("%n2", "%f2"),
        "%f3 = fsub double %f0, %n2",
        "%f4 = fadd double %f3, %f1",
        "%f = fadd double %f4, %p2",
        "%q0 = add i64 %n0_b, %n1_b",
        "%q = add i64 %q0, %n2_b",
        f"%r = fmul double %f, {number(pi / 2)}",
        "%z = fmul double %r, %r",
        *horner(SIN, "%z", "s"),
        *horner(COS, "%z", "c_"),
        "%rz = fmul double %r, %z",
        f"%sin = call double @llvm.fmuladd.f64(double %rz, double %s{len(SIN) - 2}, double %r)",
        f"%cos = call double @llvm.fmuladd.f64(double %z, double %c_{len(COS) - 2}, "
        f"double {number(1.0)})",
        "%t0 = insertvalue {double, double, i64} undef, double %sin, 0",
        "%t1 = insertvalue {double, double, i64} %t0, double %cos, 1",
        "%t2 = insertvalue {double, double, i64} %t1, i64 %q, 2",
        "ret {double, double, i64} %t2",
        "}",
    ],
    # The sine of x and `more` quarter turns.
    "d_wave": [
        "define internal double @d_wave(double %x, i64 %more) alwaysinline {",
        "%t = call {double, double, i64} @d_turn(double %x)",
        "%sin = extractvalue {double, double, i64} %t, 0",
        "%cos = extractvalue {double, double, i64} %t, 1",
        "%q0 = extractvalue {double, double, i64} %t, 2",
        "%q = add i64 %q0, %more",
        "%odd0 = and i64 %q, 1",
        "%odd = icmp ne i64 %odd0, 0",
        "%size = select i1 %odd, double %cos, double %sin",
        "%half0 = and i64 %q, 2",
        "%half = icmp ne i64 %half0, 0",
        "%minus = fneg double %size",
        "%y = select i1 %half, double %minus, double %size",
        "ret double %y",
        "}",
    ],
    "d_atan_of": double_function("atan_of", partial(_arctangent, _ATAN), 2, short=True),
}


def _angle(k: Lanes, u: Lane, v: Lane | float) -> Lane:
    return k.call("d_atan_of" if k.short else "f_atan_of", u, v)


def _root(k: Lanes, x: Lane) -> Lane:
    """sqrt(1 - x^2), NaN where abs(x) > 1."""
    return k.intrinsic("sqrt", k.fma(-x, x, 1.0))


def _left_where_negative(k: Lanes, x: Lane, right: Lane) -> Lane:
    """The angle ``right``, or pi less it where the adjacent side x is negative."""
    negative = k.new(f"icmp slt i64 {x.cast('i64').name}, 0", "i1")
    return negative.where(pi - right, right)


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


_INVERSE = {"atan": _atan, "asin": _asin, "acos": _acos}
INVERSE_TRIG = {
    "sin_whole": wrapped(
        "sin_whole",
        "%s = call double @d_wave(double %x, i64 0)",
        f"%none = fcmp oeq double %x, {number(0.0)}",  # keeps the sign of zero
        "%y = select i1 %none, double %x, double %s",
        inline=False,
    ),
    "cos_whole": wrapped("cos_whole", "%y = call double @d_wave(double %x, i64 1)", inline=False),
    "tan_whole": wrapped(
        "tan_whole",
        "%t = call {double, double, i64} @d_turn(double %x)",
        "%sin = extractvalue {double, double, i64} %t, 0",
        "%cos = extractvalue {double, double, i64} %t, 1",
        "%q = extractvalue {double, double, i64} %t, 2",
        "%odd0 = and i64 %q, 1",
        "%odd = icmp ne i64 %odd0, 0",
        "%minus = fneg double %cos",
        "%top = select i1 %odd, double %minus, double %sin",
        "%under = select i1 %odd, double %sin, double %cos",
        "%d = fdiv double %top, %under",
        f"%none = fcmp oeq double %x, {number(0.0)}",
        "%y = select i1 %none, double %x, double %d",
        inline=False,
    ),
    **{name: single_function(name, write) for name, write in _INVERSE.items()},
    "atan2": single_function("atan2", partial(_atan2, 0.0), arity=2),
}
#: The same of float64. Of two large numbers the sum must not be infinite.
INVERSE_TRIG64 = {
    "atan_of": double_function("atan_of", partial(_arctangent, _ATAN64), arity=2),
    **{name: double_function(name, write) for name, write in _INVERSE.items()},
    "atan2": double_function("atan2", partial(_atan2, 2.0**1000), arity=2),
}
