"""Recurrent nodes whose cells are those of vendors' libraries, as one op for all steps.

They become :class:`~symdnn.ops.nn.rnn.RNNForward`, which cuDNN and the compiled recurrent
kernels run. The other nodes (peepholes, clipped gates, other activations, a GRU that resets before
its product) are loops over steps (:mod:`symdnn.onnx.ops.recurrent`).
"""

from __future__ import annotations

from collections.abc import Sequence

import symdnn.tensor as T
from symdnn.graph.variable import Variable
from symdnn.onnx.model.node import Node
from symdnn.ops.nn.rnn import RNNForward

#: Activations of a direction that make a node the network of this mode.
_MODES = {
    ("LSTM", ("sigmoid", "tanh", "tanh")): "lstm",
    ("GRU", ("sigmoid", "tanh")): "gru",
    ("RNN", ("tanh",)): "rnn_tanh",
    ("RNN", ("relu",)): "rnn_relu",
}
#: Where the gates of symdnn's order (i f g o, and r z n) are in ONNX's (i o f c, and z r h).
_PLACES = {"lstm": (0, 2, 3, 1), "gru": (1, 0, 2), "rnn_tanh": (0,), "rnn_relu": (0,)}


def by_whole_network(
    node: Node, x: Variable, states: Sequence[Variable], names: Sequence[str], hidden: int
) -> list[Variable] | None:
    """(y, last states) of a node as one op, y (time, directions, batch, hidden); None where none
    has its cells.

    ``x`` is (time, batch, features), ``states`` (directions, batch, hidden) are h and for an LSTM
    c, and ``names`` the activations of all directions.
    """
    mode = _mode(node, names)
    if mode is None or x.type.dtype == "float64":
        return None
    lengths = node.optional(4)
    direction = node.attribute("direction", "forward")
    if direction == "reverse" and lengths is not None:
        return None
    both = "bidirectional" if direction == "bidirectional" else "unidirectional"
    op = RNNForward(mode, hidden, 1, direction_mode=both, lengths=lengths is not None)
    x = T.flip(x, 0) if direction == "reverse" else x
    given = [_parameters(node, mode, hidden), x, *states, *([] if lengths is None else [lengths])]
    y, *last = op(*given)[: 1 + len(states)]
    y = T.flip(y, 0) if direction == "reverse" else y
    steps, batch, _ = (y.shape[i] for i in range(3))
    y = y.reshape((steps, batch, op.layout.directions, hidden)).transpose((0, 2, 1, 3))
    return [y, *last]


def _mode(node: Node, names: Sequence[str]) -> str | None:
    """The mode of RNNForward that has the node's cells."""
    count = 2 if node.attribute("direction", "forward") == "bidirectional" else 1
    each = len(names) // count
    parts = {tuple(n.lower() for n in names[d * each : (d + 1) * each]) for d in range(count)}
    altered = node.attribute("clip") or node.attribute("input_forget", 0) or node.has(7)
    if len(parts) != 1 or altered:
        return None
    if node.op == "GRU" and not node.attribute("linear_before_reset", 0):
        return None
    return _MODES.get((node.op, parts.pop()))


def _parameters(node: Node, mode: str, hidden: int) -> Variable:
    """The node's matrices and biases as the vector that RNNForward reads."""
    matrices, biases = [], []
    w, r, b = node.x(1), node.x(2), node.optional(3)
    count = 2 if node.attribute("direction", "forward") == "bidirectional" else 1
    places = _PLACES[mode]
    for d in range(count):
        for m in (w[d], r[d]):
            matrices += [m[g * hidden : (g + 1) * hidden].flatten() for g in places]
        if b is None:
            biases.append(T.zeros((2 * len(places) * hidden,), dtype=w.type.dtype))
            continue
        for first in (0, len(places)):
            starts = [(first + g) * hidden for g in places]
            biases += [b[d, s : s + hidden] for s in starts]
    return T.concatenate([*matrices, *biases])
