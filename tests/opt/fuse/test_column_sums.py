"""Sums by columns join the elementwise node whose results they read; kernels by the emulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.nn as nn
import symdnn.tensor as T
from symdnn.gpu.binding.nvrtc import compile_cubin
from symdnn.gpu.kernels.fused_rows import FusedRowsKernel
from symdnn.graph.check import check_graph
from symdnn.graph.evaluate import evaluate
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.target import Target
from symdnn.graph.type import TensorType
from symdnn.ops.elementwise.arithmetic import cast
from symdnn.ops.lowered.fused_rows import FusedRows
from symdnn.opt.fuse import column_sums, fuse, row_rules
from symdnn.rewriting.rewrite import Context
from tests.gpu.table import concrete
from tests.opt.fuse.test_row_rules import emulated, ops, refused
from tests.seeded import new_rng

GPU = Target.parse("cuda:sm_90")


def arrays(*dtypes: str, shape: tuple[Any, ...] = (None, None, 40)) -> list[Any]:
    return [TensorType(d, shape)(f"x{i}") for i, d in enumerate(dtypes)]


def fused(
    inputs: list[Any], outputs: list[Any], tolerance: float, shape: tuple[int, ...] = (3, 5, 40)
) -> FunctionGraph:
    """The graph after fusion; its values are those from before, also by the kernels' text."""
    graph = FunctionGraph(inputs, outputs)
    rules = (
        fuse.fuse_elementwise, fuse.fuse_reductions, row_rules.fuse_rows,
        column_sums.fuse_column_sums,
    )  # fmt: skip
    for rule in rules:
        rule.function(Context(graph, GPU))
    check_graph(graph)
    rng, given = new_rng(), []
    for v in inputs:
        own = shape[len(shape) - v.type.ndim :]
        sizes = tuple(n or s for n, s in zip(v.type.shape, own, strict=True))
        given.append((rng.standard_normal(sizes) + 0.5).astype(v.type.numpy))
    before = evaluate(outputs, dict(zip(inputs, given)))
    after = evaluate(graph.outputs, dict(zip(graph.inputs, given)))
    for a, b in zip(before, after, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        np.testing.assert_allclose(np.float64(a), np.float64(b), rtol=tolerance, atol=tolerance)
    emulated(graph, given)
    return graph


def of_activation(dy: Any, x: Any) -> Any:
    """A gradient through relu, in the dtype of ``dy``."""
    return dy * cast(x > 0, dy.dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_a_gradient_and_that_of_a_bias_are_one_node(dtype):
    dy, x = arrays(dtype, dtype)
    dx = of_activation(dy, x)
    wide = cast(dx, "float64" if dtype == "float64" else "float32")
    graph = fused([dy, x], [dx, wide.sum(axis=(0, 1))], 1e-5)
    assert ops(graph) == ["FusedRows"]


def test_what_only_sums_read_is_not_stored():
    dy, x = arrays("bfloat16", "bfloat16")
    scale = TensorType("float32", (40,))("scale")
    wide = cast(dy, "float32")
    outputs = [cast(wide * scale, "bfloat16"), (wide * cast(x, "float32")).sum(axis=(0, 1))]
    graph = fused([dy, x, scale], outputs, 2e-2)
    (node,) = (n for n in graph.toposort() if isinstance(n.op, FusedRows))
    assert [v.type.dtype for v in node.outputs] == ["bfloat16", "float32"]
    assert node.op.sums is not None
    assert node.outputs[1].type.shape == (1, 1, 40)


def test_several_sums_with_and_without_the_axes():
    dy, x = arrays("float32", "float32")
    dx = of_activation(dy, x)
    sums = [dx.sum(axis=(0, 1)), (dx * x).sum(axis=(0, 1), keepdims=True)]
    assert ops(fused([dy, x], [dx, *sums], 1e-4)) == ["FusedRows"]


def test_rows_of_two_axes():
    dy, x = arrays("float32", "float32", shape=(None, 6, 10))
    dx = of_activation(dy, x)
    assert ops(fused([dy, x], [dx, dx.sum(axis=0)], 1e-4, (70, 6, 10))) == ["FusedRows"]


@pytest.mark.parametrize("shape", [(70, 1, 33), (300, 96), (3, 4096), (2, 3, 5000)])
def test_rows_of_other_sizes(shape):
    dy, x = arrays("bfloat16", "bfloat16", shape=(*[None] * (len(shape) - 1), shape[-1]))
    dx = of_activation(dy, x)
    total = cast(dx, "float32").sum(axis=tuple(range(len(shape) - 1)))
    assert ops(fused([dy, x], [dx, total], 1e-4, shape)) == ["FusedRows"]


@pytest.mark.parametrize(("dtype", "length"), [("bfloat16", 96), ("float32", 4096)])
def test_the_text_compiles(dtype, length, tmp_path):
    dy, x = arrays(dtype, dtype, shape=(None, length))
    dx = of_activation(dy, x)
    graph = FunctionGraph([dy, x], [dx, cast(dx, "float32").sum(axis=0)])
    for rule in (fuse.fuse_elementwise, fuse.fuse_reductions, column_sums.fuse_column_sums):
        rule.function(Context(graph, GPU))
    (node,) = (n for n in graph.toposort() if isinstance(n.op, FusedRows))
    call = concrete(node.op, [np.zeros((5000, length), v.type.numpy) for v in node.inputs])
    for text in dict.fromkeys(FusedRowsKernel().sources(call)):
        assert compile_cubin(text, (9, 0), (), tmp_path)


def near_misses() -> dict[str, Any]:
    dy, x = arrays("float32", "float32")
    dx = of_activation(dy, x)
    (short,) = arrays("float32", shape=(None, None, 8))
    (unknown,) = arrays("float32", shape=(None, None, None))
    turned = of_activation(dy, x.dimshuffle(1, 0, 2))
    return {
        "the first axis is kept": ([dy, x], [dx, dx.sum(axis=(1, 2))]),
        "the middle axis is kept": ([dy, x], [dx, dx.sum(axis=(0, 2))]),
        "short rows": ([short], [T.tanh(short), T.tanh(short).sum(axis=(0, 1))]),
        "unknown rows": ([unknown], [T.tanh(unknown), T.tanh(unknown).sum(axis=(0, 1))]),
        "a maximum": ([dy, x], [dx, dx.max(axis=(0, 1))]),
        "another order": ([dy, x], [turned, turned.sum(axis=(0, 1))]),
        "no other reader": ([dy, x], [dx.sum(axis=(0, 1))]),
    }


@pytest.mark.parametrize("name", sorted(near_misses()))
def test_near_misses_are_left(name):
    inputs, outputs = near_misses()[name]
    shape = (5, 5, 8) if name == "short rows" else (5, 5, 40)
    assert "FusedRows" not in ops(fused(inputs, outputs, 1e-4, shape))


def test_hidden_layers_read_nothing_twice():
    """A perceptron in bfloat16: no kernel reads the gradient of a hidden layer to add its rows."""
    x, t = T.fmatrix("x"), T.fmatrix("t")
    first, second = nn.Linear(64, 128), nn.Linear(128, 64)
    y = second(T.nnet.gelu(first(x)))
    with symdnn.config.change_flags(amp="bf16"):
        grads = symdnn.grad(((y - t) ** 2).mean(), [first.weight, first.bias])
        f = symdnn.function([x, t], grads, mode=symdnn.Mode(target="cuda:sm_90"))
    (op,) = (n.op for n in f.fgraph.toposort() if isinstance(n.op, FusedRows))
    assert op.sums is not None
    assert not op.stages
    assert not any("Reduc" in type(n.op).__name__ for n in f.fgraph.toposort())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_sum_over_all_axes_beside_sums_by_columns_is_a_sum_of_such(dtype):
    dy, x = arrays(dtype, dtype)
    dx = of_activation(dy, x)
    graph = fused([dy, x], [dx, (dx * x).sum(axis=(0, 1)), (dx * dx).sum()], 1e-5)
    assert sorted(ops(graph)) == ["FusedRows", "Sum"]


def test_a_sum_over_all_axes_alone_does_not_make_a_kernel_of_columns():
    dy, x = arrays("float32", "float32")
    dx = of_activation(dy, x)
    assert "FusedRows" not in ops(fused([dy, x], [dx, (dx * dx).sum()], 1e-5))


def test_a_sum_over_all_axes_stays_whole_where_no_kernel_is_made():
    dy, x = arrays("float32", "float32")
    dx = of_activation(dy, x)
    sums = [(dx * x).sum(axis=(0, 1)), (dx * dx).sum()]
    assert "FusedRows" in refused([dy, x], [dx, *sums], column_sums.fuse_column_sums)
