from __future__ import annotations

import numpy as np
import scipy.special

from symdnn.ops.nn import crossentropy as C
from symdnn.ops.nn import softmax as S
from tests.op_table.record import OpCase, integers, normal, uniform


def slow_softmax(x, axis):
    y = np.empty_like(x)
    lead = np.moveaxis(x, axis, -1)
    out = np.moveaxis(y, axis, -1)
    for i in np.ndindex(*lead.shape[:-1]):
        terms = [float(np.exp(v)) for v in lead[i]]
        out[i] = [t / sum(terms) for t in terms]
    return y


def onehot(labels, classes, axis):
    return np.moveaxis(np.eye(classes)[labels], -1, axis)


def nll(x, labels, axis):
    return -(onehot(labels, x.shape[axis], axis) * np.log(slow_softmax(x, axis))).sum(axis)


def nll_grad(d, logp, labels):
    return d[:, None] * (np.exp(logp) - onehot(labels, logp.shape[1], 1))


def hot_grad(d, p, labels):
    return -d[:, None] * onehot(labels, p.shape[1], 1) / p


CASES = [
    OpCase(
        f"softmax_{n}d_axis{axis}",
        (S.Softmax, S.SoftmaxGrad),
        lambda x, axis=axis: S.softmax(x, axis=axis),
        (normal(*(3, 4, 5, 2)[:n]),),
        lambda x, axis=axis: slow_softmax(x, axis),
        grad=True,
    )
    for n, axis in ((1, 0), (2, 0), (2, 1), (3, 1), (4, 1))
] + [
    OpCase(
        "softmax_vector_is_a_row",
        (S.Softmax,),
        S.softmax,
        (normal(5),),
        lambda x: slow_softmax(x[None], 1),
    ),
    OpCase(
        "softmax_f32",
        (S.Softmax,),
        S.softmax,
        (normal(3, 4, dtype="float32"),),
        lambda x: scipy.special.softmax(x, 1),
        grad=False,
    ),
    OpCase(
        "softmax_f16",
        (S.Softmax,),
        S.softmax,
        (normal(3, 4, dtype="float16"),),
        lambda x: scipy.special.softmax(x.astype("f4"), 1),
        grad=False,
        rtol=2e-3,
    ),
    OpCase("softmax_empty_axis", (S.Softmax,), S.softmax, (normal(3, 0),), lambda x: x, grad=False),
    OpCase("softmax_no_rows", (S.Softmax,), S.softmax, (normal(0, 3),), lambda x: x, grad=False),
    OpCase(
        "softmax_grad",
        (S.SoftmaxGrad,),
        lambda y, d: S.SoftmaxGrad(1)(y, d),
        (uniform(0, 1, 3, 4), normal(3, 4)),
        lambda y, d: np.stack(
            [(np.diag(a) - np.outer(a, a)) @ b for a, b in zip(y, d, strict=True)]
        ),
    ),
    OpCase(
        "softmax_with_bias",
        (S.Softmax,),
        S.softmax_with_bias,
        (normal(3, 4), normal(4)),
        lambda x, b: slow_softmax(x + b, 1),
    ),
    OpCase(
        "logsoftmax",
        (S.LogSoftmax, S.LogSoftmaxGrad),
        S.logsoftmax,
        (normal(3, 4),),
        lambda x: np.log(slow_softmax(x, 1)),
    ),
    OpCase(
        "logsoftmax_axis1_of_3",
        (S.LogSoftmax,),
        lambda x: S.logsoftmax(x, 1),
        (normal(2, 3, 4),),
        lambda x: np.log(slow_softmax(x, 1)),
    ),
    OpCase(
        "logsoftmax_large",
        (S.LogSoftmax,),
        lambda x: S.logsoftmax(x * 1000.0),
        (normal(2, 3),),
        lambda x: scipy.special.log_softmax(x * 1000.0, 1),
        grad=False,
    ),
    OpCase(
        "logsoftmax_f16",
        (S.LogSoftmax,),
        S.logsoftmax,
        (normal(3, 4, dtype="float16"),),
        lambda x: scipy.special.log_softmax(x.astype("f4"), 1),
        grad=False,
        rtol=4e-3,
    ),
    OpCase(
        "logsoftmax_grad",
        (S.LogSoftmaxGrad,),
        S.LogSoftmaxGrad(1),
        (uniform(-2, 0, 3, 4), normal(3, 4)),
        lambda y, d: d - np.exp(y) * d.sum(1)[:, None],
    ),
    OpCase(
        "logsoftmax_grad_of_logits",
        (S.LogSoftmaxGradOfLogits,),
        S.LogSoftmaxGradOfLogits(1),
        (normal(3, 4), normal(3, 4)),
        lambda x, d: d - slow_softmax(x, 1) * d.sum(1)[:, None],
    ),
    OpCase(
        "pick_label",
        (C.PickLabel, C.PlaceLabel),
        C.pick_label,
        (normal(3, 4), integers(0, 4, 3)),
        lambda x, t: np.array([a[i] for a, i in zip(x, t, strict=True)]),
    ),
    OpCase(
        "pick_label_channel",
        (C.PickLabel,),
        lambda x, t: C.pick_label(x, t, 1),
        (normal(2, 3, 2, 2), integers(0, 3, 2, 2, 2, dtype="uint8")),
        lambda x, t: (x * onehot(t, 3, 1)).sum(1),
    ),
    OpCase(
        "place_label",
        (C.PlaceLabel,),
        lambda v, t: C.place_label(v, t, 4, 1),
        (normal(3), integers(0, 4, 3)),
        lambda v, t: v[:, None] * onehot(t, 4, 1),
    ),
    OpCase(
        "crossentropy_1hot",
        (C.CrossentropyCategorical1Hot,),
        C.categorical_crossentropy,
        (uniform(0.1, 0.9, 3, 4), integers(0, 4, 3, dtype="int32")),
        lambda p, t: -np.log(np.array([a[i] for a, i in zip(p, t, strict=True)])),
    ),
    OpCase(
        "crossentropy_1hot_no_rows",
        (C.CrossentropyCategorical1Hot,),
        C.categorical_crossentropy,
        (uniform(0, 1, 0, 4), integers(0, 4, 0)),
        lambda p, t: np.zeros(0),
        grad=False,
    ),
    OpCase(
        "crossentropy_1hot_grad",
        (C.CrossentropyCategorical1HotGrad,),
        lambda d, p, t: C.CrossentropyCategorical1HotGrad(1)(d, p, t),
        (normal(3), uniform(0.2, 0.9, 3, 4), integers(0, 4, 3)),
        hot_grad,
    ),
    OpCase(
        "crossentropy_dist",
        (),
        C.categorical_crossentropy,
        (uniform(0.1, 0.9, 3, 4), uniform(0, 1, 3, 4)),
        lambda p, t: np.array([-sum(b * np.log(a)) for a, b in zip(p, t, strict=True)]),
    ),
    OpCase(
        "softmax_crossentropy",
        (C.SoftmaxCrossentropy, C.SoftmaxCrossentropyGrad),
        C.softmax_crossentropy,
        (normal(3, 4), integers(0, 4, 3)),
        lambda x, t: nll(x, t, 1),
    ),
    OpCase(
        "softmax_crossentropy_both",
        (C.SoftmaxCrossentropy,),
        C.SoftmaxCrossentropy(1),
        (normal(3, 4), integers(0, 4, 3)),
        lambda x, t: (nll(x, t, 1), np.log(slow_softmax(x, 1))),
    ),
    OpCase(
        "softmax_crossentropy_sum",
        (C.SoftmaxCrossentropy,),
        lambda x, t: (lambda a, b: a.sum() + (b * b).sum())(*C.SoftmaxCrossentropy(1)(x, t)),
        (normal(3, 4), integers(0, 4, 3)),
        lambda x, t: nll(x, t, 1).sum() + (np.log(slow_softmax(x, 1)) ** 2).sum(),
    ),
    OpCase(
        "softmax_crossentropy_f16",
        (C.SoftmaxCrossentropy,),
        C.softmax_crossentropy,
        (normal(3, 4, dtype="float16"), integers(0, 4, 3)),
        lambda x, t: nll(x.astype("f8"), t, 1),
        grad=False,
        rtol=2e-3,
    ),
    OpCase(
        "softmax_crossentropy_grad",
        (C.SoftmaxCrossentropyGrad,),
        lambda d, y, t: C.SoftmaxCrossentropyGrad(1)(d, y, t),
        (normal(3), normal(3, 4), integers(0, 4, 3)),
        nll_grad,
    ),
    OpCase(
        "spatial_crossentropy",
        (C.SoftmaxCrossentropy,),
        C.spatial_crossentropy,
        (normal(2, 3, 2, 2), integers(0, 3, 2, 2, 2)),
        lambda x, t: nll(x, t, 1),
    ),
    OpCase(
        "crossentropy_softmax_1hot",
        (C.SoftmaxCrossentropy,),
        C.crossentropy_softmax_1hot,
        (normal(3, 4), integers(0, 4, 3)),
        lambda x, t: (nll(x, t, 1), slow_softmax(x, 1)),
    ),
    OpCase(
        "crossentropy_softmax_1hot_bias",
        (C.SoftmaxCrossentropy,),
        C.crossentropy_softmax_1hot_with_bias,
        (normal(3, 4), normal(4), integers(0, 4, 3)),
        lambda x, b, t: (nll(x + b, t, 1), slow_softmax(x + b, 1)),
    ),
    OpCase(
        "nll_loss",
        (C.PickLabel,),
        C.nll_loss,
        (normal(3, 4), integers(0, 4, 3)),
        lambda y, t: np.array([-a[i] for a, i in zip(y, t, strict=True)]),
    ),
    OpCase(
        "binary_crossentropy",
        (),
        C.binary_crossentropy,
        (uniform(0.1, 0.9, 3, 4), uniform(0, 1, 3, 4)),
        lambda p, t: -(t * np.log(p) + (1 - t) * np.log1p(-p)),
    ),
]
