"""Flax's trees, against the formulas of its documentation in NumPy."""

import numpy as np
import pytest

from symdnn import nn
from symdnn.errors import InputError
from tests.nn.formats.test_keras import conv2d, first, gru, lstm
from tests.nn.weights_checks import close, drawing, output

normal = drawing(8)


def tree():
    """A convolutional classifier, names sorted as JAX sorts them."""
    return {
        "batch_stats": {"BatchNorm_0": {"mean": normal(4), "var": normal(4) ** 2 + 0.5}},
        "params": {
            "BatchNorm_0": {"bias": normal(4), "scale": normal(4) + 1},
            "Conv_0": {"bias": normal(4), "kernel": normal(3, 3, 2, 4)},
            "Conv_1": {"bias": normal(3), "kernel": normal(2, 2, 4, 3)},
            "Dense_0": {"bias": normal(5), "kernel": normal(3 * 3 * 4, 5)},
        },
    }


def computed(variables, x):
    p, stats = variables["params"], variables["batch_stats"]["BatchNorm_0"]
    y = conv2d(x, p["Conv_0"]["kernel"], p["Conv_0"]["bias"])
    y = (y - stats["mean"]) / np.sqrt(stats["var"] + 1e-5)
    y = np.maximum(y * p["BatchNorm_0"]["scale"] + p["BatchNorm_0"]["bias"], 0)
    y = conv2d(y, p["Conv_1"]["kernel"], p["Conv_1"]["bias"]).reshape(len(x), -1)
    return y @ p["Dense_0"]["kernel"] + p["Dense_0"]["bias"]


def our_net():
    return nn.Sequential(
        nn.SpatialConvolution(2, 4, 3, 3), nn.SpatialBatchNormalization(4), nn.ReLU(),
        nn.SpatialConvolution(4, 3, 2, 2), nn.Flatten(), nn.Linear(36, 5),
    )  # fmt: skip


def flat(variables, between="/"):
    found = {}
    for collection, layers in variables.items():
        for layer, group in layers.items():
            found |= {between.join((collection, layer, k)): v for k, v in group.items()}
    return found


@pytest.mark.parametrize("form", ["tree", "flat", "tuples", "npz"])
def test_a_convolutional_net_computes_the_same(form, tmp_path):
    variables, x = tree(), normal(2, 6, 7, 2)
    source = variables
    if form == "flat":
        source = flat(variables, ".")
    elif form == "tuples":
        source = {tuple(k.split("/")): v for k, v in flat(variables).items()}
    elif form == "npz":
        source = tmp_path / "net.npz"
        np.savez(source, **flat(variables))
    net = our_net()
    loaded = nn.load_flax(net, source, flattened={"Dense_0": (3, 4, 3)})
    assert len(loaded.loaded) == 10
    close(output(net, np.ascontiguousarray(first(x))), computed(variables, x))


def test_numbers_of_layers_are_numbers():
    params = {f"Dense_{i}": {"kernel": normal(3, 3), "bias": normal(3)} for i in range(11)}
    sorted_as_text = {k: params[k] for k in sorted(params)}
    net = nn.Sequential(*(nn.Linear(3, 3) for _ in range(11)))
    nn.load_flax(net, {"params": sorted_as_text})
    y = x = normal(2, 3)
    for i in range(11):
        y = y @ params[f"Dense_{i}"]["kernel"] + params[f"Dense_{i}"]["bias"]
    close(output(net, x), y)


def test_cells():
    def cell(gates, biased):
        made = {}
        for name in (f"{side}{g}" for side in "ih" for g in gates):
            made[name] = {"kernel": normal(3 if name[0] == "i" else 4, 4)}
            if name in biased:
                made[name]["bias"] = normal(4)
        return made

    def side(made, letter, gates, what):
        parts = [made[f"{letter}{g}"].get(what, np.zeros(4)) for g in gates]
        return np.concatenate(parts, axis=-1)

    x = normal(2, 5, 3)
    made = cell("ifgo", ("hi", "hf", "hg", "ho"))
    net = nn.LSTM(3, 4, 1)
    nn.load_flax(net, {"params": {"OptimizedLSTMCell_0": made}})
    kernels = [side(made, s, "ifgo", "kernel") for s in "ih"]
    wanted = lstm(x, *kernels, side(made, "h", "ifgo", "bias"))
    close(output(net, x.transpose(1, 0, 2).copy()), wanted.transpose(1, 0, 2))

    made = cell("rzn", ("ir", "iz", "in", "hn"))
    net = nn.GRU(3, 4, 1)
    nn.load_flax(net, {"RNN_0": {"cell": made}})
    kernels = [side(made, s, "zrn", "kernel") for s in "ih"]
    bias = np.stack([side(made, s, "zrn", "bias") for s in "ih"])
    wanted = gru(x, *kernels, bias)
    close(output(net, x.transpose(1, 0, 2).copy()), wanted.transpose(1, 0, 2))


def conv_transpose(x, kernel, bias, stride):
    """``lax.conv_transpose``, VALID: a correlation with x, its elements ``stride`` apart."""
    n, h, w, c = x.shape
    kh, kw, _, _ = kernel.shape
    wide = np.zeros(
        (n, (h - 1) * stride + 1 + 2 * (kh - 1), (w - 1) * stride + 1 + 2 * (kw - 1), c)
    )
    wide[:, kh - 1 : wide.shape[1] - kh + 1 : stride, kw - 1 : wide.shape[2] - kw + 1 : stride] = x
    return conv2d(wide, kernel, bias)


def test_transposed_grouped_and_embedding():
    x, bias = normal(2, 4, 5, 3), normal(6)
    net, kernel = nn.SpatialFullConvolution(3, 6, 3, 2, 2, 2), normal(2, 3, 3, 6)
    nn.load_flax(net, {"ConvTranspose_0": {"kernel": kernel, "bias": bias}})
    close(output(net, np.ascontiguousarray(first(x))), first(conv_transpose(x, kernel, bias, 2)))
    depthwise, kernel = nn.SpatialConvolution(3, 6, 2, 2, groups=3), normal(2, 2, 1, 6)
    nn.load_flax(depthwise, {"Conv_0": {"kernel": kernel, "bias": bias}})
    wanted = first(conv2d(x, kernel, bias, 3))
    close(output(depthwise, np.ascontiguousarray(first(x))), wanted)
    table, rows = nn.LookupTable(7, 3), normal(7, 3)
    nn.load_flax(table, {"params": {"Embed_0": {"embedding": rows}}})
    np.testing.assert_allclose(table.weight.get_value(), rows, rtol=1e-6)


def test_what_does_not_fit_is_named():
    variables, net = tree(), our_net()
    before = net.state_dict()
    less = {k: v for k, v in variables["params"].items() if k != "Conv_1"}
    more = {**variables["params"], "Conv_2": variables["params"]["Conv_1"]}
    for params, words in (
        (less, "3 got no layer"),
        (more, "Conv_2 fits no module"),
        ({**variables["params"], "Dense_0": {"kernel": normal(2, 2)}}, "5.weight has shape"),
    ):
        with pytest.raises(InputError, match=words):
            nn.load_flax(net, {**variables, "params": params})
    for name, value in net.state_dict().items():
        np.testing.assert_array_equal(value, before[name])
    with pytest.raises(InputError, match="layers= says 9"):
        nn.load_flax(net, variables, layers={"Dense_0": "9"})
    with pytest.raises(InputError, match="wanted a tree"):
        nn.load_flax(net, 3)
