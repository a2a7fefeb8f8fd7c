"""Maxima of windows at steps between whole numbers (Graham 2014), under PyTorch's names."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import InputError, TypeMismatch
from symdnn.graph.dims import Dim
from symdnn.graph.typing import PerAxis, TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.nn import init
from symdnn.nn.modules.arguments import as_batch, positive, sizes
from symdnn.nn.modules.module import Module
from symdnn.ops.array.argreduce import argmax
from symdnn.ops.array.create import arange
from symdnn.ops.array.take import take_along_axis
from symdnn.ops.array.view import broadcast_to
from symdnn.ops.core.gradient_control import assert_
from symdnn.ops.core.shape import dims_of
from symdnn.ops.elementwise.arithmetic import cast
from symdnn.ops.elementwise.comparison import eq, switch
from symdnn.ops.random.random_stream import RandomStream

__all__ = ["FractionalMaxPool2d", "FractionalMaxPool3d"]


class _FractionalMaxPool(Module):
    """Base: PyTorch's arguments, and ``seed`` of the numbers that the windows are drawn by."""

    ndim: ClassVar[int]
    #: Which of the drawn numbers each axis uses, as in PyTorch.
    draws: ClassVar[tuple[int, ...]]

    def __init__(
        self, kernel_size: PerAxis, output_size: PerAxis | None = None,
        output_ratio: float | Sequence[float] | None = None, return_indices: bool = False,
        _random_samples: TensorLike | None = None, *, seed: int | None = None,
    ) -> None:  # fmt: skip
        name, n = type(self).__name__, self.ndim
        self.kernel = sizes(f"{name}: kernel_size", n, (None,) * n, kernel_size)
        positive(f"{name}: kernel_size", *self.kernel)
        if (output_size is None) == (output_ratio is None):
            raise InputError(f"{name}: wanted one of output_size and output_ratio")
        self.output_size = self.output_ratio = None
        if output_size is not None:
            self.output_size = sizes(f"{name}: output_size", n, (None,) * n, output_size)
            positive(f"{name}: output_size", *self.output_size)
        else:
            given: Any = output_ratio
            given = (given,) * n if np.ndim(given) == 0 else given
            if len(given) != n or not all(isinstance(r, Real) and 0 < float(r) < 1 for r in given):
                wanted = f"a number within 0 and 1, or {n} of them"
                raise InputError(f"{name}: output_ratio={output_ratio!r}; wanted {wanted}")
            self.output_ratio = tuple(map(float, given))
        self.return_indices, self._samples = bool(return_indices), _random_samples
        self.seed = int(init.generator().integers(2**62)) if seed is None else int(seed)
        self.calls = 0

    def forward(self, x: Any) -> Any:
        wanted = (
            "(N, C, H, W) or (C, H, W)" if self.ndim == 2 else "(N, C, D, H, W) or (C, D, H, W)"
        )
        batch, restore = as_batch(self, x, self.ndim + 2, wanted)
        lead, dims = dims_of(batch)[:2], dims_of(batch)[2:]
        counts = self._counts(dims)
        samples = self._drawn(batch, lead)
        places: Any = 0
        for axis, (size, count, k) in enumerate(zip(dims, counts, self.kernel, strict=True)):
            starts = _starts(samples[:, :, self.draws[axis]], size, count, k)
            starts = self._checked(starts, size, count, k)
            at: list[Any] = ["x"] * (2 + 2 * self.ndim)
            at[0], at[1], at[2 + axis] = 0, 1, 2
            inner: list[Any] = ["x"] * (2 + 2 * self.ndim)
            inner[2 + self.ndim + axis] = 0
            places = places * size + starts.dimshuffle(at) + arange(k).dimshuffle(inner)
        flat = batch.flatten(3)
        places = broadcast_to(places, (*lead, *counts, *self.kernel)).flatten(3 + self.ndim)
        windows = take_along_axis(flat, places.flatten(3), 2).reshape(dims_of(places))
        best = argmax(windows, axis=-1, keepdims=True)
        chosen = take_along_axis(places, best, -1)[..., 0]
        values = take_along_axis(flat, chosen.flatten(3), 2).reshape((*lead, *counts))
        return [restore(values), restore(chosen)] if self.return_indices else restore(values)

    def _checked(self, starts: Variable, size: Dim, count: Dim, k: int) -> Variable:
        """``starts``; sizes without so many windows are refused, at the latest in a call."""
        name = type(self).__name__
        if isinstance(size, int) and isinstance(count, int):
            if not 0 < count <= size - k + 1:
                raise InputError(
                    f"{name}: {count} windows of {k} along a size of {size}; wanted 1 to "
                    f"{size - k + 1}"
                )
            return starts
        fits = as_variable(count) >= 1, as_variable(size - count) >= k - 1
        what = "at least one output" if self.output_size is None else f"{count} outputs"
        return assert_(starts, *fits, message=f"{name}: wanted a size for {what} of windows of {k}")

    def _counts(self, dims: Sequence[Dim]) -> list[Dim]:
        if self.output_size is not None:
            return list(self.output_size)
        assert self.output_ratio is not None, "one of them is given"
        made: list[Dim] = []
        for n, r in zip(dims, self.output_ratio, strict=True):
            known = isinstance(n, int)
            made.append(int(n * r) if known else cast(cast(n, "float64") * np.float64(r), "int64"))
        return made

    def _drawn(self, x: Variable, lead: Sequence[Dim]) -> Variable:
        """A number within 0 and 1 for each plane and axis."""
        if self._samples is not None:
            given = as_variable(self._samples)
            if given.type.ndim != 3:
                wanted = f"numbers of the shape (N, C, {self.ndim})"
                raise TypeMismatch(f"{type(self).__name__}: _random_samples", wanted, given.type)
            return given
        stream = RandomStream((self.seed, self.calls))
        self.calls += 1
        dtype = "float64" if x.type.dtype == "float64" else "float32"
        return stream.uniform((*lead, self.ndim), dtype=dtype)

    def describe(self) -> str:
        out = self.output_size or self.output_ratio
        return f"({self.kernel}, {out})"


def _starts(sample: Variable, size: Dim, count: Dim, k: int) -> Variable:
    """Where the windows of each plane begin; the last ends with the input."""
    i = arange(count, dtype="int64")
    sample = sample.dimshuffle(0, 1, "x")
    last = as_variable(size - k)
    gaps = as_variable(count - 1)
    step = cast(last, sample.type.dtype) / cast(switch(eq(gaps, 0), 1, gaps), sample.type.dtype)
    ahead = cast((cast(i, sample.type.dtype) + sample) * step, "int64")
    found = ahead - cast(sample * step, "int64")
    made: Variable = switch(eq(i, gaps), last, found)
    return made


class FractionalMaxPool2d(_FractionalMaxPool):
    """Maxima of windows of (N, C, H, W), whose steps of two sizes are drawn for each plane.

    ``output_size``, or ``output_ratio`` of the input's size, within 0 and 1. The first of several
    maxima gets the gradient; ``return_indices=True`` gives ``[maxima, their places]``.
    """

    ndim, draws = 2, (1, 0)


class FractionalMaxPool3d(_FractionalMaxPool):
    """:class:`FractionalMaxPool2d` of (N, C, D, H, W)."""

    ndim, draws = 3, (0, 1, 2)
