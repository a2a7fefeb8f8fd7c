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

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import factorial, pi

from symdnn.cpu.math.lanes_ir import ROUND, Formula, Lane, Lanes, coefficients
from symdnn.cpu.math.math_rare_ir import Rare


@dataclass(frozen=True)
class _Kind:
    """Constants of the method for a type, and the type of its bits.

    ``sin`` and ``cos`` are coefficients of (sin(r) / r - 1) / r^2 and cos(r) in r^2.
    """

    word: str
    #: Up to this argument q is right and the fmas lose nothing.
    limit: float
    half_pi: tuple[float, float, float]
    sin: Sequence[float]
    cos: Sequence[float]


_KINDS = {
    "float": _Kind(
        "i32", 2.0**17,
        (float.fromhex("0x1.921fb6p+0"), float.fromhex("-0x1.777a5cp-25"),
         float.fromhex("-0x1.ee59dap-50")),
        coefficients("-0x1.9951eep-13", "0x1.110774p-7", "-0x1.555546p-3"),
        coefficients("0x1.99e80cp-16", "-0x1.6c0c28p-10", "0x1.55554ap-5", "-0x1p-1", "0x1p+0"),
    ),
    "double": _Kind(
        "i64", 2.0**30,
        (pi / 2, float.fromhex("0x1.1a62633145c07p-54"), float.fromhex("-0x1.f1976b7ed8fbcp-110")),
        [(-1) ** k / factorial(2 * k + 1) for k in range(1, 9)],
        [(-1) ** k / factorial(2 * k) for k in range(9)],
    ),
}  # fmt: skip


def sine_and_cosine(
    k: Lanes, r: Lane, sin: Sequence[float], cos: Sequence[float]
) -> tuple[Lane, Lane]:
    """Of abs(r) <= pi/4, by polynomials in r^2: (sin(r) / r - 1) / r^2 and cos(r)."""
    z = r * r
    return k.multiply_add(r * z, k.polynomial(sin, z), r), k.polynomial(cos, z)


def by_quarters(k: Lanes, name: str, x: Lane, sin: Lane, cos: Lane, quarters: Lane) -> Lane:
    """``sin``, ``cos`` or ``tan`` of x by those of r, x less as many quarter turns."""
    turned = quarters + int(name == "cos")
    odd = k.test("ne", turned & 1, 0)
    if name == "tan":
        found = odd.where(-cos, sin) / odd.where(sin, cos)
    else:
        t = quarters.t
        sign = (turned & 2) << int(t[1:]) - 2
        found = (odd.where(cos, sin).cast(t) ^ sign).cast(x.t)
    if name == "cos":
        return found + 0.0
    return x.equals(0.0).where(x, found)  # keeps the sign of zero


def _near(name: str, k: Lanes, x: Lane) -> Lane:
    """Of arguments up to the limit; larger ones are rare."""
    own, whole = _KINDS[x.t], ROUND[x.t]
    bits = k.multiply_add(x, 2 / pi, whole)
    q, r = bits - whole, x
    for part in own.half_pi:
        r = k.fma(q, -part, r)
    sin, cos = sine_and_cosine(k, r, own.sin, own.cos)
    close = by_quarters(k, name, x, sin, cos, bits.cast(own.word))
    far = k.test("ugt", k.abs(x), own.limit)
    rare = f"{'s' if x.t == 'float' else 'f'}_{name}_rare"
    return k.call(rare, x, far.where(float("nan"), close))


def _functions(name: str) -> list[Formula | Rare]:
    slow, declared = f"s_{name}_whole", f"declare double @{name}(double) readnone"
    return [
        Formula(f"s_{name}", partial(_near, name), "float"),
        Formula(f"f_{name}", partial(_near, name), "double"),
        Rare(f"s_{name}_rare", "float", f"call float @{slow}(float %x0)", called=[slow]),
        Rare(f"f_{name}_rare", "double", f"call double @{name}(double %x0)", declared=[declared]),
    ]


TRIGONOMETRIC = [f for name in ("sin", "cos", "tan") for f in _functions(name)]
