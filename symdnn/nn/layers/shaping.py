"""Other shapes of the same elements: views, flattening, transposing, padding, enlarging.

Dimensions count from 0 (Torch7: from 1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from symdnn.errors import InputError, ShapeMismatch, TypeMismatch
from symdnn.graph.dims import Dim, product
from symdnn.graph.variable import Variable
from symdnn.nn.modules.arguments import as_batch, positive, tensor_input
from symdnn.nn.modules.arguments import sizes as sizes_of
from symdnn.nn.modules.module import Module
from symdnn.ops.array import reduce, view
from symdnn.ops.array.join import repeat
from symdnn.ops.array.moments import mean
from symdnn.ops.array.pad import pad
from symdnn.ops.core.shape import dims_of
from symdnn.ops.nn.upsample import interpolate
from symdnn.options import is_int

__all__ = [
    "Contiguous", "Flatten", "Identity", "Max", "Mean", "Min", "Narrow", "Replicate", "Reshape",
    "Select", "SpatialReflectionPadding", "SpatialReplicationPadding",
    "SpatialUpSamplingBilinear", "SpatialUpSamplingNearest", "SpatialZeroPadding", "Squeeze",
    "Sum", "Transpose", "Unsqueeze", "View",
]  # fmt: skip


class Identity(Module):
    """The input (one, or several as a table)."""

    def forward(self, *x: Any) -> Any:
        return x[0] if len(x) == 1 else list(x)


class Contiguous(Identity):
    """The input: the compiler chooses the memory layout."""


# -- reshaping -----------------------------------------------------------------------------------


def _numbers(what: str, sizes: Sequence[Any]) -> tuple[int, ...]:
    """Sizes given one by one or as one sequence; at most one -1."""
    given = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], list | tuple) else sizes
    if not all(map(is_int, given)):
        raise InputError(f"{what}: wanted sizes that are ints, got {given!r:.60}")
    numbers = tuple(int(n) for n in given)
    if not numbers or sum(n == -1 for n in numbers) > 1 or any(n < -1 or n == 0 for n in numbers):
        raise InputError(f"{what}: wanted sizes of 1 or more and at most one -1, got {given}")
    return numbers


class View(Module):
    """The elements of each example as ``sizes``: (N, ...) to (N, sizes...).

    A batch is kept as it is where the axes behind the first hold as many elements as ``sizes``, or
    an unknown number. Where ``sizes`` has a -1, they are the shape of the whole input, unless
    ``setNumInputDims(n)`` says that an example has ``n`` dimensions. Unlike in Torch7 a batch of
    one stays a batch.

    >>> View(800)
    nn.View(800)
    """

    def __init__(self, *sizes: Any) -> None:
        self.sizes = _numbers(type(self).__name__, sizes)
        self.numInputDims: int | None = None

    def setNumInputDims(self, numInputDims: int) -> View:
        """How many dimensions an example has; returns the module."""
        positive("View.setNumInputDims", numInputDims)
        self.numInputDims = int(numInputDims)
        return self

    def forward(self, x: Variable) -> Variable:
        tensor_input(self, x, "a tensor", any_dtype=True)
        shape = self._lead(x, dims_of(x))
        return x.reshape((*shape, *self.sizes))

    def _lead(self, x: Variable, dims: Sequence[Dim]) -> tuple[Dim, ...]:
        """The sizes before ``sizes``: none, or the size of the batch."""
        if self.numInputDims is not None:
            before = dims[: max(0, x.type.ndim - self.numInputDims)]
            return (product(before),) if before else ()
        if -1 in self.sizes or x.type.ndim < 2:
            return ()
        each, rest = math.prod(self.sizes), product(dims[1:])
        if isinstance(rest, Variable) or rest == each:
            return (dims[0],)
        total = None if isinstance(dims[0], Variable) else dims[0] * rest
        if total == each:
            return ()
        if total is not None and total % each:
            wanted = f"a multiple of {each} elements"
            raise ShapeMismatch(type(self).__name__, wanted, f"shape {tuple(x.type.shape)}")
        return (-1,)

    def describe(self) -> str:
        return f"({', '.join(map(str, self.sizes))})"


class Reshape(View):
    """As :class:`View`; ``batchMode`` says whether there is a batch, instead of the sizes.

    >>> Reshape(16, 5, 5)
    nn.Reshape(16x5x5)
    """

    def __init__(self, *sizes: Any, batchMode: bool | None = None) -> None:
        if batchMode is None and len(sizes) > 1 and isinstance(sizes[-1], bool):
            sizes, batchMode = sizes[:-1], sizes[-1]  # Torch7 has it by position
        super().__init__(*sizes)
        self.batchMode = batchMode

    def _lead(self, x: Variable, dims: Sequence[Dim]) -> tuple[Dim, ...]:
        if self.batchMode is None:
            return super()._lead(x, dims)
        return (dims[0],) if self.batchMode else ()

    def describe(self) -> str:
        return f"({'x'.join(map(str, self.sizes))})"


class Flatten(Module):
    """The axes ``start_dim`` to ``end_dim`` as one: (N, C, H, W) to (N, C H W)."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        self.start_dim, self.end_dim = int(start_dim), int(end_dim)

    def forward(self, x: Variable) -> Variable:
        tensor_input(self, x, "a tensor", any_dtype=True)
        ndim, dims = x.type.ndim, dims_of(x)
        if not (-ndim <= self.start_dim < ndim and -ndim <= self.end_dim < ndim):
            if ndim == 1 and (self.start_dim, self.end_dim) == (1, -1):
                return x
            wanted = f"a tensor with the axes {self.start_dim} to {self.end_dim}"
            raise TypeMismatch("Flatten", wanted, x.type)
        first, last = self.start_dim % ndim, self.end_dim % ndim
        if first > last:
            raise InputError(f"Flatten: start_dim={first} is after end_dim={last}")
        shape = (*dims[:first], product(dims[first : last + 1]), *dims[last + 1 :])
        return x.reshape(shape)


