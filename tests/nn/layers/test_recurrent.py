"""Recurrent modules against PyTorch's values, stored by make_torch_rnn.py."""

from pathlib import Path

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import IndexOutOfRange, InputError, ShapeMismatch, TypeMismatch
from tests.seeded import new_rng

STORED = np.load(Path(__file__).parents[1] / "torch_rnn.npz")
STEPS, BATCH, INPUT, HIDDEN, LAYERS = 5, 3, 4, 3, 2
KINDS = ["RNNReLU", "RNNTanh", "LSTM", "GRU"]
ALL = [*KINDS, *(f"B{k}" for k in KINDS)]
STATES = {"hx": "hy", "cx": "cy"}


def stored(name):
    """The arrays of a case by their names."""
    return {k.removeprefix(name + "/"): STORED[k] for k in STORED.files if k.startswith(name + "/")}


def parts(module, arrays, prefix):
    """PyTorch's parameters (or gradients) under the names of the module's parts."""
    kinds = {"W": "weight_ih", "R": "weight_hh", "bW": "bias_ih", "bR": "bias_hh"}
    found = {}
    for p in module.parts():
        whole = arrays[f"{prefix}/{kinds[p.kind]}_l{p.layer}" + "_reverse" * p.direction]
        gates = np.split(whole, len(module.layout.gates))
        found[p.name] = gates[module.layout.gates.index(p.gate)]
    return found


def made(kind, **options):
    return getattr(nn, kind)(INPUT, HIDDEN, LAYERS, **options)


@pytest.mark.parametrize("first", [False, True], ids=["steps first", "batch first"])
@pytest.mark.parametrize("case", ["", "/lengths"])
@pytest.mark.parametrize("kind", ALL)
def test_values_and_gradients(kind, case, first):
    a, rnn = stored(kind + case), made(kind, batchFirst=first)
    rnn.set_weights(parts(rnn, a, "w"))
    turned = (lambda v: v.transpose(1, 0, 2)) if first else (lambda v: v)
    x, hx, cx, lengths = T.tensor3("x"), T.tensor3("hx"), T.tensor3("cx"), T.ivector("lengths")
    states = [hx, cx] if rnn.has_cell else [hx]
    outputs = rnn.states(x, lengths if case else None, *states)
    loss = (outputs[0] * turned(a["py"])).sum()
    loss += sum((y * a[f"p{n}"]).sum() for y, n in zip(outputs[1:], ("hy", "cy"), strict=False))
    inputs = [x, *states, *([lengths] if case else [])]
    f = symdnn.function(inputs, [*outputs, *T.grad(loss, [x, *states, rnn.weight])])
    names = ["hx", "cx"][: len(states)]
    values = [turned(a["x"]), *(a[n] for n in names), *([a["lengths"]] if case else [])]
    y, *rest, dw = f(*values)
    np.testing.assert_allclose(turned(y), a["y"], 1e-5, 1e-5)
    wanted = [*(a[STATES[n]] for n in names), turned(a["dx"]), *(a[f"d{n}"] for n in names)]
    for found, right in zip(rest, wanted, strict=True):
        np.testing.assert_allclose(found, right, 1e-4, 2e-5)
    other = made(kind)
    other.weight.set_value(dw)
    gradients = parts(rnn, a, "dw")
    for name, found in other.named_weights().items():
        np.testing.assert_allclose(found, gradients[name], 1e-4, 2e-5, err_msg=name)


@pytest.mark.parametrize("kind", ["BLSTM", "GRU"])
def test_one_sequence_without_a_batch(kind):
    a, rnn = stored(kind), made(kind, batchFirst=True)  # of one sequence it means nothing
    rnn.set_weights(parts(rnn, a, "w"))
    x, n = T.matrix("x"), T.iscalar("n")
    names = ["hx", "cx"][: 1 + rnn.has_cell]
    states = [T.matrix(s) for s in names]
    found = symdnn.function([x, *states], rnn.states(x, None, *states))(
        a["x"][:, 1], *(a[s][:, 1] for s in names)
    )
    for value, name in zip(found, ["y", "hy", "cy"], strict=False):
        np.testing.assert_allclose(value, a[name][:, 1], 1e-5, 1e-5)
    y, short = symdnn.function([x, n], [rnn(x), rnn(x, n)])(a["x"][:, 1], 2)
    assert y.shape == short.shape == (STEPS, HIDDEN * rnn.directions)
    np.testing.assert_array_equal(short[2:], 0)
    if not rnn.bidirectional:
        np.testing.assert_allclose(short[:2], y[:2], 1e-5, 1e-6)


@pytest.mark.parametrize("kind", ALL)
def test_initial_states_are_zeros_unless_given(kind):
    a, rnn, x = stored(kind), made(kind), T.tensor3("x")
    zeros = np.zeros((LAYERS * rnn.directions, BATCH, HIDDEN), "float32")
    more = [zeros] * (1 + rnn.has_cell)
    left_out, given = symdnn.function([x], [rnn(x), rnn(x, None, *more)])(a["x"])
    np.testing.assert_array_equal(left_out, given)


