"""The CPU runtime: the arena grows, old plans release it, and a plan stores nothing of a call."""

import gc
import weakref

import numpy as np

import symdnn
import symdnn.tensor as T
from symdnn.cpu.execution.runtime import runtime


def chain(x):
    return T.exp(T.sin(x) + 1).sum() + T.cos(x).max()


UNFUSED = symdnn.Mode(target="cpu").excluding("fusion")  # fused values need no arena


def test_plans_follow_an_arena_that_grew():
    x = T.dvector("x")
    f = symdnn.function([x], chain(x), mode=UNFUSED)
    small, large = np.linspace(0, 1, 5), np.linspace(0, 1, 300_000)
    first = f(small)
    f(large)
    grown = runtime().arenas[0].bytes
    assert grown.nbytes >= large.nbytes
    assert f(small) == first
    assert runtime().arenas[0].bytes is grown
    assert grown.__array_interface__["data"][0] % 64 == 0


def test_an_arena_that_was_outgrown_is_freed():
    x = T.dvector("x")
    f = symdnn.function([x], chain(x), mode=UNFUSED)
    n = runtime().arenas[0].bytes.nbytes if runtime().arenas else 1000
    f(np.zeros(n // 8 + 1000))
    old = weakref.ref(runtime().arenas[0].bytes.base)
    f(np.zeros(n // 8 + 100_000))
    gc.collect()
    assert old() is None


def test_nothing_of_a_call_is_kept():
    x = T.dvector("x")
    f = symdnn.function([x], [x * 2, T.exp(x)])
    a = np.ones(10)
    results = f(a)
    watched = [weakref.ref(a), *map(weakref.ref, results)]
    del a, results
    gc.collect()
    assert all(w() is None for w in watched)


def test_a_failed_call_keeps_nothing_either():
    x, i = T.dvector("x"), T.lvector("i")
    f = symdnn.function([x, i], (x * 2)[i])
    a = np.ones(10)
    watched = weakref.ref(a)
    try:
        f(a, [100])
    except IndexError:
        pass
    del a
    gc.collect()
    assert watched() is None


def test_facts():
    assert "NumPy" in runtime().facts()["kernels"]
