"""Hybrid Monte Carlo: samples of a Gaussian by simulated physics, with a step size that adapts.

Written for Theano in the way of its tutorial: `scan` runs the leapfrog steps, `switch` accepts or
rejects, shared variables keep positions, step size and acceptance rate. The samples' mean and
covariance must be those of the distribution.
"""

import argparse

import numpy as np

import symdnn.compat.theano

symdnn.compat.theano.install()
import theano
import theano.tensor as T
from theano.tensor.shared_randomstreams import RandomStreams


def leapfrog(energy, positions, velocities, stepsize, n_steps):
    """Positions and velocities after ``n_steps`` of the dynamics."""

    def force(pos):
        return -T.grad(energy(pos).sum(), pos)

    def step(pos, vel, size):
        new = pos + size * vel
        return new, vel + size * force(new)

    half = velocities + 0.5 * stepsize * force(positions)
    first = positions + stepsize * half
    (all_pos, all_vel), updates = theano.scan(
        step,
        outputs_info=[first, half + stepsize * force(first)],
        non_sequences=[stepsize],
        n_steps=n_steps - 1,
    )
    last_pos, last_vel = all_pos[-1], all_vel[-1]
    assert not updates
    return last_pos, last_vel - 0.5 * stepsize * force(last_pos)


def sampler(energy, positions, rng, n_steps=15, target=0.9):
    """A function that draws one sample for each row of the shared ``positions``."""
    floatx = theano.config.floatX
    stepsize = theano.shared(np.asarray(0.05, floatx), "stepsize")
    rate = theano.shared(np.asarray(target, floatx), "rate")
    velocities = rng.normal(size=positions.shape)

    def hamiltonian(pos, vel):
        return energy(pos) + 0.5 * (vel**2).sum(axis=1)

    final_pos, final_vel = leapfrog(energy, positions, velocities, stepsize, n_steps)
    change = hamiltonian(positions, velocities) - hamiltonian(final_pos, final_vel)
    accept = T.exp(change) >= rng.uniform(size=change.shape)
    new = T.switch(accept.dimshuffle(0, "x"), final_pos, positions)
    new_rate = 0.9 * rate + 0.1 * accept.mean(dtype=floatx)
    factor = T.switch(rate > target, 1.02, 0.98)
    updates = [
        (positions, new),
        (stepsize, T.cast(T.clip(stepsize * factor, 0.001, 0.5), floatx)),
        (rate, T.cast(new_rate, floatx)),
    ]
    return theano.function([], [], updates=updates), rate


def main(argv=None):
    """Sample, and return the largest error of the mean and of the covariance."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=400)
    parser.add_argument("--chains", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    rng, dim = np.random.default_rng(options.seed), 5
    mu = rng.normal(size=dim)
    root = rng.normal(size=(dim, dim)) / 2
    covariance = root @ root.T + 0.5 * np.eye(dim)
    precision = theano.shared(np.linalg.inv(covariance).astype(theano.config.floatX))

    def energy(x):
        d = x - mu.astype(theano.config.floatX)
        return 0.5 * (T.dot(d, precision) * d).sum(axis=1)

    start = rng.normal(size=(options.chains, dim)).astype(theano.config.floatX)
    positions = theano.shared(start, "positions")
    draw, rate = sampler(energy, positions, RandomStreams(options.seed + 1))
    for _ in range(100):
        draw()
    samples = []
    for _ in range(options.samples):
        draw()
        samples.append(positions.get_value())
    drawn = np.concatenate(samples)
    mean_error = float(abs(drawn.mean(axis=0) - mu).max())
    cov_error = float(abs(np.cov(drawn.T) - covariance).max())
    print(f"accepted {rate.get_value():.0%}, error of the mean {mean_error:.3f}, "
          f"of the covariance {cov_error:.3f}")  # fmt: skip
    return max(mean_error, cov_error)


if __name__ == "__main__":
    assert main() < 0.15
