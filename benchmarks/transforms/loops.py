"""Programs with loops beside JAX's, written as a user writes them, by the same functions.

    python -m benchmarks.transforms.loops --peers ../peers/bin/python --out loops-cpu.txt
    python -m benchmarks.transforms.loops --device cuda --out loops-h200.txt

The rows run as those of :mod:`benchmarks.cpu.nest`, on a GPU as those of
:mod:`benchmarks.gpu.rows`, which compares the numbers first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.cpu.nest import LazyModule, Nest, T, drawn, jax, jnp, symdnn
from benchmarks.gpu import rows as gpu_rows

__all__ = ["main", "row", "rows", "scaled"]

control, lax = LazyModule("symdnn.control"), LazyModule("jax.lax")
#: Names that both libraries have at their top.
_DERIVATIVES = ("grad", "value_and_grad", "vmap", "jvp", "vjp", "hessian")


class _Symdnn:
    """What the programs use, of symdnn."""

    def __getattr__(self, name: str) -> Any:
        if name in _DERIVATIVES:
            return getattr(symdnn, name)
        found = getattr(control, name, None)
        return getattr(T, name) if found is None else found

    def logsumexp(self, v: Any, axis: int) -> Any:
        """The logarithm of a sum of exponentials."""
        return T.logsumexp(v, axis=axis)

    def softmax(self, v: Any, axis: int) -> Any:
        """Exponentials over their sum."""
        return T.nnet.softmax(v, axis)

    def eq(self, a: Any, b: Any) -> Any:
        """Where elements are equal."""
        return T.eq(a, b)

    def put(self, v: Any, key: Any, new: Any) -> Any:
        """``v`` with a part in place of the one at ``key``."""
        return T.set_subtensor(v[key], new)

    def solve(self, a: Any, b: Any) -> Any:
        """The solution of ``a x = b``."""
        return T.linalg.solve(a, b)

    def qr(self, a: Any) -> Any:
        """Orthonormal columns."""
        return T.linalg.qr(a)[0]

    def inv(self, a: Any) -> Any:
        """The inverse."""
        return T.linalg.inv(a)

    def cholesky(self, a: Any) -> Any:
        """The lower factor."""
        return T.linalg.cholesky(a)

    def slogdet(self, a: Any) -> Any:
        """Sign and logarithm of the determinant."""
        return T.linalg.slogdet(a)

    def solve_lower(self, a: Any, b: Any) -> Any:
        """The solution of ``a x = b``, ``a`` lower triangular."""
        return T.linalg.solve_triangular(a, b, lower=True)

    def sigmoid(self, v: Any) -> Any:
        """The logistic function."""
        return T.sigmoid(v)

    def softplus(self, v: Any) -> Any:
        """log(1 + exp(v))."""
        return T.softplus(v)

    def top_k(self, v: Any, k: int) -> Any:
        """The largest numbers, and where they are."""
        return T.topk_and_argtopk(v, k)

    def jacobian(self, f: Any) -> Any:
        """All derivatives."""
        return symdnn.jacobian(f)

    def with_gradient(self, f: Any, pulled: Any) -> Any:
        """``f``, with ``pulled(*args, result, cotangent)`` as its gradient."""

        def both(*args: Any) -> Any:
            found = f(*args)
            return found, lambda g: pulled(*args, found, g)

        return symdnn.custom_gradient(both)


class _Jax:
    """What the programs use, of JAX."""

    def __getattr__(self, name: str) -> Any:
        if name in _DERIVATIVES:
            return getattr(jax, name)
        of_lax = ("scan", "while_loop", "fori_loop", "cond", "associative_scan", "top_k")
        return getattr(lax if name in of_lax else jnp, name)

    def logsumexp(self, v: Any, axis: int) -> Any:
        """The logarithm of a sum of exponentials."""
        return jax.scipy.special.logsumexp(v, axis=axis)

    def softmax(self, v: Any, axis: int) -> Any:
        """Exponentials over their sum."""
        return jax.nn.softmax(v, axis)

    def eq(self, a: Any, b: Any) -> Any:
        """Where elements are equal."""
        return jnp.equal(a, b)

    def put(self, v: Any, key: Any, new: Any) -> Any:
        """``v`` with a part in place of the one at ``key``."""
        return v.at[key].set(new)

    def solve(self, a: Any, b: Any) -> Any:
        """The solution of ``a x = b``."""
        return jnp.linalg.solve(a, b)

    def qr(self, a: Any) -> Any:
        """Orthonormal columns."""
        return jnp.linalg.qr(a)[0]

    def inv(self, a: Any) -> Any:
        """The inverse."""
        return jnp.linalg.inv(a)

    def cholesky(self, a: Any) -> Any:
        """The lower factor."""
        return jnp.linalg.cholesky(a)

    def slogdet(self, a: Any) -> Any:
        """Sign and logarithm of the determinant."""
        return jnp.linalg.slogdet(a)

    def solve_lower(self, a: Any, b: Any) -> Any:
        """The solution of ``a x = b``, ``a`` lower triangular."""
        return jax.scipy.linalg.solve_triangular(a, b, lower=True)

    def sigmoid(self, v: Any) -> Any:
        """The logistic function."""
        return jax.nn.sigmoid(v)

    def softplus(self, v: Any) -> Any:
        """log(1 + exp(v))."""
        return jax.nn.softplus(v)

    def jacobian(self, f: Any) -> Any:
        """All derivatives."""
        return jax.jacfwd(f)

    def with_gradient(self, f: Any, pulled: Any) -> Any:
        """``f``, with ``pulled(*args, result, cotangent)`` as its gradient."""

        def forward(*args: Any) -> Any:
            found = f(*args)
            return found, (*args, found)

        made = jax.custom_vjp(f)
        made.defvjp(forward, lambda kept, g: pulled(*kept, g))
        return made


_OURS, _JAX = _Symdnn(), _Jax()
Program = Callable[..., Any]


def row(name: str, program: Program, *arrays: Callable[[], Any]) -> Nest:
    """A row of one program for both libraries; ``program`` takes one of them first."""
    return Nest(
        f"loop {name}", arrays,
        lambda *v: program(_OURS, *v), jax=lambda *v: program(_JAX, *v), warm=60,
    )  # fmt: skip


def rows() -> Iterator[Nest]:
    """All rows."""
    for n in (20, 100):
        yield row(f"conjugate gradients {n}", _conjugate_gradients, _definite(n), drawn(n))
    em, tr = drawn(50, 16), drawn(16, 16, seed=1)
    yield row("CRF and gradient 50 steps, 16 states", _crf_gradient, em, tr)
    many = drawn(32, 50, 16)
    yield row("CRF and gradient of 32 sequences", _crf_of_many_gradient, many, tr)
    yield row("wave equation 200 steps, 64x64", _wave, drawn(64, 64), drawn(64, 64, seed=1))
    yield row("wave equation by parts 200 steps", _wave_parts, drawn(66, 66), drawn(66, 66, seed=1))
    yield row("Black-Scholes 1000 steps of 201", _black_scholes, _prices)
    yield row("Black-Scholes paths and gradient", _paths_gradient, drawn(2000, 50))
    cores, places = scaled(0.3, 40, 8, 4, 8), _places
    yield row("tensor train 40 cores, 100 entries", _tensor_train, cores, places)
    yield row("tensor train and gradient", _tensor_train_gradient, cores, places)
    yield row("power iteration 100 steps, 64", _power, _definite(64), drawn(64))
    yield row("Kalman filter 100 steps", _kalman, drawn(100, 4), scaled(0.3, 4, 4), drawn(2, 4))
    yield row("solutions 30 steps, 12", _solutions, scaled(0.1, 30, 12, 12), drawn(12))
    yield row("sorts 50 steps, 64", _sorts, drawn(50, 64))
    yield row("QR 20 steps, 16x8", _orthonormal, drawn(20, 16, 8))
    yield row("complex recurrence 1000 steps", _complex, _turns, _turns)
    yield row("fori_loop 3 steps, 128", _short, drawn(128))
    yield row("while_loop of a number", _root, lambda: np.array(2, "float32"))


def main(argv: list[str] | None = None) -> int:
    """Time the rows on a device and print them."""
    return gpu_rows.main(argv, "benchmarks.transforms.loops", 90, rows())


# -- arrays ---------------------------------------------------------------------------------------


def scaled(scale: float, *shape: int, seed: int = 0) -> Callable[[], Any]:
    """Normal numbers of this scale."""
    return lambda: (drawn(*shape, seed=seed)() * scale).astype("float32")


def _definite(n: int) -> Callable[[], Any]:
    def make() -> Any:
        a = drawn(n, n)()
        return (a @ a.T / n + np.eye(n)).astype("float32")

    return make


def _places() -> Any:
    return np.random.default_rng(1).integers(0, 4, (100, 40))


def _prices() -> Any:
    return np.linspace(0, 200, 201).astype("float32")


def _turns() -> Any:
    rng = np.random.default_rng(0)
    return (np.exp(1j * rng.normal(size=1000)) * 0.9).astype("complex64")


# -- programs -------------------------------------------------------------------------------------


def _conjugate_gradients(m: Any, a: Any, b: Any) -> Any:
    def body(state: Any) -> Any:
        x, r, p, size, k = state
        ap = m.dot(a, p)
        step = size / m.dot(p, ap)
        r = r - step * ap
        new = m.dot(r, r)
        return x + step * p, r, r + (new / size) * p, new, k + 1

    more = lambda state: (state[3] > 1e-8) & (state[4] < 200)  # noqa: E731
    return m.while_loop(more, body, (b * 0, b, b, m.dot(b, b), 0))[0]


def _crf(m: Any, em: Any, tr: Any) -> Any:
    """The logarithm of the sum over all labels."""

    def step(a: Any, e: Any) -> Any:
        return m.logsumexp(a.reshape((-1, 1)) + tr, 0) + e, None

    return m.logsumexp(m.scan(step, em[0], em[1:])[0], 0)


def _crf_gradient(m: Any, em: Any, tr: Any) -> Any:
    return m.grad(lambda tr: _crf(m, em, tr))(tr)


def _crf_of_many_gradient(m: Any, em: Any, tr: Any) -> Any:
    return m.grad(lambda tr: m.vmap(lambda e: _crf(m, e, tr))(em).sum())(tr)


def _wave(m: Any, u: Any, v: Any) -> Any:
    def body(_: Any, state: Any) -> Any:
        u, v = state
        around = m.roll(u, 1, 0) + m.roll(u, -1, 0) + m.roll(u, 1, 1) + m.roll(u, -1, 1)
        v = v + 0.1 * (around - 4 * u)
        return u + 0.1 * v, v

    return m.fori_loop(0, 200, body, (u, v))[0]


def _wave_parts(m: Any, u: Any, v: Any) -> Any:
    inner = slice(1, -1), slice(1, -1)

    def body(_: Any, state: Any) -> Any:
        u, v = state
        around = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
        v = m.put(v, inner, v[inner] + 0.1 * (around - 4 * u[inner]))
        return m.put(u, inner, u[inner] + 0.1 * v[inner]), v

    return m.fori_loop(0, 200, body, (u, v))[0]


def _black_scholes(m: Any, prices: Any) -> Any:
    i = np.arange(1, 200).astype("float32")
    spread, drift = 0.04 * i * i / 5000, 0.05 * i / 5000
    a, b, c = (spread - drift) / 2, 1 - spread - 0.05 / 5000, (spread + drift) / 2
    a, b, c = (v.astype("float32") for v in (a, b, c))

    def body(_: Any, v: Any) -> Any:
        return m.concatenate([v[:1] * 0, a * v[:-2] + b * v[1:-1] + c * v[2:], v[-1:]])

    return m.fori_loop(0, 1000, body, m.maximum(prices - 100, 0))


def _paths_gradient(m: Any, z: Any) -> Any:
    def price(first: Any) -> Any:
        step = lambda x, e: (x * m.exp(0.0004 + 0.003 * e), None)  # noqa: E731
        return m.maximum(m.scan(step, first, z.T)[0] - 1.0, 0).mean()

    return m.grad(price)(z[:, 0] * 0 + 1)


def _tensor_train(m: Any, cores: Any, places: Any) -> Any:
    def one(own: Any) -> Any:
        step = lambda v, given: (m.dot(v, given[0][:, given[1], :]), None)  # noqa: E731
        return m.scan(step, cores[0, :, 0, 0] * 0 + 1, (cores, own))[0].sum()

    return m.vmap(one)(places)


def _tensor_train_gradient(m: Any, cores: Any, places: Any) -> Any:
    return m.grad(lambda c: (_tensor_train(m, c, places) ** 2).sum())(cores)


def _power(m: Any, a: Any, v: Any) -> Any:
    def body(_: Any, v: Any) -> Any:
        w = m.dot(a, v)
        return w / m.sqrt(m.dot(w, w))

    return m.fori_loop(0, 100, body, v)


def _kalman(m: Any, seen: Any, f: Any, h: Any) -> Any:
    def step(state: Any, y: Any) -> Any:
        x, p = state
        x, p = m.dot(f, x), m.dot(m.dot(f, p), f.T) + np.eye(4, dtype="float32")
        s = m.dot(m.dot(h, p), h.T) + np.eye(2, dtype="float32")
        gain = m.solve(s, m.dot(h, p)).T
        x = x + m.dot(gain, y[:2] - m.dot(h, x))
        return (x, p - m.dot(m.dot(gain, h), p)), x

    return m.scan(step, (f[0] * 0, f * 0 + np.eye(4, dtype="float32")), seen)[1]


def _solutions(m: Any, a: Any, b: Any) -> Any:
    wide = np.eye(12, dtype="float32") * 8
    return m.scan(lambda c, v: (m.solve(v + wide, c + b), None), b, a)[0]


def _sorts(m: Any, x: Any) -> Any:
    def step(c: Any, v: Any) -> Any:
        c = m.sort(c * 0.5 + v)
        return c, c[:3]

    return m.scan(step, x[0], x)[1]


def _orthonormal(m: Any, x: Any) -> Any:
    return m.scan(lambda c, v: (m.qr(c + v), None), x[0], x)[0]


def _complex(m: Any, a: Any, b: Any) -> Any:
    def step(c: Any, given: Any) -> Any:
        c = c * given[0] + given[1]
        return c, m.real(c)

    return m.scan(step, b[0], (a, b))[1]


def _short(m: Any, x: Any) -> Any:
    return m.fori_loop(0, 3, lambda i, v: v * 0.5 + 1, x)


def _root(m: Any, a: Any) -> Any:
    return m.while_loop(lambda v: m.abs(v * v - a) > 1e-6 * a, lambda v: (v + a / v) * 0.5, a)


if __name__ == "__main__":
    sys.exit(main())
