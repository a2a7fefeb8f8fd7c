"""float16 and bfloat16 as LLVM IR: stored as 16-bit integers, computed in float32.

LLVM's types ``half`` and ``bfloat`` are not used for arithmetic. LLVM would narrow float32
operations whose result is rounded to them, and on a processor without such instructions it crashes
on some. So 16-bit numbers are integers here, and conversions are operations on their bits, which
LLVM vectorises like any others. They round once, to nearest even; NaN stays NaN. The processor's
own conversions of float16 (F16C) are hidden from LLVM's optimiser behind an exclusive or with the
lowest bits of the block's address, which are 0. :func:`on_lanes` names those of vectors.
"""

from __future__ import annotations

from symdnn.cpu.compiler import jit
from symdnn.cpu.math.lanes_ir import Formula, Lane, Lanes

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


def _widen_bfloat16(k: Lanes, x: Lane, w: Lane) -> Lane:
    return (x.cast("i32", "zext") << 16).cast("float")


def _narrow_bfloat16(k: Lanes, x: Lane, w: Lane) -> Lane:
    bits = x.cast("i32")
    rounded = bits + ((bits >> 16 & 1) + 32767)
    return (x.is_nan().where(bits | 4194304, rounded) >> 16).cast("i16", "trunc")


# Exponents of float16 have a bias of 15, of float32 one of 127; mantissas have 10 and 23 bits.
# A denormal float16 plus 0.5 is the float32 of 0.5 with the denormal's mantissa. Towards float16,
# numbers below 2^-14 are rounded by adding 0.5, whose last bit is worth 2^-24.


def _widen_float16(k: Lanes, x: Lane, w: Lane) -> Lane:
    wide = x.cast("i32", "zext")
    size = wide & 32767
    sign, shifted = (wide ^ size) << 16, size << 13
    usual = k.test("ugt", size, 31743).where(shifted + 1879048192, shifted + 939524096)
    small = ((size | 1056964608).cast("float") - 0.5).cast("i32")
    return (k.test("ult", size, 1024).where(small, usual) | sign).cast("float")


def _narrow_float16(k: Lanes, x: Lane, w: Lane) -> Lane:
    bits = x.cast("i32")
    size = bits & 2147483647
    normal = (size - 939524096 + 4095 + (size >> 13 & 1)) >> 13
    small = (size.cast("float") + 0.5).cast("i32") - 1056964608
    finite = k.test("ult", size, 947912704).where(small, normal)
    special = k.test("ugt", size, 2139095040).where(32256, 31744, "i32")
    chosen = k.test("ugt", size, 1199566847).where(special, finite)
    return (chosen | (bits >> 16 & 32768)).cast("i16", "trunc")


def _hidden(k: Lanes, bits: Lane, w: Lane) -> Lane:
    """The same bits. Blocks are of 64-bit words: the last bits of addresses are 0."""
    one = Lanes(append=k.append)
    low = one.new(f"ptrtoint ptr {w.name} to i64", "i64").cast("i32", "trunc") & 7
    return bits ^ k.everywhere(low.name, "i32")


def _widen_by_f16c(k: Lanes, x: Lane, w: Lane) -> Lane:
    return _hidden(k, x.cast("half").cast("float", "fpext").cast("i32"), w).cast("float")


def _narrow_by_f16c(k: Lanes, x: Lane, w: Lane) -> Lane:
    return _hidden(k, x.cast("i32"), w).cast("float").cast("half", "fptrunc").cast("i16")


def _to_odd(k: Lanes, x: Lane) -> Lane:
    """From float64 to float32, rounded to odd: an inexact result has its last bit set.

    Rounding that again to float16 gives the correctly rounded result, since numbers that float32
    has no room for are far below or beyond those of float16. What is below the last bit carries
    into it.
    """
    bits = x.cast("i64")
    carry = (bits & 536870911) + 536870911
    return ((bits | carry) & -536870912).cast("double").cast("float", "fptrunc")


_TO_FLOAT, _FROM_FLOAT = ("i16", "ptr"), ("float", "ptr")
_CONVERSIONS = {
    f.name: f
    for f in (
        Formula("widen_bfloat16", _widen_bfloat16, *_TO_FLOAT),
        Formula("narrow_bfloat16", _narrow_bfloat16, *_FROM_FLOAT),
        Formula("widen_float16", _widen_float16, *_TO_FLOAT),
        Formula("narrow_float16", _narrow_float16, *_FROM_FLOAT),
        Formula("to_odd", _to_odd, "double"),
    )
}
#: By the processor's instructions.
_BY_F16C = {
    "widen_float16": Formula("widen_float16", _widen_by_f16c, *_TO_FLOAT),
    "narrow_float16": Formula("narrow_float16", _narrow_by_f16c, *_FROM_FLOAT),
}


def conversion(name: str) -> Formula | None:
    """The one of this name, for the processor."""
    return (jit.has("f16c") and _BY_F16C.get(name)) or _CONVERSIONS.get(name)
