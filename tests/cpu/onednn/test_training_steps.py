"""Whole training steps on a CPU: memory at its peak, processors with older instructions."""

import itertools
import os
from pathlib import Path

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.cpu.compiler import jit
from symdnn.cpu.ir.builder import WIDTH
from symdnn.cpu.onednn import library
from symdnn.cpu.threads import threads as omp
from tests.forked import forked

pytestmark = pytest.mark.skipif(
    bool(jit.problem() or omp.problem() or library.problem()), reason="a library is missing"
)


class Net:
    """Parameters in order of use, and a step of momentum on all of them."""

    def __init__(self):
        self.rng, self.made = np.random.default_rng(3), []

    def parameter(self, *shape, scale=0.1):
        value = (self.rng.normal(size=shape) * scale).astype("f")
        self.made.append(symdnn.shared(value))
        return self.made[-1]

    def conv(self, x, k, c, r, **words):
        return T.nnet.conv2d(x, self.parameter(k, c, r, r), **words)

    def norm(self, x, c):
        g, b = self.parameter(c) + 1, self.parameter(c)
        return T.nnet.bn.batch_normalization_train(x, g, b, "spatial")[0]

    def step(self, inputs, scores, labels):
        loss = T.nnet.categorical_crossentropy(T.nnet.softmax(scores), labels).mean()
        updates = []
        for w, g in zip(self.made, T.grad(loss, self.made)):
            v = symdnn.shared(np.zeros_like(w.get_value()))
            new = v * np.float32(0.9) - g * np.float32(0.02)
            updates += [(v, new), (w, w + new)]
        return symdnn.function(inputs, loss, updates=updates, mode=symdnn.Mode(target="cpu"))


def lenet():
    net, x, labels = Net(), T.ftensor4("x"), T.ivector("labels")
    h = x
    for k, c in ((20, 1), (50, 20)):
        h = net.conv(h, k, c, 5) + net.parameter(k).dimshuffle("x", 0, "x", "x")
        h = T.tanh(T.signal.pool.pool_2d(h, (2, 2), ignore_border=True))
    h = T.tanh(T.dot(h.flatten(2), net.parameter(800, 500)) + net.parameter(500))
    scores = T.dot(h, net.parameter(500, 10)) + net.parameter(10)
    return net.step([x, labels], scores, labels), (1, 28, 28)


def blocks(widths):
    """ResNet's blocks after one convolution to the first width; another width strides."""
    net, x, labels = Net(), T.ftensor4("x"), T.ivector("labels")
    h = T.nnet.relu(net.norm(net.conv(x, widths[0], 3, 3, border_mode=1), widths[0]))
    for before, after in itertools.pairwise(widths):
        stride = {"subsample": (after // before,) * 2}
        a = T.nnet.relu(net.norm(net.conv(h, after, before, 3, border_mode=1, **stride), after))
        a = net.norm(net.conv(a, after, after, 3, border_mode=1), after)
        short = h if before == after else net.norm(net.conv(h, after, before, 1, **stride), after)
        h = T.nnet.relu(a + short)
    scores = T.dot(h.mean(axis=(2, 3)), net.parameter(widths[-1], 10))
    return net.step([x, labels], scores, labels), (3, 32, 32)


def residual():
    """Two blocks of 16 channels, one that strides to 32."""
    return blocks((16, 16, 16, 32))


def resnet20():
    """He et al. 2016: three blocks of each width."""
    return blocks((16,) * 4 + (32,) * 3 + (64,) * 3)


def batch(shape, n=32):
    rng = np.random.default_rng(11)
    return rng.normal(size=(n, *shape)).astype("f"), (np.arange(n) % 10).astype("int32")


@pytest.mark.parametrize("make", [lenet, residual, resnet20])
def test_the_peak_is_near_the_largest_live_set(make):
    f, shape = make()
    given = batch(shape)
    for _ in range(3):
        f(*given)
    report = f.memory_report()
    assert report.plans == 1
    assert report.peak <= 1.1 * report.largest_live
    # Not all intermediate values are copied: only a part of them is live together.
    (plan,) = f.plans()
    made = sum(
        view.buffer.nbytes for v, view in plan.memory.views.items()
        if view.buffer.kind == "arena" and view.buffer.variable is v
    )  # fmt: skip
    assert report.largest_live < made


@pytest.mark.parametrize("make", [lenet, residual])
def test_a_step_learns(make):
    f, shape = make()
    losses = [float(f(*batch(shape))) for _ in range(20)]
    assert np.isfinite(losses).all()
    assert losses[-1] < 0.95 * losses[0]


PROGRAM = """
import sys
sys.path.insert(0, {root!r})
from symdnn.cpu.onednn import library as libdnnl
from tests.cpu.onednn import test_training_steps as t
print(libdnnl.library().isa)
for make in (t.lenet, t.residual):
    f, shape = make()
    print(*(float(f(*t.batch(shape))) for _ in range(4)))
    print(*sorted(f.lowering_report().kernels()))
"""


def ran(**environment):
    """(instruction set, losses of both networks, kernels of both) in a process of its own."""
    root = str(Path(__file__).parents[3])
    done = forked(PROGRAM.format(root=root), env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    isa, *lines = done.stdout.splitlines()
    losses = [np.array(line.split(), float) for line in lines[::2]]
    return isa, losses, [set(line.split()) for line in lines[1::2]]


@pytest.fixture(scope="module")
def losses_here():
    """The losses of both networks on this processor."""
    return ran()[1]


@pytest.mark.parametrize(("asked", "isa"), [("AVX2", "AVX2"), ("SSE41", "SSE4.1")])
def test_older_processors_learn_the_same(asked, isa, losses_here):
    seen, losses, kernels = ran(ONEDNN_MAX_CPU_ISA=asked)
    assert seen == isa
    for a, b in zip(losses, losses_here, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3)
    for names in kernels:
        assert "onednn.conv" in names
        # Winograd's tiles of 512 bits ask oneDNN, others do not.
        if jit.vector_width() == WIDTH and not jit.halves_vectors():
            assert "llvm.winograd" not in names
