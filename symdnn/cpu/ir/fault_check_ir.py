"""LLVM IR of a check: whether an array has a value of certain bits (NaN, infinity, large ones)."""

from __future__ import annotations

from collections.abc import Sequence

from symdnn.cpu.ir.builder import first_task
from symdnn.cpu.ir.loops_ir import ACCESS, THREADS, data_of, interleaved, next_task, word

__all__ = ["ARRAY", "CHUNK_ELEMENTS", "ELEMENTS", "FLAG", "fault_check_ir"]

#: Elements of a task.
CHUNK_ELEMENTS = 1 << 14
#: Indices of the words for the number of elements, the flag that a fault sets, and the array.
ELEMENTS, FLAG, ARRAY = 3, 4, 5


def fault_check_ir(bits: int, ranges: Sequence[tuple[int, int]]) -> str:
    """The module of ``kernel`` for dense arrays of elements of ``bits`` bits.

    ``ranges`` are pairs (first, count) of bits without the sign. Words of its block: threads,
    number of tasks, 1, number of elements, the flag, the array object.
    """
    t = f"i{bits}"
    entry = [
        *word("%n", ELEMENTS),
        f"%flag = getelementptr i64, ptr %w, i64 {FLAG}",
        *data_of("%x", ARRAY),
    ]
    tests: list[str] = []
    for k, (first, count) in enumerate(ranges):
        tests += [
            f"%from{k} = sub {t} %m, {first}",
            f"%is{k} = icmp ult {t} %from{k}, {count}",
            f"%all{k} = sext i1 %is{k} to {t}",
            f"%found{k + 1} = or {t} %found{k}, %all{k}",
        ]
    last = f"%found{len(ranges)}"
    lines = [
        *THREADS,
        *first_task(entry, "row"),
        f"%low = mul i64 %r, {CHUNK_ELEMENTS}",
        f"%high = add i64 %low, {CHUNK_ELEMENTS}",
        "%over = icmp sgt i64 %high, %n",
        "%end = select i1 %over, i64 %n, i64 %high",
        "br label %element",
        "element:",
        "%i = phi i64 [%low, %row], [%i_next, %element]",
        f"%found0 = phi {t} [0, %row], [{last}, %element]",
        f"%p = getelementptr {t}, ptr %x, i64 %i",
        f"%b = load {t}, ptr %p{ACCESS}",
        f"%m = and {t} %b, {(1 << (bits - 1)) - 1}",
        *tests,
        "%i_next = add nuw nsw i64 %i, 1",
        "%more = icmp slt i64 %i_next, %end",
        "br i1 %more, label %element, label %tested, !llvm.loop !1",
        "tested:",
        f"%bad = icmp ne {t} {last}, 0",
        "br i1 %bad, label %wrong, label %row_next",
        "wrong:",
        "store i64 1, ptr %flag",
        "br label %row_next",
        "row_next:",
        *next_task("row"),
        *interleaved(4),
    ]
    return "\n".join(lines) + "\n"
