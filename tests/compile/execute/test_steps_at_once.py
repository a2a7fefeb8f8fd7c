"""Many steps of a scan as one call of compiled code (:meth:`BoundPlan.repeat`)."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.cpu.execution.whole_function import CpuWholeFunction
from symdnn.cpu.execution.whole_loop import CpuWholeLoop
from symdnn.cpu.launch.fastcall import FastCallGroup
from symdnn.errors import NanDetected
from symdnn.graph.evaluate import evaluate

pytestmark = pytest.mark.cpu


@pytest.fixture
def counted(monkeypatch):
    """The numbers of steps that ran at once."""
    found: list[int] = []
    own = FastCallGroup.repeat

    def repeat(self, *arguments):
        found.append(own(self, *arguments))
        return found[-1]

    monkeypatch.setattr(FastCallGroup, "repeat", repeat)
    return found


@pytest.fixture(autouse=True)
def _compile_always(monkeypatch):
    """Small kernels are compiled at once, not after a thousand calls; no loop as a whole."""
    for kind in (CpuWholeLoop, CpuWholeFunction):
        monkeypatch.setattr(kind, "hot", lambda self: -1)
    with symdnn.config.change_flags(**{"cpu.compile": "always"}):
        yield


def agrees(inputs, outputs, arrays, counted):
    outputs = outputs if isinstance(outputs, list) else [outputs]
    f = symdnn.function(inputs, outputs)
    for _ in range(3):
        made = f(*arrays)
    wanted = evaluate(outputs, dict(zip(inputs, arrays, strict=True)))
    for a, b in zip(made, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    return sum(counted)


def rnn(x, h, w):
    return symdnn.scan(
        lambda x, h, w: T.tanh(x + T.dot(h, w)), sequences=[x], outputs_info=[h], non_sequences=[w]
    )[0]


def drawn(*shape):
    return np.random.default_rng(0).standard_normal(shape, "float32")


def test_networks_and_their_gradients(counted):
    x, h, w = T.ftensor3("x"), T.fmatrix("h"), T.fmatrix("w")
    arrays = [drawn(50, 3, 20), drawn(3, 20), drawn(20, 20) / np.float32(5)]
    states = rnn(x, h, w)
    assert agrees([x, h, w], states, arrays, counted) > 2 * 45
    counted.clear()
    slopes = symdnn.grad((states**2).sum(), [x, h, w])
    assert agrees([x, h, w], slopes, arrays, counted) > 4 * 45


def test_the_last_value_alone_of_far_taps_and_of_values_that_are_kept_twice(counted):
    x, h = T.fmatrices("x", "h")
    arrays = [drawn(40, 30), drawn(3, 30)]

    def step(x, first, last):
        new = 0.5 * first + T.sin(last + x)
        return [new, new * 2, new]

    states, *others = symdnn.scan(
        step, sequences=[x], outputs_info=[{"initial": h, "taps": [-3, -1]}, None, None]
    )[0]
    assert agrees([x, h], [states, *others], arrays, counted) > 2 * 30
    counted.clear()
    assert agrees([x, h], states[-1], arrays, counted) > 2 * 30


def test_a_state_of_which_the_last_value_is_kept_in_several_runs_of_steps(counted):
    h = T.fvector("h")
    last = symdnn.scan(lambda h: T.cos(h) * 0.5, outputs_info=[h], n_steps=2500)[0][-1]
    f = symdnn.function([h], last)
    start = drawn(100)
    for _ in range(2):
        made = f(start)
    wanted = start
    for _ in range(2500):
        wanted = np.cos(wanted) * np.float32(0.5)
    np.testing.assert_allclose(made, wanted, rtol=1e-6)
    assert len(counted) > 5
    assert sum(counted) > 2400


def test_entries_that_are_not_contiguous(counted):
    x, h, w = T.ftensor3("x"), T.fmatrix("h"), T.fmatrix("w")
    arrays = [drawn(3, 50, 20), drawn(3, 20), drawn(20, 20) / np.float32(5)]
    states = rnn(x.dimshuffle(1, 0, 2)[::-1], h, w.T)
    assert agrees([x, h, w], states, arrays, counted) > 2 * 45


def test_a_step_that_fails_says_why_and_updates_nothing(counted):
    table, at = T.fmatrix("table"), T.lvector("at")
    total = symdnn.shared(np.zeros(4, "float32"))
    sums = symdnn.scan(
        lambda i, s, table: T.tanh(s) + table[i], sequences=[at], outputs_info=[total],
        non_sequences=[table],
    )[0]  # fmt: skip
    f = symdnn.function([table, at], sums, updates=[(total, sums[-1])])
    given, order = drawn(5, 4), np.arange(60) % 5
    for _ in range(3):
        f(given, order)
    before, order[33] = total.get_value(), 17
    with pytest.raises(IndexError, match="17"):
        f(given, order)
    assert np.array_equal(total.get_value(), before)
    assert np.isfinite(f(given, np.arange(60) % 5)).all()


def test_a_guard_names_the_step_that_makes_a_nan():
    h = T.fvector("h")
    values = symdnn.scan(lambda h: T.sqrt(h) - 1.05, outputs_info=[h], n_steps=40)[0]
    f = symdnn.function([h], values, mode=symdnn.NanGuardMode())
    for _ in range(3):
        with pytest.raises(NanDetected):
            f(np.full(50, 9.0, "float32"))
