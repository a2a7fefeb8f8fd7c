"""Nodes of a GPU's plan in an order that frees large values early, and results made in place."""

from dataclasses import replace

import numpy as np
import pytest

import symdnn
import symdnn.gpu.execution.runtime as runtimes
import symdnn.tensor as T
from symdnn.compile.plan import memory_order
from symdnn.ops.lowered.fused_rows import FusedRows
from tests.gpu.reference_device import ReferenceRuntime

WIDTH = 64


def trained(rows, depth=3):
    """Perceptrons behind each other, whose hidden values are four times as wide."""
    x = T.tensor("float32", (rows, WIDTH), name="x")
    y, weights = x, []
    for _ in range(depth):
        pair = [
            symdnn.shared(np.ones(s, "float32")) for s in ((WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH))
        ]
        y = y + T.dot(T.nnet.gelu(T.dot(y, pair[0])), pair[1])
        weights += pair
    cost = (y**2).mean()
    updates = [(w, w - 0.1 * g) for w, g in zip(weights, symdnn.grad(cost, weights))]
    return [x], cost, updates


def planned(rows, **options):
    inputs, cost, updates = trained(rows)
    mode = symdnn.Mode(target="cuda:sm_90")
    f = symdnn.function(inputs, cost, updates=updates, mode=mode, **options)
    (plan,) = f.stages.specialise({"x": (rows, WIDTH)})
    return f, plan


def test_large_values_are_freed_early(monkeypatch):
    _, plan = planned(1 << 16)
    monkeypatch.setattr(memory_order, "_LARGE", 1 << 60)
    _, plain = planned(1 << 16)
    assert len(plan.specialised.segment.nodes) == len(plain.specialised.segment.nodes)
    hidden = (1 << 16) * 4 * WIDTH * 4
    assert plan.memory.arena_bytes <= plain.memory.arena_bytes - hidden


def test_small_values_stay_in_order():
    _, plan = planned(64)
    assert memory_order.ordered_by_size(plan.specialised) is plan.specialised


def test_every_node_comes_behind_what_it_reads():
    _, plan = planned(1 << 16)
    made = set()
    for n in plan.specialised.segment.nodes:
        own = {v for v in n.inputs if v.owner in plan.specialised.choices}
        assert own <= made
        made.update(n.outputs)


def test_fused_rows_are_made_in_place():
    x = T.tensor("float32", (256, WIDTH), name="x")
    w = symdnn.shared(np.ones((WIDTH, WIDTH), "float32"))
    s = T.dot(x, w) * 2
    e = T.exp(s - T.max(s, axis=1, keepdims=True))
    y = T.dot(e / e.sum(axis=1, keepdims=True) * 3, w)
    f = symdnn.function([x], y, mode=symdnn.Mode(target="cuda:sm_90"))
    (plan,) = f.stages.specialise({"x": (256, WIDTH)})
    rows = [n for n in plan.specialised.segment.nodes if isinstance(n.op, FusedRows)]
    assert rows
    assert all(plan.memory.in_place.get(n) == {0: 0} for n in rows)


@pytest.mark.parametrize("what", ["guard", "carried"])
def test_other_orders_stay(what):
    _, plan = planned(1 << 16)
    segment = replace(
        plan.specialised.segment, **{what: ((1, 2),) if what == "carried" else object()}
    )
    spec = replace(plan.specialised, segment=segment)
    assert memory_order.ordered_by_size(spec) is spec


def late_label(x, w):
    label = T.fmatrix("label")
    return [x, label], ((T.tanh(T.dot(x, w)) - label) ** 2).mean(), [(64, WIDTH)] * 2


def late_part(x, w):
    i = T.lscalar("i")
    data = symdnn.shared(np.ones((256, WIDTH), "float32"))
    y = T.tanh(T.dot(x, w)) * data[i * 64 : (i + 1) * 64]
    return [x, i], y.mean(), [(64, WIDTH), ()]


@pytest.mark.parametrize("program", [late_label, late_part])
def test_what_the_host_gives_comes_before_the_graph(program, monkeypatch):
    monkeypatch.setattr(memory_order, "_LARGE", 0)
    monkeypatch.setattr(runtimes, "_runtimes", {0: ReferenceRuntime()})
    w = symdnn.shared(np.ones((WIDTH, WIDTH), "float32"), name="w")
    inputs, cost, shapes = program(T.fmatrix("x"), w)
    mode = symdnn.Mode(target="cuda:sm_90")
    step = [(w, w - 0.1 * symdnn.grad(cost, w))]
    f = symdnn.function(inputs, cost, updates=step, mode=mode)
    for k in range(3):
        f(*(np.full(s, k, "float32") if s else np.int64(k) for s in shapes))
    (plan,) = f.plans()
    assert plan.bound.capture_state.startswith("captured")