class Transpose(Module):
    """Pairs of axes exchanged, one pair after the other: ``Transpose((0, 1), (1, 2))``."""

    def __init__(self, *pairs: Any) -> None:
        for pair in pairs:
            pair = pair if isinstance(pair, tuple | list) else (pair,)
            sizes_of("Transpose: a pair of axes", 2, [None, None], pair)
        self.pairs = tuple((int(a), int(b)) for a, b in pairs)

    def forward(self, x: Variable) -> Variable:
        tensor_input(self, x, "a tensor", any_dtype=True)
        for a, b in self.pairs:
            x = view.swapaxes(x, a, b)
        return x

    def describe(self) -> str:
        return f"({', '.join(f'({a}, {b})' for a, b in self.pairs)})"


class Squeeze(Module):
    """Without the axis ``dim``, whose size must be known to be 1; None: without all such."""

    def __init__(self, dim: int | None = None, numInputDims: int | None = None) -> None:
        self.dim, self.numInputDims = dim, numInputDims

    def forward(self, x: Variable) -> Variable:
        tensor_input(self, x, "a tensor", any_dtype=True)
        return view.squeeze(x, _behind_batch(x, self.dim, self.numInputDims))


class Unsqueeze(Module):
    """With a new axis of size 1 in front of the axis ``pos``; -1 for a last one."""

    def __init__(self, pos: int, numInputDims: int | None = None) -> None:
        self.pos, self.numInputDims = int(pos), numInputDims

    def forward(self, x: Variable) -> Variable:
        tensor_input(self, x, "a tensor", any_dtype=True)
        return view.expand_dims(x, _behind_batch(x, self.pos, self.numInputDims))


def _behind_batch(x: Variable, dim: int | None, ndim: int | None) -> int | None:
    """The axis ``dim`` of an example, in a batch where ``x`` has more than ``ndim`` axes."""
    if dim is None or dim < 0 or ndim is None or x.type.ndim <= ndim:
        return dim
    return dim + int(x.type.ndim) - ndim


# -- parts and repetitions -----------------------------------------------------------------------


class _Along(Module):
    """Works along the axis ``dim``; ``wanted`` of it is in the message."""

    dim: int

    def _axis(self, x: Variable) -> int:
        tensor_input(self, x, f"a tensor with an axis {self.dim}", any_dtype=True)
        if not -x.type.ndim <= self.dim < x.type.ndim:
            raise TypeMismatch(type(self).__name__, f"a tensor with an axis {self.dim}", x.type)
        return self.dim % x.type.ndim


class Select(_Along):
    """The slice ``index`` (from 0) along the axis ``dim``."""

    _shown = "{0.dim}, {0.index}"

    def __init__(self, dim: int, index: int) -> None:
        self.dim, self.index = int(dim), int(index)

    def forward(self, x: Variable) -> Variable:
        lead = (slice(None),) * self._axis(x)
        return x[(*lead, self.index)]


class Narrow(_Along):
    """``length`` slices along the axis ``dim``, from ``offset`` (from 0); -1: to the end."""

    _shown = "{0.dim}, {0.offset}, {0.length}"

    def __init__(self, dim: int, offset: int, length: int = 1) -> None:
        self.dim, self.offset, self.length = int(dim), int(offset), int(length)

    def forward(self, x: Variable) -> Variable:
        lead = (slice(None),) * self._axis(x)
        stop = None if self.length == -1 else self.offset + self.length
        return x[(*lead, slice(self.offset, stop))]


class Replicate(Module):
    """``nFeature`` copies along a new axis ``dim``."""

    _shown = "{0.nFeature}"

    def __init__(self, nFeature: int, dim: int = 0) -> None:
        positive("Replicate: nFeature", nFeature)
        self.nFeature, self.dim = int(nFeature), int(dim)

    def forward(self, x: Variable) -> Variable:
        tensor_input(self, x, "a tensor", any_dtype=True)
        wide = view.expand_dims(x, self.dim)
        return repeat(wide, self.nFeature, axis=self.dim)


