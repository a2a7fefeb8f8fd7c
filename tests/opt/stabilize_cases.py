"""Records of stabilisation, of softmax and cross-entropies, and of what nobody reads."""

from __future__ import annotations

import math

import numpy as np

from symdnn.graph.variable import constant
from symdnn.ops.array import reduce as R
from symdnn.ops.array.advanced_index import AdvancedSubtensor
from symdnn.ops.array.create import arange
from symdnn.ops.array.moments import mean
from symdnn.ops.array.take import OneHot, take_along_axis, to_one_hot
from symdnn.ops.attention.attention import Attention, AttentionGrad
from symdnn.ops.attention.scores import Scores
from symdnn.ops.control.control import IfElse, ifelse
from symdnn.ops.core.gradient_control import assert_
from symdnn.ops.core.shape import DimShuffle, dimshuffle, shape_i
from symdnn.ops.elementwise import arithmetic as A
from symdnn.ops.elementwise import math as M
from symdnn.ops.elementwise.activations import gelu, sigmoid, softplus
from symdnn.ops.elementwise.comparison import eq, ge, lt, switch
from symdnn.ops.elementwise.rounding import floor
from symdnn.ops.elementwise.special import (
    erf,
    erfc,
    erfcx,
    exprel,
    gamma,
    gammaln,
    log_erfc,
    logit,
)
from symdnn.ops.linalg.products import BatchedDot, Dot
from symdnn.ops.nn import crossentropy as X
from symdnn.ops.nn import softmax as S
from symdnn.ops.nn.batchnorm import BatchNormTrain
from symdnn.ops.nn.ctc import CTCCosts, CTCLoss
from symdnn.ops.nn.dropout import Dropout
from symdnn.ops.nn.rnn import RNNForward, RNNGrad
from tests.opt.harness import MAT, TWO, RuleCase, boolean, f64, i64

SHAPES = ("size_of_result", "mul_one", "sub_zero")
VIEWS = ("keepdims_after", "dimshuffle_of_dimshuffle", "elemwise_of_dimshuffles")
POSITIVE = (f64("n", "m", low=0.1, high=3.0),)
LABELLED = (f64("n", 4), i64("n", low=0, high=3))


def C(value: float) -> object:
    return constant(value, dtype="float64")


def running_mean(x: object, y: object) -> object:
    """A mean whose weights were brought into range by their maximum."""
    top = A.maximum(x, y)
    a, b = M.exp(x - top), M.exp(y - top)
    return (a * x + b * y) / (a * 2.0 + b)


