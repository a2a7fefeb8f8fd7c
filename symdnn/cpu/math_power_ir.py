"""float32's pow, erf, erfc, asinh, acosh and atanh as LLVM IR: float64 inside, no branches.

``pow``: exp(y log abs(x)), with a sign where y is odd, and C's results for 0, 1, infinities, NaN.
``erf``: x times a polynomial in x^2 below 1, above it 1 - erfc.
``erfc``: exp(-x^2) g(u) / (1 + 2 x) with u = (x - 3) / (x + 3), for x >= 0; g is a polynomial.
"""

from __future__ import annotations

from symdnn.cpu.math_double_ir import horner, number, wrapped

__all__ = ["POWER", "POWER_PIECES"]

#: erf(x) / x in x^2 for x <= 1: a Chebyshev interpolant, highest first.
_ERF = [
    float.fromhex(c)
    for c in (
        "-0x1.c1ceb6ea9e0bcp-24", "0x1.9aec71c140a6fp-20", "-0x1.f073299dc9914p-17",
        "0x1.f9421ae0ac128p-14", "-0x1.c0287389d8963p-11", "0x1.565ba08d539e9p-8",
        "-0x1.b82ce160031c7p-6", "0x1.ce2f2197d3e97p-4", "-0x1.812746b02756fp-2",
        "0x1.20dd750429b1bp+0",
    )
]  # fmt: skip
#: exp(x^2) erfc(x) (1 + 2 x) in u for x <= 10.5: a Chebyshev interpolant.
_ERFC = [
    float.fromhex(c)
    for c in (
        "0x1.174aa49fe603dp-15", "0x1.0a65a490b49c3p-13", "-0x1.0a4e7883c8f48p-13",
        "-0x1.9e8a9adb8fd6bp-11", "0x1.f08b7d32d6362p-10", "0x1.4c1e464ff5e97p-9",
        "-0x1.857693cd2ae91p-6", "0x1.17c967db3d212p-4", "-0x1.e88b8321a4336p-4",
        "0x1.09836ce33faa2p-3", "-0x1.85a15b71986d8p-5", "-0x1.15c084d9375ccp-3",
        "0x1.40c522d7d564bp+0",
    )
]  # fmt: skip
#: From here on a float32 erfc is 0.
_LAST = 10.5

POWER_PIECES = {
    # erfc of the size of x.
    "d_erfc": [
        "define internal double @d_erfc(double %x) alwaysinline {",
        "%a0 = call double @llvm.fabs.f64(double %x)",
        f"%far = fcmp ogt double %a0, {number(_LAST)}",
        f"%a = select i1 %far, double {number(_LAST)}, double %a0",
        f"%top = fsub double %a, {number(3.0)}",
        f"%under = fadd double %a, {number(3.0)}",
        "%u = fdiv double %top, %under",
        *horner(_ERFC, "%u", "p"),
        "%square = fmul double %a, %a",
        "%minus = fneg double %square",
        "%e = call double @d_exp(double %minus)",
        f"%t = fmul double %e, %p{len(_ERFC) - 2}",
        "%twice = fadd double %a, %a",
        f"%more = fadd double %twice, {number(1.0)}",
        "%y = fdiv double %t, %more",
        "ret double %y",
        "}",
    ],
}

_SIGNED = "%y = call double @llvm.copysign.f64(double %size, double %x)"

POWER = {
    "erf": wrapped(
        "erf",
        "%far = call double @d_erfc(double %x)",
        f"%left = fsub double {number(1.0)}, %far",
        "%size = call double @llvm.copysign.f64(double %left, double %x)",
        "%z = fmul double %x, %x",
        *horner(_ERF, "%z", "p"),
        f"%near = fmul double %x, %p{len(_ERF) - 2}",
        f"%below = fcmp olt double %z, {number(1.0)}",
        "%y = select i1 %below, double %near, double %size",
    ),
    "erfc": wrapped(
        "erfc",
        "%right = call double @d_erfc(double %x)",
        f"%left = fsub double {number(2.0)}, %right",
        f"%negative = fcmp olt double %x, {number(0.0)}",
        "%y = select i1 %negative, double %left, double %right",
    ),
    "pow": wrapped(
        "pow",
        "%a = call double @llvm.fabs.f64(double %x)",
        "%l = call double @d_log(double %a)",
        "%p = fmul double %x2, %l",
        "%size = call double @d_exp(double %p)",
        "%floor = call double @llvm.floor.f64(double %x2)",
        "%whole = fcmp oeq double %floor, %x2",
        f"%halved = fmul double %x2, {number(0.5)}",
        "%halved_floor = call double @llvm.floor.f64(double %halved)",
        "%uneven = fcmp une double %halved_floor, %halved",
        "%odd = and i1 %whole, %uneven",
        f"%plus = select i1 %odd, double %x, double {number(1.0)}",
        "%signed = call double @llvm.copysign.f64(double %size, double %plus)",
        # A negative number has whole powers alone; -inf has all.
        f"%negative = fcmp olt double %x, {number(0.0)}",
        f"%finite = fcmp one double %a, {number(float('inf'))}",
        "%broken = xor i1 %whole, true",
        "%bad0 = and i1 %negative, %finite",
        "%bad = and i1 %bad0, %broken",
        f"%y0 = select i1 %bad, double {number(float('nan'))}, double %signed",
        # 1 to any power, -1 to an infinite one, and anything to the power 0 are 1.
        f"%zero = fcmp oeq double %x2, {number(0.0)}",
        f"%one = fcmp oeq double %x, {number(1.0)}",
        f"%unit = fcmp oeq double %a, {number(1.0)}",
        "%b = call double @llvm.fabs.f64(double %x2)",
        f"%endless = fcmp oeq double %b, {number(float('inf'))}",
        "%round = and i1 %unit, %endless",
        "%one0 = or i1 %zero, %one",
        "%one1 = or i1 %one0, %round",
        f"%y = select i1 %one1, double {number(1.0)}, double %y0",
        arguments=2,
    ),
    "asinh": wrapped(
        "asinh",
        "%a = call double @llvm.fabs.f64(double %x)",
        "%z = fmul double %x, %x",
        f"%more = fadd double %z, {number(1.0)}",
        "%root = call double @llvm.sqrt.f64(double %more)",
        f"%under = fadd double %root, {number(1.0)}",
        "%far = fcmp ogt double %a, 1.0e10",  # also where the quotient would be inf / inf
        "%q0 = fdiv double %z, %under",
        "%q = select i1 %far, double %a, double %q0",
        "%t = fadd double %a, %q",
        "%size = call double @d_log1p(double %t)",
        _SIGNED,
    ),
    "acosh": wrapped(
        "acosh",
        f"%less = fsub double %x, {number(1.0)}",
        f"%more = fadd double %x, {number(1.0)}",
        "%z = fmul double %less, %more",
        "%root = call double @llvm.sqrt.f64(double %z)",
        "%t = fadd double %less, %root",
        "%l = call double @d_log1p(double %t)",
        f"%fine = fcmp oge double %x, {number(1.0)}",
        f"%y = select i1 %fine, double %l, double {number(float('nan'))}",
    ),
    "atanh": wrapped(
        "atanh",
        "%a = call double @llvm.fabs.f64(double %x)",
        f"%less = fsub double {number(1.0)}, %a",
        "%twice = fadd double %a, %a",
        "%q = fdiv double %twice, %less",
        "%l = call double @d_log1p(double %q)",
        f"%size = fmul double %l, {number(0.5)}",
        _SIGNED,
    ),
}
