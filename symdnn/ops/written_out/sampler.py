"""Bilinear sampling by gathers and weights, for the derivatives that no op has."""

from __future__ import annotations

import numpy as np

from symdnn.graph.variable import Variable
from symdnn.ops.array.create import arange
from symdnn.ops.core.dtype import work_dtype
from symdnn.ops.core.shape import dims_of
from symdnn.ops.elementwise.arithmetic import cast
from symdnn.ops.elementwise.comparison import and_, switch
from symdnn.ops.elementwise.rounding import floor


def sampled(image: Variable, grid: Variable) -> Variable:
    """:class:`~symdnn.ops.nn.spatial_transformer.TransformerSampler` of its two inputs.

    16-bit floats are computed in float32.
    """
    dtype = image.type.dtype
    wide = work_dtype(dtype)
    v, g = cast(image, wide), cast(grid, wide)
    n, _, height, width = dims_of(v)
    x = (g[..., 0] + 1) * (cast(width - 1, wide) / 2)
    y = (g[..., 1] + 1) * (cast(height - 1, wide) / 2)
    left, top = floor(x), floor(y)
    batch = arange(n).dimshuffle(0, "x", "x")
    last = v.dimshuffle(0, 2, 3, 1)
    total = None
    for row, along_y in ((top, 1 - (y - top)), (top + 1, y - top)):
        for column, along_x in ((left, 1 - (x - left)), (left + 1, x - left)):
            inside = and_(_within(row, height), _within(column, width))
            pixel = last[batch, _index(row, inside), _index(column, inside)]
            weight = switch(inside, along_x * along_y, np.asarray(0, wide))
            term = pixel * weight.dimshuffle(0, 1, 2, "x")
            total = term if total is None else total + term
    assert total is not None
    return cast(total.dimshuffle(0, 3, 1, 2), dtype)


def _within(place: Variable, size: Variable) -> Variable:
    return and_(place >= 0, place < size)


def _index(place: Variable, inside: Variable) -> Variable:
    """The place as an integer, 0 outside; a huge one or NaN never becomes an integer."""
    return cast(switch(inside, place, place.zeros_like()), "int64")
