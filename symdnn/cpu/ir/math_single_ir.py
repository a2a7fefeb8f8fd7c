"""Lines of LLVM IR for arithmetic of float32: numbers, multiply-add, polynomials."""

from __future__ import annotations

import struct
from collections.abc import Iterable

__all__ = ["ROUND", "fma", "fused", "horner", "single"]

#: Adding it leaves the nearest whole number in the lowest bits.
ROUND = float(3 << 22)


def single(value: float) -> str:
    """A float as IR writes it: the bits of the double that equals it."""
    (rounded,) = struct.unpack("<f", struct.pack("<f", value))
    return f"0x{struct.unpack('<Q', struct.pack('<d', rounded))[0]:016X}"


def fma(out: str, a: str, b: str, c: str) -> str:
    """``out = a * b + c``, rounded once where that is as fast."""
    return f"{out} = call float @llvm.fmuladd.f32(float {a}, float {b}, float {c})"


def fused(out: str, a: str, b: str, c: str) -> str:
    """``out = a * b + c``, rounded once."""
    return f"{out} = call float @llvm.fma.f32(float {a}, float {b}, float {c})"


def horner(coefficients: Iterable[str], x: str, out: str = "%p", up: int = 0) -> list[str]:
    """Lines for ``out``, the value of a polynomial times 2^up, its highest coefficient first."""
    first, *rest = (single(float.fromhex(c) * 2.0**up) for c in coefficients)
    lines, value = [], first
    for i, c in enumerate(rest):
        value, before = (out if i == len(rest) - 1 else f"{out}{i}"), value
        lines.append(fma(value, before, x, c))
    return lines
