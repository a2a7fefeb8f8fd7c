"""A call that Ctrl-C ends in the middle: no variable is half of two steps, and all goes on."""

import os
import signal
import sys
import textwrap
import threading
from itertools import count

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.cpu.execution.runtime import runtime
from symdnn.gpu.device.context import Context
from tests.forked import forked

PROGRAM = """
import signal, threading, time
import numpy as np, symdnn, symdnn.tensor as T

def interrupt(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
mode = symdnn.Mode(target="cpu")
rng = np.random.default_rng(0)
x = T.fmatrix("x")
w, v = (symdnn.shared(np.zeros((200, 200), "f")) for _ in range(2))
step = symdnn.function([x], T.tanh(T.dot(x, x)).sum(), updates=[(w, w + 1), (v, v - 1)], mode=mode)
double = T.dmatrix("double")
loss = symdnn.function([double], T.exp(T.dot(double, double)).sum(), mode=mode)
a = rng.normal(size=(200, 200)).astype("f")
b = rng.normal(size=(150, 150)) / 150
wanted = float(step(a)), float(loss(b))
caught = 0
end = time.monotonic() + 2
while time.monotonic() < end or caught < 5:
    signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-4, 2e-2))
    try:
        while True:
            step(a), loss(b)
    except KeyboardInterrupt:
        caught += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    one, other = w.get_value(), v.get_value()
    assert (one == one[0, 0]).all() and (other == other[0, 0]).all()
    assert abs(one[0, 0] + other[0, 0]) <= caught  # between two updates a step may end
    np.testing.assert_allclose((float(step(a)), float(loss(b))), wanted, rtol=1e-5)
thread = threading.Thread(target=lambda: print(float(step(a)) == float(step(a))))
thread.start()
thread.join(60)
assert not thread.is_alive()
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers")
def test_calls_that_are_interrupted_leave_everything_whole(tmp_path):
    env = {**os.environ, "SYMDNN_FLAGS": f"base_compiledir={tmp_path}"}
    done = forked(textwrap.dedent(PROGRAM), env=env, seconds=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True\n"


def _interrupted_at(number, run):
    """Whether ``run`` was left by KeyboardInterrupt at so many places where Ctrl-C may come.

    CPython looks for signals as a function begins and after a call of a function in C.
    """
    left = [number]

    def count_down(_frame, event, _function):
        left[0] -= event in ("call", "c_return")
        if left[0] < 0:
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(count_down)
    try:
        run()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


def _is_free(lock):
    """Whether another thread may have the lock."""
    found = []

    def look():
        found.append(lock.acquire(blocking=False))
        if found[0]:
            lock.release()

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return found[0]


def _lost(lock, run):
    """The places at which an interrupt loses the lock; there must be some places."""
    lost = []
    for number in count():
        if not _interrupted_at(number, run):
            assert number > 3
            return lost
        if not _is_free(lock):
            lost.append(number)
            lock.release()


@pytest.mark.parametrize("how", ["short", "by name", "strided", "nested"])
def test_no_place_of_a_call_loses_the_lock(how):
    x = T.dmatrix("x")
    f = symdnn.function([x], T.exp(T.dot(x, x)), mode=symdnn.Mode(target="cpu"))
    a = np.random.default_rng(0).normal(size=(3, 3))
    runs = {"by name": lambda: f(x=a), "strided": lambda: f(a[::-1]), "nested": _nested(f, a)}
    run = runs.get(how, lambda: f(a))
    for _ in range(40):
        run()
    assert _lost(runtime().lock, run) == []
    assert runtime().depth == -1
    wanted = f(x=a)
    assert np.array_equal(f(a), wanted)


def _nested(f, a):
    """A call inside of a call, as by a user's callback."""

    def run():
        with runtime().exclusive():
            f(a)

    return run


def test_no_place_loses_the_lock_of_a_context():
    """A GPU's context, with what makes it current left out."""
    context = Context.__new__(Context)
    context._process, context.lock = 0, threading.RLock()
    context._make_current = lambda: bool(len(""))

    def run():
        with context.current(), context.current():
            len("")

    assert _lost(context.lock, run) == []
