"""Loops of ``symdnn.control`` and scans of associative functions: the results of the CPU."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import control
from symdnn.config import config
from symdnn.graph.values.tree import flatten
from tests.seeded import new_rng

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]


def on_both(f, *args):
    """The leaves of the results on the device, in three calls, and on the CPU."""
    with config.change_flags(device="cuda"):
        compiled = symdnn.jit(f)
        found = [flatten(compiled(*args))[0] for _ in range(3)]
    with config.change_flags(device="cpu"):
        wanted = flatten(symdnn.jit(f)(*args))[0]
    for leaves in found:
        for a, b in zip(leaves, wanted, strict=True):
            np.testing.assert_allclose(
                np.asarray(a.get() if hasattr(a, "get") else a), b, rtol=2e-5, atol=1e-6
            )


def floats(*shape):
    return new_rng().uniform(0.2, 0.9, shape).astype("float32")


def test_loops_of_known_and_unknown_length():
    def body(i, v):
        return {"h": T.tanh(T.dot(v["h"], v["w"])) + i * 0.01, "w": v["w"]}

    def known(h, w, n):
        return control.fori_loop(0, n, body, {"h": h, "w": w})["h"]

    def unknown(h, w):
        more = lambda v: (v[0] ** 2).sum() < 50  # noqa: E731
        return control.while_loop(more, lambda v: (v[0] * 1.1 + T.dot(v[0], w), v[1] + 1), (h, 0))

    h, w = floats(4, 8), floats(8, 8) / 8
    on_both(known, h, w, 7)
    on_both(symdnn.grad(lambda h, w: known(h, w, 5).sum(), (0, 1)), h, w)
    on_both(unknown, h, w)
    on_both(lambda h, w: symdnn.jvp(lambda h: unknown(h, w)[0], (h,), (h,))[1], h, w)


def test_choices():
    def choose(x, k):
        by_sign = lambda x: control.cond(x[0] > 0, T.exp, T.neg, x)  # noqa: E731
        return control.switch(k, [T.sin, T.cos, by_sign], x)

    for k in range(3):
        on_both(choose, floats(5), k)
        on_both(symdnn.grad(lambda x, k: choose(x, k).sum()), floats(5), k)


@pytest.mark.parametrize("axis", [0, 1])
def test_prefixes(axis):
    def decay(x, y):
        return x[0] * y[0], y[0] * x[1] + y[1]

    def states(a, b):
        return control.associative_scan(decay, (a, b), axis=axis)[1]

    a, b = floats(6, 40, 8), floats(6, 40, 8)
    on_both(states, a, b)
    on_both(symdnn.grad(lambda a, b: (states(a, b) ** 2).sum(), (0, 1)), a, b)
    fn = lambda x, y: T.logaddexp(x, y)  # noqa: E731
    on_both(lambda a: control.associative_scan(fn, a, axis=axis, reverse=True), a)
