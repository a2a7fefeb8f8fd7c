"""Products of small matrices and of stacks of them: code for their sizes, with sums in registers.

A GEMM for any sizes is begun again for each matrix, which takes longer than its products.
"""

from __future__ import annotations

from math import prod
from typing import Any

from symdnn.cpu.compiler import jit
from symdnn.cpu.gemm.small_stacks_ir import WORDS, SmallStack, small_stacks_ir
from symdnn.cpu.launch.contiguous_launch import compile_refusal
from symdnn.cpu.launch.strided_launch import StridedBlock, StridedLaunch
from symdnn.cpu.launch.traits import LLVM_ASKS_THREADS
from symdnn.cpu.threads import threads
from symdnn.graph.kernel import Call, Kernel, Row
from symdnn.graph.typing import Arrays
from symdnn.ops.linalg.products import BatchedDot, Dot
from symdnn.ops.vendor.onednn import OneDnnMatmul

#: Dtypes, and those of a number or of a part of a complex one.
_PARTS = {
    "float32": "float32", "float64": "float64", "complex64": "float32", "complex128": "float64",
}  # fmt: skip
#: The most products of a matrix of a stack (of float64: BLAS multiplies larger ones faster), and of
#: a single one, which one thread computes.
_MAX_PRODUCTS, _MAX_PRODUCTS_OF_FLOAT64, _MAX_PRODUCTS_OF_ONE = 1 << 18, 1 << 15, 1 << 18
#: The most bytes of a matrix that is read again for each tile of rows.
_MAX_BYTES = 1 << 16
#: Terms up to which code for columns multiplies them by single numbers.
_MAX_TERMS_OF_COLUMNS = 32
#: With fewer products in all compiling gains nothing.
_MIN_PRODUCTS = 1 << 12
#: Products for which waking up another thread pays; a matrix costs as much as so many more.
_PRODUCTS_PER_THREAD, _PRODUCTS_OF_A_MATRIX = 1 << 18, 64

_Products = OneDnnMatmul | BatchedDot | Dot


class SmallStacksKernel(Kernel[_Products]):
    """Products of float32, float64 and complex numbers of small matrices and stacks of them."""

    name = "llvm.small"
    traits = LLVM_ASKS_THREADS

    def refuses(self, call: Call[_Products]) -> str | None:
        """Needs nothing that follows, and small matrices; of float32, a stack of them."""
        op, types = call.op, (*call.inputs, *call.outputs)
        if isinstance(op, OneDnnMatmul) and (op.activation or op.residual or op.bias):
            return "it computes no bias or activation"
        if any(t.dtype not in _PARTS for t in types):
            return "it is for floats and complex numbers"
        ranks = {t.ndim for t in types}
        if ranks != {3} and (ranks != {2} or isinstance(op, OneDnnMatmul)):
            return "it is for stacks of matrices"
        if not call.has_sizes:
            return None
        stack, rows, terms, columns = _sizes(call)
        most = _MAX_PRODUCTS_OF_FLOAT64 if types[0].dtype == "float64" else _MAX_PRODUCTS
        most = most if ranks == {3} else _MAX_PRODUCTS_OF_ONE
        if rows * terms * columns > most or terms * columns * types[0].numpy.itemsize > _MAX_BYTES:
            return "it is for small matrices"
        if columns == 1 and terms > _MAX_TERMS_OF_COLUMNS:
            return "it is not for long columns"
        return compile_refusal(types, lambda: stack * rows * terms * columns, _MIN_PRODUCTS)

    def bind(self, call: Call[_Products]) -> Any:
        """A launch for any strides."""
        return StridedLaunch(_block)


def _sizes(call: Call[Any]) -> tuple[int, ...]:
    """(matrices, rows, terms, columns)"""
    out = call.outputs[0].shape
    return prod(out[:-2]), out[-2], call.inputs[0].shape[-1], out[-1]


def _block(inputs: Arrays, outputs: Arrays) -> StridedBlock:
    a, b, c = (x if x.ndim == 3 else x[None] for x in (*inputs, *outputs))
    stack, rows, columns = c.shape
    terms, dtype = a.shape[2], c.dtype
    (a_steps, b_steps, c_steps) = ((x.strides[1], x.strides[2]) for x in (a, b, c))
    plan = SmallStack(
        _PARTS[dtype.name], dtype.kind == "c", rows, terms, columns, a_steps, b_steps, c_steps[0],
        jit.vector_width(),
    )  # fmt: skip
    work = stack * (rows * terms * columns + _PRODUCTS_OF_A_MATRIX)
    count = min(stack, threads.threads(work, _PRODUCTS_PER_THREAD))
    words = {"threads": count, "tasks": stack, "one": 1}
    words |= {f"{n}_stack": x.strides[0] if len(x) > 1 else 0 for n, x in zip("abc", (a, b, c))}
    at = [WORDS.index(n) for n in "abc"]
    run = threads.kernel(small_stacks_ir, plan)
    return StridedBlock(run, [words.get(n, 0) for n in WORDS], at)


KERNELS: tuple[Row, ...] = (((OneDnnMatmul, BatchedDot, Dot), (SmallStacksKernel(),)),)
