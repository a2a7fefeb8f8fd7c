"""A word that is none of those an argument takes is a ValueError, as in PyTorch."""

import inspect

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import OptionError, SymdnnError
from symdnn.nn import functional as F

X, M = T.tensor4("x"), T.matrix("m")


def _words(function):
    return inspect.signature(function).parameters


LOSSES = [
    n for n in dir(nn) if inspect.isclass(getattr(nn, n)) and "reduction" in _words(getattr(nn, n))
]
LOSS_FUNCTIONS = [
    n for n in F.__all__ if n.endswith("loss") and "reduction" in _words(getattr(F, n))
]
OTHERS = {
    "interpolate": lambda: F.interpolate(X, scale_factor=2, mode="box"),
    "pad": lambda: F.pad(X, (1, 1), mode="box"),
    "grid_sample's mode": lambda: F.grid_sample(X, X, mode="box"),
    "grid_sample's padding_mode": lambda: F.grid_sample(X, X, padding_mode="box"),
    "a convolution's padding_mode": lambda: nn.Conv2d(1, 1, 1, padding_mode="box"),
    "a convolution's padding": lambda: nn.Conv2d(1, 1, 1, padding="box"),
    "conv2d's padding": lambda: F.conv2d(X, X, padding="box"),
    "a transposed one's": lambda: nn.ConvTranspose2d(1, 1, 1, padding_mode="reflect"),
    "EmbeddingBag": lambda: nn.EmbeddingBag(2, 2, mode="box"),
    "gelu": lambda: F.gelu(M, approximate="box"),
    "RNN": lambda: nn.RNN(2, 2, nonlinearity="box"),
    "RNNCell": lambda: nn.RNNCell(2, 2, nonlinearity="box"),
    "StochasticDepth": lambda: nn.StochasticDepth(0.1, "box"),
    "an encoder's activation": lambda: nn.TransformerEncoderLayer(4, 2, activation="box"),
    "calculate_gain": lambda: nn.init.calculate_gain("box"),
    "fans": lambda: nn.init.kaiming_uniform_(symdnn.shared(np.zeros((2, 2))), mode="box"),
    "disconnected_inputs": lambda: nn.optim.sgd(
        M.sum(), [symdnn.shared(np.zeros(2, "float32"))], disconnected_inputs="box"
    ),
    "metrics": lambda: nn.training.metrics.Metric(lambda y, t: y, kind="box"),
}  # fmt: skip


def _refused(call, *args, **words):
    with pytest.raises(OptionError) as raised:
        call(*args, **words)
    assert isinstance(raised.value, SymdnnError)
    assert isinstance(raised.value, ValueError)


@pytest.mark.parametrize("name", OTHERS)
def test_an_unknown_word(name):
    _refused(OTHERS[name])


def test_an_unknown_reduction():
    assert len(LOSSES) > 30
    assert len(LOSS_FUNCTIONS) > 15
    for name in LOSSES:
        _refused(getattr(nn, name), reduction="avg")
    for name in LOSS_FUNCTIONS:
        n = [p.default for p in _words(getattr(F, name)).values()].count(inspect.Parameter.empty)
        _refused(getattr(F, name), *[M] * n, reduction="avg")
