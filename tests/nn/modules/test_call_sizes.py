"""Layers built for inputs of unknown sizes: a call whose sizes do not fit is told by the layer."""

import pickle

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import DimensionMismatch, IndexOutOfRange, ShapeMismatch, SymdnnError

#: A layer, the shapes of its inputs, and what the message has of the sizes wanted.
CASES = {
    "BatchNorm1d": (lambda: nn.BatchNorm1d(4), [(3, 2)], "4 features"),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(4), [(3, 2, 5, 5)], "4 features"),
    "BatchNorm2d, one image": (lambda: nn.BatchNorm2d(4), [(2, 5, 5)], "4 features"),
    "BatchNorm2d, eval": (lambda: nn.BatchNorm2d(4).eval(), [(3, 2, 5, 5)], "4 features"),
    "BatchNorm3d": (lambda: nn.BatchNorm3d(4), [(3, 2, 5, 5, 5)], "4 features"),
    "Bilinear": (lambda: nn.Bilinear(4, 3, 2), [(2, 5), (2, 3)], "4x3 -> 2"),
    "ChannelShuffle": (lambda: nn.ChannelShuffle(4), [(2, 6, 3, 2)], "(4)"),
    "Conv1d": (lambda: nn.Conv1d(4, 3, 3), [(2, 5, 6)], "4 -> 3"),
    "Conv2d": (lambda: nn.Conv2d(4, 3, 3), [(2, 5, 6, 6)], "4 -> 3"),
    "Conv2d, small": (lambda: nn.Conv2d(4, 3, 3), [(2, 4, 2, 2)], "span 3"),
    "Conv2d, groups": (lambda: nn.Conv2d(4, 4, 3, groups=2), [(2, 6, 6, 6)], "4 -> 4"),
    "Conv3d": (lambda: nn.Conv3d(4, 3, 3), [(2, 5, 6, 6, 6)], "4 -> 3"),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(4, 3, 3), [(2, 5, 6, 6)], "4 -> 3"),
    "CosineSimilarity": (nn.CosineSimilarity, [(2, 5), (2, 4)], "agree"),
    "Fold": (lambda: nn.Fold((4, 4), (2, 2)), [(2, 8, 8)], "(N, C 4, 9)"),
    "GLU": (nn.GLU, [(2, 5)], "an even size"),
    "GRU": (lambda: nn.GRU(4, 3), [(2, 5, 6)], "(seqLength, batch, 4)"),
    "GRUCell": (lambda: nn.GRUCell(4, 3), [(2, 6)], "4 -> 3"),
    "GRUCell, state": (lambda: nn.GRUCell(4, 3), [(2, 4), (2, 5)], "(2, 3)"),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), [(3, 2, 5, 5)], "(batch, 4, ...)"),
    "InstanceNorm2d": (
        lambda: nn.InstanceNorm2d(4, affine=True), [(3, 2, 5, 5)], "(batch, 4, positions...)",
    ),
    "LSTM": (lambda: nn.LSTM(4, 3), [(2, 5, 6)], "(seqLength, batch, 4)"),
    "LSTMCell": (lambda: nn.LSTMCell(4, 3), [(2, 6)], "4 -> 3"),
    "LayerNorm": (lambda: nn.LayerNorm(6), [(2, 5)], "(..., 6)"),
    "Linear": (lambda: nn.Linear(4, 3), [(2, 5)], "(..., 4)"),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(8, 2), [(2, 5, 6)] * 3, "here 8"),
    "PReLU": (lambda: nn.PReLU(4), [(2, 5, 3)], "(4)"),
    "PairwiseDistance": (nn.PairwiseDistance, [(2, 5), (2, 4)], "agree"),
    "PixelShuffle": (lambda: nn.PixelShuffle(2), [(2, 6, 2, 2)], "a multiple of 4"),
    "PixelUnshuffle": (lambda: nn.PixelUnshuffle(2), [(2, 6, 3, 2)], "multiples of 2"),
    "RMSNorm": (lambda: nn.RMSNorm(6), [(2, 5)], "(..., 6)"),
    "RNN": (lambda: nn.RNN(4, 3), [(2, 5, 6)], "(seqLength, batch, 4)"),
    "TransformerDecoderLayer": (
        lambda: nn.TransformerDecoderLayer(8, 2, 16), [(2, 5, 8), (2, 5, 6)], "here 8",
    ),
    "TransformerEncoderLayer": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16), [(2, 5, 6)], "here 8",
    ),
    "Unflatten": (lambda: nn.Unflatten(1, (2, 3)), [(2, 5)], "(2, 3)"),
    "Unfold": (lambda: nn.Unfold(3), [(2, 6, 1, 1)], "kernel_size=(3, 3)"),
}  # fmt: skip


