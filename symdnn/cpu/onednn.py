"""All kernels of oneDNN, entered into the table; the library is looked for when one is asked."""

from __future__ import annotations

from symdnn.cpu import onednn_conv, onednn_matmul, onednn_softmax

__all__ = ["register"]


def register() -> None:
    """Enter the kernels, before NumPy's: order is preference."""
    onednn_conv.register()
    onednn_matmul.register()
    onednn_softmax.register()
