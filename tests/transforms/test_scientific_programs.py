"""Whole programs as users write them, beside NumPy; gradients beside finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import symdnn
import symdnn.tensor as T
from symdnn import control

RNG = np.random.default_rng(8)


def normal(*shape: int) -> Any:
    return RNG.normal(size=shape)


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def smoother(ys: Any, a: Any, q: Any, r: Any) -> Any:
    """A Kalman filter and the backward pass of Rauch, Tung and Striebel."""
    eye = T.eye(2, dtype="float64")

    def forward(carry: Any, y: Any) -> Any:
        m, p = carry
        before, wide = T.dot(a, m), T.dot(T.dot(a, p), a.T) + T.diag(q)
        gain = T.linalg.solve(wide + T.diag(r), wide).T
        m, p = before + T.dot(gain, y - before), T.dot(eye - gain, wide)
        return (m, p), (m, p, before, wide)

    def backward(carry: Any, x: Any) -> Any:
        (later, far), (m, p, before, wide) = carry, x
        gain = T.linalg.solve(wide, T.dot(a, p)).T
        m = m + T.dot(gain, later - before)
        return (m, p + T.dot(T.dot(gain, far - wide), gain.T)), m

    end, (ms, ps, before, wide) = control.scan(forward, (T.zeros(2, "float64"), eye), ys)
    later = tuple(v[1:] for v in (before, wide))
    return control.scan(backward, end, (ms[:-1], ps[:-1], *later), reverse=True)[1]


def smoothed_by_numpy(ys: Any, a: Any, q: Any, r: Any) -> Any:
    """The conditional mean of the joint Gaussian of all states, given all observations."""
    n = len(ys)
    cov, p = np.zeros((2 * n, 2 * n)), np.eye(2)
    for i in range(n):
        p = a @ p @ a.T + np.diag(q)
        block = p
        for j in range(i, n):
            cov[2 * i : 2 * i + 2, 2 * j : 2 * j + 2] = block.T if j == i else block
            cov[2 * j : 2 * j + 2, 2 * i : 2 * i + 2] = block.T
            block = block @ a.T
    noise = np.kron(np.eye(n), np.diag(r))
    return (cov @ np.linalg.solve(cov + noise, ys.ravel())).reshape(n, 2)[:-1]


def crf(scores: Any, moves: Any) -> Any:
    """The logarithm of the partition function."""

    def step(a: Any, e: Any) -> Any:
        return (T.logsumexp(a[:, None] + moves, axis=0) + e, None)

    return T.logsumexp(control.scan(step, scores[0], scores[1:])[0])


def crf_by_numpy(scores: Any, moves: Any) -> Any:
    paths = np.stack(np.meshgrid(*[np.arange(scores.shape[1])] * len(scores)), -1)
    paths = paths.reshape(-1, len(scores))
    totals = scores[np.arange(len(scores)), paths].sum(1)
    return np.log(np.exp(totals + moves[paths[:, :-1], paths[:, 1:]].sum(1)).sum())


def attention_along_edges(x: Any, w: Any, a: Any) -> Any:
    source, target = np.array([0, 1, 2, 3, 0, 2]), np.array([1, 2, 3, 0, 2, 1])
    h = T.dot(x, w)
    s = T.tanh(T.dot(T.concatenate([h[source], h[target]], axis=1), a))
    top = symdnn.gradient.disconnected_grad(T.segment_max(s, target, 5))
    e = T.exp(s - T.where(T.isfinite(top), top, 0.0)[target])
    share = e / T.segment_sum(e, target, 5)[target]
    return T.segment_sum(share[:, None] * h[source], target, 5)


def edges_by_numpy(x: Any, w: Any, a: Any) -> Any:
    h, edges = x @ w, [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2), (2, 1)]
    out = np.zeros((5, w.shape[1]))
    for node in range(5):
        near = [i for i, j in edges if j == node]
        if near:
            s = np.tanh(np.array([np.concatenate([h[i], h[node]]) @ a for i in near]))
            out[node] = softmax(s) @ h[near]
    return out


def packed_both_ways(x: Any, w: Any, u: Any) -> Any:
    """The last states of rows of lengths 4, 2 and 1, from the left and from the right."""
    seen = T.arange(4)[None, :] < np.array([4, 2, 1])[:, None]

    def step(h: Any, given: Any) -> Any:
        v, m = given
        return T.where(m[:, None], T.tanh(T.dot(v, w) + T.dot(h, u)), h), None

    start, rows = T.zeros((3, 2), "float64"), (x.transpose(1, 0, 2), seen.T)
    ends = [control.scan(step, start, rows, reverse=back)[0] for back in (False, True)]
    return T.concatenate(ends, axis=1)


def packed_by_numpy(x: Any, w: Any, u: Any) -> Any:
    out = np.zeros((3, 4))
    for i, n in enumerate((4, 2, 1)):
        for k, order in enumerate((range(n), reversed(range(n)))):
            h = np.zeros(2)
            for t in order:
                h = np.tanh(x[i, t] @ w + h @ u)
            out[i, 2 * k : 2 * k + 2] = h
    return out


def mixture(x: Any, means: Any, widths: Any) -> Any:
    """Two steps of EM for a mixture of round Gaussians."""
    for _ in range(2):
        d = ((x[:, None] - means[None]) ** 2).sum(-1)
        g = T.softmax(-d / (2 * widths**2) - 2 * T.log(widths), axis=1)
        weight = g.sum(0)
        means = T.dot(g.T, x) / weight[:, None]
        d = ((x[:, None] - means[None]) ** 2).sum(-1)
        widths = T.sqrt((g * d).sum(0) / weight / 2 + 1e-3)
    return T.concatenate([means, widths[:, None]], axis=1)


def mixture_by_numpy(x: Any, means: Any, widths: Any) -> Any:
    for _ in range(2):
        d = ((x[:, None] - means[None]) ** 2).sum(-1)
        g = softmax(-d / (2 * widths**2) - 2 * np.log(widths))
        means = g.T @ x / g.sum(0)[:, None]
        d = ((x[:, None] - means[None]) ** 2).sum(-1)
        widths = np.sqrt((g * d).sum(0) / g.sum(0) / 2 + 1e-3)
    return np.concatenate([means, widths[:, None]], axis=1)


def filtered(x: Any, re: Any, im: Any) -> Any:
    """A learned filter in the frequencies, and the envelope of the analytic signal."""
    z = T.fft.irfft(T.fft.rfft(x, axis=-1) * (re + 1j * im), n=8, axis=-1)
    return T.abs(T.fft.ifft(T.fft.fft(z) * np.array([1.0, 2, 2, 2, 1, 0, 0, 0])))


def filtered_by_numpy(x: Any, re: Any, im: Any) -> Any:
    z = np.fft.irfft(np.fft.rfft(x) * (re + 1j * im), 8)
    return np.abs(np.fft.ifft(np.fft.fft(z) * np.array([1.0, 2, 2, 2, 1, 0, 0, 0])))


def transport(x: Any, y: Any) -> Any:
    """Sinkhorn's plan between two clouds, after 9 rounds."""
    cost = ((x[:, None] - y[None]) ** 2).sum(-1)

    def turn(i: Any, both: Any) -> Any:
        f = -T.logsumexp(both[1][None] - cost, axis=1)
        return f, -T.logsumexp(f[:, None] - cost, axis=0)

    f, g = control.fori_loop(0, 9, turn, (cost[:, 0] * 0, cost[0] * 0))
    return T.exp(f[:, None] + g[None] - cost)


