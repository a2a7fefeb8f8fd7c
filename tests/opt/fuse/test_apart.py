"""Reductions beside other readers of an elementwise node, and reductions of the same elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.compile.program.capabilities import all_capabilities
from symdnn.gpu import dnn
from symdnn.graph.check import check_graph
from symdnn.graph.evaluate import evaluate
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.target import Target
from symdnn.ops.control.control import ifelse
from symdnn.ops.lowered.fused import FusedElemwise, FusedReduce
from symdnn.ops.vendor.gpudnn_rnn import GpuDnnRNNGradWeights
from symdnn.opt.fuse import apart, fuse, siblings
from symdnn.rewriting.rewrite import Context

GPU = Target.parse("cuda:sm_90")
#: A reduction over all axes, over the first and last ones, over a middle one.
AXES = (None, (0, 2), (1,))


def fused(inputs: list[Any], outputs: list[Any], target: Target = GPU) -> FunctionGraph:
    """The graph after fusion; its values must be those before, and it has no cycle."""
    graph = FunctionGraph(inputs, outputs)
    context = Context(graph, target, capabilities=all_capabilities())
    for rule in (fuse.fuse_elementwise, fuse.fuse_reductions, apart.fuse_reductions_apart,
                 siblings.fuse_sibling_reductions):  # fmt: skip
        rule.function(context)
    check_graph(graph)
    rng = np.random.default_rng(1)
    shapes = [[n or 4 for n in v.type.shape] for v in inputs]
    values = [rng.standard_normal(s).astype(v.type.numpy) for s, v in zip(shapes, inputs)]
    before = evaluate(outputs, dict(zip(inputs, values)))
    after = evaluate(graph.outputs, dict(zip(graph.inputs, values)))
    for a, b in zip(before, after, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        rounded = 2e-2 if a.dtype.itemsize == 2 else 1e-10
        np.testing.assert_allclose(b.astype("float64"), a.astype("float64"), rounded, rounded)
    return graph


def kinds(graph: FunctionGraph) -> list[str]:
    """Names of ops that are no views, in alphabetical order."""
    names = sorted(type(n.op).__name__ for n in graph.toposort())
    return [n for n in names if n not in {"DimShuffle", "Reshape", "ShapeI"}]


def reductions(graph: FunctionGraph) -> list[Any]:
    return [n for n in graph.toposort() if isinstance(n.op, FusedReduce)]


x, y = T.TensorType("float64", (4, 5, 6))("x"), T.TensorType("float64", (4, 5, 6))("y")
row = T.TensorType("float64", (1, 5, 1))("row")


# -- apart ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("axes", AXES)
def test_what_only_a_sum_reads_is_not_stored(axes: Any) -> None:
    d = x - y
    graph = fused([x, y], [d, (d * d).sum(axes)])
    assert kinds(graph) == ["FusedReduce", "Sub"] or kinds(graph) == [
        "FusedElemwise",
        "FusedReduce",
    ]
    (made,) = reductions(graph)
    assert len(set(made.inputs)) == 1  # what is stored anyway


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_one_other_kernel_reads_is_computed_by_it(dtype: str) -> None:
    a, b = (T.TensorType(dtype, (4, 5, 6))(n) for n in "ab")
    d = a - b
    loss = (d * d).sum((0, 2), keepdims=True)
    graph = fused([a, b], [d * loss])
    assert kinds(graph) == ["FusedElemwise", "FusedReduce"]
    assert all(set(graph.inputs) >= set(n.inputs[:2]) for n in reductions(graph))


def test_several_sums_are_one_kernel_for_each_set_of_axes() -> None:
    d = x - y
    middle = [(d * d).sum(1), (d * y).sum(1), d.max(1)]
    every = [(d * d * d).sum((0, 2)), abs(d).sum((0, 2))]
    graph = fused([x, y], [d, *middle, *every])
    found = [len(n.outputs) for n in reductions(graph)]
    assert sorted(found) == [2, 3]


def test_a_huge_program_is_not_computed_twice() -> None:
    d = x
    for _ in range(12):
        d = T.tanh(T.exp(d) * y)
    assert not reductions(fused([x, y], [T.sin(d), d * 2, (d * y).sum((0, 2))]))


def test_sums_of_long_rows_and_columns_are_left_to_their_kernels() -> None:
    a, b = (T.TensorType("float64", (40, 64))(n) for n in "ab")
    for axis in (0, 1):
        d = a - b
        graph = fused([a, b], [T.exp(d), (d * d).sum(axis)])
        (node,) = [n for n in graph.toposort() if isinstance(n.op, FusedElemwise)]
        assert len(node.outputs) == 2


def test_products_that_no_operand_has_whole_are_not_stored() -> None:
    """Forces between pairs: kernels of columns need an operand of the size."""
    k = T.TensorType("float64", (40, 40, 1))("k")
    a = T.TensorType("float64", (40, 3))("a")
    force = k * (a.dimshuffle(0, "x", 1) - a.dimshuffle("x", 0, 1))
    graph = fused([k, a], [force.sum(0), force.sum(1)])
    assert kinds(graph) == ["FusedReduce", "FusedReduce"]


def test_slices_of_one_array_are_read_by_sums_again() -> None:
    d = x[:, :, 1:] - x[:, :, :-1]
    graph = fused([x], [T.sgn(d), -T.sgn(d), abs(d).sum()])
    (made,) = reductions(graph)
    assert kinds(graph) == ["FusedElemwise", "FusedReduce", "Subtensor", "Subtensor"]
    assert len(made.inputs) == 2


def test_what_a_sum_reads_keeps_the_size() -> None:
    graph = fused([x, row], [x * row, T.exp(row * T.ones((4, 5, 6))).sum()])
    check_graph(graph)


def test_what_sums_and_a_later_node_read_is_computed_by_both() -> None:
    """A loss that is divided by a number of elements has such a gradient."""

    def stored(*more: Any) -> list[Any]:
        p = T.exp(x) * T.sqr(x)
        part = y.sum(axis=(0, 2), keepdims=True)
        graph = fused([x, y], [(p * part).sum(), p * x / y.sum(), *(f(p) for f in more)])
        readers = [*reductions(graph), *(n for n in graph.nodes if isinstance(n.op, FusedElemwise))]
        makers = [v.owner for n in readers for v in n.inputs if v.owner is not None]
        return [
            m for m in makers if isinstance(m.op, FusedElemwise) and m.outputs[0].type == x.type
        ]

    assert not stored()
    assert stored(lambda p: p)  # it is a result
    assert stored(lambda p: p.sum(axis=1))  # and a sum of some axes reads it


@pytest.mark.parametrize(("function", "cut"), [(abs, False), (T.tanh, True)])
def test_sums_of_everything_do_not_cut_a_chain(function: Any, cut: bool) -> None:
    """They compute a long chain again and nothing of it is stored, unless that costs more."""
    c = [T.TensorType("float64", (1, 1, 1))(f"c{i}") for i in range(12)]
    value, powers = c[-1] * x, []
    for own in c[:-1]:
        value = function(value * x + own)
        powers.append(value)
    graph = fused([x, *c], [value * x, *((p * x).sum() for p in powers)])
    made = [len(n.outputs) for n in graph.nodes if isinstance(n.op, FusedElemwise)]
    assert (sum(made) > 1) == cut


def test_what_repeats_in_a_sum_is_not_computed_for_each_element() -> None:
    p = T.exp(row) * T.sqr(row)
    graph = fused([x, row], [(p * x).sum() * p])
    (made,) = reductions(graph)
    assert [v for v in made.inputs if v.owner is not None and isinstance(v.owner.op, FusedElemwise)]


def test_nothing_is_done_on_a_cpu() -> None:
    d = x - y
    graph = fused([x, y], [d, (d * d).sum((0, 2))], Target(kind="cpu"))
    assert "Sum" in kinds(graph) or reductions(graph)


# -- siblings -------------------------------------------------------------------------------------


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("keep", [False, True])
def test_reductions_of_one_array_are_one_kernel(axes: Any, keep: bool) -> None:
    outs = [
        x.sum(axes, keepdims=keep),
        x.max(axes, keepdims=keep),
        (x * y).sum(axes, keepdims=keep),
    ]
    (made,) = reductions(fused([x, y], outs))
    assert len(made.outputs) == 3


@pytest.mark.parametrize("keep", [False, True])
def test_a_sum_over_more_axes_is_one_of_the_others_results(keep: bool) -> None:
    outs = [(x * y).sum((0, 2), keepdims=keep), (x + y).sum(), x.max((0, 1, 2), keepdims=keep)]
    graph = fused([x, y], outs)
    (made,) = reductions(graph)
    assert len(made.outputs) == 3
    assert [n.inputs[0].type.shape for n in graph.toposort() if n not in (made,) and not
            isinstance(n.op, FusedElemwise) and n.inputs[0].owner is made]  # fmt: skip


def test_sums_over_other_axes_stay() -> None:
    graph = fused([x], [x.sum(1), x.sum((0, 2))])
    assert kinds(graph) == ["Sum", "Sum"]


def test_a_reduction_that_follows_from_another_stays() -> None:
    mean = x.mean((0, 2), keepdims=True)
    graph = fused([x], [mean, ((x - mean) ** 2).sum((0, 2))])
    assert all(len(n.outputs) == 1 for n in reductions(graph))


def test_two_pairs_that_cross_are_not_both_joined() -> None:
    """Of a and d, and of b and c, where c follows from a, and d from b: one pair alone."""
    a, b = x.sum((0, 2), keepdims=True), y.sum((0, 2), keepdims=True)
    c, d = (y * a).sum((0, 2), keepdims=True), (x * b).sum((0, 2), keepdims=True)
    graph = fused([x, y], [c, d])
    assert max(len(n.outputs) for n in reductions(graph)) == 2


def test_no_more_than_a_kernel_may_have() -> None:
    outs = [(x * k).sum(1) for k in range(2, 9)]
    graph = fused([x], outs)
    assert sorted(len(n.outputs) for n in reductions(graph)) == [3, 4]


def test_reductions_of_lazy_branches_stay_lazy() -> None:
    c = T.bscalar("c")
    f = symdnn.function(
        [c, x], [x.sum((0, 2)), ifelse(c, (x * x).sum((0, 2)), x[0, :, 0])],
        mode=symdnn.Mode(target="cuda:sm_90"),
    )  # fmt: skip
    assert all(len(n.outputs) == 1 for n in reductions(f.fgraph))


def test_readers_of_values_that_are_no_arrays_stay():
    """The gradient of a recurrent network reads a loss's own gradient, and an opaque reserve."""
    block = dnn.RNNBlock("float32", 4, 1, "lstm")
    w = symdnn.shared(np.zeros(block.get_param_size(3), "float32"))
    v, h, c = T.tensor3("v"), T.tensor3("h"), T.tensor3("c")
    loss = (block.apply(w, v, h, c)[0] ** 2).sum()
    mode = symdnn.Mode(target="cuda:sm_90")
    f = symdnn.function([v, h, c], [loss, T.grad(loss, w)], mode=mode)
    assert any(isinstance(n.op, GpuDnnRNNGradWeights) for n in f.fgraph.toposort())
