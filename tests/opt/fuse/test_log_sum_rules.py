"""Gradients of log-sum-exps in one pass: the values of the graph without the rule, and where."""

from __future__ import annotations

import ml_dtypes  # noqa: F401 (its import names bfloat16 for NumPy)
import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.autodiff import Lop, grad
from symdnn.compile.program.capabilities import all_capabilities
from symdnn.config import config
from symdnn.graph.check import check_graph
from symdnn.graph.evaluate import evaluate
from symdnn.ops.array.reduce import LogSumExp
from symdnn.ops.lowered.fused_rows import FusedRows
from symdnn.opt.fuse import log_sum_rules
from symdnn.opt.fuse.log_sum_rules import log_sum_exp_gradient
from symdnn.rewriting.rewrite import Context
from tests.opt.lowering import CPU, rewritten
from tests.seeded import new_rng

RULE = "log_sum_exp_gradient"
GPU = symdnn.Mode(target="cuda:sm_90")
TOLERANCE = {"float32": 1e-5, "float64": 1e-12, "bfloat16": 3e-2, "float16": 4e-3}

#: Outputs of the log-sum-exp, its operand and a cotangent.
PROGRAMS = {
    "gradient": lambda total, x, d: [Lop(total, x, d)],
    "with the sum": lambda total, x, d: [Lop(total, x, d), total],
    "of the sum": lambda total, x, d: [grad((total * total).sum(), x), total],
    "of the sum and more": lambda total, x, d: [Lop(total, x, d * total), total * d],
    "of ones": lambda total, x, d: [grad(total.sum(), x)],
}


def numbers(shape, axis, dtype, rng):
    """Numbers with a row of -inf alone, one -inf and one NaN in other rows where there are some."""
    x = rng.normal(size=shape) * 3
    rows = np.moveaxis(x, axis, -1).reshape(-1, shape[axis])
    rows[0] = -np.inf
    if len(rows) > 3:
        rows[1, 0], rows[2, 0], rows[3, -1] = -np.inf, np.nan, np.inf
    others = [n for d, n in enumerate(shape) if d != axis]
    x = np.moveaxis(rows.reshape([*others, shape[axis]]), -1, axis)
    return np.ascontiguousarray(x).astype(np.dtype(dtype))


def made(outputs, inputs):
    """The function with the rule, and the one without."""
    mode = symdnn.Mode(target="cpu")
    given = {"on_unused_input": "ignore"}
    return (
        symdnn.function(inputs, outputs, mode=mode, **given),
        symdnn.function(inputs, outputs, mode=mode.excluding(RULE), **given),
    )


def ops(f):
    return [type(n.op) for n in f.fgraph.toposort()]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    ("shape", "axis"),
    [((37, 153), 0), ((37, 153), 1), ((70, 31, 4), 1), ((31, 7, 5), 0), ((1, 600), 0),
     ((1000, 7), 1), ((900,), 0), ((5, 6, 170), 2), ((3, 9, 500), 1)],
)  # fmt: skip
def test_values_are_those_without_the_rule(program, dtype, shape, axis):
    x, d = (T.tensor(dtype, (None,) * n) for n in (len(shape), len(shape) - 1))
    f, g = made(PROGRAMS[program](T.logsumexp(x, axis=axis), x, d), [x, d])
    assert FusedRows in ops(f)
    rng = new_rng()
    value = numbers(shape, axis, dtype, rng)
    cotangent = rng.normal(size=[n for k, n in enumerate(shape) if k != axis]).astype(value.dtype)
    for order in "CF":
        given = np.array(value, order=order)
        for found, wanted in zip(f(given, cotangent), g(given, cotangent), strict=True):
            assert found.dtype == wanted.dtype
            np.testing.assert_allclose(
                found.astype("float64"), wanted.astype("float64"),
                rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype],
            )  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "axis"), [((40, 6, 170), 2), ((40, 16, 3), 2), ((6, 50, 70), 1), ((70, 31, 4), 1)]
)
@pytest.mark.parametrize("ones", [(), (0,), (1,), (0, 1)])
def test_factors_that_rows_share(shape, axis, ones):
    """A factor is a number of each row, of some rows, or of all."""
    others = [n for k, n in enumerate(shape) if k != axis]
    sizes = [1 if k in ones else n for k, n in enumerate(others)]
    sizes.insert(axis, 1)
    x = T.tensor("float32", (None,) * 3)
    factor = T.tensor("float32", [n if n == 1 else None for n in sizes])
    f, g = made([grad(T.logsumexp(x * factor, axis=axis).sum(), x)], [x, factor])
    assert FusedRows in ops(f)
    rng = new_rng()
    given = rng.normal(size=shape).astype("float32"), rng.normal(size=sizes).astype("float32")
    np.testing.assert_allclose(*f(*given), *g(*given), rtol=1e-5, atol=1e-6)


def test_a_loss_and_its_gradient_have_one_exponential():
    x = T.fmatrix("x")
    total = T.logsumexp(x, axis=1)
    for loss in ((total - x[:, 0]).mean(), (total**2).sum()):
        f, _ = made([loss, grad(loss, x)], [x])
        assert LogSumExp not in ops(f)
        assert sum("exp" in str(n.op) for n in f.fgraph.toposort()) == 1


def test_a_softmax_that_others_read_is_kept():
    x, d = T.fmatrix("x"), T.fvector("d")
    total = T.logsumexp(x, axis=1)
    f, _ = made([Lop(total, x, d), T.nnet.softmax(x, axis=1)], [x, d])
    assert FusedRows not in ops(f)


