"""States of loops that a step writes in place: which they are, their values, and near misses."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import control
from symdnn.graph.evaluate import evaluate

ROWS, COLUMNS = 4096, 16  # more bytes than states of which many steps run at once
LINES = T.fmatrix("lines")
BUFFER = T.fmatrix("buffer")
NUMBER = np.float32(0)


def by_sort(v):
    """A value that no loop computes which is compiled as a whole."""
    return T.sort(v, axis=0)


def ring(i, c):
    """A buffer of the last rows, read whole."""
    b, s = c
    b = T.set_subtensor(b[i % 3], by_sort(LINES[i]))
    return b, s + b[:8].sum()


def cache(i, c):
    """Two buffers, of which parts are written; what was there is read before."""
    k, v, s = c
    before = k[i] * 2 + k[:4].sum(axis=0)
    k = T.set_subtensor(k[i], by_sort(LINES[i]))
    v = T.inc_subtensor(v[i : i + 2], before)
    return k, v, s + (k[: i + 1] * v[: i + 1]).sum()


def old_and_new(i, c):
    """The old value is kept by another state."""
    b, _ = c
    return T.set_subtensor(b[i], by_sort(LINES[i])), b


def twice(i, c):
    """Both states are one value."""
    b, _ = c
    new = T.set_subtensor(b[i], by_sort(LINES[i]))
    return new, new


def turned(i, c):
    """A state is a view of another one."""
    b, _ = c
    new = T.set_subtensor(b[i], by_sort(LINES[i]))
    return new, new[::-1]


def swapped(i, c):
    """The states take turns."""
    a, b = c
    return b, T.set_subtensor(a[i], by_sort(LINES[i]))


def over(i, c):
    """Written twice, and scaled as a whole."""
    b, s = c
    b = T.set_subtensor(T.set_subtensor(b[i], by_sort(LINES[i]))[i + 1], 1.0) * 0.5
    return b, s + b[i].sum()


#: Body, its states behind the first buffer, states that are written in place.
LOOPS = [
    (ring, (NUMBER,), 1), (cache, (BUFFER + 1, NUMBER), 2), (over, (NUMBER,), 1),
    (old_and_new, (BUFFER * 2,), 0), (twice, (BUFFER,), 0), (turned, (BUFFER,), 0),
    (swapped, (BUFFER + 1,), 0),
]  # fmt: skip
VALUES = {
    LINES: np.random.default_rng(0).random((7, COLUMNS), "float32"),
    BUFFER: np.random.default_rng(1).random((ROWS, COLUMNS), "float32"),
}


def in_place(f):
    return {id(old) for p in f.executor.plans() for old in p.memory.carried.values()}


@pytest.mark.parametrize(("body", "more", "count"), LOOPS, ids=lambda x: getattr(x, "__name__", ""))
def test_a_step_writes_what_nothing_else_reads(body, more, count):
    found = control.fori_loop(0, LINES.shape[0], body, (BUFFER, *more))
    f = symdnn.function([LINES, BUFFER], list(found))
    wanted = evaluate(list(found), VALUES)
    kept = VALUES[BUFFER].copy()
    for _ in range(4):  # later calls run compiled steps
        for got, want in zip(f(VALUES[LINES], VALUES[BUFFER]), wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5)
    np.testing.assert_array_equal(VALUES[BUFFER], kept)
    assert len(in_place(f)) == count


@pytest.mark.cpu
def test_while_loops_scans_and_gradients_keep_their_values():
    def more(c):
        return c[1] < 5

    def step(c):
        b, i = c
        return T.set_subtensor(b[i], by_sort(LINES[i])), i + 1

    whole, _ = control.while_loop(more, step, (BUFFER, 0))
    (last, _), rows = control.scan(
        lambda c, x: ((T.set_subtensor(c[0][c[1]], by_sort(x)), c[1] + 1), c[0][0]),
        (BUFFER, 0), LINES,
    )  # fmt: skip
    slope = symdnn.grad((last**2).sum(), [BUFFER, LINES])
    for outs, count in (([whole], 1), ([last, rows], 1), (slope, None)):
        f = symdnn.function([LINES, BUFFER], outs, on_unused_input="ignore")
        for _ in range(3):
            found = f(VALUES[LINES], VALUES[BUFFER])
        for got, want in zip(found, evaluate(outs, VALUES), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5)
        assert count is None or len(in_place(f)) == count


def test_results_of_two_calls_are_two_arrays():
    out = control.fori_loop(0, LINES.shape[0], ring, (BUFFER, NUMBER))[0]
    f = symdnn.function([LINES, BUFFER], out)
    first = f(VALUES[LINES], VALUES[BUFFER])
    again = np.array(first)
    f(VALUES[LINES] + 1, VALUES[BUFFER])
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(f(VALUES[LINES][:0], VALUES[BUFFER]), VALUES[BUFFER])


def test_small_states_are_left_to_many_steps_at_once():
    small = BUFFER[:8]
    f = symdnn.function([LINES, BUFFER], control.fori_loop(0, 3, ring, (small, NUMBER))[0])
    f(VALUES[LINES], VALUES[BUFFER])
    assert not in_place(f)
