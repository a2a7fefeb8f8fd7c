"""A Gaussian process in Theano's style: a kernel's parameters fitted to noisy data by gradients.

The data are drawn from a process whose parameters are known. The log marginal likelihood (C. E.
Rasmussen and C. K. I. Williams, "Gaussian Processes for Machine Learning", 2006, equation 2.30) and
its gradient share one Cholesky factor.
"""

import argparse

import numpy as np

import symdnn as theano
import symdnn.tensor as T
from symdnn.tensor import slinalg

#: Amplitude, length scale and standard deviation of the noise of the process.
TRUE = (1.5, 0.7, 0.2)


def covariance(x1, x2, amplitude, length):
    """The squared exponential kernel between two vectors of places."""
    distance = (x1.dimshuffle(0, "x") - x2.dimshuffle("x", 0)) / length
    return amplitude**2 * T.exp(-0.5 * distance**2)


def draw(count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Places, values of the process, and the values with noise."""
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(-5, 5, count))
    amplitude, length, noise = TRUE
    k = amplitude**2 * np.exp(-0.5 * ((x[:, None] - x) / length) ** 2)
    values = np.linalg.cholesky(k + 1e-10 * np.eye(count)) @ rng.standard_normal(count)
    return x, values, values + noise * rng.standard_normal(count)


def adam(cost, parameters, rate):
    """Updates by Adam (D. P. Kingma and J. Ba, 2015)."""
    step = theano.shared(0.0)
    updates = [(step, step + 1)]
    for p, g in zip(parameters, T.grad(cost, parameters)):
        m, v = (theano.shared(0.0) for _ in range(2))
        m_new, v_new = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        size = (m_new / (1 - 0.9 ** (step + 1))) / (
            T.sqrt(v_new / (1 - 0.999 ** (step + 1))) + 1e-8
        )
        updates += [(m, m_new), (v, v_new), (p, p - rate * size)]
    return updates


def main(argv: list[str] | None = None) -> dict[str, float]:
    """Fit the parameters; returns them, and errors of the prediction at places left out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=200)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)

    x_all, truth, noisy = draw(options.points + 50, options.seed)
    held_out = np.random.default_rng(1).permutation(options.points + 50)[:50]
    kept = np.setdiff1d(np.arange(options.points + 50), held_out)

    x, y, x_new = T.dvectors("x", "y", "x_new")
    logs = [theano.shared(0.0, name=n) for n in ("amplitude", "length", "noise")]
    amplitude, length, noise = (T.exp(v) for v in logs)

    k = covariance(x, x, amplitude, length) + noise**2 * T.eye(x.shape[0], dtype="float64")
    factor = slinalg.cholesky(k)
    half = slinalg.solve_lower_triangular(factor, y)
    n = x.shape[0].astype("float64")
    cost = 0.5 * (T.dot(half, half) + n * np.log(2 * np.pi)) + T.log(T.diag(factor)).sum()

    train = theano.function([x, y], cost, updates=adam(cost, logs, 0.05))
    between = slinalg.solve_lower_triangular(factor, covariance(x, x_new, amplitude, length))
    mean = T.dot(between.T, half)
    variance = amplitude**2 - (between**2).sum(axis=0)
    predict = theano.function([x, y, x_new], [mean, variance])

    for step in range(options.steps):
        value = train(x_all[kept], noisy[kept])
        if step % 50 == 0:
            print(f"step {step:4d}  negative log likelihood {float(value):9.3f}")
    guess, spread = predict(x_all[kept], noisy[kept], x_all[held_out])
    error = guess - truth[held_out]
    found = {v.name: float(np.exp(v.get_value())) for v in logs}
    found["likelihood"] = -float(value)
    found["rmse"] = float(np.sqrt(np.mean(error**2)))
    found["inside"] = float(np.mean(np.abs(error) < 2 * np.sqrt(np.maximum(spread, 0))))
    for name, number in found.items():
        print(f"{name:10s} {number:9.4f}")
    return found


if __name__ == "__main__":
    main()