FORMS = [
    RuleCase("log_of_one_plus", POSITIVE, lambda x: M.log(1 + x), M.log1p, lambda x: M.log(2 + x)),
    RuleCase("log_of_one_minus", (f64("n", high=0.5),), lambda x: M.log(1 - x),
             lambda x: M.log1p(-x), lambda x: M.log(x - 1)),
    RuleCase("exp_minus_one", MAT, lambda x: C(-1) + M.exp(x), M.expm1, lambda x: 1 + M.exp(x)),
    RuleCase("one_minus_exp", MAT, lambda x: 1 - M.exp(x), lambda x: -M.expm1(x),
             lambda x: 2 - M.exp(x)),
    RuleCase("gelu_written_out", MAT, lambda x: 0.5 * x * erfc(x * -(0.5**0.5)), gelu,
             lambda x: 0.5 * x * erfc(x * -0.7)),
    RuleCase("exp_minus_one_over_x", MAT, lambda x: M.expm1(x) / x, exprel,
             lambda x: M.expm1(x) / A.sqr(x)),
    RuleCase("one_minus_exp_over_x", MAT, lambda x: -M.expm1(-x) / x, lambda x: exprel(-x),
             lambda x: -M.expm1(-x) / A.sqr(x)),
    RuleCase("expm1_of_negative_over_x", MAT, lambda x: M.expm1(-x) / x, lambda x: -exprel(-x),
             lambda x: M.expm1(-x) / A.sqr(x)),
    RuleCase("one_minus_erf", MAT, lambda x: 1 - erf(x), erfc, lambda x: erf(x) - 1),
    RuleCase("one_plus_erf", MAT, lambda x: 1 + erf(x), lambda x: erfc(-x), lambda x: 2 + erf(x)),
    RuleCase("exp_of_square_times_erfc", MAT, lambda x: M.exp(A.sqr(x)) * erfc(x), erfcx,
             lambda x: M.exp(x) * erfc(x)),
    RuleCase("exp_of_minus_square_over_erfc", MAT, lambda x: M.exp(-A.sqr(x)) / erfc(x),
             lambda x: A.inv(erfcx(x)), lambda x: M.exp(-x) / erfc(x),
             miss_args=(f64("n", "m", low=0.1),)),
    RuleCase("power_of_one_plus_exp", MAT, lambda x: (1 + M.exp(x)) ** -1, lambda x: sigmoid(-x),
             lambda x: (1 + M.exp(x)) ** -2),
    RuleCase("one_minus_erfc", MAT, lambda x: 1 - erfc(x), erf, lambda x: 1 + erfc(x)),
    RuleCase("log_of_sigmoid", MAT, lambda x: M.log(sigmoid(x)), lambda x: -softplus(-x),
             lambda x: M.log(-sigmoid(x))),
    RuleCase("log1p_of_neg_sigmoid", MAT, lambda x: M.log1p(-sigmoid(x)), lambda x: -softplus(x),
             lambda x: M.log1p(sigmoid(x))),
    RuleCase("one_minus_sigmoid", MAT, lambda x: 1 - sigmoid(x), lambda x: sigmoid(-x),
             lambda x: sigmoid(x) - 1),
    RuleCase("log1p_of_exp", MAT, lambda x: M.log1p(M.exp(x)), softplus,
             lambda x: M.log1p(M.expm1(x))),
    RuleCase("inv_of_one_plus_exp", MAT, lambda x: A.inv(1 + M.exp(x)), lambda x: sigmoid(-x),
             lambda x: A.inv(2 + M.exp(x))),
    RuleCase("div_by_one_plus_exp", TWO, lambda x, y: y / (1 + M.exp(-x)),
             lambda x, y: y * sigmoid(x), lambda x, y: y / (2 + M.exp(x))),
    RuleCase("exp_over_one_plus_exp", MAT, lambda x: M.exp(x) / (1 + M.exp(x)), sigmoid,
             lambda x: M.exp(-x) / (1 + M.exp(x))),
    RuleCase("exp_times_sigmoid", MAT, lambda x: M.exp(x) * sigmoid(-x), sigmoid,
             lambda x: M.exp(x) * sigmoid(x)),
    RuleCase("exp_neg_times_sigmoid", MAT, lambda x: M.exp(-x) * sigmoid(x),
             lambda x: sigmoid(-x), lambda x: M.exp(-x) * sigmoid(-x)),
    RuleCase("log_of_exp_plus_exp", TWO, lambda x, y: M.log(M.exp(x) + M.exp(y)), M.logaddexp,
             lambda x, y: M.log(M.exp(x) - M.exp(y))),
    RuleCase("log_of_gamma", MAT, lambda x: M.log(gamma(x)),
             lambda x: gammaln(x) + switch(
                 ge(gamma(x), 0) & (ge(x, 0) | eq(floor(x) % 2, 0)), C(0), C(np.nan)),
             lambda x: M.log(gammaln(x))),
    RuleCase("log_of_gamma", MAT, lambda x: M.log(gamma(M.exp(x))), lambda x: gammaln(M.exp(x)),
             lambda x: M.log(-gamma(M.exp(x))), id="log_of_gamma_of_positive"),
    RuleCase("log_of_abs_gamma", MAT, lambda x: M.log(abs(gamma(x))), gammaln,
             lambda x: M.log(A.sqr(gamma(x)))),
    RuleCase("log_of_sum_of_exp", MAT, lambda x: M.log(M.exp(x).sum(axis=1)),
             lambda x: R.logsumexp(x, axis=1),
             lambda x: M.log(M.exp(x).sum(axis=1, dtype="float32"))),
    RuleCase("log_of_sum_of_exp", MAT, lambda x: M.log(M.exp(x).sum(axis=1, keepdims=True)),
             lambda x: dimshuffle(R.logsumexp(x, axis=1), (0, "x")), lambda x: M.log(x.sum(axis=1)),
             beside=VIEWS, id="log_of_sum_of_exp_keepdims"),
    RuleCase("softmax_of_exp_over_sum", MAT,
             lambda x: M.exp(x) / M.exp(x).sum(axis=1, keepdims=True),
             lambda x: S.softmax(x, axis=1), lambda x: M.exp(x) / M.exp(x).sum(keepdims=True),
             beside=("keepdims_after",)),
    RuleCase("log_softmax_of_difference", MAT,
             lambda x: x - R.logsumexp(x, axis=1, keepdims=True),
             lambda x: S.logsoftmax(x, axis=1), lambda x: x - R.logsumexp(x, keepdims=True),
             beside=("keepdims_after",)),
    RuleCase("exp_of_log_softmax", MAT, lambda x: M.exp(S.logsoftmax(x, axis=1)),
             lambda x: S.softmax(x, axis=1), lambda x: M.exp(M.log(x * x))),
    RuleCase("mean_of_squares_minus_square_of_mean", MAT,
             lambda x: mean(A.sqr(x), axis=1) - A.sqr(mean(x, axis=1)),
             None,
             lambda x: mean(A.sqr(x), axis=1) - A.sqr(x.sum(axis=1) / C(7)), beside=SHAPES,
             made=(DimShuffle,)),
    RuleCase("mean_of_squares_minus_square_of_mean", (*MAT, f64(low=1)),
             lambda x, n: mean(A.sqr(x)) - A.sqr(mean(x)), None,
             lambda x, n: A.sqr(x).sum() / n - A.sqr(x.sum() / n), made=(DimShuffle,),
             beside=SHAPES, id="variance_of_all"),
    RuleCase("mean_of_squares_minus_square_of_mean", (f64("n", 4),),
             lambda x: C(0.25) * A.sqr(x).sum(axis=1) - A.sqr(C(0.25) * x.sum(axis=1)),
             lambda x: C(0.25) * A.sqr(
                 x - dimshuffle(C(0.25) * x.sum(axis=1), (0, "x"))).sum(axis=1),
             lambda x: A.sqr(C(0.25) * x.sum(axis=1)) - C(0.25) * A.sqr(x).sum(axis=1),
             id="variance_of_known_count"),
]  # fmt: skip


