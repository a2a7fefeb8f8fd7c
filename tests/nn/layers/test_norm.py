"""Normalisation: running statistics, evaluation, dtypes, errors. (Values: test_torch_layers.py.)"""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import InputError, TypeMismatch
from tests.seeded import new_rng


def draw(*shape):
    return new_rng().normal(1.5, 2, size=shape).astype("float32")


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("positions", [(4,), (2, 3), (2, 2, 3)])
def test_pytorchs_response_norm_is_across_the_second_axis(size, positions):
    value = draw(3, 6, *positions)
    x = T.TensorType("float32", (None,) * value.ndim)()
    found = symdnn.function([x], nn.LocalResponseNorm(size, 0.3, 0.6, 1.5)(x))(value)
    padded = np.pad(value**2, [(0, 0), (size // 2, (size - 1) // 2), *[(0, 0)] * len(positions)])
    squares = sum(padded[:, i : i + 6] for i in range(size)) / size
    np.testing.assert_allclose(found, value / (1.5 + 0.3 * squares) ** 0.6, rtol=1e-5)


@pytest.mark.parametrize("positions", [(5,), (4, 5), (2, 4, 5)])
def test_instance_norm_of_a_single_example(positions):
    layer = getattr(nn, f"InstanceNorm{len(positions)}d")(3)
    value = draw(3, *positions)
    xs = [T.TensorType("float32", (None,) * (value.ndim + n))() for n in range(2)]
    found, batch = symdnn.function(xs, [layer(x) for x in xs])(value, value[None])
    np.testing.assert_array_equal(found, batch[0])
    axes = tuple(range(1, value.ndim))
    np.testing.assert_allclose(found.mean(axes), 0, atol=1e-5)


def test_running_statistics_move_by_the_momentum():
    layer, x = nn.SpatialBatchNormalization(3, momentum=0.25), T.ftensor4("x")
    y = layer(x)
    f = symdnn.function([x], y, updates=nn.state_updates(y))
    mean, var = np.zeros(3), np.ones(3)
    for _ in range(3):
        value = draw(4, 3, 5, 6)
        out = f(value)
        mean = 0.75 * mean + 0.25 * value.mean((0, 2, 3))
        var = 0.75 * var + 0.25 * value.var((0, 2, 3), ddof=1)
        np.testing.assert_allclose(out.mean((0, 2, 3)), 0, atol=1e-5)
        np.testing.assert_allclose(out.std((0, 2, 3)), 1, rtol=1e-4)
    np.testing.assert_allclose(layer.running_mean.get_value(), mean, rtol=1e-5)
    np.testing.assert_allclose(layer.running_var.get_value(), var, rtol=1e-5)


def test_evaluation_takes_what_training_found_and_changes_nothing():
    layer, x = nn.SpatialBatchNormalization(3), T.ftensor4("x")
    layer.running_mean.set_value(np.array([1, 2, 3], "float32"))
    layer.running_var.set_value(np.array([4, 9, 16], "float32"))
    y = layer.evaluate()(x)
    assert nn.state_updates(y) == []
    value = draw(2, 3, 4, 4)
    wanted = (value - np.array([1, 2, 3]).reshape(3, 1, 1)) / np.array([2, 3, 4]).reshape(3, 1, 1)
    np.testing.assert_allclose(symdnn.function([x], y)(value), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.BatchNormalization(3, dtype="float64"), (5, 3)),
        (nn.SpatialBatchNormalization(2, dtype="float64"), (3, 2, 2, 3)),
        (nn.VolumetricBatchNormalization(2, dtype="float64"), (2, 2, 2, 2, 2)),
    ],
    ids=lambda v: repr(v) if isinstance(v, nn.Module) else None,
)
def test_gradients_in_training_and_evaluation(rng, layer, shape, training):
    layer.running_var.set_value(rng.uniform(0.5, 2, shape[1]))
    layer.train(training)
    kept = layer.weight, layer.bias

    def with_parameters(x, weight, bias):
        layer.weight, layer.bias = weight, bias
        return layer(x)

    try:
        point = [rng.normal(size=shape), rng.normal(size=shape[1]), rng.normal(size=shape[1])]
        symdnn.verify_grad(with_parameters, point, rng=rng)
    finally:
        layer.weight, layer.bias = kept


def test_a_single_image_is_its_own_batch():
    layer, value = nn.SpatialBatchNormalization(3), draw(3, 4, 5)
    x = T.ftensor3("x")
    out = symdnn.function([x], layer(x))(value)
    assert out.shape == (3, 4, 5)
    np.testing.assert_allclose(out.mean((1, 2)), 0, atol=1e-5)


def test_layers_of_16_bits_keep_their_statistics_in_32():
    layer = nn.SpatialBatchNormalization(3, dtype="float16")
    assert {v.type.dtype for v in [layer.weight, layer.running_var]} == {"float32"}
    assert layer.astype("bfloat16").bias.type.dtype == "float32"
    assert layer.double().bias.type.dtype == "float64"
    x = T.TensorType("float16", (None, 3, None, None))("x")
    net = nn.Sequential(nn.SpatialConvolution(3, 3, 1, 1), nn.SpatialBatchNormalization(3)).half()
    y = net(x)
    assert y.type.dtype == "float16"
    out = symdnn.function([x], y)(draw(4, 3, 5, 5).astype("float16"))
    np.testing.assert_allclose(out.astype("float64").mean((0, 2, 3)), 0, atol=1e-2)


def test_without_affine_there_are_no_parameters():
    assert nn.SpatialBatchNormalization(3, affine=False).parameters() == []
    assert nn.LayerNorm(3, affine=False).parameters() == []
    assert nn.SpatialBatchNormalization(3, momentum=None).named_buffers() == {}
    named = nn.SpatialBatchNormalization(3)
    assert list(named.state_dict()) == ["weight", "bias", "running_mean", "running_var"]


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        (nn.BatchNormalization(3), "nn.BatchNormalization (2D) (3)"),
        (nn.SpatialBatchNormalization(64), "nn.SpatialBatchNormalization (4D) (64)"),
        (nn.VolumetricBatchNormalization(8), "nn.VolumetricBatchNormalization (5D) (8)"),
        (nn.GroupNorm(2, 4), "nn.GroupNorm(2, 4)"),
        (nn.GroupNorm(2, 4, channels_last=True), "nn.GroupNorm(2, 4, channels last)"),
        (nn.LayerNorm((4, 5)), "nn.LayerNorm(4x5)"),
        (nn.LRN(5), "nn.SpatialCrossMapLRN(5)"),
    ],
)
def test_printing(layer, text):
    assert repr(layer) == text


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.SpatialBatchNormalization(0), "nFeature: wanted an int, 1 or more"),
        (lambda: nn.SpatialBatchNormalization(3, 0), "wanted eps above 0"),
        (lambda: nn.SpatialBatchNormalization(3, momentum=1.5), "momentum of 0 to 1"),
        (lambda: nn.GroupNorm(3, 4), "3 groups do not divide 4"),
        (lambda: nn.LayerNorm(()), "normalized_shape is empty"),
        (lambda: nn.SpatialCrossMapLRN(0), "size: wanted an int"),
    ],
)
def test_arguments_that_do_not_fit(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.SpatialBatchNormalization(3), (None, 4, None, None)),
        (nn.SpatialBatchNormalization(3), (None, 3)),
        (nn.BatchNormalization(3), (None, 3, 2, 2)),
        (nn.LayerNorm((4, 5)), (None, 4, 6)),
        (nn.LayerNorm((4, 5)), (5,)),
        (nn.GroupNorm(2, 4), (None, 3, 5)),
        (nn.GroupNorm(2, 4, channels_last=True), (None, 4, 5)),
        (nn.InstanceNorm(4), (None, 4)),
        (nn.SpatialCrossMapLRN(3), (None, 4)),
    ],
    ids=lambda v: repr(v),
)
def test_inputs_that_do_not_fit(layer, shape):
    x = T.TensorType("float32", shape)("x")
    with pytest.raises(TypeMismatch, match=f"{type(layer).__name__}: wanted"):
        layer(x)


