"""log(sum(exp(x))) over several axes: a nest of extremes, one of sums, and an elementwise loop.

In one pass each element would wait for the largest so far; here both passes are simple folds, which
LLVM makes vectors of along long rows. Short rows and columns are folded in one pass.
"""

from __future__ import annotations

from functools import lru_cache, partial
from math import prod
from typing import Any

import numpy as np

from symdnn.cpu.elementwise.elementwise import elementwise_launch
from symdnn.cpu.launch.series_launch import Part, SeriesLaunch
from symdnn.cpu.launch.strided_launch import StridedLaunch
from symdnn.cpu.nest.kernels import NestReduceKernel, reduction_block
from symdnn.graph.kernel import Call, Launch, Row
from symdnn.graph.type import numpy_dtype
from symdnn.graph.typing import Array
from symdnn.ops.array.reduce import LogSumExp
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.core.scalar import Builder, Scalar, ScalarProgram
from symdnn.ops.nest.monoid import extreme, total
from symdnn.ops.nest.nest import Fold

#: Rows of fewer elements are folded in one pass: LLVM would make few vectors of each.
_MIN_RUN = 128


@lru_cache(maxsize=64)
def _steps(dtype: str, work: str, out: str) -> tuple[Fold, Fold, ScalarProgram]:
    """Folds of x to the largest, of (x, largest) to the sum; what makes the result of both."""

    def base(top: Scalar) -> Scalar:
        return top.call("isfinite").where(top, 0)  # inf - inf would be NaN

    b = Builder([dtype])
    largest = Fold(b.program([b.cast(b.input(0), work)]), (extreme("max", work, work, work),))
    b = Builder([dtype, work])
    term = (b.cast(b.input(0), work) - base(b.input(1))).call("exp")
    sums = Fold(b.program([term]), (total("add", work, "float64", work),))
    b = Builder([work, work])
    result = base(b.input(0)) + b.input(1).call("log")
    return largest, sums, b.program([b.cast(result, out)])


def _run(shape: tuple[int, ...], axes: tuple[int, ...]) -> int:
    """Elements of the last axes, as far as all of them are folded."""
    first = len(shape)
    while first - 1 in axes:
        first -= 1
    return prod(shape[first:]) if first < len(shape) else 0


class LogSumExpKernel(NestReduceKernel):
    """``LogSumExp`` over any axes."""

    def bind(self, call: Call[Any]) -> Launch[Array]:
        """A launch for any strides."""
        (x,), (y,), axes = call.inputs, call.outputs, call.op.axes
        shape, out = tuple(x.shape), tuple(y.shape)
        if _run(shape, axes) < _MIN_RUN:
            return super().bind(call)
        work = "float32" if is_narrow_float(y.dtype) else y.dtype
        largest, sums, result = _steps(x.dtype, work, y.dtype)
        kept = [1 if d in axes else n for d, n in enumerate(shape)]
        top, added = (np.empty(kept, numpy_dtype(work)) for _ in range(2))
        first, second = (
            StridedLaunch(partial(reduction_block, fold, shape, axes)) for fold in (largest, sums)
        )
        last = Part(elementwise_launch(result, out), (top.reshape(out), added.reshape(out)), (1,))
        return SeriesLaunch([Part(first, (0,), (top,)), Part(second, (0, top), (added,)), last])


KERNELS: tuple[Row, ...] = (((LogSumExp,), (LogSumExpKernel(),)),)  # over several axes