def p(x):
    return S.Softmax(1)(x)


def logp(x):
    return S.LogSoftmax(1)(x)


def fused(x, labels):
    return X.SoftmaxCrossentropy(1)(x, labels)


def place(g, x, labels):
    return X.place_label(g, labels, 4, 1)


def rows(labels):
    return arange(shape_i(labels, 0))


def column(x):
    return x.max(axis=1, keepdims=True)


GENERAL = [
    RuleCase("logit_of_exponential", MAT, lambda x: logit(sigmoid(x).T), lambda x: x.T,
             lambda x: logit(x.T), miss_args=(f64("n", "m", low=0.1, high=0.9),)),
    RuleCase("logit_of_exponential", MAT, lambda x: logit(M.exp(-A.sqr(x)) * 0.5),
             lambda x: (lambda v: M.log(v) - M.log1p(-v))(M.exp(-A.sqr(x)) * 0.5),
             lambda x: logit(sigmoid(x) + 0.0 * x), id="logit_of_scaled"),
    RuleCase("log_of_exponential", MAT, lambda x: M.log(sigmoid(x).T), lambda x: (-softplus(-x)).T,
             lambda x: M.log(x.T), id="log_of_moved"),
    RuleCase("log_of_exponential", TWO, lambda x, y: M.log(y * M.exp(x)), lambda x, y: M.log(y) + x,
             lambda x, y: M.log(x * y), (f64("n", "m", low=0.1), f64("n", "m", low=0.1)),
             id="log_of_product"),
    *(
        RuleCase("log_of_exponential", TWO, lambda x, y, log=log: log(y * M.exp(x)),
                 lambda x, y, n=base: (M.log(y) + x) * constant(1 / math.log(n), dtype="float64"),
                 lambda x, y, log=log: log(x * y), (f64("n", "m", low=0.1), f64("n", "m", low=0.1)),
                 id=f"log{base}_of_product")
        for base, log in ((2, M.log2), (10, M.log10))
    ),
    RuleCase("log_of_exponential", MAT, lambda x: M.log(erfc(x)), log_erfc, lambda x: M.log(erf(x)),
             id="log_of_erfc"),
    RuleCase("log_of_exponential", (f64("n", "m", high=-0.1),), lambda x: M.log(-M.expm1(x)), None,
             lambda x: M.log(-x), made=(M.Log1p,), id="log_of_one_minus_exp"),
    RuleCase("log1p_of_exponential", TWO, lambda x, y: M.log1p(M.exp(x) * M.exp(y)),
             lambda x, y: softplus(x + y), lambda x, y: M.log1p(x * y),
             (f64("n", "m", low=0.1), f64("n", "m", low=0.1))),
    RuleCase("quotient_of_exponentials", TWO, lambda x, y: M.exp(x) / M.exp(y),
             lambda x, y: M.exp(x - y), lambda x, y: M.exp(x) / (1 + A.sqr(y))),
    RuleCase("quotient_of_exponentials", TWO, lambda x, y: M.exp(x) / M.exp(y),
             lambda x, y: M.exp(x - y), running_mean, id="of_running_sums"),
    RuleCase("quotient_of_exponentials", MAT, lambda x: M.exp(x) / M.exp(x).sum(),
             None, lambda x: x / M.exp(x).sum(), gone=(A.TrueDiv,), id="softmax_of_all"),
    RuleCase("one_minus", MAT, lambda x: 1 - sigmoid(x).T, lambda x: sigmoid(-x).T,
             lambda x: 1 - x.T),
    RuleCase("one_minus", MAT, lambda x: sigmoid(x) - C(1), lambda x: -sigmoid(-x),
             lambda x: sigmoid(x) - C(2), id="minus_one"),
    RuleCase("one_minus", MAT, lambda x: C(0.5) - C(0.5) * erf(x), lambda x: C(0.5) * erfc(x),
             lambda x: C(0.5) - C(0.25) * erf(x), id="half_minus_half"),
    RuleCase("one_minus", MAT, lambda x: 1 - S.Softmax(1)(x), None,
             lambda x: 2 - S.Softmax(1)(x), made=(R.Sum,), id="one_minus_softmax"),
    RuleCase("one_minus", MAT, lambda x: 1 - M.exp(logp(x)), None,
             lambda x: 2 - M.exp(logp(x)), made=(R.Sum,), id="one_minus_exp_of_log_softmax"),
    RuleCase("one_minus", MAT, lambda x: 1 - C(0.5) * erfc(x), lambda x: C(0.5) * erfc(-x),
             lambda x: 1 - C(0.25) * erfc(x), id="other_tail"),
    RuleCase("one_minus", MAT, lambda x: 1 - -M.expm1(x), lambda x: M.exp(x),
             lambda x: 2 - -M.expm1(x), id="one_minus_negative_expm1"),
    RuleCase("one_plus_negative", MAT, lambda x: 1 + M.expm1(x), lambda x: M.exp(x),
             lambda x: 2 + M.expm1(x), id="one_plus_expm1"),
    RuleCase("one_plus_negative", MAT, lambda x: 1 + -sigmoid(x), lambda x: sigmoid(-x),
             lambda x: 1 + sigmoid(x)),
    RuleCase("one_plus_negative", MAT, lambda x: 1 + M.tanh(x),
             lambda x: C(2) * sigmoid(C(2) * x), lambda x: 2 + M.tanh(x), id="one_plus_tanh"),
    RuleCase("softmax_without_shift", MAT, lambda x: S.Softmax(1)(x - column(x)), S.Softmax(1),
             lambda x: S.Softmax(0)(x - column(x)), beside=VIEWS, checks=False),
]  # fmt: skip

