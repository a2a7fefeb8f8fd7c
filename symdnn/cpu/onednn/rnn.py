"""Recurrent nets by oneDNN: tanh and ReLU nets, LSTM, and GRU in cuDNN's variant (linear before
reset), forward and backward, one primitive for each layer.

The parameters are our one flat vector (:mod:`symdnn.ops.nn.rnn_params`). A layer's matrices lie in
it as oneDNN's ``ldgoi``, so its own reorders read and write them in place. What differs is small:
oneDNN has one bias where we have two (for a GRU the recurrent one of the new memory is a fourth
row), and a GRU's gates are in the order z, r, n, ours r, z, n.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from symdnn.cpu.compiler.object_cache import kept
from symdnn.cpu.onednn.kernel import (
    Launcher,
    OnednnKernel,
    Operand,
    Planned,
    lies_densely,
    version_of,
)
from symdnn.cpu.onednn.objects import ALG, DIRECTION, PROP, Layout, Primitive, primitive
from symdnn.cpu.threads import thread_pools
from symdnn.graph.kernel import Call, Row
from symdnn.ops.nn.rnn_params import RNNShape
from symdnn.ops.vendor.onednn import OneDnnRNN, OneDnnRNNGrad

__all__ = ["RNNGradKernel", "RNNKernel", "KERNELS"]

_OVERWRITE = 1  # dnnl_rnn_flags_diff_weights_overwrite
_GRU_ORDER = [1, 0, 2]
_SPACE = "workspace"


# -- one layer -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layer:
    """One layer at known sizes. ``columns`` are its input features."""

    mode: str
    steps: int
    batch: int
    columns: int
    hidden: int
    directions: int

    @property
    def gates(self) -> int:
        """How many gates."""
        return {"lstm": 4, "gru": 3}.get(self.mode, 1)

    @property
    def biases(self) -> int:
        """How many rows oneDNN's bias has."""
        return self.gates + (self.mode == "gru")

    @property
    def states(self) -> tuple[str, ...]:
        """What is carried from step to step."""
        return ("iter", "iter_c") if self.mode == "lstm" else ("iter",)

    @property
    def block(self) -> int:
        """Elements of the matrices of one direction."""
        return self.gates * self.hidden * (self.columns + self.hidden)

    def layouts(self) -> dict[str, Layout]:
        """How each operand of the forward pass lies in our arrays."""
        t, b, c, h, d, g = (
            self.steps, self.batch, self.columns, self.hidden, self.directions, self.gates,
        )  # fmt: skip
        found = {
            "src": Layout((t, b, c), "float32"),
            "weights": self._matrices(c),
            "weights_iter": self._matrices(h),
            "bias": Layout((1, d, self.biases, h), "float32"),
            "dst": Layout((t, b, d * h), "float32"),
        }
        assert g > 0, "every net has a gate"
        for s in self.states:
            found[f"src_{s}"] = found[f"dst_{s}"] = Layout((1, d, b, h), "float32")
        return found

    def _matrices(self, columns: int) -> Layout:
        h, d, g = self.hidden, self.directions, self.gates
        # A GRU's are copied with their gates in oneDNN's order.
        one = g * h * columns if self.mode == "gru" else self.block
        return Layout((1, d, columns, g, h), "float32", (d * one, one, 1, h * columns, columns))


def _arguments(layer: Layer, layouts: dict[str, Layout], prefix: str = "") -> list[Any]:
    """Descriptors in C's order: of the operands, or (``prefix``) of their gradients."""
    lstm = layer.mode == "lstm"

    def of(name: str) -> Layout:
        return layouts[name].any if name.startswith("weights") else layouts[name]

    middle = [of("weights"), of("weights_iter"), *([None, None] if lstm else []), of("bias")]
    source = [of("src"), *(of(f"src_{s}") for s in layer.states)]
    return [*source, *middle, of("dst"), *(of(f"dst_{s}") for s in layer.states)]


@kept(64 << 10)
def _forward(layer: Layer, prop: str, threads: int) -> Primitive:
    name, before, after = _kind(layer)
    given = _arguments(layer, layer.layouts())
    return primitive(f"{name}_forward", PROP[prop], *before, *given, 0, *after)


