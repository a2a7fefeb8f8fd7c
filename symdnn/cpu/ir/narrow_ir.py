"""float16 and bfloat16 as LLVM IR: stored as 16-bit integers, computed in float32.

LLVM's types ``half`` and ``bfloat`` are not used for arithmetic. LLVM would narrow float32
operations whose result is rounded to them, and on a processor without such instructions it crashes
on some. So 16-bit numbers are integers here, and conversions are operations on their bits, which
LLVM vectorises like any others. They round once, to nearest even; NaN stays NaN. The processor's
own conversions of float16 (F16C) are hidden from LLVM's optimiser behind an exclusive or with the
lowest bits of the block's address, which are 0. :func:`on_lanes` names those of vectors.
"""

from __future__ import annotations

from collections.abc import Iterable

from symdnn.cpu.compiler import jit
from symdnn.cpu.math.lanes_ir import on_vectors

__all__ = [
    "NARROW", "narrow_definitions", "narrowed", "narrowing", "on_lanes", "widened", "widening",
]  # fmt: skip

NARROW = frozenset({"float16", "bfloat16"})


def widening(dtype: str) -> str:
    """The name of the function that converts ``dtype`` to float32."""
    return f"widen_{dtype}"


def narrowing(dtype: str) -> str:
    """The name of the function that converts float32 to ``dtype``."""
    return f"narrow_{dtype}"


def widened(dtype: str, value: str) -> str:
    """The call that converts a 16-bit number to float32; ``%w`` is the block of parameters."""
    return f"call float @{widening(dtype)}(i16 {value}, ptr %w)"


def narrowed(dtype: str, value: str) -> str:
    """The call that converts float32 to a 16-bit number."""
    return f"call i16 @{narrowing(dtype)}(float {value}, ptr %w)"


def on_lanes(name: str, lanes: int) -> str:
    """The name of one of these functions on vectors of so many numbers."""
    return f"{name}_on_{lanes}"


_BFLOAT16 = {
    "widen_bfloat16": """
define internal float @widen_bfloat16(i16 %x, ptr %w) alwaysinline {
  %wide = zext i16 %x to i32
  %bits = shl i32 %wide, 16
  %y = bitcast i32 %bits to float
  ret float %y
}
""",
    "narrow_bfloat16": """
define internal i16 @narrow_bfloat16(float %x, ptr %w) alwaysinline {
  %bits = bitcast float %x to i32
  %upper = lshr i32 %bits, 16
  %odd = and i32 %upper, 1
  %more = add i32 %odd, 32767
  %rounded = add i32 %bits, %more
  %none = fcmp uno float %x, %x
  %quiet = or i32 %bits, 4194304
  %chosen = select i1 %none, i32 %quiet, i32 %rounded
  %high = lshr i32 %chosen, 16
  %y = trunc i32 %high to i16
  ret i16 %y
}
""",
}

#: Exponents of float16 have a bias of 15, of float32 one of 127; mantissas have 10 and 23 bits.
#: A denormal float16 plus 0.5 is the float32 of 0.5 with the denormal's mantissa. Towards float16,
#: numbers below 2^-14 are rounded by adding 0.5, whose last bit is worth 2^-24.
_FLOAT16 = {
    "widen_float16": """
define internal float @widen_float16(i16 %x, ptr %w) alwaysinline {
  %wide = zext i16 %x to i32
  %size = and i32 %wide, 32767
  %sign0 = xor i32 %wide, %size
  %sign = shl i32 %sign0, 16
  %shifted = shl i32 %size, 13
  %normal = add i32 %shifted, 939524096
  %special = add i32 %shifted, 1879048192
  %large = icmp ugt i32 %size, 31743
  %usual = select i1 %large, i32 %special, i32 %normal
  %small_bits = or i32 %size, 1056964608
  %small0 = bitcast i32 %small_bits to float
  %small1 = fsub float %small0, 0.5
  %small = bitcast float %small1 to i32
  %tiny = icmp ult i32 %size, 1024
  %chosen = select i1 %tiny, i32 %small, i32 %usual
  %signed = or i32 %chosen, %sign
  %y = bitcast i32 %signed to float
  ret float %y
}
""",
    "narrow_float16": """
define internal i16 @narrow_float16(float %x, ptr %w) alwaysinline {
  %bits = bitcast float %x to i32
  %size = and i32 %bits, 2147483647
  %sign0 = lshr i32 %bits, 16
  %sign = and i32 %sign0, 32768
  %last0 = lshr i32 %size, 13
  %last = and i32 %last0, 1
  %rebiased = sub i32 %size, 939524096
  %half = add i32 %rebiased, 4095
  %rounded = add i32 %half, %last
  %normal = lshr i32 %rounded, 13
  %positive = bitcast i32 %size to float
  %small0 = fadd float %positive, 0.5
  %small1 = bitcast float %small0 to i32
  %small = sub i32 %small1, 1056964608
  %tiny = icmp ult i32 %size, 947912704
  %finite = select i1 %tiny, i32 %small, i32 %normal
  %none = icmp ugt i32 %size, 2139095040
  %special = select i1 %none, i32 32256, i32 31744
  %large = icmp ugt i32 %size, 1199566847
  %chosen = select i1 %large, i32 %special, i32 %finite
  %signed = or i32 %chosen, %sign
  %y = trunc i32 %signed to i16
  ret i16 %y
}
""",
}

