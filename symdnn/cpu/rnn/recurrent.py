"""Recurrent networks by compiled kernels, preferred to oneDNN's: LSTM, GRU, tanh and ReLU.

All steps of a layer are one parallel region (:mod:`symdnn.cpu.rnn.recurrent_ir`,
:mod:`symdnn.cpu.rnn.recurrent_grad_ir`); layers and directions are Python loops around it.
Parameters are read from, and gradients written to, the flat vector.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any

import numpy as np

from symdnn.cpu.compiler import jit
from symdnn.cpu.gemm.gemm_ir import shape_of
from symdnn.cpu.ir.builder import WIDTH
from symdnn.cpu.launch.contiguous_launch import compiler_refusal
from symdnn.cpu.launch.scratch import Scratch, address, aligned, as_contiguous, empty_aligned
from symdnn.cpu.launch.traits import LLVM
from symdnn.cpu.onednn.kernel import PrepackedInput, version_of
from symdnn.cpu.rnn.recurrent_grad_ir import BACKWARD_WORDS, GATE_SLOTS, backward_ir
from symdnn.cpu.rnn.recurrent_ir import FORWARD_WORDS, GATES, SAVED_VECTORS, forward_ir, panels
from symdnn.cpu.threads import thread_pools, threads
from symdnn.graph.kernel import Call, Kernel, Launch, Row
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array
from symdnn.ops.core.lanes import joined
from symdnn.ops.nn.rnn_params import RNNShape
from symdnn.ops.vendor.onednn import OneDnnRNN, OneDnnRNNGrad

__all__ = ["RecurrentGradKernel", "RecurrentKernel", "KERNELS"]

#: Terms (steps times sequences) of a block of the matrices' gradients; a block has whole steps.
_BLOCK_TERMS = 256
#: Limit of one direction's matrices, which must fit the L2 caches. For larger ones oneDNN's GEMM
#: reads less memory; but its GRU is slower at all sizes.
_MAX_MATRIX_BYTES = 7 << 19
#: Rows of a product of the inputs of several steps: their matrix is read once for so many.
_CHUNK_ROWS = 32
#: Multiplications of a step for which another thread pays: a barrier takes about 1 us.
_MULTIPLICATIONS_PER_THREAD = 1 << 16
#: Iterations of a thread's spin loop at a barrier before it yields its processor: some 10 ms, since
#: another program would then take a whole slice of the scheduler, at each step. It is 5 us if there
#: are more threads than processors.
_SPIN_ITERATIONS, _SPIN_ITERATIONS_OVERSUBSCRIBED = 200_000, 100
_Words = ctypes.c_int64


@dataclass(frozen=True)
class RecurrentLayer:
    """One direction of a layer at known sizes; ``columns`` is the number of its input features.

    ``matrices`` and ``biases`` are offsets of its parameters in the vector. ``direction`` is 1 if
    it runs from the last step to the first; ``directions`` share the result. The sequences of each
    of ``lanes`` give gradients of the parameters of their own.
    """

    mode: str
    steps: int
    batch: int
    columns: int
    hidden: int
    direction: int
    directions: int
    matrices: int
    biases: int
    lanes: int = 1

    @property
    def gates(self) -> int:
        """Number of gates."""
        return GATES[self.mode]

    @property
    def groups(self) -> int:
        """Number of groups of 16 units."""
        return -(-self.hidden // WIDTH)

    @property
    def examples(self) -> int:
        """Sequences of a lane."""
        return self.batch // self.lanes

    @property
    def kept_shape(self) -> tuple[int, ...]:
        """Shape of the values of the gates that are saved for the gradient."""
        return (self.steps, self.batch, self.groups, SAVED_VECTORS[self.mode], WIDTH)

    @property
    def order(self) -> range:
        """Time indices in the order in which the direction runs."""
        steps = range(self.steps)
        return steps[::-1] if self.direction else steps

    @property
    def units(self) -> slice:
        """The columns of the result that belong to this direction."""
        return slice(self.direction * self.hidden, (self.direction + 1) * self.hidden)

    def threads(self) -> int:
        """The number of threads for this layer."""
        work = self.batch * self.gates * self.hidden * (self.columns + self.hidden)
        return min(threads.threads(work, _MULTIPLICATIONS_PER_THREAD), self.groups)

    @property
    def chunk(self) -> int:
        """Steps whose inputs are multiplied at once: several where the sequences are few."""
        if self.batch >= shape_of(jit.vector_width()).rows:
            return 1
        return min(self.steps, max(1, _CHUNK_ROWS // self.batch))

    @property
    def rows_before(self) -> int:
        """Rows of a thread's memory for products of inputs."""
        return max(shape_of(jit.vector_width()).rows, self.chunk * self.batch)

    def parameters(self, at: int) -> dict[str, int]:
        """Addresses of matrices and biases in a vector at address ``at``."""
        rows = self.gates * self.hidden
        return {
            "w": at + 4 * self.matrices, "r": at + 4 * (self.matrices + rows * self.columns),
            "bw": at + 4 * self.biases, "br": at + 4 * (self.biases + rows),
        }  # fmt: skip

    def sizes(self) -> dict[str, int]:
        """Words of the block that are sizes."""
        return {
            "steps": self.steps, "batch": self.batch, "columns": self.columns,
            "hidden": self.hidden, "y_row": 4 * self.directions * self.hidden,
            "cells_step": 4 * self.batch * self.hidden, "kept_step": 4 * prod(self.kept_shape[1:]),
            "chunk": self.chunk, "before_rows": self.rows_before,
            "lanes": self.lanes, "examples": self.examples,
        }  # fmt: skip

    def steps_of(self, name: str, array: Array, first: int = 0) -> dict[str, int]:
        """Words for an array (time, batch, features): its address at column ``first``, its stride.

        The stride is from step to step, in bytes.
        """
        step = 4 * prod(array.shape[1:])
        begin = address(array) + 4 * first
        if not self.direction:
            return {name: begin, f"{name}_step": step}
        return {name: begin + (self.steps - 1) * step, f"{name}_step": -step}

    def results_of(self, name: str, array: Array) -> dict[str, int]:
        """:meth:`steps_of` for this direction's columns of the results."""
        return self.steps_of(name, array, self.direction * self.hidden)


