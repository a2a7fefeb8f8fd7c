"""Kernels of a first plan begin to compile while it is made."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.gpu.codegen.launches import CudaKernel
from tests.gpu.fake_device import fake_device  # noqa: F401


@pytest.fixture
def trained(fake_device, rng):  # noqa: F811
    """(the device's context, a function with norms, sums and updates)"""
    x = T.matrix("x")
    g, b = (symdnn.shared(np.ones(8, "float32"), name=n) for n in "gb")
    y = T.nnet.relu(T.nnet.bn.batch_normalization_train(x, g, b, "per-activation")[0])
    loss = (T.nnet.softmax(y) * x).sum()
    updates = [(p, p - 0.1 * d) for p, d in zip((g, b), T.grad(loss, [g, b]))]
    f = symdnn.function([x], loss, updates=updates, mode=symdnn.Mode(target="cuda:sm_90"))
    return fake_device.context, lambda rows: f(rng.standard_normal((rows, 8)).astype("float32"))


def test_the_first_plan_begins_what_is_asked_for(trained):
    context, step = trained
    step(4)
    asked = set(context.asked)
    assert len(asked) >= 3
    began = asked & set(context.begun)
    # Updates of several parameters are one kernel, which is not that of a node.
    assert len(began) >= len(asked) - 1


def test_a_later_plan_begins_nothing(trained):
    context, step = trained
    step(4)
    context.begun.clear()
    step(6)
    assert not context.begun


def test_what_fails_to_begin_fails_where_it_runs(trained, monkeypatch):
    def fail(*args):
        raise RuntimeError("no source")

    monkeypatch.setattr(CudaKernel, "sources", fail)
    context, step = trained
    assert np.isfinite(step(4))
    assert not context.begun
