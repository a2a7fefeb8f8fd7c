"""Softmax, logsumexp, cross-entropy and their gradients by compiled loops over rows of float32."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from symdnn.config import config
from symdnn.cpu import jit, threads
from symdnn.cpu.native import Native
from symdnn.cpu.rows_ir import FLAG, KINDS, RowPlan, row_ir
from symdnn.graph.kernel import Call, Launch, register_kernel
from symdnn.ops.crossentropy import SoftmaxCrossentropy, SoftmaxCrossentropyGrad, check_labels
from symdnn.ops.reduce import LogSumExp
from symdnn.ops.softmax import LogSoftmax, LogSoftmaxGrad, Softmax, SoftmaxGrad

__all__ = ["RowKernel", "register"]

#: Below so many elements compiling costs more than NumPy ever would.
_LEAST_WORK = 1 << 9
#: Elements for which another thread is worth waking.
_WORK_OF_A_THREAD = 1 << 13
#: Rows up to this length have it in the source.
_SHORT = 64

_KIND: dict[type, str] = {
    Softmax: "softmax", LogSoftmax: "log_softmax", SoftmaxGrad: "softmax_grad",
    LogSoftmaxGrad: "log_softmax_grad", SoftmaxCrossentropy: "crossentropy",
    SoftmaxCrossentropyGrad: "crossentropy_grad", LogSumExp: "logsumexp",
}  # fmt: skip
_Words = ctypes.c_int64


class RowKernel:
    """Ops along the last axis, a row at a time."""

    name = "llvm.rows"

    def refuses(self, call: Call) -> str | None:
        """Takes float32 along the last axis."""
        op: Any = call.op
        types: Any = (*call.inputs, *call.outputs)
        whole = _whole(call)
        if any(t.is_float and t.dtype != "float32" for t in types) or not whole.is_float:
            return "it computes in float32"
        axes = op.axes if isinstance(op, LogSumExp) else (op.axis,)
        if axes != (whole.ndim - 1,):
            return "it works along the last axis"
        wish = str(config.cpu.compile)
        if wish == "never":
            return "cpu.compile=never"
        if all(t.is_static for t in types):
            if prod(whole.shape) == 0:
                return "there are no elements"
            if wish == "auto" and prod(whole.shape) < _LEAST_WORK:
                return "it is too little to compile for"
        return jit.problem() or threads.problem() or None

    def workspace_bytes(self, call: Call) -> int:
        """None."""
        return 0

    def bind(self, call: Call) -> Launch:
        """Compiled for short rows of this length, or for any long ones."""
        shape = _whole(call).shape
        kind, n = _KIND[type(call.op)], shape[-1]
        reads = KINDS[kind][0]
        label = call.inputs[reads.index("l")].dtype if "l" in reads else "int64"  # type: ignore[attr-defined]
        return _Launcher(call.op, RowPlan(kind, n if n <= _SHORT else 0, label), shape)


def _whole(call: Call) -> Any:
    """The type of the operand or result that has all rows in full."""
    return call.inputs[0] if isinstance(call.op, LogSumExp) else call.outputs[-1]


@lru_cache(maxsize=256)
def _compiled(plan: RowPlan) -> Any:
    threads.openmp()  # its symbols must be known before the code is linked
    return jit.compile_made(row_ir, (plan,), "kernel", ctypes.c_void_p)


class _Launcher:
    """``launch(inputs, outputs)``; operands that do not lie in C order are copied."""

    def __init__(self, op: Any, plan: RowPlan, shape: tuple[int, ...]) -> None:
        self._op, self._run = op, _compiled(plan)
        reads, writes = KINDS[plan.kind]
        self._label = reads.index("l") if "l" in reads else None
        count = threads.threads(prod(shape), _WORK_OF_A_THREAD)
        words = [count, prod(shape[:-1]), 1, 0, shape[-1], *[0] * (len(reads) + len(writes))]
        self._words, self._classes = (_Words * len(words))(*words), shape[-1]

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Compute every row; a label out of range is an error then."""
        given = [a if a.flags.c_contiguous else np.ascontiguousarray(a) for a in inputs]
        made = [o if o.flags.c_contiguous else np.empty(o.shape, o.dtype) for o in outputs]
        words = self._words
        for i, a in enumerate((*given, *made), FLAG + 2):
            words[i] = id(a)
        self._run(words)
        if self._label is not None and words[FLAG]:
            words[FLAG] = 0
            check_labels(self._op, inputs[self._label], self._classes)
        for whole, out in zip(made, outputs):
            if whole is not out:
                np.copyto(out, whole)

    def native(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Native | None:
        """For operands in C order; a label out of range stops it."""
        arrays = (*inputs, *outputs)
        if not all(a.flags.c_contiguous for a in arrays):
            return None
        at = range(FLAG + 2, FLAG + 2 + len(arrays))
        return Native.of(self._run, self._words, at, status=-1 if self._label is None else FLAG)


def register() -> None:
    """Enter the kernels into the table."""
    kernel = RowKernel()
    for op in _KIND:
        register_kernel(op, "cpu", kernel, first=True)
