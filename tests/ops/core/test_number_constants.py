"""Constants of Python numbers are kept between uses: equal ones in sign, kind and flags only."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T


def operand(y):
    """The number in a node of a variable and a number."""
    return next(v for v in y.owner.inputs if hasattr(v, "data"))


def test_one_number_is_one_constant():
    x, y = T.fvectors("x", "y")
    assert operand(x * 2.5) is operand(y * 2.5)


def test_zeros_of_both_signs():
    x = T.dvector("x")
    assert (x / 0.0).eval({x: [1.0]}) == np.inf
    assert (x / -0.0).eval({x: [1.0]}) == -np.inf


@pytest.mark.parametrize(("number", "dtype"), [(1, "int32"), (1.0, "float64"), (True, "int32")])
def test_kinds_of_equal_numbers(number, dtype):
    with symdnn.config.change_flags(floatX="float64"):
        assert (T.ivector("i") + number).type.dtype == dtype


def test_flags_decide_anew():
    i = T.ivector("i")
    for dtype in ("float32", "float64", "float32"):
        with symdnn.config.change_flags(floatX=dtype):
            assert (i * 0.5).type.dtype == dtype


def test_numbers_without_variables():
    assert T.add(2.0, 0.25).eval() == 2.25
