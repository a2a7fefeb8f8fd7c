"""Softmax, logsumexp and argmax along an axis that is not the last, by compiled loops."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from symdnn.config import config
from symdnn.cpu import jit, threads
from symdnn.cpu.bands_ir import KINDS, WIDTH, BandPlan, band_ir
from symdnn.cpu.native import Native
from symdnn.graph.kernel import Call, Launch, register_kernel
from symdnn.ops.argreduce import ArgMax, ArgMin
from symdnn.ops.reduce import LogSumExp
from symdnn.ops.softmax import LogSoftmax, LogSoftmaxGrad, Softmax, SoftmaxGrad

__all__ = ["BandKernel", "register"]

#: Below so many elements compiling costs more than NumPy ever would.
_LEAST_WORK = 1 << 12
#: Elements for which another thread is worth waking: a softmax of (b, 8, 16, 16) takes one and two
#: threads 2.6 and 3.2 us for 4096 elements, 4.1 and 3.5 for 8192, 6.8 and 5.2 for 16384 (two cores,
#: AVX-512, lower quartiles); its gradient and argmax take half of that.
_WORK_OF_A_THREAD = 1 << 13
#: Fewer columns than this are no vectors.
_LEAST_COLUMNS = 4

_KIND: dict[type, str] = {
    Softmax: "softmax", LogSoftmax: "log_softmax", SoftmaxGrad: "softmax_grad",
    LogSoftmaxGrad: "log_softmax_grad", LogSumExp: "logsumexp", ArgMax: "argmax", ArgMin: "argmin",
}  # fmt: skip
_Words = ctypes.c_int64


class BandKernel:
    """Ops along one inner axis, bands of neighbouring columns at a time."""

    name = "llvm.bands"

    def refuses(self, call: Call) -> str | None:
        """Takes one axis before the last; float32, argmax and argmin float64 too."""
        types: Any = call.inputs
        whole, axes = types[0], _axes(call.op)
        known = ("float32", "float64") if type(call.op) in (ArgMax, ArgMin) else ("float32",)
        if any(t.dtype not in known for t in types):
            return f"it computes in {' and '.join(known)}"
        if len(axes) != 1 or axes[0] == whole.ndim - 1:
            return "it works along one axis that is not the last"
        wish = str(config.cpu.compile)
        if wish == "never":
            return "cpu.compile=never"
        if whole.is_static:
            if prod(whole.shape) == 0:
                return "there are no elements"
            if prod(whole.shape[axes[0] + 1 :]) < _LEAST_COLUMNS:
                return f"there are fewer than {_LEAST_COLUMNS} columns"
            if wish == "auto" and prod(whole.shape) < _LEAST_WORK:
                return "it is too little to compile for"
        return jit.problem() or threads.problem() or None

    def workspace_bytes(self, call: Call) -> int:
        """None."""
        return 0

    def bind(self, call: Call) -> Launch:
        """Compiled for any sizes."""
        whole: Any = call.inputs[0]
        return _Launcher(
            BandPlan(_KIND[type(call.op)], whole.dtype), whole.shape, _axes(call.op)[0]
        )


def _axes(op: Any) -> tuple[int, ...]:
    return op.axes if hasattr(op, "axes") else (op.axis,)


@lru_cache(maxsize=64)
def _compiled(plan: BandPlan) -> Any:
    threads.openmp()  # its symbols must be known before the code is linked
    return jit.compile_made(band_ir, (plan,), "kernel", ctypes.c_void_p)


class _Launcher:
    """``launch(inputs, outputs)``; operands that do not lie in C order are copied."""

    def __init__(self, plan: BandPlan, shape: tuple[int, ...], axis: int) -> None:
        self._run = _compiled(plan)
        n, inner = shape[axis], prod(shape[axis + 1 :])
        bands = -(-inner // WIDTH)
        count = threads.threads(prod(shape), _WORK_OF_A_THREAD)
        words = [count, prod(shape[:axis]) * bands, 1, n, inner, bands]
        self._at = len(words)
        words += [0] * sum(map(len, KINDS[plan.kind]))
        self._words = (_Words * len(words))(*words)

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Compute every band."""
        given = [a if a.flags.c_contiguous else np.ascontiguousarray(a) for a in inputs]
        (out,) = outputs
        made = out if out.flags.c_contiguous else np.empty(out.shape, out.dtype)
        for i, a in enumerate((*given, made), self._at):
            self._words[i] = id(a)
        self._run(self._words)
        if made is not out:
            np.copyto(out, made)

    def native(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Native | None:
        """For operands in C order."""
        arrays = (*inputs, *outputs)
        if not all(a.flags.c_contiguous for a in arrays):
            return None
        return Native.of(self._run, self._words, range(self._at, self._at + len(arrays)))


def register() -> None:
    """Enter the kernels into the table."""
    kernel = BandKernel()
    for op in _KIND:
        register_kernel(op, "cpu", kernel)