SOFTMAX = [
    RuleCase("softmax_beside_its_logarithm", MAT, lambda x: p(x) - logp(x),
             lambda x: M.exp(logp(x)) - logp(x), lambda x: S.Softmax(0)(x) - logp(x)),
    RuleCase("gradient_by_the_logarithm", TWO,
             lambda x, g: logp(x) - S.SoftmaxGrad(1)(M.exp(logp(x)), g),
             lambda x, g: logp(x) - S.LogSoftmaxGrad(1)(logp(x), g * M.exp(logp(x))),
             lambda x, g: logp(x) - S.SoftmaxGrad(1)(M.exp(S.LogSoftmax(0)(x)), g)),
    RuleCase("sum_of_log_softmax_gradients", (f64("n", "m"),) * 3,
             lambda x, a, b: S.LogSoftmaxGrad(1)(x, a) + S.LogSoftmaxGrad(1)(x, b),
             lambda x, a, b: S.LogSoftmaxGrad(1)(x, a + b),
             lambda x, a, b: S.LogSoftmaxGrad(1)(x, a) + S.LogSoftmaxGrad(1)(b, x)),
    RuleCase("log_of_softmax", MAT, lambda x: M.log(p(x)), logp, lambda x: M.log(sigmoid(x))),
    RuleCase("crossentropy_of_softmax", LABELLED,
             lambda x, t: X.CrossentropyCategorical1Hot(1)(p(x), t), lambda x, t: fused(x, t)[0],
             lambda x, t: X.CrossentropyCategorical1Hot(1)(A.abs(x), t)),
    RuleCase("log_softmax_at_labels", LABELLED, lambda x, t: X.pick_label(logp(x), t),
             lambda x, t: -fused(x, t)[0], lambda x, t: X.pick_label(x, t)),
    RuleCase("log_of_softmax_at_labels", LABELLED, lambda x, t: M.log(X.pick_label(p(x), t)),
             lambda x, t: -fused(x, t)[0], lambda x, t: M.log(X.pick_label(A.abs(x), t))),
    RuleCase("rows_at_labels", LABELLED, lambda x, t: p(x)[rows(t), t], None,
             lambda x, t: x[rows(t), t], made=(X.PickLabel,)),
    RuleCase("rows_at_labels", (f64(3, 4), i64(3, low=-4, high=3)),
             lambda x, t: logp(x)[rows(t), t], None, lambda x, t: p(x)[t, rows(t)],
             made=(X.PickLabel,), id="rows_at_negative_labels"),
    RuleCase("rows_at_labels", LABELLED, lambda x, t: logp(x)[rows(x), t], None,
             lambda x, t: x[rows(x), t], made=(X.PickLabel,), id="all_rows_at_labels"),
    RuleCase("rows_at_labels", (f64(3, 4), i64(3, low=0, high=3)),
             lambda x, t: logp(x)[np.arange(3), t], None,
             lambda x, t: logp(x)[np.arange(3)[::-1], t],
             made=(X.PickLabel,), id="constant_rows_at_labels"),
    RuleCase("rows_at_labels", LABELLED,
             lambda x, t: logp(x)[rows(t).dimshuffle(0, "x"), t.dimshuffle(0, "x")], None,
             lambda x, t: logp(x)[rows(t).dimshuffle(0, "x"), t.dimshuffle("x", 0)],
             made=(X.PickLabel,), id="columns_at_labels"),
    RuleCase("rows_at_labels", (f64(3, 4, 5), i64(3, 4, low=-5, high=4)),
             lambda x, t: take_along_axis(S.LogSoftmax(2)(x), t.dimshuffle(0, 1, "x"), 2), None,
             lambda x, t: take_along_axis(x, t.dimshuffle(0, 1, "x"), 2),
             made=(X.PickLabel,), gone=(AdvancedSubtensor,), id="stacks_at_labels"),
    RuleCase("rows_at_labels", (f64("n", 4, "m"), i64("n", "m", low=0, high=3)),
             lambda x, t: take_along_axis(S.Softmax(1)(x), t.dimshuffle(0, "x", 1), 1), None,
             lambda x, t: take_along_axis(S.Softmax(2)(x), t.dimshuffle(0, "x", 1), 1),
             made=(X.PickLabel,), gone=(AdvancedSubtensor,), id="stacks_of_columns_at_labels"),
    RuleCase("log_sum_exp_without_label", LABELLED,
             lambda x, t: R.logsumexp(x, axis=1) - x[rows(t), t], None,
             lambda x, t: R.logsumexp(x, axis=0)[t] - x[rows(t), t],
             made=(X.SoftmaxCrossentropy,), gone=(R.LogSumExp,)),
    RuleCase("log_sum_exp_without_label", LABELLED,
             lambda x, t: R.logsumexp(x, axis=1).dimshuffle(0, "x")
             - x[rows(t).dimshuffle(0, "x"), t.dimshuffle(0, "x")], None,
             lambda x, t: R.logsumexp(x, axis=1)
             - x[rows(t).dimshuffle(0, "x"), t.dimshuffle(0, "x")],
             made=(X.SoftmaxCrossentropy,), gone=(R.LogSumExp,), id="columns_without_label"),
    RuleCase("log_sum_exp_without_label", (f64(3, 4, 5), i64(3, 4, low=0, high=4)),
             lambda x, t: R.logsumexp(x, axis=2)
             - take_along_axis(x, t.dimshuffle(0, 1, "x"), 2).dimshuffle(0, 1), None,
             lambda x, t: R.logsumexp(x, axis=2)
             - take_along_axis(x, t.dimshuffle(0, 1, "x"), 2).dimshuffle(0, 1) * 2,
             made=(X.SoftmaxCrossentropy,), gone=(R.LogSumExp,), id="stacks_without_label"),
    RuleCase("log_sum_exp_without_label", LABELLED,
             lambda x, t: R.logsumexp(x, axis=1) - X.pick_label(x, t),
             lambda x, t: fused(x, t)[0],
             lambda x, t: R.logsumexp(x, axis=1) - X.pick_label(A.abs(x), t),
             id="log_sum_exp_without_picked"),
    RuleCase("sum_at_one_hot", LABELLED,
             lambda x, t: (to_one_hot(t, shape_i(x, 1), "float64") * logp(x)).sum(axis=1), None,
             lambda x, t: (to_one_hot(t, shape_i(x, 1), "float64") * logp(x)).sum(axis=0),
             made=(X.SoftmaxCrossentropy,), gone=(OneHot,)),
    RuleCase("sum_at_one_hot", LABELLED,
             lambda x, t: (logp(x) * to_one_hot(t, shape_i(x, 1), "float64")).sum(), None,
             lambda x, t: (x * to_one_hot(t, shape_i(x, 1), "float64")).sum(),
             made=(X.SoftmaxCrossentropy,), gone=(OneHot,), id="sum_of_all_at_one_hot"),
]  # fmt: skip

