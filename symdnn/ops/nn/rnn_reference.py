"""Recurrent networks in NumPy: forward, and backpropagation through time.

The loop runs over time; each step is one GEMM over the batch, and all input projections of a layer
are one GEMM. An :class:`RNNReserve` keeps data for the backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from symdnn.graph.typing import Array
from symdnn.ops.nn.rnn_params import RNNShape
from symdnn.ops.random import rng_philox as philox
from symdnn.ops.random.random import next_state


@dataclass
class Block:
    """Parameters of one layer and direction, gates stacked: w (G H, in), r (G H, H), biases."""

    w: Any
    r: Any
    bw: Any
    br: Any


@dataclass
class Run:
    """The data kept of one layer and direction's forward pass; the first index is time."""

    x: Any
    gates: Any  # activated, (T, B, G H)
    before: Any  # state that entered each step, (T, B, H)
    cell_before: Any = None
    cell: Any = None
    candidate: Any = None  # a GRU's U h + b_h


@dataclass
class RNNReserve:
    """Data for the backward pass: one :class:`Run` for each layer and direction."""

    runs: list[Run] = field(default_factory=list)
    masks: list[Any] = field(default_factory=list)


def drop_masks(shape: RNNShape, dropout: float, x: Any, state: Array) -> tuple[list[Any], Array]:
    """Dropout masks of the layers after the first, and the next state.

    Element ``i`` of the mask before layer ``l`` is element ``(l - 1) * size + i`` of the draw.
    """
    sizes = (shape.num_layers - 1, *x.shape[:2], shape.output_size)
    size, keep = int(np.prod(sizes)), 1.0 - dropout
    words = philox.words(state, size, 1)[:, 0].reshape(sizes)
    scale = x.dtype.type(1 / keep if keep else 0)
    return list((words < keep * 2.0**32) * scale), next_state(state, size)


