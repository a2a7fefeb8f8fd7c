"""float16 and bfloat16 as LLVM IR: 16 bits of an integer outside of float32.

LLVM computes with neither ``half`` nor ``bfloat``: given them it does in 16 bits what is rounded
to 16 bits afterwards, and where a processor has no such instruction some of that ends the process.
So numbers of 16 bits are integers here, and their conversions are operations on the bits, which
become vector code as all others do. They round once, to the even one of two neighbours; NaN stays
NaN. The processor's own instructions for float16 (F16C) are behind an operation that LLVM cannot
see through: the bits of the block's address that are 0.
"""

from __future__ import annotations

from collections.abc import Iterable

from symdnn.cpu.compiler import jit

__all__ = [
    "NARROW", "TO_ODD_DECLARED", "narrow_definitions", "narrowed", "narrowing", "widened",
    "widening",
]  # fmt: skip

NARROW = frozenset({"float16", "bfloat16"})
TO_ODD_DECLARED = "declare double @llvm.fabs.f64(double)"


def widening(dtype: str) -> str:
    """The name of the function from ``dtype`` to float32."""
    return f"widen_{dtype}"


def narrowing(dtype: str) -> str:
    """The name of the function from float32 to ``dtype``."""
    return f"narrow_{dtype}"


def widened(dtype: str, value: str) -> str:
    """The call that makes float32 of a number of 16 bits; ``%w`` is the block of parameters."""
    return f"call float @{widening(dtype)}(i16 {value}, ptr %w)"


def narrowed(dtype: str, value: str) -> str:
    """The call that makes a number of 16 bits of float32."""
    return f"call i16 @{narrowing(dtype)}(float {value}, ptr %w)"


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

#: Of denormals the bits are those of a float32 whose last bit is theirs, plus 0.5.
#: The exponents of float16 are biased by 15, of float32 by 127; the mantissa has 10 of 23 bits.
#: To float16, what is below 2^-14 is rounded by the addition of 0.5, whose last bit is 2^-24.
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
  %small1 = fsub float %small0, 5.000000e-01
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
  %small0 = fadd float %positive, 5.000000e-01
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

#: The processor's own. Blocks are of 64-bit words, so the last bits of their addresses are 0.
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

#: From float64 to the float32 beside it whose last bit is 1, unless it is exact: rounded again to
#: fewer digits that is the nearest of those. It needs :data:`TO_ODD_DECLARED`.
_ODD = {
    "to_odd": """
define internal float @to_odd(double %x) alwaysinline {
  %near = fptrunc double %x to float
  %back = fpext float %near to double
  %exact = fcmp ueq double %back, %x
  %size = call double @llvm.fabs.f64(double %x)
  %got = call double @llvm.fabs.f64(double %back)
  %above = fcmp ogt double %got, %size
  %bits = bitcast float %near to i32
  %less = sext i1 %above to i32
  %below = add i32 %bits, %less
  %odd = or i32 %below, 1
  %chosen = select i1 %exact, i32 %bits, i32 %odd
  %y = bitcast i32 %chosen to float
  ret float %y
}
""",
}


def narrow_definitions(names: Iterable[str]) -> list[str]:
    """The lines of these functions."""
    given = set(names) & _KNOWN
    if not given:
        return []
    known = {**_BFLOAT16, **_FLOAT16, **_ODD, **(_F16C if jit.has("f16c") else {})}
    return [line for name in sorted(given) for line in known[name].strip().splitlines()]


_KNOWN = {*_BFLOAT16, *_FLOAT16, *_ODD}
