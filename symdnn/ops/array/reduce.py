"""Reductions over axes: sum, product, extremes, any and all, logsumexp."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import AxisError, OptionError, ShapeMismatch, TypeMismatch
from symdnn.graph.dims import DimT, Shape, known
from symdnn.graph.names.torch_words import torch_words
from symdnn.graph.op import Axes, Batched, Grads, Host, Op, Shapes, Types, Vars
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType, dtype_name, numpy_dtype, tensor_type
from symdnn.graph.typing import Array, AxisLike, DtypeLike, TensorLike
from symdnn.graph.variable import Constant, Variable, as_variable
from symdnn.ops.core.dtype import accumulator, float_of, is_narrow_float, upcast
from symdnn.ops.core.gradient_control import disconnected_grad
from symdnn.ops.core.lanes import on_lanes
from symdnn.ops.elementwise.comparison import eq, isinf, switch
from symdnn.ops.elemwise import conjugate, kind_of, like

__all__ = [
    "AllTrue", "AnyTrue", "LogSumExp", "Max", "Min", "Prod", "Reduce", "Sum", "all", "any",
    "logsumexp", "masked", "max", "min", "normal_axes", "prod", "ptp", "sum",
]  # fmt: skip


def normal_axes(axis: TensorLike | None, ndim: int, op: str = "a reduction") -> tuple[int, ...]:
    """``axis`` (None, an int, a sequence, a constant) as sorted non-negative ints."""
    if axis is None:
        return tuple(range(ndim))
    if isinstance(axis, Variable):
        if not isinstance(axis, Constant):
            two = f"T.{op}imum(x, y) compares two tensors" if op in ("max", "min") else ""
            raise AxisError(op, "an axis known when the graph is built", axis, two)
        axis = axis.data
    if np.asarray(axis).size and np.asarray(axis).dtype.kind not in "iu":
        raise AxisError(op, "an axis that is None, an int or a sequence of ints", repr(axis))
    axes = [int(a) for a in np.atleast_1d(np.asarray(axis, dtype=np.int64))]
    if [a for a in axes if not -ndim <= a < ndim]:
        raise AxisError(op, f"axes of a tensor of {ndim} dimension(s)", str(axis))
    normal = sorted(a % ndim for a in axes)
    if len(set(normal)) != len(normal):
        raise AxisError(op, "each axis once", str(axis))
    return tuple(normal)


@dataclass(frozen=True)
class Reduce(Op):
    """Base of reductions: ``axes`` disappear, or stay as size 1 with ``keepdims``.

    The attributes below say which rewrites are valid for a reduction; with their defaults none of
    these rewrites is applied.
    """

    never_fails: ClassVar[bool] = True
    abstract: ClassVar[bool] = True
    #: Whether it needs at least one element, as an extreme does.
    needs_elements: ClassVar[bool] = False
    #: Whether the order of elements does not matter, as it does for an index.
    any_order: ClassVar[bool] = False
    #: Whether the reduction of a single element is :meth:`of_one`.
    keeps_one: ClassVar[bool] = False
    #: Whether reductions over some axes and then over others equal one over all of them.
    in_parts: ClassVar[bool] = False
    #: Whether repeated elements change nothing.
    idempotent: ClassVar[bool] = False
    #: Kinds of dtypes of the operand: b(ool), i(nteger), f(loat), c(omplex).
    kinds: ClassVar[str] = "bifc"

    axes: tuple[int, ...]
    keepdims: bool = False

    def out_dtype(self, dtype: str) -> str:
        """The result's dtype."""
        return dtype

    def of_one(self, x: Variable) -> Variable:
        """The reduction of one element; ``x`` already lacks the reduced dimensions, of size 1."""
        return x.astype(self.out_dtype(x.type.dtype))

    def infer(self, x: TensorType) -> TensorType:
        if not isinstance(x, TensorType) or [a for a in self.axes if a >= x.ndim]:
            raise AxisError(self, f"a tensor with dimensions {self.axes}", x)
        if kind_of(x.dtype) not in self.kinds:
            raise TypeMismatch(self, "a tensor of real dtype", x, "Reduce its abs, real or imag")
        return tensor_type(self.out_dtype(x.dtype), tuple(self._reduced(x.shape)))

    def _reduced(self, shape: Sequence[DimT]) -> tuple[DimT | int, ...]:
        if self.keepdims:
            return tuple(1 if i in self.axes else d for i, d in enumerate(shape))
        return tuple(d for i, d in enumerate(shape) if i not in self.axes)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        self.check_elements(shapes[0])
        return [self._reduced(shapes[0])]

    def check_elements(self, shape: Shape) -> None:
        if self.needs_elements and [a for a in self.axes if known(shape[a]) == 0]:
            raise ShapeMismatch(
                self,
                f"at least one element along the axes {self.axes}",
                f"an input of shape {tuple(shape)}",
                "No elements have no extreme; test the size first",
            )

    def expand(self, reduced: Variable, ndim: int) -> Variable:
        """A reduced variable with its axes inserted again as size 1."""
        if self.keepdims:
            return reduced
        kept = iter(range(ndim - len(self.axes)))
        pattern: list[int | str] = ["x" if i in self.axes else next(kept) for i in range(ndim)]
        return reduced.dimshuffle(pattern)

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return on_lanes(replace(self, axes=tuple(a + 1 for a in self.axes)), inputs, axes)


