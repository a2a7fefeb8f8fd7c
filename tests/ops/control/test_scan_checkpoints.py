"""``scan_checkpoints``: values and gradients of ``scan``, with fewer states."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.compat.theano.names import scan_names
from symdnn.errors import OptionError, TypeMismatch
from symdnn.ops.random.random_stream import RandomStream

STEPS, BATCH, WIDE = 64, 16, 32


def loop(levels, steps=STEPS, **words):
    rng = np.random.default_rng(0)
    w = symdnn.shared(rng.standard_normal((WIDE, WIDE)) / WIDE**0.5)
    x, h = T.dmatrix("x"), T.dmatrix("h")

    def step(v, before):
        return T.tanh(T.dot(before, w) + v)

    if levels is None:
        found = symdnn.scan(step, x, h)[0]
    else:
        found = symdnn.scan_checkpoints(step, x, h, save_every_N=levels, **words)[0]
    cost = (found[-1] ** 2).sum()
    f = symdnn.function([x, h], [cost, found[-1], *symdnn.grad(cost, [w, x, h])])
    points = rng.standard_normal((steps, WIDE)), rng.standard_normal((BATCH, WIDE))
    return f(*points), f, found


@cache
def of_scan(steps):
    return loop(None, steps)[0]


@pytest.mark.parametrize("steps", [64, 61, 7])
@pytest.mark.parametrize("levels", [1, 8, (4, 4), (2, 3, 4)])
def test_values_and_gradients_are_those_of_scan(levels, steps):
    got, want = loop(levels, steps)[0], of_scan(steps)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def test_memory_falls_and_the_loops_stay_in_each_other():
    _, few, _ = loop(8)
    _, all_, _ = loop(None)
    assert few.memory_report().peak < 0.4 * all_.memory_report().peak
    inside = [line for line in few.lowering_report().loops if line.startswith("    ")]
    assert len(inside) >= 2


def test_results_are_those_after_each_part_as_in_theano():
    x = T.dvector("x")
    h, updates = symdnn.scan_checkpoints(
        lambda v, a: (a + v, v * 2), x, [np.float64(0), None], save_every_N=3
    )
    assert not updates
    sums, twice = symdnn.function([x], h)(np.arange(7.0))
    np.testing.assert_array_equal(sums, [3, 15, 21])
    np.testing.assert_array_equal(twice, [4, 10, 12])
    old, _ = scan_names.scan_checkpoints(lambda v, a: a + v, x, np.float64(0), save_every_N=3)
    np.testing.assert_array_equal(symdnn.function([x], old)(np.arange(6.0)), [3, 15])


def test_a_power_by_a_number_of_steps_and_a_non_sequence():
    a = T.dvector("a")
    h, _ = symdnn.scan_checkpoints(
        lambda before, v: before * v, None, T.ones_like(a), a, n_steps=6, save_every_N=4
    )
    f = symdnn.function([a], [h, symdnn.grad(h[-1].sum(), a)])
    values, slope = f([2.0, 3.0])
    np.testing.assert_array_equal(values, [[16, 81], [64, 729]])
    np.testing.assert_array_equal(slope, [6 * 2**5, 6 * 3**5])


def test_draws_are_those_of_the_forward_pass():
    x = T.dvector("x")
    stream = RandomStream(3)

    def step(v, before):
        return before * stream.uniform((), 0.5, 1.5) + v

    h, updates = symdnn.scan_checkpoints(step, x, np.float64(0), save_every_N=4)
    slope = symdnn.grad(h[-1], x)
    f = symdnn.function([x], [h[-1], slope], updates=updates)
    values = np.random.default_rng(1).standard_normal(8)
    for _ in range(2):
        y, g = f(values)
        np.testing.assert_allclose(y, (g * values).sum(), rtol=1e-12)
        np.testing.assert_allclose(g[-1], 1)


def test_errors():
    x = T.dvector("x")
    for wrong in (0, (), (4, 0), 2.5):
        with pytest.raises((OptionError, TypeError), match="save_every_N|float"):
            symdnn.scan_checkpoints(lambda v: v, x, None, save_every_N=wrong)
    for wrong in (0, 2.5):
        with pytest.raises(OptionError, match="snapshots"):
            symdnn.scan_checkpoints(lambda v: v, x, None, snapshots=wrong)
    with pytest.raises(OptionError, match="n_steps"):
        symdnn.scan_checkpoints(lambda v: v, None, np.float64(0))
    with pytest.raises(TypeMismatch, match="taps"):
        symdnn.scan_checkpoints(
            lambda v, a, b: v + a + b, x, {"initial": T.zeros(2), "taps": [-1, -2]}
        )
