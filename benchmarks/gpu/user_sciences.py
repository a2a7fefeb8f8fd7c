"""Programs of :mod:`user_varied`: simulations, chances, numbers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.cpu.nest import Nest
from benchmarks.gpu.user_names import floats, mask, row, whole

__all__ = ["rows"]


def rows(small: bool = False) -> Iterator[Nest]:
    """All rows, or the same in sizes for tests."""
    for family in (_fields, _particles, _chances, _numbers):
        yield from family(small)


# -- fields ---------------------------------------------------------------------------------------


def _around(N: Any, v: Any) -> Any:
    sides = [N.roll(v, (k,), (axis,)) for axis in (1, 2) for k in (1, -1)]
    return sum(sides) - 4 * v


def _spots(N: Any, u: Any, v: Any) -> Any:
    """Four steps of two substances that react and spread."""
    for _ in range(4):
        both = u * v * v
        u, v = (
            u + 0.16 * _around(N, u) - both + 0.035 * (1 - u),
            v + 0.08 * _around(N, v) + both - 0.095 * v,
        )
    return u, v


def _wave(N: Any, speed: Any, start: Any, goal: Any) -> Any:
    """How far eight steps of a wave end from a goal, and by its speeds."""
    past, now = start, start
    for _ in range(8):
        past, now = now, 2 * now - past + 0.2 * speed * speed * _around(N, now)
    return N.mean((now - goal) ** 2)


def _vortices(N: Any, w: Any, kx: Any, ky: Any) -> Any:
    """The change of a flow's vorticity, by Fourier transforms."""
    f = N.fft.rfft2(w)
    square = kx * kx + ky * ky
    psi = f / N.where(square > 0, square, 1.0)

    def back(v: Any) -> Any:
        return N.fft.irfft2(v)

    u, v = back(1j * ky * psi), back(-1j * kx * psi)
    return back(-1e-3 * square * f) - u * back(1j * kx * f) - v * back(1j * ky * f)


