"""Loops of small steps as one kernel, on the emulated device: when they are, results, errors."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import control
from symdnn.config import config
from symdnn.errors import AssertionFailed, IndexOutOfRange, NanDetected
from symdnn.gpu.execution import whole_loop
from tests.seeded import new_rng

CUDA = symdnn.Mode(target="cuda:sm_90").excluding("cudnn")
CPU = symdnn.Mode(target="cpu")


@pytest.fixture
def always():
    with config.change_flags(**{"gpu.whole_loops": "always"}):
        yield


@pytest.fixture
def rt(fake_device):
    """The emulated device; ``rt.kernels()`` are the names of kernels since the last time."""
    fake_device.kernels = lambda: [
        n for n in fake_device.take_log() if n not in ("copy in", "copy out", "copy", "wait")
    ]
    return fake_device


def floats(*shape):
    return new_rng().standard_normal(shape).astype("float32")


def recurrent(mode):
    """The states of a small recurrent layer with a gate, and the gradient by its weights."""
    w, x, h0 = T.fvector("w"), T.fmatrix("x"), T.fvector("h0")

    def step(v, h):
        new = T.tanh(v + h * w) / (1 + h.sum() ** 2)
        return new, (new**2).sum()

    (states, sums), _ = symdnn.scan(step, [x], [h0, None])
    loss = (states**2).sum() + sums.sum()
    return symdnn.function([x, h0, w], [states, T.grad(loss, w)], mode=mode)


def grown(x, low=100.0):
    """How often a vector has to grow, and what it is then."""
    more = lambda v: v[0].sum() < low  # noqa: E731
    return control.while_loop(more, lambda v: (v[0] * np.float32(1.5), v[1] + 1), (x, 0))


def assert_same(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6)


@pytest.mark.usefixtures("always")
def test_a_scan_and_its_gradient_are_a_kernel_each(rt):
    """In the first call with such sizes; then all of the function is one kernel."""
    f, g = recurrent(CUDA), recurrent(CPU)
    counts = []
    for _ in range(5):
        args = floats(7, 4), floats(4), floats(4)
        rt.kernels()
        assert_same(f(*args), g(*args))
        counts.append(rt.kernels().count("steps"))
    assert counts == [2, 1, 1, 1, 1]
    f = recurrent(CUDA)
    args = floats(11, 4), floats(4), floats(4)
    assert_same(f(*args), g(*args))
    loops = f.lowering_report().loops
    assert [line.endswith("(runs as one kernel)") for line in loops] == [True, True]
    assert __file__ in loops[0]


@pytest.mark.usefixtures("always")
def test_the_host_does_not_wait_for_a_loop_of_known_length(rt):
    x = T.fvector("x")
    y = control.fori_loop(0, 5, lambda i, v: v * 1.5 + T.cast(i, "float32"), x)
    f = symdnn.function([x], symdnn.Out(y, stay=True), mode=CUDA)
    f(floats(3))
    rt.take_log()
    f(floats(3))
    assert "wait" not in rt.take_log()


@pytest.mark.usefixtures("always")
def test_a_condition_is_read_on_the_device(rt, monkeypatch):
    x = T.fvector("x")
    f, g = (symdnn.function([x], list(grown(x)), mode=m) for m in (CUDA, CPU))
    for stretch in (64, 3):
        monkeypatch.setattr(whole_loop, "_LEAST_AT_ONCE", stretch)
        monkeypatch.setattr(whole_loop, "_WORK_AT_ONCE", 0)
        for value in (np.ones(3, "float32"), np.full(3, 200, "float32")):
            assert_same(f(value), g(value))
        f.free()
    rt.kernels()
    f(np.ones(3, "float32"))
    assert rt.kernels().count("steps") == 3  # nine steps by three


def test_a_loop_becomes_a_kernel_after_many_steps(rt, monkeypatch):
    monkeypatch.setattr(whole_loop, "_HOT_STEPS", 12)
    x = T.fvector("x")
    y = control.fori_loop(0, 5, lambda i, v: v * 1.5, x)
    f = symdnn.function([x], y, mode=CUDA)
    counts = []
    for _ in range(4):
        np.testing.assert_allclose(f(np.ones(3, "float32")), [1.5**5] * 3)
        counts.append(rt.kernels().count("steps"))
    assert counts == [0, 0, 1, 1]
    f = symdnn.function([x], list(grown(x, 1e4)), mode=CUDA)
    assert f(np.ones(3, "float32"))[1] == 21
    assert rt.kernels().count("steps") == 1  # it began again after twelve steps


def test_a_loop_of_many_ops_becomes_a_kernel_after_fewer_steps(rt, monkeypatch):
    monkeypatch.setattr(whole_loop, "_HOT_STEPS", 100)

    def turn(i, v):
        for _ in range(20):
            v = T.sin(v[::-1]) + v.cumsum()
        return v

    x = T.fvector("x")
    f = symdnn.function([x], control.fori_loop(0, 5, turn, x), mode=CUDA)
    counts = []
    for _ in range(12):
        f(np.ones(3, "float32"))
        counts.append(rt.kernels().count("steps"))
    assert counts[0] == 0
    assert counts[-1] > 0  # 60 steps of some 40 ops


def test_performance_max_makes_kernels_at_once(rt):
    x = T.fvector("x")
    with config.change_flags(performance="max"):
        f = symdnn.function([x], control.fori_loop(0, 5, lambda i, v: v * 1.5, x), mode=CUDA)
        np.testing.assert_allclose(f(np.ones(3, "float32")), [1.5**5] * 3)
        assert rt.kernels().count("steps") == 1


@pytest.mark.parametrize(
    "flags", [{"gpu.whole_loops": "never"}, {"deterministic": "more"}, {"gpu.graph": "auto"}]
)
def test_flags_and_guards_keep_the_steps(flags, rt, monkeypatch):
    monkeypatch.setattr(whole_loop, "_HOT_STEPS", 0)
    x = T.fvector("x")
    y = control.fori_loop(0, 5, lambda i, v: T.log(v - 1), x)
    mode = CUDA if "gpu.graph" not in flags else symdnn.NanGuardMode(target="cuda:sm_90")
    with config.change_flags(**flags):
        f = symdnn.function([x], y, mode=mode)
        if mode is CUDA:
            for _ in range(4):
                assert np.isnan(f(np.ones(3, "float32"))).all()
        else:
            with pytest.raises(NanDetected) as caught:
                f(np.ones(3, "float32"))
            assert __file__ in str(caught.value.__notes__)
    assert "steps" not in rt.kernels()


def test_calls_by_a_watcher(rt, monkeypatch):
    """A watched function runs step by step, and the function that its watcher calls is right."""
    monkeypatch.setattr(whole_loop, "_HOT_STEPS", 0)
    x = T.fvector("x")
    y = control.fori_loop(0, 5, lambda i, v: v * 1.5, x)
    inner, seen = symdnn.function([x], y, mode=CUDA), []

    def look(i, node, fn):
        seen.append(inner(np.ones(3, "float32")))

    f = symdnn.function([x], y, mode=symdnn.MonitorMode(pre_func=look, target="cuda:sm_90"))
    np.testing.assert_allclose(f(np.ones(3, "float32")), [1.5**5] * 3)
    assert len(seen) >= 5
    np.testing.assert_allclose(seen, [[1.5**5] * 3] * len(seen))


def raised(f, *args):
    """The text of the error that a call raises, with the notes on where."""
    with pytest.raises((IndexOutOfRange, AssertionFailed)) as caught:
        f(*args)
    assert __file__ in str(caught.value.__notes__)
    return type(caught.value), str(caught.value), caught.value.__notes__


def by_index(x, n):
    return control.fori_loop(0, n, lambda i, v: v + x[i * 2], np.float32(0))


def by_assertion(x, n):
    check = T.Assert("too large")
    return control.fori_loop(0, n, lambda i, v: check(v * 2, v < 100), x[1])


@pytest.mark.parametrize("loop", [by_index, by_assertion])
def test_errors_are_those_of_the_steps(loop, rt):
    """The loop runs again step by step, which finds the step and the user's line."""
    x, n = T.fvector("x"), T.lscalar("n")
    value, found = np.arange(6, dtype="float32"), []
    bad = 5 if loop is by_index else 9
    for mode in ("never", "always"):
        with config.change_flags(**{"gpu.whole_loops": mode}):
            f = symdnn.function([x, n], loop(x, n), mode=CUDA)
            assert f(value, 3) == (6 if loop is by_index else 8)
            found.append(raised(f, value, bad))
            assert f(value, 2) == (2 if loop is by_index else 4)
    assert found[0] == found[1]


