"""Pooling with places, windows as columns, bags of rows and classes under PyTorch's names."""

import pickle

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import AssertionFailed, InputError, SymbolicValueError, TypeMismatch
from symdnn.graph.evaluate import evaluate
from symdnn.nn import functional as F

torch = pytest.importorskip("torch")


def drawn(*shape):
    return np.random.default_rng(shape).normal(size=shape).astype("float32")


INPUTS = {1: drawn(2, 3, 13), 2: drawn(2, 3, 11, 9), 3: drawn(2, 2, 7, 8, 6)}
WEIGHTS = np.random.default_rng(1)


def same(ours, theirs, value, known=True):
    """Outputs, and the gradient of the first, of sizes that are known or not."""
    x = T.tensor("float32", value.shape if known else [None] * value.ndim)
    t = torch.tensor(value, requires_grad=True)
    ys, zs = ours(x), theirs(t)
    ys, zs = (v if isinstance(v, list | tuple) else [v] for v in (ys, zs))
    w = np.random.default_rng(1).normal(size=tuple(zs[0].shape)).astype("float32")
    found = evaluate([*ys, symdnn.grad((ys[0] * w).sum(), x)], {x: value})
    (zs[0] * torch.tensor(w)).sum().backward()
    for got, wanted in zip(found, [*zs, t.grad], strict=True):
        np.testing.assert_allclose(got, wanted.detach().numpy(), 1e-4, 1e-5)


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize(
    "options",
    [
        {"dilation": 2},
        {"return_indices": True},
        {"dilation": 2, "stride": 1, "padding": 1, "return_indices": True},
        {"stride": 2, "padding": 1, "ceil_mode": True, "return_indices": True},
    ],
    ids=str,
)
def test_maxima_with_places(n, options):
    made = [getattr(lib, f"MaxPool{n}d")(2, **options) for lib in (nn, torch.nn)]
    same(*made, INPUTS[n])
    same(*made, INPUTS[n], known=False)


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize(
    "out", [{"output_size": 4}, {"output_ratio": 0.5}, {"output_size": 1}], ids=str
)
def test_fractional_maxima(n, out):
    """Of the same draws; ties are none, and all the places of a window are read."""
    draws = np.random.default_rng(3).random((2, INPUTS[n].shape[1], n)).astype("float32")
    made = [
        getattr(lib, f"FractionalMaxPool{n}d")(
            (2, 3, 2)[:n], **out, return_indices=True, _random_samples=given
        )
        for lib, given in ((nn, draws), (torch.nn, torch.tensor(draws)))
    ]
    same(*made, INPUTS[n])
    same(*made, INPUTS[n], known=False)


def test_fractional_maxima_draw_their_windows():
    """Others in each call; an example alone is taken, and what makes no sense is refused."""
    x = T.tensor("float32", (3, None, None))
    pool = nn.FractionalMaxPool2d(2, output_ratio=0.7, seed=1)
    f = symdnn.function([x], pool(x))
    found = [f(INPUTS[2][0]) for _ in range(8)]
    assert found[0].shape == (3, 7, 6)
    assert any((found[0] != other).any() for other in found)
    of_function = F.fractional_max_pool2d(x, (2, 2), output_size=(3, 4))
    assert symdnn.function([x], of_function)(INPUTS[2][0]).shape == (3, 3, 4)
    with pytest.raises(InputError, match="one of output_size and output_ratio"):
        nn.FractionalMaxPool2d(2)
    with pytest.raises(InputError, match="within 0 and 1"):
        nn.FractionalMaxPool3d(2, output_ratio=1.5)
    with pytest.raises(InputError, match="9 windows of 3 along a size of 9; wanted 1 to 7"):
        nn.FractionalMaxPool2d(3, 9)(T.tensor("float32", (1, 1, 11, 9)))
    short = symdnn.function([x], nn.FractionalMaxPool2d(3, (2, 9))(x))
    with pytest.raises(AssertionFailed, match="a size for 9 outputs of windows of 3"):
        short(INPUTS[2][0])
    with pytest.raises(AssertionFailed, match="a size for 2 outputs of windows of 3"):
        short(drawn(3, 1, 11))  # a place before the first would be one from the end
    with pytest.raises(AssertionFailed, match="a size for at least one output"):
        f(INPUTS[2][0, :, :1])
    with pytest.raises(TypeMismatch, match="_random_samples"):
        nn.FractionalMaxPool2d(2, 2, _random_samples=np.zeros((1, 2), "float32"))(x)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_adaptive_maxima_with_places(n):
    made = [getattr(lib, f"AdaptiveMaxPool{n}d")(4, return_indices=True) for lib in (nn, torch.nn)]
    same(*made, INPUTS[n])
    same(*made, INPUTS[n], known=False)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_unpooling(n):
    value = INPUTS[n][..., :6] if n > 1 else INPUTS[n][..., :12]
    value = np.ascontiguousarray(value[:, :, :10])
    pools = [getattr(lib, f"MaxPool{n}d")(2, 2, return_indices=True) for lib in (nn, torch.nn)]
    backs = [getattr(lib, f"MaxUnpool{n}d")(2, 2) for lib in (nn, torch.nn)]
    given = {"output_size": value.shape}
    same(
        lambda x: backs[0](*pools[0](x), **given), lambda x: backs[1](*pools[1](x), **given), value
    )


