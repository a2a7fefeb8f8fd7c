"""Convolutions that also compute the batch statistics of their results.

Winograd's kernels add up their results while these are in registers, in float64 as
:mod:`symdnn.cpu.reduce.batch_norm` does. After other kernels a pass over the result follows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from symdnn.cpu.conv.winograd import WinogradKernel, WinogradLaunch
from symdnn.cpu.launch.traits import LLVM
from symdnn.cpu.reduce.batch_norm import MomentsKernel, finisher
from symdnn.graph.kernel import Call, Kernel, Launch, Row, kernels_for
from symdnn.graph.library_use import LibraryUse
from symdnn.graph.typing import Array, Arrays
from symdnn.ops.lowered.norm_parts import BatchMoments
from symdnn.ops.vendor.conv_moments import OneDnnConvMoments
from symdnn.ops.vendor.onednn import OneDnnConv


class ConvMomentsKernel(Kernel):
    """The convolution's kernel, which computes the moments too, or MomentsKernel after it."""

    name = "llvm.conv_moments"
    traits = LLVM

    def refuses(self, call: Call) -> str | None:
        """Refuses what the moments' kernel refuses; some kernel takes every convolution."""
        return MomentsKernel().refuses(_moments_of(call))

    def workspace_bytes(self, call: Call) -> int:
        """The workspace of the convolution."""
        return _chosen(call).workspace_bytes(_conv_of(call))

    def library_use(self, call: Call) -> LibraryUse | None:
        """The row of ``f.dnn_report()``: the convolution's."""
        return _chosen(call).library_use(_conv_of(call))

    def details(self, call: Call) -> str:
        """The name of the convolution's kernel."""
        return _chosen(call).name

    def bind(self, call: Call) -> Launch[Array]:
        """A launch that computes the convolution and its moments."""
        kernel, conv, moments = _chosen(call), _conv_of(call), _moments_of(call)
        if isinstance(kernel, WinogradKernel):
            return _together(call, WinogradLaunch(conv, sums=True))
        return _one_by_one(call, kernel, kernel.bind(conv), MomentsKernel().bind(moments))


def _together(call: Call, convolve: WinogradLaunch) -> Launch[Array]:
    op: Any = call.op
    given = len(op.operands(call.inputs)[0])
    y = call.outputs[0]
    channels, finish = y.shape[-1], finisher(op.moments, y.shape)
    total, squares = np.empty((2, 1, 1, 1, channels))

    def launch(inputs: Arrays, outputs: Arrays, workspace: Array | None = None) -> None:
        convolve(inputs[:given], outputs[:1], workspace)
        sums = convolve.sums[..., :channels].sum(0)
        total[:], squares[:] = sums[0], sums[1]
        finish(inputs[given:], outputs[1:], total, squares)

    return launch


def _one_by_one(call: Call, kernel: Kernel, convolve: Any, moments: Launch[Array]) -> Launch[Array]:
    op: Any = call.op
    given = len(op.operands(call.inputs)[0])
    scratch = kernel.workspace_bytes(_conv_of(call)) > 0

    def launch(inputs: Arrays, outputs: Arrays, workspace: Array | None = None) -> Any:
        more = (workspace,) if scratch else ()
        made = convolve(inputs[:given], outputs[:1], *more)
        y = outputs[0] if made is None else made[0]
        moments([y, *inputs[given:]], outputs[1:])
        return [y, *outputs[1:]]

    return launch


def _chosen(call: Call) -> Kernel:
    """The kernel of the convolution: the first that takes it."""
    conv = _conv_of(call)
    return next(k for k in kernels_for(OneDnnConv, "cpu") if k.refuses(conv) is None)


def _conv_of(call: Call) -> Call:
    op: Any = call.op
    given, _ = op.operands(call.inputs)
    return Call(op.conv, tuple(given), call.outputs[:1], call.hints, call.node, call.versions)


def _moments_of(call: Call) -> Call[BatchMoments]:
    op: Any = call.op
    _, more = op.operands(call.inputs)
    return Call(op.moments, (call.outputs[0], *more), call.outputs[1:], call.hints)


KERNELS: tuple[Row, ...] = (((OneDnnConvMoments,), (ConvMomentsKernel(),)),)
