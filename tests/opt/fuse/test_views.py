"""Permutations between elementwise nodes, which would part their group."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.graph.check import check_graph
from symdnn.graph.evaluate import evaluate
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.target import Target
from symdnn.ops.core.shape import DimShuffle
from symdnn.ops.elemwise import Elemwise
from symdnn.opt.fuse.views import views_before_elementwise
from symdnn.rewriting.rewrite import Context
from tests.seeded import new_rng

TARGETS = [Target("cpu"), Target.parse("cuda:sm_90")]
x, y, b = T.fmatrix("x"), T.fmatrix("y"), T.fvector("b")


def turned(outputs: list[Any], target: Target) -> FunctionGraph:
    graph = FunctionGraph([x, y, b], outputs)
    views_before_elementwise.function(Context(graph, target))
    check_graph(graph)
    rng = new_rng()
    arrays = [rng.standard_normal(s).astype("float32") for s in ((4, 4), (4, 4), (4,))]
    before = evaluate(outputs, dict(zip([x, y, b], arrays)))
    after = evaluate(graph.outputs, dict(zip(graph.inputs, arrays)))
    for wanted, got in zip(before, after):
        np.testing.assert_array_equal(got, wanted)
    return graph


def views_of_results(graph: FunctionGraph) -> int:
    """How many dimshuffles read an elementwise node."""
    found = [n.inputs[0].owner for n in graph.toposort() if isinstance(n.op, DimShuffle)]
    return sum(maker is not None and isinstance(maker.op, Elemwise) for maker in found)


def turn(v: Any) -> Any:
    return DimShuffle((1, 0))(v)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.kind)
@pytest.mark.parametrize(
    "outputs",
    [
        lambda: [turn(T.exp(x)) * y],
        lambda: [turn(T.exp(x * 2 + y)) * y],
        lambda: [turn(T.exp(turn(x)) + y) * turn(turn(y) - x)],
        lambda: [turn(T.exp(x) + DimShuffle(("x", 0))(b)) * y],
        lambda: [turn(T.exp(x)).sum(axis=1)],
        lambda: [DimShuffle((0, "x", 1))(T.exp(x)) * DimShuffle((0, "x", 1))(T.tanh(y))],
    ],
)
def test_an_elementwise_node_computes_in_the_order_of_its_readers(outputs, target):
    assert views_of_results(turned(outputs(), target)) == 0


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.kind)
@pytest.mark.parametrize(
    "outputs",
    [
        lambda: [turn(T.exp(x))],  # it is a result
        lambda: [turn(T.exp(x)) * y, T.exp(x)],  # others read it as it is
        lambda: [T.dot(turn(T.exp(x)), y)],  # a product reads it
        lambda: [DimShuffle((0, 1, "x"))(T.exp(x)) * DimShuffle((0, "x", 1))(y)],  # repeats it
    ],
)
def test_what_would_be_computed_twice_or_alone_stays(outputs, target):
    assert views_of_results(turned(outputs(), target)) >= 1


def test_a_gradient_through_turned_operands_is_one_kernel_on_each_side():
    f = symdnn.function(
        [x, y], T.grad((turn(T.tanh(x)) * y).sum(), [x, y]), mode=symdnn.Mode(target="cuda:sm_90")
    )
    kernels = [n for n in f.fgraph.toposort() if "Fused" in str(n.op)]
    assert len(kernels) <= 2
