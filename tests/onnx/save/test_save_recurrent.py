"""Recurrent networks written as nodes of ONNX: loaded again, and computed by onnx's reference."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import ModelError
from symdnn.onnx import compile, save
from symdnn.ops.nn.rnn import RNNForward

X = T.tensor("float32", ("time", "batch", 5), name="x")
HIDDEN = 4


def network(rng, mode, layers=1, both=False, lengths=False, skip=False):
    """Outputs of RNNForward with states that are not 0."""
    hidden = 5 if skip else HIDDEN
    op = RNNForward(
        mode, hidden, layers, "skip" if skip else "linear",
        "bidirectional" if both else "unidirectional", lengths=lengths,
    )  # fmt: skip
    w = symdnn.shared(rng.normal(size=int(op.layout.size(5))).astype("f4") * 0.4, name="w")
    state = rng.normal(size=(layers * (1 + both), 3, hidden)).astype("f4")
    states = [state] * (1 + op.has_cell)
    found = op(w, X, *states, *[np.int32([2, 4, 1])] * lengths)
    return list(found[: 1 + len(states)])


CASES = {
    "lstm": {"mode": "lstm"},
    "gru": {"mode": "gru"},
    "tanh": {"mode": "rnn_tanh"},
    "relu": {"mode": "rnn_relu"},
    "skip": {"mode": "gru", "skip": True},
    "two_layers": {"mode": "lstm", "layers": 2},
    "both_directions": {"mode": "lstm", "layers": 2, "both": True},
    "both_directions_tanh": {"mode": "rnn_tanh", "both": True},
    "lengths": {"mode": "gru", "both": True, "lengths": True},
}
#: onnx's reference has neither two directions nor lengths nor Relu.
BY_REFERENCE = ("lstm", "gru", "tanh", "skip", "two_layers")


@pytest.mark.parametrize("name", CASES)
def test_networks_stay(name, rng, tmp_path):
    outputs = network(rng, **CASES[name])
    x = rng.normal(size=(4, 3, 5)).astype("float32")
    wanted = symdnn.function([X], outputs)(x)
    save(outputs, tmp_path / "m.onnx")
    again = list(compile(tmp_path / "m.onnx")(x).values())
    found = [again]
    if name in BY_REFERENCE:
        found.append(ReferenceEvaluator(str(tmp_path / "m.onnx")).run(None, {"x": x}))
    for values in found:
        for v, w in zip(values, wanted, strict=True):
            np.testing.assert_allclose(v, w, rtol=1e-4, atol=1e-5)


def test_a_module_is_written_and_one_that_draws_is_refused(rng, tmp_path):
    net = nn.LSTM(5, HIDDEN, 2, dropout=0.5)
    with pytest.raises(ModelError, match="dropout draws"):
        save(net(X), tmp_path / "m.onnx")
    save(net, tmp_path / "m.onnx", inputs=[X])
    x = rng.normal(size=(4, 3, 5)).astype("float32")
    wanted = symdnn.function([X], net.evaluate()(X))(x)
    (found,) = compile(tmp_path / "m.onnx")(x).values()
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["lstm", "rnn_tanh"])
def test_features_follow_from_the_number_of_parameters(mode, rng, tmp_path):
    op = RNNForward(mode, HIDDEN, 2, "linear", "bidirectional")
    weights = rng.normal(size=int(op.layout.size(5))).astype("f4")
    w = symdnn.shared(weights, name="w", shape=weights.shape)
    x = T.tensor("float32", ("time", "batch", None), name="x")
    y = op(w, x, *[np.zeros((4, 3, HIDDEN), "f4")] * (1 + op.has_cell))[0]
    save({"y": y}, tmp_path / "m.onnx")
    value = rng.normal(size=(4, 3, 5)).astype("float32")
    (found,) = compile(tmp_path / "m.onnx")(value).values()
    np.testing.assert_allclose(found, symdnn.function([x], y)(value), rtol=1e-4, atol=1e-5)
