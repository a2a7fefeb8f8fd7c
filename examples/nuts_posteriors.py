"""The No-U-Turn sampler on two posteriors, against their moments by quadrature.

Eight schools (Rubin, "Estimation in parallel randomized experiments", 1981), not centred: effects
of coaching in eight schools, with a common mean and a common deviation tau, which a half-Cauchy
prior keeps from being infinite. Given tau all else is normal, so moments are integrals over tau
alone. And a logistic regression with two parameters, whose moments are sums over a grid.

All draws of a chain, the warm-up too, are one call of one compiled function.

    python examples/nuts_posteriors.py --draws 1000 --chains 4
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import symdnn.tensor as T
from symdnn import distributions as D
from symdnn.distributions import mcmc

EFFECTS = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
ERRORS = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
PRIOR = 5.0  # of the common mean, and the scale of tau
Moments = dict[str, tuple[float, float]]


def eight_schools(v: dict[str, Any]) -> Any:
    """The log density of (mu, log tau, standardised effects)."""
    tau = T.exp(v["log_tau"])
    zero, one = np.float64(0), np.float64(1)
    prior = D.Normal(zero, PRIOR).log_prob(v["mu"]) + D.HalfCauchy(PRIOR * one).log_prob(tau)
    inner = D.Normal(zero, one).log_prob(v["z"]).sum()
    seen = D.Normal(v["mu"] + tau * v["z"], ERRORS).log_prob(EFFECTS).sum()
    return prior + v["log_tau"] + inner + seen  # the Jacobian of tau = exp(log tau)


def eight_schools_moments() -> Moments:
    """Mean and deviation of mu and tau: mu is normal given tau."""
    tau = np.exp(np.linspace(-12, 8, 20001))
    variances = ERRORS**2 + tau[:, None] ** 2
    precision = 1 / PRIOR**2 + (1 / variances).sum(1)
    centre = (EFFECTS / variances).sum(1) / precision
    log_weight = -0.5 * (np.log(variances) + EFFECTS**2 / variances).sum(1)
    log_weight += 0.5 * precision * centre**2 - 0.5 * np.log(precision)
    log_weight += np.log(tau) - np.log1p((tau / PRIOR) ** 2)  # of equal steps of log tau
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    mu = (weight * centre).sum()
    spread = (weight * (1 / precision + centre**2)).sum() - mu**2
    mean = (weight * tau).sum()
    return {
        "mu": (float(mu), float(np.sqrt(spread))),
        "tau": (float(mean), float(np.sqrt((weight * tau**2).sum() - mean**2))),
    }


def regression(points: np.ndarray, labels: np.ndarray) -> Callable[[Any], Any]:
    """The log density of a logistic regression's slope and offset."""

    def density(v: dict[str, Any]) -> Any:
        logits = v["slope"] * points + v["offset"]
        prior = D.Normal(np.float64(0), 2.0)
        seen = D.Bernoulli(logits=logits).log_prob(labels).sum()
        return prior.log_prob(v["slope"]) + prior.log_prob(v["offset"]) + seen

    return density


def regression_moments(points: np.ndarray, labels: np.ndarray) -> Moments:
    """By sums over a grid, which the posterior fills."""
    line = np.linspace(-9, 9, 601)
    slope, offset = np.meshgrid(line, line, indexing="ij")
    logits = slope[..., None] * points + offset[..., None]
    log_weight = (labels * logits - np.logaddexp(0, logits)).sum(-1) - (slope**2 + offset**2) / 8
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()

    def moments(v: np.ndarray) -> tuple[float, float]:
        mean = (weight * v).sum()
        return float(mean), float(np.sqrt((weight * (v - mean) ** 2).sum()))

    return {"slope": moments(slope), "offset": moments(offset)}


def compared(title: str, values: dict[str, np.ndarray], exact: Moments) -> float:
    """Print moments beside the exact ones; the largest error, in posterior deviations."""
    worst = 0.0
    for name, (mean, deviation) in exact.items():
        found, spread = values[name].mean(), values[name].std()
        exactly = f"exact {mean:6.2f} ± {deviation:.2f}"
        print(f"{title} {name:>7}: {found:6.2f} ± {spread:5.2f}  {exactly}")
        worst = max(worst, abs(found - mean) / deviation, abs(spread / deviation - 1) / 2)
    return worst


def main(argv: Sequence[str] | None = None) -> float:
    """Run both; the largest error of a moment, in posterior deviations."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--warmup", type=int, default=500)
    parser.add_argument("--chains", type=int, default=4)
    options = parser.parse_args(argv)
    rng = np.random.default_rng(3)
    points = rng.normal(size=30)
    labels = (rng.random(30) < 1 / (1 + np.exp(-(1.5 * points - 0.5)))).astype("float64")
    start = {"mu": 0.0, "log_tau": 0.0, "z": np.zeros(8)}
    settings: dict[str, Any] = {"chains": options.chains, "seed": 1, "target_acceptance": 0.9}
    began = time.perf_counter()
    schools = mcmc.nuts(eight_schools, start, options.draws, options.warmup, **settings)
    both = {"slope": 0.0, "offset": 0.0}
    logistic = mcmc.nuts(
        regression(points, labels), both, options.draws, options.warmup, **settings
    )
    seconds = time.perf_counter() - began
    values = {"mu": schools.values["mu"], "tau": np.exp(schools.values["log_tau"])}
    worst = compared("eight schools", values, eight_schools_moments())
    worst = max(worst, compared("logistic", logistic.values, regression_moments(points, labels)))
    leaps = schools.steps.sum() + logistic.steps.sum()
    print(f"{seconds:.1f} s, {leaps} leapfrog steps, {schools.diverging.sum()} divergences")
    return worst


if __name__ == "__main__":
    main()
