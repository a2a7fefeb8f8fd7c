"""``symdnn.gpu.dnn`` on a CPU: Theano's signatures, defaults and errors, values against NumPy."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.autodiff import grad, verify_grad
from symdnn.config import config
from symdnn.gpu import dnn
from symdnn.ops.nn import conv as C
from symdnn.ops.nn.rnn_params import RNNShape
from tests.op_table.conv import loop_conv, loop_grad_input, loop_grad_weight
from tests.op_table.lrn_ctc_transformer import slow_grid, slow_sample
from tests.op_table.normalization import running, slow_norm
from tests.op_table.pool import loop_pool
from tests.op_table.rnn import slow_rnn

RNG = np.random.default_rng(3)
X, W = RNG.standard_normal((2, 4, 6, 5)), RNG.standard_normal((6, 4, 3, 2))


def close(got, want, rtol=1e-6):
    np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol)


def variables(*arrays):
    return [T.TensorType(str(a.dtype), (None,) * a.ndim)() for a in arrays]


def run(build, *arrays):
    vs = variables(*arrays)
    return symdnn.function(vs, build(*vs))(*arrays)


def ops_of(v):
    return [type(n.op) for n in symdnn.graph.traverse.toposort([v])]


def owner_hints(v, kind):
    (node,) = [n for n in symdnn.graph.traverse.toposort([v]) if isinstance(n.op, kind)]
    return node.hints


# -- signatures: Theano 1.0.5's, argument by argument ---------------------------------------------

SIGNATURES = {
    "dnn_conv": "img, kerns, border_mode='valid', subsample=(1, 1), dilation=(1, 1), "
    "conv_mode='conv', direction_hint=None, workmem=None, algo=None, precision=None, num_groups=1",
    "dnn_conv3d": "img, kerns, border_mode='valid', subsample=(1, 1, 1), dilation=(1, 1, 1), "
    "conv_mode='conv', direction_hint=None, algo=None, precision=None, num_groups=1",
    "dnn_gradweight": "img, topgrad, kerns_shp, border_mode='valid', subsample=(1, 1), "
    "dilation=(1, 1), conv_mode='conv', precision=None, algo=None, num_groups=1",
    "dnn_gradweight3d": "img, topgrad, kerns_shp, border_mode='valid', subsample=(1, 1, 1), "
    "dilation=(1, 1, 1), conv_mode='conv', precision=None, algo=None, num_groups=1",
    "dnn_gradinput": "kerns, topgrad, img_shp, border_mode='valid', subsample=(1, 1), "
    "dilation=(1, 1), conv_mode='conv', precision=None, algo=None, num_groups=1",
    "dnn_gradinput3d": "kerns, topgrad, img_shp, border_mode='valid', subsample=(1, 1, 1), "
    "dilation=(1, 1, 1), conv_mode='conv', precision=None, algo=None, num_groups=1",
    "dnn_pool": "img, ws, stride=None, mode='max', pad=None",
    "dnn_batch_normalization_train": "inputs, gamma, beta, mode='per-activation', epsilon=0.0001, "
    "running_average_factor=0.1, running_mean=None, running_var=None",
    "dnn_batch_normalization_test": "inputs, gamma, beta, mean, var, mode='per-activation', "
    "epsilon=0.0001",
    "dnn_spatialtf": "img, theta, scale_width=1, scale_height=1",
    "dropout": "x, dropout=0.0, seed=4242",
    "get_precision": "precision, inputs, for_grad=False",
    "ensure_dt": "val, default, name, dtype",
    "GpuDnnConvDesc": "border_mode, subsample=(1, 1), dilation=(1, 1), conv_mode='conv', "
    "precision='float32', num_groups=1",
    "GpuDnnPoolDesc": "ws=(1, 1), stride=(1, 1), mode='max', pad=(0, 0)",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_are_theanos(name):
    parameters = inspect.signature(getattr(dnn, name)).parameters.values()
    shown = ", ".join(str(p.replace(annotation=inspect.Parameter.empty)) for p in parameters)
    assert shown == SIGNATURES[name]


CONSTRUCTORS = {
    "GpuDnnConv": ("algo", "inplace", "num_groups"),
    "GpuDnnConvGradW": ("inplace", "algo", "num_groups"),
    "GpuDnnConvGradI": ("inplace", "algo", "num_groups"),
    "GpuDnnPool": ("mode",),
    "GpuDnnPoolGrad": ("mode",),
    "GpuDnnSoftmax": ("algo", "mode"),
    "GpuDnnSoftmaxGrad": ("algo", "mode"),
    "GpuDnnReduction": ("red_op", "axis", "acc_dtype", "dtype", "return_indices"),
    "GpuDnnBatchNorm": ("mode", "running_averages", "inplace_running_mean",
                        "inplace_running_var", "inplace_output"),
    "GpuDnnBatchNormInference": ("mode", "inplace"),
    "GpuDnnBatchNormGrad": ("mode",),
    "GpuDnnDropoutOp": ("inplace",),
    "GpuDnnRNNOp": ("rnn_mode", "direction_mode"),
    "GpuDnnTransformerGrid": (),
    "GpuDnnTransformerSampler": (),
    "GpuDnnTransformerGradI": (),
    "GpuDnnTransformerGradT": (),
}  # fmt: skip


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_constructors_take_theanos_arguments_in_order(name):
    parameters = inspect.signature(getattr(dnn, name)).parameters.values()
    positional = tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)
    assert positional == CONSTRUCTORS[name]


# -- convolution ----------------------------------------------------------------------------------


@pytest.mark.parametrize("conv_mode", ["conv", "cross"])
@pytest.mark.parametrize(
    ("border", "pad"),
    [("valid", (0, 0)), ("half", (1, 1)), ("full", (2, 1)), (1, (1, 1)), ((2, 0), (2, 0))],
)
def test_conv(border, pad, conv_mode):
    both = tuple((p, p) for p in pad)
    want = loop_conv(X, W, both, flip=conv_mode == "conv")
    close(run(lambda x, w: dnn.dnn_conv(x, w, border, conv_mode=conv_mode), X, W), want)


def test_conv_strides_dilation_and_groups():
    got = run(lambda x, w: dnn.dnn_conv(x, w, 1, (2, 1), (1, 2), num_groups=2), X, W[:, :2])
    close(got, loop_conv(X, W[:, :2], ((1, 1), (1, 1)), (2, 1), (1, 2), 2))


@pytest.mark.parametrize("conv_mode", ["conv", "cross"])
@pytest.mark.parametrize(
    ("hint", "border", "kind"),
    [
        (None, "valid", C.Conv), ("bprop weights", "valid", C.ConvGradWeight),
        ("bprop weights", (0, 0), C.ConvGradWeight), ("bprop weights", 1, C.Conv),
        (None, "full", C.ConvGradInput), ("forward!", "full", C.Conv),
    ],
)  # fmt: skip
def test_conv_direction_hints_choose_the_op_and_keep_the_value(hint, border, kind, conv_mode):
    x, w = variables(X, W)
    y = dnn.dnn_conv(x, w, border, conv_mode=conv_mode, direction_hint=hint)
    assert [k for k in ops_of(y) if issubclass(k, C._ConvFamily)] == [kind]
    pads = {"valid": 0, "full": (2, 1)}.get(border, border) if isinstance(border, str) else border
    pair = (pads, pads) if isinstance(pads, int) else pads
    want = loop_conv(X, W, tuple((p, p) for p in pair), flip=conv_mode == "conv")
    close(symdnn.function([x, w], y)(X, W), want)


def test_conv_full_with_dilation_is_the_gradient_in_the_images():
    x, w = variables(X, W)
    y = dnn.dnn_conv(x, w, "full", dilation=(2, 1))
    assert C.ConvGradInput in ops_of(y)
    close(symdnn.function([x, w], y)(X, W), loop_conv(X, W, ((4, 4), (1, 1)), dilation=(2, 1)))


def test_conv_carries_its_wishes_as_hints():
    x, w = variables(X, W)
    hints = owner_hints(dnn.dnn_conv(x, w, algo="fft", precision="float64"), C.Conv)
    assert (hints.backend, hints.algo_fwd, hints.precision) == ("cudnn", "fft", "float64")
    full = owner_hints(dnn.dnn_conv(x, w, "full", algo="winograd"), C.ConvGradInput)
    assert (full.algo_bwd_data, full.algo_fwd) == ("winograd", None)
    dw = owner_hints(dnn.dnn_gradweight(x, x, (1, 1, 1, 1), algo="fft"), C.ConvGradWeight)
    assert dw.algo_bwd_filter == "fft"


def test_conv_old_name_of_algo():
    x, w = variables(X, W)
    with pytest.warns(DeprecationWarning, match="algo"):
        y = dnn.dnn_conv(x, w, workmem="small")
    assert owner_hints(y, C.Conv).algo_fwd == "small"
    with pytest.raises(ValueError, match="workmem"):
        dnn.dnn_conv(x, w, workmem="small", algo="small")


def test_conv_refuses():
    x, w = variables(X, W)
    with pytest.raises(TypeError, match="float"):
        dnn.dnn_conv(x.astype("int32"), w.astype("int32"))
    with pytest.raises(ValueError, match="none, large"):
        dnn.dnn_conv(x, w, algo="fastest")
    for number in (True, -1, 1.0):
        with pytest.raises(ValueError, match="a number of cuDNN's enum"):
            dnn.dnn_conv(x, w, algo=number)
    with pytest.raises(ValueError, match="conv_mode"):
        dnn.dnn_conv(x, w, conv_mode="convolution")
    with pytest.raises(ValueError, match="border_mode"):
        dnn.dnn_conv(x, w, border_mode="same")
    with pytest.raises(ValueError, match="precision"):
        dnn.dnn_conv(x, w, precision="half")
    half = x.astype("float16"), w.astype("float16")
    with pytest.raises(TypeError, match="gradients"):
        dnn.dnn_conv(*half, border_mode="full", precision="float16")
    assert dnn.dnn_conv(*half, precision="float16").type.dtype == "float16"


def test_conv_upcasts_mixed_floats():
    x, w = T.ftensor4(), T.dtensor4()
    assert dnn.dnn_conv(x, w).type.dtype == "float64"


def test_conv_3d():
    x, w = RNG.standard_normal((2, 2, 4, 5, 4)), RNG.standard_normal((3, 2, 2, 3, 2))
    want = sum(
        loop_conv(x[:, :, i : i + 3].transpose(0, 2, 1, 3, 4).reshape(6, 2, 5, 4), w[:, :, 1 - i])
        for i in (0, 1)
    )
    got = run(lambda x, w: dnn.dnn_conv3d(x, w), x, w)
    close(got, want.reshape(2, 3, 3, 3, 3).transpose(0, 2, 1, 3, 4))
    with pytest.raises(ValueError, match="3-D"):
        dnn.dnn_conv3d(*variables(x, w), algo="winograd")


@pytest.mark.parametrize("symbolic", [False, True])
def test_gradients_of_conv_by_name(symbolic):
    options = {"pad": ((1, 1), (0, 0)), "stride": (2, 1), "flip": False}
    words = {"border_mode": (1, 0), "subsample": (2, 1), "conv_mode": "cross"}
    y = loop_conv(X, W, **options)
    shapes = (np.array(W.shape), np.array(X.shape))

    def weights(x, dy, s):
        return dnn.dnn_gradweight(x, dy, s if symbolic else W.shape, **words)

    def images(w, dy, s):
        return dnn.dnn_gradinput(w, dy, s if symbolic else X.shape, **words)

    for build, a, shape, want in (
        (weights, X, shapes[0], loop_grad_weight(X, y, W.shape, **options)),
        (images, W, shapes[1], loop_grad_input(W, y, 6, 5, **options)),
    ):
        vs = [*variables(a, y), T.lvector()]
        f = symdnn.function(vs, build(*vs), on_unused_input="ignore")
        close(f(a, y, shape), want)


def test_gradients_of_conv_3d_by_name():
    x, w = RNG.standard_normal((1, 2, 4, 3, 4)), RNG.standard_normal((2, 2, 2, 2, 3))
    vx, vw = variables(x, w)
    y = dnn.dnn_conv3d(vx, vw, 1)
    dx, dw = grad((y * y).sum() / 2, [vx, vw])
    by_name = [
        dnn.dnn_gradinput3d(vw, y, x.shape, 1), dnn.dnn_gradweight3d(vx, y, w.shape, 1)
    ]  # fmt: skip
    out = symdnn.function([vx, vw], [dx, dw, *by_name])(x, w)
    close(out[2], out[0])
    close(out[3], out[1])


def test_gradient_shapes_have_all_entries():
    x, w = variables(X, W)
    with pytest.raises(ValueError, match="4 ints"):
        dnn.dnn_gradweight(x, x, (3, 2))
    with pytest.raises(ValueError, match="4 ints"):
        dnn.dnn_gradinput(w, x, (3, 2, 1))


def test_conv_is_differentiable_every_way():
    for words in ({}, {"direction_hint": "bprop weights"}, {"border_mode": "full"}):
        verify_grad(
            lambda x, w, words=words: dnn.dnn_conv(x, w, **words), [X[:1, :2, :4], W[:2, :2]]
        )


# -- pooling, batch normalisation -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "meaning"),
    [
        ("max", "max"), ("max_deterministic", "max"), ("average", "average_inc_pad"),
        ("average_inc_pad", "average_inc_pad"), ("average_exc_pad", "average_exc_pad"),
        ("sum", "sum"),
    ],
)  # fmt: skip
def test_pool(mode, meaning):
    got = run(lambda x: dnn.dnn_pool(x, (3, 2), (2, 1), mode, (1, 1)), X)
    close(got, loop_pool(X, (3, 2), (2, 1), (1, 1), meaning))


def test_pool_defaults_to_a_stride_of_one():
    close(run(lambda x: dnn.dnn_pool(x, (3, 2)), X), loop_pool(X, (3, 2), (1, 1)))
    x = RNG.standard_normal((1, 2, 4, 4, 3))
    got = run(lambda x: dnn.dnn_pool(x, (2, 2, 2), mode="average"), x)
    close(got, loop_pool(x, (2, 2, 2), (1, 1, 1), mode="average_inc_pad"))


def test_pool_keeps_nan_and_refuses():
    bad = X.copy()
    bad[0, 0, 1, 1] = np.nan
    assert np.isnan(run(lambda x: dnn.dnn_pool(x, (2, 2)), bad)[0, 0, :2, :2]).all()
    (x,) = variables(X)
    with pytest.raises(TypeError, match="4 or 5"):
        dnn.dnn_pool(x.flatten(3), (2, 2))
    with pytest.raises(ValueError, match="mode"):
        dnn.dnn_pool(x, (2, 2), mode="min")
    with pytest.raises(TypeError, match="stride"):
        dnn.dnn_pool(x, 2, 1.5)


@pytest.mark.parametrize("mode", ["per-activation", "spatial"])
def test_batch_normalization(mode):
    axes = (0,) if mode == "per-activation" else (0, 2, 3)
    shape = tuple(1 if i in axes else n for i, n in enumerate(X.shape))
    g, b, m, v = (RNG.uniform(0.5, 1.5, shape) for _ in range(4))
    got = run(
        lambda *a: list(dnn.dnn_batch_normalization_train(*a[:3], mode, 1e-3, 0.3, *a[3:])),
        X, g, b, m, v,
    )  # fmt: skip
    for one, want in zip(got, running(X, g, b, m, v, axes, 0.3), strict=True):
        close(one, want)
    plain = run(lambda *a: list(dnn.dnn_batch_normalization_train(*a, mode)), X, g, b)
    for one, want in zip(plain, slow_norm(X, g, b, axes, 1e-4), strict=True):
        close(one, want)
    got = run(lambda *a: dnn.dnn_batch_normalization_test(*a, mode, 1e-3), X, g, b, m, v)
    close(got, (X - m) * g / np.sqrt(v + 1e-3) + b)


@pytest.mark.parametrize("ndim", [1, 2, 3, 5, 6])
def test_batch_normalization_of_any_ndim(ndim):
    x = RNG.standard_normal((4, 3, 2, 2, 2, 1)[:ndim])
    for mode, axes in (("per-activation", (0,)), ("spatial", (0, *range(2, ndim)))):
        shape = tuple(1 if i in axes else n for i, n in enumerate(x.shape))
        g, b = RNG.uniform(0.5, 1.5, shape), RNG.standard_normal(shape)
        got = run(lambda *a, m=mode: list(dnn.dnn_batch_normalization_train(*a, m)), x, g, b)
        for one, want in zip(got, slow_norm(x, g, b, axes, 1e-4), strict=True):
            close(one, want)


def test_batch_normalization_refuses():
    x, g = variables(X, X[:1])
    with pytest.raises(ValueError, match="epsilon"):
        dnn.dnn_batch_normalization_train(x, g, g, epsilon=1e-6)
    with pytest.raises(ValueError, match="gamma must have 4"):
        dnn.dnn_batch_normalization_train(x, g.flatten(), g)
    with pytest.raises(ValueError, match="both"):
        dnn.dnn_batch_normalization_train(x, g, g, running_mean=g)
    with pytest.raises(ValueError, match="mode"):
        dnn.dnn_batch_normalization_test(x, g, g, g, g, mode="channels")


# -- recurrent networks, spatial transformer, dropout ---------------------------------------------


def test_the_documented_rnn_example():
    X, Y, h0 = T.tensor3("X"), T.tensor3("Y"), T.tensor3("h0")
    rnnb = dnn.RNNBlock("float32", 16, 3, "gru")
    size = rnnb.get_param_size([2, 32])
    params = symdnn.shared(RNG.uniform(-0.1, 0.1, size).astype("float32"))
    y, hy = rnnb.apply(params, X, h0)
    cost = ((y - Y) ** 2).mean() + (hy * 0).sum()
    step = symdnn.function([X, Y, h0], cost, updates=[(params, params - grad(cost, params))])
    data = [RNG.standard_normal(s).astype("float32") for s in ((5, 2, 32), (5, 2, 16), (3, 2, 16))]
    first = step(*data)
    for _ in range(20):
        last = step(*data)
    assert last < first


def test_rnn_parts_are_views_that_can_be_written():
    block = dnn.RNNBlock("float64", 3, 1, "lstm")
    w = symdnn.shared(np.zeros(block.get_param_size([2, 4])))
    parts = block.split_params(w, 0, [2, 4])
    assert [p.shape for p in parts] == [(4, 3), (3,)] * 4 + [(3, 3), (3,)] * 4
    for p in parts:
        p[:] = RNG.standard_normal(p.shape)
    value = w.get_value()
    assert np.count_nonzero(value) == value.size
    x, hx, cx = (RNG.standard_normal(s) for s in ((5, 2, 4), (1, 2, 3), (1, 2, 3)))
    got = run(lambda *v: list(block.apply(w, *v)), x, hx, cx)
    for one, want in zip(got, slow_rnn(RNNShape("lstm", 3, 1), value, x, hx, cx), strict=True):
        close(one, want)
    with pytest.raises(TypeError, match="shared"):
        block.split_params(value, 0, [2, 4])


def test_spatial_transformer_takes_the_width_first():
    theta = RNG.uniform(-1, 1, (2, 2, 3))
    got = run(lambda x, t: dnn.dnn_spatialtf(x, t, 2, 0.5), X, theta)
    assert got.shape == (2, 4, 3, 10)
    close(got, slow_sample(X, slow_grid(theta, 3, 10)))


def test_dropout_draws_anew_and_again_from_equal_seeds():
    x = T.matrix()
    ones = np.ones((50, 40), config.floatX)
    y, desc, same, state = dnn.dropout(x, 0.25, seed=7)
    assert desc is same
    assert (desc.dropout, desc.seed) == (0.25, 7)
    f = symdnn.function([x], y)
    first, second = f(ones), f(ones)
    assert not np.array_equal(first, second)
    assert set(np.unique(first)) == {0, np.float32(1 / 0.75)}
    assert 0.65 < (first != 0).mean() < 0.85
    again = symdnn.function([x], dnn.dropout(x, 0.25, seed=7)[0])
    np.testing.assert_array_equal(again(ones), first)
    assert state.get_value()[1] > 0
    kept = symdnn.function([x], dnn.dropout(x)[0])(ones)
    np.testing.assert_array_equal(kept, ones)


# -- ops applied by hand --------------------------------------------------------------------------


def test_ops_by_hand_run_by_their_neutral_forms_and_have_gradients():
    x, w = variables(X, W)
    desc = dnn.GpuDnnConvDesc(border_mode="half", conv_mode="cross")(w.shape)
    out = T.zeros((2, 6, 6, 5))
    y = dnn.GpuDnnSoftmax("accurate", "channel")(
        dnn.GpuDnnPool("max")(dnn.GpuDnnConv(algo="small")(x, w, out, desc), (2, 2), (2, 2), (0, 0))
    )
    dx = grad((y * y).sum(), x)
    f = symdnn.function([x, w], [y, dx])
    assert not [n for n in f.fgraph.nodes if isinstance(n.op, dnn.DnnBase)]
    conv = loop_conv(X, W, ((1, 1), (1, 1)), flip=False)
    pooled = loop_pool(conv[:, :, :, :6], (2, 2))
    e = np.exp(pooled - pooled.max(1, keepdims=True))
    close(f(X, W)[0], e / e.sum(1, keepdims=True), 1e-5)
    verify_grad(
        lambda x, w: dnn.GpuDnnConv()(x, w, x, dnn.GpuDnnConvDesc("valid"), alpha=0.5),
        [X[:1, :2, :4], W[:2, :2]],
    )


def test_alpha_and_beta_by_hand_may_be_computed():
    x, w = variables(X, W)
    out = np.asarray(RNG.standard_normal((2, 6, 4, 4)))
    a = T.dscalar()
    y = dnn.GpuDnnConv()(x, w, out, dnn.GpuDnnConvDesc("valid"), a, 0.5)
    got = symdnn.function([x, w, a], y)(X, W, 3.0)
    close(got, 3 * loop_conv(X, W) + 0.5 * out)


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: dnn.GpuDnnConvDesc("same"), "border_mode"),
        (lambda: dnn.GpuDnnConvDesc("valid", conv_mode="flip"), "conv_mode"),
        (lambda: dnn.GpuDnnConvDesc("valid", (1, 1), (1, 1, 1)), "same length"),
        (lambda: dnn.GpuDnnPool("min"), "mode"),
        (lambda: dnn.GpuDnnSoftmax("slow"), "algo"),
        (lambda: dnn.GpuDnnSoftmax("log", "rows"), "mode"),
        (lambda: dnn.GpuDnnReduction("sum", (0,), "float32", "float32"), "red_op"),
        (lambda: dnn.GpuDnnReduction("add", (0,), "float32", "float32", True), "indices"),
        (lambda: dnn.GpuDnnBatchNorm("channels"), "spatial"),
        (lambda: dnn.GpuDnnActivation("gelu"), "mode"),
        (lambda: dnn.dropout(T.matrix(), 1.5), "probability"),
    ],
)  # fmt: skip
def test_wrong_words_are_named(make, what):
    with pytest.raises(ValueError, match=what):
        make()


def test_a_3d_op_by_hand_refuses_algorithms_for_images():
    x = T.dtensor5()
    desc = dnn.GpuDnnConvDesc("valid", (1, 1, 1))
    with pytest.raises(ValueError, match="3-D"):
        dnn.GpuDnnConv("fft")(x, x, x, desc)
    assert dnn.GpuDnnConv("fft_tiling")(x, x, x, desc).owner.op.algo == "fft_tiling"


def test_an_op_by_hand_takes_the_flags_algorithm():
    x = T.dtensor4()
    with config.change_flags(**{"dnn.conv.algo_bwd_filter": "deterministic"}):
        y = dnn.GpuDnnConvGradW()(x, x, x, dnn.GpuDnnConvDesc("valid"))
    assert y.owner.op.algo == "deterministic"
    with pytest.raises(TypeError, match="descriptor"):
        dnn.GpuDnnConv("none")(x, x)


# -- helpers, presence ----------------------------------------------------------------------------


def test_helpers():
    half, single = T.TensorType("float16", (None,))(), T.fvector()
    assert dnn.get_precision(None, [half]) == ("float32", "float16")
    assert dnn.get_precision("as_input", [half]) == ("float16", "float16")
    assert dnn.get_precision("as_input", [half, single]) == ("float32", "float32")
    with pytest.raises(TypeError, match="gradients"):
        dnn.get_precision("as_input", [half], for_grad=True)
    with pytest.raises(TypeError, match="float"):
        dnn.get_precision(None, [T.ivector()])
    assert dnn.ensure_dt(None, 1.0, "alpha", "float16").type.dtype == "float32"
    assert dnn.ensure_dt(T.dscalar(), 1.0, "alpha", "float32").type.dtype == "float32"
    with pytest.raises(TypeError, match="alpha"):
        dnn.ensure_dt(single, 1.0, "alpha", "float32")
    assert dnn.as_i32(3).type.dtype == "int32"


def test_presence_is_told_with_a_reason():
    assert dnn.dnn_available() in (True, False)
    if not dnn.dnn_available():
        assert dnn.dnn_available.msg
    if not dnn.dnn_present():
        assert dnn.dnn_present.msg
        assert dnn.version(raises=False) == -1
    else:
        assert dnn.version() >= 90000
