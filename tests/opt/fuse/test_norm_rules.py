"""Batch normalisation taken apart: when, into what, and that values stay."""

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
from symdnn.graph.type import TensorType
from symdnn.ops.lowered.norm_parts import BatchMoments, BatchSums
from symdnn.ops.vendor import gpudnn as G
from symdnn.opt.fuse import fuse, norm_rules
from symdnn.rewriting.rewrite import Context

GPU = Target.parse("cuda:sm_90")
SHAPE = (6, 3, 5, 4)


def variables(dtype="float32", layout="NCHW"):
    shape = (None, 3, None, None) if layout == "NCHW" else (None, None, None, 3)
    own = tuple(n or 1 for n in shape)
    wide = "float64" if dtype == "float64" else "float32"
    x, dy = TensorType(dtype, shape)("x"), TensorType(dtype, shape)("dy")
    return x, dy, TensorType(wide, own)("gamma"), TensorType(wide, own)("beta")


def axes(layout):
    return (0, 2, 3) if layout == "NCHW" else (0, 1, 2)


def split(inputs: list[Any], outputs: list[Any], tolerance: float) -> FunctionGraph:
    """The graph after splitting and fusion; its values are those from before."""
    graph = FunctionGraph(inputs, outputs)
    context = Context(graph, GPU)
    for rule in (norm_rules.split_batch_norm, fuse.fuse_elementwise, fuse.fuse_reductions):
        rule.function(context)
    check_graph(graph)
    rng = np.random.default_rng(2)
    sizes = iter(SHAPE)
    values = [
        np.asarray(rng.standard_normal([n or s for n, s in zip(v.type.shape, SHAPE)]) + 0.5)
        for v in inputs
    ]
    del sizes
    wide = [v.astype(t.type.numpy) for v, t in zip(values, inputs)]
    before = evaluate(outputs, dict(zip(inputs, wide)))
    after = evaluate(graph.outputs, dict(zip(graph.inputs, wide)))
    for a, b in zip(before, after):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(np.float64(a), np.float64(b), rtol=tolerance, atol=tolerance)
    return graph


def ops(graph: FunctionGraph) -> list[str]:
    views = {"DimShuffle", "Reshape", "ShapeI", "SpecifyType"}
    return [n for n in (type(n.op).__name__ for n in graph.toposort()) if n not in views]


def block(dtype="float64", layout="NCHW", residual=False):
    x, dy, gamma, beta = variables(dtype, layout)
    found = T.nnet.bn.batch_normalization_train(x, gamma, beta, axes(layout), 1e-3)
    more = [x.type("r")] if residual else []
    y = T.nnet.relu(found[0] + more[0] if residual else found[0])
    wrt = [x, gamma, beta, *more]
    grads = symdnn.grad(None, wrt, known_grads={y: dy})
    return [x, gamma, beta, dy, *more], [y], grads


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_forward_joins_the_relu(dtype, layout):
    inputs, outputs, _ = block(dtype, layout)
    graph = split(inputs[:3], outputs, {"float64": 1e-12, "float32": 1e-5}.get(dtype, 2e-2))
    assert ops(graph) == ["BatchMoments", "FusedElemwise"]


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_backward_computes_the_mask_again(dtype, layout):
    inputs, outputs, grads = block(dtype, layout)
    graph = split(inputs, outputs + grads, 1e-10 if dtype == "float64" else 6e-2)
    assert sorted(set(ops(graph))) == ["BatchMoments", "BatchSums", "FusedElemwise"]
    (sums,) = [n for n in graph.toposort() if isinstance(n.op, BatchSums)]
    whole = [v for v in sums.inputs if v.type.broadcastable == (False,) * 4]
    assert set(whole) == {graph.inputs[0], graph.inputs[3]}  # x and dy: no mask, no result
    stored = [
        v
        for n in graph.toposort()
        for v in n.outputs
        if graph.users(v) and v.type.broadcastable == (False,) * 4
    ]
    assert all(graph.is_output(v) for v in stored)


def test_a_cotangent_that_others_read_is_stored_once():
    inputs, outputs, grads = block(residual=True)
    graph = split(inputs, outputs + grads, 1e-10)
    (sums,) = [n for n in graph.toposort() if isinstance(n.op, BatchSums)] or [None]
    grad_of_shortcut = graph.outputs[-1]
    assert sums is None or grad_of_shortcut in [*sums.inputs, *sums.outputs]


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_cotangent_that_others_read_is_written_by_the_sums(dtype, layout):
    """The end of a residual block: relu's gradient of a sum of two, read by the shortcut, too."""
    inputs, outputs, grads = block(dtype, layout, residual=True)
    more = inputs[3].type("more")
    grads = [symdnn.clone(g, {inputs[3]: inputs[3] + more}) for g in grads]
    graph = split([*inputs, more], outputs + grads, 1e-10 if dtype == "float64" else 1e-4)
    (sums,) = [n for n in graph.toposort() if isinstance(n.op, BatchSums)]
    assert sums.op.written
    assert sums.outputs[4] in graph.outputs  # the gradient of the shortcut
    assert not any(type(n.op).__name__ == "BatchNormGrad" for n in graph.nodes)