@kept(64 << 10)
def _backward(layer: Layer, threads: int) -> Primitive:
    name, before, after = _kind(layer)
    given = _arguments(layer, layer.layouts())
    hint = _forward(layer, "training", threads)
    return primitive(
        f"{name}_backward", PROP["backward"], *before, *given, *given, _OVERWRITE, *after, hint
    )


def _kind(layer: Layer) -> tuple[str, tuple[Any, ...], tuple[Any, ...]]:
    """The primitive's name, what comes before the descriptors, what comes after the flags."""
    direction = DIRECTION["both" if layer.directions == 2 else "left_to_right"]
    if layer.mode == "lstm":
        return "lstm", (direction,), ()
    if layer.mode == "gru":
        return "lbr_gru", (direction,), ()
    activation = ALG["relu" if layer.mode == "rnn_relu" else "tanh"]
    return "vanilla_rnn", (activation, direction), (0.0, 0.0)


class _Planned(Planned):
    """The workspace lies as the primitive wants it: only its bytes are known."""

    def _foreign(self, o: Operand) -> Any:
        return None if o.name == _SPACE else super()._foreign(o)


def _read(layer: Layer) -> list[Operand]:
    """What both passes read: index 0 marks the parameters, which may be kept."""
    layouts = layer.layouts()
    names = ["src", *(f"src_{s}" for s in layer.states), "weights", "weights_iter", "bias"]
    return [Operand(n, layouts[n], 0 if n.startswith("weights") else -1) for n in names]


def _space_bytes(layer: Layer, threads: int) -> int:
    return _forward(layer, "training", threads).operand(_SPACE).nbytes


def _plan_forward(layer: Layer, trains: bool, threads: int) -> Planned:
    made = _forward(layer, "training" if trains else "inference", threads)
    layouts = layer.layouts()
    operands = _read(layer)
    for name in ("dst", *(f"dst_{s}" for s in layer.states)):
        operands.append(Operand(name, layouts[name], -1, True))
    if trains:
        size = _space_bytes(layer, threads)
        operands.append(Operand(_SPACE, Layout((size,), "uint8"), -1, True))
    return _Planned(made, operands)


def _plan_backward(layer: Layer, threads: int) -> Planned:
    layouts = layer.layouts()
    results = ("dst", *(f"dst_{s}" for s in layer.states))
    operands = _read(layer)
    operands += [Operand(n, layouts[n], -1) for n in results]
    operands += [Operand(f"diff_{n}", layouts[n], -1) for n in results]
    names = ("src", *(f"src_{s}" for s in layer.states), "weights", "weights_iter", "bias")
    operands += [Operand(f"diff_{n}", layouts[n], -1, True) for n in names]
    size = _space_bytes(layer, threads)
    operands.append(Operand(_SPACE, Layout((size,), "uint8"), -1))
    return _Planned(_backward(layer, threads), operands)


# -- parameters ------------------------------------------------------------------------------------


