"""Shapes, checks, transforms, combinations and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import symdnn
import symdnn.tensor as T
from symdnn import distributions as D
from symdnn.errors import AssertionFailed, NdimMismatch, OptionError, ShapeMismatch, TypeMismatch
from symdnn.graph.evaluate import evaluate
from symdnn.ops.random.random_stream import RandomStream

RNG = RandomStream(3)


def value(v, at=None):
    return evaluate([v], at or {})[0]


def test_shapes_of_samples_batches_and_events():
    loc = T.dmatrix("loc")
    d = D.Normal(loc, np.ones(3))
    assert len(d.batch_shape) == 2
    assert d.batch_shape[1] == 3
    at = {loc: np.zeros((4, 3))}
    n = T.iscalar("n")
    assert value(d.sample((2, 5), RNG), at).shape == (2, 5, 4, 3)
    assert value(d.rsample((n,), RNG), at | {n: np.int32(6)}).shape == (6, 4, 3)
    assert value(d.entropy(), at).shape == (4, 3)
    whole = D.Independent(d, 1)
    assert whole.event_shape == (3,)
    assert value(whole.log_prob(np.zeros((7, 4, 3))), at).shape == (7, 4)
    assert value(whole.entropy(), at).shape == (4,)
    alpha = np.ones((2, 1, 3))
    dirichlet = D.Dirichlet(alpha)
    assert (dirichlet.batch_shape, dirichlet.event_shape) == ((2, 1), (3,))
    assert value(dirichlet.sample((5,), RNG)).shape == (5, 2, 1, 3)
    for family in (D.OneHotCategorical, D.RelaxedOneHotCategorical, D.Multinomial):
        more = (0.5,) if family is D.RelaxedOneHotCategorical else ()
        more = (4,) if family is D.Multinomial else more
        found = value(family(*more, probs=alpha).sample((5,), RNG))
        assert found.shape == (5, 2, 1, 3)
    classes = D.Categorical(probs=alpha)
    assert value(classes.sample((5,), RNG)).shape == (5, 2, 1)
    assert value(classes.log_prob(np.zeros((5, 2, 1), "int64"))).shape == (5, 2, 1)


def test_dtypes_follow_the_parameters():
    assert D.Normal(0.0, 1.0).sample((2,), RNG).type.dtype == symdnn.config.floatX
    assert D.Normal(np.float64(0), 1.0).sample((2,), RNG).type.dtype == "float64"
    assert D.Poisson(np.float32(3)).sample((2,), RNG).type.dtype == "float32"
    assert D.Gamma(2, 3).log_prob(1.5).type.dtype == symdnn.config.floatX


def test_draws_of_the_default_stream_repeat_by_their_seed():
    found = []
    for _ in range(2):
        D.seed(5)
        found.append(value(D.Gamma(2.0, 3.0).sample((4,))))
    np.testing.assert_array_equal(*found)


def test_constants_are_checked_at_once():
    with pytest.raises(OptionError, match=r"Normal: wanted a number of \(0, inf\] as scale, got"):
        D.Normal(0.0, -1.0)
    with pytest.raises(ValueError, match="as probs"):
        D.Bernoulli(1.5)
    with pytest.raises(ValueError, match="as the value"):
        D.Exponential(1.0).log_prob(-1.0)
    with pytest.raises(ValueError, match="as high"):
        D.Uniform(2.0, 1.0)
    D.Normal(0.0, -1.0, validate_args=False)
    with pytest.raises(OptionError, match="either probs or logits"):
        D.Bernoulli()
    with pytest.raises(OptionError, match="either probs or logits"):
        D.Categorical([0.5, 0.5], [0.0, 0.0])


def test_symbols_are_checked_in_a_call_where_that_is_asked():
    scale, x = T.dscalars("scale", "x")
    careless = symdnn.function([scale, x], D.HalfNormal(scale).log_prob(x))
    assert careless(1.0, -1.0) == -np.inf
    checked = symdnn.function([scale, x], D.HalfNormal(scale, validate_args=True).log_prob(x))
    assert np.isfinite(checked(1.0, 1.0))
    with pytest.raises(AssertionFailed, match="as scale"):
        checked(-1.0, 1.0)
    with pytest.raises(AssertionFailed, match="as the value"):
        checked(1.0, -1.0)


RULES = [
    (D.constraints.positive, [0.0, 1e-300, np.nan], [False, True, False]),
    (D.constraints.nonnegative_integer, [-1.0, 0.0, 1.5, 7.0], [False, True, False, True]),
    (D.constraints.unit_interval, [-0.1, 0.0, 1.0, 1.1], [False, True, True, False]),
    (D.constraints.half_open_interval(0, 1), [0.0, 1.0], [True, False]),
    (D.constraints.less_than(1), [0.0, 1.0], [True, False]),
    (D.constraints.real, [np.nan, np.inf], [False, True]),
    (D.constraints.simplex, [[0.5, 0.5], [0.5, 0.6], [-0.5, 1.5]], [True, False, False]),
    (D.constraints.one_hot, [[0.0, 1.0], [1.0, 1.0], [0.5, 0.5]], [True, False, False]),
    (D.constraints.real_vector, [[1.0, 2.0], [1.0, np.nan]], [True, False]),
    (D.constraints.lower_cholesky, [np.eye(2), -np.eye(2), np.ones((2, 2))], [True, False, False]),
    (
        D.constraints.positive_definite,
        [np.eye(2), -np.eye(2), [[1.0, 2.0], [2.0, 1.0]], [[1.0, 0.5], [0.0, 1.0]]],
        [True, False, False, False],
    ),
]


@pytest.mark.parametrize(("rule", "values", "wanted"), RULES, ids=lambda r: str(r)[:20])
def test_constraints(rule, values, wanted):
    np.testing.assert_array_equal(value(rule.check(np.array(values))), wanted)


TRANSFORMS = {
    "affine": (D.AffineTransform(1.0, -2.0), 0),
    "exp": (D.ExpTransform(), 0),
    "power": (D.ComposeTransform([D.ExpTransform(), D.PowerTransform(np.float64(-1.5))]), 0),
    "sigmoid": (D.SigmoidTransform(), 0),
    "tanh": (D.TanhTransform(), 0),
    "softplus": (D.SoftplusTransform(), 0),
    "stick breaking": (D.StickBreakingTransform(), 1),
    "inverse": (D.ComposeTransform([D.SigmoidTransform(), D.SigmoidTransform().inv]), 0),
    "composed": (D.ComposeTransform([D.AffineTransform(0.5, 2.0), D.TanhTransform()]), 0),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_have_inverses_and_slopes(name, rng):
    """The slope against the determinant of the Jacobian, by graph gradients."""
    t, event_dim = TRANSFORMS[name]
    x, z = rng.normal(size=(5, 3)), T.dmatrix("z")
    y = t(z)
    given = T.dmatrix("y")
    image = value(y, {z: x})
    np.testing.assert_allclose(value(t.inverse(given), {given: image}), x, rtol=1e-9)
    assert t.inverse(y) is z
    slope = value(t.log_abs_det_jacobian(z, given), {z: x, given: image})
    assert slope.ndim == 2 - event_dim
    v = T.dvector("v")
    out = t(v)[:3]  # of a simplex the last class follows from the others
    jacobian = T.jacobian(out, v)
    for row, found in zip(x, slope):
        size = np.linalg.slogdet(evaluate([jacobian], {v: row})[0])[1]
        np.testing.assert_allclose(np.sum(found), size, rtol=1e-9, atol=1e-12)


def test_lower_cholesky_transform(rng):
    t, z, y = D.LowerCholeskyTransform(), T.dmatrix("z"), T.dmatrix("y")
    x = np.tril(rng.normal(size=(3, 3)))
    image = value(t(z), {z: x})
    assert value(D.constraints.lower_cholesky.check(image))
    np.testing.assert_allclose(value(t.inverse(y), {y: image}), x, atol=1e-12)
    slope = value(t.log_abs_det_jacobian(z, y), {z: x, y: image})
    np.testing.assert_allclose(slope, np.trace(x))


def test_transformed_distributions():
    base = D.Normal(np.float64(0.3), 0.7)
    x = np.array([0.2, 1.0, 3.0])
    d = D.TransformedDistribution(base, D.ExpTransform())
    np.testing.assert_allclose(value(d.log_prob(x)), stats.lognorm(0.7, 0, np.exp(0.3)).logpdf(x))
    np.testing.assert_allclose(value(d.cdf(x)), stats.lognorm(0.7, 0, np.exp(0.3)).cdf(x))
    falls = D.TransformedDistribution(base, [D.AffineTransform(np.float64(1), np.float64(-2))])
    np.testing.assert_allclose(value(falls.cdf(x)), stats.norm(0.4, 1.4).cdf(x))
    np.testing.assert_allclose(
        value(falls.icdf(np.array([0.1, 0.7]))), stats.norm(0.4, 1.4).ppf([0.1, 0.7])
    )
    flow = D.TransformedDistribution(
        D.Normal(np.zeros(2), np.ones(2)), [D.StickBreakingTransform()]
    )
    assert (flow.batch_shape, flow.event_shape, flow.event_dim) == ((), (3,), 1)
    draws = value(flow.sample((4,), RNG))
    np.testing.assert_allclose(draws.sum(-1), 1)
    assert value(flow.log_prob(draws)).shape == (4,)
    two = D.TransformedDistribution(D.Normal(0.0, 1.0), [D.ExpTransform()])
    other = D.TransformedDistribution(D.Normal(1.0, 1.0), two.transforms)
    np.testing.assert_allclose(value(D.kl_divergence(two, other)), 0.5)
    with pytest.raises(NotImplementedError, match="different transforms"):
        D.kl_divergence(two, falls)


def test_mixtures():
    weights, locs = np.array([0.2, 0.5, 0.3]), np.array([-2.0, 0.5, 3.0])
    d = D.MixtureSameFamily(D.Categorical(probs=weights), D.Normal(locs, np.array([0.5, 1.0, 2.0])))
    parts = [stats.norm(m, s) for m, s in zip(locs, (0.5, 1.0, 2.0))]
    x = np.linspace(-4, 8, 7)
    density = sum(w * p.pdf(x) for w, p in zip(weights, parts))
    np.testing.assert_allclose(value(d.log_prob(x)), np.log(density), rtol=1e-12)
    below = sum(w * p.cdf(x) for w, p in zip(weights, parts))
    np.testing.assert_allclose(value(d.cdf(x)), below, rtol=1e-12)
    draws = value(d.sample((20_000,), RandomStream(4)))
    mixed = stats.kstest(draws, lambda v: sum(w * p.cdf(v) for w, p in zip(weights, parts)))
    assert mixed.pvalue > 1e-3
    mean, variance = evaluate([d.mean, d.variance], {})
    np.testing.assert_allclose([mean, variance], [draws.mean(), draws.var()], rtol=0.05)
    vectors = D.MixtureSameFamily(
        D.Categorical(probs=weights), D.Independent(D.Normal(np.ones((4, 3, 2)), 1.0), 1)
    )
    assert (vectors.batch_shape, vectors.event_shape) == ((4,), (2,))
    assert value(vectors.sample((5,), RNG)).shape == (5, 4, 2)
    assert value(vectors.log_prob(np.zeros((5, 4, 2)))).shape == (5, 4)
    assert value(vectors.mean).shape == (4, 2)


PAIRS = [
    (D.Weibull, (1.0, 1.5), (2.0, 0.8)), (D.InverseGamma, (2.0, 1.5), (3.0, 0.8)),
    (D.VonMises, (0.5, 1.5), (-1.0, 0.8)), (D.LogNormal, (0.2, 0.5), (0.0, 0.8)),
    (D.HalfNormal, (1.5,), (0.8,)), (D.Beta, (2.0, 3.0), (1.5, 2.5)),
]  # fmt: skip


@pytest.mark.parametrize(("family", "a", "b"), PAIRS, ids=lambda v: getattr(v, "__name__", ""))
def test_divergences_are_means_of_log_ratios(family, a, b):
    p, q = (family(*(np.float64(v) for v in given)) for given in (a, b))
    t, w = np.polynomial.legendre.leggauss(400)
    if family is D.VonMises:
        x, weight = np.pi * t, np.pi * w
    elif family is D.Beta:
        x, weight = (t + 1) / 2, w / 2
    else:
        share = (t + 1) / 2
        x, weight = share / (1 - share), w / 2 / (1 - share) ** 2
    over, under, found = evaluate([p.log_prob(x), q.log_prob(x), D.kl_divergence(p, q)], {})
    term = np.where(over > -600, np.exp(over) * (over - under), 0)
    np.testing.assert_allclose(found, np.sum(weight * term), rtol=1e-5)


def test_what_is_not_there_says_so():
    with pytest.raises(NotImplementedError, match="VonMises has no cdf"):
        D.VonMises(0.0, 1.0).cdf(0.5)
    with pytest.raises(NotImplementedError, match="register_kl"):
        D.kl_divergence(D.Normal(0.0, 1.0), D.Poisson(1.0))
    with pytest.raises(NotImplementedError, match="no rsample"):
        D.Poisson(1.0).rsample((2,))
    with pytest.raises(OptionError, match="at most 0 dimensions"):
        D.Independent(D.Normal(0.0, 1.0), 1)
    with pytest.raises(OptionError, match="a batch dimension"):
        D.MixtureSameFamily(D.Categorical([0.5, 0.5]), D.Normal(0.0, 1.0))


def test_no_gradient_flows_through_samples():
    loc = T.dscalar("loc")
    d = D.Normal(loc, 1.0)
    assert value(T.grad(d.rsample((3,), RNG).sum(), loc), {loc: 0.0}) == 3
    with pytest.raises(symdnn.errors.DisconnectedInput):
        T.grad(d.sample((3,), RNG).sum(), loc)


def test_a_gradient_through_the_density_of_a_gaussian_mixture_is_finite_far_out():
    x = T.dscalar("x")
    d = D.MixtureSameFamily(D.Categorical(probs=[0.5, 0.5]), D.Normal(np.array([-1.0, 1.0]), 1e-3))
    slope = symdnn.function([x], T.grad(d.log_prob(x), x))
    np.testing.assert_allclose(slope(50.0), -(50.0 - 1.0) / 1e-6, rtol=1e-6)


def test_multivariate_normal(rng):
    half = rng.normal(size=(3, 3))
    covariance, loc = half @ half.T + np.eye(3), rng.normal(size=3)
    wanted = stats.multivariate_normal(loc, covariance)
    x = rng.normal(size=(5, 3)) * 3
    for given in (
        {"covariance_matrix": covariance},
        {"precision_matrix": np.linalg.inv(covariance)},
        {"scale_tril": np.linalg.cholesky(covariance)},
    ):
        d = D.MultivariateNormal(loc, **given)
        np.testing.assert_allclose(value(d.log_prob(x)), wanted.logpdf(x), rtol=1e-11)
        np.testing.assert_allclose(value(d.entropy()), wanted.entropy(), rtol=1e-12)
        np.testing.assert_allclose(value(d.covariance), covariance, rtol=1e-10)
    draws = value(d.rsample((20_000,), RandomStream(6)))
    np.testing.assert_allclose(np.cov(draws.T), covariance, atol=0.15)
    m = T.dmatrix("m")
    slope = T.grad(D.MultivariateNormal(loc, m).log_prob(x).sum(), m)
    (found,) = evaluate([slope], {m: covariance})
    inverse, off = np.linalg.inv(covariance), x - loc
    full = (inverse @ off.T @ off @ inverse - 5 * inverse) / 2
    np.testing.assert_allclose(found + found.T, full + full.T, rtol=1e-8)
    batch = D.MultivariateNormal(np.zeros((4, 3)), scale_tril=np.linalg.cholesky(covariance))
    assert (batch.batch_shape, batch.event_shape) == ((4,), (3,))
    assert value(batch.sample((2,), RNG)).shape == (2, 4, 3)
    assert value(batch.log_prob(np.zeros((2, 4, 3)))).shape == (2, 4)
    with pytest.raises(OptionError, match="wanted one of covariance_matrix"):
        D.MultivariateNormal(loc)
    with pytest.raises(OptionError, match="symmetric positive definite"):
        D.MultivariateNormal(loc, -np.eye(3))


def test_a_constant_value_may_have_symbolic_bounds():
    """What only a call knows is checked there, with ``validate_args=True``."""
    low, logits, point = T.dscalar(), T.dmatrix(), np.float64(0.5)
    for checked in (None, True, False):
        d = D.Uniform(low, low + 2, validate_args=checked)
        (found,) = evaluate([d.log_prob(point)], {low: np.zeros(())})
        np.testing.assert_allclose(found, -np.log(2))
        classes = D.Categorical(logits=logits, validate_args=checked)
        (found,) = evaluate([classes.log_prob(np.array([1, 0]))], {logits: np.zeros((2, 4))})
        np.testing.assert_allclose(found, -np.log([4.0, 4.0]))
    strict = D.Categorical(logits=logits, validate_args=True)
    with pytest.raises(AssertionFailed):
        evaluate([strict.log_prob(np.array([1, 7]))], {logits: np.zeros((2, 4))})
    with pytest.raises(OptionError, match="as the value, got 3"):
        D.Uniform(np.float64(0), np.float64(1)).log_prob(np.float64(3))


@pytest.mark.parametrize(
    ("made", "sizes"),
    [
        (lambda n: D.MultivariateNormal(np.zeros(n), np.eye(n)), (3,)),
        (lambda n: D.LowRankMultivariateNormal(np.zeros(n), np.ones((n, 2)), np.ones(n)), (3,)),
        (lambda n: D.Dirichlet(np.ones(n)), (3,)),
        (lambda n: D.Multinomial(3, probs=np.ones(n) / n), (3,)),
        (lambda n: D.OneHotCategorical(probs=np.ones(n) / n), (3,)),
        (lambda n: D.RelaxedOneHotCategorical(0.5, probs=np.ones(n) / n), (3,)),
        (lambda n: D.LKJCholesky(n, 1.0), (3, 3)),
        (lambda n: D.Wishart(np.float64(5), np.eye(n)), (3, 3)),
        (lambda n: D.TransformedDistribution(D.Normal(np.zeros(n - 1), 1.0),
                                             [D.StickBreakingTransform()]), (3,)),
    ],
)  # fmt: skip
def test_a_value_has_the_sizes_of_an_event(made, sizes):
    """A size of 1 would broadcast, and the density be that of another value."""
    family, one = made(3), np.ones([1] * len(sizes))
    for value_ in (one, T.constant(one)):
        with pytest.raises(ShapeMismatch, match=r"the value: wanted the size.*\(3"):
            family.log_prob(value_)
    with pytest.raises(NdimMismatch, match=f"{len(sizes)} dimension"):
        family.log_prob(1.0)


def test_sizes_of_events_that_are_known_in_a_call():
    loc, k = T.dvector("loc"), T.dmatrix("k")
    family = D.MultivariateNormal(loc, k)
    one = symdnn.function([loc, k], family.log_prob(np.zeros(1)))
    assert np.isclose(one([0.0], [[1.0]]), stats.norm.logpdf(0))
    with pytest.raises(ShapeMismatch):
        one(np.zeros(3), np.eye(3))
    alpha, x = T.dvector("alpha"), T.dvector("x")
    f = symdnn.function([x], D.Dirichlet(np.ones(1)).log_prob(x))
    with pytest.raises(ShapeMismatch):
        f([0.5, 0.5])
    g = symdnn.function([alpha], D.Dirichlet(alpha).log_prob(np.ones(1)))
    with pytest.raises(ShapeMismatch):
        g([1.0, 2.0])


def test_parameters_of_events_have_one_size():
    with pytest.raises(ShapeMismatch, match="loc"):
        D.MultivariateNormal(np.zeros(1), np.eye(3))
    with pytest.raises(ShapeMismatch, match="loc"):
        D.MultivariateNormal(np.zeros(2), precision_matrix=np.eye(3))
    with pytest.raises(ShapeMismatch, match="loc"):
        D.LowRankMultivariateNormal(np.zeros(1), np.ones((3, 1)), np.ones(3))
    with pytest.raises(ShapeMismatch, match="cov_diag"):
        D.LowRankMultivariateNormal(np.zeros(3), np.ones((3, 1)), np.ones(1))
    with pytest.raises(NdimMismatch, match="loc"):
        D.MultivariateNormal(0.0, np.eye(3))
    with pytest.raises(NdimMismatch, match="concentration"):
        D.Dirichlet(1.0)


@pytest.mark.parametrize(("make", "error", "words"), [
    (lambda: D.Normal(np.zeros(3), np.ones(4)), ShapeMismatch, ["Normal", "loc", "(4,)"]),
    (lambda: D.Dirichlet(np.ones((2, 3))).log_prob(np.ones((2, 4)) / 4), ShapeMismatch, ["(4,)"]),
    (lambda: D.MixtureSameFamily(D.Categorical(np.ones((3, 2))), D.Normal(np.zeros((3, 5)), 1.0)),
     ShapeMismatch, ["2 components", "(3, 5)"]),
    (lambda: D.MixtureSameFamily(D.Normal(0.0, 1.0), D.Normal(np.zeros(2), 1.0)), TypeMismatch,
     ["Categorical", "Normal"]),
    (lambda: D.TransformedDistribution(D.Normal(0.0, 1.0), [np.exp]), TypeMismatch, ["exp"]),
    (lambda: D.TransformedDistribution(D.Normal(0.0, 1.0), D.StickBreakingTransform()), OptionError,
     ["1 dimension", "Normal"]),
    (lambda: D.Normal(0.0, 1.0).sample((2,), rng=3), TypeMismatch, ["RandomStream", "3"]),
    (lambda: RandomStream(1).normal(None, np.zeros(3), np.ones(4)), ShapeMismatch,
     ["(3,)", "(4,)"]),
])  # fmt: skip
def test_parts_that_do_not_fit_are_refused_when_they_are_joined(make, error, words):
    with pytest.raises(error) as found:
        make()
    assert all(word in str(found.value) for word in words), str(found.value)
