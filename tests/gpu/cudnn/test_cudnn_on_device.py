"""cuDNN's kernels of images on a GPU against NumPy in float64, forward and gradients."""

from __future__ import annotations

import numpy as np
import pytest

from symdnn.autodiff import grad
from symdnn.config import config
from symdnn.gpu import dnn
from symdnn.gpu.conv.algorithm import DIRECTIONS, UnsupportedAlgorithm
from symdnn.graph.origin import Hints
from symdnn.ops.nn.conv import Conv
from symdnn.ops.nn.lrn import local_response_normalization
from symdnn.ops.nn.pool import Pool, pool_2d
from symdnn.ops.nn.softmax import logsoftmax, softmax
from symdnn.ops.vendor import gpudnn as G
from tests.gpu.agreement import (
    DTYPES,
    assert_agree,
    assert_close,
    compiled,
    distinct,
    normal,
    rounded,
    truth,
)

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]

CONV = ("cudnn.conv",)


@pytest.fixture(params=["own", "cudnn"])
def prefer(request):
    """The flag ``gpu.prefer`` as it is named."""
    with config.change_flags({"gpu.prefer": request.param}):
        yield request.param


# -- convolution ----------------------------------------------------------------------------------

GEOMETRIES = {
    "plain": {"x": (2, 4, 7, 6), "w": (5, 4, 3, 2)},
    "one_by_one": {"x": (3, 8, 5, 5), "w": (6, 8, 1, 1)},
    "strided": {"x": (2, 3, 9, 8), "w": (4, 3, 3, 3), "subsample": (2, 3), "border_mode": (1, 2)},
    "dilated": {"x": (2, 3, 11, 9), "w": (4, 3, 3, 2), "dilation": (2, 3), "border_mode": "half"},
    "full": {"x": (2, 3, 5, 4), "w": (4, 3, 3, 3), "border_mode": "full", "subsample": (1, 2)},
    "grouped": {"x": (2, 6, 7, 7), "w": (9, 2, 3, 3), "num_groups": 3, "border_mode": 1},
    "depthwise": {"x": (2, 5, 7, 7), "w": (10, 1, 3, 3), "num_groups": 5},
    "grouped_dilated": {
        "x": (2, 4, 9, 9), "w": (4, 2, 3, 3), "num_groups": 2, "dilation": (2, 2),
    },
    "odd_everything": {
        "x": (1, 1, 13, 3), "w": (1, 1, 5, 3), "subsample": (3, 1), "border_mode": (2, 0),
    },
    "single": {"x": (1, 1, 1, 1), "w": (1, 1, 1, 1)},
}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", ["conv", "cross"])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_dnn_conv(name, mode, dtype):
    how = dict(GEOMETRIES[name])
    x, w = normal(*how.pop("x")), normal(*how.pop("w"), seed=1)
    assert_agree(
        lambda x, w: dnn.dnn_conv(x, w, conv_mode=mode, direction_hint="forward!", **how),
        [x, w], dtype, CONV,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "how",
    [{}, {"subsample": (2, 1, 2), "border_mode": (1, 0, 2)}, {"num_groups": 2},
     {"dilation": (1, 2, 1), "conv_mode": "cross"}],
)  # fmt: skip
def test_dnn_conv3d(how, dtype):
    x, w = normal(2, 4, 5, 6, 7), normal(4, 4 // how.get("num_groups", 1), 3, 2, 3, seed=1)
    assert_agree(
        lambda x, w: dnn.dnn_conv3d(x, w, direction_hint="forward!", **how), [x, w], dtype, CONV
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_convolution_of_lines(dtype):
    op = Conv(((2, 1),), (2,), (2,), 2, True)
    assert_agree(lambda x, w: op(x, w), [normal(3, 4, 13), normal(6, 2, 3)], dtype, CONV)


def test_padding_that_differs_on_the_sides():
    op = Conv(((0, 2), (3, 1)), (2, 1), (1, 1))
    assert_agree(lambda x, w: op(x, w), [normal(2, 3, 6, 7), normal(4, 3, 3, 2)], "float32", CONV)


@pytest.mark.parametrize("hint", ["bprop weights", None])
def test_directions_of_dnn_conv(hint):
    border = "full" if hint is None else "valid"
    assert_agree(
        lambda x, w: dnn.dnn_conv(x, w, border, direction_hint=hint),
        [normal(2, 3, 7, 6), normal(4, 3, 3, 2)], "float32", CONV,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradient_functions(dtype):
    x, w, dy = normal(2, 4, 7, 6), normal(6, 2, 3, 2), normal(2, 6, 4, 6)
    how = {"border_mode": (1, 1), "subsample": (2, 1), "dilation": (1, 2), "num_groups": 2}
    assert_agree(
        lambda x, dy: dnn.dnn_gradweight(x, dy, w.shape, **how), [x, dy], dtype, CONV
    )  # fmt: skip
    assert_agree(lambda w, dy: dnn.dnn_gradinput(w, dy, x.shape, **how), [w, dy], dtype, CONV)


def test_gradient_functions_of_volumes():
    x, w, dy = normal(2, 3, 5, 6, 4), normal(4, 3, 2, 3, 2), normal(2, 4, 4, 4, 3)
    assert_agree(lambda x, dy: dnn.dnn_gradweight3d(x, dy, w.shape), [x, dy], "float32", CONV)
    assert_agree(lambda w, dy: dnn.dnn_gradinput3d(w, dy, x.shape), [w, dy], "float32", CONV)


@pytest.mark.parametrize("kind", [G.GpuDnnConv, G.GpuDnnConvGradI, G.GpuDnnConvGradW])
@pytest.mark.parametrize("beta", [0.0, -2.0])
def test_alpha_beta_and_output(kind, beta):
    desc = G.GpuDnnConvDesc((1, 0), (2, 1), (1, 1), "conv", "float32")
    x, w, y = normal(2, 3, 7, 6), normal(4, 3, 3, 2), normal(2, 4, 4, 5)
    given = {
        G.GpuDnnConv: [x, w, y], G.GpuDnnConvGradI: [w, y, x], G.GpuDnnConvGradW: [x, y, w],
    }[kind]  # fmt: skip
    assert_agree(
        lambda a, b, out: kind()(a, b, out, desc, 0.5, beta), given, "float32", CONV, wrt=[0, 1]
    )


def test_second_derivatives():
    def build(x, w):
        y = dnn.dnn_conv(x, w, "half")
        return grad((y**3).sum(), [x, w])

    assert_agree(build, [normal(2, 2, 5, 4), normal(3, 2, 3, 3)], "float64", CONV)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_batch_beyond_the_grid(dtype):
    x, w = normal(65536 + 7, 1, 3, 3), normal(2, 1, 2, 2)
    assert_agree(lambda x, w: dnn.dnn_conv(x, w), [x, w], dtype, CONV)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_an_empty_batch(dtype):
    x, w = normal(0, 3, 6, 5), normal(4, 3, 3, 3)
    assert_agree(lambda x, w: dnn.dnn_conv(x, w), [x, w], dtype)


ALGORITHMS = [(direction, word) for direction, d in DIRECTIONS.items() for word in d.algorithms]


@pytest.mark.parametrize(("direction", "word"), ALGORITHMS)
@pytest.mark.parametrize("shape", [(4, 8, 16, 16), (2, 3, 33, 31)])
def test_every_named_algorithm_is_right_or_refused(direction, word, shape):
    x, w = normal(*shape), normal(6, shape[1], 3, 3)
    number = DIRECTIONS[direction].algorithms[word]
    hints = Hints(**{f"algo_{direction}": number if word == "direct" else word})
    op = Conv(((1, 1), (1, 1)), (1, 1), (1, 1))
    try:
        assert_agree(lambda x, w: op(x, w, hints=hints), [x, w], "float32", CONV, tolerance=5e-4)
    except UnsupportedAlgorithm as error:
        pytest.skip(str(error).splitlines()[0][:200])


@pytest.mark.parametrize("word", ["guess_once", "time_once"])
def test_searches(word):
    x, w = normal(4, 8, 16, 16), normal(6, 8, 3, 3)
    with config.change_flags(
        {
            "dnn.conv.algo_fwd": word,
            "dnn.conv.algo_bwd_data": word,
            "dnn.conv.algo_bwd_filter": word,
        }
    ):
        assert_agree(lambda x, w: dnn.dnn_conv(x, w, "half"), [x, w], "float32", CONV)


@pytest.mark.usefixtures("card")
def test_a_workspace_limit_is_kept():
    x, w = normal(4, 8, 33, 33), normal(6, 8, 5, 5)
    with config.change_flags({"dnn.conv.workspace_limit": 1, "dnn.conv.algo_fwd": "guess_once"}):
        f = assert_agree(lambda x, w: dnn.dnn_conv(x, w), [x, w], "float32", CONV, wrt=[])
    assert f.run.memory_report().workspaces <= 1


def test_deterministic_gradients_have_the_same_bits():
    x, w = normal(16, 16, 32, 32), normal(32, 16, 3, 3)
    with config.change_flags({"deterministic": "more"}):
        f = compiled(lambda x, w: dnn.dnn_conv(x, w, "half"), [x, w], "float32")
        low, _ = rounded([x, w], "float32")
        first, second = f(*low), f(*low)
    for a, b in zip(first, second):
        np.testing.assert_array_equal(a, b)


def test_shapes_that_change_and_change_back():
    w = normal(4, 3, 3, 3)
    f = compiled(lambda x, w: dnn.dnn_conv(x, w), [normal(2, 3, 8, 8), w], "float32")
    for shape in [(2, 3, 8, 8), (5, 3, 6, 9), (2, 3, 8, 8), (0, 3, 5, 5), (5, 3, 6, 9)]:
        low, wide = rounded([normal(*shape), w], "float32")
        for a, b in zip(f(*low), truth(lambda x, w: dnn.dnn_conv(x, w), wide)):
            assert_close(a, b, 2e-4)


def test_strided_inputs_are_read_as_they_are_meant():
    def build(x, w):
        return dnn.dnn_conv(x[:, ::2, 1:, ::-1].dimshuffle(0, 1, 3, 2), w)

    assert_agree(build, [normal(2, 6, 8, 7), normal(4, 3, 3, 3)], "float32", CONV)


# -- pooling --------------------------------------------------------------------------------------

POOLS = [
    {"ws": (2, 2), "stride": (2, 2)},
    {"ws": (3, 2), "stride": (2, 1), "pad": (1, 1)},
    {"ws": (1, 1)},
    {"ws": (3, 3), "stride": (4, 5)},
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", list(G.POOL_MODES))
@pytest.mark.parametrize("how", POOLS)
def test_dnn_pool(how, mode, dtype):
    assert_agree(
        lambda x: dnn.dnn_pool(x, mode=mode, **how), [distinct(2, 3, 9, 8)], dtype,
        ("cudnn.pool", "cudnn.pool_grad"),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", ["max", "average_inc_pad", "average_exc_pad", "sum"])
@pytest.mark.parametrize("how", [{"ws": (2, 2)}, {"ws": (3, 2), "stride": (2, 2)}])
def test_windows_that_the_border_cuts_off(how, mode, dtype, prefer):
    assert_agree(
        lambda x: pool_2d(x, mode=mode, ignore_border=False, **how), [distinct(2, 3, 9, 7)], dtype,
        ("cuda.pool", "cuda.pool_grad"),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", ["max", "average_exc_pad"])
def test_dnn_pool_of_volumes(mode, dtype):
    assert_agree(
        lambda x: dnn.dnn_pool(x, (2, 3, 2), (1, 2, 2), mode, (1, 0, 1)),
        [distinct(2, 2, 4, 5, 6)], dtype, ("cudnn.pool", "cudnn.pool_grad"),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_ties_of_a_maximum_all_get_the_gradient(dtype, prefer):
    x = np.random.default_rng(0).integers(0, 3, (2, 3, 8, 9)).astype(np.float64)
    op = Pool((3, 2), (2, 1), (1, 0), "max", True)
    kernels = {
        "own": ("cuda.pool", "cuda.pool_grad"), "cudnn": ("cudnn.pool", "cuda.max_pool_grad"),
    }  # fmt: skip
    assert_agree(lambda x: op(x), [x], dtype, kernels[prefer])


@pytest.mark.parametrize("ndim", [1, 2, 3])
def test_pooling_of_many_leading_dimensions(ndim, prefer):
    op = Pool((2,) * ndim, (2,) * ndim, (0,) * ndim, "average_inc_pad", True)
    kernel = {"own": "cuda.pool", "cudnn": "cudnn.pool"}[prefer]
    assert_agree(lambda x: op(x), [normal(2, 3, 2, *(6,) * ndim)], "float32", (kernel,))


def test_pooling_keeps_nan():
    x = normal(1, 1, 4, 4)
    x[0, 0, 1, 2] = np.nan
    assert_agree(lambda x: dnn.dnn_pool(x, (2, 2), (2, 2)), [x], "float32", wrt=[])


@pytest.mark.parametrize("mode", ["max", "average_inc_pad"])
def test_pooling_of_a_batch_beyond_the_grid(mode):
    x = distinct(65536 + 7, 1, 2, 2) * 1e-5
    assert_agree(lambda x: dnn.dnn_pool(x, (2, 2), (2, 2), mode), [x], "float64")
    assert_agree(lambda x: dnn.dnn_pool(x, (2, 2), (2, 2), mode), [x[:0]], "float32")


# -- softmax, activations -------------------------------------------------------------------------

SOFTMAX = {"own": "cuda.softmax", "cudnn": "cudnn.softmax"}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", [softmax, logsoftmax])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((5, 7), 1), ((5, 7), 0), ((3, 4, 5), 1), ((2, 3, 4, 5), 3), ((6, 1), 1), ((65543, 3), 1),
     ((3, 5000), 1), ((0, 4), 1)],
)  # fmt: skip
def test_softmax(kind, shape, axis, dtype, prefer):
    x = normal(*shape, scale=3)
    # Rows are read once for the softmax and its gradient; those of float64 are not joined.
    rows = prefer == "own" and dtype != "float64" and axis == x.ndim - 1 and shape[axis] > 1
    kernel = "cuda.rows_once" if rows else SOFTMAX[prefer]
    assert_agree(lambda x: kind(x, axis=axis), [x], dtype, (kernel,))


@pytest.mark.parametrize("algo", ["fast", "accurate", "log"])
@pytest.mark.parametrize("mode", ["instance", "channel"])
def test_modes_of_gpudnn_softmax(algo, mode, prefer):
    x = normal(3, 4, 2, 5)
    assert_agree(G.GpuDnnSoftmax(algo, mode), [x], "float32", (SOFTMAX[prefer],))


def test_softmax_of_large_values():
    x = np.array([[1e4, 0.0, -1e4], [3e38, 3e38, -3e38]])
    assert_agree(lambda x: softmax(x), [x], "float32", wrt=[])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(
    ("mode", "coef"),
    [("relu", 1.0), ("sigmoid", 1.0), ("tanh", 1.0), ("elu", 0.7), ("clipped_relu", 0.8)],
)
def test_activations(mode, coef, dtype):
    x = normal(3, 5, 7) + 0.01
    assert_agree(G.GpuDnnActivation(mode, coef), [x], dtype, ("cudnn.activation",), wrt=[])


# -- normalisation --------------------------------------------------------------------------------


def statistics_shape(shape, mode):
    """The shape of the parameters: 1 where statistics are taken over."""
    over = (0, *range(2, len(shape))) if mode == "spatial" else (0,)
    return tuple(1 if i in over else n for i, n in enumerate(shape))


NORM_SHAPES = [(7, 5), (6, 3, 4), (4, 3, 5, 6), (4, 3, 2, 3, 4), (3, 4, 2, 2, 2, 3)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mode", ["spatial", "per-activation"])
@pytest.mark.parametrize("shape", NORM_SHAPES)
def test_batch_normalization_in_training(shape, mode, dtype):
    one = statistics_shape(shape, mode)
    given = [normal(*shape, scale=2) + 1, normal(*one, seed=1) + 1.5, normal(*one, seed=2)]
    given += [normal(*one, seed=3), np.abs(normal(*one, seed=4)) + 0.5]

    def build(x, gamma, beta, mean, var):
        return dnn.dnn_batch_normalization_train(
            x, gamma, beta, mode, 1e-3, 0.3, mean, var
        )  # fmt: skip

    names = ("cudnn.batch_norm", "cudnn.batch_norm_grad")
    assert_agree(
        build, given, dtype, names, wrt=[0, 1, 2], tolerance=2e-3 if dtype == "float32" else None
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_batch_normalization_of_narrow_floats(dtype):
    x, gamma, beta = normal(8, 3, 5, 6), normal(1, 3, 1, 1) + 1.5, normal(1, 3, 1, 1)

    def build(x, gamma, beta):
        wide = [v.astype("float32") if dtype == x.type.dtype else v for v in (gamma, beta)]
        return dnn.dnn_batch_normalization_train(x, *wide, "spatial")[0]

    limit = {"float16": 0.05, "bfloat16": 0.25}[dtype]
    assert_agree(build, [x, gamma, beta], dtype, ("cudnn.batch_norm",), tolerance=limit)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("mode", ["spatial", "per-activation"])
@pytest.mark.parametrize("shape", [*NORM_SHAPES, (0, 3, 4, 5), (65543, 2, 1, 2)])
def test_batch_normalization_by_given_statistics(shape, mode, dtype):
    one = statistics_shape(shape, mode)
    given = [normal(*shape), normal(*one, seed=1), normal(*one, seed=2), normal(*one, seed=3)]
    given.append(np.abs(normal(*one, seed=4)) + 0.5)

    def build(*v):
        return dnn.dnn_batch_normalization_test(*v, mode, 1e-3)

    assert_agree(
        build, given, dtype, ("cudnn.batch_norm_inference",), wrt=[] if shape[0] > 99 else None
    )


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("shape", [(2, 7, 4, 3), (1, 3, 2, 2), (0, 5, 2, 2)])
def test_local_response_normalization(shape, n, dtype):
    assert_agree(
        lambda x: local_response_normalization(x, n, 0.1, 0.6, 1.5), [normal(*shape)], dtype,
        ("cudnn.lrn", "cudnn.lrn_grad"),
    )  # fmt: skip
