"""Products of stacks whose matrices are single rows or columns: sums over the axis that both have.

A tile of a GEMM would be empty but for one row or column, and it is begun again for each matrix.
"""

from __future__ import annotations

from math import prod
from typing import Any

from symdnn.cpu.launch.contiguous_launch import compile_refusal
from symdnn.cpu.launch.strided_launch import StridedLaunch
from symdnn.cpu.launch.traits import LLVM_ASKS_THREADS
from symdnn.cpu.nest.kernels import product_maker
from symdnn.graph.kernel import Call, Kernel, Row
from symdnn.ops.nest.of_ops import product_fold
from symdnn.ops.vendor.onednn import OneDnnMatmul

#: The fewest matrices, and the most numbers of one.
_MIN_STACK, _MAX_NUMBERS = 8, 1 << 12
#: With fewer products in all compiling gains nothing.
_MIN_PRODUCTS = 1 << 12


class StackedVectorsKernel(Kernel[OneDnnMatmul]):
    """Products of float32 rows by matrices, or matrices by columns, of a stack."""

    name = "llvm.nest"
    traits = LLVM_ASKS_THREADS

    def refuses(self, call: Call[OneDnnMatmul]) -> str | None:
        """Needs float32, nothing that follows, and a stack of small single rows or columns."""
        op, types = call.op, (*call.inputs, *call.outputs)
        if op.activation or op.residual or op.bias:
            return "it computes no bias or activation"
        if any(t.dtype != "float32" for t in types):
            return "it computes in float32"
        if types[0].ndim != 3 or types[1].ndim != 3:
            return "it is for stacks of matrices"
        if not all(t.is_static for t in types):
            return "it needs sizes"
        stack, rows, terms, columns = _sizes(call)
        if min(rows, columns) != 1 or stack < _MIN_STACK or terms * rows * columns > _MAX_NUMBERS:
            return "it is for stacks of single rows or columns"
        return compile_refusal(types, lambda: prod(_sizes(call)), _MIN_PRODUCTS)

    def bind(self, call: Call[OneDnnMatmul]) -> Any:
        """A launch for any strides."""
        fold = product_fold("float32")
        assert fold is not None
        return StridedLaunch(product_maker(fold, _sizes(call), 2, 1))


def _sizes(call: Call[OneDnnMatmul]) -> tuple[int, ...]:
    """(matrices, rows, terms, columns)"""
    return *call.inputs[0].shape, call.outputs[0].shape[2]


KERNELS: tuple[Row, ...] = (((OneDnnMatmul,), (StackedVectorsKernel(),)),)
