"""Running sums, products and extremes along an axis, filled gaps, and the ops of their slopes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import AxisError, TypeMismatch
from symdnn.graph.dims import product, same_dim
from symdnn.graph.names.torch_words import torch_words
from symdnn.graph.op import Axes, Batched, Grads, Host, Op, Shapes, Types, Vars
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.graph.typing import Array, AxisLike, TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.array.reduce import normal_axes
from symdnn.ops.core.dtype import accumulator, float_of
from symdnn.ops.core.gradient_control import disconnected_grad
from symdnn.ops.core.lanes import on_lanes
from symdnn.ops.core.shape import dims_of
from symdnn.ops.elementwise.comparison import eq, isinf, isnan, switch
from symdnn.ops.elemwise import broadcast_static, conjugate, like

__all__ = [
    "CumExtreme", "CumMax", "CumMin", "CumProd", "CumSum", "ForwardFill", "LinearRecurrence",
    "Shift", "cummax", "cummin", "cumprod", "cumsum", "forward_fill", "logcumsumexp",
    "product_of_others",
]  # fmt: skip


@dataclass(frozen=True)
class AlongAxis(Op):
    """Base of ops that run along ``axis`` (backwards with ``reverse``) and keep the shape."""

    shaped_as: ClassVar[int | None] = 0
    abstract: ClassVar[bool] = True
    axis: int
    reverse: bool = False

    def infer(self, *inputs: TensorType) -> TensorType:
        if not all(isinstance(t, TensorType) and self.axis < t.ndim for t in inputs):
            raise AxisError(self, f"a tensor with a dimension {self.axis}", list(inputs))
        return inputs[0]

    def _forwards(self, x: Array) -> Array:
        """A view of ``x`` with the axis first, reversed if the op runs backwards."""
        moved = np.moveaxis(x, self.axis, 0)
        return moved[::-1] if self.reverse else moved

    def _back(self, x: Array) -> Array:
        return np.ascontiguousarray(np.moveaxis(x[::-1] if self.reverse else x, 0, self.axis))

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return on_lanes(replace(self, axis=self.axis + 1), inputs, axes)


def _work_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The accumulator's dtype, as for sums: float64 for float32."""
    work = accumulator(dtype.name)[1]
    return np.dtype("float64" if work == "float32" else work)


class CumSum(AlongAxis):
    """``y[k] = x[0] + ... + x[k]``; with ``reverse`` from the end. Ints widen as in a sum."""

    linear_in_first: ClassVar[bool] = True

    def infer(self, *inputs: TensorType) -> TensorType:
        x = super().infer(*inputs)
        return x.with_dtype(accumulator(x.dtype)[0])

    def reference(self, *inputs: Array) -> Array:
        (x,) = inputs
        total = np.cumsum(self._forwards(x), axis=0, dtype=_work_dtype(x.dtype))
        return self._back(total).astype(TensorType(accumulator(x.dtype.name)[0]).numpy, copy=False)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        return [CumSum(self.axis, not self.reverse)(cotangents[0])]


@dataclass(frozen=True)
class CumProd(AlongAxis):
    """``y[k] = x[0] * ... * x[k]``; without ``x[k]`` itself when ``exclusive``.

    Its gradient has no division, so it is right also where elements are 0.
    """

    exclusive: bool = False

    def infer(self, *inputs: TensorType) -> TensorType:
        x = super().infer(*inputs)
        return x.with_dtype(accumulator(x.dtype)[0])

    def reference(self, *inputs: Array) -> Array:
        (x,) = inputs
        y = np.cumprod(self._forwards(x), axis=0, dtype=_work_dtype(x.dtype))
        if self.exclusive and len(y):
            y = np.concatenate([np.ones_like(y[:1]), y[:-1]])
        return self._back(y).astype(TensorType(accumulator(x.dtype.name)[0]).numpy, copy=False)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        (x,), (y,), (dy,) = inputs, outputs, cotangents
        before = y if self.exclusive else CumProd(self.axis, self.reverse, True)(x)
        back = not self.reverse
        if self.exclusive:
            dy = Shift(self.axis, back)(dy)
        factors = conjugate(Shift(self.axis, back)(x))
        return [LinearRecurrence(self.axis, back)(factors, dy) * conjugate(before)]


