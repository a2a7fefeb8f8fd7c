"""Maxima of windows with their places, and what goes back by the places; p-norms of windows.

Windows are read one element at a time: a slice of the input for each place in the window. So they
may be dilated, and the place of each maximum (the first of several) is known.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import InputError, TypeMismatch
from symdnn.graph.dims import Dim, ceil_div, known
from symdnn.graph.typing import PerAxis
from symdnn.graph.variable import Variable, as_variable
from symdnn.nn.modules.arguments import as_batch, positive, sizes
from symdnn.nn.modules.module import Module
from symdnn.ops.array import reduce
from symdnn.ops.array.argreduce import argmax
from symdnn.ops.array.create import arange, zeros
from symdnn.ops.array.join import stack
from symdnn.ops.array.pad import pad
from symdnn.ops.array.take import put_along_axis, take, take_along_axis
from symdnn.ops.array.view import broadcast_to
from symdnn.ops.core.shape import dims_of
from symdnn.ops.elementwise.arithmetic import minimum
from symdnn.ops.elementwise.comparison import switch
from symdnn.ops.elemwise import like

_INPUTS = {1: "(N, C, L) or (C, L)", 2: "(N, C, H, W) or (C, H, W)", 3: "(N, C, D, H, W) or less"}


def slices_of_windows(
    x: Variable, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int],
    counts: Sequence[Dim],
) -> list[Variable]:  # fmt: skip
    """For each place in a window (row by row) its element in all windows of the last axes."""
    lead = (slice(None),) * (x.type.ndim - len(kernel))
    found = []
    for place in itertools.product(*map(range, kernel)):
        rows = zip(place, stride, dilation, counts, strict=True)
        at = [slice(k * d, k * d + (n - 1) * s + 1, s) for k, s, d, n in rows]
        found.append(x[(*lead, *at)])
    return found


def window_maxima(
    x: Variable, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], counts: Sequence[Dim], behind: Sequence[Dim], indices: bool,
) -> list[Variable]:  # fmt: skip
    """The maxima of (N, C, positions...), and with ``indices`` their places in the flat positions.

    ``behind`` is how far the last windows reach beyond the padding. With ``indices`` the gradient
    goes to the first of several maxima, else to each.
    """
    n, dims = len(kernel), dims_of(x)[2:]
    widths = [(0, 0), (0, 0), *((p, p + b) for p, b in zip(padding, behind, strict=True))]
    plain = all(known(w) == 0 for pair in widths for w in pair)
    wide = x if plain else pad(x, widths, constant_values=np.asarray(-np.inf, x.type.dtype))
    each = stack(slices_of_windows(wide, kernel, stride, dilation, counts), axis=-1)
    if not indices:
        return [reduce.max(each, axis=-1)]
    best = argmax(each, axis=-1, keepdims=True)
    values = take_along_axis(each, best, -1)[..., 0]
    flat: Any = 0
    rest, place = best[..., 0], []
    for k in reversed(kernel):
        place.append(rest % k)
        rest = rest // k
    for axis, at in enumerate(reversed(place)):
        start = arange(counts[axis]) * stride[axis] - padding[axis]
        pattern = ["x"] * 2 + [0 if d == axis else "x" for d in range(n)]
        position = start.dimshuffle(pattern) + at * dilation[axis]
        flat = flat * dims[axis] + position
    return [values, flat]


def adaptive_maxima(x: Variable, output: Sequence[int]) -> list[Variable]:
    """:func:`window_maxima` of the windows of adaptive pooling, with their places."""
    n, dims = len(output), dims_of(x)[2:]
    flat: Any = as_variable(np.zeros((1,) * (2 + 2 * n), "int64"))
    inside: Any = as_variable(np.ones((1,) * (2 + 2 * n), "bool"))
    for axis, (size, m) in enumerate(zip(dims, output, strict=True)):
        i = arange(m)
        starts, ends = (i * size) // m, ceil_div((i + 1) * size, m)
        at = starts.dimshuffle(0, "x") + arange(size // m + 2)  # a window has no more
        ok = at < ends.dimshuffle(0, "x")
        at = minimum(at, size - 1)
        x = take(x, at, 2 + 2 * axis)
        pattern: list[Any] = ["x"] * (2 + 2 * n)
        pattern[2 + 2 * axis], pattern[3 + 2 * axis] = 0, 1
        flat = flat * size + at.dimshuffle(pattern)
        inside = inside & ok.dimshuffle(pattern)
    order = [0, 1, *range(2, 2 + 2 * n, 2), *range(3, 2 + 2 * n, 2)]
    windows = switch(inside, x, like(-np.inf, x)).dimshuffle(order).flatten(3 + n)
    best = argmax(windows, axis=-1, keepdims=True)
    places = flat.dimshuffle(order)
    one = places.reshape((1, 1, *dims_of(places)[2 : 2 + n], -1))
    chosen = take_along_axis(broadcast_to(one, dims_of(windows)), best, -1)
    return [take_along_axis(windows, best, -1)[..., 0], chosen[..., 0]]


class _MaxUnpool(Module):
    """Base: ``unpool(x, indices[, output_size])``, zeros but for ``x`` at these places."""

    ndim: ClassVar[int]
    _shown = "kernel_size={0.kernel}, stride={0.stride}, padding={0.padding}"

    def __init__(
        self, kernel_size: PerAxis, stride: PerAxis | None = None, padding: PerAxis = 0
    ) -> None:
        name, n = type(self).__name__, self.ndim
        self.kernel = sizes(f"{name}: kernel_size", n, (None,) * n, kernel_size)
        self.stride = sizes(f"{name}: stride", n, (None,) * n, stride, self.kernel)
        self.padding = sizes(f"{name}: padding", n, (None,) * n, padding)
        positive(f"{name}: kernel_size, stride", *self.kernel, *self.stride)
        positive(f"{name}: padding", *self.padding, least=0)

    def forward(self, x: Variable, indices: Any, output_size: Any = None) -> Variable:
        batch, restore = as_batch(self, x, self.ndim + 2, _INPUTS[self.ndim])
        at = as_variable(indices)
        if not at.type.is_integer or at.type.ndim != x.type.ndim:
            raise TypeMismatch(type(self).__name__, "the indices of the pooling", at.type)
        at = at if at.type.ndim == self.ndim + 2 else at.dimshuffle("x", *range(at.type.ndim))
        lead, found = dims_of(batch)[:2], dims_of(batch)[2:]
        if output_size is None:
            rows = zip(found, self.kernel, self.stride, self.padding, strict=True)
            wanted = [(n - 1) * s - 2 * p + k for n, k, s, p in rows]
        else:
            wanted = list(output_size)[-self.ndim :]
            if len(wanted) != self.ndim:
                raise InputError(
                    f"{type(self).__name__}: output_size={output_size!r:.60}; wanted "
                    f"{self.ndim} sizes"
                )
        total: Any = 1
        for n in wanted:
            total = total * n
        empty = zeros((*lead, total), batch.type.dtype)
        flat = put_along_axis(empty, at.flatten(3), batch.flatten(3), 2)
        return restore(flat.reshape((*lead, *wanted)))


class MaxUnpool1d(_MaxUnpool):
    """The inverse of MaxPool1d: maxima at their places, from ``return_indices``, else 0."""

    ndim = 1


class MaxUnpool2d(_MaxUnpool):
    """The inverse of MaxPool2d: maxima at their places, from ``return_indices``, else 0.

    ``unpool(x, indices, output_size=None)``; PyTorch's arguments.
    """

    ndim = 2


class MaxUnpool3d(_MaxUnpool):
    """The inverse of MaxPool3d: maxima at their places, from ``return_indices``, else 0."""

    ndim = 3
