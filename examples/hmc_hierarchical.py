"""Hamiltonian Monte Carlo on a hierarchical model, against its posterior in closed form.

Schools have effects, which are normal around a common mean, and each school's results are normal
around its effect. All variances are known, so the posterior is a normal distribution whose mean and
covariance are a solution of linear equations: the chains are compared with it. Each call of the
compiled function draws momenta, makes leapfrog steps in a loop (the gradient of the log density in
it), and accepts or rejects, for all chains at once.

    python examples/hmc_hierarchical.py --chains 64 --draws 400
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

import numpy as np

import symdnn
import symdnn.tensor as T
from symdnn import distributions as D
from symdnn.tensor.random import RandomStream

PRIOR, BETWEEN, WITHIN = 5.0, 2.0, 3.0  # standard deviations: of the mean, of effects, of results


def results(schools: int, pupils: int, seed: int) -> np.ndarray:
    """Results of each school's pupils."""
    rng = np.random.default_rng(seed)
    effects = rng.normal(1.5, BETWEEN, schools)
    return rng.normal(effects[:, None], WITHIN, (schools, pupils))


def log_density(state: symdnn.Variable, data: np.ndarray) -> symdnn.Variable:
    """Of each row of ``state``: the common mean, then the effects."""
    mean, effects = state[:, 0].dimshuffle(0, "x"), state[:, 1:]
    pupils = data.shape[1]
    prior = D.Normal(np.float64(0), PRIOR).log_prob(mean)
    middle = D.Normal(mean, BETWEEN).log_prob(effects)
    # The mean of a school's results says all that they say of its effect.
    seen = D.Normal(effects, WITHIN / np.sqrt(pupils)).log_prob(data.mean(1)[None])
    return prior.sum(axis=1) + middle.sum(axis=1) + seen.sum(axis=1)


def exact_posterior(data: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of (common mean, effects)."""
    schools, pupils = data.shape
    precision = np.zeros((1 + schools, 1 + schools))
    precision[0, 0] = 1 / PRIOR**2 + schools / BETWEEN**2
    precision[0, 1:] = precision[1:, 0] = -1 / BETWEEN**2
    precision[1:, 1:] = np.eye(schools) * (1 / BETWEEN**2 + pupils / WITHIN**2)
    covariance = np.linalg.inv(precision)
    pull = np.concatenate([[0.0], data.sum(1) / WITHIN**2])
    return covariance @ pull, covariance


def sampler(
    density: Callable[[symdnn.Variable], symdnn.Variable],
    start: np.ndarray,
    step: float,
    leaps: int,
    seed: int,
) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
    """A function that moves all chains once: their states, and which of them were accepted."""
    stream, state = RandomStream(seed), symdnn.shared(start, name="state")

    def slope(q: symdnn.Variable) -> symdnn.Variable:
        return symdnn.grad(density(q).sum(), q)

    def leap(q: symdnn.Variable, p: symdnn.Variable) -> list[symdnn.Variable]:
        q = q + step * p
        return [q, p + step * slope(q)]

    momentum = stream.normal(start.shape, dtype="float64")
    half = momentum + step / 2 * slope(state)
    (qs, ps), _ = symdnn.scan(leap, outputs_info=[state + 0, half], n_steps=leaps)
    q = qs[-1]
    p = ps[-1] - step / 2 * slope(q)
    gain = density(q) - density(state) + ((momentum**2).sum(axis=1) - (p**2).sum(axis=1)) / 2
    accepted = T.log(stream.uniform((start.shape[0],), dtype="float64")) < gain
    new = T.switch(accepted.dimshuffle(0, "x"), q, state)
    moved: Callable[[], tuple[np.ndarray, np.ndarray]] = symdnn.function(
        [], [new, accepted], updates=[(state, new)]
    )
    return moved


def main(argv: Sequence[str] | None = None) -> float:
    """Run the chains; the largest error of a posterior mean, in posterior deviations."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--schools", type=int, default=8)
    parser.add_argument("--pupils", type=int, default=20)
    parser.add_argument("--chains", type=int, default=64)
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--step", type=float, default=0.35)
    parser.add_argument("--leaps", type=int, default=8)
    options = parser.parse_args(argv)
    data = results(options.schools, options.pupils, seed=1)
    start = np.zeros((options.chains, 1 + options.schools))
    move = sampler(lambda q: log_density(q, data), start, options.step, options.leaps, seed=2)
    found = [move() for _ in range(options.draws)]
    kept = np.concatenate([state for state, _ in found[options.draws // 4 :]])
    mean, covariance = exact_posterior(data)
    deviation = np.sqrt(np.diag(covariance))
    off = np.abs(kept.mean(0) - mean) / deviation
    print(
        f"accepted {np.mean([a for _, a in found]):.0%} of {options.draws * options.chains} moves"
    )
    print("posterior mean     ", np.round(mean, 2))
    print("mean of the draws  ", np.round(kept.mean(0), 2))
    print("posterior deviation", np.round(deviation, 2))
    print("that of the draws  ", np.round(kept.std(0), 2))
    return float(max(off.max(), np.abs(kept.std(0) / deviation - 1).max()))


if __name__ == "__main__":
    main()
