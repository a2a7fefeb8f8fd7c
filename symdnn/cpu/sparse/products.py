"""Products of sparse and dense matrices: compiled loops, in threads."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from symdnn.cpu.launch.contiguous_launch import ContiguousLaunch, compile_refusal
from symdnn.cpu.launch.traits import LLVM_ASKS_THREADS
from symdnn.cpu.sparse.products_ir import FLAG, ProductPlan, lanes_of, product_ir
from symdnn.cpu.threads import threads
from symdnn.errors import IndexOutOfRange
from symdnn.graph.kernel import Call, Kernel, Launch, Row
from symdnn.graph.typing import Array, Arrays
from symdnn.ops.sparse.products import SampledDot, SparseDot, check_structure

#: Products of numbers below which SciPy's loops are as fast as compiling; and for a thread more.
_MIN_PRODUCTS_TO_COMPILE, _PRODUCTS_PER_THREAD = 1 << 10, 1 << 15
#: The most vectors of lanes that are added up at a time.
_MOST_BLOCKS = 4


class SparseProductKernel(Kernel[SparseDot | SampledDot]):
    """``A x``, ``A' x``, and ``u v'`` at the elements of A, of float32 and float64.

    Elements of a sum are added in their order, so results do not depend on the threads.
    """

    name = "llvm.sparse"
    traits = LLVM_ASKS_THREADS

    def refuses(self, call: Call[SparseDot | SampledDot]) -> str | None:
        """Other dtypes, and operands without elements."""
        dense, y = call.inputs[3], call.outputs[0]
        if y.dtype not in ("float32", "float64"):
            return f"there is no code for {y.dtype}"
        if call.has_sizes and not (prod(dense.shape) and prod(y.shape)):
            return "there are no elements"
        types = (*call.inputs[:4], y)
        return compile_refusal(types, lambda: max(1, _products(call)), _MIN_PRODUCTS_TO_COMPILE)

    def bind(self, call: Call[SparseDot | SampledDot]) -> Launch[Array]:
        """A launch of contiguous operands."""
        plan = plan_of(call)
        sampled = isinstance(call.op, SampledDot)
        indices, indptr = call.inputs[:2] if sampled else call.inputs[1:3]
        dense = call.inputs[3]
        width = dense.shape[1] if dense.ndim == 2 else 1
        minor = dense.shape[0] if sampled or not call.op.transposed else call.outputs[0].shape[0]  # type: ignore[union-attr]
        count = threads.threads(_products(call), _PRODUCTS_PER_THREAD)
        if plan.what == "transposed":
            count = 1 if plan.vector else min(count, -(-width // lanes_of(plan.dtype)))
        head = [count, count, 1, 0, indptr.shape[0] - 1, indices.shape[0], minor, width]
        return _Launch(call, threads.kernel(product_ir, plan), head)


class _Launch(ContiguousLaunch):
    """The launch, which says what is wrong with a matrix."""

    def __init__(self, call: Call[Any], run: Any, head: Sequence[int]) -> None:
        super().__init__(run, head, reads=4, status=FLAG)
        self._op, self._minor = call.op, head[6]

    def failed(self, inputs: Arrays) -> None:
        """Raise the error of the reference."""
        at = 0 if isinstance(self._op, SampledDot) else 1
        check_structure(self._op, inputs[at], inputs[at + 1], self._minor)
        raise IndexOutOfRange(f"{self._op}: the matrix changed while it was read")


def plan_of(call: Call[Any]) -> ProductPlan:
    """What is compiled for a call."""
    sampled, dense = isinstance(call.op, SampledDot), call.inputs[3]
    what = "sampled" if sampled else "transposed" if call.op.transposed else "dot"
    index, dtype = call.inputs[0 if sampled else 1].dtype, call.outputs[0].dtype
    width = dense.shape[1] if dense.ndim == 2 else 1
    if width == 1:
        return ProductPlan(what, dtype, index, True)
    lanes = lanes_of(dtype)
    blocks = min(_MOST_BLOCKS, -(-width // lanes)) if what == "dot" else 1
    blocks = 2 if blocks == 3 else blocks
    return ProductPlan(what, dtype, index, False, blocks, width % (lanes * blocks) != 0)


def _products(call: Call[Any]) -> int:
    """How many numbers are multiplied."""
    dense = call.inputs[3]
    width = dense.shape[1] if dense.ndim == 2 else 1
    return call.inputs[0].shape[0] * width + prod(call.outputs[0].shape)


KERNELS: tuple[Row, ...] = (((SparseDot, SampledDot), (SparseProductKernel(),)),)
