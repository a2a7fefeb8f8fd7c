"""A call that Ctrl-C ends in the middle: no variable is half of two steps, and all goes on."""

import os
import signal
import textwrap

import pytest

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