class CumExtreme(AlongAxis):
    """Base of the largest and the smallest so far; NaN from the first NaN on.

    Every tie gets the full gradient, as of :class:`~symdnn.ops.array.reduce.Max`.
    """

    abstract: ClassVar[bool] = True
    function: ClassVar[Any] = None

    def infer(self, *inputs: TensorType) -> TensorType:
        x = super().infer(*inputs)
        if x.is_complex:
            raise TypeMismatch(self, "numbers that have an order", list(inputs))
        return x

    def reference(self, *inputs: Array) -> Array:
        x = self._forwards(inputs[0])
        wide = x.astype(np.float32) if x.dtype == numpy_dtype("bfloat16") else x
        y = type(self).function.accumulate(wide, axis=0)
        return self._back(y).astype(x.dtype, copy=False)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        (x,), (y,), (dy,) = inputs, outputs, cotangents
        eq, back = operator("eq"), not self.reverse
        # An element gets the sum of the cotangents of all positions at which it is the extreme.
        stays = eq(Shift(self.axis, back)(y), y).astype(dy.type.dtype)
        sums = LinearRecurrence(self.axis, back)(stays, dy)
        return [operator("switch")(eq(x, y), sums, like(0, dy))]


class CumMax(CumExtreme):
    """``y[k] = max(x[0], ..., x[k])``; with ``reverse`` from the end."""

    function = np.maximum


class CumMin(CumExtreme):
    """``y[k] = min(x[0], ..., x[k])``; with ``reverse`` from the end."""

    function = np.minimum


class ForwardFill(AlongAxis):
    """Each NaN is the last number before it; with ``reverse`` the first one after it."""

    def infer(self, *inputs: TensorType) -> TensorType:
        x = super().infer(*inputs)
        if not x.is_float:
            raise TypeMismatch(self, "floats, which may be NaN", list(inputs))
        return x

    def reference(self, *inputs: Array) -> Array:
        x = self._forwards(inputs[0])
        lines = np.arange(len(x)).reshape(-1, *[1] * (x.ndim - 1))
        last = np.maximum.accumulate(np.where(np.isnan(x), 0, lines), axis=0)
        return self._back(np.take_along_axis(x, last, axis=0))

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        (x,), (dy,), back = inputs, cotangents, not self.reverse
        # A number gets the sum of the cotangents of all positions that it fills.
        missing = isnan(x)
        filled = Shift(self.axis, back)(missing.astype(dy.type.dtype))
        return [switch(missing, like(0, dy), LinearRecurrence(self.axis, back)(filled, dy))]


class Shift(AlongAxis):
    """``y[k] = x[k - 1]`` and ``y[0] = 0``; with ``reverse`` ``y[k] = x[k + 1]``."""

    linear_in_first: ClassVar[bool] = True

    def reference(self, *inputs: Array) -> Array:
        x = self._forwards(inputs[0])
        y = np.zeros_like(x)
        y[1:] = x[:-1]
        return self._back(y)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        return [Shift(self.axis, not self.reverse)(cotangents[0])]


class LinearRecurrence(AlongAxis):
    """``s[k] = a[k] * s[k - 1] + b[k]`` from ``s[-1] = 0``; with ``reverse`` from the end.

    ``a`` and ``b`` have one shape and one float dtype.
    """

    def infer(self, *inputs: TensorType) -> TensorType:
        a = super().infer(*inputs)
        if len({(t.dtype, t.ndim) for t in inputs}) != 1 or a.is_discrete:
            raise TypeMismatch(self, "two float tensors of one dtype and ndim", list(inputs))
        return a.with_shape(broadcast_static(self, inputs))

    def reference(self, *inputs: Array) -> Array:
        work = _work_dtype(inputs[0].dtype)
        a, b = (self._forwards(x.astype(work, copy=False)) for x in inputs)
        s = b.copy()
        for k in range(1, len(s)):
            s[k] += a[k] * s[k - 1]
        return self._back(s).astype(inputs[0].dtype, copy=False)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        pairs = zip(*shapes, strict=True)
        return [tuple(same_dim(self, pair, "two equal shapes", shapes) for pair in pairs)]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        (a, _), (s,), (g,) = inputs, outputs, cotangents
        back = not self.reverse
        to_b = LinearRecurrence(self.axis, back)(conjugate(Shift(self.axis, back)(a)), g)
        return [to_b * conjugate(Shift(self.axis, self.reverse)(s)), to_b]


