"""A recurrent net as cuDNN is told of it: descriptors, sizes of memory, layout of the parameters.

Before the first launch cuDNN is asked where it keeps each matrix and bias, so that a layout other
than that of :mod:`symdnn.ops.nn.rnn_params` is refused and never computed with.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

from symdnn.config import config
from symdnn.gpu import libcudnn
from symdnn.gpu.cudnn.descriptor import (
    Descriptor,
    RNNDataDescription,
    RNNDescription,
    TensorDescription,
    compute_dtype,
    descriptor,
)
from symdnn.gpu.cudnn.dropout import Seeded, states_bytes
from symdnn.gpu.cudnn.kernel import aligned, tensor
from symdnn.gpu.device.cudnn_device import query_cudnn
from symdnn.graph.kernel import Call
from symdnn.graph.type import numpy_dtype
from symdnn.ops.nn.rnn_params import GATES, RNNShape

__all__ = ["Net", "Sizes", "build", "layout_problem", "net_of", "sizes"]

#: An address that is not 0, for questions that read nothing.
_BASE = 1 << 32


# -- one net at its sizes -------------------------------------------------------------------------


@dataclass(frozen=True)
class Net:
    """A net and the sizes of a call, with what cuDNN is told of both.

    ``algo`` is ``cudnnRNNAlgo_t`` without its prefix.
    """

    shape: RNNShape
    dtype: str
    steps: int
    batch: int
    features: int
    rate: float
    allow_tf32: bool
    training: bool = True
    algo: str = "STANDARD"

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

    @property
    def math(self) -> str:
        """``cudnnMathType_t`` without its prefix.

        The persistent algorithms use tensor cores for float16 only when told so: 5.1 ms against
        34.6 for forward and backward of 3 layers of 512, 100 steps of 64, on an H200.
        """
        if self.dtype == "float32" and not self.allow_tf32:
            return "FMA_MATH"
        return "TENSOR_OP_MATH" if self.dtype in ("float16", "bfloat16") else "DEFAULT_MATH"

    def description(self, dropout: int = 0) -> RNNDescription:
        """The net as cuDNN's descriptor has it; ``dropout`` is a descriptor's handle."""
        s = self.shape
        return RNNDescription(
            algo=self.algo, mode=s.rnn_mode, direction=s.direction_mode, input_mode=s.input_mode,
            dtype=self.dtype, compute=compute_dtype(self.dtype),
            math=self.math, input_size=self.features,
            hidden_size=s.hidden_size, layers=s.num_layers, dropout=dropout,
        )  # fmt: skip

    @property
    def precision(self) -> str:
        """How numbers are stored, multiplied and summed, in words."""
        tf32 = self.dtype == "float32" and self.allow_tf32
        return f"{self.dtype}{', TF32 allowed' if tf32 else ''}, in {compute_dtype(self.dtype)}"

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


def build(rnn: Descriptor, handle: Any, net: Net) -> None:
    """Compile the kernels of ``PERSIST_DYNAMIC`` for the batch (``cudnnBuildRNNDynamic``), once.

    Without that, cuDNN 9.19 answers success and computes nothing.
    """
    if net.algo == "PERSIST_DYNAMIC" and _built.get(rnn) != net.batch:
        libcudnn.cudnnBuildRNNDynamic(handle, rnn.handle, net.batch)
        _built[rnn] = net.batch


#: The batch that a descriptor's kernels were compiled for.
_built: WeakKeyDictionary[Descriptor, int] = WeakKeyDictionary()


def net_of(call: Call) -> Net:
    """The net of a call of any of the three ops, by the standard algorithm; x is input 1."""
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
    return query_cudnn(lambda handle: _asked(net, handle), _estimated(net))


def _asked(net: Net, handle: Any) -> Sizes:
    states, drop = 0, None
    if net.dropout:
        states = states_bytes(handle)
        drop = Seeded(net.dropout, states)
        drop.prepare(handle, _BASE, None)  # nothing is read there
    rnn = Descriptor(net.description(0 if drop is None else int(drop.handle)))
    build(rnn, handle, net)
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
    return query_cudnn(lambda handle: _compared(net, handle), None)


def _compared(net: Net, handle: Any) -> str | None:
    rnn = descriptor(net.description())
    build(rnn, handle, net)
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
