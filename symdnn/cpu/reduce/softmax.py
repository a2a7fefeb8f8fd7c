"""Softmax, logsumexp, cross-entropy and their gradients along an axis, by compiled loops."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from symdnn.cpu.elementwise.copies import CopyingLaunch
from symdnn.cpu.launch.contiguous_launch import compile_refusal
from symdnn.cpu.launch.traits import LLVM, LLVM_ASKS_THREADS
from symdnn.cpu.reduce.softmax_ir import BAND_COLUMNS, FLAG, KINDS, SoftmaxPlan, softmax_ir
from symdnn.cpu.threads import threads
from symdnn.graph.kernel import Call, Kernel, Launch, Row
from symdnn.graph.typing import Array
from symdnn.ops.array.reduce import LogSumExp
from symdnn.ops.nn.crossentropy import SoftmaxCrossentropy, SoftmaxCrossentropyGrad, check_labels
from symdnn.ops.nn.softmax import (
    LogSoftmax,
    LogSoftmaxGrad,
    LogSoftmaxGradOfLogits,
    Softmax,
    SoftmaxGrad,
)

__all__ = ["InnerAxisKernel", "KERNELS", "LastAxisKernel"]

#: With fewer elements NumPy is faster than compiling: rows, bands.
_MIN_ELEMENTS_OF_ROWS, _MIN_ELEMENTS_OF_BANDS = 1 << 9, 1 << 12
#: Elements for which waking up another thread pays. A softmax of (b, 8, 16, 16) takes 2.6 us with
#: one thread and 3.2 with two for 4096 elements, 4.1 and 3.5 for 8192, 6.8 and 5.2 for 16384 (two
#: cores, AVX-512, lower quartiles). Its gradient takes half of that.
_ELEMENTS_PER_THREAD = 1 << 13
#: Dtypes of lines; all operands but labels have the same one.
_DTYPES = frozenset({"float32", "float64", "bfloat16", "float16"})
#: The length of rows up to this is a constant of the code.
_MAX_CONSTANT_LENGTH = 256
#: Fewer columns do not fill a vector.
_MIN_COLUMNS = 4

_ALONG_ANY: dict[type, str] = {
    Softmax: "softmax", LogSoftmax: "log_softmax", SoftmaxGrad: "softmax_grad",
    LogSoftmaxGrad: "log_softmax_grad", LogSumExp: "logsumexp",
    LogSoftmaxGradOfLogits: "log_softmax_grad_of_logits",
}  # fmt: skip
_KIND = {
    **_ALONG_ANY, SoftmaxCrossentropy: "crossentropy",
    SoftmaxCrossentropyGrad: "crossentropy_grad",
}  # fmt: skip


def _axes(op: Any) -> tuple[int, ...]:
    return op.axes if isinstance(op, LogSumExp) else (op.axis,)


def _whole(call: Call) -> Any:
    """The type of an operand or result that has the full shape."""
    return call.inputs[0] if isinstance(call.op, LogSumExp) else call.outputs[-1]


def _of_one_dtype(call: Call) -> bool:
    whole, types = _whole(call), (*call.inputs, *call.outputs)
    return whole.dtype in _DTYPES and all(t.dtype == whole.dtype for t in types if t.is_float)


class LastAxisKernel(Kernel):
    """Softmax ops along the last axis, a row at a time."""

    name = "llvm.rows"
    traits = LLVM_ASKS_THREADS

    def refuses(self, call: Call) -> str | None:
        """Needs floats of one dtype, and the last axis."""
        whole = _whole(call)
        if not _of_one_dtype(call):
            return "it takes floats of one dtype"
        if _axes(call.op) != (whole.ndim - 1,):
            return "it works along the last axis"
        types = (*call.inputs, *call.outputs)
        return compile_refusal(types, lambda: prod(whole.shape), _MIN_ELEMENTS_OF_ROWS)

    def bind(self, call: Call) -> Launch[Array]:
        """A launch whose code serves short rows of this length, or all long rows."""
        whole = _whole(call)
        shape, kind = whole.shape, _KIND[type(call.op)]
        n, reads = shape[-1], KINDS[kind][0]
        label = call.inputs[reads.index("l")].dtype if "l" in reads else "int64"
        plan = SoftmaxPlan(kind, n if n <= _MAX_CONSTANT_LENGTH else 0, label, whole.dtype)
        return _SoftmaxLaunch(call.op, plan, shape, prod(shape[:-1]), [n])


class InnerAxisKernel(Kernel):
    """Softmax ops along an axis that is not the last, a band of columns at a time."""

    name = "llvm.bands"
    traits = LLVM

    def refuses(self, call: Call) -> str | None:
        """Needs floats of one dtype, and one axis before the last."""
        whole, axes = _whole(call), _axes(call.op)
        if not _of_one_dtype(call):
            return "it takes floats of one dtype"
        if len(axes) != 1 or axes[0] == whole.ndim - 1:
            return "it works along one axis that is not the last"
        if whole.is_static and 0 < prod(whole.shape[axes[0] + 1 :]) < _MIN_COLUMNS:
            return f"there are fewer than {_MIN_COLUMNS} columns"
        return compile_refusal((whole,), lambda: prod(whole.shape), _MIN_ELEMENTS_OF_BANDS)

    def bind(self, call: Call) -> Launch[Array]:
        """A launch whose code serves all sizes."""
        whole = _whole(call)
        shape, axis = whole.shape, _axes(call.op)[0]
        plan = SoftmaxPlan(_ALONG_ANY[type(call.op)], dtype=whole.dtype, bands=True)
        n, inner = shape[axis], prod(shape[axis + 1 :])
        bands = -(-inner // BAND_COLUMNS)
        return _SoftmaxLaunch(call.op, plan, shape, prod(shape[:axis]) * bands, [n, inner, bands])


class _SoftmaxLaunch(CopyingLaunch):
    """``launch(inputs, outputs)`` of lines; a label out of range is an error."""

    def __init__(
        self, op: Any, plan: SoftmaxPlan, shape: tuple[int, ...], tasks: int, sizes: Sequence[int]
    ) -> None:
        reads, writes = KINDS[plan.kind]
        self._op, self._classes = op, shape[-1]
        self._label = reads.find("l")
        count = threads.threads(prod(shape), _ELEMENTS_PER_THREAD)
        super().__init__(
            threads.kernel(softmax_ir, plan), [count, tasks, 1, 0, *sizes],
            len(reads), len(writes), -1 if self._label < 0 else FLAG,
        )  # fmt: skip

    def failed(self, inputs: Sequence[Array]) -> None:
        """Raise the error that names the label out of range."""
        check_labels(self._op, inputs[self._label], self._classes)


KERNELS: tuple[Row, ...] = (
    (tuple(_KIND), (LastAxisKernel(),)),
    (tuple(_ALONG_ANY), (InnerAxisKernel(),)),
)
