"""Pooling: spatial, volumetric and temporal, of maxima and averages, and to a given size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import InputError
from symdnn.graph.dims import ceil_div, dim_max, dim_where, known
from symdnn.graph.typing import PerAxis
from symdnn.graph.variable import Variable, as_variable
from symdnn.nn.layers.pool_places import window_maxima
from symdnn.nn.modules.arguments import as_batch, positive, sizes
from symdnn.nn.modules.module import Module
from symdnn.ops.array.create import arange
from symdnn.ops.array.pad import pad
from symdnn.ops.core.shape import dims_of
from symdnn.ops.elementwise.arithmetic import cast, maximum, minimum
from symdnn.ops.elemwise import like
from symdnn.ops.nn.pool import pool_nd

__all__ = [
    "SpatialAveragePooling", "SpatialMaxPooling", "TemporalAveragePooling", "TemporalMaxPooling",
    "VolumetricAveragePooling", "VolumetricMaxPooling",
]  # fmt: skip

_INPUTS = {
    1: "(batch, frames, features) or (frames, features)",
    2: "(batch, planes, height, width) or (planes, height, width)",
    3: "(batch, planes, time, height, width) or (planes, time, height, width)",
}


@dataclass(frozen=True)
class _Windows:
    """Windows along one axis of ``n`` elements; the number of them may be rounded up."""

    n: Any
    size: int
    step: int
    pad: int

    @property
    def count(self) -> Any:
        """How many, rounded up; the last one begins inside of the input or its front padding."""
        number = ceil_div(dim_max(self.n + 2 * self.pad - self.size, 0), self.step) + 1
        begins = (number - 1) * self.step
        return number - dim_where(begins >= self.n + self.pad, 1, 0)

    @property
    def whole(self) -> Any:
        """How many windows are whole."""
        return (self.n + 2 * self.pad - self.size) // self.step + 1

    @property
    def behind(self) -> Any:
        """How much the last window reaches beyond the padding."""
        return dim_max((self.count - 1) * self.step + self.size - self.n - 2 * self.pad, 0)

    def elements(self, with_padding: bool, dtype: str) -> Variable:
        """The number of elements of each window, without those after the padding."""
        symbolic = isinstance(self.n, Variable)
        starts: Any = (arange if symbolic else np.arange)(self.count) * self.step - self.pad
        low: Any = minimum if symbolic else np.minimum
        high: Any = maximum if symbolic else np.maximum
        ends = low(starts + self.size, self.n + self.pad)
        if not with_padding:
            ends, starts = low(ends, self.n), high(starts, 0)
        number = ends - starts
        return cast(number, dtype) if symbolic else as_variable(number.astype(dtype))


class _Pooling(Module):
    """Their base class. Sizes are in the order of the axes: (T,) H, W."""

    ndim: ClassVar[int]
    average: ClassVar[bool] = False
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    ceil_mode: bool = False
    count_include_pad: bool = True
    #: Steps between the elements of a window of a maximum; () is 1 each.
    dilation: tuple[int, ...] = ()
    #: Whether a maximum comes with its place in the flat positions: ``[values, indices]``.
    return_indices: bool = False
    #: What an average divides by; None: the number of elements.
    divisor_override: int | None = None

    def _check(self) -> None:
        name = type(self).__name__
        positive(f"{name}: kernel, stride", *self.kernel, *self.stride)
        positive(f"{name}: padding", *self.padding, least=0)
        if any(2 * p > k for p, k in zip(self.padding, self.kernel, strict=True)):
            raise InputError(
                f"{name}: padding {self.padding} is more than half of the window {self.kernel}"
            )

    def ceil(self) -> _Pooling:
        """Round the number of windows up; returns the module."""
        self.ceil_mode = True
        return self

    def floor(self) -> _Pooling:
        """Round the number of windows down, which is how it begins; returns the module."""
        self.ceil_mode = False
        return self

    def options(
        self, *, dilation: PerAxis = 1, return_indices: bool = False,
        divisor_override: int | None = None,
    ) -> None:  # fmt: skip
        """Set what PyTorch's pooling has beside Torch7's: see the attributes."""
        name, n = type(self).__name__, self.ndim
        steps = sizes(f"{name}: dilation", n, (None,) * n, dilation)
        positive(f"{name}: dilation", *steps)
        self.dilation = steps if any(d != 1 for d in steps) else ()
        self.return_indices = bool(return_indices)
        if divisor_override is not None:
            positive(f"{name}: divisor_override", abs(divisor_override))
            self.divisor_override = int(divisor_override)

    def forward(self, x: Variable) -> Variable | list[Variable]:
        batch, restore = as_batch(self, x, self.ndim + 2, _INPUTS[self.ndim])
        if self.return_indices or self.dilation:
            found = [restore(v) for v in self._maxima(batch)]
            return found if self.return_indices else found[0]
        return restore(self._pooled(batch))

    def _maxima(self, x: Variable) -> list[Variable]:
        steps = self.dilation or (1,) * self.ndim
        reach = [d * (k - 1) + 1 for k, d in zip(self.kernel, steps, strict=True)]
        rows = zip(dims_of(x)[-self.ndim :], reach, self.stride, self.padding, strict=True)
        windows = [_Windows(*row) for row in rows]
        behind = [w.behind if self.ceil_mode else 0 for w in windows]
        counts = [w.count if self.ceil_mode else w.whole for w in windows]
        return window_maxima(
            x, self.kernel, self.stride, self.padding, steps, counts, behind, self.return_indices
        )

    @property
    def _mode(self) -> str:
        if not self.average:
            return "max"
        return "average_inc_pad" if self.count_include_pad else "average_exc_pad"

    def _pooled(self, x: Variable) -> Variable:
        if self.divisor_override is not None:
            return self._windows(x, "sum") / like(self.divisor_override, x)
        return self._windows(x, self._mode)

    def _windows(self, x: Variable, mode: str) -> Variable:
        rows = zip(dims_of(x)[-self.ndim :], self.kernel, self.stride, self.padding, strict=True)
        windows = [_Windows(*row) for row in rows]
        if self.ceil_mode and any(known(w.behind) != 0 for w in windows):
            return self._rounded_up(x, windows, mode)
        return self._pool(x, self.padding, mode, True)

    def _pool(self, x: Variable, around: Sequence[int], mode: str, whole: bool) -> Variable:
        name = type(self).__name__
        return pool_nd(name, self.ndim, x, self.kernel, whole, self.stride, tuple(around), mode)

    def _rounded_up(self, x: Variable, windows: Sequence[_Windows], mode: str) -> Variable:
        """The op takes cut-off windows without padding only, so padding becomes a step before."""
        none = (0,) * self.ndim
        if not any(self.padding):
            return self._pool(x, none, mode, False)
        widths = [(0, 0), (0, 0), *((w.pad, w.pad + w.behind) for w in windows)]
        fill = np.asarray(0 if self.average else -np.inf, x.type.dtype)
        wide = pad(x, widths, constant_values=fill)
        if not self.average:
            return self._pool(wide, none, "max", True)
        total = self._pool(wide, none, "sum", True)
        return total if mode == "sum" else total / self._elements(windows, x.type.dtype)

    def _elements(self, windows: Sequence[_Windows], dtype: str) -> Variable:
        total: Any = None
        for axis, w in enumerate(windows, 2):
            pattern = ["x"] * (self.ndim + 2)
            pattern[axis] = 0  # type: ignore[call-overload]
            counts = w.elements(self.count_include_pad, dtype).dimshuffle(*pattern)
            total = counts if total is None else total * counts
        return total  # type: ignore[no-any-return]

    def describe(self) -> str:
        parts = [_torch_order(self.kernel, "x"), _torch_order(self.stride)]
        parts += [_torch_order(self.padding)] if any(self.padding) else []
        parts += ["ceil"] if self.ceil_mode else []
        return f"({', '.join(parts)})"


def _torch_order(numbers: tuple[int, ...], between: str = ",") -> str:
    return between.join(map(str, (*numbers[:-2], *reversed(numbers[-2:]))))


class _SpatialPooling(_Pooling):
    ndim = 2

    def __init__(
        self, kW: int | None = None, kH: int | None = None, dW: int | None = None,
        dH: int | None = None, padW: int | None = None, padH: int | None = None, *,
        kernel_size: PerAxis | None = None, stride: PerAxis | None = None,
        padding: PerAxis | None = None, ceil_mode: bool = False,
    ) -> None:  # fmt: skip
        name = type(self).__name__
        self.kernel = sizes(f"{name}: kW, kH or kernel_size=", 2, (kH, kW), kernel_size)
        self.stride = sizes(f"{name}: dW, dH or stride=", 2, (dH, dW), stride, self.kernel)
        self.padding = sizes(f"{name}: padW, padH or padding=", 2, (padH, padW), padding, 0)
        self.ceil_mode = bool(ceil_mode)
        self._check()


class _VolumetricPooling(_Pooling):
    ndim = 3

    def __init__(
        self, kT: int | None = None, kW: int | None = None, kH: int | None = None,
        dT: int | None = None, dW: int | None = None, dH: int | None = None,
        padT: int | None = None, padW: int | None = None, padH: int | None = None, *,
        kernel_size: PerAxis | None = None, stride: PerAxis | None = None,
        padding: PerAxis | None = None, ceil_mode: bool = False,
    ) -> None:  # fmt: skip
        name = type(self).__name__
        self.kernel = sizes(f"{name}: kT, kW, kH or kernel_size=", 3, (kT, kH, kW), kernel_size)
        self.stride = sizes(f"{name}: dT, dW, dH or stride=", 3, (dT, dH, dW), stride,
                            self.kernel)  # fmt: skip
        what = f"{name}: padT, padW, padH or padding="
        self.padding = sizes(what, 3, (padT, padH, padW), padding, 0)
        self.ceil_mode = bool(ceil_mode)
        self._check()


class _TemporalPooling(_Pooling):
    ndim = 1

    def __init__(
        self, kW: int | None = None, dW: int | None = None, *, kernel_size: PerAxis | None = None,
        stride: PerAxis | None = None, padding: PerAxis = 0, ceil_mode: bool = False,
        channels_first: bool = False,
    ) -> None:  # fmt: skip
        name = type(self).__name__
        self.kernel = sizes(f"{name}: kW or kernel_size=", 1, (kW,), kernel_size)
        self.stride = sizes(f"{name}: dW or stride=", 1, (dW,), stride, self.kernel)
        self.padding = sizes(f"{name}: padding", 1, (None,), padding)
        self.ceil_mode, self.channels_first = bool(ceil_mode), channels_first
        self._check()

    def forward(self, x: Variable) -> Variable | list[Variable]:
        if self.channels_first:
            return super().forward(x)
        batch, restore = as_batch(self, x, 3, _INPUTS[1])
        return restore(self._pooled(batch.dimshuffle(0, 2, 1)).dimshuffle(0, 2, 1))


class _Averages(_Pooling):
    """The choice of an average's divisor."""

    average = True

    def __init__(self, *window: Any, count_include_pad: bool = True, **options: Any) -> None:
        super().__init__(*window, **options)
        self.count_include_pad = bool(count_include_pad)

    def setCountIncludePad(self) -> _Averages:
        """Padding counts as elements of a window (how it begins); returns the module."""
        self.count_include_pad = True
        return self

    def setCountExcludePad(self) -> _Averages:
        """Averages are over elements of the input alone; returns the module."""
        self.count_include_pad = False
        return self


