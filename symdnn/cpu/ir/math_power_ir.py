"""pow, asinh, acosh and atanh of float32 as LLVM IR without branches, computed in float64.

``pow``: exp(y log abs(x)), with the sign of x where y is odd. 0, 1, infinities and NaN give the
same as in C.
"""

from __future__ import annotations

from symdnn.cpu.ir.math_double_ir import number, wrapped

__all__ = ["POWER"]

_COPY_SIGN = "%y = call double @llvm.copysign.f64(double %size, double %x)"

POWER = {
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
        _COPY_SIGN,
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
        _COPY_SIGN,
    ),
}
