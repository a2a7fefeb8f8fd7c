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


LOGARITHMS = {
    "of a flattened difference": (
        lambda x, y: T.log(T.exp(x).flatten() - 1),
        lambda x, y: np.log(np.expm1(x)).ravel(),
    ),
    "of two": (
        lambda x, y: T.log(T.exp(x).flatten() - T.exp(y).flatten()),
        lambda x, y: np.log(np.exp(x) - np.exp(y)).ravel(),
    ),
    "of a multiple": (
        lambda x, y: T.log(y * (T.exp(x) - T.exp(y)).T.T),
        lambda x, y: np.log(y * (np.exp(x) - np.exp(y))),
    ),
    "of sinh": (lambda x, y: T.log(T.sinh(x).flatten()), lambda x, y: np.log(np.sinh(x)).ravel()),
    "of one plus": (
        lambda x, y: T.log1p((T.exp(x) - T.exp(y)).flatten()),
        lambda x, y: np.log1p(np.exp(x) - np.exp(y)).ravel(),
    ),
    "of a logarithm": (
        lambda x, y: T.log(T.log(T.exp(x + 3).flatten() - 1).reshape((3, 4)) - 0.5),
        lambda x, y: np.log(np.log(np.expm1(x + 3)) - 0.5),
    ),
}


@pytest.mark.parametrize("factor", [1.0, 3.0])
@pytest.mark.parametrize("name", LOGARITHMS)
def test_rewriting_a_logarithm_ends(rng, name, factor):
    build, wanted = LOGARITHMS[name]
    x, y = T.dmatrices("xy")
    cost = (factor * build(x, y)).mean()
    with symdnn.config.change_flags(on_opt_error="raise"):
        f = symdnn.function([x, y], [cost, T.grad(cost, x)], on_unused_input="ignore")
    a = rng.uniform(0.2, 2, (3, 4))
    b = a * rng.uniform(0.3, 0.8, a.shape)
    np.testing.assert_allclose(f(a, b)[0], factor * wanted(a, b).mean(), 1e-12)
