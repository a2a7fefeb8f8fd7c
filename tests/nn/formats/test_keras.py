"""Keras's weights, against its documented formulas in NumPy."""

import numpy as np
import pytest

from symdnn import nn
from symdnn.errors import InputError
from tests.nn.weights_checks import close, drawing, output

normal = drawing(5)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


# -- Keras's layers, channels last ----------------------------------------------------------------


def windows(x, size):
    """(N, H', W', kh, kw, C) of (N, H, W, C)."""
    found = np.lib.stride_tricks.sliding_window_view(x, size, axis=(1, 2))
    return found.transpose(0, 1, 2, 4, 5, 3)


def conv2d(x, kernel, bias, groups=1):
    outs = []
    each_in, each_out = x.shape[3] // groups, kernel.shape[3] // groups
    for g in range(groups):
        part = windows(x[..., g * each_in : (g + 1) * each_in], kernel.shape[:2])
        k = kernel[..., g * each_out : (g + 1) * each_out]
        outs.append(np.einsum("nhwijc,ijco->nhwo", part, k))
    return np.concatenate(outs, axis=3) + bias


def depthwise_conv2d(x, kernel, bias):
    y = np.einsum("nhwijc,ijcm->nhwcm", windows(x, kernel.shape[:2]), kernel)
    return y.reshape(*y.shape[:3], -1) + bias


def conv2d_transpose(x, kernel, bias, stride):
    """Each input element adds its kernel (kh, kw, out, in) to the output, stride apart."""
    n, h, w, _ = x.shape
    kh, kw, out, _ = kernel.shape
    y = np.zeros((n, (h - 1) * stride + kh, (w - 1) * stride + kw, out))
    for i, j in np.ndindex(h, w):
        at = y[:, i * stride : i * stride + kh, j * stride : j * stride + kw]
        at += np.einsum("nc,ijoc->nijo", x[:, i, j], kernel)
    return y + bias


def lstm(x, kernel, recurrent, bias):
    """(N, time, in) to (N, time, units); columns are i, f, c, o."""
    n, units = len(x), recurrent.shape[0]
    h, c, out = np.zeros((n, units)), np.zeros((n, units)), []
    for t in range(x.shape[1]):
        i, f, g, o = np.split(x[:, t] @ kernel + h @ recurrent + bias, 4, axis=1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        out.append(h)
    return np.stack(out, axis=1)


def gru(x, kernel, recurrent, bias):
    """``reset_after=True``; columns are z, r, h."""
    h, out = np.zeros((len(x), recurrent.shape[0])), []
    for t in range(x.shape[1]):
        xz, xr, xh = np.split(x[:, t] @ kernel + bias[0], 3, axis=1)
        hz, hr, hh = np.split(h @ recurrent + bias[1], 3, axis=1)
        z, r = sigmoid(xz + hz), sigmoid(xr + hr)
        h = z * h + (1 - z) * np.tanh(xh + r * hh)
        out.append(h)
    return np.stack(out, axis=1)


def simple_rnn(x, kernel, recurrent, bias):
    h, out = np.zeros((len(x), recurrent.shape[0])), []
    for t in range(x.shape[1]):
        h = np.tanh(x[:, t] @ kernel + h @ recurrent + bias)
        out.append(h)
    return np.stack(out, axis=1)


# -- networks -------------------------------------------------------------------------------------


def first(x):
    """Channels last to channels first."""
    return np.moveaxis(x, -1, 1)


def keras_net():
    """Weights by Keras's paths, and what a net of them computes for (N, 6, 7, 2)."""
    w = {
        "net/conv2d/kernel": normal(3, 2, 2, 4), "net/conv2d/bias": normal(4),
        "net/batch_normalization/gamma": normal(4) + 1, "net/batch_normalization/beta": normal(4),
        "net/batch_normalization/moving_mean": normal(4),
        "net/batch_normalization/moving_variance": normal(4) ** 2 + 0.5,
        "net/dropout/seed_generator/seed_generator_state": np.zeros(2, "uint32"),
        "net/dense/kernel": normal(4 * 6 * 4, 3), "net/dense/bias": normal(3),
    }  # fmt: skip
    x = normal(2, 6, 7, 2)
    y = conv2d(x, w["net/conv2d/kernel"], w["net/conv2d/bias"])
    gamma, beta, mean, variance = [v for k, v in w.items() if "batch_norm" in k]
    y = np.maximum((y - mean) / np.sqrt(variance + 1e-3) * gamma + beta, 0)
    return w, x, y.reshape(2, -1) @ w["net/dense/kernel"] + w["net/dense/bias"]


def our_net():
    return nn.Sequential(
        nn.SpatialConvolution(2, 4, kernel_size=(3, 2)), nn.SpatialBatchNormalization(4, 1e-3),
        nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 4, 3),
    )  # fmt: skip


