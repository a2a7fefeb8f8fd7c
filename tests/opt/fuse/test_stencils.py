"""Elementwise nodes that read neighbours become one node on a GPU, with the same values."""

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
from symdnn.graph.variable import Apply
from symdnn.ops.lowered.stencil import FusedStencil, needs_of
from symdnn.opt.fuse.fuse import fuse_elementwise
from symdnn.opt.fuse.stencils import fuse_stencils
from symdnn.rewriting.rewrite import Context
from tests.gpu.stencils import PROGRAMS, pad_by_one
from tests.seeded import new_rng

GPU = Target.parse("cuda:sm_90")
x = T.TensorType("float32", (9, 14))("x")


def stencils(outputs: list[Any], target: Target = GPU) -> list[Apply]:
    """The nodes that are made for functions of ``x``, whose values stay."""
    graph = FunctionGraph([x], outputs)
    context = Context(graph, target, capabilities=all_capabilities())
    fuse_elementwise.function(context)
    fuse_stencils.function(context)
    check_graph(graph)
    value = new_rng().integers(-4, 5, (9, 14)).astype("float32")
    before, after = evaluate(outputs, {x: value}), evaluate(graph.outputs, {graph.inputs[0]: value})
    for wanted, got in zip(before, after, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)
    return [n for n in graph.toposort() if isinstance(n.op, FusedStencil)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_one_node(name: str) -> None:
    program, arrays = PROGRAMS[name]
    inputs = [T.TensorType(a.dtype.name, a.shape)() for a in arrays]
    outputs = list(program(*inputs))
    f = symdnn.function(inputs, outputs, mode=symdnn.Mode(target="cuda:sm_90"))
    nodes = f.fgraph.toposort()
    assert sum(isinstance(n.op, FusedStencil) for n in nodes) == 1
    apart = {"Pad", "Roll", "FusedElemwise", "AdvancedSubtensor", "FusedIndexed"}
    assert apart.isdisjoint(type(n.op).__name__ for n in nodes)
    got = evaluate(f.fgraph.outputs, dict(zip(f.fgraph.inputs, arrays, strict=True)))
    wanted = evaluate(outputs, dict(zip(inputs, arrays, strict=True)))
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_a_stage_is_computed_where_others_read_it() -> None:
    y = T.exp(x)
    (node,) = stencils([y[1:] - y[:-1]])
    exponential, difference = node.op.stages
    assert (exponential.shape, difference.shape) == ((9, 14), (8, 14))
    needs = needs_of(node.op)
    assert needs is not None
    assert [n.reach for n in needs] == [((0, 1), (0, 0)), ((0, 0), (0, 0))]


def test_what_others_read_is_stored() -> None:
    y = T.exp(x)
    (node,) = stencils([y[1:] - y[:-1], y])
    assert len(node.outputs) == 2
    (node,) = stencils([y[1:] - y[:-1], T.dot(y, y.T)])
    assert len(node.outputs) == 2


def test_results_that_are_rolled_are_stored_there() -> None:
    (node,) = stencils([T.roll(T.roll(T.exp(x), 2, 0), -3, 1), x + 1])
    assert node.op.stored[0].shift == (2, 11)


@pytest.mark.parametrize(
    "make",
    [
        lambda: [x[1:] - x[:-1]],  # views of what is stored
        lambda: [T.exp(x), T.exp(x)[1:].sum(0)],  # no reader is elementwise
        lambda: [T.exp(x)[::2] + 1],
        lambda: [T.dot(T.pad(x, 1), np.ones((16, 3), "float32"))],
        lambda: [T.exp(T.dot(T.exp(x), np.ones((14, 14), "float32")))[1:]],
    ],
)
def test_others_stay(make: Callable[[], list[Any]]) -> None:
    assert stencils(make()) == []


@pytest.mark.parametrize(("size", "count"), [(2**30 - 1, 1), (2**30, 0), (2**31 + 5, 0)])
def test_places_along_an_axis_have_32_bits(size: int, count: int) -> None:
    v = T.TensorType("uint8", (size,))("v")
    y = v * v
    f = symdnn.function([v], y[1:] - y[:-1], mode=symdnn.Mode(target="cuda:sm_90"))
    assert sum(isinstance(n.op, FusedStencil) for n in f.fgraph.toposort()) == count


def test_far_neighbours_are_stored() -> None:
    """A tile would compute far more than it has; rolled operands are read where they are."""
    wide = T.TensorType("float32", (4096,))("wide")
    y = T.exp(wide)
    f = symdnn.function([wide], y[2048:] - y[:-2048], mode=symdnn.Mode(target="cuda:sm_90"))
    assert not any(isinstance(n.op, FusedStencil) for n in f.fgraph.toposort())


def test_no_cycle_through_a_node_outside() -> None:
    y = T.exp(x)
    total = T.dot(y, y.T)[:, :1]  # follows from y, and is read beside it
    assert stencils([y[:, 1:] - y[:, :-1] + total]) == []


def test_no_cycle_through_another_stencil() -> None:
    """Each of two groups reads what the other one stores, at other nodes."""
    row = T.TensorType("float32", (1, 14))("row")
    a, b = T.exp(x), T.tanh(row)
    total = a.sum(0, keepdims=True)  # so that the second one cannot be a part of the first
    outputs = [T.roll(a, 1, 1) * b, T.roll(b, 1, 1) * total]
    f = symdnn.function([x, row], outputs, mode=symdnn.Mode(target="cuda:sm_90"))
    assert sum(isinstance(n.op, FusedStencil) for n in f.fgraph.toposort()) == 1


def test_a_mirror_image_has_no_place_beyond_the_other_end() -> None:
    y = T.exp(x[:3])
    for places in ([2, 2, 1, 0, 1, 2], [0, 1, 2, 1, 0, 0]):
        assert stencils([T.exp(y[places]) + 1]) == []


def test_unknown_sizes_and_a_cpu_are_left_alone() -> None:
    u = T.fmatrix("u")
    f = symdnn.function([u], pad_by_one(u)[2:] * 2, mode=symdnn.Mode(target="cuda:sm_90"))
    assert not any(isinstance(n.op, FusedStencil) for n in f.fgraph.toposort())
    y = T.exp(x)
    assert stencils([y[1:] - y[:-1]], Target("cpu")) == []


def test_a_sum_of_parts_that_are_read_is_no_reduction() -> None:
    f = T.TensorType("float32", (3, 5, 7))("f")
    for result, reduced in [(f.sum(0) * f[0] * f[1], False), (f.sum(0) * f[0], True)]:
        g = symdnn.function([f], result, mode=symdnn.Mode(target="cuda:sm_90"))
        ops = [type(n.op).__name__ for n in g.fgraph.toposort()]
        assert any("Redu" in name for name in ops) == reduced
        value = new_rng().standard_normal((3, 5, 7)).astype("float32")
        (got,) = evaluate(g.fgraph.outputs, {g.fgraph.inputs[0]: value})
        np.testing.assert_allclose(got, evaluate([result], {f: value})[0], rtol=1e-5, atol=1e-6)
