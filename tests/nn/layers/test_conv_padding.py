"""Padding of convolutions: other values than zeros, other widths before and behind, causal."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import InputError

MODES = {"reflect": "reflect", "replicate": "edge", "circular": "wrap", "zeros": "constant"}


def applied(module, x):
    v = T.TensorType("float32", (None,) * x.ndim)()
    return symdnn.function([v], module(v))(x)


@pytest.mark.parametrize("mode", MODES)
def test_modes_are_those_of_padded_inputs(mode, rng):
    x = rng.normal(size=(2, 3, 6, 7)).astype("float32")
    module = nn.Conv2d(3, 4, 3, 2, (2, 1), padding_mode=mode)
    inner = nn.Conv2d(3, 4, 3, 2).load_state_dict(module.state_dict())
    padded = np.pad(x, [(0, 0), (0, 0), (2, 2), (1, 1)], MODES[mode])
    np.testing.assert_allclose(applied(module, x), applied(inner, padded), 1e-4, 1e-5)
    assert (mode in repr(module)) is (mode != "zeros")
    same = nn.Conv1d(3, 4, 4, padding="same", padding_mode=mode)
    line = nn.Conv1d(3, 4, 4).load_state_dict(same.state_dict())
    wide = np.pad(x[:, :, 0], [(0, 0), (0, 0), (1, 2)], MODES[mode])
    np.testing.assert_allclose(applied(same, x[:, :, 0]), applied(line, wide), 1e-4, 1e-5)


def test_sides_of_their_own(rng):
    x = rng.normal(size=(2, 3, 4, 5, 6)).astype("float32")
    pairs = ((1, 0), (0, 2), (2, 1))
    module = nn.Conv3d(3, 4, 2, padding=pairs)
    inner = nn.Conv3d(3, 4, 2).load_state_dict(module.state_dict())
    padded = np.pad(x, [(0, 0), (0, 0), *pairs])
    np.testing.assert_allclose(applied(module, x), applied(inner, padded), 1e-4, 1e-5)
    assert "1/0,2/1,0/2" in repr(module)  # time, width, height, as Torch7 prints them
    images = nn.SpatialConvolution(3, 4, kernel_size=2, padding=((1, 0), (0, 1)))
    assert applied(images, x[:, :, 0]).shape == (2, 4, 5, 6)


@pytest.mark.parametrize("mode", ["zeros", "replicate"])
def test_causal_outputs_see_no_later_frame(mode, rng):
    module = nn.TemporalConvolution(3, 4, 3, padding="causal", dilation=2, padding_mode=mode)
    x = rng.normal(size=(2, 8, 3)).astype("float32")
    y = applied(module, x)
    assert y.shape == (2, 8, 4)
    changed = x.copy()
    changed[:, 5:] = 9
    z = applied(module, changed)
    np.testing.assert_array_equal(z[:, :5], y[:, :5])
    assert (z[:, 5:] != y[:, 5:]).all()
    v = T.ftensor3()
    dx = symdnn.function([v], symdnn.grad(module(v)[:, 2].sum(), v))(x)
    assert not dx[:, 3:].any()
    assert dx[:, 2].any()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nn.Conv2d(3, 4, 3, padding_mode="mirror"), "wanted one of zeros, reflect"),
        (lambda: nn.ConvTranspose2d(3, 4, 3, padding_mode="reflect"), "wanted 'zeros'"),
        (lambda: nn.Conv2d(3, 4, 3, padding="causal"), "for sequences"),
        (lambda: nn.Conv2d(3, 4, 3, padding=((1, 2),)), "2 ints or pairs"),
        (lambda: nn.Conv2d(3, 4, 3, padding=((1, -2), (0, 0))), "0 or more"),
        (lambda: nn.Conv2d(3, 4, 3, 2, padding="same"), "wants stride 1"),
    ],
)
def test_what_does_not_fit(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_values_and_gradients_are_those_of_pytorch(rng):
    torch = pytest.importorskip("torch")
    x = rng.normal(size=(2, 3, 6, 7)).astype("float32")
    for mode in MODES:
        theirs = torch.nn.Conv2d(3, 4, 3, 2, (2, 1), padding_mode=mode)
        ours = nn.Conv2d(3, 4, 3, 2, (2, 1), padding_mode=mode)
        nn.load_torch(ours, {k: v.detach().numpy() for k, v in theirs.state_dict().items()})
        given = torch.tensor(x, requires_grad=True)
        wanted = theirs(given)
        (wanted**2).sum().backward()
        v = T.ftensor4()
        y = ours(v)
        found, dx = symdnn.function([v], [y, symdnn.grad(T.sqr(y).sum(), v)])(x)
        np.testing.assert_allclose(found, wanted.detach().numpy(), 1e-4, 1e-5)
        np.testing.assert_allclose(dx, given.grad.numpy(), 1e-3, 1e-4)
