from __future__ import annotations

import numpy as np
import pytest

from symdnn.autodiff import grad
from symdnn.errors import IndexOutOfRange, ShapeMismatch, TypeMismatch
from symdnn.graph.evaluate import evaluate
from symdnn.graph.type import TensorType
from symdnn.ops.nn.ctc import CTCLoss, ctc
from symdnn.ops.nn.lrn import LRN, local_response_normalization
from symdnn.ops.nn.spatial_transformer import (
    spatial_transformer,
    transformer_grid,
    transformer_sampler,
)

RNG = np.random.default_rng(0)


def loss(a, labels, lengths):
    return evaluate([ctc(np.asarray(a), np.array(labels), np.array(lengths))], {})[0]


def test_ctc_of_labels_that_do_not_fit_is_infinite_with_no_gradient():
    a = RNG.standard_normal((2, 2, 3))
    costs, grads = evaluate(list(CTCLoss()(a, np.array([[1, 2], [1, 1]]), np.array([2, 2]))), {})
    assert np.isfinite(costs[0])
    assert np.isinf(costs[1])
    assert not grads[:, 1].any()
    assert np.isfinite(grads).all()


def test_ctc_gradient_is_zero_beyond_each_sequence():
    a = RNG.standard_normal((5, 2, 3))
    _, grads = evaluate(list(CTCLoss()(a, np.array([[1, 2], [1, -1]]), np.array([5, 2]))), {})
    assert not grads[2:, 1].any()
    np.testing.assert_allclose(grads.sum(2), 0, atol=1e-12)


def test_ctc_is_stable_for_long_sequences_and_large_scores():
    a = (RNG.standard_normal((400, 2, 20)) * 50).astype("float32")
    labels = RNG.integers(1, 20, (2, 100))
    costs, grads = evaluate(list(CTCLoss()(a, labels, np.array([400, 390]))), {})
    assert costs.dtype == np.float32
    assert np.isfinite(costs).all()
    assert np.isfinite(grads).all()


@pytest.mark.parametrize("label", [0, 3])
def test_ctc_names_a_label_that_is_no_class(label):
    with pytest.raises(IndexOutOfRange, match=rf"label {label} in row 1, position 0 .* 1 to 2"):
        loss(np.zeros((4, 2, 3)), [[1, 2], [label, 1]], [4, 4])


def test_ctc_names_a_length_that_is_too_long():
    with pytest.raises(IndexOutOfRange, match=r"input_lengths\[1\] = 9"):
        loss(np.zeros((4, 2, 3)), [[1, 2], [1, 1]], [4, 9])


def test_ctc_types_and_shapes():
    with pytest.raises(TypeMismatch, match="integer matrix"):
        ctc(np.zeros((4, 2, 3)), np.zeros((2, 2)), np.array([4, 4]))
    with pytest.raises(TypeMismatch, match="activations"):
        ctc(np.zeros((4, 2)), np.zeros((2, 2), int), np.array([4, 4]))
    with pytest.raises(ShapeMismatch, match="one row of labels"):
        loss(np.zeros((4, 2, 3)), [[1, 2]], [4, 4])


@pytest.mark.parametrize("labels", [[[1, 2]], [[1, 2], [2, 2]]])
def test_ctc_has_second_derivatives_of_a_batch_that_only_labels_know(labels):
    a = TensorType("float64", (None,) * 3)("a")
    first = grad(ctc(a, np.array(labels), np.full(len(labels), 4)).sum(), a)
    second = grad((first * first).sum(), a)
    x, d = (np.random.default_rng(3).standard_normal((4, len(labels), 3)) for _ in "ab")

    def cost(t):
        return float((evaluate([first], {a: x + t * d})[0] ** 2).sum())

    slope = (cost(1e-5) - cost(-1e-5)) / 2e-5
    np.testing.assert_allclose((evaluate([second], {a: x})[0] * d).sum(), slope, rtol=1e-6)


def test_the_identity_grid_returns_the_image():
    image = RNG.standard_normal((2, 3, 5, 4)).astype("float32")
    theta = np.tile(np.eye(2, 3, dtype="float32"), (2, 1, 1))
    y = evaluate([spatial_transformer(image, theta)], {})[0]
    np.testing.assert_allclose(y, image, atol=1e-6)


def test_outside_is_zero_also_for_wild_coordinates():
    image = np.ones((1, 1, 3, 3), "float32")
    for value in (3.0, -1e30, np.inf, 1e10):
        grid = np.full((1, 1, 1, 2), value, "float32")
        y = evaluate([transformer_sampler(image, grid)], {})[0]
        np.testing.assert_array_equal(y, 0)


@pytest.mark.parametrize(
    ("scale", "want"), [((1, 1), (30, 20)), ((0.1, 0.1), (3, 2)), ((1.26, 0.5), (15, 26))]
)
def test_output_sizes_static_and_symbolic(scale, want):
    theta = np.eye(2, 3, dtype="float32")[None]
    height, width = want
    values = np.zeros((1, 1, 30, 20), "float32")
    y = spatial_transformer(values, theta, *scale)
    x = TensorType("float32", (None,) * 4)("x")
    z = evaluate([spatial_transformer(x, theta, *scale)], {x: values})[0]
    assert y.type.shape == (1, 1, height, width)
    assert z.shape == (1, 1, height, width)


def test_transformer_errors():
    image = TensorType("float32", (None,) * 4)()
    with pytest.raises(TypeMismatch, match=r"\(N, 2, 3\)"):
        spatial_transformer(image, np.zeros((1, 3, 3), "float32"))
    with pytest.raises(TypeMismatch, match="theta"):
        transformer_grid(TensorType("float32", (None, None))(), (3, 3))
    theta = TensorType("float32", (None,) * 3)("theta")
    node = transformer_grid(theta, (3, 3)).owner
    with pytest.raises(ShapeMismatch, match=r"\(N, 2, 3\)"):
        node.op.shapes([v.type for v in node.inputs], [(1, 3, 3), (), ()], {1: 3, 2: 3})
    with pytest.raises(ValueError, match="positive"):
        spatial_transformer(image, theta, scale_width=0)
    with pytest.raises(TypeMismatch, match="one dtype"):
        transformer_sampler(image, np.zeros((1, 2, 2, 2)))


def test_lrn_arguments():
    x = TensorType("float32", (None,) * 4)()
    assert local_response_normalization(x).owner.op == LRN(5, 1e-4, 0.75, 2.0)
    with pytest.raises(ValueError, match="n=0"):
        local_response_normalization(x, n=0)
    with pytest.raises(TypeMismatch, match="float tensor"):
        local_response_normalization(TensorType("int64", (None,) * 4)())