def blocks(w: Any, shape: RNNShape, input_size: int) -> list[Block]:
    """The parameters of each layer and direction as views of the flat vector."""
    h, rows = shape.hidden_size, shape.hidden_size * len(shape.gates)
    out = []
    for index, (at, bias_at) in enumerate(shape.block_offsets(input_size)):
        columns = shape.inputs_of(index // shape.directions, input_size)
        middle = at + rows * columns
        out.append(
            Block(
                w[at:middle].reshape(rows, columns),
                w[middle : middle + rows * h].reshape(rows, h),
                w[bias_at : bias_at + rows],
                w[bias_at + rows : bias_at + 2 * rows],
            )
        )
    return out


def active_steps(lengths: Array | None, steps: int) -> Array | None:
    """(T, B, 1) flags of the steps within each sequence; None if all are."""
    if lengths is None:
        return None
    return (np.arange(steps)[:, None] < lengths)[..., None]


def rnn_forward(
    shape: RNNShape,
    w: Any,
    x: Any,
    hx: Any,
    cx: Array | None,
    lengths: Array | None,
    masks: Sequence[Any],
) -> tuple[Any, Any, Any, RNNReserve]:
    """(y, hy, cy or None, reserve). ``masks`` multiply the inputs of the layers after the first."""
    active = active_steps(lengths, x.shape[0])
    params = blocks(w, shape, x.shape[2])
    hy, cy = hx.copy(), None if cx is None else cx.copy()
    reserve = RNNReserve(masks=list(masks))
    out = x
    for layer in range(shape.num_layers):
        if layer and masks:
            out = out * masks[layer - 1]
        found = []
        for direction in range(shape.directions):
            i = layer * shape.directions + direction
            order = _order(x.shape[0], direction)
            cell = None if cx is None else cx[i]
            y, run, h, c = _run(shape.rnn_mode, params[i], out, hx[i], cell, active, order)
            hy[i] = h
            if cy is not None:
                cy[i] = c
            found.append(y)
            reserve.runs.append(run)
        out = np.concatenate(found, axis=2) if len(found) > 1 else found[0]
    return out, hy, cy, reserve


def _order(steps: int, direction: int) -> Sequence[int]:
    return range(steps - 1, -1, -1) if direction else range(steps)


def flat_product(x: Array, m: Array) -> Array:
    """``x @ m`` over all steps and sequences as one GEMM."""
    return (x.reshape(-1, x.shape[2]) @ m).reshape(*x.shape[:2], m.shape[1])


def project(block: Block, x: Array, gates: int) -> Any:
    """All input projections at once, (T, B, G H); without input matrices every gate reads x."""
    if block.w.shape[1] == 0:
        return np.concatenate([x] * gates, axis=2) + block.bw
    return flat_product(x, block.w.T) + block.bw


def _run(
    mode: str, block: Block, x: Any, h: Any, c: Any, active: Any, order: Sequence[int]
) -> tuple[Any, Run, Any, Any]:
    """One layer in one direction: (y, run, last state, last cell)."""
    steps, batch = x.shape[:2]
    size = h.shape[1]
    rows = block.r.shape[0]
    projected = project(block, x, rows // size)
    y = np.zeros((steps, batch, size), x.dtype)
    run = Run(x, np.zeros((steps, batch, rows), x.dtype), np.empty_like(y))
    if mode == "lstm":
        run.cell_before, run.cell = np.empty_like(y), np.empty_like(y)
    if mode == "gru":
        run.candidate = np.empty_like(y)
    for t in order:
        run.before[t] = h
        recurrent = h @ block.r.T + block.br
        if mode == "lstm":
            run.cell_before[t] = c
            new, new_c = _lstm_step(run, t, projected[t] + recurrent, c)
            run.cell[t] = new_c
            c = new_c if active is None else np.where(active[t], new_c, c)
        elif mode == "gru":
            new = _gru_step(run, t, projected[t], recurrent, h)
        else:
            total = projected[t] + recurrent
            new = np.tanh(total) if mode == "rnn_tanh" else np.maximum(total, 0)
            run.gates[t] = new
        h = new if active is None else np.where(active[t], new, h)
        y[t] = new if active is None else np.where(active[t], new, 0)
    return y, run, h, c


def sigmoid(x: Any) -> Any:
    """The logistic function, without overflow."""
    return 0.5 * np.tanh(0.5 * x) + 0.5


def _lstm_step(run: Run, t: int, total: Array, c: Array) -> tuple[Array, ...]:
    size = c.shape[1]
    gates = run.gates[t]
    gates[...] = sigmoid(total)
    gates[:, 2 * size : 3 * size] = np.tanh(total[:, 2 * size : 3 * size])
    i, f, g, o = np.split(gates, 4, axis=1)
    new_c = f * c + i * g
    return o * np.tanh(new_c), new_c


def _gru_step(run: Run, t: int, projected: Array, recurrent: Array, h: Array) -> Any:
    size = h.shape[1]
    gates = run.gates[t]
    gates[:, : 2 * size] = sigmoid(projected[:, : 2 * size] + recurrent[:, : 2 * size])
    r, z = gates[:, :size], gates[:, size : 2 * size]
    run.candidate[t] = recurrent[:, 2 * size :]
    n = np.tanh(projected[:, 2 * size :] + r * run.candidate[t])
    gates[:, 2 * size :] = n
    return (1 - z) * n + z * h


def rnn_backward(
    shape: RNNShape,
    w: Any,
    x: Any,
    lengths: Array | None,
    dy: Any,
    dhy: Any,
    dcy: Array | None,
    reserve: RNNReserve,
    lanes: int | None = None,
) -> tuple[Any, Any, Any, Any]:
    """(dw, dx, dhx, dcx or None) from the cotangents of y, hy and cy.

    With ``lanes`` dw has an entry for each of so many equal parts of the batch.
    """
    active = active_steps(lengths, x.shape[0])
    params = blocks(w, shape, x.shape[2])
    dw = np.zeros((1 if lanes is None else lanes, *w.shape), w.dtype)
    grads = [blocks(part, shape, x.shape[2]) for part in dw]
    dhx, dcx = np.empty_like(dhy), None if dcy is None else np.empty_like(dcy)
    size = shape.hidden_size
    for layer in reversed(range(shape.num_layers)):
        dx: Any = 0
        for direction in range(shape.directions):
            i = layer * shape.directions + direction
            part = dy[:, :, direction * size : (direction + 1) * size]
            order = _order(x.shape[0], 1 - direction)
            dc = None if dcy is None else dcy[i]
            inputs, recurrent, dhx[i], dc = _back(
                shape.rnn_mode, params[i], reserve.runs[i], part, dhy[i], dc, active, order
            )
            if dcx is not None:
                dcx[i] = dc
            run = reserve.runs[i]  # the memory of the network's input may have another value now
            kept = run.x if layer else x, run.before, inputs, recurrent
            parts = zip(*(np.split(a, max(len(dw), 1), axis=1) for a in kept))
            for grad, part_of_batch in zip(grads, parts):
                _write_gradients(grad[i], *part_of_batch)
            dx = dx + _of_input(params[i], inputs)
        dy = dx * reserve.masks[layer - 1] if layer and reserve.masks else dx
    return dw[0] if lanes is None else dw, dy, dhx, dcx


def _write_gradients(grad: Block, x: Array, before: Array, inputs: Array, recurrent: Array) -> None:
    """Write the gradients of a block's parameters, of those of the gates."""
    rows, size = grad.r.shape
    flat_in, flat_rec = inputs.reshape(-1, rows), recurrent.reshape(-1, rows)
    grad.r[...] = flat_rec.T @ before.reshape(-1, size)
    grad.bw[...] = flat_in.sum(0)
    grad.br[...] = flat_rec.sum(0)
    if grad.w.shape[1]:
        grad.w[...] = flat_in.T @ x.reshape(-1, grad.w.shape[1])


def _of_input(block: Block, inputs: Array) -> Any:
    """The gradient of a layer's input."""
    rows, size = block.r.shape
    if block.w.shape[1] == 0:
        return inputs.reshape(*inputs.shape[:2], rows // size, size).sum(2)
    return flat_product(inputs, block.w)


def _back(
    mode: str,
    block: Block,
    run: Run,
    dy: Any,
    dh: Array,
    dc: Any,
    active: Any,
    order: Sequence[int],
) -> tuple[Any, Any, Any, Any]:
    """The loop through time: gradients of the gates' inputs and recurrent inputs, dhx, dcx."""
    inputs = np.zeros_like(run.gates)
    recurrent = np.zeros_like(run.gates) if mode == "gru" else inputs
    for t in order:
        d = dh + dy[t]
        if mode == "lstm":
            before, new_dc = _lstm_back(run, t, d, dc, inputs[t])
            dc = new_dc if active is None else np.where(active[t], new_dc, dc)
        elif mode == "gru":
            before = _gru_back(run, t, d, inputs[t], recurrent[t])
        else:
            h = run.gates[t]
            inputs[t] = d * (1 - h * h) if mode == "rnn_tanh" else d * (h > 0)
            before = 0
        if active is not None:
            inputs[t] *= active[t]
            if mode == "gru":
                recurrent[t] *= active[t]
        before = before + recurrent[t] @ block.r
        dh = before if active is None else np.where(active[t], before, dh)
    return inputs, recurrent, dh, dc


def _lstm_back(run: Run, t: int, d: Array, dc: Array, out: Array) -> tuple[Any, Any]:
    i, f, g, o = np.split(run.gates[t], 4, axis=1)
    tanh_c = np.tanh(run.cell[t])
    dc = dc + d * o * (1 - tanh_c * tanh_c)
    out[...] = np.concatenate(
        [
            dc * g * i * (1 - i),
            dc * run.cell_before[t] * f * (1 - f),
            dc * i * (1 - g * g),
            d * tanh_c * o * (1 - o),
        ],
        axis=1,
    )
    return 0, dc * f


def _gru_back(run: Run, t: int, d: Array, inputs: Array, recurrent: Array) -> Any:
    r, z, n = np.split(run.gates[t], 3, axis=1)
    size = n.shape[1]
    dn = d * (1 - z) * (1 - n * n)
    inputs[:, :size] = dn * run.candidate[t] * r * (1 - r)
    inputs[:, size : 2 * size] = d * (run.before[t] - n) * z * (1 - z)
    inputs[:, 2 * size :] = dn
    recurrent[...] = inputs
    recurrent[:, 2 * size :] = dn * r
    return d * z