def _modes(N: Any, x: Any, a: Any, b: Any, w: Any) -> Any:
    """A layer of a Fourier neural operator: few modes are mixed, beside a product of channels."""
    k, n = N.dims(a)[2], N.dims(x)[2]
    f = N.fft.rfft(x)[:, :, :k]
    re, im = N.real(f), N.imag(f)

    def mixed(u: Any, v: Any) -> Any:
        return N.einsum("bik,iok->bok", u, v)

    f = (mixed(re, a) - mixed(im, b)) + 1j * (mixed(re, b) + mixed(im, a))
    h = N.fft.irfft(N.pad(f, ((0, 0), (0, 0), (0, n // 2 + 1 - k)))) + N.matmul(w, x)
    return N.mean((0.5 * h * (1 + N.erf(h * 0.70710678))) ** 2)


#: Directions of a lattice of nine velocities, and their weights.
_WAYS = [(0, 0), (1, 0), (0, 1), (-1, 0), (0, -1), (1, 1), (-1, 1), (-1, -1), (1, -1)]
_SHARES = [4 / 9] + [1 / 9] * 4 + [1 / 36] * 4


def _lattice(N: Any, f: Any) -> Any:
    """A step of a lattice Boltzmann method."""
    mass = N.sum(f, 0)
    u = (f[1] + f[5] + f[8] - f[3] - f[6] - f[7]) / mass
    v = (f[2] + f[5] + f[6] - f[4] - f[7] - f[8]) / mass
    moved = []
    for k, (a, b) in enumerate(_WAYS):
        along = 3.0 * (a * u + b * v)
        rest = mass * _SHARES[k] * (1 + along + 0.5 * along * along - 1.5 * (u * u + v * v))
        moved.append(N.roll(f[k] + 0.6 * (rest - f[k]), (a, b), (0, 1)))
    return N.stack(moved, 0)


def _fields(small: bool) -> Iterator[Nest]:
    n, h = (2, 12) if small else (8, 512)
    yield row("spots that spread", _spots, *(floats(n, h, h, low=0, seed=s) for s in (0, 2)))
    yield row("wave by its speed", _wave, *(floats(n, h, h, seed=s) for s in range(3)), wrt=1)
    x = np.fft.fftfreq(h, 1 / h).astype("float32")[:, None]
    y = np.fft.rfftfreq(h, 1 / h).astype("float32")[None, :]
    yield row("change of vortices", _vortices, floats(n, h, h), lambda: x, lambda: y)
    n, c, t, k = (2, 3, 16, 4) if small else (32, 64, 2048, 16)
    yield row(
        "modes mixed",
        _modes,
        floats(n, c, t),
        *(floats(c, c, k, low=-0.1, high=0.1, seed=s) for s in (1, 2)),
        floats(c, c, low=-0.1, high=0.1),
        wrt=4,
    )
    h = 10 if small else 1024
    yield row("step of a lattice", _lattice, floats(9, h, h, low=0.5))


# -- particles ------------------------------------------------------------------------------------


def _orbits(N: Any, x: Any, v: Any, mass: Any) -> Any:
    """Four leapfrog steps of bodies that attract each other."""

    def pull(x: Any) -> Any:
        d = x[None, :, :] - x[:, None, :]
        far = N.sum(d * d, 2) + 1e-2
        return N.sum((mass[None, :] * far**-1.5)[:, :, None] * d, 1)

    for _ in range(4):
        v = v + 0.005 * pull(x)
        x = x + 0.01 * v
        v = v + 0.005 * pull(x)
    return x, v


def _charges(N: Any, x: Any, q: Any, k: Any) -> Any:
    """The energy of charges: near pairs, and waves for what is far."""
    n = N.arange(N.dims(x)[0])
    d = x[:, None, :] - x[None, :, :]
    d = d - N.round(d)
    far = N.sqrt(N.sum(d * d, 2) + N.to_float(N.eq(n[:, None], n[None, :])))
    pairs = N.where(N.eq(n[:, None], n[None, :]), 0.0, N.erfc(4.0 * far) / far)
    near = 0.5 * N.sum(q[:, None] * q[None, :] * pairs)
    phase = 6.2831853 * N.matmul(x, k.T)
    re, im = N.matmul(q, N.cos(phase)), N.matmul(q, N.sin(phase))
    square = N.sum(k * k, 1)
    waves = N.sum(N.exp(-0.61685 * square) / square * (re * re + im * im))
    return near + waves / 6.2831853


def _followed(N: Any, w: Any, b: Any, u: Any, x: Any, times: Any) -> Any:
    """A neural differential equation by Runge and Kutta."""

    def slope(x: Any) -> Any:
        return N.matmul(N.tanh(N.matmul(x, w) + b), u)

    def step(x: Any, dt: Any) -> Any:
        k1 = slope(x)
        k2 = slope(x + 0.5 * dt * k1)
        k3 = slope(x + 0.5 * dt * k2)
        x = x + dt / 6.0 * (k1 + 2 * k2 + 2 * k3 + slope(x + dt * k3))
        return x, N.mean(x * x)

    last, norms = N.scan(step, x, times)
    return N.mean(last**2) + N.sum(norms)


def _spins(N: Any, s: Any, u: Any, v: Any) -> Any:
    """A sweep over spins on a board: the black ones, then the white."""
    h, w = N.dims(s)[1:]
    black = N.eq((N.arange(h)[:, None] + N.arange(w)[None, :]) % 2, 0)
    for now, draw in ((black, u), (~black, v)):
        near = _around(N, s) + 4 * s
        s = N.where(now & (draw < N.exp(-0.88 * s * near)), -s, s)
    return s, N.mean(s, (1, 2))


def _particles(small: bool) -> Iterator[Nest]:
    n = 12 if small else 2048
    yield row("orbits of bodies", _orbits, floats(n, 3), floats(n, 3, seed=2), floats(n, low=0))
    waves = whole(9, 20 if small else 500, 3, dtype="float32")
    yield row(
        "charges near and far", _charges, floats(n, 3), floats(n), lambda: waves() - 4.3, wrt=2
    )
    n, c, t = (5, 3, 4) if small else (4096, 64, 20)
    yield row(
        "equation followed",
        _followed,
        floats(c, 2 * c, low=-0.2, high=0.2),
        floats(2 * c),
        floats(2 * c, c, low=-0.2, high=0.2),
        floats(n, c),
        floats(t, low=0.05, high=0.1),
        wrt=3,
    )
    n, h = (2, 8) if small else (16, 512)
    spins = partial(np.where, mask(n, h, h)(), np.float32(1), np.float32(-1))
    yield row("sweep over spins", _spins, spins, *(floats(n, h, h, low=0, seed=s) for s in (0, 2)))


# -- chances --------------------------------------------------------------------------------------


def _process(N: Any, length: Any, size: Any, noise: Any, x: Any, y: Any) -> Any:
    """The marginal likelihood of Gaussian processes, by Cholesky's factors."""
    n = N.dims(x)[1]
    d = (x[:, :, None] - x[:, None, :]) / N.exp(length)
    k = N.exp(size - 0.5 * d * d) + (N.exp(noise) + 1e-3) * N.to_float(
        N.eq(N.arange(n)[:, None], N.arange(n)[None, :])
    )
    factor = N.linalg.cholesky(k)
    a = N.linalg.solve(k, y[:, :, None])[:, :, 0]
    logs = N.sum(N.log(N.diagonal(factor, 0, 1, 2)), 1)
    return N.mean(0.5 * N.sum(y * a, 1) + logs)


def _smoothed(N: Any, z: Any) -> Any:
    """Many noisy walks with speeds, filtered forwards."""

    def step(state: Any, now: Any) -> Any:
        x, v, a, b, c = state
        x, a, b, c = x + v, a + 2 * b + c + 0.01, b + c, c + 0.01
        gain, other = a / (a + 1.0), b / (a + 1.0)
        rest = now - x
        state = (
            x + gain * rest, v + other * rest, a - gain * a, b - gain * b, c - other * b,
        )  # fmt: skip
        return state, state[0]

    none = z[0] * 0
    return N.scan(step, (z[0], none, none + 1, none, none + 1), z)[1]


def _leapt(N: Any, w: Any, p: Any, x: Any, y: Any) -> Any:
    """Three leapfrog steps of Hamilton's dynamics for a regression, and the energies."""

    def energy(w: Any) -> Any:
        z = N.matmul(x, w.T)
        return N.sum(N.softplus(z) - y[:, None] * z, 0) + 0.5 * N.sum(w * w, 1)

    first = energy(w) + 0.5 * N.sum(p * p, 1)
    for _ in range(3):
        p = p - 0.0005 * N.slope(energy, w)
        w = w + 0.001 * p
        p = p - 0.0005 * N.slope(energy, w)
    return w, N.exp(N.minimum(first - energy(w) - 0.5 * N.sum(p * p, 1), 0.0))


def _option(N: Any, price: Any, vol: Any, rate: Any, e: Any) -> Any:
    """An Asian option's price and its sensitivities."""
    t = N.dims(e)[1]
    steps = (rate - 0.5 * vol * vol) / t + vol * e / t**0.5
    path = price * N.exp(N.cumsum(steps, 1))
    return N.mean(N.exp(-rate) * N.maximum(N.mean(path, 1) - 1.0, 0.0))


def _drawdown(N: Any, r: Any) -> Any:
    """Returns' largest falls, volatilities in windows of 20, and shares of a year."""
    value = N.exp(N.cumsum(r, 1))
    fall = value / N.cummax(value, 1) - 1
    c = N.cumsum(N.pad(r * r, ((0, 0), (1, 0))), 1)
    return N.min(fall, 1), N.sqrt((c[:, 20:] - c[:, :-20]) / 20.0), value[:, -1] - 1


def _chances(small: bool) -> Iterator[Nest]:
    b, n = (2, 6) if small else (64, 128)
    three = floats(low=-1, high=0), floats(low=-1, high=0), floats(low=-2, high=-1)
    points = floats(b, n, low=-3, high=3), floats(b, n)
    yield row("processes of Gauss", _process, *three, *points, wrt=3)
    t, n = (6, 5) if small else (100, 65536)
    yield row("noisy walks", _smoothed, floats(t, n))
    n, k, c = (9, 3, 4) if small else (4096, 256, 64)
    yield row(
        "leaps of chains",
        _leapt,
        floats(k, c),
        floats(k, c, seed=2),
        floats(n, c),
        floats(n, low=0),
    )
    n, t = (9, 6) if small else (1 << 17, 64)
    money = floats(low=0.9, high=1.1), floats(low=0.1, high=0.3), floats(low=0, high=0.1)
    yield row("price of an option", _option, *money, floats(n, t), wrt=3)
    n, t = (4, 30) if small else (8192, 1024)
    yield row("falls of prices", _drawdown, floats(n, t, low=-0.02, high=0.02))


# -- numbers --------------------------------------------------------------------------------------


def _conjugate(N: Any, value: Any, i: Any, j: Any, b: Any) -> Any:
    """Five steps of conjugate gradients with a sparse matrix by its places."""
    n = N.dims(b)[0]

    def times(x: Any) -> Any:
        half = N.segment_sum(value * x[j], i, n) + N.segment_sum(value * x[i], j, n)
        return half + 80.0 * x

    x, r = b * 0, b
    p, square = r, N.sum(r * r)
    for _ in range(5):
        q = times(p)
        a = square / N.sum(p * q)
        x, r = x + a * p, r - a * q
        now = N.sum(r * r)
        p, square = r + now / square * p, now
    return x, square


def _same_ranks(N: Any, x: Any) -> Any:
    """Columns with equal distributions: each number is the mean of its rank."""
    x = x.T
    order = N.argsort(x, 1)
    rank = N.argsort(order, 1)
    return N.mean(N.take_along(x, order, 1), 0)[rank].T


def _interpolated(N: Any, y: Any, knots: Any, x: Any) -> Any:
    k = N.clip(N.places(knots, x) - 1, 0, N.dims(knots)[0] - 2)
    part = (x - knots[k]) / (knots[k + 1] - knots[k])
    return N.mean((y[k] * (1 - part) + y[k + 1] * part) ** 2)


def _largest_kept(N: Any, x: Any, w: Any) -> Any:
    """The largest 32 of each row, which have gradients."""
    best, _ = N.topk(N.stop(x), 32)
    return N.mean((N.matmul(N.where(x >= best[:, -1:], x, 0.0), w)) ** 2)


def _middle(N: Any, x: Any) -> Any:
    """Medians of windows of 5."""
    n = N.dims(x)[1] - 4
    return N.sorted(N.stack([x[:, k : k + n] for k in range(5)], -1))[:, :, 2]


def _hamming(N: Any, x: Any, y: Any) -> Any:
    """Signs in bits, and in how many pairs differ."""
    bit = 2 ** N.arange(8)

    def packed(v: Any) -> Any:
        n = N.dims(v)[0]
        return N.sum(N.to_int(v > 0).reshape((n, -1, 8)) * bit, 2)

    apart = packed(x)[:, None, :] ^ packed(y)[None, :, :]
    return N.sum(sum((apart >> k) & 1 for k in range(8)), 2)


def _recurred(N: Any, c: Any, x: Any) -> Any:
    """A sum of Chebyshev's polynomials."""
    one, two = x * 0, x * 0
    for k in reversed(range(1, 12)):
        one, two = 2 * x * one - two + c[k], one
    return N.mean((x * one - two + c[0]) ** 2)


def _numbers(small: bool) -> Iterator[Nest]:
    n, k = (10, 30) if small else (1 << 18, 1 << 21)
    yield row(
        "conjugate gradients", _conjugate, floats(k), whole(n, k), whole(n, k, seed=2), floats(n)
    )
    n, k = (12, 4) if small else (16384, 256)
    yield row("columns of equal ranks", _same_ranks, floats(n, k))
    n, k = (20, 8) if small else (1 << 22, 1024)
    yield row(
        "values between knots", _interpolated, floats(k),
        partial(np.linspace, -1, 1, k, dtype="float32"), floats(n), wrt=1,
    )  # fmt: skip
    n, k = (4, 50) if small else (8192, 2048)
    yield row("largest of rows kept", _largest_kept, floats(n, k), floats(k, 64), wrt=2)
    n, k = (3, 12) if small else (2048, 4096)
    yield row("medians of windows", _middle, floats(n, k))
    n, k = (5, 16) if small else (2048, 256)
    yield row("bits that differ", _hamming, floats(n, k), floats(n, k, seed=2))
    yield row("sum of polynomials", _recurred, floats(12), floats(1 << (5 if small else 22)), wrt=2)
