"""Elementwise loops over strided arrays as LLVM IR: one over groups of rows along the last outer
dimension, in it one over rows, in it one over the innermost dimension.

The block of words has the number of threads, of rows, the length of a row, the sizes of the outer
dimensions but the first. Then come for each operand the address of NumPy's array object, its
innermost stride and its outer strides, in bytes. The text depends on the number of dimensions and
the kinds of strides, so one kernel serves all sizes. Operands with every second (third, fourth)
number of a row are packed into a buffer first, some hundred at a time. So are those of which each
number is repeated a few times, and short rows with gaps between them: rows that short would have
no whole vectors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from symdnn.cpu.compiler import jit
from symdnn.cpu.compiler.jit import FAR_CONSTANTS
from symdnn.cpu.ir.builder import PARALLEL, FunctionBuilder
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
    in_wide_vectors,
    interleaved,
    read,
    word,
)
from symdnn.cpu.ir.math_ir import definitions, on_lanes
from symdnn.cpu.ir.pack_ir import (
    PACKED_ELEMENTS,
    is_packed,
    pack_call,
    pack_function,
    spread_function,
    spread_name,
)
from symdnn.cpu.ir.scalar_ir import COMPLEX, Printer, dealt, load_as, part_names, store_as
from symdnn.graph.type import numpy_dtype
from symdnn.ops.core.scalar import ScalarProgram

#: Words at the head of the block: threads, rows, length of a row.
HEAD = 3
#: The beginning of the kinds of operands of which each number is repeated; so many times follow.
SPREAD = "spread "
#: That of the kinds of operands of short rows with gaps between them; their length follows.
ROWS = "rows "
#: Those of the kinds of operands of which an iteration has a whole short row. Strides of rows and
#: of their elements follow, in elements; of a row that is the same for all the second one.
PIXELS, SAME = "pixels ", "same "
#: The name of the metadata of a loop over a row of constant length.
_SHORT = "!20"
#: Elements of the shortest vector, and of the shortest row that is a vector with a mask.
_LEAST_VECTOR, _LEAST_WITH_MASK = 4, 5
#: Float32 lanes of processors that have masks.
_LANES_WITH_MASKS = 16
#: A program of at least this cost for each operand has masks in all rows. They take as long as some
#: five additions for each operand. Code for single elements takes a third of the compiler's time.
_COST_OF_MASK = 50
#: What vectors with masks would have one by one: divisions of integers, functions not inlined.
_NOT_MASKED = re.compile(r"\b[su](div|rem) |\bnoinline\b|^declare [^@]*@(?!llvm\.)")
#: Metadata of a loop over elements that is not vectorised.
_ALONE = ["!3 = distinct !{!3, !4}", '!4 = !{!"llvm.loop.vectorize.enable", i1 false}']


def words_per_operand(ndim: int) -> int:
    """Words of an operand in the block: the array object, inner stride, outer strides."""
    return 1 + ndim


def elementwise_ir(
    program: ScalarProgram, sizes: Sequence[int], reads: Sequence[LoopOperand],
    writes: Sequence[LoopOperand], pixels: int = 1,
) -> str:  # fmt: skip
    """The module of ``kernel``, which applies ``program`` to every element.

    ``sizes`` that are not 0 are constants of the text. Rows of such a size are not divided between
    threads. With ``pixels`` each element is a short row of so many (:data:`PIXELS`).
    """
    if pixels > 1:
        return _pixels_ir(program, sizes, reads, writes, pixels)
    ndim = len(sizes)
    printer, unrolled = Printer(program, "p_"), program.cost >= MIN_COST_TO_INTERLEAVE
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
    rows = _Rows(named, sizes)
    if _copies(program, reads, writes):
        rows.source(once, lambda: rows.copy(reads[0]))
    else:
        rows.source(once, lambda: rows.line(body, alone))
    called = [*sorted(printer.declared), *definitions(printer.helpers)]
    masks = _takes_masks(named, [*called, *printer.lines])
    own = on_lanes(printer.helpers)
    vectors = 1 if own else 4 if ndim == 1 else 2
    long = masks and program.cost >= _COST_OF_MASK * len(named)
    metadata = interleaved(vectors, long) if unrolled else [*METADATA, *_ALONE]
    lines = [
        *called,
        *COPY_ROW,
        *_pack_functions(named),
        *THREADS,
        *rows.lines,
        *(in_wide_vectors(metadata, own) if own else metadata),
        *_in_vectors(sizes[-1], [o.bits // 8 for _, o in named], masks),
    ]
    far = unrolled and jit.vector_width() < 16  # 16 registers
    return FAR_CONSTANTS * far + "\n".join(lines) + "\n"


def _pixels_ir(
    program: ScalarProgram, sizes: Sequence[int], reads: Sequence[LoopOperand],
    writes: Sequence[LoopOperand], count: int,
) -> str:  # fmt: skip
    """The module for short rows: LLVM makes shuffles of the elements that an iteration has."""
    named = [(f"x{i}", o) for i, o in enumerate(reads)]
    results = [(f"y{i}", o) for i, o in enumerate(writes)]
    once = [line for name, o in named if o.inner == "one" for line in _read_once(name, o)]
    body = [line for name, o in named if o.inner == "dense" for line in read(name, o)]
    printers, stores = [Printer(program, f"p{j}_") for j in range(count)], list[str]()
    for j, printer in enumerate(printers):
        for name, o in named:
            if o.inner.startswith((PIXELS, SAME)):
                lines, more = (once, "") if o.inner.startswith(SAME) else (body, ACCESS)
                loads = load_as(o.dtype, f"%{name}_{j}", f"%p_{name}_{j}", more)
                lines += [*_pixel(name, o, j), *loads]
        moving = [n if o.inner in ("one", "dense") else f"{n}_{j}" for n, o in named]
        values = printer.emit([f"%{name}" for name in moving])
        for (name, o), value in zip(results, values, strict=True):
            stores += [*_pixel(name, o, j), *store_as(o.dtype, value, f"%p_{name}_{j}", ACCESS)]
    # Where a result takes an operand's memory, LLVM moves no load of a row past a store.
    body += [*(line for p in printers for line in p.lines), *stores]
    rows = _Rows([*named, *results], sizes)
    rows.source(once, lambda: rows.line(body, False))
    helpers = {h for p in printers for h in p.helpers}
    own = on_lanes(helpers)
    lines = [
        *sorted({d for p in printers for d in p.declared}),
        *definitions(helpers),
        *THREADS,
        *rows.lines,
        *(in_wide_vectors(METADATA, own) if own else METADATA),
    ]
    return "\n".join(lines) + "\n"


def _pixel(name: str, o: LoopOperand, j: int) -> list[str]:
    """Lines for the address of an element of a short row."""
    *row, step = map(int, o.inner.split()[1:])
    at, k = f"%k_{name}_{j}", j * step
    first = [f"{at}_0 = mul nsw i64 %i, {row[0]}", f"{at} = add nsw i64 {at}_0, {k}"] if row else []
    index = at if row else str(k)
    return [*first, f"%p_{name}_{j} = getelementptr i{o.bits}, ptr %base_{name}, i64 {index}"]


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


def _in_vectors(length: int, itemsizes: Sequence[int], masks: bool) -> list[str]:
    """The metadata of a loop over a row of ``length`` elements, in vectors that may have masks.

    LLVM would unroll it first, and then find no vectors. Rows that are no few whole vectors have a
    mask for the last one; where there are none, they are rows of shorter vectors, or unrolled.
    """
    if not length:
        return []
    most = jit.vector_width() * 4 // max(itemsizes)
    width = min(length & -length, most)
    masked = masks and length >= _LEAST_WITH_MASK and length > 2 * width
    if masked:
        width = min(most, 1 << (length - 1).bit_length())
    elif width < _LEAST_VECTOR:
        return [f"{_SHORT} = distinct !{{{_SHORT}, !2}}"]
    count = -(-length // width)
    return [
        f"{_SHORT} = distinct !{{{_SHORT}, !2, !21, !22, !23, !24}}",
        '!21 = !{!"llvm.loop.unroll.disable"}',
        f'!22 = !{{!"llvm.loop.vectorize.width", i32 {width}}}',
        f'!23 = !{{!"llvm.loop.interleave.count", i32 {1 if masked else min(count & -count, 2)}}}',
        f'!24 = !{{!"llvm.loop.vectorize.predicate.enable", i1 {str(masked).lower()}}}',
    ]


def _takes_masks(named: Sequence[tuple[str, LoopOperand]], lines: Sequence[str]) -> bool:
    """Whether vectors of these operands and instructions may have lanes that nobody reads: not of
    pairs or with gaps, not in divisions of integers, which may trap, nor in functions that are not
    inlined."""
    plain = all(o.inner in ("dense", "one") and o.dtype not in COMPLEX for _, o in named)
    if not plain or jit.vector_width() < _LANES_WITH_MASKS:
        return False
    return not any(_NOT_MASKED.search(line) for line in lines)


class _Rows(FunctionBuilder):
    """Builds the function ``rows``: a loop over groups of rows, which differ in the last outer
    index alone, and in it one over rows: an operand's next row is a step further."""

    def __init__(self, named: Sequence[tuple[str, LoopOperand]], sizes: Sequence[int]) -> None:
        super().__init__()
        self._named, self._sizes = named, sizes
        self._low, self._high = ("0", str(sizes[-1])) if sizes[-1] else ("%i0", "%i1")

    def source(self, once: Sequence[str], line: Callable[[], None]) -> None:
        """Append the function; ``line`` appends what is done with a row, after ``once``."""
        parameters = "ptr %w, i64 %r0, i64 %r1, i64 %i0, i64 %i1"
        with self.function("rows", parameters, "noinline #0"):
            self.put(*_buffers(self._named))
            counts = self._setup()
            if len(counts) < 2:
                self._group("0", "%r0", "%r1", [], once, line)
                return
            *outer, n = counts
            first = self.new(f"udiv i64 %r0, {n}")
            last = self.new(f"udiv i64 {self.minus('%r1', 1)}, {n}")

            def group(g: str, at: list[str]) -> list[str]:
                begin = self.times(g, n)
                low, high = self.most(begin, "%r0"), self.least(self.plus(begin, n), "%r1")
                self._group(begin, low, high, at, once, line)
                return self._following(at, outer)

            indices = self.unravelled(first, outer)
            self.counted("group", first, self.plus(last, 1), group, indices, "i64")

    def _group(
        self, begin: str, low: str, high: str, at: Sequence[str], once: Sequence[str],
        line: Callable[[], None],
    ) -> None:  # fmt: skip
        """Append the loop over rows ``low`` to below ``high``, of a group that has ``begin``."""
        names, last = [name for name, _ in self._named], len(self._sizes) - 2
        indices = [*at, self.minus(low, begin)][: last + 1]
        starts = [
            self.bytes_at(f"%a_{name}", *((j, f"%s{d}_{name}") for d, j in enumerate(indices)))
            for name in names
        ]

        def row(_: str, bases: list[str]) -> list[str]:
            for name, base in zip(names, bases, strict=True):
                self.put(f"%base_{name} = getelementptr i8, ptr {base}, i64 0")
            self.put(*once)
            line()
            steps = ([f"%s{last}_{name}"] if indices else [] for name in names)
            return [self.bytes_at(b, *step) for b, step in zip(bases, steps, strict=True)]

        self.counted("row", low, high, row, starts, "ptr")

    def _setup(self) -> list[str]:
        """Load sizes and each operand's data pointer and strides; returns the outer sizes."""
        counts, ndim = list[str](), len(self._sizes)
        for d in range(ndim - 1):
            counts.append(str(self._sizes[d] or f"%n{d}"))
            if d and not self._sizes[d]:
                self.put(*word(f"%n{d}", HEAD + d - 1))
        at = HEAD + max(ndim - 2, 0)
        for name, o in self._named:
            self.put(*data_of(f"%a_{name}", at))
            if o.inner == "strided" or _is_spread(o):
                self.put(*word(f"%s_{name}", at + 1))
            for d in range(ndim - 1):
                self.put(*word(f"%s{d}_{name}", at + 2 + d))
            at += words_per_operand(ndim)
        return counts

    def _following(self, at: Sequence[str], counts: Sequence[str]) -> list[str]:
        """The outer indices of the next row: it takes no division to count."""
        found, one = list[str](), "1"
        for j, n in zip(at[:0:-1], counts[:0:-1], strict=True):
            more = self.new(f"add nuw nsw i64 {j}, {one}")
            end = self.new(f"icmp eq i64 {more}, {n}")
            found.append(self.new(f"select i1 {end}, i64 0, i64 {more}"))
            one = self.new(f"zext i1 {end} to i64")
        if at:
            found.append(self.new(f"add nuw nsw i64 {at[0]}, {one}"))
        return found[::-1]

    def line(self, body: Sequence[str], alone: bool) -> None:
        """Append a row, in chunks where operands are packed; one by one if ``alone``."""
        if not _packed(self._named) and not _spread(self._named):
            loop = "!3" if alone else _SHORT if self._sizes[-1] else PARALLEL
            self._elements(self._low, self._high, body, loop)
            return

        def chunk(low: str) -> str:
            high = self.least(self.affine(low, 1, PACKED_ELEMENTS), self._high)
            length = self.new(f"sub nsw i64 {high}, {low}")
            self._pack(low, high, length)
            self._elements(low, high, body, PARALLEL)
            return length

        self.upto("chunk", self._low, self._high, chunk)

    def _elements(self, low: str, high: str, body: Sequence[str], loop: str) -> None:
        with self.each("element", low, high, parallel=loop) as i:
            self.put(f"%i = add nuw nsw i64 {i}, 0", *body)

    def _pack(self, low: str, high: str, length: str) -> None:
        """Pack the elements of a chunk."""
        for name, size, step in _packed(self._named):
            k = self.affine(low, step)
            source = self.new(f"getelementptr i{8 * size}, ptr %base_{name}, i64 {k}")
            self.put(pack_call(size, step, source, f"%buffer_{name}", length))
            self._packed_at(name, size, low)
        for name, size, times, whole in _spread(self._named):
            given = f"ptr %base_{name}", f"i64 %s_{name}", f"ptr %buffer_{name}"
            self.call(spread_name(size, times, whole), *given, f"i64 {low}", f"i64 {high}")
            self._packed_at(name, size, low, times)

    def _packed_at(self, name: str, size: int, low: str, before: int = 0) -> None:
        """Note where the buffer of an operand would have element 0."""
        first = self.new(f"sub nsw i64 {before}, {low}")
        self.put(f"%packed_{name} = getelementptr i{8 * size}, ptr %buffer_{name}, i64 {first}")

    def copy(self, o: LoopOperand) -> None:
        """Append a copy of a row at once: a loop over vectors would leave too many numbers.

        Of a known length LLVM makes a few loads and stores that overlap.
        """
        size, step, length = int(numpy_dtype(o.dtype).itemsize), _step(o), self._sizes[-1]
        source = self.bytes_at("%base_x0", (self._low, step * size))
        target = self.bytes_at("%base_y0", (self._low, size))
        count = self.minus(self._high, self._low)
        if step > 1:
            self.put(pack_call(size, step, source, target, count))
        elif length:
            nbytes = f"i64 {length * size}"
            self.call(
                "llvm.memmove.p0.p0.i64", f"ptr {target}", f"ptr {source}", nbytes, "i1 false"
            )
        else:
            nbytes = f"i64 {self.times(count, size)}"
            self.call("copy_row", f"ptr {target}", f"ptr {source}", nbytes)


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


def _copies(
    program: ScalarProgram, reads: Sequence[LoopOperand], writes: Sequence[LoopOperand]
) -> bool:
    """Whether rows are copied as they are, or numbers of them that are packed."""
    if program.body or len(reads) != 1 or [o.inner for o in writes] != ["dense"]:
        return False
    (x,), (y,) = reads, writes
    return x.dtype == y.dtype and (x.inner == "dense" or _step(x) > 1)


def _read_once(name: str, o: LoopOperand) -> list[str]:
    """Lines before the inner loop that load an operand of stride 0."""
    return load_as(o.dtype, f"%{name}", f"%base_{name}") if name[0] == "x" else []
