"""Recurrent networks by oneDNN: tanh, ReLU, LSTM, and GRU in cuDNN's variant (linear before reset).

There is one primitive for each layer, forward and backward. The parameters are one flat vector
(:mod:`symdnn.ops.nn.rnn_params`). A layer's matrices have oneDNN's layout ``ldgoi`` in it, so
oneDNN's reorders read and write them in place. There are two differences. oneDNN has one bias where
we have two (for a GRU the recurrent bias of the new gate is a fourth row). And a GRU's gates are in
the order z, r, n instead of r, z, n.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from symdnn.cpu.compiler.object_cache import cached
from symdnn.cpu.launch.scratch import as_contiguous
from symdnn.cpu.onednn.kernel import (
    OnednnKernel,
    PlannedPrimitive,
    PrimitiveLaunch,
    PrimitiveOperand,
    version_of,
)
from symdnn.cpu.onednn.objects import ALG, DIRECTION, PROP, Layout, Primitive, primitive
from symdnn.cpu.threads import thread_pools
from symdnn.graph.kernel import Call, Row
from symdnn.graph.typing import Array, Arrays
from symdnn.ops.nn.rnn_params import RNNShape
from symdnn.ops.vendor.onednn import OneDnnRNN, OneDnnRNNGrad

_DIFF_WEIGHTS_OVERWRITE = 1  # dnnl_rnn_flags_diff_weights_overwrite
_ONEDNN_GRU_GATES = [1, 0, 2]
_WORKSPACE = "workspace"


# -- one layer -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OnednnLayer:
    """One layer at known sizes. ``columns`` is the number of its input features."""

    mode: str
    steps: int
    batch: int
    columns: int
    hidden: int
    directions: int

    @property
    def gates(self) -> int:
        """Number of gates."""
        return {"lstm": 4, "gru": 3}.get(self.mode, 1)

    @property
    def biases(self) -> int:
        """Number of rows of oneDNN's bias."""
        return self.gates + (self.mode == "gru")

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the states that are carried from step to step."""
        return ("iter", "iter_c") if self.mode == "lstm" else ("iter",)

    @property
    def block(self) -> int:
        """Elements of the matrices of one direction."""
        return self.gates * self.hidden * (self.columns + self.hidden)

    def layouts(self) -> dict[str, Layout]:
        """Layouts of the operands of the forward pass in our arrays."""
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
        assert g > 0, "every layer has a gate"
        for s in self.states:
            found[f"src_{s}"] = found[f"dst_{s}"] = Layout((1, d, b, h), "float32")
        return found

    def _matrices(self, columns: int) -> Layout:
        h, d, g = self.hidden, self.directions, self.gates
        # Matrices of a GRU are copied, with their gates in oneDNN's order.
        one = g * h * columns if self.mode == "gru" else self.block
        return Layout((1, d, columns, g, h), "float32", (d * one, one, 1, h * columns, columns))


def _arguments(layer: OnednnLayer) -> list[Any]:
    """Layouts of the operands in the order of the C arguments."""
    lstm, layouts = layer.mode == "lstm", layer.layouts()

    def of(name: str) -> Layout:
        return layouts[name].any if name.startswith("weights") else layouts[name]

    middle = [of("weights"), of("weights_iter"), *([None, None] if lstm else []), of("bias")]
    source = [of("src"), *(of(f"src_{s}") for s in layer.states)]
    return [*source, *middle, of("dst"), *(of(f"dst_{s}") for s in layer.states)]


@cached(64 << 10)
def _forward(layer: OnednnLayer, prop: str, threads: int) -> Primitive:
    name, before, after = _kind(layer)
    layouts = _arguments(layer)
    return primitive(f"{name}_forward", PROP[prop], *before, *layouts, 0, *after)


@cached(64 << 10)
def _backward(layer: OnednnLayer, threads: int) -> Primitive:
    name, before, after = _kind(layer)
    layouts = _arguments(layer)
    hint = _forward(layer, "training", threads)
    return primitive(
        f"{name}_backward", PROP["backward"], *before, *layouts, *layouts,
        _DIFF_WEIGHTS_OVERWRITE, *after, hint,
    )  # fmt: skip


def _kind(layer: OnednnLayer) -> tuple[str, tuple[Any, ...], tuple[Any, ...]]:
    """(the primitive's name, C arguments before the descriptors, C arguments after the flags)"""
    direction = DIRECTION["both" if layer.directions == 2 else "left_to_right"]
    if layer.mode == "lstm":
        return "lstm", (direction,), ()
    if layer.mode == "gru":
        return "lbr_gru", (direction,), ()
    activation = ALG["relu" if layer.mode == "rnn_relu" else "tanh"]
    return "vanilla_rnn", (activation, direction), (0.0, 0.0)


class _PlannedLayer(PlannedPrimitive):
    """A planned primitive whose workspace needs no reorder: it has oneDNN's layout."""

    def _foreign(self, o: PrimitiveOperand) -> Any:
        return None if o.name == _WORKSPACE else super()._foreign(o)


def _read(layer: OnednnLayer) -> list[PrimitiveOperand]:
    """Operands that both passes read. Index 0 marks parameters, which may be prepacked."""
    layouts = layer.layouts()
    names = ["src", *(f"src_{s}" for s in layer.states), "weights", "weights_iter", "bias"]
    return [PrimitiveOperand(n, layouts[n], 0 if n.startswith("weights") else -1) for n in names]


def _workspace_bytes(layer: OnednnLayer, threads: int) -> int:
    return _forward(layer, "training", threads).operand(_WORKSPACE).nbytes


def _plan_forward(layer: OnednnLayer, trains: bool, threads: int) -> PlannedPrimitive:
    made = _forward(layer, "training" if trains else "inference", threads)
    layouts = layer.layouts()
    operands = _read(layer)
    for name in ("dst", *(f"dst_{s}" for s in layer.states)):
        operands.append(PrimitiveOperand(name, layouts[name], -1, True))
    if trains:
        size = _workspace_bytes(layer, threads)
        operands.append(PrimitiveOperand(_WORKSPACE, Layout((size,), "uint8"), -1, True))
    return _PlannedLayer(made, operands)


def _plan_backward(layer: OnednnLayer, threads: int) -> PlannedPrimitive:
    layouts = layer.layouts()
    results = ("dst", *(f"dst_{s}" for s in layer.states))
    operands = _read(layer)
    operands += [PrimitiveOperand(n, layouts[n], -1) for n in results]
    operands += [PrimitiveOperand(f"diff_{n}", layouts[n], -1) for n in results]
    names = ("src", *(f"src_{s}" for s in layer.states), "weights", "weights_iter", "bias")
    operands += [PrimitiveOperand(f"diff_{n}", layouts[n], -1, True) for n in names]
    size = _workspace_bytes(layer, threads)
    operands.append(PrimitiveOperand(_WORKSPACE, Layout((size,), "uint8"), -1))
    return _PlannedLayer(_backward(layer, threads), operands)


# -- parameters ------------------------------------------------------------------------------------


class LayerParameters:
    """The parameters of one layer: their offsets in the flat vector, and oneDNN's operands."""

    def __init__(self, layer: OnednnLayer, shape: RNNShape, number: int, features: int) -> None:
        offsets = shape.block_offsets(features)
        d = layer.directions
        self.layer = layer
        self.at = offsets[number * d][0]
        self.biases_at = [offsets[number * d + i][1] for i in range(d)]

    def matrices(self, w: Array) -> list[Any]:
        """The input and the recurrent matrices, in the layouts of :meth:`OnednnLayer.layouts`."""
        a, b = self._views(w)
        if self.layer.mode != "gru":
            middle = self.layer.gates * self.layer.hidden * self.layer.columns
            return [w[self.at :], w[self.at + middle :]]
        return [np.ascontiguousarray(m[:, _ONEDNN_GRU_GATES]) for m in (a, b)]

    def _views(self, w: Array) -> tuple[Any, Any]:
        """Views (directions, gates, hidden, columns) and (..., hidden); gates in our order."""
        s = self.layer
        whole = w[self.at : self.at + s.directions * s.block].reshape(s.directions, s.block)
        middle = s.gates * s.hidden * s.columns
        lead = (s.directions, s.gates, s.hidden)
        return (
            whole[:, :middle].reshape(*lead, s.columns),
            whole[:, middle:].reshape(*lead, s.hidden),
        )

    def _bias_rows(self, w: Array) -> list[tuple[Any, Any]]:
        """For each direction the input biases and recurrent ones, each (gates, hidden)."""
        g, h = self.layer.gates, self.layer.hidden
        return [
            (w[at : at + g * h].reshape(g, h), w[at + g * h : at + 2 * g * h].reshape(g, h))
            for at in self.biases_at
        ]

    def bias(self, w: Array) -> Any:
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
        """Memory for the matrices' gradients: in the vector, or (GRU) in arrays of their own."""
        if self.layer.mode != "gru":
            return self.matrices(dw)
        return [np.empty(v.shape, np.float32) for v in self._views(dw)]

    def store(self, dw: Any, matrices: Sequence[Any], bias: Any) -> None:
        """Copy oneDNN's gradients into the vector."""
        gru = self.layer.mode == "gru"
        if gru:
            for view, m in zip(self._views(dw), matrices):
                view[:, _ONEDNN_GRU_GATES] = m
        for d, (bw, br) in zip(bias, self._bias_rows(dw)):
            if gru:
                bw[:] = d[[1, 0, 2]]
                br[:] = d[[1, 0, 3]]
            else:
                bw[:] = br[:] = d


# -- all layers ------------------------------------------------------------------------------------


class OnednnReserve:
    """Values that the gradient needs: each layer's workspace and input, and the last states."""

    def __init__(self, pool: list[list[Any]], sizes: Sequence[int]) -> None:
        self._pool = pool
        self.spaces = pool.pop() if pool else [np.empty(n, np.uint8) for n in sizes]
        self.sources: list[Any] = []
        self.last: list[Any] = []

    def __del__(self) -> None:
        if len(self._pool) < 2:
            self._pool.append(self.spaces)


class LayerStack:
    """The layers of a call: their parameters and planned primitives."""

    def __init__(self, call: Call, forward: bool, threads: int) -> None:
        op: Any = call.op.op  # type: ignore[attr-defined]
        steps, batch, features = call.inputs[1].shape
        shape: RNNShape = op.layout
        self.shape, self.lstm = shape, op.has_cell
        self.keeps = bool(getattr(op, "keeps_reserve", True))
        #: Whether primitives are for training. A GRU's always are: oneDNN 3.2 crashes in its
        #: inference (512 units, 32 sequences).
        self.trains = self.keeps or op.rnn_mode == "gru"
        self.layers, self.parameters, self.plans = [], [], []
        for i in range(shape.num_layers):
            columns = int(shape.inputs_of(i, features))
            layer = OnednnLayer(
                op.rnn_mode, steps, batch, columns, op.hidden_size, shape.directions
            )
            self.layers.append(layer)
            if self.keeps:
                _backward(layer, threads)  # raises if there is no gradient: then no forward either
            self.parameters.append(LayerParameters(layer, shape, i, features))
            self.plans.append(
                _plan_forward(layer, self.trains, threads)
                if forward
                else _plan_backward(layer, threads)
            )
        self.workspace_sizes = (
            [_workspace_bytes(x, threads) for x in self.layers] if self.trains else []
        )
        self.workspace_bytes = max(p.workspace_bytes for p in self.plans)

    @property
    def primitive(self) -> Primitive:
        """The primitive of the first layer."""
        return self.plans[0].primitive

    def states(self, arrays: Arrays, i: int) -> list[Any]:
        """The states of layer ``i`` in arrays over all layers."""
        d = self.shape.directions
        return [a[i * d : (i + 1) * d] for a in arrays]

    def __str__(self) -> str:
        return f"{self.primitive.implementation}, {len(self.layers)} layer(s)"


class _RNNBaseKernel(OnednnKernel):
    takes_reference = True

    def refuses_types(self, call: Call) -> str | None:
        """Refuses ops that no rewrite lowers."""
        op: Any = call.op.op  # type: ignore[attr-defined]
        if op.lengths or op.input_mode != "linear" or (op.dropout and op.num_layers > 1):
            return "oneDNN has no lengths, no dropout between layers, no skipped input"
        if getattr(op, "lanes", False):
            return "oneDNN adds up the parameters' gradients of all sequences"
        return super().refuses_types(call)

    def planned(self, call: Call) -> Any:
        """The planned layers."""
        return LayerStack(call, isinstance(call.op, OneDnnRNN), thread_pools.set_threads())


class RNNKernel(_RNNBaseKernel):
    """The forward pass: from (w, x, hx, [cx]) to (y, hy, [cy], [reserve])."""

    name = "onednn.rnn"

    def bind(self, call: Call) -> Any:
        """A launch that runs layer by layer."""
        net: Any = self.cached(call)
        version = version_of(call, 0)
        versions = {} if version is None else {0: version}
        launchers = [p.launcher(versions) for p in net.plans]
        return _ForwardLaunch(net, launchers)


class _ForwardLaunch:
    def __init__(self, net: LayerStack, launchers: list[PrimitiveLaunch]) -> None:
        self.net, self.launchers = net, launchers
        self._pool: list[list[Any]] = []

    def __call__(self, inputs: Arrays, outputs: Arrays, workspace: Array | None = None) -> Any:
        """Run all layers; returns the results with the reserve, if the gradient needs it."""
        net = self.net
        w, x, *states = map(as_contiguous, inputs)
        y, *new = outputs[: 2 + net.lstm]
        reserve = OnednnReserve(self._pool, net.workspace_sizes) if net.trains else None
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


class RNNGradKernel(_RNNBaseKernel):
    """The gradient: from (w, x, hx, [cx], y, dy, dhy, [dcy], reserve) to (dw, dx, dhx, [dcx])."""

    name = "onednn.rnn"

    def bind(self, call: Call) -> Any:
        """A launch that runs layer by layer, the last one first."""
        net: Any = self.cached(call)
        return _BackwardLaunch(net, [p.launcher() for p in net.plans])


class _BackwardLaunch:
    def __init__(self, net: LayerStack, launchers: list[PrimitiveLaunch]) -> None:
        self.net, self.launchers = net, launchers

    def __call__(
        self, inputs: Sequence[Any], outputs: Arrays, workspace: Array | None = None
    ) -> None:
        """Backpropagate through all layers."""
        net, n = self.net, 1 + self.net.lstm
        reserve = inputs[-1]
        w, x, *rest = map(as_contiguous, inputs[:-1])
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