class SpatialMaxPooling(_SpatialPooling):
    """Largest of each window of (N, planes, H, W).

    By position kW, kH, steps dW, dH (the window's), padW, padH (0); by keyword ``kernel_size``,
    ``stride``, ``padding`` as (height, width). ``ceil_mode``, or ``.ceil()``, counts a last window
    that is cut off. The gradient goes to every tie. (cudnn.SpatialMaxPooling; MaxPool2d.)

    >>> SpatialMaxPooling(3, 3, 2, 2, 1, 1).ceil()
    nn.SpatialMaxPooling(3x3, 2,2, 1,1, ceil)
    """


class SpatialAveragePooling(_Averages, _SpatialPooling):
    """Average of each window of (N, planes, H, W); arguments as :class:`SpatialMaxPooling`.

    ``count_include_pad`` (True, as in Torch7; or ``setCountExcludePad()``) says whether padding
    counts in what it is divided by. (cudnn.SpatialAveragePooling; PyTorch's AvgPool2d.)
    """


class VolumetricMaxPooling(_VolumetricPooling):
    """Largest of each window of (N, planes, T, H, W): kT, kW, kH, dT, dW, dH, padT, padW, padH.

    Else as :class:`SpatialMaxPooling`. (cudnn.VolumetricMaxPooling; PyTorch's MaxPool3d.)
    """


class VolumetricAveragePooling(_Averages, _VolumetricPooling):
    """Average of each window of (N, planes, T, H, W): kT, kW, kH, dT, dW, dH, padT, padW, padH.

    Else as :class:`SpatialAveragePooling`. (cudnn.VolumetricAveragePooling; AvgPool3d.)
    """


class TemporalMaxPooling(_TemporalPooling):
    """Largest of each window of kW frames, dW (kW) apart, of (N, frames, features).

    ``channels_first=True`` for (N, features, frames), as PyTorch's MaxPool1d has it.
    """


class TemporalAveragePooling(_Averages, _TemporalPooling):
    """Average of each window of kW frames, dW (kW) apart, of (N, frames, features)."""