@pytest.mark.parametrize("form", ["mapping", "npz", "older names"])
def test_a_convolutional_net_computes_the_same(form, tmp_path):
    weights, x, wanted = keras_net()
    source = weights
    if form == "npz":
        source = tmp_path / "net.npz"
        np.savez(source, **weights)
    elif form == "older names":
        source = {f"{k.removeprefix('net/')}:0": v for k, v in weights.items()}
    net = our_net()
    loaded = nn.load_keras(net, source, flattened={"dense": (4, 6, 4)}, filter_flip=False)
    assert len(loaded.loaded) == 8
    assert not loaded.unmatched
    close(output(net, np.ascontiguousarray(first(x))), wanted)


def test_without_flattened_the_rows_are_another_order():
    weights, x, wanted = keras_net()
    net = our_net()
    nn.load_keras(net, weights, filter_flip=False)
    assert np.abs(output(net, np.ascontiguousarray(first(x))) - wanted).max() > 0.1


def test_layers_by_name():
    weights, x, wanted = keras_net()
    order = sorted(weights, reverse=True)  # dense comes first now
    net = our_net()
    turned = {k: weights[k] for k in order}
    with pytest.raises(InputError, match="dense for 0: wanted a kernel of 4 dimensions"):
        nn.load_keras(net, turned, filter_flip=False)
    nn.load_keras(
        net, turned, layers={"dense": "4", "conv2d": "0"}, flattened={"net/dense": (4, 6, 4)},
        filter_flip=False,
    )  # fmt: skip
    close(output(net, np.ascontiguousarray(first(x))), wanted)
    with pytest.raises(InputError, match="layers= says 7, which has no weights; there are 0, 1, 4"):
        nn.load_keras(net, turned, layers={"dense": "7"}, filter_flip=False)


def test_groups_depthwise_transposed_and_embedding():
    x = normal(2, 5, 6, 4)
    bias = normal(8)
    ours = np.ascontiguousarray(first(x))
    grouped = nn.SpatialConvolution(4, 8, 3, 3, groups=2)
    kernel = normal(3, 3, 2, 8)
    nn.load_keras(grouped, {"conv2d/kernel": kernel, "conv2d/bias": bias}, filter_flip=False)
    close(output(grouped, ours), first(conv2d(x, kernel, bias, 2)))

    depthwise, kernel = nn.SpatialConvolution(4, 8, 3, 2, groups=4), normal(2, 3, 4, 2)
    for name in ("kernel", "depthwise_kernel"):
        nn.load_keras(
            depthwise, {f"depthwise/{name}": kernel, "depthwise/bias": bias}, filter_flip=False
        )
        close(output(depthwise, ours), first(depthwise_conv2d(x, kernel, bias)))

    transposed, kernel = nn.SpatialFullConvolution(4, 8, 3, 2, 2, 2), normal(2, 3, 8, 4)
    nn.load_keras(
        transposed,
        {"conv2d_transpose/kernel": kernel, "conv2d_transpose/bias": bias},
        filter_flip=False,
    )
    close(output(transposed, ours), first(conv2d_transpose(x, kernel, bias, 2)))

    table = nn.LookupTable(7, 3)
    nn.load_keras(table, {"embedding/embeddings": (rows := normal(7, 3))})
    close(output(table, np.array([[1, 6]])), rows[[[1, 6]]])


def test_one_and_three_dimensions():
    x, kernel, bias = normal(2, 9, 3), normal(4, 3, 5), normal(5)
    net = nn.TemporalConvolution(3, 5, 4)
    nn.load_keras(net, {"conv1d/kernel": kernel, "conv1d/bias": bias}, filter_flip=False)
    wide = conv2d(x[:, None], kernel[None], bias)[:, 0]
    close(output(net, x), wide)
    volume, kernel = normal(1, 2, 4, 5, 3), normal(2, 2, 3, 3, 5)
    net = nn.VolumetricConvolution(3, 5, kernel_size=(2, 2, 3))
    nn.load_keras(net, {"conv3d/kernel": kernel, "conv3d/bias": bias}, filter_flip=False)
    wanted = sum(conv2d(volume[:, t], kernel[t], 0) for t in range(2)) + bias
    close(output(net, np.ascontiguousarray(first(volume))), first(wanted[:, None]))


def test_what_keras_leaves_out_is_neutral():
    """No bias, no scale."""
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNormalization(4, 1e-3))
    kernel, beta, mean, variance = normal(3, 4), normal(4), normal(4), normal(4) ** 2 + 1
    nn.load_keras(
        net,
        {"dense/kernel": kernel, "bn/beta": beta, "bn/moving_mean": mean,
         "bn/moving_variance": variance},
    )  # fmt: skip
    x = normal(5, 3)
    close(output(net, x), (x @ kernel - mean) / np.sqrt(variance + 1e-3) + beta)