@pytest.mark.parametrize("ndim", [2, 3, 4, 5])
def test_group_norm_of_channels_last(ndim, rng):
    module = nn.GroupNorm(2, 4, channels_last=True)
    module.load_state_dict({n: rng.normal(size=4) for n in ("weight", "bias")})
    first = nn.GroupNorm(2, 4).load_state_dict(module.state_dict())
    value = rng.normal(size=(3, *(2, 5, 3)[: ndim - 2], 4)).astype("float32")
    x = T.TensorType("float32", (None,) * ndim)()
    y = symdnn.function([x], module(x))(value)
    wanted = symdnn.function([x], first(x))(np.moveaxis(value, -1, 1))
    np.testing.assert_allclose(y, np.moveaxis(wanted, 1, -1), 1e-4, 1e-5)


def test_layer_norm_without_a_bias(rng):
    module = nn.LayerNorm(4, bias=False)
    assert list(module.state_dict()) == ["weight"]
    module.weight.set_value(rng.normal(size=4).astype("float32"))
    value = rng.normal(size=(3, 4)).astype("float32")
    x = T.fmatrix()
    y = symdnn.function([x], module(x))(value)
    scaled = (value - value.mean(1, keepdims=True)) / np.sqrt(value.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(y, scaled * module.weight.get_value(), 1e-4, 1e-5)
    assert symdnn.grad(module(x).sum(), module.weight).type.shape == (4,)


@pytest.mark.parametrize("affine", [False, True])
def test_running_statistics_of_instances(rng, affine):
    """The means over the examples move them, and they normalise in evaluation."""
    module = nn.InstanceNorm2d(3, momentum=0.3, affine=affine, track_running_stats=True)
    x = T.tensor("float32", (None, 3, None, None))
    y = module(x)
    train = symdnn.function([x], y, updates=nn.state_updates(y))
    test = symdnn.function([x], module.evaluate()(x))
    mean, var = np.zeros(3), np.ones(3)
    for n in (2, 4):
        value = (rng.normal(size=(n, 3, 4, 5)) * 2 + 1).astype("float32")
        means = value.mean((2, 3), keepdims=True)
        wanted = (value - means) / np.sqrt(value.var((2, 3), keepdims=True) + 1e-5)
        np.testing.assert_allclose(train(value), wanted, 1e-4, 1e-4)
        mean = 0.7 * mean + 0.3 * value.mean((2, 3)).mean(0)
        var = 0.7 * var + 0.3 * value.var((2, 3), ddof=1).mean(0)
    state = module.state_dict()
    np.testing.assert_allclose(state["running_mean"], mean, 1e-5, 1e-5)
    np.testing.assert_allclose(state["running_var"], var, 1e-5, 1e-5)
    wanted = (value - mean[:, None, None]) / np.sqrt(var + 1e-5)[:, None, None]
    np.testing.assert_allclose(test(value), wanted, 1e-4, 1e-4)
    assert "running_mean" not in nn.InstanceNorm2d(3).state_dict()
    assert nn.BatchNorm1d(3, dtype="float64").running_var.type.dtype == "float64"


NORMS = {
    "layer_norm": lambda x, w, b: nn.functional.layer_norm(x, (4,), w, b),
    "group_norm": lambda x, w, b: nn.functional.group_norm(x, 2, w, b),
    "instance_norm": lambda x, w, b: nn.functional.instance_norm(x, weight=w, bias=b),
    "rows": lambda x, w, b: T.nnet.layer_norm(x, w, b),
    "groups": lambda x, w, b: T.nnet.group_norm(x, 2, w, b),
}


@pytest.mark.parametrize("given", ["weight", "bias"])
@pytest.mark.parametrize("name", NORMS)
def test_a_scale_or_a_shift_alone(name, given):
    """The other is ones or zeros, in values and gradients."""
    x, v = T.tensor3("x"), T.vector("v")
    ones, zeros = T.ones_like(v), T.zeros_like(v)
    alone, both = ((v, None), (v, zeros)) if given == "weight" else ((None, v), (ones, v))
    found, wanted = (NORMS[name](x, *pair) for pair in (alone, both))
    slopes = [T.grad((y * T.sin(y)).sum(), [x, v]) for y in (found, wanted)]
    values = symdnn.function([x, v], [found, *slopes[0], wanted, *slopes[1]])(
        draw(2, 4, 4), draw(4)
    )
    for a, b in zip(values[:3], values[3:], strict=True):
        np.testing.assert_array_equal(a, b)
