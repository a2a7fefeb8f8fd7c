"""Recurrent nets by cuDNN: forward, gradient of the data, gradient of the parameters.

Sequences are (time, batch, vector) with padding; their lengths are read on the host. Before the
first launch cuDNN is asked where it keeps each matrix and bias, so that a layout other than that of
:mod:`symdnn.ops.rnn_params` is refused and never computed with.

cuDNN makes the last states of a sequence without steps 0; they are its first states, so they are
copied behind cuDNN's call.

The reserve is memory from the pool, handed from op to op. The gradient of the data writes into it,
so it works on a copy: another gradient may read the same forward pass.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from typing import Any

import numpy as np

from symdnn.config import config
from symdnn.errors import SymdnnError
from symdnn.gpu import libcudnn
from symdnn.gpu.array import DeviceArray
from symdnn.gpu.cudnn_device import ask, device_index
from symdnn.gpu.cudnn_dropout import Seeded, put, seed_of, states_bytes
from symdnn.gpu.cudnn_fallback import enter
from symdnn.gpu.cudnn_kernel import CudnnKernel, aligned, copy, on_host, tensor, zero
from symdnn.gpu.descriptor import (
    Descriptor,
    RNNDataDescription,
    RNNDescription,
    TensorDescription,
    compute_dtype,
    descriptor,
)
from symdnn.graph.kernel import Call
from symdnn.graph.type import numpy_dtype
from symdnn.ops.gpudnn import GpuDnnRNNGradInputs, GpuDnnRNNGradWeights, GpuDnnRNNOp
from symdnn.ops.random import next_state
from symdnn.ops.rnn_params import GATES, RNNShape

__all__ = [
    "RNNGradInputsKernel", "RNNGradWeightsKernel", "RNNKernel", "layout_problem", "register",
]  # fmt: skip

#: An address that is not 0, for questions that read nothing.
_BASE = 1 << 32


# -- one net at its sizes -------------------------------------------------------------------------


@dataclass(frozen=True)
class Net:
    """A net and the sizes of a call, with what cuDNN is told of both."""

    shape: RNNShape
    dtype: str
    steps: int
    batch: int
    features: int
    rate: float
    allow_tf32: bool
    training: bool = True

    @property
    def mode(self) -> str:
        """``cudnnForwardMode_t``; the inference form has no dropout in cuDNN."""
        trains = self.training or self.dropout
        return "CUDNN_FWD_MODE_TRAINING" if trains else "CUDNN_FWD_MODE_INFERENCE"

    @property
    def empty(self) -> bool:
        """Whether there is nothing to compute."""
        return 0 in (self.steps, self.batch)

    @property
    def dropout(self) -> float:
        """The rate between layers; 0 with a single layer."""
        return self.rate if self.shape.num_layers > 1 else 0.0

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return int(self.shape.size(self.features))

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return int(numpy_dtype(self.dtype).itemsize)

    def description(self, dropout: int = 0) -> RNNDescription:
        """The net as cuDNN's descriptor has it; ``dropout`` is a descriptor's handle."""
        s, exact = self.shape, self.dtype == "float32" and not self.allow_tf32
        return RNNDescription(
            algo="STANDARD", mode=s.rnn_mode, direction=s.direction_mode, input_mode=s.input_mode,
            dtype=self.dtype, compute=compute_dtype(self.dtype),
            math="FMA_MATH" if exact else "DEFAULT_MATH", input_size=self.features,
            hidden_size=s.hidden_size, layers=s.num_layers, dropout=dropout,
        )  # fmt: skip

    def data(self, vector: int, lengths: tuple[int, ...]) -> Descriptor:
        """Sequences of vectors."""
        return descriptor(RNNDataDescription(self.dtype, self.steps, self.batch, vector, lengths))

    def state(self) -> Descriptor:
        """hx, hy, cx, cy and their gradients."""
        s = self.shape
        return tensor(self.dtype, (s.num_layers * s.directions, self.batch, s.hidden_size))

    def full(self) -> tuple[int, ...]:
        """Lengths when all sequences are as long as x."""
        return (self.steps,) * self.batch

    def __str__(self) -> str:
        return (
            f"{self.shape}, {self.features} inputs, {self.steps} steps of {self.batch} "
            f"in {self.dtype}"
        )


def net_of(call: Call) -> Net:
    """The net of a call of any of the three ops: x is the second input."""
    op: Any = call.op
    x: Any = call.inputs[1]
    shape = RNNShape(
        op.rnn_mode, op.hidden_size, op.num_layers, op.input_mode, op.direction_mode
    )  # fmt: skip
    steps, batch, features = x.shape
    tf32 = bool(config.dnn.conv.allow_tf32)
    training = getattr(op, "keeps_reserve", True)
    return Net(shape, x.dtype, steps, batch, features, float(op.dropout), tf32, training)


@dataclass(frozen=True)
class Sizes:
    """Bytes of scratch and reserve of a net."""

    workspace: int
    reserve: int
    states: int

    @property
    def all_scratch(self) -> int:
        """Scratch of cuDNN, then the states of its dropout."""
        return aligned(self.workspace) + self.states


@lru_cache(maxsize=1024)
def sizes(net: Net, device: int | None) -> Sizes:
    """What cuDNN says of a net on a device; an estimate where ``device`` is None."""
    if net.empty:
        return Sizes(0, 0, 0)
    return ask(lambda handle: _asked(net, handle), _estimated(net))


def _asked(net: Net, handle: Any) -> Sizes:
    states, drop = 0, None
    if net.dropout:
        states = states_bytes(handle)
        drop = Seeded(net.dropout, states)
        drop.prepare(handle, _BASE, None)  # nothing is read there
    rnn = Descriptor(net.description(0 if drop is None else int(drop.handle)))
    x = net.data(net.features, net.full())
    scratch, reserve = libcudnn.cudnnGetRNNTempSpaceSizes(handle, rnn.handle, net.mode, x.handle)
    return Sizes(operator.index(scratch), operator.index(reserve), states)


def _estimated(net: Net) -> Sizes:
    s = net.shape
    cells = net.steps * net.batch * s.output_size * s.num_layers * net.itemsize
    gates = len(GATES[s.rnn_mode])
    return Sizes(2 * gates * cells, (gates + 3) * cells, (4 << 20) if net.dropout else 0)


# -- the layout of the parameters -----------------------------------------------------------------


@lru_cache(maxsize=256)
def layout_problem(net: Net, device: int | None) -> str | None:
    """How cuDNN's layout of the parameters differs from ours; None where it does not."""
    if net.empty:
        return None
    return ask(lambda handle: _compared(net, handle), None)


