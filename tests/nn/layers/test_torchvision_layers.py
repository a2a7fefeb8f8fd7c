"""torchvision's layers against NumPy: planes scaled and normalised, branches left out."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import InputError, TypeMismatch
from tests.seeded import new_rng


def evaluated(module, value):
    x = T.TensorType(value.dtype.name, (None,) * value.ndim)("x")
    return symdnn.function([x], module(x))(value)


def drawn(*shape):
    return new_rng().normal(size=shape).astype("float32")


def test_planes_of_each_pixel_are_normalised():
    layer, x = nn.LayerNorm2d(6, 1e-3), drawn(2, 6, 4, 5)
    scale, shift = drawn(2, 6)
    layer.load_state_dict({"weight": scale, "bias": shift})
    centred = x - x.mean(1, keepdims=True)
    wanted = centred / np.sqrt(x.var(1, keepdims=True) + 1e-3)
    wanted = wanted * scale[:, None, None] + shift[:, None, None]
    np.testing.assert_allclose(evaluated(layer, x), wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(evaluated(layer, x[0]), wanted[0], rtol=1e-4, atol=1e-5)


def test_planes_are_scaled_by_what_their_averages_say():
    layer, x = nn.SqueezeExcitation(8, 3), drawn(2, 8, 4, 5)
    v = {n: p.get_value() for n, p in layer.named_parameters().items()}
    mean = x.mean((2, 3))
    hidden = np.maximum(mean @ v["fc1.weight"][:, :, 0, 0].T + v["fc1.bias"], 0)
    scores = hidden @ v["fc2.weight"][:, :, 0, 0].T + v["fc2.bias"]
    wanted = x * (1 / (1 + np.exp(-scores)))[:, :, None, None]
    np.testing.assert_allclose(evaluated(layer, x), wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(evaluated(layer, x[1]), wanted[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("mode", "decisions"), [("row", 2000), ("batch", 1)])
def test_branches_are_left_out_by_example_or_by_batch(mode, decisions):
    layer, value = (
        nn.StochasticDepth(0.25, mode, seed=3),
        np.ones((max(decisions, 5), 2, 3), "float32"),
    )
    x = T.tensor3("x")
    f = symdnn.function([x], [layer(x), symdnn.grad(layer(x).sum(), x)])
    seen = [f(value)[0] for _ in range(1 if mode == "row" else 400)]
    for y in seen:
        assert set(np.unique(y)) <= {0, np.float32(4 / 3)}
        assert len(np.unique(y.reshape(decisions, -1), axis=1)[0]) == 1
    kept = np.mean([y[:, 0, 0] > 0 for y in seen])
    assert abs(kept - 0.75) < 0.1
    assert set(np.unique(f(value)[1])) <= {0, np.float32(4 / 3)}
    np.testing.assert_array_equal(evaluated(layer.evaluate(), value), value)


def test_a_probability_of_one_leaves_everything_out():
    value = drawn(3, 4)
    assert not evaluated(nn.StochasticDepth(1.0), value).any()
    np.testing.assert_array_equal(evaluated(nn.StochasticDepth(0.0), value), value)


def test_convolution_normalisation_and_activation_are_numbered():
    layer = nn.Conv2dNormActivation(3, 8, 5, 2)
    assert list(layer.named_parameters().keys()) == ["0.weight", "1.weight", "1.bias"]
    assert evaluated(layer, drawn(2, 3, 9, 9)).shape == (2, 8, 5, 5)
    alone = nn.Conv2dNormActivation(3, 8, 1, norm_layer=None, activation_layer=None)
    assert list(alone.named_parameters().keys()) == ["0.weight", "0.bias"]


def test_what_cannot_be_is_named():
    with pytest.raises(InputError, match="mode='column'; wanted 'row' or 'batch'"):
        nn.StochasticDepth(0.5, "column")
    with pytest.raises(InputError, match="wanted each axis once"):
        nn.Permute((0, 2, 2))
    with pytest.raises(TypeMismatch, match="a tensor of 3 dimensions"):
        nn.Permute((0, 2, 1))(T.matrix())
    with pytest.raises(InputError, match="SqueezeExcitation: channels"):
        nn.SqueezeExcitation(8, 0)
