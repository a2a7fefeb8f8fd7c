"""Methods of a variable against NumPy's functions."""

import numpy as np
import pytest

import symdnn.tensor as T
from symdnn import function


def value(v: T.Variable) -> np.ndarray:
    return function([], v)()


METHODS = """arccos arccosh arcsin arcsinh arctan arctanh ceil cos cosh deg2rad exp exp2 expm1 floor
    log log10 log1p log2 rad2deg sin sinh sqrt tan tanh trunc"""


@pytest.mark.parametrize("name", METHODS.split())
def test_elementwise_methods(name: str) -> None:
    at = np.array([1.25 if name == "arccosh" else 0.75])
    np.testing.assert_allclose(value(getattr(T.constant(at), name)()), getattr(np, name)(at))


def test_methods_that_pick() -> None:
    x = T.constant(np.array([1.0, 3.0, 5.0]))
    np.testing.assert_array_equal(value(x.compress([True, False, True])), [1, 5])
    np.testing.assert_array_equal(value(x.searchsorted(np.array([0.0, 4.0]))), [0, 2])