class _Reduced(_Along):
    _shown = "{0.dim}"

    def __init__(self, dim: int, keepdim: bool = False) -> None:
        self.dim, self.keepdim = int(dim), bool(keepdim)


class Mean(_Reduced):
    """The average along the axis ``dim``."""

    def forward(self, x: Variable) -> Variable:
        return mean(x, axis=self._axis(x), keepdims=self.keepdim)


class Sum(_Reduced):
    """The sum along the axis ``dim``."""

    def forward(self, x: Variable) -> Variable:
        return reduce.sum(x, axis=self._axis(x), keepdims=self.keepdim)


class Max(_Reduced):
    """The largest along the axis ``dim``."""

    def forward(self, x: Variable) -> Variable:
        return reduce.max(x, axis=self._axis(x), keepdims=self.keepdim)


class Min(_Reduced):
    """The smallest along the axis ``dim``."""

    def forward(self, x: Variable) -> Variable:
        return reduce.min(x, axis=self._axis(x), keepdims=self.keepdim)


# -- images --------------------------------------------------------------------------------------

_IMAGES = "(batch, planes, height, width) or (planes, height, width)"


def padded(x: Variable, pairs: Sequence[tuple[int, int]], mode: str, **options: Any) -> Variable:
    """``x`` with its last dimensions padded by ``pairs`` as ``pad`` does; negative ones cut off."""
    cut = [slice(max(0, -a), -max(0, -b) or None) for a, b in pairs]
    inner = x[(..., *cut)] if any(min(pair) < 0 for pair in pairs) else x
    around = [(max(0, a), max(0, b)) for a, b in pairs]
    return pad(inner, [(0, 0)] * (x.type.ndim - len(pairs)) + around, mode=mode, **options)


class SpatialZeroPadding(Module):
    """Zeros around images: left, right, top, bottom; a negative number cuts off."""

    mode = "constant"

    def __init__(
        self, pad_l: int, pad_r: int | None = None, pad_t: int | None = None,
        pad_b: int | None = None,
    ) -> None:  # fmt: skip
        left = int(pad_l)
        given = [left if p is None else int(p) for p in (pad_r, pad_t, pad_b)]
        self.widths = (left, *given)
        if self.mode != "constant" and min(self.widths) < 0:
            raise InputError(f"{type(self).__name__}: wanted widths of 0 or more: {self.widths}")

    def forward(self, x: Variable) -> Variable:
        batch, restore = as_batch(self, x, 4, _IMAGES)
        left, right, top, bottom = self.widths
        return restore(padded(batch, [(top, bottom), (left, right)], self.mode))

    def describe(self) -> str:
        left, right, top, bottom = self.widths
        return f"(l={left}, r={right}, t={top}, b={bottom})"


class SpatialReflectionPadding(SpatialZeroPadding):
    """Images continued by their mirror image, the border itself not repeated."""

    mode = "reflect"


class SpatialReplicationPadding(SpatialZeroPadding):
    """Images continued by their border."""

    mode = "edge"


class SpatialUpSamplingNearest(Module):
    """Each pixel as ``scale`` x ``scale`` pixels."""

    _shown = "{0.scale}"

    def __init__(self, scale: int) -> None:
        positive("SpatialUpSamplingNearest: scale", scale)
        self.scale = int(scale)

    def forward(self, x: Variable) -> Variable:
        batch, restore = as_batch(self, x, 4, _IMAGES)
        return restore(repeat(repeat(batch, self.scale, axis=2), self.scale, axis=3))


class SpatialUpSamplingBilinear(Module):
    """Images by bilinear interpolation, with ``scale - 1`` new pixels between two (Torch7's).

    ``height`` pixels become ``(height - 1) * scale + 1``, or ``oheight``; the outermost keep their
    values. ``nn.Upsample(scale_factor=2, mode="bilinear")`` has ``height * scale`` pixels.
    """

    def __init__(
        self, scale: int | None = None, *, owidth: Any = None, oheight: Any = None
    ) -> None:
        given = {"scale": scale, "owidth": owidth, "oheight": oheight}
        given = {name: n for name, n in given.items() if n is not None}
        if list(given) not in (["scale"], ["owidth", "oheight"]):
            raise InputError("SpatialUpSamplingBilinear: wanted scale, or owidth and oheight")
        for name, n in given.items():
            positive(f"SpatialUpSamplingBilinear: {name}", n)
        self.scale, self.owidth, self.oheight = scale, owidth, oheight

    def forward(self, x: Variable) -> Variable:
        batch, restore = as_batch(self, x, 4, _IMAGES)
        new = [self.oheight, self.owidth]
        if self.scale is not None:
            new = [(n - 1) * self.scale + 1 for n in dims_of(batch)[2:]]
        return restore(interpolate(batch, new, [None, None], "linear", True))

    def describe(self) -> str:
        by_size = f"owidth={self.owidth}, oheight={self.oheight}"
        return f"({by_size if self.scale is None else self.scale})"
