"""The signature of recurrent layers for cuDNN: descriptors, workspace, layout of the parameters.

Before the first launch, cuDNN's offset of each matrix and bias is queried. A layout other than that
of :mod:`symdnn.ops.nn.rnn_params` is refused.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
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
    descriptor,
)
from symdnn.gpu.cudnn.dropout import Seeded, states_bytes
from symdnn.gpu.cudnn.kernel import aligned, tensor
from symdnn.gpu.device.cudnn_device import query_cudnn
from symdnn.graph.kernel import Call
from symdnn.graph.type import numpy_dtype
from symdnn.ops.core.dtype import wide_float
from symdnn.ops.nn.rnn_params import GATES, RNNShape

#: An address for queries that must not be 0 and is never read.
_PLACEHOLDER_ADDRESS = 1 << 32

#: Words of the flag ``dnn.rnn.algo``, and ``cudnnRNNAlgo_t`` without its prefix.
ALGORITHMS = {
    "standard": "STANDARD",
    "persist_static": "PERSIST_STATIC",
    "persist_dynamic": "PERSIST_DYNAMIC",
    "persist_static_small_h": "PERSIST_STATIC_SMALL_H",
}


# -- the signature --------------------------------------------------------------------------------


@dataclass(frozen=True)
class RNNSignature:
    """Recurrent layers and the sizes of a call: the key of a choice, and the source of descriptors.

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
        """``cudnnForwardMode_t``; in cuDNN inference has no dropout."""
        trains = self.training or self.dropout
        return "CUDNN_FWD_MODE_TRAINING" if trains else "CUDNN_FWD_MODE_INFERENCE"

    @property
    def empty(self) -> bool:
        """Whether there are no steps or no sequences."""
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

        The persistent algorithms use tensor cores for float16 only with ``TENSOR_OP_MATH``: 5.1 ms
        against 34.6 for forward and backward of 3 layers of 512, 100 steps of 64, on an H200.
        For bfloat16 both words take the same time.
        """
        if self.dtype == "float32" and not self.allow_tf32:
            return "FMA_MATH"
        return "TENSOR_OP_MATH" if self.dtype in ("float16", "bfloat16") else "DEFAULT_MATH"

    def description(self, dropout: int = 0) -> RNNDescription:
        """The description of cuDNN's descriptor; ``dropout`` is a dropout descriptor's handle."""
        s = self.shape
        return RNNDescription(
            algo=self.algo, mode=s.rnn_mode, direction=s.direction_mode, input_mode=s.input_mode,
            dtype=self.dtype, compute=wide_float(self.dtype),
            math=self.math, input_size=self.features,
            hidden_size=s.hidden_size, layers=s.num_layers, dropout=dropout,
        )  # fmt: skip

    @property
    def precision(self) -> str:
        """The dtypes of data and computation, for reports."""
        tf32 = self.dtype == "float32" and self.allow_tf32
        return f"{self.dtype}{', TF32 allowed' if tf32 else ''}, in {wide_float(self.dtype)}"

    def data(self, vector: int, lengths: tuple[int, ...]) -> Descriptor:
        """The descriptor of sequences of vectors."""
        return descriptor(RNNDataDescription(self.dtype, self.steps, self.batch, vector, lengths))

    def state(self) -> Descriptor:
        """The descriptor of hx, hy, cx, cy and their gradients."""
        s = self.shape
        return tensor(self.dtype, (s.num_layers * s.directions, self.batch, s.hidden_size))

    def full(self) -> tuple[int, ...]:
        """The lengths of sequences without padding."""
        return (self.steps,) * self.batch

    def with_algorithm(self, word: str) -> RNNSignature:
        """The signature with the algorithm of a flag's word."""
        return replace(self, algo=ALGORITHMS[word])

    def __str__(self) -> str:
        return (
            f"{self.shape}, {self.features} inputs, {self.steps} steps of {self.batch} "
            f"in {self.dtype}"
        )


