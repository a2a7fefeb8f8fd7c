"""All kernels of the CUDA target in the order of preference."""

from __future__ import annotations

import importlib
import threading

from symdnn.graph.kernel import enter

__all__ = ["FAMILIES", "load"]

_lock = threading.Lock()
_loaded = False

#: Modules with rows ``KERNELS``, imported by :func:`load`.
FAMILIES = (
    "gemm.matmul",
    "gemm.kept",
    "gemm.quantized",
    # Our own kernels that are preferred to cuDNN's.
    "kernels.softmax", "norm.batchnorm", "kernels.pool", "kernels.reduce",
    "conv.launch", "conv.launch_epilogue", "cudnn.pool", "cudnn.softmax", "cudnn.norm",
    "rnn.kernel", "cudnn.dropout", "cudnn.spatial_transformer", "cudnn.reduce", "cudnn.ctc",
    "cudnn.attention", "kernels.attention",
    "indexing.chosen", "kernels.complex", "kernels.copy", "kernels.elementwise",
    "indexing.gathered", "indexing.index", "kernels.stencil", "kernels.labels",
    "kernels.concat_pad", "kernels.fused_rows", "norm.layernorm", "norm.norm",
    "kernels.parts", "kernels.random", "kernels.rows", "kernels.scan", "kernels.sort",
    "kernels.totals", "kernels.transfer", "kernels.spatial_transformer", "fft.kernel",
    "kernels.sparse", "kernels.windows", "solver.expm", "solver.factors", "solver.spectra",
    "nccl.kernels",
)  # fmt: skip


def load() -> None:
    """Add the kernels of all families to the table, once. Touches no device."""
    global _loaded
    with _lock:
        if _loaded:
            return
        for name in FAMILIES:
            enter("cuda", importlib.import_module(f"symdnn.gpu.{name}").KERNELS)
        _loaded = True
