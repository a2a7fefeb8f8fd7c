"""Shapes as data: arrays whose entries are symbolic sizes go through nodes entry by entry.

``Shape`` makes such arrays. Nodes that move entries (``Gather``, ``Concat``, ...) run on their
places in a list, and nodes of arithmetic run on one entry at a time. So a ``Reshape`` at the end
of the chain sees the sizes themselves, by number or by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from symdnn.graph.variable import Variable
from symdnn.onnx.model.node import Node
from symdnn.onnx.model.values import Value, array_of_objects

#: Ops that move elements -> the inputs that hold them (None: all).
_MOVES: dict[str, tuple[int, ...] | None] = {
    "Gather": (0,), "Concat": None, "Slice": (0,), "Squeeze": (0,), "Unsqueeze": (0,),
    "Reshape": (0,), "Identity": (0,), "Split": (0,), "Transpose": (0,), "Expand": (0,),
    "Flatten": (0,), "Tile": (0,), "GatherElements": (0,), "GatherND": (0,),
    "ScatterElements": (0, 2), "ScatterND": (0, 2), "ReverseSequence": (0,), "Compress": (0,),
}  # fmt: skip

_EACH = frozenset({
    "Add", "Sub", "Mul", "Div", "Mod", "Max", "Min", "Neg", "Abs", "Cast", "CastLike", "Floor",
    "Ceil", "Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual", "Where", "Not", "And",
    "Or", "Sqrt", "Pow", "Sum", "Sign", "Clip", "Round",
})  # fmt: skip

_TOTALS = {"ReduceProd": "Mul", "ReduceSum": "Add", "ReduceMax": "Max", "ReduceMin": "Min"}

_MOST_ENTRIES = 64

Run = Callable[[Node], list[Any]]


def of_sizes(node: Node, run: Run) -> list[Any] | None:
    """The outputs of a node with symbolic sizes among its inputs; None if it is no such node.

    ``run`` builds a node on inputs whose entries are ints.
    """
    if not any(isinstance(v, Value) and v.has_sizes for v in node.inputs):
        return None
    present = [v for v in node.inputs if v is not None]
    if not all(isinstance(v, Value) and v.data is not None for v in present):
        return None
    if sum(v.data.size for v in present) > _MOST_ENTRIES:
        return None
    if node.op in _MOVES:
        return _moved(node, run)
    if node.op in _EACH:
        return _each(node, run)
    return _total(node, run) if node.op in _TOTALS else None


def _moved(node: Node, run: Run) -> list[Any] | None:
    """The node on the places of entries in a list of all."""
    moved = _MOVES[node.op]
    holders = range(len(node.inputs)) if moved is None else moved
    entries: list[Any] = []
    inputs = list(node.inputs)
    for i in holders:
        value = inputs[i] if i < len(inputs) else None
        if value is None:
            continue
        places = np.arange(len(entries), len(entries) + value.data.size)
        entries += list(value.data.ravel())
        inputs[i] = Value.of(places.reshape(value.data.shape))
    if any(v is not None and v.has_sizes for v in inputs):
        return None
    kind = node.inputs[holders[0]].kind
    return [
        v if v is None else Value(None, kind, _of_entries([entries[p] for p in v.array.ravel()],
                                                          v.array.shape, kind))
        for v in run(replace(node, inputs=inputs))
    ]  # fmt: skip


def _of_entries(entries: list[Any], shape: tuple[int, ...], kind: str) -> Any:
    """An array of entries: of the kind's dtype if all are numbers."""
    if not any(isinstance(e, Variable) for e in entries):
        return np.array(entries, dtype=kind).reshape(shape)
    return array_of_objects(entries).reshape(shape)


def _scalar(entry: Any, kind: str) -> Value:
    if isinstance(entry, Variable):
        return Value(entry, kind)
    return Value.of(np.asarray(entry, dtype=kind))


def _entry_of(value: Value) -> Any:
    """The entry that a scalar result is."""
    return value.variable if value.array is None else value.array.reshape(())[()]


def _each(node: Node, run: Run) -> list[Any]:
    """The node on one entry after the other."""
    given = [v if v is None else np.asarray(v.data) for v in node.inputs]
    arrays = [a for a in given if a is not None]
    wide = iter(np.broadcast_arrays(*arrays))
    broad = [None if a is None else next(wide) for a in given]
    shape = np.broadcast_shapes(*(a.shape for a in arrays))
    entries, kind = [], ""
    for place in np.ndindex(*shape):
        scalars = [
            None if a is None else _scalar(a[place], v.kind) for a, v in zip(broad, node.inputs)
        ]
        (out,) = run(replace(node, inputs=scalars))
        kind = out.kind
        entries.append(_entry_of(out))
    return [Value(None, kind, _of_entries(entries, shape, kind))]


def _total(node: Node, run: Run) -> list[Any] | None:
    """A reduction over all entries of a vector."""
    value = node.inputs[0]
    axes = node.setting("axes", 1)
    if value.ndim != 1 or not (axes is None or list(axes) in ([0], [-1])):
        return None
    total = _scalar(value.data[0], value.kind)
    for entry in value.data[1:]:
        pair = [total, _scalar(entry, value.kind)]
        step = replace(node, op=_TOTALS[node.op], version=14, inputs=pair, attributes={})
        (total,) = run(step)
    shape = (1,) if node.attribute("keepdims", 1) else ()
    return [Value(None, total.kind, _of_entries([_entry_of(total)], shape, total.kind))]
