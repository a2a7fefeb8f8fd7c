"""Pooling in NHWC and its gradients by compiled loops, preferred to oneDNN's.

oneDNN's gradient of a maximum does not go to all ties, and its maximum over a NaN needs another
pass over the operand. Measured on two cores with AVX-512: activations of 64x24x24x20 in windows of
2x2 take 0.14 ms backward (NumPy's loop over the elements of a window 1.1). Activations of
16x56x56x64 in windows of 3x3 with stride 2 take 0.28 ms forward (oneDNN 0.9) and 0.6 ms backward
(NumPy 26).
"""

from __future__ import annotations

from math import prod
from typing import Any

from symdnn.cpu.launch.traits import LLVM_ASKS_THREADS
from symdnn.cpu.pool.pool import PoolKernel, is_backward, plan_of, pool_launch
from symdnn.cpu.pool.pool_nhwc_ir import pool_nhwc_ir, step_counts
from symdnn.cpu.threads import threads
from symdnn.graph.kernel import Call, Kernel, Launch, Row
from symdnn.graph.typing import Array
from symdnn.ops.vendor.onednn import OneDnnPool, OneDnnPoolGrad

#: Larger windows are left to oneDNN and NumPy.
_MAX_WINDOW_ELEMENTS = 36


class PoolNhwcKernel(Kernel[OneDnnPool | OneDnnPoolGrad]):
    """Maximum, sum and mean of windows of (N, rows, columns, C) and their gradients."""

    name = "llvm.pool_last"
    traits = LLVM_ASKS_THREADS

    def refuses(self, call: Call[OneDnnPool | OneDnnPoolGrad]) -> str | None:
        """Refuses other layouts, and what :class:`~symdnn.cpu.pool.pool.PoolKernel` refuses."""
        op: Any = call.op
        types = call.inputs
        if op.layout == "NCHW" or op.op.ndim != 2 or types[0].ndim != 4:
            return "it is for two sizes of images with channels last"
        if prod(op.op.ws) > _MAX_WINDOW_ELEMENTS:
            return f"its windows are of at most {_MAX_WINDOW_ELEMENTS} elements"
        return PoolKernel().refuses(call, op.op)

    def bind(self, call: Call[OneDnnPool | OneDnnPoolGrad]) -> Launch[Array]:
        """A launch whose code is for these sizes."""
        op: Any = call.op.op
        x = call.outputs[0] if is_backward(op) else call.inputs[0]
        n, high, wide, channels = x.shape
        plan = plan_of(op, x.dtype, (high, wide))
        rows, columns = step_counts(plan)
        work = n * rows * columns * prod(plan.ws) * channels
        run = threads.kernel(pool_nhwc_ir, plan, channels)
        return pool_launch(run, plan, n * rows, work)


KERNELS: tuple[Row, ...] = (((OneDnnPool, OneDnnPoolGrad), (PoolNhwcKernel(),)),)
