"""More programs with loops beside JAX's: filters, dynamic programming, simulation, learning.

    python -m benchmarks.transforms.recurrences --peers ../peers/bin/python --out loops-cpu.txt
    python -m benchmarks.transforms.recurrences --device cuda --out loops-h200.txt

The rows run as those of :mod:`benchmarks.transforms.loops`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.cpu.nest import Nest, drawn
from benchmarks.gpu import rows as gpu_rows
from benchmarks.transforms.loops import row, scaled

__all__ = ["main", "rows"]


def rows() -> Iterator[Nest]:
    """All rows."""
    yield from _dynamic_programming()
    yield from _filters()
    yield from _simulations()
    yield from _networks()
    yield from _optimisation()


def main(argv: list[str] | None = None) -> int:
    """Time the rows on a device and print them."""
    return gpu_rows.main(argv, "benchmarks.transforms.recurrences", 90, rows())


def _dynamic_programming() -> Iterator[Nest]:
    em, tr = drawn(60, 12), drawn(12, 12, seed=1)
    yield row("HMM forward-backward 60 steps, 12 states", _forward_backward, em, tr)
    yield row("Viterbi 60 steps, 12 states", _viterbi, em, tr)
    yield row("beam search 20 steps, 4 of 16", _beam, drawn(20, 16), drawn(16, 16, seed=1))
    yield row("edit distance 24x30", _edit, _letters(24, 0), _letters(30, 1))
    yield row("soft DTW and gradient 24x30", _soft_dtw_gradient, drawn(24), drawn(30, seed=1))
    yield row("Sinkhorn 50 steps, 24x24", _sinkhorn, drawn(24, 24))
    yield row("Sinkhorn and gradient 20 steps", _sinkhorn_gradient, drawn(24, 24))


def _filters() -> Iterator[Nest]:
    yield row("IIR filter 2000 samples", _iir, drawn(2000), scaled(0.2, 3), scaled(0.2, 2, seed=1))
    yield row("GAE returns 128 steps, 8", _gae, drawn(128, 8), drawn(129, 8, seed=1), _ends)
    yield row("TD(lambda) 200 steps, 16", _td, drawn(201, 16), drawn(200))
    yield row("RLS filter 100 steps, 8", _rls, drawn(100, 8), drawn(100))
    yield row("linear bandit 100 steps, 4 of 6", _bandit, drawn(100, 4, 6), drawn(6))


def _simulations() -> Iterator[Nest]:
    x, w = scaled(0.5, 6), scaled(0.3, 6, 6)
    yield row("RK4 100 steps, 6", _rk4, x, w)
    yield row("RK4 and gradient 100 steps, 6", _rk4_gradient, x, w)
    yield row("n-body 50 steps, 12", _bodies, drawn(12, 3), drawn(12, 3, seed=1))
    yield row("game of life 40 steps, 48x48", _life, _cells)
    yield row("leapfrog HMC 20 draws, 16", _hmc, drawn(16), drawn(20, 16, seed=1), _chances)
    yield row("Gibbs sampling 200 draws", _gibbs, drawn(200, 2))
    yield row("PageRank while, 64", _pagerank, _links)


def _networks() -> Iterator[Nest]:
    x = drawn(30, 4, 8)
    w, u, p = scaled(0.3, 8, 64), scaled(0.2, 16, 64, seed=1), scaled(0.3, 3, 16, seed=2)
    yield row("LSTM with peepholes 30x4x16", _peepholes, x, w, u, p)
    yield row("LSTM with peepholes, gradient", _peepholes_gradient, x, w, u, p)
    yield row("hypernetwork RNN 40 steps, 12", _hyper, drawn(40, 6), scaled(0.1, 6, 144), drawn(12))
    a = scaled(0.2, 16, 8)
    ssm = (drawn(100, 16), a, drawn(100, 8, seed=2), drawn(100, 8, seed=3))
    yield row("selective scan 100 steps, 16x8", _selective, *ssm)
    yield row("selective scan, gradient", _selective_gradient, *ssm)
    q, k, v = (scaled(0.3, 64, 16, seed=i) for i in range(3))
    yield row("linear attention 64 steps, 16x16", _linear_attention, q, k, v)
    yield row("linear attention, gradient", _linear_attention_gradient, q, k, v)


def _optimisation() -> Iterator[Nest]:
    yield row("Newton while, of 16 numbers", _newton, _positive)
    yield row("k-means 10 steps, 100 of 3 in 5", _k_means, drawn(100, 3))
    yield row("EM of a mixture 15 steps, 80 in 4", _mixture, drawn(80, 2))


# -- arrays ---------------------------------------------------------------------------------------


def _letters(n: int, seed: int) -> Any:
    return lambda: np.random.default_rng(seed).integers(0, 4, n)


def _ends() -> Any:
    return (np.random.default_rng(2).random((128, 8)) < 0.1).astype("float32")


def _cells() -> Any:
    return (np.random.default_rng(0).random((48, 48)) < 0.3).astype("int32")


def _chances() -> Any:
    return np.random.default_rng(3).random(20).astype("float32")


def _links() -> Any:
    a = (np.random.default_rng(0).random((64, 64)) < 0.1) + np.eye(64)
    return (a / a.sum(0)).astype("float32")


def _positive() -> Any:
    return np.random.default_rng(0).uniform(0.5, 9, 16).astype("float32")


# -- dynamic programming --------------------------------------------------------------------------


def _forward_backward(m: Any, em: Any, tr: Any) -> Any:
    def forward(a: Any, e: Any) -> Any:
        a = m.logsumexp(a.reshape((-1, 1)) + tr, 0) + e
        return a, a

    def backward(b: Any, e: Any) -> Any:
        b = m.logsumexp(tr + (b + e).reshape((1, -1)), 1)
        return b, b

    ahead = m.scan(forward, em[0], em[1:])[1]
    behind = m.scan(backward, em[0] * 0, em[1:], reverse=True)[1]
    return m.softmax(m.concatenate([em[:1], ahead]) + m.concatenate([behind, em[:1] * 0]), 1)


def _viterbi(m: Any, em: Any, tr: Any) -> Any:
    def forward(a: Any, e: Any) -> Any:
        scores = a.reshape((-1, 1)) + tr
        return scores.max(0) + e, m.argmax(scores, 0)

    last, came = m.scan(forward, em[0], em[1:])
    end = m.argmax(last, 0)
    first, path = m.scan(lambda s, row: (row[s], s), end, came, reverse=True)
    return first, path, last.max()


def _beam(m: Any, bias: Any, tr: Any) -> Any:
    def step(state: Any, b: Any) -> Any:
        score, last = state
        every = (score.reshape((-1, 1)) + tr[last] + b).reshape((-1,))
        order = m.argsort(-every)[:4]
        last = order % 16
        return (every[order], last), (order // 16, last)

    return m.scan(step, (bias[0, :4] * 0, np.arange(4)), bias)


def _edit(m: Any, a: Any, b: Any) -> Any:
    n = b.shape[0]
    first = m.arange(n + 1)

    def along(left: Any, given: Any) -> Any:
        up, corner, same = given
        left = m.minimum(m.minimum(left + 1, up + 1), corner + 1 - same)
        return left, left

    def step(above: Any, letter: Any) -> Any:
        same = m.eq(b, letter).astype(above.dtype)
        begin = above[0] + 1
        rest = m.scan(along, begin, (above[1:], above[:-1], same))[1]
        return m.concatenate([begin.reshape((1,)), rest]), None

    return m.scan(step, first, a)[0][-1]


def _soft_dtw_gradient(m: Any, a: Any, b: Any) -> Any:
    def distance(a: Any) -> Any:
        costs = (a.reshape((-1, 1)) - b.reshape((1, -1))) ** 2

        def along(left: Any, given: Any) -> Any:
            up, corner, cost = given
            left = cost - m.logaddexp(m.logaddexp(-left, -up), -corner)
            return left, left

        def step(above: Any, row: Any) -> Any:
            rest = m.scan(along, row[0] * 0 + 1e4, (above[1:], above[:-1], row))[1]
            return m.concatenate([rest[:1] * 0 + 1e4, rest]), None

        begin = m.concatenate([costs[0, :1] * 0, costs[0] * 0 + 1e4])
        return m.scan(step, begin, costs)[0][-1]

    return m.grad(distance)(a)


def _sinkhorn(m: Any, costs: Any, steps: int = 50) -> Any:
    def body(_: Any, state: Any) -> Any:
        f, g = state
        f = -m.logsumexp(g.reshape((1, -1)) - costs, 1)
        return f, -m.logsumexp(f.reshape((-1, 1)) - costs, 0)

    f, g = m.fori_loop(0, steps, body, (costs[:, 0] * 0, costs[0] * 0))
    return (m.exp(f.reshape((-1, 1)) + g.reshape((1, -1)) - costs) * costs).sum()


def _sinkhorn_gradient(m: Any, costs: Any) -> Any:
    return m.grad(lambda c: _sinkhorn(m, c, 20))(costs)


# -- filters --------------------------------------------------------------------------------------


def _iir(m: Any, x: Any, b: Any, a: Any) -> Any:
    def step(state: Any, x: Any) -> Any:
        first, second = state
        y = b[0] * x + first
        return (b[1] * x - a[0] * y + second, b[2] * x - a[1] * y), y

    return m.scan(step, (x[0] * 0, x[0] * 0), x)[1]


def _gae(m: Any, rewards: Any, values: Any, ends: Any) -> Any:
    def step(sum_: Any, given: Any) -> Any:
        reward, value, later, end = given
        delta = reward + 0.99 * later * (1 - end) - value
        sum_ = delta + 0.99 * 0.95 * (1 - end) * sum_
        return sum_, sum_

    given = (rewards, values[:-1], values[1:], ends)
    return m.scan(step, rewards[0] * 0, given, reverse=True)[1]


def _td(m: Any, features: Any, rewards: Any) -> Any:
    def step(state: Any, given: Any) -> Any:
        w, trace = state
        x, later, reward = given
        trace = 0.9 * 0.8 * trace + x
        error = reward + 0.9 * m.dot(w, later) - m.dot(w, x)
        return (w + 0.01 * error * trace, trace), error

    zero = features[0] * 0
    (w, _), errors = m.scan(step, (zero, zero), (features[:-1], features[1:], rewards))
    return w, errors


def _rls(m: Any, xs: Any, ys: Any) -> Any:
    def step(state: Any, given: Any) -> Any:
        w, p = state
        x, y = given
        px = m.dot(p, x)
        gain = px / (0.99 + m.dot(x, px))
        error = y - m.dot(w, x)
        p = (p - gain.reshape((-1, 1)) * px.reshape((1, -1))) / 0.99
        return (w + gain * error, p), error

    begin = np.eye(8, dtype="float32") * 10
    (w, p), errors = m.scan(step, (xs[0] * 0, m.asarray(begin) + 0 * xs[0]), (xs, ys))
    return w, p, errors


def _bandit(m: Any, arms: Any, truth: Any) -> Any:
    def step(state: Any, given: Any) -> Any:
        inverse, sums = state
        theta = m.dot(inverse, sums)
        spread = m.sqrt((m.dot(given, inverse) * given).sum(1))
        best = m.argmax(m.dot(given, theta) + spread, 0)
        x = given[best]
        reward = m.tanh(m.dot(x, truth))
        ix = m.dot(inverse, x)
        outer = ix.reshape((-1, 1)) * ix.reshape((1, -1))
        return (inverse - outer / (1 + m.dot(x, ix)), sums + reward * x), (best, reward)

    begin = m.asarray(np.eye(6, dtype="float32")) + 0 * truth
    return m.scan(step, (begin, truth * 0), arms)[1]


# -- simulations ----------------------------------------------------------------------------------


def _rk4(m: Any, x: Any, w: Any) -> Any:
    f = lambda x: m.tanh(m.dot(w, x)) - 0.1 * x  # noqa: E731

    def body(_: Any, x: Any) -> Any:
        a = f(x)
        b = f(x + 0.05 * a)
        c = f(x + 0.05 * b)
        return x + (0.1 / 6) * (a + 2 * b + 2 * c + f(x + 0.1 * c))

    return m.fori_loop(0, 100, body, x)


def _rk4_gradient(m: Any, x: Any, w: Any) -> Any:
    return m.grad(lambda w: (_rk4(m, x, w) ** 2).sum())(w)


def _bodies(m: Any, x: Any, v: Any) -> Any:
    def body(_: Any, state: Any) -> Any:
        x, v = state
        apart = x.reshape((1, 12, 3)) - x.reshape((12, 1, 3))
        far = ((apart**2).sum(2) + 0.1) ** -1.5
        v = v + 0.01 * (apart * far.reshape((12, 12, 1))).sum(1)
        return x + 0.01 * v, v

    return m.fori_loop(0, 50, body, (x, v))


def _life(m: Any, cells: Any) -> Any:
    def body(_: Any, c: Any) -> Any:
        rows = m.roll(c, 1, 0) + c + m.roll(c, -1, 0)
        around = m.roll(rows, 1, 1) + rows + m.roll(rows, -1, 1) - c
        alive = m.eq(around, 3) | (m.eq(around, 2) & m.eq(c, 1))
        return alive.astype("int32")

    return m.fori_loop(0, 40, body, cells)


def _hmc(m: Any, x: Any, noise: Any, chances: Any) -> Any:
    energy = lambda x: (x**2).sum() / 2 + (m.cos(x)).sum() / 4  # noqa: E731
    slope = m.grad(energy)

    def draw(x: Any, given: Any) -> Any:
        p, chance = given

        def leap(_: Any, state: Any) -> Any:
            y, q = state
            q = q - 0.05 * slope(y)
            y = y + 0.1 * q
            return y, q - 0.05 * slope(y)

        y, q = m.fori_loop(0, 10, leap, (x, p))
        gain = energy(x) + (p**2).sum() / 2 - energy(y) - (q**2).sum() / 2
        x = m.where(m.log(chance) < gain, y, x)
        return x, x[:2]

    return m.scan(draw, x, (noise, chances))


def _gibbs(m: Any, noise: Any) -> Any:
    def step(y: Any, e: Any) -> Any:
        x = 0.8 * y + 0.6 * e[0]
        y = 0.8 * x + 0.6 * e[1]
        return y, (x, y)

    return m.scan(step, noise[0, 0] * 0, noise)[1]


def _pagerank(m: Any, links: Any) -> Any:
    def body(state: Any) -> Any:
        old, _, k = state
        new = 0.85 * m.dot(links, old) + 0.15 / 64
        return new, m.abs(new - old).sum(), k + 1

    more = lambda s: (s[1] > 1e-6) & (s[2] < 200)  # noqa: E731
    even = links[0] * 0 + 1 / 64
    return m.while_loop(more, body, (even, even.sum(), 0))[0]


# -- networks -------------------------------------------------------------------------------------


def _peepholes(m: Any, x: Any, w: Any, u: Any, p: Any) -> Any:
    sigmoid = lambda v: 1 / (1 + m.exp(-v))  # noqa: E731

    def step(state: Any, x: Any) -> Any:
        h, c = state
        gates = m.dot(x, w) + m.dot(h, u)
        i, f = sigmoid(gates[:, :16] + c * p[0]), sigmoid(gates[:, 16:32] + c * p[1])
        c = f * c + i * m.tanh(gates[:, 32:48])
        h = sigmoid(gates[:, 48:] + c * p[2]) * m.tanh(c)
        return (h, c), h

    zero = x[0, :, :1] * 0 + p[:1] * 0
    return m.scan(step, (zero, zero), x)[1]


def _peepholes_gradient(m: Any, x: Any, w: Any, u: Any, p: Any) -> Any:
    loss = lambda w, u, p: (_peepholes(m, x, w, u, p) ** 2).sum()  # noqa: E731
    return m.grad(loss, (0, 1, 2))(w, u, p)


def _hyper(m: Any, x: Any, maker: Any, h: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        h = m.tanh(m.dot(m.dot(x, maker).reshape((12, 12)), h))
        return h, h

    return m.scan(step, h, x)[1]


def _selective(m: Any, x: Any, a: Any, b: Any, c: Any) -> Any:
    def step(h: Any, given: Any) -> Any:
        x, b, c = given
        delta = m.log(1 + m.exp(x)).reshape((-1, 1))
        h = m.exp(-delta * m.exp(a)) * h + delta * x.reshape((-1, 1)) * b
        return h, m.dot(h, c)

    return m.scan(step, a * 0, (x, b, c))[1]


def _selective_gradient(m: Any, x: Any, a: Any, b: Any, c: Any) -> Any:
    return m.grad(lambda x, a: (_selective(m, x, a, b, c) ** 2).sum(), (0, 1))(x, a)


def _linear_attention(m: Any, q: Any, k: Any, v: Any) -> Any:
    def step(state: Any, given: Any) -> Any:
        s, z = state
        q, k, v = (m.exp(given[0]), m.exp(given[1]), given[2])
        s, z = s + k.reshape((-1, 1)) * v.reshape((1, -1)), z + k
        return (s, z), m.dot(q, s) / m.dot(q, z)

    s = q[0].reshape((-1, 1)) * 0 + v[0] * 0
    return m.scan(step, (s, q[0] * 0), (q, k, v))[1]


def _linear_attention_gradient(m: Any, q: Any, k: Any, v: Any) -> Any:
    loss = lambda q, k, v: (_linear_attention(m, q, k, v) ** 2).sum()  # noqa: E731
    return m.grad(loss, (0, 1, 2))(q, k, v)


# -- optimisation ---------------------------------------------------------------------------------


def _newton(m: Any, a: Any) -> Any:
    def body(state: Any) -> Any:
        v, k = state
        return v - (v**3 - a) / (3 * v**2), k + 1

    more = lambda s: (m.abs(s[0] ** 3 - a).max() > 1e-4) & (s[1] < 50)  # noqa: E731
    return m.while_loop(more, body, (a, 0))


def _k_means(m: Any, x: Any) -> Any:
    def body(_: Any, means: Any) -> Any:
        far = ((x.reshape((100, 1, 3)) - means.reshape((1, 5, 3))) ** 2).sum(2)
        near = m.eq(m.argmin(far, 1).reshape((-1, 1)), np.arange(5)).astype(x.dtype)
        return m.dot(near.T, x) / (near.sum(0).reshape((-1, 1)) + 1e-6)

    return m.fori_loop(0, 10, body, x[:5])


def _mixture(m: Any, x: Any) -> Any:
    def body(_: Any, state: Any) -> Any:
        means, spreads, shares = state
        apart = (x.reshape((80, 1, 2)) - means.reshape((1, 4, 2))) ** 2
        logs = m.log(shares) - 0.5 * (apart / spreads + m.log(spreads)).sum(2)
        r = m.softmax(logs, 1)
        n = r.sum(0).reshape((-1, 1))
        means = m.dot(r.T, x) / n
        apart = (x.reshape((80, 1, 2)) - means.reshape((1, 4, 2))) ** 2
        spreads = (r.reshape((80, 4, 1)) * apart).sum(0) / n + 1e-3
        return means, spreads, n.reshape((-1,)) / 80

    begin = (x[:4], x[:4] * 0 + 1, x[:4, 0] * 0 + 0.25)
    return m.fori_loop(0, 15, body, begin)


if __name__ == "__main__":
    sys.exit(main())
