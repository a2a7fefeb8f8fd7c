"""cuDNN's dropout, seeded at each call from the random state, which is read on the host.

``cudnnSetDropoutDescriptor`` computes states on the device from the seed. They are in the
workspace, for one call. The same random state gives the same mask.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from symdnn.gpu import libcudnn
from symdnn.gpu.cudnn.descriptor import Descriptor, dropout_descriptor
from symdnn.gpu.cudnn.fallback import with_fallbacks
from symdnn.gpu.cudnn.kernel import MAX_ELEMENTS, CudnnKernel, on_host, tensor
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.device.cudnn_device import query_cudnn
from symdnn.graph.kernel import Call, Row
from symdnn.ops.random.random import next_state
from symdnn.ops.vendor.gpudnn import GpuDnnDropoutGrad, GpuDnnDropoutOp

if TYPE_CHECKING:
    from symdnn.gpu.device.env import LaunchEnv

_ESTIMATED_STATES_BYTES = 4 << 20
_UINT64_MASK = 0xFFFFFFFFFFFFFFFF


def seed_of(state: Any) -> int:
    """A 64-bit seed for a (key, counter) state, mixed so that near counters give unlike seeds."""
    mixed = (int(state[0]) + 0x9E3779B97F4A7C15 * (int(state[1]) + 1)) & _UINT64_MASK
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ mixed >> shift) * factor & _UINT64_MASK
    return mixed ^ mixed >> 31


def states_bytes(handle: int) -> int:
    """Bytes of the states of cuDNN's generator."""
    return operator.index(libcudnn.cudnnDropoutGetStatesSize(handle))


class Seeded:
    """A dropout descriptor of one launch."""

    def __init__(self, rate: float, states: int) -> None:
        self.rate, self.states = rate, states
        self.descriptor: Descriptor = dropout_descriptor()
        self.handle = self.descriptor.handle

    def prepare(self, handle: int, at: int, seed: int | None) -> None:
        """Fill the states at address ``at`` from ``seed``; None only sets the rate."""
        if seed is None:
            restore = libcudnn.cudnnRestoreDropoutDescriptor
            restore(self.handle, handle, self.rate, at, self.states, 0)
        else:
            fill = libcudnn.cudnnSetDropoutDescriptor
            fill(self.handle, handle, self.rate, at, self.states, seed)


@dataclass(frozen=True)
class _Dropout(CudnnKernel):
    def refuses_sizes(self, call: Call) -> str | None:
        """Too many elements for cuDNN's indices."""
        many = prod(call.outputs[0].shape) > MAX_ELEMENTS
        return "there are 2**31 elements or more" if many else None

    def capturable(self, call: Call) -> bool:
        """The seed is read on the host."""
        return False

    def workspace_bytes(self, call: Call) -> int:
        """The states of the generator."""
        return query_cudnn(states_bytes, _ESTIMATED_STATES_BYTES)

    def details(self, call: Call) -> str:
        """Rate and shape."""
        return f"rate {call.op.dropout} of {call.outputs[0]}"  # type: ignore[attr-defined]

    def prepared(self, call: Call) -> tuple[float, int, Any]:
        """Rate, bytes of states, the tensor's descriptor (None for an empty tensor)."""
        out = call.outputs[0]
        total = prod(out.shape)
        as_row = tensor(out.dtype, (1, 1, 1, total)) if total else None
        return float(call.op.dropout), self.workspace_bytes(call), as_row  # type: ignore[attr-defined]


@dataclass(frozen=True)
class DropoutKernel(_Dropout):
    """``cudnnDropoutForward`` of (state, x); outputs y, the next state, and the reserve."""

    name: str = "cudnn.dropout"

    def launcher(self, call: Call) -> Any:
        """One call, seeded first."""
        rate, states, d = self.prepared(call)

        def launch(env: LaunchEnv, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
            state, x = on_host(env, inputs[0]), inputs[1]
            y, reserve = outputs[0], _reserve(env, d)
            new = put(env, next_state(state, x.size), outputs[1])
            if d is not None:
                seeded = Seeded(rate, states)
                seeded.prepare(env.cudnn, env.workspace, seed_of(state))
                libcudnn.cudnnDropoutForward(
                    env.cudnn, seeded.handle, d.handle, x.ptr, d.handle, y.ptr, reserve.ptr,
                    reserve.nbytes,
                )  # fmt: skip
            return [y, new, reserve]

        return launch


def _reserve(env: LaunchEnv, d: Descriptor | None) -> RawArray:
    nbytes = 0 if d is None else operator.index(libcudnn.cudnnDropoutGetReserveSpaceSize(d.handle))
    return env.empty((nbytes,), "uint8")


def put(env: LaunchEnv, value: Any, target: Any) -> Any:
    """A host value as an output: copied to ``target`` if that is on the device."""
    if not isinstance(target, RawArray):
        return value
    env.copy_in(value, target)
    return target


@dataclass(frozen=True)
class DropoutGradKernel(_Dropout):
    """``cudnnDropoutBackward`` of (dy, reserve)."""

    name: str = "cudnn.dropout_grad"

    def launcher(self, call: Call) -> Any:
        """One call; the mask is in the reserve."""
        rate, states, d = self.prepared(call)

        def launch(env: LaunchEnv, inputs: Sequence[RawArray], outputs: Sequence[RawArray]) -> None:
            if d is None:
                return
            dy, reserve = inputs
            seeded = Seeded(rate, states)
            seeded.prepare(env.cudnn, env.workspace, None)
            libcudnn.cudnnDropoutBackward(
                env.cudnn, seeded.handle, d.handle, dy.ptr, d.handle, outputs[0].ptr, reserve.ptr,
                reserve.nbytes,
            )  # fmt: skip

        return launch


KERNELS: tuple[Row, ...] = (
    with_fallbacks(GpuDnnDropoutOp, DropoutKernel()),
    with_fallbacks(GpuDnnDropoutGrad, DropoutGradKernel()),
)
