"""Recurrent networks by compiled kernels: LSTM, GRU, tanh and ReLU.

All steps of a layer are one parallel region (:mod:`symdnn.cpu.rnn.recurrent_ir`,
:mod:`symdnn.cpu.rnn.recurrent_grad_ir`); layers and directions are Python loops around it.
Parameters are read from, and gradients written to, the flat vector.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np

from symdnn.cpu.compiler import jit
from symdnn.cpu.ir.builder import WIDTH
from symdnn.cpu.launch.contiguous_launch import compiler_refusal
from symdnn.cpu.launch.scratch import Scratch, address, as_contiguous, empty_aligned
from symdnn.cpu.launch.traits import LLVM
from symdnn.cpu.onednn.kernel import PrepackedInput, version_of
from symdnn.cpu.rnn.recurrent_forward_ir import forward_ir
from symdnn.cpu.rnn.recurrent_grad_ir import BACKWARD_WORDS, backward_ir
from symdnn.cpu.rnn.recurrent_ir import FORWARD_WORDS
from symdnn.cpu.rnn.recurrent_layers import (
    RecurrentLayer,
    backward_floats,
    block_steps,
    forward_floats,
    layers_of,
    places_of,
)
from symdnn.cpu.threads import thread_pools, threads
from symdnn.graph.kernel import Call, Kernel, Launch, Row
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array, Arrays
from symdnn.ops.core.lanes import joined
from symdnn.ops.elementwise.arithmetic import Cast
from symdnn.ops.nn.rnn import RNNForward, RNNGrad

#: Iterations of a thread's spin loop at a barrier before it yields its processor: some 10 ms, since
#: another program would then take a whole slice of the scheduler, at each step. It is 5 us if there
#: are more threads than processors.
_SPIN_ITERATIONS, _SPIN_ITERATIONS_OVERSUBSCRIBED = 200_000, 100
_Words = ctypes.c_int64
#: Words for the addresses of what is packed of the parameters, in the order of their memory.
_PACKED = ("packed_w", "packed_r", "packed_pairs", "bias", "packed_for")


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


class RecurrentKernel(Kernel[RNNForward | RNNGrad]):
    """The forward pass: from (w, x, hx, [cx]) to (y, hy, [cy], [reserve])."""

    name = "llvm.recurrent"
    traits = LLVM

    def refuses(self, call: Call[RNNForward | RNNGrad]) -> str | None:
        """Needs float32; the same for both passes."""
        op: Any = call.op
        if op.lengths or op.input_mode != "linear" or (op.dropout and op.num_layers > 1):
            return "it has no lengths, no dropout between layers, no skipped input"
        types = [t for t in (*call.inputs, *call.outputs) if isinstance(t, TensorType)]
        if any(t.dtype != "float32" for t in types):
            return "it computes in float32"
        if why := compiler_refusal():
            return why
        if jit.vector_width() < 8:
            return "it is for processors with AVX"
        empty = types[1].is_static and 0 in types[1].shape
        return "it is empty" if empty else None

    def workspace_bytes(self, call: Call[RNNForward | RNNGrad]) -> int:
        """Packed matrices, results of a step's GEMM, gradients of all gates."""
        return self._net(call).workspace_bytes

    def bind(self, call: Call[RNNForward | RNNGrad]) -> Launch[Array]:
        """A launch that runs layer by layer."""
        return self._net(call)

    def _net(self, call: Call[RNNForward | RNNGrad]) -> _RecurrentLaunch:
        return _ForwardLaunch(call)


class RecurrentGradKernel(RecurrentKernel):
    """The gradient: from (w, x, hx, [cx], y, dy, dhy, [dcy], reserve) to (dw, dx, dhx, [dcx])."""

    def _net(self, call: Call) -> _RecurrentLaunch:
        return _BackwardLaunch(call)


def _of_bfloat16(call: Call) -> bool:
    """Whether the parameters are numbers of bfloat16 in float32."""
    owner = None if call.node is None else call.node.inputs[0].owner
    if owner is None or not isinstance(owner.op, Cast):
        return False
    return bool(owner.inputs[0].type.dtype == "bfloat16")


