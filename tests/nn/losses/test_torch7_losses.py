"""Losses under Torch7's names, by their formulas in NumPy."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import nn
from symdnn.errors import InputError, ShapeMismatch, TypeMismatch

RNG = np.random.default_rng(7)
X, Y = RNG.standard_normal((2, 5, 4))


@pytest.mark.parametrize("average", [True, False])
def test_margins_of_classes_are_those_of_pytorchs_names(average):
    word = "mean" if average else "sum"
    classes, weights = np.array([0, 3, 1, 1, 2]), np.array([0.5, 1, 2, 1])
    ours = nn.MultiMarginCriterion(2, weights, 0.7, sizeAverage=average)
    same = nn.MultiMarginLoss(2, 0.7, weights, reduction=word)
    own = X[np.arange(5), classes][:, None]
    above = np.maximum(0, 0.7 - own + X) ** 2 * (np.arange(4) != classes[:, None])
    wanted = above.mean(1) * weights[classes]
    for loss in (ours, same):
        found = loss(X, classes).eval()
        np.testing.assert_allclose(found, wanted.mean() if average else wanted.sum())
    listed = np.array([[0, 2, -1, 0], [3, -1, 1, 1], [-1, 0, 0, 0], [1, 0, 3, -1], [2, 1, 0, 3]])
    found = nn.MultiLabelMarginCriterion(average)(X, listed).eval()
    np.testing.assert_allclose(found, nn.MultiLabelMarginLoss(reduction=word)(X, listed).eval())


def test_distances_of_pairs():
    t = np.array([1, -1, -1, 1, -1])
    far = abs(X - Y).sum(1)
    wanted = np.where(t > 0, far, np.maximum(0, 5 - far))
    assert 0 < (wanted == 0).sum() < 3
    loss = nn.L1HingeEmbeddingCriterion(5.0)
    np.testing.assert_allclose(loss([X, Y], t).eval(), wanted.mean())
    np.testing.assert_allclose(loss([X[1], Y[1]], -1).eval(), wanted[1])
    with pytest.raises(TypeMismatch, match="one target for each pair"):
        loss([X, Y], 1)


def test_a_cost_without_a_target():
    x = T.dmatrix()
    cost = nn.L1Cost()(x)
    f = symdnn.function([x], [cost, symdnn.grad(cost, x)])
    np.testing.assert_allclose(f(X)[0], abs(X).sum())
    np.testing.assert_allclose(f(X)[1], np.sign(X))


@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("classes", [2, 3, 4])
def test_distances_to_corners_of_a_simplex(classes, average):
    loss = nn.ClassSimplexCriterion(classes, sizeAverage=average)
    corners = loss.simplex
    products = np.where(np.eye(classes), 1, -1 / (classes - 1))
    np.testing.assert_allclose(corners @ corners.T, products, atol=1e-12)
    assert not corners[:, -1].any()
    x, t = T.dmatrix(), np.arange(5) % classes
    f = symdnn.function([x], [loss(x, t), symdnn.grad(loss(x, t), x), loss.getTopPrediction(x)])
    scores = X[:, :classes]
    apart, count = scores - corners[t], scores.size if average else 1
    found, slope, top = f(scores)
    np.testing.assert_allclose(found, (apart**2).sum() / count)
    np.testing.assert_allclose(slope, 2 * apart / count)
    distances = ((scores[:, None] - corners) ** 2).sum(2)
    np.testing.assert_array_equal(top, distances.argmin(1))
    alone = loss(scores[1], t[1]).eval()
    np.testing.assert_allclose(alone, (apart[1] ** 2).sum() / (classes if average else 1))


def test_what_has_no_corner():
    with pytest.raises(InputError, match="2 or more"):
        nn.ClassSimplexCriterion(1)
    loss = nn.ClassSimplexCriterion(4)
    for x, t in ((X, X), (X[:, :3], [0] * 5), (X, 1)):
        with pytest.raises(TypeMismatch, match="labels"):
            loss(x, t)
    with pytest.raises(ShapeMismatch, match="equal to dimension"):
        loss(X[:1], [0, 1])
