"""Gamma variates and von Mises' angles: distribution, implicit gradients, ends of the range."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special as sp
from scipy import stats

from symdnn.autodiff import Rop, grad
from symdnn.errors import TypeMismatch
from symdnn.graph.evaluate import evaluate
from symdnn.graph.type import TensorType
from symdnn.graph.variable import constant
from symdnn.ops.elementwise.incomplete import gamma_draw_slope, von_mises_draw_slope
from symdnn.ops.random.rejection import random_log_gamma, random_von_mises
from symdnn.ops.random.rng_philox import block_words

STATE = np.array([0x1234_5678_9ABC, 11], np.uint64)
VECTOR = TensorType("float64", (None,))


def drawn(build, parameter, size=40_000):
    return evaluate([build(STATE, np.float64(parameter), (size,), "float64")[0]], {})[0]


@pytest.mark.parametrize("shape", [0.02, 0.3, 1.0, 2.5, 60.0, 1e6])
def test_gamma_variates_have_their_distribution(shape):
    """Far below 0 the probability is that of the leading term."""
    x = drawn(random_log_gamma, shape)
    low = np.exp(np.minimum(shape * x - sp.gammaln(shape + 1), 0))
    u = np.where(x < -30, low, sp.gammainc(shape, np.exp(np.maximum(x, -30))))
    assert stats.kstest(u, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("k", [0.0, 1e-5, 0.5, 5.0, 50.0, 1e8])
def test_angles_have_their_distribution(k):
    x = drawn(random_von_mises, k)
    assert np.abs(x).max() <= np.pi
    if k == 0:
        wanted = stats.uniform(-np.pi, 2 * np.pi)
    else:
        wanted = stats.vonmises(k) if k < 1e4 else stats.norm(0, k**-0.5)
    assert stats.kstest(x, wanted.cdf).pvalue > 1e-3


@pytest.mark.parametrize(("build", "slope"), [
    (random_log_gamma, gamma_draw_slope), (random_von_mises, von_mises_draw_slope),
])  # fmt: skip
def test_gradients_are_those_of_a_quantile(build, slope):
    """Not of the algorithm, whose choice of proposals has none. A row's parameter takes its sum."""
    p = TensorType("float64", (1, 3))("p")
    y, _ = build(STATE, p, (5, 3), "float64")
    at = {p: np.array([[0.3, 2.0, 30.0]])}
    found, wanted = evaluate([grad((y * y).sum(), p), (2 * y * slope(p, y)).sum(0)], at)
    np.testing.assert_allclose(found[0], wanted, rtol=1e-12)
    ahead, want = evaluate([Rop(y, p, constant(np.array([[1.0, 2, 3]]))),
                            slope(p, y) * np.array([1.0, 2, 3])], at)  # fmt: skip
    np.testing.assert_allclose(ahead, want, rtol=1e-12)


def test_the_mean_moves_as_it_should():
    """The mean of gamma variates is their shape, of angles cos(x) it is the resultant length."""
    a, k = VECTOR("a"), VECTOR("k")
    x, _ = random_log_gamma(STATE, a, (200_000,), "float64")
    t, _ = random_von_mises(STATE, k, (200_000,), "float64")
    shapes, lengths = np.full(200_000, 1.7), np.full(200_000, 2.5)
    slopes = grad(x.exp().sum(), a), grad(t.cos().sum(), k)
    found = [v.mean() for v in evaluate(slopes, {a: shapes, k: lengths})]
    ratio = sp.i1e(2.5) / sp.i0e(2.5)
    np.testing.assert_allclose(found, [1, 1 - ratio / 2.5 - ratio**2], rtol=0.01)


def test_parameters_out_of_range_give_nan():
    p = np.array([-1.0, 0.0, np.inf, np.nan, 1e-300])
    x = evaluate([random_log_gamma(STATE, p, (5,), "float64")[0]], {})[0]
    np.testing.assert_array_equal(np.isnan(x), [True, False, True, True, False])
    assert x[1] == -np.inf
    t = evaluate([random_von_mises(STATE, p, (5,), "float64")[0]], {})[0]
    np.testing.assert_array_equal(np.isnan(t), [True, False, True, True, False])


def test_float32_draws_are_those_of_float64():
    for build in (random_log_gamma, random_von_mises):
        a, b = (
            evaluate([build(STATE, np.float32(3.5), (50,), d)[0]], {})[0]
            for d in ("float64", "float32")
        )
        np.testing.assert_array_equal(a.astype("float32"), b)


def test_what_is_refused():
    with pytest.raises(TypeMismatch, match="float dtype"):
        random_log_gamma(STATE, 1.0, (3,), "int64")
    with pytest.raises(ValueError, match="tag 2"):
        block_words(STATE, np.arange(3), 2, 0)