@dataclass(frozen=True)
class Accumulate(Reduce):
    """Base of sum and product: accumulated in ``acc_dtype``, returned as ``dtype``.

    With an ``acc_dtype`` of float32 or less the CPU adds up in float64, as Theano does; a GPU
    adds in float32 by pairs.
    """

    abstract: ClassVar[bool] = True
    any_order: ClassVar[bool] = True
    keeps_one: ClassVar[bool] = True
    in_parts: ClassVar[bool] = True
    dtype: str = "float32"
    acc_dtype: str = "float32"

    def out_dtype(self, dtype: str) -> str:
        return self.dtype

    def of_one(self, x: Variable) -> Variable:
        return x.astype(self.acc_dtype).astype(self.dtype)

    @property
    def added_in(self) -> Any:
        """The dtype of the CPU's partial results: wider than a float32 ``acc_dtype``."""
        acc = TensorType(self.acc_dtype)
        wide = acc.dtype in ("float16", "bfloat16", "float32")
        return np.dtype(np.float64) if wide else acc.numpy

    def _accumulated(self, function: Any, x: Any) -> Array:
        acc, out = self.added_in, numpy_dtype(self.dtype)
        if is_narrow_float(dtype_name(x.dtype)) and acc.kind in "biu":
            x = x.astype(np.float32)
        total = function(x, axis=self.axes, keepdims=self.keepdims, dtype=acc)
        return np.asarray(total).astype(out, copy=False)


class Sum(Accumulate):
    """Sum over ``axes`` (cuDNN: ``CUDNN_REDUCE_TENSOR_ADD``)."""

    linear_in_first: ClassVar[bool] = True

    def reference(self, x: Array) -> Array:
        return self._accumulated(np.sum, x)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        (x,), (dy,) = inputs, cotangents
        return [operator("fill")(x, self.expand(dy, x.type.ndim))]


@dataclass(frozen=True)
class Prod(Accumulate):
    """Product over ``axes`` (cuDNN: ``CUDNN_REDUCE_TENSOR_MUL``).

    The gradient is right also where elements are 0; ``no_zeros_in_input`` promises that there are
    none, and the gradient is then the cheaper ``y / x``.
    """

    no_zeros_in_input: bool = False

    def reference(self, x: Array) -> Array:
        return self._accumulated(np.prod, x)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        (x,), (y,), (dy,) = inputs, outputs, cotangents
        dy = self.expand(dy, x.type.ndim)
        if self.no_zeros_in_input:
            slope = self.expand(y, x.type.ndim) / x
        else:
            slope = operator("product_of_others")(x, self.axes)
        return [dy * conjugate(slope)]


