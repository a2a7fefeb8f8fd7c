"""Recurrent networks as loops over time, for the derivatives that no op has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from symdnn.graph.variable import Apply, Variable
from symdnn.ops.array.create import arange
from symdnn.ops.array.join import join, stack
from symdnn.ops.array.view import moveaxis, specify_shape
from symdnn.ops.control.batching import Operand, batch_graph
from symdnn.ops.control.scan_builder import scan
from symdnn.ops.core.dtype import work_dtype
from symdnn.ops.core.lanes import spread
from symdnn.ops.core.shape import dims_of
from symdnn.ops.elementwise.activations import relu, sigmoid
from symdnn.ops.elementwise.arithmetic import cast
from symdnn.ops.elementwise.comparison import switch
from symdnn.ops.elementwise.math import tanh
from symdnn.ops.linalg.dot import dot
from symdnn.ops.random.random import random_bernoulli

if TYPE_CHECKING:
    from symdnn.ops.nn.rnn_params import RNNShape

#: The largest hidden size of lanes whose steps are one loop.
_MOST_HIDDEN = 32


def rnn_loop(
    shape: RNNShape, given: Mapping[str, Variable], masks: Variable | None
) -> list[Variable]:
    """[y, hy, (cy)] of :class:`~symdnn.ops.nn.rnn.RNNForward` by a scan for each layer and
    direction.

    ``given`` has its inputs by name; ``masks`` (layers - 1, time, batch, features) multiply the
    inputs of the layers after the first. 16-bit floats are computed in float32.
    """
    dtype = given["x"].type.dtype
    wide = work_dtype(dtype)
    w, out, hx, cx = (cast(given[n], wide) if n in given else None for n in ("w", "x", "hx", "cx"))
    assert w is not None
    assert out is not None
    assert hx is not None
    out, hx, cx = _of_one_batch(out, hx, cx)
    alive = _alive(out, given.get("lengths"))
    offsets = shape.block_offsets(dims_of(out)[2])
    states: list[list[Variable]] = []
    for layer in range(shape.num_layers):
        if layer and masks is not None:
            out = out * masks[layer - 1]
        found = []
        for direction in range(shape.directions):
            i = layer * shape.directions + direction
            columns = shape.inputs_of(layer, dims_of(given["x"])[2])
            params = _parameters(w, shape, offsets[i], columns)
            first = [hx[i], *([] if cx is None else [cx[i]])]
            y, *last = _one_way(shape, params, out, first, alive, bool(direction))
            found.append(y)
            states.append(last)
        out = join(2, *found) if len(found) > 1 else found[0]
    return [cast(v, dtype) for v in (out, *(stack(list(s)) for s in zip(*states)))]


def for_each_lane(
    f: Callable[[Sequence[Variable]], Sequence[Variable]],
    given: Sequence[Variable],
    places: Sequence[int | None],
    outs: Sequence[int],
) -> list[Variable]:
    """``f`` of what each lane has of ``given``, whose lanes are the dimensions ``places``; its
    results have them at ``outs``. An input without lanes is the same for all."""
    inside: list[Variable] = []
    known: dict[Variable, Operand] = {}
    lanes: Any = 0
    for v, p in zip(given, places, strict=True):
        if p is None:
            inside.append(v)
            continue
        first = moveaxis(v, p, 0)
        lanes = dims_of(first)[0]
        one = Variable(v.type.with_shape(first.type.shape[1:]), v.name)
        inside.append(one)
        known[one] = Operand(first, True)
    found = batch_graph(f(inside), known)
    whole = [o.value if o.stacked else spread(o.value, lanes) for o in found]
    return [moveaxis(v, 0, p) for v, p in zip(whole, outs)]


def lanes_in_one_loop(
    loop: Callable[[Sequence[Variable]], Sequence[Variable]], hidden_size: int,
    given: Sequence[Variable], axes: Sequence[int | None], count: int,
) -> list[Variable] | None:  # fmt: skip
    """``count`` results of lanes with parameters of their own, by one loop over their steps.

    None for larger networks: those of the lanes are faster one after the other.
    """
    if hidden_size > _MOST_HIDDEN:
        return None
    return for_each_lane(loop, given, axes, [0] * count)


def rnn_masks(
    shape: RNNShape, dropout: float, x: Variable, state: Variable
) -> tuple[Variable, Variable]:
    """The dropout masks (layers - 1, time, batch, features) of a state, and the next state."""
    dtype = work_dtype(x.type.dtype)
    keep = 1.0 - dropout
    steps, batch, _ = dims_of(x)
    sizes = (shape.num_layers - 1, steps, batch, shape.output_size)
    drawn, after = random_bernoulli(state, keep, sizes, "bool")
    return cast(drawn, dtype) * np.asarray(1 / keep if keep else 0, dtype), after


def _of_one_batch(x: Variable, hx: Variable, cx: Variable | None) -> tuple[Any, Any, Any]:
    """The three with the batch's size in their types where one of them has it: a static 1 of one
    alone would broadcast."""
    given = [v for v in (x, hx, cx) if v is not None]
    size = next((n for v in given if (n := v.type.shape[1]) is not None), None)
    found = [
        v if v.type.shape[1] == size else specify_shape(v, (v.type.shape[0], size, v.type.shape[2]))
        for v in given
    ]
    return found[0], found[1], found[2] if cx is not None else None


def _alive(x: Variable, lengths: Variable | None) -> Variable | None:
    """(T, B, 1): whether a step is within its sequence; None without lengths."""
    if lengths is None:
        return None
    return (arange(dims_of(x)[0]).dimshuffle(0, "x") < lengths).dimshuffle(0, 1, "x")


def _parameters(
    w: Variable, shape: RNNShape, offsets: tuple[Any, Any], columns: Any
) -> list[Variable | None]:
    """W (gates * hidden, columns) or None, R (gates * hidden, state), their biases or None, and the
    projection (projected, hidden) or None."""
    (at, bias_at), h, rows = offsets, shape.hidden_size, shape.hidden_size * len(shape.gates)
    no_matrix = isinstance(columns, int) and columns == 0
    middle, size, projected = at + rows * columns, shape.state_size, shape.proj_size
    end = middle + rows * size
    biases = [w[b : b + rows] for b in (bias_at, bias_at + rows)] if shape.biases else [None, None]
    return [
        None if no_matrix else w[at:middle].reshape((rows, columns)),
        w[middle:end].reshape((rows, size)),
        *biases,
        w[end : end + projected * h].reshape((projected, h)) if projected else None,
    ]


def _one_way(
    shape: RNNShape, params: Sequence[Any], x: Variable, first: Sequence[Variable],
    alive: Variable | None, backward: bool,
) -> list[Variable]:  # fmt: skip
    """[y, the last state, (the last cell)] of one layer in one direction."""
    w, r, bw, br, projection = params
    terms = join(2, *[x] * len(shape.gates)) if w is None else _product(x, w)
    once = [v for v in (r.T, br, None if projection is None else projection.T) if v is not None]
    step = _STEPS[shape.rnn_mode]

    def one(*args: Any) -> list[Variable]:
        gates, rest = args[0], args[1:]
        held = None
        if alive is not None:
            held, rest = rest[0], rest[1:]
        old, (rt, *more) = rest[: -len(once)], rest[-len(once) :]
        again = dot(old[0], rt)
        new = step(shape.hidden_size, gates, again if br is None else again + more[0], *old)
        if projection is not None:
            new[0] = dot(new[0], more[-1])
        if held is None:
            return [*new, new[0]]
        kept = [switch(held, n, o) for n, o in zip(new, old, strict=True)]
        return [*kept, switch(held, new[0], new[0].zeros_like())]

    found, _ = scan(
        one,
        sequences=[terms if bw is None else terms + bw, *([] if alive is None else [alive])],
        outputs_info=[*first, None],
        non_sequences=once,
        go_backwards=backward,
        name=f"{shape.rnn_mode} written out",
        return_list=True,
    )
    y = found[-1][::-1] if backward else found[-1]
    # Without steps the last state is the first one.
    last = [join(0, s.dimshuffle("x", 0, 1), f[-1:])[-1] for s, f in zip(first, found)]
    return [y, *last]


def _product(x: Variable, w: Variable) -> Variable:
    steps, batch, features = dims_of(x)
    return dot(x.reshape((steps * batch, features)), w.T).reshape((steps, batch, dims_of(w)[0]))


def _part(v: Variable, size: int, i: int) -> Variable:
    return v[:, i * size : (i + 1) * size]


def _relu_step(size: int, a: Variable, b: Variable, h: Variable) -> list[Variable]:
    return [relu(a + b)]


def _tanh_step(size: int, a: Variable, b: Variable, h: Variable) -> list[Variable]:
    return [tanh(a + b)]


def _lstm_step(size: int, a: Variable, b: Variable, h: Variable, c: Variable) -> list[Variable]:
    i, f, g, o = (_part(a + b, size, k) for k in range(4))
    cell = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return [sigmoid(o) * tanh(cell), cell]


def _gru_step(size: int, a: Variable, b: Variable, h: Variable) -> list[Variable]:
    r, z = (sigmoid(_part(a, size, k) + _part(b, size, k)) for k in range(2))
    n = tanh(_part(a, size, 2) + r * _part(b, size, 2))
    return [(1 - z) * n + z * h]


#: Of hidden size, input part and recurrent part of all gates, states: the new states.
_STEPS: dict[str, Any] = {
    "rnn_relu": _relu_step, "rnn_tanh": _tanh_step, "lstm": _lstm_step, "gru": _gru_step,
}  # fmt: skip


def rnn_in_float32(node: Apply) -> list[Variable] | None:
    """The results of a forward node in 16 bits by float32; None where it has a reserve."""
    op: Any = node.op
    dtype = node.inputs[1].type.dtype
    if op.keeps_reserve:
        return None
    wide = [cast(v, "float32") if v.type.dtype == dtype else v for v in node.inputs]
    found = replace(op, rounds_states=dtype == "bfloat16")(*wide, hints=node.hints)
    return [cast(v, dtype) if v.type.dtype == "float32" else v for v in found]
