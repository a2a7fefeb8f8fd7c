"""Softmax, log-softmax and their gradients over contiguous arrays.

Along the last axis they are the kernel of :mod:`symdnn.gpu.kernels.fused_rows`. Two kernels have
the elements of an inner axis in registers, of a thread or of several. Where an axis is too long for
a block, a reduction and an elementwise kernel follow each other, and the result may lie in any
order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd, prod
from typing import Any

from symdnn.gpu.codegen.device_source import CTYPES, specialised
from symdnn.gpu.codegen.launches import (
    CudaKernel,
    KernelLaunch,
    View,
    Views,
    alignment_of,
    blocks_for,
    prefers_cudnn,
    scratch,
)
from symdnn.gpu.codegen.reduce_form import Finish, Reducer
from symdnn.gpu.codegen.reduce_plan import scratch_bytes
from symdnn.gpu.kernels.elementwise import elementwise
from symdnn.gpu.kernels.fused_rows import keeps_rows, of_inputs, rows_launches
from symdnn.gpu.kernels.reduce import custom_reduction, reduction
from symdnn.graph.kernel import Call, Row
from symdnn.graph.type import numpy_dtype
from symdnn.ops.array.reduce import Sum
from symdnn.ops.core.dtype import work_dtype
from symdnn.ops.core.scalar import ScalarProgram
from symdnn.ops.lowered.fused_rows import FusedRows, softmax_grad_rows, softmax_rows
from symdnn.ops.lowered.norm_parts import SoftmaxParts
from symdnn.ops.nn.softmax import LogSoftmax, LogSoftmaxGrad, Softmax, SoftmaxGrad
from symdnn.ops.vendor.gpudnn import GpuDnnSoftmax, GpuDnnSoftmaxGrad

_FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
_NEUTRAL_KINDS = {Softmax: 0, LogSoftmax: 1, SoftmaxGrad: 2, LogSoftmaxGrad: 3}
#: 32-bit registers of a thread for data.
_MAX_DATA_REGISTERS = 96
_MAX_THREADS = 512
#: Bytes of neighbours along a plane that threads of a block read at a time, and the fewest.
_NEIGHBOUR_BYTES, _SECTOR_BYTES = 128, 32
#: What results are computed from beside the number that is subtracted first: a factor, or another
#: number to subtract.
_KEPT = {0: "1 / s.s0.total", 1: "s_log(s.s0.total)"}


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
    """The kernel for a task of an inner axis; None where there is none."""
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


def _op_of(task: _Task) -> FusedRows:
    """The op of rows whose programs compute the same."""
    make = (Softmax, LogSoftmax, SoftmaxGrad, LogSoftmaxGrad)[task.kind]
    return (softmax_rows if task.operands == 1 else softmax_grad_rows)(make(1), task.dtype)


def _sums_first(call: Call, x: View, dy: View, y: View) -> list[KernelLaunch]:
    """A reduction along the axis, then an elementwise kernel, for any strides."""
    task, shape = task_of(call), x.shape
    axis: int = call.op.axis  # type: ignore[attr-defined]
    op, given = _op_of(task), [x, dy][: task.operands]
    row = (*shape[:axis], 1, *shape[axis + 1 :])
    rows = [scratch(n, op.work, row) for n in _sum_places(task)[:-1]]
    if task.operands == 2:
        terms = of_inputs(op, op.stages[0].terms, 0)
        found = reduction(terms, [Sum((axis,), True, op.work, op.work)], given, rows, shape)
    else:
        found = _parts(op.before, axis, x, rows, _KEPT[task.kind])
    return found + elementwise(of_inputs(op, op.after, len(rows)), [*given, *rows], [y])


def _parts(
    program: ScalarProgram, axis: int, x: View, rows: Views, kept: str
) -> list[KernelLaunch]:
    """What is subtracted from the results of a program of x first, and what is ``kept`` besides."""
    work = rows[0].dtype
    finish = Finish(("p.y0[at] = s.s0.top;", f"p.y1[at] = {kept};"), (), 0, (work, work))
    reducers = (Reducer("LogSumExp", work, work),)
    return custom_reduction(program, reducers, (axis,), [x], rows, x.shape, finish)


def _sum_places(task: _Task) -> list[int]:
    """Where sums are in the workspace, behind partial results; then its size."""
    rows = task.lead * task.trail
    nbytes = -(-numpy_dtype(work_dtype(task.dtype)).itemsize * rows // 16) * 16
    first = -(-scratch_bytes(rows, task.length, 1) // 16) * 16
    return [first + i * nbytes for i in range(4 - task.operands)]


class SoftmaxKernel(CudaKernel):
    """One kernel over contiguous arrays."""

    name = "cuda.softmax"
    dtypes = _FLOATS
    contiguous_inputs = True

    def refuses(self, call: Call) -> str | None:
        """Ops for cuDNN by ``gpu.prefer``."""
        return super().refuses(call) or prefers_cudnn(call)

    def workspace_bytes(self, call: Call) -> int:
        """Sums along an axis, for any alignment of the operands."""
        task = task_of(call)
        narrow = [replace(task, alignment=n) for n in (2, 4, 8, 16) if n >= task.itemsize]
        one = task.trail > 1 and all(form_of(t) for t in narrow)
        return 0 if one else _sum_places(task)[-1]

    def launches(self, call: Call, inputs: Sequence[Any], outputs: Views) -> Sequence[KernelLaunch]:
        """One kernel, or two."""
        (y,) = outputs
        if y.size == 0:
            return []
        x, dy = (*inputs, inputs[0])[:2]
        if isinstance(call.op, GpuDnnSoftmaxGrad):
            x, dy = dy, x
        task = replace(task_of(call), alignment=alignment_of(x, dy, y))
        if task.trail == 1:
            return _rows_once(task, x, dy, y) or _sums_first(call, x, dy, y)
        form = form_of(task)
        if form is None:
            return _sums_first(call, x, dy, y)
        work = work_dtype(task.dtype)
        source = specialised(
            "scalar.cuh", "lanes.cuh", "softmax.cu", f"{form.name}.cu",
            T=CTYPES[task.dtype], W=CTYPES[work], KIND=task.kind, **dict(form.macros),
        )  # fmt: skip
        parameters = (x.pointer, dy.pointer, y.pointer, *form.parameters)
        grid = (blocks_for(form.work, 1, 1 << 20),)
        return [KernelLaunch(source, form.name, grid, (form.block,), parameters)]


class LongAxisKernel(SoftmaxKernel):
    """Two kernels, for an inner axis that is too long for a block: operands have any strides."""

    name = "cuda.softmax.long_axis"
    contiguous_inputs = False
    writes_any_layout = True

    def refuses(self, call: Call) -> str | None:
        """Shorter axes."""
        if reason := super().refuses(call):
            return reason
        task = task_of(call) if call.has_sizes else None
        long = task is not None and task.trail > 1 and form_of(task) is None
        return None if long else "one kernel holds the axis"

    def launches(self, call: Call, inputs: Sequence[Any], outputs: Views) -> Sequence[KernelLaunch]:
        """The reduction and the elementwise kernel."""
        (y,) = outputs
        x, dy = (*inputs, inputs[0])[:2]
        if isinstance(call.op, GpuDnnSoftmaxGrad):
            x, dy = dy, x
        return _sums_first(call, x, dy, y) if y.size else []


def _rows_once(task: _Task, x: View, dy: View, y: View) -> Sequence[KernelLaunch]:
    """The kernel that reads a row once; none where none does, or too few rows are long."""
    rows = _op_of(task)
    given = [v.reshaped((task.lead, task.length)) for v in (x, dy)[: task.operands]]
    results = [y.reshaped((task.lead, task.length))]
    return rows_launches(rows, given, results) if keeps_rows(rows, given, results) else ()


class PartsKernel(CudaKernel[SoftmaxParts]):
    """One pass over x, of any strides."""

    name = "cuda.softmax_parts"
    dtypes = _FLOATS

    def workspace_bytes(self, call: Call[SoftmaxParts]) -> int:
        """Partial results."""
        rows = prod(call.outputs[0].shape)
        return scratch_bytes(rows, prod(call.inputs[0].shape) // max(rows, 1), 1)

    def launches(
        self, call: Call[SoftmaxParts], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """The reduction."""
        before = softmax_rows(LogSoftmax(1), call.inputs[0].dtype).before
        return _parts(before, call.op.axis, inputs[0], outputs, _KEPT[1])


KERNELS: tuple[Row, ...] = (
    ((SoftmaxParts,), (PartsKernel(),)),
    (
        (Softmax, LogSoftmax, SoftmaxGrad, LogSoftmaxGrad, GpuDnnSoftmax, GpuDnnSoftmaxGrad),
        (LongAxisKernel(), SoftmaxKernel()),
    ),
)
