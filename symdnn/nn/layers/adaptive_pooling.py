"""Pooling to a given number of windows, whatever the size of the input; and over all of it.

Window i of m over n elements is ``floor(i n / m)`` to ``ceil((i + 1) n / m)``, as in Torch7 and
PyTorch. Where m divides n that is a plain pooling.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from symdnn.graph.dims import Dim, ceil_div, known
from symdnn.graph.typing import PerAxis
from symdnn.graph.variable import Variable, as_variable
from symdnn.nn.layers.pool_places import adaptive_maxima
from symdnn.nn.layers.pooling import _INPUTS, _torch_order
from symdnn.nn.modules.arguments import as_batch, positive, sizes, tensor_input
from symdnn.nn.modules.module import Module
from symdnn.ops.array import reduce
from symdnn.ops.array.create import arange
from symdnn.ops.array.join import stack
from symdnn.ops.array.moments import mean
from symdnn.ops.array.view import moveaxis
from symdnn.ops.core.shape import dims_of
from symdnn.ops.elementwise.arithmetic import cast
from symdnn.ops.linalg.dot import dot
from symdnn.ops.nn.pool import pool_nd

__all__ = [
    "GlobalAveragePooling", "GlobalMaxPooling", "SpatialAdaptiveAveragePooling",
    "SpatialAdaptiveMaxPooling", "TemporalAdaptiveAveragePooling", "TemporalAdaptiveMaxPooling",
    "VolumetricAdaptiveAveragePooling", "VolumetricAdaptiveMaxPooling",
]  # fmt: skip


class _Adaptive(Module):
    ndim: ClassVar[int]
    average: ClassVar[bool] = False
    #: (T,) H, W of the output; None keeps the input's size.
    output: tuple[int | None, ...]

    #: Whether a maximum comes with its place in the flat positions: ``[values, indices]``.
    return_indices: bool = False

    def forward(self, x: Variable) -> Variable | list[Variable]:
        batch, restore = as_batch(self, x, self.ndim + 2, _INPUTS[self.ndim])
        if self.return_indices:
            found = dims_of(batch)[2:]
            wanted = [n if m is None else m for n, m in zip(found, self.output, strict=True)]
            return [restore(v) for v in adaptive_maxima(batch, wanted)]
        return restore(self._pooled(batch))

    def _pooled(self, x: Variable) -> Variable:
        found = dims_of(x)[2:]
        wanted = [n if m is None else m for n, m in zip(found, self.output, strict=True)]
        if self.average and all(m == 1 for m in self.output):
            return mean(x, axis=tuple(range(2, x.type.ndim)), keepdims=True)
        even = [_even(n, m) for n, m in zip(found, wanted, strict=True)]
        if all(w is not None for w in even):
            mode = "average_exc_pad" if self.average else "max"
            return pool_nd(type(self).__name__, self.ndim, x, even, True, even, 0, mode)
        for axis, (m, w) in enumerate(zip(wanted, even, strict=True), 2):
            if w != 1:
                x = (_average_axis if self.average else _largest_axis)(x, axis, m)
        return x

    def describe(self) -> str:
        shown = tuple("-" if m is None else str(m) for m in self.output)
        return f"({_torch_order(shown, 'x')})"  # type: ignore[arg-type]


def adaptive_averages(x: Variable, output: Sequence[Any]) -> Variable:
    """The average of each of ``output`` windows that cover the positions of (N, C, ...)."""
    for axis, m in enumerate(output, 2):
        x = _average_axis(x, axis, m)
    return x


def _even(n: Dim, m: int) -> int | None:
    """The size of windows that are all alike and side by side; None where they are not."""
    if m is n:
        return 1
    size = known(n)
    return size // m if size is not None and size >= m and size % m == 0 else None


def _window(i: Dim, n: Dim, m: int) -> tuple[Any, Any]:
    return i * n // m, ceil_div((i + 1) * n, m)


def _average_axis(x: Variable, axis: int, m: Any) -> Variable:
    """A matrix product with the matrix of windows, (n, m)."""
    dtype, n = x.type.dtype, dims_of(x)[axis]
    if isinstance(m, int) and m == 1:
        return mean(x, axis=axis, keepdims=True)
    if isinstance(n, Variable) or isinstance(m, Variable):
        position, starts, ends = arange(n).dimshuffle(0, "x"), *_window(arange(m), n, m)
        starts, ends = starts.dimshuffle("x", 0), ends.dimshuffle("x", 0)
        inside = cast((position >= starts) & (position < ends), dtype)
        matrix = inside / cast(ends - starts, dtype)
    else:
        i = np.arange(m)
        begin, end = i * n // m, -(-(i + 1) * n // m)
        at = np.arange(n)[:, None]
        matrix = as_variable((((at >= begin) & (at < end)) / (end - begin)).astype(dtype))
    return moveaxis(dot(moveaxis(x, axis, -1), matrix), -1, axis)


def _largest_axis(x: Variable, axis: int, m: int) -> Variable:
    """The windows one by one: there are few of them, and they may overlap."""
    n = dims_of(x)[axis]
    if m == 1:
        return reduce.max(x, axis=axis, keepdims=True)
    lead = (slice(None),) * axis
    parts = [reduce.max(x[(*lead, slice(*_window(i, n, m)))], axis=axis) for i in range(m)]
    return stack(*parts, axis=axis)


class _SpatialAdaptive(_Adaptive):
    ndim = 2

    def __init__(
        self, W: int | None = None, H: int | None = None, *, output_size: PerAxis | None = None
    ) -> None:
        self.output = _outputs(type(self).__name__, 2, (H, W), output_size)


class _VolumetricAdaptive(_Adaptive):
    ndim = 3

    def __init__(
        self, T: int | None = None, W: int | None = None, H: int | None = None, *,
        output_size: PerAxis | None = None,
    ) -> None:  # fmt: skip
        self.output = _outputs(type(self).__name__, 3, (T, H, W), output_size)


class _TemporalAdaptive(_Adaptive):
    ndim = 1

    def __init__(
        self, frames: int | None = None, *, output_size: PerAxis | None = None,
        channels_first: bool = False,
    ) -> None:  # fmt: skip
        self.output = _outputs(type(self).__name__, 1, (frames,), output_size)
        self.channels_first = channels_first

    def _pooled(self, x: Variable) -> Variable:
        if self.channels_first:
            return super()._pooled(x)
        return super()._pooled(x.dimshuffle(0, 2, 1)).dimshuffle(0, 2, 1)


def _outputs(name: str, ndim: int, given: Any, keyword: Any) -> tuple[int | None, ...]:
    """Sizes of the output; None, the input's own, is allowed."""
    entries = given if keyword is None else keyword
    single = isinstance(entries, Variable | str) or np.ndim(entries) == 0
    entries = [entries] * ndim if single else list(entries)
    filled = sizes(
        f"{name}: output size", ndim, (None,) * ndim, [1 if e is None else e for e in entries]
    )
    positive(f"{name}: output size", *filled)
    return tuple(None if e is None else f for e, f in zip(entries, filled, strict=True))


