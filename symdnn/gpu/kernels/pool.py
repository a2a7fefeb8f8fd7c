"""Pooling and its gradient by our own kernels, for NCHW and NHWC.

Window sizes are compile-time constants. A thread computes whole elements of the result or gradient,
so there are no atomic additions. The gradient of max pooling goes to every tie, as
:class:`symdnn.ops.nn.pool.MaxPoolGrad` defines it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import Any

from symdnn.gpu.codegen.device_source import CTYPES, specialised
from symdnn.gpu.codegen.launches import (
    CudaKernel,
    KernelLaunch,
    Views,
    alignment_of,
    blocks_for,
    prefers_cudnn,
)
from symdnn.graph.kernel import Call, Row
from symdnn.graph.type import numpy_dtype
from symdnn.ops.vendor.gpudnn_pool import POOL_MODES, GpuDnnPool, GpuDnnPoolGrad

_FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
_MODES = {"max": 0, "max_deterministic": 0, "average_inc_pad": 1, "average": 1,
          "average_exc_pad": 2, "sum": 3}  # fmt: skip
_THREADS = 256
#: Outputs of a thread where windows overlap.
_NCHW_THREAD_ROWS, _NHWC_THREAD_ROWS, _NHWC_THREAD_COLUMNS = 2, 4, 1
#: The most blocks along the second and third dimension of a grid.
_MAX_GRID_YZ = 32768
#: Loops over windows are unrolled.
_MAX_WINDOW_ELEMENTS = 64


@dataclass(frozen=True)
class _PoolSizes:
    """Sizes of a pooling: ``input`` and ``output`` are depth, height and width.

    In NHWC ``count`` is the number of samples. In NCHW ``channels`` is 0 and ``count`` is that of
    planes, samples times channels.
    """

    count: int
    channels: int
    input: tuple[int, int, int]
    output: tuple[int, int, int]


def _pool_sizes(op: Any, x: Sequence[int], y: Sequence[int]) -> _PoolSizes:
    last = op.layout == "NHWC"
    skip = 1 if last else 2
    input, output = (tuple(s[skip : skip + len(op.ws)]) for s in (x, y))
    one = (1,) * (3 - len(op.ws))
    count = x[0] if last else x[0] * x[1]
    return _PoolSizes(count, x[-1] if last else 0, (*one, *input), (*one, *output))  # type: ignore[arg-type]


def _macros(op: Any, dtype: str) -> dict[str, object]:
    # Without padding every mean is of what is inside, as windows that are cut off need it.
    mode = op.mode if op.ignore_border else POOL_MODES[op.mode].replace("inc", "exc")
    found: dict[str, object] = {
        "T": CTYPES[dtype], "A": "double" if dtype == "float64" else "float",
        "MODE": _MODES[mode],
    }  # fmt: skip
    one = 3 - len(op.ws)
    for word, values, none in (("W", op.ws, 1), ("S", op.stride, 1), ("P", op.pad, 0)):
        for axis, n in zip("DHW", (*(none,) * one, *values)):
            found[word + axis] = n
    return found


class _Pooling(CudaKernel):
    """Base of pooling and its gradient."""

    dtypes = _FLOATS
    contiguous_inputs = True

    def refuses(self, call: Call) -> str | None:
        """Large windows, large arrays, and ops for cuDNN by ``gpu.prefer``."""
        op: Any = call.op
        floats = [t for t in (*call.inputs, *call.outputs) if getattr(t, "is_float", False)]
        for t in floats:
            if t.dtype not in _FLOATS:
                return f"it has no code for {t.dtype}"
        if prod(op.ws) > _MAX_WINDOW_ELEMENTS:
            return f"a window of {prod(op.ws)} elements"
        sizes = [t.shape for t in floats]
        if not any(None in s for s in sizes) and max(map(prod, sizes)) >= 2**31:
            return "2**31 elements or more"
        image: Any = call.outputs[0] if isinstance(op, GpuDnnPoolGrad) else call.inputs[0]
        if call.has_sizes and op.beyond_cudnn(image.shape):
            return None
        return prefers_cudnn(call)


class PoolKernel(_Pooling):
    """Each thread computes a few neighbouring outputs."""

    name = "cuda.pool"

    def launches(self, call: Call, inputs: Sequence[Any], outputs: Views) -> Sequence[KernelLaunch]:
        """One kernel."""
        op: Any = call.op
        (x,), (y,) = inputs, outputs
        if y.size == 0:
            return []
        sizes = _pool_sizes(op, x.shape, y.shape)
        most = alignment_of(x, y) // y.itemsize
        clamped = _MODES[op.mode] == 0 and _no_empty_window(op, sizes)
        macros = {**_macros(op, y.dtype), "CLAMPED": int(clamped)}
        if sizes.channels:
            return _channels(op, sizes, macros, (x, y), gcd(sizes.channels, most))
        strip = most // op.stride[-1] if most % op.stride[-1] == 0 else 1
        if sizes.input[2] % (strip * op.stride[-1]) or sizes.output[2] % strip:
            strip = 1
        width = strip * op.stride[-1] if strip > 1 else 1
        rows = _rows(op, sizes, _NCHW_THREAD_ROWS)
        macros = {**macros, "V": width, "STRIP": strip, "ROWS": rows}
        _, high, wide = sizes.output
        threads = y.size // (high * wide) * -(-high // rows) * (wide // strip)
        return _launch("pool_planes", macros, (x, y), threads, sizes)


def _no_empty_window(op: Any, sizes: _PoolSizes) -> bool:
    """Whether every window has an element of the input, not only padding."""
    pairs = zip(sizes.input[-len(op.ws) :], sizes.output[-len(op.ws) :])
    windows = zip(op.ws, op.stride, op.pad)
    return all(pad < w and (m - 1) * s - pad < n for (n, m), (w, s, pad) in zip(pairs, windows))


def _rows(op: Any, sizes: _PoolSizes, most: int) -> int:
    """Rows of outputs per thread: several if their windows overlap."""
    overlap = len(op.ws) > 1 and op.stride[-2] < op.ws[-2]
    return min(most, sizes.output[1]) if overlap else 1


def _channels(
    op: Any, sizes: _PoolSizes, macros: dict[str, object], views: Views, width: int
) -> list[KernelLaunch]:
    """The kernel for NHWC, with vectors of ``width`` channels."""
    rows = _rows(op, sizes, _NHWC_THREAD_ROWS)
    strip = min(_NHWC_THREAD_COLUMNS, sizes.output[2]) if op.stride[-1] < op.ws[-1] else 1
    deep, high, wide = sizes.output
    groups = sizes.channels // width
    macros = {**macros, "V": width, "STRIP": strip, "ROWS": rows}
    row = -(-wide // strip) * groups
    parts = -(-row // _THREADS)
    block = -(-row // (32 * parts)) * 32 if row > 32 else 32
    bands = min(-(-high // rows) * deep, _MAX_GRID_YZ)
    grid = (-(-row // block), bands, min(sizes.count, _MAX_GRID_YZ))
    source = specialised("pool.cu", "pool_channels.cu", **macros)
    parameters = (*(v.pointer for v in views), sizes.count, groups, *sizes.input, *sizes.output)
    return [KernelLaunch(source, "pool_channels", grid, (block,), parameters)]


class PoolGradKernel(_Pooling):
    """Each thread computes the gradient of a few neighbouring inputs."""

    name = "cuda.pool_grad"

    def launches(self, call: Call, inputs: Sequence[Any], outputs: Views) -> Sequence[KernelLaunch]:
        """One kernel."""
        op: Any = call.op
        (dx,) = outputs
        x, y, dy = inputs[:3] if op.is_max else (inputs[0],) * 3
        if dx.size == 0:
            return []
        sizes = _pool_sizes(op, dx.shape, dy.shape)
        macros = _macros(op, dx.dtype)
        most = alignment_of(x, y, dy, dx) // int(numpy_dtype(dx.dtype).itemsize)
        views = (x, y, dy, dx)
        if sizes.channels:
            width = gcd(sizes.channels, most)
            groups = sizes.channels // width
            macros = {**macros, "V": width}
            return _launch("pool_grad_channels", macros, views, dx.size // width, sizes, groups)
        width = gcd(sizes.input[2], most)
        width = width if width % op.stride[-1] == 0 else 1
        return _launch("pool_grad_planes", {**macros, "V": width}, views, dx.size // width, sizes)


def _launch(
    name: str, macros: dict[str, object], views: Views, threads: int, sizes: _PoolSizes,
    groups: int = 0,
) -> list[KernelLaunch]:  # fmt: skip
    source = specialised("pool.cu", f"{name}.cu", **macros)
    parameters = (
        *(v.pointer for v in views), threads, *([groups] if groups else []), *sizes.input,
        *sizes.output,
    )  # fmt: skip
    grid = (blocks_for(threads, _THREADS, 1 << 20),)
    return [KernelLaunch(source, name, grid, (_THREADS,), parameters)]


KERNELS: tuple[Row, ...] = (
    ((GpuDnnPool,), (PoolKernel(),)),
    ((GpuDnnPoolGrad,), (PoolGradKernel(),)),
)
