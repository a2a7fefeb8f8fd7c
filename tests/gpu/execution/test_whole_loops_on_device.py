"""Loops of small steps as one kernel on a device: the results of the steps one by one on a CPU."""

import numpy as np
import pytest

import symdnn
from symdnn import control
from symdnn.config import config
from symdnn.graph.values.tree import flatten
from tests.cpu.steps.drawn_loops import drawn
from tests.seeded import new_rng

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]


def on_both(make, *args, tolerance=1e-8):
    """Compare the leaves of three calls on the device with those of the CPU; how loops ran."""
    with config.change_flags(**{"device": "cuda", "gpu.whole_loops": "always"}):
        f = symdnn.jit(make())
        found = [flatten(f(*args))[0] for _ in range(3)]
        loops = f.compiled(*args).lowering_report().loops
    with config.change_flags(**{"device": "cpu", "cpu.compile": "never"}):
        wanted = flatten(symdnn.jit(make())(*args))[0]
    for leaves in found:
        for a, b in zip(leaves, wanted, strict=True):
            got = np.asarray(a.get() if hasattr(a, "get") else a)
            np.testing.assert_allclose(got, np.asarray(b), tolerance, tolerance)
    return loops


def compare(kind, seed, dtype, gradient):
    def make():
        d = drawn(seed, dtype, gradient)
        return d.loss(kind) if gradient else d.loop(kind)

    d = drawn(seed, dtype, gradient)
    leaves = d.leaves[1:] if gradient else d.leaves
    tolerance = 1e-8 if dtype == "float64" else 3e-3
    loops = on_both(make, leaves, d.xs, d.w, tolerance=tolerance)
    outer = [line for line in loops if not line.startswith("    ")]
    assert outer
    assert all("(runs as one kernel" in line for line in outer), loops


@pytest.mark.parametrize(
    ("kind", "seed", "dtype", "gradient"),
    [("fori", 8, "float64", False), ("while", 3, "float32", False), ("scan", 9, "float64", True),
     ("fori", 4, "float64", True)],
)  # fmt: skip
def test_drawn_bodies(kind, seed, dtype, gradient):
    compare(kind, seed, dtype, gradient)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_many_drawn_bodies(seed):
    for kind in ("fori", "while", "scan"):
        for dtype, gradient in (("float32", False), ("float64", True)):
            compare(kind, seed, dtype, gradient)


def test_sorts_and_a_condition_with_what_is_around():
    """The function is one kernel from the second call on."""
    r = new_rng()
    for n, dtype in ((7, "float32"), (33, "float64")):

        def make(n=n):
            tensor = symdnn.tensor

            def step(v):
                h, places, k = v
                h = tensor.sort(h[::-1] * 0.75 + 0.1 * tensor.cos(h))
                return h, places + tensor.argsort(tensor.cos(h) * k), k + 1

            more = lambda v: ((v[0] ** 2).sum() > 0.01) & (v[2] < 40)  # noqa: E731

            def whole(x):
                h, places, k = control.while_loop(more, step, (x - x.mean(), tensor.arange(n), 0))
                return h, places, k, tensor.topk_and_argtopk(h, 3), h.sum() / n

            return whole

        loops = on_both(make, r.normal(size=n).astype(dtype), tolerance=1e-4)
        assert "(runs as one kernel with all around it)" in loops[0]


def test_sizes_of_warps_and_blocks():
    """Sums and products that fewer, as many and more threads share than a warp and a block have."""
    r = new_rng()
    for n in (1, 2, 31, 33, 64, 200):
        w = r.normal(size=(n, n)) / n**0.5

        def make(w=w):
            def step(i, v):
                h, total = v
                h = symdnn.tensor.tanh(symdnn.tensor.dot(h, w) + h.mean())
                return h, total + (h**2).sum()

            return lambda h: control.fori_loop(0, 20, step, (h, 0.0))

        loops = on_both(make, r.normal(size=n))
        assert "(runs as one kernel" in loops[0] or n == 200


def test_many_steps_of_a_condition():
    def make():
        """The longest chain of Collatz's below 90, whose lengths differ."""

        def length(k):
            step = lambda v: control.cond(  # noqa: E731
                symdnn.tensor.eq(v[0] % 2, 0), lambda a, c: (a // 2, c + 1),
                lambda a, c: (3 * a + 1, c + 1), *v,
            )  # fmt: skip
            return control.while_loop(lambda v: v[0] > 1, step, (k, 0))[1]

        best = lambda i, most: symdnn.tensor.maximum(most, length(i))  # noqa: E731
        return lambda n: control.fori_loop(1, n, best, 0)

    (loop, _) = on_both(make, np.int64(90))
    assert "(runs as one kernel" in loop
