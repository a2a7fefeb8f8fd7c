"""Pooling of images with channels last and its gradients, in front of oneDNN's.

oneDNN has no gradient of a maximum that ties share, and forward a maximum over a NaN needs another
pass over its operand. Measured on two cores with AVX-512: images of 64x24x24x20 in windows of 2x2
take 0.14 ms backward (NumPy's loop over the elements of a window 1.1), of 16x56x56x64 in windows of
3x3, 2 apart, 0.28 ms forward (oneDNN 0.9) and 0.6 ms backward (NumPy 26).
"""

from __future__ import annotations

from math import prod
from typing import Any

from symdnn.cpu.launch.traits import LLVM
from symdnn.cpu.pool.pool import PoolKernel, is_backward, launcher, plan_of
from symdnn.cpu.pool.pool_nhwc_ir import groups, pool_last_ir
from symdnn.cpu.threads import threads
from symdnn.graph.kernel import Call, Kernel, Launch, Row
from symdnn.ops.vendor.onednn import OneDnnPool, OneDnnPoolGrad

__all__ = ["PoolLastKernel", "KERNELS"]


class PoolLastKernel(Kernel):
    """Maximum, sum and mean of windows of (N, rows, columns, C) and their gradients."""

    name = "llvm.pool_last"
    traits = LLVM

    def refuses(self, call: Call) -> str | None:
        """What :class:`~symdnn.cpu.pool.pool.PoolKernel` refuses, and other layouts."""
        op: Any = call.op
        types: Any = call.inputs
        if op.layout == "NCHW" or op.op.ndim != 2 or types[0].ndim != 4:
            return "it is for two sizes of images with channels last"
        return PoolKernel().refuses(call, op.op)

    def bind(self, call: Call) -> Launch:
        """Compiled for these sizes."""
        op: Any = call.op.op  # type: ignore[attr-defined]
        x: Any = call.outputs[0] if is_backward(op) else call.inputs[0]
        n, high, wide, channels = x.shape
        plan = plan_of(op, x.dtype, (high, wide))
        rows, columns = groups(plan)
        work = n * rows * columns * prod(plan.ws) * channels
        run = threads.kernel(pool_last_ir, plan, channels)
        return launcher(run, plan, n * rows, work)


KERNELS: tuple[Row, ...] = (((OneDnnPool, OneDnnPoolGrad), (PoolLastKernel(),)),)