def test_only_where_a_kernel_has_it():
    x, d = T.fmatrix("x"), T.fvector("d")
    outputs = [Lop(T.logsumexp(x, axis=1), x, d)]
    with config.change_flags(**{"cpu.compile": "never"}):
        f, _ = made(outputs, [x, d])
    assert FusedRows not in ops(f)
    f = symdnn.function([x, d], outputs, mode=symdnn.Mode(target="cpu").excluding("fusion"))
    assert FusedRows not in ops(f)


@pytest.mark.parametrize("inner", [False, True])
def test_steps_of_loops_are_kept(inner):
    """Their code computes an exponential again faster than it stores it."""
    x, d = T.fmatrix("x"), T.fvector("d")
    graph = rewritten([x, d], [Lop(T.logsumexp(x, axis=1), x, d)], CPU)  # but for fusion
    log_sum_exp_gradient.function(
        Context(graph, CPU, False, inner, capabilities=all_capabilities())
    )
    check_graph(graph)
    assert any(isinstance(n.op, FusedRows) for n in graph.nodes) is not inner


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("keeps", [False, True])
def test_broadcast_operands_on_a_gpu(dtype, axis, keeps):
    """Their softmax is no array of its own, but in 16 bits; rows of -inf have no gradient."""
    a, b = T.TensorType(dtype, (None, None, 1))("a"), T.TensorType(dtype, (1, None, None))("b")
    total = T.logsumexp(a + b, axis=axis, keepdims=keeps)
    outputs = [total, *grad((total.astype("float64") * 0.5).sum(), [a, b])]
    rng = new_rng()
    left = rng.normal(size=(4, 3, 1)) * 3
    left[1], left[2, 0] = -np.inf, -np.inf
    given = [left.astype(dtype), (rng.normal(size=(1, 3, 5)) * 30).astype(dtype)]
    found = []
    for mode in (GPU, GPU.excluding("softmax_of_a_broadcast")):
        graph = symdnn.function([a, b], outputs, mode=mode).fgraph
        names = [type(n.op).__name__ for n in graph.toposort()]
        found.append(evaluate(graph.outputs, dict(zip(graph.inputs, given, strict=True))))
        whole = mode is GPU and dtype != "bfloat16"
        assert any("Softmax" in n or n == "FusedRows" for n in names) is not whole, names
    for one, other in zip(*found, strict=True):
        tolerance = 4 * TOLERANCE[dtype]
        np.testing.assert_allclose(one.astype("float64"), other.astype("float64"), tolerance)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("function", [T.log_softmax, T.softmax])
@pytest.mark.parametrize("axis", [0, 1])
def test_long_columns_on_a_gpu_are_parts_that_join_their_readers(
    axis, function, dtype, monkeypatch
):
    """The loss and the gradient compute the softmax, which is stored nowhere."""
    monkeypatch.setattr(log_sum_rules, "_HELD", 4)
    monkeypatch.setattr(log_sum_rules, "_HELD_OF_16_BITS", 4)
    x, w = (T.TensorType(dtype, (6, 5, 3))(n) for n in "xw")
    total = (function(x, axis=axis) * w).sum()
    rng = new_rng()
    given = [(rng.normal(size=(6, 5, 3)) * s + m).astype(dtype) for s, m in ((3, 100), (1, 0))]
    found = []
    for mode in (GPU, GPU.excluding("softmax_in_parts", "softmax_gradient_in_parts")):
        graph = symdnn.function([x, w], [total, grad(total, x)], mode=mode).fgraph
        names = [type(n.op).__name__ for n in graph.toposort()]
        found.append(evaluate(graph.outputs, dict(zip(graph.inputs, given, strict=True))))
        assert any("Softmax" in n and n != "SoftmaxParts" for n in names) is (mode is not GPU)
    for one, other in zip(*found, strict=True):
        tolerance = 4 * TOLERANCE[dtype]
        one, other = one.astype("float64"), other.astype("float64")
        np.testing.assert_allclose(one, other, tolerance, tolerance)


def test_other_softmaxes_on_a_gpu_are_kernels():
    """Those of rows, of short columns, and of unknown sizes."""
    for shape, axis in (((5000, 8192), 1), ((4096, 8), 0), ((None, 8), 0), ((5000, None), 0)):
        x = T.TensorType("float32", shape)("x")
        graph = symdnn.function([x], T.softmax(x, axis=axis), mode=GPU).fgraph
        names = [type(n.op).__name__ for n in graph.toposort()]
        assert "SoftmaxParts" not in names, names
    long = T.TensorType("float32", (4097, 8))("x")
    graph = symdnn.function([long], T.softmax(long, axis=0), mode=GPU).fgraph
    assert any(type(n.op).__name__ == "SoftmaxParts" for n in graph.toposort())


def test_whole_operands_on_a_gpu_have_a_softmax():
    """So have those whose log-sum-exp nobody wants."""
    x, row = T.fmatrix("x"), T.TensorType("float32", (1, None))("row")
    column = T.TensorType("float32", (None, 1))("column")
    for made in (T.logsumexp(x + row, axis=1).sum(), (T.softmax(row + column) ** 2).sum()):
        both = [made, grad(made, row)]
        graph = symdnn.function([x, row, column], both, mode=GPU, on_unused_input="ignore").fgraph
        texts = [str(n.op) for n in graph.toposort()]
        assert any("Softmax" in t or t.startswith("FusedRows") for t in texts), texts
