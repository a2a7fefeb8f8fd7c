"""Densities, probabilities and quantiles far out, against SciPy; draws; implicit gradients."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from scipy import stats

import symdnn
import symdnn.tensor as T
from symdnn import distributions as D
from symdnn.graph.evaluate import evaluate
from symdnn.ops.random.random_stream import RandomStream

#: Ours, by its parameters, and SciPy's.
CASES = {
    "Normal": (D.Normal, (1.0, 2.0), stats.norm(1, 2)),
    "Laplace": (D.Laplace, (1.0, 2.0), stats.laplace(1, 2)),
    "Cauchy": (D.Cauchy, (1.0, 2.0), stats.cauchy(1, 2)),
    "Gumbel": (D.Gumbel, (1.0, 2.0), stats.gumbel_r(1, 2)),
    "Logistic": (D.Logistic, (1.0, 2.0), stats.logistic(1, 2)),
    "StudentT": (D.StudentT, (3.5, 1.0, 2.0), stats.t(3.5, 1, 2)),
    "LogNormal": (D.LogNormal, (0.5, 1.5), stats.lognorm(1.5, scale=np.exp(0.5))),
    "HalfNormal": (D.HalfNormal, (2.0,), stats.halfnorm(0, 2)),
    "HalfCauchy": (D.HalfCauchy, (2.0,), stats.halfcauchy(0, 2)),
    "Exponential": (D.Exponential, (0.5,), stats.expon(0, 2)),
    "Gamma": (D.Gamma, (2.5, 0.5), stats.gamma(2.5, 0, 2)),
    "InverseGamma": (D.InverseGamma, (2.5, 0.5), stats.invgamma(2.5, 0, 0.5)),
    "Chi2": (D.Chi2, (3.0,), stats.chi2(3)),
    "Weibull": (D.Weibull, (2.0, 0.7), stats.weibull_min(0.7, 0, 2)),
    "Pareto": (D.Pareto, (0.5, 2.5), stats.pareto(2.5, 0, 0.5)),
    "FisherSnedecor": (D.FisherSnedecor, (3.0, 7.0), stats.f(3, 7)),
    "Beta": (D.Beta, (0.5, 3.0), stats.beta(0.5, 3)),
    "Uniform": (D.Uniform, (1.0, 3.0), stats.uniform(1, 2)),
    "VonMises": (D.VonMises, (0.0, 3.0), stats.vonmises(3)),
}
DISCRETE = {
    "Bernoulli": (D.Bernoulli, (0.3,), stats.bernoulli(0.3)),
    "Binomial": (D.Binomial, (20.0, 0.3), stats.binom(20, 0.3)),
    "NegativeBinomial": (D.NegativeBinomial, (2.5, 0.3), stats.nbinom(2.5, 0.7)),
    "Geometric": (D.Geometric, (0.3,), stats.geom(0.3, -1)),
    "Poisson": (D.Poisson, (6.0,), stats.poisson(6)),
}
CHANCES = np.array([1e-300, 1e-100, 1e-30, 1e-10, 1e-3, 0.2, 0.4, 0.6, 0.9, 0.999])


def made(name):
    family, parameters, wanted = {**CASES, **DISCRETE}[name]
    return family(*(np.float64(p) for p in parameters)), wanted


def compiled(build, *arrays):
    """By the references, which is quicker than to compile each."""
    vs = [T.TensorType("float64", (None,))() for _ in arrays]
    return evaluate([build(*vs)], dict(zip(vs, arrays)))[0]


@pytest.mark.filterwarnings("ignore:.*Root finding evaluation:RuntimeWarning")  # SciPy's quantile
@pytest.mark.parametrize("name", CASES)
def test_densities_and_probabilities_far_out(name):
    d, wanted = made(name)
    with np.errstate(all="ignore"):
        x = np.concatenate([wanted.ppf(CHANCES), wanted.isf([1e-12, 1e-60, 1e-200])])
        x = x[np.isfinite(x) & (np.abs(x) < 1e300)]
        x = x[np.isfinite(wanted.logpdf(x)) & (x != wanted.support()[1])]
        density, below = wanted.logpdf(x), wanted.cdf(x)
    np.testing.assert_allclose(compiled(d.log_prob, x), density, rtol=1e-12, atol=1e-12)
    if name != "VonMises":
        # SciPy's quantile of the least ones may be where it is 0, or just above a bound.
        keep = below > (1e-9 if name == "Pareto" else 1e-290)
        np.testing.assert_allclose(compiled(d.cdf, x)[keep], below[keep], rtol=1e-11, atol=0)
        p = CHANCES[2:]
        np.testing.assert_allclose(compiled(d.icdf, p), wanted.ppf(p), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("name", [n for n in CASES if n != "VonMises"])
def test_quantiles_are_the_inverse_of_probabilities(name):
    d, _ = made(name)
    # A value just above the least has few digits to say by how much.
    p = CHANCES[4 if name in ("Pareto", "Uniform") else 3 :]
    np.testing.assert_allclose(compiled(lambda v: d.cdf(d.icdf(v)), p), p, rtol=1e-11)


@pytest.mark.parametrize("name", [n for n in CASES if n != "VonMises"])
def test_quantiles_near_one_keep_their_digits(name):
    d, wanted = made(name)
    rest = 0.5 ** np.array([2, 10, 20, 40])  # 1 - rest is exact
    np.testing.assert_allclose(compiled(d.icdf, 1 - rest), wanted.isf(rest), rtol=1e-12)


@pytest.mark.parametrize("name", [n for n in CASES if n != "VonMises"])
def test_what_is_no_probability_has_no_quantile(name):
    d, _ = made(name)
    assert np.isnan(compiled(d.icdf, np.array([-0.1, 1.1, np.nan]))).all()


#: (Gumbel's is infinity less infinity there, but by the stable form of a compiled function.)
FAR = {n: case[:2] for n, case in CASES.items() if n not in ("Gumbel", "Uniform", "VonMises")}


@pytest.mark.parametrize("name", [*FAR, "GeneralizedPareto", "Kumaraswamy"])
def test_infinity_has_no_density(name):
    others = {"GeneralizedPareto": (1.0, 2.0, 0.3), "Kumaraswamy": (2.0, 3.0)}
    parameters = others[name] if name in others else FAR[name][1]
    d = getattr(D, name)(*(np.float64(p) for p in parameters), validate_args=False)
    x = np.array([np.inf, -np.inf])
    np.testing.assert_array_equal(compiled(d.log_prob, x), -np.inf)
    np.testing.assert_array_equal(compiled(d.cdf, x), [1, 0])


def test_kumaraswamy_near_one():
    """By mpmath; the kernels of a compiled function, whose rewrites keep the digits."""
    x = np.array([1e-100, 1e-5, 0.5, 1 - 1e-12])
    for a, b in ((0.1, 0.1), (2.0, 30.0), (1e-3, 5.0), (1.0, 1.0)):
        d, v = D.Kumaraswamy(np.float64(a), np.float64(b)), T.dvector()
        found = symdnn.function([v], [d.log_prob(v), d.cdf(v)])(x)
        with mpmath.workdps(300):
            a, b = map(mpmath.mpf, (a, b))
            above = [mpmath.log(1 - mpmath.mpf(float(u)) ** a) for u in x]
            logs = [mpmath.log(a * b) + (a - 1) * mpmath.log(mpmath.mpf(float(u))) + (b - 1) * w
                    for u, w in zip(x, above)]  # fmt: skip
            below = [float(-mpmath.expm1(b * w)) for w in above]
        np.testing.assert_allclose(found[0], [float(w) for w in logs], rtol=1e-12)
        np.testing.assert_allclose(found[1], below, rtol=1e-12)
    assert symdnn.function([v], d.log_prob(v))(np.ones(1)) == 0  # a and b are 1


@pytest.mark.parametrize("name", DISCRETE)
def test_probabilities_of_whole_numbers(name):
    d, wanted = made(name)
    k = np.arange(-1.0, 3 if name == "Bernoulli" else 21)
    values = d.support.check(np.array(k)).eval()
    np.testing.assert_allclose(
        compiled(d.log_prob, k)[values], wanted.logpmf(k)[values], rtol=1e-12, atol=1e-12
    )
    np.testing.assert_allclose(compiled(d.cdf, k), wanted.cdf(k), rtol=1e-12)
    half = compiled(d.cdf, k + 0.5)
    np.testing.assert_array_equal(half, compiled(d.cdf, k))


@pytest.mark.parametrize("name", [*CASES, *DISCRETE])
def test_moments_and_draws(name):
    d, wanted = made(name)
    (x,) = evaluate([d.sample((10_000,), RandomStream(5))], {})
    assert x.shape == (10_000,)
    if name in CASES:
        assert stats.kstest(x, wanted.cdf).pvalue > 1e-3
    else:
        assert abs(x.mean() - wanted.mean()) < 5 * wanted.std() / np.sqrt(x.size)
    if name != "VonMises":  # its moments are those of the circle
        found = evaluate([d.mean, d.variance], {})
        np.testing.assert_allclose(found[0], wanted.mean(), rtol=1e-10)
        if name != "Cauchy":
            np.testing.assert_allclose(found[1], wanted.var(), rtol=1e-10)
        if name not in ("Binomial", "NegativeBinomial", "Poisson"):
            (entropy,) = evaluate([d.entropy()], {})
            np.testing.assert_allclose(entropy, wanted.entropy(), rtol=1e-7)


REPARAMETERISED = {
    "Gamma": ((2.5, 0.5), None), "InverseGamma": ((2.5, 0.5), None), "Chi2": ((3.0,), None),
    "Weibull": ((2.0, 0.7), None),
    "Pareto": ((0.5, 2.5), None), "Kumaraswamy": ((2.0, 3.0), None), "Normal": ((1.0, 2.0), None),
    "LogNormal": ((0.5, 0.7), None),
}  # fmt: skip
#: Made of one uniform or gamma value, which fixes a draw's probability as its parameters move.
OF_ONE = (
    "Gamma",
    "InverseGamma",
    "Chi2",
    "Weibull",
    "Pareto",
    "Kumaraswamy",
    "Normal",
    "LogNormal",
)


@pytest.mark.parametrize("name", OF_ONE)
def test_implicit_gradients_are_differences_of_the_cdf(name):
    """dx / dp = -(dF / dp) / density, with dF / dp by central differences of the cdf."""
    parameters = np.array(REPARAMETERISED[name][0])
    family, n = getattr(D, name), 12
    vs = [T.dvector() for _ in parameters]
    x = family(*vs).rsample(rng=RandomStream(8))
    rows = np.repeat(parameters[:, None], n, 1)
    drawn, *slopes = evaluate([x, *T.grad(x.sum(), vs)], dict(zip(vs, rows)))
    v = T.dvector()

    def below(*given):
        return evaluate([family(*vs).cdf(v), family(*vs).log_prob(v)], dict(zip([*vs, v], given)))

    density = np.exp(below(*rows, drawn)[1])
    for i, slope in enumerate(slopes):
        h = np.zeros_like(rows)
        h[i] = 1e-4
        ends = [below(*(rows + k * h), drawn)[0] for k in (-2, -1, 1, 2)]
        moved = (ends[0] - 8 * ends[1] + 8 * ends[2] - ends[3]) / 12e-4
        np.testing.assert_allclose(slope, -moved / density, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("name", "parameters"), [
    ("Beta", (2.0, 3.0)), ("StudentT", (6.0, 1.0, 2.0)), ("FisherSnedecor", (4.0, 12.0)),
    ("VonMises", (0.3, 2.0)), ("RelaxedBernoulli", (0.7, 0.3)),
])  # fmt: skip
def test_gradients_of_means_over_many_draws(name, parameters):
    """Of a bounded function of the draws, against differences of the same mean by quadrature."""
    family = getattr(D, name)
    vs = [T.dscalar() for _ in parameters]
    x = family(*vs).rsample((60_000,), RandomStream(9))
    numbers = [np.float64(p) for p in parameters]
    slopes = evaluate(T.grad(T.cos(x).mean(), vs), dict(zip(vs, numbers)))
    v = T.dvector()
    logs = family(*vs).log_prob(v)

    def density(*given):
        at = [np.asarray(g, "float64") for g in given]
        return np.exp(evaluate([logs], dict(zip([*vs, v], at)))[0])

    t, w = np.polynomial.legendre.leggauss(300)
    unit = name in ("Beta", "RelaxedBernoulli")
    if unit:
        at, weight = (t + 1) / 2, w / 2
    elif name == "VonMises":
        at, weight = np.pi * t, np.pi * w
    else:
        share = (t + 1) / 2
        at, weight = share / (1 - share), w / 2 / (1 - share) ** 2
        if name == "StudentT":
            at, weight = np.concatenate([at, -at]), np.concatenate([weight, weight])
    for i, slope in enumerate(slopes):
        ends = []
        for s in (-1e-4, 1e-4):
            moved = list(parameters)
            moved[i] += s
            ends.append(np.sum(weight * density(*moved, at) * np.cos(at)))
        np.testing.assert_allclose(slope, (ends[1] - ends[0]) / 2e-4, atol=0.01)


def test_probabilities_near_zero_keep_their_digits():
    """By mpmath, where SciPy's cdf of Student's t and of F lose theirs."""
    with mpmath.workdps(60):
        z = mpmath.mpf(-30)
        wanted = mpmath.betainc(3.5, 0.5, 0, 7 / (7 + z * z), regularized=True) / 2
    t = D.StudentT(np.float64(7.0))
    np.testing.assert_allclose(compiled(t.cdf, np.array([-30.0])), float(wanted), rtol=1e-12)
    slope = compiled(lambda v: T.grad(t.cdf(v).sum(), v), np.array([0.0, 1e-9, -1e-9, 3.0]))
    np.testing.assert_allclose(slope, stats.t(7).pdf([0.0, 1e-9, -1e-9, 3.0]), rtol=1e-10)
