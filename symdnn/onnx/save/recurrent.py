"""Recurrent networks of several layers as nodes LSTM, GRU and RNN, one for each layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from symdnn.graph.variable import Apply, Variable
from symdnn.onnx.save.writer import Writer
from symdnn.ops.nn.rnn_params import RNNShape

#: The node of each mode, its attributes, and where ONNX's gates (i o f c, and z r h) are in
#: symdnn's order (i f g o, and r z n).
_NODES: dict[str, tuple[str, dict[str, Any], list[int]]] = {
    "lstm": ("LSTM", {}, [0, 3, 1, 2]),
    "gru": ("GRU", {"linear_before_reset": 1}, [1, 0, 2]),
    "rnn_tanh": ("RNN", {"activations": ["Tanh"]}, [0]),
    "rnn_relu": ("RNN", {"activations": ["Relu"]}, [0]),
}


def _network(w: Writer, node: Apply) -> Any:
    op: Any = node.op
    if op.random:
        raise w.refuse(node, "its dropout draws; save the network as it is evaluated")
    given = op.take(node.inputs)
    features = _features(op.layout, given["x"], node.inputs[0])
    if features is None:
        raise w.refuse(node, "the number of features of its input is not known")
    kind, attributes, order = _NODES[op.rnn_mode]
    count, hidden = op.layout.directions, op.hidden_size
    if count == 2:
        attributes = {k: v * 2 if k == "activations" else v for k, v in attributes.items()}
        attributes["direction"] = "bidirectional"
    lengths = w.cast(w.name(given["lengths"]), "int32") if op.lengths else ""
    states = [w.name(given[n]) for n in ("hx", *["cx"] * op.has_cell)]
    y, last = w.name(given["x"]), []
    for layer in range(op.num_layers):
        parameters = _parameters(w, node, order, layer, features)
        at = layer * count
        first = [w.sliced(s, [at], [at + count], [0], [1]) for s in states]
        y, *ends = w.add_several(
            kind, 1 + len(first), y, *parameters, lengths, *first, hidden_size=hidden,
            **attributes,
        )  # fmt: skip
        y = w.reshaped(w.add("Transpose", y, perm=[0, 2, 1, 3]), [0, 0, count * hidden])
        last.append(ends)
    joined = [e[0] if len(e) == 1 else w.add("Concat", *e, axis=0) for e in zip(*last)]
    return [y, *joined]


def _features(layout: RNNShape, x: Variable, parameters: Variable) -> int | None:
    """Features of the input: as its type says, or those for which there are so many parameters."""
    known, count = x.type.shape[2], parameters.type.shape[0]
    if known is not None or count is None or layout.input_mode == "skip":
        return known
    none, each = layout.size(0), layout.size(1) - layout.size(0)
    return (count - none) // each


def _parameters(w: Writer, node: Apply, order: list[int], layer: int, features: int) -> list[str]:
    """W, R and B of a layer, out of the vector of all parameters."""
    op: Any = node.op
    layout, (vector, *_) = op.layout, node.inputs
    gates, hidden, count = len(order), op.hidden_size, op.layout.directions
    permutation = w.constant(order, np.int64)
    columns = layout.inputs_of(layer, features)

    def part(start: int, sizes: list[int], axis: int, result: list[int]) -> str:
        whole = w.sliced(w.name(vector), [start], [start + int(np.prod(sizes))], [0], [1])
        gathered = w.add("Gather", w.reshaped(whole, sizes), permutation, axis=axis)
        return w.reshaped(gathered, [1, *result])

    found: list[list[str]] = [[], [], []]
    for at, bias_at in layout.block_offsets(features)[layer * count : (layer + 1) * count]:
        own = part(at, [gates, hidden, columns], 0, [gates * hidden, columns]) if columns else (
            w.constant(np.tile(np.eye(hidden), (1, gates, 1)), vector.type.numpy))  # fmt: skip
        found[0].append(own)
        at += gates * hidden * columns
        found[1].append(part(at, [gates, hidden, hidden], 0, [gates * hidden, hidden]))
        found[2].append(part(bias_at, [2, gates, hidden], 1, [2 * gates * hidden]))
    return [f[0] if len(f) == 1 else w.add("Concat", *f, axis=0) for f in found]


EMITTERS: dict[str, Callable[[Writer, Apply], Any]] = {"RNNForward": _network}
