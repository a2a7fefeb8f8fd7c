"""The kernels of recurrent nets by cuDNN; see :mod:`symdnn.gpu.rnn.launch`.

Which of cuDNN's algorithms runs is :mod:`symdnn.gpu.rnn.choice`'s: the same for a forward
pass and its gradients, which share a reserve.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from symdnn.gpu.cudnn.fallback import with_fallbacks
from symdnn.gpu.cudnn.kernel import CudnnKernel
from symdnn.gpu.device.cudnn_device import device_index
from symdnn.gpu.rnn.choice import Choice, choose
from symdnn.gpu.rnn.launch import Forward, GradInputs, GradWeights
from symdnn.gpu.rnn.net import Net, layout_problem, net_of, sizes
from symdnn.graph.kernel import Call, Row
from symdnn.graph.library_use import LibraryUse
from symdnn.ops.vendor.gpudnn import GpuDnnRNNGradInputs, GpuDnnRNNGradWeights, GpuDnnRNNOp

__all__ = [
    "RNNGradInputsKernel", "RNNGradWeightsKernel", "RNNKernel", "layout_problem", "KERNELS",
    "sizes",
]  # fmt: skip


def choice_of(call: Call) -> Choice:
    """The algorithm of a call, which may be measured for it."""
    lengths: bool = call.op.lengths  # type: ignore[attr-defined]
    return choose(net_of(call), lengths, call.hints.algo or "standard", device_index())


def chosen_net(call: Call) -> Net:
    """The net of a call with the algorithm that runs it."""
    net = net_of(call)
    return net if net.empty else replace(net, algo=choice_of(call).algo)


@dataclass(frozen=True)
class _Recurrent(CudnnKernel):
    """What the three kernels share."""

    def refuses_sizes(self, call: Call) -> str | None:
        """Features of size 0, another layout of the parameters."""
        net = net_of(call)
        if net.features == 0:
            return "there are no input features"
        return layout_problem(chosen_net(call), device_index())

    def capturable(self, call: Call) -> bool:
        """Lengths and the seed of masks are read on the host."""
        return not (call.op.lengths or net_of(call).dropout)  # type: ignore[attr-defined]

    def workspace_bytes(self, call: Call) -> int:
        """cuDNN's scratch, and the states of its dropout."""
        return sizes(chosen_net(call), device_index()).all_scratch

    def details(self, call: Call) -> str:
        """The net, the algorithm, the memory."""
        net = chosen_net(call)
        found = sizes(net, device_index())
        algorithm = "none" if net.empty else str(choice_of(call))
        return (
            f"{net}; algorithm {algorithm}, workspace {found.all_scratch} bytes, reserve "
            f"{found.reserve} bytes"
        )

    def library_use(self, call: Call) -> LibraryUse | None:
        """For reports."""
        net = chosen_net(call)
        if net.empty:
            return None
        choice = choice_of(call)
        return LibraryUse(
            requested=call.hints.algo or "standard", used=choice.name, api="legacy", engine="-",
            workspace_bytes=sizes(net, device_index()).all_scratch, ms=choice.ms,
            deterministic=True, precision=net.precision, why=choice.why,
        )  # fmt: skip

    def launcher(self, call: Call) -> Any:
        """Bound to the sizes of the call."""
        return self.bound(call.op, chosen_net(call))

    def bound(self, op: Any, net: Net) -> Any:
        """What runs an op."""
        raise NotImplementedError


@dataclass(frozen=True)
class RNNKernel(_Recurrent):
    """The forward pass, for training where its reserve is kept or masks are drawn."""

    name: str = "cudnn.rnn"

    def bound(self, op: Any, net: Net) -> Any:
        """See :class:`~symdnn.gpu.rnn.launch.Forward`."""
        return Forward(op, net)


@dataclass(frozen=True)
class RNNGradInputsKernel(_Recurrent):
    """The gradient of the data."""

    name: str = "cudnn.rnn_grad_inputs"

    def bound(self, op: Any, net: Net) -> Any:
        """See :class:`~symdnn.gpu.rnn.launch.GradInputs`."""
        return GradInputs(op, net)


@dataclass(frozen=True)
class RNNGradWeightsKernel(_Recurrent):
    """The gradient of the parameters."""

    name: str = "cudnn.rnn_grad_weights"

    def bound(self, op: Any, net: Net) -> Any:
        """See :class:`~symdnn.gpu.rnn.launch.GradWeights`."""
        return GradWeights(op, net)


KERNELS: tuple[Row, ...] = (
    with_fallbacks(GpuDnnRNNOp, RNNKernel()),
    with_fallbacks(GpuDnnRNNGradInputs, RNNGradInputsKernel()),
    with_fallbacks(GpuDnnRNNGradWeights, RNNGradWeightsKernel()),
)
