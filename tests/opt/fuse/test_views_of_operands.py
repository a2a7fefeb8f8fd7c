"""Groups whose operands are views with their axes in one other order."""

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
from symdnn.ops.core.shape import DimShuffle
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.lowered.gathered import FusedIndexed
from symdnn.opt.fuse.views import groups_as_operands_lie
from symdnn.rewriting.rewrite import Context
from tests.seeded import new_rng

x, y = (TensorType("float32", (2, 3, 4, 5))(n) for n in "xy")
b = TensorType("float32", (2, 3, 4))("b")


def first(v: Any) -> Any:
    return DimShuffle((0, 3, 1, 2))(v)


def last(v: Any) -> Any:
    return DimShuffle((0, 2, 3, 1))(v)


def turned(outputs: list[Any]) -> FunctionGraph:
    graph = FunctionGraph([x, y, b], outputs)
    groups_as_operands_lie.function(Context(graph, Target.parse("cuda:sm_90")))
    check_graph(graph)
    rng = new_rng()
    arrays = [rng.standard_normal(v.type.shape).astype("float32") for v in (x, y, b)]
    before = evaluate(outputs, dict(zip([x, y, b], arrays)))
    after = evaluate(graph.outputs, dict(zip(graph.inputs, arrays)))
    for wanted, got in zip(before, after):
        np.testing.assert_allclose(got, wanted, 1e-5)
    return graph


def reads_turned(graph: FunctionGraph) -> bool:
    """Whether an elementwise node reads an operand of four axes in the other order."""
    views = [v.owner for n in graph.toposort() if isinstance(n.op, Elemwise) for v in n.inputs]
    return any(v is not None and v.op == DimShuffle((0, 3, 1, 2)) for v in views)


OVER = DimShuffle((0, "x", 1, 2))


@pytest.mark.parametrize(
    "outputs",
    [
        lambda: [last(first(x) * OVER(b))],
        lambda: [last(first(x) * first(y))],
        lambda: [(first(x) * OVER(b)).sum()],
        lambda: [last(v := first(x) * OVER(b)), v.max()],
    ],
)
def test_they_run_in_the_order_of_the_operands(outputs: Any) -> None:
    graph = turned(outputs())
    assert not reads_turned(graph)
    assert not any(n.op == DimShuffle((0, 2, 3, 1)) for n in graph.toposort())


@pytest.mark.parametrize(
    "outputs",
    [
        lambda: [first(x) * OVER(b)],  # it is a result
        lambda: [last(first(x) * x.reshape((2, 5, 3, 4)))],  # one operand is not turned
        lambda: [first(T.exp(first(x)))],  # its reader turns it on
        lambda: [(first(x) * OVER(b)).sum(axis=1)],  # a part of the axes stays
        lambda: [last(T.exp(v := first(x) * OVER(b))), v],  # something else reads it
    ],
)
def test_other_readers_and_operands_leave_them_alone(outputs: Any) -> None:
    assert reads_turned(turned(outputs()))


def test_gathers_of_arrays_with_channels_last_are_read_where_they_are_used() -> None:
    image, at = TensorType("float32", (2, 9, 9, 8))("image"), T.lmatrix("at")
    n = np.arange(2)[:, None]
    wide = [first(image[n, at, at + k][:, :, None]) for k in (0, 1)]
    loss = T.sum((wide[0] * 2 + wide[1]) ** 2)
    f = symdnn.function(
        [image, at], [loss, symdnn.grad(loss, image)], mode=symdnn.Mode(target="cuda:sm_90")
    )
    loops = [node.op for node in f.fgraph.toposort() if isinstance(node.op, FusedIndexed)]
    assert any(len([r for r in op.reads if r is not None]) == 2 for op in loops)
