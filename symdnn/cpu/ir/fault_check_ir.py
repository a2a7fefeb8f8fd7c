"""LLVM IR of a check: whether an array has a value of certain bits (NaN, infinity, large ones)."""

from __future__ import annotations

from collections.abc import Sequence

from symdnn.cpu.ir.builder import FunctionBuilder
from symdnn.cpu.ir.loops_ir import ACCESS, THREADS, data_of, interleaved, next_task, word

#: Elements of a task.
CHUNK_ELEMENTS = 1 << 14
#: Indices of the words for the number of elements, the flag that a fault sets, and the array.
ELEMENTS, FLAG, ARRAY = 3, 4, 5


def fault_check_ir(bits: int, ranges: Sequence[tuple[int, int]]) -> str:
    """The module of ``kernel`` for dense arrays of elements of ``bits`` bits.

    ``ranges`` are pairs (first, count) of bits without the sign. Words of its block: threads,
    number of tasks, 1, number of elements, the flag, the array object.
    """
    s, t = FunctionBuilder(), f"i{bits}"
    flag = f"%flag = getelementptr i64, ptr %w, i64 {FLAG}"
    s.tasks([*word("%n", ELEMENTS), flag, *data_of("%x", ARRAY)], "task")
    low = s.times("%r", CHUNK_ELEMENTS)

    def element(i: str, found: list[str]) -> list[str]:
        at = s.new(f"getelementptr {t}, ptr %x, i64 {i}")
        value = s.new(f"load {t}, ptr {at}{ACCESS}")
        value = s.new(f"and {t} {value}, {(1 << (bits - 1)) - 1}")
        for first, count in ranges:
            inside = s.new(f"icmp ult {t} {s.new(f'sub {t} {value}, {first}')}, {count}")
            found = [s.new(f"or {t} {found[0]}, {s.new(f'sext i1 {inside} to {t}')}")]
        return found

    end = s.least(s.plus(low, CHUNK_ELEMENTS), "%n")
    (found,) = s.counted("element", low, end, element, ["0"], t, parallel=True)
    with s.when("wrong", s.new(f"icmp ne {t} {found}, 0")):
        s.put("store i64 1, ptr %flag")
    return "\n".join([*THREADS, *s.lines, *next_task("task"), *interleaved(4)]) + "\n"
