"""Functions of ``symdnn.jit`` on a card: what stays there, and what is passed on."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from tests.seeded import new_rng

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]


def on_host(value):
    """An array on the device as NumPy's."""
    assert hasattr(value, "__cuda_array_interface__")
    return np.asarray(value.get() if hasattr(value, "get") else value)


def test_results_stay_on_the_device_in_memory_of_their_own():
    x = new_rng().normal(size=5).astype("float32")
    with config.change_flags(device="cuda"):
        f = symdnn.jit(lambda x: {"y": x * 2})
        kept = [f(x + k)["y"] for k in range(4)]  # captured from the third call on
        again = f(kept[0])["y"]
    for k, y in enumerate(kept):
        np.testing.assert_allclose(on_host(y), 2 * (x + k), rtol=1e-6)
    np.testing.assert_allclose(on_host(again), 4 * x, rtol=1e-6)


def test_parameters_as_a_tree_train_on_the_device():
    rng = new_rng()
    x, w = rng.normal(size=(64, 3)).astype("float32"), np.float32([1, -2, 3])

    def loss(p, x, y):
        return ((T.dot(x, p["w"]) + p["b"] - y) ** 2).mean()

    def step(p, x, y):
        value, slope = symdnn.value_and_grad(loss)(p, x, y)
        return {k: p[k] - 0.1 * slope[k] for k in p}, value

    with config.change_flags(device="cuda"):
        compiled = symdnn.jit(step)
        p = {"w": np.zeros(3, "float32"), "b": np.zeros((), "float32")}
        for _ in range(200):
            p, value = compiled(p, x, x @ w + 1)
    assert compiled.traces == 1
    np.testing.assert_allclose(on_host(p["w"]), w, atol=1e-3)
    assert on_host(value) < 1e-5