#: Query, key turned, value: stacks of matrices, and of heads.
QKV = (f64(2, "n", 4), f64(2, 4, "m"), f64(2, "m", 3))


def attend(q, k, v, axis=2, mask=lambda s: s):
    return BatchedDot()(S.Softmax(axis)(mask(BatchedDot()(q, k) * C(0.5))), v)


ATTENTION = [
    RuleCase("recognise_attention", QKV, attend, None, lambda q, k, v: attend(q, k, v, axis=1),
             gone=(BatchedDot, S.Softmax), made=(Attention,)),
    RuleCase("recognise_attention", (*QKV, f64(2, "n", "m")),
             lambda q, k, v, m: attend(q, k, v, mask=lambda s: s + m), None,
             lambda q, k, v, m: attend(q, k, v, mask=lambda s: s * m),
             gone=(BatchedDot, S.Softmax), made=(Attention,), id="attention_with_a_mask"),
    RuleCase("recognise_attention", (f64("n", 4), f64("m", 4), f64("m", 3)),
             lambda q, k, v: Dot()(S.Softmax(1)(Dot()(q, k.dimshuffle(1, 0))), v), None,
             lambda q, k, v: Dot()(S.Softmax(0)(Dot()(q, k.dimshuffle(1, 0))), v),
             gone=(Dot, S.Softmax), made=(Attention,), id="attention_of_matrices"),
]  # fmt: skip


