"""LU factors, solutions and inverses of small matrices: a thread has a matrix in registers.

The libraries' batched routines take a dozen launches, of which each reads all matrices.
"""

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
    blocks_for,
)
from symdnn.gpu.device.error_codes import SINGULAR
from symdnn.graph.kernel import Call
from symdnn.graph.typing import OpT
from symdnn.ops.matrix.lu import LUFactor, LUSolve
from symdnn.ops.matrix.solve import MatrixInverse

__all__ = ["SmallFactors", "SmallInverse", "SmallSolutions"]

#: Rows of the largest matrices that registers have.
_MOST_ROWS = 6
_THREADS = 128


class _SmallMatrices(CudaKernel[OpT]):
    """Base: matrices of a few rows, of float32 or float64."""

    contiguous_inputs = True

    def refuses(self, call: Call[OpT]) -> str | None:
        """Other dtypes, and sizes that registers do not have."""
        if call.inputs[0].dtype not in ("float32", "float64"):
            return f"it has no code for {call.inputs[0].dtype}"
        if not call.has_sizes:
            return "it is for small matrices of known sizes"
        rows, columns = call.inputs[0].shape[-2:]
        if rows != columns or not 0 < rows <= _MOST_ROWS:
            return f"it is for square matrices of up to {_MOST_ROWS} rows"
        return None


def _launch(
    name: str, dtype: str, rows: int, numbers: Sequence[Any], *,
    by_columns: bool, factors: bool = False, transposed: bool = False,
) -> list[KernelLaunch]:  # fmt: skip
    """The kernel; ``numbers`` are four places, four counts and the error's code."""
    count, code = numbers[4], numbers[8]
    if not count:
        return []
    source = specialised(
        "small_matrices.cu", T=CTYPES[dtype], SIDE=rows, BY_COLUMNS=int(by_columns),
        FACTORS=int(factors), TRANSPOSED=int(transposed),
    )  # fmt: skip
    parameters = (*numbers[:8], Pointer(ERROR_WORD), Pointer(NODE), code)
    return [KernelLaunch(source, name, (blocks_for(count, _THREADS),), (_THREADS,), parameters)]


class SmallFactors(_SmallMatrices[LUFactor]):
    """Factors by partial pivoting."""

    name = "cuda.small_factors"

    def launches(
        self, call: Call[LUFactor], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """One kernel."""
        (a,), (f, pivots), rows = inputs, outputs, inputs[0].shape[-1]
        numbers = (a.pointer, pivots.pointer, 0, f.pointer, prod(a.shape[:-2]), 1, 1, 1, 0)
        by_columns = call.op.pivoted == "columns"
        return _launch("small_factors", a.dtype, rows, numbers, by_columns=by_columns)


class SmallSolutions(_SmallMatrices[LUSolve]):
    """Solutions by factors, of each right side or of one, by those of each matrix or of one."""

    name = "cuda.small_solutions"

    def refuses(self, call: Call[LUSolve]) -> str | None:
        """Stacks that broadcast in part."""
        if (reason := super().refuses(call)) is not None:
            return reason
        whole = prod(call.outputs[0].shape[:-2])
        counts = [prod(call.inputs[i].shape[:-2]) for i in (0, 2)]
        return None if all(n in (1, whole) for n in counts) else "its stacks broadcast in part"

    def launches(
        self, call: Call[LUSolve], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """One kernel."""
        op, (f, pivots, b), (y,) = call.op, inputs, outputs
        by_columns, columns = op.pivoted == "columns", y.shape[-1]
        steps = [int(prod(v.shape[:-2]) > 1) for v in (f, b)]
        numbers = (
            f.pointer, pivots.pointer, b.pointer, y.pointer, prod(y.shape[:-2]) * columns, columns,
            *steps, SINGULAR if op.on_error == "raise" else 0,
        )  # fmt: skip
        return _launch(
            "small_solutions", y.dtype, f.shape[-1], numbers, by_columns=by_columns, factors=True,
            transposed=op.transposed != by_columns,
        )  # fmt: skip


class SmallInverse(_SmallMatrices[MatrixInverse]):
    """Inverses: each column by the factors, which its thread finds."""

    name = "cuda.small_inverse"

    def launches(
        self, call: Call[MatrixInverse], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """One kernel."""
        (a,), (y,) = inputs, outputs
        rows = a.shape[-1]
        code = SINGULAR if call.op.on_error == "raise" else 0
        numbers = (
            a.pointer, 0, 0, y.pointer, prod(a.shape[:-2]) * rows, rows, 1, 1, code,
        )  # fmt: skip
        return _launch("small_solutions", a.dtype, rows, numbers, by_columns=False)