@pytest.mark.parametrize(
    "options",
    [
        {"divisor_override": 3},
        {"divisor_override": 5, "stride": 2, "padding": 1},
        {"divisor_override": 2, "stride": 2, "padding": 1, "ceil_mode": True},
    ],
    ids=str,
)
def test_divisor(options):
    for n in (2, 3):
        made = [getattr(lib, f"AvgPool{n}d")(2, **options) for lib in (nn, torch.nn)]
        same(*made, INPUTS[n])


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 3},
        {"kernel_size": (2, 3), "stride": 2, "padding": 1},
        {"kernel_size": 2, "dilation": 2, "stride": (1, 2)},
    ],
    ids=str,
)
def test_unfold_and_fold(options):
    columns = [lib.Unfold(**options) for lib in (nn, torch.nn)]
    images = [lib.Fold((11, 9), **options) for lib in (nn, torch.nn)]
    same(*columns, INPUTS[2])
    same(*columns, INPUTS[2], known=False)
    same(lambda x: images[0](columns[0](x)), lambda x: images[1](columns[1](x)), INPUTS[2])
    with pytest.raises(TypeMismatch, match="for this output_size"):
        images[0](T.tensor("float32", (2, 7, 5)))


def test_norms_of_windows_and_averages_of_areas():
    for options in ({"kernel_size": 3}, {"kernel_size": 2, "stride": 2, "ceil_mode": True}):
        same(nn.LPPool2d(2, **options), torch.nn.LPPool2d(2, **options), INPUTS[2])
    same(nn.LPPool1d(2, 3), torch.nn.LPPool1d(2, 3), INPUTS[1])
    for options in ({"size": (5, 4)}, {"scale_factor": 0.6}):
        made = [lib.Upsample(mode="area", **options) for lib in (nn, torch.nn)]
        same(*made, INPUTS[2])


def same_table(ours, theirs, index, *more, **options):
    """Values, and the gradient by the table."""
    theirs.load_state_dict({"weight": torch.tensor(ours.weight.get_value())})
    y = ours(T.constant(index), *more, **options)
    given = {k: torch.tensor(v) for k, v in options.items()}
    z = theirs(torch.tensor(index), *map(torch.tensor, more), **given)
    w = np.random.default_rng(1).normal(size=tuple(z.shape)).astype("float32")
    (z * torch.tensor(w)).sum().backward()
    found = evaluate([y, symdnn.grad((y * w).sum(), ours.weight)], {})
    for got, wanted in zip(found, (z, theirs.weight.grad), strict=True):
        np.testing.assert_allclose(got, wanted.detach().numpy(), 1e-4, 1e-5)


INDEX = np.random.default_rng(3).integers(0, 6, (4, 5))


@pytest.mark.parametrize(
    "options",
    [
        {"padding_idx": 2},
        {"max_norm": 1.0},
        {"scale_grad_by_freq": True},
        {"max_norm": 0.7, "norm_type": 1.0},
    ],
    ids=str,
)
def test_tables(options):
    same_table(nn.Embedding(6, 3, **options), torch.nn.Embedding(6, 3, **options), INDEX)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 1])
def test_bags(mode, padding):
    options = {"mode": mode, "padding_idx": padding}
    made = [lib.EmbeddingBag(6, 3, **options) for lib in (nn, torch.nn)]
    same_table(*made, INDEX)
    made[1].zero_grad()
    same_table(*made, INDEX.ravel()[:11], np.array([0, 4, 4, 7]))


