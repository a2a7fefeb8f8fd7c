"""Convolutions: what PyTorch's values do not tell. (Those are in test_torch_layers.py.)"""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import InputError, ShapeMismatch, TypeMismatch
from tests.seeded import new_rng


def run(module, value, shape=None):
    x = T.TensorType(value.dtype, shape or (None,) * value.ndim)("x")
    y = module(x)
    return symdnn.function([x], y)(value)


def draw(*shape):
    return new_rng().normal(size=shape).astype("float32")


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (nn.SpatialConvolution(3, 96, 11, 11, 3, 3), "(3 -> 96, 11x11, 3,3)"),
        (nn.SpatialConvolution(3, 8, 5, 3), "(3 -> 8, 5x3)"),
        (nn.SpatialConvolution(3, 8, 5, 3, 1, 1, 2, 1), "(3 -> 8, 5x3, 1,1, 2,1)"),
        (nn.SpatialConvolution(4, 8, 3, 3, 1, 2, groups=2), "(4 -> 8, 3x3, 1,2, groups=2)"),
        (nn.SpatialConvolution(3, 8, 3, 3, bias=False), "(3 -> 8, 3x3) without bias"),
        (nn.SpatialConvolution(3, 8, 3, 3, dilation=(1, 2)), "(3 -> 8, 3x3, dilation=2,1)"),
        (nn.VolumetricConvolution(3, 8, 2, 5, 3), "(3 -> 8, 2x5x3)"),
        (nn.VolumetricConvolution(3, 8, 2, 5, 3, 1, 2, 1, 0, 2, 1),
         "(3 -> 8, 2x5x3, 1,2,1, 0,2,1)"),
        (nn.TemporalConvolution(20, 40, 5, 2), "(20 -> 40, 5, 2)"),
        (nn.SpatialFullConvolution(8, 4, 4, 4, 2, 2, 1, 1), "(8 -> 4, 4x4, 2,2, 1,1)"),
        (nn.SpatialFullConvolution(8, 4, 3, 3, 2, 2, 0, 0, 1, 0), "(8 -> 4, 3x3, 2,2, 0,0, 1,0)"),
        (nn.SpatialDilatedConvolution(3, 8, 3, 3, 1, 1, 0, 0, 2, 1), "(3 -> 8, 3x3, 2,1)"),
    ],
)  # fmt: skip
def test_printed_as_torch7_does(made, text):
    assert repr(made) == f"nn.{type(made).__name__}{text}"


def test_by_position_width_stands_first_and_by_keyword_height():
    by_place = nn.SpatialConvolution(3, 4, 5, 3, 1, 2, 2, 1)
    by_name = nn.SpatialConvolution(3, 4, kernel_size=(3, 5), stride=(2, 1), padding=(1, 2))
    assert by_place.weight.get_value().shape == by_name.weight.get_value().shape == (4, 3, 3, 5)
    by_name.load_state_dict(by_place.state_dict())
    x = draw(2, 3, 7, 8)
    np.testing.assert_array_equal(run(by_place, x), run(by_name, x))


def test_a_padding_by_width_holds_for_the_height_too():
    assert nn.SpatialConvolution(3, 4, 3, 3, 1, 1, 1).padding == (1, 1)
    assert nn.SpatialConvolution(3, 4, 3, 3, 1, 1, 1, 0).padding == (0, 1)
    assert nn.VolumetricConvolution(3, 4, 3, 3, 3, padT=1).padding == (1, 1, 1)
    assert nn.SpatialFullConvolution(3, 4, 3, 3, 1, 1, 1).padding == (1, 1)


@pytest.mark.parametrize("shape", [(3, 4, 5), (2, 3, 4, 5)])
def test_a_transposed_convolution_of_unknown_sizes(shape):
    layer = nn.SpatialFullConvolution(3, 2, 4, 3, 2, 3, 1, 0, 1, 2)
    y = run(layer, draw(*shape))
    height, width = shape[-2:]
    assert y.shape[-2:] == ((height - 1) * 3 + 3 + 2, (width - 1) * 2 - 2 + 4 + 1)


