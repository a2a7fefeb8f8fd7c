"""Launches of recurrent layers by cuDNN: forward, gradient of the data, gradient of the parameters.

Sequences are (time, batch, vector) with padding; their lengths are read on the host. For a sequence
of length 0 cuDNN writes zeros as the last states. They should be its first states, which are copied
after cuDNN's call.

The reserve is memory from the pool, passed from op to op. cuDNN's gradient of the data overwrites
it, so that gets a copy if another gradient reads the reserve too.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from symdnn.config import config
from symdnn.errors import SymdnnError
from symdnn.gpu import libcudnn
from symdnn.gpu.cudnn.descriptor import Descriptor, descriptor
from symdnn.gpu.cudnn.dropout import Seeded, put, seed_of
from symdnn.gpu.cudnn.kernel import aligned, copy, on_host, zero
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.device.cudnn_device import device_index
from symdnn.gpu.rnn.signature import RNNSignature, build, sizes
from symdnn.ops.random.random import next_state

if TYPE_CHECKING:
    from symdnn.gpu.device.env import Env, LaunchEnv


class BoundRNN:
    """Recurrent layers at their sizes, with everything that does not change between calls."""

    def __init__(self, op: Any, net: RNNSignature) -> None:
        self.op, self.net = op, net
        self.sizes = sizes(net, device_index())
        self.weights_bytes = net.parameters * net.itemsize
        self.random = bool(net.dropout)
        self.fixed = str(config.deterministic) == "more"
        if not net.empty:
            self.state = net.state()
            self.rnn = None if self.random else descriptor(net.description())

    def handle(self, env: LaunchEnv) -> int:
        """The ``cudnnHandle_t``: the deterministic one for ``deterministic=more``."""
        return int(env.cudnn_deterministic if self.fixed else env.cudnn)

    def names(self, inputs: Sequence[Any], *more: str) -> dict[str, Any]:
        """The inputs by name: w, x, hx, then ``more``."""
        names = ["w", "x", "hx", *more]
        return dict(zip(names, inputs, strict=True))

    def lengths(self, env: LaunchEnv, given: dict[str, Any]) -> tuple[int, ...]:
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

    def states_at(self, env: LaunchEnv) -> int:
        """The address of the states of cuDNN's dropout, after the workspace."""
        return int(env.workspace + aligned(self.sizes.workspace))

    def seeded(self, env: LaunchEnv, seed: int | None) -> tuple[Descriptor, Seeded | None]:
        """The RNN descriptor and its dropout. Without a seed the reserve has the masks."""
        if self.rnn is not None:
            build(self.rnn, self.handle(env), self.net)
            return self.rnn, None
        drop = Seeded(self.net.dropout, self.sizes.states)
        drop.prepare(self.handle(env), self.states_at(env), seed)
        return Descriptor(self.net.description(int(drop.handle))), drop


