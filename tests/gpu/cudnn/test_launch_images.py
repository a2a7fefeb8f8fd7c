"""Which functions of cuDNN kernels of images call, and with what. Needs neither GPU nor cuDNN."""

from __future__ import annotations

import pytest

from symdnn.config import config
from symdnn.gpu import registry
from symdnn.graph.origin import Hints
from symdnn.ops.vendor import gpudnn as G
from tests.gpu.fake_cudnn import F32, HANDLE, WORKSPACE, call_of, refusal, run

registry.load()

# -- pooling --------------------------------------------------------------------------------------


POOL = {"ws": (3, 2), "stride": (2, 1), "pad": (1, 0)}


def test_pooling(fake):
    _, (x,), (y,), _ = run(fake, call_of(G.GpuDnnPool("max", **POOL), (F32, (2, 3, 7, 6))))
    handle, how, one, xd, xp, none, yd, yp = fake.only("cudnnPoolingForward")
    assert (how.mode, how.window, how.padding, how.stride) == ("MAX", (3, 2), (1, 0), (2, 1))
    assert (handle, one, none, xp, yp) == (HANDLE, 1.0, 0.0, x.ptr, y.ptr)
    assert (xd.shape, yd.shape) == ((2, 3, 7, 6), (2, 3, 4, 5))


@pytest.mark.parametrize(
    ("word", "mode"),
    [("max_deterministic", "MAX_DETERMINISTIC"),
     ("average", "AVERAGE_COUNT_INCLUDE_PADDING"),
     ("average_exc_pad", "AVERAGE_COUNT_EXCLUDE_PADDING")],
)  # fmt: skip
def test_modes_of_pooling(fake, word, mode):
    run(fake, call_of(G.GpuDnnPool(word, **POOL), (F32, (2, 3, 7, 6))))
    assert fake.only("cudnnPoolingForward")[1].mode == mode


def test_pooling_of_a_large_batch_is_cut(fake):
    _, (x,), _, _ = run(fake, call_of(G.GpuDnnPool("max", **POOL), (F32, (70000, 1, 7, 6))))
    first, second = fake.named("cudnnPoolingForward")
    assert (first[3].shape[0], second[3].shape[0]) == (65535, 70000 - 65535)
    assert second[4] == x.ptr + 65535 * 42 * 4


def test_pooling_of_nothing(fake):
    run(fake, call_of(G.GpuDnnPool("max", **POOL), (F32, (0, 3, 7, 6))))
    assert fake.ran() == []


def max_grad(hints=None):
    op = G.GpuDnnPoolGrad("max", **POOL)
    x, y = (F32, (2, 3, 7, 6)), (F32, (2, 3, 4, 5))
    return call_of(op, x, y, y, hints=hints or Hints())


def test_the_gradient_of_a_maximum_is_our_own(fake):
    env, (x, y, dy), (dx,), _ = run(fake, max_grad())
    ((_, name, values),) = env.did
    assert name == "max_pool_grad"
    assert values[:5] == [x.ptr, y.ptr, dy.ptr, dx.ptr, 2 * 3 * 7 * 6]
    assert values[5:] == [7, 4, 3, 2, 1, 6, 5, 2, 1, 0]
    assert fake.ran() == []


def test_cudnn_has_the_gradient_of_a_maximum_where_asked(fake):
    _, (x, y, dy), (dx,), _ = run(fake, max_grad(), kernel="cudnn.pool_grad")
    args = fake.only("cudnnPoolingBackward")
    assert [args[4], args[6], args[8], args[11]] == [y.ptr, dy.ptr, x.ptr, dx.ptr]


def test_the_gradient_of_a_mean_needs_no_data(fake):
    op = G.GpuDnnPoolGrad("average_inc_pad", **POOL, static=(7, 6))
    sizes = [("int64", ())] * 2
    call = call_of(op, (F32, (2, 3, 4, 5)), *sizes, host={1: 7, 2: 6})
    _, (dy, *_), (dx,), _ = run(fake, call)
    args = fake.only("cudnnPoolingBackward")
    assert (args[1].mode, args[6], args[11]) == ("AVERAGE_COUNT_INCLUDE_PADDING", dy.ptr, dx.ptr)
    assert (args[3].shape, args[7].shape) == ((2, 3, 4, 5), (2, 3, 7, 6))


