"""Losses and gradients without a counterpart in ONNX, as functions of ops that have one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from symdnn.graph.variable import Variable
from symdnn.ops.array.create import arange
from symdnn.ops.core.shape import dims_of
from symdnn.ops.elementwise.arithmetic import cast, maximum, minimum, sqr
from symdnn.ops.elementwise.comparison import eq, switch
from symdnn.ops.elementwise.math import exp
from symdnn.ops.elementwise.special import erf
from symdnn.ops.elemwise import like
from symdnn.ops.nn.crossentropy import PickLabel
from symdnn.ops.nn.softmax import logsoftmax, softmax

__all__ = ["EXPRESSIONS"]

Expression = Callable[..., Sequence[Variable]]


def _sum(v: Variable, axes: Any) -> Variable:
    return v.sum(axis=axes, keepdims=True)


# -- softmax and cross-entropy ---------------------------------------------------------------------


def _placed(op: Any, values: Variable, labels: Variable, count: Any) -> Variable:
    """Zeros with each row's value at its label."""
    ndim = labels.type.ndim + 1
    order: list[Any] = ["x" if k == op.axis else k - (k > op.axis) for k in range(ndim)]
    places: list[Any] = [0 if k == op.axis else "x" for k in range(ndim)]
    here = eq(arange(count, dtype="int64").dimshuffle(places), labels.dimshuffle(order))
    return cast(here, values.type.dtype) * values.dimshuffle(order)


def _place_label(op: Any, values: Variable, labels: Variable, count: Variable) -> list[Variable]:
    return [_placed(op, values, labels, count if op.classes is None else op.classes)]


def _crossentropy(op: Any, x: Variable, labels: Variable) -> list[Variable]:
    logs = logsoftmax(x, op.axis)
    return [-PickLabel(op.axis)(logs, labels), logs]


def _crossentropy_grad(op: Any, d: Variable, logs: Variable, labels: Variable) -> list[Variable]:
    return [exp(logs) * op.expand(d) - _placed(op, d, labels, dims_of(logs)[op.axis])]


def _categorical_grad(op: Any, d: Variable, p: Variable, labels: Variable) -> list[Variable]:
    return [_placed(op, -d / PickLabel(op.axis)(p, labels), labels, dims_of(p)[op.axis])]


def _softmax_grad(op: Any, y: Variable, d: Variable) -> list[Variable]:
    return [y * (d - _sum(y * d, op.axis))]


def _log_softmax_grad(op: Any, y: Variable, d: Variable) -> list[Variable]:
    return [d - exp(y) * _sum(d, op.axis)]


def _log_softmax_grad_of_logits(op: Any, x: Variable, d: Variable) -> list[Variable]:
    return [d - softmax(x, op.axis) * _sum(d, op.axis)]


# -- normalisation ---------------------------------------------------------------------------------


def _norm_grad(
    op: Any, x: Variable, d: Variable, gamma: Variable, mean: Variable, r: Variable
) -> list[Variable]:
    """``r (g - mean(g) - xhat mean(g xhat))`` with ``g = d gamma``, and sums for the parameters."""
    dtype = x.type.dtype
    xhat, g = (x - mean) * r, d * gamma

    def means(v: Variable) -> Variable:
        return v.mean(axis=op.axes, keepdims=True)

    dx = r * (g - means(g) - xhat * means(g * xhat))
    spread = [i for i, one in enumerate(gamma.type.broadcastable) if one]
    sums = [_sum(v, spread) if spread else v for v in (d * xhat, d)]
    return [cast(dx, dtype), *(cast(v, gamma.type.dtype) for v in sums)]


# -- slopes ----------------------------------------------------------------------------------------


def _gelu_slope(op: Any, x: Variable) -> list[Variable]:
    half, root = like(0.5, x), like(np.sqrt(0.5), x)
    density = exp(like(-0.5, x) * minimum(sqr(x), like(3000, x))) * like(1 / np.sqrt(2 * np.pi), x)
    near = maximum(minimum(x, like(60, x)), like(-60, x))  # beyond, the density is 0
    return [half * (like(1, x) + erf(x * root)) + near * density]


def _step(op: Any, x: Variable) -> list[Variable]:
    zero = like(0, x)
    return [switch(x > zero, like(1, x), switch(x < zero, zero, like(0.5, x)))]


#: For each op a function of it and its inputs, which gives its outputs.
EXPRESSIONS: dict[str, Expression] = {
    "SoftmaxCrossentropy": _crossentropy, "SoftmaxCrossentropyGrad": _crossentropy_grad,
    "CrossentropyCategorical1HotGrad": _categorical_grad, "PlaceLabel": _place_label,
    "SoftmaxGrad": _softmax_grad, "LogSoftmaxGrad": _log_softmax_grad,
    "LogSoftmaxGradOfLogits": _log_softmax_grad_of_logits,
    "LayerNormGrad": _norm_grad, "BatchNormGrad": _norm_grad,
    "GeluSlope": _gelu_slope, "Step": _step,
}  # fmt: skip
