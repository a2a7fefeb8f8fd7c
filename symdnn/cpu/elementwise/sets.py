"""Which elements are one of a few tests: compiled loops that compare each with some of them."""

from __future__ import annotations

from functools import cache, reduce
from math import prod
from operator import itemgetter

from symdnn.cpu.elementwise.elementwise import elementwise_launch
from symdnn.cpu.launch.contiguous_launch import compile_refusal
from symdnn.cpu.launch.series_launch import Part, SeriesLaunch, Viewed
from symdnn.cpu.launch.traits import LLVM_ASKS_THREADS
from symdnn.graph.kernel import Call, Kernel, Launch, Row
from symdnn.graph.type import numpy_dtype
from symdnn.graph.typing import Array
from symdnn.ops.array.sets import IsIn
from symdnn.ops.core.scalar import Builder, ScalarProgram

#: Comparisons from which on code is compiled; bytes of the tests, of more of which NumPy makes a
#: table or sorts them; tests of a loop.
_MIN_WORK, _MOST_BYTES, _TOGETHER = 1 << 14, 128, 8


class IsInKernel(Kernel[IsIn]):
    """``IsIn`` of few tests: a loop for each eight of them."""

    name = "llvm.elementwise"
    traits = LLVM_ASKS_THREADS

    def refuses(self, call: Call[IsIn]) -> str | None:
        """Needs few tests, and enough elements."""
        x, tests = call.inputs
        most = _MOST_BYTES // numpy_dtype(x.dtype).itemsize
        if call.has_sizes and not 0 < prod(tests.shape) <= most:
            return "there are many tests, or none"
        return compile_refusal(call.inputs, lambda: prod(x.shape) * prod(tests.shape), _MIN_WORK)

    def bind(self, call: Call[IsIn]) -> Launch[Array]:
        """A launch for any strides."""
        x, tests = call.inputs
        shape, (count,) = tuple(x.shape), tests.shape
        parts = []
        for first in range(0, count, _TOGETHER):
            # The last one of all is compared again where it makes the loop one of eight.
            some = [min(first + k, count - 1) for k in range(min(_TOGETHER, count))]
            reads = [0, *(Viewed(1, itemgetter((k, Ellipsis))) for k in some)]
            reads += [2] if first else []
            run = elementwise_launch(_any_equal(x.dtype, len(some), first > 0), shape)
            parts.append(Part(run, reads, (2,)))
        return SeriesLaunch(parts)


@cache
def _any_equal(dtype: str, count: int, more: bool) -> ScalarProgram:
    """Whether a number is one of so many others; ``more``: or the bool after them holds."""
    b = Builder([dtype] * (count + 1) + ["bool"] * more)
    found = [b.input(0).call("eq", b.input(1 + k)) for k in range(count)]
    found += [b.input(count + 1)] if more else []
    return b.program([reduce(lambda p, q: p.call("or", q), found)])


KERNELS: tuple[Row, ...] = (((IsIn,), (IsInKernel(),)),)
