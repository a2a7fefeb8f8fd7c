"""Recurrent layers without biases and with projections, against PyTorch's."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import InputError

torch = pytest.importorskip("torch")

INPUT, HIDDEN, LAYERS, STEPS, BATCH = 4, 5, 2, 6, 3


def pair(kind, **options):
    """PyTorch's layer in float64, and ours with its weights."""
    theirs = getattr(torch.nn, kind)(INPUT, HIDDEN, LAYERS, **options).double()
    ours = getattr(nn, kind)(INPUT, HIDDEN, LAYERS, dtype="float64", **options)
    nn.load_torch(ours, theirs.state_dict())
    return theirs, ours


def values(rng, theirs):
    """An input and first states."""
    depth = LAYERS * (2 if theirs.bidirectional else 1)
    shapes = [(depth, BATCH, theirs.proj_size or HIDDEN)]
    shapes += [(depth, BATCH, HIDDEN)] if theirs.mode == "LSTM" else []
    return rng.normal(size=(STEPS, BATCH, INPUT)), [rng.normal(size=s) for s in shapes]


@pytest.mark.parametrize("both", [False, True], ids=["one way", "both ways"])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("LSTM", {"bias": False}),
        ("LSTM", {"proj_size": 3}),
        ("LSTM", {"proj_size": 3, "bias": False}),
        ("GRU", {"bias": False}),
        ("RNN", {"bias": False, "nonlinearity": "relu"}),
    ],
)
@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_values_and_every_gradient_are_pytorchs(rng, kind, options, both):
    theirs, ours = pair(kind, bidirectional=both, **options)
    x, states = values(rng, theirs)
    given = [torch.tensor(v, requires_grad=True) for v in (x, *states)]
    y, last = theirs(given[0], tuple(given[1:]) if len(states) == 2 else given[1])
    wanted = [y, *(last if isinstance(last, tuple) else [last])]
    parts = [rng.normal(size=tuple(v.shape)) for v in wanted]
    sum((v * torch.tensor(p)).sum() for v, p in zip(wanted, parts)).backward()

    vs = [T.tensor3(n, dtype="float64") for n in ("x", "h", "c")[: len(given)]]
    found = ours.states(vs[0], None, *vs[1:])
    loss = sum((v * p).sum() for v, p in zip(found, parts))
    f = symdnn.function(vs, [*found, *T.grad(loss, [*vs, ours.weight])])
    results = f(x, *states)
    for a, b in zip(results, [*wanted, *(v.grad for v in given)], strict=False):
        np.testing.assert_allclose(a, b.detach().numpy(), 1e-9, 1e-9)
    ours.weight.set_value(results[-1])
    grads = nn.to_torch(ours)
    assert set(grads) == {n for n, _ in theirs.named_parameters()}
    for name, p in theirs.named_parameters():
        np.testing.assert_allclose(grads[name], p.grad.numpy(), 1e-9, 1e-9, err_msg=name)


def test_a_projected_lstm_ends_sequences_and_goes_through_files(tmp_path, rng):
    lengths = [6, 1, 4]
    theirs, ours = pair("LSTM", proj_size=2, bidirectional=True)
    x, _ = values(rng, theirs)
    packed = torch.nn.utils.rnn.pack_padded_sequence(torch.tensor(x), lengths, enforce_sorted=False)
    y, (h, c) = theirs(packed)
    wanted = torch.nn.utils.rnn.pad_packed_sequence(y)[0]
    ours.save(tmp_path / "lstm.npz")
    copy = nn.LSTM(INPUT, HIDDEN, LAYERS, bidirectional=True, proj_size=2, dtype="float64").load(
        tmp_path / "lstm.npz"
    )
    v, n = T.tensor3("x", dtype="float64"), T.lvector("n")
    found = symdnn.function([v, n], copy.states(v, n))(x, lengths)
    for a, b in zip(found, (wanted, h, c), strict=True):
        np.testing.assert_allclose(a, b.detach().numpy(), 1e-9, 1e-9)
    assert copy.named_weights()["layer1.reverse.P"].shape == (2, HIDDEN)


def test_dropout_between_projected_layers_is_drawn_in_training_alone(rng):
    layer = nn.LSTM(INPUT, HIDDEN, LAYERS, proj_size=3, dropout=0.5, seed=1, dtype="float64")
    v = T.tensor3("x", dtype="float64")
    x = rng.normal(size=(STEPS, BATCH, INPUT))
    train = symdnn.function([v], layer(v))
    assert not np.allclose(train(x), train(x))
    test = symdnn.function([v], layer.evaluate()(v))
    np.testing.assert_allclose(test(x), test(x), rtol=1e-12)  # the second by compiled kernels


def test_what_has_no_projection_says_so():
    for make in (lambda: nn.GRU(4, 5, proj_size=2), lambda: nn.LSTM(4, 5, proj_size=5)):
        with pytest.raises(InputError, match="proj_size=.*wanted 0 or, of an LSTM, less than"):
            make()
    assert repr(nn.LSTM(4, 5, bias=False)) == "nn.LSTM(4 -> 5 x 1, without bias)"
