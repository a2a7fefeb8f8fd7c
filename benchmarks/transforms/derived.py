"""Programs made of derivatives, beside JAX's: learning, inference, equations, optimisation.

    python -m benchmarks.transforms.derived --peers ../peers/bin/python --out derived-cpu.txt
    python -m benchmarks.transforms.derived --peers ../peers/bin/python --check

The rows run as those of :mod:`benchmarks.transforms.loops`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.cpu.nest import Nest, drawn
from benchmarks.gpu import rows as gpu_rows
from benchmarks.transforms.loops import row, scaled

__all__ = ["main", "rows"]


#: Calls that are made first: kernels of a plan, and loops of few steps, are compiled by then.
_WARM_CALLS = 1100


def rows() -> Iterator[Nest]:
    """All rows."""
    for family in (_of_examples, _inference, _equations, _optimisation):
        for each in family():
            yield replace(each, warm=_WARM_CALLS)


def main(argv: list[str] | None = None) -> int:
    """Time the rows on a device and print them."""
    return gpu_rows.main(argv, "benchmarks.transforms.derived", 90, rows())


def _of_examples() -> Iterator[Nest]:
    gru = drawn(32, 20, 8), scaled(0.2, 8, 48), scaled(0.2, 16, 48, seed=1)
    yield row("gradients of 32 examples of a GRU by scan", _gru_gradients, *gru)
    two = scaled(0.3, 10, 32), scaled(0.3, 32, 1, seed=1)
    yield row("clipped gradients of 128 examples", _clipped, *two, drawn(128, 10), drawn(128))
    yield row("tangent kernel of 64 examples", _tangent_kernel, *two, drawn(64, 10))
    tasks = drawn(16, 20, 10), drawn(16, 20, seed=3)
    yield row("MAML, 16 tasks of 3 steps", _maml, *two, *tasks)
    yield row("beam search step of 8 sentences", _beam_step, drawn(8, 4), drawn(8, 4, 500))


def _inference() -> Iterator[Nest]:
    yield row(
        "leapfrog by fori_loop, 20 of 8", _leapfrog, drawn(8), drawn(8, seed=1), drawn(100, 8)
    )
    kalman = drawn(128, 2), scaled(0.3, 4, 4), drawn(2, 4)
    yield row("Kalman filter by associative_scan, 128", _parallel_kalman, *kalman)
    yield row("Kalman likelihood and gradient", _kalman_gradient, *kalman)
    yield row("Gaussian process and gradient, 64", _process, drawn(64, 3), drawn(64), drawn(3))
    yield row("trace by 16 probes, network of 30", _hutchinson, *_field(), drawn(30), _signs)


def _equations() -> Iterator[Nest]:
    yield row("RK4 by while_loop and tangent", _rk4_tangent, drawn(12), *_field(12))
    yield row("RK4 by scan and gradient", _rk4_gradient, drawn(12), *_field(12))
    yield row("fixed point and its gradient, 32", _fixed_point, scaled(0.1, 32, 32), drawn(32))
    yield row("Laplacians of 100 points", _laplacians, scaled(0.5, 3, 32), drawn(32), drawn(100, 3))
    yield row("divergences of 64 points, 6", _divergences, *_field(6), drawn(64, 6))


def _optimisation() -> Iterator[Nest]:
    yield row("solve 64 of 16 and gradient", _solves, drawn(64, 16, 16), drawn(64, 16))
    fit = drawn(40, 5), drawn(40), drawn(5)
    yield row("Gauss-Newton by jvp and vjp, 5 of 40", _gauss_newton, *fit)
    yield row("Newton of 64 problems of 4", _newtons, drawn(64, 30, 4), drawn(64, 30), drawn(64, 4))
    yield row("Sinkhorn losses of 8 and gradient", _sinkhorns, drawn(8, 20, 2), drawn(8, 20, 2))
    yield row("conjugate gradients of hvp, 20", _newton_cg, drawn(100, 20), drawn(100), drawn(20))


# -- arrays ---------------------------------------------------------------------------------------


def _field(n: int = 30) -> tuple[Any, Any]:
    return scaled(0.3, n, n), scaled(0.3, n, n, seed=1)


def _signs() -> Any:
    return np.sign(np.random.default_rng(0).normal(size=(16, 30))).astype("float32")


# -- functions of examples ------------------------------------------------------------------------


def _gru_gradients(m: Any, x: Any, w: Any, u: Any) -> Any:
    def loss(w: Any, u: Any, x: Any) -> Any:
        def step(h: Any, v: Any) -> Any:
            a, b = m.dot(v, w), m.dot(h, u)
            z, r = m.sigmoid(a[:16] + b[:16]), m.sigmoid(a[16:32] + b[16:32])
            h = z * h + (1 - z) * m.tanh(a[32:] + r * b[32:])
            return h, None

        return (m.scan(step, u[:, 0] * 0, x)[0] ** 2).sum()

    return m.vmap(lambda x: m.grad(loss, (0, 1))(w, u, x))(x)


def _network(m: Any, w: Any, v: Any, x: Any) -> Any:
    return m.dot(m.tanh(m.dot(x, w)), v)[0]


def _clipped(m: Any, w: Any, v: Any, x: Any, y: Any) -> Any:
    """Gradients of a norm of at most 1, averaged."""

    def one(x: Any, y: Any) -> Any:
        a, b = m.grad(lambda w, v: (_network(m, w, v, x) - y) ** 2, (0, 1))(w, v)
        scale = m.minimum(1.0, 1 / m.sqrt((a**2).sum() + (b**2).sum()))
        return a * scale, b * scale

    a, b = m.vmap(one)(x, y)
    return a.mean(0), b.mean(0)


def _tangent_kernel(m: Any, w: Any, v: Any, x: Any) -> Any:
    a, b = m.vmap(lambda x: m.grad(lambda w, v: _network(m, w, v, x), (0, 1))(w, v))(x)
    a, b = a.reshape((64, -1)), b.reshape((64, -1))
    return m.dot(a, a.T) + m.dot(b, b.T)


def _maml(m: Any, w: Any, v: Any, x: Any, y: Any) -> Any:
    def loss(w: Any, v: Any, x: Any, y: Any) -> Any:
        return ((m.dot(m.tanh(m.dot(x, w)), v)[:, 0] - y) ** 2).mean()

    def task(w: Any, v: Any, x: Any, y: Any) -> Any:
        def body(_: Any, given: Any) -> Any:
            a, b = m.grad(loss, (0, 1))(*given, x[:10], y[:10])
            return given[0] - 0.1 * a, given[1] - 0.1 * b

        own = (w, v)
        for i in range(3):
            own = body(i, own)
        return loss(*own, x[10:], y[10:])

    mean = lambda w, v: m.vmap(lambda x, y: task(w, v, x, y))(x, y).mean()  # noqa: E731
    return m.grad(mean, (0, 1))(w, v)


def _beam_step(m: Any, score: Any, logits: Any) -> Any:
    def one(score: Any, logits: Any) -> Any:
        every = (score.reshape((-1, 1)) + logits - m.logsumexp(logits, 1).reshape((-1, 1))).ravel()
        best, at = m.top_k(every, 4)
        return best, at // 500, at % 500

    return m.vmap(one)(score, logits)


# -- inference ------------------------------------------------------------------------------------


def _leapfrog(m: Any, q: Any, p: Any, x: Any) -> Any:
    """Of a logistic regression."""
    slope = m.grad(lambda q: m.softplus(m.dot(x, q)).sum() + 0.5 * (q**2).sum())

    def body(_: Any, state: Any) -> Any:
        q, p = state
        p = p - 0.01 * slope(q)
        q = q + 0.02 * p
        return q, p - 0.01 * slope(q)

    return m.fori_loop(0, 20, body, (q, p))


def _parallel_kalman(m: Any, seen: Any, f: Any, h: Any) -> Any:
    """The filter's means by prefixes (Sarkka and Garcia-Fernandez, 2021)."""
    eye, own = np.eye(4, dtype="float32"), np.eye(2, dtype="float32")
    s_inverse = m.inv(m.dot(h, h.T) + own)
    gain = m.dot(h.T, s_inverse)
    a = m.dot(eye - m.dot(gain, h), f)
    backward = m.dot(m.dot(f.T, h.T), s_inverse)
    b, eta = m.dot(seen, gain.T), m.dot(seen, backward.T)
    ones = seen[:, :1].reshape((-1, 1, 1)) * 0 + 1
    a, c = ones * a, ones * (eye - m.dot(gain, h))
    j = ones * m.dot(backward, m.dot(h, f))

    def times(a: Any, v: Any) -> Any:
        return (a * v.reshape((-1, 1, 4))).sum(-1)

    def turned(a: Any) -> Any:
        return m.swapaxes(a, 1, 2)

    def together(x: Any, y: Any) -> Any:
        (a1, b1, c1, j1, e1), (a2, b2, c2, j2, e2) = x, y
        left = m.matmul(a2, m.inv(eye + m.matmul(c1, j2)))
        right = m.matmul(turned(a1), m.inv(eye + m.matmul(j2, c1)))
        return (
            m.matmul(left, a1),
            times(left, b1 + times(c1, e2)) + b2,
            m.matmul(m.matmul(left, c1), turned(a2)) + c2,
            m.matmul(m.matmul(right, j2), a1) + j1,
            times(right, e2 - times(j2, b1)) + e1,
        )

    return m.associative_scan(together, (a, b, c, j, eta))[1]


