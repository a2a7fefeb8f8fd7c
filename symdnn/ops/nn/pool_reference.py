"""Pooling and its gradients by NumPy: Python loops over the positions in a window only.

The last ``len(axes)`` dimensions are pooled. Maxima and sums are computed for one dimension after
the other, so a window of 7x7 takes 14 steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from symdnn.graph.typing import Array


@dataclass(frozen=True)
class Axis:
    """One pooled dimension: ``out`` windows of ``ws``, ``stride`` apart, over ``n`` elements."""

    n: int
    out: int
    ws: int
    stride: int
    pad: int

    @property
    def length(self) -> int:
        """The padded size, which contains all windows."""
        return max(self.pad + self.n, (self.out - 1) * self.stride + self.ws)

    @property
    def sides(self) -> tuple[int, int]:
        """The elements added before and after."""
        return self.pad, self.length - self.pad - self.n

    def at(self, tap: int) -> slice:
        """The elements at position ``tap`` of all windows."""
        return slice(tap, tap + self.stride * (self.out - 1) + 1 if self.out else 0, self.stride)

    def counts(self, with_padding: bool) -> Array:
        """The number of elements of each window (with padding or without); at least 1."""
        first = np.arange(self.out) * self.stride - self.pad
        end = np.minimum(first + self.ws, self.n + (self.pad if with_padding else 0))
        start = first if with_padding else np.maximum(first, 0)
        return np.maximum(end - start, 1)


def _padded(x: Array, axes: Sequence[Axis], value: float) -> Array:
    sides = [a.sides for a in axes]
    if not any(s for pair in sides for s in pair):
        return x
    lead = [(0, 0)] * (x.ndim - len(axes))
    return np.pad(x, [*lead, *sides], constant_values=value)


def _lowest(dtype: Any) -> float:
    return -np.inf if dtype.kind == "f" else np.iinfo(dtype).min


def _along(axis: int, where: slice) -> tuple[Any, ...]:
    return (Ellipsis, where, *[slice(None)] * (-axis - 1))


def _taps(axes: Sequence[Axis]) -> Iterator[tuple[Any, ...]]:
    for tap in np.ndindex(*(a.ws for a in axes)):
        yield (Ellipsis, *(a.at(t) for a, t in zip(axes, tap, strict=True)))


def _windowed(x: Any, axes: Sequence[Axis], combine: Any) -> Any:
    """``combine`` over the windows, one dimension at a time."""
    for i, a in enumerate(axes):
        position = i - len(axes)
        total = x[_along(position, a.at(0))].copy()
        for tap in range(1, a.ws):
            combine(total, x[_along(position, a.at(tap))], out=total)
        x = total
    return x


def max_pool(x: Any, axes: Sequence[Axis]) -> Any:
    """The largest element of each window; NaN if it contains one."""
    return _windowed(_padded(x, axes, _lowest(x.dtype)), axes, np.maximum)


def sum_pool(x: Any, axes: Sequence[Axis]) -> Any:
    """The sum of each window."""
    return _windowed(_padded(x, axes, 0), axes, np.add)


def mean_weights(axes: Sequence[Axis], with_padding: bool) -> Array:
    """The number of elements of each window, an array that broadcasts over leading dimensions."""
    total = np.ones((), np.float64)
    for a in axes:
        total = total[..., None] * a.counts(with_padding)
    return total


def spread(dy: Any, axes: Sequence[Axis]) -> Array:
    """The transpose of :func:`sum_pool`: each window's value added to all its elements."""
    for i, a in enumerate(axes):
        position = i - len(axes)
        shape = list(dy.shape)
        shape[position] = a.length
        total = np.zeros(shape, dy.dtype)
        for tap in range(a.ws):
            total[_along(position, a.at(tap))] += dy
        dy = total[_along(position, slice(a.pad, a.pad + a.n))]
    return np.ascontiguousarray(dy)


def max_scatter(x: Any, y: Array, dy: Any, axes: Sequence[Axis]) -> Array:
    """``dy`` added to every element that equals its window's maximum ``y``."""
    wide = _padded(x, axes, _lowest(x.dtype))
    total: Any = np.zeros(wide.shape, dy.dtype)
    for where in _taps(axes):
        total[where] += np.where(wide[where] == y, dy, 0)
    crop = tuple(slice(a.pad, a.pad + a.n) for a in axes)
    return np.ascontiguousarray(total[(Ellipsis, *crop)])


def max_gather(x: Any, y: Any, v: Any, axes: Sequence[Axis]) -> Array:
    """The transpose of :func:`max_scatter`: the sum of ``v`` over a window's maxima."""
    wide, values = _padded(x, axes, _lowest(x.dtype)), _padded(v, axes, 0)
    total = np.zeros(y.shape, v.dtype)
    for where in _taps(axes):
        total += np.where(wide[where] == y, values[where], 0)
    return total