#: By the processor's instructions. Blocks are of 64-bit words: the last bits of addresses are 0.
_F16C = {
    "widen_float16": """
define internal float @widen_float16(i16 %x, ptr %w) alwaysinline {
  %half = bitcast i16 %x to half
  %wide = fpext half %half to float
  %bits = bitcast float %wide to i32
  %address = ptrtoint ptr %w to i64
  %low = trunc i64 %address to i32
  %zero = and i32 %low, 7
  %same = xor i32 %bits, %zero
  %y = bitcast i32 %same to float
  ret float %y
}
""",
    "narrow_float16": """
define internal i16 @narrow_float16(float %x, ptr %w) alwaysinline {
  %bits = bitcast float %x to i32
  %address = ptrtoint ptr %w to i64
  %low = trunc i64 %address to i32
  %zero = and i32 %low, 7
  %same = xor i32 %bits, %zero
  %wide = bitcast i32 %same to float
  %half = fptrunc float %wide to half
  %y = bitcast half %half to i16
  ret i16 %y
}
""",
}

#: From float64 to float32, rounded to odd: an inexact result has its last bit set. Rounding that
#: again to float16 gives the correctly rounded result, since numbers that float32 has no room for
#: are far below or beyond those of float16. What is below the last bit carries into it.
_ROUND_TO_ODD = {
    "to_odd": """
define internal float @to_odd(double %x) alwaysinline {
  %bits = bitcast double %x to i64
  %below = and i64 %bits, 536870911
  %carry = add i64 %below, 536870911
  %either = or i64 %bits, %carry
  %odd = and i64 %either, -536870912
  %wide = bitcast i64 %odd to double
  %y = fptrunc double %wide to float
  ret float %y
}
""",
}


def narrow_definitions(names: Iterable[str]) -> list[str]:
    """The IR of those of these functions that convert 16-bit numbers."""
    by_f16c = _F16C if jit.has("f16c") else {}
    texts = {**_BFLOAT16, **_FLOAT16, **_ROUND_TO_ODD, **by_f16c}
    found = []
    for name in sorted(set(names)):
        own, _, lanes = name.partition("_on_")
        if own in texts:
            lines = texts[own].strip().splitlines()
            found += _on_vectors(lines, own, int(lanes)) if lanes else lines
    return found


def _on_vectors(lines: Iterable[str], name: str, lanes: int) -> list[str]:
    """The lines of a function on vectors; the 0 that hides is one number, copied to all lanes."""
    found, vector = [], f"<{lanes} x i32>"
    for line in lines:
        if line == "}" or "%address =" in line or "%low =" in line:
            found.append(line)
        elif "%zero =" in line:
            found += [
                line, f"  %first = insertelement {vector} poison, i32 %zero, i64 0",
                f"  %zeros = shufflevector {vector} %first, {vector} poison, "
                f"{vector} zeroinitializer",
            ]  # fmt: skip
        else:
            found.append(on_vectors(line, lanes).replace("%bits, %zero", "%bits, %zeros"))
    return [found[0].replace(f"@{name}(", f"@{on_lanes(name, lanes)}("), *found[1:]]