def unknown(*shapes):
    """An input for each shape, of which only the number of dimensions is known."""
    return [T.tensor("float32", (None,) * len(s), name=f"x{i}") for i, s in enumerate(shapes)]


def first(output):
    while isinstance(output, list | tuple):
        output = output[0]
    return output


def failure(f, *shapes):
    with pytest.raises(SymdnnError) as caught:
        f(*(np.ones(s, "float32") for s in shapes))
    return caught.value


@pytest.mark.parametrize("case", CASES)
def test_the_layer_tells_wanted_and_given_sizes(case):
    make, shapes, wanted = CASES[case]
    layer, inputs = make(), unknown(*shapes)
    f = symdnn.function(inputs, first(layer(*inputs)), on_unused_input="ignore")
    error = failure(f, *shapes)
    text = str(error)
    assert isinstance(error, DimensionMismatch)
    assert text.startswith((layer.title, type(layer).__name__)), text
    assert wanted in text, text
    assert f"float32{shapes[-1]}" in text.partition(": ")[0], text
    assert any(__file__ in note for note in error.__notes__)


def test_a_call_that_fits_comes_before_one_that_does_not():
    (x,) = unknown((2, 4))
    f = symdnn.function([x], nn.Linear(4, 3)(x))
    for n in (4, 4, 5, 4, 5):
        if n == 4:
            assert f(np.ones((2, n), "float32")).shape == (2, 3)
        else:
            assert str(failure(f, (2, n))).startswith("nn.Linear(4 -> 3) called with float32(2, 5)")


def test_the_path_in_a_network_is_told():
    (x,) = unknown((2, 3, 3, 3))
    net = nn.Sequential(nn.ReLU(), nn.Sequential(nn.BatchNorm2d(4), nn.ReLU()))
    f = symdnn.function([x], net(x * 2))
    text = str(failure(f, (2, 3, 3, 3)))
    assert text.startswith("Sequential.1.0, nn.SpatialBatchNormalization (4D) (4) called with"), (
        text
    )
    assert "float32(2, 3, 3, 3): wanted 4 features" in text


def test_an_input_that_other_layers_made():
    (x,) = unknown((2, 3))
    y = nn.Linear(3, 8)(x)[:, : x.shape[0]]
    f = symdnn.function([x], nn.LayerNorm(6)(y))
    text = str(failure(f, (2, 3)))
    said = "wanted a float tensor (..., 6), got float32(2, 2)"
    assert text == f"nn.LayerNorm(6) called with float32(2, 2): {said}"


def test_gradients_keywords_and_updates():
    (x,) = unknown((2, 2, 3, 3))
    layer = nn.BatchNorm2d(4)
    loss = T.sqr(layer(x)).sum()
    updates = nn.optim.sgd(loss, layer, 0.1)
    f = symdnn.function([x], loss, updates=updates)
    before = [v.get_value() for v in layer.parameters()]
    with pytest.raises(ShapeMismatch, match=r"^nn\.Spatial.*\(2, 2, 3, 3\): wanted 4 features"):
        f(x0=np.ones((2, 2, 3, 3), "float32"))
    for v, old in zip(layer.parameters(), before, strict=True):
        np.testing.assert_array_equal(v.get_value(), old)


def test_indices_name_their_layer():
    i = T.lvector("i")
    f = symdnn.function([i], nn.Embedding(5, 3)(i))
    with pytest.raises(IndexOutOfRange, match=r"^nn\.LookupTable\(5 -> 3\) called with int64\(2"):
        f(np.array([1, 7]))


class Twice(nn.Module):
    """A user's module: its ``forward`` is not called again for an error."""

    calls = 0

    def forward(self, x, y):
        self.calls += 1
        return x + 2 * y


def test_a_users_module_is_not_called_again():
    x, y = unknown((2, 3), (2, 4))
    net = Twice()
    f = symdnn.function([x, y], net(x, y))
    text = str(failure(f, (2, 3), (2, 4)))
    assert text.startswith("nn.Twice called with float32(2, 3), float32(2, 4): ")
    assert "equal sizes" in text
    assert net.calls == 1


def test_a_saved_function_names_the_layer():
    (z,), layer = unknown((2, 4)), nn.Linear(4, 4)
    f = pickle.loads(pickle.dumps(symdnn.function([z], layer(z))))
    assert str(failure(f, (2, 5))).startswith("Linear: Dot: ")


def test_errors_outside_of_layers_are_as_they_were():
    x, y = unknown((2, 3), (2, 4))
    error = failure(symdnn.function([x, y], T.dot(x, y)), (2, 3), (2, 4))
    assert str(error).startswith("Dot: wanted")
    assert error.origin is None
