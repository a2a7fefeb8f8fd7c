"""``scan_checkpoints(snapshots=n)``: values and gradients of ``scan`` by a binomial schedule."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.errors import TypeMismatch
from symdnn.ops.control.scan_binomial import BinomialSchedule, fewest_steps
from symdnn.ops.random.random_stream import RandomStream
from tests.ops.control.test_scan_checkpoints import loop, of_scan


@cache
def best(steps, snapshots):
    """The fewest steps, by trying all places of the next snapshot."""
    if steps < 2:
        return 0
    if snapshots == 1:
        return steps * (steps - 1) // 2
    parts = range(1, steps)
    return min(m + best(steps - m, snapshots - 1) + best(m, snapshots) for m in parts)


@pytest.mark.parametrize("snapshots", [1, 2, 3, 5, 8])
def test_the_schedule_takes_the_fewest_steps_and_each_turn_begins_where_it_must(snapshots):
    for steps in range(40):
        bounds, first, slots, targets = BinomialSchedule(snapshots).reference(np.int64(steps))
        held = [*bounds[:-1], None]
        assert len(held) - 1 <= snapshots
        assert bounds[-1] == steps
        for i, turn in enumerate(reversed(range(steps))):
            at = held[slots[i]]
            for target in targets[first[i] : first[i + 1]]:
                at += 1
                held[target] = at
            assert at == turn
        made = len(targets) + (bounds[-2] if steps else 0)
        assert made == fewest_steps(steps, snapshots) == best(steps, snapshots)


@pytest.mark.parametrize("steps", [61, 7])
@pytest.mark.parametrize(("every", "snapshots"), [(1, 3), (1, 80), (4, 3)])
def test_values_and_gradients_are_those_of_scan(every, snapshots, steps):
    got, f, _ = loop(every, steps, snapshots=snapshots)
    for a, b in zip(got, of_scan(steps), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
    if steps == 61 and snapshots == 3:
        assert f.memory_report().peak < 0.2 * loop(None, steps)[1].memory_report().peak


def test_a_known_number_of_steps_states_of_all_kinds_and_a_stream():
    x, a = T.dvector("x"), T.dscalar("a")

    def compiled(words):
        stream, count = RandomStream(3), symdnn.shared(np.int64(0))

        def step(v, k, h):
            new = h * stream.uniform((), 0.5, 1.5) * a + v
            return [k + 1, new, v * a * h], {count: count + 1}

        run = symdnn.scan_checkpoints if words else symdnn.scan
        (k, h, last), updates = run(step, x, [np.int64(0), a, None], n_steps=9, **words)
        cost = h[-1] + last[-1] ** 2
        f = symdnn.function([x, a], [k[-1], cost, *symdnn.grad(cost, [x, a])], updates=updates)
        values = np.random.default_rng(1).standard_normal(9)
        return [*f(values, 0.7), *f(values, 0.7), count.get_value()]

    got = compiled({"save_every_N": 1, "snapshots": 2})
    for one, other in zip(got, compiled({}), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)
    assert got[-1] == 18


def test_second_derivatives_tangents_and_a_batch():
    x, v = T.dvector("x"), T.dvector("v")

    def cost(x, **words):
        run = symdnn.scan_checkpoints if words else symdnn.scan
        return run(lambda v, h: T.sin(h * v) + v, x, np.float64(0.3), **words)[0][-1]

    def found(**words):
        slope = symdnn.grad(cost(x, **words), x)
        both = [symdnn.grad((slope * v).sum(), x), symdnn.Rop(cost(x, **words), x, v)]
        rows = symdnn.vmap(lambda r: symdnn.grad(cost(r, **words), r))(T.outer(v, x))
        rng = np.random.default_rng(2)
        return symdnn.function([x, v], [*both, rows])(rng.normal(size=7), rng.normal(size=7))

    for a, b in zip(found(save_every_N=1, snapshots=2), found(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)


def test_a_loop_without_steps_one_without_a_state_and_one_of_unknown_length():
    x = T.dvector("x")
    words = {"save_every_N": 1, "snapshots": 2}
    h, _ = symdnn.scan_checkpoints(lambda v, h: v * h, x, np.float64(1), **words)
    f = symdnn.function([x], [h[-1], symdnn.grad(h[-1], x)])
    np.testing.assert_array_equal(f([2.0, 3.0])[1], [3, 2])
    with pytest.raises(IndexError):
        f([])
    with pytest.raises(TypeMismatch, match="with a state"):
        symdnn.scan_checkpoints(lambda v: v * v, x, None, **words)
    ends = lambda v, h: (v * h, symdnn.until(h > 3))  # noqa: E731
    with pytest.raises(TypeMismatch, match="known number of steps"):
        symdnn.scan_checkpoints(ends, x, np.float64(1), **words)
