from __future__ import annotations

import numpy as np

from symdnn.graph.variable import as_variable
from symdnn.ops.nn.channels_last import Reorder
from symdnn.ops.nn.rnn_params import GATES, RNNShape
from symdnn.ops.vendor import gpudnn as G
from tests.op_table.conv import loop_conv, loop_grad_input, loop_grad_weight
from tests.op_table.lrn_ctc_transformer import (
    fixed,
    off_centre,
    sampler_grad,
    slow_ctc,
    slow_grid,
    slow_lrn,
    slow_lrn_grad,
    slow_sample,
)  # fmt: skip
from tests.op_table.normalization import finite_grad, running, slow_norm
from tests.op_table.pool import loop_max_grad, loop_pool
from tests.op_table.random import drop_expected, state
from tests.op_table.record import OpCase, away_from, distinct, normal, uniform
from tests.op_table.rnn import B, H, T, X, slow_rnn
from tests.op_table.softmax import slow_softmax

EPS = 1e-3


# -- convolution: by hand, as in Theano -----------------------------------------------------------


def settings(mode="conv", groups=1, stride=(1, 1), dilation=(1, 1), pad=(1, 0)):
    desc = G.GpuDnnConvDesc(pad, stride, dilation, mode, "float32", groups)
    both = tuple((p, p) for p in pad)
    loop = {"pad": both, "stride": stride, "dilation": dilation, "groups": groups}
    return desc, {**loop, "flip": mode == "conv"}


