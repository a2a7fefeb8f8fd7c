"""cuDNN's kernels of sequences, reductions and samplers on a GPU against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest

from symdnn.autodiff import grad
from symdnn.compile.function import function
from symdnn.compile.program.mode import Mode
from symdnn.compile.shared import shared
from symdnn.config import config
from symdnn.errors import IndexOutOfRange
from symdnn.gpu import dnn
from symdnn.graph.type import TensorType
from symdnn.graph.variable import constant
from symdnn.ops.nn.ctc import CTCLoss
from symdnn.ops.nn.rnn_params import GATES
from symdnn.ops.nn.spatial_transformer import transformer_grid, transformer_sampler
from symdnn.ops.vendor import gpudnn as G
from tests.gpu import agreement
from tests.gpu.agreement import (
    assert_agree,
    assert_close,
    compiled,
    distinct,
    normal,
    rounded,
    truth,
)

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]

T, B, X, H = 5, 3, 4, 6
RNN = ("cudnn.rnn", "cudnn.rnn_grad_inputs", "cudnn.rnn_grad_weights")


# -- recurrent networks ---------------------------------------------------------------------------


def net(mode, layers=2, skip=False, both=False, dtype="float64", **more):
    return dnn.RNNBlock(
        dtype, H, layers, mode, "skip" if skip else "linear",
        "bidirectional" if both else "unidirectional", **more,
    )  # fmt: skip


def given(block, features=X, steps=T, batch=B):
    depth = block.layout.num_layers * block.layout.directions
    states = [normal(depth, batch, H, seed=i) for i in range(1 + block.layout.has_cell)]
    w = normal(block.get_param_size([batch, features]), scale=0.3)
    return [w, normal(steps, batch, features), *states]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("mode", GATES)
@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize(("skip", "layers"), [(False, 1), (False, 3), (True, 2)])
def test_rnn_block(mode, both, skip, layers, dtype):
    block = net(mode, layers, skip, both)
    arrays = given(block, H if skip else X)
    limit = {"float16": 3e-2, "float32": 5e-4, "float64": 1e-9}[dtype]
    assert_agree(block.apply, arrays, dtype, RNN, tolerance=limit)


@pytest.mark.parametrize("mode", GATES)
@pytest.mark.parametrize("both", [False, True])
def test_sequences_of_other_lengths(mode, both):
    block = net(mode, 2, both=both)
    arrays = given(block)

    def build(w, x, hx, *rest):
        *cx, lengths = rest
        return block.apply(w, x, hx, *cx, lengths=lengths)

    f = compiled(build, [*arrays, np.array([5, 5, 5])], "float64")
    for lengths in ([5, 2, 4], [1, 5, 3], [0, 3, 5], [5, 5, 5]):
        low, wide = rounded([*arrays, np.array(lengths)], "float64")
        for i, (a, b) in enumerate(zip(f(*low), truth(build, wide), strict=True)):
            assert_close(a, b, 1e-9, f"lengths {lengths}, output {i}")


def test_a_length_beyond_the_steps_is_an_error():
    block = net("gru")
    arrays = given(block)
    f = compiled(
        lambda w, x, hx, n: block.apply(w, x, hx, lengths=n),
        [*arrays, np.array([1, 2, 3])],
        "float64",
    )
    with pytest.raises(IndexOutOfRange, match="lengths"):
        f(*arrays, np.array([1, T + 1, 3]))
    assert np.isfinite(f(*arrays, np.array([1, T, 3]))[0]).all()


def test_only_one_of_the_results_is_used():
    block = net("lstm")
    arrays = given(block)
    for which in range(3):
        assert_agree(lambda *v, k=which: block.apply(*v)[k], arrays, "float64", RNN)


def test_two_gradients_of_one_forward_pass():
    block = net("gru")

    def build(w, x, hx):
        y, hy = block.apply(w, x, hx)
        return [grad((y**2).sum(), w), grad((hy**3).sum(), w)]

    assert_agree(build, given(block), "float64", RNN, wrt=[])


@pytest.mark.parametrize(("steps", "batch"), [(0, 2), (3, 0), (1, 1), (2, 129)])
def test_unusual_sizes_of_sequences(steps, batch):
    block = net("lstm")
    assert_agree(block.apply, given(block, X, steps, batch), "float64")


def test_dropout_between_layers_repeats_from_its_seed():
    def run(seed):
        block = net("lstm", 3, dropout=0.5, stream=seed)
        f = compiled(block.apply, given(block), "float64", wrt=[])
        return [f(*given(block))[0] for _ in range(2)]

    first, again, other = run(3), run(3), run(4)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first[0], first[1])  # the state advances
    assert not np.array_equal(first[0], other[0])


def test_the_gradient_through_dropout_is_that_of_the_same_mask():
    block = net("gru", 3, dropout=0.4, stream=7)
    arrays = given(block)
    vs = agreement.variables(arrays, "float64")
    y = block.apply(*vs)[0]
    state = block.stream.state_updates[0][0]
    f = function(vs, [y.sum(), grad(y.sum(), vs[0])], mode=Mode(target=agreement.TARGET))
    at = state.get_value()
    step = normal(*arrays[0].shape, seed=9)

    def cost(w):
        state.set_value(at)
        return [np.asarray(v) for v in f(w, *arrays[1:])]

    slope = (cost(arrays[0] + 1e-6 * step)[0] - cost(arrays[0] - 1e-6 * step)[0]) / 2e-6
    assert_close(np.asarray((cost(arrays[0])[1] * step).sum()), np.asarray(slope), 1e-5)


def test_training_an_rnn_on_the_device_follows_numpy():
    block = net("gru", 2)
    arrays = given(block)
    losses = {}
    for target in ("cpu", agreement.TARGET):
        w = shared(arrays[0].copy(), name="w")
        x, hx = agreement.variables(arrays[1:], "float64")
        y, _ = block.apply(w, x, hx)
        loss = ((y - 0.3) ** 2).mean()
        f = function(
            [x, hx], loss, updates=[(w, w - 0.2 * grad(loss, w))], mode=Mode(target=target)
        )
        losses[target] = [float(f(*arrays[1:])) for _ in range(10)]
    np.testing.assert_allclose(losses[agreement.TARGET], losses["cpu"], rtol=1e-9)


# -- dropout --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_dropout(dtype):
    x = np.ones((200, 300))

    def build(x):
        y, *_ = dnn.dropout(x, 0.25, 11)
        return y, grad(y.sum(), x)

    f, again = (compiled(build, [x], dtype, wrt=[]) for _ in range(2))
    low, _ = rounded([x], dtype)
    y, dx = f(*low)
    np.testing.assert_array_equal(y, dx)
    assert set(np.unique(y.astype(np.float64)).round(2)) == {0.0, 1.33}
    assert abs((y != 0).mean() - 0.75) < 0.01
    np.testing.assert_array_equal(y, again(*low)[0])
    assert not np.array_equal(y, f(*low)[0])
    f.assert_ran(("cudnn.dropout", "cudnn.dropout_grad"))


# -- spatial transformer --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("scale", [(1, 1), (0.5, 2), (1.3, 0.7)])
def test_dnn_spatialtf(scale, dtype):
    image = normal(3, 2, 7, 6)
    theta = np.array([[[0.8, 0.1, 0.05], [-0.2, 0.7, 0.13]]]).repeat(3, 0) + normal(3, 2, 3) * 0.1
    assert_agree(
        lambda v, t: dnn.dnn_spatialtf(v, t, *scale), [image, theta], dtype,
        ("cudnn.transformer_grid", "cudnn.transformer_sampler", "cudnn.transformer_sampler_grad",
         "cudnn.transformer_grid_grad"),
        tolerance={"float16": 0.15, "float32": 1e-3, "float64": 1e-8}[dtype],
    )  # fmt: skip


def test_points_outside_of_the_image():
    grid = normal(2, 5, 4, 2, scale=2) + 0.003
    assert_agree(transformer_sampler, [normal(2, 3, 6, 7), grid], "float64")


@pytest.mark.parametrize(("n", "size"), [(0, (4, 5)), (2, (1, 5)), (65543, (2, 2))])
def test_unusual_grids(n, size):
    assert_agree(lambda t: transformer_grid(t, size), [normal(n, 2, 3)], "float64")


# -- reductions -----------------------------------------------------------------------------------

WORDS = ["add", "mul", "maximum", "minimum", "absmax", "avg", "norm1", "norm2"]


@pytest.mark.parametrize(
    ("prefer", "kernel"), [("own", "cuda.reduce"), ("cudnn", "cudnn.reduction")]
)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((7,), (0,)), ((5, 6), (0,)), ((3, 4, 5), (0, 2)), ((2, 3, 4, 2, 3), (1, 3)),
     ((4, 1001), (1,)), ((70000, 2), (0,))],
)  # fmt: skip
def test_reductions(word, shape, axis, dtype, prefer, kernel):
    acc = "float64" if dtype == "float64" else "float32"
    x = normal(*shape) if word != "mul" else 1 + normal(*shape) / (50 + shape[0])
    if dtype == "float16" and shape[0] > 99 and word != "mul":
        x = x / 1000
    # Each factor of a product may add a rounding of half a unit in the last place.
    count = np.prod([shape[a] for a in axis])
    limit = agreement.TOLERANCE[dtype]
    if word == "mul" and dtype != "float64":
        limit = max(limit, float(count) * 2.0**-24)

    def build(x):
        kind = x.type.dtype
        return G.GpuDnnReduction(word, axis, acc if kind == dtype else "float64", kind)(x)

    with config.change_flags({"gpu.prefer": prefer}):
        assert_agree(build, [x], dtype, (kernel,), wrt=[], tolerance=limit)


@pytest.mark.parametrize("word", ["maximum", "minimum"])
@pytest.mark.parametrize(
    ("shape", "axis"), [((5, 7), (1,)), ((3, 4, 5), (0, 2)), ((2, 300), (1,)), ((6, 5), (0, 1))]
)
@pytest.mark.parametrize(
    ("prefer", "kernel"), [("cudnn", "cudnn.reduction"), ("own", "cuda.reduce")]
)
def test_indices_of_extremes(word, shape, axis, prefer, kernel):
    def build(x):
        acc = "float32" if x.type.dtype == "float32" else "float64"
        return list(G.GpuDnnReduction(word, axis, acc, x.type.dtype, True)(x))

    with config.change_flags({"gpu.prefer": prefer}):
        assert_agree(build, [distinct(*shape)], "float32", (kernel,), wrt=[])


def test_the_first_of_equal_extremes_is_found():
    x = np.array([[1.0, 3, 3, 2], [5, 5, 5, 5]], np.float32)
    v = TensorType("float32", (None, None))("v")
    f = function([v], v.argmax(axis=1), mode=Mode(target=agreement.TARGET))
    np.testing.assert_array_equal(f(x), [1, 0])


def test_a_nan_is_the_largest():
    x = normal(3, 5)
    x[1, 2] = np.nan
    assert_agree(lambda x: x.max(axis=1), [x], "float32", wrt=[])


@pytest.mark.parametrize(("shape", "axis"), [((0, 4), (0,)), ((1, 4), (0,)), ((3, 0), (0,))])
def test_reductions_that_cudnn_is_spared(shape, axis):
    assert_agree(lambda x: x.sum(axis=axis), [normal(*shape)], "float32", wrt=[])


# -- CTC ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "lengths"),
    [
        ([[1, 2, 3], [3, 3, 1], [4, -1, -1]], [9, 9, 9]),
        ([[1, 2, 3], [3, 3, 1], [4, -1, -1]], [9, 7, 4]),
        ([[1, 2, 3], [-1, -1, -1], [2, 2, 2]], [9, 5, 3]),  # an empty label, one that does not fit
    ],
)
def test_ctc(labels, lengths):
    scores = normal(9, 3, 5)
    labels, lengths = np.array(labels), np.array(lengths)

    def build(v):
        return CTCLoss()(v, constant(labels), constant(lengths))[0]

    assert_agree(build, [scores], "float32", ("cudnn.ctc_loss",), wrt=[])

    def gradient(v):
        return CTCLoss()(v, constant(labels), constant(lengths))[1]

    assert_agree(gradient, [scores], "float32", ("cudnn.ctc_loss",), wrt=[])


def test_ctc_with_labels_that_are_inputs():
    def build(v, labels, lengths):
        return CTCLoss()(v, labels, lengths)[0]

    arrays = [normal(9, 2, 5), np.array([[1, 2], [3, 3]]), np.array([9, 9])]
    assert_agree(build, arrays, "float32", ("cudnn.ctc_loss",))
