"""Special functions and random variates on a GPU: as on the processor, and by SciPy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special
import scipy.stats

import symdnn
import symdnn.tensor as T
from symdnn.tensor.random import RandomStream

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cuda")]

_UNIT, _POSITIVE, _ANY = (0.05, 0.95), (0.2, 6.0), (-6.0, 6.0)
#: Name, ranges of the operands, and SciPy's name where it is another.
FUNCTIONS = [
    ("betainc", (_POSITIVE, _POSITIVE, _UNIT), ""), ("gammainc", (_POSITIVE, _POSITIVE), ""),
    ("gammaincc", (_POSITIVE, _POSITIVE), ""), ("betaln", (_POSITIVE, _POSITIVE), ""),
    ("log_ndtr", (_ANY,), ""), ("ndtri", (_UNIT,), ""), ("logit", (_UNIT,), ""),
    ("i0e", (_ANY,), ""), ("i1e", (_ANY,), ""), ("psi", (_POSITIVE,), ""),
    ("gammaln", (_POSITIVE,), ""), ("owens_t", (_ANY, _ANY), ""), ("expit", (_ANY,), ""),
    ("zeta", ((1.5, 6.0), _POSITIVE), ""), ("tri_gamma", (_POSITIVE,), "polygamma"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "ranges", "other"), FUNCTIONS, ids=[f[0] for f in FUNCTIONS])
def test_special_functions_and_their_gradients(name, ranges, other):
    rng = np.random.default_rng(3)
    arrays = [rng.uniform(*r, 200) for r in ranges]
    vs = [T.dvector() for _ in ranges]
    value = getattr(T, name)(*vs)
    outputs = [value, *symdnn.grad(value.sum(), vs)]
    results = []
    for device in ("cpu", "cuda"):
        with symdnn.config.change_flags(device=device):
            results.append(symdnn.function(vs, outputs)(*arrays))
    for wanted, found in zip(*results, strict=True):
        np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-7, atol=1e-12)
    reference = getattr(scipy.special, other or name)
    wanted = reference(*([1] if other else []), *arrays)
    np.testing.assert_allclose(np.asarray(results[1][0]), wanted, rtol=1e-9, atol=1e-13)


VARIATES = [
    ("gamma", (2.5, 1.5), scipy.stats.gamma(2.5, scale=1.5)),
    ("gamma", (0.3, 1.0), scipy.stats.gamma(0.3)),
    ("beta", (1.5, 0.7), scipy.stats.beta(1.5, 0.7)),
    ("exponential", (2.0,), scipy.stats.expon(scale=2)),
    ("laplace", (1.0, 2.0), scipy.stats.laplace(1, 2)),
    ("cauchy", (1.0, 2.0), scipy.stats.cauchy(1, 2)),
    ("standard_t", (4.0,), scipy.stats.t(4)),
    ("von_mises", (0.0, 2.0), scipy.stats.vonmises(2)),
]


@pytest.mark.parametrize(
    ("name", "parameters", "wanted"), VARIATES, ids=[f"{v[0]}{i}" for i, v in enumerate(VARIATES)]
)
def test_random_variates_follow_their_distribution(name, parameters, wanted):
    def drawn(device):
        with symdnn.config.change_flags(device=device):
            stream = RandomStream(11)
            f = symdnn.function([], getattr(stream, name)((4000,), *parameters, dtype="float64"))
            return np.concatenate([np.asarray(f()) for _ in range(2)])

    found, same = drawn("cuda"), drawn("cpu")
    assert np.isclose(found, same, rtol=1e-6).mean() > 0.999  # but at the edge of an acceptance
    assert scipy.stats.kstest(found, wanted.cdf).pvalue > 1e-4


def test_counts_classes_orders_and_vectors_are_those_of_the_processor():
    def drawn(device):
        with symdnn.config.change_flags(device=device):
            s = RandomStream(5)
            covariance = np.array([[2.0, 0.5], [0.5, 1.0]])
            outs = [
                s.poisson((500,), 7.5), s.categorical((500,), np.array([0.2, 0.5, 0.3])),
                s.permutation(size=(20,), n=9), s.choice(size=(5,), a=9, replace=False),
                s.dirichlet((500,), np.array([0.5, 1.0, 4.0]), dtype="float64"),
                s.multivariate_normal((500,), np.zeros(2), covariance, dtype="float64"),
            ]  # fmt: skip
            return [np.asarray(v) for v in symdnn.function([], outs)()]

    for found, wanted in zip(drawn("cuda"), drawn("cpu"), strict=True):
        assert found.shape == wanted.shape
        assert np.isclose(found, wanted, rtol=1e-6).mean() > 0.99
