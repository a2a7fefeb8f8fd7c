"""Less common float32 functions as LLVM IR without branches or tables, computed in float64.

Each widens its argument to float64 and rounds once at the end
(:mod:`symdnn.cpu.math.math_double_ir`). Errors are below 0.51 ulp for finite results; NaN,
infinities, zeros and denormals give the same as in C. Inverse trigonometric functions and powers
have modules of their own; the common functions are in :mod:`symdnn.cpu.math.math32_ir`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import log

from symdnn.cpu.ir.division_ir import remainders
from symdnn.cpu.ir.narrow_ir import narrow_definitions
from symdnn.cpu.math.functions_ir import LANES, lane_definitions
from symdnn.cpu.math.math32_ir import IN_SINGLE, single_definitions
from symdnn.cpu.math.math64_ir import full_definitions
from symdnn.cpu.math.math_bessel_ir import BESSEL
from symdnn.cpu.math.math_double_ir import HELPERS, number, wrapped
from symdnn.cpu.math.math_inverse_trig_ir import INVERSE_TRIG, TRIG_HELPERS
from symdnn.cpu.math.math_power_ir import POWER
from symdnn.cpu.math.math_rare_ir import kept_variants
from symdnn.cpu.math.math_trig_ir import ALL_ARGUMENTS, TRIGONOMETRIC

__all__ = ["FULL", "IN_DOUBLE", "declarations", "definitions"]

#: The prefix of float64 functions among the names of helpers.
FULL = "float64 "

_LOG10 = 1 / log(10)
_FUNCTIONS = {
    "expm1": wrapped(
        "expm1",
        "%e = call double @d_expm1(double %x)",
        f"%none = fcmp oeq double %x, {number(0.0)}",  # preserves the sign of zero
        "%y = select i1 %none, double %x, double %e",
    ),
    "log10": wrapped(
        "log10",
        "%l = call double @d_log(double %x)",
        f"%y = fmul double %l, {number(_LOG10)}",
    ),
    # With E = exp(|x|) - 1: sinh |x| = (E + E / (E + 1)) / 2.
    "sinh": wrapped(
        "sinh",
        "%s = call double @llvm.fabs.f64(double %x)",
        "%e = call double @d_expm1(double %s)",
        f"%e1 = fadd double %e, {number(1.0)}",
        "%q = fdiv double %e, %e1",
        "%t = fadd double %e, %q",
        f"%h = fmul double %t, {number(0.5)}",
        "%y = call double @llvm.copysign.f64(double %h, double %x)",
    ),
    "cosh": wrapped(
        "cosh",
        "%s = call double @llvm.fabs.f64(double %x)",
        "%e = call double @d_exp(double %s)",
        f"%q = fdiv double {number(1.0)}, %e",
        "%t = fadd double %e, %q",
        f"%y = fmul double %t, {number(0.5)}",
    ),
}

_ALL = {**_FUNCTIONS, **INVERSE_TRIG, **POWER, **BESSEL}
_HELPERS = {**HELPERS, **TRIG_HELPERS}

#: Instructions of scalar programs that are computed in float64.
IN_DOUBLE = frozenset(_ALL) - set(ALL_ARGUMENTS.values())

_DECLARED = [
    "declare double @llvm.fmuladd.f64(double, double, double)",
    "declare double @llvm.copysign.f64(double, double)",
    "declare double @llvm.fabs.f64(double)",
    "declare double @llvm.fma.f64(double, double, double)",
    "declare double @llvm.sqrt.f64(double)",
    "declare double @llvm.floor.f64(double)",
]


def definitions(names: Iterable[str]) -> list[str]:
    """The IR of these functions (of float32 unless :data:`FULL`) and of their helpers.

    Declarations are separate (:func:`declarations`), since a printer makes some of them too.
    """
    named = set(names)
    lines, wanted = single_definitions(named & IN_SINGLE), sorted(named & set(_ALL))
    lines += [*narrow_definitions(named), *remainders(named)]
    lines += full_definitions(n.removeprefix(FULL) for n in named if n.startswith(FULL))
    lines += lane_definitions(n.removeprefix(LANES) for n in names if n.startswith(LANES))
    wanted += [ALL_ARGUMENTS[name] for name in TRIGONOMETRIC if name in named]
    pieces: set[str] = set()
    for name in wanted:
        _collect_helpers(_ALL[name], pieces)
    for piece in sorted(pieces):
        lines += _HELPERS[piece]
    for name in wanted:
        lines += _ALL[name]
    return kept_variants(lines)


def declarations(names: Iterable[str]) -> set[str]:
    """Declarations that the IR of these functions needs."""
    return set(_DECLARED) if set(names) & {*IN_DOUBLE, *TRIGONOMETRIC} else set()


def _collect_helpers(text: Iterable[str], found: set[str]) -> None:
    """Add the helpers that these lines call, and in turn their helpers."""
    for name in re.findall(r"@(d_\w+)\(", "\n".join(text)):
        if name not in found:
            found.add(name)
            _collect_helpers(_HELPERS[name], found)
