"""float32's less common functions as LLVM IR without branches or tables.

The others are in :mod:`symdnn.cpu.ir.math32_ir`. Each here widens its argument to float64 and
rounds once at the end (:mod:`symdnn.cpu.ir.math_double_ir`): the error is below 0.51 ulp for finite
results, and NaN, infinities, zeros and denormals come out as C has them. Those of angles and of
powers have modules of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import log

from symdnn.cpu.ir.math32_ir import IN_SINGLE, single_definitions
from symdnn.cpu.ir.math_double_ir import PIECES, number, wrapped
from symdnn.cpu.ir.math_inverse_trig_ir import CIRCLE, CIRCLE_PIECES
from symdnn.cpu.ir.math_power_ir import POWER
from symdnn.cpu.ir.math_trig_ir import TURNS, WHOLE
from symdnn.cpu.ir.narrow_ir import narrow_definitions

__all__ = ["IN_DOUBLE", "declarations", "definitions"]

_LOG10 = 1 / log(10)
_FUNCTIONS = {
    "exp2": wrapped(
        "exp2",
        f"%s = fmul double %x, {number(log(2))}",
        "%y = call double @d_exp(double %s)",
    ),
    "expm1": wrapped(
        "expm1",
        "%e = call double @d_expm1(double %x)",
        f"%none = fcmp oeq double %x, {number(0.0)}",  # keeps the sign of zero
        "%y = select i1 %none, double %x, double %e",
    ),
    "log2": wrapped(
        "log2",
        "%l = call double @d_log(double %x)",
        f"%y = fmul double %l, {number(1 / log(2))}",
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

_ALL = {**_FUNCTIONS, **CIRCLE, **POWER}
_PIECES = {**PIECES, **CIRCLE_PIECES}

#: What is here, by the names of the instructions.
IN_DOUBLE = frozenset(_ALL) - set(WHOLE.values())

_DECLARED = [
    "declare double @llvm.fmuladd.f64(double, double, double)",
    "declare double @llvm.copysign.f64(double, double)",
    "declare double @llvm.fabs.f64(double)",
    "declare double @llvm.sqrt.f64(double)",
    "declare double @llvm.floor.f64(double)",
]


def definitions(names: Iterable[str]) -> list[str]:
    """The IR of these functions and what they call; empty without any.

    What is in :func:`declarations` is left out, since a printer declares some of it too.
    """
    given = set(names)
    lines, wanted = single_definitions(given & IN_SINGLE), sorted(given & set(_ALL))
    lines += narrow_definitions(given)
    wanted += [WHOLE[name] for name in TURNS if name in given]
    pieces: set[str] = set()
    for name in wanted:
        _need(_ALL[name], pieces)
    for piece in sorted(pieces):
        lines += _PIECES[piece]
    for name in wanted:
        lines += _ALL[name]
    return lines


def declarations(names: Iterable[str]) -> set[str]:
    """What these functions need declared besides their own texts."""
    return set(_DECLARED) if set(names) & {*IN_DOUBLE, *TURNS} else set()


def _need(text: Iterable[str], found: set[str]) -> None:
    """Add the pieces that these lines call, and those that they call."""
    for name in re.findall(r"@(d_\w+)\(", "\n".join(text)):
        if name not in found:
            found.add(name)
            _need(_PIECES[name], found)
