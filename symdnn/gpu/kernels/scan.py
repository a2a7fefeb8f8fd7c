"""Running sums, products and extremes, shifts and linear recurrences along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from symdnn.gpu.codegen.device_source import CTYPES, specialised
from symdnn.gpu.codegen.launches import (
    WORKSPACE,
    CudaKernel,
    KernelLaunch,
    Pointer,
    View,
    blocks_for,
)
from symdnn.gpu.kernels.copy import copies, fill
from symdnn.graph.kernel import Call, Row
from symdnn.graph.values.strides import merged
from symdnn.ops.array.cumulative import (
    CumMax,
    CumMin,
    CumProd,
    CumSum,
    LinearRecurrence,
    Shift,
)
from symdnn.ops.core.dtype import accumulator

__all__ = ["ScanKernel", "lines_of", "KERNELS"]

_THREADS = 256
_TILE_ELEMENTS = 1024  # of a block at a time
#: With this many lines there is one thread per line. This many blocks keep a large device busy.
_SERIAL_MIN_LINES, _TARGET_BLOCKS = 2048, 512
_KINDS = {CumSum: 0, CumProd: 1, LinearRecurrence: 2, CumMax: 3, CumMin: 4}


def lines_of(views: Sequence[View], axis: int) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Sizes of the dimensions other than ``axis`` and each view's strides of them, merged."""
    others = [d for d in range(len(views[0].shape)) if d != axis]
    sizes = [views[0].shape[d] for d in others]
    return merged(sizes, [[v.steps[d] for d in others] for v in views])


def count_type(views: Sequence[View]) -> str:
    """The C type of an element's index."""
    return "u32" if max(v.size for v in views) < 2**31 else "u64"


def _chunks(lines: int, length: int) -> int:
    """The number of chunks of a line."""
    return max(1, min(_TARGET_BLOCKS // max(lines, 1), length // (2 * _TILE_ELEMENTS)))


class ScanKernel(CudaKernel[CumSum | CumProd | LinearRecurrence | CumMax | CumMin]):
    """One thread per line if there are many, else one block, or several for a long line."""

    name = "cuda.scan"
    dtypes = frozenset(CTYPES)

    def workspace_bytes(
        self, call: Call[CumSum | CumProd | LinearRecurrence | CumMax | CumMin]
    ) -> int:
        """The totals of the chunks of each line."""
        shape = call.inputs[0].shape
        length = shape[call.op.axis]
        lines = prod(shape) // max(length, 1)
        return 16 * lines * _chunks(lines, length)

    def launches(
        self,
        call: Call[CumSum | CumProd | LinearRecurrence | CumMax | CumMin],
        inputs: Sequence[Any],
        outputs: Sequence[View],
    ) -> Sequence[KernelLaunch]:
        """One kernel, or three for lines of several chunks."""
        op = call.op
        if outputs[0].size == 0:
            return []
        operands = [*inputs, *outputs]
        if op.reverse:
            backwards = (*[slice(None)] * op.axis, slice(None, None, -1))
            operands = [v[backwards] for v in operands]
        *_, x, y = operands
        a = operands[0]
        length = y.shape[op.axis]
        sizes, (x_line, a_line, y_line) = lines_of((x, a, y), op.axis)
        lines = prod(sizes)
        chunks = _chunks(lines, length)
        source = specialised(
            "scalar.cuh", "lines.cuh", "scan.cu", X=CTYPES[x.dtype], Y=CTYPES[y.dtype],
            W=CTYPES[accumulator(x.dtype)[1]], KIND=_KINDS[type(op)], D=len(sizes),
            EXCLUSIVE=int(getattr(op, "exclusive", False)), COUNT=count_type(operands),
        )  # fmt: skip
        parameters = (
            x.pointer, a.pointer, y.pointer, Pointer(WORKSPACE), lines, length, chunks,
            x.steps[op.axis], a.steps[op.axis], y.steps[op.axis],
            *sizes, *x_line, *a_line, *y_line,
        )  # fmt: skip
        return [
            KernelLaunch(source, name, (grid,), (_THREADS,), parameters)
            for name, grid in _steps(lines, length, chunks)
        ]


def _steps(lines: int, length: int, chunks: int) -> list[tuple[str, int]]:
    """Names of the kernels, and the number of blocks of each."""
    each = blocks_for(lines, _THREADS)
    if lines >= _SERIAL_MIN_LINES or length <= 64:
        return [("serial", each)]
    results = ("chunk_results", lines * chunks)
    if chunks == 1:
        return [results]
    return [("chunk_totals", lines * chunks), ("chunk_starts", each), results]


class ShiftKernel(CudaKernel[Shift]):
    """A shift of each line by one element: a copy, and a 0 at the end."""

    name = "cuda.copy"

    def launches(
        self, call: Call[Shift], inputs: Sequence[Any], outputs: Sequence[View]
    ) -> Sequence[KernelLaunch]:
        """The copy of all elements but one, and the 0."""
        op = call.op
        lead = [slice(None)] * op.axis
        early, late = (*lead, slice(None, -1)), (*lead, slice(1, None))
        first, last = (*lead, slice(None, 1)), (*lead, slice(-1, None))
        source, target, empty = (late, early, last) if op.reverse else (early, late, first)
        return copies(inputs[0][source], outputs[0][target]) + fill(outputs[0][empty], 0)


KERNELS: tuple[Row, ...] = (
    (tuple(_KINDS), (ScanKernel(),)),
    ((Shift,), (ShiftKernel(),)),
)
