"""Softmax, log-softmax and their gradients over contiguous arrays.

There are six kernels. Four have the elements in registers: for the last axis, for a short last
axis that is no multiple of a vector, and for an inner axis, of a thread or of several. The fifth
reads long rows twice, the second time from the cache, unless
:mod:`symdnn.gpu.kernels.fused_rows` keeps them in shared memory. The sixth does so where an inner
axis is too long for the registers of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd, prod
from typing import Any

from symdnn.gpu.codegen.device_source import CTYPES, specialised
from symdnn.gpu.codegen.launches import (
    WORKSPACE,
    CudaKernel,
    KernelLaunch,
    Pointer,
    View,
    Views,
    alignment_of,
    blocks_for,
    prefers_cudnn,
    scratch,
)
from symdnn.gpu.kernels.copy import fill
from symdnn.gpu.kernels.fused_rows import keeps_rows, rows_launches
from symdnn.graph.kernel import Call, Row
from symdnn.graph.type import numpy_dtype
from symdnn.ops.core.dtype import work_dtype
from symdnn.ops.lowered.fused_rows import softmax_grad_rows, softmax_rows
from symdnn.ops.nn.softmax import LogSoftmax, LogSoftmaxGrad, Softmax, SoftmaxGrad
from symdnn.ops.vendor.gpudnn import GpuDnnSoftmax, GpuDnnSoftmaxGrad

__all__ = ["SoftmaxKernel", "KERNELS"]

_FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
_NEUTRAL_KINDS = {Softmax: 0, LogSoftmax: 1, SoftmaxGrad: 2, LogSoftmaxGrad: 3}
#: 32-bit registers of a thread for data.
_MAX_DATA_REGISTERS = 96
#: Elements of a short last axis, and rows of a tile in shared memory.
_MAX_TILE_LENGTH, _TILE_ROWS = 40, 128
_MAX_THREADS = 512
#: Bytes of neighbours along a plane that threads of a block read at a time, and the fewest.
_NEIGHBOUR_BYTES, _SECTOR_BYTES = 128, 32
#: Bytes of a row, of all operands, from which on a block has all threads of a multiprocessor: rows
#: of several blocks at a time would not stay in the cache.
_LONG_ROW_BYTES = 128 << 10
#: An axis too long for a block: threads of one, bytes of neighbours that they read at a time, bytes
#: of a task for each thread; the bytes of a group of panels, and how many of them are summed before
#: results are made. The cache holds one more.
_COLUMNS_BLOCK, _COLUMNS_BYTES, _COLUMNS_TASK_BYTES = 256, 256, 128
_CACHED_BYTES, _GROUPS_AHEAD = 8 << 20, 2


@dataclass(frozen=True)
class _Task:
    """A softmax over the middle one of ``lead`` x ``length`` x ``trail`` elements."""

    kind: int
    lead: int
    length: int
    trail: int
    dtype: str
    alignment: int = 16

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return int(numpy_dtype(self.dtype).itemsize)

    @property
    def operands(self) -> int:
        """The number of input arrays."""
        return 1 + (self.kind > 1)

    @property
    def work_registers(self) -> int:
        """Registers of an element in the work dtype."""
        return 2 if self.dtype == "float64" else 1

    def width(self, run: int, most: int) -> int:
        """Elements of a vector of at most ``most`` bytes, which divide ``run``."""
        return gcd(run, max(1, min(most, self.alignment) // self.itemsize))


def task_of(call: Call) -> _Task:
    """The task of a call with known sizes."""
    op: Any = call.op
    x = call.inputs[0]
    if isinstance(op, GpuDnnSoftmax | GpuDnnSoftmaxGrad):
        kind = 2 * isinstance(op, GpuDnnSoftmaxGrad) + (op.algo == "log")
        if op.mode == "instance":
            return _Task(kind, x.shape[0], prod(x.shape[1:]), 1, x.dtype)
    else:
        kind = _NEUTRAL_KINDS[type(op)]
    before, after = x.shape[: op.axis], x.shape[op.axis + 1 :]
    return _Task(kind, prod(before), x.shape[op.axis], prod(after), x.dtype)


@dataclass(frozen=True)
class _Form:
    """A kernel, its macros, threads of a block, parameters, and the blocks of the whole work."""

    name: str
    macros: tuple[tuple[str, object], ...]
    block: int
    parameters: tuple[int, ...]
    work: int


def form_of(task: _Task) -> _Form | None:
    """The kernel for a task; None where there is none."""
    if task.trail > 1:
        return _inner_axis(task)
    width = task.width(task.length, 16)
    aligned = task.alignment == 16
    if aligned and width * task.itemsize < 16 and task.length <= _MAX_TILE_LENGTH:
        macros = (("N", task.length), ("LINES", _TILE_ROWS))
        return _Form("softmax_tile", macros, _TILE_ROWS, (task.lead,), -(-task.lead // _TILE_ROWS))
    return _last_axis(task, width)


def _inner_axis(task: _Task) -> _Form | None:
    for nbytes in (16, 8, 4, 2):
        width = task.width(task.trail, nbytes)
        held = -(-task.length * width * task.itemsize // 4) * task.operands
        if held <= _MAX_DATA_REGISTERS and task.length * task.work_registers <= _MAX_DATA_REGISTERS:
            vectors = task.trail // width
            total = task.lead * vectors
            count = "u32" if total < 2**32 else "u64"
            macros = (("N", task.length), ("V", width), ("COUNT", count))
            return _Form("softmax_pixels", macros, 128, (total, vectors), -(-total // 128))
    return _shared_axis(task)


def _shared_axis(task: _Task) -> _Form | None:
    """Several threads for the lines of neighbouring vectors."""
    width = task.width(task.trail, 16)
    vector_bytes = width * task.itemsize
    vectors, line = task.trail // width, max(1, _NEIGHBOUR_BYTES // vector_bytes)
    near = min(1 << (vectors - 1).bit_length(), line, 32)  # of a warp
    most = max(1, 64 // (width * task.operands * task.work_registers))
    deep = max(1, 32 // near)
    while -(-task.length // deep) > most:
        deep *= 2
        if near * deep > _MAX_THREADS and near * vector_bytes > _SECTOR_BYTES:
            near //= 2
    group = near * deep
    if group > _MAX_THREADS:
        return None
    block, groups = max(group, 128), task.lead * -(-vectors // near)
    macros = (
        ("N", task.length), ("V", width), ("GX", near), ("TY", deep),
        ("PER", -(-task.length // deep)), ("BLOCK", block),
    )  # fmt: skip
    return _Form("softmax_across", macros, block, (groups, vectors), -(-groups * group // block))


def _long_rows(task: _Task) -> _Form:
    """Two passes over rows that begin anywhere in a vector."""
    width = max(1, min(16, task.alignment) // task.itemsize)
    row_bytes = task.length * task.itemsize * task.operands
    block = 1024 if row_bytes > _LONG_ROW_BYTES else 512
    macros = (("V", width), ("LANES", block), ("BATCH", 4))
    return _Form("softmax_long", macros, block, (task.lead, task.length), task.lead)


def _last_axis(task: _Task, width: int) -> _Form:
    vectors = task.length // width
    most = max(1, 64 // (width * task.operands * task.work_registers))
    lanes = 1
    while lanes < 32 and lanes < vectors:
        lanes *= 2
    # Few vectors per thread, so that reads of some rows overlap with writes of others.
    while lanes * most < vectors or (lanes < 256 and lanes * 2 < vectors):
        lanes *= 2
    if lanes > _MAX_THREADS:
        return _long_rows(task)
    block = max(lanes, 128)
    per, (tiles, rest) = -(-vectors // lanes), divmod(task.lead, block // lanes)
    full = per * lanes == vectors and not rest
    macros = (
        ("V", width), ("LANES", lanes), ("PER", per), ("BLOCK", block), ("FULL", int(full)),
    )  # fmt: skip
    tiles += rest > 0
    return _Form("softmax_rows", macros, block, (task.lead, vectors), tiles)


@dataclass(frozen=True)
class _Columns:
    """How the kernel of columns runs a task: panels of columns, cut into chunks of rows."""

    task: _Task

    @property
    def width(self) -> int:
        """Elements of an access."""
        return self.task.width(self.task.trail, 16)

    @property
    def near(self) -> int:
        """Threads along a row."""
        most = max(1, _COLUMNS_BYTES // (self.width * self.task.itemsize))
        return min(most, 1 << (self.task.trail // self.width - 1).bit_length())

    @property
    def panels(self) -> int:
        """Panels of all matrices."""
        return self.task.lead * -(-self.task.trail // (self.width * self.near))

    @property
    def ahead(self) -> int:
        """Rows that a thread reads at a time."""
        return 4 if self.width * self.task.itemsize == 16 else 8

    @property
    def part(self) -> int:
        """Rows of a chunk."""
        lines = _COLUMNS_BLOCK // self.near
        return lines * max(self.ahead, _COLUMNS_TASK_BYTES // (self.width * self.task.itemsize))

    @property
    def chunks(self) -> int:
        """Chunks of a panel."""
        return -(-self.task.length // self.part)

    @property
    def places(self) -> tuple[int, ...]:
        """Bytes of the workspace before sums of chunks, sums of panels, counts, and in all."""
        state = (4 if self.task.dtype != "float64" else 8) * (1 + (self.task.kind < 2))
        columns = self.width * self.near * state
        totals = -(-self.panels * self.chunks * columns // 16) * 16
        counts = totals + -(-self.panels * columns // 16) * 16
        return 0, totals, counts, counts + -(-4 * (self.panels + 1) // 16) * 16

    def launches(self, x: View, dy: View, y: View) -> list[KernelLaunch]:
        """The counts are set to 0, then all is one kernel."""
        task, (parts, totals, counts, end) = self.task, self.places
        read = task.length * self.width * self.near * task.itemsize * (1 + (task.kind == 2))
        group = max(1, min(self.panels, _CACHED_BYTES // read))
        source = specialised(
            "scalar.cuh", "lanes.cuh", "reduce.cuh", "softmax_columns.cu", T=CTYPES[task.dtype],
            W=CTYPES[work_dtype(task.dtype)], KIND=task.kind, V=self.width, X=self.near,
            BLOCK=_COLUMNS_BLOCK, AHEAD=self.ahead, LEAD=_GROUPS_AHEAD,
        )  # fmt: skip
        parameters = (
            x.pointer, dy.pointer, y.pointer, *(Pointer(WORKSPACE, n) for n in (parts, totals)),
            Pointer(WORKSPACE, counts), Pointer(WORKSPACE, counts + 4 * self.panels), task.length,
            task.trail // self.width, self.panels // task.lead, self.panels, self.chunks,
            self.part, group,
        )  # fmt: skip
        grid = (2 * -(-self.panels // group) * group * self.chunks,)
        cleared = fill(scratch(counts, "uint64", ((end - counts) // 8,)), 0)
        block = (_COLUMNS_BLOCK,)
        return [*cleared, KernelLaunch(source, "softmax_columns", grid, block, parameters)]


class SoftmaxKernel(CudaKernel):
    """One kernel over contiguous arrays."""

    name = "cuda.softmax"
    dtypes = _FLOATS
    contiguous_inputs = True

    def refuses(self, call: Call) -> str | None:
        """Ops for cuDNN by ``gpu.prefer``."""
        return super().refuses(call) or prefers_cudnn(call)

    def workspace_bytes(self, call: Call) -> int:
        """Sums of columns, for any alignment of the operands."""
        task = task_of(call)
        narrow = [replace(task, alignment=n) for n in (2, 4, 8, 16) if n >= task.itemsize]
        return max((_Columns(t).places[-1] for t in narrow if form_of(t) is None), default=0)

    def launches(self, call: Call, inputs: Sequence[Any], outputs: Views) -> Sequence[KernelLaunch]:
        """One kernel, or two."""
        (y,) = outputs
        if y.size == 0:
            return []
        x, dy = (*inputs, inputs[0])[:2]
        if isinstance(call.op, GpuDnnSoftmaxGrad):
            x, dy = dy, x
        task = replace(task_of(call), alignment=alignment_of(x, dy, y))
        form = form_of(task)
        if form is None:
            return _Columns(task).launches(x, dy, y)
        if form.name == "softmax_long" and (found := _rows_once(task, x, dy, y)):
            return found
        work = work_dtype(task.dtype)
        source = specialised(
            "scalar.cuh", "lanes.cuh", "softmax.cu", f"{form.name}.cu",
            T=CTYPES[task.dtype], W=CTYPES[work], KIND=task.kind, **dict(form.macros),
        )  # fmt: skip
        parameters = (x.pointer, dy.pointer, y.pointer, *form.parameters)
        grid = (blocks_for(form.work, 1, 1 << 20),)
        return [KernelLaunch(source, form.name, grid, (form.block,), parameters)]


def _rows_once(task: _Task, x: View, dy: View, y: View) -> Sequence[KernelLaunch]:
    """A kernel that keeps a long row in shared memory; none where it does not fit."""
    make = (Softmax, LogSoftmax, SoftmaxGrad, LogSoftmaxGrad)[task.kind]
    rows = (softmax_rows if task.operands == 1 else softmax_grad_rows)(make(1), task.dtype)
    given = [v.reshaped((task.lead, task.length)) for v in (x, dy)[: task.operands]]
    results = [y.reshaped((task.lead, task.length))]
    return rows_launches(rows, given, results) if keeps_rows(rows, given, results) else ()


KERNELS: tuple[Row, ...] = (
    (
        (Softmax, LogSoftmax, SoftmaxGrad, LogSoftmaxGrad, GpuDnnSoftmax, GpuDnnSoftmaxGrad),
        (SoftmaxKernel(),),
    ),
)