def _compared(net: Net, handle: Any) -> str | None:
    rnn = descriptor(net.description())
    wanted = net.parameters * net.itemsize
    nbytes = operator.index(libcudnn.cudnnGetRNNWeightSpaceSize(handle, rnn.handle))
    if nbytes != wanted:
        return f"cuDNN keeps the parameters in {nbytes} bytes, symdnn in {wanted}"
    for part in net.shape.parts(net.features):
        at = _offset(net, handle, rnn, nbytes, part)
        if at != part.offset * net.itemsize:
            return f"cuDNN keeps {part.name} at byte {at}, symdnn at {part.offset * net.itemsize}"
    return None


def _offset(net: Net, handle: Any, rnn: Descriptor, nbytes: int, part: Any) -> int:
    """Where cuDNN keeps a matrix or bias, in bytes."""
    gates = net.shape.gates
    identity = gates.index(part.gate) + (len(gates) if part.kind.endswith("R") else 0)
    layer = part.layer * net.shape.directions + part.direction
    # Filled in by the call: descriptors of one's own.
    matrix, bias = (Descriptor(TensorDescription("float32", (1, 1, 1))) for _ in range(2))
    found = libcudnn.cudnnGetRNNWeightParams(
        handle, rnn.handle, layer, nbytes, _BASE, identity, matrix.handle, bias.handle
    )
    return int(found[1 if part.kind.startswith("b") else 0]) - _BASE


# -- kernels --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Recurrent(CudnnKernel):
    """What the three kernels share."""

    def refuses_sizes(self, call: Call) -> str | None:
        """Features of size 0, another layout of the parameters."""
        net = net_of(call)
        if net.features == 0:
            return "there are no input features"
        return layout_problem(net, device_index())

    def capturable(self, call: Call) -> bool:
        """Lengths and the seed of masks are read on the host."""
        return not (call.op.lengths or net_of(call).dropout)  # type: ignore[attr-defined]

    def workspace_bytes(self, call: Call) -> int:
        """cuDNN's scratch, and the states of its dropout."""
        return sizes(net_of(call), device_index()).all_scratch

    def details(self, call: Call) -> str:
        """The net, the algorithm, the memory."""
        net = net_of(call)
        found = sizes(net, device_index())
        return (
            f"{net}; algorithm standard, workspace {found.all_scratch} bytes, reserve "
            f"{found.reserve} bytes"
        )

    def launcher(self, call: Call) -> Any:
        """Bound to the sizes of the call."""
        return self.bound(call, net_of(call))

    def bound(self, call: Call, net: Net) -> Any:
        """What runs the call."""
        raise NotImplementedError


