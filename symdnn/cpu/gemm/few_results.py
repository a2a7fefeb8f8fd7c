"""Products of matrices with few results and long sums."""

from __future__ import annotations

from typing import Any

from symdnn.cpu.compiler import jit
from symdnn.cpu.gemm.few_results_ir import WORDS, FewResults, few_results_ir
from symdnn.cpu.launch.contiguous_launch import compile_refusal
from symdnn.cpu.launch.strided_launch import StridedBlock, StridedLaunch
from symdnn.cpu.launch.traits import LLVM_ASKS_THREADS
from symdnn.cpu.threads import threads
from symdnn.graph.kernel import Call, Kernel, Row
from symdnn.graph.typing import Array, Arrays
from symdnn.ops.linalg.products import Dot
from symdnn.ops.vendor.onednn import OneDnnMatmul

#: The most rows, and columns: turning more of them takes as long as a GEMM. The fewest terms.
_MAX_ROWS, _MAX_COLUMNS, _MIN_TERMS = 16, 6, 128
#: With fewer products NumPy is as fast as compiling.
_MIN_PRODUCTS = 1 << 11


class FewResultsKernel(Kernel[Any]):
    """Products of float32 or float64 matrices, of a few rows and columns."""

    name = "llvm.few_results"
    traits = LLVM_ASKS_THREADS

    def refuses(self, call: Call[Any]) -> str | None:
        """Needs nothing that follows, few results and long sums."""
        op, types = call.op, (*call.inputs, *call.outputs)
        if isinstance(op, OneDnnMatmul) and (op.activation or op.residual or op.bias):
            return "it computes no bias or activation"
        if {t.dtype for t in types} not in ({"float32"}, {"float64"}):
            return "it is for float32 and float64"
        if {t.ndim for t in types} != {2}:
            return "it is for two matrices"
        if not call.has_sizes:
            return None
        (rows, columns), terms = call.outputs[0].shape, call.inputs[0].shape[1]
        few = 2 <= rows <= _MAX_ROWS and 2 <= columns <= _MAX_COLUMNS
        if not few or terms < _MIN_TERMS:
            return "it is for few results and long sums"
        return compile_refusal(types, lambda: rows * terms * columns, _MIN_PRODUCTS)

    def bind(self, call: Call[Any]) -> Any:
        """A launch for any strides."""
        return StridedLaunch(_block)


def _block(inputs: Arrays, outputs: Arrays) -> StridedBlock:
    (a, b), (c,) = inputs, outputs
    b = b.T
    bits = 32 * jit.vector_width()
    plan = FewResults(c.dtype.name, len(a), len(b), _kind(a), _kind(b), bits)
    words = {"threads": 1, "tasks": 1, "one": 1, "terms": a.shape[1]}
    steps = ("a_line", "a_term", "b_line", "b_term", "c_row", "c_column")
    words |= dict(zip(steps, (*a.strides, *b.strides, *c.strides), strict=True))
    run = threads.kernel(few_results_ir, plan)
    return StridedBlock(run, [words.get(n, 0) for n in WORDS], [WORDS.index(n) for n in "abc"])


def _kind(lines: Array) -> str:
    """How a matrix has its lines: see :class:`FewResults`."""
    line, term = lines.strides
    if term == lines.itemsize:
        return "dense"
    turned = line == lines.itemsize and term == len(lines) * lines.itemsize
    return "turned" if turned else "strided"


KERNELS: tuple[Row, ...] = (((OneDnnMatmul, Dot), (FewResultsKernel(),)),)
