"""Channels last and mixed precision on a GPU: against NumPy in float64, and whole trainings."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.gpu import dnn
from symdnn.graph.type import TensorType, numpy_dtype
from symdnn.ops.nn.channels_last import Reorder
from symdnn.ops.nn.lrn import local_response_normalization
from tests.gpu import agreement
from tests.gpu.agreement import assert_agree, compiled, distinct, normal, rounded
from tests.opt.nets import Maker, loss_of

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]

DTYPES = ("float16", "bfloat16", "float32")


def conv(x, w, **how):
    return dnn.dnn_conv(x, w, direction_hint="forward!", **how)


CONVOLUTIONS = {
    "plain": {"x": (2, 8, 7, 6), "w": (16, 8, 3, 2)},
    "few channels": {"x": (2, 3, 9, 9), "w": (5, 3, 3, 3), "border_mode": 1},
    "one by one": {"x": (3, 8, 5, 5), "w": (16, 8, 1, 1)},
    "strided": {"x": (2, 8, 9, 8), "w": (8, 8, 3, 3), "subsample": (2, 3), "border_mode": (1, 2)},
    "mirrored": {"x": (2, 8, 6, 6), "w": (8, 8, 3, 3), "conv_mode": "conv"},
    "grouped": {"x": (2, 16, 7, 7), "w": (16, 8, 3, 3), "num_groups": 2, "border_mode": 1},
    "depthwise": {"x": (2, 8, 7, 7), "w": (8, 1, 3, 3), "num_groups": 8},
    "dilated": {"x": (2, 8, 11, 9), "w": (8, 8, 3, 2), "dilation": (2, 3)},
}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name, dtype):
    how = {"conv_mode": "cross", **CONVOLUTIONS[name]}
    x, w = normal(*how.pop("x")), normal(*how.pop("w"), seed=1)
    with config.change_flags(**{"gpu.layout": "nhwc"}):
        f = assert_agree(lambda x, w: conv(x, w, **how), [x, w], dtype)
    assert "cudnn.on_host" not in f.run.lowering_report().kernels()
    assert "layout=NHWC" in str(f.run.lowering_report())


@pytest.mark.parametrize("dtype", DTYPES)
def test_volumes(dtype):
    x, w = normal(2, 8, 5, 6, 7), normal(8, 8, 3, 2, 3, seed=1)
    with config.change_flags(**{"gpu.layout": "nhwc"}):
        assert_agree(lambda x, w: dnn.dnn_conv3d(x, w, direction_hint="forward!"), [x, w], dtype)


def normalised(h):
    c = int(h.type.shape[1] or 8)
    gamma, beta = (np.linspace(0.5, 1.5, c), np.linspace(-1, 1, c))
    kind = "float64" if h.type.dtype == "float64" else "float32"
    gamma, beta = (T.constant(v.astype(kind)) for v in (gamma, beta))
    return T.nnet.bn.batch_normalization_train(h, gamma, beta, axes="spatial")[0]


def by_statistics(h):
    kind = "float64" if h.type.dtype == "float64" else "float32"
    given = [np.linspace(a, b, 8).astype(kind) for a, b in ((0.5, 1.5), (-1, 1), (-1, 2), (1, 2))]
    return T.nnet.bn.batch_normalization_test(h, *map(T.constant, given), axes="spatial")


BETWEEN = {
    "max": lambda h: T.signal.pool.pool_2d(h, (2, 2), ignore_border=True),
    "overlapping max": lambda h: T.signal.pool.pool_2d(
        h, (3, 3), stride=(2, 2), pad=(1, 1), ignore_border=True),
    "mean": lambda h: T.signal.pool.pool_2d(h, (2, 2), ignore_border=True, mode="average_inc_pad"),
    "mean without padding": lambda h: T.signal.pool.pool_2d(
        h, (3, 2), stride=(2, 2), pad=(1, 0), ignore_border=True, mode="average_exc_pad"),
    "batch norm": normalised,
    "batch norm by statistics": by_statistics,
    "softmax": lambda h: T.nnet.softmax(h, axis=1),
    "log softmax": lambda h: T.nnet.logsoftmax(h, axis=1),
    "elementwise": lambda h: T.nnet.relu(h) * 2 - T.tanh(h),
    "joined": lambda h: T.concatenate([h[:, 4:], h[:, :4] * 2], axis=1),
}  # fmt: skip


@pytest.mark.parametrize("prefer", ["own", "cudnn"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", BETWEEN)
def test_what_is_between(name, dtype, prefer):
    eye = np.eye(8)[:, :, None, None]
    v = normal(4, 8, 1, 1, seed=2) / 3

    def build(x):
        kind = numpy_dtype(x.type.dtype)
        h = conv(x, T.constant(eye.astype(kind)), conv_mode="cross")
        return conv(BETWEEN[name](h), T.constant(v.astype(kind)), conv_mode="cross")

    with config.change_flags(**{"gpu.layout": "nhwc", "gpu.prefer": prefer}):
        f = assert_agree(build, [distinct(2, 8, 6, 4)], dtype)
    assert "cudnn.on_host" not in f.run.lowering_report().kernels()


@pytest.mark.parametrize("prefer", ["own", "cudnn"])
def test_local_response_normalisation(prefer):
    eye = np.eye(8)[:, :, None, None]

    def build(x):
        h = conv(x, T.constant(eye.astype(numpy_dtype(x.type.dtype))), conv_mode="cross")
        return local_response_normalization(h)

    with config.change_flags(**{"gpu.layout": "nhwc", "gpu.prefer": prefer}):
        assert_agree(build, [normal(2, 8, 6, 5)], "float32")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(3, 5, 7, 6), (2, 64, 33, 31), (2, 40, 3, 4, 50)])
def test_changes_of_the_order(shape, dtype):
    ndim = len(shape)
    x = TensorType(dtype, (None,) * ndim)("x")
    there, back = (0, *range(2, ndim), 1), (0, ndim - 1, *range(1, ndim - 1))
    f = symdnn.function(
        [x], [Reorder(there)(x), Reorder(back)(x)], mode=symdnn.Mode(target=agreement.TARGET)
    )
    value = normal(*shape).astype(numpy_dtype(dtype))
    for got, order in zip(f(value), (there, back), strict=True):
        np.testing.assert_array_equal(got, value.transpose(order))


# -- whole nets -----------------------------------------------------------------------------------


def residual(x, depth, dtype="float32"):
    """Logits of 10 classes by a net of the shape of ResNet-20, and its parameters."""
    m = Maker(dtype)

    def layer(h, fan_in, fan_out, k, step=1):
        y = m.conv(h, fan_in, fan_out, k, border_mode=k // 2, subsample=(step, step))
        return m.norm(y, fan_out)

    h, width = T.nnet.relu(layer(x, 3, 16, 3)), 16
    for wide, block in itertools.product((16, 32, 64), range((depth - 2) // 6)):
        step = 2 if wide != width and block == 0 else 1
        r = layer(T.nnet.relu(layer(h, width, wide, 3, step)), wide, wide, 3)
        h = T.nnet.relu(r + (layer(h, width, wide, 1, step) if step == 2 else h))
        width = wide
    return m.dense(h.mean((2, 3)), width, 10), m.parameters


def training(depth=8, scale=None, **flags):
    """Losses of 20 steps; the same images, labels and parameters at each call."""
    x, t = T.ftensor4("x"), T.ivector("t")
    logits, parameters = residual(x, depth)
    loss = loss_of(logits, t)
    grads = T.grad(loss, parameters) if scale is None else scale.grad(loss, parameters)
    steps = [(p, p - np.float32(0.02) * g) for p, g in zip(parameters, grads)]
    updates = steps if scale is None else scale.updates(steps, grads)
    with config.change_flags(**flags):
        step = symdnn.function(
            [x, t], loss, updates=updates, mode=symdnn.Mode(target=agreement.TARGET)
        )
    rng = np.random.default_rng(0)
    images = rng.standard_normal((32, 3, 24, 24)).astype("float32")
    labels = rng.integers(0, 10, 32).astype("int32")
    with config.change_flags(**flags):
        return np.array([float(step(images, labels)) for _ in range(20)]), step


def assert_similar(losses, plain, limit):
    assert np.isfinite(losses).all()
    assert losses[-1] < 0.7 * losses[0]
    assert np.abs(losses - plain).max() <= limit * plain[0]


def test_training_in_each_layout_and_precision():
    plain, _ = training(**{"gpu.layout": "nchw"})
    assert plain[-1] < 0.7 * plain[0]
    last, f = training(**{"gpu.layout": "nhwc"})
    assert_similar(last, plain, 2e-3)
    assert "cudnn.on_host" not in f.lowering_report().kernels()
    tf32, f = training(**{"gpu.layout": "auto", "dnn.conv.allow_tf32": True})
    assert_similar(tf32, plain, 2e-2)
    assert "layout=NHWC" in str(f.lowering_report())
    for flags in ({"gpu.layout": "nchw"}, {"gpu.layout": "auto"}):
        losses, f = training(amp="bf16", **flags)
        assert_similar(losses, plain, 6e-2)
        assert "bfloat16" in str(f.lowering_report())
    losses, _ = training(amp="fp16", scale=symdnn.LossScale(2.0**10))
    assert_similar(losses, plain, 2e-2)


def test_a_loss_scale_that_is_too_large_comes_down():
    scale = symdnn.LossScale(2.0**24)
    losses, _ = training(amp="fp16", scale=scale)
    assert np.isfinite(losses).all()
    assert scale.value.get_value() < 2.0**24


def test_products_in_bfloat16():
    arrays = [normal(33, 40), normal(40, 24, seed=1), normal(2, 9, 16), normal(2, 16, 8, seed=2)]

    def build(a, b, c, d):
        return T.tanh(T.dot(a, b)), T.batched_dot(c, d)

    low, _ = rounded(arrays, "float32")
    with config.change_flags(amp="bf16"):
        got = compiled(build, arrays, "float32")(*low)
    want = compiled(build, arrays, "float32")(*low)
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype == np.float32
        assert np.abs(a - b).max() <= 6e-2 * np.abs(b).max()
        assert (a != b).any()
