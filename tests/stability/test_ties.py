"""Differences of exponentials where both are equal: their derivatives are not those of a kink."""

from __future__ import annotations

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T

#: A program that takes a stable form, and one of the same values that needs none.
PAIRS = {
    "quotient of sinh": (lambda x: T.sinh(x) / T.cosh(x), T.tanh),
    "written out": (lambda x: (T.exp(x) - T.exp(-x)) / (T.exp(x) + T.exp(-x)), T.tanh),
    "of exponentials": (lambda x: (T.exp(x) - T.exp(3 * x)) / T.exp(x), lambda x: 1 - T.exp(2 * x)),
    "product": (lambda x: (T.exp(x) - T.exp(-x)) * T.exp(-x), lambda x: 1 - T.exp(-2 * x)),
    "of expm1": (lambda x: T.expm1(2 * x) * T.exp(-x), lambda x: 2 * T.sinh(x)),
    "sums": (
        lambda x: (T.exp(x) - T.exp(-x)).sum() / T.exp(x).sum(),
        lambda x: 2 * T.sinh(x).sum() / T.exp(x).sum(),
    ),
    "of bells": (
        lambda x: (T.exp(-(x**2)) - T.exp(-x)) / T.exp(-x),
        lambda x: T.expm1(x - x**2),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_derivatives_at_ties(name):
    stable, plain = PAIRS[name]
    x = T.dvector("x")
    found, wanted = (
        [y.sum(), dy := T.grad(y.sum(), x), T.grad(dy.sum(), x)] for y in (stable(x), plain(x))
    )
    at = np.array([0.0, 1.0, -1.0, 0.25, -0.0])
    for a, b in zip(symdnn.function([x], found)(at), symdnn.function([x], wanted)(at), strict=True):
        np.testing.assert_allclose(a, b, 1e-12, 1e-12)
