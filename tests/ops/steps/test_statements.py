"""Statements of whole loops: in what order values lie in memory, and where states are written."""

import itertools

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import control
from symdnn.config import config
from symdnn.cpu.execution import whole_loop
from symdnn.ops.steps.statements import Map, Repeat

pytestmark = pytest.mark.cpu


@pytest.fixture(autouse=True)
def _always():
    with config.change_flags(**{"cpu.compile": "always"}):
        yield


@pytest.fixture
def programs(monkeypatch):
    """The programs of the functions that are compiled."""
    found = []
    lower = whole_loop.lowered_loop

    def noted(*args):
        made = lower(*args)
        found.append(made[0])
        return made

    monkeypatch.setattr(whole_loop, "lowered_loop", noted)
    return found


def _inside(program):
    """What maps inside of the loops read and write, of more than one element."""
    maps = [s for s in program.statements() if isinstance(s, Map)]
    views = [v for s in maps for v in (*s.reads, *s.writes)]
    return [v for v in views if v.shape != () and any(n.startswith("step") for n, _ in v.moves)]


@pytest.mark.parametrize("pattern", [(1, 0, 2), (2, 0, 1), (2, 1, 0)])
def test_a_value_that_loops_alone_read_lies_in_the_order_of_their_steps(programs, pattern):
    def last(c, x):
        return control.scan(lambda c, e: (c * e, None), c, T.exp(x).dimshuffle(*pattern))[0]

    x = np.random.default_rng(0).normal(size=(4, 3, 5))
    f = symdnn.jit(symdnn.value_and_grad(lambda c, x: (last(c, x) ** 2).sum()))
    c = np.linspace(1, 2, x.size // x.shape[pattern[0]]).reshape([x.shape[d] for d in pattern[1:]])
    for _ in range(2):
        value, slope = f(c, x)
    factor = np.exp(2 * x.sum(axis=pattern[0])).transpose(np.argsort(np.argsort(pattern[1:])))
    np.testing.assert_allclose(value, (c**2 * factor).sum())
    np.testing.assert_allclose(slope, 2 * c * factor)
    read = [v for v in _inside(programs[-1]) if v.base.startswith("b")]
    assert read
    if pattern[-1] == 2:  # the other dimensions keep their order
        assert all(v.steps[-1] == 8 for v in read)
    firsts = {f for v in read for _, f in v.moves}
    assert firsts == {8 * x.size // x.shape[pattern[0]], -8 * x.size // x.shape[pattern[0]]}


def test_a_value_that_is_read_in_another_way_lies_in_its_own_order(programs):
    def both(x):
        y = T.exp(x)
        return control.scan(lambda c, e: (T.sin(c + e), None), x[:, 0] * 0, y.T)[0], y.sum(axis=1)

    x = np.random.default_rng(0).normal(size=(4, 3))
    f = symdnn.jit(both)
    for _ in range(2):
        found = f(x)
    c = 0 * x[:, 0]
    for e in np.exp(x).T:
        c = np.sin(c + e)
    np.testing.assert_allclose(found, [c, np.exp(x).sum(1)])
    (factor,) = {f for v in _inside(programs[-1]) for _, f in v.moves if v.base.startswith("b")}
    assert factor == 8


def _copies(program):
    """How many maps inside of the loop only copy."""
    (loop,) = [s for s in program.statements() if isinstance(s, Repeat) and s.count is not None]
    return sum(isinstance(s, Map) and not s.program.body for s in (*loop.body, *loop.after))


def _swapped(u, v):
    return T.sin(u) + v, T.cos(v) * u


def _turned(u, v):
    return T.sin(u[::-1]) + v, T.cos(v)


def _turned_after(u, v):
    return T.cos(u), T.sin(v[::-1]) + u


def _both_turned(u, v):
    return T.sin(u[::-1]) + v, T.cos(v[::-1]) * u


def _crossed(u, v):
    return T.cos(v), T.sin(u) + v


def _both_kept(u, v):
    w = T.sin(u) * v
    return w, w + 1


def _check_loop(programs, step, size, count):
    """Five steps from two vectors: the values, and the copies in the program of the loop."""
    f = symdnn.jit(lambda u, v: control.fori_loop(0, 5, lambda i, s: step(*s), (u, v)))
    u, v = np.random.default_rng(0).normal(size=(2, size))
    for _ in range(2):
        found = f(u, v)
    for _ in range(5):
        u, v = (w.eval() for w in step(T.constant(u), T.constant(v)))
    np.testing.assert_allclose(found, (u, v))
    assert _copies(programs[-1]) == count


@pytest.mark.parametrize(
    ("step", "count", "maps"),
    [
        (_swapped, 0, 1), (_crossed, 0, 1), (_both_kept, 0, 1), (_turned, 1, 1),
        (_turned_after, 1, 1), (_both_turned, 2, 2),
    ],
)  # fmt: skip
def test_states_are_written_where_they_are_kept(programs, step, count, maps):
    """Only those that are read in another order are copied, though one map makes both."""
    _check_loop(programs, step, 7, count)
    (loop,) = [
        s for s in programs[-1].statements() if isinstance(s, Repeat) and s.count is not None
    ]
    assert sum(isinstance(s, Map) and bool(s.program.body) for s in loop.body) == maps


def _rotated(order):
    """A step of three matrices, each of the one before it; in ``order`` in the program."""

    def step(*states):
        after = {k: T.sin(states[k - 1]) + states[k] * (k + 1) for k in order}
        return tuple(after[k] for k in range(3))

    return step


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("flipped", [None, 0, 1, 2])
def test_states_of_one_map_are_written_in_any_order(programs, order, flipped):
    """Each where it is kept; one of them is read in another order, too, and copied."""
    rotated = _rotated(order)

    def step(i, s):
        new = list(rotated(*s))
        if flipped is not None:
            new[flipped - 1] = new[flipped - 1] + s[flipped].T
        return tuple(new)

    f = symdnn.jit(lambda *s: control.fori_loop(0, 4, step, s))
    states = np.random.default_rng(0).normal(size=(3, 4, 4))
    for _ in range(2):
        found = f(*states)
    for _ in range(4):
        new = [np.sin(states[k - 1]) + states[k] * (k + 1) for k in range(3)]
        if flipped is not None:
            new[flipped - 1] = new[flipped - 1] + states[flipped].T
        states = new
    np.testing.assert_allclose(found, states)
    assert _copies(programs[-1]) == (flipped is not None)


def test_a_part_of_a_state_is_written_where_it_is_kept(programs):
    def step(u, v):
        inner = T.cos(v[1:-1]) * u[1:-1]
        return T.set_subtensor(u[1:-1], (u[:-2] + u[2:]) / 2 + inner), T.set_subtensor(
            v[1:-1], inner
        )

    _check_loop(programs, step, 9, 1)  # neighbours of u are read
