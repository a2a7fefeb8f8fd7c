"""Gather and scatter by index arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from symdnn.config import config
from symdnn.gpu.codegen.device_source import CTYPES, specialised
from symdnn.gpu.codegen.launches import (
    ERROR_WORD,
    WORKSPACE,
    CudaKernel,
    GuardableKernel,
    KernelLaunch,
    Pointer,
    View,
    Views,
    blocks_beside,
    scratch,
)
from symdnn.gpu.device.array import c_strides
from symdnn.gpu.kernels.copy import bits_of, copies, fill
from symdnn.gpu.kernels.elementwise import elementwise, elementwise_selected
from symdnn.gpu.kernels.index_space import (
    How,
    Space,
    arrays_alone,
    indexed,
    positions,
    selected,
    space_of,
    width_of,
)
from symdnn.gpu.kernels.sort import sort_bytes, sorted_lines
from symdnn.graph.kernel import Call, Row
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.graph.values.strides import merged
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor, AdvancedSubtensor
from symdnn.ops.array.scatter_reduce import ScatterReduce
from symdnn.ops.core.dtype import is_narrow_float, wide_float
from symdnn.ops.core.scalar import Builder, ScalarProgram, identity_program

__all__ = [
    "KERNELS", "GatherKernel", "OrderedScatterKernel", "ReduceKernel", "ScatterKernel",
    "check_bounds",
]  # fmt: skip

_THREADS = 256
#: Ranks that a block sums, and rows that a thread reads before it adds them.
_SEGMENT, _ROWS_AHEAD = 32, 8
#: Bytes that memory moves while the short kernels of a sort start one after the other.
_SORT_BYTES = 100_000_000


def _sum_dtype(dtype: str) -> str:
    """The accumulator's dtype for increments of ``dtype``."""
    if TensorType(dtype).is_float:
        return wide_float(dtype)
    if dtype in ("int64", "uint64", "uint32"):
        return dtype
    return "uint32" if dtype.startswith("u") else "int32"


def _get_op(op: Any) -> AdvancedSubtensor:
    return op if isinstance(op, AdvancedSubtensor) else op.getter()


