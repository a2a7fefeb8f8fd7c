"""Loops with several long functions have the numbers of loops of each."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from tests.cpu.harness import needs_compiler
from tests.seeded import new_rng

CALLED = {"tgamma": T.gamma}


@needs_compiler
@pytest.mark.parametrize("name", CALLED)
@pytest.mark.parametrize("size", [1, 7, 64, 1003])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_vectors_have_the_numbers_of_loops_of_their_own(name, size, dtype):
    x = T.TensorType(dtype, (None,))("x")
    a = new_rng().uniform(0.3, 5, size).astype(dtype)
    with symdnn.config.change_flags(**{"cpu.compile": "always"}):
        both = symdnn.function([x], CALLED[name](x) * T.psi(x))(a)
        parts = [symdnn.function([x], f(x))(a) for f in (CALLED[name], T.psi)]
    np.testing.assert_allclose(
        both, parts[0] * parts[1], rtol=2e-7 if dtype == "float32" else 4e-16
    )
    assert symdnn.function([x], CALLED[name](x) * T.erf(x))(a * np.nan).shape == a.shape


@needs_compiler
def test_two_arguments():
    x, y = T.dvectors("x", "y")
    a, b = new_rng().uniform(0.3, 2, (2, 37))
    with symdnn.config.change_flags(**{"cpu.compile": "always"}):
        found = symdnn.function([x, y], x**y * T.erf(x) + T.arctan2(x, y))(a, b)
        erf = symdnn.function([x], T.erf(x))(a)
    np.testing.assert_allclose(found, a**b * erf + np.arctan2(a, b), rtol=1e-14)