@dataclass(frozen=True)
class Extreme(Reduce):
    """Base of the largest and the smallest; NaN where one is. Every tie gets the full gradient.

    ``whole`` is the extreme over more axes of which this is a part: errors are those of that one.
    """

    abstract: ClassVar[bool] = True
    needs_elements: ClassVar[bool] = True
    any_order: ClassVar[bool] = True
    keeps_one: ClassVar[bool] = True
    in_parts: ClassVar[bool] = True
    idempotent: ClassVar[bool] = True
    kinds: ClassVar[str] = "bif"
    function: ClassVar[Any] = None
    whole: Extreme | None = field(default=None, repr=False)

    def check_elements(self, shape: Shape) -> None:
        if self.whole is None:
            super().check_elements(shape)
        else:
            self.whole.check_elements(shape)

    def reference(self, x: Array) -> Array:
        self.check_elements(x.shape)
        wide = x.astype(np.float32) if x.dtype == numpy_dtype("bfloat16") else x
        result = type(self).function(wide, axis=self.axes, keepdims=self.keepdims)
        return np.asarray(result).astype(x.dtype, copy=False)

    def _chosen(self, x: Variable, y: Variable) -> Variable:
        return operator("eq")(x, self.expand(y, x.type.ndim))

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        (x,), (y,), (dy,) = inputs, outputs, cotangents
        dy = self.expand(dy, x.type.ndim)
        return [operator("switch")(self._chosen(x, y), dy, like(0, dy))]


class Max(Extreme):
    """The largest element over ``axes`` (cuDNN: ``CUDNN_REDUCE_TENSOR_MAX``)."""

    function: ClassVar[Any] = np.max


class Min(Extreme):
    """The smallest element over ``axes`` (cuDNN: ``CUDNN_REDUCE_TENSOR_MIN``)."""

    function: ClassVar[Any] = np.min


class Truth(Reduce):
    """Base of any and all; the result is bool."""

    no_gradients: ClassVar[bool] = True
    abstract: ClassVar[bool] = True
    any_order: ClassVar[bool] = True
    keeps_one: ClassVar[bool] = True
    in_parts: ClassVar[bool] = True
    idempotent: ClassVar[bool] = True
    function: ClassVar[Any] = None

    def out_dtype(self, dtype: str) -> str:
        return "bool"

    def of_one(self, x: Variable) -> Variable:
        return x if x.type.dtype == "bool" else operator("neq")(x, like(0, x))

    def reference(self, x: Array) -> Array:
        x = x if x.dtype == np.bool_ else x != 0
        return np.asarray(type(self).function(x, axis=self.axes, keepdims=self.keepdims))


class AllTrue(Truth):
    """Whether every element over ``axes`` is true (not zero); true without elements."""

    function: ClassVar[Any] = np.all


class AnyTrue(Truth):
    """Whether some element over ``axes`` is true (not zero); false without elements."""

    function: ClassVar[Any] = np.any


class LogSumExp(Reduce):
    """``log(sum(exp(x)))`` over ``axes`` without overflow; ``-inf`` without elements."""

    any_order: ClassVar[bool] = True
    keeps_one: ClassVar[bool] = True
    in_parts: ClassVar[bool] = True
    kinds: ClassVar[str] = "bif"

    def out_dtype(self, dtype: str) -> str:
        return float_of(dtype)

    def reference(self, x: Array) -> Any:
        out = TensorType(self.out_dtype(x.dtype.name))
        x = x.astype(np.float32 if is_narrow_float(out.dtype) else out.numpy, copy=False)
        top = np.max(x, axis=self.axes, keepdims=True, initial=-np.inf)
        top = np.where(np.isfinite(top), top, np.zeros((), x.dtype))
        total = np.log(np.sum(np.exp(x - top), axis=self.axes, keepdims=True)) + top
        return total.reshape(self._reduced(x.shape)).astype(out.numpy, copy=False)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        (x,), (y,), (dy,) = inputs, outputs, cotangents
        y, dy = self.expand(y, x.type.ndim), self.expand(dy, x.type.ndim)
        # Where every element is -inf, x - y would be NaN, and so is a softmax.
        none = operator("eq")(y, -np.inf)
        if len(self.axes) == 1 and x.type.is_float:
            share = operator("softmax")(x, axis=self.axes[0])  # x - y is rounded for a large y
            return [operator("switch")(none, like(0, dy), dy * share)]
        safe = operator("switch")(none, like(0, y), y)
        return [dy * operator("exp")(x - safe)]


