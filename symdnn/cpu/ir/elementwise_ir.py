"""Elementwise loops over strided arrays as LLVM IR: one over rows, in it one over the innermost
dimension.

The block of words has the number of threads, of rows, the length of a row, the sizes of the outer
dimensions but the first. Then come for each operand the address of NumPy's array object, its
innermost stride and its outer strides, in bytes. The text depends on the number of dimensions and
the kinds of strides, so one kernel serves all sizes. Operands with every second (third, fourth)
number of a row are packed into a buffer first, some hundred at a time. So are those of which each
number is repeated a few times, and short rows with gaps between them: rows that short would have
no whole vectors.
"""

from __future__ import annotations

from collections.abc import Sequence

from symdnn.cpu.compiler import jit
from symdnn.cpu.compiler.jit import FAR_CONSTANTS
from symdnn.cpu.ir.loops_ir import (
    ACCESS,
    COPY_ROW,
    EVERY,
    METADATA,
    MIN_COST_TO_INTERLEAVE,
    THREADS,
    LoopOperand,
    address,
    data_of,
    interleaved,
    read,
    word,
)
from symdnn.cpu.ir.math_ir import definitions
from symdnn.cpu.ir.pack_ir import (
    PACKED_ELEMENTS,
    is_packed,
    pack_call,
    pack_function,
    spread_function,
    spread_name,
)
from symdnn.cpu.ir.scalar_ir import Printer, dealt, load_as, part_names, store_as
from symdnn.graph.type import numpy_dtype
from symdnn.ops.core.scalar import ScalarProgram

__all__ = ["ROWS", "SPREAD", "elementwise_ir", "words_per_operand"]

#: Words at the head of the block: threads, rows, length of a row.
HEAD = 3
#: The beginning of the kinds of operands of which each number is repeated; so many times follow.
SPREAD = "spread "
#: That of the kinds of operands of short rows with gaps between them; their length follows.
ROWS = "rows "
#: Metadata of a loop over elements that is not vectorised.
_ALONE = ["!3 = distinct !{!3, !4}", '!4 = !{!"llvm.loop.vectorize.enable", i1 false}']


def words_per_operand(ndim: int) -> int:
    """Words of an operand in the block: the array object, inner stride, outer strides."""
    return 1 + ndim


def elementwise_ir(
    program: ScalarProgram, sizes: Sequence[int], reads: Sequence[LoopOperand],
    writes: Sequence[LoopOperand],
) -> str:  # fmt: skip
    """The module of ``kernel``, which applies ``program`` to every element.

    ``sizes`` that are not 0 are constants of the text. Rows of such a size are not divided between
    threads.
    """
    ndim, length = len(sizes), sizes[-1]
    printer, unrolled = Printer(program), program.cost >= MIN_COST_TO_INTERLEAVE
    inputs = [name for i, o in enumerate(reads) for name in part_names(o.dtype, f"%x{i}")]
    results = dealt([o.dtype for o in writes], printer.emit(inputs))
    named = [(f"x{i}", o) for i, o in enumerate(reads)]
    named += [(f"y{i}", o) for i, o in enumerate(writes)]
    if _moves_pairs(program, reads, writes):
        body = _pair(*named)
    else:
        body = [*_loads(named[: len(reads)]), *printer.lines]
        body += _stores(named[len(reads) :], results)
    # A vector of numbers that are not neighbours takes longer to make than to store one by one.
    alone = not program.body and "strided" in (o.inner for _, o in named)
    once = [line for name, o in named if o.inner == "one" for line in _read_once(name, o)]
    lines = [
        *sorted(printer.declared),
        *definitions(printer.helpers),
        *COPY_ROW,
        *_pack_functions(named),
        *THREADS,
        "define internal void @rows(ptr %w, i64 %r0, i64 %r1, i64 %i0, i64 %i1) noinline #0 {",
        "entry:",
        *_buffers(named),
        *_setup(named, sizes),
        *_first_indices(ndim),
        "br label %row",
        "row:",
        "%r = phi i64 [%r0, %entry], [%r_next, %row_end]",
        *(f"%j{d} = phi i64 [%first{d}, %entry], [%j{d}_next, %row_end]" for d in range(ndim - 1)),
        *_bases(named, ndim),
        *once,
        *(
            _copy(reads[0], length)
            if _copies(program, reads, writes)
            else _row(named, body, length, alone)
        ),
        "row_end:",
        *_next_indices(ndim),
        "%r_next = add nuw nsw i64 %r, 1",
        "%rows_left = icmp slt i64 %r_next, %r1",
        "br i1 %rows_left, label %row, label %done",
        "done:",
        "ret void",
        "}",
        *(interleaved(4 if ndim == 1 else 2) if unrolled else [*METADATA, *_ALONE]),
    ]
    far = unrolled and jit.vector_width() < 16  # 16 registers
    return FAR_CONSTANTS * far + "\n".join(lines) + "\n"


