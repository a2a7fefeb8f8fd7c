"""Conversions of floats to integers as LLVM IR, with vectors for those that a processor lacks.

Processors have vectors for signed results, of AVX2 only for those of 32 bits. There a result of 64
bits is made of two halves of float64, each of which a sum with a large power of two has in its
lowest bits. An unsigned one of 32 bits is less by 2^31 where it is that large. What is out of range
is poison in LLVM; freeze makes it some value, as in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable

from symdnn.cpu.compiler import jit

New = Callable[[str], str]

#: Sums with these have whole numbers, the first one also negative ones, in their lowest bits.
_SIGNED, _UNSIGNED = 0x4338000000000000, 0x4330000000000000


def whole_number(
    new: New, intrinsic: Callable[..., str], x: str, source: str, target: str, signed: bool
) -> str:
    """``x`` of the type ``source``, ``float`` or ``double``, cut to an integer of ``target``."""
    bits = int(target[1:])
    in_halves = jit.has("avx2") and not jit.has("avx512dq")
    if bits == 64 and in_halves:
        return _of_halves(new, intrinsic, x, source, signed)
    if bits == 64:
        return _signed(new, x, source, target) if signed else _unsigned(new, x, source)
    if bits == 32 and not signed and in_halves:
        limit = _power(31)
        large = new(f"fcmp oge {source} {x}, {limit}")
        low = new(f"select i1 {large}, {source} {new(f'fsub {source} {x}, {limit}')}, {source} {x}")
        high = new(f"select i1 {large}, i32 {-(2**31)}, i32 0")
        return new(f"xor i32 {_signed(new, low, source, 'i32')}, {high}")
    wide = "i32" if bits < 32 or (bits == 32 and signed) else "i64"
    found = _signed(new, x, source, wide)
    return found if wide == target else new(f"trunc {wide} {found} to {target}")


def _signed(new: New, x: str, source: str, target: str) -> str:
    n = new(f"fptosi {source} {x} to {target}")
    return new(f"freeze {target} {n}")


def _unsigned(new: New, x: str, source: str) -> str:
    """Of 64 bits: the upper half by its distance, a negative number modulo 2^64."""
    n = _signed(new, x, source, "i64")
    half = _power(63)
    far = _signed(new, new(f"fsub {source} {x}, {half}"), source, "i64")
    far = new(f"xor i64 {far}, {-(2**63)}")
    near = new(f"fcmp ult {source} {x}, {half}")
    return new(f"select i1 {near}, i64 {n}, i64 {far}")


def _of_halves(
    new: New, intrinsic: Callable[..., str], x: str, source: str, signed: bool
) -> str:  # fmt: skip
    """Of 64 bits: 2^32 high + low, 0 <= low < 2^32, without rounding.

    Signed numbers that are out of range become the least one, as by processors' instructions.
    """
    wide = x if source == "double" else new(f"fpext float {x} to double")
    whole = intrinsic("trunc", "double", [wide])
    high = intrinsic("floor", "double", [new(f"fmul double {whole}, {_power(-32)}")])
    low = intrinsic("fma", "double", [high, f"-{2.0**32:.1f}", whole])

    def lowest(value: str, added: int) -> str:
        total = new(f"fadd double {value}, 0x{added:016X}")
        return new(f"bitcast double {total} to i64")

    above = new(f"shl i64 {lowest(high, _SIGNED)}, 32")
    below = new(f"xor i64 {lowest(low, _UNSIGNED)}, {_UNSIGNED}")
    found = new(f"add i64 {above}, {below}")
    if not signed:
        return found
    inside = new(f"fcmp olt double {intrinsic('fabs', 'double', [wide])}, {_power(63)}")
    return new(f"select i1 {inside}, i64 {found}, i64 {-(2**63)}")


def _power(n: int) -> str:
    """2^n as a constant of either type."""
    return f"0x{1023 + n << 52:016X}"
