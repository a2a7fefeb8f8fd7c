"""Pooling and its gradient by kernels of ours, for planes and for channels last.

The windows are compiled in. Results and gradients are gathered, so nothing is added atomically; a
maximum's gradient goes to every tie, as :class:`symdnn.ops.nn.pool.MaxPoolGrad` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import Any

from symdnn.gpu.codegen.device_source import CTYPES, specialised
from symdnn.gpu.codegen.launches import CudaKernel, KernelLaunch, View, blocks_for
from symdnn.gpu.kernels.softmax import alignment_of, prefers_cudnn
from symdnn.graph.kernel import Call, Row
from symdnn.graph.type import numpy_dtype
from symdnn.ops.vendor.gpudnn import GpuDnnPool, GpuDnnPoolGrad

__all__ = ["PoolGradKernel", "PoolKernel", "KERNELS"]

_FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
_MODES = {"max": 0, "max_deterministic": 0, "average_inc_pad": 1, "average": 1,
          "average_exc_pad": 2}  # fmt: skip
_BLOCK = 256
#: Results that a thread makes where windows overlap: rows of planes; rows and columns of channels.
_ROWS, _CHANNEL_ROWS, _CHANNEL_STRIP = 2, 4, 1
#: Of the second and third size of a grid.
_MOST_BANDS = 32768
#: Windows are unrolled.
_MOST_ELEMENTS = 64


@dataclass(frozen=True)
class _Images:
    """Images before and after pooling: how many, of which three sizes, of how many channels.

    ``channels`` is 0 where they come first: then every plane is an image.
    """

    count: int
    channels: int
    large: tuple[int, int, int]
    small: tuple[int, int, int]


def _images(op: Any, x: Sequence[int], y: Sequence[int]) -> _Images:
    last = op.layout == "NHWC"
    skip = 1 if last else 2
    large, small = (tuple(s[skip : skip + len(op.ws)]) for s in (x, y))
    one = (1,) * (3 - len(op.ws))
    count = x[0] if last else x[0] * x[1]
    return _Images(count, x[-1] if last else 0, (*one, *large), (*one, *small))  # type: ignore[arg-type]


def _macros(op: Any, dtype: str) -> dict[str, object]:
    found: dict[str, object] = {
        "T": CTYPES[dtype], "A": "double" if dtype == "float64" else "float",
        "MODE": _MODES[op.mode],
    }  # fmt: skip
    one = 3 - len(op.ws)
    for word, values, none in (("W", op.ws, 1), ("S", op.stride, 1), ("P", op.pad, 0)):
        for axis, n in zip("DHW", (*(none,) * one, *values)):
            found[word + axis] = n
    return found


class _Pooling(CudaKernel):
    """What both directions share."""

    dtypes = _FLOATS
    contiguous_inputs = True

    def refuses(self, call: Call) -> str | None:
        """Large windows, large images, a hint for one element of ties, what is left to cuDNN."""
        op: Any = call.op
        floats = [t for t in (*call.inputs, *call.outputs) if getattr(t, "is_float", False)]
        for t in floats:
            if t.dtype not in _FLOATS:
                return f"it has no code for {t.dtype}"
        if prod(op.ws) > _MOST_ELEMENTS:
            return f"a window of {prod(op.ws)} elements"
        sizes = [t.shape for t in floats]
        if not any(None in s for s in sizes) and max(map(prod, sizes)) >= 2**31:
            return "2**31 elements or more"
        return prefers_cudnn(call)


class PoolKernel(_Pooling):
    """A thread for a few results that are neighbours."""

    name = "cuda.pool"

    def launches(
        self, call: Call, inputs: Sequence[Any], outputs: Sequence[View]
    ) -> Sequence[KernelLaunch]:
        """One kernel."""
        op: Any = call.op
        (x,), (y,) = inputs, outputs
        if y.size == 0:
            return []
        images = _images(op, x.shape, y.shape)
        most = alignment_of(x, y) // y.itemsize
        clamped = _MODES[op.mode] == 0 and _all_meet(op, images)
        macros = {**_macros(op, y.dtype), "CLAMPED": int(clamped)}
        if images.channels:
            return _channels(op, images, macros, (x, y), gcd(images.channels, most))
        strip = most // op.stride[-1] if most % op.stride[-1] == 0 else 1
        if images.large[2] % (strip * op.stride[-1]) or images.small[2] % strip:
            strip = 1
        width = strip * op.stride[-1] if strip > 1 else 1
        rows = _rows(op, images, _ROWS)
        macros = {**macros, "V": width, "STRIP": strip, "ROWS": rows}
        _, high, wide = images.small
        threads = y.size // (high * wide) * -(-high // rows) * (wide // strip)
        return _launch("pool_planes", macros, (x, y), threads, images)


def _all_meet(op: Any, images: _Images) -> bool:
    """Whether every window has an element of the image in it."""
    sizes = zip(images.large[-len(op.ws) :], images.small[-len(op.ws) :])
    windows = zip(op.ws, op.stride, op.pad)
    return all(pad < w and (m - 1) * s - pad < n for (n, m), (w, s, pad) in zip(sizes, windows))


def _rows(op: Any, images: _Images, most: int) -> int:
    """Rows of results that a thread makes: several where their windows share lines."""
    overlap = len(op.ws) > 1 and op.stride[-2] < op.ws[-2]
    return min(most, images.small[1]) if overlap else 1


def _channels(
    op: Any, images: _Images, macros: dict[str, object], views: Sequence[View], width: int
) -> list[KernelLaunch]:
    """The kernel of channels that lie last, ``width`` of them a vector."""
    rows = _rows(op, images, _CHANNEL_ROWS)
    strip = min(_CHANNEL_STRIP, images.small[2]) if op.stride[-1] < op.ws[-1] else 1
    deep, high, wide = images.small
    groups = images.channels // width
    macros = {**macros, "V": width, "STRIP": strip, "ROWS": rows}
    row = -(-wide // strip) * groups
    parts = -(-row // _BLOCK)
    block = -(-row // (32 * parts)) * 32 if row > 32 else 32
    bands = min(-(-high // rows) * deep, _MOST_BANDS)
    grid = (-(-row // block), bands, min(images.count, _MOST_BANDS))
    source = specialised("pool.cu", "pool_channels.cu", **macros)
    parameters = (*(v.pointer for v in views), images.count, groups, *images.large, *images.small)
    return [KernelLaunch(source, "pool_channels", grid, (block,), parameters)]


class PoolGradKernel(_Pooling):
    """A thread for a few elements of x that are neighbours."""

    name = "cuda.pool_grad"

    def launches(
        self, call: Call, inputs: Sequence[Any], outputs: Sequence[View]
    ) -> Sequence[KernelLaunch]:
        """One kernel."""
        op: Any = call.op
        (dx,) = outputs
        x, y, dy = inputs[:3] if op.is_max else (inputs[0],) * 3
        if dx.size == 0:
            return []
        images = _images(op, dx.shape, dy.shape)
        macros = _macros(op, dx.dtype)
        most = alignment_of(x, y, dy, dx) // int(numpy_dtype(dx.dtype).itemsize)
        views = (x, y, dy, dx)
        if images.channels:
            width = gcd(images.channels, most)
            groups = images.channels // width
            macros = {**macros, "V": width}
            return _launch("pool_grad_channels", macros, views, dx.size // width, images, groups)
        width = gcd(images.large[2], most)
        width = width if width % op.stride[-1] == 0 else 1
        return _launch("pool_grad_planes", {**macros, "V": width}, views, dx.size // width, images)


def _launch(
    name: str, macros: dict[str, object], views: Sequence[View], threads: int, images: _Images,
    groups: int = 0,
) -> list[KernelLaunch]:  # fmt: skip
    source = specialised("pool.cu", f"{name}.cu", **macros)
    parameters = (
        *(v.pointer for v in views), threads, *([groups] if groups else []), *images.large,
        *images.small,
    )  # fmt: skip
    grid = (blocks_for(threads, _BLOCK, 1 << 20),)
    return [KernelLaunch(source, name, grid, (_BLOCK,), parameters)]


KERNELS: tuple[Row, ...] = (
    ((GpuDnnPool,), (PoolKernel(),)),
    ((GpuDnnPoolGrad,), (PoolGradKernel(),)),
)
