"""Pooling with a symbolic window, stride or padding.

For one dimension after the other it gathers the elements of each window and reduces them. That is
slower than :class:`~symdnn.ops.nn.pool.Pool`, whose windows are static.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from symdnn.errors import TypeMismatch
from symdnn.graph.typing import BorderMode, ShapeLike, TensorLike
from symdnn.graph.variable import Constant, Variable, as_variable
from symdnn.ops.array import reduce
from symdnn.ops.array.create import arange
from symdnn.ops.array.join import join
from symdnn.ops.array.take import take
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.core.gradient_control import assert_
from symdnn.ops.core.shape import alloc, dims_of
from symdnn.ops.elementwise.arithmetic import cast, maximum, minimum
from symdnn.ops.elementwise.comparison import eq, switch


def is_symbolic(value: Any) -> bool:
    """Whether a size, or an entry of a list of them, is known in a call only."""
    entries = value if isinstance(value, Sequence) else [value]
    return any(isinstance(v, Variable) and not isinstance(v, Constant) for v in entries)


def pool_by_size(
    x: Variable,
    ws: ShapeLike,
    stride: ShapeLike,
    pad: BorderMode,
    mode: str,
    ndim: int,
    ignore_border: bool = True,
) -> Variable:
    """Pooling of the last ``ndim`` dimensions.

    With ``ignore_border`` incomplete windows are dropped; without it ``pad`` must be 0.
    ``ws``, ``stride`` and ``pad`` are integers, vectors of ``ndim`` integers, or sequences, any of
    them symbolic. ``mode`` is one of :class:`~symdnn.ops.nn.pool.Pool`'s. The gradient of a maximum
    goes to every tie.
    """
    words = zip(*(_entries(n, v, ndim) for n, v in (("ws", ws), ("stride", stride), ("pad", pad))))
    wide = cast(x, "float32") if is_narrow_float(x.type.dtype) else x
    for axis, (size, step, around) in enumerate(words, x.type.ndim - ndim):
        wide = _pool_axis(_checked(wide, size, step, around, ignore_border), axis, size, step,
                          around, mode, ignore_border)  # fmt: skip
    return cast(wide, x.type.dtype)


def _entries(name: str, value: TensorLike, ndim: int) -> list[Variable]:
    """A size for each dimension, as int64 scalars."""
    if isinstance(value, Sequence):
        entries = [as_variable(v) for v in value]
    else:
        v = as_variable(value)
        entries = [v] * ndim if v.type.ndim == 0 else [v[i] for i in range(ndim)]
    if len(entries) != ndim or not all(v.type.is_integer_scalar for v in entries):
        raise TypeMismatch(f"pool: {name}", f"an integer, or {ndim} of them", value)
    return [cast(v, "int64") for v in entries]


def _checked(
    x: Variable, size: Variable, step: Variable, pad: Variable, ignore_border: bool
) -> Variable:
    """``x``; options that :class:`Pool` refuses raise AssertionFailed in a call."""
    conditions = [size >= 1, step >= 1, pad >= 0, pad < size]
    if not ignore_border:
        conditions.append(eq(pad, 0))
    return assert_(
        x, *conditions,
        message="pool: wanted ws and stride of at least 1, 0 <= pad < ws, and pad 0 where borders "
        "are not ignored",
    )  # fmt: skip


def _windows(n: Any, size: Variable, step: Variable, ignore_border: bool) -> Variable:
    """The number of windows of ``n`` elements, as :func:`~symdnn.ops.nn.pool.pool_size`."""
    if ignore_border:
        return maximum((n - size) // step + 1, 0)
    apart = (n + step - 1) // step
    rest = maximum((n - size + step - 1) // step, 0) + 1
    return switch(step >= size, apart, minimum(rest, n))


def _pool_axis(
    x: Variable, axis: int, size: Variable, step: Variable, pad: Variable, mode: str,
    ignore_border: bool,
) -> Variable:  # fmt: skip
    n = dims_of(x)[axis]
    fill = _lowest(x) if mode == "max" else 0
    count = _windows(n + 2 * pad, size, step, ignore_border)
    after = pad if ignore_border else maximum((count - 1) * step + size - n, 0)
    starts = arange(count) * step
    index = starts.dimshuffle(0, "x") + arange(size).dimshuffle("x", 0)
    side_by_side = take(_padded(x, axis, pad, after, fill), index, axis=axis)
    if mode == "max":
        return reduce.max(side_by_side, axis=axis + 1)
    total = reduce.sum(side_by_side, axis=axis + 1)
    if mode == "sum":
        return total
    inside = (index >= pad) & (index < n + pad)
    counted = mode == "average_exc_pad" or not ignore_border
    number = inside.sum(axis=1) if counted else size + 0 * starts
    shape = ["x"] * axis + [0] + ["x"] * (x.type.ndim - axis - 1)
    return total / cast(number, x.type.dtype).dimshuffle(*shape)


def _lowest(x: Variable) -> float:
    """The smallest value of the dtype of ``x``."""
    dtype = x.type.numpy
    return np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf if dtype.kind == "f" else 0


def _padded(x: Variable, axis: int, before: Variable, after: Variable, fill: float) -> Variable:
    borders = []
    for width in (before, after):
        sizes = list(dims_of(x))
        sizes[axis] = width
        borders.append(alloc(np.asarray(fill, x.type.numpy), *sizes))
    return join(axis, borders[0], x, borders[1])
