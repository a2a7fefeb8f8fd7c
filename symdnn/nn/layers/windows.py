"""Windows of images as columns and back, and p-norms of windows: PyTorch's Unfold, Fold, LPPool."""

from __future__ import annotations

from typing import Any, ClassVar

from symdnn.errors import InputError, TypeMismatch
from symdnn.graph.dims import Dim
from symdnn.graph.typing import PerAxis
from symdnn.graph.variable import Variable
from symdnn.nn.layers import pooling
from symdnn.nn.layers.pool_places import slices_of_windows
from symdnn.nn.modules.arguments import as_batch, positive, sizes
from symdnn.nn.modules.module import Module
from symdnn.ops.array.create import zeros
from symdnn.ops.array.getitem import inc_subtensor
from symdnn.ops.array.join import stack
from symdnn.ops.array.pad import pad
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.core.shape import dims_of, shape_entries
from symdnn.ops.elementwise.activations import relu
from symdnn.ops.elementwise.arithmetic import abs as absolute
from symdnn.ops.elementwise.arithmetic import cast, sgn
from symdnn.ops.elementwise.arithmetic import pow as power
from symdnn.ops.elemwise import like

__all__ = ["Fold", "LPPool1d", "LPPool2d", "LPPool3d", "Unfold"]


class _Windowed(Module):
    """Base: PyTorch's arguments of windows of images."""

    _shown = "kernel_size={0.kernel}, dilation={0.dilation}, padding={0.padding}, stride={0.stride}"

    def _sizes(
        self, kernel_size: PerAxis, dilation: PerAxis, padding: PerAxis, stride: PerAxis
    ) -> None:
        name, none = type(self).__name__, (None, None)
        self.kernel = sizes(f"{name}: kernel_size", 2, none, kernel_size)
        self.dilation = sizes(f"{name}: dilation", 2, none, dilation)
        self.padding = sizes(f"{name}: padding", 2, none, padding)
        self.stride = sizes(f"{name}: stride", 2, none, stride)
        positive(f"{name}: kernel_size, dilation, stride",
                 *self.kernel, *self.dilation, *self.stride)  # fmt: skip
        positive(f"{name}: padding", *self.padding, least=0)

    def _counts(self, found: Any) -> list[Dim]:
        rows = zip(found, self.kernel, self.dilation, self.padding, self.stride, strict=True)
        return [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, d, p, s in rows]


class Unfold(_Windowed):
    """The windows of images as columns: (N, C, H, W) to (N, C kh kw, number of windows).

    PyTorch's arguments and order: a column has the window of the first channel, row by row, then
    that of the second.

    >>> import numpy as np
    >>> Unfold(2)(np.ones((1, 3, 4, 4), "float32")).eval().shape
    (1, 12, 9)
    """

    def __init__(
        self, kernel_size: PerAxis, dilation: PerAxis = 1, padding: PerAxis = 0, stride: PerAxis = 1
    ) -> None:
        self._sizes(kernel_size, dilation, padding, stride)

    def forward(self, x: Variable) -> Variable:
        batch, restore = as_batch(self, x, 4, "(N, C, H, W) or (C, H, W)")
        n, c, *found = dims_of(batch)
        counts = self._counts(found)
        if any(self.padding):
            batch = pad(batch, [(0, 0), (0, 0), *((p, p) for p in self.padding)])
        each = slices_of_windows(batch, self.kernel, self.stride, self.dilation, counts)
        columns = stack(each, axis=2)
        k = len(each)
        return restore(columns.reshape((n, c * k, counts[0] * counts[1])))


class Fold(_Windowed):
    """Windows as columns added up to images: (N, C kh kw, number of windows) to (N, C, H, W).

    ``output_size`` is (H, W) or one int; the transpose of :class:`Unfold`, with its order.
    """

    def __init__(
        self, output_size: PerAxis, kernel_size: PerAxis, dilation: PerAxis = 1,
        padding: PerAxis = 0, stride: PerAxis = 1,
    ) -> None:  # fmt: skip
        entries = output_size if isinstance(output_size, list | tuple) else [output_size]
        if any(isinstance(n, Variable) for n in entries):
            self.output_size = tuple(shape_entries(output_size))
        else:
            self.output_size = sizes("Fold: output_size", 2, (None, None), output_size)
        self._sizes(kernel_size, dilation, padding, stride)

    def forward(self, x: Variable) -> Variable:
        batch, restore = as_batch(self, x, 3, "(N, C kh kw, windows) or (C kh kw, windows)")
        n, rows, columns = dims_of(batch)
        k = self.kernel[0] * self.kernel[1]
        counts = self._counts(self.output_size)
        windows = counts[0] * counts[1]
        known = isinstance(columns, int) and isinstance(windows, int)
        if (isinstance(rows, int) and rows % k) or (known and columns != windows):
            wanted = f"(N, C {k}, {windows}) for this output_size"
            raise TypeMismatch("Fold", wanted, x.type)
        c = rows // k
        parts = batch.reshape((n, c, k, *counts))
        wide = [m + 2 * p for m, p in zip(self.output_size, self.padding, strict=True)]
        total: Variable = zeros((n, c, *wide), batch.type.dtype)
        for i in range(k):
            place = divmod(i, self.kernel[1])
            at = tuple(
                slice(a * d, a * d + (m - 1) * s + 1, s)
                for a, d, s, m in zip(place, self.dilation, self.stride, counts, strict=True)
            )
            total = inc_subtensor(total[(slice(None), slice(None), *at)], parts[:, :, i])
        inner = tuple(slice(p, p + m) for m, p in zip(self.output_size, self.padding, strict=True))
        return restore(total[(slice(None), slice(None), *inner)])


class _LPPool(Module):
    """Base: ``(sum of x^p)^(1/p)`` of each window; of 16-bit floats computed in float32."""

    average: ClassVar[type[pooling._Pooling]]
    ndim: ClassVar[int] = 1

    def __init__(
        self,
        norm_type: float,
        kernel_size: PerAxis,
        stride: PerAxis | None = None,
        ceil_mode: bool = False,
    ) -> None:
        if not norm_type:
            raise InputError(f"{type(self).__name__}: norm_type={norm_type!r}; wanted no 0")
        self.norm_type = float(norm_type)
        options = {"channels_first": True} if self.ndim == 1 else {}
        make: Any = self.average
        self.pool = make(kernel_size=kernel_size, stride=stride, ceil_mode=ceil_mode, **options)

    def forward(self, x: Variable) -> Variable:
        if is_narrow_float(x.type.dtype):
            return cast(self.forward(cast(x, "float32")), x.type.dtype)
        p = like(self.norm_type, x)
        mean = self.pool(power(x, p))
        elements = 1
        for k in self.pool.kernel:
            elements *= k
        total: Variable = sgn(mean) * relu(absolute(mean)) * like(elements, x)
        return power(total, like(1 / self.norm_type, x))


class LPPool1d(_LPPool):
    """The p-norm of each window of (N, C, L); PyTorch's arguments."""

    average = pooling.TemporalAveragePooling


class LPPool2d(_LPPool):
    """The p-norm of each window of (N, C, H, W); PyTorch's arguments."""

    average, ndim = pooling.SpatialAveragePooling, 2


class LPPool3d(_LPPool):
    """The p-norm of each window of (N, C, D, H, W); PyTorch's arguments."""

    average, ndim = pooling.VolumetricAveragePooling, 3
