"""Pooling of all dtypes over any number of dimensions, where cuDNN and its kernels do not pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symdnn.gpu.codegen.device_source import CTYPES, specialised
from symdnn.gpu.codegen.launches import CudaKernel, KernelLaunch, Views, blocks_for
from symdnn.graph.kernel import Call, Row
from symdnn.ops.core.dtype import work_dtype
from symdnn.ops.nest.monoid import lowest
from symdnn.ops.nn.pool import AveragePoolGrad, MaxPoolGrad, MaxPoolGradGrad, Pool, PoolGrad

_THREADS = 256
_MODES = {"max": 0, "average_inc_pad": 1, "average_exc_pad": 2, "sum": 3}
#: The mode of the sum of values where an element is its window's maximum.
_AT_MAXIMUM = 4


def _lowest(dtype: str) -> str:
    """The number that no other is below, in C."""
    number = lowest(dtype)
    if isinstance(number, float):
        return "-INF_d"
    return f"({number + 1} - 1)" if number else "0"


class WindowsKernel(CudaKernel):
    """A thread for each result, which goes through the elements of a window, or the windows of an
    element."""

    name = "cuda.windows"
    dtypes = frozenset(CTYPES) - {"bool"}
    contiguous_inputs = True

    def launches(self, call: Call, inputs: Sequence[Any], outputs: Views) -> Sequence[KernelLaunch]:
        """One launch; none without results."""
        op: Any = call.op
        (out,), arrays = (
            outputs,
            inputs[: 3 if isinstance(op, MaxPoolGrad | MaxPoolGradGrad) else 1],
        )
        if out.size == 0:
            return []
        whole, pooled = (out, arrays[-1]) if isinstance(op, PoolGrad) else (arrays[0], out)
        work = CTYPES[work_dtype(out.dtype)]
        mode = _AT_MAXIMUM if isinstance(op, MaxPoolGradGrad) else _MODES[op.mode]
        file, name = "windows.cu", "spread" if isinstance(op, AveragePoolGrad) else "windows"
        if isinstance(op, MaxPoolGrad):
            file = name = "max_pool_grad"
            file += ".cu"
        source = specialised(
            file, T=CTYPES[out.dtype], A=work, DIMS=op.ndim, MODE=mode, LOWEST=_lowest(out.dtype)
        )
        sizes = whole.shape[-op.ndim :], pooled.shape[-op.ndim :]
        axes = [n for axis in zip(*sizes, op.ws, op.stride, op.pad, strict=True) for n in axis]
        pointers = [v.pointer for v in arrays] + [0] * (3 - len(arrays))
        grid = (blocks_for(out.size, _THREADS),)
        parameters = (*pointers, out.pointer, out.size, *axes)
        return [KernelLaunch(source, name, grid, (_THREADS,), parameters)]


KERNELS: tuple[Row, ...] = (
    ((Pool, MaxPoolGrad, MaxPoolGradGrad, AveragePoolGrad), (WindowsKernel(),)),
)
