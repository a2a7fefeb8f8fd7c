"""Softmax, logsumexp, cross-entropy and their gradients along the last axis, by compiled loops."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from symdnn.cpu.launch.contiguous_launch import ContiguousLaunch, compile_refusal
from symdnn.cpu.launch.traits import LLVM_ASKS_THREADS
from symdnn.cpu.reduce.softmax_last_axis_ir import FLAG, KINDS, LastAxisPlan, last_axis_ir
from symdnn.cpu.threads import threads
from symdnn.graph.kernel import Call, Kernel, Launch, Row
from symdnn.graph.typing import Array
from symdnn.ops.array.reduce import LogSumExp
from symdnn.ops.nn.crossentropy import SoftmaxCrossentropy, SoftmaxCrossentropyGrad, check_labels
from symdnn.ops.nn.softmax import LogSoftmax, LogSoftmaxGrad, Softmax, SoftmaxGrad

__all__ = ["SOFTMAX_OPS", "LastAxisKernel", "KERNELS"]

#: With fewer elements NumPy is faster than compiling.
_MIN_ELEMENTS_TO_COMPILE = 1 << 9
#: Elements for which waking up another thread pays.
_ELEMENTS_PER_THREAD = 1 << 13
#: Dtypes of rows; all operands but labels have the same one.
_DTYPES = frozenset({"float32", "float64", "bfloat16", "float16"})
#: The length of rows up to this is a constant of the code.
_MAX_CONSTANT_LENGTH = 64

#: Softmax ops, along any axis, and their names in the generators.
SOFTMAX_OPS: dict[type, str] = {
    Softmax: "softmax", LogSoftmax: "log_softmax", SoftmaxGrad: "softmax_grad",
    LogSoftmaxGrad: "log_softmax_grad", LogSumExp: "logsumexp",
}  # fmt: skip
_KIND = {
    **SOFTMAX_OPS, SoftmaxCrossentropy: "crossentropy",
    SoftmaxCrossentropyGrad: "crossentropy_grad",
}  # fmt: skip


class LastAxisKernel(Kernel):
    """Softmax ops along the last axis, a row at a time."""

    name = "llvm.rows"
    traits = LLVM_ASKS_THREADS

    def refuses(self, call: Call) -> str | None:
        """Needs floats of one dtype, and the last axis."""
        op: Any = call.op
        types = (*call.inputs, *call.outputs)
        whole = _whole(call)
        if whole.dtype not in _DTYPES or any(t.is_float and t.dtype != whole.dtype for t in types):
            return "it takes floats of one dtype"
        axes = op.axes if isinstance(op, LogSumExp) else (op.axis,)
        if axes != (whole.ndim - 1,):
            return "it works along the last axis"
        return compile_refusal(types, lambda: prod(whole.shape), _MIN_ELEMENTS_TO_COMPILE)

    def bind(self, call: Call) -> Launch[Array]:
        """A launch whose code serves short rows of this length, or all long rows."""
        whole = _whole(call)
        shape = whole.shape
        kind, n = _KIND[type(call.op)], shape[-1]
        reads = KINDS[kind][0]
        label = call.inputs[reads.index("l")].dtype if "l" in reads else "int64"
        plan = LastAxisPlan(kind, n if n <= _MAX_CONSTANT_LENGTH else 0, label, whole.dtype)
        return _LastAxisLaunch(call.op, plan, shape)


def _whole(call: Call) -> Any:
    """The type of an operand or result that has the full shape."""
    return call.inputs[0] if isinstance(call.op, LogSumExp) else call.outputs[-1]


class _LastAxisLaunch(ContiguousLaunch):
    """``launch(inputs, outputs)`` for rows; a label out of range is an error."""

    def __init__(self, op: Any, plan: LastAxisPlan, shape: tuple[int, ...]) -> None:
        reads, writes = KINDS[plan.kind]
        self._op, self._classes = op, shape[-1]
        self._label = reads.find("l")
        count = threads.threads(prod(shape), _ELEMENTS_PER_THREAD)
        super().__init__(
            threads.kernel(last_axis_ir, plan), [count, prod(shape[:-1]), 1, 0, shape[-1]],
            len(reads), len(writes), -1 if self._label < 0 else FLAG,
        )  # fmt: skip

    def failed(self, inputs: Sequence[Array]) -> None:
        """Raise the error that names the label out of range."""
        check_labels(self._op, inputs[self._label], self._classes)


KERNELS: tuple[Row, ...] = ((tuple(_KIND), (LastAxisKernel(),)),)