class _BoundNet:
    """A net at its sizes with what does not change between calls."""

    def __init__(self, call: Call, net: Net) -> None:
        self.op: Any = call.op
        self.net = net
        self.sizes = sizes(net, device_index())
        self.weights_bytes = net.parameters * net.itemsize
        self.random = bool(net.dropout)
        if not net.empty:
            self.state = net.state()
            self.rnn = None if self.random else descriptor(net.description())

    def names(self, inputs: Sequence[Any], *more: str) -> dict[str, Any]:
        """The inputs by name: w, x, hx, then those that the op has."""
        names = ["w", "x", "hx", *more]
        return dict(zip(names, inputs, strict=True))

    def lengths(self, env: Any, given: dict[str, Any]) -> tuple[int, ...]:
        """The lengths on the host, checked."""
        if not self.op.lengths:
            return self.net.full()
        lengths = on_host(env, given["lengths"])
        x = np.broadcast_to(np.zeros((), np.int8), (self.net.steps, self.net.batch))
        self.op.neutral().checked_lengths({"lengths": lengths, "x": x})
        return tuple(int(n) for n in lengths)

    def data(self, lengths: tuple[int, ...]) -> tuple[Descriptor, Descriptor]:
        """Descriptors of x and y."""
        net = self.net
        return net.data(net.features, lengths), net.data(net.shape.output_size, lengths)

    def states_at(self, env: Any) -> int:
        """Where the states of cuDNN's dropout lie."""
        return int(env.workspace + aligned(self.sizes.workspace))

    def seeded(self, env: Any, seed: int | None) -> tuple[Descriptor, Seeded | None]:
        """The net's descriptor, and the dropout that it refers to; no seed: masks exist."""
        if self.rnn is not None:
            return self.rnn, None
        drop = Seeded(self.net.dropout, self.sizes.states)
        drop.prepare(env.cudnn, self.states_at(env), seed)
        return Descriptor(self.net.description(int(drop.handle))), drop


