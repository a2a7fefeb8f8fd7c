"""Pooling and its gradients by compiled loops: planes of one or two pooled dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from symdnn.cpu.launch.contiguous_launch import InOrder, uncompiled
from symdnn.cpu.launch.traits import LLVM
from symdnn.cpu.pool.pool_ir import PoolPlan, pool_ir
from symdnn.cpu.threads import threads
from symdnn.graph.kernel import Call, Kernel, Launch, Row
from symdnn.graph.type import TensorType
from symdnn.ops.nn.pool import AveragePoolGrad, MaxPoolGrad, MaxPoolGradGrad, Pool

__all__ = ["PoolKernel", "is_backward", "launcher", "plan_of", "KERNELS"]

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


class PoolKernel(Kernel):
    """Maximum, sum and mean of windows and their gradients, of planes that lie in C order."""

    name = "llvm.pool"
    traits = LLVM

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
        given = [t for t in (*types, *call.outputs) if isinstance(t, TensorType)]
        return uncompiled(given, lambda: self.work(call, op), _LEAST_WORK)

    def work(self, call: Call, op: Any) -> int:
        """Elements that all windows hold, roughly."""
        large: Any = call.outputs[0] if is_backward(op) else call.inputs[0]
        small: Any = call.inputs[-1] if isinstance(op, MaxPoolGrad) else call.outputs[0]
        if isinstance(op, AveragePoolGrad):
            small = call.inputs[0]
        return max(prod(large.shape), prod(small.shape) * prod(op.ws)) if prod(small.shape) else 0

    def bind(self, call: Call) -> Launch:
        """Compiled for these sizes."""
        plan, planes = planned(call)
        rows, width = plan.size if plan.backward else plan.out
        overlap = prod(plan.ws) // (prod(plan.stride) if plan.backward else 1)
        work = planes * rows * width * max(1, overlap)
        return launcher(threads.kernel(pool_ir, plan), plan, planes * rows, work)


def is_backward(op: Any) -> bool:
    """Whether a neutral op of pooling makes what has the size of x."""
    return isinstance(op, MaxPoolGrad | AveragePoolGrad)


def planned(call: Call) -> tuple[PoolPlan, int]:
    """(the kernel's plan, the number of planes)"""
    op: Any = call.op
    x: Any = call.outputs[0] if is_backward(op) else call.inputs[0]
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


def launcher(run: Any, plan: PoolPlan, rows: int, work: int) -> Launch:
    """The launch of a compiled kernel with so many rows; ``work`` is in elements of windows."""
    return InOrder(run, [threads.threads(work, _WORK_OF_A_THREAD), rows, 1], plan.reads)


KERNELS: tuple[Row, ...] = (
    ((Pool, MaxPoolGrad, MaxPoolGradGrad, AveragePoolGrad), (PoolKernel(),)),
)
