"""Writes to parts that slices select, and checks of index arrays before writes by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from symdnn.gpu.codegen.device_source import CTYPES, specialised
from symdnn.gpu.codegen.launches import (
    ERROR_WORD,
    NODE,
    CudaKernel,
    GuardableKernel,
    KernelLaunch,
    Pointer,
    View,
    Views,
    alignment_of,
    blocks_for,
)
from symdnn.gpu.kernels.copy import copies, view_by_op
from symdnn.gpu.kernels.elementwise import elementwise
from symdnn.graph.kernel import Call, Row
from symdnn.graph.type import TensorType
from symdnn.ops.array.advanced_index import InBounds
from symdnn.ops.array.index import IncSubtensor
from symdnn.ops.elementwise.arithmetic import Add
from symdnn.ops.elementwise.complex_meaning import part_dtypes
from symdnn.ops.elementwise.scalar_meaning import meaning

__all__ = ["InBoundsKernel", "KERNELS", "PartKernel"]

_THREADS = 256
_INDEX_DTYPES = frozenset(
    {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
)


class PartKernel(GuardableKernel[IncSubtensor]):
    """A set of, or an increment to, a part selected by ints and slices."""

    name = "cuda.part"

    def refuses(self, call: Call[IncSubtensor]) -> str | None:
        """Increments of dtypes that it has no code to add."""
        dtype = _part_dtype(call.outputs[0].dtype)
        if call.op.set_instead_of_inc or dtype in CTYPES:
            return None
        return f"it has no code to add {dtype}"

    def launches(
        self, call: Call[IncSubtensor], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """A copy unless in place, then the part."""
        op, guarded = call.op, self.guarded
        (x, y, *bounds), (out,) = inputs, outputs
        before = [] if out.alias_of == x.slot else copies(x, out, guarded)
        if out.size == 0:
            return before
        part = view_by_op(op.getter(), out, (), bounds)
        assert part is not None
        if op.set_instead_of_inc:
            return before + copies(y, part, guarded)
        dtype = _part_dtype(out.dtype)
        program = meaning(Add(), (dtype, dtype))
        assert program is not None
        part, y = _as_parts(part), _as_parts(y)
        return before + elementwise(program, [part, y], [part], guarded)

    def writes_updates(self, call: Call[IncSubtensor]) -> bool:
        """Whether the part is the same in all calls, so that it can't be out of range."""
        return not call.op.host_inputs


def _part_dtype(dtype: str) -> str:
    """The dtype of the parts of complex numbers, or of other numbers."""
    return part_dtypes(dtype)[0] if TensorType(dtype).is_complex else dtype


def _as_parts(x: View) -> View:
    """Complex numbers as real ones with one more axis, of their two parts."""
    dtype = _part_dtype(x.dtype)
    if dtype == x.dtype:
        return x
    return replace(x, dtype=dtype, shape=(*x.shape, 2), strides=(*x.strides, x.itemsize // 2))


class InBoundsKernel(CudaKernel[InBounds]):
    """Copies indices, and reports one that is out of range."""

    name = "cuda.in_bounds"
    dtypes = _INDEX_DTYPES

    def launches(
        self, call: Call[InBounds], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """One kernel; of a strided operand a copy, and a look at that."""
        (x, size), (y,) = inputs, outputs
        if y.size == 0:
            return []
        before = [] if x.contiguous else copies(x, y)
        x = y if before else x
        vector_bytes = min(16, alignment_of(x, y))
        vec = max(1, vector_bytes // x.itemsize)
        source = specialised(
            "in_bounds.cu", T=CTYPES[x.dtype], VEC=vec, WRITES=int(not before)
        )  # fmt: skip
        parameters = (
            x.pointer, y.pointer, y.size, size, Pointer(ERROR_WORD), Pointer(NODE),
        )  # fmt: skip
        grid = (blocks_for(-(-y.size // vec), _THREADS),)
        return [*before, KernelLaunch(source, "in_bounds", grid, (_THREADS,), parameters)]


KERNELS: tuple[Row, ...] = (
    ((IncSubtensor,), (PartKernel(),)),
    ((InBounds,), (InBoundsKernel(),)),
)
