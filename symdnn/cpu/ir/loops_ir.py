"""Pieces of loops over strided arrays as LLVM IR: operands, words of a block, threads.

A kernel has one parameter, a block of 64-bit words: the number of threads, of tasks, and what else
it needs, among it the addresses of operands: those of NumPy's array objects. The kernel reads the
data pointer from the array object, which would take a microsecond in Python.

Threads are those of libgomp, which oneDNN uses too: the kernel calls ``GOMP_parallel`` itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from symdnn.cpu.compiler import jit
from symdnn.cpu.ir.math_ir import declarations, definitions
from symdnn.cpu.ir.scalar_ir import load_as
from symdnn.graph.type import numpy_dtype

__all__ = [
    "ACCESS",
    "AROUND",
    "COPY_ROW",
    "EIGHT",
    "EVERY",
    "MIN_COST_TO_INTERLEAVE",
    "LoopOperand",
    "data_if_any",
    "data_of",
    "exponential_module",
    "in_wide_vectors",
    "inner",
    "BRIEF",
    "METADATA_OF_BRIEF",
    "metadata_of_wide",
    "WIDE",
    "interleaved",
    "next_task",
    "renamed",
    "word",
    "kernel_entry",
]


@dataclass(frozen=True)
class LoopOperand:
    """An operand's innermost stride: ``dense`` (contiguous), ``one`` (stride 0) or ``strided``.

    ``every -1`` or ``every 2`` are strides of so many elements that are part of the code.
    """

    dtype: str
    inner: str

    @property
    def bits(self) -> int:
        """Bits of an element."""
        return 8 * int(numpy_dtype(self.dtype).itemsize)


#: The function that copies a row. The C library's takes longer to call than to copy some cache
#: lines; the last one here overlaps with the one before.
COPY_ROW = """
declare void @llvm.memmove.p0.p0.i64(ptr, ptr, i64, i1)
define internal void @copy_row(ptr %to, ptr %from, i64 %n) alwaysinline #0 {
entry:
%left = sub i64 %n, 64
%unfit = icmp ugt i64 %left, 4096
br i1 %unfit, label %whole, label %lines
whole:
call void @llvm.memmove.p0.p0.i64(ptr %to, ptr %from, i64 %n, i1 false)
ret void
lines:
%from_last = getelementptr i8, ptr %from, i64 %left
%to_last = getelementptr i8, ptr %to, i64 %left
%last = load <16 x i32>, ptr %from_last, align 1
br label %line
line:
%i = phi i64 [0, %lines], [%i_next, %line]
%a = getelementptr i8, ptr %from, i64 %i
%b = getelementptr i8, ptr %to, i64 %i
%some = load <16 x i32>, ptr %a, align 1
store <16 x i32> %some, ptr %b, align 1
%i_next = add nuw nsw i64 %i, 64
%more = icmp ult i64 %i_next, %left
br i1 %more, label %line, label %done
done:
store <16 x i32> %last, ptr %to_last, align 1
ret void
}
""".strip().splitlines()


# -- operands -------------------------------------------------------------------------------------

#: Two operands are the same array or do not overlap, so iterations are independent of each other.
ACCESS = ", !llvm.access.group !0"
METADATA = [
    "!0 = distinct !{}",
    "!1 = distinct !{!1, !2}",
    '!2 = !{!"llvm.loop.parallel_accesses", !0}',
    'attributes #0 = { "prefer-vector-width"="512" }',
]


#: A parallel loop of few iterations or little work, which LLVM makes less code of; its metadata.
BRIEF = "!3"
#: A loop that LLVM neither unrolls nor vectorises: around others, which take the time.
AROUND = "!6"
#: A parallel loop that LLVM unrolls over eight vectors: two sums that each wait four cycles.
EIGHT = "!8"
#: A parallel loop over whole vectors of float32, though those of its states fill two.
WIDE = "!10"
METADATA_OF_BRIEF = [
    "!3 = distinct !{!3, !2, !4, !5}",
    '!4 = !{!"llvm.loop.interleave.count", i32 1}',
    '!5 = !{!"llvm.loop.unroll.disable"}',
    "!6 = distinct !{!6, !5, !7}",
    '!7 = !{!"llvm.loop.vectorize.enable", i1 false}',
    "!8 = distinct !{!8, !2, !9}",
    '!9 = !{!"llvm.loop.interleave.count", i32 8}',
]


def metadata_of_wide() -> list[str]:
    """The metadata of :data:`WIDE` for this processor."""
    return ["!10 = distinct !{!10, !2, !11}", *_width()]


def in_wide_vectors(metadata: Sequence[str], width: int = 0) -> list[str]:
    """The metadata of parallel loops in vectors of ``width`` numbers, or as of :data:`WIDE`."""
    return [*(m.replace("!{!1, !2", "!{!1, !2, !11") for m in metadata), *_width(width)]


def _width(width: int = 0) -> list[str]:
    return [f'!11 = !{{!"llvm.loop.vectorize.width", i32 {width or jit.vector_width()}}}']


#: Loops of programs with at least this cost (in additions) are unrolled over several vectors.
MIN_COST_TO_INTERLEAVE = 20


def interleaved(count: int, masked: bool = False) -> list[str]:
    """:data:`METADATA` of loops that LLVM unrolls over ``count`` vectors.

    LLVM does not unroll long polynomials, since they take too many registers. But such loops wait
    for loads of coefficients, and an unrolled one loads each coefficient once for all vectors. It
    also has more cache lines in flight. Four functions in a chain took 20 % less time so, one
    function 15 %.

    With ``masked`` the last vectors of a row have a mask, as all have then, and there is no code
    for single elements.
    """
    found = [
        *(m.replace("{!1, !2}", "{!1, !2, !3}") for m in METADATA),
        f'!3 = !{{!"llvm.loop.interleave.count", i32 {count}}}',
    ]
    if masked:
        found = [m.replace("{!1, !2, !3}", "{!1, !2, !3, !4}") for m in found]
        found.append('!4 = !{!"llvm.loop.vectorize.predicate.enable", i1 true}')
    return found


def inner(step: int, itemsize: int, written: bool = False) -> str:
    """The kind of this innermost stride, in bytes: see :class:`LoopOperand`."""
    if step == itemsize:
        return "dense"
    if not written and step % itemsize == 0 and step // itemsize in _CONSTANT_STEPS:
        return f"{EVERY}{step // itemsize}"
    return "one" if step == 0 and not written else "strided"


#: Strides of reads that LLVM makes shuffles of, in elements.
_CONSTANT_STEPS = (-1, 2, 3, 4)
EVERY = "every "


#: Offset of the data pointer in NumPy's array object (``PyArrayObject_fields.data``), in bytes.
_DATA_OFFSET = object.__basicsize__


def data_of(name: str, index: int) -> list[str]:
    """Lines that load the data pointer of the array object that a word of the block points to."""
    return [
        *word(f"{name}_object", index, "ptr"),
        f"{name}_field = getelementptr i8, ptr {name}_object, i64 {_DATA_OFFSET}",
        f"{name} = load ptr, ptr {name}_field",
    ]


def data_if_any(name: str, index: int) -> list[str]:
    """Lines that load the data pointer of an array object, or null where the word is 0.

    ``name_any`` says whether there is one.
    """
    return [
        *word(f"{name}_object", index, "ptr"),
        f"{name}_any = icmp ne ptr {name}_object, null",
        f"{name}_field = getelementptr i8, ptr {name}_object, i64 {_DATA_OFFSET}",
        f"{name}_from = select i1 {name}_any, ptr {name}_field, ptr %w",
        f"{name}_there = load ptr, ptr {name}_from",
        f"{name} = select i1 {name}_any, ptr {name}_there, ptr null",
    ]


def next_task(name: str) -> list[str]:
    """Lines that end ``rows`` and its loop over ``%r``, whose first basic block is ``name``."""
    return [
        f"br label %{name}_end",
        f"{name}_end:",
        "%r_next = add i64 %r, 1",
        "%r_more = icmp slt i64 %r_next, %r1",
        f"br i1 %r_more, label %{name}, label %done",
        "done:",
        "ret void",
        "}",
    ]


def exponential_module(rows: Sequence[str]) -> str:
    """The module of a function ``rows`` that calls exp and log of float64."""
    functions = {"f_exp", "f_log"}
    declared = {
        "declare double @llvm.maximum.f64(double, double)",
        "declare double @llvm.fabs.f64(double)",
        *declarations(functions),
    }
    lines = [*sorted(declared), *definitions(functions), *THREADS, *rows, *METADATA]
    return "\n".join(lines) + "\n"


def word(name: str, index: int, kind: str = "i64") -> list[str]:
    """Lines that load a word of the block."""
    label = name[1:]
    return [
        f"%w_{label} = getelementptr i64, ptr %w, i64 {index}",
        f"{name} = load {kind}, ptr %w_{label}",
    ]


def address(name: str, o: LoopOperand) -> list[str]:
    kind = f"i{o.bits}"
    if o.inner == "dense":
        return [f"%p_{name} = getelementptr {kind}, ptr %base_{name}, i64 %i"]
    if o.inner.startswith(EVERY):
        return [
            f"%k_{name} = mul nsw i64 %i, {o.inner.removeprefix(EVERY)}",
            f"%p_{name} = getelementptr {kind}, ptr %base_{name}, i64 %k_{name}",
        ]
    if o.inner == "one":
        return [f"%p_{name} = getelementptr i8, ptr %base_{name}, i64 0"]
    return [
        f"%k_{name} = mul i64 %i, %s_{name}",
        f"%p_{name} = getelementptr i8, ptr %base_{name}, i64 %k_{name}",
    ]


def read(name: str, o: LoopOperand) -> list[str]:
    return [*address(name, o), *load_as(o.dtype, f"%{name}", f"%p_{name}", ACCESS)]


def renamed(lines: Sequence[str], name: str) -> list[str]:
    """The lines with a suffix to each register that they define, so that they can be repeated."""
    defined = {line.split(" = ")[0] for line in lines if " = " in line}

    def fixed(found: re.Match[str]) -> str:
        return f"{found[0]}.{name}" if found[0] in defined else found[0]

    return [re.sub(r"%[\w.]+", fixed, line) for line in lines]


# -- threads --------------------------------------------------------------------------------------


def kernel_entry(alone: str) -> list[str]:
    """The function ``kernel``, which runs ``worker`` in as many threads as the block's first word.

    With one thread it runs the line ``alone`` instead.
    """
    return f"""