@torch_words()
def cumsum(x: TensorLike, axis: int | None = None) -> Variable:
    """Running sum along ``axis`` (None: over the flattened tensor). Ints widen as in a sum."""
    v, along = _line(x, axis, "cumsum")
    return CumSum(along)(v)


@torch_words()
def cumprod(x: TensorLike, axis: int | None = None) -> Variable:
    """Running product along ``axis`` (None: over the flattened tensor). Ints widen as in a sum."""
    v, along = _line(x, axis, "cumprod")
    return CumProd(along)(v)


@torch_words("cummax")
def cummax(x: TensorLike, axis: int | None = None) -> Variable:
    """Largest element so far along ``axis`` (None: over the flattened tensor); NaN after a NaN."""
    v, along = _line(x, axis, "cummax")
    return CumMax(along)(v)


@torch_words("cummin")
def cummin(x: TensorLike, axis: int | None = None) -> Variable:
    """Smallest element so far along ``axis`` (None: over the flattened tensor); NaN after a NaN."""
    v, along = _line(x, axis, "cummin")
    return CumMin(along)(v)


def forward_fill(x: TensorLike, axis: int | None = None) -> Variable:
    """``x`` with each NaN replaced by the last number before it (None: flattened).

    NaNs before the first number of a line stay.

    >>> forward_fill([np.nan, 1.0, np.nan, np.nan, 2.0]).eval()
    array([nan,  1.,  1.,  1.,  2.])
    """
    v, along = _line(x, axis, "forward_fill")
    return ForwardFill(along)(v)


@torch_words()
def logcumsumexp(x: TensorLike, axis: int | None = None) -> Variable:
    """``log(cumsum(exp(x)))`` along ``axis`` (None: flattened) without overflow (PyTorch's name).

    >>> logcumsumexp([-1000.0, -1000.0, 0.0]).eval().round(3)
    array([-1000.   ,  -999.307,     0.   ])
    """
    v, along = _line(x, axis, "logcumsumexp")
    if v.type.is_discrete:
        v = operator("cast")(v, float_of(v.type.dtype))
    exp = operator("exp")
    top = disconnected_grad(CumMax(along)(v))
    before = Shift(along)(top)
    top_or_0 = switch(isinf(top), like(0, top), top)
    before_or_0 = switch(isinf(before), like(0, top), before)
    # The first element's factor meets nothing, nor does one after elements of -inf alone.
    factor = switch(eq(before, -np.inf), like(0, top), exp(before_or_0 - top_or_0))
    started = operator("minimum")(factor, like(1, top))
    total = LinearRecurrence(along)(started, exp(v - top_or_0))
    empty = eq(total, 0)
    found = operator("log")(switch(empty, like(1, total), total)) + top_or_0
    return switch(empty, like(-np.inf, found), found)


def _line(x: TensorLike, axis: AxisLike, op: str) -> tuple[Variable, int]:
    v = as_variable(x)
    if axis is None:
        return (v if v.type.ndim == 1 else v.reshape((-1,))), 0
    axes = normal_axes(axis, v.type.ndim, op)
    if len(axes) != 1:
        raise AxisError(op, "one axis or None", str(axis))
    return v, axes[0]


def product_of_others(x: Variable, axes: Sequence[int]) -> Variable:
    """For each element the product of all others over ``axes``: the gradient of a product."""
    if len(axes) == 1:
        return CumProd(axes[0], False, True)(x) * CumProd(axes[0], True, True)(x)
    ndim, places = x.type.ndim, sorted(axes)
    kept = [i for i in range(ndim) if i not in axes]
    first = min(places, default=0)
    if places != [*range(first, first + len(places))]:
        first = len(kept)
    order = [*kept[:first], *places, *kept[first:]]
    dims = dims_of(x)
    turned = x.dimshuffle(order)
    sizes = [dims[i] for i in order]
    along = product(sizes[first : first + len(axes)])
    rows = turned.reshape([*sizes[:first], along, *sizes[first + len(axes) :]])
    others = CumProd(first, False, True)(rows) * CumProd(first, True, True)(rows)
    back = [order.index(i) for i in range(ndim)]
    return others.reshape(sizes).dimshuffle(back)


OPERATORS = {"cumsum": cumsum, "cumprod": cumprod, "product_of_others": product_of_others}
