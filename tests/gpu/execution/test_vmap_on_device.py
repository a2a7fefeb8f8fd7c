"""vmap on a GPU: values of the CPU, random numbers too, with captured calls and without."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.ops.random.random_stream import RandomStream
from symdnn.transforms.vectorize import vmap

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]


def rand(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def network(x, y):
    """Gradients of each example of a network with a convolution."""
    w = symdnn.shared(rand(4, 1, 3, 3), name="w")
    m = symdnn.shared(rand(4 * 36, 5, seed=1) * np.float32(0.1), name="m")

    def of_one(v, label):
        h = T.tanh(T.nnet.conv2d(v.dimshuffle("x", 0, 1, 2), w))
        cost = -T.nnet.logsoftmax(h.flatten().dot(m), axis=0)[label]
        return symdnn.grad(cost, [w, m])

    return vmap(of_one)(x, y)


def dropped(x, y):
    stream = RandomStream(4)

    def of_one(v, label):
        kept = T.nnet.dropout(v, 0.5, stream)
        return symdnn.grad((kept**2).sum() * label, v), kept

    return vmap(of_one, randomness="different")(x, y)


def ended_alone(x, y):
    def of_one(v, label):
        start = abs(v).sum() / 100 + 1
        values, _ = symdnn.scan(
            lambda a: (a * start, symdnn.until(a * start > 5)), outputs_info=[start], n_steps=40
        )
        return symdnn.ifelse(label > 1, values[-1], -start), values.shape[0]

    return vmap(of_one)(x, y)


@pytest.mark.parametrize("build", [network, dropped, ended_alone])
@pytest.mark.parametrize("declared", [True, False])
def test_a_vmap_gives_what_the_cpu_gives(build, declared):
    values, labels = rand(6, 1, 8, 8), np.array([0, 1, 2, 3, 4, 1])
    found = []
    for device in ("cpu", "cuda"):
        with config.change_flags(device=device):
            x = T.TensorType("float32", values.shape if declared else (None,) * 4)("x")
            y = T.lvector("y")
            f = symdnn.function([x, y], list(build(x, y)))
            found.append([f(values, labels) for _ in range(3)])
    for wanted, got in zip(*found, strict=True):
        for a, b in zip(got, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


def test_a_hessian():
    w = T.fvector("w")
    cost = T.tanh(T.dot(rand(30, 12), w)).sum() ** 2
    found = []
    for device in ("cpu", "cuda"):
        with config.change_flags(device=device):
            found.append(symdnn.function([w], symdnn.hessian(cost, w))(rand(12) / 4))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-3, atol=1e-3)