def _kalman_gradient(m: Any, seen: Any, f: Any, h: Any) -> Any:
    eye, own = np.eye(4, dtype="float32"), np.eye(2, dtype="float32")

    def likelihood(f: Any, h: Any) -> Any:
        def step(state: Any, y: Any) -> Any:
            x, p = state
            x, p = m.dot(f, x), m.dot(m.dot(f, p), f.T) + eye
            s = m.dot(m.dot(h, p), h.T) + own
            off = y - m.dot(h, x)
            gain = m.solve(s, m.dot(h, p)).T
            loss = m.dot(off, m.solve(s, off)) + m.slogdet(s)[1]
            return (x + m.dot(gain, off), p - m.dot(m.dot(gain, h), p)), loss

        return m.scan(step, (f[0] * 0, f * 0 + eye), seen)[1].sum() / 2

    return m.grad(likelihood, (0, 1))(f, h)


def _process(m: Any, x: Any, y: Any, logs: Any) -> Any:
    """Minus the log likelihood of a Gaussian process, and its gradient."""

    def loss(logs: Any) -> Any:
        z = x * m.exp(logs)
        square = (z**2).sum(1)
        away = square.reshape((-1, 1)) + square - 2 * m.dot(z, z.T)
        root = m.cholesky(m.exp(-0.5 * away) + 0.1 * np.eye(64, dtype="float32"))
        half = m.solve_lower(root, y)
        return 0.5 * m.dot(half, half) + m.log(m.diag(root)).sum()

    return m.value_and_grad(loss)(logs)