def _dtypes(x: Variable, dtype: DtypeLike, acc_dtype: DtypeLike, op: str) -> tuple[str, str]:
    """(result, accumulator) of a sum or product, by Theano's rules."""
    wanted = None if dtype is None else TensorType(dtype).dtype
    out, acc = accumulator(x.type.dtype if wanted is None else upcast(x.type.dtype, wanted))
    if acc_dtype is not None:
        acc = TensorType(acc_dtype).dtype
    if x.type.is_complex and not tensor_type(acc).is_complex:
        raise TypeMismatch(op, "a complex acc_dtype for a complex input", acc)
    return wanted or out, acc


def masked(op: str, v: Variable, where: TensorLike | None, fill: Any) -> Variable:
    """``v`` with ``fill`` where the bool tensor ``where``, which broadcasts to it, is False."""
    if where is None:
        return v
    mask = as_variable(where)
    t = mask.type
    if not isinstance(t, TensorType) or t.dtype != "bool" or t.ndim > v.type.ndim:
        raise TypeMismatch(op, "where= of bools that broadcasts to the input", mask.type)
    return switch(mask, v, like(fill, v))


def _begun(name: str, found: Variable, initial: TensorLike | None, dtype: str) -> Variable:
    """A reduction's result with ``initial``, one element more."""
    if initial is None:
        return found
    first = initial if isinstance(initial, Variable) else like(initial, found)
    return operator("cast")(operator(name)(found, first), dtype)


@torch_words()
def sum(
    input: TensorLike,
    axis: AxisLike = None,
    dtype: Any = None,
    keepdims: bool = False,
    acc_dtype: Any = None,
    *,
    initial: TensorLike | None = None,
    where: TensorLike | None = None,
) -> Variable:
    """Sum over ``axis`` (an int, several, or None: all).

    By default ints are summed as int64 (unsigned: uint64), float16 and bfloat16 in float32;
    ``acc_dtype`` and ``dtype`` choose the accumulator's and the result's dtype.

    Elements where ``where`` (bools that broadcast) is False are left out; ``initial`` is one more.
    """
    v = masked("sum", as_variable(input), where, 0)
    out, acc = _dtypes(v, dtype, acc_dtype, "sum")
    axes = normal_axes(axis, v.type.ndim, "sum")
    return _begun("add", Sum(axes, keepdims, out, acc)(v), initial, out)


@torch_words()
def prod(
    input: TensorLike,
    axis: AxisLike = None,
    dtype: Any = None,
    keepdims: bool = False,
    acc_dtype: Any = None,
    no_zeros_in_input: bool = False,
    *,
    initial: TensorLike | None = None,
    where: TensorLike | None = None,
) -> Variable:
    """Product over ``axis``; dtypes, ``initial`` and ``where`` as in :func:`sum`.

    ``no_zeros_in_input`` makes the gradient cheaper and wrong where an element is 0.
    """
    v = masked("prod", as_variable(input), where, 1)
    out, acc = _dtypes(v, dtype, acc_dtype, "prod")
    axes = normal_axes(axis, v.type.ndim, "prod")
    found = Prod(axes, keepdims, out, acc, no_zeros_in_input)(v)
    return _begun("mul", found, initial, out)


def _limited(
    op: str, v: Variable, initial: TensorLike | None, where: TensorLike | None
) -> Variable:
    if where is None:
        return v
    if initial is None or isinstance(initial, Variable):
        raise OptionError(f"{op}: initial={initial!r}; wanted a number beside where=")
    return masked(op, v, where, initial)


