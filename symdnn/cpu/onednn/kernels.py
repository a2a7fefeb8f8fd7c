"""All kernels of oneDNN, entered into the table; the library is looked for when one is asked.

Where they refuse, the kernels of the neutral op take its place.
"""

from __future__ import annotations

from typing import Any

from symdnn.cpu.launch.traits import PYTHON
from symdnn.cpu.onednn import conv as onednn_conv
from symdnn.cpu.onednn import matmul as onednn_matmul
from symdnn.cpu.onednn import norm as onednn_norm
from symdnn.cpu.onednn import pool as onednn_pool
from symdnn.cpu.onednn import reorder as onednn_reorder
from symdnn.cpu.onednn import rnn as onednn_rnn
from symdnn.cpu.onednn import softmax as onednn_softmax
from symdnn.graph.kernel import Call, Kernel, Row, kernels_for
from symdnn.ops.vendor.onednn import OneDnnBase

__all__ = ["KERNELS"]


class InNeutralForm(Kernel):
    """The first kernel of the neutral op that takes the call."""

    name = "neutral"
    traits = PYTHON

    def refuses(self, call: Call) -> str | None:
        """What the neutral op does not say: another layout, an epilogue."""
        op: Any = call.op
        if op.layout != "NCHW" or not getattr(op, "is_plain", True):
            return "the neutral op has no such layout or epilogue"
        return None if self._found(call) is not None else "the neutral op has no kernel for it"

    def _found(self, call: Call) -> Kernel | None:
        inner = _neutral(call)
        return next(
            (k for k in kernels_for(type(inner.op), "cpu") if k.refuses(inner) is None), None
        )

    def settled(self, call: Call) -> Kernel:
        """That kernel, for this call."""
        found = self._found(call)
        assert found is not None, "it was asked before"
        return _Adapted(found.settled(_neutral(call)))

    def workspace_bytes(self, call: Call) -> int:
        """The kernel's."""
        return self.settled(call).workspace_bytes(call)

    def bind(self, call: Call) -> Any:
        """The kernel's launch."""
        return self.settled(call).bind(call)


class _Adapted(Kernel):
    """A kernel of the neutral op."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel, self.name, self.traits = kernel, kernel.name, kernel.traits

    def refuses(self, call: Call) -> str | None:
        """The kernel's reason."""
        return self._kernel.refuses(_neutral(call))

    def workspace_bytes(self, call: Call) -> int:
        """The kernel's."""
        return self._kernel.workspace_bytes(_neutral(call))

    def bind(self, call: Call) -> Any:
        """The kernel's launch."""
        return self._kernel.bind(_neutral(call))


def _neutral(call: Call) -> Call:
    return Call(call.op.op, call.inputs, call.outputs, call.hints, call.node)  # type: ignore[attr-defined]


KERNELS: tuple[Row, ...] = (
    *onednn_conv.KERNELS,
    *onednn_matmul.KERNELS,
    *onednn_softmax.KERNELS,
    *onednn_norm.KERNELS,
    *onednn_pool.KERNELS,
    *onednn_reorder.KERNELS,
    *onednn_rnn.KERNELS,
    ((OneDnnBase,), (InNeutralForm(),)),
)