def test_known_sizes_are_known_of_the_output():
    x = T.TensorType("float32", (None, 3, 28, 28))("x")
    assert nn.SpatialConvolution(3, 8, 5, 5)(x).type.shape == (None, 8, 24, 24)
    assert nn.SpatialFullConvolution(3, 8, 4, 4, 2, 2, 1, 1)(x).type.shape == (None, 8, 56, 56)


def test_first_values_are_uniform_within_one_over_the_root_of_the_fan_in():
    layer = nn.SpatialConvolution(16, 64, 3, 3)
    bound = 1 / np.sqrt(16 * 9)
    for p in layer.parameters():
        value = p.get_value()
        assert np.abs(value).max() <= bound
        assert value.std() == pytest.approx(bound / np.sqrt(3), rel=0.25)
    layer = nn.SpatialConvolution(
        2, 3, 3, 3, weight_init=nn.init.constant(2), bias_init=nn.init.zeros, dtype="float64"
    )
    assert set(layer.weight.get_value().ravel()) == {2.0}
    assert not layer.bias.get_value().any()
    assert layer.weight.type.dtype == "float64"


def test_a_convolutions_hints_reach_its_node():
    layer = nn.SpatialConvolution(3, 4, 3, 3, bias=False)
    layer.hints = symdnn.Hints(algo_fwd="time_once")
    y = layer(T.tensor4("x"))
    assert y.owner.hints.algo_fwd == "time_once"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.SpatialConvolution(3, 8), r"kW, kH or kernel_size=: wanted an int, or 2"),
        (lambda: nn.SpatialConvolution(3, 8, 5, 5, kernel_size=5), "by position or by keyword"),
        (lambda: nn.SpatialConvolution(3, 8, 5, 5, padW=1, padding="same"), "by position or by"),
        (lambda: nn.SpatialConvolution(3, 8, 5, 5, 2, 2, padding="same"), "wants stride 1"),
        (lambda: nn.SpatialConvolution(3, 8, 5, 5, groups=2), "must divide both 3 input and 8"),
        (lambda: nn.SpatialConvolution(0, 8, 5, 5), "wanted an int, 1 or more, got 0"),
        (lambda: nn.SpatialConvolution(3, 8, 5.0, 5), r"kW=5.0; wanted an int or None"),
        (lambda: nn.SpatialConvolution(3, 8, kernel_size=(5, 5, 5)), "or 2 of them"),
        (lambda: nn.SpatialConvolution(3, 8, 5, 5, 0, 1), "kernel, stride, dilation"),
        (lambda: nn.SpatialConvolution(3, 8, 5, 5, padding=-1), "padding: wanted an int, 0"),
        (lambda: nn.SpatialFullConvolution(3, 8, 5, 5, 2, 2, adjW=2), "smaller than the stride"),
        (lambda: nn.VolumetricConvolution(3, 8, 5, 5), r"kT, kW, kH or kernel_size="),
    ],
)
def test_arguments_that_do_not_fit(make, message):
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parametrize("value", [T.matrix("x"), T.tensor5("x"), T.itensor4("x"), [T.tensor4()]])
def test_inputs_that_do_not_fit(value):
    with pytest.raises(TypeMismatch, match="SpatialConvolution: wanted a float tensor"):
        nn.SpatialConvolution(3, 8, 3, 3)(value)


def test_planes_that_do_not_fit():
    x = T.TensorType("float32", (None, 4, 9, 9))("x")
    with pytest.raises(ShapeMismatch):
        nn.SpatialConvolution(3, 8, 3, 3)(x)
    f = symdnn.function([x := T.ftensor4("x")], nn.SpatialConvolution(3, 8, 3, 3)(x))
    with pytest.raises(ShapeMismatch):
        f(draw(2, 4, 9, 9))


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("size", [9, 10])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_chosen_output_size_is_an_output_padding(size, groups, known):
    """The size that a convolution of stride 2 came from."""
    wide = nn.ConvTranspose2d(4, 6, 3, 2, 1, output_padding=(size - 9, 0), groups=groups)
    layer = nn.ConvTranspose2d(4, 6, 3, 2, 1, output_padding=(0, 1), groups=groups)
    layer.load_state_dict(wide.state_dict())
    value = np.random.default_rng(0).standard_normal((2, 4, 5, 4)).astype("float32")
    x = T.TensorType("float32", value.shape if known else (None,) * 4)()
    skipped = T.ftensor4()
    results = [
        wide(x), layer(x, output_size=(size, 7)), layer(x, output_size=[2, 6, size, 7]),
        layer(x, output_size=skipped.shape[2:]), layer(x, output_size=skipped.shape),
    ]  # fmt: skip
    f = symdnn.function([x, skipped], results)
    want, *found = f(value, np.zeros((1, 1, size, 7), "float32"))
    for y in found:
        np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("functional", [False, True])
