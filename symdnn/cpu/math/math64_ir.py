"""Common float64 functions as LLVM IR without branches or tables, which LLVM vectorises.

Errors are below 1 ulp for exp, log, log2 and log10, 1.5 for log1p, 2 for expm1 and 2.5 for the
others, but 4 for tan and 3.5 for inverse functions. NaN, infinities, zeros and denormals give the
same as in C, and so do exp2 and log2 of powers of two. Special functions are in
:mod:`symdnn.cpu.math.math_special64_ir` and :mod:`symdnn.cpu.math.functions_ir`; the gamma function
is the C library's.

``exp``: 2^n times the Taylor polynomial of r, where x = n ln 2 + r and abs(r) <= ln(2) / 2. The
power is multiplied in two steps, so that large results and denormals are right. So is ``exp2``.
``sinh`` and ``cosh``: H -+ 1 / (4 H), H = exp(abs(x)) / 2; sinh below 1 from exp(x) - 1.
``log``: e ln 2 + log(1 + f), where x = 2^e (1 + f), 1/sqrt(2) <= 1 + f < sqrt(2). With
s = f / (2 + f) and R the series of 2 artanh(s) / s - 2 it is f - (f^2/2 - s (f^2/2 + R)). For
``log2`` and ``log10`` that is a sum of two numbers, and so is the factor of the base.
``pow``: exp(y log abs(x)) of a logarithm that is a sum of two numbers with 64 right bits, e ln 2 +
2 s + s^3 (2/3 + R s^2). Its error is below 1 ulp.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal, localcontext
from fractions import Fraction
from math import factorial, log

from symdnn.cpu.math.math_bessel_ir import BESSEL64
from symdnn.cpu.math.math_double_ir import (
    INTEGER,
    LEAST_BITS,
    LN2_HIGH,
    LN2_LOW,
    ROUND,
    TWICE,
    full,
    horner,
    number,
    power_of_two,
    split,
)
from symdnn.cpu.math.math_inverse_trig_ir import INVERSE_TRIG64
from symdnn.cpu.math.math_power_ir import AREAS64, SIGNS_AND_ONES
from symdnn.cpu.math.math_special64_ir import SPECIAL64
from symdnn.cpu.math.math_trig_ir import TRIGONOMETRIC, trigonometric_definitions

__all__ = ["FULL_LINES", "IN_FULL", "full_declarations", "full_definitions"]

#: (exp(r) - 1 - r) / r^2, highest first.
_EXP = [1 / factorial(k) for k in range(13, 1, -1)]
#: (2 artanh(s) - 2 s) / s^3 in s^2, highest first.
_LOG = [2 / k for k in range(23, 2, -2)]


def _of_x0(name: str, *lines: str) -> list[str]:
    """The function ``f_name`` of ``%x0``."""
    head, *rest = full(name, *lines)
    return [head.replace("%x)", "%x0)"), *rest]


def _scaled(less: float = 0.0) -> list[str]:
    """Lines for ``%y``, (1 + ``%q``) 2^n; of a power that is ``less`` by so much."""
    return [
        f"%half = fmul double %n, {number(0.5)}",
        f"%k1 = fadd double %half, {number(ROUND)}",
        f"%n1 = fsub double %k1, {number(ROUND)}",
        "%n2 = fsub double %n, %n1",
        f"%k2 = fadd double %n2, {number(ROUND - less)}",
        *power_of_two("s1", "%k1"),
        *power_of_two("s2", "%k2"),
        "%y0 = call double @llvm.fmuladd.f64(double %s1, double %q, double %s1)",
        "%y = fmul double %y0, %s2",
    ]


#: exp(a) / 2 and exp(-a) / 2.
_HALF_AND_QUARTER = [
    "%h = call double @f_half_exp(double %a)",
    f"%u = fdiv double {number(0.25)}, %h",
]
#: log(m) = ``l + more`` of the mantissa m in [1/sqrt(2), sqrt(2)).
_OF_MANTISSA = [
    "%l = fsub double %f, %square",
    "%lost0 = fsub double %f, %l",
    "%lost = fsub double %lost0, %square",
    "%more = fadd double %lost, %part",
]
#: log10(2), whose high part times an exponent is exact.
_LOG2_HIGH, _LOG2_LOW = (
    float.fromhex("0x1.34413509f7000p-2"),
    float.fromhex("0x1.3fde623e2566bp-43"),
)


def _in_base(base: float, high: float, low: float) -> list[str]:
    """Lines for ``%y``, the logarithm of 2^e m: those of 2 in this base are ``high + low``."""
    with localcontext() as context:
        context.prec = 40
        exact = 1 / Decimal(base).ln()
        factor = float(exact)
        less = float(exact - Decimal(factor))
    return [
        f"%tail0 = fmul double %e, {number(low)}",
        f"%tail1 = call double @llvm.fmuladd.f64(double %l, double {number(less)}, double %tail0)",
        f"%tail = call double @llvm.fmuladd.f64(double %more, double {number(factor)}, "
        "double %tail1)",
        f"%rest1 = call double @llvm.fmuladd.f64(double %l, double {number(factor)}, double %tail)",
        f"%y = call double @llvm.fmuladd.f64(double %e, double {number(high)}, double %rest1)",
    ]


def _exponent_and_mantissa(x: str) -> list[str]:
    """Lines for e, f and g = f + 2 of a positive ``x`` = 2^e (1 + f)."""
    return [
        f"%small = fcmp olt double {x}, {number(2.0**-1022)}",
        f"%grown = fmul double {x}, {number(2.0**54)}",
        f"%u = select i1 %small, double %grown, double {x}",
        "%bits = bitcast double %u to i64",
        f"%moved = sub i64 %bits, {LEAST_BITS}",
        "%e0 = lshr i64 %moved, 52",
        f"%e1 = or i64 %e0, {INTEGER}",
        "%e2 = bitcast i64 %e1 to double",
        f"%e3 = fsub double %e2, {number(TWICE)}",
        f"%e4 = fsub double %e3, {number(54.0)}",
        "%e = select i1 %small, double %e4, double %e3",
        "%less = sub i64 %e0, 1024",
        "%shift = shl i64 %less, 52",
        "%mbits = sub i64 %bits, %shift",
        "%m = bitcast i64 %mbits to double",
        f"%f = fsub double %m, {number(1.0)}",
        f"%g = fadd double %f, {number(2.0)}",
    ]


def _logarithm(name: str, *lines: str) -> list[str]:
    """The function ``f_name``: ``%y`` of e, f, square = f^2/2 and part = s (square + R)."""
    return full(
        name,
        *_exponent_and_mantissa("%x"),
        "%s = fdiv double %f, %g",
        "%z = fmul double %s, %s",
        *horner(_LOG, "%z", "p"),
        f"%series = fmul double %p{len(_LOG) - 2}, %z",
        f"%f_half = fmul double %f, {number(0.5)}",
        "%square = fmul double %f_half, %f",
        "%sum = fadd double %square, %series",
        "%part = fmul double %s, %sum",
        *(line.replace("%y =", "%found =") for line in lines),
        # log(0) = -inf, log(inf) = inf; a negative x or NaN gives NaN.
        f"%zero = fcmp oeq double %x, {number(0.0)}",
        f"%y1 = select i1 %zero, double {number(float('-inf'))}, double %found",
        f"%inf = fcmp oeq double %x, {number(float('inf'))}",
        "%y2 = select i1 %inf, double %x, double %y1",
        f"%fine = fcmp oge double %x, {number(0.0)}",
        f"%y = select i1 %fine, double %y2, double {number(float('nan'))}",
    )


def _fma(name: str, a: str, b: str, c: str) -> str:
    """The line ``name`` = ``a b + c``, rounded once."""
    return f"%{name} = call double @llvm.fma.f64(double {a}, double {b}, double {c})"


def _product(product: str, a: str, b: str) -> list[str]:
    """``product + productx``, that of the numbers ``a + ax`` and ``b + bx`` of two doubles each.

    What is left out is ``ax * bx``.
    """
    return [
        f"%{product} = fmul double %{a}, %{b}",
        f"%{product}_minus = fneg double %{product}",
        _fma(f"{product}x0", f"%{a}", f"%{b}", f"%{product}_minus"),
        _fma(f"{product}x1", f"%{a}", f"%{b}x", f"%{product}x0"),
        _fma(f"{product}x", f"%{a}x", f"%{b}", f"%{product}x1"),
    ]


#: ``%high + %low``, the logarithm of ``%a``. Names with an x at the end are low parts.
_LOG_IN_TWO = [
    *_exponent_and_mantissa("%a"),
    # s + sx = f / (g + gx)
    f"%part = fdiv double {number(1.0)}, %g",
    "%s = fmul double %f, %part",
    f"%g_less = fsub double %g, {number(2.0)}",
    "%gx = fsub double %f, %g_less",
    "%s_minus = fneg double %s",
    _fma("rest0", "%s_minus", "%g", "%f"),
    _fma("rest1", "%s_minus", "%gx", "%rest0"),
    "%sx = fmul double %rest1, %part",
    # z + zx = s^2
    "%z = fmul double %s, %s",
    "%z_minus = fneg double %z",
    _fma("zx0", "%s", "%s", "%z_minus"),
    "%s_twice = fadd double %s, %s",
    _fma("zx", "%s_twice", "%sx", "%zx0"),
    # c + cx = 2/3 + z R
    *horner(_LOG[:-1], "%z", "c"),
    f"%series = fmul double %c{len(_LOG) - 3}, %z",
    f"%c = fadd double %series, {number(2 / 3)}",
    f"%c_less = fsub double {number(2 / 3)}, %c",
    "%cx0 = fadd double %c_less, %series",
    f"%cx = fadd double %cx0, {number(float(Fraction(2, 3) - Fraction(2 / 3)))}",
    # t + tx = z c
    *_product("t", "z", "c"),
    # l + lx = s (2 + t)
    f"%w = fadd double %t, {number(2.0)}",
    f"%w_less = fsub double {number(2.0)}, %w",
    "%wx0 = fadd double %w_less, %t",
    "%wx = fadd double %wx0, %tx",
    *_product("l", "s", "w"),
    # e ln 2 + l
    f"%h = fmul double %e, {number(LN2_HIGH)}",
    "%v = fadd double %h, %l",
    "%v_less = fsub double %h, %v",
    "%vx0 = fadd double %v_less, %l",
    "%vx1 = fadd double %vx0, %lx",
    _fma("vx", "%e", number(LN2_LOW), "%vx1"),
    "%high = fadd double %v, %vx",
    "%high_less = fsub double %v, %high",
    "%low = fadd double %high_less, %vx",
]
_POWER = [
    "%a = call double @llvm.fabs.f64(double %x)",
    *_LOG_IN_TWO,
    "%p0 = fmul double %x2, %high",
    "%p0_minus = fneg double %p0",
    _fma("px0", "%x2", "%high", "%p0_minus"),
    _fma("px1", "%x2", "%low", "%px0"),
    f"%above = fcmp ogt double %p0, {number(710.0)}",
    f"%p1 = select i1 %above, double {number(710.0)}, double %p0",
    f"%below = fcmp olt double %p0, {number(-746.0)}",
    f"%p2 = select i1 %below, double {number(-746.0)}, double %p1",
    "%held = or i1 %above, %below",
    "%px = select i1 %held, double 0.0, double %px1",
    f"%turns = fmul double %p2, {number(1 / log(2))}",
    f"%k = fadd double %turns, {number(ROUND)}",
    f"%n = fsub double %k, {number(ROUND)}",
    "%n_minus = fneg double %n",
    _fma("r0", "%n_minus", number(LN2_HIGH), "%p2"),
    _fma("r1", "%n_minus", number(LN2_LOW), "%px"),
    "%r = fadd double %r0, %r1",
    "%r_less = fsub double %r0, %r",
    "%rx = fadd double %r_less, %r1",
    *horner(_EXP, "%r", "q"),
    "%r2 = fmul double %r, %r",
    _fma("q_most", f"%q{len(_EXP) - 2}", "%r2", "%rx"),
    "%q = fadd double %r, %q_most",
    *(line.replace("%y", "%found") for line in _scaled()),
    # Of 0, infinity, and powers to infinity.
    f"%none = fcmp oeq double %a, {number(0.0)}",
    f"%all = fcmp oeq double %a, {number(float('inf'))}",
    "%y_size = call double @llvm.fabs.f64(double %x2)",
    f"%ever = fcmp oeq double %y_size, {number(float('inf'))}",
    "%end0 = or i1 %none, %all",
    "%end = or i1 %end0, %ever",
    f"%grows = fcmp ogt double %a, {number(1.0)}",
    f"%up = fcmp ogt double %x2, {number(0.0)}",
    "%shrinks = xor i1 %grows, %up",
    f"%limit = select i1 %shrinks, double 0.0, double {number(float('inf'))}",
    "%size0 = select i1 %end, double %limit, double %found",
    "%unknown = fcmp uno double %x, %x2",
    "%nan = fadd double %x, %x2",
    "%size = select i1 %unknown, double %nan, double %size0",
    *SIGNS_AND_ONES,
]

#: Lines of the function of each name.
FULL_LINES = {
    "exp": _of_x0("exp", *split(-746.0, 710.0, _EXP), *_scaled()),
    "half_exp": _of_x0("half_exp", *split(-746.0, 711.0, _EXP), *_scaled(less=1.0)),
    "exp2": _of_x0(
        "exp2",
        f"%above = fcmp ogt double %x0, {number(1025.0)}",
        f"%x1 = select i1 %above, double {number(1025.0)}, double %x0",
        f"%below = fcmp olt double %x1, {number(-1080.0)}",
        f"%x = select i1 %below, double {number(-1080.0)}, double %x1",
        f"%k = fadd double %x, {number(ROUND)}",
        f"%n = fsub double %k, {number(ROUND)}",
        "%rest = fsub double %x, %n",
        f"%r = fmul double %rest, {number(log(2))}",
        *horner(_EXP, "%r", "p"),
        "%r2 = fmul double %r, %r",
        f"%q = call double @llvm.fmuladd.f64(double %p{len(_EXP) - 2}, double %r2, double %r)",
        *_scaled(),
    ),
    "cosh": full(
        "cosh",
        "%a = call double @llvm.fabs.f64(double %x)",
        *_HALF_AND_QUARTER,
        "%y = fadd double %h, %u",
    ),
    "sinh": full(
        "sinh",
        "%a = call double @llvm.fabs.f64(double %x)",
        *_HALF_AND_QUARTER,
        "%far = fsub double %h, %u",
        "%e = call double @f_expm1_within(double %a)",
        f"%e1 = fadd double %e, {number(1.0)}",
        "%e2 = fdiv double %e, %e1",
        "%e3 = fadd double %e, %e2",
        f"%near = fmul double %e3, {number(0.5)}",
        f"%small = fcmp olt double %a, {number(1.0)}",
        "%size = select i1 %small, double %near, double %far",
        "%y = call double @llvm.copysign.f64(double %size, double %x)",
    ),
    # exp(x) - 1 for abs(x) <= 700.
    "expm1_within": [
        "define internal double @f_expm1_within(double %x0) alwaysinline {",
        *split(-700.0, 700.0, _EXP),
        *power_of_two("s", "%k"),
        f"%less = fsub double %s, {number(1.0)}",
        "%y = call double @llvm.fmuladd.f64(double %s, double %q, double %less)",
        "ret double %y",
        "}",
    ],
    "expm1": [
        "define internal double @f_expm1(double %x) alwaysinline {",
        "%y0 = call double @f_expm1_within(double %x)",
        "%e = call double @f_exp(double %x)",
        f"%above = fcmp ogt double %x, {number(700.0)}",
        "%y1 = select i1 %above, double %e, double %y0",
        f"%none = fcmp oeq double %x, {number(0.0)}",  # keeps the sign of zero
        "%y = select i1 %none, double %x, double %y1",
        "ret double %y",
        "}",
    ],
    # With E = exp(2 |x|) - 1: tanh |x| = E / (E + 2).
    "tanh": [
        "define internal double @f_tanh(double %x) alwaysinline {",
        "%a = call double @llvm.fabs.f64(double %x)",
        "%twice = fadd double %a, %a",
        f"%above = fcmp ogt double %twice, {number(44.0)}",
        f"%z = select i1 %above, double {number(44.0)}, double %twice",
        "%e = call double @f_expm1_within(double %z)",
        f"%more = fadd double %e, {number(2.0)}",
        "%y0 = fdiv double %e, %more",
        "%y = call double @llvm.copysign.f64(double %y0, double %x)",
        "ret double %y",
        "}",
    ],
    "log": _logarithm(
        "log",
        f"%low = call double @llvm.fmuladd.f64(double %e, double {number(LN2_LOW)}, double %part)",
        "%rest0 = fsub double %square, %low",
        "%rest = fsub double %rest0, %f",
        f"%high = fmul double %e, {number(LN2_HIGH)}",
        "%y = fsub double %high, %rest",
    ),
    "pow": full("pow", *_POWER, arguments=2),
    "log2": _logarithm("log2", *_OF_MANTISSA, *_in_base(2.0, 1.0, 0.0)),
    "log10": _logarithm("log10", *_OF_MANTISSA, *_in_base(10.0, _LOG2_HIGH, _LOG2_LOW)),
    # log(1 + x), corrected by the rounding error of 1 + x.
    "log1p": [
        "define internal double @f_log1p(double %x) alwaysinline {",
        f"%u = fadd double %x, {number(1.0)}",
        "%l = call double @f_log(double %u)",
        f"%v = fsub double %u, {number(1.0)}",
        "%d0 = fsub double %x, %v",
        f"%big = fcmp ogt double %x, {number(1.0)}",
        "%away = fsub double %u, %x",  # of a large x it is 1 that is rounded
        f"%d1 = fsub double {number(1.0)}, %away",
        "%d = select i1 %big, double %d1, double %d0",
        "%c = fdiv double %d, %u",
        "%w = fadd double %l, %c",
        f"%huge = fcmp ogt double %x, {number(2.0**54)}",
        "%w1 = select i1 %huge, double %l, double %w",
        f"%end = fcmp ole double %x, {number(-1.0)}",
        "%w2 = select i1 %end, double %l, double %w1",
        f"%none = fcmp oeq double %x, {number(0.0)}",
        "%y = select i1 %none, double %x, double %w2",
        "ret double %y",
        "}",
    ],
    **{name: trigonometric_definitions([name], double=True) for name in TRIGONOMETRIC},
    **AREAS64,
    **INVERSE_TRIG64,
    **SPECIAL64,
    **BESSEL64,
}  # fmt: skip

#: Instructions of scalar programs that have code of float64 here.
IN_FULL = frozenset({
    "exp", "exp2", "expm1", "tanh", "log", "log1p", "log2", "log10", "erf", "erfc", "digamma",
    "trigamma", "sinh", "cosh", "pow", *TRIGONOMETRIC, *AREAS64, *INVERSE_TRIG64,
    *BESSEL64,
}) - {"atan_of"}  # fmt: skip


def full_definitions(names: Iterable[str]) -> list[str]:
    """The IR of the functions ``f_exp`` and so on, and of those that they call."""
    wanted: set[str] = set()

    def collect(name: str) -> None:
        if name not in wanted and name in FULL_LINES:
            wanted.add(name)
            for other in re.findall(r"call double @f_(\w+)\(", "\n".join(FULL_LINES[name])):
                collect(other)

    for name in names:
        collect(name)
    return [line for name in sorted(wanted) for line in FULL_LINES[name]]


def full_declarations() -> set[str]:
    """Declarations that the IR of these functions needs."""
    return {
        "declare double @llvm.fmuladd.f64(double, double, double)",
        "declare double @llvm.copysign.f64(double, double)",
        "declare double @llvm.fabs.f64(double)",
        "declare double @llvm.floor.f64(double)",
        "declare double @llvm.fma.f64(double, double, double)",
        "declare double @llvm.rint.f64(double)",
        "declare double @llvm.sqrt.f64(double)",
        *(f"declare double @{name}(double) readnone" for name in TRIGONOMETRIC),
    }
