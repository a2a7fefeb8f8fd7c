"""pow, asinh, acosh and atanh as LLVM IR without branches, computed in float64.

``pow``: exp(y log abs(x)), with the sign of x where y is odd. 0, 1, infinities and NaN give the
same as in C. That of float32 is here; that of float64 has a logarithm of two numbers. The inverse
hyperbolic functions are log(1 + t); of a large x, log(x) + log(2).
"""

from __future__ import annotations

from math import log

from symdnn.cpu.math.math_double_ir import full, number, wrapped

__all__ = ["AREAS64", "POWER", "SIGNS_AND_ONES"]

_COPY_SIGN = "%y = call double @llvm.copysign.f64(double %size, double %x)"

#: ``%size``, log(1 + ``%near``), or of a large ``%a``, whose square may be infinite, log(2 a).
_LOG_OF_LARGE = [
    "%far = fcmp ogt double %a, 1.0e10",
    f"%a_less = fsub double %a, {number(1.0)}",
    "%t = select i1 %far, double %a_less, double %near",
    "%l = call double @d_log1p(double %t)",
    f"%two = select i1 %far, double {number(log(2))}, double 0.0",
    "%size = fadd double %l, %two",
]
_AREAS = {
    "asinh": [
        "%a = call double @llvm.fabs.f64(double %x)",
        "%z = fmul double %x, %x",
        f"%more = fadd double %z, {number(1.0)}",
        "%root = call double @llvm.sqrt.f64(double %more)",
        f"%under = fadd double %root, {number(1.0)}",
        "%q = fdiv double %z, %under",
        "%near = fadd double %a, %q",
        *_LOG_OF_LARGE,
        _COPY_SIGN,
    ],
    "acosh": [
        f"%less = fsub double %x, {number(1.0)}",
        f"%plus = fadd double %x, {number(1.0)}",
        "%z = fmul double %less, %plus",
        "%root = call double @llvm.sqrt.f64(double %z)",
        "%near = fadd double %less, %root",
        "%a = fadd double %x, 0.0",
        *_LOG_OF_LARGE,
        f"%fine = fcmp oge double %x, {number(1.0)}",
        f"%y = select i1 %fine, double %size, double {number(float('nan'))}",
    ],
    "atanh": [
        "%a = call double @llvm.fabs.f64(double %x)",
        f"%less = fsub double {number(1.0)}, %a",
        "%twice = fadd double %a, %a",
        "%q = fdiv double %twice, %less",
        "%l = call double @d_log1p(double %q)",
        f"%size = fmul double %l, {number(0.5)}",
        _COPY_SIGN,
    ],
}

#: ``%y`` of the power ``%size`` of abs(x): with its sign, and where it is 1 or NaN.
SIGNS_AND_ONES = [
    "%floor = call double @llvm.floor.f64(double %x2)",
    "%whole = fcmp oeq double %floor, %x2",
    f"%halved = fmul double %x2, {number(0.5)}",
    "%halved_floor = call double @llvm.floor.f64(double %halved)",
    "%uneven = fcmp une double %halved_floor, %halved",
    "%odd = and i1 %whole, %uneven",
    f"%plus = select i1 %odd, double %x, double {number(1.0)}",
    "%signed = call double @llvm.copysign.f64(double %size, double %plus)",
    # A finite negative number to a power that is no integer is NaN.
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
]
POWER = {
    "pow": wrapped(
        "pow",
        "%a = call double @llvm.fabs.f64(double %x)",
        "%l = call double @d_log(double %a)",
        "%p = fmul double %x2, %l",
        "%size = call double @d_exp(double %p)",
        *SIGNS_AND_ONES,
        arguments=2,
    ),
    **{name: wrapped(name, *lines) for name, lines in _AREAS.items()},
}
#: The same of float64.
AREAS64 = {name: full(name, *lines) for name, lines in _AREAS.items()}
