"""The different ones of many numbers: a table of a small range, or a compiled sort and a loop."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from symdnn.cpu.elementwise.compress import MaskLoop
from symdnn.cpu.launch.scratch import as_contiguous
from symdnn.cpu.launch.traits import LLVM_QUIET
from symdnn.cpu.nest.line_kernels import SortKernel
from symdnn.graph.kernel import Call, Kernel, Launch, Row
from symdnn.graph.typing import Array, Arrays
from symdnn.ops.array.sort import Sort, Unique, unique_of_range, unique_of_sorted

#: With fewer elements NumPy's functions are as fast.
_MIN_ELEMENTS = 1 << 10


class UniqueKernel(Kernel[Unique]):
    """The different ones of all numbers, and how often each occurs."""

    name = "llvm.unique"
    traits = LLVM_QUIET

    def refuses(self, call: Call[Unique]) -> str | None:
        """What a sort refuses, other results, and 16-bit floats, which NumPy orders wrongly."""
        if not call.op.sorts_values or call.inputs[0].dtype in ("float16", "bfloat16"):
            return "it takes values and counts, of other dtypes"
        return SortKernel().refuses(_sort_of(call))

    def bind(self, call: Call[Unique]) -> Launch[Array]:
        """A launch for any strides."""
        x, counts = call.inputs[0], call.op.return_counts
        if prod(x.shape) < _MIN_ELEMENTS:
            return lambda inputs, outputs: call.op.compute(*inputs)
        sort, loop = SortKernel().bind(_sort_of(call)), MaskLoop("mask", x.numpy.itemsize)

        def launch(inputs: Arrays, outputs: Sequence[Any]) -> Sequence[Array]:
            flat = as_contiguous(inputs[0]).reshape(-1)
            if (found := unique_of_range(flat, False, False, counts, None)) is not None:
                return found
            line = np.empty_like(flat)
            sort([flat], [line])
            return unique_of_sorted(line, loop.compressed, counts)

        return launch


def _sort_of(call: Call[Unique]) -> Call[Sort]:
    """The sort of all elements."""
    x = call.inputs[0]
    line: Any = x.with_shape((prod(x.shape) if x.is_static else None,))
    return Call(Sort(0), (line,), (line,), call.hints)


KERNELS: tuple[Row, ...] = (((Unique,), (UniqueKernel(),)),)
