"""Norms of rows with their elementwise neighbours: when they are joined, and that values stay."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.nn as nn
import symdnn.tensor as T
from symdnn.distributed import DataParallel
from symdnn.gpu.kernels.fused_rows import FusedRowsKernel
from symdnn.graph.check import check_graph
from symdnn.graph.evaluate import evaluate
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.target import Target
from symdnn.graph.type import TensorType
from symdnn.ops.lowered.fused_rows import FusedRows
from symdnn.ops.nn.normalization import group_norm, layer_norm
from symdnn.opt.fuse import fuse, row_rules
from symdnn.rewriting.rewrite import Capabilities, Context
from symdnn.world.group import Group
from tests.gpu import emulator
from tests.gpu.table import concrete

GPU = Target.parse("cuda:sm_90")
SIZES = (3, 5, 40)
TOLERANCE = {"float64": 1e-12, "float32": 2e-5, "bfloat16": 2e-2, "float16": 4e-3}


def tensors(*dtypes: str) -> list[Any]:
    return [TensorType(d, (None, None, SIZES[2]))(f"x{i}") for i, d in enumerate(dtypes)]


def scale_and_shift(dtype: str) -> list[Any]:
    return [TensorType(dtype, SIZES[2:])(n) for n in ("gamma", "beta")]


def drawn(variables: list[Any]) -> list[Any]:
    rng = np.random.default_rng(7)
    shapes = [[n or s for n, s in zip(v.type.shape, SIZES)] for v in variables]
    return [(rng.standard_normal(s) + 0.5).astype(v.type.numpy) for s, v in zip(shapes, variables)]


def emulated(graph: FunctionGraph, values: list[Any]) -> None:
    """Every FusedRows node by its kernel's text, against its reference."""
    every = dict(zip(graph.inputs, values))
    for node in graph.toposort():
        if not isinstance(node.op, FusedRows) or not emulator.AVAILABLE:
            continue
        arrays = [emulator.device_copy(a)[1] for a in evaluate(list(node.inputs), every)]
        got, env = emulator.run(FusedRowsKernel(), concrete(node.op, arrays), arrays)
        assert env.launched[0] == "fused_rows"
        wide = node.op.compute(*arrays)
        for a, b in zip(got, wide, strict=True):
            tol = TOLERANCE[a.dtype.name]
            np.testing.assert_allclose(np.float64(a), np.float64(b), rtol=tol, atol=tol)


