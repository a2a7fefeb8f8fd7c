"""Softmax and logsumexp along an axis that is not the last, by compiled loops."""

from __future__ import annotations

from math import prod
from typing import Any

from symdnn.cpu.launch.contiguous_launch import ContiguousLaunch, compile_refusal
from symdnn.cpu.launch.traits import LLVM
from symdnn.cpu.reduce.softmax_inner_axis_ir import (
    BAND_COLUMNS,
    InnerAxisPlan,
    inner_axis_ir,
)
from symdnn.cpu.reduce.softmax_last_axis import SOFTMAX_OPS
from symdnn.cpu.reduce.softmax_last_axis_ir import SOFTMAX
from symdnn.cpu.threads import threads
from symdnn.graph.kernel import Call, Kernel, Launch, Row
from symdnn.graph.typing import Array

__all__ = ["InnerAxisKernel", "KERNELS"]

#: With fewer elements NumPy is faster than compiling.
_MIN_ELEMENTS_TO_COMPILE = 1 << 12
#: Elements for which waking up another thread pays. A softmax of (b, 8, 16, 16) takes 2.6 us with
#: one thread and 3.2 with two for 4096 elements, 4.1 and 3.5 for 8192, 6.8 and 5.2 for 16384 (two
#: cores, AVX-512, lower quartiles). Its gradient takes half of that.
_ELEMENTS_PER_THREAD = 1 << 13
#: Fewer columns do not fill a vector.
_MIN_COLUMNS = 4


class InnerAxisKernel(Kernel):
    """Softmax ops along an inner axis, a band of columns at a time."""

    name = "llvm.bands"
    traits = LLVM

    def refuses(self, call: Call) -> str | None:
        """Needs one axis before the last, and float32."""
        types = call.inputs
        whole, axes = types[0], _axes(call.op)
        if any(t.dtype != "float32" for t in types):
            return "it computes in float32"
        if len(axes) != 1 or axes[0] == whole.ndim - 1:
            return "it works along one axis that is not the last"
        if whole.is_static and 0 < prod(whole.shape[axes[0] + 1 :]) < _MIN_COLUMNS:
            return f"there are fewer than {_MIN_COLUMNS} columns"
        return compile_refusal((whole,), lambda: prod(whole.shape), _MIN_ELEMENTS_TO_COMPILE)

    def bind(self, call: Call) -> Launch[Array]:
        """A launch whose code serves all sizes."""
        whole = call.inputs[0]
        shape, axis = whole.shape, _axes(call.op)[0]
        plan = InnerAxisPlan(SOFTMAX_OPS[type(call.op)])
        n, inner = shape[axis], prod(shape[axis + 1 :])
        bands = -(-inner // BAND_COLUMNS)
        count = threads.threads(prod(shape), _ELEMENTS_PER_THREAD)
        head = [count, prod(shape[:axis]) * bands, 1, n, inner, bands]
        return ContiguousLaunch(
            threads.kernel(inner_axis_ir, plan), head, len(SOFTMAX[plan.kind][0])
        )


def _axes(op: Any) -> tuple[int, ...]:
    return op.axes if hasattr(op, "axes") else (op.axis,)


KERNELS: tuple[Row, ...] = ((tuple(SOFTMAX_OPS), (InnerAxisKernel(),)),)
