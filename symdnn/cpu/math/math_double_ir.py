"""exp and log in float64 as helpers of float32 functions.

In float64 a polynomial with an error of 1e-10 needs few terms, and nothing overflows, underflows or
cancels. Each function widens its argument, calls these helpers, and rounds once.

``exp``: 2^n times the Taylor polynomial of r, where x = n ln 2 + r and abs(r) <= ln(2) / 2.
``log``: e ln 2 + 2 artanh(s), where x = 2^e m, 1/sqrt(2) <= m < sqrt(2), s = (m - 1) / (m + 1).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from math import factorial, log

__all__ = [
    "HELPERS", "INTEGER", "LEAST_BITS", "LN2_HIGH", "LN2_LOW", "ROUND", "TWICE", "horner", "number",
    "wrapped",
]  # fmt: skip


def number(value: float) -> str:
    """A float64 constant in IR's notation."""
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def horner(coefficients: Iterable[float], x: str, prefix: str) -> list[str]:
    """Lines of a polynomial by Horner's rule, highest degree first; the last line is its value."""
    first, *rest = coefficients
    lines, value = [], number(first)
    for i, c in enumerate(rest):
        call = f"@llvm.fmuladd.f64(double {value}, double {x}, double {number(c)})"
        lines.append(f"%{prefix}{i} = call double {call}")
        value = f"%{prefix}{i}"
    return lines


LN2_HIGH = float.fromhex("0x1.62e42fefa0000p-1")
LN2_LOW = float.fromhex("0x1.cf79abc9e3b39p-40")
#: The bits of 1/sqrt(2) less those of 2^1024 / 2, so that exponents are not negative.
LEAST_BITS = 4604544271217802189 - (1024 << 52)
#: 2^52: its low bits are an integer that is added to them, whose exponents have 1024 too many.
INTEGER, TWICE = 0x4330000000000000, float(2**52 + 1024)
ROUND = float(3 << 51)  # a sum with it has the nearest integer in its lowest bits
#: (exp(r) - 1 - r) / r^2, highest first.
_EXP = [1 / factorial(k) for k in range(9, 1, -1)]
#: (2 artanh(s) - 2 s) / s^3 in s^2, highest first.
_LOG = [2 / k for k in range(15, 2, -2)]


def _split(least: float, most: float, terms: Sequence[float]) -> list[str]:
    """Lines for n and q = exp(r) - 1 of %x0, clamped, where x = n ln 2 + r.

    %k has n in its lowest bits. ``terms`` are coefficients of (exp(r) - 1 - r) / r^2.
    """
    return [
        f"%above = fcmp ogt double %x0, {number(most)}",
        f"%x1 = select i1 %above, double {number(most)}, double %x0",
        f"%below = fcmp olt double %x1, {number(least)}",
        f"%x = select i1 %below, double {number(least)}, double %x1",
        f"%t = fmul double %x, {number(1 / log(2))}",
        f"%k = fadd double %t, {number(ROUND)}",
        f"%n = fsub double %k, {number(ROUND)}",
        "%m = fneg double %n",
        f"%r0 = call double @llvm.fmuladd.f64(double %m, double {number(LN2_HIGH)}, double %x)",
        f"%r = call double @llvm.fmuladd.f64(double %m, double {number(LN2_LOW)}, double %r0)",
        *horner(terms, "%r", "p"),
        "%r2 = fmul double %r, %r",
        f"%q = call double @llvm.fmuladd.f64(double %p{len(terms) - 2}, double %r2, double %r)",
    ]


def _power_of_two(name: str, exponent: str) -> list[str]:
    """Lines for 2^n, where the lowest bits of ``exponent`` are n."""
    return [
        f"%{name}_bits = bitcast double {exponent} to i64",
        f"%{name}_low = add i64 %{name}_bits, 1023",
        f"%{name}_up = shl i64 %{name}_low, 52",
        f"%{name} = bitcast i64 %{name}_up to double",
    ]


