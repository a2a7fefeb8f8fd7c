"""A loop that another one contains is not run: it fires, near misses stay, values are the same."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import control
from symdnn.compile.program.mode import Mode
from symdnn.ops.control.scan import Scan


def loops(f):
    """The loops of a compiled function."""
    return [n for n in f.fgraph.nodes if isinstance(n.op, Scan)]


def step(v, x):
    return T.sin(v) * x


def test_value_and_tangent_are_one_loop(rng):
    x = rng.uniform(0.5, 1, 3)

    def f(x):
        return control.fori_loop(0, 6, lambda i, v: step(v, x), x)

    g = symdnn.jit(lambda x: symdnn.jvp(f, (x,), (x,)))
    value, slope = g(x)
    assert len(loops(g.compiled(x))) == 1
    plain = symdnn.jit(lambda x: symdnn.jvp(f, (x,), (x,)), mode=Mode().excluding("scan_contained"))
    assert len(loops(plain.compiled(x))) == 2
    for a, b in zip((value, slope), plain(x), strict=True):
        np.testing.assert_array_equal(a, b)


def test_loops_that_end_by_themselves_and_collect(rng):
    x, n = T.dvector("x"), T.lscalar("n")

    def small(v):
        return [step(v, x), v.sum()], symdnn.until(v.sum() < 0.1)

    def large(v, w):
        return [step(v, x), w + v, (v * w).sum()], symdnn.until(v.sum() < 0.1)

    (a, total), _ = symdnn.scan(small, outputs_info=[x, None], n_steps=n)
    (b, c, product), _ = symdnn.scan(large, outputs_info=[x, x * 2, None], n_steps=n)
    outputs = [a, total, b[-1], c, product]
    f = symdnn.function([x, n], outputs)
    g = symdnn.function([x, n], outputs, mode=Mode().excluding("scan_contained"))
    assert (len(loops(f)), len(loops(g))) == (1, 2)
    point = rng.uniform(0.3, 0.6, 4)
    for steps in (1, 3, 40):
        for found, wanted in zip(f(point, steps), g(point, steps), strict=True):
            np.testing.assert_array_equal(found, wanted)


NEAR = {
    "another start": (lambda v, x: step(v, x), lambda x: x + 1, 5),
    "another step": (lambda v, x: T.cos(v) * x, lambda x: x, 5),
    "another number": (lambda v, x: step(v, x), lambda x: x, 6),
}


@pytest.mark.parametrize("how", NEAR)
def test_near_misses(how, rng):
    body, start, steps = NEAR[how]
    x = T.dvector("x")
    a, _ = symdnn.scan(lambda v: body(v, x), outputs_info=[start(x)], n_steps=steps)
    (b, c), _ = symdnn.scan(lambda v, w: [step(v, x), w + v], outputs_info=[x, x * 2], n_steps=5)
    f = symdnn.function([x], [a[-1], b[-1], c[-1]])
    assert len(loops(f)) == 2
    point = rng.uniform(0.3, 0.6, 4)
    v = w = point
    w = 2 * point
    for _ in range(5):
        v, w = np.sin(v) * point, w + v
    np.testing.assert_allclose(f(point)[1:], [v, w])


def test_a_loop_that_reads_the_other_one_stays(rng):
    x = T.dvector("x")
    a, _ = symdnn.scan(lambda v: step(v, x), outputs_info=[x], n_steps=5)
    start = a[-1]
    (b, c), _ = symdnn.scan(lambda v, w: [step(v, x), w + v], outputs_info=[x, start], n_steps=5)
    f = symdnn.function([x], [start, b[-1], c[-1]])
    point = rng.uniform(0.3, 0.6, 4)
    v = point
    for _ in range(5):
        v = np.sin(v) * point
    found = f(point)
    np.testing.assert_allclose(found[0], v)
    np.testing.assert_allclose(found[1], v)