def conv(name, alpha=None, beta=None, **more):
    desc, loop = settings(**more)
    x, w = (2, 4, 6, 5), (4, 4 // more.get("groups", 1), 3, 2)
    out = loop_conv(np.zeros(x), np.zeros(w), **loop).shape

    def build(x, w, out):
        words = {} if alpha is None else {"alpha": alpha, "beta": beta}
        return G.GpuDnnConv("none")(x, w, out, desc(w.shape), **words)

    def expected(x, w, out):
        return (alpha or 1) * loop_conv(x, w, **loop) + (beta or 0) * out

    draws = (normal(*x), normal(*w), normal(*out))
    return OpCase(f"gpudnn_conv_{name}", (G.GpuDnnConv,), build, draws, expected)


def conv_grads(name, alpha=1.0, beta=0.0, **more):
    desc, loop = settings(**more)
    x, w = (1, 2, 5, 4), (2, 2 // more.get("groups", 1), 3, 2)
    y = loop_conv(np.zeros(x), np.zeros(w), **loop).shape

    def of_weights(x, dy, dw):
        return G.GpuDnnConvGradW()(x, dy, dw, desc, alpha, beta)

    def of_images(w, dy, dx):
        return G.GpuDnnConvGradI()(w, dy, dx, desc, alpha, beta)

    return [
        OpCase(
            f"gpudnn_conv_grad_weights_{name}", (G.GpuDnnConvGradW,), of_weights,
            (normal(*x), normal(*y), normal(*w)),
            lambda x, dy, dw: alpha * loop_grad_weight(x, dy, w, **loop) + beta * dw,
            grad=beta != 0 or more != {},
        ),
        OpCase(
            f"gpudnn_conv_grad_images_{name}", (G.GpuDnnConvGradI,), of_images,
            (normal(*w), normal(*y), normal(*x)),
            lambda w, dy, dx: alpha * loop_grad_input(w, dy, *x[2:], **loop) + beta * dx,
        ),
    ]  # fmt: skip


CONV = [
    conv("plain"),
    conv("cross", mode="cross"),
    conv("strided", stride=(2, 1), dilation=(1, 2)),
    conv("groups", groups=2),
    conv("alpha_beta", alpha=0.5, beta=-2.0),
    *conv_grads("plain"),
    *conv_grads("strided", stride=(2, 1), dilation=(1, 2)),
    *conv_grads("alpha_beta", 0.5, -2.0, groups=2),
]


# -- pooling --------------------------------------------------------------------------------------


def pool(mode):
    want = {"max_deterministic": "max", "average": "average_inc_pad"}.get(mode, mode)
    return OpCase(
        f"gpudnn_pool_{mode}", (G.GpuDnnPool, G.GpuDnnPoolGrad),
        lambda x: G.GpuDnnPool(mode)(x, (3, 2), (2, 1), (1, 0)),
        (distinct(2, 2, 5, 4),),
        lambda x: loop_pool(x, (3, 2), (2, 1), (1, 0), want),
    )  # fmt: skip


def max_pool_grad(x, dy):
    y = G.GpuDnnPool("max")(x, (3, 2), (2, 1), (0, 0))
    return G.GpuDnnPoolGrad("max")(x, y, dy, (3, 2), (2, 1), (0, 0))


def mean_pool_grad(x, dy):
    return G.GpuDnnPoolGrad("average_inc_pad")(x, dy, dy, (2, 2), (2, 2), (0, 0))


POOL = [pool(m) for m in G.POOL_MODES] + [
    OpCase(
        "gpudnn_pool_3d", (G.GpuDnnPool,),
        lambda x: G.GpuDnnPool("average_exc_pad")(x, (2, 2, 2), (2, 1, 1), (1, 0, 1)),
        (normal(1, 2, 4, 3, 3),),
        lambda x: loop_pool(x, (2, 2, 2), (2, 1, 1), (1, 0, 1), "average_exc_pad"),
    ),
    OpCase(
        "gpudnn_pool_borders", (G.GpuDnnPool,),
        lambda x: G.GpuDnnPool("sum", ignore_border=False)(x, (3, 2), (2, 2), (0, 0)),
        (normal(1, 2, 6, 5),),
        lambda x: loop_pool(x, (3, 2), (2, 2), (0, 0), "sum", ignore_border=False),
    ),
    OpCase(
        "gpudnn_pool_grad_max", (G.GpuDnnPoolGrad,), max_pool_grad,
        (distinct(1, 3, 5, 4), normal(1, 3, 2, 3)),
        lambda x, dy: loop_max_grad(x[0], dy[0], (3, 2), (2, 1))[None],
    ),
    OpCase(
        "gpudnn_pool_grad_mean", (G.GpuDnnPoolGrad,), mean_pool_grad,
        (normal(1, 3, 5, 4), normal(1, 3, 2, 2)),
        lambda x, dy: np.pad(dy.repeat(2, 2).repeat(2, 3) / 4, ((0, 0), (0, 0), (0, 1), (0, 0))),
        grad=False,
    ),
]  # fmt: skip


# -- softmax, reductions, activations -------------------------------------------------------------


def rows(x):
    return slow_softmax(x.reshape(len(x), -1), 1).reshape(x.shape)


def softmax_gradient(dy, y, axes):
    return y * (dy - (y * dy).sum(axes, keepdims=True))


SOFTMAX = [
    OpCase(
        f"gpudnn_softmax_{algo}_{mode}", (G.GpuDnnSoftmax, G.GpuDnnSoftmaxGrad),
        G.GpuDnnSoftmax(algo, mode), (normal(2, 3, 2, 2),),
        lambda x, algo=algo, mode=mode: (np.log if algo == "log" else np.asarray)(
            slow_softmax(x, 1) if mode == "channel" else rows(x)
        ),
    )
    for algo in ("fast", "accurate", "log")
    for mode in ("channel", "instance")
] + [
    OpCase(
        "gpudnn_softmax_axis", (G.GpuDnnSoftmax,), G.GpuDnnSoftmax(axis=2), (normal(2, 3, 4),),
        lambda x: slow_softmax(x, 2),
    ),
    OpCase(
        "gpudnn_softmax_grad", (G.GpuDnnSoftmaxGrad,), G.GpuDnnSoftmaxGrad("accurate", "instance"),
        (normal(2, 3, 2), uniform(0.1, 1, 2, 3, 2)),
        lambda dy, y: softmax_gradient(dy, y, (1, 2)),
    ),
    OpCase(
        "gpudnn_softmax_grad_log", (G.GpuDnnSoftmaxGrad,), G.GpuDnnSoftmaxGrad("log"),
        (normal(2, 3, 2), normal(2, 3, 2)),
        lambda dy, y: dy - np.exp(y) * dy.sum(1, keepdims=True),
    ),
]  # fmt: skip

FORMULAS = {
    "add": lambda x: x.sum((0, 2)),
    "mul": lambda x: x.prod((0, 2)),
    "maximum": lambda x: x.max((0, 2)),
    "minimum": lambda x: x.min((0, 2)),
    "absmax": lambda x: abs(x).max((0, 2)),
    "avg": lambda x: x.mean((0, 2)),
    "norm1": lambda x: abs(x).sum((0, 2)),
    "norm2": lambda x: np.sqrt((x * x).sum((0, 2))),
}


def reduction(word, dtype="float64", indices=False):
    return G.GpuDnnReduction(word, (2, 0), dtype, dtype, indices)


def where(x, function):
    flat = x.transpose(1, 0, 2).reshape(x.shape[1], -1)
    return function(flat, 1).astype("uint32")


REDUCTION = [
    OpCase(
        f"gpudnn_reduction_{word}", (G.GpuDnnReduction,), reduction(word), (distinct(2, 3, 4),),
        formula, rtol=1e-5,
    )
    for word, formula in FORMULAS.items()
] + [
    OpCase(
        f"gpudnn_reduction_{word}_indices", (G.GpuDnnReduction,), reduction(word, indices=True),
        (distinct(2, 3, 4),), lambda x, word=word, f=f: (FORMULAS[word](x), where(x, f)),
    )
    for word, f in (("maximum", np.argmax), ("minimum", np.argmin))
]  # fmt: skip

ACTIVATION = [
    OpCase(
        f"gpudnn_activation_{mode}", (G.GpuDnnActivation,), G.GpuDnnActivation(mode, coef),
        (away_from((0.0, 0.7), 3, 4),), formula,
    )
    for mode, coef, formula in (
        ("relu", 1.0, lambda x: np.maximum(x, 0)),
        ("sigmoid", 1.0, lambda x: 1 / (1 + np.exp(-x))),
        ("tanh", 1.0, np.tanh),
        ("elu", 0.5, lambda x: np.where(x > 0, x, 0.5 * (np.exp(x) - 1))),
        ("clipped_relu", 0.7, lambda x: np.clip(x, 0, 0.7)),
    )
]  # fmt: skip


# -- normalisation --------------------------------------------------------------------------------

AXES = {"per-activation": (0,), "spatial": (0, 2, 3)}


def parameters(mode, count):
    shape = (1, 3, 1, 1) if mode == "spatial" else (1, 3, 2, 2)
    return (uniform(0.5, 1.5, *shape),) * count


BATCH_NORM = [
    case
    for mode, axes in AXES.items()
    for case in (
        OpCase(
            f"gpudnn_batch_norm_{mode}", (G.GpuDnnBatchNorm,),
            lambda x, g, b, mode=mode: G.GpuDnnBatchNorm(mode)(x, g, b, EPS),
            (normal(4, 3, 2, 2), *parameters(mode, 2)),
            lambda x, g, b, axes=axes: slow_norm(x, g, b, axes),
        ),
        OpCase(
            f"gpudnn_batch_norm_running_{mode}", (G.GpuDnnBatchNorm,),
            lambda x, g, b, m, v, mode=mode: G.GpuDnnBatchNorm(mode, True)(
                x, g, b, EPS, 0.3, running_mean=m, running_var=v
            ),
            (normal(4, 3, 2, 2), *parameters(mode, 4)),
            lambda x, g, b, m, v, axes=axes: running(x, g, b, m, v, axes, 0.3),
        ),
        OpCase(
            f"gpudnn_batch_norm_inference_{mode}", (G.GpuDnnBatchNormInference,),
            lambda *a, mode=mode: G.GpuDnnBatchNormInference(mode)(*a, EPS),
            (normal(4, 3, 2, 2), *parameters(mode, 4)),
            lambda x, g, b, m, v: (x - m) * g / np.sqrt(v + EPS) + b,
        ),
        OpCase(
            f"gpudnn_batch_norm_grad_{mode}", (G.GpuDnnBatchNormGrad,),
            lambda *a, mode=mode: G.GpuDnnBatchNormGrad(mode)(*a, epsilon=EPS),
            (normal(4, 3, 2, 2), normal(4, 3, 2, 2), *parameters(mode, 3)),
            lambda *a: finite_grad_over(*a),
            grad=False,
        ),
    )
]  # fmt: skip


def finite_grad_over(x, dy, g, mean, r):
    return finite_grad(x, dy, g, mean, r)


def lrn_grad(x, d):
    """The gradient at y = LRN(x): cuDNN computes y again from x, another one would not be seen."""
    y = G.GpuDnnLRN(4, 0.5, 0.75, 1.5)(x)
    return G.GpuDnnLRNGrad(4, 0.5, 0.75, 1.5)(x, y, d)


LRN = [
    OpCase(
        "gpudnn_lrn", (G.GpuDnnLRN,), G.GpuDnnLRN(4, 0.5, 0.75, 1.5), (normal(2, 6, 2, 1),),
        lambda x: slow_lrn(x, 4, 0.5, 0.75, 1.5),
    ),
    OpCase(
        "gpudnn_lrn_grad", (G.GpuDnnLRNGrad,), lrn_grad,
        (normal(2, 6, 1, 1),) * 2,
        lambda x, d: slow_lrn_grad(x, slow_lrn(x, 4, 0.5, 0.75, 1.5), d, 4, 0.5, 0.75, 1.5),
    ),
]  # fmt: skip


# -- transformer, CTC, dropout --------------------------------------------------------------------

OTHERS = [
    OpCase(
        "gpudnn_transformer_grid", (G.GpuDnnTransformerGrid,),
        lambda t: G.GpuDnnTransformerGrid()(t, (2, 1, 3, 4)), (normal(2, 2, 3),),
        lambda t: slow_grid(t, 3, 4),
    ),
    OpCase(
        "gpudnn_transformer_sampler", (G.GpuDnnTransformerSampler,), G.GpuDnnTransformerSampler(),
        (normal(2, 2, 3, 4), off_centre(2, 2, 5)), slow_sample,
    ),
    OpCase(
        "gpudnn_transformer_grad_i", (G.GpuDnnTransformerGradI,), G.GpuDnnTransformerGradI(),
        (normal(2, 2, 3, 4), off_centre(2, 2, 2), normal(2, 2, 2, 2)),
        lambda x, g, d: sampler_grad(x, g, d), grad=False, rtol=1e-5,
    ),
    OpCase(
        "gpudnn_transformer_grad_t", (G.GpuDnnTransformerGradT,), G.GpuDnnTransformerGradT(),
        (normal(2, 3, 4, 2),),
        lambda d: np.einsum("nhwk,hwj->nkj", d, np.concatenate(
            [slow_grid(np.eye(2, 3)[None], 3, 4)[0], np.ones((3, 4, 1))], 2)),
    ),
    OpCase(
        "gpudnn_ctc", (G.GpuDnnCTCLoss,), lambda a, t, n: G.GpuDnnCTCLoss()(a, t, n)[0],
        (normal(4, 2, 3), fixed([[1, 2], [2, -1]]), fixed([4, 3])), slow_ctc,
    ),
    OpCase(
        "gpudnn_dropout", (G.GpuDnnDropoutOp, G.GpuDnnDropoutGrad),
        lambda s, x: G.GpuDnnDropoutOp(dropout=0.25)(s, x)[:2], (state(3), normal(3, 4)),
        lambda s, x: tuple(drop_expected((3, 4), 0.25, 1 / 0.75)(s, x)[i] for i in (0, 2)),
    ),
]  # fmt: skip


# -- recurrent networks ---------------------------------------------------------------------------


def rnn(mode, direction, lengths=False, keeps_reserve=True):
    s = RNNShape(mode, H, 2, "linear", direction)
    fields = {"hidden_size": H, "num_layers": 2, "lengths": lengths}
    cell = mode == "lstm"
    draws = [normal(s.size(X)), normal(T, B, X), *[normal(2 * s.directions, B, H)] * (1 + cell)]
    draws += [fixed([2, 4, 1], "int32")] * lengths

    def build(*args):
        op = G.GpuDnnRNNOp(mode, direction, **fields, keeps_reserve=keeps_reserve)
        return op(*args)[: 2 + cell]

    def expected(w, x, hx, *more):
        return slow_rnn(s, w, x, hx, more[0] if cell else None, more[-1] if lengths else None)

    name = f"gpudnn_rnn_{mode}_{direction}" + "_lengths" * lengths
    name += "" if keeps_reserve else "_inference"
    return OpCase(name, (G.GpuDnnRNNOp,), build, tuple(draws), expected, grad=False)


def rnn_backward(w, x, hx):
    """(dx, dhx, dw) of sum(y * y) / 2: the two gradient ops in a row."""
    fields = {"hidden_size": H, "num_layers": 2}
    y, hy, reserve = G.GpuDnnRNNOp("rnn_tanh", **fields)(w, x, hx)
    zeros = as_variable(np.zeros((2, B, H)))
    inputs = G.GpuDnnRNNGradInputs("rnn_tanh", **fields)
    dx, dhx, reserve = inputs(w, x, hx, y, y, hy * 0 + zeros, reserve)
    return dx, dhx, G.GpuDnnRNNGradWeights("rnn_tanh", **fields)(w, x, hx, y, reserve)


def finite_rnn(w, x, hx):
    s = RNNShape("rnn_tanh", H, 2)
    found = []
    for which in (1, 2, 0):
        args = [w.copy(), x.copy(), hx.copy()]
        flat, out = args[which].reshape(-1), np.zeros(args[which].size)
        for i in range(flat.size):
            sides = []
            for step in (1e-5, -2e-5):
                flat[i] += step
                sides.append((slow_rnn(s, *args)[0] ** 2).sum() / 2)
            flat[i] += 1e-5
            out[i] = (sides[0] - sides[1]) / 2e-5
        found.append(out.reshape(args[which].shape))
    return tuple(found)


RNN = [rnn(mode, "unidirectional") for mode in GATES] + [
    rnn("lstm", "bidirectional", lengths=True),
    rnn("gru", "bidirectional"),
    rnn("lstm", "unidirectional", keeps_reserve=False),
    OpCase(
        "gpudnn_rnn_grads", (G.GpuDnnRNNGradInputs, G.GpuDnnRNNGradWeights), rnn_backward,
        (normal(RNNShape("rnn_tanh", H, 2).size(X)), normal(T, B, X), normal(2, B, H)),
        finite_rnn, grad=False, rtol=1e-5,
    ),
]  # fmt: skip

ORDER = [
    OpCase(
        "reorder", (Reorder,), Reorder((0, 2, 3, 1)), (normal(2, 3, 4, 5),),
        lambda x: x.transpose(0, 2, 3, 1),
    ),
]  # fmt: skip

CASES = [
    *ORDER, *CONV, *POOL, *SOFTMAX, *REDUCTION, *ACTIVATION, *BATCH_NORM, *LRN, *OTHERS, *RNN,
]  # fmt: skip