def _loads(reads: Sequence[tuple[str, LoopOperand]]) -> list[str]:
    """Lines that load an element of each operand that has another one for each."""
    moving = [(name, o) for name, o in reads if o.inner != "one"]
    buffered = {n for n, *_ in (*_packed(reads), *_spread(reads))}
    lines = [_read_packed(n, o) if n in buffered else read(n, o) for n, o in moving]
    return [line for own in lines for line in own]


def _stores(
    writes: Sequence[tuple[str, LoopOperand]], results: Sequence[Sequence[str]]
) -> list[str]:
    """Lines that store an element of each result."""
    found: list[str] = []
    for (name, o), values in zip(writes, results, strict=True):
        found += [*address(name, o), *store_as(o.dtype, values, f"%p_{name}", ACCESS)]
    return found


def _moves_pairs(
    program: ScalarProgram, reads: Sequence[LoopOperand], writes: Sequence[LoopOperand]
) -> bool:
    """Whether complex numbers are copied one by one."""
    if program.body or len(reads) != 1 or len(writes) != 1 or program.outputs != (0, 1):
        return False
    return reads[0].dtype == writes[0].dtype == "complex128" and reads[0].inner != "one"


def _pair(x: tuple[str, LoopOperand], y: tuple[str, LoopOperand]) -> list[str]:
    """Lines that copy both parts of a number at once."""
    return [
        *address(*x), "%pair = load <2 x double>, ptr %p_x0, align 8",
        *address(*y), "store <2 x double> %pair, ptr %p_y0, align 8",
    ]  # fmt: skip


def _row(
    named: Sequence[tuple[str, LoopOperand]], body: Sequence[str], length: int, alone: bool
) -> list[str]:
    """Lines of the loop over a row, in chunks where operands are packed."""
    buffered = _packed(named) or _spread(named)
    return _chunks(named, body, length) if buffered else _elements(body, length, alone)


def _elements(body: Sequence[str], length: int, alone: bool) -> list[str]:
    """Lines of the loop over a row's elements, or ``length`` of them; one by one if ``alone``."""
    low, high = ("0", str(length)) if length else ("%i0", "%i1")
    return [
        "br label %element",
        "element:",
        f"%i = phi i64 [{low}, %row], [%i_next, %element]",
        *body,
        "%i_next = add nuw nsw i64 %i, 1",
        f"%more = icmp slt i64 %i_next, {high}",
        f"br i1 %more, label %element, label %row_end, !llvm.loop {'!3' if alone else '!1'}",
    ]


def _step(o: LoopOperand) -> int:
    """The constant stride of an operand that is packed, in elements; 1 for others."""
    packed = is_packed(o.inner, numpy_dtype(o.dtype).itemsize)
    return int(o.inner.removeprefix(EVERY)) if packed else 1


def _packed(named: Sequence[tuple[str, LoopOperand]]) -> list[tuple[str, int, int]]:
    """Names, bytes of an element and steps of operands that are packed."""
    found = [(n, int(numpy_dtype(o.dtype).itemsize), _step(o)) for n, o in named]
    return [(n, size, step) for n, size, step in found if step > 1]


def _is_spread(o: LoopOperand) -> bool:
    return o.inner.startswith((SPREAD, ROWS))


def _spread(named: Sequence[tuple[str, LoopOperand]]) -> list[tuple[str, int, int, bool]]:
    """Names, bytes of an element, repetitions or length of rows of operands that are spread, and
    whether they are rows."""
    return [
        (n, int(numpy_dtype(o.dtype).itemsize), int(o.inner.split()[1]), o.inner.startswith(ROWS))
        for n, o in named
        if _is_spread(o)
    ]


