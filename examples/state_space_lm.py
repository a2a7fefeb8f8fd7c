"""A language model of diagonal state spaces, by a parallel scan.

Each layer is a linear recurrence with a diagonal complex state (Gupta, Gu and Berant, "Diagonal
state spaces are as effective as structured state spaces", 2022; Smith, Warrington and Linderman,
"Simplified state space layers for sequence modeling" (S5), 2023):

    h[t] = A h[t-1] + B u[t],   y[t] = Re(C h[t]) + D u[t],   A = exp(step * (-exp(a) + i b)),

with the input discretised by a zero-order hold. Or, with ``--selective``, steps, B and C depend on
the input (Gu and Dao, "Mamba: linear-time sequence modeling with selective state spaces", 2023),
with a real A. ``symdnn.control.associative_scan`` finds that ``(a, b), (c, d) -> (a c, c b + d)``
is a linear recurrence, which is one kernel. The complex one, written in real and imaginary parts,
takes log2(time) rounds.

The layer is compared with the published recurrence, step by step in NumPy. Then the model learns
letters of a text, and the scan's time is compared with that of the bytes that a kernel written by
hand would move: it reads a and b, and writes h.

    python examples/state_space_lm.py --steps 60
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import symdnn
import symdnn.tensor as T
from symdnn import control

Tree = Any
FLOAT = "float32"


def decay(x: Any, y: Any) -> Any:
    """Two stretches of the recurrence ``h = a h + b`` as one."""
    return x[0] * y[0], y[0] * x[1] + y[1]


def complex_decay(x: Any, y: Any) -> Any:
    """The same of complex numbers, as pairs of real and imaginary parts."""
    (ar, ai, br, bi), (cr, ci, dr, di) = x, y
    return (
        cr * ar - ci * ai, cr * ai + ci * ar,
        cr * br - ci * bi + dr, cr * bi + ci * br + di,
    )  # fmt: skip


# -- layers: u is (batch, time, features) ---------------------------------------------------------


def selective(p: Tree, u: Any) -> Any:
    """Mamba's layer: step, B and C are functions of the input."""
    step = T.nnet.softplus(T.dot(u, p["step"]) + p["step_bias"])  # (batch, time, features)
    into, out = T.dot(u, p["into"]), T.dot(u, p["out"])  # (batch, time, states)
    a = T.exp(-step[..., None] * T.exp(p["log_rate"]))  # (batch, time, features, states)
    b = (step * u)[..., None] * into[:, :, None]
    h = control.associative_scan(decay, (a, b), axis=1)[1]
    return (h * out[:, :, None]).sum(axis=-1) + p["skip"] * u


def selective_by_steps(p: Tree, u: np.ndarray) -> np.ndarray:
    """The published recurrence (Gu and Dao, 2023, algorithm 2), one step after the other."""
    step = np.logaddexp(0, u @ p["step"] + p["step_bias"])
    into, out, rate = u @ p["into"], u @ p["out"], -np.exp(p["log_rate"])
    h, found = np.zeros((u.shape[0], *rate.shape)), []
    for t in range(u.shape[1]):
        a = np.exp(step[:, t, :, None] * rate)
        h = a * h + (step[:, t] * u[:, t])[..., None] * into[:, t, None]
        found.append((h * out[:, t, None]).sum(-1) + p["skip"] * u[:, t])
    return np.stack(found, axis=1)


def selective_parameters(features: int, states: int, rng: np.random.Generator) -> Tree:
    """S4D-Real's rates, and steps between 0.001 and 0.1 as in the paper."""
    first = np.exp(rng.uniform(np.log(1e-3), np.log(1e-1), features))
    return {
        "step": rng.normal(size=(features, features)) * 0.1 / np.sqrt(features),
        "step_bias": np.log(np.expm1(first)),
        "into": rng.normal(size=(features, states)) / np.sqrt(features),
        "out": rng.normal(size=(features, states)) / np.sqrt(features),
        "log_rate": np.tile(np.log(1 + np.arange(states)), (features, 1)),
        "skip": np.ones(features),
    }