define void @kernel(ptr %w) #0 {{
entry:
%threads = load i64, ptr %w
%many = icmp sgt i64 %threads, 1
br i1 %many, label %parallel, label %alone
parallel:
%count = trunc i64 %threads to i32
call void @GOMP_parallel(ptr @worker, ptr %w, i32 %count, i32 0)
ret void
alone:
{alone}
ret void
}}
""".strip().splitlines()


#: Threads share the rows; a single row is divided between them in multiples of 64 elements.
THREADS = [
    *"""
declare void @GOMP_parallel(ptr, ptr, i32, i32)
declare i32 @omp_get_thread_num()
declare i32 @omp_get_num_threads()
define internal i64 @part(i64 %n, i64 %of, i64 %i, i64 %unit) alwaysinline {
%units0 = add i64 %n, %unit
%units1 = sub i64 %units0, 1
%units = udiv i64 %units1, %unit
%all = mul i64 %units, %i
%mine = udiv i64 %all, %of
%at = mul i64 %mine, %unit
%over = icmp sgt i64 %at, %n
%end = select i1 %over, i64 %n, i64 %at
ret i64 %end
}
define internal void @worker(ptr %w) #0 {
%t0 = call i32 @omp_get_thread_num()
%c0 = call i32 @omp_get_num_threads()
%t = zext i32 %t0 to i64
%c = zext i32 %c0 to i64
call void @share(ptr %w, i64 %t, i64 %c)
ret void
}
define internal void @share(ptr %w, i64 %t, i64 %c) noinline #0 {
entry:
%pr = getelementptr i64, ptr %w, i64 1
%pn = getelementptr i64, ptr %w, i64 2
%rows = load i64, ptr %pr
%n = load i64, ptr %pn
%t1 = add i64 %t, 1
%single = icmp eq i64 %rows, 1
br i1 %single, label %within, label %between
within:
%i0 = call i64 @part(i64 %n, i64 %c, i64 %t, i64 64)
%i1 = call i64 @part(i64 %n, i64 %c, i64 %t1, i64 64)
%some_i = icmp slt i64 %i0, %i1
br i1 %some_i, label %run_i, label %done
run_i:
call void @rows(ptr %w, i64 0, i64 1, i64 %i0, i64 %i1)
br label %done
between:
%r0 = call i64 @part(i64 %rows, i64 %c, i64 %t, i64 1)
%r1 = call i64 @part(i64 %rows, i64 %c, i64 %t1, i64 1)
%some_r = icmp slt i64 %r0, %r1
br i1 %some_r, label %run_r, label %done
run_r:
call void @rows(ptr %w, i64 %r0, i64 %r1, i64 0, i64 %n)
br label %done
done:
ret void
}
""".strip().splitlines(),
    *kernel_entry("call void @share(ptr %w, i64 0, i64 1)"),
]
