"""exp, sigmoid and tanh of vectors, for kernels that are written in vectors.

Such kernels skip LLVM's passes, so its vectoriser does not widen the scalar exponential of
:mod:`symdnn.cpu.math.math32_ir` for them. Its lines are widened here: 2^n and exp(r) - 1, where
x = n ln 2 + r.

``exponential``: results that are no normal numbers become 0 and inf. ``sigmoid``:
1 / (1 + 2^n 2^f) where -x = (n + f) ln 2, in few instructions; it is 0 below -87. ``tanh``:
m / (m + 2) with m = exp(2 x) - 1, which loses no digits for small x. Errors are below 4 ulp; NaN
stays NaN.
"""

from __future__ import annotations

import re
from functools import cache

from symdnn.cpu.ir.builder import MASK, VECTOR, WIDTH, Builder, splat
from symdnn.cpu.math.math32_ir import single_definitions

__all__ = ["activation_declarations", "exponential", "one_less", "sigmoid", "tanh"]

_INT_VECTOR = f"<{WIDTH} x i32>"
#: Up to the first 2^n is a normal number. From the second on tanh rounds to 1.
_MAX_EXP_ARGUMENT, _TANH_IS_ONE = 87.0, 9.5
#: Where 2^n is 0 and inf: n is -127 and 128.
_EXP_IS_ZERO, _EXP_IS_INFINITE = -88.0, 89.0
_RECIPROCAL, _SCALE = "llvm.x86.avx512.rcp14.ps.512", "llvm.x86.avx512.mask.scalef.ps.512"
#: 2^f = 1 + f p(f) for f from -1/2 to 1/2, the highest power first; it is 9e-8 off at most.
_POWER_OF_TWO = (0.0013254488, 0.0096720855, 0.0555078046, 0.2402223056, 0.6931469291)
#: Added to a number it leaves the nearest whole one in the low bits.
_ROUNDING = 1.5 * 2**23


def activation_declarations(width: int) -> list[str]:
    """Declarations of the intrinsics, for a processor with vectors of ``width`` float32."""
    found = [f"declare {VECTOR} @llvm.fmuladd.v{WIDTH}f32({VECTOR}, {VECTOR}, {VECTOR})"]
    if width == WIDTH:
        found.append(f"declare {VECTOR} @{_RECIPROCAL}({VECTOR}, {VECTOR}, i16)")
        arguments = f"{VECTOR}, {VECTOR}, {VECTOR}, i16, i32"
        found.append(f"declare {VECTOR} @{_SCALE}({arguments})")
    return found


def exponential(s: Builder, x: str, positive: bool = True) -> str:
    """exp(x); 0 below -87.7, inf above 88.4; x may be positive only if it is said so."""
    x = _bounded(s, x, "olt", _EXP_IS_ZERO)
    if positive:
        x = _bounded(s, x, "ogt", _EXP_IS_INFINITE)
    power, _, whole = _exponential(s, x)
    return s.new(f"fmul {VECTOR} {power}, {whole}")


def tanh(s: Builder, x: str, width: int) -> str:
    """The hyperbolic tangent."""
    x = _clamped(s, x, _TANH_IS_ONE)
    power, less, _ = _exponential(s, s.add(x, x))
    m = s.multiply_add(power, less, s.sub(power, splat(1.0)))
    return _quotient(s, m, s.add(m, splat(2.0)), width)


def sigmoid(s: Builder, x: str, width: int) -> str:
    """1 / (1 + exp(-x)); 0 below -87, where x times it is less than 1.5e-36 otherwise."""
    tail = s.new(f"fcmp olt {VECTOR} {x}, {splat(-_MAX_EXP_ARGUMENT)}")
    x = _clamped(s, x, _MAX_EXP_ARGUMENT)
    high, low = -1.4426950216293335, -1.925963e-08  # of -1 / ln 2
    k = s.multiply_add(x, splat(high), splat(_ROUNDING))
    n = s.sub(k, splat(_ROUNDING))
    f = s.multiply_add(x, splat(high), s.new(f"fneg {VECTOR} {n}"))
    f = s.multiply_add(x, splat(low), f)
    y = splat(_POWER_OF_TWO[0])
    for c in (*_POWER_OF_TWO[1:], 1.0):
        y = s.multiply_add(y, f, splat(c))
    y = _quotient(s, "", _one_more(s, y, n, k, width), width)
    return s.new(f"select {MASK} {tail}, {VECTOR} {splat(0.0)}, {VECTOR} {y}")


