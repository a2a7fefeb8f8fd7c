"""Steps that run as one call of compiled code: what enters lies anyhow, errors, views, threads."""

import sys
import threading
import weakref

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import control
from symdnn.config import config
from symdnn.cpu.launch import fastcall
from symdnn.cpu.launch.fastcall import FastCallGroup, check
from tests.seeded import new_rng

CPU = symdnn.Mode(target="cpu")
BIG = 1 << 15


@pytest.fixture
def compiled():
    """Kernels for small arrays are compiled too."""
    with config.change_flags(**{"cpu.compile": "always"}):
        yield


def plan_of(f):
    (plan,) = f.plans()
    return plan.bound


def groups(f):
    return [span for _, span in plan_of(f).step_function._bound_later]


def normal(*shape):
    return new_rng().normal(size=shape).astype("float32")


def test_this_python_can_do_it():
    assert fastcall.available()


def test_arrays_in_c_order_are_told_from_others():
    a = np.zeros((3, 4))
    for other in (a.T, a[:, ::2], 3, None, [1], np.float32(2), np.ma.zeros(3)):
        assert check(3)(a, a[1:], other) is False
    before = sys.getrefcount(a)
    assert check(2)(a, np.zeros((0, 2))) is True
    assert sys.getrefcount(a) == before


def test_a_group_of_no_steps_does_nothing():
    """A part of no elements that is set in place has none."""
    group = FastCallGroup([])
    assert group.call() is None
    assert group.repeat(3, [], []) == 3


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8])
def test_views_that_native_steps_alone_read_and_parts_of_no_elements(n):
    """Products of parts: views of views with steps of Python's between them, and empty parts."""
    x = T.tensor("float32", (n, 2, 2))
    y = control.associative_scan(lambda a, b: T.matmul(b, a), x)
    f = symdnn.function([x], symdnn.grad((y**2).sum(), x), mode=CPU)
    a = normal(n, 2, 2)
    first = f(a)
    for _ in range(60):
        np.testing.assert_allclose(f(a), first, rtol=1e-5)
    values = [np.linalg.multi_dot([np.eye(2), *a[k::-1]]) for k in range(n)]
    moved = symdnn.function([x], (y**2).sum(), mode=CPU)
    step = 1e-2
    b = a.copy()
    b[0, 0, 1] += step
    assert np.isclose(moved(a), sum((v**2).sum() for v in values), rtol=1e-4)
    assert np.isclose((moved(b) - moved(a)) / step, first[0, 0, 1], rtol=0.1, atol=0.1)


def test_a_step_of_a_net_is_few_calls_and_right():
    x, t = T.fmatrix("x"), T.ivector("t")
    w, v, b = (symdnn.shared(normal(*s) * np.float32(0.2)) for s in ((40, 64), (64, 10), (64,)))
    h = T.nnet.relu(T.dot(x, w) + b)
    loss = T.nnet.categorical_crossentropy(T.nnet.softmax(T.dot(h, v)), t).mean()
    updates = [(p, p - 0.5 * g) for p, g in zip((w, v, b), T.grad(loss, [w, v, b]))]
    start = [p.get_value() for p in (w, v, b)]
    f = symdnn.function([x, t], loss, updates=updates, mode=CPU)
    a, labels = normal(500, 40), new_rng().integers(0, 10, 500, dtype="int32")
    losses = [float(f(a, labels)) for _ in range(6)]
    covered = sum(len(s.steps) for s in groups(f))
    assert covered >= len(plan_of(f).steps) // 2
    ends = [p.get_value() for p in (w, v, b)]
    for p, value in zip((w, v, b), start):
        p.set_value(value)
    g = symdnn.function([x, t], loss, updates=updates, mode=CPU)
    plan = None
    for k, wanted in enumerate(losses):
        found = float(g(a, labels))
        plan = plan or plan_of(g)
        plan.runs, plan.run_all = 0, None  # always step by step
        np.testing.assert_allclose(found, wanted, rtol=2e-5, err_msg=str(k))
    assert plan.step_function is None
    for p, end in zip((w, v, b), ends):
        np.testing.assert_allclose(p.get_value(), end, rtol=1e-4, atol=1e-5)


def test_arguments_that_lie_otherwise_take_the_other_way():
    x = T.fmatrix("x")
    f = symdnn.function([x], [T.exp(x) * 2, x.sum()], mode=CPU)
    f.trust_input = True
    a = normal(200, 200)
    for k in range(9):
        given = (a, a.T, np.asfortranarray(a))[k % 3]
        y, s = f(given)
        np.testing.assert_allclose(y, np.exp(given) * 2, rtol=1e-6)
        np.testing.assert_allclose(s, a.sum(dtype="f8"), rtol=1e-3, atol=1e-2)
    g = symdnn.function([x], T.exp(x) * 2, mode=CPU)
    g.trust_input = True
    for given in (a.T, a.T, a.T, a, a, a.T):
        np.testing.assert_allclose(g(given), np.exp(given) * 2, rtol=1e-6)


