"""Recurrent networks: ``RNN``, ``LSTM``, ``GRU``, as one op or as loops over steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import symdnn.tensor as T
from symdnn.graph.variable import Variable
from symdnn.onnx.model.node import Node
from symdnn.onnx.ops.elementwise import number
from symdnn.onnx.ops.recurrent_whole import by_whole_network
from symdnn.ops.control.scan_builder import scan
from symdnn.ops.core.shape import dims_of

Function = Callable[[Variable], Variable]

#: Activation functions by name, with the defaults of alpha and beta.
_FUNCTIONS: dict[str, tuple[Callable[..., Variable], tuple[float, ...]]] = {
    "relu": (lambda x: T.nnet.relu(x), ()),
    "tanh": (lambda x: T.tanh(x), ()),
    "sigmoid": (lambda x: T.nnet.sigmoid(x), ()),
    "softsign": (lambda x: T.nnet.softsign(x), ()),
    "softplus": (lambda x: T.nnet.softplus(x), ()),
    "affine": (lambda x, a, b: x * a + b, (1.0, 0.0)),
    "leakyrelu": (lambda x, a: T.nnet.leaky_relu(x, a), (0.01,)),
    "thresholdedrelu": (lambda x, a: T.switch(x > a, x, number(x, 0)), (1.0,)),
    "scaledtanh": (lambda x, a, b: a * T.tanh(b * x), (1.0, 1.0)),
    "hardsigmoid": (lambda x, a, b: T.clip(a * x + b, number(x, 0), number(x, 1)), (0.2, 0.5)),
    "elu": (lambda x, a: T.nnet.elu(x, a), (1.0,)),
}


def activation(node: Node, name: str, alphas: Iterator[float], betas: Iterator[float]) -> Function:
    """An activation function by name; the ones with parameters take the next of each list."""
    if name.lower() not in _FUNCTIONS:
        raise node.error(f"activation {name!r}: wanted one of {', '.join(sorted(_FUNCTIONS))}")
    function, defaults = _FUNCTIONS[name.lower()]
    given = [next(source, d) for source, d in zip((alphas, betas), defaults)]
    return lambda x: function(x, *(number(x, p) for p in given))


@dataclass
class _Cell:
    """One direction of a network: its weights, and what a step does."""

    node: Node
    functions: Sequence[Function]
    hidden: int
    w: Variable
    r: Variable
    b: Variable | None
    p: Variable | None

    def clip(self, x: Variable) -> Variable:
        """``x`` within the bounds of the attribute ``clip``."""
        bound = self.node.attribute("clip")
        return x if not bound else T.clip(x, number(x, -bound), number(x, bound))

    def parts(self, x: Variable, count: int) -> list[Variable]:
        """The gates side by side, apart."""
        return [x[..., i * self.hidden : (i + 1) * self.hidden] for i in range(count)]


def _rnn_step(cell: _Cell, gates: Variable, h: Variable) -> list[Variable]:
    return [cell.functions[0](cell.clip(gates + T.dot(h, cell.r.T)))]


def _lstm_step(cell: _Cell, gates: Variable, h: Variable, c: Variable) -> list[Variable]:
    i, o, f, g = cell.parts(gates + T.dot(h, cell.r.T), 4)
    if cell.p is not None:
        pi, po, pf = cell.parts(cell.p, 3)
        i, f = i + pi * c, f + pf * c
    gate, middle, out = cell.functions
    i = gate(cell.clip(i))
    f = number(i, 1) - i if cell.node.attribute("input_forget", 0) else gate(cell.clip(f))
    c = f * c + i * middle(cell.clip(g))
    if cell.p is not None:
        o = o + po * c
    return [gate(cell.clip(o)) * out(c), c]


def _gru_step(cell: _Cell, gates: Variable, h: Variable) -> list[Variable]:
    n = cell.hidden
    gate, middle = cell.functions
    z, r, new = cell.parts(gates, 3)
    back = T.dot(h, cell.r[: 2 * n].T)
    z, r = gate(cell.clip(z + back[..., :n])), gate(cell.clip(r + back[..., n:]))
    inner = cell.r[2 * n :].T
    if cell.node.attribute("linear_before_reset", 0):
        recurrent = T.dot(h, inner)
        if cell.b is not None:
            recurrent = recurrent + cell.b[5 * n :]
        new = middle(cell.clip(new + r * recurrent))
    else:
        if cell.b is not None:
            new = new + cell.b[5 * n :]
        new = middle(cell.clip(new + T.dot(r * h, inner)))
    return [(number(z, 1) - z) * new + z * h]


_STEPS: dict[str, tuple[Callable[..., list[Variable]], int, list[str], int]] = {
    # the step, gates, default activations, states
    "RNN": (_rnn_step, 1, ["Tanh"], 1),
    "LSTM": (_lstm_step, 4, ["Sigmoid", "Tanh", "Tanh"], 2),
    "GRU": (_gru_step, 3, ["Sigmoid", "Tanh"], 1),
}


def _network(node: Node) -> list[Variable]:
    _, _, defaults, n_states = _STEPS[node.op]
    x = node.x()
    batch_first = bool(node.attribute("layout", 0))
    x = x.transpose((1, 0, 2)) if batch_first else x
    direction = node.attribute("direction", "forward")
    directions = 2 if direction == "bidirectional" else 1
    if direction not in ("forward", "reverse", "bidirectional"):
        raise node.error(f"direction {direction!r}")
    names = node.attribute("activations") or defaults * directions
    if len(names) != len(defaults) * directions:
        raise node.error(f"{len(names)} activations: wanted {len(defaults) * directions}")
    hidden: Any = node.attribute("hidden_size") or node.x(2).type.shape[2]
    states = [_initial(node, 5 + k, directions, x, int(hidden), batch_first)
              for k in range(n_states)]  # fmt: skip
    whole = by_whole_network(node, x, states, names, int(hidden))
    if whole is None:
        whole = _by_loops(node, x, states, names, int(hidden))
    y, *last = whole
    if batch_first:
        return [y.transpose((2, 0, 1, 3)), *(v.transpose((1, 0, 2)) for v in last)]
    return [y, *last]


def _by_loops(
    node: Node, x: Variable, states: Sequence[Variable], names: Sequence[str], hidden: int
) -> list[Variable]:
    """(y, last states) by a loop over steps for each direction."""
    step, gates, defaults, n_states = _STEPS[node.op]
    direction = node.attribute("direction", "forward")
    alphas = iter(node.attribute("activation_alpha") or [])
    betas = iter(node.attribute("activation_beta") or [])
    functions = [activation(node, name, alphas, betas) for name in names]
    outputs, finals = [], []
    for d in range(len(names) // len(defaults)):
        cell = _Cell(
            node, functions[d * len(defaults) : (d + 1) * len(defaults)], hidden,
            node.x(1)[d], node.x(2)[d], node.x(3)[d] if node.has(3) else None,
            node.x(7)[d] if n_states == 2 and node.has(7) else None,
        )  # fmt: skip
        backwards = direction == "reverse" or d == 1
        own = [s[d] for s in states]
        y, final = _run(cell, step, gates, x, own, node.optional(4), backwards)
        outputs.append(y)
        finals.append(final)
    last = [T.stack([f[k] for f in finals], axis=0) for k in range(n_states)]
    return [T.stack(outputs, axis=1), *last]


def _initial(
    node: Node, i: int, directions: int, x: Variable, hidden: int, batch_first: bool
) -> Variable:
    """A first state, (directions, batch, hidden)."""
    if not node.has(i):
        return T.zeros((directions, dims_of(x)[1], hidden), dtype=x.type.dtype)
    return node.x(i).transpose((1, 0, 2)) if batch_first else node.x(i)


def _run(
    cell: _Cell, step: Callable[..., list[Variable]], gates: int, x: Variable,
    states: list[Variable], lengths: Variable | None, backwards: bool,
) -> tuple[Variable, list[Variable]]:  # fmt: skip
    """Outputs of all steps (time, batch, hidden), and the states after the last."""
    if backwards:
        x = _reversed(x, lengths)
    given = T.dot(x, cell.w.T)
    if cell.b is not None:
        n = gates * cell.hidden
        bias = cell.b[:n]
        if cell.node.op == "GRU":  # the recurrent bias of the third gate is inside of the reset
            bias = bias + T.concatenate([cell.b[n : n + 2 * cell.hidden],
                                         T.zeros((cell.hidden,), dtype=x.type.dtype)])  # fmt: skip
        else:
            bias = bias + cell.b[n : 2 * n]
        given = given + bias
    time = T.arange(dims_of(x)[0], dtype="int64")

    def one(t: Variable, g: Variable, *state: Variable) -> list[Variable]:
        new = step(cell, g, *state)
        if lengths is None:
            return [new[0], *new]
        alive = (t < lengths.astype("int64")).dimshuffle(0, "x")
        kept = [T.switch(alive, a, b) for a, b in zip(new, state)]
        return [T.switch(alive, new[0], number(new[0], 0)), *kept]

    initial = [_like_state(s, x, cell.hidden) for s in states]
    found, _ = scan(one, sequences=[time, given], outputs_info=[None, *initial], return_list=True)
    y = _reversed(found[0], lengths) if backwards else found[0]
    return y, [f[-1] for f in found[1:]]


def _like_state(s: Variable, x: Variable, hidden: int) -> Variable:
    return T.specify_shape(s, (x.type.shape[1], hidden))


def _reversed(x: Variable, lengths: Variable | None) -> Variable:
    """Steps in reverse, those of each sequence within its length."""
    if lengths is None:
        return T.flip(x, 0)
    steps = T.arange(dims_of(x)[0], dtype="int64").dimshuffle(0, "x")
    ends = lengths.astype("int64").dimshuffle("x", 0)
    places = T.switch(steps < ends, ends - 1 - steps, steps)
    return x[places, T.arange(dims_of(x)[1], dtype="int64").dimshuffle("x", 0)]


OPS: dict[str, Any] = {"RNN": _network, "LSTM": _network, "GRU": _network}
