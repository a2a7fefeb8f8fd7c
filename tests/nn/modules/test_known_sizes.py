"""Sizes that are known by a variable's type, as arguments of layers and functions."""

import numpy as np
import pytest

import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import InputError
from symdnn.nn import functional as F
from symdnn.nn.modules.arguments import known

X = T.tensor("float32", (None, 3, 8, 8), name="x")
OPEN = T.matrix("open")


@pytest.mark.parametrize("build", [
    lambda n, m, tail: nn.Linear(n, m), lambda n, m, tail: nn.Linear(in_features=n, out_features=m),
    lambda n, m, tail: nn.Conv2d(n, n + 1, (n, n), padding=n // 2),
    lambda n, m, tail: nn.SpatialConvolution(n, m, n, n), lambda n, m, tail: nn.BatchNorm2d(n),
    lambda n, m, tail: nn.LayerNorm(tail), lambda n, m, tail: nn.LayerNorm([n, m]),
    lambda n, m, tail: nn.MaxPool2d(n), lambda n, m, tail: nn.Embedding(n, m),
    lambda n, m, tail: nn.LSTM(n, m), lambda n, m, tail: nn.View(-1, n * m),
    lambda n, m, tail: nn.MultiheadAttention(m, m // 2), lambda n, m, tail: nn.GroupNorm(n, n),
    lambda n, m, tail: nn.Upsample(size=(m, m)), lambda n, m, tail: nn.Euclidean(n, m),
])  # fmt: skip
def test_layers_take_them(build):
    found, wanted = build(X.shape[1], X.shape[2], X.shape[1:]), build(3, 8, (3, 8, 8))
    assert str(found) == str(wanted)
    shapes = [{k: v.shape for k, v in m.state_dict().items()} for m in (found, wanted)]
    assert shapes[0] == shapes[1]


def test_functions_take_them():
    n = X.shape[1]
    assert F.max_pool2d(X, n).type.shape == F.max_pool2d(X, 3).type.shape
    w = np.ones((2, 3, 3, 3), "float32")
    assert F.conv2d(X, w, stride=n).type.shape == F.conv2d(X, w, stride=3).type.shape


@pytest.mark.parametrize("build", [
    lambda n: nn.Linear(n, 3), lambda n: nn.Conv2d(3, n, 3), lambda n: nn.LayerNorm(n),
])  # fmt: skip
def test_open_sizes_are_none(build):
    with pytest.raises(InputError, match="wanted an int"):
        build(OPEN.shape[1])


def test_what_is_known():
    v = T.lvector("v")
    for value in (OPEN, OPEN.shape[0], v, v[0], X.shape, "a", None, 2.5, T.constant(2.5)):
        assert known(value) is value
    assert known([X.shape[1], (X.shape[2] * 2, OPEN.shape[0])])[0] == 3
    assert known(X.shape[2:]) == (8, 8)
    assert type(known(X.shape[1])) is int


def test_known_sizes_are_shown_as_numbers() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    assert [str(p.shape) for p in net.parameters()] == ["(8, 4)", "(8,)", "(1, 8)", "(1,)"]
    assert str(T.matrix().shape) == "ShapeVector.0"
    assert str(T.tensor("float32", (2, 3), name="x").shape) == "(2, 3)"
    count = sum(p.numel() for p in net.parameters())
    assert (str(count), f"{count:,}") == ("49", "49")
