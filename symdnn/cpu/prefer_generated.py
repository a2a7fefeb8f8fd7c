"""Generated kernels that run ops of oneDNN because they are faster: pooling in NCHW, softmax.

Measured with AVX-512: oneDNN's pooling in NCHW is 3 to 15 times slower (it is made for NHWC). Its
softmax takes 1.2 to 1.5 times as long for rows of 10 and of 1000 to 50000, and on one core of Zen 5
1.3 to 2 times for 16384 rows of 64, 4096 of 100 and of 512; gradients are alike.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from symdnn.cpu.pool.pool import PoolKernel
from symdnn.cpu.reduce.softmax import LastAxisKernel
from symdnn.graph.kernel import Call, Kernel, Row
from symdnn.graph.substitute import Substitute
from symdnn.ops.vendor.onednn import OneDnnPool, OneDnnPoolGrad, OneDnnSoftmax, OneDnnSoftmaxGrad

__all__ = ["KERNELS"]


def _generated(kernel: Kernel) -> Substitute:
    """A kernel of the neutral op, run for the oneDNN op in NCHW."""

    def rewritten(call: Call) -> Call | str:
        op: Any = call.op
        if op.layout != "NCHW":
            return f"it is for the layout NCHW, not {op.layout}"
        return replace(call, op=op.op)

    return Substitute(rewritten, "cpu", (kernel,), kernel.name, kernel.traits)


KERNELS: tuple[Row, ...] = (
    ((OneDnnPool, OneDnnPoolGrad), (_generated(PoolKernel()),)),
    ((OneDnnSoftmax, OneDnnSoftmaxGrad), (_generated(LastAxisKernel()),)),
)
