"""Softmax and log-softmax along one axis, with their gradient ops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import AxisError, TypeMismatch
from symdnn.graph.dims import Shape, normal_axis, same_dim
from symdnn.graph.names.torch_words import advises
from symdnn.graph.op import Axes, Batched, Grads, Host, Op, Shapes, Types, Vars
from symdnn.graph.origin import Hints
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.core.dtype import widened
from symdnn.ops.core.lanes import on_lanes
from symdnn.ops.elementwise.math import exp

__all__ = [
    "LogSoftmax",
    "LogSoftmaxGrad",
    "LogSoftmaxGradOfLogits",
    "Softmax",
    "SoftmaxGrad",
    "logsoftmax",
    "softmax",
    "softmax_with_bias",
]


def check_axis(op: Op, x: TensorType, axis: int) -> None:
    """Raise :class:`TypeMismatch` unless ``x`` is a float tensor that has this axis."""
    if not isinstance(x, TensorType) or not x.is_float or not 0 <= axis < x.ndim:
        raise AxisError(
            op, f"a float tensor with an axis {axis}", x, "Cast integers with x.astype('floatX')"
        )


def agreed_shape(op: Op, what: str, shapes: Shapes) -> Shape:
    """The shape that several operands share; raises :class:`ShapeMismatch`."""
    return tuple(
        same_dim(op, dims, f"{what} of equal shape", [tuple(s) for s in shapes])
        for dims in zip(*shapes, strict=True)
    )


@dataclass(frozen=True)
class AlongAxis(Op):
    """Base of these ops: the result has the type of the first operand.

    Each computes along ``axis`` only, on operands of one shape: rewrites may add dimensions to all.
    """

    may_overwrite: ClassVar[Mapping[int, tuple[int, ...]]] = {0: (0,)}
    never_fails: ClassVar[bool] = True
    abstract: ClassVar[bool] = True
    axis: int

    def infer(self, *inputs: TensorType) -> TensorType:
        for t in inputs:
            check_axis(self, t, self.axis)
        if any(t.dtype != inputs[0].dtype or t.ndim != inputs[0].ndim for t in inputs):
            raise TypeMismatch(self, "operands of one dtype and ndim", list(inputs))
        return inputs[0]

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return [agreed_shape(self, "operands", shapes)]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return on_lanes(replace(self, axis=self.axis + 1), inputs, axes)


def shifted(x: Array, axis: int) -> Any:
    """``x`` minus its largest element along ``axis``; an empty axis is allowed."""
    return x - x.max(axis, keepdims=True, initial=-np.inf)


class Softmax(AlongAxis):
    """``exp(x) / sum(exp(x))`` along ``axis``; the result has the type of the input."""

    nonnegative: ClassVar[bool] = True

    def reference(self, x: Array) -> Any:
        (v,) = widened(x)
        e = np.exp(shifted(v, self.axis))
        return (e / e.sum(self.axis, keepdims=True)).astype(x.dtype, copy=False)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        (y,), (dy,) = outputs, cotangents
        return [SoftmaxGrad(self.axis)(y, dy)]

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        return [SoftmaxGrad(self.axis)(outputs[0], tangents[0])]  # the Jacobian is symmetric


class SoftmaxGrad(AlongAxis):
    """Gradient of a softmax from its result ``y`` and cotangent ``dy``: ``y * (dy - sum(y dy))``.

    ``cudnnSoftmaxBackward`` (ACCURATE); Theano's ``SoftmaxGrad`` takes (dy, y).
    """

    def reference(self, y: Array, dy: Array) -> Any:
        a, b = widened(y, dy)
        return (a * (b - (a * b).sum(self.axis, keepdims=True))).astype(y.dtype, copy=False)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        (y, dy), (g,) = inputs, cotangents
        total = (y * dy).sum(axis=self.axis, keepdims=True)
        crossed = (g * y).sum(axis=self.axis, keepdims=True)
        return [g * (dy - total) - dy * crossed, self(y, g)]


class LogSoftmax(AlongAxis):
    """``x - log(sum(exp(x)))`` along ``axis``, never the log of a rounded softmax."""

    def reference(self, x: Array) -> Any:
        (v,) = widened(x)
        s = shifted(v, self.axis)
        return (s - np.log(np.exp(s).sum(self.axis, keepdims=True))).astype(x.dtype, copy=False)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        (y,), (dy,) = outputs, cotangents
        return [LogSoftmaxGrad(self.axis)(y, dy)]

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        (y,), (t,) = outputs, tangents
        return [t - (exp(y) * t).sum(axis=self.axis, keepdims=True)]  # type: ignore[operator]


class LogSoftmaxGrad(AlongAxis):
    """Gradient of a log-softmax from its result ``y`` and ``dy``: ``dy - exp(y) sum(dy)``.

    ``cudnnSoftmaxBackward`` (LOG).
    """

    may_overwrite: ClassVar[Mapping[int, tuple[int, ...]]] = {0: (0, 1)}

    def reference(self, y: Array, dy: Array) -> Any:
        a, b = widened(y, dy)
        return (b - np.exp(a) * b.sum(self.axis, keepdims=True)).astype(y.dtype, copy=False)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        (y, dy), (g,) = inputs, cotangents
        p = exp(y)
        total = dy.sum(axis=self.axis, keepdims=True)
        return [-(g * p * total), g - (g * p).sum(axis=self.axis, keepdims=True)]


class LogSoftmaxGradOfLogits(AlongAxis):
    """Gradient of a log-softmax from its operand ``x`` and ``dy``: ``dy - softmax(x) sum(dy)``.

    It is :class:`LogSoftmaxGrad` where nobody else reads the log-softmax: ``opt/fuse`` makes it.
    """

    def reference(self, x: Array, dy: Array) -> Any:
        a, b = widened(x, dy)
        e = np.exp(shifted(a, self.axis))
        share = b.sum(self.axis, keepdims=True) / e.sum(self.axis, keepdims=True)
        return (b - e * share).astype(x.dtype, copy=False)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        (x, dy), (g,) = inputs, cotangents
        p = Softmax(self.axis)(x)
        total = dy.sum(axis=self.axis, keepdims=True)
        return [-(SoftmaxGrad(self.axis)(p, g) * total), g - (g * p).sum(self.axis, keepdims=True)]


@advises(dim="axis", dims="axis", x="c", input="c", logits="c")
def softmax(c: TensorLike, axis: int | None = None, *, hints: Hints | None = None) -> Variable:
    """Softmax of a float tensor.

    ``axis=None`` is Theano's rule: a vector becomes a row of shape (1, n), a matrix is normalised
    over axis 1, more dimensions over the last. An explicit ``axis`` (negative ones count from the
    end) keeps the shape, also of a vector.
    """
    return _along(Softmax, c, axis, hints)


def logsoftmax(c: TensorLike, axis: int | None = None, *, hints: Hints | None = None) -> Variable:
    """Logarithm of the softmax in a stable form; ``axis`` as in :func:`softmax`."""
    return _along(LogSoftmax, c, axis, hints)


def softmax_with_bias(x: TensorLike, b: TensorLike) -> Variable:
    """Softmax of the rows of ``x + b`` (``b`` a vector)."""
    return softmax(as_variable(x) + as_variable(b))


def _along(kind: type[AlongAxis], c: TensorLike, axis: int | None, hints: Hints | None) -> Variable:
    x = as_variable(c)
    if not isinstance(x.type, TensorType) or x.type.ndim == 0:
        raise TypeMismatch(kind.__name__, "a float tensor of at least one dimension", x.type)
    if axis is None and x.type.ndim == 1:
        x = x.dimshuffle("x", 0)
    axis = x.type.ndim - 1 if axis is None else axis
    return kind(normal_axis(kind.__name__, axis, x.type.ndim))(x, hints=hints)


OPERATORS = {"softmax": softmax, "logsoftmax": logsoftmax}
