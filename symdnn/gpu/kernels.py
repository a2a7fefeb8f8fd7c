"""Every kernel of the CUDA target, entered into the table once."""

from __future__ import annotations

import importlib
import pkgutil
import threading
from pathlib import Path

__all__ = ["families", "load"]

_lock = threading.Lock()
_loaded = False


def families() -> list[str]:
    """Modules with a ``register()``: products, cuDNN's, and those of generated kernels."""
    names = sorted(m.name for m in pkgutil.iter_modules([str(Path(__file__).parent)]))
    own = [n for n in names if n.startswith("k_") and n not in _PREFERRED]
    return ["matmul", *_PREFERRED, *_CUDNN, *own]


#: Kernels of ours that go before cuDNN's.
_PREFERRED = ("k_softmax", "k_batchnorm", "k_pool", "k_reduce")

_CUDNN = (
    "cudnn_conv", "cudnn_conv_epilogue", "cudnn_pool", "cudnn_softmax", "cudnn_norm", "cudnn_rnn",
    "cudnn_dropout", "cudnn_transformer", "cudnn_reduce", "cudnn_ctc",
)  # fmt: skip


def load() -> None:
    """Register the kernels of all families; later calls do nothing. Touches no device."""
    global _loaded
    with _lock:
        if _loaded:
            return
        for name in families():
            module = importlib.import_module(f"symdnn.gpu.{name}")
            if hasattr(module, "register"):
                module.register()
        _loaded = True
