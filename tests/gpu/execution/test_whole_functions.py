"""Functions with loops of unknown length as one kernel, on the emulated device."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import control
from symdnn.config import config
from symdnn.errors import AssertionFailed, IndexOutOfRange
from symdnn.gpu.execution import whole_function, whole_loop
from tests.seeded import new_rng

CUDA = symdnn.Mode(target="cuda:sm_90").excluding("cudnn")
CPU = symdnn.Mode(target="cpu")
STATE = "runs as one kernel with all around it"


@pytest.fixture(autouse=True)
def always():
    with config.change_flags(**{"gpu.whole_loops": "always"}):
        yield


@pytest.fixture
def rt(fake_device):
    """The emulated device; ``rt.work()`` is what was enqueued since the last time."""
    fake_device.work = lambda: [n for n in fake_device.take_log() if not n.startswith("copy")]
    return fake_device


def root(a):
    """A square root: the loop and its condition are of numbers."""
    near = lambda v: T.abs(v * v - a) > 1e-6 * a  # noqa: E731
    return [control.while_loop(near, lambda v: (v + a / v) * 0.5, a)]


def grown(x):
    """Rows that grow until they are large, how often, and what is computed of them."""
    body = lambda v: (T.tanh(v[0]) + v[0] * 1.5, v[1] + 1)  # noqa: E731
    y, count = control.while_loop(lambda v: (v[0] ** 2).sum() < 50.0, body, (x + 0.5, 0))
    return [y, count, T.sort(y.sum(0)), y.max() > 1]


def inner(x):
    """A loop of known length around one of another length for each row."""

    def step(i, total):
        y, count = control.while_loop(
            lambda v: v[0].max() < 4.0, lambda v: (v[0] * 2, v[1] + 1), (T.abs(x[i]) + 0.1, 0)
        )
        return total + y.sum() * count

    return [control.fori_loop(0, x.shape[0], step, np.float32(0)), x.sum()]


def functions(build, variable, borrow=False):
    made = []
    for mode in (CUDA, CPU):
        x = variable("x")
        made.append(
            symdnn.function([x], [symdnn.Out(v, borrow=borrow) for v in build(x)], mode=mode)
        )
    return made


def host(value):
    return np.asarray(value.get() if hasattr(value, "get") else value)


def assert_same(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        assert host(a).dtype == np.asarray(b).dtype
        np.testing.assert_allclose(host(a), b, rtol=2e-5, atol=1e-6)


def floats(*shape):
    return new_rng().standard_normal(shape).astype("float32")


@pytest.mark.parametrize("borrow", [False, True])
@pytest.mark.parametrize(
    ("build", "variable", "shape"),
    [(root, T.fscalar, ()), (grown, T.fmatrix, (3, 5)), (inner, T.fmatrix, (4, 3))],
)
def test_results_and_where_they_are(build, variable, shape, borrow, rt):
    """The results of the CPU, each where a call by regions has it; one kernel, waited for once."""
    f, g = functions(build, variable, borrow)
    kinds = []
    for k in range(5):
        x = np.abs(floats(*shape)) / 4 + np.float32(k / 2)
        given = x if not shape or k % 2 else rt.array(x)
        rt.work()
        found = f(given)
        work = rt.work()
        assert_same(found, g(x))
        kinds.append([type(v) for v in found])
    assert work == ["steps", "wait"] + ["wait"] * (work.count("wait") - 1)
    assert work.count("wait") <= 1 + sum(not (borrow or np.ndim(host(v)) == 0) for v in found)
    assert all(k == kinds[0] for k in kinds)
    assert STATE in f.lowering_report().loops[0]


def test_a_loop_that_has_no_step(rt):
    f, g = functions(grown, T.fmatrix)
    for value in (0.1, 0.2, 9.0, 0.3, 9.5):
        x = np.full((2, 3), value, "float32")
        assert_same(f(x), g(x))
    assert rt.work().count("steps") >= 3


def test_loops_of_many_steps_run_by_themselves(rt, monkeypatch):
    """The host can interrupt those. After some such calls the kernel is tried no more."""
    monkeypatch.setattr(whole_function, "_MOST_WORK", 1)  # 64 steps are the least bound
    x = T.fscalar("x")
    more = lambda v: v < 100.0  # noqa: E731
    f = symdnn.function([x], control.while_loop(more, lambda v: v + 1.0, x), mode=CUDA)
    numbers = []
    for value in (50, 60, 70, 1, 80, 2, 3, 4, 90, 5):
        rt.work()
        assert f(np.float32(value)) == 100
        numbers.append(rt.work().count("steps"))
    # The first call made the loop's kernel, the second that of the function.
    assert numbers == [1, 1, 1, 2, 1, 2, 2, 2, 1, 1]
    assert STATE not in f.lowering_report().loops[0]


def by_index(x, n):
    more = lambda v: v[1] < n  # noqa: E731
    return control.while_loop(more, lambda v: (v[0] + x[v[1] * 2], v[1] + 1), (x[0] * 0, 0))[0]


def by_assertion(x, n):
    check = T.Assert("too large")
    more = lambda v: v[1] < n  # noqa: E731
    body = lambda v: (check(v[0] * 2, v[0] < 100), v[1] + 1)  # noqa: E731
    return control.while_loop(more, body, (x[1], 0))[0]


@pytest.mark.parametrize("loop", [by_index, by_assertion])
def test_errors_are_those_of_the_steps(loop, rt):
    x, n = T.fvector("x"), T.lscalar("n")
    f = symdnn.function([x, n], loop(x, n), mode=CUDA)
    value, bad = np.arange(6, dtype="float32"), 5 if loop is by_index else 9
    for _ in range(3):
        assert f(value, 3) == (6 if loop is by_index else 8)
    for _ in range(6):
        with pytest.raises((IndexOutOfRange, AssertionFailed)) as caught:
            f(value, bad)
        assert __file__ in str(caught.value.__notes__)
        assert f(value, 2) == (2 if loop is by_index else 4)


def test_shared_variables_are_read_and_written(rt):
    """Updates that a segment makes itself leave the regions; others are the function's."""
    made = []
    for mode in (CUDA, CPU):
        w = symdnn.shared(np.ones((2, 3), "float32"))
        x = T.fmatrix("x")
        y, count, *_ = grown(x * w)
        made.append((symdnn.function([x], [y, count], updates=[(w, w * 0.5 + y)], mode=mode), w))
    (f, v), (g, w) = made
    for _ in range(6):
        x = floats(2, 3)
        assert_same(f(x), g(x))
        assert_same([v.get_value()], [w.get_value()])


