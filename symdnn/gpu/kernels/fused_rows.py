"""Rows in registers: :class:`FusedRows`, layer norm and its gradient, each by one kernel.

A row is held by a part of a warp, a warp, or a block, and read once. A row that does not fit into
registers is kept in shared memory; a longer one is read again for each sum, mostly from the cache.
Sums over the rows, for the gradients of scale and shift, are added by each block, and a second
kernel adds those of the blocks in order.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from symdnn.gpu.codegen.reduce_plan import scratch_bytes
from symdnn.gpu.codegen.row_plan import (
    MAX_THREADS,
    MOST_COLUMN_BLOCKS,
    MULTIPROCESSORS,
    divided,
    lines_of,
    share_of,
    whole_of,
)
from symdnn.gpu.codegen.rows_source import Rows, rows_source
from symdnn.gpu.kernels.elementwise import elementwise
from symdnn.gpu.kernels.reduce import reduction
from symdnn.graph.kernel import Call, Row
from symdnn.graph.type import numpy_dtype
from symdnn.ops.array.reduce import Max, Min, Reduce, Sum
from symdnn.ops.core.scalar import Builder, ScalarProgram
from symdnn.ops.lowered.fused_rows import FusedRows

#: Rows that take a multiprocessor each should keep at least so many of them busy, on average.
_MIN_BUSY = 0.8
#: Rows that are too long for registers are cut into chunks by other kernels if there are fewer.
_MIN_LONG_ROWS = 64
_source = cache(rows_source)


def keeps_rows(op: FusedRows, inputs: Views, results: Views) -> bool:
    """Whether a row is read once, or rows are many enough for a block each."""
    found = divided(op, inputs, results)
    once = found.share.per > 0 or found.share.shared_bytes > 0
    return once or prod(found.lines.kept) >= _MIN_LONG_ROWS


def rows_launches(op: FusedRows, inputs: Views, outputs: Views) -> list[KernelLaunch]:
    """The kernel of a :class:`FusedRows`, and the one that adds the sums of its blocks."""
    results, rest = outputs[: len(op.after.outputs)], outputs[len(op.after.outputs) :]
    kept, columns = rest[: len(op.kept)], rest[len(op.kept) :]
    found = divided(op, inputs, results)
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
        share.shared_bytes > 0 and not share.per, found.loose,
        share.tiled, share.ahead,
        share.cluster,
    )  # fmt: skip
    after = _after_reduction(share.blocks, elements, len(columns))
    parameters: list[Any] = [v.pointer for v in (*views, *kept)]
    parameters += [Pointer(WORKSPACE, after), float(elements), rows, vectors, elements]
    parameters += [share.early] * (share.ahead > 0)
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
    columns, shape = outputs[cut + len(op.kept) :], whole_of(inputs)
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


def _after_reduction(blocks: int, elements: int, columns: int) -> int:
    """Where the sums of the blocks begin: behind the partial results of their reduction."""
    return -(-scratch_bytes(elements, blocks, columns) // 16) * 16 if columns else 0


def column_bytes(op: FusedRows, shape: Sequence[int]) -> int:
    """The workspace for an operand of this shape, with any strides."""
    if op.sums is None:
        return 0
    (rows, elements), columns = _sizes(op, shape), len(op.sums.outputs)
    blocks = min(rows, MOST_COLUMN_BLOCKS[bool(op.stages)])
    own = numpy_dtype(op.work).itemsize * blocks * elements * columns
    return _after_reduction(blocks, elements, columns) + own


def takes_rows(op: FusedRows, views: Views) -> bool:
    """Whether one kernel that reads rows is the fastest: a row is contiguous, and
    rows fit into registers, or they are many."""
    shape = whole_of(views)
    rows, elements = _sizes(op, shape)
    whole = [v for v in views if v.size == prod(shape)]
    lines = lines_of([v.broadcast_to(shape) for v in whole], op.axes)
    if any(s[-1] != 1 for s, n in zip(lines.reduced_steps, [elements] * len(whole)) if n > 1):
        return False
    share = share_of(op, rows, elements, 1)
    return share.per > 0 or rows >= _MIN_LONG_ROWS


def keeps_busy(op: FusedRows, shape: Sequence[int]) -> bool:
    """Whether rows that take a multiprocessor each leave few without work in the last round."""
    rows, elements = _sizes(op, shape)
    whole = -(-rows // MULTIPROCESSORS) * MULTIPROCESSORS
    return share_of(op, rows, elements, 1).lanes < MAX_THREADS or rows >= _MIN_BUSY * whole


def keeps_sums(op: FusedRows, shape: Sequence[int]) -> bool:
    """Whether blocks have room for their sums over rows beside a row, and add none in memory."""
    return share_of(op, *_sizes(op, shape), 1).columns < 2


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
    shape = whole_of(inputs)
    rows, elements = _sizes(op, shape)
    if 0 in shape or (rows < _MIN_LONG_ROWS and share_of(op, rows, elements, 1).per == 0):
        return True
    if op.after.outputs:
        return False
    share = divided(op, inputs, results).share
    return not (share.per or share.shared_bytes) or not keeps_busy(op, shape)


def _shape_of(call: Call) -> tuple[int, ...]:
    return tuple(
        next((n for n in dims if n != 1), 1) for dims in zip(*(t.shape for t in call.inputs))
    )


KERNELS: tuple[Row, ...] = (((FusedRows,), (FusedRowsKernel(),)),)
