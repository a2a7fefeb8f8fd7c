"""Wishart, LKJ, normals of low rank, the generalised Pareto; transforms and registries."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import integrate, stats
from scipy.special import psi

import symdnn
import symdnn.tensor as T
from symdnn import distributions as D
from symdnn.errors import OptionError
from symdnn.graph.evaluate import evaluate
from symdnn.ops.random.random_stream import RandomStream


def value(v, at=None):
    return evaluate([v], at or {})[0]


def positive_definite(rng, n):
    half = rng.normal(size=(n, n))
    return half @ half.T + 0.3 * np.eye(n)


def test_wishart(rng):
    v, df = positive_definite(rng, 3), np.float64(5.5)
    wanted = stats.wishart(5.5, v)
    x = wanted.rvs(4, random_state=1)
    for given in (
        {"covariance_matrix": v},
        {"precision_matrix": np.linalg.inv(v)},
        {"scale_tril": np.linalg.cholesky(v)},
    ):
        d = D.Wishart(df, **given)
        found = evaluate([d.log_prob(x), d.mean, d.variance, d.mode, d.entropy()], {})
        wants = [wanted.logpdf(np.moveaxis(x, 0, -1)), wanted.mean(), wanted.var(), wanted.mode()]
        for got, want in zip(found, [*wants, wanted.entropy()], strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-9)
    draws = value(d.rsample((20_000,), RandomStream(2)))
    np.testing.assert_allclose(draws.mean(0), wanted.mean(), rtol=0.1, atol=0.3)
    batch = D.Wishart(np.array([4.0, 6.0]), v)
    assert (batch.batch_shape, batch.event_shape) == ((2,), (3, 3))
    with pytest.raises(OptionError, match="as df"):
        D.Wishart(np.float64(1.5), v)
    # The divergence is the mean of a difference.
    q = D.Wishart(np.float64(6.5), v + np.eye(3))
    over, under = evaluate([d.log_prob(draws), q.log_prob(draws)], {})
    far = (over - under).mean() - value(D.kl_divergence(d, q))
    assert abs(far) < 5 * (over - under).std() / np.sqrt(len(draws))
    assert abs(value(D.kl_divergence(d, d))) < 1e-12


def test_factors_of_correlations_are_drawn_by_their_density():
    for dim, concentration in ((2, 1.5), (4, 0.7)):
        d = D.LKJCholesky(dim, np.float64(concentration))
        draws = value(d.sample((4000,), RandomStream(3)))
        assert value(D.constraints.corr_cholesky.check(draws)).all()
        correlations = draws @ np.swapaxes(draws, -1, -2)
        edge = concentration + (dim - 2) / 2
        for i, j in ((1, 0), (dim - 1, dim - 2)):
            share = (correlations[:, i, j] + 1) / 2
            assert stats.kstest(share, stats.beta(edge, edge).cdf).pvalue > 1e-3
    # Of two rows the density of the one number is known.
    r = np.linspace(-0.9, 0.9, 7)
    low = np.zeros((7, 2, 2))
    low[:, 0, 0], low[:, 1, 0], low[:, 1, 1] = 1, r, np.sqrt(1 - r**2)
    found = value(D.LKJCholesky(2, np.float64(1.5)).log_prob(low))
    np.testing.assert_allclose(found, stats.beta(1.5, 1.5).logpdf((r + 1) / 2) - np.log(2))
    with pytest.raises(OptionError, match="at least 2 as dim"):
        D.LKJCholesky(1)


def test_low_rank_normals_are_normals_of_their_covariance(rng):
    loc, w, diagonal = rng.normal(size=4), rng.normal(size=(4, 2)), rng.uniform(0.1, 2, 4)
    covariance = w @ w.T + np.diag(diagonal)
    d, wanted = (
        D.LowRankMultivariateNormal(loc, w, diagonal),
        stats.multivariate_normal(loc, covariance),
    )
    x = rng.normal(size=(5, 4)) * 3
    found = evaluate([d.log_prob(x), d.entropy(), d.covariance_matrix, d.precision_matrix], {})
    inverse = np.linalg.inv(covariance)
    for got, want in zip(
        found, [wanted.logpdf(x), wanted.entropy(), covariance, inverse], strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)
    draws = value(d.rsample((20_000,), RandomStream(6)))
    np.testing.assert_allclose(np.cov(draws.T), covariance, atol=0.2)
    full = D.MultivariateNormal(np.zeros(4), positive_definite(rng, 4))
    same = D.MultivariateNormal(loc, covariance)
    for p, q in ((d, full), (full, d), (d, d)):
        as_full = [same if v is d else v for v in (p, q)]
        a, b = evaluate([D.kl_divergence(p, q), D.kl_divergence(*as_full)], {})
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("k", [-0.4, 0.0, 1e-9, 9e-4, 0.3, 1.5])
def test_generalised_pareto(k):
    c = T.dscalar("c")
    d = D.GeneralizedPareto(np.float64(0.5), 2.0, c, validate_args=False)
    wanted = stats.genpareto(k, 0.5, 2.0)
    x = np.array([0.2, 0.6, 1.0, 4.0, 5.4, 100.0])
    p = np.array([0.0, 1e-12, 0.4, 0.99, 1.0])
    found = evaluate([d.log_prob(x), d.cdf(x), d.icdf(p), d.entropy(), d.mean, d.variance],
                     {c: np.asarray(k)})  # fmt: skip
    wants = [wanted.logpdf(x), wanted.cdf(x), wanted.ppf(p), wanted.entropy()]
    wants += wanted.stats() if k < 0.5 else [np.inf, np.inf]
    for got, want in zip(found, wants, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-13)
    slope = symdnn.function([c], T.grad(d.log_prob(x[1:4]).sum(), c))
    ends = [stats.genpareto(k + h, 0.5, 2.0).logpdf(x[1:4]).sum() for h in (1e-5, -1e-5)]
    np.testing.assert_allclose(slope(k), (ends[0] - ends[1]) / 2e-5, rtol=1e-5)


BETWEEN = {
    "Beta": (2.0, 3.0), "Exponential": (1.5,), "Gamma": (2.5, 0.7), "Gumbel": (0.3, 1.7),
    "ContinuousBernoulli": (0.3,), "Laplace": (0.2, 1.3), "Normal": (-0.4, 0.8),
    "Pareto": (0.7, 5.5), "Uniform": (0.75, 0.9),
}  # fmt: skip
RANGES = {"Beta": (0, 1), "Exponential": (0, 40), "Gamma": (0, 80), "Gumbel": (-10, 60),
          "ContinuousBernoulli": (0, 1), "Laplace": (-40, 0.2, 40), "Normal": (-9, 0.2, 9),
          "Pareto": (0.7, 5, 400), "Uniform": (0.75, 0.9)}  # fmt: skip


def test_divergences_between_families_are_integrals():
    """All pairs that have a formula: the integral of the density times the log ratio."""
    from symdnn.distributions.kl import _TABLE

    x = T.dscalar("x")
    made = {n: getattr(D, n)(*map(np.float64, p), validate_args=False) for n, p in BETWEEN.items()}
    logs = {n: symdnn.function([x], d.log_prob(x), mode="FAST_COMPILE") for n, d in made.items()}
    count = 0
    for a, b in _TABLE:
        p, q = a.__name__, b.__name__
        if p not in made or q not in made or p == q:
            continue
        found, ends = value(D.kl_divergence(made[p], made[q])), RANGES[p]
        count += 1

        def term(v, f=logs[p], g=logs[q]):
            over = f(v)
            return np.exp(over) * (over - g(v)) if over > -700 else 0.0

        if np.isinf(found):
            draws = value(made[p].sample((200,), RandomStream(4)))
            assert np.isneginf(value(made[q].log_prob(draws))).any(), (p, q)
            continue
        want = sum(
            integrate.fixed_quad(np.vectorize(term), lo, hi, n=60)[0]
            for lo, hi in itertools.pairwise(ends)
        )
        np.testing.assert_allclose(found, want, rtol=1e-2, atol=1e-3, err_msg=f"{p} {q}")
    assert count > 45


def test_divergences_have_the_shape_of_both_batches():
    """Infinite ones too, which depend on no parameter."""
    from symdnn.distributions.kl import _TABLE

    def made(name):
        first, *others = BETWEEN[name]
        rest = [np.full((1, 4), v) for v in others]
        return getattr(D, name)(np.full((3, 1), first), *rest, validate_args=False)

    for a, b in _TABLE:
        if a.__name__ in BETWEEN and b.__name__ in BETWEEN:
            p, q = made(a.__name__), made(b.__name__)
            wanted = np.broadcast_shapes(p.batch_shape, q.batch_shape)
            assert value(D.kl_divergence(p, q)).shape == wanted, (a, b)


def test_quantiles_of_steep_continuous_bernoullis():
    """They stay within [0, 1], and have the digits of small and of large probabilities."""
    logits = np.array([-1000.0, -200, -30, -1, -1e-4, 1e-4, 1e-14, 1, 5, 30, 79, 81, 300, 2000])
    p = np.array([1e-20, 1e-5, 0.3, 0.9, 1 - 1e-9])[:, None]
    d = D.ContinuousBernoulli(logits=logits)
    np.testing.assert_allclose(value(d.cdf(d.icdf(p))), np.broadcast_to(p, (5, 14)), rtol=1e-10)
    ends = np.array([[0.0], [1.0]])
    np.testing.assert_array_equal(value(d.icdf(ends)), np.broadcast_to(ends, (2, 14)))


@pytest.mark.parametrize(("dtype", "rtol"), [("float64", 1e-9), ("float32", 2e-4)])
def test_slopes_of_nearly_uniform_continuous_bernoullis(dtype, rtol):
    """Probabilities and quantiles move with logits next to 0, where training often begins."""
    levels = np.array([0, 1e-12, -1e-6, 4e-3, -6e-3, 0.19, -0.21]).astype(dtype)
    p = np.linspace(0.1, 0.9, 5, dtype=dtype)[:, None]
    v = T.TensorType(dtype, (None,))("v")
    d = D.ContinuousBernoulli(logits=v, validate_args=False)
    found = symdnn.function([v], [T.grad(y.sum(), v) for y in (d.cdf(p), d.icdf(p))])(levels)
    level, q = np.asarray(levels, np.longdouble), np.asarray(p, np.longdouble)
    formulas = (
        lambda t: np.expm1(t * q) / np.expm1(t),
        lambda t: np.log1p(q * np.expm1(t)) / t,
    )
    h = np.longdouble(0.03)
    for got, f in zip(found, formulas, strict=True):
        up = [f(level + k * h).sum(0) - f(level - k * h).sum(0) for k in (1, 2, 3)]
        wanted = (45 * up[0] - 9 * up[1] + up[2]) / (60 * h)
        np.testing.assert_allclose(got, wanted.astype(float), rtol=rtol, atol=rtol / 10)


VECTORS = {
    "correlations": (D.CorrCholeskyTransform(), (2, 6), True),
    "positive definite": (D.PositiveDefiniteTransform(), (2, 2), False),
    "parts": (D.CatTransform([D.ExpTransform(), D.SigmoidTransform()], 1, [2, 3]), (2, 5), True),
    "entries": (D.StackTransform([D.ExpTransform(), D.TanhTransform()], 1), (3, 2), True),
    "together": (D.IndependentTransform(D.ExpTransform(), 1), (2, 3), True),
    "reshaped": (D.ReshapeTransform((2, 3), (6,)), (4, 2, 3), True),
    "probability": (D.CumulativeDistributionTransform(D.Normal(np.float64(0.2), 1.5)), (4,), True),
}


@pytest.mark.parametrize("name", VECTORS)
def test_transforms_of_vectors(name, rng):
    """Inverses, and slopes by the Jacobian of what may vary."""
    t, shape, direct = VECTORS[name]
    x = rng.normal(size=shape)
    x = np.tril(x) if not direct else x
    v = T.TensorType("float64", shape)("v")
    y = value(t(v), {v: x})
    u = T.TensorType("float64", y.shape)("u")
    np.testing.assert_allclose(value(t.inverse(u), {u: y}), x, rtol=1e-8, atol=1e-10)
    slope = value(t.log_abs_det_jacobian(v, u), {v: x, u: y})
    entries = np.tril_indices(shape[-1]) if not direct else None
    step, columns = 1e-6, []
    places = [tuple(p) for p in np.argwhere(np.ones(shape))]
    if entries is not None:
        places = list(zip(*entries, strict=True))
    for p in places:
        ends = []
        for h in (step, -step):
            z = x.copy()
            z[p] += h
            w = value(t(v), {v: z})
            if name == "correlations":
                w = w[..., *np.tril_indices(y.shape[-1], -1)]
            ends.append(w[entries] if entries is not None else w.ravel())
        columns.append((ends[0] - ends[1]).ravel() / (2 * step))
    size = np.linalg.slogdet(np.array(columns))[1]
    np.testing.assert_allclose(slope.sum(), size, rtol=1e-5, atol=1e-6)


def test_transforms_of_vectors_say_what_they_want():
    with pytest.raises(OptionError, match="numbers for n rows, got 4"):
        D.CorrCholeskyTransform()(np.zeros(4))
    with pytest.raises(OptionError, match="known length"):
        D.CorrCholeskyTransform()(T.dvector())
    with pytest.raises(OptionError, match="equal sizes"):
        D.ReshapeTransform((2, 3), (5,))
    with pytest.raises(NotImplementedError, match="not one to one"):
        D.SoftmaxTransform().log_abs_det_jacobian(np.zeros(2), np.zeros(2))


RULES = {
    "positive": D.constraints.positive, "unit": D.constraints.unit_interval,
    "above": D.constraints.greater_than(2.0), "below": D.constraints.less_than(2.0),
    "between": D.constraints.interval(-1.0, 3.0), "real": D.constraints.real,
    "simplex": D.constraints.simplex, "lower": D.constraints.lower_cholesky,
    "definite": D.constraints.positive_definite, "correlations": D.constraints.corr_cholesky,
    "independent": D.constraints.independent(D.constraints.positive, 1),
    "parts": D.constraints.cat([D.constraints.positive, D.constraints.real], 1, [1, 2]),
    "entries": D.constraints.stack([D.constraints.positive] * 3, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_registries_lead_into_their_constraints(name, rng):
    rule, x = RULES[name], rng.normal(size=(3, 3))
    x = np.tril(x) if name in ("lower", "definite") else x
    for registry in (D.biject_to, D.transform_to):
        t = registry(rule)
        y = value(t(x))
        assert value(rule.check(y)).all()
        if t.bijective:
            np.testing.assert_allclose(value(t.inverse(y.copy())), x, rtol=1e-9, atol=1e-11)
    with pytest.raises(NotImplementedError, match="whole number"):
        D.biject_to(D.constraints.boolean)


def test_batches_expand():
    for d in (
        D.Normal(np.zeros(3), 1.0), D.MultivariateNormal(np.zeros(2), np.eye(2)),
        D.Categorical(np.ones((3, 4))), D.Chi2(np.ones(1)), D.LogisticNormal(np.zeros((1, 2)), 1.0),
        D.Independent(D.Normal(np.zeros((1, 3)), 1.0), 1), D.Wishart(np.float64(4.0), np.eye(3)),
        D.LowRankMultivariateNormal(np.zeros(2), np.ones((2, 1)), np.ones(2)),
        D.MixtureSameFamily(D.Categorical(np.ones(3)), D.Normal(np.zeros(3), 1.0)),
    ):  # fmt: skip
        wanted = [5, *(4 if n == 1 else n for n in d.batch_shape)]
        wide = d.expand(wanted)
        assert wide.batch_shape == tuple(wanted)
        draws = value(wide.sample((2,), RandomStream(1)))
        assert draws.shape == (2, *wanted, *wide.event_shape)
        assert value(wide.log_prob(draws)).shape == (2, *wanted)
    with pytest.raises(OptionError, match="does not expand"):
        D.Normal(np.zeros(3), 1.0).expand((4,))


def test_supports_are_listed():
    p = np.full((2, 3), 0.2)
    assert value(D.Bernoulli(p).enumerate_support()).shape == (2, 2, 3)
    found = value(D.Categorical(p).enumerate_support())
    np.testing.assert_array_equal(found, [[0, 0], [1, 1], [2, 2]])
    assert value(D.OneHotCategorical(p).enumerate_support(expand=False)).shape == (3, 1, 3)
    assert value(D.Binomial(3, np.float64(0.2)).enumerate_support()).tolist() == [0, 1, 2, 3]
    with pytest.raises(OptionError, match="the support differs"):
        D.Binomial(np.array([2.0, 3.0]), np.float64(0.2)).enumerate_support()
    with pytest.raises(NotImplementedError, match="Poisson has no enumerate_support"):
        D.Poisson(1.0).enumerate_support()


def test_one_hot_draws_may_pass_gradients_to_probabilities():
    p = T.dvector("p")
    drawn = D.OneHotCategoricalStraightThrough(logits=p).rsample((), RandomStream(1))
    weights = np.array([1.0, 2.0, 4.0])
    slope, one = evaluate([T.grad((drawn * weights).sum(), p), drawn], {p: np.zeros(3)})
    np.testing.assert_allclose(slope, (weights - weights.mean()) / 3)
    assert sorted(one) == [0, 0, 1]


def test_entropies_of_counts():
    """Of several totals in one batch, of certain outcomes, and with a gradient."""
    n, p = np.array([2.0, 5.0, 3.0]), np.array([0.3, 0.9, 1.0])
    found = value(D.Binomial(n, p, validate_args=True).entropy())
    np.testing.assert_allclose(found, stats.binom(n, p).entropy(), rtol=1e-10, atol=1e-12)
    chances = np.array([[0.2, 0.3, 0.5], [0.1, 0.1, 0.8]])
    many = D.Multinomial(4, chances)
    wanted = [stats.multinomial(4, row).entropy() for row in chances]
    np.testing.assert_allclose(value(many.entropy()), wanted, rtol=1e-10)
    symdnn.verify_grad(lambda p: D.Binomial(4.0, p).entropy(), [p[:2]])


def test_modes_and_divergences_of_the_families_beside():
    a, b = np.array([2.0, 1.0, 0.5, 3.0, 1.0]), np.array([3.0, 1.0, 2.0, 0.5, 2.0])
    modes = value(D.Kumaraswamy(a, b).mode)
    np.testing.assert_allclose(modes, [0.2**0.5, np.nan, np.nan, np.nan, 0.0])
    p, q = D.HalfCauchy(np.float64(1.5)), D.HalfCauchy(np.float64(0.4))
    half = integrate.quad(
        lambda x: stats.halfcauchy.pdf(x, scale=1.5)
        * (stats.halfcauchy.logpdf(x, scale=1.5) - stats.halfcauchy.logpdf(x, scale=0.4)),
        0, np.inf,
    )[0]  # fmt: skip
    np.testing.assert_allclose(value(D.kl_divergence(p, q)), half, rtol=1e-6)


def test_what_follows_from_parameters_is_expanded_with_them():
    x = np.full((4, 3), 0.7)
    for d in (D.Chi2(np.arange(1.0, 4.0)), D.Gamma(np.arange(1.0, 4.0), np.ones(3))):
        big = d.expand((4, 3))
        assert value(big.log_prob(x[0])).shape == value(big.entropy()).shape == (4, 3)
        np.testing.assert_allclose(value(big.log_prob(x))[1], value(d.log_prob(x[0])))
    loc = D.LogisticNormal(np.zeros(2), np.ones(2)).expand((5,)).loc
    assert value(loc).shape == (5, 2)
    with pytest.raises(OptionError, match="as probs"):
        D.Geometric(0.0)
    with pytest.raises(OptionError, match="as total_count"):
        D.Multinomial(-1, [0.5, 0.5])


def kumaraswamy_kl(a, b, c, d):
    """By an integral over the probability above a value."""

    def difference(w):
        x = np.log1p(-(w ** (1 / b))) / a
        p = np.log(a * b) + (a - 1) * x + (b - 1) * np.log(w) / b
        return p - np.log(c * d) - (c - 1) * x - (d - 1) * np.log(-np.expm1(c * x))

    return integrate.quad(difference, 0, 1, epsabs=1e-11, epsrel=1e-11, limit=400)[0]


KUMARASWAMY = [
    (2.0, 3.0, 2.5, 3.0),
    (0.5, 0.5, 3.0, 2.0),
    (7.0, 0.3, 0.6, 2.0),
    (0.4, 8.0, 2.0, 0.2),
]


@pytest.mark.parametrize(("dtype", "near"), [("float64", 1e-8), ("float32", 2e-5)])
def test_kumaraswamy_from_another_one(dtype, near):
    table = np.array(KUMARASWAMY, dtype)
    p, q = D.Kumaraswamy(table[:, 0], table[:, 1]), D.Kumaraswamy(table[:, 2], table[:, 3])
    found = D.kl_divergence(p, q)
    assert found.type.dtype == dtype
    wanted = [kumaraswamy_kl(*map(float, row)) for row in KUMARASWAMY]
    np.testing.assert_allclose(value(found), wanted, rtol=near)
    np.testing.assert_allclose(value(D.kl_divergence(p, p)), 0, atol=near)
    wide = D.kl_divergence(p, D.Kumaraswamy(table[:2, None, 2], np.array(1.5, dtype)))
    assert value(wide).shape == (2, 4)


def test_the_slope_of_a_divergence_of_kumaraswamy():
    at = T.dvector("at")
    p, q = D.Kumaraswamy(at[0], at[1]), D.Kumaraswamy(at[2], at[3])
    slope = symdnn.function([at], symdnn.grad(D.kl_divergence(p, q), at))
    for row in KUMARASWAMY:
        for i in range(4):
            step = 1e-5 * np.eye(4)[i]
            up, down = (kumaraswamy_kl(*(np.array(row) + s * step)) for s in (1, -1))
            assert slope(np.array(row))[i] == pytest.approx((up - down) / 2e-5, rel=1e-4, abs=1e-4)


def test_tails_of_a_generalized_pareto():
    x = np.array([-1.0, 0.5, 3.0, 80.0, 1e9])
    for shape in (0.3, 0.0, -0.2):
        d = D.GeneralizedPareto(
            np.float64(0.5), np.float64(2.0), np.float64(shape), validate_args=False
        )
        same = stats.genpareto(shape, 0.5, 2.0)
        np.testing.assert_allclose(value(d.log_survival_function(x)), same.logsf(x), rtol=1e-12)
        np.testing.assert_allclose(value(d.log_cdf(x)), same.logcdf(x), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("count", [0.0, 3.0, 7.0])
def test_a_count_of_zero_has_a_derivative(count):
    """In the number of trials, of which all may be successes, and in counts of classes."""
    n = symdnn.shared(np.float64(7))
    density = D.Binomial(n, probs=np.float64(0.3)).log_prob(np.float64(count))
    slope = symdnn.grad(density, n).eval()
    assert slope == pytest.approx(psi(8) - psi(8 - count) + np.log(0.7), rel=1e-12)


@pytest.mark.parametrize("kind", [D.OneHotCategorical, lambda probs: D.Multinomial(1, probs)])
def test_the_derivative_in_a_count_is_the_log_probability(kind):
    probs = np.array([0.2, 0.5, 0.3])
    v = symdnn.shared(np.array([0.0, 1.0, 0.0]))
    slope = symdnn.grad(kind(probs=probs).log_prob(v), v).eval()
    apart = slope - np.log(probs)
    np.testing.assert_allclose(apart[0], apart[2], rtol=1e-12)
    certain = symdnn.shared(np.array([1.0, 0.0, 0.0]))
    f = kind(probs=np.array([1.0, 0.0, 0.0])).log_prob(certain)
    assert f.eval() == 0
    assert np.isfinite(symdnn.grad(f, certain).eval()).all()
