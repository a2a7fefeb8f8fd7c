"""Elementwise nodes that take reductions over all elements, on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.compile.program.capabilities import all_capabilities
from symdnn.graph.check import check_graph
from symdnn.graph.evaluate import evaluate
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.target import Target
from symdnn.ops.control.control import ifelse
from symdnn.ops.core.scalar import Builder
from symdnn.ops.lowered.fused import FusedElemwise, FusedElemwiseReduce, FusedReduce
from symdnn.opt.fuse import apart, fuse, siblings, whole_sums
from symdnn.rewriting.rewrite import Context
from tests.seeded import new_rng

GPU = Target.parse("cuda:sm_90")
x, y, w = (T.TensorType("float32", (4, 6))(v) for v in "xyw")
mask = T.TensorType("bool", (4, 6))("mask")
n = T.TensorType("float32", ())("n")


#: The rule and those before it.
RULES = (fuse.fuse_elementwise, fuse.fuse_reductions, apart.fuse_reductions_apart,
         siblings.fuse_sibling_reductions, whole_sums.fuse_whole_sums)  # fmt: skip


def fused(
    inputs: list[Any], outputs: list[Any], target: Target = GPU, rules: Any = RULES
) -> FunctionGraph:
    """The graph after fusion; its values must be those before, and it has no cycle."""
    graph = FunctionGraph(inputs, outputs)
    context = Context(graph, target, capabilities=all_capabilities())
    for rule in rules:
        rule.function(context)
    check_graph(graph)
    rng = new_rng()
    values = [(2 * rng.standard_normal(v.type.shape)).astype(v.type.numpy) for v in inputs]
    before = evaluate(outputs, dict(zip(inputs, values)))
    after = evaluate(graph.outputs, dict(zip(graph.inputs, values)))
    for a, b in zip(before, after, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_allclose(b, a, 1e-5, 1e-6)
    return graph


def made(graph: FunctionGraph) -> list[Any]:
    return [n for n in graph.toposort() if isinstance(n.op, FusedElemwiseReduce)]


def loss_and_slope(loss: Callable[[Any], Any], v: Any) -> list[Any]:
    value = loss(v)
    return [value, symdnn.grad(value, v)]


LOSSES: dict[str, Callable[[Any], Any]] = {
    "squares": lambda v: T.sqr(v - y).mean(),
    "absolutes": lambda v: T.abs(v - y).sum(),
    "logistic": lambda v: (T.softplus(v) - y * v).mean(),
    "masked": lambda v: T.switch(mask, T.sqr(v - y), 0).sum() / mask.astype("float32").sum(),
    "the largest": lambda v: T.exp(v).sum(),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_summed_where_its_gradient_is_computed(name: str) -> None:
    graph = fused([x, y, mask], loss_and_slope(LOSSES[name], x))
    (node,) = made(graph)
    assert len(node.op.reductions) == 1


def test_sums_that_the_elementwise_node_depends_on_stay() -> None:
    """The number of elements is counted first: it reads the mask alone."""
    graph = fused([x, y, mask], loss_and_slope(LOSSES["masked"], x))
    (counts,) = [n for n in graph.toposort() if isinstance(n.op, FusedReduce)]
    assert [v.type.dtype for v in counts.inputs] == ["bool"]


@pytest.mark.parametrize("several", [False, True])
def test_scalars_between_are_computed_apart(several: bool) -> None:
    """One node makes the scalar that is written into ``x`` and one that follows from a sum."""
    total = w.sum()
    whole = [T.set_subtensor(x[0, 0], T.sin(total)) * y + x, x.sum() * T.cos(total)]
    graph = fused([x, y, w], [*whole, x.max()] if several else whole)
    (node,) = made(graph)
    assert len(node.op.reductions) == 1 + several


def test_what_reads_a_sum_depends_on_all_that_its_new_node_reads() -> None:
    a, b, c = x.sum(), T.sqr(w).sum(), y.sum()
    one = (T.tanh(x * a) * w + T.tanh(b * b)) * y + b
    other = (T.tanh(y * T.tanh(b * b)) * T.tanh(w * c) + c) * x + b
    fused([x, y, w], [one, other], rules=[whole_sums.fuse_whole_sums])


def test_what_a_node_of_scalars_names_and_does_not_read_is_left_out() -> None:
    builder, total = Builder(["float32"] * 2), y.sum()
    unread = FusedElemwise(builder.program([builder.input(0) * 2]))
    graph = fused([y, n], [y * unread(n, total), total], rules=[whole_sums.fuse_whole_sums])
    assert made(graph)


def test_a_stored_value_is_summed() -> None:
    d = T.exp(x) - y
    graph = fused([x, y], [d, (d * d).sum(), abs(d).max()])
    (node,) = made(graph)
    assert {type(r).__name__ for r in node.op.reductions} == {"Sum", "Max"}
    assert len(node.op.program.outputs) == 3


def test_what_only_the_sum_reads_is_no_result() -> None:
    """A kernel has four results of its size, and the sum of a fifth value."""
    v = x * y
    graph = fused([x, y, w], [T.sqr(v).sum(), v * w, v + w, v - w, T.exp(v) * w])
    (node,) = made(graph)
    assert len(node.outputs) == 5
    graph = fused([x, y, w], [T.sqr(v).sum(), v * w, v + w, v - w, T.exp(v) * w, v / w])
    assert not made(graph)


def test_of_several_nodes_one_that_saves_most() -> None:
    graph = fused([x, y, w], [T.exp(w), x * y, (x * T.sqr(y)).sum(), T.log1p(w * w).sum()])
    found = made(graph)
    assert [len(n.op.reductions) for n in found] == [1, 1]


def test_several_reductions_join_one_after_another() -> None:
    total = (x * y).sum()
    graph = fused([x, y], [T.exp(x) * y, total, (x * y * total).sum()])
    (node,) = made(graph)
    assert len(node.op.reductions) == 1  # of two, the second of which follows from the first
    graph = fused([x, y], [T.exp(x) * y, x.sum(), x.min(), y.max(), T.sqr(y).sum()])
    (node,) = made(graph)
    assert len(node.op.reductions) == 4


OTHERS: dict[str, Callable[[], list[Any]]] = {
    "a node depends on it": lambda: [x / T.sqr(x).sum()],
    "over rows": lambda: [T.exp(x) * y, T.sqr(x).sum(1)],
    "little is saved": lambda: [T.exp(x) * y * w, (mask * 1.0).sum(), T.switch(mask, x, y)],
    "nothing is read together": lambda: [T.exp(x), T.sqr(y).sum()],
    "in another order": lambda: [T.exp(x) * y, T.argmax(x)],
    "needed in other calls": lambda: [ifelse(T.gt(n, 0), T.exp(x) * y, y), T.sqr(x).sum()],
    "a scalar": lambda: [T.exp(n), n.sum()],
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_stay(name: str) -> None:
    outputs = OTHERS[name]()
    graph = fused([x, y, w, mask, n], outputs)
    assert not made(graph)


def test_only_on_a_gpu() -> None:
    assert not made(fused([x, y], [T.exp(x) * y, T.sqr(x).sum()], Target("cpu")))


def test_new_values_of_shared_variables_are_written_where_they_lie() -> None:
    s = symdnn.shared(np.zeros((4, 6), "float32"), "s")
    new = s - 0.1 * x
    mode = symdnn.Mode(target="cuda:sm_90")
    f = symdnn.function([x], T.sqr(new).sum(), updates=[(s, new)], mode=mode)
    assert not made(f.fgraph)
    g = symdnn.function([x], [T.sqr(new).sum(), new], mode=mode)
    assert len(made(g.fgraph)) == 1
