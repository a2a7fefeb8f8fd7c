"""``scan_checkpoints``: values and gradients of ``scan``, with fewer states."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.compat.theano.names import scan_names
from symdnn.errors import OptionError, TypeMismatch
from symdnn.ops.control.scan import Scan
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
    _, few, _ = loop(16, 4 * STEPS)
    _, all_, _ = loop(None, 4 * STEPS)
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


@pytest.mark.parametrize("steps", [64, 61, 7, 5])
@pytest.mark.parametrize("kept", [1, 3, 50])
def test_the_last_segments_may_keep_their_states(kept, steps):
    got, want = loop(8, steps, keep_last=kept)[0], of_scan(steps)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.cpu
def test_kept_segments_are_not_computed_again():
    """Their backward loop has no loop of values in it; memory is between none and all."""
    _, few, _ = loop(16, 4 * STEPS)
    _, half, _ = loop(16, 4 * STEPS, keep_last=8)
    _, all_, _ = loop(None, 4 * STEPS)
    sizes = [f.memory_report().peak for f in (few, half, all_)]
    assert sizes[0] < sizes[1] < 0.75 * sizes[2], sizes

    def loops(f, backward):
        outer = [r.node.op.inner for r in f.executor.program.regions if hasattr(r, "body")]
        found = [[n.op for n in i.nodes if isinstance(n.op, Scan)] for i in outer]
        return sorted(len(ops) for ops in found if any("grad" in str(o) for o in ops) == backward)

    assert loops(few, True) == [2]
    assert loops(half, True) == [1, 2]
    assert loops(half, False) == [1, 1]


def test_kept_segments_have_second_derivatives_and_collected_values():
    x, h = T.dvector("x"), T.dscalar("h")

    def step(v, before):
        new = T.sin(before * v)
        return new, new * v

    def built(kept):
        if kept is None:
            (a, b), _ = symdnn.scan(step, x, [h, None])
            a, b = a[-1], b[-1]
        else:
            words = {"save_every_N": 3, "keep_last": kept}
            (a, b), _ = symdnn.scan_checkpoints(step, x, [h, None], **words)
            a, b = a[-1], b[-1]
        cost = a * b
        slope = symdnn.grad(cost, x)
        curve = symdnn.grad((slope**2).sum(), [x, h])
        return symdnn.function([x, h], [cost, slope, *curve])

    points = np.linspace(0.5, 1.5, 10), 0.7
    want = built(None)(*points)
    for kept in (0, 2):
        for a, b in zip(built(kept)(*points), want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


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
    for words in ({"keep_last": -1}, {"keep_last": 1, "snapshots": 2},
                  {"keep_last": 1, "save_every_N": (2, 2)}):  # fmt: skip
        with pytest.raises(OptionError, match="keep_last"):
            symdnn.scan_checkpoints(lambda v, a: v + a, x, np.float64(0), **words)
    stream = RandomStream(1)
    with pytest.raises(OptionError, match="updates"):
        symdnn.scan_checkpoints(
            lambda v, a: v + a * stream.uniform(), x, np.float64(0), keep_last=1
        )
    with pytest.raises(OptionError, match="n_steps"):
        symdnn.scan_checkpoints(lambda v: v, None, np.float64(0))
    with pytest.raises(TypeMismatch, match="taps"):
        symdnn.scan_checkpoints(
            lambda v, a, b: v + a + b, x, {"initial": T.zeros(2), "taps": [-1, -2]}
        )
