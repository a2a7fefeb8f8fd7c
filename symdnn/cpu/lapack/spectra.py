"""Eigenvalues, singular values, determinants and exponentials of small matrices; larger ones are
NumPy's."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from symdnn.cpu.lapack.kernels import LapackKernel, Stack
from symdnn.cpu.lapack.library import blas_threads
from symdnn.cpu.lapack.small import expm_launch, fits
from symdnn.graph.kernel import Call, Row
from symdnn.graph.typing import Arrays
from symdnn.ops.matrix.base import MatrixOp
from symdnn.ops.matrix.determinant import Det, SLogDet
from symdnn.ops.matrix.eigen import Eigh, Eigvalsh
from symdnn.ops.matrix.expm import Expm
from symdnn.ops.matrix.svd import SVD

_MAX_ROWS_OF_EXPM = 512


class SmallKernel(LapackKernel[MatrixOp]):
    """One compiled call; for arrays of other strides, and after a fault, the reference."""

    def refuses(self, call: Call[MatrixOp]) -> str | None:
        """Matrices whose routines take much longer than a call from Python."""
        reason = super().refuses(call)
        if reason is None and call.has_sizes and not fits(call, self.tasks(call)):
            return "they are no small real matrices that one thread computes"
        return reason

    def launcher(self, call: Call[MatrixOp]) -> Any:
        """The reference."""
        compute = call.op.compute

        def launch(inputs: Arrays, outputs: Arrays) -> None:
            for out, value in zip(outputs, compute(*inputs), strict=True):
                np.copyto(out, value)

        return launch


class ExpmKernel(LapackKernel[Expm]):
    """One compiled call around BLAS's products, which for large matrices have threads.

    It takes less time than NumPy's calls for a stack even where threads could share that.
    """

    def refuses(self, call: Call[Expm]) -> str | None:
        """Complex matrices, and those whose scratch memory is much for a plan to keep."""
        reason = super().refuses(call)
        if reason is None and call.outputs[0].dtype not in ("float32", "float64"):
            return "they are complex"
        if reason is None and call.has_sizes and call.outputs[0].shape[-1] > _MAX_ROWS_OF_EXPM:
            return f"they have more than {_MAX_ROWS_OF_EXPM} rows"
        return reason

    def tasks(self, call: Call[Expm]) -> int:
        """One."""
        return 1

    def launcher(self, call: Call[Expm]) -> Any:
        """Of matrices of so many rows that a plan need not call it without Python."""
        op, shape = call.op, call.inputs[0].shape
        count = Stack(call.inputs[0].dtype, prod(shape[:-2]), shape[-1]).threads

        def slow(inputs: Arrays, outputs: Arrays) -> None:
            np.copyto(outputs[0], op.reference(inputs[0]))

        compiled = expm_launch(call, slow)

        def launch(inputs: Arrays, outputs: Arrays) -> None:
            with blas_threads(count):
                compiled(inputs, outputs)

        return launch


KERNELS: tuple[Row, ...] = (
    ((Eigh, Eigvalsh), (SmallKernel("syevd"),)),
    ((SVD,), (SmallKernel("gesdd"),)),
    ((Det, SLogDet), (SmallKernel("getrf"),)),
    ((Expm,), (ExpmKernel("expm"),)),
)
