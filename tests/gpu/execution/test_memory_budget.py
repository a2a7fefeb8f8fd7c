"""A bound on memory, on the emulated device."""

from __future__ import annotations

import numpy as np

import symdnn
import symdnn.tensor as T
from tests.seeded import new_rng

CUDA = symdnn.Mode(target="cuda:sm_90").excluding("cudnn")


def network(weights, **words):
    """A network whose layers all read the input, with the gradients of its weights."""
    x = h = T.fmatrix("x")
    ws = [symdnn.shared(w) for w in weights]
    for w in ws:
        h = T.nnet.softmax(h * w) * 9 + x
    cost = (h**2).sum()
    return symdnn.function([x], [cost, *T.grad(cost, ws)], mode=CUDA, **words)


def test_copies_stay_before_and_behind_the_graph(fake_device):
    """One in the middle of the segment would keep it from being captured."""
    rng = new_rng()
    x = rng.standard_normal((64, 8)).astype("float32")
    weights = rng.standard_normal((7, 8)).astype("float32")
    plain = network(weights)
    plain(x)
    whole = plain.plans()[0].bound.memory.arena_bytes
    bounded = network(weights, memory_budget=int(whole * 0.5))
    for _ in range(4):
        for a, b in zip(bounded(x), plain(x), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    (plan,) = bounded.plans()
    assert "nodes run again" in str(plan.bound.spec.recomputed)
    assert plan.bound.capture_state.startswith("captured")
