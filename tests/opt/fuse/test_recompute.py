"""Values that a later kernel recomputes instead of reading them, and values that it may not."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import Mode
from symdnn.compile.execute.targets import load_kernels
from symdnn.compile.plan.packing import largest_live_set
from symdnn.compile.program.capabilities import all_capabilities
from symdnn.graph.check import check_graph
from symdnn.graph.evaluate import evaluate
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.target import Target
from symdnn.ops.lowered.fused import FusedElemwise
from symdnn.opt.fuse import fuse
from symdnn.rewriting.rewrite import Context
from tests.seeded import new_rng

CPU, GPU = Target("cpu"), Target.parse("cuda:sm_90")
x, y, w = T.fmatrix("x"), T.fmatrix("y"), T.fmatrix("w")


def fused(inputs: list[Any], outputs: list[Any], target: Target = GPU) -> FunctionGraph:
    """The graph after fusion; its values must equal those before."""
    load_kernels(target)
    graph = FunctionGraph(inputs, outputs)
    fuse.fuse_elementwise.function(Context(graph, target, capabilities=all_capabilities()))
    check_graph(graph)
    rng = new_rng()
    values = [rng.standard_normal((4, 4)).astype("float32") for _ in inputs]
    before = evaluate(outputs, dict(zip(inputs, values)))
    after = evaluate(graph.outputs, dict(zip(graph.inputs, values)))
    for a, b in zip(before, after):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)
    return graph


def kernels(graph: FunctionGraph) -> list[str]:
    return [str(n.op.program) for n in graph.toposort() if isinstance(n.op, FusedElemwise)]


def through(v: Any) -> Any:
    """``v`` after a GEMM, so that its readers are another kernel."""
    return T.dot(v, w)


def test_a_sigmoid_is_computed_again_beside_its_operand():
    s = T.nnet.sigmoid(x)
    graph = fused([x, y, w], [through(s * y) * s * x])
    first, second = kernels(graph)
    assert ", " not in first, "it stores the product alone"
    assert first.count("exp") == second.count("exp") == 1


def test_what_follows_from_it_in_its_own_kernel_is_computed_with_it():
    silu = x * T.nnet.sigmoid(x)
    graph = fused([x, y, w], [through(silu * y) * silu * T.exp(-x)])
    first, _ = kernels(graph)
    assert ", " not in first


def test_a_processor_reads_an_exponential_and_repeats_a_sum():
    s = T.nnet.sigmoid(x)
    assert ", " in kernels(fused([x, y, w], [through(s * y) * s * x], CPU))[0]
    z = x + 1
    assert ", " not in kernels(fused([x, y, w], [through(z * y) * z * x], CPU))[0]


def test_a_normalised_row_is_computed_from_the_row_and_its_norm():
    norm = T.sqrt(T.sqr(x).sum(axis=1, keepdims=True))
    unit = x / norm
    later = through(unit * y)
    graph = fused([x, y, w], [later * unit, later.sum() * x])
    stored = [n for n in graph.toposort() if isinstance(n.op, FusedElemwise)]
    assert all(len(n.outputs) == 1 for n in stored)


@pytest.mark.parametrize(
    "outputs",
    [
        lambda s: [through(s * y) * s * x, s],  # it is an output
        lambda s: [through(s * y) * s * x, T.dot(s, w)],  # a product reads it
    ],
)
def test_what_must_be_stored_anyway_is_read(outputs):
    graph = fused([x, y, w], outputs(T.nnet.sigmoid(x)))
    first, second = kernels(graph)
    assert (first.count("exp"), second.count("exp")) == (1, 0)


def test_an_operand_that_nothing_else_keeps_is_not_kept_for_it():
    inner = T.dot(x, w)  # only the sigmoid reads it
    s = T.nnet.sigmoid(inner)
    graph = fused([x, y, w], [through(s * y) * s])
    assert sum(k.count("exp") for k in kernels(graph)) == 1


def test_a_value_of_two_arrays_is_read_where_they_would_be_more_to_read():
    a, b = T.dot(x, w), T.dot(y, w)
    z = a + b
    late = through(z * 2)
    assert (
        sum(k.count("+") for k in kernels(fused([x, y, w], [late * z, (late * a).sum() * b]))) < 3
    )


@pytest.mark.parametrize(("rows", "stored"), [((2, 3), 0), ((1, 6), 1)])
def test_pairs_of_a_few_rows_are_computed_again_beside_the_rows(rows, stored):
    """Two arrays of 2 and 3 rows are less to read than the 6 rows of their pairs."""
    a, b = T.tensor("float32", (rows[0], 1, 500)), T.tensor("float32", (1, rows[1], 500))
    pairs = a - b
    whole = T.exp(pairs).sum(axis=2, keepdims=True)
    graph = FunctionGraph([a, b], [(whole * pairs).sum(axis=1)])
    load_kernels(GPU)
    fuse.fuse_elementwise.function(Context(graph, GPU, capabilities=all_capabilities()))
    made = [n.outputs for n in graph.toposort() if isinstance(n.op, FusedElemwise)]
    assert max(map(len, made)) == 1 + stored
    rng = new_rng()
    values = [rng.standard_normal(v.type.shape).astype("float32") for v in (a, b)]
    (got,) = evaluate(graph.outputs, dict(zip(graph.inputs, values)))
    d = values[0] - values[1]
    wanted = (np.exp(d).sum(axis=2, keepdims=True) * d).sum(axis=1)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


def test_a_costly_function_is_stored():
    z = T.gammainc(abs(x) + 1, abs(y))
    graph = fused([x, y, w], [through(z * y) * z * x * y])
    assert sum(k.count("gammainc") for k in kernels(graph)) == 1


@pytest.mark.parametrize("mode", ["cpu", "cuda:sm_90"])
def test_gradients_are_the_same_with_and_without(mode):
    rng = new_rng()
    a, b = T.fmatrices("a", "b")
    g = a * T.nnet.sigmoid(a) * b
    unit = g / T.sqrt(T.sqr(g).mean(axis=1, keepdims=True) + 1e-5)
    cost = T.sqr(T.dot(unit, unit.T) * T.tanh(T.dot(a, b.T))).sum()
    wanted = T.grad(cost, [a, b])
    arrays = [rng.standard_normal((6, 8)).astype("float32") for _ in "ab"]
    with_it = symdnn.function([a, b], wanted, mode=Mode(target=mode))
    without = symdnn.function([a, b], wanted, mode=Mode(optimizer=None))
    found = evaluate(with_it.fgraph.outputs, dict(zip(with_it.fgraph.inputs, arrays)))
    for got, expected in zip(found, without(*arrays)):
        np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-4)


def test_memory_of_a_gated_layer_is_that_of_its_operands():
    """For ``silu(g) * u`` a gradient stores ``g`` and ``u``."""
    gate, up, down = T.fmatrices("gate", "up", "down")
    g, u = T.dot(x, gate), T.dot(x, up)
    cost = T.sqr(T.dot(g * T.nnet.sigmoid(g) * u, down)).sum()
    f = symdnn.function(
        [x, gate, up, down], T.grad(cost, [gate, up]), mode=Mode(target="cuda:sm_90")
    )
    (plan,) = f.stages.specialise(
        {"x": (4096, 16), "gate": (16, 256), "up": (16, 256), "down": (256, 16)}
    )[-1:]
    assert largest_live_set(plan.memory.arena_buffers()) < 3.5 * 4096 * 256 * 4


@pytest.mark.parametrize("power", [1, 2, 3])
def test_differences_of_all_pairs_are_stored_nowhere(power):
    """Each sum of a gradient makes them of the two matrices, which are far smaller."""
    a, b = T.fmatrices("a", "b")
    pairs = T.abs(a[:, None] - b) ** power
    gradients = T.grad(T.sqr(pairs.sum(axis=2)).sum(), [a, b])
    f = symdnn.function([a, b], gradients)
    arrays = [new_rng().standard_normal((n, 4)).astype("float32") for n in (6, 5)]
    without = symdnn.function([a, b], gradients, mode=Mode(optimizer=None))
    for got, wanted in zip(f(*arrays), without(*arrays)):
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=1e-5)
    (plan,) = f.stages.specialise({"a": (512, 64), "b": (512, 64)})[-1:]
    assert largest_live_set(plan.memory.arena_buffers()) < 512 * 512 * 16


@pytest.mark.parametrize("shape", [(3, 0, 5), (0, 4, 4), (2, 3, 0), (2, 3, 5)])
def test_what_is_spread_over_no_elements_has_a_cost(shape):
    """A triangle of places is compared for each matrix, of which there may be none."""
    x, k = T.TensorType("int64", shape)("x"), T.lscalar("k")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a rule that fails
        f = symdnn.function([x, k], [T.tril(x, k), T.triu(x, k)], mode=Mode(target="cuda:sm_90"))
    given = new_rng().integers(-9, 9, shape)
    found = evaluate(f.fgraph.outputs, dict(zip(f.fgraph.inputs, (given, np.int64(1)))))
    for got, wanted in zip(found, (np.tril(given, 1), np.triu(given, 1))):
        np.testing.assert_array_equal(got, wanted)
