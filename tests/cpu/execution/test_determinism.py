"""Results do not depend on the number of threads beyond rounding; for a fixed one they are the
same bits in every run and in every process, with ``deterministic=more``."""

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.cpu.compiler import jit
from symdnn.cpu.onednn import library
from symdnn.cpu.threads import threads as omp
from tests.seeded import new_rng

pytestmark = pytest.mark.skipif(
    bool(jit.problem() or omp.problem() or library.problem()), reason="a library is missing"
)


def net(seed=5):
    """A training step of a small net of all kinds of kernels; (function, parameters)."""
    rng = np.random.default_rng(seed)
    made = []

    def parameter(*shape):
        made.append(symdnn.shared((rng.normal(size=shape) * 0.1).astype("float32")))
        return made[-1]

    x, labels = T.ftensor4("x"), T.ivector("labels")
    h = T.nnet.conv2d(x, parameter(16, 3, 3, 3), border_mode="half")
    gamma, beta = parameter(1, 16, 1, 1) + 1, parameter(1, 16, 1, 1)
    h, _, _ = T.nnet.bn.batch_normalization_train(h, gamma, beta, axes=(0, 2, 3))
    h = T.nnet.conv2d(T.nnet.relu(h), parameter(16, 16, 3, 3), border_mode="half")
    h = T.tanh(T.signal.pool.pool_2d(T.nnet.relu(h), (2, 2), ignore_border=True))
    h = T.nnet.sigmoid(T.dot(h.flatten(2), parameter(16 * 64, 40)) + parameter(40))
    p = T.nnet.softmax(T.dot(h, parameter(40, 10)))
    loss = T.nnet.categorical_crossentropy(p, labels).mean()
    loss += sum((w * w).sum() for w in made) * 0.001
    updates = []
    for w, g in zip(made, T.grad(loss, made)):
        v = symdnn.shared(np.zeros_like(w.get_value()))
        new = v * np.float32(0.9) - g * np.float32(0.05)
        updates += [(v, new), (w, w + new)]
    return symdnn.function([x, labels], loss, updates=updates, mode=symdnn.Mode(target="cpu")), made


def trained(steps, threads, deterministic="more"):
    """Losses and parameters after some steps."""
    rng = np.random.default_rng(1)
    with config.change_flags(**{"openmp.threads": threads, "deterministic": deterministic}):
        f, parameters = net()
        losses = []
        for _ in range(steps):
            x = rng.normal(size=(32, 3, 16, 16)).astype("float32")
            losses.append(float(f(x, (np.arange(32) % 10).astype("int32"))))
    return losses, [p.get_value() for p in parameters]


def digest(results):
    losses, parameters = results
    return hashlib.sha256(np.array(losses).tobytes() + b"".join(map(bytes, parameters))).hexdigest()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_run_with_so_many_threads_gives_the_same_bits(threads):
    first, parameters = trained(4, threads)
    for _ in range(2):
        losses, again = trained(4, threads)
        assert losses == first
        for a, b in zip(again, parameters):
            np.testing.assert_array_equal(a, b)


def test_every_process_gives_the_same_bits(tmp_path):
    code = "from tests.cpu.execution.test_determinism import *; print(digest(trained(3, 2)))"
    flags = f"base_compiledir={tmp_path}"  # compiled anew there, and then read from there
    found = {digest(trained(3, 2))}
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "SYMDNN_FLAGS": flags},
            cwd=os.path.dirname(symdnn.__path__[0]), capture_output=True, text=True, timeout=300,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found.add(done.stdout.strip())
    assert len(found) == 1


def test_the_number_of_threads_changes_no_more_than_rounding():
    one, parameters = trained(3, 1, "default")
    for threads in (2, 3, 4):
        losses, others = trained(3, threads, "default")
        np.testing.assert_allclose(losses, one, rtol=1e-5)
        for a, b in zip(others, parameters):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)


def test_what_is_called_often_keeps_its_bits_when_that_is_asked_for():
    x = T.fvector("x")
    with config.change_flags(**{"deterministic": "more", "cpu.compile": "auto"}):
        f = symdnn.function([x], T.tanh(x * 3) * T.exp(-x) + 1, mode=symdnn.Mode(target="cpu"))
        given = new_rng().normal(size=11).astype("float32")
        first = f(given)
        for _ in range(3500):
            last = f(given)
    np.testing.assert_array_equal(first, last)


def test_no_clock_chooses_kernels():
    x, w = T.ftensor4("x"), np.ones((5, 3, 3, 3), "float32")
    flags = {"onednn.conv.algo": "time", "deterministic": "more"}
    made = []
    for changed in ({}, flags, {**flags, "deterministic": "default"}):
        with config.change_flags(**changed):
            f = symdnn.function([x], T.nnet.conv2d(x, w), mode=symdnn.Mode(target="cpu"))
            f(np.ones((2, 3, 9, 9), "float32"))
            (use,) = f.dnn_report().rows
            made.append("guessed from the channels" in str(use))
    assert made == [True, True, False]