def build(rnn: Descriptor, handle: int, net: RNNSignature) -> None:
    """Compile the kernels of ``PERSIST_DYNAMIC`` for the batch (``cudnnBuildRNNDynamic``), once.

    Without that, cuDNN 9.19 reports success and computes nothing.
    """
    if net.algo == "PERSIST_DYNAMIC" and _built.get(rnn) != net.batch:
        libcudnn.cudnnBuildRNNDynamic(handle, rnn.handle, net.batch)
        _built[rnn] = net.batch


#: The batch that a descriptor's kernels were compiled for.
_built: WeakKeyDictionary[Descriptor, int] = WeakKeyDictionary()


def signature_of(call: Call) -> RNNSignature:
    """The signature of a call of any of the three ops, with the standard algorithm."""
    op: Any = call.op
    x = call.inputs[1]
    shape = RNNShape(
        op.rnn_mode, op.hidden_size, op.num_layers, op.input_mode, op.direction_mode
    )  # fmt: skip
    steps, batch, features = x.shape
    tf32 = bool(config.dnn.conv.allow_tf32)
    training = getattr(op, "keeps_reserve", True)
    return RNNSignature(shape, x.dtype, steps, batch, features, float(op.dropout), tf32, training)


@dataclass(frozen=True)
class Sizes:
    """Bytes of workspace, reserve and dropout states."""

    workspace: int
    reserve: int
    states: int

    @property
    def all_scratch(self) -> int:
        """cuDNN's workspace, then the states of its dropout."""
        return aligned(self.workspace) + self.states


@lru_cache(maxsize=1024)
def sizes(net: RNNSignature, device: int | None) -> Sizes:
    """cuDNN's sizes on a device; an estimate if ``device`` is None."""
    if net.empty:
        return Sizes(0, 0, 0)
    return query_cudnn(lambda handle: _queried(net, handle), _estimated(net))


def _queried(net: RNNSignature, handle: int) -> Sizes:
    states, drop = 0, None
    if net.dropout:
        states = states_bytes(handle)
        drop = Seeded(net.dropout, states)
        drop.prepare(handle, _PLACEHOLDER_ADDRESS, None)
    rnn = Descriptor(net.description(0 if drop is None else int(drop.handle)))
    build(rnn, handle, net)
    x = net.data(net.features, net.full())
    scratch, reserve = libcudnn.cudnnGetRNNTempSpaceSizes(handle, rnn.handle, net.mode, x.handle)
    return Sizes(operator.index(scratch), operator.index(reserve), states)


def _estimated(net: RNNSignature) -> Sizes:
    s = net.shape
    cells = net.steps * net.batch * s.output_size * s.num_layers * net.itemsize
    gates = len(GATES[s.rnn_mode])
    return Sizes(2 * gates * cells, (gates + 3) * cells, (4 << 20) if net.dropout else 0)


# -- the layout of the parameters -----------------------------------------------------------------


@lru_cache(maxsize=256)
def layout_problem(net: RNNSignature, device: int | None) -> str | None:
    """The difference of cuDNN's layout of the parameters from ours, in words; None without one."""
    if net.empty:
        return None
    return query_cudnn(lambda handle: _compared(net, handle), None)


def _compared(net: RNNSignature, handle: int) -> str | None:
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


def _offset(net: RNNSignature, handle: int, rnn: Descriptor, nbytes: int, part: Any) -> int:
    """cuDNN's offset of a matrix or bias, in bytes."""
    gates = net.shape.gates
    identity = gates.index(part.gate) + (len(gates) if part.kind.endswith("R") else 0)
    layer = part.layer * net.shape.directions + part.direction
    # The call writes to the descriptors, so they are not shared.
    matrix, bias = (Descriptor(TensorDescription("float32", (1, 1, 1))) for _ in range(2))
    found = libcudnn.cudnnGetRNNWeightParams(
        handle,
        rnn.handle,
        layer,
        nbytes,
        _PLACEHOLDER_ADDRESS,
        identity,
        matrix.handle,
        bias.handle,
    )
    return int(found[1 if part.kind.startswith("b") else 0]) - _PLACEHOLDER_ADDRESS
