"""sin, cos and tan as LLVM IR, in the type of the argument up to the limits in :data:`_KINDS`.

With q the nearest number of quarter turns, r = x - q pi/2 takes three fmas, with pi/2 as the sum of
three numbers (Cody, Waite 1980). The first fma is exact, since no bit of its operands is worth less
than one of a number below 1. So r is right to two units in its last place also where it is near
zero. Then come polynomials in r^2: minimax in float32, Taylor's in float64, on abs(r) <= pi/4.
Errors of sin and cos are below 2 ulp, of tan below 4 ulp.

Larger arguments need more bits of 2/pi, which takes longer; they are rare
(:mod:`symdnn.cpu.math.math_rare_ir`). In float32 that is
:mod:`symdnn.cpu.math.math_inverse_trig_ir`, in float64 the C library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import factorial, pi

from symdnn.cpu.math.math_double_ir import ROUND as ROUND64
from symdnn.cpu.math.math_double_ir import number
from symdnn.cpu.math.math_rare_ir import rare
from symdnn.cpu.math.math_single_ir import ROUND, single

__all__ = ["TRIGONOMETRIC", "ALL_ARGUMENTS", "trigonometric_definitions"]

#: The functions here, and the names of float32's for any argument, computed in float64.
TRIGONOMETRIC = ("sin", "cos", "tan")
ALL_ARGUMENTS = {name: f"{name}_whole" for name in TRIGONOMETRIC}


@dataclass(frozen=True)
class _Kind:
    """A type: of numbers, of their bits, the functions' prefix, and constants of the method.

    ``sin`` and ``cos`` are coefficients of (sin(r) / r - 1) / r^2 and cos(r) in r^2, highest first.
    """

    t: str
    suffix: str
    word: str
    prefix: str
    constant: Callable[[float], str]
    round: float
    #: Up to this argument q is right and the fmas lose nothing.
    limit: float
    half_pi: tuple[float, float, float]
    sin: Sequence[float]
    cos: Sequence[float]
    #: The function for larger arguments; ``{name}`` is sin, cos or tan.
    slow: str

    def fma(self, out: str, a: str, b: str, c: str, word: str = "fmuladd") -> str:
        given = ", ".join(f"{self.t} {v}" for v in (a, b, c))
        return f"{out} = call {self.t} @llvm.{word}.{self.suffix}({given})"

    def polynomial(self, coefficients: Sequence[float], out: str) -> list[str]:
        """Lines for ``out``, a polynomial in ``%z``."""
        first, *rest = map(self.constant, coefficients)
        lines, value = [], first
        for i, c in enumerate(rest):
            value, before = (out if i == len(rest) - 1 else f"{out}{i}"), value
            lines.append(self.fma(value, before, "%z", c))
        return lines


def _hex(*texts: str) -> tuple[float, ...]:
    return tuple(map(float.fromhex, texts))


_KINDS = (
    _Kind(
        "float", "f32", "i32", "s", single, ROUND, 2.0**17,
        (float.fromhex("0x1.921fb6p+0"), float.fromhex("-0x1.777a5cp-25"),
         float.fromhex("-0x1.ee59dap-50")),
        _hex("-0x1.9951eep-13", "0x1.110774p-7", "-0x1.555546p-3"),
        _hex("0x1.99e80cp-16", "-0x1.6c0c28p-10", "0x1.55554ap-5", "-0x1p-1", "0x1p+0"),
        "s_{name}_whole",
    ),
    _Kind(
        "double", "f64", "i64", "f", number, ROUND64, 2.0**30,
        (pi / 2, float.fromhex("0x1.1a62633145c07p-54"), float.fromhex("-0x1.f1976b7ed8fbcp-110")),
        [(-1) ** k / factorial(2 * k + 1) for k in range(8, 0, -1)],
        [(-1) ** k / factorial(2 * k) for k in range(8, -1, -1)],
        "{name}",
    ),
)  # fmt: skip


def _reduced(k: _Kind) -> list[str]:
    """Lines for ``%sin`` and ``%cos`` of r, and ``%quarters``, q in the lowest bits."""
    first, second, third = (k.constant(-part) for part in k.half_pi)
    return [
        k.fma("%k", "%x", k.constant(2 / pi), k.constant(k.round)),
        f"%quarters = bitcast {k.t} %k to {k.word}",
        f"%q = fsub {k.t} %k, {k.constant(k.round)}",
        k.fma("%r0", "%q", first, "%x", "fma"),
        k.fma("%r1", "%q", second, "%r0", "fma"),
        k.fma("%r", "%q", third, "%r1", "fma"),
        f"%z = fmul {k.t} %r, %r",
        *k.polynomial(k.sin, "%s"),
        f"%rz = fmul {k.t} %r, %z",
        k.fma("%sin", "%rz", "%s", "%r"),
        *k.polynomial(k.cos, "%cos"),
    ]


def _shifted_sine(k: _Kind, more: int) -> list[str]:
    """Lines for ``%near``, the sine of ``more`` quarter turns and ``%x``."""
    return [
        *_reduced(k),
        f"%turned = add {k.word} %quarters, {more}",
        f"%odd0 = and {k.word} %turned, 1",
        f"%odd = icmp ne {k.word} %odd0, 0",
        f"%size = select i1 %odd, {k.t} %cos, {k.t} %sin",
        f"%half = and {k.word} %turned, 2",
        f"%sign = shl {k.word} %half, {int(k.word[1:]) - 2}",
        f"%size_bits = bitcast {k.t} %size to {k.word}",
        f"%near_bits = xor {k.word} %size_bits, %sign",
        f"%near = bitcast {k.word} %near_bits to {k.t}",
    ]


def _tangent(k: _Kind) -> list[str]:
    return [
        *_reduced(k),
        f"%odd0 = and {k.word} %quarters, 1",
        f"%odd = icmp ne {k.word} %odd0, 0",
        f"%minus = fneg {k.t} %cos",
        f"%above = select i1 %odd, {k.t} %minus, {k.t} %sin",
        f"%below = select i1 %odd, {k.t} %sin, {k.t} %cos",
        f"%near = fdiv {k.t} %above, %below",
    ]


def _function(k: _Kind, name: str) -> list[str]:
    lines = _tangent(k) if name == "tan" else _shifted_sine(k, int(name == "cos"))
    if name == "cos":
        lines.append(f"%close = fadd {k.t} %near, 0.0")
    else:  # keeps the sign of zero
        lines.append(f"%zero = fcmp oeq {k.t} %x, 0.0")
        lines.append(f"%close = select i1 %zero, {k.t} %x, {k.t} %near")
    own, slow = f"{k.prefix}_{name}", k.slow.format(name=name)
    return [
        f"define internal {k.t} @{own}({k.t} %x) alwaysinline {{",
        *lines,
        f"%a = call {k.t} @llvm.fabs.{k.suffix}({k.t} %x)",
        f"%far = fcmp ugt {k.t} %a, {k.constant(k.limit)}",
        f"%fast = select i1 %far, {k.t} {k.constant(float('nan'))}, {k.t} %close",
        f"%y = call {k.t} @{own}_rare({k.t} %x, {k.t} %fast)",
        f"ret {k.t} %y",
        "}",
        *rare(f"{own}_rare", k.t, f"call {k.t} @{slow}({k.t} %x0)"),
    ]


def trigonometric_definitions(names: Iterable[str], double: bool = False) -> list[str]:
    """The IR of these functions, without the slow ones; empty without any."""
    wanted = set(names)
    found = [_function(_KINDS[double], name) for name in TRIGONOMETRIC if name in wanted]
    return [line for function in found for line in function]