def _pack_functions(named: Sequence[tuple[str, LoopOperand]]) -> list[str]:
    kinds = sorted({(size, step) for _, size, step in _packed(named)})
    lines = [line for kind in kinds for line in pack_function(*kind)]
    spread = sorted({(size, times, whole) for _, size, times, whole in _spread(named)})
    return lines + [line for kind in spread for line in spread_function(*kind)]


def _buffers(named: Sequence[tuple[str, LoopOperand]]) -> list[str]:
    counts = [(name, size, PACKED_ELEMENTS) for name, size, _ in _packed(named)]
    counts += [(name, size, PACKED_ELEMENTS + 2 * times) for name, size, times, _ in _spread(named)]
    return [
        f"%buffer_{name} = alloca [{count} x i{8 * size}], align 64" for name, size, count in counts
    ]


def _read_packed(name: str, o: LoopOperand) -> list[str]:
    """Lines that load an element of a buffer."""
    lines = read(name, LoopOperand(o.dtype, "dense"))
    return [line.replace(f"%base_{name},", f"%packed_{name},") for line in lines]


def _chunks(
    named: Sequence[tuple[str, LoopOperand]], body: Sequence[str], length: int
) -> list[str]:
    """Lines of the loop over a row in chunks, before each of which operands are packed."""
    low, high = ("0", str(length)) if length else ("%i0", "%i1")
    packs = []
    for name, size, step in _packed(named):
        packs += [
            f"%k_{name} = mul nsw i64 %chunk_low, {step}",
            f"%from_{name} = getelementptr i{8 * size}, ptr %base_{name}, i64 %k_{name}",
            pack_call(size, step, f"%from_{name}", f"%buffer_{name}", "%chunk_length"),
            f"%packed_{name} = getelementptr i{8 * size}, ptr %buffer_{name}, i64 %chunk_back",
        ]
    for name, size, times, whole in _spread(named):
        packs += [
            f"call void @{spread_name(size, times, whole)}(ptr %base_{name}, i64 %s_{name}, "
            f"ptr %buffer_{name}, i64 %chunk_low, i64 %chunk_high)",
            f"%chunk_first_{name} = sub nsw i64 {times}, %chunk_low",
            f"%packed_{name} = getelementptr i{8 * size}, ptr %buffer_{name}, "
            f"i64 %chunk_first_{name}",
        ]
    return [
        "br label %chunk",
        "chunk:",
        f"%chunk_low = phi i64 [{low}, %row], [%chunk_high, %chunk_end]",
        f"%chunk_far = add nsw i64 %chunk_low, {PACKED_ELEMENTS}",
        f"%chunk_whole = icmp slt i64 %chunk_far, {high}",
        f"%chunk_high = select i1 %chunk_whole, i64 %chunk_far, i64 {high}",
        "%chunk_length = sub nsw i64 %chunk_high, %chunk_low",
        "%chunk_back = sub nsw i64 0, %chunk_low",
        *packs,
        "br label %element",
        "element:",
        "%i = phi i64 [%chunk_low, %chunk], [%i_next, %element]",
        *body,
        "%i_next = add nuw nsw i64 %i, 1",
        "%more = icmp slt i64 %i_next, %chunk_high",
        "br i1 %more, label %element, label %chunk_end, !llvm.loop !1",
        "chunk_end:",
        f"%chunk_more = icmp slt i64 %chunk_high, {high}",
        "br i1 %chunk_more, label %chunk, label %row_end",
    ]


def _copies(
    program: ScalarProgram, reads: Sequence[LoopOperand], writes: Sequence[LoopOperand]
) -> bool:
    """Whether rows are copied as they are, or numbers of them that are packed."""
    if program.body or len(reads) != 1 or [o.inner for o in writes] != ["dense"]:
        return False
    (x,), (y,) = reads, writes
    return x.dtype == y.dtype and (x.inner == "dense" or _step(x) > 1)