def _multiplies_pairs() -> bool:
    return jit.vector_width() == WIDTH and jit.has("avx512bf16")


class _RecurrentLaunch:
    """``launch(inputs, outputs, workspace)`` of all layers; subclasses run the two passes."""

    _word_names: tuple[str, ...] = ()

    def __init__(self, call: Call) -> None:
        op: Any = call.op
        self.op = op
        thread_pools.set_threads()
        self.layers = layers_of(self.op, call.inputs[1].shape)
        self.lstm = self.op.has_cell
        each = [d for layer in self.layers for d in layer]
        #: Threads that scratch memory is sized for; later calls may use fewer.
        self._threads = {d: d.threads() for d in each}
        self._places = {d: places_of(self._floats(d)) for d in each}
        self._sizes = {d: d.sizes() for d in each}
        self.workspace_bytes = max(end for _, end in self._places.values())
        self._scratch = Scratch([self.workspace_bytes])

    def __call__(self, inputs: Arrays, outputs: Arrays, workspace: Array | None = None) -> Any:
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
        values = {**places, "threads": count, "looks": looks, **self._sizes[layer], **words}
        ctypes.memset(base, 0, 8)
        function((_Words * len(self._word_names))(*(values[n] for n in self._word_names)))


@cache
def _processors() -> int:
    return len(os.sched_getaffinity(0))


class _ForwardLaunch(_RecurrentLaunch):
    _word_names = FORWARD_WORDS

    def __init__(self, call: Call) -> None:
        op: Any = call.op
        self.keeps = bool(op.keeps_reserve)
        self._narrow = _of_bfloat16(call) and not self.keeps
        self._rounds = op.rounds_states
        super().__init__(call)
        mode, width = self.op.rnn_mode, jit.vector_width()
        self._functions = {
            layer: threads.kernel(
                forward_ir,
                mode,
                width,
                self.keeps,
                self._one(layer),
                self._in_pairs(layer),
                self._states(layer),
            )
            for layer in self._places
        }
        self._pool: list[Any] = []
        version = version_of(call, 0)
        self._packed = {
            layer: None if version is None else PrepackedInput(version, _packed_bytes(places))
            for layer, (places, _) in self._places.items()
        }

    def _floats(self, layer: RecurrentLayer) -> dict[str, int]:
        count, in_pairs = self._threads[layer], self._in_pairs(layer)
        return forward_floats(layer, count, self.keeps, in_pairs, self._states(layer))

    def _one(self, layer: RecurrentLayer) -> bool:
        """Whether the matrix of the state is kept in bfloat16."""
        return self._narrow and layer.batch == 1 and layer.hidden % 2 == 0

    def _in_pairs(self, layer: RecurrentLayer) -> bool:
        """Whether the matrix of the inputs is also kept in bfloat16, for inputs that are."""
        return self._narrow and _multiplies_pairs() and layer.columns % 2 == 0

    def _states(self, layer: RecurrentLayer) -> bool:
        """Whether the matrix of the state is, for states of several sequences that are rounded."""
        may = self._narrow and self._rounds and _multiplies_pairs()
        return may and layer.batch > 1 and layer.hidden % 2 == 0

    def __call__(self, inputs: Arrays, outputs: Arrays, workspace: Array | None = None) -> Any:
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
            layer, self._functions[layer], workspace, **layer.parameters(address(w)), **more,
            **packed, **layer.steps_of("x", x), **layer.results_of("y", result), hx=address(hx),
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
        return backward_floats(layer, self._threads[layer])

    def __call__(
        self, inputs: Sequence[Any], outputs: Arrays, workspace: Array | None = None
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
            kept=address(kept), cells=address(cells), block=block_steps(layer),
            dw_lane=dw.strides[0] if dw.ndim > 1 else 0,
        )  # fmt: skip
        if layer.mode != "gru":
            biases[..., rows:] = biases[..., :rows]


KERNELS: tuple[Row, ...] = (
    ((RNNForward,), (RecurrentKernel(),)),
    ((RNNGrad,), (RecurrentGradKernel(),)),
)
