"""Softmax, logsumexp and argmax along an axis that is not the last, by compiled loops."""

from __future__ import annotations

from math import prod
from typing import Any

from symdnn.cpu.launch.contiguous_launch import InOrder, uncompiled
from symdnn.cpu.launch.traits import LLVM
from symdnn.cpu.reduce.softmax_inner_axis_ir import KINDS, WIDTH, BandPlan, band_ir
from symdnn.cpu.reduce.softmax_last_axis import SOFTMAX_OPS
from symdnn.cpu.threads import threads
from symdnn.graph.kernel import Call, Kernel, Launch, Row
from symdnn.ops.array.argreduce import ArgMax, ArgMin

__all__ = ["BandKernel", "KERNELS"]

#: Below so many elements compiling costs more than NumPy ever would.
_LEAST_WORK = 1 << 12
#: Elements for which another thread is worth waking: a softmax of (b, 8, 16, 16) takes one and two
#: threads 2.6 and 3.2 us for 4096 elements, 4.1 and 3.5 for 8192, 6.8 and 5.2 for 16384 (two cores,
#: AVX-512, lower quartiles); its gradient and argmax take half of that.
_WORK_OF_A_THREAD = 1 << 13
#: Fewer columns than this are no vectors.
_LEAST_COLUMNS = 4

_KIND = {**SOFTMAX_OPS, ArgMax: "argmax", ArgMin: "argmin"}


class BandKernel(Kernel):
    """Ops along one inner axis, bands of neighbouring columns at a time."""

    name = "llvm.bands"
    traits = LLVM

    def refuses(self, call: Call) -> str | None:
        """Takes one axis before the last; float32, argmax and argmin float64 too."""
        types: Any = call.inputs
        whole, axes = types[0], _axes(call.op)
        known = ("float32", "float64") if type(call.op) in (ArgMax, ArgMin) else ("float32",)
        if any(t.dtype not in known for t in types):
            return f"it computes in {' and '.join(known)}"
        if len(axes) != 1 or axes[0] == whole.ndim - 1:
            return "it works along one axis that is not the last"
        if whole.is_static and 0 < prod(whole.shape[axes[0] + 1 :]) < _LEAST_COLUMNS:
            return f"there are fewer than {_LEAST_COLUMNS} columns"
        return uncompiled((whole,), lambda: prod(whole.shape), _LEAST_WORK)

    def bind(self, call: Call) -> Launch:
        """Compiled for any sizes."""
        whole: Any = call.inputs[0]
        shape, axis = whole.shape, _axes(call.op)[0]
        plan = BandPlan(_KIND[type(call.op)], whole.dtype)
        n, inner = shape[axis], prod(shape[axis + 1 :])
        bands = -(-inner // WIDTH)
        count = threads.threads(prod(shape), _WORK_OF_A_THREAD)
        head = [count, prod(shape[:axis]) * bands, 1, n, inner, bands]
        return InOrder(threads.kernel(band_ir, plan), head, len(KINDS[plan.kind][0]))


def _axes(op: Any) -> tuple[int, ...]:
    return op.axes if hasattr(op, "axes") else (op.axis,)


KERNELS: tuple[Row, ...] = ((tuple(_KIND), (BandKernel(),)),)
