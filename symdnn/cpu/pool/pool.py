"""Pooling in NCHW and its gradients by compiled loops, over one to three dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from symdnn.cpu.launch.contiguous_launch import ContiguousLaunch, compile_refusal
from symdnn.cpu.launch.traits import LLVM_ASKS_THREADS
from symdnn.cpu.pool.pool_ir import PoolPlan, pool_ir
from symdnn.cpu.threads import threads
from symdnn.graph.kernel import Call, Kernel, Launch, Row
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array
from symdnn.ops.nn.pool import AveragePoolGrad, MaxPoolGrad, MaxPoolGradGrad, Pool

#: With fewer elements in all windows NumPy is faster than compiling.
_MIN_WINDOW_ELEMENTS_TO_COMPILE = 1 << 12
#: Elements in windows for which waking up another thread pays. With twice as many, in NHWC, two
#: threads were as fast as one (3.5 us) on two cores with AVX-512.
_WINDOW_ELEMENTS_PER_THREAD = 1 << 15
#: Wider windows are left to NumPy, which pools one dimension at a time.
_MAX_WINDOW_COLUMNS = 36

_KINDS: dict[type, str] = {
    MaxPoolGrad: "max_grad", AveragePoolGrad: "sum_grad", MaxPoolGradGrad: "gather",
}  # fmt: skip


class PoolKernel(Kernel):
    """Maximum, sum and mean of windows and their gradients, of contiguous planes."""

    name = "llvm.pool"
    traits = LLVM_ASKS_THREADS

    def refuses(self, call: Call, of: object = None) -> str | None:
        """Needs floats of 32 or 64 bits, or integers of which the maximum is wanted; one to three
        pooled dimensions, and windows of few columns.

        ``of`` is the neutral op if the call's op is a vendor's.
        """
        op: Any = of or call.op
        types = call.inputs
        dtype = types[0].dtype
        whole = op.mode == "max" and types[0].is_discrete and dtype != "bool"
        if dtype not in ("float32", "float64") and not whole:
            return "it computes in float32 and float64, and maxima of integers"
        if op.ndim > 3 or op.ws[-1] > _MAX_WINDOW_COLUMNS:
            return f"its windows are of 1 to 3 dimensions and at most {_MAX_WINDOW_COLUMNS} columns"
        tensors = [t for t in (*types, *call.outputs) if isinstance(t, TensorType)]
        return compile_refusal(
            tensors, lambda: self.work(call, op), _MIN_WINDOW_ELEMENTS_TO_COMPILE
        )

    def work(self, call: Call, op: Any) -> int:
        """Roughly the number of elements in all windows."""
        large = call.outputs[0] if is_backward(op) else call.inputs[0]
        small = call.inputs[-1] if isinstance(op, MaxPoolGrad) else call.outputs[0]
        if isinstance(op, AveragePoolGrad):
            small = call.inputs[0]
        return max(prod(large.shape), prod(small.shape) * prod(op.ws)) if prod(small.shape) else 0

    def bind(self, call: Call) -> Launch[Array]:
        """A launch whose code is for these sizes."""
        plan, planes = planned(call)
        *outer, width = plan.size if plan.backward else plan.out
        rows = prod(outer)
        overlap = prod(plan.ws) // (prod(plan.stride) if plan.backward else 1)
        work = planes * rows * width * max(1, overlap)
        return pool_launch(threads.kernel(pool_ir, plan), plan, planes * rows, work)


def is_backward(op: object) -> bool:
    """Whether the result of a neutral pooling op has the size of x."""
    return isinstance(op, MaxPoolGrad | AveragePoolGrad)


def planned(call: Call) -> tuple[PoolPlan, int]:
    """(the plan of a call, the number of planes)"""
    op: Any = call.op
    x = call.outputs[0] if is_backward(op) else call.inputs[0]
    plan = plan_of(op, x.dtype, x.shape)
    return plan, prod(x.shape[: len(x.shape) - op.ndim])


def plan_of(op: Any, dtype: str, sizes: Sequence[int]) -> PoolPlan:
    """The plan of a neutral op for x whose shape ends in the pooled ``sizes``."""
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


def pool_launch(run: Any, plan: PoolPlan, rows: int, work: int) -> Launch[Array]:
    """The launch of a compiled kernel over ``rows``; ``work`` is in elements of windows."""
    return ContiguousLaunch(
        run, [threads.threads(work, _WINDOW_ELEMENTS_PER_THREAD), rows, 1], plan.reads
    )


KERNELS: tuple[Row, ...] = (
    ((Pool, MaxPoolGrad, MaxPoolGradGrad, AveragePoolGrad), (PoolKernel(),)),
)
