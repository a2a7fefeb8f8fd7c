"""Losses of labels and gradients of log-softmax from logits: when, and that values stay."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.autodiff import Lop, grad
from symdnn.config import config
from symdnn.errors import IndexOutOfRange
from symdnn.graph.check import check_graph
from symdnn.graph.evaluate import evaluate
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.target import Target
from symdnn.graph.type import TensorType
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor
from symdnn.ops.array.reduce import LogSumExp
from symdnn.ops.elementwise.arithmetic import Cast
from symdnn.ops.lowered.label_loss import LabelLoss, LabelLossGrad
from symdnn.ops.lowered.lowered import neutral_of
from symdnn.ops.nn.crossentropy import (
    SoftmaxCrossentropy,
    SoftmaxCrossentropyGrad,
    softmax_crossentropy,
)
from symdnn.ops.nn.softmax import LogSoftmax, LogSoftmaxGrad, LogSoftmaxGradOfLogits
from symdnn.opt.fuse.loss_rules import compared_labels, loss_of_logits
from symdnn.rewriting.rewrite import Context
from tests.seeded import new_rng

TOLERANCE = {"float32": 1e-6, "float64": 1e-12, "bfloat16": 2e-2}


def rewritten(x, labels, outputs, kind="cuda:sm_90"):
    """The ops after the rewrite, whose values are those from before."""
    graph = FunctionGraph([x, labels], outputs)
    loss_of_logits.function(Context(graph, Target.parse(kind)))
    check_graph(graph)
    rng = new_rng()
    shape = (5, 4, 3)[: x.type.ndim]
    scores = (9 * rng.standard_normal(shape)).astype(x.type.numpy)
    values = [scores, rng.integers(0, 3, shape[:1] + shape[2:])]
    before = evaluate(outputs, dict(zip([x, labels], values)))
    after = evaluate(graph.outputs, dict(zip(graph.inputs, values)))
    tol = TOLERANCE[x.type.dtype]
    for a, b in zip(before, after):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(np.float64(a), np.float64(b), rtol=tol, atol=tol)
    return [type(n.op) for n in graph.toposort()]


def given(dtype="float32", ndim=2):
    return TensorType(dtype, (None,) * ndim)("x"), TensorType("int64", (None,) * (ndim - 1))("t")


def gradient(loss, x, labels, scale=1.0):
    """That of the sum of losses, times ``scale``, by labels as when shapes have been simplified."""
    return Lop(loss, x, scale * T.ones_like(labels, dtype=loss.type.dtype))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("ndim", [2, 3])
def test_loss_and_gradient_read_logits(dtype, ndim):
    x, labels = given(dtype, ndim)
    loss = softmax_crossentropy(x, labels, axis=1)
    ops = rewritten(x, labels, [loss, gradient(loss, x, labels)])
    assert SoftmaxCrossentropy not in ops
    assert (LabelLoss if ndim == 2 else LabelLossGrad) in ops
    assert ops.count(LogSumExp) == (ndim > 2)


def test_a_gradient_that_depends_on_the_loss_is_apart():
    x, labels = given()
    loss = softmax_crossentropy(x, labels)
    ops = rewritten(x, labels, [loss, grad((loss**2).sum(), x)])
    assert LabelLossGrad in ops
    assert LabelLoss not in ops


def test_two_gradients_of_a_loss():
    x, labels = given()
    loss = softmax_crossentropy(x, labels)
    ops = rewritten(x, labels, [loss, *(gradient(loss, x, labels, k) for k in (1, 0.5))])
    assert LabelLossGrad in ops
    assert LabelLoss not in ops


def test_a_loss_for_each_row_with_its_own_weight():
    x, labels = given()
    loss = softmax_crossentropy(x, labels)
    weights = T.switch(T.eq(labels, 1), 0.5, 2.0).astype("float32")
    ops = rewritten(x, labels, [loss, gradient(loss, x, labels, weights)])
    assert ops.count(LabelLoss) == 1


def test_the_same_cotangent_for_all_rows_is_one_number():
    x, labels = TensorType("float32", (6, 9))("x"), TensorType("int64", (6,))("t")
    loss = softmax_crossentropy(x, labels).mean()
    f = symdnn.function([x, labels], [loss, grad(loss, x)], mode=symdnn.Mode(target="cuda:sm_90"))
    (made,) = [n for n in f.fgraph.toposort() if isinstance(n.op, LabelLoss)]
    assert made.inputs[0].type.shape == (1,)


def test_a_log_softmax_for_the_gradient_alone():
    x, labels = given()
    logs = LogSoftmax(1)(x)
    _, found = SoftmaxCrossentropy(1)(x, labels)
    d = T.ones_like(labels, dtype="float32")
    ops = rewritten(x, labels, [SoftmaxCrossentropyGrad(1)(d, logs, labels)])
    assert LogSoftmax not in ops
    assert LabelLoss in ops
    ops = rewritten(x, labels, [SoftmaxCrossentropyGrad(1)(d, logs, labels), logs])
    assert LogSoftmax in ops
    assert LabelLossGrad not in rewritten(x, labels, [found])


def test_casts_at_both_ends_are_part_of_the_kernels():
    x, labels = given("bfloat16")
    loss = softmax_crossentropy(x.astype("float32"), labels)
    graph = FunctionGraph([x, labels], [gradient(loss, x, labels)])
    loss_of_logits.function(Context(graph, Target.parse("cuda:sm_90")))
    (made,) = [n for n in graph.toposort() if isinstance(n.op, LabelLoss)]
    assert made.op.dtype == "bfloat16"
    assert made.inputs[1] is graph.inputs[0]
    assert graph.outputs == [made.outputs[1]]
    assert not any(isinstance(n.op, Cast) for n in graph.toposort())
    scores = np.asarray([[1, 2, 3]], ml_dtypes.bfloat16)
    (got,) = evaluate(graph.outputs, {graph.inputs[0]: scores, graph.inputs[1]: np.array([2])})
    assert got.dtype == scores.dtype


def test_a_cpu_keeps_its_fused_loop():
    x, labels = given()
    loss = softmax_crossentropy(x, labels)
    assert SoftmaxCrossentropy in rewritten(x, labels, [loss, grad(loss.sum(), x)], "cpu")


def gradient_of_logits(outputs, inputs, kind="cpu"):
    """The function, its ops, and values that are those without the rewrite."""
    mode = symdnn.Mode(target=kind)
    f = symdnn.function(inputs, outputs, mode=mode)
    g = symdnn.function(
        inputs, outputs, mode=mode.excluding("log_softmax_gradient_of_logits", "onednn")
    )
    rng = new_rng()
    values = [rng.normal(size=(5, 6, 7)[: v.type.ndim]).astype(v.type.numpy) for v in inputs]
    for a, b in zip(f(*values), g(*values)):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    return [type(neutral_of(n.op)) for n in f.fgraph.toposort()]


@pytest.mark.parametrize("axis", [1, 2])
def test_a_gradient_alone_reads_logits(axis):
    x, d = T.ftensor3("x"), T.ftensor3("d")
    logs = T.nnet.logsoftmax(x, axis=axis)
    assert gradient_of_logits([Lop(logs, x, d)], [x, d]) == [LogSoftmaxGradOfLogits]


def test_a_log_softmax_that_others_read_is_kept():
    x, d = T.ftensor3("x"), T.ftensor3("d")
    logs = T.nnet.logsoftmax(x, axis=2)
    assert LogSoftmaxGrad in gradient_of_logits([Lop(logs, x, d), logs], [x, d])
    twice = [Lop(logs, x, d), Lop(logs, x, d * d)]
    assert LogSoftmaxGradOfLogits not in gradient_of_logits(twice, [x, d])


def test_only_where_a_kernel_has_it():
    x, d = T.ftensor3("x"), T.ftensor3("d")
    with config.change_flags(**{"cpu.compile": "never"}):
        ops = gradient_of_logits([Lop(T.nnet.logsoftmax(x, axis=2), x, d)], [x, d])
    assert LogSoftmaxGradOfLogits not in ops


def _placed(x, labels, axis):
    """What the gradient of elements at labels adds to zeros."""
    at = T.expand_dims(labels, axis)
    picked = T.take_along_axis(x, at, axis)
    zeros = T.zeros_like(x)
    return T.inc_subtensor(T.take_along_axis(zeros, at, axis), T.exp(picked)), picked


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", ["int64", "int8", "uint8"])
@pytest.mark.parametrize("known", [False, True])
def test_what_is_placed_at_labels_is_compared(axis, dtype, known):
    shape = (3, 4, 5)
    left = shape[:axis] + shape[axis + 1 :]
    x = TensorType("float32", shape if known else (None,) * 3)("x")
    labels = TensorType(dtype, left if known else (None,) * 2)("labels")
    placed, _ = _placed(x, labels, axis)
    graph = FunctionGraph([x, labels], [placed * x])
    compared_labels.function(Context(graph, Target.parse("cuda:sm_90")))
    check_graph(graph)
    assert AdvancedIncSubtensor not in [type(n.op) for n in graph.toposort()]
    rng = new_rng()
    low = 0 if dtype == "uint8" else -shape[axis]
    values = [
        rng.standard_normal(shape).astype("float32"),
        rng.integers(low, shape[axis], left).astype(dtype),
    ]
    (before,) = evaluate([placed * x], dict(zip([x, labels], values)))
    (after,) = evaluate(graph.outputs, dict(zip(graph.inputs, values)))
    np.testing.assert_array_equal(after, before)
    with pytest.raises(IndexOutOfRange):
        evaluate(graph.outputs, dict(zip(graph.inputs, [values[0], values[1] * 0 + shape[axis]])))


def test_zeros_that_others_read_at_labels_stay():
    x, labels = given()
    placed, picked = _placed(x, labels, 1)
    some = T.inc_subtensor(T.zeros_like(x)[T.arange(labels.shape[0]) // 2, labels], picked[:, 0])
    for outputs in ([placed], [placed.sum(axis=1)], [placed * x, placed], [some * x]):
        graph = FunctionGraph([x, labels], outputs)
        compared_labels.function(Context(graph, Target.parse("cuda:sm_90")))
        assert AdvancedIncSubtensor in [type(n.op) for n in graph.toposort()]


def test_a_loss_that_also_reads_the_log_sum_exp_has_no_zeros():
    x, labels = given()
    total = T.logsumexp(x, axis=1)
    own = T.take_along_axis(x, labels[:, None], 1)[:, 0]
    cost = (total - own + 0.1 * total**2).mean()
    mode = symdnn.Mode(target="cuda:sm_90")
    f = symdnn.function([x, labels], [cost, grad(cost, x)], mode=mode)
    names = {type(n.op).__name__ for n in f.fgraph.toposort()}
    assert not names & {"AdvancedIncSubtensor", "AdvancedSubtensor"}
    g = symdnn.function([x, labels], [cost, grad(cost, x)], mode=symdnn.Mode(target="cpu"))
    values = new_rng().standard_normal((6, 40)).astype("float32"), np.array([0, 3, -1, 39, 7, 7])
    with pytest.raises(IndexOutOfRange):
        g(values[0], values[1] + 1)
    wanted = evaluate([cost, grad(cost, x)], dict(zip([x, labels], values)))
    for a, b in zip(g(*values), wanted, strict=True):
        np.testing.assert_allclose(a, b, 1e-5, 1e-6)