class _Forward(_BoundNet):
    """``cudnnRNNForward``; the outputs are y, hy, (cy), (next state), (reserve)."""

    def __call__(self, env: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
        op, net = self.op, self.net
        more = ["cx"] * op.has_cell + ["lengths"] * op.lengths + ["state"] * self.random
        given = self.names(inputs, *more)
        out = list(outputs[:-1]) if op.keeps_reserve else list(outputs)
        if self.random:
            out[-1] = self._advance(env, given["state"], out[-1])
        lengths = self.lengths(env, given)
        reserve = env.empty((self.sizes.reserve,), "uint8")
        if net.empty or not any(lengths):
            zero(env, outputs[0])
        else:
            self._run(env, given, outputs, lengths, reserve)
        hand_through(env, lengths, given["hx"], outputs[1])
        if op.has_cell:
            hand_through(env, lengths, given["cx"], outputs[2])
        return [*out, reserve] if op.keeps_reserve else out

    def _run(
        self, env: Any, given: dict[str, Any], outputs: Sequence[Any], lengths: tuple[int, ...],
        reserve: DeviceArray,
    ) -> None:  # fmt: skip
        cell = self.op.has_cell
        seed = seed_of(on_host(env, given["state"])) if self.random else None
        rnn, _keep = self.seeded(env, seed)
        x, y = self.data(lengths)
        check_room(env, self, rnn, x)
        libcudnn.cudnnRNNForward(
            env.cudnn, rnn.handle, self.net.mode, None, x.handle, given["x"].ptr, y.handle,
            outputs[0].ptr, self.state.handle, given["hx"].ptr, outputs[1].ptr,
            self.state.handle if cell else None, given["cx"].ptr if cell else None,
            outputs[2].ptr if cell else None, self.weights_bytes, given["w"].ptr,
            self.sizes.workspace, env.workspace, reserve.nbytes, reserve.ptr,
        )  # fmt: skip

    def _advance(self, env: Any, state: Any, target: Any) -> Any:
        """The next random state, as far on as the neutral op would be."""
        net = self.net
        drawn = (net.shape.num_layers - 1) * net.steps * net.batch * net.shape.output_size
        return put(env, next_state(on_host(env, state), drawn), target)


def check_room(env: Any, bound: _BoundNet, rnn: Descriptor, x: Descriptor) -> None:
    """Raise where cuDNN wants more memory for these lengths than the plan has."""
    if not bound.op.lengths:
        return
    scratch, reserve = libcudnn.cudnnGetRNNTempSpaceSizes(
        env.cudnn, rnn.handle, bound.net.mode, x.handle
    )
    wanted = operator.index(scratch), operator.index(reserve)
    if wanted[0] > bound.sizes.workspace or wanted[1] > bound.sizes.reserve:
        raise SymdnnError(
            f"cuDNN wants {wanted} bytes of scratch and reserve for {x}, the plan has "
            f"{(bound.sizes.workspace, bound.sizes.reserve)}"
        )


def hand_through(env: Any, lengths: Sequence[int], source: Any, target: Any) -> None:
    """Copy the states (layers, batch, hidden) of sequences without steps."""
    for start, count in runs_of_zero(lengths):
        a, b = (
            replace(v, ptr=v.ptr + start * v.strides[1], shape=(v.shape[0], count, v.shape[2]))
            for v in (source, target)
        )
        copy(env, a, b)


def runs_of_zero(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(start, count) of neighbours that are 0."""
    at = 0
    for is_zero, run in groupby(lengths, lambda n: n == 0):
        count = len(list(run))
        if is_zero:
            yield at, count
        at += count


class _GradInputs(_BoundNet):
    """``cudnnRNNBackwardData_v8``; the outputs are dx, dhx, (dcx), reserve."""

    def __call__(self, env: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
        op = self.op
        cell = ["cx"] * op.has_cell
        more = [*cell, *["lengths"] * op.lengths, "y", "dy", "dhy"]
        given = self.names(inputs, *more, *["dcy"] * op.has_cell, "reserve")
        lengths = self.lengths(env, given)
        reserve = given["reserve"]
        if op.lengths or self.net.empty:  # cuDNN leaves the gradient of padding as it is
            zero(env, outputs[0])
        if not self.net.empty and any(lengths):
            reserve = env.empty(reserve.shape, "uint8")
            copy(env, given["reserve"], reserve)
            self._run(env, given, outputs, lengths, reserve)
        hand_through(env, lengths, given["dhy"], outputs[1])
        if op.has_cell:
            hand_through(env, lengths, given["dcy"], outputs[2])
        return [*outputs[:-1], reserve]

    def _run(
        self, env: Any, given: dict[str, Any], outputs: Sequence[Any], lengths: tuple[int, ...],
        reserve: DeviceArray,
    ) -> None:  # fmt: skip
        cell = self.op.has_cell
        rnn, _keep = self.seeded(env, None)
        x, y = self.data(lengths)
        cx, dcy, dcx = (given["cx"].ptr, given["dcy"].ptr, outputs[2].ptr) if cell else (None,) * 3
        libcudnn.cudnnRNNBackwardData_v8(
            env.cudnn, rnn.handle, None, y.handle, given["y"].ptr, given["dy"].ptr, x.handle,
            outputs[0].ptr, self.state.handle, given["hx"].ptr, given["dhy"].ptr, outputs[1].ptr,
            self.state.handle if cell else None, cx, dcy, dcx, self.weights_bytes, given["w"].ptr,
            self.sizes.workspace, env.workspace, reserve.nbytes, reserve.ptr,
        )  # fmt: skip


class _GradWeights(_BoundNet):
    """``cudnnRNNBackwardWeights_v8``, which adds: the output is filled with 0 first."""

    def __call__(self, env: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        given = self.names(inputs, *["lengths"] * self.op.lengths, "y", "reserve")
        (dw,) = outputs
        zero(env, dw)
        lengths = self.lengths(env, given)
        if self.net.empty or not any(lengths):
            return
        rnn, _keep = self.seeded(env, None)
        x, y = self.data(lengths)
        libcudnn.cudnnRNNBackwardWeights_v8(
            env.cudnn, rnn.handle, "CUDNN_WGRAD_MODE_ADD", None, x.handle, given["x"].ptr,
            self.state.handle, given["hx"].ptr, y.handle, given["y"].ptr, self.weights_bytes,
            dw.ptr, self.sizes.workspace, env.workspace, given["reserve"].nbytes,
            given["reserve"].ptr,
        )  # fmt: skip


@dataclass(frozen=True)
class RNNKernel(_Recurrent):
    """The forward pass, for training where its reserve is kept or masks are drawn."""

    name: str = "cudnn.rnn"

    def bound(self, call: Call, net: Net) -> Any:
        """See :class:`_Forward`."""
        return _Forward(call, net)


@dataclass(frozen=True)
class RNNGradInputsKernel(_Recurrent):
    """The gradient of the data."""

    name: str = "cudnn.rnn_grad_inputs"

    def bound(self, call: Call, net: Net) -> Any:
        """See :class:`_GradInputs`."""
        return _GradInputs(call, net)


@dataclass(frozen=True)
class RNNGradWeightsKernel(_Recurrent):
    """The gradient of the parameters."""

    name: str = "cudnn.rnn_grad_weights"

    def bound(self, call: Call, net: Net) -> Any:
        """See :class:`_GradWeights`."""
        return _GradWeights(call, net)


def register() -> None:
    """Enter the kernels into the table."""
    enter(GpuDnnRNNOp, RNNKernel())
    enter(GpuDnnRNNGradInputs, RNNGradInputsKernel())
    enter(GpuDnnRNNGradWeights, RNNGradWeightsKernel())