# -- softmax and activations ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "shape", "folded"),
    [
        (G.GpuDnnSoftmax("accurate", "channel"), (5, 7), (5, 7, 1, 1)),
        (G.GpuDnnSoftmax("log", "channel", axis=0), (5, 7), (1, 5, 7, 1)),
        (G.GpuDnnSoftmax("fast", "channel"), (2, 3, 4, 5), (2, 3, 20, 1)),
        (G.GpuDnnSoftmax("accurate", "channel", axis=3), (2, 3, 4, 5), (24, 5, 1, 1)),
        (G.GpuDnnSoftmax("accurate", "instance"), (2, 3, 4, 5), (2, 60, 1, 1)),
    ],
)
def test_softmax_sees_what_it_normalises_over_as_channels(fake, op, shape, folded):
    _, (x,), (y,), _ = run(fake, call_of(op, (F32, shape)))
    _handle, algo, mode, _one, xd, xp, _none, yd, yp = fake.only("cudnnSoftmaxForward")
    assert (algo, mode) == (f"CUDNN_SOFTMAX_{op.algo.upper()}", "CUDNN_SOFTMAX_MODE_CHANNEL")
    assert (xd.shape, yd.shape, xp, yp) == (folded, folded, x.ptr, y.ptr)


def test_the_gradient_of_softmax_takes_its_result(fake):
    op = G.GpuDnnSoftmaxGrad("log", "channel")
    _, (dy, y), (dx,), _ = run(fake, call_of(op, (F32, (5, 7)), (F32, (5, 7))))
    args = fake.only("cudnnSoftmaxBackward")
    assert [args[1], args[5], args[7], args[10]] == ["CUDNN_SOFTMAX_LOG", y.ptr, dy.ptr, dx.ptr]


def test_softmax_of_many_rows_is_cut(fake):
    run(fake, call_of(G.GpuDnnSoftmax(), (F32, (65536 + 7, 3))))
    shapes = [args[4].shape for args in fake.named("cudnnSoftmaxForward")]
    assert shapes == [(65535, 3, 1, 1), (8, 3, 1, 1)]


def test_activations_run_in_strips(fake):
    op = G.GpuDnnActivation("clipped_relu", 6.0)
    _, (x,), _, _ = run(fake, call_of(op, (F32, (3, (1 << 20) + 1))))
    first, second = fake.named("cudnnActivationForward")
    assert (first[1].mode, first[1].coef) == ("CLIPPED_RELU", 6.0)
    assert (first[3].shape, second[3].shape) == ((3, 1 << 20, 1, 1), (1, 3, 1, 1))
    assert second[4] == x.ptr + 3 * (1 << 20) * 4


# -- normalisation --------------------------------------------------------------------------------


def batch_norm(kind, mode="spatial", dtype=F32, x=(4, 3, 5, 6), **more):
    one = (1, x[1], 1, 1) if mode == "spatial" else (1, *x[1:])
    p = (F32 if dtype == "float16" else dtype, one)
    op = kind(mode, **more)
    if kind is G.GpuDnnBatchNormGrad:
        return call_of(op, (dtype, x), (dtype, x), p, p, p)
    count = {G.GpuDnnBatchNorm: 2 + 2 * bool(getattr(op, "running_averages", False))}.get(kind, 4)
    return call_of(op, (dtype, x), *[p] * count)


@pytest.mark.parametrize("mode", ["spatial", "per-activation"])
def test_batch_norm_in_training(fake, mode):
    call = batch_norm(G.GpuDnnBatchNorm, mode, dtype="float16", epsilon=1e-3)
    _, (x, scale, bias), (y, mean, invstd), _ = run(fake, call)
    args = fake.only("cudnnBatchNormalizationForwardTraining")
    word = {"spatial": "SPATIAL", "per-activation": "PER_ACTIVATION"}[mode]
    assert args[:4] == (HANDLE, f"CUDNN_BATCHNORM_{word}", 1.0, 0.0)
    assert [args[5], args[7], args[9], args[10]] == [x.ptr, y.ptr, scale.ptr, bias.ptr]
    assert args[11:] == (0.0, None, None, 1e-3, mean.ptr, invstd.ptr)
    assert (args[4].dtype, args[8].dtype) == ("float16", "float32")
    assert args[8].shape == ((1, 3, 1, 1) if mode == "spatial" else (1, 3, 5, 6))


