"""Weights of Lasagne and Theano, and Torch7's names."""

import numpy as np
import pytest
from scipy.signal import convolve, correlate

from symdnn import nn
from symdnn.errors import InputError
from tests.nn.weights_checks import close, drawing, output

normal = drawing(6)


def lasagne_net():
    """A convolution, batch norm, dense: the arrays in Lasagne's order."""
    return [
        normal(4, 2, 3, 3), normal(4),  # W, b
        normal(4), normal(4) + 1, normal(4), 1 / np.sqrt(normal(4) ** 2 + 0.5),
        normal(4 * 4 * 5, 3), normal(3),
    ]  # fmt: skip


def computed(arrays, x, mirrored):
    w, b, beta, gamma, mean, inverse, dense, bias = arrays
    each = convolve if mirrored else correlate  # SciPy's convolve is the true one
    y = np.stack(
        [[sum(each(i, k, "valid") for i, k in zip(image, kernels)) for kernels in w] for image in x]
    )
    b, beta, gamma, mean, inverse = (v[:, None, None] for v in (b, beta, gamma, mean, inverse))
    y = np.maximum((y + b - mean) * (gamma * inverse) + beta, 0)
    return y.reshape(len(x), -1) @ dense + bias


def our_net():
    return nn.Sequential(
        nn.SpatialConvolution(2, 4, 3, 3), nn.SpatialBatchNormalization(4, 1e-4), nn.ReLU(),
        nn.Flatten(), nn.Linear(4 * 4 * 5, 3),
    )  # fmt: skip


@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize("form", ["list", "npz"])
def test_a_lasagne_net_computes_the_same(flip, form, tmp_path):
    arrays, x = lasagne_net(), normal(2, 2, 6, 7)
    source = arrays
    if form == "npz":
        source = tmp_path / "net.npz"
        np.savez(source, *arrays)
    net = our_net()
    assert len(nn.load_theano(net, source, filter_flip=flip).loaded) == 8
    close(output(net, x), computed(arrays, x, flip))


def test_an_embedding_keeps_its_form_and_volumes_are_mirrored_in_time_too():
    rows, kernel = normal(5, 3), normal(2, 1, 2, 3, 3)
    table, net = nn.LookupTable(5, 3), nn.VolumetricConvolution(1, 2, 2, 3, 3, bias=False)
    nn.load_theano(table, [rows])
    np.testing.assert_array_equal(table.weight.get_value(), rows)
    nn.load_theano(net, [kernel], filter_flip=True)
    x = normal(1, 1, 3, 4, 5)
    wanted = np.stack([convolve(x[0, 0], k[0], "valid") for k in kernel])[None]
    close(output(net, x), wanted)


def test_what_does_not_fit_is_named():
    net, arrays = our_net(), lasagne_net()
    before = net.state_dict()
    for given, said in (
        (arrays[:-1], "no array is left for 4.bias"),
        ([*arrays, normal(1)], "1 of 9 arrays are left over"),
        ([normal(4, 2, 3, 2), *arrays[1:]], r"0.weight has shape \(4, 2, 3, 2\)"),
        ({"w": normal(1)}, "named arr_0 to arr_0"),
    ):
        with pytest.raises(InputError, match=said):
            nn.load_theano(net, given, filter_flip=True)
    for name, value in net.state_dict().items():
        np.testing.assert_array_equal(value, before[name])
    for module in (nn.LSTM(2, 2, 1), nn.SpatialFullConvolution(2, 2, 3, 3)):
        with pytest.raises(InputError, match="has no order of its own in Theano"):
            nn.load_theano(module, [normal(1)])


def test_torch7s_names_and_older_forms():
    net = nn.Sequential(
        nn.Sequential(nn.SpatialConvolution(2, 4, 3, 3, groups=2), nn.SpatialBatchNormalization(4)),
        nn.Flatten(), nn.Linear(4, 3), nn.GRU(3, 2, 1),
    )  # fmt: skip
    conv, std, vector = (
        normal(2, 2, 1, 3, 3),
        np.abs(normal(4)) + 0.5,
        normal(net[3].weight.type.shape[0]),
    )
    given = {
        "modules.1.modules.1.weight": conv, "modules.1.modules.1.bias": normal(4),
        "modules.1.modules.1.gradWeight": conv, "modules.1.modules.2.weight": normal(4),
        "modules.1.modules.2.bias": normal(4), "modules.1.modules.2.running_mean": normal(4),
        "modules.1.modules.2.running_std": std, "3.weight": normal(3, 4), "3.bias": normal(3),
        "4.weight": vector.reshape(-1, 1, 1),
    }  # fmt: skip
    loaded = nn.load_torch7(net, given)
    assert loaded.ignored == ("modules.1.modules.1.gradWeight",)
    assert len(loaded.loaded) == 9
    np.testing.assert_array_equal(net[0][0].weight.get_value(), conv.reshape(4, 1, 3, 3))
    np.testing.assert_allclose(net[0][1].running_var.get_value(), 1 / std**2 - 1e-5, rtol=1e-5)
    np.testing.assert_array_equal(net[3].weight.get_value(), vector)
    np.testing.assert_array_equal(net[2].bias.get_value(), given["3.bias"])


def test_torch7s_matrices_of_convolutions():
    net, matrix = nn.SpatialConvolution(2, 4, 3, 5), normal(4, 30)
    nn.load_torch7(nn.Sequential(net), {"1.weight": matrix, "1.bias": normal(4)})
    np.testing.assert_array_equal(net.weight.get_value(), matrix.reshape(4, 2, 5, 3))


def test_torch7s_names_that_do_not_fit():
    net = nn.Sequential(nn.Linear(2, 3))
    with pytest.raises(InputError, match=r"2.weight is unknown; 0.bias is missing; 0.weight has"):
        nn.load_torch7(net, {"1.weight": normal(6), "2.weight": normal(3, 2)})
