"""Eigenvalues and singular values of small matrices by one kernel of ours.

Library routines iterate, and read on the host how far they are. This kernel decides on the device,
so CUDA graphs record it, and it needs no library.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symdnn.gpu.codegen.device_source import CTYPES, specialised
from symdnn.gpu.codegen.launches import (
    ERROR_WORD,
    NODE,
    CudaKernel,
    KernelLaunch,
    Pointer,
    Views,
)
from symdnn.gpu.device.error_codes import NOT_CONVERGED
from symdnn.gpu.solver.factors import code_of
from symdnn.gpu.solver.work import Matrices
from symdnn.graph.kernel import Call
from symdnn.graph.typing import OpT
from symdnn.ops.matrix.base import real_dtype
from symdnn.ops.matrix.eigen import Eigh, Eigvalsh
from symdnn.ops.matrix.svd import SVD

#: The largest matrices: of more rows the routines of the library are faster.
_MOST_ROWS = 64
#: Static shared memory of a block for the matrix and the product of its rotations.
_SHARED_BYTES = 44 << 10
_MOST_BLOCKS, _MOST_THREADS, _WARP = 1 << 16, 256, 32
#: Threads for a pair of columns.
_LANES = 8


class _JacobiKernel(CudaKernel[OpT]):
    """A block for each matrix, which stays in shared memory. Subclasses say how much they need."""

    contiguous_inputs = True

    def refuses(self, call: Call[OpT]) -> str | None:
        """Matrices that do not fit into shared memory."""
        if not call.has_sizes:
            return None
        m = Matrices(call.inputs[0].dtype, call.inputs[0].shape)
        tile, turned = self.elements(call.op, m)
        if max(m.rows, m.columns) > _MOST_ROWS or (tile + turned) * m.itemsize > _SHARED_BYTES:
            return f"matrices of {m.rows} x {m.columns} are too large for a block of threads"
        return None

    def elements(self, op: Any, m: Matrices) -> tuple[int, int]:
        """Numbers in shared memory: of the matrix, and of the product of its rotations."""
        raise NotImplementedError


def _power(n: int) -> int:
    """The next power of 2, so that few texts are compiled."""
    return 1 << max(n - 1, 0).bit_length()


def _launch(
    m: Matrices, elements: tuple[int, int], places: Sequence[Any], whole: bool, threads: int,
    singular: bool, code: int,
) -> list[KernelLaunch]:  # fmt: skip
    """The launch of ``jacobi.cu`` with the places of matrix, left vectors, values, right ones."""
    if 0 in m.shape:
        return []
    side = _power(max(m.rows, m.columns))
    sizes = [_power(n) for n in elements]
    if sum(sizes) * m.itemsize > _SHARED_BYTES:
        sizes = list(elements)
    threads = max(_WARP, min(_power(threads), _MOST_THREADS))
    source = specialised(
        "scalar.cuh", "lanes.cuh", "number.cuh", "jacobi.cu", T=CTYPES[real_dtype(m.dtype)],
        PARTS=2 if m.dtype.startswith("complex") else 1, SINGULAR=int(singular), THREADS=threads,
        SIDE=max(side, 2), TILE=sizes[0], TURNED=max(sizes[1], 1), VECTORS=int(elements[1] > 0),
    )  # fmt: skip
    numbers = (code, m.count, m.rows, m.columns, int(whole))
    parameters = (*places, Pointer(ERROR_WORD), Pointer(NODE) if code else 0, *numbers)
    return [KernelLaunch(source, "jacobi", (min(m.count, _MOST_BLOCKS),), (threads,), parameters)]


class JacobiEighKernel(_JacobiKernel[Any]):
    """Eigenvalues of Hermitian matrices: rotations of rows and columns."""

    name = "cuda.jacobi.eigh"

    def elements(self, op: Any, m: Matrices) -> tuple[int, int]:
        """The matrix, and its eigenvectors."""
        return m.size, m.size if isinstance(op, Eigh) else 0

    def launches(
        self, call: Call[Eigh | Eigvalsh], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """One kernel: a thread for each pair of pairs of rows."""
        op, m = call.op, Matrices(call.inputs[0].dtype, call.inputs[0].shape)
        vectors = outputs[1].pointer if isinstance(op, Eigh) else 0
        places = inputs[0].pointer, vectors, outputs[0].pointer, 0
        threads, code = (_power(m.rows) // 2) ** 2, code_of(op, NOT_CONVERGED)
        return _launch(m, self.elements(op, m), places, op.UPLO == "L", threads, False, code)


class JacobiSVDKernel(_JacobiKernel[SVD]):
    """Singular values: rotations of columns, or of the rows of a wide matrix."""

    name = "cuda.jacobi.svd"

    def elements(self, op: Any, m: Matrices) -> tuple[int, int]:
        """The matrix, which becomes vectors of one side, and those of the other."""
        large, small = max(m.rows, m.columns), min(m.rows, m.columns)
        if not op.compute_uv:
            return m.size, 0
        return large * (large if op.full_matrices else small), small * small

    def launches(
        self, call: Call[SVD], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """One kernel: some threads for each pair of columns."""
        op, m = call.op, Matrices(call.inputs[0].dtype, call.inputs[0].shape)
        found = [v.pointer for v in outputs] if op.compute_uv else [0, outputs[0].pointer, 0]
        threads, code = _LANES * min(m.rows, m.columns) // 2, code_of(op, NOT_CONVERGED)
        places = inputs[0].pointer, *found
        return _launch(m, self.elements(op, m), places, op.full_matrices, threads, True, code)
