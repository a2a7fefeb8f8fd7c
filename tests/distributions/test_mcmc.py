"""Samplers against posteriors in closed form, and the tree of leapfrog steps itself."""

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn.distributions import mcmc
from symdnn.distributions.adaptation import schedule
from symdnn.errors import NonDifferentiable, OptionError


@pytest.mark.parametrize(
    ("chains", "draws", "warmup"),
    [(2, 80, 60), pytest.param(2, 800, 400, marks=pytest.mark.slow)],
)
def test_nuts_finds_a_conjugate_posterior_of_unlike_scales(chains, draws, warmup):
    """Normal results with a normal prior: the moments are a solution of linear equations."""
    rng = np.random.default_rng(0)
    a, y = rng.normal(size=(20, 3)) * [1.0, 0.2, 3.0], rng.normal(size=20)
    precision = a.T @ a + np.eye(3) / 4
    covariance = np.linalg.inv(precision)
    mean, deviation = covariance @ a.T @ y, np.sqrt(np.diag(covariance))

    def density(v):
        b = T.concatenate([v["first"].dimshuffle("x"), v["rest"]])
        return -((y - T.dot(a, b)) ** 2).sum() / 2 - (b**2).sum() / 8

    start = {"first": 0.0, "rest": np.zeros(2)}
    found = mcmc.nuts(density, start, draws, warmup, chains=chains, seed=4)
    assert found.values["first"].shape == (chains, draws)
    assert found.values["rest"].shape == (chains, draws, 2)
    all_draws = np.concatenate([found.values["first"][..., None], found.values["rest"]], axis=-1)
    flat = all_draws.reshape(-1, 3)
    # A quarter of the draws count as independent.
    independent = chains * draws / 4
    assert (np.abs(flat.mean(0) - mean) / deviation).max() < 5 / np.sqrt(independent)
    assert np.abs(flat.std(0) / deviation - 1).max() < 4 / np.sqrt(independent)
    ratio = found.inverse_mass / deviation**2
    assert ratio.min() > 0.1
    assert ratio.max() < 10
    assert 0.5 < found.acceptance.mean() < 0.98
    assert not found.diverging.any()
    again = symdnn.jit(density)
    wanted = [again({"first": v[0], "rest": v[1:]}) for v in flat[:3]]
    np.testing.assert_allclose(found.log_density[0, :3], wanted)
    assert (all_draws[0] != all_draws[1]).any(axis=-1).all(), "chains have draws of their own"


def test_a_trajectory_that_never_turns_has_all_steps():
    """On a flat density momenta stay, so a tree of depth d has 2**d - 1 leapfrog steps."""
    found = mcmc.nuts(lambda x: 0.0 * x.sum(), np.zeros(2), 5, 0, max_depth=4, seed=1)
    assert found.steps.tolist() == [[15] * 5]
    assert np.allclose(found.acceptance, 1)
    assert found.step_size.tolist() == [0.1]


def test_a_trajectory_ends_where_it_turns():
    """In one dimension a standard normal turns after half a period: pi / step leapfrog steps."""
    found = mcmc.nuts(lambda x: -(x**2).sum() / 2, np.zeros(1), 60, 0, step_size=0.05, seed=1)
    # Half a period (63 steps) ends it after 63 or 127 steps, the turn of a subtree before.
    assert found.steps.max() <= 127
    assert np.median(found.steps) >= 31


def test_a_divergence_ends_a_trajectory_and_is_told():
    density = lambda x: -(x**4).sum() * 1e4  # noqa: E731
    found = mcmc.nuts(density, np.ones(1), 5, 0, step_size=2.0, seed=1)
    assert found.diverging.all()
    assert (found.steps == 1).all()
    assert (found.values == 1).all()


def test_hmc_and_a_seed():
    """Steps that grow without bounds while they adapt show any other rounding of compiled loops."""
    with symdnn.config.change_flags(deterministic="more"):
        kept = [mcmc.hmc(lambda x: -((x - 1) ** 2).sum() / 2, np.zeros(2), 300, 100, leaps=8,
                         seed=s) for s in (5, 5, 6)]  # fmt: skip
    assert abs(kept[0].values.mean() - 1) < 0.2
    assert abs(kept[0].values.std() - 1) < 0.2
    np.testing.assert_array_equal(kept[0].values, kept[1].values)
    assert (kept[0].values != kept[2].values).any()
    assert (kept[0].steps == 8).all()


def test_windows_double_and_cover_the_middle():
    found = schedule(1000)
    assert np.flatnonzero(found["ends"]).tolist() == [99, 149, 249, 449, 949]
    assert np.flatnonzero(found["inside"])[[0, -1]].tolist() == [75, 949]
    for n in (0, 1, 7, 20, 149, 150, 151):
        found = schedule(n)
        assert found["ends"].sum() == (found["inside"].sum() > 0)


def test_errors_say_what_was_wanted():
    with pytest.raises(NonDifferentiable, match="real scalar"):
        mcmc.nuts(lambda x: x, np.zeros(2), 5, 5)
    with pytest.raises(OptionError, match="draws and chains"):
        mcmc.nuts(lambda x: x.sum(), np.zeros(2), 0)
    with pytest.raises(OptionError, match="one array"):
        mcmc.nuts(lambda x: 0.0, {}, 5)
    with pytest.raises(OptionError, match="one leap"):
        mcmc.hmc(lambda x: x.sum(), np.zeros(2), leaps=0)