def transport_by_numpy(x: Any, y: Any) -> Any:
    k = np.exp(-((x[:, None] - y[None]) ** 2).sum(-1))
    v = np.ones(len(y))
    for _ in range(9):
        u = 1 / (k @ v)
        v = 1 / (u @ k)
    return u[:, None] * k * v


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[Any]]] = {
    "smoother": (
        smoother, smoothed_by_numpy,
        [normal(4, 2), normal(2, 2), np.array([0.5, 0.9]), np.array([0.7, 0.4])],
    ),
    "crf": (crf, crf_by_numpy, [normal(4, 3), normal(3, 3)]),
    "attention along edges": (
        attention_along_edges, edges_by_numpy, [normal(5, 2), normal(2, 3), normal(6)],
    ),
    "packed sequences": (
        packed_both_ways, packed_by_numpy, [normal(3, 4, 3), normal(3, 2), normal(2, 2)],
    ),
    "mixture": (mixture, mixture_by_numpy, [normal(6, 2), normal(2, 2), np.array([0.8, 1.1])]),
    "filter": (filtered, filtered_by_numpy, [normal(2, 8), normal(5), normal(5)]),
    "transport": (transport, transport_by_numpy, [normal(4, 2), normal(3, 2)]),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_gradients_and_derivatives_along_a_direction(name: str) -> None:
    program, reference, args = PROGRAMS[name]
    f = symdnn.jit(program)
    wanted = reference(*args)
    np.testing.assert_allclose(f(*args), wanted, 1e-8, 1e-10)
    weights, along = normal(*np.shape(wanted)), [normal(*np.shape(a)) for a in args]

    def loss(*a: Any) -> Any:
        return (program(*a) * weights).sum()

    every = tuple(range(len(args)))
    slopes = symdnn.jit(symdnn.grad(loss, every))(*args)

    def moved(e: Any) -> Any:
        return [a + e * d for a, d in zip(args, along)]

    change = (reference(*moved(1e-5)) - reference(*moved(-1e-5))) / 2e-5
    product = sum((s * d).sum() for s, d in zip(slopes, along))
    np.testing.assert_allclose(product, (change * weights).sum(), 2e-5, 1e-6)
    tangent = symdnn.jit(lambda *a: symdnn.jvp(program, a, tuple(along))[1])(*args)
    np.testing.assert_allclose(tangent, change, 2e-5, 1e-6)
    # Examples with arguments of their own, in one batch.
    both = [np.stack([a, b]) for a, b in zip(args, moved(1e-5))]
    lanes = symdnn.jit(symdnn.vmap(program))(*both)
    np.testing.assert_allclose(lanes, [wanted, reference(*moved(1e-5))], 1e-8, 1e-10)


def test_a_step_through_the_gradient_of_a_step() -> None:
    """Meta-learning, and a critic whose gradient is held near 1: derivatives of gradients."""
    x, y, w, v = normal(5, 3), normal(5), normal(3), normal(3)

    def inner(w: Any, tanh: Any, dot: Any, grad: Any) -> Any:
        return w - 0.1 * grad(w, tanh, dot)

    def by_hand(w: Any, tanh: Any, dot: Any) -> Any:
        p = tanh(dot(x, w))
        return 2 * dot((p - y) * (1 - p**2), x) / 5

    def fit(w: Any) -> Any:
        return ((T.tanh(T.dot(x, w)) - y) ** 2).mean()

    def of_symdnn(w: Any) -> Any:
        return fit(inner(w, T.tanh, T.dot, lambda w, *_: symdnn.grad(fit)(w)))

    def after(w: Any) -> Any:
        return ((np.tanh(x @ inner(w, np.tanh, np.dot, by_hand)) - y) ** 2).mean()

    value, slope = symdnn.jit(symdnn.value_and_grad(of_symdnn))(w)
    np.testing.assert_allclose(value, after(w), 1e-12)
    change = (after(w + 1e-5 * v) - after(w - 1e-5 * v)) / 2e-5
    np.testing.assert_allclose((slope * v).sum(), change, 1e-6)

    def penalty(w: Any) -> Any:
        def critic(z: Any) -> Any:
            return T.tanh(T.dot(z, w)).sum()

        return ((T.sqrt((symdnn.grad(critic)(x) ** 2).sum(1)) - 1) ** 2).mean()

    def size(w: Any) -> Any:
        return (1 - np.tanh(x @ w) ** 2) * np.linalg.norm(w)

    def held(w: Any) -> Any:
        return ((size(w) - 1) ** 2).mean()

    value, slope = symdnn.jit(symdnn.value_and_grad(penalty))(w)
    np.testing.assert_allclose(value, held(w), 1e-12)
    change = (held(w + 1e-5 * v) - held(w - 1e-5 * v)) / 2e-5
    np.testing.assert_allclose((slope * v).sum(), change, 1e-6)


def test_decoding_with_a_cache_and_a_beam() -> None:
    """Positions that move, buffers of a carry, and the best of many continuations."""
    tokens, out = normal(7, 4), normal(4, 7)

    @symdnn.jit
    def greedy(cache: Any, token: Any) -> Any:
        def step(carry: Any, i: Any) -> Any:
            cache, token = carry
            cache = T.set_subtensor(cache[i], T.constant(tokens)[token])
            scores = T.where(T.arange(5) <= i, T.dot(cache, cache[i]), -np.inf)
            read = T.dot(T.softmax(scores, axis=-1), cache)
            token = T.argmax(T.dot(read, out)).astype("int32")
            return (cache, token), token

        return control.scan(step, (cache, token), T.arange(5))[1]

    cache, token, wanted = np.zeros((5, 4)), 3, []
    found = greedy(cache, np.int32(3))
    assert not cache.any()
    for i in range(5):
        cache[i] = tokens[token]
        token = int(np.argmax(softmax(cache[: i + 1] @ cache[i]) @ cache[: i + 1] @ out))
        wanted.append(token)
    assert found.tolist() == wanted

    @symdnn.jit
    def beam(table: Any) -> Any:
        def step(carry: Any, _: Any) -> Any:
            score, last = carry
            every = (score[:, None] + T.log_softmax(table, axis=-1)[last]).flatten()
            best, at = T.topk_and_argtopk(every, 3)
            order = T.argsort(-best)
            return (best[order], at[order] % 5), at[order] // 5

        start = np.array([0.0, -1e9, -1e9]), np.zeros(3, "int64")
        return control.scan(step, start, None, length=3)

    table = normal(5, 5)
    (score, last), _ = beam(table)
    paths = np.stack(np.meshgrid(*[np.arange(5)] * 3), -1).reshape(-1, 3)
    logs = np.log(softmax(table))
    totals = logs[0, paths[:, 0]] + logs[paths[:, 0], paths[:, 1]] + logs[paths[:, 1], paths[:, 2]]
    assert score[0] <= totals.max() + 1e-12
    for value, end in zip(score, last):
        assert np.isclose(totals[paths[:, 2] == end], value).any()