def test_bags_with_weights_and_a_last_offset():
    made = [lib.EmbeddingBag(6, 3, mode="sum") for lib in (nn, torch.nn)]
    same_table(*made, INDEX, per_sample_weights=drawn(4, 5))
    options = {"mode": "sum", "include_last_offset": True}
    made = [lib.EmbeddingBag(6, 3, **options) for lib in (nn, torch.nn)]
    same_table(*made, INDEX.ravel()[:11], np.array([0, 4, 7, 11]))
    with pytest.raises(InputError, match="wanted an array of"):
        nn.EmbeddingBag(2, 3, _weight=np.ones(3))


def test_rows_of_another_table():
    table = nn.Embedding.from_pretrained(np.ones((3, 2)))
    assert not table.parameters()
    assert list(table.named_buffers().keys()) == ["weight"]


def test_average_of_all_batches():
    ours, theirs = nn.BatchNorm2d(3, momentum=None), torch.nn.BatchNorm2d(3, momentum=None)
    x = T.tensor4("x")
    y = ours(x)
    step = symdnn.function([x], y, updates=nn.state_updates(y))
    for scale in (1, 2, 3):
        batch = scale * drawn(4, 3, 5, 5)
        step(batch)
        theirs(torch.tensor(batch))
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        got, wanted = getattr(ours, name).get_value(), getattr(theirs, name).numpy()
        np.testing.assert_allclose(got, wanted, 1e-4, 1e-5)


def test_random_layers():
    x = T.matrix("x")
    value = drawn(200, 200)
    y = symdnn.function([x], nn.RReLU()(x))(value)
    slopes = y[value < 0] / value[value < 0]
    assert 1 / 8 - 1e-6 <= slopes.min() <= slopes.max() <= 1 / 3 + 1e-6
    for layer in (nn.AlphaDropout(0.3), nn.FeatureAlphaDropout(0.3)):
        y = symdnn.function([x], layer(x))(value)
        assert abs(y.mean()) < 0.1 > abs(y.std() - 1)


def test_torch_names_are_classes():
    layer = nn.Conv2d(3, 4, 3)
    assert isinstance(layer, nn.Conv2d)
    assert not isinstance(layer, nn.BatchNorm2d)
    assert isinstance(nn.models.lenet5()[0], nn.Conv2d)
    assert repr(layer) == "nn.SpatialConvolution(3 -> 4, 3x3)"
    assert repr(pickle.loads(pickle.dumps(layer))) == repr(layer)


class Doubled(nn.Conv2d):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.scale = nn.Parameter(np.full((1,), 2.0))

    def forward(self, x):
        return super().forward(x) * self.scale


def test_a_class_of_a_program_derives_from_one():
    made = Doubled(3, 4, 3, padding=1)
    assert isinstance(made, nn.Conv2d)
    assert not isinstance(nn.Conv2d(3, 4, 3), Doubled)
    assert list(made.named_parameters().keys()) == ["weight", "bias", "scale"]
    value = INPUTS[2]
    wanted = torch.nn.functional.conv2d(
        torch.tensor(value), *(torch.tensor(p.get_value()) for p in made.parameters()[:2]),
        padding=1,
    )  # fmt: skip
    np.testing.assert_allclose(made(value).eval(), 2 * wanted.numpy(), 1e-4, 1e-4)


def test_parameters_and_buffers():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(np.ones(3))
            self.fixed = nn.Parameter(np.ones(3), requires_grad=False)
            self.register_buffer("mask", T.ones(2))
            self.register_buffer("other", np.ones(2), persistent=False)
            self.register_parameter("bias", None)

    own = Own()
    assert list(own.named_parameters().keys()) == ["w"]
    assert list(own.named_buffers().keys()) == ["fixed", "mask"]
    assert own.w.type.dtype == "float32"
    assert own.bias is None
    assert nn.init.kaiming_normal_(nn.Parameter(np.ones((3, 4)))).get_value().std() > 0


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_states_of_recurrent_layers_as_pytorchs(kind):
    ours = getattr(nn, kind)(4, 5, batch_first=True, return_state=True)
    x = T.tensor3("x")
    y, state = ours(x)
    again, _ = ours(x, state)
    states = list(state) if kind == "LSTM" else [state]
    found = symdnn.function([x], [y, again, *states])(drawn(2, 3, 4))
    assert [f.shape for f in found] == [(2, 3, 5)] * 2 + [(1, 2, 5)] * len(states)
    np.testing.assert_allclose(found[2][0], found[0][:, -1], 1e-5)
    assert np.abs(found[1] - found[0]).max() > 1e-3
    plain = getattr(nn, kind)(4, 5)
    with pytest.raises(SymbolicValueError, match="return_state=True"):
        y, state = plain(x)
