"""Modules of images that Torch7 has and PyTorch has not: filters of each place, local contrast."""

from __future__ import annotations

from typing import Any

import numpy as np

from symdnn.errors import InputError, TypeMismatch
from symdnn.graph.variable import Shared, Variable, constant
from symdnn.nn import init
from symdnn.nn.layers.conv import SpatialConvolution
from symdnn.nn.modules.arguments import Restore, as_batch, positive
from symdnn.nn.modules.module import Module
from symdnn.ops.array.create import ones
from symdnn.ops.core.shape import dims_of
from symdnn.ops.elementwise.arithmetic import sqr, sqrt
from symdnn.ops.elementwise.comparison import gt, switch
from symdnn.ops.nn.conv_builders import conv2d

__all__ = [
    "SpatialContrastiveNormalization", "SpatialConvolutionLocal", "SpatialDepthWiseConvolution",
    "SpatialDivisiveNormalization", "SpatialSubtractiveNormalization",
]  # fmt: skip


class SpatialDepthWiseConvolution(SpatialConvolution):
    """``nOutputPlane`` filters for each plane of its own: nInputPlane * nOutputPlane planes.

    ``weight`` is (nInputPlane * nOutputPlane, 1, kH, kW): the filters of the first plane, ...
    """

    def __init__(
        self, nInputPlane: int, nOutputPlane: int, kW: int, kH: int, dW: int = 1, dH: int = 1,
        padW: int = 0, padH: int | None = None, **options: Any,
    ) -> None:  # fmt: skip
        positive(
            "SpatialDepthWiseConvolution: nInputPlane, nOutputPlane", nInputPlane, nOutputPlane
        )
        planes = nInputPlane * nOutputPlane
        super().__init__(nInputPlane, planes, kW, kH, dW, dH, padW, padH, nInputPlane, **options)


