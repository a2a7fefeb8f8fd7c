"""Gathers that a scatter alone reads become one node with it, on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.graph.check import check_graph
from symdnn.graph.evaluate import evaluate
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.target import Target
from symdnn.ops.lowered.gathered import AddGathered
from symdnn.opt.fuse.gathers import fuse_gathers
from symdnn.rewriting.rewrite import Context
from tests.seeded import new_rng

GPU = Target.parse("cuda:sm_90")
x, h = T.fmatrix("x"), T.fmatrix("h")
i, j, n = T.lvector("i"), T.lvector("j"), T.lscalar("n")
INPUTS = [x, h, i, j, n]


def fused(outputs: list[Any], target: Target = GPU) -> int:
    """How many nodes were made; the values stay."""
    graph = FunctionGraph(INPUTS, outputs)
    fuse_gathers.function(Context(graph, target))
    check_graph(graph)
    rng = new_rng()
    arrays = [rng.standard_normal(s).astype("float32") for s in ((5, 4), (7, 4))]
    given = [*arrays, rng.integers(-5, 5, 9), rng.integers(-7, 7, 9), np.array(2)]
    before = evaluate(outputs, dict(zip(INPUTS, given)))
    after = evaluate(graph.outputs, dict(zip(graph.inputs, given)))
    for wanted, got in zip(before, after):
        np.testing.assert_array_equal(got, wanted)
    return sum(isinstance(node.op, AddGathered) for node in graph.toposort())


def added(value: Any) -> Any:
    return T.inc_subtensor(x[i], value)


def test_rows_are_added_as_they_are_gathered() -> None:
    assert fused([added(h[j])]) == 1
    assert fused([T.inc_subtensor(T.zeros_like(x)[i], h[j]) * 2]) == 1
    assert fused([T.inc_subtensor(x[i, 1:], h[j, :3])]) == 1
    assert fused([T.inc_subtensor(x[i, j % 4], h[j, i % 4])]) == 1


@pytest.mark.parametrize(
    "outputs",
    [
        lambda: [added(h[j]), h[j]],  # it is a result
        lambda: [added(h[j]), h[j].sum()],  # others read it
        lambda: [T.set_subtensor(x[i], h[j])],  # the last one stays
        lambda: [added(h[j] * 2)],
        lambda: [T.inc_subtensor(x[i], x[i])],  # of the array itself
        lambda: [T.inc_subtensor(x[i, n:], h[j, 2:])],  # bounds that the host reads
        lambda: [
            T.inc_subtensor(x.astype("bfloat16")[i], h.astype("bfloat16")[j]).astype("float32")
        ],
    ],
)
def test_others_stay(outputs: Any) -> None:
    assert fused(outputs()) == 0


def test_a_processor_and_sums_in_a_fixed_order_have_both() -> None:
    assert fused([added(h[j])], Target("cpu")) == 0
    with config.change_flags(deterministic="more"):
        assert fused([added(h[j])]) == 0


def test_messages_and_their_gradient_are_one_node_each() -> None:
    sent = T.inc_subtensor(T.zeros_like(h)[i], T.tanh(h)[j])
    cost = T.sqr(sent).sum()
    f = symdnn.function([h, i, j], T.grad(cost, h), mode=symdnn.Mode(target="cuda:sm_90"))
    names = [type(node.op).__name__ for node in f.fgraph.toposort()]
    assert names.count("AddGathered") == 2
    assert not any(name.startswith("Advanced") for name in names)


@pytest.mark.gpu
def test_messages_on_a_device() -> None:
    rng = new_rng()
    nodes, edges = 300, 5000
    a = rng.standard_normal((nodes, 12)).astype("float32")
    places = [rng.integers(-nodes, nodes, edges) for _ in range(2)]
    sent = T.inc_subtensor(T.zeros_like(h)[i], T.tanh(h)[j])
    outputs = [sent, T.grad(T.sqr(sent).sum(), h)]
    got = symdnn.function([h, i, j], outputs, mode=symdnn.Mode(target="cuda"))(a, *places)
    wanted = symdnn.function([h, i, j], outputs, mode=symdnn.Mode(target="cpu"))(a, *places)
    for one, other in zip(got, wanted):
        np.testing.assert_allclose(np.asarray(one), other, rtol=1e-4, atol=1e-3)