class Forward(BoundRNN):
    """``cudnnRNNForward``; the outputs are y, hy, (cy), (next state), (reserve)."""

    def __call__(self, env: Env, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
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
        copy_idle_states(env, lengths, given["hx"], outputs[1])
        if op.has_cell:
            copy_idle_states(env, lengths, given["cx"], outputs[2])
        return [*out, reserve] if op.keeps_reserve else out

    def _run(
        self, env: LaunchEnv, given: dict[str, Any], outputs: Sequence[RawArray],
        lengths: tuple[int, ...], reserve: RawArray,
    ) -> None:  # fmt: skip
        cell = self.op.has_cell
        seed = seed_of(on_host(env, given["state"])) if self.random else None
        rnn, _keep = self.seeded(env, seed)
        x, y = self.data(lengths)
        check_workspace(env, self, rnn, x)
        libcudnn.cudnnRNNForward(
            self.handle(env), rnn.handle, self.net.mode, None, x.handle, given["x"].ptr, y.handle,
            outputs[0].ptr, self.state.handle, given["hx"].ptr, outputs[1].ptr,
            self.state.handle if cell else None, given["cx"].ptr if cell else None,
            outputs[2].ptr if cell else None, self.weights_bytes, given["w"].ptr,
            self.sizes.workspace, env.workspace, reserve.nbytes, reserve.ptr,
        )  # fmt: skip

    def _advance(self, env: LaunchEnv, state: Any, target: Any) -> Any:
        """Write the next random state, the same as the neutral op's."""
        net = self.net
        drawn = (net.shape.num_layers - 1) * net.steps * net.batch * net.shape.output_size
        return put(env, next_state(on_host(env, state), drawn), target)


def check_workspace(env: LaunchEnv, bound: BoundRNN, rnn: Descriptor, x: Descriptor) -> None:
    """Raise if cuDNN needs more memory for these lengths than the plan has."""
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


def copy_idle_states(env: LaunchEnv, lengths: Sequence[int], source: Any, target: Any) -> None:
    """Copy the states (layers, batch, hidden) of sequences of length 0."""
    for start, count in runs_of_zero(lengths):
        a, b = (
            replace(v, ptr=v.ptr + start * v.strides[1], shape=(v.shape[0], count, v.shape[2]))
            for v in (source, target)
        )
        copy(env, a, b)


def runs_of_zero(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(start, count) of each run of zeros."""
    at = 0
    for is_zero, run in groupby(lengths, lambda n: n == 0):
        count = len(list(run))
        if is_zero:
            yield at, count
        at += count


class GradInputs(BoundRNN):
    """``cudnnRNNBackwardData_v8``; the outputs are dx, dhx, (dcx), reserve.

    The output reserve is the input's memory, or a copy if another op reads that.
    """

    def __call__(self, env: Env, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
        op = self.op
        cell = ["cx"] * op.has_cell
        more = [*cell, *["lengths"] * op.lengths, "y", "dy", "dhy"]
        given = self.names(inputs, *more, *["dcy"] * op.has_cell, "reserve")
        lengths = self.lengths(env, given)
        reserve = given["reserve"]
        if op.lengths or self.net.empty:  # cuDNN does not write the gradient of padding
            zero(env, outputs[0])
        if not self.net.empty and any(lengths):
            if len(inputs) - 1 not in env.overwritable:  # cuDNN writes to the reserve
                reserve = env.empty(reserve.shape, "uint8")
                copy(env, given["reserve"], reserve)
            self._run(env, given, outputs, lengths, reserve)
        copy_idle_states(env, lengths, given["dhy"], outputs[1])
        if op.has_cell:
            copy_idle_states(env, lengths, given["dcy"], outputs[2])
        return [*outputs[:-1], reserve]

    def _run(
        self, env: LaunchEnv, given: dict[str, Any], outputs: Sequence[RawArray],
        lengths: tuple[int, ...], reserve: RawArray,
    ) -> None:  # fmt: skip
        cell = self.op.has_cell
        rnn, _keep = self.seeded(env, None)
        x, y = self.data(lengths)
        cx, dcy, dcx = (given["cx"].ptr, given["dcy"].ptr, outputs[2].ptr) if cell else (None,) * 3
        libcudnn.cudnnRNNBackwardData_v8(
            self.handle(env), rnn.handle, None, y.handle, given["y"].ptr, given["dy"].ptr, x.handle,
            outputs[0].ptr, self.state.handle, given["hx"].ptr, given["dhy"].ptr, outputs[1].ptr,
            self.state.handle if cell else None, cx, dcy, dcx, self.weights_bytes, given["w"].ptr,
            self.sizes.workspace, env.workspace, reserve.nbytes, reserve.ptr,
        )  # fmt: skip


class GradWeights(BoundRNN):
    """``cudnnRNNBackwardWeights_v8``, which adds to its output: that is set to 0 first."""

    def __call__(self, env: Env, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        given = self.names(inputs, *["lengths"] * self.op.lengths, "y", "reserve")
        (dw,) = outputs
        zero(env, dw)
        lengths = self.lengths(env, given)
        if self.net.empty or not any(lengths):
            return
        rnn, _keep = self.seeded(env, None)
        x, y = self.data(lengths)
        libcudnn.cudnnRNNBackwardWeights_v8(
            self.handle(env), rnn.handle, "CUDNN_WGRAD_MODE_ADD", None, x.handle, given["x"].ptr,
            self.state.handle, given["hx"].ptr, y.handle, given["y"].ptr, self.weights_bytes,
            dw.ptr, self.sizes.workspace, env.workspace, given["reserve"].nbytes,
            given["reserve"].ptr,
        )  # fmt: skip