@pytest.mark.parametrize("offset", [0, 1])
def test_misaligned_and_empty_arguments(offset):
    x = T.fmatrix("x")
    f = symdnn.function([x], [T.tanh(x[1:]) + 1, T.exp(x).sum(axis=0)], mode=CPU)
    raw = np.zeros(4 * BIG + 8, np.uint8)
    a = raw[offset : offset + 4 * BIG].view(np.float32).reshape(BIG // 64, 64)
    a[...] = normal(*a.shape)
    for _ in range(3):
        y, s = f(a)
        np.testing.assert_allclose(y, np.tanh(a[1:]) + 1, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(s, np.exp(a).sum(axis=0), rtol=1e-4)
    for _ in range(3):
        y, s = f(np.zeros((0, 64), np.float32))
        assert y.shape == (0, 64)
        assert not s.any()


def test_views_of_parameters_and_arguments_are_not_made():
    x, w = T.fmatrix("x"), symdnn.shared(normal(300, 200))
    y = T.exp(x[::2].T + w[10:110].T[::-1]) - x.T[:, 100:].sum(axis=0)
    f = symdnn.function([x], y, mode=CPU)
    a = normal(200, 200)
    for _ in range(4):
        wanted = np.exp(a[::2].T + w.get_value()[10:110].T[::-1]) - a.T[:, 100:].sum(axis=0)
        np.testing.assert_allclose(f(a), wanted, rtol=1e-4, atol=1e-4)
    w.set_value(normal(300, 200))
    wanted = np.exp(a[::2].T + w.get_value()[10:110].T[::-1]) - a.T[:, 100:].sum(axis=0)
    np.testing.assert_allclose(f(a), wanted, rtol=1e-4, atol=1e-4)
    steps = plan_of(f).steps
    views = {k for k, s in enumerate(steps) if s.by_view}
    assert views
    assert not views & {v for s in groups(f) for v in s.views}


def test_views_in_front_and_those_of_sizes_are_not_made(compiled):
    x = T.fmatrix("x")
    wanted = [
        x[1:] - x[:-1], T.outer(x[0], x[1]), x - x.mean(1, keepdims=True), T.tril(x),
        x.var(0, keepdims=True),
    ]  # fmt: skip
    f = symdnn.function([x], wanted, mode=CPU)
    for n in (5, 6, 5):
        for _ in range(3):
            a = normal(n, 7)
            expected = [
                a[1:] - a[:-1], np.outer(a[0], a[1]), a - a.mean(1, keepdims=True), np.tril(a),
                a.var(0, keepdims=True),
            ]  # fmt: skip
            for found, true in zip(f(a), expected, strict=True):
                np.testing.assert_allclose(found, true, rtol=1e-5, atol=1e-6)
    for plan in f.plans():
        (span,) = [s for _, s in plan.bound.step_function._bound_later]
        assert not span.views
        assert plan.bound.silent


def test_ops_of_several_launches_run_natively(compiled):
    x, v, i = T.fmatrix("x"), T.fmatrix("v"), T.lvector("i")
    wanted = [
        T.pad(x, ((1, 2), (0, 3)), constant_values=7), T.roll(T.roll(x, 1, 0), -2, 1),
        T.diag(x[0], -1), T.concatenate([x, v], 0), T.set_subtensor(x[1:-1, ::2], 3),
        T.inc_subtensor((2 * x)[i], v),
        T.nnet.layer_norm(x, v[0], v[1]), T.softmax(x.reshape((x.shape[0], x.shape[1], 1)), axis=1),
    ]  # fmt: skip
    f = symdnn.function([x, v, i], wanted, mode=CPU)
    for n in (5, 4):
        for _ in range(3):
            a, b, at = normal(n, 6), normal(n, 6), np.array([1, 1, 0, n - 1, 0])[-n:]
            part, more, e = a.copy(), 2 * a, np.exp(a)
            part[1:-1, ::2] = 3
            np.add.at(more, at, b)
            centred = a - a.mean(1, keepdims=True)
            expected = [
                np.pad(a, ((1, 2), (0, 3)), constant_values=7), np.roll(a, (1, -2), (0, 1)),
                np.diag(a[0], -1), np.concatenate([a, b]), part, more,
                centred / np.sqrt(a.var(1, keepdims=True) + 1e-5) * b[0] + b[1],
                (e / e.sum(1, keepdims=True))[:, :, None],
            ]  # fmt: skip
            for found, true in zip(f(a, b, at), expected, strict=True):
                np.testing.assert_allclose(found, true, rtol=1e-4, atol=1e-5)
        with pytest.raises(IndexError, match="out of range"):
            f(a, b, at + n)
    assert all(plan.bound.silent for plan in f.plans())


def test_a_wrong_label_is_an_error_at_every_call_and_changes_nothing():
    x, t, w = T.fmatrix("x"), T.ivector("t"), symdnn.shared(normal(20, 30))
    p = T.nnet.softmax(T.dot(x, w))
    loss = T.nnet.categorical_crossentropy(p, t).mean()  # here
    f = symdnn.function([x, t], loss, updates=[(w, w - T.grad(loss, w))], mode=CPU)
    a, good, bad = normal(100, 20), np.zeros(100, "int32"), np.full(100, 30, "int32")
    for _ in range(3):
        f(a, good)
    before = w.get_value()
    for _ in range(2):
        with pytest.raises((IndexError, ValueError)) as caught:
            f(a, bad)
        assert "# here" in "".join(caught.value.__notes__)
        np.testing.assert_array_equal(w.get_value(), before)
    f(a, good)
    assert (w.get_value() != before).any()


def test_nothing_of_a_call_is_kept():
    x = T.fvector("x")
    f = symdnn.function([x], T.exp(x) + 1, mode=CPU)
    a = normal(BIG)
    for _ in range(3):
        y = f(a)
    watched = weakref.ref(a)
    held = weakref.ref(y)
    del a, y
    f(normal(BIG))
    assert watched() is None
    assert held() is None or held().shape == (BIG,)


def test_threads_of_python_run_meanwhile_and_calls_take_turns():
    x = T.fvector("x")
    f = symdnn.function([x], T.exp(T.sin(x)) * 2, mode=CPU)
    given = [normal(300_000) for _ in range(3)]
    wanted = [np.exp(np.sin(a)) * 2 for a in given]
    for a in given:
        f(a)
    wrong = []

    def work(a, y):
        for _ in range(20):
            if not np.allclose(f(a), y, rtol=1e-5):
                wrong.append(1)

    threads = [threading.Thread(target=work, args=p) for p in zip(given, wanted)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.mark.parametrize("count", [1, 2])
def test_another_number_of_threads_binds_anew(count):
    x = T.fmatrix("x")
    f = symdnn.function([x], T.dot(T.tanh(x), x), mode=CPU)
    a = normal(200, 200)
    wanted = np.tanh(a.astype("f8")) @ a
    for n in (2, count, 3 - count, 2):
        with symdnn.config.change_flags(**{"openmp.threads": n}):
            for _ in range(3):
                np.testing.assert_allclose(f(a), wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("channels", [1, 3, 16])
def test_images_in_another_order_and_pools_run_natively(channels):
    x = T.ftensor4("x")
    w = symdnn.shared(normal(8, channels, 3, 3))
    y = T.signal.pool.pool_2d(T.nnet.conv2d(x, w), (2, 2), ignore_border=True)
    f = symdnn.function([x], [y, T.grad((y * y).sum(), w)], mode=CPU)
    a = normal(6, channels, 14, 14)
    first = f(a)
    for _ in range(3):
        for old, new in zip(first, f(a)):
            np.testing.assert_allclose(new, old, rtol=1e-5, atol=1e-4)
    b = normal(6, channels, 14, 14)
    plan = plan_of(f)
    plan.runs, plan.run_all = 0, None
    wanted = f(b)
    assert plan.runs == 1
    for old, new in zip(wanted, f(b)):
        np.testing.assert_allclose(new, old, rtol=1e-5, atol=1e-4)
    assert groups(f)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_slices_are_copied_natively_wherever_they_begin(dtype, compiled):
    x = T.tensor(dtype, (None, None, None))
    y = x + x
    wanted = [
        x[1:], x[::-1], x[:, ::-1, 1::2], x[-1], x[2, 1, 3], x[:, 4:1:-2].dimshuffle(2, 0, 1),
        y, y[:, 1:-1], y[..., ::-1], x[3:3],
    ]  # fmt: skip
    f = symdnn.function([x], wanted, mode=CPU)
    rng = new_rng()
    for _ in range(4):
        a = rng.integers(-9, 9, (5, 6, 7)).astype(dtype)
        b = a + a
        expected = [
            a[1:], a[::-1], a[:, ::-1, 1::2], a[-1], a[2, 1, 3],
            a[:, 4:1:-2].transpose(2, 0, 1), b, b[:, 1:-1], b[..., ::-1], a[3:3],
        ]  # fmt: skip
        for found, true in zip(f(a), expected, strict=True):
            np.testing.assert_array_equal(found, true)
            assert not np.may_share_memory(found, a)
    (plan,) = f.plans()
    assert plan.bound.step_function.native >= 8


def test_a_loop_whose_step_copies_slices_is_repeated_natively(compiled):
    xs, h = T.ftensor3("xs"), T.fmatrix("h")
    (hs, last), _ = symdnn.scan(
        lambda v, s: [s[::-1] * v[:, 1:4], v[:, ::-2]], sequences=[xs], outputs_info=[h, None]
    )
    f = symdnn.function([xs, h], [hs, last], mode=CPU)
    rng = new_rng()
    a, s = rng.normal(size=(9, 2, 5)).astype("float32"), rng.normal(size=(2, 3)).astype("float32")
    for _ in range(3):
        states, collected = f(a, s)
        state = s
        for t, v in enumerate(a):
            state = state[::-1] * v[:, 1:4]
            np.testing.assert_allclose(states[t], state, rtol=1e-6)
            np.testing.assert_array_equal(collected[t], v[:, ::-2])
