"""LLVM IR of a gather: copies rows by an index array."""

from __future__ import annotations

from symdnn.cpu.ir.builder import first_task
from symdnn.cpu.ir.loops_ir import METADATA, THREADS, data_of, next_task, word
from symdnn.cpu.ir.scalar_ir import VALUES

__all__ = ["FLAG", "gather_ir"]

#: Index of the word that is set if an index is out of range.
FLAG = 5


def gather_ir(dtype: str) -> str:
    """The module of ``kernel`` for indices of this dtype.

    Words of its block: threads, number of rows, 1, bytes of a row, rows of the operand, the flag,
    then array objects: operand, indices, result.
    """
    t = VALUES[dtype]
    extended = [] if t == "i64" else [f"%number = sext {t} %given to i64"]
    entry = [
        *word("%n", 3),
        *word("%size", 4),
        f"%flag = getelementptr i64, ptr %w, i64 {FLAG}",
        *(line for i, a in enumerate(("%x", "%at", "%y"), FLAG + 1) for line in data_of(a, i)),
    ]
    lines = [
        "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)",
        *THREADS,
        *first_task(entry, "row"),
        f"%at_p = getelementptr {t}, ptr %at, i64 %r",
        f"%{'given' if extended else 'number'} = load {t}, ptr %at_p",
        *extended,
        "%negative = icmp slt i64 %number, 0",
        "%from_end = add i64 %number, %size",
        "%place = select i1 %negative, i64 %from_end, i64 %number",
        "%fine = icmp ult i64 %place, %size",
        "br i1 %fine, label %copy, label %wrong",
        "wrong:",
        "store i64 1, ptr %flag",
        "br label %row_next",
        "copy:",
        "%from_i = mul i64 %place, %n",
        "%from = getelementptr i8, ptr %x, i64 %from_i",
        "%to_i = mul i64 %r, %n",
        "%to = getelementptr i8, ptr %y, i64 %to_i",
        "call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %from, i64 %n, i1 false)",
        "br label %row_next",
        "row_next:",
        *next_task("row"),
        *METADATA,
    ]
    return "\n".join(lines) + "\n"
