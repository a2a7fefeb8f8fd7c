"""Convolution and its two gradients by NumPy: im2col and GEMM.

Arrays are ``x`` (N, C, spatial...), ``w`` (O, C/groups, filter...) and ``y`` (N, O, out...).
All functions are cross-correlations; the ops mirror ``w``. Memory is bounded, since a chunk of
samples is computed at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from symdnn.graph.typing import Array

# The most elements of a chunk's column matrix (64 MiB of float32).
_CHUNK_ELEMENTS = 1 << 24


@dataclass(frozen=True)
class Geometry:
    """Strides, padding and the like of the windows, in numbers."""

    padding: tuple[tuple[int, int], ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def taps(self, kernel: Sequence[int], out: Sequence[int]) -> Iterator[tuple[Any, Any]]:
        """Each tap of the filter, with the slices of the padded input that it multiplies."""
        for tap in np.ndindex(*kernel):
            yield (
                tap,
                tuple(
                    slice(t * d, t * d + s * (n - 1) + 1 if n else 0, s)
                    for t, d, s, n in zip(tap, self.dilation, self.stride, out, strict=True)
                ),
            )


def _windows(x: Array, kernel: Sequence[int], g: Geometry) -> Array:
    """A view (N, C, \\*out, \\*filter) of the padded input."""
    if any(p for pair in g.padding for p in pair):
        x = np.pad(x, ((0, 0), (0, 0), *g.padding))
    spans = tuple((k - 1) * d + 1 for k, d in zip(kernel, g.dilation, strict=True))
    axes = tuple(range(2, x.ndim))
    view = sliding_window_view(x, spans, axes)
    steps = [slice(None, None, s) for s in (*g.stride, *g.dilation)]
    return view[(slice(None), slice(None), *steps)]


def _chunks(count: int, elements_each: int) -> Iterator[slice]:
    step = max(1, _CHUNK_ELEMENTS // max(1, elements_each))
    return (slice(i, min(i + step, count)) for i in range(0, count, step))


def conv(x: Any, w: Any, g: Geometry) -> Array:
    """Cross-correlation of ``x`` with ``w``."""
    kernel, ndim = w.shape[2:], w.ndim - 2
    view = _windows(x, kernel, g)
    out = view.shape[2 : 2 + ndim]
    batch, outs, points = len(x), len(w), prod(out)
    depth = w.shape[1] * prod(kernel)
    matrix = w.reshape(g.groups, outs // g.groups, depth)
    y = np.empty((batch, g.groups, outs // g.groups, points), x.dtype)
    order = (0, 1, *range(2 + ndim, 2 + 2 * ndim), *range(2, 2 + ndim))
    for part in _chunks(batch, g.groups * depth * points):
        columns = view[part].transpose(order)
        np.matmul(matrix, columns.reshape(len(columns), g.groups, depth, points), out=y[part])
    return y.reshape(batch, outs, *out)


def conv_grad_input(w: Any, dy: Any, spatial: Sequence[int], g: Geometry) -> Array:
    """The transpose of :func:`conv` in ``x``: the gradient of ``x`` from ``dy``."""
    kernel, out = w.shape[2:], dy.shape[2:]
    batch, outs, points = len(dy), len(w), prod(out)
    channels, depth = w.shape[1] * g.groups, w.shape[1] * prod(kernel)
    matrix = w.reshape(g.groups, outs // g.groups, depth).transpose(0, 2, 1)
    rows = dy.reshape(batch, g.groups, outs // g.groups, points)
    padded = [n + before + after for n, (before, after) in zip(spatial, g.padding, strict=True)]
    dx = np.zeros((batch, channels, *padded), dy.dtype)
    for part in _chunks(batch, g.groups * depth * points):
        columns = np.matmul(matrix, rows[part])
        columns = columns.reshape(len(columns), channels, *kernel, *out)
        for tap, where in g.taps(kernel, out):
            dx[(part, slice(None), *where)] += columns[(slice(None), slice(None), *tap)]
    crop = [slice(before, before + n) for n, (before, _) in zip(spatial, g.padding, strict=True)]
    return np.ascontiguousarray(dx[(slice(None), slice(None), *crop)])


def conv_grad_weight(x: Any, dy: Any, kernel: Sequence[int], g: Geometry) -> Array:
    """The transpose of :func:`conv` in ``w``: the gradient of ``w`` from ``dy``."""
    view, ndim = _windows(x, kernel, g), len(kernel)
    batch, channels = x.shape[:2]
    outs, points = dy.shape[1], prod(dy.shape[2:])
    depth = channels // g.groups * prod(kernel)
    dw = np.zeros((g.groups, outs // g.groups, depth), x.dtype)
    order = (1, *range(2 + ndim, 2 + 2 * ndim), 0, *range(2, 2 + ndim))
    for part in _chunks(batch, g.groups * depth * points):
        block = view[part]
        size = len(block) * points
        columns = block.transpose(order).reshape(g.groups, depth, size)
        rows = np.moveaxis(dy[part], 0, 1).reshape(g.groups, outs // g.groups, size)
        dw += np.matmul(rows, columns.transpose(0, 2, 1))
    return dw.reshape(outs, channels // g.groups, *kernel)