def test_sums_do_not_write_what_their_own_input_follows_from():
    x, dy, gamma, beta = variables("float64")
    cotangent = T.nnet.relu(dy) * 2
    y = T.nnet.bn.batch_normalization_train(x + cotangent, gamma, beta, axes("NCHW"), 1e-3)[0]
    grads = symdnn.grad(None, [gamma, beta], known_grads={y: cotangent})
    graph = split([x, dy, gamma, beta], [*grads, cotangent], 1e-10)
    assert not any(getattr(n.op, "written", False) for n in graph.nodes)


def test_a_batch_norm_on_its_own_stays():
    x, dy, gamma, beta = variables("float64")
    y, *_ = T.nnet.bn.batch_normalization_train(x, gamma, beta, axes("NCHW"), 1e-3)
    grads = symdnn.grad(None, [x, gamma, beta], known_grads={y: dy})
    graph = split([x, gamma, beta, dy], [y, *grads], 1e-12)
    assert ops(graph) == ["BatchNormTrain", "BatchNormGrad"]
    with config.change_flags(**{"dnn.batch_norm": "fused"}):
        graph = split([x, gamma, beta, dy], [y, *grads], 1e-10)
    assert ops(graph) == ["BatchMoments", "BatchSums", "FusedElemwise"]  # of both directions


@pytest.mark.parametrize("flags", [{"dnn.batch_norm": "cudnn"}, {"gpu.prefer": "cudnn"}], ids=str)
def test_flags_keep_it_whole(flags):
    inputs, outputs, _ = block()
    with config.change_flags(**flags):
        assert "BatchNormTrain" in ops(split(inputs[:3], outputs, 1e-12))


def test_a_hint_keeps_it_whole():
    x, _, gamma, beta = variables("float64")
    found = T.nnet.bn.batch_normalization_train(
        x, gamma, beta, axes("NCHW"), 1e-3, hints=symdnn.Hints(backend="cudnn")
    )
    assert "BatchNormTrain" in ops(split([x, gamma, beta], [T.nnet.relu(found[0])], 1e-12))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_cudnns_op_with_running_values(layout):
    x, _, gamma, beta = variables("float64", layout)
    old = [gamma.type(n) for n in ("mean", "var")]
    op = G.GpuDnnBatchNorm("spatial", True, epsilon=1e-3, running_average_factor=0.3, layout=layout)
    y, _, _, *new = op(x, gamma, beta, *old)
    graph = split([x, gamma, beta, *old], [T.tanh(y), *new], 1e-12)
    (moments,) = [n for n in graph.toposort() if isinstance(n.op, BatchMoments)]
    assert moments.op == BatchMoments(axes(layout), 1e-3, True)


def test_the_rule_is_among_the_phases():
    x, _, gamma, beta = variables()
    y = T.nnet.relu(T.nnet.bn.batch_normalization_train(x, gamma, beta, axes("NCHW"), 1e-3)[0])
    mode = symdnn.Mode(target="cuda:sm_90")
    f = symdnn.function([x, gamma, beta], y, mode=mode)
    assert "BatchMoments" in [type(n.op).__name__ for n in f.stages.fgraph.toposort()]


def test_a_cotangent_in_16_bits_is_read_so_though_others_widen_it():
    """The gradient of a residual connection behind a norm: others read the float32 value, too."""
    x, dy, gamma, beta = variables("bfloat16")
    y = T.nnet.bn.batch_normalization_train(x, gamma, beta, axes("NCHW"), 1e-3)[0]
    wide = dy.astype("float32")
    scale = TensorType("float32", (None, 3, 1, 1))("scale")
    (dx,) = symdnn.grad(None, [x], known_grads={y: (wide * scale).astype("bfloat16")})
    other = (wide * x.astype("float32")).sum(axis=(2, 3))
    graph = split([x, dy, gamma, beta, scale], [dx, other], 3e-2)
    (sums,) = (n for n in graph.toposort() if isinstance(n.op, BatchSums))
    read = {v.name for v in sums.inputs}
    assert {"x", "dy"} <= read
    assert all(v.type.dtype == "bfloat16" or 1 in v.type.shape for v in sums.inputs)
