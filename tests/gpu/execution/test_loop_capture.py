"""Whole loops as graphs, on the emulated device: right results, and one launch where one can be."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.compile.execute.loop import LoopRunner
from symdnn.errors import IndexOutOfRange
from symdnn.gpu.device.array import RawArray
from symdnn.gpu.execution import loop_graph
from tests.seeded import new_rng

CUDA = symdnn.Mode(target="cuda:sm_90").excluding("cudnn")
CPU = symdnn.Mode(target="cpu")


def floats(*shape):
    return new_rng().standard_normal(shape).astype("float32")


def recurrent(mode, w):
    """(step with momentum-free updates, its parameter): a small Elman network by scan."""
    w = symdnn.shared(w.copy())
    x, h0 = T.ftensor3("x"), T.fmatrix("h0")
    states, _ = symdnn.scan(lambda v, h, w: T.tanh(v + h * w), [x], [h0], non_sequences=[w])
    loss = (states**2).mean()
    updates = [(w, w - np.float32(0.5) * T.grad(loss, w))]
    return symdnn.function([x, h0], [loss, states], updates=updates, mode=mode), w


def assert_same(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6)


def states_of(f):
    return [p.bound.capture_state for p in f.plans()]


def test_loops_and_their_gradients_become_graphs(fake_device):
    start = floats(4)
    (f, w), (g, v) = recurrent(CUDA, start), recurrent(CPU, start)
    counts = []
    for _ in range(6):
        args = floats(7, 3, 4), floats(3, 4)
        fake_device.take_log()
        assert_same(f(*args), g(*args))
        np.testing.assert_allclose(w.get_value(), v.get_value(), rtol=2e-4, atol=1e-6)
        counts.append(len(fake_device.take_log()))
    assert sum("captured with its loop, 7 steps" in s for s in states_of(f)) == 2
    assert counts[5] < counts[0] / 3, counts


def test_lengths_that_alternate_keep_their_graphs(fake_device):
    start = floats(4)
    (f, _), (g, _) = recurrent(CUDA, start), recurrent(CPU, start)
    for n in (5, 2, 5, 2, 5, 2, 5, 2, 5, 2):
        args = floats(n, 3, 4), floats(3, 4)
        fake_device.take_log()
        assert_same(f(*args), g(*args))
        log = fake_device.take_log()
    assert log.count("graph") >= 2
    assert len(log) < 40, log


def test_a_parameter_set_from_outside_is_read_where_it_is_then(fake_device):
    start = floats(4)
    (f, w), (g, v) = recurrent(CUDA, start), recurrent(CPU, start)
    args = floats(4, 3, 4), floats(3, 4)
    for call in range(8):
        if call in (4, 6):
            value = floats(4)
            w.set_value(value)
            v.set_value(value)
        assert_same(f(*args), g(*args))
    assert any("captured with its loop" in s for s in states_of(f))


def test_values_of_the_host_are_part_of_the_graph(fake_device):
    """The position is a number of the host at every step: another length, another graph."""
    x, n = T.fmatrix("x"), T.lscalar("n")

    def build(mode):
        rows, _ = symdnn.scan(lambda i, acc, x: acc + x[i] * 2, [T.arange(n)], [x[0]], [x])
        return symdnn.function([x, n], rows, mode=mode)

    f, g = build(CUDA), build(CPU)
    for length in (3, 3, 3, 4, 3, 4, 4, 4, 3):
        args = floats(5, 4), length
        assert_same([f(*args)], [g(*args)])


def test_a_loop_that_may_end_early_is_enqueued_step_by_step(fake_device):
    x = T.fvector("x")

    def build(mode):
        total, _ = symdnn.scan(
            lambda v, acc: (acc + v, symdnn.until(acc > 2)), [x], [T.constant(np.float32(0))]
        )
        return symdnn.function([x], total, mode=mode)

    f, g = build(CUDA), build(CPU)
    for _ in range(4):
        value = np.abs(floats(9))
        assert_same([f(value)], [g(value)])
    assert not any("captured with" in s for s in states_of(f))


def test_errors_on_data_are_raised_from_graphs_too(fake_device):
    x, i = T.fmatrix("x"), T.lmatrix("i")
    sums, _ = symdnn.scan(lambda rows, x: x[rows].sum(axis=0), [i], non_sequences=[x])
    f = symdnn.function([x, i], sums, mode=CUDA)
    value = floats(6, 3)
    good = new_rng().integers(0, 6, (4, 2))
    for _ in range(4):
        np.testing.assert_allclose(f(value, good), value[good].sum(1), rtol=1e-5, atol=1e-6)
    assert any("captured with its loop" in s for s in states_of(f))
    bad = good.copy()
    bad[2, 1] = 6
    with pytest.raises(IndexOutOfRange):
        f(value, bad)
    np.testing.assert_allclose(f(value, good), value[good].sum(1), rtol=1e-5, atol=1e-6)


def test_loops_in_a_loop_are_one_graph(fake_device):
    x = T.ftensor3("x")

    def inner(matrix):
        rows, _ = symdnn.scan(lambda row, acc: acc * 0.5 + row, [matrix], [matrix[0] * 0])
        return rows[-1]

    def build(mode):
        out, _ = symdnn.scan(inner, [x])
        return symdnn.function([x], out, mode=mode)

    f, g = build(CUDA), build(CPU)
    for _ in range(5):
        value = floats(3, 4, 2)
        fake_device.take_log()
        assert_same([f(value)], [g(value)])
        log = fake_device.take_log()
    assert len(log) < 8, log
    assert any("captured with its loop, 3 steps" in s for s in states_of(f))


@pytest.mark.parametrize(
    "words", [{"save_every_N": 3}, {"save_every_N": (2, 2)}, {"save_every_N": 3, "snapshots": 2},
              {"save_every_N": 1, "snapshots": 3}],
)  # fmt: skip
def test_loops_with_checkpoints_are_one_graph(fake_device, words):
    """The host counts the steps: none waits for the device."""
    w0 = floats(4)

    def build(mode):
        w = symdnn.shared(w0)
        x, h0 = T.ftensor3("x"), T.fmatrix("h0")
        h, _ = symdnn.scan_checkpoints(lambda v, h: T.tanh(v + h * w), x, h0, save_every_N=3)
        cost = (h[-1] ** 2).sum()
        return symdnn.function([x, h0], [cost, T.grad(cost, w)], mode=mode)

    f, g = build(CUDA), build(CPU)
    counts = []
    for _ in range(6):
        args = floats(14, 2, 4), floats(2, 4)
        fake_device.take_log()
        assert_same(f(*args), g(*args))
        counts.append(len(fake_device.take_log()))
    assert counts[-1] < counts[0] / 4, counts
    assert any("captured with its loop" in s for s in states_of(f)), states_of(f)


def test_positions_of_steps_are_on_the_host(fake_device):
    """A loop over positions waits for the device in no step, and is a graph."""
    x = T.fmatrix("x")

    def build(mode):
        body = lambda i, s: s * 0.5 + x[i]  # noqa: E731
        out = symdnn.control.fori_loop(1, x.shape[0], body, x[0])
        return symdnn.function([x], out, mode=mode)

    f, g = build(CUDA), build(CPU)
    for _ in range(5):
        value = floats(6, 4)
        assert_same([f(value)], [g(value)])
    assert any("captured with its loop, 5 steps" in s for s in states_of(f)), states_of(f)


def test_random_numbers_go_on(fake_device):
    from symdnn.tensor.random import RandomStream

    x = T.fmatrix("x")

    def build(mode):
        stream = RandomStream(5)
        out, updates = symdnn.scan(lambda row: row + stream.uniform(size=(3,)), [x])
        return symdnn.function([x], out, updates=updates, mode=mode)

    f, g = build(CUDA), build(CPU)
    value = floats(4, 3)
    seen = []
    for _ in range(5):
        assert_same([f(value)], [g(value)])
        seen.append(f(value).tobytes())
        g(value)
    assert len(set(seen)) == 5


@pytest.mark.parametrize("graph", ["off", "refused"])
def test_without_graphs_every_step_is_enqueued(fake_device, graph):
    start = floats(4)
    (f, _), (g, _) = recurrent(CUDA, start), recurrent(CPU, start)
    if graph == "refused":
        fake_device.context.refuse_capture = "the driver says no"
    with symdnn.config.change_flags({"gpu.graph": "off" if graph == "off" else "auto"}):
        for _ in range(4):
            args = floats(4, 3, 4), floats(3, 4)
            assert_same(f(*args), g(*args))
    assert not any(s.startswith("captured") for s in states_of(f))


def test_loops_without_steps(fake_device):
    f, g = (symdnn.function(x, y, mode=m) for x, y, m in (summed(CUDA), summed(CPU)))
    for n in (0, 0, 0, 0, 3, 3, 3, 0):
        value = floats(n, 4)
        assert_same([f(value)], [g(value)])


def summed(mode):
    x = T.fmatrix("x")
    rows, _ = symdnn.scan(lambda row, acc: acc + row, [x], [T.zeros((4,), dtype="float32")])
    return [x], rows.sum(), mode


def test_a_length_of_too_many_kernels_keeps_no_other_from_its_graph(fake_device, monkeypatch):
    monkeypatch.setattr(LoopRunner, "most_nodes", 20)
    inputs, output, mode = summed(CUDA)
    f = symdnn.function(inputs, output, mode=mode)
    for n in (40, 40, 40, 4, 4, 4):
        value = floats(n, 4)
        np.testing.assert_allclose(f(value), value.cumsum(0).sum(), rtol=1e-4, atol=1e-4)
    assert any("captured with its loop, 4 steps" in s for s in states_of(f))


def test_loops_in_a_loop_become_graphs_whose_results_are_kept(fake_device):
    """The outer loop's states are results of the inner one, two of them at a time."""

    def outer(rows, before, last):
        states, _ = symdnn.scan(lambda r, h: T.tanh(h + r * before), [rows], [last])
        return states[-1], states.sum()

    def built(mode):
        x, h0 = T.ftensor4("x"), T.ftensor3("h0")
        init = [{"initial": h0, "taps": [-2, -1]}, None]
        (states, sums), _ = symdnn.scan(outer, [x], init)
        return symdnn.function([x, h0], [states, sums, *T.grad((states**2).sum(), [x])], mode=mode)

    f, g = built(CUDA), built(CPU)
    for _ in range(4):
        args = floats(5, 3, 2, 4), floats(2, 2, 4)
        assert_same(f(*args), g(*args))
    assert any("captured with its loop, 5 steps" in s for s in states_of(f))


