"""Products of sparse and dense matrices: a warp for each row, or some lanes for each element."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from symdnn.gpu.codegen.device_source import CTYPES, specialised
from symdnn.gpu.codegen.launches import (
    ERROR_WORD,
    NODE,
    CudaKernel,
    KernelLaunch,
    Pointer,
    Views,
    blocks_beside,
    blocks_for,
)
from symdnn.graph.kernel import Call, Row
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.ops.core.dtype import work_dtype
from symdnn.ops.sparse.products import SampledDot, SparseDot

_THREADS, _WARP = 256, 32


class SparseProductKernel(CudaKernel[SparseDot | SampledDot]):
    """``A x``, and ``u v'`` at the elements of A; sums are added in an order of their own."""

    name = "cuda.sparse"
    contiguous_inputs = True

    def refuses(self, call: Call[SparseDot | SampledDot]) -> str | None:
        """Complex numbers and the transposed product, which rewrites change."""
        if call.outputs[0].dtype not in CTYPES:
            return f"it has no code for {call.outputs[0].dtype}"
        if isinstance(call.op, SparseDot) and call.op.transposed:
            return "it takes products by rows"
        return None

    def launches(
        self, call: Call[SparseDot | SampledDot], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """One kernel."""
        (y,) = outputs
        if not y.size:
            return []
        if isinstance(call.op, SampledDot):
            (indices, indptr, u, v), data = inputs, None
            minor = v.shape[0]
        else:
            data, indices, indptr, u, minor = inputs
            v = None
        width = prod(u.shape[1:])
        lanes = min(_WARP, 1 << max(width - 1, 0).bit_length())
        source = specialised(
            "scalar.cuh", "sparse.cu", T=CTYPES[y.dtype], A=CTYPES[_added_in(y.dtype)],
            I=CTYPES[indices.dtype], LANES=lanes,
        )  # fmt: skip
        parameters = (
            0 if data is None else data.pointer, indices.pointer, indptr.pointer, u.pointer,
            0 if v is None else v.pointer, y.pointer, indptr.shape[0] - 1, indices.shape[0], minor,
            width, Pointer(NODE), Pointer(ERROR_WORD),
        )  # fmt: skip
        if isinstance(call.op, SampledDot):
            grid: tuple[int, ...] = (blocks_for(indices.shape[0] * lanes, _THREADS),)
            name = "sampled_dot"
        else:
            rows = indptr.shape[0] - 1
            grid = (blocks_for(rows * _WARP, _THREADS), blocks_beside(width, lanes))
            name = "sparse_dot"
        return [KernelLaunch(source, name, grid, (_THREADS,), parameters)]


def _added_in(dtype: str) -> str:
    """The dtype of sums. Integers of a warp have 32 bits or more, of which the last ones stay."""
    if TensorType(dtype).is_discrete and numpy_dtype(dtype).itemsize < 4:
        return "uint32"
    return work_dtype(dtype)


KERNELS: tuple[Row, ...] = (((SparseDot, SampledDot), (SparseProductKernel(),)),)