def diagonal(p: Tree, u: Any) -> Any:
    """S5's layer: one diagonal complex state that all features share."""
    rate_re, rate_im = -T.exp(p["log_rate"]), p["frequency"]
    step = T.exp(p["log_step"])
    size, turn = T.exp(step * rate_re), step * rate_im
    a_re, a_im = size * T.cos(turn), size * T.sin(turn)
    # The zero-order hold (A - 1) / rate, of complex numbers.
    norm = rate_re**2 + rate_im**2
    hold_re = ((a_re - 1) * rate_re + a_im * rate_im) / norm
    hold_im = (a_im * rate_re - (a_re - 1) * rate_im) / norm
    x_re, x_im = T.dot(u, p["into_re"]), T.dot(u, p["into_im"])
    b_re, b_im = x_re * hold_re - x_im * hold_im, x_re * hold_im + x_im * hold_re
    elements = (a_re + 0 * b_re, a_im + 0 * b_im, b_re, b_im)
    _, _, h_re, h_im = control.associative_scan(complex_decay, elements, axis=1)
    return T.dot(h_re, p["out_re"]) - T.dot(h_im, p["out_im"]) + p["skip"] * u


def diagonal_by_steps(p: Tree, u: np.ndarray) -> np.ndarray:
    """The published recurrence with complex numbers (Smith and others, 2023, equation 2)."""
    rate = -np.exp(p["log_rate"]) + 1j * p["frequency"]
    a = np.exp(np.exp(p["log_step"]) * rate)
    b = (p["into_re"] + 1j * p["into_im"]) * (a - 1) / rate
    c = p["out_re"] + 1j * p["out_im"]
    h, found = np.zeros((u.shape[0], len(a)), complex), []
    for t in range(u.shape[1]):
        h = a * h + u[:, t] @ b
        found.append((h @ c).real + p["skip"] * u[:, t])
    return np.stack(found, axis=1)


def diagonal_parameters(features: int, states: int, rng: np.random.Generator) -> Tree:
    """S4D-Lin's rates: -1/2 + i pi n."""
    scale = 1 / np.sqrt(2 * features)
    return {
        "log_rate": np.full(states, np.log(0.5)), "frequency": np.pi * np.arange(states),
        "log_step": rng.uniform(np.log(1e-3), np.log(1e-1), states),
        "into_re": rng.normal(size=(features, states)) * scale,
        "into_im": rng.normal(size=(features, states)) * scale,
        "out_re": rng.normal(size=(states, features)) / np.sqrt(states),
        "out_im": rng.normal(size=(states, features)) / np.sqrt(states),
        "skip": np.ones(features),
    }  # fmt: skip


LAYERS: dict[str, tuple[Callable[..., Any], ...]] = {
    "diagonal": (diagonal, diagonal_by_steps, diagonal_parameters),
    "selective": (selective, selective_by_steps, selective_parameters),
}


# -- the model ------------------------------------------------------------------------------------


def norm(p: Tree, x: Any) -> Any:
    """Root mean square normalisation (Zhang and Sennrich, 2019)."""
    return x / T.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-5) * p


def logits(params: Tree, letters: Any, kind: str) -> Any:
    """Scores of the next letter at each place."""
    x = params["embedding"][letters]
    for p in params["layers"]:
        u = norm(p["norm"], x)
        mixed = LAYERS[kind][0](p["states"], u)
        gate = T.dot(u, p["gate"])
        x = x + T.dot(mixed * gate * T.nnet.sigmoid(gate), p["back"])
    return T.dot(norm(params["norm"], x), params["embedding"].T)


def loss(params: Tree, text: Any, kind: str) -> Any:
    """The mean cross-entropy of each next letter, in nats."""
    scores = logits(params, text[:, :-1], kind)
    rows = scores.reshape((-1, scores.shape[-1]))
    return T.nnet.categorical_crossentropy(T.nnet.softmax(rows), text[:, 1:].reshape((-1,))).mean()


@symdnn.jit(static_argnames="kind")
def train(state: Tree, text: Any, rate: Any, kind: str) -> tuple[Tree, Any]:
    """One step of Adam on the tree of parameters."""
    value, slope = symdnn.value_and_grad(loss)(state["params"], text, kind)
    count = state["count"] + 1
    size = rate * T.sqrt(1 - 0.99**count) / (1 - 0.9**count)
    mean = each(lambda m, g: 0.9 * m + 0.1 * g, state["mean"], slope)
    square = each(lambda v, g: 0.99 * v + 0.01 * g**2, state["square"], slope)
    params = each(lambda p, m, v: p - size * m / (T.sqrt(v) + 1e-8), state["params"], mean, square)
    return {"params": params, "mean": mean, "square": square, "count": count}, value


