"""exp, sigmoid and tanh of vectors, for kernels that are written in vectors.

Such kernels skip LLVM's passes, so its vectoriser does not widen the scalar functions for them. The
formulas of 2^n and exp(r) - 1, where x = n ln 2 + r, are those of :mod:`symdnn.cpu.math.math32_ir`.

``exponential``: results that are no normal numbers become 0 and inf. ``sigmoid``:
1 / (1 + 2^n 2^f) where -x = (n + f) ln 2, in few instructions; it is 0 below -87. ``tanh``:
m / (m + 2) with m = exp(2 x) - 1, which loses no digits for small x. Errors are below 4 ulp; NaN
stays NaN.
"""

from __future__ import annotations

from symdnn.cpu.ir.builder import VECTOR, WIDTH, Builder
from symdnn.cpu.math.lanes_ir import ROUND, Lane, Lanes, Number
from symdnn.cpu.math.math32_ir import power_of_two, reduced

#: Up to the first 2^n is a normal number. From the second on tanh rounds to 1.
_MAX_EXP_ARGUMENT, _TANH_IS_ONE = 87.0, 9.5
#: Where 2^n is 0 and inf: n is -127 and 128.
_EXP_IS_ZERO, _EXP_IS_INFINITE = -88.0, 89.0
_RECIPROCAL, _SCALE = "llvm.x86.avx512.rcp14.ps.512", "llvm.x86.avx512.mask.scalef.ps.512"
#: 2^f = 1 + f p(f) for f from -1/2 to 1/2; it is 9e-8 off at most.
_POWER_OF_TWO = (1.0, 0.6931469291, 0.2402223056, 0.0555078046, 0.0096720855, 0.0013254488)


def activation_declarations(width: int) -> list[str]:
    """Declarations of the intrinsics, for a processor with vectors of ``width`` float32."""
    found = [f"declare {VECTOR} @llvm.fmuladd.v{WIDTH}f32({VECTOR}, {VECTOR}, {VECTOR})"]
    if width == WIDTH:
        found.append(f"declare {VECTOR} @{_RECIPROCAL}({VECTOR}, {VECTOR}, i16)")
        arguments = f"{VECTOR}, {VECTOR}, {VECTOR}, i16, i32"
        found.append(f"declare {VECTOR} @{_SCALE}({arguments})")
    return found


def _lanes(s: Builder, x: str) -> tuple[Lanes, Lane]:
    k = Lanes(WIDTH, "float", append=s.new)
    return k, Lane(k, x, "float")


def exponential(s: Builder, x: str, positive: bool = True) -> str:
    """exp(x); 0 below -87.7, inf above 88.4; x may be positive only if it is said so."""
    k, v = _lanes(s, x)
    v = (v < _EXP_IS_ZERO).where(_EXP_IS_ZERO, v)
    if positive:
        v = (v > _EXP_IS_INFINITE).where(_EXP_IS_INFINITE, v)
    less, bits = reduced(k, v)
    whole = less + 1.0
    return (power_of_two(bits.cast("i32")) * whole).name


def tanh(s: Builder, x: str, width: int) -> str:
    """The hyperbolic tangent."""
    k, v = _lanes(s, x)
    v = k.held(-_TANH_IS_ONE, _TANH_IS_ONE, v)
    less, bits = reduced(k, v + v)
    power = power_of_two(bits.cast("i32"))
    m = k.multiply_add(power, less, power - 1.0)
    return _quotient(k, m, m + 2.0, width).name


def sigmoid(s: Builder, x: str, width: int) -> str:
    """1 / (1 + exp(-x)); 0 below -87, where x times it is less than 1.5e-36 otherwise."""
    k, v = _lanes(s, x)
    tail = v < -_MAX_EXP_ARGUMENT
    v = k.held(-_MAX_EXP_ARGUMENT, _MAX_EXP_ARGUMENT, v)
    high, low = -1.4426950216293335, -1.925963e-08  # of -1 / ln 2
    bits = k.multiply_add(v, high, ROUND["float"])
    n = bits - ROUND["float"]
    f = k.multiply_add(v, low, k.multiply_add(v, high, -n))
    y = _one_more(k, k.polynomial(_POWER_OF_TWO, f), n, bits, width)
    return tail.where(0.0, _quotient(k, 1.0, y, width)).name


def _one_more(k: Lanes, y: Lane, n: Lane, bits: Lane, width: int) -> Lane:
    """1 + y 2^n, where the low bits of ``bits`` have n"""
    if width == WIDTH:
        rest = f"{VECTOR} zeroinitializer, i16 -1, i32 4"  # all lanes; round as the processor does
        given = f"{VECTOR} {y.name}, {VECTOR} {n.name}, {rest}"
        return k.new(f"call {VECTOR} @{_SCALE}({given})", "float") + 1.0
    return k.multiply_add(y, power_of_two(bits.cast("i32")), 1.0)


def one_less(s: Builder, x: str) -> str:
    """1 - x"""
    return (1.0 - _lanes(s, x)[1]).name


def _quotient(k: Lanes, a: Number, b: Lane, width: int) -> Lane:
    """a / b; the operands are not denormal.

    A division takes 16 cycles, as long as everything else. With AVX-512 it is an approximate
    reciprocal and one Newton step.
    """
    if width != WIDTH:
        return a / b
    given = f"{VECTOR} {b.name}, {VECTOR} zeroinitializer, i16 -1"
    near = k.new(f"call {VECTOR} @{_RECIPROCAL}({given})", "float")
    off = k.multiply_add(-b, near, 1.0)
    first = a * near if isinstance(a, Lane) else near
    return k.multiply_add(first, off, first)