def _moved(m: Any, w: Any, u: Any, x: Any) -> Any:
    """A vector field."""
    return m.dot(u, m.tanh(m.dot(w, x)))


def _hutchinson(m: Any, w: Any, u: Any, x: Any, probes: Any) -> Any:
    of = lambda v: m.dot(v, m.jvp(lambda x: _moved(m, w, u, x), (x,), (v,))[1])  # noqa: E731
    return m.vmap(of)(probes).mean()


# -- equations ------------------------------------------------------------------------------------


def _rk4(m: Any, w: Any, u: Any, x: Any) -> Any:
    a = _moved(m, w, u, x)
    b = _moved(m, w, u, x + 0.05 * a)
    c = _moved(m, w, u, x + 0.05 * b)
    return x + 0.1 / 6 * (a + 2 * b + 2 * c + _moved(m, w, u, x + 0.1 * c))


def _rk4_tangent(m: Any, x: Any, w: Any, u: Any) -> Any:
    def end(x: Any) -> Any:
        more = lambda s: s[1] < 50  # noqa: E731
        return m.while_loop(more, lambda s: (_rk4(m, w, u, s[0]), s[1] + 1), (x, 0))[0]

    return m.jvp(end, (x,), (w[0],))


def _rk4_gradient(m: Any, x: Any, w: Any, u: Any) -> Any:
    def loss(x: Any, w: Any, u: Any) -> Any:
        return (m.scan(lambda x, _: (_rk4(m, w, u, x),) * 2, x, None, length=50)[1] ** 2).sum()

    return m.grad(loss, (0, 1, 2))(x, w, u)


