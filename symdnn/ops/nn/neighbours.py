"""Patches of images as rows of a matrix, and back: ``images2neibs``, ``neibs2images``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from symdnn.errors import NdimMismatch, OptionError, ShapeMismatch
from symdnn.graph.dims import Dim, ceil_div, known
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType
from symdnn.graph.typing import ShapeLike, TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.core.gradient_control import Assert
from symdnn.ops.core.shape import dims_of
from symdnn.ops.nn.conv_words import static_ints

MODES = ("valid", "ignore_borders", "wrap_centered", "half", "full")


def images2neibs(
    ten4: TensorLike,
    neib_shape: ShapeLike,
    neib_step: ShapeLike | None = None,
    mode: str = "valid",
) -> Variable:
    """Every patch of every image as a row of a matrix, one channel after the other.

    ``ten4`` is (batch, channels, rows, columns), ``neib_shape`` the size of a patch, ``neib_step``
    their distance (default: the size). ``mode`` is ``'valid'`` (patches must fit exactly),
    ``'ignore_borders'`` (incomplete patches are dropped), ``'wrap_centered'`` (a patch around every
    step, with periodic images), ``'half'`` or ``'full'`` (images are padded with zeros first).
    The result has ``neib_shape[0] * neib_shape[1]`` columns.

    Patches that do not fit a known size raise :class:`~symdnn.errors.ShapeMismatch`, those that do
    not fit the size in a call :class:`~symdnn.errors.DimensionMismatch`.
    """
    x = as_variable(ten4)
    if not isinstance(x.type, TensorType) or x.type.ndim != 4:
        raise NdimMismatch("images2neibs", "a tensor of 4 dimensions", x.type)
    if mode not in MODES:
        raise OptionError(f"images2neibs: mode {mode!r} is not one of {', '.join(MODES)}")
    size = static_ints("images2neibs: neib_shape", neib_shape, 2)
    step = size if neib_step is None else static_ints("images2neibs: neib_step", neib_step, 2)
    if mode in ("half", "full"):
        margins = [k // 2 if mode == "half" else k - 1 for k in size]
        x = operator("pad")(x, [(0, 0), (0, 0), *((m, m) for m in margins)])
        mode = "valid"
    counts = [_count(n, k, s, mode, x) for n, k, s in zip(dims_of(x)[2:], size, step, strict=True)]
    if mode == "valid" and size == step:
        blocks = _tiles(x, counts, size)
    else:
        blocks = _gathered(x, counts, size, step, mode)
    rows = dims_of(x)[0] * dims_of(x)[1] * counts[0] * counts[1]
    return blocks.dimshuffle(0, 1, 2, 4, 3, 5).reshape([rows, size[0] * size[1]])


def _count(n: Dim, k: int, s: int, mode: str, x: Variable) -> Dim:
    """The number of patches that fit along one dimension."""
    wanted = f"a size that patches of {k}, {s} apart, fit in mode {mode!r}"
    advice = "Use mode='ignore_borders', or pad" if mode == "valid" else "Pad"
    size = known(n)
    if mode == "wrap_centered" and k % 2 == 0:
        raise ShapeMismatch("images2neibs", wanted, str(x.type), advice)
    fits: Any = n >= k
    if mode == "valid":
        fits = fits & operator("eq")((n - k) % s, 0) if size is None else fits and (n - k) % s == 0
    count = ceil_div(n, s) if mode == "wrap_centered" else (n - k) // s + 1
    if size is None:
        message = f"images2neibs: wanted {wanted}. {advice}"
        checked: Variable = Assert(message, "DimensionMismatch")(as_variable(count), fits)
        return checked
    if not fits:
        raise ShapeMismatch("images2neibs", wanted, str(x.type), advice)
    return count


def _tiles(x: Variable, counts: Sequence[Dim], size: Sequence[int]) -> Variable:
    """Patches without overlap or gaps: a view."""
    n, c = dims_of(x)[:2]
    return x.reshape([n, c, counts[0], size[0], counts[1], size[1]])


def _gathered(
    x: Variable, counts: Sequence[Dim], size: Sequence[int], step: Sequence[int], mode: str
) -> Variable:
    """Patches that overlap or leave gaps, by index along rows, then along columns."""
    n, c, rows, cols = dims_of(x)
    shape = [n, c, counts[0], size[0], counts[1], size[1]]
    lines: Variable = x.take(_index(rows, counts[0], size[0], step[0], mode), 2)
    lines = lines.reshape([n, c, counts[0] * size[0], cols])
    return lines.take(_index(cols, counts[1], size[1], step[1], mode), 3).reshape(shape)


def _index(n: Dim, count: Dim, k: int, s: int, mode: str) -> Variable:
    """Positions of the elements of all patches along one dimension, as a vector."""
    centre = k // 2 if mode == "wrap_centered" else 0
    starts: Variable = operator("arange")(count) * s
    offsets = as_variable(np.arange(k, dtype=np.int64) - centre)
    index = starts.dimshuffle(0, "x") + offsets.dimshuffle("x", 0)
    return (index % n if mode == "wrap_centered" else index).reshape([-1])


def neibs2images(
    neibs: TensorLike, neib_shape: Any, original_shape: Any, mode: str = "valid"
) -> Variable:
    """The inverse of :func:`images2neibs` for patches without overlap or gaps.

    ``original_shape`` is (batch, channels, rows, columns), ints or integer scalars. With
    ``mode='ignore_borders'`` the pixels that were dropped are zeros.
    """
    v = as_variable(neibs)
    if v.type.ndim != 2:
        raise NdimMismatch("neibs2images", "a matrix with a patch in each row", v.type)
    if mode not in ("valid", "ignore_borders"):
        raise OptionError(f"neibs2images: mode {mode!r} is not 'valid' or 'ignore_borders'")
    size = static_ints("neibs2images: neib_shape", neib_shape, 2)
    whole = [original_shape[i] for i in range(4)]
    counts = [d // k for d, k in zip(whole[2:], size, strict=True)]
    blocks = v.reshape([*whole[:2], counts[0], counts[1], *size]).dimshuffle(0, 1, 2, 4, 3, 5)
    images = blocks.reshape([*whole[:2], *(m * k for m, k in zip(counts, size, strict=True))])
    if mode == "valid":
        return images
    missing = [d - m * k for d, m, k in zip(whole[2:], counts, size, strict=True)]
    return operator("pad")(images, [(0, 0), (0, 0), *((0, m) for m in missing)])