def _layers(op: Any, shape: Sequence[int]) -> list[list[RecurrentLayer]]:
    """The directions of each layer for an input of (time, [lanes], batch, features)."""
    steps, *parts, features = shape
    batch = prod(parts)
    lanes = parts[0] if len(parts) > 1 else 1
    layout: RNNShape = op.layout
    offsets, d = layout.block_offsets(features), layout.directions
    return [
        [
            RecurrentLayer(
                op.rnn_mode, steps, batch, int(layout.inputs_of(i, features)), op.hidden_size, k, d,
                *offsets[i * d + k], lanes,
            )
            for k in range(d)
        ]
        for i in range(layout.num_layers)
    ]  # fmt: skip


# -- scratch memory -------------------------------------------------------------------------------


def _forward_floats(layer: RecurrentLayer, count: int, keeps: bool) -> dict[str, int]:
    """Sizes of scratch memory in floats, by the words for their addresses."""
    width, columns = jit.vector_width(), layer.gates * layer.groups * WIDTH
    panel = panels(width, columns, count) * shape_of(width).columns
    row = count * (columns + WIDTH)
    gru = layer.mode == "gru"
    return {
        "packed_w": panel * layer.columns, "packed_r": panel * layer.hidden,
        "bias": columns * (1 + gru), "packed_for": 2 * count, "before": row * layer.rows_before,
        "before_h": row * shape_of(width).rows * gru,
        "cells": 0 if keeps else layer.batch * layer.hidden,
    }  # fmt: skip