def _fixed_point(m: Any, w: Any, b: Any) -> Any:
    """An equilibrium, with the gradient of the implicit function."""
    step = lambda w, b, z: m.tanh(m.dot(w, z) + b)  # noqa: E731

    def repeated(f: Any, z: Any) -> Any:
        return m.fori_loop(0, 30, lambda _, z: f(z), z)

    def pulled(w: Any, b: Any, z: Any, g: Any) -> Any:
        back = m.vjp(lambda z: step(w, b, z), z)[1]
        u = repeated(lambda u: g + back(u)[0], g)
        return m.vjp(lambda w, b: step(w, b, z), w, b)[1](u)

    found = m.with_gradient(lambda w, b: repeated(lambda z: step(w, b, z), b * 0), pulled)
    return m.grad(lambda w, b: (found(w, b) ** 2).sum(), (0, 1))(w, b)


def _laplacians(m: Any, w: Any, v: Any, x: Any) -> Any:
    u = lambda x: m.dot(v, m.tanh(m.dot(x, w)))  # noqa: E731
    return m.vmap(lambda x: m.trace(m.hessian(u)(x)))(x)


def _divergences(m: Any, w: Any, u: Any, x: Any) -> Any:
    return m.vmap(lambda x: m.trace(m.jacobian(lambda x: _moved(m, w, u, x))(x)))(x)


# -- optimisation ---------------------------------------------------------------------------------


def _solves(m: Any, a: Any, b: Any) -> Any:
    wide = 8 * np.eye(16, dtype="float32")
    loss = lambda a, b: (m.vmap(m.solve)(a + wide, b) ** 2).sum()  # noqa: E731
    return m.grad(loss, (0, 1))(a, b)


def _gauss_newton(m: Any, x: Any, y: Any, p: Any) -> Any:
    """Five steps, whose equations are solved by five steps of conjugate gradients."""

    def residual(p: Any) -> Any:
        return m.tanh(m.dot(x, p)) - y

    def body(_: Any, p: Any) -> Any:
        r, back = m.vjp(residual, p)
        push = lambda v: back(m.jvp(residual, (p,), (v,))[1])[0] + 0.1 * v  # noqa: E731
        return p - _conjugate(m, push, back(r)[0], 5)

    return m.fori_loop(0, 5, body, p)


def _conjugate(m: Any, product: Any, b: Any, steps: int) -> Any:
    def body(_: Any, state: Any) -> Any:
        x, r, d, size = state
        ad = product(d)
        step = size / m.dot(d, ad)
        r = r - step * ad
        new = m.dot(r, r)
        return x + step * d, r, r + new / size * d, new

    return m.fori_loop(0, steps, body, (b * 0, b, b, m.dot(b, b)))[0]


def _newtons(m: Any, x: Any, y: Any, p: Any) -> Any:
    """Three steps of a ridge regression by Huber's loss, for each problem."""

    def loss(p: Any, x: Any, y: Any) -> Any:
        return m.sqrt(1 + (m.dot(x, p) - y) ** 2).sum() + 0.5 * (p**2).sum()

    def one(p: Any, x: Any, y: Any) -> Any:
        for _ in range(3):
            p = p - m.solve(m.hessian(loss)(p, x, y), m.grad(loss)(p, x, y))
        return p

    return m.vmap(one)(p, x, y)


def _sinkhorns(m: Any, a: Any, b: Any) -> Any:
    def loss(a: Any, b: Any) -> Any:
        costs = ((a.reshape((20, 1, 2)) - b.reshape((1, 20, 2))) ** 2).sum(-1)

        def body(state: Any, _: Any) -> Any:
            f, g = state
            f = -m.logsumexp(g.reshape((1, -1)) - costs, 1)
            return (f, -m.logsumexp(f.reshape((-1, 1)) - costs, 0)), None

        f, g = m.scan(body, (costs[:, 0] * 0, costs[0] * 0), None, length=20)[0]
        return (m.exp(f.reshape((-1, 1)) + g.reshape((1, -1)) - costs) * costs).sum()

    return m.grad(lambda a: m.vmap(loss)(a, b + 0.5).sum())(a)


def _newton_cg(m: Any, x: Any, y: Any, p: Any) -> Any:
    """A Newton step of a logistic regression by products with its Hessian."""
    slope = m.grad(
        lambda p: (m.softplus(m.dot(x, p)) - y * m.dot(x, p)).mean() + 0.05 * (p**2).sum()
    )
    return p - _conjugate(m, lambda v: m.jvp(slope, (p,), (v,))[1], slope(p), 15)


if __name__ == "__main__":
    sys.exit(main())
