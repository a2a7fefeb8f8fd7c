"""Test values: the graph is evaluated while it is built."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.config import config
from symdnn.errors import DimensionMismatch, InputError, MissingInputError


def with_value(x, value):
    x.tag.test_value = value
    return x


def test_values_follow_the_graph():
    with config.change_flags(compute_test_value="raise"):
        x = with_value(T.dmatrix("x"), np.ones((2, 3)))
        w = symdnn.shared(np.full((3, 4), 2.0))
        y = T.dot(x, w) + 1
        assert y.test_value.tolist() == [[7] * 4] * 2
        assert T.grad(y.sum(), w).test_value.shape == (3, 4)
        assert symdnn.function([x], y)(np.zeros((1, 3))).tolist() == [[1] * 4]


def test_a_wrong_shape_fails_at_the_users_line():
    with config.change_flags(compute_test_value="raise"):
        x = with_value(T.dmatrix("x"), np.ones((2, 3)))
        y = with_value(T.dmatrix("y"), np.ones((2, 3)))
        with pytest.raises(DimensionMismatch) as info:
            T.dot(x, y)
        assert "float64(2, 3)" in "".join(info.value.__notes__)
        assert __file__ in "".join(info.value.__notes__)


def test_off_computes_nothing():
    x = with_value(T.dvector("x"), np.ones(2))
    assert (x + 1).test_value is None


def test_a_missing_value():
    x, y = with_value(T.dvector("x"), np.ones(2)), T.dvector("y")
    with config.change_flags(compute_test_value="ignore"):
        assert (x + y).test_value is None
    with (
        config.change_flags(compute_test_value="warn"),
        pytest.warns(UserWarning, match="y of type .* has no test value"),
    ):
        T.exp(y)
    with (
        config.change_flags(compute_test_value="raise"),
        pytest.raises(MissingInputError, match=r"y of type .*, an input of Exp, has no test"),
    ):
        T.exp(y)


@pytest.mark.parametrize(
    ("value", "error"),
    [(np.ones((2, 2)), DimensionMismatch), (np.ones(2, "complex64"), InputError)],
)
def test_a_test_value_of_another_type(value, error):
    x = with_value(T.dvector("x"), value)
    with (
        config.change_flags(compute_test_value="raise"),
        pytest.raises(error, match="test value of x"),
    ):
        T.exp(x)


def test_compiling_needs_no_test_values():
    with config.change_flags(compute_test_value="raise"):
        x = with_value(T.dmatrix("x"), np.ones((2, 2)))
        y = T.nnet.softmax(x).sum() * x.shape[0]
        z = T.dmatrix("z")
        f = symdnn.function([z], y, givens={x: z})
    assert f(np.ones((3, 2))).shape == ()
