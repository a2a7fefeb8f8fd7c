"""Pooling and its gradients by compiled loops: planes of one or two pooled dimensions."""

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
from symdnn.cpu.pool_ir import PoolPlan, pool_ir
from symdnn.graph.kernel import Call, Launch, register_kernel
from symdnn.graph.type import TensorType
from symdnn.ops.pool import AveragePoolGrad, MaxPoolGrad, MaxPoolGradGrad, Pool

__all__ = ["PoolKernel", "PoolLauncher", "plan_of", "register"]

#: Below so many elements that windows hold, compiling costs more than NumPy ever would.
_LEAST_WORK = 1 << 12
#: Elements in windows for which another thread is worth waking: two threads were as fast as one
#: (3.5 us) at twice as many, with channels last, on two cores with AVX-512.
_WORK_OF_A_THREAD = 1 << 15
#: Windows of more elements than this are left to NumPy, which takes one dimension at a time.
_LARGEST_WINDOW = 36

_KINDS: dict[type, str] = {
    MaxPoolGrad: "max_grad", AveragePoolGrad: "sum_grad", MaxPoolGradGrad: "gather",
}  # fmt: skip
_Words = ctypes.c_int64


class PoolKernel:
    """Maximum, sum and mean of windows and their gradients, of planes that lie in C order."""

    name = "llvm.pool"

    def refuses(self, call: Call, of: Any = None) -> str | None:
        """Takes one or two pooled dimensions of float32 and float64, in windows that are small.

        ``of`` is the neutral op where the call's is another.
        """
        op: Any = of or call.op
        types: Any = call.inputs
        if types[0].dtype not in ("float32", "float64"):
            return "it computes in float32 and float64"
        if op.ndim > 2 or prod(op.ws) > _LARGEST_WINDOW:
            return f"its windows are of 1 or 2 dimensions and at most {_LARGEST_WINDOW} elements"
        wish = str(config.cpu.compile)
        if wish == "never":
            return "cpu.compile=never"
        given = [t for t in (*types, *call.outputs) if isinstance(t, TensorType)]
        if all(t.is_static for t in given):
            work = self.work(call, op)
            if work == 0:
                return "there are no elements"
            if wish == "auto" and work < _LEAST_WORK:
                return "it is too little to compile for"
        return jit.problem() or threads.problem() or None

    def work(self, call: Call, op: Any) -> int:
        """Elements that all windows hold, roughly."""
        large: Any = call.outputs[0] if _backward(op) else call.inputs[0]
        small: Any = call.inputs[-1] if isinstance(op, MaxPoolGrad) else call.outputs[0]
        if isinstance(op, AveragePoolGrad):
            small = call.inputs[0]
        return max(prod(large.shape), prod(small.shape) * prod(op.ws)) if prod(small.shape) else 0

    def workspace_bytes(self, call: Call) -> int:
        """None."""
        return 0

    def bind(self, call: Call) -> Launch:
        """Compiled for these sizes."""
        plan, planes = planned(call)
        rows, width = plan.size if plan.backward else plan.out
        overlap = prod(plan.ws) // (prod(plan.stride) if plan.backward else 1)
        work = planes * rows * width * max(1, overlap)
        return PoolLauncher(_compiled(plan), plan, planes * rows, work)


def _backward(op: Any) -> bool:
    return isinstance(op, MaxPoolGrad | AveragePoolGrad)


def planned(call: Call) -> tuple[PoolPlan, int]:
    """(the kernel's plan, the number of planes)"""
    op: Any = call.op
    x: Any = call.outputs[0] if _backward(op) else call.inputs[0]
    plan = plan_of(op, x.dtype, x.shape)
    return plan, prod(x.shape[: len(x.shape) - op.ndim])


def plan_of(op: Any, dtype: str, sizes: Sequence[int]) -> PoolPlan:
    """The kernel of a neutral op; ``sizes`` of what is pooled end in the pooled ones."""
    axes = op._axes(sizes)
    weights = None
    if op.mode.startswith("average"):
        inner = [tuple(1.0 / c for c in a.counts(op.mode == "average_inc_pad")) for a in axes]
        weights = tuple([(1.0,)] * (2 - len(axes)) + inner)
    kind = _KINDS.get(type(op)) or ("max" if op.mode == "max" else "sum")
    return PoolPlan(
        kind, dtype, _pair(axes, "n", 1), _pair(axes, "out", 1), _pair(axes, "ws", 1),
        _pair(axes, "stride", 1), _pair(axes, "pad", 0), weights,
    )  # fmt: skip


def _pair(axes: Sequence[Any], field: str, default: int) -> Any:
    found = [int(getattr(a, field)) for a in axes]
    return tuple([default] * (2 - len(found)) + found)


@lru_cache(maxsize=1024)
def _compiled(plan: PoolPlan) -> Any:
    threads.openmp()  # its symbols must be known before the code is linked
    return jit.compile_made(pool_ir, (plan,), "kernel", ctypes.c_void_p)


class PoolLauncher:
    """``launch(inputs, outputs)``; operands that do not lie in C order are copied."""

    def __init__(self, run: Any, plan: PoolPlan, rows: int, work: int) -> None:
        self._run, self._reads = run, plan.reads
        count = threads.threads(work, _WORK_OF_A_THREAD)
        self._words = (_Words * (4 + plan.reads))(count, rows, 1)

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Compute every row."""
        arrays = [
            a if a.flags.c_contiguous else np.ascontiguousarray(a) for a in inputs[: self._reads]
        ]
        (out,) = outputs
        whole = out if out.flags.c_contiguous else np.empty(out.shape, out.dtype)
        words = self._words
        for i, a in enumerate((*arrays, whole), 3):
            words[i] = id(a)
        self._run(words)
        if whole is not out:
            np.copyto(out, whole)

    def native(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Native | None:
        """For operands in C order."""
        read = inputs[: self._reads]
        if not all(a.flags.c_contiguous for a in (*read, *outputs)):
            return None
        unread = [-1] * (len(inputs) - self._reads)
        at = (*range(3, 3 + self._reads), *unread, 3 + self._reads)
        return Native.of(self._run, self._words, at)


def register() -> None:
    """Enter the kernels into the table."""
    kernel = PoolKernel()
    for op in (Pool, MaxPoolGrad, MaxPoolGradGrad, AveragePoolGrad):
        register_kernel(op, "cpu", kernel)
