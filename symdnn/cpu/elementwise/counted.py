"""Counts of integers and sums of their weights, whose number follows from the largest integer."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from symdnn.cpu.elementwise.compress import PlainKernel
from symdnn.cpu.elementwise.counts_ir import MOST_COUNTS, counts_ir
from symdnn.cpu.elementwise.indexed_ir import FLAG, GatherPlan, gather_words
from symdnn.cpu.ir.loops_ir import LoopOperand, inner
from symdnn.cpu.launch.contiguous_launch import compile_refusal
from symdnn.cpu.launch.scratch import as_contiguous
from symdnn.cpu.launch.strided_launch import StridedBlock
from symdnn.cpu.launch.traits import LLVM_QUIET
from symdnn.cpu.threads import threads
from symdnn.graph.kernel import Call, Kernel, Launch, Row
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array, Arrays
from symdnn.ops.lowered.of_values import Counted

#: With fewer integers NumPy is as fast. Integers for which waking up another thread pays.
_MIN_ELEMENTS, _ELEMENTS_PER_THREAD = 1 << 11, 1 << 13
_FLOATS = ("float32", "float64")
#: The word of a block that says how long the vector is.
_SIZE = -2


def counted_block(what: str, x: Array, index: Array, y: Array) -> StridedBlock:
    """The block of (x, index, y) that adds numbers to a vector: ``count`` or ``tally``
    (:class:`GatherPlan`). Floats are added to zeros, by one thread.
    """

    def operand(a: Array) -> LoopOperand:
        return LoopOperand(a.dtype.name, inner(a.strides[0], a.itemsize))

    (n,), short = index.shape, x.size <= MOST_COUNTS
    alone = x.dtype.kind == "f" or not short
    count = 1 if alone else threads.threads(n, _ELEMENTS_PER_THREAD)
    each = -(-n // count)
    tasks = -(-n // each)
    whole = LoopOperand(x.dtype.name, "one")
    plan = GatherPlan(
        0, whole, (operand(index),), operand(y), what, one_part=tasks == 1, short=short
    )
    words = {"threads": count, "tasks": tasks, "one": 1, "n": n, "each": each}
    words |= {"a0.size": x.size, "a0.step": x.strides[0]}
    words |= {"a0.i": index.strides[0], "y.i": y.strides[0]}
    names = gather_words(plan)
    at = [names.index(name) for name, _ in plan.named]
    values = [words.get(name, 0) for name in names]
    return StridedBlock(threads.kernel(counts_ir, plan), values, at, status=FLAG)


class CountKernel(Kernel[Counted]):
    """Counts and sums of weights; few have four tables, which are added up in the end."""

    name = "llvm.counted"
    traits = LLVM_QUIET

    def refuses(self, call: Call[Counted]) -> str | None:
        """Needs enough integers, and weights of 32 or 64 bits."""
        x, _, *weights = call.inputs
        if x.dtype == "bool" or any(w.dtype not in _FLOATS for w in weights):
            return "there is no code for the dtypes"
        return compile_refusal((x,), lambda: prod(x.shape), _MIN_ELEMENTS)

    def bind(self, call: Call[Counted]) -> Launch[Array]:
        """A launch for any strides."""
        x, _, *weights = call.inputs
        plain: Any = PlainKernel().bind(call)
        if not isinstance(x, TensorType) or prod(x.shape) < _MIN_ELEMENTS:
            return plain
        dtype = weights[0].dtype if weights else ""
        made = np.dtype(np.float64 if weights else np.int64)
        unsigned, one = f"u{x.numpy.itemsize}", np.broadcast_to(np.ones((), made), 1)
        blocks: dict[bool, StridedBlock] = {}

        def launch(inputs: Arrays, outputs: Sequence[Any]) -> Sequence[Array]:
            index, least, *given = inputs
            index = as_contiguous(index)
            # Read as unsigned numbers, negative ones are the largest.
            length = int(np.maximum.reduce(index.view(unsigned))) + 1
            wrong = index.dtype.kind == "i" and length > np.iinfo(index.dtype).max
            if wrong or (given and given[0].shape != index.shape):
                return [*plain(inputs, outputs)]
            length = max(length, int(least))
            found, added = np.zeros(length, made), as_contiguous(given[0]) if given else one
            short = length <= MOST_COUNTS
            if short not in blocks:
                blocks[short] = counted_block("tally", found, index, added)
            blocks[short].put(_SIZE, length)
            blocks[short].run([found, index, added])
            return [Counted.rounded(found, dtype) if dtype == "float32" else found]

        return launch


KERNELS: tuple[Row, ...] = (((Counted,), (CountKernel(), PlainKernel())),)
