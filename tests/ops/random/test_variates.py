"""Random variables of further distributions: KS tests with fixed seeds, shapes, gradients."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import symdnn
import symdnn.tensor as T
from symdnn.errors import SymdnnError
from symdnn.ops.random.random_stream import MRG_RandomStreams, RandomStream

N = 20_000
CONTINUOUS = {
    "exponential": ((2.0,), stats.expon(0, 2)),
    "laplace": ((1.0, 2.0), stats.laplace(1, 2)),
    "cauchy": ((1.0, 2.0), stats.cauchy(1, 2)),
    "logistic": ((1.0, 2.0), stats.logistic(1, 2)),
    "gumbel": ((1.0, 2.0), stats.gumbel_r(1, 2)),
    "gamma": ((0.7, 2.0), stats.gamma(0.7, 0, 2)),
    "chisquare": ((3.0,), stats.chi2(3)),
    "standard_t": ((2.5,), stats.t(2.5)),
    "beta": ((0.5, 2.0), stats.beta(0.5, 2)),
    "von_mises": ((0.0, 3.0), stats.vonmises(3)),
}
DISCRETE = {
    "geometric": ((0.3,), stats.geom(0.3)),
    "negative_binomial": ((2.5, 0.4), stats.nbinom(2.5, 0.4)),
    "poisson": ((3.5,), stats.poisson(3.5)),
    "binomial": ((9, 0.3), stats.binom(9, 0.3)),
}


def values(v):
    return symdnn.function([], v)()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_variates(name, dtype):
    parameters, wanted = CONTINUOUS[name]
    x = values(getattr(RandomStream(17), name)((N,), *parameters, dtype=dtype))
    assert x.dtype == dtype
    assert stats.kstest(x, wanted.cdf).pvalue > 1e-3


@pytest.mark.parametrize("name", DISCRETE)
def test_discrete_variates(name):
    parameters, wanted = DISCRETE[name]
    x = values(getattr(RandomStream(18), name)((N,), *parameters))
    high = int(wanted.ppf(0.999))
    chances = np.append(wanted.pmf(np.arange(high)), wanted.sf(high - 1))
    counts = np.bincount(np.minimum(x, high), minlength=high + 1)
    kept = chances * N > 5
    kept[-1] = True
    observed = np.append(counts[kept], counts[~kept].sum())
    expected = np.append(chances[kept], chances[~kept].sum()) * N
    full = expected > 0
    assert stats.chisquare(observed[full], expected[full]).pvalue > 1e-3


def test_vectors():
    stream = RandomStream(19)
    alpha = np.array([0.2, 1.5, 3.0])
    x = values(stream.dirichlet((N,), alpha, dtype="float64"))
    np.testing.assert_allclose(x.sum(1), 1)
    for k, a in enumerate(alpha):
        assert stats.kstest(x[:, k], stats.beta(a, alpha.sum() - a).cdf).pvalue > 1e-3
    factor = np.array([[1.0, 0.0], [0.5, 2.0]])
    z = values(stream.multivariate_normal((N,), [1.0, 2.0], factor @ factor.T))
    np.testing.assert_allclose(np.cov(z.T), factor @ factor.T, rtol=0.06)
    assert stats.kstest(z[:, 1], stats.norm(2, np.sqrt(4.25)).cdf).pvalue > 1e-3
    classes = values(stream.categorical((N,), [2.0, 3.0, 5.0]))
    assert stats.chisquare(np.bincount(classes), np.array([0.2, 0.3, 0.5]) * N).pvalue > 1e-3
    angle = values(stream.von_mises((N,), 3.0, 2.0))
    assert np.abs(angle).max() <= np.float32(np.pi)
    assert stats.kstest((angle - 3 + np.pi) % (2 * np.pi) - np.pi, stats.vonmises(2).cdf).pvalue > (
        1e-3
    )


def test_parameters_give_shapes_and_symbolic_sizes_are_taken():
    stream = MRG_RandomStreams(20)
    a, b = T.dmatrix("a"), T.dvector("b")
    n = T.iscalar("n")
    beta, gamma = stream.beta(None, a, b), stream.gamma((n, 2), 2.0)
    rows, vectors = (
        stream.dirichlet(None, a),
        stream.multivariate_normal(None, b, scale_tril=T.dot(a, a.T)),
    )
    classes = stream.categorical(None, a)
    f = symdnn.function([a, b, n], [beta, gamma, rows, vectors, classes])
    found = f(np.ones((3, 3)), np.ones(3), 5)
    assert [v.shape for v in found] == [(3, 3), (5, 2), (3, 3), (3,), (3,)]


def test_gradients_flow_to_all_parameters():
    """Of means, which are known: a/(a+b), shape * scale, loc + 0.5772 scale."""
    stream = RandomStream(21)
    a, b = T.dscalars("a", "b")
    means = {
        "gamma": (stream.gamma((N,), a, b), [3.0, 2.0]),
        "beta": (stream.beta((N,), a, b), [3 / 25, -2 / 25]),
        "gumbel": (stream.gumbel((N,), a, b), [1.0, 0.5772]),
    }
    for v, wanted in means.values():
        slopes = T.grad(v.mean(), [a, b])
        found = symdnn.function([a, b], slopes, on_unused_input="ignore")(2.0, 3.0)
        np.testing.assert_allclose(found, wanted, rtol=0.05)


def test_what_is_refused():
    stream = RandomStream(1)
    for build in (stream.dirichlet, stream.categorical, stream.multivariate_normal):
        with pytest.raises(SymdnnError):
            build((3,))
    with pytest.raises(SymdnnError, match="rates of at least 0"):
        values(stream.poisson((3,), -1.0))