def fused(inputs: list[Any], outputs: list[Any], tolerance: float) -> FunctionGraph:
    """The graph after fusion; its values are those from before."""
    graph = FunctionGraph(inputs, outputs)
    context = Context(graph, GPU)
    for rule in (fuse.fuse_elementwise, fuse.fuse_reductions, row_rules.fuse_rows):
        rule.function(context)
    check_graph(graph)
    values = drawn(inputs)
    before = evaluate(outputs, dict(zip(inputs, values)))
    after = evaluate(graph.outputs, dict(zip(graph.inputs, values)))
    for a, b in zip(before, after, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(np.float64(a), np.float64(b), rtol=tolerance, atol=tolerance)
    emulated(graph, values)
    return graph


def ops(graph: FunctionGraph) -> list[str]:
    views = {"DimShuffle", "Reshape", "ShapeI", "SpecifyType"}
    return [n for n in (type(n.op).__name__ for n in graph.toposort()) if n not in views]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_residual_sum_and_its_norm_are_one_node(dtype):
    x, y = tensors(dtype, dtype)
    given = scale_and_shift(dtype)
    total = x + y
    graph = fused([x, y, *given], [total, layer_norm(total, *given)], TOLERANCE[dtype])
    assert ops(graph) == ["FusedRows"]


def test_one_variable_scales_and_shifts():
    x, y = tensors("float32", "float32")
    gamma, _ = scale_and_shift("float32")
    norm = T.exp(layer_norm(x + y, gamma, gamma) - y)
    assert ops(fused([x, y, gamma], [norm], 2e-5)) == ["FusedRows"]


def test_a_float32_residual_stream_of_bfloat16_products():
    x, y = tensors("float32", "bfloat16")
    given = scale_and_shift("float32")
    total = x + T.cast(y, "float32")
    norm = layer_norm(total, *given)
    graph = fused([x, y, *given], [total, T.cast(norm, "bfloat16")], 2e-2)
    assert ops(graph) == ["FusedRows"]
    (node,) = (n for n in graph.toposort() if isinstance(n.op, FusedRows))
    assert [v.type.dtype for v in node.outputs] == ["float32", "bfloat16"]


def test_both_precisions_of_a_result():
    (x,) = tensors("float32")
    norm = layer_norm(x, *(given := scale_and_shift("float32")))
    graph = fused([x, *given], [norm, T.cast(norm, "float16")], 4e-3)
    assert ops(graph) == ["FusedRows"]


def test_sixteen_bit_input_and_what_follows():
    (x,) = tensors("bfloat16")
    given = scale_and_shift("float32")
    norm = layer_norm(T.cast(x, "float32"), *given)
    graph = fused([x, *given], [T.nnet.relu(norm) + T.cast(x, "float32")], 2e-5)
    assert ops(graph) == ["FusedRows"]


def test_the_gradient_with_the_residual_connections():
    x, y, dy, other = tensors("float32", "float32", "bfloat16", "float32")
    given = scale_and_shift("float32")
    norm = layer_norm(x + y, *given)
    cost = (norm * T.cast(dy, "float32")).sum()
    through, *others = symdnn.grad(cost, [x, *given])
    total = through + other
    graph = fused([x, y, dy, other, *given], [total, T.cast(total, "bfloat16"), *others], 2e-2)
    assert "Cast" not in ops(graph)
    assert sorted(set(ops(graph))) in (["Alloc", "FusedRows"], ["FusedRows"])


def test_a_reader_that_depends_on_the_norm_stays_behind():
    (x,) = tensors("float32")
    given = scale_and_shift("float32")
    norm = layer_norm(x, *given)
    graph = fused([x, *given], [norm + T.cumsum(norm, axis=1)], 2e-5)
    assert "LayerNorm" in ops(graph)


def test_parameters_that_depend_on_the_sum_keep_it_apart():
    x, y = tensors("float32", "float32")
    total = x + y
    gamma = total.sum(axis=(0, 1))
    graph = fused([x, y], [layer_norm(total, gamma, gamma)], 1e-4)
    assert "LayerNorm" in ops(graph)


def test_norms_over_other_axes_are_left():
    (x,) = tensors("float32")
    norm = layer_norm(x + 1, axes=1)
    assert "LayerNorm" in ops(fused([x], [norm * 2], 1e-4))


def test_groups_of_channels():
    x = TensorType("float32", (None, 6, None, None))("x")
    gamma, beta = (TensorType("float32", (6,))(n) for n in ("gamma", "beta"))
    graph = FunctionGraph([x, gamma, beta], [T.nnet.relu(group_norm(x, 3, gamma, beta))])
    context = Context(graph, GPU)
    for rule in (fuse.fuse_elementwise, row_rules.fuse_rows):
        rule.function(context)
    check_graph(graph)


# -- norms written as sums ------------------------------------------------------------------------


def rms(x: Any, weight: Any) -> Any:
    square = (x * x).mean(axis=-1, keepdims=True)
    return x / T.sqrt(square + 1e-6) * weight


def centred(x: Any, weight: Any) -> Any:
    c = x - x.mean(axis=-1, keepdims=True)
    return c / T.sqrt((c * c).mean(axis=-1, keepdims=True) + 1e-5) * weight


def unit(x: Any, weight: Any) -> Any:
    return x / T.sqrt((x * x).sum(axis=-1, keepdims=True)) + weight


def shares(x: Any, weight: Any) -> Any:
    e = T.exp(x) * weight * weight
    return e / e.sum(axis=-1, keepdims=True)


def spread(x: Any, weight: Any) -> Any:
    """Of several reductions of different kinds."""
    low, high = (f(x, axis=-1, keepdims=True) for f in (T.min, T.max))
    return (x - low) / (high - low + 1) * weight - x.sum(axis=-1, keepdims=True)


def masked(x: Any, weight: Any) -> Any:
    return T.nnet.softmax(T.switch(x > weight, x, np.asarray(-9, x.dtype)), axis=2) * weight


def logs(x: Any, weight: Any) -> Any:
    return T.nnet.logsoftmax(x * weight, axis=2) * 2


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("norm", [rms, centred, unit, shares, spread, masked, logs])
def test_a_norm_of_sums_is_one_node(norm, dtype):
    x, y = tensors(dtype, dtype)
    weight = scale_and_shift(dtype)[0]
    total = x + y
    graph = fused([x, y, weight], [norm(total, weight), total], TOLERANCE[dtype])
    assert ops(graph) == ["FusedRows"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("norm", [rms, centred, unit, shares, spread])
def test_a_norm_in_16_bits_is_one_node(norm, dtype):
    (x,), weight = tensors(dtype), scale_and_shift(dtype)[0]
    assert ops(fused([x, weight], [norm(x, weight)], 2 * TOLERANCE[dtype])) == ["FusedRows"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sums_in_16_bits_that_others_read_stay_so(dtype):
    (x,) = tensors(dtype)
    total, top = x.sum(axis=-1, keepdims=True), T.max(x, axis=-1)
    graph = fused([x], [x / total, total, top], TOLERANCE[dtype])
    assert ops(graph).count("FusedRows") == 1
    assert not {"Sum", "Max", "FusedReduce"} & set(ops(graph))


@pytest.mark.parametrize("norm", [rms, centred, unit, shares, masked, logs])
def test_its_gradient_reads_once(norm):
    x, dy = tensors("float32", "float32")
    weight = scale_and_shift("float32")[0]
    given = symdnn.grad((norm(x, weight) * dy).sum(), [x, weight])
    graph = fused([x, dy, weight], list(given), 1e-4)
    assert ops(graph).count("FusedRows") == (2 if norm in (masked, logs) else 1)


@pytest.mark.parametrize("norm", [masked, logs, spread])
def test_a_compiled_program_has_one_kernel(norm):
    """Also where the softmax is cuDNN's, whose gradient has its operands the other way round."""
    x, dy = tensors("float32", "float32")
    weight = scale_and_shift("float32")[0]
    y = norm(x, weight)
    graph = symdnn.function([x, weight], [y], mode=symdnn.Mode(target="cuda:sm_90")).fgraph
    assert sorted(set(ops(graph)) - {"GpuFromHost", "HostFromGpu"}) == ["FusedRows"]
    if norm is not spread:
        given = symdnn.grad(None, [x], known_grads={y: dy})
        rules = symdnn.Mode(target="cuda:sm_90")
        graph = symdnn.function([x, dy, weight], list(given), mode=rules).fgraph
        made = [n for n in graph.toposort() if isinstance(n.op, FusedRows)]
        assert made
        values = drawn([x, dy, weight])
        (want,) = evaluate(list(given), dict(zip([x, dy, weight], values)))
        (got,) = evaluate(graph.outputs, dict(zip(graph.inputs, values)))
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_rms_norm_of_a_bfloat16_network():
    (x,) = tensors("bfloat16")
    net = nn.RMSNorm(SIZES[2], dtype="bfloat16")
    weight = TensorType("bfloat16", SIZES[2:])("weight")
    y = symdnn.clone(net(x), {net.weight: weight})
    graph = fused([x, weight], [y], 2e-2)
    assert ops(graph) == ["Cast", "FusedRows"]  # the cast of a parameter


@pytest.mark.parametrize("rows", [(None, None), (1, None)])
def test_sums_of_a_result_over_the_rows(rows):
    x = TensorType("float32", (*rows, SIZES[2]))("x")
    weight = scale_and_shift("float32")[0]
    y = rms(x, weight) * 2
    graph = fused([x, weight], [y, y.sum(axis=(0, 1))], 1e-4)
    assert ops(graph) == ["FusedRows"]


def test_sums_that_nothing_follows_are_left():
    (x,) = tensors("float32")
    assert "FusedRows" not in ops(fused([x], [(x * x).sum(axis=-1), T.exp(x)], 1e-4))


def test_sums_of_operands_that_are_all_broadcast_are_left():
    x = TensorType("float32", (None, None, 1))("x")
    y = TensorType("float32", (1, None, None))("y")
    total = T.tanh(x - y).sum(axis=-1, keepdims=True)
    assert "FusedRows" not in ops(fused([x, y], [total / (1 + total)], 1e-4))


@pytest.mark.parametrize(("length", "joined"), [(None, True), (3, False)])
def test_rows_of_few_elements_are_left(length, joined):
    x = TensorType("float32", (None, None, length))("x")
    graph = FunctionGraph([x], [x / x.sum(axis=-1, keepdims=True)])
    for rule in (fuse.fuse_elementwise, fuse.fuse_reductions, row_rules.fuse_rows):
        rule.function(Context(graph, GPU))
    assert ("FusedRows" in ops(graph)) == joined


@pytest.mark.parametrize("length", [8, 9, 18, 31])
def test_softmaxes_of_short_rows_and_what_follows(length):
    """The actions of an agent, or the parts of a mixture."""
    x, y = (TensorType("float32", (3, 5, length))(n) for n in "xy")
    logp = T.log_softmax(x - y, axis=2)
    entropy = -(T.exp(logp) * logp).sum(axis=2)
    graph = FunctionGraph([x, y], [logp * y, entropy])
    for rule in (fuse.fuse_elementwise, fuse.fuse_reductions, row_rules.fuse_rows):
        rule.function(Context(graph, GPU))
    assert ops(graph) == ["FusedRows"]
    rng = np.random.default_rng(5)
    values = [rng.standard_normal((3, 5, length)).astype("float32") for _ in range(2)]
    wanted = evaluate([logp * y, entropy], dict(zip((x, y), values)))
    found = evaluate(graph.outputs, dict(zip(graph.inputs, values)))
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, 1e-5, 1e-5)
    emulated(graph, values)


def test_two_distances_and_their_gradients_are_one_node():
    """A loss of triplets keeps both differences and both squares."""
    a, p, n = tensors(*["float32"] * 3)
    near, far = (((a - v) ** 2).sum(axis=2) for v in (p, n))
    cost = T.maximum(T.sqrt(near + 1e-6) - T.sqrt(far + 1e-6) + 0.5, 0.0).sum(axis=(0, 1))
    outputs = [cost, *symdnn.grad(cost, [a, p, n])]
    mode = symdnn.Mode(target="cuda:sm_90")
    graph = symdnn.function([a, p, n], outputs, mode=mode).fgraph
    (node,) = (n for n in graph.toposort() if isinstance(n.op, FusedRows))
    assert len(node.op.before.outputs) == 4
    assert len(node.inputs) == 3
    emulated(graph, drawn([a, p, n]))


@pytest.mark.skipif(not emulator.AVAILABLE, reason="there is no g++")
@pytest.mark.parametrize("shape", [(2, 1, 33000), (65, 1, 34000), (1, 2, 5001), (3, 30, 1)])
def test_rows_of_any_size(shape):
    x, y = (TensorType("float32", (None, None, None))(n) for n in "xy")
    w = TensorType("float32", (None,))("w")
    total = x + y
    out = rms(total, w) * 2
    outputs = [total, out, T.cast(out, "float16"), (total * y).sum(axis=(0, 1))]
    mode = symdnn.Mode(target="cuda:sm_90")
    graph = symdnn.function([x, y, w], outputs, mode=mode).fgraph
    (node,) = (n for n in graph.toposort() if isinstance(n.op, FusedRows))
    rng = np.random.default_rng(3)
    values = [rng.standard_normal(s).astype("float32") for s in (shape, shape, shape[2:])]
    arrays = [
        emulator.device_copy(a)[1]
        for a in evaluate(list(node.inputs), dict(zip(graph.inputs, values)))
    ]
    call = concrete(node.op, arrays)
    got, env = emulator.run(FusedRowsKernel(), call, arrays)
    assert (env.launched[0] == "fused_rows") == (shape[2] < 33000 or shape[0] > 64)
    for a, b in zip(got, node.op.compute(*arrays), strict=True):
        tol = TOLERANCE[a.dtype.name]
        np.testing.assert_allclose(np.float64(a), np.float64(b), rtol=tol, atol=tol * 10)


def test_a_scale_that_depends_on_the_sum_over_rows_keeps_it_apart():
    (x,) = tensors("float32")
    y = x * 2
    fused([x], [rms(y, y.sum(axis=(0, 1)))], 1e-4)


def test_programs_of_several_processes_are_fused_as_others():
    """Collectives are ordered effects, behind which nothing is joined less."""

    def kinds(several: bool) -> Counter[str]:
        nn.init.seed(0)
        x, t = TensorType("float32", (64, 96))("x"), T.ivector("t")
        layers = [nn.Linear(96, 96), nn.LayerNorm(96), nn.GELU()] * 2
        net = nn.Sequential(*layers, nn.Linear(96, 8))
        loss = nn.CrossEntropyCriterion()(net(x), t)
        parameters = net.parameters()
        grads = symdnn.grad(loss, parameters)
        if several:
            both = DataParallel(group=Group((0, 1), "both"), bucket_bytes=20_000)
            grads = both.averaged(grads, parameters)
        updates = [(p, p - 0.1 * g) for p, g in zip(parameters, grads, strict=True)]
        f = symdnn.function([x, t], loss, updates=updates, mode=symdnn.Mode(target="cuda:sm_90"))
        found = Counter(type(n.op).__name__ for r in f.stages.program.regions for n in r.nodes)
        return Counter({k: n for k, n in found.items() if k.startswith("Fused")})

    assert kinds(True) == kinds(False)
    assert kinds(True)["FusedRows"] > 2


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_of_rows_alone_are_computed_from_one_read(dtype):
    (x,) = tensors(dtype)
    top = x.max(2, keepdims=True)
    for found in (
        [x.var(2)],
        [x.std(2, keepdims=True), x.mean(2)],
        [x.max(2), x.sum(2)],
        [T.log(T.exp(x - top).sum(2, keepdims=True)) + top],
    ):
        graph = fused([x], found, TOLERANCE[dtype])
        assert ops(graph) == ["FusedRows"]
    assert "FusedRows" not in ops(fused([x], [x.mean(2)], TOLERANCE[dtype]))
    assert "FusedRows" not in ops(fused([x], [x.sum(2), x.sum(1)], TOLERANCE[dtype]))


@pytest.mark.skipif(not emulator.AVAILABLE, reason="there is no g++")
def test_values_of_rows_that_are_not_kept_are_reductions():
    (x,) = tensors("float32")
    graph = fused([x], [x.var(2)], 2e-5)
    (node,) = (n for n in graph.toposort() if isinstance(n.op, FusedRows))
    for shape, name in (((70, 1, 90_001), "reduce"), ((70, 1, 2_001), "fused_rows")):
        a = emulator.device_copy(np.random.default_rng(3).standard_normal(shape, "float32"))[1]
        got, env = emulator.run(FusedRowsKernel(), concrete(node.op, [a]), [a])
        assert env.launched[0] == name
        for found, right in zip(got, node.op.compute(a), strict=True):
            np.testing.assert_allclose(found, right, 2e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_sum_over_all_is_one_of_sums_over_rows(dtype):
    x, y = tensors(dtype, dtype)
    d = x - x.mean(-1, keepdims=True)
    graph = fused([x, y], [d * y, (d * d).sum()], TOLERANCE[dtype])
    assert sorted(ops(graph)) == ["FusedRows", "Sum"]


def test_a_sum_over_all_stays_whole_where_no_kernel_is_made():
    x, y = tensors("float32", "float32")
    d = x - x.mean(-1, keepdims=True)
    assert "FusedRows" in refused([x, y], [d * y, (d * d).sum()], row_rules.fuse_rows)


def refused(inputs: list[Any], outputs: list[Any], rule: Any) -> set[str]:
    """Ops for which ``rule`` asks a target that takes none of them: it leaves the graph then."""
    graph, asked = FunctionGraph(inputs, outputs), set[str]()
    for early in (fuse.fuse_elementwise, fuse.fuse_reductions):
        early.function(Context(graph, GPU))
    before = graph.toposort()

    def fuses(op: Any, kind: str) -> bool:
        asked.add(type(op).__name__)
        return False

    rule.function(Context(graph, GPU, capabilities=Capabilities(fuses=fuses)))
    assert graph.toposort() == before
    return asked


def test_an_array_of_one_number_is_not_read():
    x = TensorType("float32", SIZES)("x")
    y = T.log_softmax(x, axis=-1)
    slopes = symdnn.grad(None, x, known_grads={y: T.alloc(np.float32(0.25), *SIZES)})
    graph = fused([x], [y, T.exp(slopes)], TOLERANCE["float32"])
    assert "FusedRows" in ops(graph)
    assert "Alloc" not in ops(graph)


# -- functions of a softmax and of its logarithm --------------------------------------------------


def entropy(z: Any, t: Any) -> Any:
    logs = T.log_softmax(z, axis=2)
    return (T.exp(logs) * logs).sum(axis=2).mean()


def weighted(z: Any, t: Any) -> Any:
    return (T.softmax(z * 2, axis=2) * t).sum(axis=2).mean()


def distilled(z: Any, t: Any) -> Any:
    """The logarithm of the teacher is stored before."""
    logs = T.log_softmax(t, axis=2)
    return (T.exp(logs) * (logs - T.log_softmax(z, axis=2))).sum(axis=2).mean()


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("loss", [entropy, weighted, distilled])
def test_a_loss_of_rows_and_its_gradient_are_one_kernel(loss: Any, dtype: str) -> None:
    z, t = (TensorType(dtype, SIZES)(n) for n in "zt")
    value = loss(z, t)
    outputs = [value, symdnn.grad(value, z)]
    inputs = [z, t] if loss is not entropy else [z]
    graph = symdnn.function(inputs, outputs, mode=symdnn.Mode(target="cuda:sm_90")).fgraph
    found = Counter(ops(graph))
    others = found["FusedRows"] + found["GpuDnnSoftmax"]
    assert others == (2 if loss is distilled else 1)
    assert not found["GpuDnnSoftmaxGrad"]
    values = drawn(inputs)
    emulated(graph, values)
    wide = [v.astype("float64") for v in values]
    own = [TensorType("float64", SIZES)(n) for n in "zt"][: len(inputs)]
    exact = loss(*own, *([None] if loss is entropy else []))
    wanted = evaluate([exact, symdnn.grad(exact, own[0])], dict(zip(own, wide)))
    got = evaluate(graph.outputs, dict(zip(graph.inputs, values)))
    for a, b in zip(wanted, got, strict=True):
        tolerance = 4 * TOLERANCE[dtype]
        np.testing.assert_allclose(np.float64(b), a, tolerance, tolerance * np.abs(a).max())


def test_a_gradient_that_depends_on_the_softmax_elsewhere_is_apart() -> None:
    z, w = TensorType("float32", (64, SIZES[2]))("z"), T.fmatrix("w")
    probabilities = T.softmax(z, axis=1)
    slope = symdnn.grad(T.sqr(T.dot(probabilities, w)).sum(), z)
    mode = symdnn.Mode(target="cuda:sm_90")
    found = Counter(ops(symdnn.function([z, w], slope, mode=mode).fgraph))
    assert found["GpuDnnSoftmax"] + found["FusedRows"] == 1
    assert found["GpuDnnSoftmaxGrad"] == 1


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_softmax_beside_its_logarithm_is_no_further_pass(target: str, dtype: str) -> None:
    """The entropy of a policy, written with both."""
    z = TensorType(dtype, (None, SIZES[2]))("z")
    p, logs = T.softmax(z, axis=1), T.log_softmax(z, axis=1)
    value = (p * logs).sum(axis=1).mean()
    f = symdnn.function([z], [value, symdnn.grad(value, z)], mode=symdnn.Mode(target=target))
    names = Counter(type(getattr(n.op, "neutral_op", n.op)).__name__ for n in f.fgraph.toposort())
    assert not names["Softmax"] + names["SoftmaxGrad"] + names["GpuDnnSoftmaxGrad"]
    if target == "cpu":
        a = drawn([z])[0] * 5
        exact = np.exp(np.float64(a) - np.log(np.exp(np.float64(a)).sum(1, keepdims=True)))
        logs_of = np.log(exact)
        wanted = exact * (logs_of - (exact * logs_of).sum(1, keepdims=True)) / len(a)
        got, slope = f(a)
        np.testing.assert_allclose(got, (exact * logs_of).sum(1).mean(), rtol=1e-5)
        np.testing.assert_allclose(slope, wanted, rtol=1e-4, atol=1e-6)


def test_in_16_bits_a_softmax_stays() -> None:
    """The exponential of a rounded logarithm would have two digits."""
    z = TensorType("bfloat16", (None, SIZES[2]))("z")
    outputs = [T.softmax(z, axis=1), T.log_softmax(z, axis=1)]
    f = symdnn.function([z], outputs, mode=symdnn.Mode(target="cpu"))
    a = np.linspace(-9, 9, SIZES[2])[None].astype(z.type.numpy)
    exact = np.exp(np.float64(a))
    got, _ = f(a)
    np.testing.assert_allclose(np.float64(got), exact / exact.sum(), rtol=1e-2)