@pytest.mark.parametrize(
    ("stride", "dilation", "extra"), [(1, 2, 1), (1, 4, 3), (2, 5, 4), (2, 5, 3)]
)
def test_output_padding_below_the_dilation(stride, dilation, extra, functional, rng):
    """Its results beyond the last window are those of a stride of zeros behind the input."""
    x = rng.normal(size=(2, 4, 5)).astype("float32")
    options = {"stride": stride, "dilation": dilation, "groups": 2}
    layer = nn.ConvTranspose1d(4, 6, 3, output_padding=extra, padding=1, **options)
    whole = nn.ConvTranspose1d(4, 6, 3, **options).load_state_dict(layer.state_dict())
    v = T.ftensor3()
    y = layer(v)
    if functional:
        y = nn.functional.conv_transpose1d(
            v, layer.weight, layer.bias, padding=1, output_padding=extra, **options
        )
    found, dx = symdnn.function([v], [y, T.grad((y**2).sum(), v)])(x)
    bias = layer.bias.get_value()[:, None]
    all_results = np.concatenate(
        [symdnn.function([v], whole(v))(x), np.tile(bias, (2, 1, extra))], axis=2
    )
    want = all_results[:, :, 1 : all_results.shape[2] - 1]
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)
    assert dx.shape == x.shape
    assert np.isfinite(dx).all()


def test_output_padding_of_functions_is_checked():
    with pytest.raises(InputError, match="output_padding"):
        nn.functional.conv_transpose1d(T.ftensor3(), T.ftensor3(), stride=2, output_padding=2)


def test_a_chosen_size_of_sequences_and_volumes():
    first = nn.ConvTranspose1d(3, 2, 3, 2)
    assert first(np.zeros((1, 3, 4), "float32"), output_size=[10]).type.shape == (1, 2, 10)
    assert first(np.zeros((3, 4), "float32"), output_size=[2, 10]).type.shape == (2, 10)
    last = nn.TemporalFullConvolution(3, 2, 3, 2)
    assert last(np.zeros((1, 4, 3), "float32"), output_size=[10]).type.shape == (1, 10, 2)
    volumes = nn.ConvTranspose3d(3, 2, 3, 2)(np.zeros((1, 3, 2, 2, 2), "float32"),
                                             output_size=(5, 6, 5))  # fmt: skip
    assert volumes.type.shape == (1, 2, 5, 6, 5)
    with pytest.raises(InputError, match="1 sizes in output_size; wanted 2"):
        nn.ConvTranspose2d(3, 2, 3, 2)(np.zeros((1, 3, 4, 4), "float32"), output_size=[10])
    with pytest.raises(InputError, match="11 in output_size; wanted 9 to 10"):
        nn.ConvTranspose2d(3, 2, 3, 2)(np.zeros((1, 3, 4, 4), "float32"), output_size=[9, 11])
    with pytest.raises(InputError, match="3 sizes in output_size; wanted 1, one for each axis$"):
        last(np.zeros((1, 4, 3), "float32"), output_size=[1, 10, 2])


def test_a_chosen_size_that_cannot_be_is_refused_when_it_runs():
    x = T.ftensor4()
    f = symdnn.function([x], nn.ConvTranspose2d(3, 2, 3, 2)(x, output_size=(9, 12)))
    with pytest.raises(ShapeMismatch, match="9, 12"):
        f(np.zeros((1, 3, 4, 4), "float32"))