@pytest.mark.usefixtures("always")
def test_loops_in_loops_branches_and_functions_around(rt):
    x, flag = T.fmatrix("x"), T.bscalar("flag")

    def step(row, total):
        more = control.fori_loop(0, 3, lambda i, v: T.tanh(v * total), row)
        return total + control.cond(more.sum() > 0, lambda v: v, lambda v: -v, more)

    def build(mode):
        out, _ = symdnn.scan(step, [x], [x[0] * 0 + 1])
        chosen = symdnn.ifelse(T.neq(flag, 0), out[-1], out[0] * 2)
        state = symdnn.shared(np.ones(4, "float32"))
        return symdnn.function([x, flag], chosen, updates=[(state, state + out[-1])],
                               mode=mode), state  # fmt: skip

    (f, s), (g, t) = build(CUDA), build(CPU)
    for k in range(5):
        value = floats(3, 4)
        assert_same([f(value, k % 2)], [g(value, k % 2)])
        assert_same([s.get_value()], [t.get_value()])
    assert "steps" in rt.kernels()


@pytest.mark.usefixtures("always")
def test_what_a_block_should_not_run_is_left_to_kernels(rt):
    x, n = T.fvector("x"), T.lscalar("n")
    y = control.fori_loop(0, n, lambda i, v: T.sin(v), x)
    f = symdnn.function([x, n], y, mode=CUDA)
    f(np.ones(50_000, "float32"), 2)
    assert "steps" not in rt.kernels()
    assert "runs step by step: its steps are large" in f.lowering_report().loops[0]
    np.testing.assert_allclose(f(np.ones(3, "float32"), 2), [np.sin(np.sin(np.float32(1)))] * 3)
    assert "steps" in rt.kernels()
    assert f(np.ones(3, "float32"), 0).tolist() == [1, 1, 1]
    assert f(np.ones(0, "float32"), 3).shape == (0,)


