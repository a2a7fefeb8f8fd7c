"""A step of a plan with a watcher, which sees inputs and outputs, and what the step took."""

from __future__ import annotations

from typing import Any

from symdnn.gpu.device.array import RawArray
from symdnn.gpu.device.memory import PendingCopy
from symdnn.gpu.execution.operands import Operands, Step, Values
from symdnn.graph.runtime import Watcher, garbage
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply, Variable


def run_watched(operands: Operands, step: Step, values: Values, watcher: Watcher) -> None:
    """Call ``watcher`` before and after ``step``. The watcher may call functions itself."""
    node, device = step.node, operands.device
    seen = _on_host if watcher.reads_values else _as_it_is
    inputs = [
        seen(operands, v, operands.operand(node, i, v, values)) for i, v in enumerate(node.inputs)
    ]
    with device.watched(operands.memory.arena_bytes, operands.registered):
        watcher(node, inputs, None)
    if watcher.garbage:
        _fill_with_garbage(operands, node, values)
    watcher.device_seconds = device.seconds_of(lambda: step.run(node, values))
    outputs = [seen(operands, v, values[v]) for v in node.outputs]
    with device.watched(operands.memory.arena_bytes, operands.registered):
        watcher(node, inputs, outputs)


def _fill_with_garbage(operands: Operands, node: Apply, values: Values) -> None:
    """Fill the outputs of a node with garbage, except those that alias an input."""
    read = [operands.operand(node, i, v, values) for i, v in enumerate(node.inputs)]
    spans = [a.extent for a in read if isinstance(a, RawArray)]
    for v in node.outputs:
        a = values.get(v)
        if isinstance(a, RawArray) and a.size:
            low, high = a.extent
            if all(high <= begin or end <= low for begin, end in spans):
                operands.copy_to(garbage(a.shape, v.type.numpy), a)


def _on_host(operands: Operands, v: Variable, value: Any) -> Any:
    """A value for a watcher: a tensor as a NumPy array, anything else as it is."""
    if isinstance(value, RawArray) and isinstance(v.type, TensorType):
        return operands.device.to_host(operands.contiguous(value, value.contiguous))
    if isinstance(value, PendingCopy):
        operands.device.memory.synchronize()
        return value.finish()
    return value


def _as_it_is(operands: Operands, v: Variable, value: Any) -> Any:
    return value
