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
from symdnn.graph.type import TensorType
from symdnn.ops.array.reduce import Reduce
from symdnn.ops.core.scalar import Builder
from symdnn.ops.core.shape import DimShuffle
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.lowered.fused import FusedElemwise
from symdnn.opt.fuse.views import reductions_before_views, views_before_elementwise
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
        lambda: [turn(T.exp(x)) * y, turn(T.exp(x)) + b],  # several readers in one order
        lambda: [turn(T.exp(x) * x) * y, turn(T.exp(x)) * b],
        lambda: [turn(T.exp(x) * T.tanh(x)) * y, turn(T.tanh(x)) * turn(T.exp(x))],
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


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.kind)
def test_a_fused_node_of_one_result_is_turned_too(target):
    builder = Builder(["float32"])
    (made,) = FusedElemwise(builder.program([builder.call("exp", builder.input(0))]))(x)
    graph = turned([turn(made) * y], target)
    assert all(n.inputs[0].owner is None for n in graph.toposort() if isinstance(n.op, DimShuffle))


def reduced_in_place(outputs: list[Any], shape: tuple[Any, ...]) -> FunctionGraph:
    """The graph after :func:`reductions_before_views`, its values compared with those before."""
    z = TensorType("float32", shape)("z")
    made = [output(T.tanh(z)) for output in outputs]
    graph = FunctionGraph([z], made)
    reductions_before_views.function(Context(graph, Target.parse("cuda:sm_90")))
    check_graph(graph)
    array = new_rng().standard_normal([n or 4 for n in shape]).astype("float32")
    for wanted, got in zip(
        evaluate(made, {z: array}), evaluate(graph.outputs, {graph.inputs[0]: array})
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)
    return graph


@pytest.mark.parametrize(
    "output",
    [
        lambda h: h.dimshuffle(0, 3, 2).sum(axis=(0, 2)),
        lambda h: h.dimshuffle(3, 0, 2).sum(axis=1),
        lambda h: h.dimshuffle(2, "x", 0, 3).max(axis=0),
        lambda h: h.dimshuffle(3, 2, "x", 0).sum(axis=(1, 2)),
    ],
)
def test_a_reduction_of_a_view_reduces_what_is_in_memory(output):
    graph = reduced_in_place([output], (None, 1, None, None))
    (node,) = (n for n in graph.toposort() if isinstance(n.op, Reduce))
    assert node.inputs[0].owner.op == T.tanh(x).owner.op


@pytest.mark.parametrize(
    "output",
    [
        lambda h: h.dimshuffle(3, 0, 2).sum(axis=1, keepdims=True),
        lambda h: h.dimshuffle(3, 0, 2).argmax(axis=1),
        lambda h: h.dimshuffle(0, 1, 2, 3, "x").sum(axis=4),
    ],
)
def test_other_reductions_of_views_stay(output):
    graph = reduced_in_place([output], (None, 1, None, None))
    assert any(isinstance(n.inputs[0].owner and n.inputs[0].owner.op, DimShuffle)
               for n in graph.toposort() if isinstance(n.op, Reduce))  # fmt: skip
