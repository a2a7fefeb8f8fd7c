"""Where a generated kernel beats oneDNN's, it runs the oneDNN op: planes in C order, short rows,
products.

Measured on two cores with AVX-512: oneDNN pools images in C order 3 to 15 times slower (it wants
channels last), and its softmax of 128 rows of 10 takes 1.4 times as long.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

from symdnn.cpu.pool.pool import PoolKernel
from symdnn.cpu.reduce.softmax_last_axis import RowKernel
from symdnn.graph.kernel import Call, Kernel, Row
from symdnn.graph.substitute import Substitute
from symdnn.ops.vendor.onednn import OneDnnPool, OneDnnPoolGrad, OneDnnSoftmax, OneDnnSoftmaxGrad

__all__ = ["KERNELS"]

#: Softmaxes of more elements are oneDNN's where rows have these lengths. Two cores of AVX-512 take
#: 0.47 ms for 8192 rows of 100 (oneDNN 0.25); but for 100000 of 16 0.69 (0.90), for 4096 of 1024
#: 0.88 (1.13), for 64 of 50000 0.71 (0.88), and gradients are alike.
_MOST_OF_ROWS, _MIDDLING = 1 << 16, range(33, 1000)


def _generated(kernel: Kernel, reason: Callable[[Call], str | None]) -> Substitute:
    """A kernel of a neutral op for the oneDNN op in the layout NCHW, unless there is a reason."""

    def rewritten(call: Call) -> Call | str:
        op: Any = call.op
        if op.layout != "NCHW":
            return f"it is for the layout NCHW, not {op.layout}"
        return reason(call) or replace(call, op=op.op)

    return Substitute(rewritten, "cpu", (kernel,), kernel.name, kernel.traits)


def _never(call: Call) -> str | None:
    return None


def _long(call: Call) -> str | None:
    out: Any = call.outputs[0]
    if not out.is_static or prod(out.shape) <= _MOST_OF_ROWS or out.shape[-1] not in _MIDDLING:
        return None
    return "oneDNN is as fast for so many elements in rows of that length"


KERNELS: tuple[Row, ...] = (
    ((OneDnnPool, OneDnnPoolGrad), (_generated(PoolKernel(), _never),)),
    ((OneDnnSoftmax, OneDnnSoftmaxGrad), (_generated(RowKernel(), _long),)),
)