def _backward_floats(layer: RecurrentLayer, count: int) -> dict[str, int]:
    width, slots = jit.vector_width(), GATE_SLOTS[layer.mode][0]
    panel, terms = shape_of(width).columns, layer.gates * layer.hidden
    block = _block(layer) * layer.examples * panel * count
    whole = -(-layer.columns // WIDTH) * WIDTH
    return {
        "packed_w": panels(width, whole, count) * panel * terms,
        "packed_r": panels(width, layer.groups * WIDTH, count) * panel * terms,
        "deltas": 3 * layer.batch * (slots * layer.hidden + WIDTH),
        "slots": layer.groups * layer.steps * layer.batch * slots * WIDTH,
        "packed_x": -(-layer.columns // panel) * block,
        "packed_h": -(-layer.hidden // panel) * block,
    }  # fmt: skip


def _block(layer: RecurrentLayer) -> int:
    """Steps of a block of the matrices' gradients."""
    return min(layer.steps, max(1, _BLOCK_TERMS // layer.examples))


def _places(floats: dict[str, int]) -> tuple[dict[str, int], int]:
    """(offsets of all parts in bytes, total size); the counter of barriers comes first."""
    places, at = {"counter": 0}, 64
    for name, count in floats.items():
        places[name] = at
        at += aligned(4 * count)
    return places, at


#: Words for the addresses of what is packed of the parameters, in the order of their memory.
_PACKED = ("packed_w", "packed_r", "bias", "packed_for")


def _packed_bytes(places: dict[str, int]) -> int:
    """Size of all of :data:`_PACKED` together."""
    return places["before"] - places["packed_w"]


def _empty(shape: Sequence[int]) -> Any:
    """A float32 array aligned to a cache line."""
    return empty_aligned(4 * prod(shape)).view(np.float32).reshape(shape)


class RecurrentReserve:
    """Values of all layers that the gradient needs; the memory returns to a pool when freed."""

    def __init__(self, pool: list[Any], layers: Sequence[Sequence[RecurrentLayer]]) -> None:
        self._pool = pool
        self.memory = pool.pop() if pool else [_reserve_memory(directions) for directions in layers]

    def __del__(self) -> None:
        if len(self._pool) < 2:
            self._pool.append(self.memory)


def _reserve_memory(directions: Sequence[RecurrentLayer]) -> tuple[Any, list[Any], list[Any]]:
    """(result, saved gates of each direction, cells of each direction)"""
    first = directions[0]
    result = _empty((first.steps, first.batch, first.directions * first.hidden))
    cells = (first.steps + 1, first.batch, first.hidden if first.mode == "lstm" else 0)
    return result, [_empty(d.kept_shape) for d in directions], [_empty(cells) for _ in directions]


# -- kernels --------------------------------------------------------------------------------------


class RecurrentKernel(Kernel[OneDnnRNN | OneDnnRNNGrad]):
    """The forward pass: from (w, x, hx, [cx]) to (y, hy, [cy], [reserve])."""

    name = "llvm.recurrent"
    traits = LLVM

    def refuses(self, call: Call[OneDnnRNN | OneDnnRNNGrad]) -> str | None:
        """Needs float32 and matrices that fit the L2 caches; the same for both passes."""
        op: Any = call.op.op
        if op.lengths or op.input_mode != "linear" or (op.dropout and op.num_layers > 1):
            return "it has no lengths, no dropout between layers, no skipped input"
        types = [t for t in (*call.inputs, *call.outputs) if isinstance(t, TensorType)]
        if any(t.dtype != "float32" for t in types):
            return "it computes in float32"
        if why := compiler_refusal():
            return why
        if jit.vector_width() < 8:
            return "it is for processors with AVX"
        return _size_refusal(op, types[1].shape) if all(t.is_static for t in types) else None

    def workspace_bytes(self, call: Call[OneDnnRNN | OneDnnRNNGrad]) -> int:
        """Packed matrices, results of a step's GEMM, gradients of all gates."""
        return self._net(call).workspace_bytes

    def bind(self, call: Call[OneDnnRNN | OneDnnRNNGrad]) -> Launch[Array]:
        """A launch that runs layer by layer."""
        return self._net(call)

    def _net(self, call: Call[OneDnnRNN | OneDnnRNNGrad]) -> _RecurrentLaunch:
        return _ForwardLaunch(call)


class RecurrentGradKernel(RecurrentKernel):
    """The gradient: from (w, x, hx, [cx], y, dy, dhy, [dcy], reserve) to (dw, dx, dhx, [dcx])."""

    def _net(self, call: Call) -> _RecurrentLaunch:
        return _BackwardLaunch(call)


def _size_refusal(op: Any, shape: Sequence[Any]) -> str | None:
    """Why a network of these sizes is left to oneDNN; the same for both passes."""
    if 0 in shape:
        return "it is empty"
    for first, *_ in _layers(op, shape):
        size = 4 * first.gates * first.hidden * (first.columns + first.hidden)
        if size > _MAX_MATRIX_BYTES and first.mode != "gru":
            return "its matrices are too large to stay in the second caches"
    return None


class _RecurrentLaunch:
    """``launch(inputs, outputs, workspace)`` of all layers; subclasses run the two passes."""

    _word_names: tuple[str, ...] = ()

    def __init__(self, call: Call) -> None:
        self.op: Any = call.op.op  # type: ignore[attr-defined]
        thread_pools.set_threads()
        self.layers = _layers(self.op, call.inputs[1].shape)
        self.lstm = self.op.has_cell
        each = [d for layer in self.layers for d in layer]
        #: Threads that scratch memory is sized for; later calls may use fewer.
        self._threads = {d: d.threads() for d in each}
        self._places = {d: _places(self._floats(d)) for d in each}
        self.workspace_bytes = max(end for _, end in self._places.values())
        self._scratch = Scratch([self.workspace_bytes])

    def __call__(
        self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array | None = None
    ) -> Any:
        raise NotImplementedError

    def _floats(self, layer: RecurrentLayer) -> dict[str, int]:
        raise NotImplementedError

    def _run(
        self, layer: RecurrentLayer, function: Any, workspace: Array | None, **words: int
    ) -> None:
        """Run a kernel; ``words`` are those of its block that are not sizes or scratch memory."""
        base = self._scratch.begin(workspace)
        places = {n: base + at for n, at in self._places[layer][0].items()}
        count = threads.usable(min(self._threads[layer], threads.allowed()))
        looks = _SPIN_ITERATIONS if count <= _processors() else _SPIN_ITERATIONS_OVERSUBSCRIBED
        values = {**places, "threads": count, "looks": looks, **layer.sizes(), **words}
        ctypes.memset(base, 0, 8)
        function((_Words * len(self._word_names))(*(values[n] for n in self._word_names)))


@cache
def _processors() -> int:
    return len(os.sched_getaffinity(0))


class _ForwardLaunch(_RecurrentLaunch):
    _word_names = FORWARD_WORDS

    def __init__(self, call: Call) -> None:
        self.keeps = bool(call.op.op.keeps_reserve)  # type: ignore[attr-defined]
        super().__init__(call)
        mode, width = self.op.rnn_mode, jit.vector_width()
        self._function = threads.kernel(forward_ir, mode, width, self.keeps)
        self._pool: list[Any] = []
        version = version_of(call, 0)
        self._packed = {
            layer: None if version is None else PrepackedInput(version, _packed_bytes(places))
            for layer, (places, _) in self._places.items()
        }

    def _floats(self, layer: RecurrentLayer) -> dict[str, int]:
        return _forward_floats(layer, self._threads[layer], self.keeps)

    def __call__(
        self, inputs: Sequence[Array], outputs: Sequence[Array], workspace: Array | None = None
    ) -> Any:
        """Run all layers; returns the results with the reserve, if the gradient needs it."""
        w, x, hx, *cx = map(as_contiguous, inputs)
        y, hy, *cy = outputs[: 2 + self.lstm]
        reserve = RecurrentReserve(self._pool, self.layers) if self.keeps else None
        for i, directions in enumerate(self.layers):
            result = self._result(i, y, reserve)
            for layer in directions:
                k = i * layer.directions + layer.direction
                kept, cells = self._memory(reserve, i, layer, workspace)
                if cx:
                    np.copyto(cells[0], cx[0][k])
                self._layer(layer, (w, x, hx[k], result), (kept, cells), workspace)
                np.copyto(hy[k], result[layer.order[-1], :, layer.units])
                if cx:
                    np.copyto(cy[0][k], cells[-1])
            x = result
        return None if reserve is None else [y, hy, *cy, reserve]

    def _result(self, i: int, y: Any, reserve: RecurrentReserve | None) -> Any:
        """Memory for a layer's result."""
        if i == len(self.layers) - 1:
            return y
        return np.empty(y.shape, np.float32) if reserve is None else reserve.memory[i][0]

    def _memory(
        self,
        reserve: RecurrentReserve | None,
        i: int,
        layer: RecurrentLayer,
        workspace: Array | None,
    ) -> tuple[Any, Any]:
        """(memory of saved gates, of cells): of all steps, or without a reserve of one step."""
        if reserve is not None:
            _, kept, cells = reserve.memory[i]
            return kept[layer.direction], cells[layer.direction]
        at = self._scratch.begin(workspace) + self._places[layer][0]["cells"]
        count = layer.batch * layer.hidden
        memory = np.ctypeslib.as_array((ctypes.c_float * count).from_address(at))
        return None, memory.reshape(1, layer.batch, layer.hidden)

    def _layer(
        self,
        layer: RecurrentLayer,
        given: tuple[Any, ...],
        kept: tuple[Any, Any],
        workspace: Array | None,
    ) -> None:
        w, x, hx, result = given
        packed = self._packed_at(layer, workspace)
        more = {"cells_step": 0, "kept": 0} if kept[0] is None else {"kept": address(kept[0])}
        self._run(
            layer, self._function, workspace, **layer.parameters(address(w)), **more, **packed,
            **layer.steps_of("x", x), **layer.results_of("y", result), hx=address(hx),
            cells=address(kept[1]),
        )  # fmt: skip

    def _packed_at(self, layer: RecurrentLayer, workspace: Array | None) -> dict[str, int]:
        """Addresses of packed matrices and biases: of kept ones, once the parameters have stayed.

        New ones are cleared where there are columns of units that do not exist.
        """
        places, kept = self._places[layer][0], self._packed[layer]
        at, valid = (0, False) if kept is None else kept.place()
        base = (at or self._scratch.begin(workspace) + places["packed_w"]) - places["packed_w"]
        if not valid:
            first = "packed_w" if layer.hidden % WIDTH else "packed_for"
            ctypes.memset(base + places[first], 0, places["before"] - places[first])
        return {name: base + places[name] for name in _PACKED}


class _BackwardLaunch(_RecurrentLaunch):
    _word_names = BACKWARD_WORDS

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self._function = threads.kernel(backward_ir, self.op.rnn_mode, jit.vector_width())

    def _floats(self, layer: RecurrentLayer) -> dict[str, int]:
        return _backward_floats(layer, self._threads[layer])

    def __call__(
        self, inputs: Sequence[Any], outputs: Sequence[Array], workspace: Array | None = None
    ) -> None:
        """Backpropagate through all layers, the last one first."""
        reserve: RecurrentReserve = inputs[-1]
        w, x, *rest = map(as_contiguous, inputs[:-1])
        dw, *made = outputs
        if self.op.lanes:
            x, *rest = (joined(a, 1) for a in (x, *rest))
            made = [joined(a, 1) for a in made]
        dx, *dfirst = made
        states, (y, dy), dstates = (
            rest[: 1 + self.lstm], rest[1 + self.lstm : 3 + self.lstm], rest[3 + self.lstm :],
        )  # fmt: skip
        for first, last in zip(dfirst, dstates, strict=True):
            np.copyto(first, last)
        for i in reversed(range(len(self.layers))):
            source = reserve.memory[i - 1][0] if i else x
            dsource = np.empty(source.shape, np.float32) if i else dx
            for layer in self.layers[i]:
                k = i * layer.directions + layer.direction
                _, kept, cells = reserve.memory[i]
                memory = kept[layer.direction], cells[layer.direction]
                at = [address(a[k]) for a in (states[0], *dfirst)]
                self._layer(layer, (w, source, y, dy), (dw, dsource), memory, at, workspace)
            y, dy = source, dsource

    def _layer(
        self, layer: RecurrentLayer, given: tuple[Any, ...], made: tuple[Any, Any],
        memory: tuple[Any, Any], states: Sequence[int], workspace: Array | None,
    ) -> None:  # fmt: skip
        (w, x, y, dy), (dw, dx), (kept, cells) = given, made, memory
        rows = layer.gates * layer.hidden
        biases = dw[..., layer.biases : layer.biases + 2 * rows]
        biases.fill(0)
        gradients = {f"d{n}": at for n, at in layer.parameters(address(dw)).items()}
        hx, dh, dc = (*states, 0)[:3]
        inputs = layer.steps_of("x", x)
        self._run(
            layer, self._function, workspace, **layer.parameters(address(w)), **gradients, **inputs,
            **layer.results_of("y", y), **layer.results_of("dy", dy), hx=hx, dh=dh, dc=dc,
            dx=layer.steps_of("dx", dx)["dx"], dx_adds=int(layer.direction > 0),
            kept=address(kept), cells=address(cells), block=_block(layer),
            dw_lane=dw.strides[0] if dw.ndim > 1 else 0,
        )  # fmt: skip
        if layer.mode != "gru":
            biases[..., rows:] = biases[..., :rows]


KERNELS: tuple[Row, ...] = (
    ((OneDnnRNN,), (RecurrentKernel(),)),
    ((OneDnnRNNGrad,), (RecurrentGradKernel(),)),
)
