"""Updates on the CPU are made in the storages of shared variables, where nothing can go wrong."""

import copy
import tracemalloc

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.compile.call.arguments import In
from symdnn.config import config
from tests.cpu.harness import needs_compiler
from tests.seeded import new_rng

CPU = symdnn.Mode(target="cpu")


def momentum(shape, mode=CPU, dtype="float32"):
    """A step of SGD with momentum on a quadratic loss; (function, parameter, velocity)."""
    rng = np.random.default_rng(3)
    w = symdnn.shared(rng.normal(size=shape).astype(dtype), "w")
    v = symdnn.shared(np.zeros(shape, dtype), "v")
    x = T.matrix("x", dtype=dtype)
    g = T.grad(((w * x) ** 2).sum(), w)
    new = v * np.asarray(0.9, dtype) - g * np.asarray(0.01, dtype)
    return symdnn.function([x], (w * x).sum(), updates=[(v, new), (w, w + new)], mode=mode), w, v


def expected(w, v, x):
    v = 0.9 * v - 0.01 * 2 * w * x * x
    return w + v, v


@needs_compiler
@pytest.mark.parametrize("shape", [(300, 400), (128, 1), (0, 5)])
@pytest.mark.parametrize("wish", ["always", "auto", "never"])
def test_a_step_of_momentum(shape, wish):
    with config.change_flags(**{"cpu.compile": wish}):
        check_momentum(shape, CPU, all_in_place=wish == "always" and 0 not in shape)


def test_a_step_of_momentum_op_by_op():
    check_momentum((30, 40), CPU.excluding("fusion"), all_in_place=False)


