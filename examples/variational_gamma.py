"""Variational inference with a gamma distribution, whose draws have implicit gradients.

Counts of events have an unknown rate with a gamma prior. Its posterior is known: a gamma
distribution, too. Here it is found by gradient ascent on a bound of the evidence, which is a mean
over draws of the approximation, through which gradients flow to its shape and mean.

    python examples/variational_gamma.py --steps 1500
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

import symdnn
import symdnn.tensor as T
from symdnn import distributions as D
from symdnn.tensor.random import RandomStream

PRIOR = (np.float64(2.0), np.float64(1.0))


def main(argv: Sequence[str] | None = None) -> float:
    """Fit the approximation; its divergence from the exact posterior, in nats."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--counts", type=int, default=20)
    parser.add_argument("--draws", type=int, default=32)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--rate", type=float, default=0.05)
    options = parser.parse_args(argv)
    counts = np.random.default_rng(1).poisson(3.5, options.counts).astype("float64")

    logs = symdnn.shared(np.zeros(2), name="logs")  # of shape and mean, which are positive
    speed = symdnn.shared(np.zeros(2), name="speed")
    q = D.Gamma(T.exp(logs[0]), T.exp(logs[0] - logs[1]))
    rate = q.rsample((options.draws,), RandomStream(3))
    likelihood = D.Poisson(rate.dimshuffle(0, "x")).log_prob(counts[None]).sum(axis=1)
    bound = likelihood.mean() - D.kl_divergence(q, D.Gamma(*PRIOR))
    slope = symdnn.grad(bound, logs)
    # The length of a step follows the size of the slopes (RMSprop), and falls with their number.
    size = 0.9 * speed + 0.1 * slope**2
    pace = T.dscalar("pace")
    step = symdnn.function(
        [pace], bound, updates=[(speed, size), (logs, logs + pace * slope / (T.sqrt(size) + 1e-8))]
    )
    for i in range(options.steps):
        step(options.rate / (1 + 10 * i / options.steps) ** 1.5)

    exact = D.Gamma(PRIOR[0] + counts.sum(), PRIOR[1] + len(counts))
    off, mean, deviation, wanted = symdnn.function(
        [], [D.kl_divergence(q, exact), q.mean, q.stddev, exact.mean]
    )()
    print(f"approximation: mean {mean:.4f}, deviation {deviation:.4f}; exact mean {wanted:.4f}")
    print(f"divergence from the exact posterior: {off:.2e} nats")
    return float(off)


if __name__ == "__main__":
    main()
