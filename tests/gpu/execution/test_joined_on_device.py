"""Functions with loops as one graph on a device: the results of the CPU, call for call."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import control
from symdnn.config import config
from tests.seeded import new_rng

pytestmark = [pytest.mark.gpu]


def floats(*shape):
    return (new_rng().standard_normal(shape) / 2).astype("float32")


def products():
    """Prefixes of an unknown number of products of matrices, and a gradient."""
    x = T.ftensor3("x")
    found = control.associative_scan(lambda a, b: T.matmul(b, a), x)
    return [x], [found, symdnn.grad((found**2).sum(), x)], floats(200, 3, 3)


def turns():
    """Prefixes of products of complex numbers, last first, along the second axis."""
    x = T.ftensor3("x")

    def both(a, b):
        return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]

    found = control.associative_scan(both, (x[0], x[1]), reverse=True, axis=1)
    return [x], [*found, symdnn.grad(found[0].sum() - found[1][0, 0], x)], floats(2, 3, 77)


def sorts():
    x = T.fmatrix("x")
    rows, _ = symdnn.scan(lambda v, c: T.sort(c * 0.5 + v), [x], [x[0]])
    return [x], [rows[:, :3] * 2, rows[-1]], floats(12, 40)


def short():
    x = T.fvector("x")
    return [x], [control.fori_loop(0, 3, lambda i, v: v * 0.5 + i, x) + 1], floats(50)


def network():
    x, w = T.ftensor3("x"), symdnn.shared(floats(16, 16))
    h, _ = symdnn.scan(lambda v, h: T.tanh(v + T.dot(h, w)), [x], [x[0] * 0])
    loss = (h**2).mean()
    return [x], [loss, h[-1], *T.grad(loss, [x, w])], floats(9, 8, 16)


@pytest.mark.parametrize("whole", ["never", "always"])
@pytest.mark.parametrize("build", [products, turns, sorts, short, network])
def test_numbers_are_those_of_the_cpu(cuda, build, whole):
    inputs, outputs, value = build()
    g = symdnn.function(inputs, outputs, mode=symdnn.Mode(target="cpu"))
    with config.change_flags(**{"gpu.whole_loops": whole}):
        own = [symdnn.Out(v, borrow=True) for v in outputs]
        f = symdnn.function(inputs, own, mode=symdnn.Mode(target="cuda"))
        memory = cuda.memory.upload(value, None)
        place = cuda.lend(memory)
        for call in range(12):
            with cuda.exclusive():
                cuda.memory.copy_in(value * np.float32(1 - 0.02 * call), memory)
            wanted = g(value * np.float32(1 - 0.02 * call))
            for a, b in zip(f(place), wanted, strict=True):
                np.testing.assert_allclose(np.asarray(a.get()), b, rtol=2e-3, atol=1e-4)
        states = [p.bound.capture_state for p in f.plans()]
    assert "captured with the function's loops" in states, states
