"""The LLVM IR function that makes every second (third, fourth) number of a line a dense one.

LLVM reads such numbers by gathers, which take a cycle or two for each. Here whole vectors are read,
and what is wanted is shuffled together.
"""

from __future__ import annotations

from collections.abc import Sequence

from symdnn.cpu.ir.builder import Builder, FunctionBuilder
from symdnn.cpu.ir.loops_ir import EVERY

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

    def place(base: str, i: str, factor: int) -> str:
        return b.new(f"getelementptr {t}, ptr {base}, i64 {b.affine(i, factor)}")

    with b.function(f"pack{8 * itemsize}x{step}", "ptr %from, ptr %to, i64 %n"):
        most = b.minus("%n", 1)
        vectors = b.minus(most, b.new(f"urem i64 {most}, {lanes}"))
        high = b.new(f"select i1 {b.new(f'icmp sgt i64 {most}, 0')}, i64 {vectors}, i64 0")
        some, tail = b.new(f"icmp sgt i64 {high}, 0"), b.new(f"icmp slt i64 {high}, %n")
        with b.when("whole", some), b.each("vector", 0, high, step=lanes) as i:
            first = place("%from", i, step)
            loaded = []
            for k in range(step):
                at = b.bytes_at(first, k * _VECTOR_BYTES)
                loaded.append(b.new(f"load <{lanes} x {t}>, ptr {at}, align {itemsize}"))
            found = _picked(b, loaded, lanes, t, step)
            b.put(f"store <{lanes} x {t}> {found}, ptr {place('%to', i, 1)}, align {itemsize}")
        with b.when("ones", tail), b.each("one", high, "%n") as i:
            value = b.new(f"load {t}, ptr {place('%from', i, step)}, align {itemsize}")
            b.put(f"store {t} {value}, ptr {place('%to', i, 1)}, align {itemsize}")
    return b.lines


def spread_name(itemsize: int, times: int, whole: bool) -> str:
    """The name of :func:`spread_function`'s function."""
    return f"{'rows' if whole else 'spread'}{8 * itemsize}x{times}"


def spread_function(itemsize: int, times: int, whole: bool = False) -> list[str]:
    """The function: ``to[times + i - low] = from[i // times]`` for i from ``%low`` to ``%high``.

    ``%step`` bytes are between two numbers. Up to ``times`` numbers before and behind those are
    written too. Of ``whole`` rows number ``i % times`` of row ``i // times`` is meant.
    """
    b = Builder(times, f"int{8 * itemsize}")
    given = "ptr %from, i64 %step, ptr %to, i64 %low, i64 %high"
    with b.function(spread_name(itemsize, times, whole), given):
        first = b.new(f"udiv i64 %low, {times}")
        last = b.new(f"udiv i64 {b.plus('%high', times - 1)}, {times}")
        with b.each("group", first, last) as g:
            place = b.bytes_at("%from", (g, "%step"))
            every = b.load(place) if whole else b.broadcast(place)
            b.store(every, b.at("%to", b.minus(b.affine(g, times, times), "%low")))
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