def test_a_loop_whose_inputs_move_one_after_the_other_keeps_one_graph(monkeypatch):
    made = []

    class Captured:
        def __init__(self, device, inputs, moved, body):
            self.plans = body.plans
            made.append(set(moved))

        def run(self, inputs):
            return ["captured"]

    memory = SimpleNamespace(arena_bytes=0)
    bound = SimpleNamespace(loop_obstacle=lambda: "", runs=[1], memory=memory)
    body = SimpleNamespace(
        plans=[SimpleNamespace(bound=bound)], work=lambda inputs: ["by steps"], steps=lambda i: 5,
        is_current=lambda plans: True, forget_inner_graphs=lambda: None, is_ready=lambda: True,
        note_captured=lambda plans, inputs: None, most_nodes=100,
    )  # fmt: skip
    arena = SimpleNamespace(reserve=lambda nbytes: None)
    memory = SimpleNamespace(captures_host_values=False)
    device = SimpleNamespace(is_watched=False, arena=arena, memory=memory, enqueued=0)
    monkeypatch.setattr(loop_graph, "_Captured", Captured)
    graphs = loop_graph.LoopGraphs(device, fresh=False)
    inputs = [RawArray(1 << 20 | k << 8, (4,), "float32") for k in range(8)]
    found = []
    for call in range(24):
        k = call % len(inputs)
        inputs[k] = replace(inputs[k], ptr=inputs[k].ptr + (1 << 30))
        found += graphs.run(inputs, body)
    assert found[-16:] == ["captured"] * 16
    assert len(made) == loop_graph._CAPTURES_IN_PLACE + 1
    assert made[-1] == set(range(len(inputs)))
    graphs.forget(inputs[1:])
    assert graphs.signatures
    graphs.forget(inputs)  # one kernel runs the loop now
    assert not graphs.signatures


def test_an_index_of_the_host_is_checked_in_each_call(fake_device):
    """Its value is read after the plan was made for another one."""
    x, n = T.fmatrix("x"), T.lscalar("n")
    f = symdnn.function([x, n], x[1:, n] * 2, mode=CUDA)
    sums, _ = symdnn.scan(lambda i, total, x: total + x[1, i], [T.arange(n)],
                          [T.constant(np.float32(0))], [x])  # fmt: skip
    g = symdnn.function([x, n], sums, mode=CUDA)
    value = floats(3, 4)
    for n in (1, 2, 3, -4):
        np.testing.assert_allclose(f(value, n), value[1:, n] * 2)
    for n in (2, 4, 2, 3):
        np.testing.assert_allclose(g(value, n), value[1, :n].cumsum(), rtol=1e-5)
    for call, bad in ((f, 4), (f, -5), (g, 5)):
        with pytest.raises(IndexOutOfRange, match="out of range for axis . of size 4"):
            call(value, bad)
    np.testing.assert_allclose(f(value, 1), value[1:, 1] * 2)