class Parameters:
    """Where the parameters of one layer lie in the vector, and what oneDNN gets of them."""

    def __init__(self, layer: Layer, shape: RNNShape, number: int, features: int) -> None:
        offsets = shape.block_offsets(features)
        d = layer.directions
        self.layer = layer
        self.at = offsets[number * d][0]
        self.biases_at = [offsets[number * d + i][1] for i in range(d)]

    def matrices(self, w: Any) -> list[Any]:
        """The input matrices and the recurrent ones, in memory as :meth:`Layer.layouts` says."""
        a, b = self._views(w)
        if self.layer.mode != "gru":
            middle = self.layer.gates * self.layer.hidden * self.layer.columns
            return [w[self.at :], w[self.at + middle :]]
        return [np.ascontiguousarray(m[:, _GRU_ORDER]) for m in (a, b)]

    def _views(self, w: Any) -> tuple[Any, Any]:
        """(directions, gates, hidden, columns) and (..., hidden), in our order of the gates."""
        s = self.layer
        whole = w[self.at : self.at + s.directions * s.block].reshape(s.directions, s.block)
        middle = s.gates * s.hidden * s.columns
        lead = (s.directions, s.gates, s.hidden)
        return (
            whole[:, :middle].reshape(*lead, s.columns),
            whole[:, middle:].reshape(*lead, s.hidden),
        )

    def _bias_rows(self, w: Any) -> list[tuple[Any, Any]]:
        """Of each direction: input biases and recurrent ones, (gates, hidden)."""
        g, h = self.layer.gates, self.layer.hidden
        return [
            (w[at : at + g * h].reshape(g, h), w[at + g * h : at + 2 * g * h].reshape(g, h))
            for at in self.biases_at
        ]

    def bias(self, w: Any) -> Any:
        """oneDNN's bias."""
        s = self.layer
        out = np.empty((s.directions, s.biases, s.hidden), np.float32)
        for row, (bw, br) in zip(out, self._bias_rows(w)):
            if s.mode == "gru":
                row[0], row[1] = bw[1] + br[1], bw[0] + br[0]
                row[2], row[3] = bw[2], br[2]
            else:
                np.add(bw, br, out=row)
        return out

    def gradient_places(self, dw: Any) -> list[Any]:
        """Where the gradients of the matrices go: into the vector, or (GRU) beside it."""
        if self.layer.mode != "gru":
            return self.matrices(dw)
        return [np.empty(v.shape, np.float32) for v in self._views(dw)]

    def store(self, dw: Any, matrices: Sequence[Any], bias: Any) -> None:
        """Put oneDNN's gradients into the vector."""
        gru = self.layer.mode == "gru"
        if gru:
            for view, m in zip(self._views(dw), matrices):
                view[:, _GRU_ORDER] = m
        for d, (bw, br) in zip(bias, self._bias_rows(dw)):
            if gru:
                bw[:] = d[[1, 0, 2]]
                br[:] = d[[1, 0, 3]]
            else:
                bw[:] = br[:] = d


# -- the whole net ---------------------------------------------------------------------------------


class Reserve:
    """What the gradient needs: each layer's workspace, its input, and the last states."""

    def __init__(self, pool: list[list[Any]], sizes: Sequence[int]) -> None:
        self._pool = pool
        self.spaces = pool.pop() if pool else [np.empty(n, np.uint8) for n in sizes]
        self.sources: list[Any] = []
        self.last: list[Any] = []

    def __del__(self) -> None:
        if len(self._pool) < 2:
            self._pool.append(self.spaces)


class Net:
    """The layers of a call."""

    def __init__(self, call: Call, forward: bool, threads: int) -> None:
        op: Any = call.op.op  # type: ignore[attr-defined]
        steps, batch, features = call.inputs[1].shape
        shape: RNNShape = op.layout
        self.shape, self.lstm = shape, op.has_cell
        self.keeps = bool(getattr(op, "keeps_reserve", True))
        #: oneDNN 3.2 crashes in a GRU's inference (512 units, 32 sequences): it is always trained.
        self.trains = self.keeps or op.rnn_mode == "gru"
        self.layers, self.parameters, self.plans = [], [], []
        for i in range(shape.num_layers):
            columns = int(shape.inputs_of(i, features))
            layer = Layer(op.rnn_mode, steps, batch, columns, op.hidden_size, shape.directions)
            self.layers.append(layer)
            if self.keeps:
                _backward(layer, threads)  # forward and gradient are taken together or not at all
            self.parameters.append(Parameters(layer, shape, i, features))
            self.plans.append(
                _plan_forward(layer, self.trains, threads)
                if forward
                else _plan_backward(layer, threads)
            )
        self.space_bytes = [_space_bytes(x, threads) for x in self.layers] if self.trains else []
        self.workspace_bytes = max(p.workspace_bytes for p in self.plans)

    @property
    def primitive(self) -> Primitive:
        """That of the first layer."""
        return self.plans[0].primitive

    def states(self, arrays: Sequence[Any], i: int) -> list[Any]:
        """The states of layer ``i`` in arrays over all layers."""
        d = self.shape.directions
        return [a[i * d : (i + 1) * d] for a in arrays]

    def __str__(self) -> str:
        return f"{self.primitive.implementation}, {len(self.layers)} layer(s)"