HELPERS = {
    # x is clamped so that 2^n is a normal float64.
    "d_expm1": [
        "define internal double @d_expm1(double %x0) alwaysinline {",
        *_split(-700.0, 700.0, _EXP),
        *_power_of_two("scale", "%k"),
        f"%less = fsub double %scale, {number(1.0)}",
        "%y = call double @llvm.fmuladd.f64(double %scale, double %q, double %less)",
        "ret double %y",
        "}",
    ],
    "d_exp": [
        "define internal double @d_exp(double %x0) alwaysinline {",
        *_split(-700.0, 700.0, _EXP),
        *_power_of_two("scale", "%k"),
        "%y = call double @llvm.fmuladd.f64(double %scale, double %q, double %scale)",
        "ret double %y",
        "}",
    ],
    "d_log": [
        "define internal double @d_log(double %x) alwaysinline {",
        "%bits = bitcast double %x to i64",
        # The exponent of x / sqrt(1/2), so that m is around 1.
        "%moved = sub i64 %bits, 4604544271217802189",
        "%e0 = ashr i64 %moved, 52",
        "%e1 = trunc i64 %e0 to i32",
        "%e = sitofp i32 %e1 to double",
        "%shift = shl i64 %e0, 52",
        "%mbits = sub i64 %bits, %shift",
        "%m = bitcast i64 %mbits to double",
        f"%f = fsub double %m, {number(1.0)}",
        f"%g = fadd double %m, {number(1.0)}",
        "%s = fdiv double %f, %g",
        "%z = fmul double %s, %s",
        *horner(_LOG, "%z", "p"),
        "%s3 = fmul double %z, %s",
        "%s2 = fadd double %s, %s",
        f"%tail = call double @llvm.fmuladd.f64(double %p{len(_LOG) - 2}, double %s3, double %s2)",
        f"%y = call double @llvm.fmuladd.f64(double %e, double {number(log(2))}, double %tail)",
        # log(0) = -inf, log(inf) = inf; a negative x or NaN gives NaN.
        f"%zero = fcmp oeq double %x, {number(0.0)}",
        f"%y1 = select i1 %zero, double {number(float('-inf'))}, double %y",
        f"%inf = fcmp oeq double %x, {number(float('inf'))}",
        "%y2 = select i1 %inf, double %x, double %y1",
        f"%fine = fcmp oge double %x, {number(0.0)}",
        f"%y3 = select i1 %fine, double %y2, double {number(float('nan'))}",
        "ret double %y3",
        "}",
    ],
    # log(1 + x), corrected by the rounding error of 1 + x.
    "d_log1p": [
        "define internal double @d_log1p(double %x) alwaysinline {",
        f"%u = fadd double %x, {number(1.0)}",
        "%l = call double @d_log(double %u)",
        f"%v = fsub double %u, {number(1.0)}",
        "%d = fsub double %x, %v",
        "%c = fdiv double %d, %u",
        "%w = fadd double %l, %c",
        f"%big = fcmp ogt double %x, {number(1.0)}",
        "%w1 = select i1 %big, double %l, double %w",
        f"%end = fcmp ole double %x, {number(-1.0)}",
        "%w2 = select i1 %end, double %l, double %w1",
        f"%none = fcmp oeq double %x, {number(0.0)}",
        "%y = select i1 %none, double %x, double %w2",
        "ret double %y",
        "}",
    ],
}


def wrapped(
    name: str, *lines: str, arguments: int = 1, inline: bool = True, result: str = "%y"
) -> list[str]:
    """The float32 function ``s_name`` around float64 lines from ``%x`` (and ``%x2``) to ``%y``."""
    attributes = "alwaysinline" if inline else "noinline nounwind memory(none)"
    names = ["%a0", "%a1"][:arguments]
    parameters = ", ".join(f"float {n}" for n in names)
    return [
        f"define internal float @s_{name}({parameters}) {attributes} {{",
        *(f"{x} = fpext float {a} to double" for x, a in zip(("%x", "%x2"), names)),
        *lines,
        f"%rounded = fptrunc double {result} to float",
        "ret float %rounded",
        "}",
    ]