def _one_more(s: Builder, y: str, n: str, k: str, width: int) -> str:
    """1 + y 2^n, where the low bits of ``k`` have n"""
    if width == WIDTH:
        rest = f"{VECTOR} zeroinitializer, i16 -1, i32 4"  # all lanes; round as the processor does
        return s.add(
            s.new(f"call {VECTOR} @{_SCALE}({VECTOR} {y}, {VECTOR} {n}, {rest})"), splat(1.0)
        )
    return s.multiply_add(y, _two_to(s, k), splat(1.0))


def one_less(s: Builder, x: str) -> str:
    """1 - x"""
    return s.sub(splat(1.0), x)


def _clamped(s: Builder, x: str, most: float) -> str:
    """x clamped to -most .. most; NaN stays."""
    for compare, end in (("ogt", most), ("olt", -most)):
        x = _bounded(s, x, compare, end)
    return x


def _bounded(s: Builder, x: str, compare: str, end: float) -> str:
    """``end`` where x compares so with it, else x; NaN stays."""
    beyond = s.new(f"fcmp {compare} {VECTOR} {x}, {splat(end)}")
    return s.new(f"select {MASK} {beyond}, {VECTOR} {splat(end)}, {VECTOR} {x}")


def _quotient(s: Builder, a: str, b: str, width: int) -> str:
    """a / b, or 1 / b if ``a`` is empty; the operands are not denormal.

    A division takes 16 cycles, as long as everything else. With AVX-512 it is an approximate
    reciprocal and one Newton step.
    """
    if width != WIDTH:
        return s.new(f"fdiv {VECTOR} {a or splat(1.0)}, {b}")
    near = s.new(f"call {VECTOR} @{_RECIPROCAL}({VECTOR} {b}, {VECTOR} zeroinitializer, i16 -1)")
    off = s.multiply_add(s.new(f"fneg {VECTOR} {b}"), near, splat(1.0))
    if not a:
        return s.multiply_add(near, off, near)
    first = s.new(f"fmul {VECTOR} {a}, {near}")
    return s.multiply_add(first, off, first)


@cache
def _lines() -> tuple[str, ...]:
    """The scalar lines up to ``%y0`` = exp(r); ``%q`` = exp(r) - 1, ``%k`` has n in its bits."""
    text = single_definitions({"tanh"})
    first = next(i for i, line in enumerate(text) if "@s_exp_tanh(float %x)" in line) + 1
    last = next(i for i, line in enumerate(text) if line.startswith("%y0 = "))
    return tuple(text[first : last + 1])


def _exponential(s: Builder, x: str) -> tuple[str, str, str]:
    """(2^n, exp(r) - 1, exp(r))"""
    known = {"%x": x}
    for line in _lines():
        register, _, value = line.partition(" = ")
        known[register] = s.new(_widened(re.sub(r"%\w+", lambda m: known[m[0]], value)))
    return _two_to(s, known["%k"]), known["%q"], known["%y0"]


def _two_to(s: Builder, k: str) -> str:
    """2^n, where the low bits of ``k`` have n"""
    bits = s.new(f"bitcast {VECTOR} {k} to {_INT_VECTOR}")
    moved = s.new(_widened(f"shl i32 {bits}, 23"))
    power = s.new(_widened(f"add i32 {moved}, {127 << 23}"))
    return s.new(f"bitcast {_INT_VECTOR} {power} to {VECTOR}")


def _widened(line: str) -> str:
    """A line on scalars as the same line on vectors."""
    for kind, wide in (("float", VECTOR), ("i32", f"<{WIDTH} x i32>"), ("i1", MASK)):
        line = re.sub(rf"\b{kind}\b", wide, line)
    line = re.sub(r"\b0x[0-9A-F]{16}\b", lambda m: _splat("float", m[0]), line)
    line = re.sub(r"(?<=, )-?\d+$", lambda m: _splat("i32", m[0]), line)
    return re.sub(r"@llvm\.(\w+)\.f32", rf"@llvm.\1.v{WIDTH}f32", line)


def _splat(kind: str, number: str) -> str:
    return f"<{', '.join([f'{kind} {number}'] * WIDTH)}>"
