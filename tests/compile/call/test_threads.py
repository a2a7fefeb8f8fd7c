"""Calls from several threads, and calls inside of calls."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from tests.user_op import Calls


def test_one_function_from_several_threads():
    x = T.dmatrix("x")
    f = symdnn.function([x], [T.exp(x).sum(axis=0), (x * 2 + 1).dot(x.T)])

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(30):
            a = rng.standard_normal((int(rng.integers(1, 6)), 4))
            total, product = f(a)
            np.testing.assert_allclose(total, np.exp(a).sum(0))
            np.testing.assert_allclose(product, (2 * a + 1) @ a.T)
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def test_updates_from_several_threads_are_all_counted():
    w = symdnn.shared(np.zeros(3))
    x = T.dscalar("x")
    add = symdnn.function([x], None, updates=[(w, w + x)])
    sub = symdnn.function([x], None, updates=[(w, w - x)])
    threads = [
        threading.Thread(target=lambda g=g: [g(1.0) for _ in range(200)]) for g in [add] * 3 + [sub]
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert w.get_value().tolist() == [400.0] * 3


@pytest.mark.cpu
@pytest.mark.parametrize("keyword", [False, True])
def test_no_update_falls_between_the_reading_of_sizes_or_kept_values_and_the_call(keyword):
    i, x, kept = symdnn.shared(np.int64(0)), T.dvector("x"), T.dscalar("kept")
    move = symdnn.function([], updates=[(i, i + 1)])
    part = symdnn.function([x], [x[i : i + 1].sum(), (x * i)[1]])
    add = symdnn.function([x, symdnn.In(kept, value=0.0, update=kept + x[1])], x * kept)
    values, found = np.arange(50.0), []
    for _ in range(3):
        move()
        add(values)
        part(values)

    def call():
        given = ((), {"x": values}) if keyword else ((values,), {})
        add(*given[0], **given[1])
        found.append(part(*given[0], **given[1]))

    lock = part.executor.runtime.lock
    for _ in range(5):
        thread = threading.Thread(target=call)
        with lock:
            thread.start()
            thread.join(0.05)  # until it waits for the lock
            add(values)
        with lock:
            thread.join(0.05)
            move()
        thread.join()
    assert [a == b for a, b in found] == [True] * 5
    assert add["kept"] == 3 + 10


def test_a_call_inside_of_a_call():
    x = T.dvector("x")
    inner = symdnn.function([x], T.exp(x * 2 + 1) * 3)
    outer = symdnn.function([x], (x * 5 + Calls(inner)(x + 1) * (x - 1)) / 7)
    for n in (3, 2000, 3):
        a = np.linspace(0, 1, n)
        wanted = (a * 5 + np.exp((a + 1) * 2 + 1) * 3 * (a - 1)) / 7
        np.testing.assert_allclose(outer(a), wanted)


@pytest.mark.cpu
def test_a_function_that_calls_itself():
    x = T.dvector("x")
    found = {}

    def again(a):
        return found["f"](a - 1) if a[0] > 0 else a

    f = found["f"] = symdnn.function([x], Calls(again)(x * 1.0) + x * 2)

    def by_hand(a):
        return (by_hand(a - 1) if a[0] > 0 else a) + 2 * a

    a = np.array([3.0, 5.0])
    np.testing.assert_allclose(f(a), by_hand(a))
    assert len(f.plans()) == 1


def test_an_error_inside_releases_the_device():
    def fail(a):
        raise RuntimeError("inside")

    x = T.dvector("x")
    f = symdnn.function([x], Calls(fail)(x))
    g = symdnn.function([x], x + 1)
    with pytest.raises(RuntimeError, match="inside"):
        f(np.ones(2))
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(g, np.ones(2)).result(timeout=30).tolist() == [2, 2]


@pytest.mark.cpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # fork beside threads: what we test
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_calls_while_the_parent_holds_the_device():
    x = T.dvector("x")
    g = symdnn.function([x], T.exp(x).sum())
    g(np.zeros(3))

    def fork(a):
        pid = os.fork()
        if pid == 0:
            os._exit(0 if g(np.zeros(5)) == 5 else 1)
        assert os.waitpid(pid, 0)[1] == 0
        return a

    symdnn.function([x], Calls(fork)(x))(np.ones(1))
