"""A child of a process that used OpenMP runs compiled kernels on one thread, and does not hang."""

import os
import signal
import time
import warnings

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.cpu.compiler import jit
from symdnn.cpu.threads import threads
from tests.seeded import new_rng

pytestmark = pytest.mark.skipif(
    bool(jit.problem() or threads.problem()) or not hasattr(os, "fork"),
    reason="llvmlite, libgomp or fork is missing",
)
_PATIENCE_S = 60.0


def in_child(work):
    """Whether ``work()`` is true in a forked child that ends in time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads: the point
        child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    end = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def test_plans_of_the_parent_and_new_ones_run_in_the_child():
    x = T.fmatrix("x")
    mode = symdnn.Mode(target="cpu")
    labels = np.arange(512) % 7
    loss = T.nnet.categorical_crossentropy(T.nnet.softmax(x), labels)
    outputs = [T.exp(x) * 2 + x, (x * x).sum(axis=0), loss]
    image = x.dimshuffle("x", "x", 0, 1)
    outputs.append(T.signal.pool.pool_2d(image, (2, 2), ignore_border=True))
    given = new_rng().normal(size=(512, 512)).astype("float32")
    with config.change_flags(**{"openmp.threads": 2}):
        used = symdnn.function([x], outputs, mode=mode)
        fresh = symdnn.function([x], outputs, mode=mode)
        wanted = used(given)
        kernels = used.lowering_report().kernels()
        assert {"llvm.elementwise", "llvm.nest", "llvm.rows"} <= set(kernels)

        def same():
            found = [f(given) for f in (used, fresh)]
            return all(np.array_equal(a, b) for many in found for a, b in zip(many, wanted))

        assert in_child(same)
        assert in_child(lambda: threads.threads(10**9, 1) == 1)
        assert same()  # the parent goes on
