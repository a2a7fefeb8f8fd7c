"""Whole loops as CUDA graphs: the results of the CPU, call for call."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from tests.seeded import new_rng

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]


def floats(*shape, scale=1.0):
    return (new_rng().standard_normal(shape) * scale).astype("float32")


def on_both(build):
    made = []
    for device in ("cuda", "cpu"):
        with config.change_flags(device=device):
            made.append(build())
    return made


def test_a_gated_network_by_scan_trains_alike():
    start = [floats(12, 48, scale=0.2), floats(24, 48, scale=0.2)]

    def build():
        wx, wh = (symdnn.shared(v.copy()) for v in start)
        x, h0 = T.ftensor3("x"), T.fmatrix("h0")

        def step(v, h, c, wh):
            z = v + T.dot(h, wh)
            i, f = T.nnet.sigmoid(z[:, :12]), T.nnet.sigmoid(z[:, 12:24])
            o, g = T.nnet.sigmoid(z[:, 24:36]), T.tanh(z[:, 36:])
            c = f * c[:, :12] + i * g
            return T.concatenate([o * T.tanh(c), v[:, :12]], axis=1), c

        (h, _), _ = symdnn.scan(step, [T.dot(x, wx)], [h0, h0[:, :12]], non_sequences=[wh])
        loss = (h[-1] ** 2).mean() + h.mean()
        grads = T.grad(loss, [wx, wh])
        updates = [(p, p - np.float32(0.3) * g) for p, g in zip((wx, wh), grads, strict=True)]
        return symdnn.function([x, h0], loss, updates=updates), (wx, wh)

    (f, ps), (g, qs) = on_both(build)
    for call in range(12):
        n = 9 if call % 4 else 5
        args = floats(n, 6, 12), floats(6, 24)
        np.testing.assert_allclose(f(*args), g(*args), rtol=2e-5)
        if call == 7:
            for p, q in zip(ps, qs, strict=True):
                value = floats(*p.get_value().shape, scale=0.2)
                p.set_value(value)
                q.set_value(value)
        for p, q in zip(ps, qs, strict=True):
            np.testing.assert_allclose(p.get_value(), q.get_value(), rtol=2e-4, atol=1e-6)
    states = [p.bound.capture_state for p in f.plans()]
    assert sum("captured with its loop" in s for s in states) == 2, states


def test_positions_of_the_host_and_random_numbers():
    def build():
        x = T.fmatrix("x")
        stream = T.random.RandomStream(3)

        def step(i, acc, x):
            return acc * 0.5 + x[i] + stream.uniform(size=(4,))

        rows, updates = symdnn.scan(step, [T.arange(x.shape[0])], [x[0]], [x])
        return symdnn.function([x], rows, updates=updates)

    f, g = on_both(build)
    for call in range(8):
        value = floats(7 if call % 3 else 4, 4)
        np.testing.assert_allclose(f(value), g(value), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "words", [{"save_every_N": 4}, {"save_every_N": (2, 3)}, {"save_every_N": 4, "snapshots": 3},
              {"save_every_N": 1, "snapshots": 5}],
)  # fmt: skip
def test_loops_with_checkpoints(words):
    """Loops in loops, whose graph uses its memory again: new values in each call."""
    start = floats(24, 24, scale=0.2)

    def build():
        w = symdnn.shared(start.copy())
        x, h0 = T.ftensor3("x"), T.fmatrix("h0")
        h, _ = symdnn.scan_checkpoints(lambda v, h: T.tanh(v + T.dot(h, w)), x, h0, **words)
        cost = (h[-1] ** 2).sum()
        return symdnn.function([x, h0], [cost, *T.grad(cost, [w, x])])

    f, g = on_both(build)
    for call in range(9):
        args = floats(30 if call % 3 else 22, 6, 24), floats(6, 24)
        for ours, theirs in zip(f(*args), g(*args), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)
    states = [p.bound.capture_state for p in f.plans()]
    assert any("captured with its loop" in s for s in states), states


def test_a_loop_over_positions_is_one_graph():
    def build():
        x = T.fmatrix("x")
        body = lambda i, s: T.dot(s, x) * 0.02 + x[i]  # noqa: E731
        return symdnn.function([x], symdnn.control.fori_loop(0, x.shape[0], body, x[0]))

    f, g = on_both(build)
    for _ in range(6):
        value = floats(200, 200)
        np.testing.assert_allclose(f(value), g(value), rtol=1e-4, atol=1e-4)
    states = [p.bound.capture_state for p in f.plans()]
    assert any("captured with its loop, 200 steps" in s for s in states), states
