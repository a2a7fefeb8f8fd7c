"""The kernels of recurrent layers by cuDNN; see :mod:`symdnn.gpu.rnn.launch`.

:mod:`symdnn.gpu.rnn.choice` chooses cuDNN's algorithm, the same for a forward pass and its
gradients, which share a reserve.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from symdnn.gpu.cudnn.fallback import with_fallbacks
from symdnn.gpu.cudnn.kernel import WITH_BFLOAT16, CudnnKernel
from symdnn.gpu.device.cudnn_device import device_index
from symdnn.gpu.rnn.choice import Choice, choose
from symdnn.gpu.rnn.launch import Forward, GradInputs, GradWeights
from symdnn.gpu.rnn.signature import RNNSignature, layout_problem, signature_of, sizes
from symdnn.graph.kernel import Call, Row
from symdnn.graph.library_use import LibraryUse
from symdnn.ops.vendor.gpudnn import GpuDnnRNNGradInputs, GpuDnnRNNGradWeights, GpuDnnRNNOp

__all__ = ["RNNKernel", "layout_problem", "KERNELS", "sizes"]


def choice_of(call: Call) -> Choice:
    """The algorithm of a call; this may measure it."""
    lengths: bool = call.op.lengths  # type: ignore[attr-defined]
    return choose(signature_of(call), lengths, call.hints.algo or "standard", device_index())


def chosen_signature(call: Call) -> RNNSignature:
    """The signature of a call with the chosen algorithm."""
    net = signature_of(call)
    return net if net.empty else replace(net, algo=choice_of(call).algo)


@dataclass(frozen=True)
class RNNKernel(CudnnKernel):
    """A kernel whose launches ``launch(op, net)`` makes: forward, or one of the gradients.

    The forward pass is in training mode if its reserve is kept, or with dropout.
    """

    name: str
    launch: Callable[[Any, RNNSignature], Any] = field(kw_only=True)
    dtypes = WITH_BFLOAT16

    def refuses_sizes(self, call: Call) -> str | None:
        """Inputs without features, and another layout of the parameters."""
        net = signature_of(call)
        if net.features == 0:
            return "there are no input features"
        return layout_problem(chosen_signature(call), device_index())

    def capturable(self, call: Call) -> bool:
        """Not with lengths or dropout: lengths and the seed are read on the host."""
        return not (call.op.lengths or signature_of(call).dropout)  # type: ignore[attr-defined]

    def workspace_bytes(self, call: Call) -> int:
        """cuDNN's workspace, and the states of its dropout."""
        return sizes(chosen_signature(call), device_index()).all_scratch

    def details(self, call: Call) -> str:
        """The signature, the algorithm, the memory."""
        net = chosen_signature(call)
        found = sizes(net, device_index())
        algorithm = "none" if net.empty else str(choice_of(call))
        return (
            f"{net}; algorithm {algorithm}, workspace {found.all_scratch} bytes, reserve "
            f"{found.reserve} bytes"
        )

    def library_use(self, call: Call) -> LibraryUse | None:
        """The row of ``f.dnn_report()``."""
        net = chosen_signature(call)
        if net.empty:
            return None
        choice = choice_of(call)
        return LibraryUse(
            requested=call.hints.algo or "standard", used=choice.name, api="legacy", engine="-",
            workspace_bytes=sizes(net, device_index()).all_scratch, ms=choice.ms,
            deterministic=True, precision=net.precision, why=choice.why,
        )  # fmt: skip

    def launcher(self, call: Call) -> Any:
        """A launch for the sizes of the call."""
        return self.launch(call.op, chosen_signature(call))


KERNELS: tuple[Row, ...] = (
    with_fallbacks(GpuDnnRNNOp, RNNKernel("cudnn.rnn", launch=Forward)),
    with_fallbacks(GpuDnnRNNGradInputs, RNNKernel("cudnn.rnn_grad_inputs", launch=GradInputs)),
    with_fallbacks(GpuDnnRNNGradWeights, RNNKernel("cudnn.rnn_grad_weights", launch=GradWeights)),
)