def check_momentum(shape, mode, all_in_place):
    f, w, v = momentum(shape, mode)
    rng, (a, b) = new_rng(), (w.get_value(), v.get_value())
    places = [s.storage.host().ctypes.data for s in (w, v)]
    for _ in range(5):
        x = rng.normal(size=shape).astype("float32")
        wanted = (a * x).sum(dtype="float64")
        a, b = expected(a, b, x)
        np.testing.assert_allclose(f(x), wanted, rtol=1e-3, atol=1e-2)
        np.testing.assert_allclose(w.get_value(), a, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(v.get_value(), b, rtol=1e-4, atol=1e-5)
    (plan,) = f.plans()
    memory = plan.memory
    assert {*memory.stored.values(), *memory.copied.values()} == {w, v}
    assert not all_in_place or not memory.copied
    assert [s.storage.host().ctypes.data for s in (w, v)] == places
    tracemalloc.start()
    f(x)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert not all_in_place or peak < 20_000  # nothing of the size of a parameter


@needs_compiler
def test_the_first_call_has_no_second_copy_of_the_parameters():
    with config.change_flags(**{"cpu.compile": "always"}):
        f, w, v = momentum((1000, 1000))
        x = new_rng().normal(size=(1000, 1000)).astype("float32")
        a, b = expected(w.get_value(), v.get_value(), x)
        tracemalloc.start()
        f(x)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    arena = sum(plan.memory.arena_bytes for plan in f.plans())
    assert peak - arena < w.get_value(borrow=True).nbytes
    np.testing.assert_allclose(w.get_value(), a, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(v.get_value(), b, rtol=1e-4, atol=1e-5)


@needs_compiler
def test_nothing_is_updated_before_the_code_of_all_updates_is_there(monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    f, w, v = momentum((300, 400))
    before = w.get_value(), v.get_value()
    with monkeypatch.context() as patch:
        patch.setattr("symdnn.cpu.execution.plan.wait_for_code", stopped)
        with pytest.raises(KeyboardInterrupt):
            f(np.ones((300, 400), "float32"))
    assert all(np.array_equal(s.get_value(), a) for s, a in zip((w, v), before, strict=True))
    f(np.ones((300, 400), "float32"))
    assert not np.array_equal(w.get_value(), before[0])


def test_memory_that_a_user_holds_is_no_scratch_memory(rng):
    f, w, v = momentum((3, 4))
    for _ in range(3):
        f(np.ones((3, 4), "f"))
    mine = w.get_value(borrow=True)  # and it is passed in, too
    mine[...] = rng.normal(size=(3, 4))
    a, b = mine.copy(), v.get_value()
    for _ in range(3):
        wanted = (a.astype("float64") ** 2).sum()
        assert f(mine) == pytest.approx(wanted, rel=1e-4)
        a, b = expected(a, b, a)
        np.testing.assert_allclose(mine, a, rtol=1e-4, atol=1e-5)


def test_each_call_is_a_new_version_of_what_it_updates():
    """Also where one number notes the writes to all variables, and while a user holds one."""
    ws = [symdnn.shared(np.full((3, 4), float(k))) for k in range(3)]
    x = T.dmatrix("x")
    f = symdnn.function([x], None, updates=[(w, w * 0.5 + x) for w in ws], mode=CPU)
    values = [w.get_value() for w in ws]
    versions = [{w.storage.version} for w in ws]
    for k in range(12):
        held = ws[1].get_value(borrow=True) if k in (4, 5, 9) else None
        if k == 7:
            ws[2].set_value(np.ones((3, 4)))
            values[2] = np.ones((3, 4))
        given = np.full((3, 4), float(k)) if held is None else held
        values = [a * 0.5 + (given if held is None else values[1]) for a in values]
        f(given)
        assert all(np.array_equal(w.get_value(), a) for w, a in zip(ws, values, strict=True))
        assert (ws[1].storage.version is None) == (held is not None)
        del given
        held = None
        for w, seen in zip(ws, versions, strict=True):
            assert w.storage.version not in {None, *seen}
            seen.add(w.storage.version)


def test_an_updated_variable_of_another_shape():
    w, v = symdnn.shared(np.ones(3)), symdnn.shared(np.zeros(2))
    f = symdnn.function([], None, updates=[(w, w * 2), (v, v + 1)], mode=CPU)
    for n in (3, 5, 3, 2):
        w.set_value(np.ones(n))
        for _ in range(4):
            f()
        assert w.get_value().tolist() == [16.0] * n
    assert v.get_value().tolist() == [16.0] * 2


def test_all_expressions_read_old_values():
    a, b = (symdnn.shared(np.full(4, n)) for n in (1.0, 2.0))
    x = T.dvector("x")
    f = symdnn.function([x], [a + b, a.sum()], updates=[(a, b * 2 + x), (b, a * 3 + b)], mode=CPU)
    p, q = np.full(4, 1.0), np.full(4, 2.0)
    for _ in range(4):
        total, one = f(np.ones(4))
        assert total.tolist() == (p + q).tolist()
        assert one == p.sum()
        p, q = q * 2 + 1, p * 3 + q
        assert a.get_value().tolist() == p.tolist()
        assert b.get_value().tolist() == q.tolist()


def test_values_that_leave_are_of_the_call():
    w = symdnn.shared(np.arange(4.0))
    new = w * 2 + 1
    f = symdnn.function([], [new, w.reshape((2, 2)).T, w], updates=[(w, new)], mode=CPU)
    held = [f() for _ in range(4)]
    value = np.arange(4.0)
    for after, turned, before in held:
        assert before.tolist() == value.tolist()
        assert turned.tolist() == value.reshape(2, 2).T.tolist()
        value = value * 2 + 1
        assert after.tolist() == value.tolist()


def test_a_call_that_fails_changes_nothing():
    w, n = symdnn.shared(np.zeros(4)), symdnn.shared(0)
    x, i = T.dvector("x"), T.lvector("i")
    picked = x[i]
    f = symdnn.function([x, i], picked, updates=[(w, w + x * 2), (n, n + 1)], mode=CPU)
    a = np.ones(4)
    for k in range(1, 5):
        f(a, [0])
        with pytest.raises(IndexError):
            f(a, [9])
        assert w.get_value().tolist() == [2.0 * k] * 4
        assert n.get_value() == k


def test_a_kernel_that_may_fail_does_not_write_in_place():
    n = symdnn.shared(np.array([2, 3]))
    k = T.lvector("k")
    f = symdnn.function([k], None, updates=[(n, n**k)], mode=CPU)
    f(np.array([1, 2]))
    f(np.array([1, 1]))
    assert not any(p.memory.stored for p in f.plans())
    before = n.get_value().tolist()
    with pytest.raises(ValueError, match="negative"):
        f(np.array([2, -1]))
    assert n.get_value().tolist() == before == [2, 9]


def test_a_default_value_that_the_call_updates():
    s, w = T.dvector("s"), symdnn.shared(np.ones(2))
    f = symdnn.function(
        [In(s, value=np.zeros(2), update=s + w)], [s, s * 10 + w], updates=[(w, w + s)], mode=CPU
    )
    g = copy.deepcopy(f)
    for h in (f, g):
        p, q = np.zeros(2), np.ones(2)
        for _ in range(4):
            before, mixed = h()
            assert before.tolist() == p.tolist()
            assert mixed.tolist() == (p * 10 + q).tolist()
            p, q = p + q, q + p
    x = T.dvector("x")
    k = symdnn.function([In(x, value=w)], [x * 5, w * 7], updates=[(w, w + x + 1)], mode=CPU)
    value = w.get_value()
    for _ in range(4):
        five, seven = k()
        assert five.tolist() == (value * 5).tolist()
        assert seven.tolist() == (value * 7).tolist()
        value = 2 * value + 1


def test_parameters_that_a_kernel_keeps_are_seen_to_change(rng):
    im = T.ftensor4("im")
    w = symdnn.shared(rng.normal(size=(8, 4, 3, 3)).astype("float32"))
    train = symdnn.function([], None, updates=[(w, w * np.float32(0.5))], mode=CPU)
    f = symdnn.function([im], T.nnet.conv2d(im, w), mode=CPU)
    a = rng.normal(size=(2, 4, 8, 8)).astype("float32")
    first = f(a)
    for k in range(1, 5):
        assert [np.allclose(f(a), first / 2 ** (k - 1), atol=1e-5) for _ in range(3)] == [True] * 3
        train()


def test_the_report_has_the_peak_and_no_room_is_lost():
    f, w, _ = momentum((300, 400), CPU.excluding("fusion"))
    f(w.get_value())
    report = f.memory_report()
    assert report.arena <= 1.1 * report.largest_live
    assert report.peak == report.arena + 4  # the loss
    assert f"peak of a call              {report.peak} bytes" in str(report)
