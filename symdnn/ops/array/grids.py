"""Grids of numbers (``T.mgrid[0:3, 0:4]``), permutations, and at-least-n-dimensional arrays."""

from __future__ import annotations

from typing import Any

from symdnn.errors import TypeMismatch
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.array.create import arange, meshgrid
from symdnn.ops.array.sort import argsort
from symdnn.ops.array.take import take_along_axis
from symdnn.ops.array.view import atleast_nd
from symdnn.ops.core.shape import dimshuffle
from symdnn.ops.elemwise import pad_left

__all__ = [
    "atleast_1d", "atleast_2d", "atleast_3d", "inverse_permutation", "mgrid", "ogrid",
    "permute_row_elements",
]  # fmt: skip


def atleast_1d(x: TensorLike, left: bool = True) -> Variable:
    """``x`` with at least one dimension: new ones come first, or last without ``left``."""
    return atleast_nd(x, n=1, left=left)


def atleast_2d(x: TensorLike, left: bool = True) -> Variable:
    """``x`` with at least two dimensions: new ones come first, or last without ``left``."""
    return atleast_nd(x, n=2, left=left)


def atleast_3d(x: TensorLike, left: bool = True) -> Variable:
    """``x`` with at least three dimensions: new ones come first, or last without ``left``."""
    return atleast_nd(x, n=3, left=left)


class _Grid:
    """Coordinates by slices, which may be symbolic: one array for each slice, as in NumPy."""

    def __init__(self, dense: bool) -> None:
        self._dense = dense

    def __getitem__(self, slices: Any) -> list[Variable]:
        parts = slices if isinstance(slices, tuple) else (slices,)
        if not all(isinstance(p, slice) and p.stop is not None for p in parts):
            raise TypeMismatch("mgrid", "slices that have an end", parts)
        axes = [
            arange(0 if p.start is None else p.start, p.stop, 1 if p.step is None else p.step)
            for p in parts
        ]
        if self._dense:
            return meshgrid(*axes, indexing="ij")
        n = len(axes)
        return [dimshuffle(a, ["x"] * i + [0] + ["x"] * (n - 1 - i)) for i, a in enumerate(axes)]


mgrid = _Grid(dense=True)
ogrid = _Grid(dense=False)


def inverse_permutation(perm: TensorLike) -> Variable:
    """The permutation that undoes ``perm``; of a matrix, each row's."""
    v = as_variable(perm)
    found = argsort(v, -1)
    return found if v.type.dtype == "bool" else found.astype(v.type.dtype)


def permute_row_elements(x: TensorLike, y: TensorLike, inverse: int = 0) -> Variable:
    """Each row of ``x`` permuted by the same row of ``y``, or by its only row."""
    rows, order = as_variable(x), as_variable(y)
    ndim = max(rows.type.ndim, order.type.ndim)
    order = inverse_permutation(order) if inverse else order
    return take_along_axis(pad_left(rows, ndim), pad_left(order, ndim), -1)