RECURRENT = {
    "lstm": (lstm, nn.LSTM, 4),
    "gru": (gru, nn.GRU, 3),
    "rnn": (simple_rnn, nn.RNNTanh, 1),
}


def cell(kind, inputs, units):
    gates = RECURRENT[kind][2]
    bias = normal(2, gates * units) if kind == "gru" else normal(gates * units)
    return {
        "kernel": normal(inputs, gates * units), "recurrent_kernel": normal(units, gates * units),
        "bias": bias,
    }  # fmt: skip


@pytest.mark.parametrize("kind", RECURRENT)
def test_two_recurrent_layers(kind):
    reference, made, _ = RECURRENT[kind]
    cells = {"a": cell(kind, 3, 4), "b": cell(kind, 4, 4)}
    weights = {f"{n}/{kind}_cell/{k}": v for n, c in cells.items() for k, v in c.items()}
    x = normal(2, 6, 3)
    wanted = reference(reference(x, *cells["a"].values()), *cells["b"].values())
    net = made(3, 4, 2, True)
    assert len(nn.load_keras(net, weights).loaded) == 6
    close(output(net, x), wanted)


@pytest.mark.parametrize(("kind", "made"), [("lstm", nn.BLSTM), ("gru", nn.BGRU)])
def test_both_directions_and_a_head(kind, made):
    reference = RECURRENT[kind][0]
    forward, backward = cell(kind, 3, 4), cell(kind, 3, 4)
    kernel, bias = normal(8, 2), normal(2)
    weights = {f"bidirectional/forward_{kind}/cell/{k}": v for k, v in forward.items()}
    weights |= {f"bidirectional/backward_{kind}/cell/{k}": v for k, v in backward.items()}
    weights |= {"dense/kernel": kernel, "dense/bias": bias}
    x = normal(2, 6, 3)
    back = reference(x[:, ::-1], *backward.values())[:, ::-1]
    both = np.concatenate([reference(x, *forward.values()), back], axis=2)
    net = nn.Sequential(made(3, 4, 1, True), nn.Linear(8, 2))
    nn.load_keras(net, weights)
    close(output(net, x), both @ kernel + bias)
    first = {k: weights[k] for k in sorted(weights, key=lambda k: not k.startswith("dense"))}
    other = nn.Sequential(made(3, 4, 1, True), nn.Linear(8, 2))
    nn.load_keras(other, first, layers={"bidirectional": "0", "dense": "1"})
    close(output(other, x), both @ kernel + bias)


@pytest.mark.parametrize(
    ("net", "weights", "said"),
    [
        (lambda: nn.GRU(2, 3, 1),
         {"g/kernel": (2, 9), "g/recurrent_kernel": (3, 9), "g/bias": (9,)}, "reset_after=False"),
        (lambda: nn.LSTM(2, 3, 1), {"l/kernel": (2, 9), "l/recurrent_kernel": (3, 9)},
         r"kernel with 4 x 3 columns for lstm, got shape \(2, 9\)"),
        (lambda: nn.LSTM(2, 3, 2), {"l/kernel": (2, 12), "l/recurrent_kernel": (3, 12)},
         "wanted 2 recurrent layers, got 1"),
        (lambda: nn.Linear(2, 3), {"d/kernel": (2, 4)},
         r"weight has shape \(4, 2\), wanted \(3, 2\)"),
        (lambda: nn.Linear(2, 3), {"d/gamma": (3,)}, "wanted a kernel, got gamma"),
        (lambda: nn.Linear(2, 3), {"d/kernel": (2, 3), "d/extra": (3,)}, "no place for extra"),
        (lambda: nn.Linear(2, 3, False), {"d/kernel": (2, 3), "d/bias": (3,)}, "no place for bias"),
        (lambda: nn.Linear(2, 3), {"d/kernel": (2, 3), "e/kernel": (2, 3)},
         "e fits no module of the network"),
        (lambda: nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)), {"d/kernel": (2, 3)},
         "1 got no layer"),
        (lambda: nn.PReLU(), {"p/alpha": (3,)}, "PReLU has no rule for alpha"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named_and_changes_nothing(net, weights, said):
    net = net()
    before = net.state_dict()
    with pytest.raises(InputError, match=said):
        nn.load_keras(net, {k: normal(*v) for k, v in weights.items()})
    for name, value in net.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


def test_flattened_must_fit():
    with pytest.raises(InputError, match=r"flattened=\(2, 2, 2\) has other than 9 entries"):
        nn.load_keras(nn.Linear(9, 1), {"d/kernel": normal(9, 1)}, flattened={"d": (2, 2, 2)})