@torch_words("max")
def max(
    x: TensorLike,
    axis: AxisLike = None,
    keepdims: bool = False,
    *,
    initial: TensorLike | None = None,
    where: TensorLike | None = None,
) -> Variable:
    """The largest element over ``axis``, or NaN if there is one. Every tie gets the gradient.

    Elements where ``where`` is False are left out; the number ``initial``, one more, is wanted
    with it.

    Raises :class:`~symdnn.errors.ShapeMismatch` for an axis of size 0.
    """
    v = _limited("max", as_variable(x), initial, where)
    found = Max(normal_axes(axis, v.type.ndim, "max"), keepdims)(v)
    return _begun("maximum", found, initial, v.type.dtype)


@torch_words("min")
def min(
    x: TensorLike,
    axis: AxisLike = None,
    keepdims: bool = False,
    *,
    initial: TensorLike | None = None,
    where: TensorLike | None = None,
) -> Variable:
    """The smallest element over ``axis``; otherwise as :func:`max`."""
    v = _limited("min", as_variable(x), initial, where)
    found = Min(normal_axes(axis, v.type.ndim, "min"), keepdims)(v)
    return _begun("minimum", found, initial, v.type.dtype)


def ptp(a: TensorLike, axis: AxisLike = None, keepdims: bool = False) -> Variable:
    """The largest minus the smallest element over ``axis``."""
    return max(a, axis, keepdims) - min(a, axis, keepdims)


@torch_words()
def all(
    x: TensorLike, axis: AxisLike = None, keepdims: bool = False, *,
    where: TensorLike | None = None,
) -> Variable:  # fmt: skip
    """Whether all elements over ``axis`` are true (not zero), as bool.

    Elements where ``where`` is False are left out.
    """
    v = masked("all", as_variable(x), where, True)
    return AllTrue(normal_axes(axis, v.type.ndim, "all"), keepdims)(v)


@torch_words()
def any(
    x: TensorLike, axis: AxisLike = None, keepdims: bool = False, *,
    where: TensorLike | None = None,
) -> Variable:  # fmt: skip
    """Whether any element over ``axis`` is true (not zero), as bool.

    Elements where ``where`` is False are left out.
    """
    v = masked("any", as_variable(x), where, False)
    return AnyTrue(normal_axes(axis, v.type.ndim, "any"), keepdims)(v)


@torch_words()
def logsumexp(
    x: TensorLike, axis: AxisLike = None, keepdims: bool = False, b: TensorLike | None = None
) -> Variable:
    """``log(sum(b exp(x)))`` over ``axis`` without overflow.

    ``b`` are weights that broadcast to ``x`` (None: 1), as SciPy's; a negative sum gives NaN.
    """
    v = as_variable(x)
    if v.type.is_discrete:
        v = operator("cast")(v, float_of(v.type.dtype))
    if b is None:
        return LogSumExp(normal_axes(axis, v.type.ndim, "logsumexp"), keepdims)(v)
    weights = as_variable(b)
    v, weights = v + operator("zeros_like")(weights, v.type.dtype), weights.astype(v.type.dtype)
    # What has a weight of 0 counts for nothing, though it were infinite or the largest.
    v = switch(eq(weights, 0), like(-np.inf, v), v)
    axes = normal_axes(axis, v.type.ndim, "logsumexp")
    top = disconnected_grad(max(v, axes, keepdims=True))
    top = switch(isinf(top), like(0, top), top)
    total = sum(weights * operator("exp")(v - top), axes, keepdims=keepdims)
    empty = eq(total, 0)
    found = operator("log")(switch(empty, like(1, total), total))
    return switch(empty, like(-np.inf, found), found + (top if keepdims else sum(top, axes)))


OPERATORS = {
    "sum": sum,
    "prod": prod,
    "max": max,
    "min": min,
    "ptp": ptp,
    "all": all,
    "any": any,
    "logsumexp": logsumexp,
}
