"""exp, exp2, log, log2, log1p, tanh and erf computed in float32: three times as fast as in float64.

These are the functions that neural networks use most. Errors are below 2 ulp. There are no branches
and no tables; NaN, infinities, zeros and denormals give the same as in C. Polynomials are Chebyshev
interpolants or minimax, rounded to float32. gelu and erfc are in
:mod:`symdnn.cpu.math.math_gelu_erfc_ir`, sin, cos and tan in :mod:`symdnn.cpu.math.math_trig_ir`.

``exp``: 2^n exp(r), where x = n ln 2 + r and abs(r) <= ln(2) / 2; 2^n as two factors, so that
denormal results are rounded once and nothing overflows early. ``exp2``: r = (x - n) ln 2.
``log``: e ln 2 + log(1 + f), where x = 2^e (1 + f), 1/sqrt(2) <= 1 + f < sqrt(2). ``log2``: e +
log(1 + f) / ln 2. Those of whole powers of two are exact.
``log1p``: e ln 2 + log(1 + f), where 1 + x has the exponent e and f = x / 2^e + (1 / 2^e - 1).
``tanh``: an odd polynomial below 0.625, above it 1 - 2 / (exp(2 x) + 1).
``erf``: an odd polynomial below 0.9, above it 1 - exp(P(x)).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import log

from symdnn.cpu.math.math_gelu_erfc_ir import GELU_ERFC
from symdnn.cpu.math.math_single_ir import ROUND, fma, horner, single
from symdnn.cpu.math.math_trig_ir import TRIGONOMETRIC, trigonometric_definitions

__all__ = ["IN_SINGLE", "single_definitions"]

#: Instructions of scalar programs that are computed in float32.
IN_SINGLE = frozenset(
    {"exp", "exp2", "log", "log2", "log1p", "tanh", "erf", *GELU_ERFC, *TRIGONOMETRIC}
)


#: (exp(r) - 1 - r) / r^2 for |r| <= 0.347, highest coefficient first.
_EXP = ("0x1.6a452cp-10", "0x1.1239aap-7", "0x1.5558b8p-5", "0x1.555492p-3", "0x1.fffffcp-2")
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
#: erf(x) / x - 1 in x^2, for x <= 0.9: minimax, as those below.
_ERF = (
    "-0x1.3d1bcep-11", "0x1.47f206p-8", "-0x1.b6a90ep-6", "0x1.ce1c5ap-4", "-0x1.8126f0p-2",
    "0x1.06eba6p-3",
)  # fmt: skip
#: log(erfc(x)) for 0.9 <= x <= 4.
_LOG_ERFC = (
    "0x1.9fba8cp-13", "-0x1.91d060p-9", "0x1.6d9e0ap-6", "-0x1.aa738cp-4", "-0x1.4621b0p-1",
    "-0x1.20b754p+0", "-0x1.5d0670p-13",
)  # fmt: skip
_ROUND_BITS = 0x4B400000
_LN2_HIGH = float.fromhex("0x1.63p-1")  # few bits: its products with exponents are exact
_LN2_LOW = log(2) - _LN2_HIGH
_PER_LN2_HIGH = float.fromhex("0x1.715476p+0")  # of 1 / ln 2
_PER_LN2_LOW = 1 / log(2) - _PER_LN2_HIGH


def _reduced(base2: bool = False) -> list[str]:
    """Lines for ``%y0`` = exp(r) of ``%x``, and ``%k`` with the exponent n in its bits.

    ``base2``: of 2^x, where x - n is exact.
    """
    if base2:
        rest = [
            f"%k = fadd float %x, {single(ROUND)}",
            f"%n = fsub float %k, {single(ROUND)}",
            "%f = fsub float %x, %n",
            f"%r = fmul float %f, {single(log(2))}",
        ]
    else:
        rest = [
            fma("%k", "%x", single(1 / log(2)), single(ROUND)),
            f"%n = fsub float %k, {single(ROUND)}",
            fma("%r0", "%n", single(-_LN2_HIGH), "%x"),
            fma("%r", "%n", single(-_LN2_LOW), "%r0"),
        ]
    return [
        *rest,
        *horner(_EXP, "%r", "%e_p"),
        "%r2 = fmul float %r, %r",
        fma("%q", "%e_p", "%r2", "%r"),
        f"%y0 = fadd float %q, {single(1.0)}",
    ]


def _exp_of_normal(name: str) -> list[str]:
    """The function exp(x) for x whose result is a normal number; not for NaN."""
    return [
        f"define internal float @{name}(float %x) alwaysinline {{",
        *_reduced(),
        "%k_bits = bitcast float %k to i32",
        "%up = shl i32 %k_bits, 23",
        "%y_bits = bitcast float %y0 to i32",
        "%scaled = add i32 %y_bits, %up",
        "%y = bitcast i32 %scaled to float",
        "ret float %y",
        "}",
    ]


def _log_of(f: str) -> list[str]:
    """Lines for ``%y`` = e ln 2 + log(1 + f)."""
    return [
        *horner(_LOG, f),
        f"%z = fmul float {f}, {f}",
        f"%f3 = fmul float %z, {f}",
        "%t0 = fmul float %f3, %p",
        fma("%t1", "%e", single(_LN2_LOW), "%t0"),
        fma("%t2", "%z", single(-0.5), "%t1"),
        f"%t3 = fadd float {f}, %t2",
        fma("%y", "%e", single(_LN2_HIGH), "%t3"),
    ]


def _log2_of(f: str) -> list[str]:
    """Lines for ``%y`` = e + log(1 + f) / ln 2."""
    return [
        *horner(_LOG, f),
        f"%z = fmul float {f}, {f}",
        f"%f3 = fmul float %z, {f}",
        "%t0 = fmul float %f3, %p",
        fma("%t1", "%z", single(-0.5), "%t0"),
        f"%t2 = fmul float {f}, {single(_PER_LN2_LOW)}",
        fma("%t3", "%t1", single(_PER_LN2_HIGH), "%t2"),
        fma("%t4", f, single(_PER_LN2_HIGH), "%t3"),
        "%y = fadd float %e, %t4",
    ]


def _exponential(name: str, least: float, most: float, reduced: list[str]) -> list[str]:
    """The function ``name``, of which results are 0 below ``least`` and infinite above ``most``."""
    return [
        f"define internal float @s_{name}(float %x0) alwaysinline {{",
        f"%above = fcmp ogt float %x0, {single(most)}",
        f"%x1 = select i1 %above, float {single(most)}, float %x0",
        f"%below = fcmp olt float %x1, {single(least)}",
        f"%x = select i1 %below, float {single(least)}, float %x1",
        *reduced,
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
    ]


def _logarithm(name: str, of_mantissa: list[str]) -> list[str]:
    """The function ``name``, from ``%e`` and ``%f``."""
    return [
        f"define internal float @s_{name}(float %x0) alwaysinline {{",
        f"%small = fcmp olt float %x0, {single(2.0**-126)}",
        f"%moved = fmul float %x0, {single(2.0**23)}",
        "%x = select i1 %small, float %moved, float %x0",
        f"%less = select i1 %small, float {single(-23.0)}, float {single(0.0)}",
        "%bits = bitcast float %x to i32",
        # The exponent of x / sqrt(1/2), so that 1 + f is around 1.
        "%rest = sub i32 %bits, 1060439283",
        "%e0 = ashr i32 %rest, 23",
        "%e1 = sitofp i32 %e0 to float",
        "%e = fadd float %e1, %less",
        "%shift = shl i32 %e0, 23",
        "%mbits = sub i32 %bits, %shift",
        "%m = bitcast i32 %mbits to float",
        f"%f = fsub float %m, {single(1.0)}",
        *of_mantissa,
        # log(0) = -inf, log(inf) = inf; a negative x or NaN gives NaN.
        f"%zero = fcmp oeq float %x0, {single(0.0)}",
        f"%y1 = select i1 %zero, float {single(float('-inf'))}, float %y",
        f"%inf = fcmp oeq float %x0, {single(float('inf'))}",
        "%y2 = select i1 %inf, float %x0, float %y1",
        f"%fine = fcmp oge float %x0, {single(0.0)}",
        "%y3 = select i1 %fine, float %y2, float 0x7FF8000000000000",
        "ret float %y3",
        "}",
    ]


_TEXT = {
    "exp": _exponential("exp", -104.0, 89.0, _reduced()),
    "exp2": _exponential("exp2", -151.0, 129.0, _reduced(base2=True)),
    "log": _logarithm("log", _log_of("%f")),
    "log2": _logarithm("log2", _log2_of("%f")),
    "log1p": [
        "define internal float @s_log1p(float %x0) alwaysinline {",
        # A large x is scaled by 2^-64, so that 2^e and 2^-e are both normal numbers.
        f"%big = fcmp ogt float %x0, {single(2.0**64)}",
        f"%moved = fmul float %x0, {single(2.0**-64)}",
        "%x = select i1 %big, float %moved, float %x0",
        f"%one = select i1 %big, float {single(0.0)}, float {single(1.0)}",
        f"%more = select i1 %big, float {single(64.0)}, float {single(0.0)}",
        "%u = fadd float %x, %one",
        "%bits = bitcast float %u to i32",
        "%rest = sub i32 %bits, 1060439283",
        "%e0 = ashr i32 %rest, 23",
        "%e1 = sitofp i32 %e0 to float",
        "%e = fadd float %e1, %more",
        "%shift = shl i32 %e0, 23",
        f"%s_bits = sub i32 {0x3F800000}, %shift",
        "%s = bitcast i32 %s_bits to float",
        "%low0 = fmul float %one, %s",
        f"%low = fsub float %low0, {single(1.0)}",
        fma("%f", "%x", "%s", "%low"),
        *_log_of("%f"),
        # log1p(-1) = -inf, log1p(inf) = inf; x < -1 or NaN gives NaN; zero keeps its sign.
        f"%end = fcmp oeq float %x0, {single(-1.0)}",
        f"%y1 = select i1 %end, float {single(float('-inf'))}, float %y",
        f"%inf = fcmp oeq float %x0, {single(float('inf'))}",
        f"%none = fcmp oeq float %x0, {single(0.0)}",
        "%self = or i1 %inf, %none",
        "%y2 = select i1 %self, float %x0, float %y1",
        f"%fine = fcmp oge float %x0, {single(-1.0)}",
        "%y3 = select i1 %fine, float %y2, float 0x7FF8000000000000",
        "ret float %y3",
        "}",
    ],
    "tanh": [
        *_exp_of_normal("s_exp_tanh"),
        "define internal float @s_tanh(float %x) alwaysinline {",
        "%a = call float @llvm.fabs.f32(float %x)",
        f"%above = fcmp ogt float %a, {single(9.5)}",
        f"%b = select i1 %above, float {single(9.5)}, float %a",
        "%b2 = fadd float %b, %b",
        "%e = call float @s_exp_tanh(float %b2)",
        f"%e1 = fadd float %e, {single(1.0)}",
        f"%q = fdiv float {single(2.0)}, %e1",
        f"%l0 = fsub float {single(1.0)}, %q",
        "%z = fmul float %a, %a",
        *horner(_TANH, "%z"),
        "%az = fmul float %a, %z",
        fma("%odd", "%az", "%p", "%a"),
        f"%far = fcmp ogt float %a, {single(0.625)}",
        "%size = select i1 %far, float %l0, float %odd",
        "%y = call float @llvm.copysign.f32(float %size, float %x)",
        "ret float %y",
        "}",
    ],
    "erf": [
        *_exp_of_normal("s_exp_erf"),
        "define internal float @s_erf(float %x) alwaysinline {",
        "%a = call float @llvm.fabs.f32(float %x)",
        f"%above = fcmp ogt float %a, {single(4.0)}",
        f"%b = select i1 %above, float {single(4.0)}, float %a",
        *horner(_LOG_ERFC, "%b", "%l"),
        "%c = call float @s_exp_erf(float %l)",
        f"%most = fsub float {single(1.0)}, %c",
        "%z = fmul float %a, %a",
        *horner(_ERF, "%z"),
        fma("%odd", "%a", "%p", "%a"),
        f"%far = fcmp ogt float %a, {single(0.9)}",
        "%size = select i1 %far, float %most, float %odd",
        "%y = call float @llvm.copysign.f32(float %size, float %x)",
        "ret float %y",
        "}",
    ],
    **GELU_ERFC,
}

_DECLARED = [
    "declare float @llvm.fmuladd.f32(float, float, float)",
    "declare float @llvm.copysign.f32(float, float)",
    "declare float @llvm.fabs.f32(float)",
    "declare float @llvm.fma.f32(float, float, float)",
]


def single_definitions(names: Iterable[str]) -> list[str]:
    """The IR of these functions without :func:`single_declarations`; empty without any."""
    wanted = set(names)
    lines = _DECLARED[:1] if wanted else []
    plain = sorted(wanted - set(TRIGONOMETRIC))
    return [
        *lines,
        *(line for name in plain for line in _TEXT[name]),
        *trigonometric_definitions(wanted),
    ]


def single_declarations(names: Iterable[str]) -> set[str]:
    """Declarations that the IR of these functions needs and that a printer may make too."""
    return set(_DECLARED[1:]) if {"tanh", "erf", *GELU_ERFC, *TRIGONOMETRIC} & set(names) else set()