def train(x, g, b, m, v, running=True):
    extra = (np.float64(0.1), m, v) if running else ()
    return BatchNormTrain((0,), 1e-5, running)(x, g, b, *extra)


def branch(c, yes, no):
    return IfElse(len(yes))(c, *yes, *no)


NORM = (f64("n", "m"), *[f64(1, "m", low=0.5)] * 4)
NET = (f64(24), f64("n", 2, 3), f64(1, 2, 3))
#: A net's parameters, and of two lanes of two sequences x, hx, y, dy and dhy.
LANES = (f64(24), *[f64(k, 2, 2, 3) for k in ("n", 1, "n", "n", 1)])
LAZY = (boolean(), *TWO)
ROWS = f64("n", 2, 3, 4)
MASKED = (*[ROWS] * 4, f64("n", 2, 3), ROWS, f64(1, 2, 3, 3))


def net(w, x, h):
    return RNNForward("rnn_tanh", 3, 1)(w, x, h)


def of_lanes(w, *given):
    reserve = net(w, *(v.reshape((v.shape[0], 4, 3), ndim=3) for v in given[:2]))[-1]
    return RNNGrad("rnn_tanh", 3, 1, lanes=True)(w, *given, reserve)


def without_weights(*given):
    node = of_lanes(*given)[0].owner
    return node.op.without_weights(node.inputs)