class _NetKernel(OnednnKernel):
    takes_reference = True

    def refuses_types(self, call: Call) -> str | None:
        """What no rewrite would have lowered."""
        op: Any = call.op.op  # type: ignore[attr-defined]
        if op.lengths or op.input_mode != "linear" or (op.dropout and op.num_layers > 1):
            return "oneDNN has no lengths, no dropout between layers, no skipped input"
        return super().refuses_types(call)

    def planned(self, call: Call) -> Any:
        """All layers."""
        return Net(call, isinstance(call.op, OneDnnRNN), thread_pools.settle())


class RNNKernel(_NetKernel):
    """Forward: (y, hy, [cy], [reserve]) of (w, x, hx, [cx])."""

    name = "onednn.rnn"

    def bind(self, call: Call) -> Any:
        """Layer by layer."""
        net: Any = self.cached(call)
        version = version_of(call, 0)
        versions = {} if version is None else {0: version}
        launchers = [p.launcher(versions) for p in net.plans]
        return _ForwardNet(net, launchers)


class _ForwardNet:
    def __init__(self, net: Net, launchers: list[Launcher]) -> None:
        self.net, self.launchers = net, launchers
        self._pool: list[list[Any]] = []

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any = None) -> Any:
        """Run all layers; the reserve, if it is kept, is the last result."""
        net = self.net
        w, x, *states = map(lies_densely, inputs)
        y, *new = outputs[: 2 + net.lstm]
        reserve = Reserve(self._pool, net.space_bytes) if net.trains else None
        source = x
        for i, (layer, launch) in enumerate(zip(net.layers, self.launchers)):
            last = i == len(net.layers) - 1
            shape = (layer.steps, layer.batch, layer.directions * layer.hidden)
            out = y if last else np.empty(shape, np.float32)
            parameters = net.parameters[i]
            arrays = [
                source, *net.states(states, i), *parameters.matrices(w), parameters.bias(w),
                out, *net.states(new, i),
            ]  # fmt: skip
            if reserve is not None:
                arrays.append(reserve.spaces[i])
                reserve.sources.append(None if i == 0 else source)
            launch.run(arrays, workspace)
            source = out
        if reserve is None or not net.keeps:
            return None
        reserve.last = [s.copy() for s in new]
        return [y, *new, reserve]


class RNNGradKernel(_NetKernel):
    """(dw, dx, dhx, [dcx]) of (w, x, hx, [cx], y, dy, dhy, [dcy], reserve)."""

    name = "onednn.rnn"

    def bind(self, call: Call) -> Any:
        """Layer by layer, the last one first."""
        net: Any = self.cached(call)
        return _BackwardNet(net, [p.launcher() for p in net.plans])


class _BackwardNet:
    def __init__(self, net: Net, launchers: list[Launcher]) -> None:
        self.net, self.launchers = net, launchers

    def __call__(
        self, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any = None
    ) -> None:
        """Backpropagate through all layers."""
        net, n = self.net, 1 + self.net.lstm
        reserve = inputs[-1]
        w, x, *rest = map(lies_densely, inputs[:-1])
        states, y, dy, dstates = rest[:n], rest[n], rest[n + 1], rest[n + 2 :]
        dw, dx, *dfirst = outputs
        result, gradient = y, dy
        for i in reversed(range(len(net.layers))):
            layer, parameters = net.layers[i], net.parameters[i]
            source = x if i == 0 else reserve.sources[i]
            dsource = dx if i == 0 else np.empty(source.shape, np.float32)
            places = parameters.gradient_places(dw)
            dbias = np.empty((layer.directions, layer.biases, layer.hidden), np.float32)
            self.launchers[i].run(
                [
                    source, *net.states(states, i), *parameters.matrices(w), parameters.bias(w),
                    result, *net.states(reserve.last, i), gradient, *net.states(dstates, i),
                    dsource, *net.states(dfirst, i), *places, dbias, reserve.spaces[i],
                ],
                workspace,
            )  # fmt: skip
            parameters.store(dw, places, dbias)
            result, gradient = source, dsource


KERNELS: tuple[Row, ...] = (
    ((OneDnnRNN,), (RNNKernel(),)),
    ((OneDnnRNNGrad,), (RNNGradKernel(),)),
)