class GatherKernel(CudaKernel[AdvancedSubtensor]):
    """A copy of what index arrays select: of each element by its bits."""

    name = "cuda.gather"

    def launches(
        self, call: Call[AdvancedSubtensor], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """One kernel."""
        (y,), (x, *rest), op = outputs, inputs, call.op
        if y.size == 0:
            return []
        if x.size == 0:
            return check_bounds(space_of(op, x, rest))
        target = bits_of(y)
        given = selected(op, x, rest).bits(target)
        return elementwise_selected(identity_program(target.dtype), [given], [target])


class ScatterKernel(GuardableKernel[AdvancedIncSubtensor]):
    """Sets, where the last claim wins, and increments by atomic additions in any order."""

    name = "cuda.scatter"

    def refuses(self, call: Call[AdvancedIncSubtensor]) -> str | None:
        """Sums of floats that the ordered kernel runs: for the same bits each time, or as faster.

        16-bit floats are added in a float32 array of the size of the result.
        """
        op = call.op
        dtype: str = call.outputs[0].dtype
        if op.set_instead_of_inc:
            return None
        if dtype not in CTYPES:
            return f"it has no code to add {dtype}"
        if TensorType(dtype).is_float and op.same_bits:
            return "atomic additions of floats come in any order, not in that of the indices"
        if config.deterministic == "more" and TensorType(dtype).is_float:
            return "deterministic=more: atomic additions of floats come in any order"
        if is_narrow_float(dtype) and call.has_sizes and _sorts_faster(call):
            return "a sort of the rows takes less than a float32 sum for each element"
        return None

    def workspace_bytes(self, call: Call[AdvancedIncSubtensor]) -> int:
        """Owners of targets, or sums of dtypes that the device cannot add atomically."""
        out = call.outputs[0]
        if call.op.set_instead_of_inc:
            return 8 * prod(_targets(call)) if _rows(call) != 1 else 0
        work = _sum_dtype(out.dtype)
        return 0 if work == out.dtype else numpy_dtype(work).itemsize * prod(out.shape)

    def launches(
        self, call: Call[AdvancedIncSubtensor], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """A copy unless in place, then the writes."""
        op, guarded = call.op, self.guarded
        (x, y, *rest), (out,) = inputs, outputs
        how = How(not op.in_bounds, guarded)
        before = [] if out.alias_of == x.slot else copies(x, out, guarded)
        space = space_of(op.getter(), out, rest)
        if prod(space.shape) == 0 or out.size == 0:
            return before + (check_bounds(space) if how.checked else [])
        if op.set_instead_of_inc:
            return before + _set(space, y, how)
        return _increments(space, x, y, out, before, how)

    def writes_updates(self, call: Call[AdvancedIncSubtensor]) -> bool:
        """Whether the indices are known to be in range, so that nothing can fail."""
        return call.op.in_bounds


def check_bounds(space: Space) -> list[KernelLaunch]:
    """A check of the indices, for an empty array: any index is out of range."""
    return [] if prod(space.shape) == 0 else indexed(["settle"], space, None)


def _set(space: Space, y: View, how: How) -> list[KernelLaunch]:
    if prod(positions(space)) == 1:
        return indexed(["settle"], space, y, how=how)
    owners = scratch(0, "uint64", (prod(space.limits),))
    targets = replace(arrays_alone(space), jumps=c_strides(space.limits, 1))
    claims = indexed(["claim"], targets, None, how=How(how.checked))
    return [
        *fill(owners, 0), *claims, *indexed(["settle"], space, y, how=how, claimed=True)
    ]  # fmt: skip


def _increments(
    space: Space, x: View, y: View, out: View, before: list[KernelLaunch], how: How
) -> list[KernelLaunch]:
    work = _sum_dtype(out.dtype)
    if work == out.dtype:
        return before + indexed(["add"], space, y, space.x, how=how)
    sums = scratch(0, work, out.shape)
    begun = replace(sums, offset=_elements_before(space, out) * sums.itemsize)
    added = indexed(["add"], space, y, begun, how=how)
    total = elementwise(_plus_sum(out.dtype, work), [x, sums], [out], how.guarded)
    return fill(sums, 0) + added + total


def _elements_before(space: Space, out: View) -> int:
    """The offset in elements of the indexed part from the start of ``out``."""
    return (space.x.offset - out.offset) // out.itemsize


def _plus_sum(dtype: str, work: str) -> ScalarProgram:
    builder = Builder((dtype, work))
    x, total = builder.input(0), builder.input(1)
    return builder.program([(x.cast(work) + total).cast(dtype)])


class ReduceKernel(CudaKernel[ScatterReduce]):
    """Extremes and products by exchanges of the old bits for the new ones, in any order."""

    name = "cuda.scatter.reduce"

    def refuses(self, call: Call[ScatterReduce]) -> str | None:
        """Dtypes of one byte, which no exchange has; products of floats that want one order."""
        dtype: str = call.outputs[0].dtype
        if dtype not in CTYPES or numpy_dtype(dtype).itemsize == 1:
            return f"it has no code for {dtype}"
        floats = TensorType(dtype).is_float
        if config.deterministic == "more" and floats and call.op.reduce == "mul":
            return "deterministic=more: the factors come in any order"
        return None

    def launches(
        self, call: Call[ScatterReduce], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """A copy unless in place, then the exchanges."""
        (x, y, *rest), (out,) = inputs, outputs
        before = [] if out.alias_of == x.slot else copies(x, out)
        space = space_of(call.op.getter(), out, rest)
        if prod(space.shape) == 0 or out.size == 0:
            return before + check_bounds(space)
        return before + indexed(["combine"], space, y, space.x, reduce=call.op.reduce)


class OrderedScatterKernel(GuardableKernel[AdvancedIncSubtensor]):
    """Increments in an order that the index arrays decide: sorted by target, and summed by runs."""

    name = "cuda.scatter.ordered"
    dtypes = frozenset(CTYPES)

    def refuses(self, call: Call[AdvancedIncSubtensor]) -> str | None:
        """Sets, and arrays that are too large for 32-bit indices."""
        if call.op.set_instead_of_inc:
            return "it adds, it does not set"
        if reason := super().refuses(call):
            return reason
        shapes = [t.shape for t in (*call.inputs, *call.outputs)]
        if call.has_sizes and any(prod(s) >= 2**32 - 1 for s in shapes):
            return "more elements than 32 bits number"
        return None

    def workspace_bytes(self, call: Call[AdvancedIncSubtensor]) -> int:
        """The ranks of all rows, the workspace of their sort, and sums of parts of runs."""
        rows, segments = _rows(call), -(-_rows(call) // _SEGMENT)
        sums = 2 * segments * _columns(call)
        parts = sums * numpy_dtype(_sum_dtype(call.outputs[0].dtype)).itemsize
        return 2 * _rank_bytes(rows) + sort_bytes(rows, "uint64") + parts

    def launches(
        self, call: Call[AdvancedIncSubtensor], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """A copy unless in place, the ranks, their sort, the sums."""
        (x, y, *rest), (out,) = inputs, outputs
        before = [] if out.alias_of == x.slot else copies(x, out, self.guarded)
        space = space_of(_get_op(call.op), out, rest)
        if prod(space.shape) == 0 or out.size == 0:
            return before + check_bounds(space)
        return before + _ordered(space, y, _rows(call), self.guarded)

    def writes_updates(self, call: Call[AdvancedIncSubtensor]) -> bool:
        """Whether the indices are known to be in range, so that nothing can fail."""
        return call.op.in_bounds


def _sorts_faster(call: Call) -> bool:
    """Whether ordered sums move fewer bytes than float32 sums that are set to 0 and read again."""
    rows = _rows(call)
    passes = max(0, (rows - 1).bit_length() - 10)
    return 8 * prod(call.outputs[0].shape) > _SORT_BYTES + 24 * rows * passes


def _rows(call: Call) -> int:
    """The positions of the index arrays."""
    arrays = call.inputs[2 : 2 + len(_get_op(call.op).arrays)]
    return prod(np.broadcast_shapes(*(t.shape for t in arrays)))


def _targets(call: Call) -> list[int]:
    """The sizes that the index arrays index."""
    entries = [e for e in _get_op(call.op).index if e != "x"]
    return [n for n, e in zip(call.outputs[0].shape, entries, strict=True) if e == "a"]


def _columns(call: Call) -> int:
    """Elements at most that one position of the index arrays selects."""
    entries = [e for e in _get_op(call.op).index if e != "x"]
    return prod(n for n, e in zip(call.outputs[0].shape, entries, strict=True) if e != "a")


def _ordered(space: Space, y: View, rows: int, guarded: bool) -> list[KernelLaunch]:
    common = list(space.common)
    others = [d for d in range(len(space.shape)) if d not in common]
    alone = arrays_alone(space)
    padded = _rank_bytes(rows)
    ranks, ordered = scratch(0, "uint64", (rows,)), scratch(padded, "uint64", (rows,))
    found = indexed(["rank"], alone, None)
    found += sorted_lines(ranks, 0, ordered, None, at=2 * padded)
    values = y.broadcast_to(space.shape)
    row_size, (y_row,) = merged(alone.shape, [[values.steps[d] for d in common]])
    column_size, (x_column, y_column) = merged(
        [space.shape[d] for d in others],
        [[space.x_steps[d] for d in others], [values.steps[d] for d in others]],
    )
    apart = [*y_row, *space.jumps]
    width = width_of(column_size, [x_column, y_column], [], apart, [space.x, y])
    column_size = (*column_size[:-1], column_size[-1] // width)
    x_column, y_column = ((*(n // width for n in s[:-1]), s[-1]) for s in (x_column, y_column))
    source = specialised(
        "scalar.cuh", "lines.cuh", "ordered_add.cu", T=CTYPES[y.dtype],
        A=CTYPES[_sum_dtype(y.dtype)], R=len(row_size), C=len(column_size), V=width,
        SEGMENT=_SEGMENT, AHEAD=_ROWS_AHEAD, GUARDED=int(guarded),
    )  # fmt: skip
    columns = prod(column_size)
    parts = Pointer(WORKSPACE, 2 * padded + sort_bytes(rows, "uint64"))
    parameters = (
        space.x.pointer, y.pointer, ordered.pointer, parts, rows, columns,
        *row_size, *y_row, *column_size, *x_column, *y_column,
        *([Pointer(ERROR_WORD)] if guarded else []),
    )  # fmt: skip
    threads = min(_THREADS, -(-columns // 32) * 32)
    grid = (-(-rows // _SEGMENT), blocks_beside(columns, threads))
    names = ("segment_sums", "joined_runs") if rows > _SEGMENT else ("segment_sums",)
    return [*found, *(KernelLaunch(source, n, grid, (threads,), parameters) for n in names)]


def _rank_bytes(rows: int) -> int:
    """Bytes of the ranks of so many rows."""
    return 8 * (rows + rows % 2)


KERNELS: tuple[Row, ...] = (
    ((AdvancedSubtensor,), (GatherKernel(),)),
    ((AdvancedIncSubtensor,), (ScatterKernel(), OrderedScatterKernel())),
    ((ScatterReduce,), (ReduceKernel(),)),
)
