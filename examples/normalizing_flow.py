"""A normalising flow on points of the plane: RealNVP, with exact densities and exact inverses.

Each layer moves one coordinate by a scale and a shift that a small network computes from the other
one (Dinh, Sohl-Dickstein and Bengio, "Density estimation using Real NVP", 2017), so its Jacobian is
triangular. The parameters are a tree, and the whole training step is one function of
``symdnn.jit``. At the end the density is integrated over the plane, and compared with the Jacobian
of the inverse by finite differences.

    python examples/normalizing_flow.py --steps 1500
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np

import symdnn
import symdnn.tensor as T
from symdnn import distributions as D

Tree = Any


def moons(count: int, rng: np.random.Generator) -> np.ndarray:
    """Two half circles with noise, as of scikit-learn's ``make_moons``."""
    angle, upper = rng.uniform(0, np.pi, count), rng.random(count) < 0.5
    x = np.where(upper, np.cos(angle), 1 - np.cos(angle))
    y = np.where(upper, np.sin(angle), 0.5 - np.sin(angle))
    points = np.stack([x - 0.5, y - 0.25], axis=1) + rng.normal(scale=0.1, size=(count, 2))
    return points * 1.5


def parameters(layers: int, width: int, rng: np.random.Generator) -> list[Tree]:
    """For each layer a network of one hidden layer, which begins as the identity."""
    return [
        {
            "in": rng.normal(size=(1, width)), "bias": rng.normal(size=width),
            "out": np.zeros((width, 2)), "start": np.zeros(2),
        }
        for _ in range(layers)
    ]  # fmt: skip


def scale_and_shift(p: Tree, x: Any) -> tuple[Any, Any]:
    """From the coordinate that stays: the logarithm of the scale, and the shift."""
    found = T.dot(T.tanh(T.dot(x, p["in"]) + p["bias"]), p["out"]) + p["start"]
    return 2 * T.tanh(found[:, :1] / 2), found[:, 1:]


def to_base(params: list[Tree], x: Any) -> tuple[Any, Any]:
    """Points of the base distribution, and the log determinant of the Jacobian."""
    log_det = T.zeros_like(x[:, 0])
    for k, p in enumerate(params):
        kept, moved = (x[:, :1], x[:, 1:]) if k % 2 else (x[:, 1:], x[:, :1])
        log_scale, shift = scale_and_shift(p, kept)
        moved = moved * T.exp(log_scale) + shift
        x = T.concatenate([kept, moved] if k % 2 else [moved, kept], axis=1)
        log_det = log_det + log_scale[:, 0]
    return x, log_det


def from_base(params: list[Tree], z: Any) -> Any:
    """The inverse of :func:`to_base`."""
    for k, p in reversed(list(enumerate(params))):
        kept, moved = (z[:, :1], z[:, 1:]) if k % 2 else (z[:, 1:], z[:, :1])
        log_scale, shift = scale_and_shift(p, kept)
        moved = (moved - shift) * T.exp(-log_scale)
        z = T.concatenate([kept, moved] if k % 2 else [moved, kept], axis=1)
    return z


def log_density(params: list[Tree], x: Any) -> Any:
    """The log density of each point."""
    z, log_det = to_base(params, x)
    return D.Normal(np.float64(0), 1.0).log_prob(z).sum(axis=1) + log_det


def loss(params: list[Tree], x: Any) -> Any:
    """The mean negative log density."""
    return -log_density(params, x).mean()


@symdnn.jit
def train(state: Tree, x: Any, rate: Any) -> tuple[Tree, Any]:
    """One step of Adam (Kingma and Ba, 2015) on trees of parameters."""
    value, slopes = symdnn.value_and_grad(loss)(state["params"], x)
    count = state["count"] + 1
    new: dict[str, list[Tree]] = {"params": [], "mean": [], "square": []}
    for k, slope in enumerate(slopes):
        p, m, v = (state[name][k] for name in ("params", "mean", "square"))
        m = {n: 0.9 * m[n] + 0.1 * slope[n] for n in p}
        v = {n: 0.999 * v[n] + 0.001 * slope[n] ** 2 for n in p}
        size = rate * T.sqrt(1 - 0.999**count) / (1 - 0.9**count)
        new["params"].append({n: p[n] - size * m[n] / (T.sqrt(v[n]) + 1e-8) for n in p})
        new["mean"].append(m)
        new["square"].append(v)
    return {**new, "count": count}, value


def check(params: list[Tree], rng: np.random.Generator) -> tuple[float, float]:
    """How far the integral of the density is from 1, and the density from that by differences."""
    density = symdnn.jit(log_density)
    line = np.linspace(-6, 6, 401)
    grid = np.stack(np.meshgrid(line, line), -1).reshape(-1, 2)
    total = np.exp(density(params, grid)).sum() * (line[1] - line[0]) ** 2
    draw = symdnn.jit(from_base)
    z, h = rng.normal(size=(50, 2)), 1e-6
    columns = [(draw(params, z + h * e) - draw(params, z - h * e)) / (2 * h) for e in np.eye(2)]
    jacobian = np.abs(np.linalg.det(np.stack(columns, axis=-1)))
    wanted = -(z**2).sum(1) / 2 - np.log(2 * np.pi) - np.log(jacobian)
    return abs(total - 1), float(np.abs(density(params, draw(params, z)) - wanted).max())


def main(argv: Sequence[str] | None = None) -> float:
    """Train; the mean negative log density of new points."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--batch", type=int, default=256)
    options = parser.parse_args(argv)
    rng = np.random.default_rng(0)
    params = parameters(options.layers, options.width, rng)
    zeros = [{n: np.zeros_like(v) for n, v in p.items()} for p in params]
    state: Tree = {"params": params, "mean": zeros, "square": zeros, "count": np.float64(0)}
    for step in range(options.steps):
        rate = 5e-3 * min(1.0, 2 * (1 - step / options.steps))
        state, value = train(state, moons(options.batch, rng), rate)
        if step % max(1, options.steps // 5) == 0:
            print(f"step {step}: {float(value):.3f} nats")
    found = float(symdnn.jit(loss)(state["params"], moons(4000, rng)))
    off, error = check(state["params"], rng)
    print(f"new points: {found:.3f} nats; integral off by {off:.1e}, log density by {error:.1e}")
    assert off < 0.02
    assert error < 1e-5
    return found


if __name__ == "__main__":
    main()