class SpatialConvolutionLocal(Module):
    """A convolution of (N, nInputPlane, iH, iW) with filters of its own at each place.

    ``weight`` is (oH, oW, nOutputPlane, nInputPlane, kH, kW), ``bias`` (nOutputPlane, oH, oW).

    >>> SpatialConvolutionLocal(3, 8, 10, 9, 3, 3)
    nn.SpatialConvolutionLocal(3 -> 8, 10x9, 3x3, 1,1)
    """

    weight: Shared
    bias: Shared

    def __init__(
        self, nInputPlane: int, nOutputPlane: int, iW: int, iH: int, kW: int, kH: int, dW: int = 1,
        dH: int = 1, padW: int = 0, padH: int | None = None, *, dtype: str | None = None,
    ) -> None:  # fmt: skip
        names = "nInputPlane, nOutputPlane, iW, iH, kW, kH, dW, dH"
        given = (nInputPlane, nOutputPlane, iW, iH, kW, kH, dW, dH)
        positive(f"SpatialConvolutionLocal: {names}", *given)
        padH = padW if padH is None else padH
        positive("SpatialConvolutionLocal: padW, padH", padW, padH, least=0)
        self.nInputPlane, self.nOutputPlane = int(nInputPlane), int(nOutputPlane)
        self.size, self.kernel, self.stride = (iH, iW), (kH, kW), (dH, dW)
        self.padding = (int(padH), int(padW))
        sizes = zip(self.size, self.padding, self.kernel, self.stride, strict=True)
        places = tuple([(n + 2 * p - k) // s + 1 for n, p, k, s in sizes])
        if min(places) < 1:
            raise InputError(
                f"SpatialConvolutionLocal: a kernel {kW}x{kH} does not fit images of {iW}x{iH}"
            )
        of_each = (self.nOutputPlane, self.nInputPlane, *self.kernel)
        bounds = init.uniform((kW * kH * self.nInputPlane) ** -0.5)
        self.parameter("weight", (*places, *of_each), bounds, dtype)
        self.parameter("bias", (self.nOutputPlane, *places), bounds, dtype)

    def forward(self, x: Variable) -> Variable:
        sizes = (self.nInputPlane, *self.size)
        batch, restore = _images(self, x, *sizes)
        filters = self.weight.dimshuffle(2, 0, 1, 3, 4, 5)
        found = conv2d(
            batch, filters, (None, *sizes), border_mode=self.padding, subsample=self.stride,
            filter_flip=False, unshared=True,
        )  # fmt: skip
        return restore(found + self.bias)

    def describe(self) -> str:
        images, kernel = (f"{w}x{h}" for h, w in (self.size, self.kernel))
        steps = f"{self.stride[1]},{self.stride[0]}"
        return f"({self.nInputPlane} -> {self.nOutputPlane}, {images}, {kernel}, {steps})"


class SpatialSubtractiveNormalization(Module):
    """The input minus the mean of its neighbourhood in all planes, weighted by ``kernel``.

    (N, nInputPlane, H, W) or one image. ``kernel`` (9 x 9 ones) is a matrix or, for both
    directions, a vector, of odd sizes. At borders only pixels inside count.
    """

    def __init__(self, nInputPlane: int = 1, kernel: Any = None) -> None:
        name = type(self).__name__
        positive(f"{name}: nInputPlane", nInputPlane)
        given = np.ones((9, 9)) if kernel is None else np.asarray(kernel)
        if given.dtype.kind not in "iuf":
            raise InputError(f"{name}: wanted a kernel of numbers, got {kernel!r:.60}")
        weights = (np.outer(given, given) if given.ndim == 1 else given).astype(np.float64)
        if weights.ndim != 2 or not all(n % 2 for n in weights.shape) or not weights.sum():
            raise InputError(
                f"{name}: wanted a kernel of one or two odd sizes whose sum is not 0, got an array "
                f"of shape {given.shape}"
            )
        self.nInputPlane, self.kernel = int(nInputPlane), weights / weights.sum()

    def forward(self, x: Variable) -> Variable:
        batch, restore = _images(self, x, self.nInputPlane)
        return restore(batch - self._local(batch) / self._inside(batch))

    def _local(self, batch: Variable) -> Variable:
        """The weighted mean around each pixel in all planes, zeros outside: (N, 1, H, W)."""
        return self._weighted(batch.mean(axis=1, keepdims=True))

    def _inside(self, batch: Variable) -> Variable:
        """The share of the weights around each pixel that is inside: (1, 1, H, W)."""
        return self._weighted(ones((1, 1, *dims_of(batch)[2:]), dtype=batch.type.dtype))

    def _weighted(self, plane: Variable) -> Variable:
        weights = constant(self.kernel[None, None], dtype=plane.type.dtype)
        around = (self.kernel.shape[0] // 2, self.kernel.shape[1] // 2)
        return conv2d(plane, weights, border_mode=around, filter_flip=False)

    def describe(self) -> str:
        h, w = self.kernel.shape
        return f"({self.nInputPlane}, {w}x{h})"


class SpatialDivisiveNormalization(SpatialSubtractiveNormalization):
    """The input divided by the root of the mean square of its neighbourhood, or by ``thresval``
    where that is not above ``threshold``; otherwise as :class:`SpatialSubtractiveNormalization`."""

    def __init__(
        self, nInputPlane: int = 1, kernel: Any = None, threshold: float = 1e-4,
        thresval: float | None = None,
    ) -> None:  # fmt: skip
        super().__init__(nInputPlane, kernel)
        self.threshold = float(threshold)
        self.thresval = self.threshold if thresval is None else float(thresval)

    def forward(self, x: Variable) -> Variable:
        batch, restore = _images(self, x, self.nInputPlane)
        squares = self._local(sqr(batch))
        some = gt(squares, 0)  # the slope of the root at 0 is infinite
        root = switch(some, sqrt(switch(some, squares, 1)), 0) / self._inside(batch)
        return restore(batch / switch(gt(root, self.threshold), root, self.thresval))


class SpatialContrastiveNormalization(Module):
    """:class:`SpatialSubtractiveNormalization`, then :class:`SpatialDivisiveNormalization`."""

    def __init__(
        self, nInputPlane: int = 1, kernel: Any = None, threshold: float = 1e-4,
        thresval: float | None = None,
    ) -> None:  # fmt: skip
        self.subtractive = SpatialSubtractiveNormalization(nInputPlane, kernel)
        self.divisive = SpatialDivisiveNormalization(nInputPlane, kernel, threshold, thresval)

    def forward(self, x: Variable) -> Variable:
        found: Variable = self.divisive(self.subtractive(x))
        return found


def _images(module: Module, x: Any, *sizes: int) -> tuple[Variable, Restore]:
    """Images as a batch, and what restores one alone; ``sizes`` begin with the planes."""
    named = [*map(str, sizes), "height", "width"][:3]
    wanted = f"(batch, {', '.join(named)})"
    batch, restore = as_batch(module, x, 4, wanted)
    known = zip(batch.type.shape[1:], sizes, strict=False)
    if any(n not in (None, m) for n, m in known):
        raise TypeMismatch(type(module).__name__, wanted, x.type)
    return batch, restore
