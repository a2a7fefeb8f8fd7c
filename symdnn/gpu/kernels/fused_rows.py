"""Rows in registers: :class:`FusedRows`, layer norm and its gradient, each by one kernel.

A row is held by a part of a warp, a warp, or a block, and read once. A row that does not fit into
registers is kept in shared memory; a longer one is read again for each sum, mostly from the cache.
Sums over the rows, for the gradients of scale and shift, are added by each block, and a second
kernel adds those of the blocks in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

from symdnn.gpu.codegen.cuda_source import print_problem
from symdnn.gpu.codegen.device_source import CTYPES
from symdnn.gpu.codegen.launches import (
    WORKSPACE,
    CudaKernel,
    KernelLaunch,
    Pointer,
    View,
    Views,
    scratch,
)
from symdnn.gpu.codegen.rows_source import RowOperand, Rows, rows_source
from symdnn.gpu.device.context import most_shared_bytes
from symdnn.gpu.kernels.elementwise import elementwise
from symdnn.gpu.kernels.reduce import reduction
from symdnn.gpu.kernels.reduce_plan import Lines, scratch_bytes
from symdnn.graph.kernel import Call, Row
from symdnn.graph.type import numpy_dtype
from symdnn.graph.values.strides import merged
from symdnn.ops.array.reduce import Max, Min, Reduce, Sum
from symdnn.ops.core.scalar import Builder, ScalarProgram
from symdnn.ops.lowered.fused_rows import FusedRows

__all__ = [
    "KERNELS", "column_bytes", "keeps_busy", "keeps_rows", "keeps_sums", "of_inputs",
    "rows_launches", "takes_rows",
]  # fmt: skip

_MAX_THREADS, _MIN_BLOCK = 1024, 128
#: 32-bit registers of a thread for the values of a row: where more threads can share the row, and
#: at most.
_WORDS, _MAX_WORDS = 32, 32
_MULTIPROCESSORS = 132
#: Likewise for values and sums over rows; these in blocks of so many threads, and so many threads.
#: There is room for more of these small blocks than there are: a collective's blocks may hold some
#: multiprocessors, and what waited for those would take as long again.
_COLUMN_WORDS, _COLUMN_BLOCK, _COLUMN_THREADS = 64, 128, _MULTIPROCESSORS * 512
#: Threads of a row whose sums over rows are in registers.
_MAX_COLUMN_THREADS = 512
#: As many registers as sums alone and what they read may take, for more blocks: three quarters of
#: those that fit.
_SUMS_ALONE_WORDS = 36
#: The most blocks of sums alone, and beside stages.
_MOST_COLUMN_BLOCKS = _MULTIPROCESSORS * 6, _COLUMN_THREADS // _COLUMN_BLOCK
#: Threads that fill a device: with fewer rows, more threads share one.
_FILLING_THREADS = _MULTIPROCESSORS * 512
#: Rows that take a multiprocessor each should keep at least so many of them busy, on average.
_MIN_BUSY = 0.8
#: Rows that are too long for registers are cut into chunks by other kernels if there are fewer.
_MIN_LONG_ROWS = 64
_MAX_VECTOR_ELEMENTS = 8
#: Vectors that a row has at least whose elements begin anywhere in memory.
_LEAST_LOOSE_VECTORS = 4
#: Vectors that a thread reads at a time into shared memory, and bytes there for results of warps.
_STAGED_VECTORS, _MEETING_BYTES = 4, 4 << 10
_source = cache(rows_source)


@dataclass(frozen=True)
class _Share:
    """Threads of a row, vectors of each, threads of a block, number of blocks.

    ``resident`` blocks should fit on a multiprocessor; ``columns`` says where sums over rows are;
    ``shared_bytes`` of a block keep its row.
    """

    lanes: int
    per: int
    block: int
    blocks: int
    resident: int = 1
    columns: int = 0
    shared_bytes: int = 0


def _lines(views: Views, axes: Sequence[int]) -> Lines:
    shape = views[0].shape
    others = [d for d in range(len(shape)) if d not in axes]
    found = [
        merged([shape[a] for a in some], [[v.steps[a] for a in some] for v in views])
        for some in (others, axes)
    ]
    return Lines(*found[0], *found[1])


def _width(views: Views, lines: Lines) -> int:
    """Elements of a vector: up to 16 bytes of the narrowest operand, as all operands allow."""
    moving = [i for i, s in enumerate(lines.reduced_steps) if s[-1] == 1]
    if not moving or any(s[-1] not in (0, 1) for s in lines.reduced_steps):
        return 1
    width = min(_MAX_VECTOR_ELEMENTS, 16 // min(views[i].itemsize for i in moving))
    while width > 1 and not (
        lines.reduced[-1] % width == 0
        and all(views[i].aligned_to(min(16, width * views[i].itemsize)) for i in moving)
        and all(
            step % width == 0
            for i in moving
            for step, n in zip(
                (*lines.reduced_steps[i][:-1], *lines.kept_steps[i]),
                (*lines.reduced[:-1], *lines.kept),
            )
            if n > 1
        )
    ):
        width //= 2
    return width


def _loose_width(op: FusedRows, views: Views, lines: Lines, width: int) -> int:
    """Elements of a vector of rows that begin anywhere in memory, alike in all operands but those
    that all rows share, where aligned ones have ``width``; 0: none.
    """
    if op.sums is not None or len(lines.reduced) != 1 or width * _least(views, lines) >= 8:
        return 0
    steps = list(zip(views, lines.kept_steps, lines.reduced_steps, strict=True))
    whole = [(v, k) for v, k, r in steps if r[-1] == 1 and any(k)]
    loose = 16 // max((v.itemsize for v, _ in whole), default=16)
    alike = len({tuple(s % loose for s in k) for _, k in whole}) == 1 and all(
        v.aligned_to(loose * v.itemsize) and min(k) >= 0 for v, k in whole
    )
    plain = all(r[-1] in (0, 1) for r in lines.reduced_steps)
    written = [k for _, k, r in steps[len(op.input_dtypes) :] if r[-1] == 1 and any(k)]
    plain &= len(written) == len(views) - len(op.input_dtypes)
    long = lines.reduced[0] >= _LEAST_LOOSE_VECTORS * loose
    return loose if loose > width and alike and plain and long else 0


def _least(views: Views, lines: Lines) -> int:
    """Bytes of the narrowest operand along the rows."""
    return min((v.itemsize for v, r in zip(views, lines.reduced_steps) if r[-1] == 1), default=8)


def _registers(dtypes: Sequence[str]) -> int:
    """32-bit registers for values of these dtypes."""
    return sum(max(1, numpy_dtype(d).itemsize // 4) for d in dtypes)


def _lanes(rows: int, vectors: int, per: int) -> int:
    """Threads of a row: enough for ``per`` vectors each, and to fill the device."""
    lanes = 1
    while lanes < 32 and lanes < vectors:
        lanes *= 2
    while lanes < _MAX_THREADS and (
        lanes * per < vectors
        or (rows * lanes < _FILLING_THREADS and lanes * 2 <= vectors and lanes < 256)
    ):
        lanes *= 2
    return lanes


def _share(op: FusedRows, rows: int, vectors: int, width: int) -> _Share:
    """The division of the work."""
    held = width * _registers(op.before.output_dtypes)
    sums = 0 if op.sums is None else width * _registers(op.sums.output_dtypes)
    words = _COLUMN_WORDS if op.stages else _SUMS_ALONE_WORDS
    lanes = _lanes(rows, vectors, max(1, words // (held + sums) if sums else _WORDS // held))
    if sums and lanes <= _MAX_COLUMN_THREADS:
        block, per = max(lanes, _COLUMN_BLOCK), -(-vectors // lanes)
        # Nothing waits for a row's sums, but loads are hidden by other threads alone.
        many = 2 if not op.stages and per * (held + sums) <= _SUMS_ALONE_WORDS else 1
        resident = 65536 * many // (128 * block)
        most = _MULTIPROCESSORS * (resident - resident // 4) if many > 1 else 0
        return _Share(lanes, per, block, _column_blocks(rows, lanes, block, most), resident)
    per = -(-vectors // lanes)
    per = per if per * held <= _MAX_WORDS else 0
    if not sums:
        block = max(lanes, _MIN_BLOCK)
        return _Share(lanes, per, block, max(1, min(-(-rows * lanes // block), 2**30)))
    shared = vectors * sums * 4 + _MEETING_BYTES <= most_shared_bytes()
    blocks = _column_blocks(rows, lanes, lanes)
    return _Share(lanes, per, lanes, blocks, columns=1 if shared else 2)


def _best_share(
    op: FusedRows, rows: int, elements: int, width: int, views: Views
) -> tuple[_Share, int]:
    """The division of the work, and elements of a vector: half of ``width`` if they fit better."""
    share = _share(op, rows, elements // width, width)
    half = width // 2
    if half * max(v.itemsize for v in views) < 8 or share.per == 0:
        return share, width
    other = _share(op, rows, elements // half, half)
    smaller = 0 < other.lanes * other.per * half < share.lanes * share.per * width
    return (other, half) if smaller else (share, width)


def _staged(share: _Share, vectors: int, vector_bytes: int, rows: int) -> _Share:
    """Rows that do not fit into registers in shared memory, if there is room: two if possible."""
    if share.per or share.columns:
        return share
    most = most_shared_bytes()
    for resident in (2, 1):
        lanes = _MAX_THREADS // resident
        nbytes = -(-vectors // lanes) * lanes * vector_bytes
        if 0 < nbytes + _MEETING_BYTES <= most // resident:
            return _Share(lanes, 0, lanes, min(rows, 2**30), resident, shared_bytes=nbytes)
    return share


def _vector_bytes(given: Sequence[RowOperand], width: int) -> int:
    """Bytes of a thread's vectors of all operands; 0 if they are not all contiguous."""
    moving = [a for a in given if a.kind != "fixed"]
    if any(a.kind != "dense" for a in moving):
        return 0
    sizes = [width * numpy_dtype(a.dtype).itemsize for a in moving]
    return 16 * sum(-(-n // 16) for n in sizes)


def _column_blocks(rows: int, lanes: int, block: int, most: int = 0) -> int:
    """Blocks that add sums over rows: all of them run at once."""
    most = most or max(_COLUMN_THREADS // block, _MULTIPROCESSORS)
    return max(1, min(-(-rows * lanes // block), most))


def _kind(step: int, steps: Sequence[int], written: bool) -> str:
    if not any(steps) and not written:
        return "fixed"
    return {0: "one", 1: "dense"}.get(step, "strided") if not (written and step == 0) else "strided"


@dataclass(frozen=True)
class _Division:
    """How a kernel goes over its operands, which are broadcast to one shape.

    ``vectors`` of ``width`` elements are read of a row, at most.
    """

    views: list[View]
    operands: list[RowOperand]
    lines: Lines
    share: _Share
    width: int
    vectors: int
    loose: bool


def _divided(op: FusedRows, inputs: Views, results: Views) -> _Division:
    shape = _whole(inputs)
    if 0 in shape:
        raise AssertionError("rows of no elements")
    views = [v.broadcast_to(shape) for v in (*inputs, *results)]
    lines = _lines(views, op.axes)
    rows, elements = prod(lines.kept), prod(lines.reduced)
    width = _width(views, lines)
    loose = _loose_width(op, views, lines, width)
    share, width = _best_share(op, rows, elements, width, views)
    vectors = elements // width
    programs = (op.after, *(stage.terms for stage in op.stages))
    if share.per and not any("exp" in p.names for p in programs):  # measured: faster by elements
        loose = 0
    if loose:
        vectors, width = -(-(elements + loose - 1) // loose), loose
        share = _share(op, rows, vectors, loose)
    operands = []
    for i, (v, k, r) in enumerate(zip(views, lines.kept_steps, lines.reduced_steps)):
        kind = _kind(r[-1], r, i >= len(inputs))
        shared = loose and kind == "dense" and not any(k)
        operands.append(RowOperand(v.dtype, "each" if shared else kind))
    share = _staged(share, vectors, _vector_bytes(operands[: op.early], width), rows)
    return _Division(views, operands, lines, share, width, vectors, bool(loose))


def keeps_rows(op: FusedRows, inputs: Views, results: Views) -> bool:
    """Whether a row is read once, into registers, or in vectors of 16 bytes."""
    found = _divided(op, inputs, results)
    widest = max(found.width * v.itemsize for v in found.views)
    return found.share.per > 0 or (widest >= 16 and found.share.shared_bytes > 0)


def rows_launches(op: FusedRows, inputs: Views, outputs: Views) -> list[KernelLaunch]:
    """The kernel of a :class:`FusedRows`, and the one that adds the sums of its blocks."""
    results, rest = outputs[: len(op.after.outputs)], outputs[len(op.after.outputs) :]
    kept, columns = rest[: len(op.kept)], rest[len(op.kept) :]
    found = _divided(op, inputs, results)
    views, operands, lines = found.views, found.operands, found.lines
    share, width = found.share, found.width
    shape, rows, elements = views[0].shape, prod(lines.kept), prod(lines.reduced)
    vectors = found.vectors
    given, written = tuple(operands[: len(inputs)]), tuple(operands[len(inputs) :])
    full = (
        share.per * share.lanes == vectors and rows * share.lanes % share.block == 0
        and share.per > 0 and not found.loose
    )  # fmt: skip
    reach = [sum(abs(s) * (n - 1) for s, n in zip(v.steps, shape)) for v in views]
    wide = max(*reach, prod(shape)) >= 2**31 - 2**22
    structure = Rows(
        given, written, len(lines.kept), len(lines.reduced), width, share.lanes, share.per,
        share.block, share.resident, full, wide, share.columns,
        _STAGED_VECTORS if share.shared_bytes else 0, found.loose,
    )  # fmt: skip
    after = _after_reduction(share.blocks, elements, len(columns))
    parameters: list[Any] = [v.pointer for v in (*views, *kept)]
    parameters += [Pointer(WORKSPACE, after), float(elements), rows, vectors, elements]
    parameters += lines.kept[1:]
    sizes = [*lines.reduced[:-1], lines.reduced[-1] // width]
    parameters += sizes[1:]
    for a, k, r in zip(operands, lines.kept_steps, lines.reduced_steps):
        parameters += k
        along = {"fixed": 0, "strided": len(r)}.get(a.kind, len(r) - 1)
        parameters += r[:along]
    source = _source(op, structure)
    shared = share.shared_bytes
    if share.columns == 1:
        shared = vectors * width * len(columns) * numpy_dtype(op.work).itemsize
    launch = KernelLaunch(
        source, "fused_rows", (share.blocks,), (share.block,), tuple(parameters), shared,
    )  # fmt: skip
    if not columns:
        return [launch]
    work = op.work
    nbytes = numpy_dtype(work).itemsize * share.blocks * elements
    partial = [
        scratch(after + i * nbytes, work, (share.blocks, elements)) for i in range(len(columns))
    ]
    builder = Builder([work] * len(columns))
    program = builder.program([builder.input(i) for i in range(len(columns))])
    ops = [Sum((0,), False, work, work)] * len(columns)
    totals = [v.reshaped((elements,)) for v in columns]
    return [launch, *reduction(program, ops, partial, totals, (share.blocks, elements))]


def _separately(op: FusedRows, inputs: Views, outputs: Views) -> list[KernelLaunch]:
    """A reduction for each stage, then an elementwise kernel: for a few rows of many elements, and
    for no elements, whose sums are zeros."""
    cut = len(op.after.outputs)
    results, kept = outputs[:cut], outputs[cut : cut + len(op.kept)]
    columns, shape = outputs[cut + len(op.kept) :], _whole(inputs)
    row = tuple(1 if i in op.axes else n for i, n in enumerate(shape))
    places = iter(_row_places(op, shape))
    rows: list[View] = []
    found: list[KernelLaunch] = []
    for stage in op.stages:
        count, first = len(stage.terms.outputs), len(rows)
        totals = [scratch(next(places), op.work, row) for _ in range(count)]
        made = [scratch(next(places), op.work, row) for _ in stage.rows.outputs]
        for i, v in zip(op.kept, kept):
            if first <= i < first + len(made):
                made[i - first] = v
        ops = [_reduction(stage.kind(t), op.axes, op.work) for t in range(count)]
        terms = of_inputs(op, stage.terms, first)
        found += reduction(terms, ops, [*inputs, *rows], totals, shape)
        elements = float(prod(shape[a] for a in op.axes))
        found += elementwise(stage.rows, [*rows, *totals, elements], made)
        rows += made
    if op.sums is not None:
        others = tuple(i for i in range(len(shape)) if i not in op.axes)
        sums = [_reduction("sum", others, op.work)] * len(columns)
        program = of_inputs(op, op.sums, len(rows))
        found += reduction(program, sums, [*inputs, *rows], columns, shape)
    if results:  # last: one may be in an input's memory
        found += elementwise(of_inputs(op, op.after, len(rows)), [*inputs, *rows], results)
    return found


def _reduction(kind: str, axes: tuple[int, ...], work: str) -> Reduce:
    if kind == "sum":
        return Sum(axes, True, work, work)
    return Max(axes, True) if kind == "max" else Min(axes, True)


def of_inputs(op: FusedRows, program: ScalarProgram, rows: int) -> ScalarProgram:
    """A program of values, row values and late inputs as one of all inputs, then row values."""
    dtypes = op.input_dtypes
    builder = Builder([*dtypes, *[op.work] * rows])
    given = [builder.input(i) for i in range(len(builder.inputs))]
    values = builder.inline(op.before, given[: op.early])
    late, known = given[op.early : len(dtypes)], given[len(dtypes) :]
    return builder.program(builder.inline(program, [*values, *known, *late]))


def _row_places(op: FusedRows, shape: Sequence[int]) -> list[int]:
    """Where sums and row values are in the workspace, behind partial results; then its size."""
    rows, elements = _sizes(op, shape)
    arrays = sum(len(s.terms.outputs) + len(s.rows.outputs) for s in op.stages)
    nbytes = -(-numpy_dtype(op.work).itemsize * rows // 16) * 16
    most = max((len(s.terms.outputs) for s in op.stages), default=0)
    columns = 0 if op.sums is None else scratch_bytes(elements, rows, len(op.sums.outputs))
    first = -(-max(scratch_bytes(rows, elements, most), columns) // 16) * 16
    return [first + i * nbytes for i in range(arrays + 1)]


def _whole(views: Views) -> tuple[int, ...]:
    """The common shape of operands that broadcast."""
    return tuple(next((n for n in dims if n != 1), 1) for dims in zip(*(v.shape for v in views)))


def _after_reduction(blocks: int, elements: int, columns: int) -> int:
    """Where the sums of the blocks begin: behind the partial results of their reduction."""
    return -(-scratch_bytes(elements, blocks, columns) // 16) * 16 if columns else 0


def column_bytes(op: FusedRows, shape: Sequence[int]) -> int:
    """The workspace for an operand of this shape, with any strides."""
    if op.sums is None:
        return 0
    (rows, elements), columns = _sizes(op, shape), len(op.sums.outputs)
    blocks = min(rows, _MOST_COLUMN_BLOCKS[bool(op.stages)])
    own = numpy_dtype(op.work).itemsize * blocks * elements * columns
    return _after_reduction(blocks, elements, columns) + own


def takes_rows(op: FusedRows, views: Views) -> bool:
    """Whether one kernel that reads rows is the fastest: a row is contiguous, and
    rows fit into registers, or they are many."""
    shape = _whole(views)
    rows, elements = _sizes(op, shape)
    whole = [v for v in views if v.size == prod(shape)]
    lines = _lines([v.broadcast_to(shape) for v in whole], op.axes)
    if any(s[-1] != 1 for s, n in zip(lines.reduced_steps, [elements] * len(whole)) if n > 1):
        return False
    share = _share(op, rows, elements, 1)
    return share.per > 0 or rows >= _MIN_LONG_ROWS


def keeps_busy(op: FusedRows, shape: Sequence[int]) -> bool:
    """Whether rows that take a multiprocessor each leave few without work in the last round."""
    rows, elements = _sizes(op, shape)
    whole = -(-rows // _MULTIPROCESSORS) * _MULTIPROCESSORS
    return _share(op, rows, elements, 1).lanes < _MAX_THREADS or rows >= _MIN_BUSY * whole


def keeps_sums(op: FusedRows, shape: Sequence[int]) -> bool:
    """Whether blocks have room for their sums over rows beside a row, and add none in memory."""
    return _share(op, *_sizes(op, shape), 1).columns < 2


def _sizes(op: FusedRows, shape: Sequence[int]) -> tuple[int, int]:
    rows = prod(n for i, n in enumerate(shape) if i not in op.axes)
    return rows, prod(shape[a] for a in op.axes)


class FusedRowsKernel(CudaKernel[FusedRows]):
    """One kernel, and one for sums over the rows; several for a few rows of many elements."""

    name = "cuda.rows_once"
    dtypes = frozenset(CTYPES)

    def refuses(self, call: Call[FusedRows]) -> str | None:
        """Programs that cannot be printed as CUDA C."""
        op = call.op
        programs = [op.before, op.after, *(p for s in op.stages for p in (s.terms, s.rows))]
        found = [print_problem(p) for p in (*programs, *([op.sums] if op.sums else []))]
        return super().refuses(call) or next((f for f in found if f), None)

    def workspace_bytes(self, call: Call[FusedRows]) -> int:
        """Sums of the blocks."""
        shape = _shape_of(call)
        rows, _ = _sizes(call.op, shape)
        apart = rows < _MIN_LONG_ROWS or 0 in shape or not call.op.after.outputs
        few = _row_places(call.op, shape)[-1] if apart else 0
        return max(column_bytes(call.op, shape), few)

    def launches(
        self, call: Call[FusedRows], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """The kernels; none for empty results."""
        op = call.op
        if all(v.size == 0 for v in outputs):
            return []
        apart = _are_apart(op, inputs, outputs[: len(op.after.outputs)])
        return (_separately if apart else rows_launches)(op, inputs, outputs)


def _are_apart(op: FusedRows, inputs: Views, results: Views) -> bool:
    """Whether several kernels are faster: where few rows are long, or where values of rows alone
    are wanted and a row would be read again.
    """
    shape = _whole(inputs)
    rows, elements = _sizes(op, shape)
    if 0 in shape or (rows < _MIN_LONG_ROWS and _share(op, rows, elements, 1).per == 0):
        return True
    if op.after.outputs:
        return False
    share = _divided(op, inputs, results).share
    return not (share.per or share.shared_bytes) or not keeps_busy(op, shape)


def _shape_of(call: Call) -> tuple[int, ...]:
    return tuple(
        next((n for n in dims if n != 1), 1) for dims in zip(*(t.shape for t in call.inputs))
    )


KERNELS: tuple[Row, ...] = (((FusedRows,), (FusedRowsKernel(),)),)
