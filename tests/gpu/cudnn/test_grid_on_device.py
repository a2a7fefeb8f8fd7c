"""The device against NumPy in float64 where sizes, layouts and dtypes meet; and whole programs."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.gpu import dnn
from symdnn.graph.type import TensorType
from symdnn.ops.elementwise import complexes
from symdnn.ops.nn.lrn import local_response_normalization
from symdnn.ops.nn.softmax import logsoftmax, softmax
from tests.gpu.agreement import DTYPES, assert_agree, assert_close, compiled, normal, rounded

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]

#: (batch, channels, height, width): even, odd, one, no images, more than a grid has blocks.
SIZES = {
    "even": (4, 8, 8, 8), "odd": (3, 5, 7, 9), "one": (1, 1, 1, 1), "none": (0, 4, 5, 6),
    "many": (65536 + 7, 2, 2, 3),
}  # fmt: skip
#: Sums over many images are rounded in the dtype of the result.
LOOSE = {"float16": 3e-2, "bfloat16": 2e-1, "float32": 1e-3, "float64": 1e-9}


def convolved(x, w):
    return dnn.dnn_conv(x, w, border_mode="half", conv_mode="cross")


def strided(x, w):
    return dnn.dnn_conv(x, w, border_mode=(1, 2), subsample=(2, 3))


def normalised(x):
    """Batch normalisation with the statistics in at least float32, as they are kept."""
    kind = "float64" if x.type.dtype == "float64" else "float32"
    one = T.ones((1, x.shape[1], 1, 1), dtype=kind).dimshuffle(0, 1, 2, 3)
    gamma = T.addbroadcast(one, 0, 2, 3)
    return dnn.dnn_batch_normalization_train(x, gamma, gamma * 0, "spatial", 1e-3)[0]


IMAGES = {
    "conv": convolved,
    "conv_strided": strided,
    "max_pool": lambda x: dnn.dnn_pool(x, (2, 3), (1, 2), "max", (1, 1)),
    "mean_pool": lambda x: dnn.dnn_pool(x, (2, 2), (2, 1), "average_exc_pad", (1, 1)),
    "batch_norm": normalised,
    "lrn": lambda x: local_response_normalization(x, 3),
    "softmax": lambda x: softmax(x, axis=1),
    "log_softmax": lambda x: logsoftmax(x, axis=1),
    "relu_and_sum": lambda x: (T.nnet.relu(x - 0.25) / 4).sum(axis=(0, 2, 3)),  # < 65504
}


def images(name, size):
    """The operands: images without ties, and kernels where there are any."""
    shape = SIZES[size]
    x = without_ties(shape) if "pool" in name else normal(*shape)
    return [x, normal(6, shape[1], 3, 3, seed=1, scale=0.3)] if "conv" in name else [x]


def without_ties(shape):
    """Values that differ inside of every small window, and are the same in every dtype."""
    n, c, i, j = np.indices(shape)
    return ((n * 5 + c * 3 + i * 8 + j) * 11 % 64 - 31) / 32.0


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", IMAGES)
def test_images_in_both_layouts(name, size, dtype, layout):
    if name == "batch_norm" and size in ("none", "one"):
        pytest.skip("no image, or one pixel, has no variance")
    with config.change_flags({"gpu.layout": layout}):
        assert_agree(IMAGES[name], images(name, size), dtype, tolerance=LOOSE[dtype])


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_network_lies_in_the_layout_that_the_flag_names(dtype):
    def build(x, w, v):
        y = T.nnet.relu(convolved(x, w))
        y = dnn.dnn_pool(y, (2, 2), (2, 2))
        return convolved(y, v).mean(axis=(2, 3))

    arrays = [normal(4, 8, 10, 6), normal(16, 8, 3, 3, scale=0.2), normal(8, 16, 3, 3, scale=0.2)]
    found = {}
    for layout in ("nchw", "nhwc"):
        with config.change_flags({"gpu.layout": layout}):
            f = assert_agree(build, arrays, dtype, tolerance=LOOSE[dtype])
        ops = [n.op for n in f.run.fgraph.nodes]
        found[layout] = {op.layout for op in ops if "NHWC" in getattr(op, "layouts", ())}
    assert found == {"nchw": {"NCHW"}, "nhwc": {"NHWC"}}


VOLUMES = {
    "conv": lambda x, w: dnn.dnn_conv3d(x, w, border_mode="half"),
    "pool": lambda x, w: dnn.dnn_pool(x, (1, 2, 2), (1, 1, 2), "average_inc_pad"),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 2, 3, 5, 7), (0, 2, 3, 4, 5), (65536 + 3, 1, 1, 2, 3)])
@pytest.mark.parametrize("name", VOLUMES)
def test_volumes(name, shape, dtype):
    w = normal(3, shape[1], 3, 3, 3, scale=0.3)
    wrt = None if name == "conv" else [0]
    assert_agree(VOLUMES[name], [normal(*shape), w], dtype, wrt=wrt, tolerance=LOOSE[dtype])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("rows", [0, 1, 65536 + 7])
def test_dropout_of_any_number_of_rows(rows, dtype):
    f = compiled(lambda x: dnn.dropout(x, 0.25, seed=5)[0], [np.ones((rows, 3))], dtype)
    low, _ = rounded([np.ones((rows, 3))], dtype)
    y, dx = f(*low)
    kept = y != 0
    np.testing.assert_allclose(y[kept].astype("f8"), 1 / 0.75, rtol=1e-3)
    np.testing.assert_array_equal(dx != 0, kept)
    assert rows < 100 or abs(kept.mean() - 0.75) < 0.01


# -- the same bits --------------------------------------------------------------------------------


def everything(rate):
    """A loss over every op of cuDNN that trains, its gradients, and arguments."""
    x, theta, h = T.tensor4("x"), T.tensor3("theta"), T.tensor3("h")
    w, gamma, wr = T.tensor4("w"), T.tensor4("gamma"), T.vector("wr")
    block = dnn.RNNBlock("float32", 6, 2, "lstm", "linear", "bidirectional", dropout=rate, stream=9)
    y = convolved(dnn.dnn_spatialtf(x, theta), w)
    one = T.addbroadcast(gamma, 0, 2, 3)
    y = dnn.dnn_batch_normalization_train(y, one, one * 0, "spatial", 1e-3)[0]
    y = dnn.dnn_pool(T.nnet.relu(y), (2, 2), (2, 2))
    y = local_response_normalization(y, 3)
    y = dnn.dropout(y, rate, seed=3)[0]
    steps = y.dimshuffle(2, 0, 1, 3).flatten(3)
    out = block.apply(wr, steps, h, h)
    loss = (out[0] ** 2).mean() + (out[1] * out[2]).mean() + softmax(steps.flatten(2)).max(1).sum()
    variables = [x, theta, h, w, gamma, wr]
    size = block.get_param_size(6 * 3)
    arrays = [
        normal(3, 4, 8, 6), np.tile(np.eye(2, 3), (3, 1, 1)) + normal(3, 2, 3, scale=0.05),
        normal(4, 3, 6), normal(6, 4, 3, 3, scale=0.3), np.abs(normal(1, 6, 1, 1)) + 0.5,
        normal(size, scale=0.3),
    ]  # fmt: skip
    return variables, [loss, *T.grad(loss, variables)], [a.astype("float32") for a in arrays]


def test_a_network_of_everything_has_the_same_bits_each_time():
    """Functions made alike, each called until it is captured: equal bits, call for call."""

    def results():
        variables, outputs, arrays = everything(0.3)
        f = symdnn.function(variables, outputs)
        names = ["loss", *(f"gradient of {v}" for v in variables)]
        for call in range(4):
            for name, value in zip(names, f(*arrays), strict=True):
                yield f"{name}, call {call}", np.asarray(value).tobytes()

    with config.change_flags({"device": "cuda", "deterministic": "more"}):
        first, second = dict(results()), dict(results())
    assert [name for name in first if first[name] != second[name]] == []


PARTS = {
    "conv": lambda x, w: dnn.dnn_conv(x, w, border_mode="half"),
    "conv, channels last": lambda x, w: dnn.dnn_conv(x, w, border_mode="half"),
    "batch_norm": lambda x, w: normalised(x) * w.sum(),
    "max_pool": lambda x, w: dnn.dnn_pool(x, (3, 3), (2, 2), "max") * w.sum(),
    "mean_pool": lambda x, w: dnn.dnn_pool(x, (3, 2), (2, 2), "average_exc_pad") * w.sum(),
    "lrn": lambda x, w: local_response_normalization(x, 5) * w.sum(),
    "softmax": lambda x, w: softmax(x, axis=1) * w.sum(),
    "transformer": lambda x, w: dnn.dnn_spatialtf(x, w[:9, :2, 0, :].sum(0).dimshuffle("x", 0, 1)
                                                  + x[:, :2, 0, :3] * 0.1),
    "products": lambda x, w: T.dot(x.flatten(2), x.flatten(2).T * w.sum()),
    "rows": lambda x, w: x[T.cast(abs(w[:, 0, 0]) * 9, "int64") % 9].sum(axis=1) * w.sum(),
}  # fmt: skip


@pytest.mark.parametrize("name", PARTS)
def test_a_part_has_the_same_bits_each_time(name):
    """Ten calls of one function and of another made alike: large enough for many blocks."""
    arrays = [normal(9, 24, 33, 29).astype("f4"), normal(24, 24, 3, 3, seed=1).astype("f4")]
    layout = "nhwc" if "last" in name else "auto"
    flags = {"device": "cuda", "deterministic": "more", "gpu.layout": layout}

    def results():
        x, w = T.tensor4("x"), T.tensor4("w")
        y = PARTS[name](x, w)
        f = symdnn.function([x, w], [y, *T.grad((y**2).sum(), [x, w])])
        for call in range(5):
            for what, value in zip(("result", "dx", "dw"), f(*arrays), strict=True):
                yield what, call, np.asarray(value).tobytes()

    with config.change_flags(flags):
        found = [*results(), *results()]
    first = {what: value for what, call, value in reversed(found)}
    assert [f"{what}, call {call}" for what, call, value in found if value != first[what]] == []


def test_a_network_of_everything_is_that_of_the_cpu():
    results = []
    for device in ("cpu", "cuda"):
        variables, outputs, arrays = everything(0.0)
        with config.change_flags(device=device):
            results.append(symdnn.function(variables, outputs)(*arrays))
    for i, (a, b) in enumerate(zip(*results, strict=True)):
        assert_close(np.asarray(b), np.asarray(a), 1e-3, f"output {i}")


# -- the demo -------------------------------------------------------------------------------------


def test_the_demo_is_as_accurate_on_the_gpu():
    """All 30 epochs: to 0.5 points of test accuracy."""
    pytest.importorskip("sklearn")
    from symdnn.demo.data import load_digits
    from symdnn.demo.training import train

    accuracy = {}
    for device in ("cpu", "cuda"):
        with config.change_flags(device=device):
            accuracy[device] = train(load_digits(), 0, 30).test_accuracy[-1]
    assert abs(accuracy["cpu"] - accuracy["cuda"]) <= 0.005, accuracy
    assert accuracy["cuda"] >= 0.98


# -- a call that fails among others ---------------------------------------------------------------


def test_calls_of_two_functions_around_one_that_fails():
    """They share parameters, shapes change and change back, values are set, a label is wrong."""

    def build(device):
        x, t = T.tensor4("x"), T.ivector("t")
        w = symdnn.shared(normal(3, 2, 3, 3, scale=0.3).astype("float32"))
        p = softmax(T.nnet.relu(convolved(x, w)).mean(axis=(2, 3)))
        loss = T.nnet.categorical_crossentropy(p, t).mean()
        with config.change_flags(device=device):
            step = symdnn.function([x, t], loss, updates=[(w, w - T.grad(loss, w))])
            return w, step, symdnn.function([x], p)

    def story(device):
        w, step, predict = build(device)
        told = []
        for n in (4, 3, 4, 4, 3, 1, 4):
            x = normal(n, 2, 5, 6, seed=n).astype("float32")
            told += [step(x, (np.arange(n) % 3).astype("int32")), predict(x)]
            before = w.get_value()
            with pytest.raises(IndexError):
                step(x, np.full(n, 3, "int32"))
            np.testing.assert_array_equal(w.get_value(), before)
            told.append(predict(x))
            w.set_value(before * np.float32(0.9))
        return told

    for a, b in zip(story("cuda"), story("cpu"), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


# -- what has no cuDNN ----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_numbers(dtype):
    real = "float32" if dtype == "complex64" else "float64"
    z, x = TensorType(dtype, (None, None))("z"), TensorType(real, (None, None))("x")
    c = complexes.conj(z * x + z) / (z - 3)
    cost = (complexes.real(c) ** 2 + complexes.imag(T.exp(c)) * x).sum()
    outputs = [c, abs(z), complexes.angle(z), T.sqrt(z), cost, T.grad(cost, x)]
    arrays = [(normal(40, 7) + 1j * normal(40, 7, seed=1)).astype(dtype)]
    arrays.append(normal(40, 7, seed=2).astype(real))
    results = []
    for device in ("cuda", "cpu"):
        with config.change_flags(device=device):
            f = symdnn.function([z, x], outputs)
        results.append([f(*arrays) for _ in range(3)][-1])
    rtol = 1e-4 if dtype == "complex64" else 1e-11
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("mode", ["max", "average_exc_pad", "sum"])
def test_windows_that_change_between_calls(mode):
    x, ws, pad = T.tensor4("x"), T.ivector("ws"), T.ivector("pad")
    y = dnn.dnn_pool(x, ws, (2, 1), mode, pad)
    with config.change_flags(device="cuda"):
        f = symdnn.function([x, ws, pad], [y, T.grad((y**2).sum(), x)])
    images = normal(2, 3, 9, 8).astype("float32")
    for size, around in (((2, 2), (0, 0)), ((3, 2), (1, 1)), ((2, 4), (1, 0)), ((2, 2), (0, 0))):
        known = dnn.dnn_pool(x, size, (2, 1), mode, around)
        with config.change_flags(device="cpu"):
            g = symdnn.function([x], [known, T.grad((known**2).sum(), x)])
        for a, b in zip(f(images, list(size), list(around)), g(images), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
