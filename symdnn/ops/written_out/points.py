"""Images at points between their pixels, over any number of spatial dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from symdnn.errors import OptionError
from symdnn.graph.variable import Variable
from symdnn.ops.core.dtype import work_dtype
from symdnn.ops.core.shape import dims_of, zeros_like
from symdnn.ops.elementwise.arithmetic import abs as absolute
from symdnn.ops.elementwise.arithmetic import cast, clip, mod
from symdnn.ops.elementwise.comparison import isnan, switch
from symdnn.ops.elementwise.rounding import floor, round_half_to_even
from symdnn.ops.elemwise import like
from symdnn.ops.written_out.pixel_sums import PixelSums


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
    places, weights = list[Variable](), list[Variable]()
    for v, size in zip(coordinates, sizes):
        if mode != "cubic":
            v = _placed(v, size, padding, align, dtype)
        base = round_half_to_even(v) if mode == "nearest" else floor(v)
        for k in taps[mode]:
            cell = base + np.asarray(k, dtype)
            if mode != "nearest":
                t = v - cell
                weights.append(cubic_weight(t, a) if mode == "cubic" else 1 - absolute(t))
            if mode == "cubic":
                cell = _placed(cell, size, padding, align, dtype)
            places.append(_whole(cell, padding))
    kind, number = x.type.dtype, (len(taps[mode]),) * len(sizes)
    wide = work_dtype(kind)
    # Whole numbers are as exact in their own dtype; weighted ones are rounded once.
    image = cast(x, wide) if weights else x
    sums = PixelSums(number, bool(weights))(image, *places, *(cast(w, wide) for w in weights))
    return cast(sums, kind)


def _placed(v: Variable, size: Any, padding: str, align: bool, dtype: Any) -> Variable:
    if padding == "zeros":
        return v
    low, high = _bounds(size, align, dtype)
    edge = _bounds(size, True, dtype)[1]
    if padding == "reflection":
        v = reflected(v, low, high)
    return clip(v, np.asarray(0, dtype), edge)


def _whole(cell: Variable, padding: str) -> Variable:
    """The place as an integer; outside, -1 will do, as for NaN where there are zeros."""
    nowhere = -1 if padding == "zeros" else 0
    return cast(switch(isnan(cell), like(nowhere, cell), clip(cell, -1, 2**30)), "int32")
