"""What becomes of whole models: which ops are there in the end, and that values are stable."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import Mode, function, grad, shared
from symdnn.ops.array.reduce import LogSumExp
from symdnn.ops.core.shape import Alloc
from symdnn.ops.elementwise.comparison import Switch
from symdnn.ops.elementwise.math import Log, Log1p
from symdnn.ops.nn.batchnorm import BatchNormTrain
from symdnn.ops.nn.conv import Conv, ConvGradInput, ConvGradWeight
from symdnn.ops.nn.crossentropy import SoftmaxCrossentropy, SoftmaxCrossentropyGrad
from symdnn.ops.nn.softmax import LogSoftmax, LogSoftmaxGrad, Softmax, SoftmaxGrad

PLAIN = Mode(optimizer="None")


def ops(f: Any) -> set[type]:
    return {type(getattr(n.op, "neutral", n.op)) for n in f.fgraph.nodes}


def kinds(f: Any) -> list[str]:
    return [type(n.op).__name__ for n in f.fgraph.nodes]


def both(inputs: list[Any], outputs: Any) -> tuple[Any, Any]:
    """The function with the neutral rewrites alone, and without any."""
    lowered = ("lower", "layout", "fuse", "precision", "transfer")
    return function(inputs, outputs, mode=Mode().excluding(*lowered)), function(
        inputs, outputs, mode=PLAIN
    )


def assert_agree(f: Any, g: Any, *values: Any, rtol: float = 1e-5) -> None:
    for a, b in zip(f(*values), g(*values), strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)


def classifier() -> tuple[Any, Any, Any, list[Any]]:
    rng = np.random.default_rng(0)
    x, t = T.matrix("x"), T.ivector("t")
    w = shared(rng.standard_normal((5, 4)).astype("float32"), name="w")
    b = shared(np.zeros(4, "float32"), name="b")
    return x, t, T.nnet.softmax(T.dot(x, w) + b), [w, b]


LOSSES = {
    "crossentropy": lambda p, t: T.nnet.categorical_crossentropy(p, t).mean(),
    "sum": lambda p, t: T.nnet.categorical_crossentropy(p, t).sum(),
    "arange": lambda p, t: -T.mean(T.log(p)[T.arange(t.shape[0]), t]),
    "arange_of_log": lambda p, t: -T.mean(T.log(p[T.arange(t.shape[0]), t])),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_crossentropy_of_softmax_is_fused_with_its_gradient(loss: str) -> None:
    x, t, p, ps = classifier()
    cost = LOSSES[loss](p, t)
    f, g = both([x, t], [cost, *grad(cost, ps)])
    assert {SoftmaxCrossentropy, SoftmaxCrossentropyGrad} <= ops(f)
    assert not ops(f) & {Softmax, SoftmaxGrad, LogSoftmax, LogSoftmaxGrad, Log}
    rng = np.random.default_rng(1)
    data = rng.standard_normal((6, 5)).astype("float32"), np.array([0, 1, 2, 3, 0, 1], "int32")
    assert_agree(f, g, *data)


def test_crossentropy_of_wild_scores_is_finite() -> None:
    x, t = T.matrix("x"), T.ivector("t")
    cost = T.nnet.categorical_crossentropy(T.nnet.softmax(x), t).sum()
    f = function([x, t], [cost, grad(cost, x)])
    value, slope = f(np.array([[1000, 0, -1000]], "float32"), np.array([2], "int32"))
    assert value == 2000
    np.testing.assert_allclose(slope, [[1, 0, -1]])


def test_fewer_labels_than_rows_pick_the_first_rows() -> None:
    x, t = T.matrix("x"), T.ivector("t")
    cost = -T.sum(T.log(T.nnet.softmax(x))[T.arange(t.shape[0]), t])
    f, g = both([x, t], [cost, grad(cost, x)])
    assert SoftmaxCrossentropy in ops(f)
    rows = np.random.default_rng(2).standard_normal((4, 3)).astype("float32")
    assert_agree(f, g, rows, np.array([1, -1], "int32"))
    with pytest.raises((IndexError, ValueError)):
        f(rows[:1], np.array([1, 1], "int32"))


def test_distributions_use_log_softmax() -> None:
    x, y = T.matrix("x"), T.matrix("y")
    cost = T.nnet.categorical_crossentropy(T.nnet.softmax(x), y).mean()
    f, g = both([x, y], [cost, grad(cost, x)])
    assert {LogSoftmax, LogSoftmaxGrad} <= ops(f)
    assert not ops(f) & {Softmax, SoftmaxGrad, Log}
    a, b = np.random.default_rng(3).uniform(0, 1, (2, 4, 3)).astype("float32")
    assert_agree(f, g, a, b)


def test_binary_crossentropy_of_sigmoid_is_stable() -> None:
    x, y = T.matrix("x"), T.matrix("y")
    cost = T.nnet.binary_crossentropy(T.nnet.sigmoid(x), y).mean()
    f, g = both([x, y], [cost, grad(cost, x)])
    assert not ops(f) & {Log, Log1p}
    a, b = np.random.default_rng(4).uniform(0, 1, (2, 4, 3)).astype("float32")
    assert_agree(f, g, a, b)
    value, slope = f(np.array([[200, -200]], "float32"), np.array([[0, 1]], "float32"))
    assert value == 200
    np.testing.assert_allclose(slope, [[0.5, -0.5]])


def test_log_of_sum_of_exponentials_does_not_overflow() -> None:
    x = T.matrix("x")
    y = T.log(T.exp(x).sum(axis=1))
    f, _ = both([x], [y, grad(y.sum(), x)])
    assert LogSumExp in ops(f)
    value, slope = f(np.array([[1000, 1000]], "float32"))
    np.testing.assert_allclose(value, [1000 + np.log(2)], rtol=1e-6)
    np.testing.assert_allclose(slope, [[0.5, 0.5]])


def test_variance_by_difference_of_means_is_stable() -> None:
    x = T.vector("x")
    f = function([x], (x**2).mean() - x.mean() ** 2)
    values = (1e4 + np.random.default_rng(5).uniform(0, 1, 1000)).astype("float32")
    np.testing.assert_allclose(f(values), values.astype("float64").var(), rtol=1e-3)


def test_a_mean_materialises_no_ones() -> None:
    x, y = T.matrix("x"), T.matrix("y")
    cost = ((x - y) ** 2).mean()
    f, g = both([x, y], [cost, grad(cost, x)])
    assert Alloc not in ops(f)
    assert_agree(f, g, *np.random.default_rng(6).standard_normal((2, 3, 4)).astype("float32"))


def test_an_unneeded_convolution_is_not_run() -> None:
    x, w = T.tensor4("x"), T.tensor4("w")
    total = T.nnet.conv2d(x, w).sum()
    f, g = both([x, w], grad(total, [x, w]))
    assert Conv not in ops(f)
    assert {ConvGradInput, ConvGradWeight} <= ops(f)
    rng = np.random.default_rng(7)
    data = [rng.standard_normal(s).astype("float32") for s in ((2, 3, 6, 6), (4, 3, 3, 3))]
    assert_agree(f, g, *data)


def test_a_shape_is_not_computed_from_values() -> None:
    x, w = T.tensor4("x"), T.tensor4("w")
    f = function([x, w], T.nnet.conv2d(T.tanh(x), w).shape)
    assert not ops(f) & {Conv}
    assert "Tanh" not in kinds(f)
    found = f(np.zeros((2, 3, 6, 5), "float32"), np.zeros((4, 3, 3, 3), "float32"))
    np.testing.assert_array_equal(found, [2, 4, 4, 3])


def test_batch_norm_keeps_no_running_averages_unasked() -> None:
    x = T.matrix("x")
    ones = np.ones(3, "float32")
    y, *_ = T.nnet.batch_normalization_train(x, ones, ones, "per-activation", 1e-4, 0.1, ones, ones)
    f, g = both([x], [y])
    (norm,) = [n.op for n in f.fgraph.nodes if isinstance(n.op, BatchNormTrain)]
    assert not norm.running
    assert_agree(f, g, np.random.default_rng(8).standard_normal((5, 3)).astype("float32"))


def test_dead_branches_are_gone() -> None:
    x = T.vector("x")
    f, g = both([x], [symdnn.ifelse(T.constant(1), x, T.exp(x)), T.switch(True, x, T.exp(x))])
    assert not ops(f) & {Switch}
    assert "IfElse" not in kinds(f)
    assert "Exp" not in kinds(f)
    assert_agree(f, g, np.ones(3, "float32"))


def test_a_clash_of_shapes_is_not_rewritten_away() -> None:
    x, y = T.matrix("x"), T.matrix("y")
    f = function([x, y], T.switch(True, x, y))
    a = np.ones((2, 3), "float32")
    np.testing.assert_array_equal(f(a, a), a)
    with pytest.raises(ValueError, match="equal sizes"):
        f(a, np.ones((2, 4), "float32"))
