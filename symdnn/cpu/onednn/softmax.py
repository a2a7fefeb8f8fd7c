"""Softmax, its logarithm, and their gradients by oneDNN."""

from __future__ import annotations

from typing import Any

from symdnn.cpu.onednn.kernel import (
    OnednnKernel,
    PlannedPrimitive,
    PrimitiveOperand,
    contiguous,
    with_nan_check,
)
from symdnn.cpu.onednn.objects import ALG, PROP, primitive
from symdnn.graph.kernel import Call, Row
from symdnn.ops.nn.softmax import LogSoftmax, LogSoftmaxGrad
from symdnn.ops.vendor.onednn import OneDnnSoftmax, OneDnnSoftmaxGrad


def _algorithm(op: object) -> int:
    return ALG["log_softmax" if isinstance(op, LogSoftmax | LogSoftmaxGrad) else "softmax"]


class SoftmaxKernel(OnednnKernel[OneDnnSoftmax]):
    """Softmax and log-softmax (``dnnl_softmax_forward``)."""

    name = "onednn.softmax"

    def planned(self, call: Call[OneDnnSoftmax]) -> PlannedPrimitive:
        """The primitive; both operands have the same layout."""
        op: Any = call.op.op
        x = contiguous(call.inputs[0])
        axis = op.axis % len(x.shape)
        made = primitive("softmax_forward", PROP["inference"], _algorithm(op), x, x, axis)
        return PlannedPrimitive(
            made, [PrimitiveOperand("src", x, 0), PrimitiveOperand("dst", x, 0, True)]
        )

    def bind(self, call: Call[OneDnnSoftmax]) -> Any:
        """A launch; oneDNN's softmax is NaN in one place only of a slice that has a NaN."""
        return with_nan_check(super().bind(call), call.op, of_result=True)


class SoftmaxGradKernel(OnednnKernel[OneDnnSoftmaxGrad]):
    """Gradients of softmax and log-softmax (``dnnl_softmax_backward``)."""

    name = "onednn.softmax"

    def planned(self, call: Call[OneDnnSoftmaxGrad]) -> PlannedPrimitive:
        """The primitive of (y, dy): the result of the softmax and its cotangent."""
        op: Any = call.op.op
        y = contiguous(call.inputs[0])
        axis, algorithm = op.axis % len(y.shape), _algorithm(op)
        forward = primitive("softmax_forward", PROP["training"], algorithm, y, y, axis)
        made = primitive("softmax_backward", algorithm, y, y, y, axis, forward)
        operands = [
            PrimitiveOperand("dst", y, 0),
            PrimitiveOperand("diff_dst", y, 1),
            PrimitiveOperand("diff_src", y, 0, True),
        ]
        return PlannedPrimitive(made, operands)


KERNELS: tuple[Row, ...] = (
    ((OneDnnSoftmax,), (SoftmaxKernel(),)),
    ((OneDnnSoftmaxGrad,), (SoftmaxGradKernel(),)),
)