def test_states_and_lengths_that_were_set_are_taken():
    a, rnn, x = stored("LSTM"), made("LSTM"), T.tensor3("x")
    lengths = symdnn.shared(np.array([1, 5, 2], "int32"))
    wanted = rnn(x, lengths, a["hx"], a["cx"])
    rnn.lengths, rnn.hiddenInput, rnn.cellInput = lengths, a["hx"], a["cx"]
    assert rnn.lengths is lengths
    net = nn.Sequential(rnn)
    assert list(net.named_parameters().keys()) == ["0.weight"]
    found, right = symdnn.function([x], [net(x), wanted])(a["x"])
    np.testing.assert_array_equal(found, right)
    assert (found[2:, 0] == 0).all()
    rnn.setLengths(None)
    assert (symdnn.function([x], rnn(x))(a["x"])[2:, 0] != 0).any()


def test_returnStates():
    x = T.tensor3("x")
    assert len(made("LSTM", returnStates=True)(x)) == 3
    assert len(made("BGRU", returnStates=True)(x)) == 2
    assert isinstance(made("BGRU")(x), symdnn.Variable)


@pytest.mark.parametrize("kind", KINDS)
def test_a_skipped_input_enters_the_gates_as_it_is(kind):
    skip = getattr(nn, kind)(HIDDEN, HIDDEN, LAYERS, inputMode="CUDNN_SKIP_INPUT")
    linear = getattr(nn, kind)(HIDDEN, HIDDEN, LAYERS)
    weights = skip.named_weights()
    gates = {f"layer0.W_{g}": np.eye(HIDDEN) for g in skip.layout.gates}
    assert not set(gates) & set(weights)
    linear.set_weights({**weights, **gates})
    x = T.tensor3("x")
    value = new_rng().normal(size=(4, 2, HIDDEN)).astype("float32")
    a, b = symdnn.function([x], [skip(x), linear(x)])(value)
    np.testing.assert_allclose(a, b, 1e-5, 1e-6)


def test_dropout_between_the_layers_is_for_training():
    x, value = T.tensor3("x"), np.random.default_rng(1).normal(size=(6, 4, 8)).astype("float32")
    gru = nn.GRU(8, 16, 2, dropout=0.5, seed=3)
    train = symdnn.function([x], gru(x))
    first, second = train(value), train(value)
    assert not np.allclose(first, second)
    again = nn.GRU(8, 16, 2, dropout=0.5, seed=3)
    again.load_state_dict(gru.state_dict())
    np.testing.assert_array_equal(symdnn.function([x], again(x))(value), first)
    evaluate = symdnn.function([x], gru.evaluate()(x))
    np.testing.assert_array_equal(evaluate(value), evaluate(value))
    plain = nn.GRU(8, 16, 2)
    plain.load_state_dict(gru.state_dict())
    np.testing.assert_array_equal(symdnn.function([x], plain(x))(value), evaluate(value))


def test_initial_weights():
    rnn = nn.LSTM(
        6, 8, 2, weight_init=nn.init.orthogonal(), recurrent_init=nn.init.zeros,
        bias_init=nn.init.ones,
    )  # fmt: skip
    for name, value in rnn.named_weights().items():
        kind = name.rsplit(".", 1)[1][0]
        if kind == "W":
            rows = value.T @ value if value.shape[0] > value.shape[1] else value @ value.T
            np.testing.assert_allclose(rows, np.eye(len(rows)), atol=1e-5)
        else:
            np.testing.assert_array_equal(value, kind == "b")
    usual = nn.GRU(64, 64, 3).weight.get_value()
    assert np.abs(usual).max() <= 1 / 8
    assert usual.var() == pytest.approx(1 / 64 / 3, rel=0.1)


def test_set_weights_takes_some_and_refuses_what_it_has_not():
    rnn = made("GRU")
    before = rnn.named_weights()
    rnn.set_weights({"layer1.bR_n": np.ones(HIDDEN)})
    for name, value in rnn.named_weights().items():
        np.testing.assert_array_equal(value, 1 if name == "layer1.bR_n" else before[name])
    before = rnn.named_weights()
    wrong = {"layer0.W_r": np.zeros((HIDDEN, INPUT)), "layer0.W_i": 0, "layer0.bW_r": np.ones(2)}
    message = r"layer0.W_i is unknown; layer0.bW_r has shape \(3,\), got \(2,\). Nothing"
    with pytest.raises(InputError, match=message):
        rnn.set_weights(wrong)
    for name, value in rnn.named_weights().items():
        np.testing.assert_array_equal(value, before[name])
    before["layer0.W_r"][:] = 7  # a copy
    assert (rnn.named_weights()["layer0.W_r"] != 7).all()


