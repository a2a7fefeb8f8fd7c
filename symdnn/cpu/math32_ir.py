"""exp, log and tanh computed in float32: three times as fast as in float64, within 2 ulp.

They are what nets spend their time in. No branches, no tables; NaN, infinities, zeros and
denormals come out as C has them. Polynomials are Chebyshev interpolants, rounded to float32.

``exp``: 2^n exp(r), where x = n ln 2 + r and abs(r) <= ln(2) / 2; 2^n as two factors, so that
denormal results are rounded once and nothing overflows early.
``log``: e ln 2 + log(1 + f), where x = 2^e (1 + f), 1/sqrt(2) <= 1 + f < sqrt(2).
``tanh``: an odd polynomial below 0.625, above it 1 - 2 / (exp(2 x) + 1).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from math import log

__all__ = ["IN_SINGLE", "single_definitions"]

#: What is here, by the names of the instructions.
IN_SINGLE = frozenset({"exp", "log", "tanh"})


def _n(value: float) -> str:
    """A float as IR writes it: the bits of the double that equals it."""
    (rounded,) = struct.unpack("<f", struct.pack("<f", value))
    return f"0x{struct.unpack('<Q', struct.pack('<d', rounded))[0]:016X}"


#: (exp(r) - 1 - r) / r^2 for |r| <= 0.347, highest coefficient first.
_EXP = (
    "0x1.a1258cp-13", "0x1.6d43d2p-10", "0x1.1110e0p-7", "0x1.5554e8p-5", "0x1.555556p-3",
    "0x1.000000p-1",
)  # fmt: skip
#: (log(1 + f) - f + f^2 / 2) / f^3 for -0.293 <= f <= 0.415.
_LOG = (
    "0x1.1d7b2ap-4", "-0x1.d63002p-4", "0x1.dea674p-4", "-0x1.fcf5b6p-4", "0x1.23d1f8p-3",
    "-0x1.555b44p-3", "0x1.999d5cp-3", "-0x1.fffffcp-3", "0x1.555554p-2",
)  # fmt: skip
#: (tanh(x) / x - 1) / x^2 in x^2, for x <= 0.625.
_TANH = (
    "0x1.2c7d78p-9", "-0x1.1168b4p-7", "0x1.64a940p-6", "-0x1.ba08c2p-5", "0x1.1110eap-3",
    "-0x1.555556p-2",
)  # fmt: skip

_ROUND = float(3 << 22)  # adding it leaves the nearest integer in the lowest bits
_ROUND_BITS = 0x4B400000
_LN2_HIGH = float.fromhex("0x1.63p-1")  # few bits: its products with exponents are exact
_LN2_LOW = log(2) - _LN2_HIGH


def _fma(out: str, a: str, b: str, c: str) -> str:
    return f"{out} = call float @llvm.fmuladd.f32(float {a}, float {b}, float {c})"


def _horner(coefficients: Iterable[str], x: str) -> list[str]:
    """Lines for ``%p``, the value of a polynomial."""
    first, *rest = (_n(float.fromhex(c)) for c in coefficients)
    lines, value = [], first
    for i, c in enumerate(rest):
        value, before = ("%p" if i == len(rest) - 1 else f"%p{i}"), value
        lines.append(_fma(value, before, x, c))
    return lines


_TEXT = {
    "exp": [
        "define internal float @s_exp(float %x0) alwaysinline {",
        f"%above = fcmp ogt float %x0, {_n(89.0)}",
        f"%x1 = select i1 %above, float {_n(89.0)}, float %x0",
        f"%below = fcmp olt float %x1, {_n(-104.0)}",
        f"%x = select i1 %below, float {_n(-104.0)}, float %x1",
        _fma("%k", "%x", _n(1 / log(2)), _n(_ROUND)),
        f"%n = fsub float %k, {_n(_ROUND)}",
        _fma("%r0", "%n", _n(-_LN2_HIGH), "%x"),
        _fma("%r", "%n", _n(-_LN2_LOW), "%r0"),
        *_horner(_EXP, "%r"),
        "%r2 = fmul float %r, %r",
        _fma("%q", "%p", "%r2", "%r"),
        f"%y0 = fadd float %q, {_n(1.0)}",
        "%bits = bitcast float %k to i32",
        f"%e = sub i32 %bits, {_ROUND_BITS}",
        "%e1 = ashr i32 %e, 1",
        "%e2 = sub i32 %e, %e1",
        "%b1 = add i32 %e1, 127",
        "%b2 = add i32 %e2, 127",
        "%u1 = shl i32 %b1, 23",
        "%u2 = shl i32 %b2, 23",
        "%s1 = bitcast i32 %u1 to float",
        "%s2 = bitcast i32 %u2 to float",
        "%y1 = fmul float %y0, %s1",
        "%y = fmul float %y1, %s2",
        "ret float %y",
        "}",
    ],
    "log": [
        "define internal float @s_log(float %x0) alwaysinline {",
        f"%small = fcmp olt float %x0, {_n(2.0**-126)}",
        f"%moved = fmul float %x0, {_n(2.0**23)}",
        "%x = select i1 %small, float %moved, float %x0",
        f"%less = select i1 %small, float {_n(-23.0)}, float {_n(0.0)}",
        "%bits = bitcast float %x to i32",
        # The exponent of x / sqrt(1/2), so that 1 + f lies around 1.
        "%rest = sub i32 %bits, 1060439283",
        "%e0 = ashr i32 %rest, 23",
        "%e1 = sitofp i32 %e0 to float",
        "%e = fadd float %e1, %less",
        "%shift = shl i32 %e0, 23",
        "%mbits = sub i32 %bits, %shift",
        "%m = bitcast i32 %mbits to float",
        f"%f = fsub float %m, {_n(1.0)}",
        *_horner(_LOG, "%f"),
        "%z = fmul float %f, %f",
        "%f3 = fmul float %z, %f",
        "%t0 = fmul float %f3, %p",
        _fma("%t1", "%e", _n(_LN2_LOW), "%t0"),
        _fma("%t2", "%z", _n(-0.5), "%t1"),
        "%t3 = fadd float %f, %t2",
        _fma("%y", "%e", _n(_LN2_HIGH), "%t3"),
        # 0 gives -inf, inf itself, what is negative (or NaN) NaN.
        f"%zero = fcmp oeq float %x0, {_n(0.0)}",
        f"%y1 = select i1 %zero, float {_n(float('-inf'))}, float %y",
        f"%inf = fcmp oeq float %x0, {_n(float('inf'))}",
        "%y2 = select i1 %inf, float %x0, float %y1",
        f"%fine = fcmp oge float %x0, {_n(0.0)}",
        "%y3 = select i1 %fine, float %y2, float 0x7FF8000000000000",
        "ret float %y3",
        "}",
    ],
    "tanh": [
        "define internal float @s_tanh(float %x) alwaysinline {",
        "%a = call float @llvm.fabs.f32(float %x)",
        f"%above = fcmp ogt float %a, {_n(9.5)}",
        f"%b = select i1 %above, float {_n(9.5)}, float %a",
        "%b2 = fadd float %b, %b",
        "%e = call float @s_exp(float %b2)",
        f"%e1 = fadd float %e, {_n(1.0)}",
        f"%q = fdiv float {_n(2.0)}, %e1",
        f"%l0 = fsub float {_n(1.0)}, %q",
        "%z = fmul float %a, %a",
        *_horner(_TANH, "%z"),
        "%az = fmul float %a, %z",
        _fma("%odd", "%az", "%p", "%a"),
        f"%near = fcmp olt float %a, {_n(0.625)}",
        "%size = select i1 %near, float %odd, float %l0",
        "%y = call float @llvm.copysign.f32(float %size, float %x)",
        "ret float %y",
        "}",
    ],
}

_DECLARED = [
    "declare float @llvm.fmuladd.f32(float, float, float)",
    "declare float @llvm.copysign.f32(float, float)",
    "declare float @llvm.fabs.f32(float)",
]


def single_definitions(names: Iterable[str]) -> list[str]:
    """The IR of these functions, without the declarations that a printer makes; [] of none."""
    wanted = set(names)
    if "tanh" in wanted:
        wanted.add("exp")
    lines = _DECLARED[:1] if wanted else []
    return [*lines, *(line for name in sorted(wanted) for line in _TEXT[name])]


def single_declarations(names: Iterable[str]) -> set[str]:
    """What these functions need declared besides, as a printer's own calls may."""
    return set(_DECLARED[1:]) if "tanh" in set(names) else set()
