"""A step of a plan that somebody watches: what it reads and writes, seen on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from symdnn.gpu.device.array import RawArray
from symdnn.gpu.device.memory import PendingCopy
from symdnn.graph.runtime import Watcher, garbage
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply, Variable

if TYPE_CHECKING:
    from symdnn.gpu.execution.plan import CudaPlan, Step

__all__ = ["run_watched"]

Values = dict[Variable, Any]


def run_watched(plan: CudaPlan, step: Step, values: Values, watcher: Watcher) -> None:
    """Tell ``watcher`` before and after ``step``, which may call functions itself meanwhile."""
    node = step.node
    operands = [(v, plan.operand(node, i, v, values)) for i, v in enumerate(node.inputs)]
    inputs = [_seen(plan, v, value) for v, value in operands]
    with plan.rt.watched(plan.memory.arena_bytes):
        watcher(node, inputs, None)
    if watcher.garbage:
        _fill_with_garbage(plan, node, values)
    step.run(node, values)
    outputs = [_seen(plan, v, values[v]) for v in node.outputs]
    with plan.rt.watched(plan.memory.arena_bytes):
        watcher(node, inputs, outputs)


def _fill_with_garbage(plan: CudaPlan, node: Apply, values: Values) -> None:
    """What a node is to write, where it writes over none of its inputs, is full of garbage."""
    read = [plan.operand(node, i, v, values) for i, v in enumerate(node.inputs)]
    spans = [a.extent for a in read if isinstance(a, RawArray)]
    for v in node.outputs:
        a = values.get(v)
        if isinstance(a, RawArray) and a.size:
            low, high = a.extent
            if all(high <= begin or end <= low for begin, end in spans):
                plan.place(garbage(a.shape, v.type.numpy), a)


def _seen(plan: CudaPlan, v: Variable, value: Any) -> Any:
    """A value as a watcher sees it: a tensor on the host, anything else as it is."""
    if isinstance(value, RawArray) and isinstance(v.type, TensorType):
        return plan.rt.to_host(plan.dense(value, value.contiguous))
    if isinstance(value, PendingCopy):
        plan.rt.memory.synchronize()
        return value.finish()
    return value