@pytest.mark.usefixtures("always")
def test_moves_and_small_matrices_are_in_the_kernel(rt):
    """Rolls, scatters and solutions; not where many indices would move entries one by one."""

    def step(i, v):
        moved = T.roll(v, 1, 0) + v.at[np.array([2, 0, 2])].add(v[:3])
        return T.tanh(T.linalg.solve(moved + 4 * np.eye(4, dtype="float32"), v))

    x = T.fmatrix("x")
    y = control.fori_loop(0, 4, step, x)
    f, g = (symdnn.function([x], [y], mode=mode) for mode in (CUDA, CPU))
    a = floats(4, 4)
    assert_same(f(a), g(a))
    assert rt.kernels().count("steps") == 1
    many = np.arange(1000) % 4
    y = control.fori_loop(0, 4, lambda i, v: v + v[many].sum() * 0.01, x)
    f, g = (symdnn.function([x], [y], mode=mode) for mode in (CUDA, CPU))
    assert_same(f(a), g(a))
    assert "by many indices" in f.lowering_report().loops[0]


@pytest.mark.usefixtures("always")
def test_loops_over_what_is_selected_are_in_the_kernel(rt):
    """A gather that only an elementwise node or a sum reads, and a scatter of what is computed."""
    x, i, h0 = T.fmatrix("x"), T.lmatrix("i"), T.fvector("h0")

    def step(row, k, h):
        sent = T.inc_subtensor(T.zeros_like(h)[k], T.tanh(row[k]) * h[k])
        return sent, T.exp(h[k]).sum()

    (states, sums), _ = symdnn.scan(step, [x, i], [h0, None])
    loss = T.sqr(states).sum() + sums.sum()
    outputs = [states, T.grad(loss, x)]
    args = floats(6, 9), new_rng().integers(-9, 9, (6, 5)), floats(9)
    f, g = (symdnn.function([x, i, h0], outputs, mode=m) for m in (CUDA, CPU))
    for _ in range(3):
        rt.kernels()
        assert_same(f(*args), g(*args))
    assert rt.kernels().count("steps") == 1
    with pytest.raises(IndexOutOfRange):
        np.asarray(f(args[0], args[1] + 20, args[2])[0])
