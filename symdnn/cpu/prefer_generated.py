"""Generated kernels that run ops of oneDNN where they are faster: pooling in NCHW, short rows.

Measured on two cores with AVX-512: oneDNN's pooling in NCHW is 3 to 15 times slower (it is made for
NHWC), and its softmax of 128 rows of 10 takes 1.4 times as long.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

from symdnn.cpu.pool.pool import PoolKernel
from symdnn.cpu.reduce.softmax import LastAxisKernel
from symdnn.graph.kernel import Call, Kernel, Row
from symdnn.graph.substitute import Substitute
from symdnn.ops.vendor.onednn import OneDnnPool, OneDnnPoolGrad, OneDnnSoftmax, OneDnnSoftmaxGrad

__all__ = ["KERNELS"]

#: oneDNN runs a softmax of more elements than this in rows of these lengths. Two cores of AVX-512
#: take 0.47 ms for 8192 rows of 100 (oneDNN 0.25), but 0.69 for 100000 rows of 16 (0.90), 0.88 for
#: 4096 of 1024 (1.13) and 0.71 for 64 of 50000 (0.88). Gradients are alike.
_MAX_SOFTMAX_ELEMENTS, _ONEDNN_ROW_LENGTHS = 1 << 16, range(33, 1000)


def _generated(kernel: Kernel, reason: Callable[[Call], str | None]) -> Substitute:
    """A kernel of the neutral op, run for the oneDNN op in NCHW unless ``reason`` refuses it."""

    def rewritten(call: Call) -> Call | str:
        op: Any = call.op
        if op.layout != "NCHW":
            return f"it is for the layout NCHW, not {op.layout}"
        return reason(call) or replace(call, op=op.op)

    return Substitute(rewritten, "cpu", (kernel,), kernel.name, kernel.traits)


def _never(call: Call) -> str | None:
    return None


def _softmax_refusal(call: Call) -> str | None:
    out = call.outputs[0]
    if not out.is_static or prod(out.shape) <= _MAX_SOFTMAX_ELEMENTS:
        return None
    if out.shape[-1] not in _ONEDNN_ROW_LENGTHS:
        return None
    return "oneDNN is as fast for so many elements in rows of that length"


KERNELS: tuple[Row, ...] = (
    ((OneDnnPool, OneDnnPoolGrad), (_generated(PoolKernel(), _never),)),
    ((OneDnnSoftmax, OneDnnSoftmaxGrad), (_generated(LastAxisKernel(), _softmax_refusal),)),
)
