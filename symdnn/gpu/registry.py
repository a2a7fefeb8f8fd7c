"""Every kernel of the CUDA target, entered into the table once."""

from __future__ import annotations

import importlib
import threading

__all__ = ["FAMILIES", "load"]

_lock = threading.Lock()
_loaded = False

#: Modules with a ``register()``: the first kernel of an op that does not refuse runs it.
FAMILIES = (
    "gemm.matmul",
    # Kernels of ours that are preferred to cuDNN's.
    "kernels.softmax", "kernels.batchnorm", "kernels.pool", "kernels.reduce",
    "conv.launch", "conv.launch_epilogue", "cudnn.pool", "cudnn.softmax", "cudnn.norm",
    "rnn.kernel", "cudnn.dropout", "cudnn.spatial_transformer", "cudnn.reduce", "cudnn.ctc",
    "kernels.complex", "kernels.copy", "kernels.elementwise", "kernels.index", "kernels.labels",
    "kernels.concat_pad", "kernels.norm", "kernels.random", "kernels.rows", "kernels.scan",
    "kernels.sort", "kernels.transfer", "kernels.spatial_transformer",
)  # fmt: skip


def load() -> None:
    """Register the kernels of all families; later calls do nothing. Touches no device."""
    global _loaded
    with _lock:
        if _loaded:
            return
        for name in FAMILIES:
            importlib.import_module(f"symdnn.gpu.{name}").register()
        _loaded = True