def _copy(o: LoopOperand, length: int) -> list[str]:
    """Lines that copy a row at once: a loop over vectors would leave too many numbers.

    Of ``length`` elements LLVM makes a few loads and stores that overlap.
    """
    size, step = int(numpy_dtype(o.dtype).itemsize), _step(o)
    if step > 1:
        low, high = ("0", str(length)) if length else ("%i0", "%i1")
        return [
            f"%first = mul i64 {low}, {step * size}",
            f"%to_first = mul i64 {low}, {size}",
            f"%count = sub i64 {high}, {low}",
            "%from = getelementptr i8, ptr %base_x0, i64 %first",
            "%to = getelementptr i8, ptr %base_y0, i64 %to_first",
            pack_call(size, step, "%from", "%to", "%count"),
            "br label %row_end",
        ]
    if length:
        return [
            "call void @llvm.memmove.p0.p0.i64(ptr %base_y0, ptr %base_x0, "
            f"i64 {length * size}, i1 false)",
            "br label %row_end",
        ]
    return [
        f"%first = mul i64 %i0, {size}",
        "%count = sub i64 %i1, %i0",
        f"%bytes = mul i64 %count, {size}",
        "%from = getelementptr i8, ptr %base_x0, i64 %first",
        "%to = getelementptr i8, ptr %base_y0, i64 %first",
        "call void @copy_row(ptr %to, ptr %from, i64 %bytes)",
        "br label %row_end",
    ]


def _setup(named: Sequence[tuple[str, LoopOperand]], sizes: Sequence[int]) -> list[str]:
    """Lines that load sizes and each operand's data pointer and strides from the block."""
    lines, ndim = [], len(sizes)
    for d in range(1, ndim - 1):
        lines += [f"%n{d} = add i64 {sizes[d]}, 0"] if sizes[d] else word(f"%n{d}", HEAD + d - 1)
    at = HEAD + max(ndim - 2, 0)
    for name, o in named:
        lines += data_of(f"%a_{name}", at)
        if o.inner == "strided" or _is_spread(o):
            lines += word(f"%s_{name}", at + 1)
        for d in range(ndim - 1):
            lines += word(f"%s{d}_{name}", at + 2 + d)
        at += words_per_operand(ndim)
    return lines


def _first_indices(ndim: int) -> list[str]:
    """Lines for the outer indices of row ``%r0``."""
    lines, rest = [], "%r0"
    for d in reversed(range(1, ndim - 1)):
        lines += [f"%first{d} = urem i64 {rest}, %n{d}", f"%over{d} = udiv i64 {rest}, %n{d}"]
        rest = f"%over{d}"
    return [*lines, f"%first0 = add i64 {rest}, 0"] if ndim > 1 else lines


def _next_indices(ndim: int) -> list[str]:
    """Lines for the outer indices of the next row: it takes no division to count."""
    lines, one = [], "1"
    for d in reversed(range(1, ndim - 1)):
        lines += [
            f"%j{d}_more = add nuw nsw i64 %j{d}, {one}",
            f"%j{d}_end = icmp eq i64 %j{d}_more, %n{d}",
            f"%j{d}_next = select i1 %j{d}_end, i64 0, i64 %j{d}_more",
            f"%j{d}_one = zext i1 %j{d}_end to i64",
        ]
        one = f"%j{d}_one"
    return [*lines, f"%j0_next = add nuw nsw i64 %j0, {one}"] if ndim > 1 else lines


def _bases(named: Sequence[tuple[str, LoopOperand]], ndim: int) -> list[str]:
    """Lines for the address of the row of each operand."""
    lines = []
    for name, _ in named:
        base = f"%a_{name}"
        for d in range(ndim - 1):
            lines.append(f"%o{d}_{name} = mul i64 %j{d}, %s{d}_{name}")
            lines.append(f"%b{d}_{name} = getelementptr i8, ptr {base}, i64 %o{d}_{name}")
            base = f"%b{d}_{name}"
        lines.append(f"%base_{name} = getelementptr i8, ptr {base}, i64 0")
    return lines


def _read_once(name: str, o: LoopOperand) -> list[str]:
    """Lines before the inner loop that load an operand of stride 0."""
    return load_as(o.dtype, f"%{name}", f"%base_{name}") if name[0] == "x" else []
