"""Softmax, logsumexp, cross-entropy and their gradients by compiled loops over rows."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from symdnn.cpu.launch.contiguous_launch import InOrder, uncompiled
from symdnn.cpu.launch.traits import LLVM_ASKING
from symdnn.cpu.reduce.softmax_last_axis_ir import FLAG, KINDS, RowPlan, row_ir
from symdnn.cpu.threads import threads
from symdnn.graph.kernel import Call, Kernel, Launch, Row
from symdnn.ops.array.reduce import LogSumExp
from symdnn.ops.nn.crossentropy import SoftmaxCrossentropy, SoftmaxCrossentropyGrad, check_labels
from symdnn.ops.nn.softmax import LogSoftmax, LogSoftmaxGrad, Softmax, SoftmaxGrad

__all__ = ["SOFTMAX_OPS", "RowKernel", "KERNELS"]

#: Below so many elements compiling costs more than NumPy ever would.
_LEAST_WORK = 1 << 9
#: Elements for which another thread is worth waking.
_WORK_OF_A_THREAD = 1 << 13
#: What rows are of: one dtype, whatever labels are.
_DTYPES = frozenset({"float32", "bfloat16", "float16"})
#: Rows up to this length have it in the source.
_SHORT = 64

#: The kinds of softmax and its kin, along whichever axis.
SOFTMAX_OPS: dict[type, str] = {
    Softmax: "softmax", LogSoftmax: "log_softmax", SoftmaxGrad: "softmax_grad",
    LogSoftmaxGrad: "log_softmax_grad", LogSumExp: "logsumexp",
}  # fmt: skip
_KIND = {
    **SOFTMAX_OPS, SoftmaxCrossentropy: "crossentropy",
    SoftmaxCrossentropyGrad: "crossentropy_grad",
}  # fmt: skip


class RowKernel(Kernel):
    """Ops along the last axis, a row at a time."""

    name = "llvm.rows"
    traits = LLVM_ASKING

    def refuses(self, call: Call) -> str | None:
        """Takes float32, or floats of 16 bits, along the last axis."""
        op: Any = call.op
        types: Any = (*call.inputs, *call.outputs)
        whole = _whole(call)
        if whole.dtype not in _DTYPES or any(t.is_float and t.dtype != whole.dtype for t in types):
            return "it computes in float32"
        axes = op.axes if isinstance(op, LogSumExp) else (op.axis,)
        if axes != (whole.ndim - 1,):
            return "it works along the last axis"
        return uncompiled(types, lambda: prod(whole.shape), _LEAST_WORK)

    def bind(self, call: Call) -> Launch:
        """Compiled for short rows of this length, or for any long ones."""
        whole = _whole(call)
        shape = whole.shape
        kind, n = _KIND[type(call.op)], shape[-1]
        reads = KINDS[kind][0]
        label = call.inputs[reads.index("l")].dtype if "l" in reads else "int64"
        plan = RowPlan(kind, n if n <= _SHORT else 0, label, whole.dtype)
        return _Launcher(call.op, plan, shape)


def _whole(call: Call) -> Any:
    """The type of the operand or result that has all rows in full."""
    return call.inputs[0] if isinstance(call.op, LogSumExp) else call.outputs[-1]


class _Launcher(InOrder):
    """``launch(inputs, outputs)`` for rows; a label out of range is an error."""

    def __init__(self, op: Any, plan: RowPlan, shape: tuple[int, ...]) -> None:
        reads, writes = KINDS[plan.kind]
        self._op, self._classes = op, shape[-1]
        self._label = reads.find("l")
        count = threads.threads(prod(shape), _WORK_OF_A_THREAD)
        super().__init__(
            threads.kernel(row_ir, plan), [count, prod(shape[:-1]), 1, 0, shape[-1]],
            len(reads), len(writes), -1 if self._label < 0 else FLAG,
        )  # fmt: skip

    def failed(self, inputs: Sequence[Any]) -> None:
        """Say which label is out of range."""
        check_labels(self._op, inputs[self._label], self._classes)


KERNELS: tuple[Row, ...] = ((tuple(_KIND), (RowKernel(),)),)