def each(f: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """``f`` of the leaves of trees."""
    if isinstance(tree, dict):
        return {k: each(f, v, *(o[k] for o in others)) for k, v in tree.items()}
    if isinstance(tree, list):
        return [each(f, v, *(o[k] for o in others)) for k, v in enumerate(tree)]
    return f(tree, *others)


def parameters(kind: str, options: argparse.Namespace, letters: int) -> Tree:
    """The tree of parameters, in float32."""
    rng = np.random.default_rng(0)
    width = options.width

    def layer() -> Tree:
        square = (width, width)
        return {
            "norm": np.ones(width), "gate": rng.normal(size=square) / np.sqrt(width),
            "back": rng.normal(size=square) / np.sqrt(width) / 2,
            "states": LAYERS[kind][2](width, options.states, rng),
        }  # fmt: skip

    found = {
        "embedding": rng.normal(size=(letters, width)) / np.sqrt(width), "norm": np.ones(width),
        "layers": [layer() for _ in range(options.layers)],
    }  # fmt: skip
    return each(lambda v: v.astype(FLOAT), found)


# -- checks ---------------------------------------------------------------------------------------


def off_from_formula(kind: str) -> float:
    """The largest difference of a layer from the published recurrence, in float64."""
    layer, by_steps, make = LAYERS[kind]
    rng = np.random.default_rng(1)
    p, u = make(6, 4, rng), rng.normal(size=(2, 37, 6))
    return float(np.abs(symdnn.jit(layer)(p, u) - by_steps(p, u)).max())


def speed(shape: tuple[int, int, int]) -> tuple[float, float]:
    """Gigabytes a second of the scan, and of a product ``a * b`` that moves the same bytes."""
    rng = np.random.default_rng(0)
    a, b = (rng.uniform(0.5, 1, shape).astype(FLOAT) for _ in range(2))
    scan = symdnn.jit(lambda a, b: control.associative_scan(decay, (a, b), axis=1)[1])
    plain = symdnn.jit(lambda a, b: a * b)
    best = {}
    for name, f in {"scan": scan, "plain": plain}.items():
        f(a, b)
        times = []
        for _ in range(7):
            began = time.perf_counter()
            f(a, b)
            times.append(time.perf_counter() - began)
        best[name] = 3 * a.nbytes / min(times) / 1e9
    return best["scan"], best["plain"]


def main(argv: Sequence[str] | None = None) -> float:
    """Check, train, measure; the loss of the last steps, in nats a letter."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--selective", action="store_true")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--states", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--speed", type=int, default=1024, help="steps of the scan that is timed")
    options = parser.parse_args(argv)
    for kind in LAYERS:
        error = off_from_formula(kind)
        print(f"{kind}: differs from the published recurrence by {error:.1e}")
        assert error < 1e-12
    kind = "selective" if options.selective else "diagonal"
    text = np.frombuffer((__doc__ or "").encode() * 20, np.uint8)
    alphabet, numbers = np.unique(text, return_inverse=True)
    params = parameters(kind, options, len(alphabet))
    zeros = each(np.zeros_like, params)
    state: Tree = {"params": params, "mean": zeros, "square": zeros, "count": np.float32(0)}
    rng, losses = np.random.default_rng(2), []
    for step in range(options.steps):
        at = rng.integers(0, len(numbers) - options.length - 1, options.batch)
        batch = np.stack([numbers[k : k + options.length + 1] for k in at]).astype("int32")
        state, value = train(state, batch, 5e-3, kind)
        losses.append(float(value))
        if step % max(1, options.steps // 6) == 0:
            print(f"step {step}: {losses[-1]:.3f} nats a letter")
    found, copy = speed((8, options.speed, 512))
    print(f"scan {found:.1f} GB/s, a product of the same bytes {copy:.1f} GB/s")
    return float(np.mean(losses[-5:]))


if __name__ == "__main__":
    main()
