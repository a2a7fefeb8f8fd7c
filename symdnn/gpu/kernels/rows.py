"""Softmax and log-softmax with their gradients, and softmax cross-entropy, in two passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from symdnn.gpu.codegen.device_source import CTYPES, specialised
from symdnn.gpu.codegen.launches import (
    ERROR_WORD,
    NODE,
    CudaKernel,
    KernelLaunch,
    Pointer,
    View,
    Views,
    blocks_for,
)
from symdnn.gpu.kernels.scan import count_type, lines_of
from symdnn.graph.kernel import Call, Row
from symdnn.ops.core.dtype import work_dtype
from symdnn.ops.nn.crossentropy import SoftmaxCrossentropy
from symdnn.ops.nn.softmax import LogSoftmax, LogSoftmaxGrad, Softmax, SoftmaxGrad

_THREADS = 256
#: Threads that keep a GPU busy.
_MANY_THREADS = 1 << 17
_KINDS = {Softmax: 0, LogSoftmax: 1, SoftmaxGrad: 2, LogSoftmaxGrad: 3, SoftmaxCrossentropy: 4}


def without_axis(v: View, axis: int) -> View:
    """A view with one value per row, with a class axis of size 1 and stride 0."""
    shape = (*v.shape[:axis], 1, *v.shape[axis:])
    strides = (*v.strides[:axis], 0, *v.strides[axis:])
    return replace(v, shape=shape, strides=strides)


class RowKernel(CudaKernel):
    """Several threads of a block per row, in two passes."""

    name = "cuda.rows"
    dtypes = frozenset(CTYPES)

    def launches(self, call: Call, inputs: Sequence[Any], outputs: Views) -> Sequence[KernelLaunch]:
        """One kernel."""
        op: Any = call.op
        kind = _KINDS[type(op)]
        x, y = inputs[0], outputs[-1]
        if kind == 4:
            if outputs[0].size and not y.size:
                raise ValueError(f"{op}: labels of no classes")
            return two_passes(kind, op.axis, x, x, y, inputs[1], outputs[0])
        return two_passes(kind, op.axis, x, inputs[1] if kind > 1 else x, y)


def two_passes(
    kind: int, axis: int, x: View, dy: View, y: View, labels: View | None = None,
    loss: View | None = None,
) -> list[KernelLaunch]:  # fmt: skip
    """The kernel of a kind (see rows.cu) along ``axis``, for operands with any strides."""
    if y.size == 0:
        return []
    per_row = x if labels is None else without_axis(labels, axis)
    sizes, steps = lines_of([x, dy, y, per_row], axis)
    length, rows = x.shape[axis], prod(sizes)
    by_rows = x.steps[axis] == 1 or rows < 32
    lanes = _lanes(length, rows, by_rows)
    block = (lanes, _THREADS // lanes) if by_rows else (_THREADS // lanes, lanes)
    source = specialised(
        "scalar.cuh", "lines.cuh", "reduce.cuh", "rows.cu", T=CTYPES[x.dtype],
        W=CTYPES[work_dtype(x.dtype)], KIND=kind,
        L="i64" if labels is None else CTYPES[labels.dtype], ROWS=int(by_rows), D=len(sizes),
        COUNT=count_type([x]),
    )  # fmt: skip
    parameters = (
        x.pointer, dy.pointer, y.pointer, (loss or y).pointer, per_row.pointer, rows, length,
        x.steps[axis], dy.steps[axis], y.steps[axis], Pointer(ERROR_WORD), Pointer(NODE), *sizes,
        *(n for s in steps for n in s),
    )  # fmt: skip
    grid = (blocks_for(rows, _THREADS // lanes),)
    return [KernelLaunch(source, "rows", grid, block, parameters)]


def _lanes(length: int, rows: int, by_rows: bool) -> int:
    """Threads per row, a power of two."""
    wanted = 1 << max(length - 1, 0).bit_length()
    if not by_rows:
        few = rows * 8 < _MANY_THREADS and length >= 256
        return 32 if few else 8 if length >= 64 else 1
    return max(1, min(wanted // 2 or 1, _THREADS))


KERNELS: tuple[Row, ...] = ((tuple(_KINDS), (RowKernel(),)),)
