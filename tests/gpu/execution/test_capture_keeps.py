"""What the graph of a loop needs later: plans, kernels of whole loops, and constants of both."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.gpu.device.capture import CaptureFailed
from symdnn.gpu.execution.plan import CudaPlan
from symdnn.gpu.execution.whole_loop import GpuWholeLoop
from tests.seeded import new_rng

CUDA = symdnn.Mode(target="cuda:sm_90").excluding("cudnn")
CPU = symdnn.Mode(target="cpu")


def floats(*shape):
    return new_rng().standard_normal(shape).astype("float32")


@pytest.fixture
def fails_at_the_end(fake_device, monkeypatch):
    """All work is captured, and then the driver refuses the graph."""
    capture = fake_device.capture

    def refused(enqueue):
        capture(enqueue)
        raise CaptureFailed("no memory for the graph")

    monkeypatch.setattr(fake_device, "capture", refused)
    return fake_device


def of_shrinking_parts(mode):
    """A loop whose steps have a plan each, the one that needs most memory first."""
    x = T.fmatrix("x")

    def body(i, x):
        part = x[: x.shape[0] - i]
        return (part.cumsum(axis=0) * part).cumsum(axis=1).sum(0)

    out, _ = symdnn.scan(body, [T.arange(x.shape[0])], non_sequences=[x])
    return symdnn.function([x], out, mode=mode)


@pytest.fixture
def plans_in_captures(fake_device, monkeypatch):
    """(those made, those run) while a loop was captured."""
    made, ran = weakref.WeakSet(), weakref.WeakSet()
    init, run = CudaPlan.__init__, CudaPlan.run

    def making(plan, *args):
        init(plan, *args)
        if fake_device.memory.captures_host_values:
            made.add(plan)

    def running(plan, *args, **words):
        if fake_device.memory.captures_host_values:
            ran.add(plan)
        return run(plan, *args, **words)

    monkeypatch.setattr(CudaPlan, "__init__", making)
    monkeypatch.setattr(CudaPlan, "run", running)
    return made, ran


def test_a_graph_keeps_plans_that_are_dropped_while_it_is_captured(fake_device, plans_in_captures):
    made, ran = plans_in_captures
    with symdnn.config.change_flags(plan_cache_size=2):
        f, g = of_shrinking_parts(CUDA), of_shrinking_parts(CPU)
        for _ in range(5):
            value = floats(6, 5)
            fake_device.arena.nbytes = 0  # as after a trim
            np.testing.assert_allclose(f(value), g(value), rtol=2e-4, atol=1e-5)
        gc.collect()
        assert len(made) == len(ran) == 6, (len(made), len(ran))
        assert any("captured with its loop" in p.bound.capture_state for p in f.plans())
        assert fake_device.arena.nbytes == max(p.memory.arena_bytes for p in ran)


def test_plans_made_in_a_capture_that_fails_are_dropped(fails_at_the_end, plans_in_captures):
    """What they uploaded when they were made has never run."""
    made, _ = plans_in_captures
    with symdnn.config.change_flags(plan_cache_size=2):
        f, g = of_shrinking_parts(CUDA), of_shrinking_parts(CPU)
        for _ in range(5):
            value = floats(6, 5)
            np.testing.assert_allclose(f(value), g(value), rtol=2e-4, atol=1e-5)
        gc.collect()
        assert not made


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("hot", [12, 20, 24])
def test_a_kernel_of_a_whole_loop_made_in_a_capture_has_its_constants(
    request, fake_device, monkeypatch, hot, refused
):
    """It is made after so many steps, in the third call: in that the loop around it is captured."""
    if refused:
        request.getfixturevalue("fails_at_the_end")
    small = lambda loop: hot if len(loop.op.inner.nodes) < 12 else -1  # noqa: E731
    monkeypatch.setattr(GpuWholeLoop, "hot", small)
    x, i = T.fmatrix("x"), T.ltensor3("i")
    weights = T.constant(np.arange(1, 8, dtype="float32"))

    def build(mode):
        def inner(rows, acc, x):
            return acc * 0.5 + x[rows].sum(0) + weights[rows].sum()

        def outer(rows, state, x):
            states, _ = symdnn.scan(inner, [rows], [state], non_sequences=[x])
            return states[-1] + T.tanh(T.alloc(state.sum(), 3, 4).cumsum(axis=0))[1]

        start = T.zeros((4,), dtype="float32")
        out, _ = symdnn.scan(outer, [i], [start], non_sequences=[x])
        return symdnn.function([x, i], out, mode=mode)

    f, g = build(CUDA), build(CPU)
    for _ in range(6):
        args = floats(7, 4), new_rng().integers(0, 7, (2, 4, 2))
        np.testing.assert_allclose(f(*args), g(*args), rtol=2e-4, atol=1e-5)
    assert "runs as one kernel" in {state for _, state in f.executor.loop_states()}


def test_constants_uploaded_in_a_capture_that_fails_are_uploaded_again(fails_at_the_end):
    device = fails_at_the_end
    v = T.constant(floats(3, 4))
    with pytest.raises(CaptureFailed), device.memory.keeping(staging=True):
        device.capture(lambda: device.constant(v))
    np.testing.assert_array_equal(device.to_host(device.constant(v)), v.data)
