"""The exponential of matrices by products of cuBLAS: Pade approximation with scaling and squaring.

It is :mod:`symdnn.ops.matrix.expm_of_stacks`, always with the highest degree of the dtype. How
often the largest matrix is squared is read on the host, so no CUDA graph records it. Small matrices
are one kernel of ours instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from symdnn.gpu.codegen.device_source import CTYPES, specialised
from symdnn.gpu.codegen.launches import CudaKernel, KernelLaunch, View, blocks_for
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.solver.factors import lu_calls, one, solve_calls, with_host
from symdnn.gpu.solver.library import OPERATION
from symdnn.gpu.solver.work import Layout, Matrices, SolverKernel, Work, enqueue
from symdnn.graph.kernel import Call, Row
from symdnn.graph.type import numpy_dtype
from symdnn.ops.matrix.base import real_dtype
from symdnn.ops.matrix.expm import Expm
from symdnn.ops.matrix.expm_of_stacks import BOUNDS, coefficients

_BLOCK = 256
_FACTORS = 8
#: Matrices in the shared memory of a block, and bytes for them.
_MATRICES_OF_BLOCK, _SHARED_BYTES = 5, 42 << 10
_POINTERS = ("x", "second", "third", "y", "z", "squarings", "info")


class ExpmKernel(SolverKernel[Expm]):
    """Products by ``gemmStridedBatched``, and LU factors of the denominator."""

    recordable = False

    def plan(self, call: Call[Expm], layout: Layout) -> Callable[..., None]:
        """Of the transpose, as the libraries see the matrix, whose exponential is the transpose."""
        m = Matrices(call.inputs[0].dtype, call.inputs[0].shape)
        a, second, fourth, sixth, odd, even, more = (layout.part(m.nbytes) for _ in range(7))
        squarings, info, status = (layout.part(4 * m.count) for _ in range(3))
        pivots = layout.part(4 * m.count * m.rows)
        degree, bound = max(BOUNDS[numpy_dtype(real_dtype(m.dtype)).itemsize].items())
        b = coefficients(degree)
        factor = lu_calls(m, m.rows, m.rows, layout)
        solve = solve_calls(OPERATION["N"], m, m, False, layout)

        def run(work: Work, inputs: Sequence[RawArray], outputs: Sequence[RawArray]) -> None:
            (x,), (y,) = inputs, outputs
            words = {"squarings": work.at(squarings), "info": work.at(info)}
            powers = [work.at(p) for p in (second, fourth, sixth)]
            u, v, w = (work.at(p) for p in (odd, even, more))
            _step(work, m, "norms", {"x": x.ptr, **words}, bound=bound)
            _step(work, m, "scaled", {"x": x.ptr, "y": work.at(a), **words})
            for left, right, found in ((work.at(a), work.at(a), powers[0]),
                                       (powers[0], powers[0], powers[1]),
                                       (powers[0], powers[1], powers[2])):  # fmt: skip
                _product(work, m, left, right, found)
            given = dict(zip(("x", "second", "third"), powers))
            low = (*b[1:8:2], *b[0:8:2])
            _step(work, m, "sums", {"y": w, "z": v, **given}, factors=low)
            if degree > 7:
                high = (0.0, *b[9::2], 0.0, *b[8::2])
                _step(work, m, "sums", {"y": u, "z": y.ptr, **given}, factors=high)
                _product(work, m, powers[2], u, w, add=True)
                _product(work, m, powers[2], y.ptr, v, add=True)
            _product(work, m, work.at(a), w, u)
            _step(work, m, "sides", {"x": u, "second": v, "y": w, "z": y.ptr})
            factor(work, w, work.at(pivots), work.at(status))
            solve(work, w, work.at(pivots), y.ptr, work.at(status))
            counts = RawArray(work.at(squarings), (m.count,), "int32", (4,), None)
            for k in range(int(work.env.download(counts).max())):
                _product(work, m, y.ptr, y.ptr, w)
                _step(work, m, "squared", {"x": w, "y": y.ptr, **words}, step=k)
            work.settle(y, m.count, work.at(info), 0)

        return run


@cache
def _zero(dtype: str) -> Any:
    """The number 0 in memory of the host."""
    return np.zeros(1, dtype)


def _product(work: Work, m: Matrices, left: int, right: int, out: int, add: bool = False) -> None:
    """``out = left @ right``, or ``out += left @ right``, for each matrix of the stack."""
    n, plain = m.rows, OPERATION["N"]
    alpha, beta = one(m.dtype).ctypes.data, (one if add else _zero)(m.dtype).ctypes.data
    # The libraries see transposes, of which the product has the other order.
    work.blas(
        "gemm_strided_batched", plain, plain, n, n, n, alpha, right, n, m.size, left, n, m.size,
        beta, out, n, m.size, m.count,
    )  # fmt: skip


def _step(
    work: Work, m: Matrices, name: str, pointers: dict[str, int], bound: float = 0.0,
    factors: Sequence[float] = (0.0,) * _FACTORS, step: int = 0,
) -> None:  # fmt: skip
    """Enqueue a kernel of ``expm.cu``."""
    parts = 2 if m.dtype.startswith("complex") else 1
    source = specialised("expm.cu", T=CTYPES[real_dtype(m.dtype)], PARTS=parts)
    blocks = m.count if name == "norms" else blocks_for(m.count * m.size * parts, _BLOCK)
    given = [pointers.get(p, 0) for p in _POINTERS]
    fields = (*given, m.count, m.rows, step, bound, *factors)
    enqueue(work.env, source, name, min(blocks, 1 << 16), _BLOCK, fields)


class BlockExpmKernel(CudaKernel[Expm]):
    """Small matrices in shared memory, a block each; how often one is squared is its own."""

    name = "cuda.expm"
    contiguous_inputs = True

    def refuses(self, call: Call[Expm]) -> str | None:
        """Matrices of which five do not fit into shared memory."""
        if not call.has_sizes:
            return None
        m = Matrices(call.inputs[0].dtype, call.inputs[0].shape)
        if _MATRICES_OF_BLOCK * m.step > _SHARED_BYTES:
            return f"matrices of {m.rows} rows are too large for a block of threads"
        return None

    def launches(
        self, call: Call[Expm], inputs: Sequence[Any], outputs: Sequence[View]
    ) -> Sequence[KernelLaunch]:
        """One kernel; of empty stacks none."""
        m = Matrices(call.inputs[0].dtype, call.inputs[0].shape)
        if 0 in m.shape:
            return []
        degree, bound = max(BOUNDS[numpy_dtype(real_dtype(m.dtype)).itemsize].items())
        factors = [*coefficients(degree), *[0.0] * 13][:14]
        tile = 1 << (m.size - 1).bit_length()
        tile = tile if _MATRICES_OF_BLOCK * tile * m.itemsize <= _SHARED_BYTES else m.size
        threads = min(max(32, tile), _BLOCK) // 32 * 32
        source = specialised(
            "scalar.cuh", "number.cuh", "expm_block.cu", T=CTYPES[real_dtype(m.dtype)],
            PARTS=2 if m.dtype.startswith("complex") else 1, TILE=tile, THREADS=threads,
            SIDE=1 << (m.rows - 1).bit_length(), HIGH=int(degree > 7),
        )  # fmt: skip
        parameters = (inputs[0].pointer, outputs[0].pointer, m.count, m.rows, bound, *factors)
        grid = (min(m.count, 1 << 16),)
        return [KernelLaunch(source, "expm_block", grid, (threads,), parameters)]


KERNELS: tuple[Row, ...] = (with_host(Expm, BlockExpmKernel(), ExpmKernel("expm")),)