class SpatialAdaptiveMaxPooling(_SpatialAdaptive):
    """The largest of each of H x W windows that cover the image; (W, H) by position.

    ``output_size`` is (H, W) or an int by keyword; None keeps a size.
    """


class SpatialAdaptiveAveragePooling(_SpatialAdaptive):
    """The average of each of H x W windows that cover the image; (W, H) by position.

    >>> SpatialAdaptiveAveragePooling(1, 1)
    nn.SpatialAdaptiveAveragePooling(1x1)
    """

    average = True


class VolumetricAdaptiveMaxPooling(_VolumetricAdaptive):
    """The largest of each of T x H x W windows; (T, W, H) by position."""


class VolumetricAdaptiveAveragePooling(_VolumetricAdaptive):
    """The average of each of T x H x W windows; (T, W, H) by position."""

    average = True


class TemporalAdaptiveMaxPooling(_TemporalAdaptive):
    """The largest of each of ``frames`` windows of (N, frames, features)."""


class TemporalAdaptiveAveragePooling(_TemporalAdaptive):
    """The average of each of ``frames`` windows of (N, frames, features)."""

    average = True


class GlobalAveragePooling(Module):
    """The average over all positions: (N, planes, ...) to (N, planes)."""

    def forward(self, x: Variable) -> Variable:
        return mean(x, axis=_positions(self, x))


class GlobalMaxPooling(Module):
    """The largest of all positions: (N, planes, ...) to (N, planes)."""

    def forward(self, x: Variable) -> Variable:
        return reduce.max(x, axis=_positions(self, x))


def _positions(module: Module, x: Variable) -> tuple[int, ...]:
    tensor_input(module, x, "a float tensor (batch, planes, positions...)", 3, 4, 5)
    return tuple(range(2, x.type.ndim))
