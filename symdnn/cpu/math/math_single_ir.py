"""LLVM IR of float32 arithmetic: constants, multiply-add, polynomials."""

from __future__ import annotations

import struct
from collections.abc import Iterable

__all__ = ["ROUND", "fma", "fused", "horner", "single"]

#: A sum with it has the nearest integer in its lowest bits.
ROUND = float(3 << 22)


def single(value: float) -> str:
    """A float32 constant in IR's notation: the bits of the equal float64."""
    (rounded,) = struct.unpack("<f", struct.pack("<f", value))
    return f"0x{struct.unpack('<Q', struct.pack('<d', rounded))[0]:016X}"


def fma(out: str, a: str, b: str, c: str) -> str:
    """``out = a * b + c``, fused where the processor has an instruction for it."""
    return f"{out} = call float @llvm.fmuladd.f32(float {a}, float {b}, float {c})"


def fused(out: str, a: str, b: str, c: str) -> str:
    """``out = a * b + c``, always fused: rounded once."""
    return f"{out} = call float @llvm.fma.f32(float {a}, float {b}, float {c})"


def horner(coefficients: Iterable[str], x: str, out: str = "%p", up: int = 0) -> list[str]:
    """Lines for ``out``: a polynomial in ``x`` times 2^up, by Horner's rule.

    The coefficient of the highest degree comes first.
    """
    first, *rest = (single(float.fromhex(c) * 2.0**up) for c in coefficients)
    lines, value = [], first
    for i, c in enumerate(rest):
        value, before = (out if i == len(rest) - 1 else f"{out}{i}"), value
        lines.append(fma(value, before, x, c))
    return lines
