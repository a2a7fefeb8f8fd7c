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
from symdnn.graph.kernel import Call, Kernel, Launch, Row
from symdnn.ops.vendor.onednn import OneDnnPool, OneDnnPoolGrad, OneDnnSoftmax, OneDnnSoftmaxGrad

__all__ = ["PlainKernel", "KERNELS"]

#: Softmaxes of more elements are oneDNN's where rows have these lengths. Two cores of AVX-512 take
#: 0.47 ms for 8192 rows of 100 (oneDNN 0.25); but for 100000 of 16 0.69 (0.90), for 4096 of 1024
#: 0.88 (1.13), for 64 of 50000 0.71 (0.88), and gradients are alike.
_MOST_OF_ROWS, _MIDDLING = 1 << 16, range(33, 1000)


class PlainKernel(Kernel):
    """A kernel of a neutral op for the oneDNN op in the layout NCHW."""

    def __init__(self, kernel: Kernel, reason: Callable[[Call], str | None]) -> None:
        self._kernel, self._reason = kernel, reason
        self.name, self.traits = kernel.name, kernel.traits

    def refuses(self, call: Call) -> str | None:
        """What the kernel refuses, other layouts, and where oneDNN is as fast."""
        op: Any = call.op
        if op.layout != "NCHW":
            return f"it is for the layout NCHW, not {op.layout}"
        return self._reason(call) or self._kernel.refuses(_neutral(call))

    def workspace_bytes(self, call: Call) -> int:
        """That of the kernel."""
        return self._kernel.workspace_bytes(_neutral(call))

    def bind(self, call: Call) -> Launch:
        """The kernel's own launch."""
        return self._kernel.bind(_neutral(call))


def _neutral(call: Call) -> Call:
    op: Any = call.op
    return replace(call, op=op.op)


def _never(call: Call) -> str | None:
    return None


def _long(call: Call) -> str | None:
    out: Any = call.outputs[0]
    if not out.is_static or prod(out.shape) <= _MOST_OF_ROWS or out.shape[-1] not in _MIDDLING:
        return None
    return "oneDNN is as fast for so many elements in rows of that length"


KERNELS: tuple[Row, ...] = (
    ((OneDnnPool, OneDnnPoolGrad), (PlainKernel(PoolKernel(), _never),)),
    ((OneDnnSoftmax, OneDnnSoftmaxGrad), (PlainKernel(RowKernel(), _long),)),
)
