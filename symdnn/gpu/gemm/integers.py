"""Products of integers, which no library has: sums over the axis that both operands have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from symdnn.gpu.codegen.launches import CudaKernel, KernelLaunch, View, Views
from symdnn.gpu.codegen.reduce_form import Reducer
from symdnn.gpu.codegen.reduce_plan import scratch_bytes
from symdnn.gpu.kernels.reduce import custom_reduction
from symdnn.graph.kernel import Call
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.ops.core.scalar import Builder
from symdnn.ops.linalg.dot import BatchedDot, Dot


class IntegerProductKernel(CudaKernel[Dot | BatchedDot]):
    """A reduction of the elementwise products. It reads any strides, and wraps as NumPy does."""

    name = "cuda.integer_product"

    def refuses(self, call: Call[Dot | BatchedDot]) -> str | None:
        """Anything but integers."""
        if not TensorType(call.inputs[0].dtype).is_integer:
            return "libraries multiply matrices of floats"
        return super().refuses(call)

    def workspace_bytes(self, call: Call[Dot | BatchedDot]) -> int:
        """Partial sums."""
        return scratch_bytes(prod(call.outputs[0].shape), call.inputs[0].shape[-1], 1)

    def launches(
        self, call: Call[Dot | BatchedDot], inputs: Sequence[Any], outputs: Views
    ) -> Sequence[KernelLaunch]:
        """One kernel over all results and the terms of each, which are the last axis."""
        (x, y), (out,) = inputs, outputs
        stacked = int(isinstance(call.op, BatchedDot))
        shape = (*out.shape, x.shape[-1])
        along = len(y.shape) - min(2, len(y.shape))  # the terms' axis of y
        order = [d for d in range(len(y.shape)) if d != along]
        y = y.transposed([*order, along])
        x = _with_axes(x, len(x.shape) - 1, len(y.shape) - 1 - stacked)
        y = _with_axes(y, stacked, len(shape) - len(y.shape))
        dtype = x.dtype
        work = dtype if numpy_dtype(dtype).itemsize >= 4 else "int32"
        builder = Builder((dtype, dtype))
        program = builder.program([builder.input(0).cast(work) * builder.input(1).cast(work)])
        reducer = Reducer("Sum", work, dtype)
        axes = (len(shape) - 1,)
        return custom_reduction(program, (reducer,), axes, (x, y), outputs, shape)


def _with_axes(x: View, at: int, count: int) -> View:
    """The view with so many axes of size 1 before axis ``at``."""
    shape, strides = x.shape, x.strides
    return replace(
        x,
        shape=(*shape[:at], *[1] * count, *shape[at:]),
        strides=(*strides[:at], *[0] * count, *strides[at:]),
    )