@pytest.mark.parametrize("flags", [{"gpu.whole_loops": "never"}, {"gpu.whole_loops": "auto"}])
def test_flags(flags, rt):
    with config.change_flags(**flags):
        f, g = functions(grown, T.fmatrix)
        for _ in range(6):
            x = floats(2, 3)
            assert_same(f(x), g(x))
        assert "steps" not in rt.work()


def test_a_loop_of_many_known_steps_runs_by_itself(rt, monkeypatch):
    """In stretches, between which the host may interrupt it."""
    monkeypatch.setattr(whole_loop, "_WORK_AT_ONCE", 100)
    x = T.fvector("x")
    found = [T.exp(control.fori_loop(0, n, lambda i, v: v * 0.9 + 1, x)) for n in (5, 90)]
    for y, state in zip(found, (STATE, "runs as one kernel)"), strict=True):
        f = symdnn.function([x], y, mode=CUDA)
        g = symdnn.function([x], y, mode=CPU)
        for _ in range(3):
            value = floats(3)
            assert_same([f(value)], [g(value)])
        assert state in f.lowering_report().loops[0]


def test_what_is_large_is_left_to_kernels(rt):
    """The loop is one kernel, and what is behind it would keep one block busy."""

    def build(x):
        y, _, *_ = grown(x[:2])
        return [T.sin(x) * y.sum()]

    f, g = functions(build, T.fmatrix)
    for _ in range(4):
        x = floats(300, 80)
        rt.work()
        for a, b in zip(f(x), g(x)):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-2)
    assert len(rt.work()) > 3
    assert "(runs as one kernel)" in f.lowering_report().loops[0]