def test_running_averages_are_updated_in_a_copy(fake):
    call = batch_norm(G.GpuDnnBatchNorm, running_averages=True, running_average_factor=0.25)
    env, given, outputs, _ = run(fake, call)
    args = fake.only("cudnnBatchNormalizationForwardTraining")
    assert args[11:14] == (0.25, outputs[3].ptr, outputs[4].ptr)
    copied = [values for _, _, values in env.did]
    assert len(copied) == 2
    for values, old, new in zip(copied, given[3:], outputs[3:]):
        assert old.ptr in values
        assert new.ptr in values


def test_batch_norm_by_given_statistics(fake):
    call = batch_norm(G.GpuDnnBatchNormInference, "per-activation", x=(70000, 2, 3, 1))
    _, given, (y,), _ = run(fake, call)
    first, second = fake.named("cudnnBatchNormalizationForwardInference")
    assert list(first[9:13]) == [v.ptr for v in given[1:]]
    assert second[5] == given[0].ptr + 65535 * 6 * 4
    assert second[7] == y.ptr + 65535 * 6 * 4


def test_the_gradient_of_batch_norm(fake):
    call = batch_norm(G.GpuDnnBatchNormGrad, epsilon=1e-2)
    _, (x, dy, scale, mean, invstd), (dx, dscale, dbias), _ = run(fake, call)
    args = fake.only("cudnnBatchNormalizationBackward")
    assert args[2:6] == (1.0, 0.0, 1.0, 0.0)
    assert [args[7], args[9], args[11]] == [x.ptr, dy.ptr, dx.ptr]
    assert args[13:] == (scale.ptr, dscale.ptr, dbias.ptr, 1e-2, mean.ptr, invstd.ptr)


def test_what_cudnn_does_not_normalise(fake):
    empty = batch_norm(G.GpuDnnBatchNorm, x=(0, 3, 5, 6))
    single = batch_norm(G.GpuDnnBatchNorm, x=(1, 3, 1, 1), running_averages=True)
    long = batch_norm(G.GpuDnnBatchNorm, "per-activation", x=(200000, 1, 1, 1))
    assert [refusal(c) != [] for c in (empty, single, long)] == [True] * 3


def test_lrn(fake):
    op, x = G.GpuDnnLRN(3, 1e-3, 0.6, 1.5), (F32, (2, 7, 4, 3))
    _, (a,), (y,), _ = run(fake, call_of(op, x))
    args = fake.only("cudnnLRNCrossChannelForward")
    assert (args[1].n, args[1].alpha, args[1].beta, args[1].k) == (3, 1e-3, 0.6, 1.5)
    assert (args[2], args[5], args[8]) == ("CUDNN_LRN_CROSS_CHANNEL_DIM1", a.ptr, y.ptr)
    _, (a, y, dy), (dx,), _ = run(fake, call_of(G.GpuDnnLRNGrad(3, 1e-3, 0.6, 1.5), x, x, x))
    args = fake.only("cudnnLRNCrossChannelBackward")
    assert [args[5], args[7], args[9], args[12]] == [y.ptr, dy.ptr, a.ptr, dx.ptr]


# -- spatial transformer --------------------------------------------------------------------------


def test_transformer_grid(fake):
    op = G.GpuDnnTransformerGrid(static=(4, 5))
    sizes = [("int64", ())] * 2
    call = call_of(op, (F32, (2, 2, 3)), *sizes, host={1: 4, 2: 5})
    _, (theta, *_), (grid,), _ = run(fake, call)
    _, d, a, b = fake.only("cudnnSpatialTfGridGeneratorForward")
    assert (d.shape, a, b) == ((2, 1, 4, 5), theta.ptr, grid.ptr)
    call = call_of(G.GpuDnnTransformerGradT(), (F32, (2, 4, 5, 2)))
    _, (dgrid,), (dtheta,), _ = run(fake, call)
    assert fake.only("cudnnSpatialTfGridGeneratorBackward")[2:] == (dgrid.ptr, dtheta.ptr)


