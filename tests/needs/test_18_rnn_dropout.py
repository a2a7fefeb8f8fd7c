"""Need 18: dropout of recurrent nets is there, seeded, and repeats in one process."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.ops.nn.rnn import RNNBlock
from tests.gpu import agreement
from tests.needs.on_each_device import device  # noqa: F401

LAYERS, RATE = 3, 0.3


def loss_and_gradient(seed, train=True, rate=RATE):
    block = RNNBlock("float32", 16, LAYERS, "lstm", direction_mode="bidirectional",
                     dropout=rate, stream=seed)  # fmt: skip
    rng = np.random.default_rng(3)
    w = symdnn.shared(rng.uniform(-0.4, 0.4, block.get_param_size([4, 8])).astype("float32"))
    x, state = T.tensor3("x"), np.zeros((2 * LAYERS, 4, 16), "float32")
    y = block.apply(w, x, state, state, train=train)[0]
    cost = (y * y).sum()
    mode = symdnn.Mode(target=agreement.TARGET)
    f = symdnn.function([x], [cost, symdnn.grad(cost, w)], mode=mode)
    return [np.asarray(v) for v in f(rng.normal(size=(7, 4, 8)).astype("float32"))]


def test_the_same_seed_twice_in_one_process(device):  # noqa: F811
    first, again, other = (loss_and_gradient(seed) for seed in (4, 4, 5))
    for a, b, c in zip(first, again, other, strict=True):
        np.testing.assert_array_equal(a, b)
        assert (a != c).any()


def test_there_is_none_in_the_test_function(device):  # noqa: F811
    tested, plain = loss_and_gradient(4, train=False), loss_and_gradient(4, rate=0)
    for a, b in zip(tested, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    assert loss_and_gradient(4)[0] != pytest.approx(float(plain[0]))
