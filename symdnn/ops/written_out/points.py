"""Images at points between their pixels, over any number of spatial dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from symdnn.errors import OptionError
from symdnn.graph.variable import Variable
from symdnn.ops.array.create import arange
from symdnn.ops.core.shape import dims_of, zeros_like
from symdnn.ops.elementwise.arithmetic import abs as absolute
from symdnn.ops.elementwise.arithmetic import clip, maximum, mod
from symdnn.ops.elementwise.comparison import isnan, switch
from symdnn.ops.elementwise.rounding import floor, round_half_to_even
from symdnn.ops.elemwise import like

__all__ = ["cubic_weight", "pixels", "sampled"]


def pixels(x: Variable, examples: Variable, places: Sequence[Variable]) -> Variable:
    """Elements of (N, C, ...) at whole places, as (..., C): one place for each entry."""
    channels_last = x.transpose((0, *range(2, x.ndim), 1))
    return channels_last[(examples, *places)]


def cubic_weight(t: Variable, a: float) -> Variable:
    """The weight of a pixel at the distance ``t`` in cubic interpolation (Keys 1981)."""
    d = absolute(t)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return switch(d <= 1, near, switch(d < 2, far, like(0, d)))


def reflected(v: Variable, low: Any, high: Any) -> Variable:
    """Coordinates folded back at both ends of ``[low, high]``."""
    span = high - low
    period = mod(v - low, 2 * span)
    inside = span - absolute(period - span)
    return inside + low if isinstance(span, Variable) or span > 0 else zeros_like(v)


def _bounds(size: Any, align: bool, dtype: Any) -> tuple[Any, Any]:
    n = size.astype(dtype) if isinstance(size, Variable) else np.asarray(size, dtype)
    half = np.asarray(0.5, dtype)
    one = np.asarray(1, dtype)
    return (np.asarray(0, dtype), n - one) if align else (-half, n - half)


def sampled(
    x: Variable,
    coordinates: Sequence[Variable],
    mode: str,
    padding: str = "zeros",
    align: bool = False,
    a: float = -0.75,
) -> Variable:
    """``x`` (N, C, ...) at points with coordinates (N, P) in pixels; the result is (N, C, P).

    ``mode`` is ``nearest``, ``linear`` or ``cubic``. ``padding`` is what is outside: ``zeros``, the
    ``border``, or a ``reflection`` at the centres of the outer pixels (``align``) or their edges.
    """
    if padding not in ("zeros", "border", "reflection"):
        raise OptionError(f"padding {padding!r}: wanted zeros, border or reflection")
    sizes = dims_of(x)[2:]
    dtype = coordinates[0].type.numpy
    taps = {"nearest": [0], "linear": [0, 1], "cubic": [-1, 0, 1, 2]}
    if mode not in taps:
        raise OptionError(f"mode {mode!r}: wanted nearest, linear or cubic")
    points = list(coordinates)
    if mode != "cubic":
        points = [_placed(v, n, padding, align, dtype) for v, n in zip(points, sizes)]
    if mode == "nearest":
        bases = [round_half_to_even(v) for v in points]
    else:
        bases = [floor(v) for v in points]
    total: Variable | None = None
    for place in product(taps[mode], repeat=len(sizes)):
        cells = [b + np.asarray(k, dtype) for b, k in zip(bases, place)]
        weight: Variable | None = None
        if mode != "nearest":
            for v, cell in zip(points, cells):
                t = v - cell
                w = cubic_weight(t, a) if mode == "cubic" else 1 - absolute(t)
                weight = w if weight is None else weight * w
        if mode == "cubic":
            cells = [_placed(c, n, padding, align, dtype) for c, n in zip(cells, sizes)]
        term = _weighted(x, cells, weight, padding)
        total = term if total is None else total + term
    assert total is not None, "a window has at least one tap"
    return total.transpose((0, 2, 1))


def _placed(v: Variable, size: Any, padding: str, align: bool, dtype: Any) -> Variable:
    if padding == "zeros":
        return v
    low, high = _bounds(size, align, dtype)
    edge = _bounds(size, True, dtype)[1]
    if padding == "reflection":
        v = reflected(v, low, high)
    return clip(v, np.asarray(0, dtype), edge)


def _weighted(
    x: Variable, cells: Sequence[Variable], weight: Variable | None, padding: str
) -> Variable:
    """Pixels (N, P, C) at whole cells times their weights; zero outside if that is wanted."""
    sizes = dims_of(x)[2:]
    places, inside = [], None
    for cell, n in zip(cells, sizes):
        whole = switch(isnan(cell), like(-1, cell), clip(cell, -(2**30), 2**30))
        whole = whole.astype("int64")
        if padding == "zeros":
            there = (whole >= 0) & (whole < n)
            inside = there if inside is None else inside & there
        last = maximum(n - 1, 0) if isinstance(n, Variable) else max(n - 1, 0)
        places.append(clip(whole, 0, last))
    examples = arange(dims_of(x)[0], dtype="int64").dimshuffle(0, "x")
    found = pixels(x, examples, places)
    if weight is not None:
        found = found * weight.astype(x.type.dtype).dimshuffle(0, 1, "x")
    if inside is not None:
        found = switch(inside.dimshuffle(0, 1, "x"), found, like(0, found))
    return found
