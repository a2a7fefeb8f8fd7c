"""Forms that keep their precision: log1p, expm1, softplus, sigmoid, logsumexp, softmax, variance.

The left sides overflow, or round to 0 before a logarithm is taken; the right sides do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from symdnn.graph.pattern import Match, any_of, match, p, pattern_vars
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.array.reduce import LogSumExp, Sum
from symdnn.ops.core.shape import DimShuffle, dimshuffle
from symdnn.ops.elementwise.activations import sigmoid, softplus
from symdnn.ops.elementwise.arithmetic import (
    Cast,
    Sub,
    TrueDiv,
    inv,
    sqr,
    sub,
    true_div,
)
from symdnn.ops.elementwise.comparison import eq, ge, switch
from symdnn.ops.elementwise.math import Exp, Log, exp, expm1, log, log1p, logaddexp
from symdnn.ops.elementwise.rounding import floor
from symdnn.ops.elementwise.special import erf, erfc, erfcx, exprel, gamma, gammaln
from symdnn.ops.elemwise import like
from symdnn.ops.nn.softmax import LogSoftmax, Softmax
from symdnn.rewriting.facts import floating, is_nonnegative, made_by, node_of, number, real_float
from symdnn.rewriting.rewrite import Context, Family
from symdnn.stable.scaled import negated

FAMILY = Family("stabilize", ("numerics", "stabilize"))
rule, on = FAMILY.rule, FAMILY.on
x, y = pattern_vars("x y", when=real_float)
n, k = pattern_vars("n k")
square = any_of(sqr(x), x * x, x**2)


# -- near zero ------------------------------------------------------------------------------------

NEAR_ZERO = [
    rule("log_of_one_plus", log(1 + x), log1p(x), "local_log1p"),
    rule("log_of_one_minus", log(sub(1, x)), log1p(-x), "local_log1p"),
    rule("exp_minus_one", -1 + exp(x), expm1(x), "local_expm1"),
    rule("one_minus_exp", sub(1, exp(x)), -expm1(x), "local_expm1"),
    rule("exp_minus_one_over_x", true_div(expm1(x), x), exprel(x)),
    rule("one_minus_exp_over_x", true_div(-expm1(-x), x), exprel(-x)),
    rule("expm1_of_negative_over_x", true_div(expm1(-x), x), -exprel(-x)),
    rule("one_minus_erf", sub(1, erf(x)), erfc(x), "local_one_minus_erf"),
    rule("one_plus_erf", 1 + erf(x), erfc(-x), "local_one_add_neg_erf"),
    rule("one_minus_erfc", sub(1, erfc(x)), erf(x), "local_one_minus_erfc"),
    rule("exp_of_square_times_erfc", exp(square) * erfc(x), erfcx(x)),
    rule(
        "exp_of_minus_square_over_erfc",
        true_div(exp(any_of(-square, (-x) * x)), erfc(x)), inv(erfcx(x)),
    ),
]  # fmt: skip


# -- sigmoid and softplus -------------------------------------------------------------------------


def over_one_plus_exp(m: Match) -> Variable:
    """``n / (1 + exp(x))`` as a multiple of a sigmoid."""
    share = sigmoid(negated(m.x))
    return share if number(m.n) == 1 and m.n.type.ndim == m.x.type.ndim else m.n * share


SIGMOIDS = [
    rule(
        "log_of_sigmoid", log(sigmoid(x)), -softplus(-x),
        "local_log_sigmoid", "local_sigm_times_exp",
    ),
    rule("log1p_of_neg_sigmoid", log1p(-sigmoid(x)), -softplus(x), "local_log1m_sigm"),
    rule("one_minus_sigmoid", sub(1, sigmoid(x)), sigmoid(-x), "local_1msigmoid"),
    rule("log1p_of_exp", log1p(exp(x)), softplus(x), "local_log1p_exp", "local_log1pexp"),
    rule(
        "exp_over_one_plus_exp", true_div(exp(x), 1 + exp(x)), sigmoid(x),
        "local_exp_over_1_plus_exp",
    ),
    rule(
        "inv_of_one_plus_exp", inv(1 + exp(x)), lambda m: sigmoid(negated(m.x)),
        "local_inv_1_plus_exp",
    ),
    rule(
        "div_by_one_plus_exp", true_div(n, 1 + exp(x)), over_one_plus_exp, "local_inv_1_plus_exp",
    ),
    rule(
        "power_of_one_plus_exp", (1 + exp(x)) ** -1, lambda m: sigmoid(negated(m.x)),
        "local_inv_1_plus_exp",
    ),
    rule("exp_times_sigmoid", exp(x) * sigmoid(-x), sigmoid(x), "local_sigm_times_exp"),
    rule("exp_neg_times_sigmoid", exp(-x) * sigmoid(x), sigmoid(-x), "local_sigm_times_exp"),
]  # fmt: skip


# -- sums of exponentials -------------------------------------------------------------------------

OF_TWO = [
    rule("log_of_exp_plus_exp", log(exp(x) + exp(y)), logaddexp(x, y), "local_logaddexp"),
]


# -- factorials -----------------------------------------------------------------------------------


def log_of_gamma(m: Match) -> Variable:
    """``log(gamma(x))``: ``gammaln(x)``, and NaN where the function is negative."""
    value = gammaln(m.x)
    if is_nonnegative(m.x):
        return value
    # Between which whole numbers it is negative: far below 0 its value is 0 without a sign.
    positive = ge(m.x, 0) | eq(floor(m.x) % 2, 0)
    return value + switch(ge(gamma(m.x), 0) & positive, like(0, value), like(np.nan, value))


FACTORIALS = [
    rule("log_of_gamma", log(gamma(x)), log_of_gamma),
    rule("log_of_abs_gamma", log(abs(gamma(x))), gammaln(x)),
]


@on(
    Log,
    names=(
        "local_log_sum_exp",
        "local_log_add_exp",
    ),
)
def log_of_sum_of_exp(node: Apply, context: Context) -> Variable | None:
    """``log(sum(exp(x))) -> logsumexp(x)``."""
    found = _sum_of_exp(node.inputs[0])
    if found is None:
        return None
    op, inner = found
    reduced = LogSumExp(op.axes, op.keepdims)(inner)
    return _moved_as(node.inputs[0], reduced)


def _sum_of_exp(v: Variable) -> tuple[Any, Variable] | None:
    """(sum, x) when ``v`` is ``sum(exp(x))`` or a dimshuffle of it."""
    while made_by(v, DimShuffle):
        v = node_of(v).inputs[0]
    if not made_by(v, Sum):
        return None
    op: Any = node_of(v).op
    (e,) = node_of(v).inputs
    if not made_by(e, Exp) or op.dtype != e.type.dtype:
        return None
    inner = node_of(e).inputs[0]
    return (op, inner) if real_float(inner) else None


def _moved_as(v: Variable, reduced: Variable) -> Variable:
    """``reduced`` with the dimshuffles that are between a reduction and ``v``."""
    patterns = []
    while made_by(v, DimShuffle):
        patterns.append(node_of(v).op.pattern)
        v = node_of(v).inputs[0]
    for pattern in reversed(patterns):
        reduced = dimshuffle(reduced, pattern)
    return reduced


@on(TrueDiv, names=("local_softmax_from_exp",))
def softmax_of_exp_over_sum(node: Apply, context: Context) -> Variable | None:
    """``exp(x) / sum(exp(x))`` along one axis is the softmax of ``x``."""
    top, below = node.inputs
    axis = _softmax_axis(top, below)
    return None if axis is None else Softmax(axis)(node_of(top).inputs[0])


def _softmax_axis(top: Variable, below: Variable) -> int | None:
    found = _sum_of_exp(below)
    if found is None or not made_by(top, Exp):
        return None
    op, inner = found
    if node_of(top).inputs[0] is not inner:
        return None
    return _kept_axis(below, op, inner.type.ndim)


def _kept_axis(below: Variable, op: Any, ndim: int) -> int | None:
    """The one axis of the reduction ``op`` that ``below`` is, with that axis kept or put back."""
    if len(op.axes) != 1:
        return None
    if op.keepdims:
        return op.axes[0] if made_by(below, type(op)) else None
    if not made_by(below, DimShuffle):
        return None
    kept = iter(range(ndim))
    pattern = tuple("x" if i in op.axes else next(kept) for i in range(ndim))
    direct = made_by(node_of(below).inputs[0], type(op))
    return op.axes[0] if direct and node_of(below).op.pattern == pattern else None


@on(Sub, names=("local_logsoftmax",))
def log_softmax_of_difference(node: Apply, context: Context) -> Variable | None:
    """``x - logsumexp(x)`` along one axis is the logarithm of its softmax."""
    x, below = node.inputs
    total = below
    while made_by(total, DimShuffle):
        total = node_of(total).inputs[0]
    if not made_by(total, LogSumExp) or node_of(total).inputs[0] is not x or not x.type.is_float:
        return None
    axis = _kept_axis(below, node_of(total).op, x.type.ndim)
    return None if axis is None else LogSoftmax(axis)(x)


@on(Exp, names=("local_softmax_from_exp",))
def exp_of_log_softmax(node: Apply, context: Context) -> Variable | None:
    """``exp(log_softmax(x))`` is the softmax of ``x``, where nothing else reads the logarithm."""
    (v,) = node.inputs
    if not made_by(v, LogSoftmax) or not context.only_reader(v):
        return None
    return Softmax(node_of(v).op.axis)(node_of(v).inputs[0])


# -- variance -------------------------------------------------------------------------------------

_total = Sum(p.axes, False, p.dtype, p.acc_dtype)
_mean, _mean_of_squares = (any_of(_total(v) / n, k * _total(v)) for v in (x, sqr(x)))
_difference = _mean_of_squares - sqr(_mean)


@on(Sub)
def mean_of_squares_minus_square_of_mean(node: Apply, context: Context) -> Variable | None:
    """``mean(x**2) - mean(x)**2``, which may be negative, becomes the mean of ``(x - mean)**2``."""
    m = Match(node)
    if not match(_difference, node.outputs[0], m) or not floating(m):
        return None
    axes = m.params["axes"]
    count = context.shapes.product_key(context.shapes.dims(m.x)[a] for a in axes)
    if not _is_count(m.variables, count, context):
        return None
    total = Sum(axes, False, m.params["dtype"], m.params["acc_dtype"])

    def mean(u: Variable) -> Any:
        return total(u) / m.n if "n" in m.variables else m.k * total(u)

    kept = iter(range(m.x.type.ndim))
    pattern = ["x" if i in axes else next(kept) for i in range(m.x.type.ndim)]
    return mean(sqr(m.x - dimshuffle(mean(m.x), pattern)))  # type: ignore[no-any-return]


def _is_count(found: Mapping[str, Variable], count: tuple[int, Any], context: Context) -> bool:
    """Whether the divisor of both sums is known to be the number of elements ``count``."""
    if "k" in found:
        share = None if "n" in found else number(found["k"])
        return share is not None and not count[1] and np.isclose(share * count[0], 1, rtol=1e-6)
    divisor = found["n"]
    while made_by(divisor, Cast, DimShuffle):
        divisor = node_of(divisor).inputs[0]
    if isinstance(divisor, Constant):
        return not count[1] and number(divisor) == count[0]
    return divisor.type.ndim == 0 and context.shapes.product_key([divisor]) == count


RULES = [
    *NEAR_ZERO,
    *SIGMOIDS,
    *OF_TWO,
    *FACTORIALS,
    log_of_sum_of_exp,
    softmax_of_exp_over_sum,
    log_softmax_of_difference,
    exp_of_log_softmax,
    mean_of_squares_minus_square_of_mean,
]
