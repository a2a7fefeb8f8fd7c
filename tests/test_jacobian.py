"""Jacobians and Hessians: closed forms, finite differences, structure, what they refuse."""

import numpy as np
import pytest

from symdnn.autodiff import GradientError, grad, verify_grad
from symdnn.autodiff_rows import hessian, hessian_vector_product, jacobian
from symdnn.compile.function import function
from symdnn.compile.program.mode import Mode
from symdnn.errors import DisconnectedInput, TypeMismatch
from symdnn.graph.evaluate import evaluate
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType
from symdnn.ops.core.gradient_control import disconnected_grad

VECTOR = TensorType("float64", (None,))
MATRIX = TensorType("float64", (None, None))
SCALAR = TensorType("float64", ())
RNG = np.random.default_rng(3)
X, W = RNG.standard_normal(4), RNG.standard_normal((4, 3))


def test_jacobian_of_a_vector_by_a_vector():
    x = VECTOR("x")
    j = jacobian(x**2, x)
    assert j.type.ndim == 2
    np.testing.assert_allclose(function([x], j)(X), np.diag(2 * X))


def test_jacobian_by_a_matrix_has_the_shape_of_both():
    x, w = VECTOR("x"), MATRIX("w")
    j = function([x, w], jacobian(x.dot(w), w))(X, W)
    expected = np.zeros((3, 4, 3))
    for k in range(3):
        expected[k, :, k] = X
    np.testing.assert_allclose(j, expected)


def test_jacobian_keeps_the_structure_of_wrt():
    x, w = VECTOR("x"), MATRIX("w")
    y = operator("tanh")(x.dot(w))
    as_list, as_tuple = jacobian(y, [x, w]), jacobian(y, (x, w))
    assert isinstance(as_list, list)
    assert isinstance(as_tuple, tuple)
    slope = 1 - np.tanh(X @ W) ** 2
    by_x, by_w = function([x, w], as_list)(X, W)
    np.testing.assert_allclose(by_x, slope[:, None] * W.T)
    np.testing.assert_allclose(by_w, np.einsum("k,i,kj->kij", slope, X, np.eye(3)))


def test_jacobian_of_a_scalar_is_its_gradient():
    x = VECTOR("x")
    np.testing.assert_allclose(function([x], jacobian((x**3).sum(), x))(X), 3 * X**2)


def test_jacobian_of_a_matrix_is_refused():
    w = MATRIX("w")
    with pytest.raises(TypeMismatch, match="scalar or a vector.*flatten"):
        jacobian(w * 2, w)


def test_jacobian_of_something_else():
    x, y = VECTOR("x"), VECTOR("y")
    with pytest.raises(DisconnectedInput, match="nothing .* depends on y"):
        jacobian(x * 2, [x, y])
    zeros = jacobian(x * 2, [x, y], disconnected_inputs="ignore")[1]
    f = function([x, y], zeros)
    np.testing.assert_array_equal(f(X, np.ones(2)), np.zeros((4, 2)))


def test_jacobian_with_constants():
    x = VECTOR("x")
    held = x**2
    j = jacobian(held * x, x, consider_constant=[held])
    np.testing.assert_allclose(function([x], j)(X), np.diag(X**2))


def test_a_jacobian_can_be_differentiated():
    verify_grad(lambda x, w: jacobian(operator("tanh")(x.dot(w)), x).sum(0), [X, W])


def test_hessian():
    x = VECTOR("x")
    h = hessian((x**3).sum() + x[0] * x[1], x)
    expected = np.diag(6 * X)
    expected[0, 1] = expected[1, 0] = 1
    np.testing.assert_allclose(function([x], h)(X), expected)


def test_hessian_of_a_linear_cost_is_zero():
    x = VECTOR("x")
    np.testing.assert_array_equal(function([x], hessian(x.sum(), x))(X), np.zeros((4, 4)))


def test_hessian_of_several():
    x, y = VECTOR("x"), VECTOR("y")
    first, second = hessian((x**2).sum() * (y**3).sum(), [x, y])
    values = {x: X, y: X[:2]}
    np.testing.assert_allclose(evaluate([first], values)[0], 2 * np.eye(4) * (X[:2] ** 3).sum())
    np.testing.assert_allclose(evaluate([second], values)[0], np.diag(6 * X[:2]) * (X**2).sum())


def test_hessian_refuses_what_has_none():
    x, w = VECTOR("x"), MATRIX("w")
    with pytest.raises(TypeMismatch, match="scalar cost"):
        hessian(x, x)
    with pytest.raises(TypeMismatch, match="vectors in wrt"):
        hessian((w**2).sum(), w)


def test_hessian_vector_product():
    x, p = VECTOR("x"), VECTOR("p")
    cost = (x**3).sum() + x[0] * x[1]
    direction = RNG.standard_normal(4)
    product = function([x, p], hessian_vector_product(cost, x, p))(X, direction)
    full = function([x], hessian(cost, x))(X)
    np.testing.assert_allclose(product, full @ direction)


def test_the_slope_of_a_jacobian_row_is_the_gradient():
    x, w, i = VECTOR("x"), MATRIX("w"), TensorType("int64", ())("i")
    y = operator("sigmoid")(x.dot(w)) * x.sum()
    row = function([x, w, i], [jacobian(y, x)[i], grad(y[i], x)])
    for k in range(3):
        np.testing.assert_allclose(*row(X, W, k))


def test_verify_grad_in_a_mode_checks_what_is_compiled() -> None:
    rng = np.random.RandomState(0)  # of old programs
    verify_grad(operator("tanh"), [rng.uniform(size=3)], rng=rng, mode=Mode(), out_type="float64")
    with pytest.raises(GradientError, match="arg0"):
        verify_grad(lambda x: disconnected_grad(x) * x, [np.ones(2)], mode="FAST_COMPILE")