def dropped(x):
    """The state after two draws; the second one's values and mask are not read."""
    state, rate = constant(np.array([5, 2], np.uint64)), np.float32(0.5)
    y, _, new = Dropout()(state, x, rate)
    return y, Dropout()(new, M.exp(x), rate)[2]


def attend_grad(*given, **more):
    return AttentionGrad(Scores(extras=("mask",)), **more)(*given)


#: One query and one key, each of the query's heads with its own key or two with one.
ONE_KEY = {n: (f64(3, 2 * n, 1, 4), f64(3, 2, 1, 4), f64(3, 2, 1, 5)) for n in (1, 2)}

#: Scores, labels and lengths.
FRAMES = (f64(5, "n", 4), i64("n", 2, low=1), i64("n", low=3, high=5))

UNREAD = [
    RuleCase("ifelse_of_constant", TWO, lambda x, y: ifelse(True, x, y), lambda x, y: x,
             lambda x, y: ifelse(lt(x.sum(), 0), x, y)),
    RuleCase("ifelse_of_equals", LAZY, lambda c, x, y: branch(c, [x, x], [x, y])[0],
             lambda c, x, y: x, lambda c, x, y: ifelse(c, x, y)),
    RuleCase("ifelse_in_branch", LAZY, lambda c, x, y: ifelse(c, ifelse(c, x, -x), y),
             ifelse, lambda c, x, y: ifelse(c, ifelse(lt(x.sum(), 0), x, -x), y)),
    RuleCase("ifelse_without_unread", LAZY, lambda c, x, y: branch(c, [x, M.exp(x)], [y, y])[0],
             ifelse, lambda c, x, y: list(branch(c, [x, M.exp(x)], [y, y])), gone=(M.Exp,)),
    RuleCase("assert_without_known", MAT, lambda x: assert_(x, constant(True)), lambda x: x,
             lambda x: assert_(x, lt(x.sum(), 1e9))),
    RuleCase("batch_norm_without_running", NORM, lambda *a: list(train(*a)[:3]),
             lambda *a: list(train(*a, running=False)), lambda *a: list(train(*a)), checks=False),
    RuleCase("crossentropy_without_loss", LABELLED, lambda x, t: fused(x, t)[1],
             lambda x, t: logp(x), lambda x, t: list(fused(x, t)), checks=False),
    RuleCase("dropout_without_values", MAT, lambda x: list(dropped(x)), None,
             lambda x: [*Dropout()(constant(np.array([5, 2], np.uint64)), x, np.float32(0.5))[::2]],
             gone=(M.Exp,), checks=False),
    RuleCase("rnn_without_reserve", NET, lambda *a: list(net(*a)[:2]),
             lambda *a: list(RNNForward("rnn_tanh", 3, 1, keeps_reserve=False)(*a)),
             lambda *a: list(net(*a))),
    RuleCase("rnn_grad_without_weights", LANES, lambda *a: list(of_lanes(*a)[1:]),
             without_weights, lambda *a: list(of_lanes(*a))),
    RuleCase("ctc_without_gradients", FRAMES, lambda *a: CTCLoss()(*a)[0], CTCCosts(),
             lambda *a: list(CTCLoss()(*a))),
    RuleCase("attention_grad_without_mask", MASKED, lambda *a: list(attend_grad(*a)[:3]),
             lambda *a: list(attend_grad(*a, of_mask=False)), lambda *a: list(attend_grad(*a))),
    *[
        RuleCase("attention_to_one_key", ONE_KEY[heads], lambda *a, h=how: list(Attention(h)(*a)),
                 None, lambda q, k, v, h=how: list(Attention(h)(q.repeat(2, 2), k, v)),
                 gone=(Attention,), made=(R.Sum,), id=f"attention_to_one_key_{heads}_{how}")
        for heads in (1, 2)
        for how in (Scores(), Scores(0.5, 2.0, 0, 0), Scores(right=0, bottom_right=True))
    ],
]  # fmt: skip

CASES = [*FORMS, *GENERAL, *SOFTMAX, *ATTENTION, *UNREAD]
