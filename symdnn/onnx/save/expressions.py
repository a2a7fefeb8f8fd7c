"""Losses and gradients without a counterpart in ONNX, as functions of ops that have one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from symdnn.graph.variable import Variable
from symdnn.ops.array.create import arange
from symdnn.ops.core.dtype import work_dtype
from symdnn.ops.core.shape import dims_of
from symdnn.ops.elementwise.arithmetic import abs as absolute
from symdnn.ops.elementwise.arithmetic import cast, clip, inv, maximum, minimum, sqr
from symdnn.ops.elementwise.comparison import and_, eq, ge, isinf, lt, or_, switch
from symdnn.ops.elementwise.math import arctan, exp, log, log1p, sin
from symdnn.ops.elementwise.rounding import floor
from symdnn.ops.elementwise.special import erf
from symdnn.ops.elemwise import like
from symdnn.ops.nn.crossentropy import PickLabel
from symdnn.ops.nn.softmax import logsoftmax, softmax

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


# -- elementwise functions -------------------------------------------------------------------------


def _is_negative(v: Variable) -> Variable:
    """Also of -0, whose inverse is -inf."""
    zero = like(0, v)
    return or_(lt(v, zero), lt(inv(v), zero))


def _arctan2(op: Any, y: Variable, x: Variable) -> list[Variable]:
    dtype = op(y, x).type.dtype
    wide = work_dtype(dtype)
    y, x = cast(y, wide), cast(x, wide)
    up, right = absolute(y), absolute(x)
    zeros = and_(eq(up, like(0, y)), eq(right, like(0, y)))
    slope = switch(zeros, like(0, y), up / right)
    slope = switch(and_(isinf(up), isinf(right)), like(1, y), slope)
    angle = arctan(slope)
    angle = switch(_is_negative(x), like(np.pi, y) - angle, angle)
    sign = switch(_is_negative(y), like(-1, y), like(1, y))  # ONNX Runtime's -(0) is 0
    return [cast(angle * sign, dtype)]


def _polynomial(v: Variable, coefficients: Sequence[float]) -> Variable:
    total: Variable = like(coefficients[-1], v)
    for c in reversed(coefficients[:-1]):
        total = total * v + like(c, v)
    return total


#: Stirling's series of ``gammaln`` in ``1 / x^2``, times x (NIST's DLMF 5.11.1).
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)


def _near_2() -> list[float]:
    """The series of ``gammaln(2 + d)`` over ``d``, for ``|d|`` to 0.5 (DLMF 5.7.3)."""
    from scipy.special import zetac

    return [1 - np.euler_gamma, *((-1) ** k * float(zetac(k)) / k for k in range(2, 30))]


def _log_gamma_of_positive(x: Variable) -> Variable:
    """Around the zeros 1 and 2 a series, elsewhere Stirling's, from 10 on after a product."""
    one, ten = like(1, x), like(10, x)
    from_2 = ge(x, like(1.5, x))
    d = clip(x - switch(from_2, like(2, x), one), like(-0.5, x), like(0.5, x))
    near = d * _polynomial(d, _near_2())
    near = switch(from_2, near, near - log1p(d))
    small = lt(x, ten)
    product: Variable = one
    for k in range(8):
        product = product * switch(small, x + like(k, x), one)
    z = switch(small, x + like(8, x), x)
    half_log = like(0.5 * np.log(2 * np.pi), x)
    tail = inv(z) * _polynomial(inv(z * z), _STIRLING)
    far = (z - like(0.5, x)) * (log(z) - one) - like(0.5, x) + half_log + tail - log(product)
    inside = and_(ge(x, like(0.5, x)), lt(x, like(2.5, x)))
    return switch(inside, near, switch(isinf(x), x, far))


def _log_gamma(op: Any, x: Variable) -> list[Variable]:
    """Computed in float64. Below 0.5 it is that of ``1 + x`` or ``-x`` by a functional equation."""
    dtype = op(x).type.dtype
    v = cast(x, "float64")
    zero, one, half = like(0, v), like(1, v), like(0.5, v)
    size = absolute(v)
    below, tiny = lt(v, zero), lt(size, half)
    found = _log_gamma_of_positive(switch(tiny, one + size, size))
    found = switch(tiny, found - log(size), found)
    part = size - floor(size)  # of the distance to an integer, whose sine is exact
    sine = sin(like(np.pi, v) * minimum(part, one - part))
    mirrored = log(like(np.pi, v) / (size * sine)) - found
    whole = eq(part, zero)
    mirrored = switch(or_(whole, isinf(v)), like(np.inf, v), mirrored)
    return [cast(switch(below, mirrored, found), dtype)]


#: For each op a function of it and its inputs, which gives its outputs.
EXPRESSIONS: dict[str, Expression] = {
    "SoftmaxCrossentropy": _crossentropy, "SoftmaxCrossentropyGrad": _crossentropy_grad,
    "CrossentropyCategorical1HotGrad": _categorical_grad, "PlaceLabel": _place_label,
    "SoftmaxGrad": _softmax_grad, "LogSoftmaxGrad": _log_softmax_grad,
    "LogSoftmaxGradOfLogits": _log_softmax_grad_of_logits,
    "LayerNormGrad": _norm_grad, "BatchNormGrad": _norm_grad,
    "GeluSlope": _gelu_slope, "Step": _step, "ArcTan2": _arctan2, "GammaLn": _log_gamma,
}  # fmt: skip
