"""Losses of labels and gradients of log-softmax from logits: when, and that values stay."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.autodiff import Lop, grad
from symdnn.config import config
from symdnn.graph.check import check_graph
from symdnn.graph.evaluate import evaluate
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.target import Target
from symdnn.graph.type import TensorType
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
from symdnn.opt.fuse.loss_rules import loss_of_logits
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