def test_a_grid_of_one_row_is_refused(fake):
    call = call_of(G.GpuDnnTransformerGradT(), (F32, (2, 1, 5, 2)))
    assert "single row" in refusal(call)[0]


def sampling(kind, channels=3, batch=2):
    image, grid = (F32, (batch, channels, 6, 7)), (F32, (batch, 4, 5, 2))
    more = [(F32, (batch, channels, 4, 5))] if kind is G.GpuDnnTransformerGradI else []
    return call_of(kind(), image, grid, *more)


def test_transformer_sampler(fake):
    _, (x, grid), (y,), _ = run(fake, sampling(G.GpuDnnTransformerSampler))
    args = fake.only("cudnnSpatialTfSamplerForward")
    assert (args[1].shape, args[3].shape, args[7].shape) == (
        (2, 3, 4, 5), (2, 3, 6, 7), (2, 3, 4, 5),
    )  # fmt: skip
    assert (args[4], args[5], args[8]) == (x.ptr, grid.ptr, y.ptr)


def test_the_gradient_of_the_sampler(fake):
    _, (x, grid, dy), (dx, dgrid), _ = run(fake, sampling(G.GpuDnnTransformerGradI))
    args = fake.only("cudnnSpatialTfSamplerBackward")
    assert [args[4], args[7], args[10], args[11], args[13]] == [
        x.ptr, dx.ptr, dy.ptr, grid.ptr, dgrid.ptr,
    ]  # fmt: skip
    with config.change_flags({"deterministic": "more"}):
        assert "any order" in refusal(sampling(G.GpuDnnTransformerGradI))[0]


def test_too_many_channels_are_refused(fake):
    assert "1024" in refusal(sampling(G.GpuDnnTransformerSampler, 1025))[0]


# -- reductions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "name", "axis", "x", "y"),
    [
        ("add", "ADD", (0,), (1, 1, 3, 20), (1, 1, 1, 20)),
        ("norm2", "NORM2", (0, 1, 2), (1, 1, 1, 60), (1, 1, 1, 1)),
        ("absmax", "AMAX", (1,), (1, 3, 4, 5), (1, 3, 1, 5)),
        ("mul", "MUL", (0, 2), (1, 3, 4, 5), (1, 1, 4, 1)),
    ],
)
def test_reductions_join_dimensions_of_one_fate(fake, word, name, axis, x, y):
    call = call_of(G.GpuDnnReduction(word, axis, F32, F32), (F32, (3, 4, 5)))
    _, (a,), (out,), _ = run(fake, call)
    args = fake.only("cudnnReduceTensor")
    assert (args[1].op, args[1].indices, args[1].compute) == (name, False, "float32")
    assert (args[7].shape, args[10].shape) == (x, y)
    assert args[2:6] == (None, 0, WORKSPACE, 64)
    assert (args[8], args[11]) == (a.ptr, out.ptr)


def test_indices_are_written_where_they_fit(fake):
    fake.answers["cudnnGetReductionIndicesSize"] = 12 * 4
    call = call_of(G.GpuDnnReduction("maximum", (2,), F32, F32, True), (F32, (3, 4, 5)))
    env, _, (_, where), _ = run(fake, call)
    assert fake.only("cudnnReduceTensor")[2:4] == (where.ptr, 48)
    assert env.did == []


def test_indices_that_need_more_room_are_copied(fake):
    fake.answers["cudnnGetReductionIndicesSize"] = 1000
    call = call_of(G.GpuDnnReduction("maximum", (2,), F32, F32, True), (F32, (3, 4, 5)))
    env, _, (_, where), _ = run(fake, call)
    assert fake.only("cudnnReduceTensor")[2:4] == (WORKSPACE + 256, 1000)
    ((_, _, values),) = env.did
    assert where.ptr in values


@pytest.mark.parametrize(
    ("op", "shape"),
    [
        (G.GpuDnnReduction("add", (0,), F32, F32), (0, 4)),
        (G.GpuDnnReduction("add", (0,), F32, F32), (1, 4)),
        (G.GpuDnnReduction("add", (0,), "float64", F32), (3, 4)),
        (G.GpuDnnReduction("add", (0,), "float64", "float64"), (3, 4)),
    ],
)
def test_what_cudnn_does_not_reduce(fake, op, shape):
    assert refusal(call_of(op, (F32, shape))) != []
