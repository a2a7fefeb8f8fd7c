"""A plan's steps as one function: the same values, errors with the user's line, nothing kept."""

import gc
import tracemalloc
import weakref

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from tests.seeded import new_rng
from tests.user_op import Calls

pytestmark = pytest.mark.usefixtures("own_garbage")

UNFUSED = symdnn.Mode(target="cpu").excluding("fusion")


def wide():
    """Views of arguments and of the arena, sizes by data, constants, several results."""
    x, i = T.dmatrix("x"), T.lvector("i")
    y = T.exp(x * 2) + x.T.dot(x)
    picked = (y.T[::-1] * x[0, 0])[i]
    found = T.nonzero(picked > 1)[0]
    return symdnn.function([x, i], [y, picked + 1, found, y.sum(), (y * 3).reshape((-1,))[1:]],
                           mode=UNFUSED)  # fmt: skip


def test_later_runs_give_what_the_first_gave(rng):
    f = wide()
    for n in (3, 5):
        a, i = rng.normal(size=(n, n)), rng.integers(0, n, 4)
        first = f(a, i)
        (plan,) = [p for p in f.plans() if p.signature[0] == (n, n)]
        assert plan.bound.step_function is None
        for _ in range(2):
            for old, new in zip(first, f(a, i)):
                np.testing.assert_array_equal(new, old)
                assert new is not old
        assert plan.bound.step_function is not None
    y = np.exp(a * 2) + a.T @ a
    np.testing.assert_allclose(first[0], y)
    np.testing.assert_allclose(first[1], (y.T[::-1] * a[0, 0])[i] + 1)


def test_values_are_those_of_this_run():
    f, rng = wide(), new_rng()
    kept = []
    for _ in range(4):
        a, i = rng.normal(size=(4, 4)), rng.integers(0, 4, 3)
        kept.append((a, f(a, i)[0]))
    for a, y in kept:
        np.testing.assert_allclose(y, np.exp(a * 2) + a.T @ a)


def test_an_error_of_a_later_run_names_the_users_line():
    x, i = T.dvector("x"), T.lvector("i")
    f = symdnn.function([x, i], T.exp((x * 2)[i]) + 1, mode=UNFUSED)  # here
    a = np.ones(10)
    for _ in range(3):
        f(a, [1])
    assert all(p.bound.step_function is not None for p in f.plans())
    with pytest.raises(IndexError) as caught:
        f(a, [100])
    (note,) = caught.value.__notes__
    assert "float64(10,), int64(1,)" in note
    assert "# here" in note


def test_a_failed_run_keeps_nothing():
    x, i = T.dvector("x"), T.lvector("i")
    f = symdnn.function([x, i], (x * 2)[i], mode=UNFUSED)
    for _ in range(3):
        f(np.ones(10), [1])
    a = np.ones(10)
    watched = weakref.ref(a)
    try:
        f(a, [100])
    except IndexError:
        pass
    del a
    gc.collect()
    assert watched() is None


def test_a_run_of_the_same_plan_inside_of_a_run():
    x = T.dvector("x")
    found = {}

    def again(a):
        return found["f"](a - 1) if a[0] > 0 else a

    y = T.exp(x)
    f = found["f"] = symdnn.function([x], Calls(again)(x) * y + y, mode=UNFUSED)

    def wanted(a):
        return (wanted(a - 1) if a[0] > 0 else a) * np.exp(a) + np.exp(a)

    for depth in (0.0, 2.0, 0.0, 4.0, 1.0):
        a = np.full(3, depth)
        np.testing.assert_allclose(f(a), wanted(a))


def test_what_kernels_make_is_let_go_of_after_its_last_use():
    x = T.dvector("x")
    y = x[T.nonzero(x > 0)[0]]  # of a size that data decide: each result is new memory
    for _ in range(10):
        y = T.sin(y)
    f, a = symdnn.function([x], y.sum(), mode=UNFUSED), np.ones(200_000)
    for _ in range(2):
        f(a)
    tracemalloc.start()
    f(a)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5 * a.nbytes


def test_a_large_result_is_used_again_when_nobody_has_it():
    x = T.dvector("x")
    f, a = symdnn.function([x], x + 1), np.zeros(100_000)
    held = [f(a) for _ in range(3)]
    assert len({y.ctypes.data for y in held}) == 3
    views = [y[1:] for y in held]
    del held
    f(a)[:] = 7
    f(a)[:] = 8
    assert all((v == 1).all() for v in views)
    places = [f(a).ctypes.data for _ in range(3)]
    assert len(set(places)) == 1
