"""The LLVM IR function that makes every second (third, fourth) number of a line a dense one.

LLVM reads such numbers by gathers, which take a cycle or two for each. Here whole vectors are read,
and what is wanted is shuffled together.
"""

from __future__ import annotations

from collections.abc import Sequence

from symdnn.cpu.ir.builder import FunctionBuilder
from symdnn.cpu.ir.loops_ir import EVERY

__all__ = [
    "PACKED_ELEMENTS",
    "is_packed",
    "pack_call",
    "pack_function",
    "spread_function",
    "spread_name",
]

#: Numbers of a buffer, and bytes of a vector.
PACKED_ELEMENTS, _VECTOR_BYTES = 512, 64
#: Bytes of the widest numbers that are packed.
_WIDEST = 8


def is_packed(inner: str, itemsize: int) -> bool:
    """Whether numbers with this innermost stride, of so many bytes, are packed."""
    step = int(inner.removeprefix(EVERY)) if inner.startswith(EVERY) else 1
    return step > 1 and itemsize <= _WIDEST


def pack_call(itemsize: int, step: int, source: str, target: str, count: str) -> str:
    """The line that packs ``count`` numbers."""
    return f"call void @pack{8 * itemsize}x{step}(ptr {source}, ptr {target}, i64 {count})"


def pack_function(itemsize: int, step: int) -> list[str]:
    """The function: ``to[i] = from[step * i]`` for i below ``%n``.

    A vector that is read ends before the last number that is wanted.
    """
    b, t, lanes = FunctionBuilder(), f"i{8 * itemsize}", _VECTOR_BYTES // itemsize
    b.put(
        f"define internal void @pack{8 * itemsize}x{step}(ptr %from, ptr %to, i64 %n) #0 {{",
        "entry:",
        "%most = sub i64 %n, 1",
        "%some = icmp sgt i64 %most, 0",
        f"%rest = urem i64 %most, {lanes}",
        "%vectors = sub i64 %most, %rest",
        "%high = select i1 %some, i64 %vectors, i64 0",
        "%any = icmp sgt i64 %high, 0",
        "%tail = icmp slt i64 %high, %n",
    )

    def place(base: str, i: str, factor: int) -> str:
        return b.new(f"getelementptr {t}, ptr {base}, i64 {b.affine(i, factor)}")

    with b.when("whole", "%any"), b.each("vector", 0, "%high", step=lanes) as i:
        first = place("%from", i, step)
        loaded = []
        for k in range(step):
            at = b.bytes_at(first, k * _VECTOR_BYTES)
            loaded.append(b.new(f"load <{lanes} x {t}>, ptr {at}, align {itemsize}"))
        found = _picked(b, loaded, lanes, t, step)
        b.put(f"store <{lanes} x {t}> {found}, ptr {place('%to', i, 1)}, align {itemsize}")
    with b.when("ones", "%tail"), b.each("one", "%high", "%n") as i:
        value = b.new(f"load {t}, ptr {place('%from', i, step)}, align {itemsize}")
        b.put(f"store {t} {value}, ptr {place('%to', i, 1)}, align {itemsize}")
    b.put("ret void", "}")
    return b.lines


def spread_name(itemsize: int, times: int, whole: bool) -> str:
    """The name of :func:`spread_function`'s function."""
    return f"{'rows' if whole else 'spread'}{8 * itemsize}x{times}"


def spread_function(itemsize: int, times: int, whole: bool = False) -> list[str]:
    """The function: ``to[times + i - low] = from[i // times]`` for i from ``%low`` to ``%high``.

    ``%step`` bytes are between two numbers. Up to ``times`` numbers before and behind those are
    written too. Of ``whole`` rows number ``i % times`` of row ``i // times`` is meant.
    """
    b, t, name = FunctionBuilder(), f"i{8 * itemsize}", spread_name(itemsize, times, whole)
    b.put(
        f"define internal void @{name}(ptr %from, i64 %step, ptr %to, i64 %low, i64 %high) #0 {{",
        "entry:",
        f"%first = udiv i64 %low, {times}",
        f"%far = add i64 %high, {times - 1}",
        f"%last = udiv i64 %far, {times}",
    )
    with b.each("group", "%first", "%last") as g:
        place, vector = b.bytes_at("%from", (g, "%step")), f"<{times} x {t}>"
        if whole:
            every = b.new(f"load {vector}, ptr {place}, align {itemsize}")
        else:
            value = b.new(f"load {t}, ptr {place}, align {itemsize}")
            one = b.new(f"insertelement {vector} poison, {t} {value}, i64 0")
            every = b.new(
                f"shufflevector {vector} {one}, {vector} poison, <{times} x i32> zeroinitializer"
            )
        at = b.minus(b.affine(g, times, times), "%low")
        to = b.new(f"getelementptr {t}, ptr %to, i64 {at}")
        b.put(f"store {vector} {every}, ptr {to}, align {itemsize}")
    b.put("ret void", "}")
    return b.lines


def _picked(b: FunctionBuilder, loaded: Sequence[str], lanes: int, t: str, step: int) -> str:
    """The elements at multiples of ``step`` of these vectors, one behind the other."""
    found, have = "", 0
    for k, vector in enumerate(loaded):
        wanted = [p for p in range(lanes) if (k * lanes + p) % step == 0]
        if not k:
            found, order, other = vector, wanted, "poison"
        else:
            order, other = [*range(have), *(lanes + p for p in wanted)], vector
        have = len(order)
        places = ", ".join(f"i32 {p}" for p in [*order, *[0] * (lanes - have)])
        kind = f"<{lanes} x {t}>"
        found = b.new(f"shufflevector {kind} {found}, {kind} {other}, <{lanes} x i32> <{places}>")
    return found
