"""Eigenvalues, singular values and determinants of small matrices; larger ones are NumPy's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from symdnn.cpu.lapack.kernels import LapackKernel
from symdnn.cpu.lapack.small import fits
from symdnn.graph.kernel import Call, Row
from symdnn.graph.typing import Array
from symdnn.ops.matrix.base import MatrixOp
from symdnn.ops.matrix.determinant import Det, SLogDet
from symdnn.ops.matrix.eigen import Eigh, Eigvalsh
from symdnn.ops.matrix.svd import SVD

__all__ = ["KERNELS"]


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

        def launch(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            for out, value in zip(outputs, compute(*inputs), strict=True):
                np.copyto(out, value)

        return launch


KERNELS: tuple[Row, ...] = (
    ((Eigh, Eigvalsh), (SmallKernel("syevd"),)),
    ((SVD,), (SmallKernel("gesdd"),)),
    ((Det, SLogDet), (SmallKernel("getrf"),)),
)