def test_setPersist_is_a_hint_for_the_forward_pass_and_the_gradient():
    rnn, x = made("LSTM").setPersist(True), T.tensor3("x")
    y = rnn(x)
    mode = symdnn.Mode(target="cuda:sm_90")
    f = symdnn.function([x], T.grad(y.sum(), rnn.weight), mode=mode)
    algos = {type(n.op).__name__: n.hints.algo for n in f.fgraph.toposort() if n.hints.algo}
    wanted = dict.fromkeys(
        ["GpuDnnRNNOp", "GpuDnnRNNGradInputs", "GpuDnnRNNGradWeights"], "persist_static"
    )
    assert wanted.items() <= algos.items()
    assert rnn.setPersist("guess").hints.algo == "guess"
    assert rnn.setPersist(False).hints.algo is None
    with pytest.raises(ValueError, match="algo='fast'; wanted one of standard, persist_static"):
        rnn.setPersist("fast")


def test_a_net_learns_the_sum_of_its_inputs():
    rng = np.random.default_rng(0)
    nn.init.seed(0)
    gru, x = nn.GRU(1, 8, 1), T.tensor3("x")
    error = ((gru(x)[-1, :, 0] - x.sum(axis=0)[:, 0].tanh()) ** 2).mean()
    step = symdnn.function(
        [x], error, updates=[(gru.weight, gru.weight - T.grad(error, gru.weight))]
    )
    losses = [step(rng.normal(size=(6, 32, 1)).astype("float32") * 0.5) for _ in range(150)]
    assert np.mean(losses[-10:]) < 0.2 * np.mean(losses[:10])


def test_other_dtypes():
    rnn, x = nn.LSTM(3, 2, 1, dtype="float64"), T.tensor3("x")
    assert rnn.weight.dtype == "float64"
    assert symdnn.function([x], rnn(x))(np.ones((2, 2, 3), "float32")).dtype == "float64"


def test_printed():
    net = nn.Sequential(nn.BLSTM(32, 16, 3, True, dropout=0.25))
    assert repr(net).splitlines()[2] == "  (0): nn.BLSTM(32 -> 16 x 3, dropout=0.25, batchFirst)"
    assert repr(nn.GRU(4, 4, 1, inputMode="skip")) == "nn.GRU(4 -> 4 x 1, skip)"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nn.LSTM(0, 2, 1), "LSTM: inputDim=0; wanted an int, 1 or more"),
        (lambda: nn.LSTM(2, 2, 1.5), "numberOfLayers=1.5; wanted an int"),
        (lambda: nn.GRU(2, 3, 1, inputMode="skip"), "wants inputDim to be outputDim, got 2 and 3"),
        (lambda: nn.GRU(2, 3, 1, inputMode="none"), "inputMode='none'; wanted 'linear' or 'skip'"),
        (lambda: nn.GRU(2, 3, 1, dropout=1.5), "dropout=1.5; wanted a probability"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(InputError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: made("GRU")(T.tensor4()),
            r"GRU: wanted a float tensor \(seqLength, batch, 4\) or",
        ),
        (lambda: made("GRU", batchFirst=True)(T.lmatrix()), r"\(batch, seqLength, 4\) or"),
        (lambda: made("GRU")(np.zeros((5, 2, 3), "float32")), r"\(seqLength, batch, 4\)"),
        (lambda: made("GRU")(T.tensor3(), None, None, T.tensor3()), "which only an LSTM has"),
        (lambda: made("LSTM")(T.tensor3(), None, T.matrix()), r"hx of shape \(2, batch, 3\)"),
        (lambda: made("BLSTM")(T.matrix(), None, T.tensor3()), r"hx of shape \(4, 3\)"),
        (lambda: made("LSTM")(T.tensor3(), T.vector()), r"states \(h, c\), got"),
    ],
)
def test_bad_inputs(call, message):
    with pytest.raises(TypeMismatch, match=message):
        call()


def test_bad_values():
    rnn, x, lengths = made("GRU"), T.tensor3("x"), T.ivector("lengths")
    f = symdnn.function([x, lengths], rnn(x, lengths))
    value = np.zeros((STEPS, 2, INPUT), "float32")
    with pytest.raises(IndexOutOfRange, match=r"lengths\[1\] = 6 is not within the 5 time steps"):
        f(value, np.array([1, 6], "int32"))
    with pytest.raises(ShapeMismatch, match="one length for each sequence"):
        f(value, np.array([1], "int32"))
    wide, text = np.zeros((STEPS, 2, INPUT + 1), "float32"), rf"\(\w+, batch, {INPUT}\)"
    for name in ("GRU", "BLSTM", "RNNTanh"):
        for net in (made(name), getattr(nn, name)(INPUT, HIDDEN, 1)):
            with pytest.raises(ShapeMismatch, match=text):
                symdnn.function([x], net(x))(wide)
