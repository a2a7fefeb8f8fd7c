"""Programs of :mod:`user_varied`: older models, generative ones, steps of training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.cpu.nest import Nest
from benchmarks.gpu.user_names import floats, mask, row, whole

__all__ = ["rows"]


def rows(small: bool = False) -> Iterator[Nest]:
    """All rows, or the same in sizes for tests."""
    for family in (_older, _generated, _trained):
        yield from family(small)


# -- older models ---------------------------------------------------------------------------------


def _restricted(N: Any, w: Any, a: Any, b: Any, x: Any, *draws: Any) -> Any:
    """Updates of a restricted Boltzmann machine by two steps of a chain."""
    n, q = N.dims(x)[0], N.sigmoid(N.matmul(x, w) + b)
    first = q
    for k in (0, 2):
        h = N.ceil(q - draws[k])
        v = N.ceil(N.sigmoid(N.matmul(h, w.T) + a) - draws[k + 1])
        q = N.sigmoid(N.matmul(v, w) + b)
    slopes = (N.matmul(x.T, first) - N.matmul(v.T, q)) / n, N.mean(x - v, 0), N.mean(first - q, 0)
    return tuple(p + 0.1 * s for p, s in zip((w, a, b), slopes))


def _denoised(N: Any, w: Any, b: Any, c: Any, x: Any, m: Any) -> Any:
    h = N.sigmoid(N.matmul(N.where(m, x, 0.0), w) + b)
    z = N.matmul(h, w.T) + c
    return N.mean(N.sum(N.softplus(z) - x * z, 1))


def _words(N: Any, table: Any, other: Any, i: Any, j: Any, wrong: Any) -> Any:
    """Word vectors by negative samples."""
    v = table[i]
    near = N.sum(v * other[j], 1)
    far = N.matmul(other[wrong], v[:, :, None])[:, :, 0]
    return N.mean(N.softplus(-near) + N.sum(N.softplus(far), 1))


def _maxout(N: Any, w: Any, b: Any, u: Any, x: Any, m: Any, y: Any) -> Any:
    n = N.dims(x)[0]
    h = N.max((N.matmul(N.where(m, x, 0.0) * 1.25, w) + b).reshape((n, -1, 5)), 2)
    return -N.mean(N.take_along(N.log_softmax(N.matmul(h, u), 1), y[:, None], 1))


def _peepholes(N: Any, w: Any, p: Any, x: Any) -> Any:
    """A layer of LSTM whose gates see the cell."""
    c = N.dims(w)[0]
    none = x[0, :, :c] * 0

    def step(state: Any, now: Any) -> Any:
        h, cell = state
        z = now + N.matmul(h, w)
        i = N.sigmoid(z[:, :c] + p[0] * cell)
        f = N.sigmoid(z[:, c : 2 * c] + p[1] * cell)
        cell = f * cell + i * N.tanh(z[:, 2 * c : 3 * c])
        h = N.sigmoid(z[:, 3 * c :] + p[2] * cell) * N.tanh(cell)
        return (h, cell), h

    _, found = N.scan(step, (none, none), x)
    return N.mean(found**2)


def _estimated(N: Any, w: Any, v: Any, b: Any, c: Any, x: Any) -> Any:
    """The likelihood of pixels one after the other (NADE)."""
    d = N.dims(x)[1]
    past = N.cumsum(x[:, :, None] * w[None], 1) - x[:, :, None] * w[None]
    z = N.sum(N.sigmoid(past + c) * v[None], 2) + b
    return N.mean(N.sum(N.softplus(z) - x * z, 1)) / d


def _addressed(N: Any, memory: Any, key: Any, last: Any, raw: Any, new: Any) -> Any:
    """Reading and writing of a neural Turing machine."""
    norms = N.sqrt(N.sum(memory * memory, 2) * N.sum(key * key, 1)[:, None] + 1e-6)
    near = N.matmul(memory, key[:, :, None])[:, :, 0] / norms
    w = N.softmax(N.softplus(raw[:, 0:1]) * near, 1)
    gate = N.sigmoid(raw[:, 1:2])
    w = gate * w + (1 - gate) * last
    s = N.softmax(raw[:, 2:5], 1)
    w = sum(s[:, k : k + 1] * N.roll(w, (k - 1,), (1,)) for k in range(3))
    w = (w + 1e-6) ** (1 + N.softplus(raw[:, 5:6]))
    w = w / N.sum(w, 1, True)
    memory = memory * (1 - w[:, :, None] * N.sigmoid(new)[:, None]) + w[:, :, None] * new[:, None]
    return N.mean(N.sum(w[:, :, None] * memory, 1) ** 2)


def _older(small: bool) -> Iterator[Nest]:
    n, v, h = (6, 5, 4) if small else (4096, 784, 512)
    draws = [floats(n, k, low=0, seed=s) for s, k in enumerate((h, v, h, v))]
    table = floats(v, h, low=-0.1, high=0.1), floats(v), floats(h)
    pixels = floats(n, v, low=0)
    yield row("restricted machine", _restricted, *table, pixels, *draws)
    sides = table[0], table[2], table[1]
    yield row("denoised pixels", _denoised, *sides, pixels, mask(n, v), wrt=3)
    n, words, c = (6, 20, 4) if small else (16384, 50000, 128)
    yield row(
        "vectors of words",
        _words,
        floats(words, c),
        floats(words, c, seed=2),
        whole(words, n),
        whole(words, n, seed=2),
        whole(words, n, 10, seed=3),
        wrt=2,
    )
    n, c, h = (6, 5, 10) if small else (8192, 784, 1200)
    yield row(
        "largest of five",
        _maxout,
        floats(c, h, low=-0.1, high=0.1),
        floats(h),
        floats(h // 5, 10),
        floats(n, c),
        mask(n, c),
        whole(10, n),
        wrt=3,
    )
    t, n, c = (4, 3, 4) if small else (64, 128, 512)
    yield row(
        "gates that see cells",
        _peepholes,
        floats(c, 4 * c, low=-0.1, high=0.1),
        floats(3, c),
        floats(t, n, 4 * c),
        wrt=2,
    )
    n, d, h = (4, 6, 5) if small else (64, 784, 128)
    sizes = (d, h), (d, h), (d,), (h,)
    nade = [floats(*k, low=-0.1, high=0.1, seed=s) for s, k in enumerate(sizes)]
    yield row("pixels one by one", _estimated, *nade, floats(n, d, low=0), wrt=4)
    n, t, c = (3, 6, 4) if small else (512, 256, 64)
    yield row(
        "memory addressed",
        _addressed,
        floats(n, t, c),
        floats(n, c),
        floats(n, t, low=0, high=2 / t),
        floats(n, 6),
        floats(n, c, seed=2),
        wrt=5,
    )


# -- generative models ----------------------------------------------------------------------------


def _codebook(N: Any, x: Any, code: Any, w: Any) -> Any:
    """Nearest codes, straight through, with losses of both sides."""
    far = N.sum(code * code, 1)[None, :] - 2 * N.matmul(x, code.T)
    q = code[N.argmin(N.stop(far), 1)]
    through = x + N.stop(q - x)
    loss = N.mean((N.stop(x) - q) ** 2) + 0.25 * N.mean((x - N.stop(q)) ** 2)
    return loss + N.mean((N.matmul(through, w) - x) ** 2)


def _splines(N: Any, x: Any, raw: Any, tall: Any, slope: Any) -> Any:
    """Monotone splines of eight parts: what they give, and the logarithm of their slopes."""

    def ends(v: Any) -> Any:
        v = N.cumsum(0.01 + 0.92 * N.softmax(v, 2), 2)
        return N.pad(v, ((0, 0), (0, 0), (1, 0)))

    wide, high, d = ends(raw), ends(tall), 0.01 + N.softplus(slope)
    k = N.sum(N.to_int(x[:, :, None] >= wide[:, :, 1:8]), 2)[:, :, None]

    def at(v: Any, k: Any) -> Any:
        return N.take_along(v, k, 2)[:, :, 0]

    x0, y0, d0, d1 = at(wide, k), at(high, k), at(d, k), at(d, k + 1)
    w, h = at(wide, k + 1) - x0, at(high, k + 1) - y0
    s, t = h / w, (x - x0) / w
    u = t * (1 - t)
    below = s + (d0 + d1 - 2 * s) * u
    y = y0 + h * (s * t * t + d0 * u) / below
    logs = 2 * N.log(s) + N.log(d1 * t * t + 2 * s * u + d0 * (1 - t) ** 2) - 2 * N.log(below)
    return N.mean(y * y) - N.mean(N.sum(logs, 1))


def _scores(N: Any, w: Any, u: Any, v: Any, x: Any, e: Any) -> Any:
    """Sliced score matching: a second derivative along random directions."""

    def score(x: Any) -> Any:
        return N.matmul(N.softplus(N.matmul(N.softplus(N.matmul(x, w)), u)), v)

    along = N.slope(lambda x: N.sum(score(x) * e, 1), x)
    own = score(x)
    return N.mean(N.sum(along * e, 1) + 0.5 * N.sum(own * own, 1))


def _consistent(N: Any, w: Any, u: Any, x: Any, e: Any, draw: Any) -> Any:
    """A denoiser with scaled inputs, outputs and weights (EDM)."""
    sigma = N.exp(1.2 * draw - 1.2)[:, None]
    root = N.sqrt(sigma * sigma + 0.25)
    y = x + sigma * e
    h = N.matmul(y / root, w) + N.log(sigma) / 4
    out = 0.25 / (root * root) * y + 0.5 * sigma / root * N.matmul(h * N.sigmoid(h), u)
    return N.mean((root / (0.5 * sigma)) ** 2 * (out - x) ** 2)


def _generated(small: bool) -> Iterator[Nest]:
    n, k, c = (9, 5, 4) if small else (16384, 1024, 64)
    yield row("book of codes", _codebook, floats(n, c), floats(k, c, seed=2), floats(c, c), wrt=3)
    n, c = (5, 3) if small else (16384, 16)
    yield row(
        "splines of a flow",
        _splines,
        floats(n, c, low=0),
        floats(n, c, 8),
        floats(n, c, 8, seed=2),
        floats(n, c, 9, seed=3),
        wrt=4,
    )
    n, c, h = (5, 3, 4) if small else (16384, 64, 256)
    sides = [floats(*s, low=-0.1, high=0.1) for s in ((c, h), (h, h), (h, c))]
    yield row("scores in slices", _scores, *sides, floats(n, c), floats(n, c, seed=2), wrt=3)
    yield row(
        "noise of all sizes", _consistent, sides[0], sides[2], floats(n, c),
        floats(n, c, seed=2), floats(n), wrt=2,
    )  # fmt: skip


# -- steps of training ----------------------------------------------------------------------------


def _with_adam(program: Callable[..., Any], count: int) -> Callable[..., Any]:
    """A step of Adam for the first operands, whose moments are behind them."""

    def step(N: Any, *xs: Any) -> Any:
        p, m, v = (xs[k * count : (k + 1) * count] for k in range(3))
        loss, *g = N.graded(program, count)(*p, *xs[3 * count :])
        m = [0.9 * a + 0.1 * b for a, b in zip(m, g)]
        v = [0.999 * a + 0.001 * b * b for a, b in zip(v, g)]
        p = [a - 0.01 * b / (N.sqrt(c) + 1e-8) for a, b, c in zip(p, m, v)]
        return [loss, *p, *m, *v]

    return step


def _policy(N: Any, w: Any, u: Any, v: Any, c: Any, *data: Any) -> Any:
    """Both losses of proximal policy optimisation, of one net."""
    x, a, old, gain, goal = data
    h = N.tanh(N.matmul(N.tanh(N.matmul(x, w)), u))
    logp = N.log_softmax(N.matmul(h, v), 1)
    value = N.matmul(h, c)[:, 0]
    ratio = N.exp(N.take_along(logp, a[:, None], 1)[:, 0] - old)
    gain = (gain - N.mean(gain)) / (N.sqrt(N.mean((gain - N.mean(gain)) ** 2)) + 1e-8)
    better = N.minimum(ratio * gain, N.clip(ratio, 0.8, 1.2) * gain)
    return N.mean(0.5 * (value - goal) ** 2 - better + 0.01 * N.sum(N.exp(logp) * logp, 1))


def _encoded(N: Any, w: Any, m: Any, s: Any, u: Any, v: Any, x: Any, e: Any) -> Any:
    h = N.tanh(N.matmul(x, w))
    mean, log = N.matmul(h, m), N.matmul(h, s)
    z = N.matmul(N.tanh(N.matmul(mean + N.exp(0.5 * log) * e, u)), v)
    kl = 0.5 * N.sum(N.exp(log) + mean * mean - 1 - log, 1)
    return N.mean(kl + N.sum(N.softplus(z) - x * z, 1))


def _sophia(N: Any, p: Any, g: Any, h: Any, m: Any) -> Any:
    m = 0.96 * m + 0.04 * g
    h = 0.99 * h + 0.01 * g * g
    return p * 0.9999 - 1e-3 * N.clip(m / N.maximum(0.05 * h, 1e-12), -1.0, 1.0), h, m


def _blocks_of_8_bits(N: Any, p: Any, g: Any, q: Any, scale: Any) -> Any:
    """Momentum in 8 bits, by blocks of 256."""
    m = 0.9 * N.to_float(q) * scale[:, None] + g.reshape((-1, 256))
    scale = N.max(N.abs(m), 1) / 127.0 + 1e-12
    q = N.to_int8(N.round(m / scale[:, None]))
    return p - 0.01 * m.reshape(N.dims(p)), q, scale


def _roots(N: Any, a: Any, g: Any, eye: Any) -> Any:
    """A gradient times the inverse fourth root of a mean of squares, by Newton's method."""
    a = 0.9 * a + 0.1 * N.matmul(g, g.T) + 1e-2 * eye
    z = 1.0 / N.sqrt(N.sum(a * a))
    m, h = a * z, eye * z**0.25
    for _ in range(6):
        t = 1.25 * eye - 0.25 * m
        square = N.matmul(t, t)
        m, h = N.matmul(N.matmul(square, square), m), N.matmul(h, t)
    return N.matmul(h, g), a


def _trained(small: bool) -> Iterator[Nest]:
    n, c, h = (7, 4, 5) if small else (8192, 64, 256)
    sizes = [(c, h), (h, h), (h, 8), (h, 1)]
    p = [floats(*s, low=-0.1, high=0.1) for s in sizes]
    m, v = ([floats(*s, low=low, high=0.1) for s in sizes] for low in (-0.1, 0.01))
    data = floats(n, c), whole(8, n), floats(n, low=-3, high=-2), floats(n), floats(n, seed=2)
    yield row("step of a policy", _with_adam(_policy, 4), *p, *m, *v, *data)
    n, c, h, z = (7, 5, 4, 2) if small else (4096, 784, 512, 32)
    sizes = [(c, h), (h, z), (h, z), (z, h), (h, c)]
    p = [floats(*s, low=-0.1, high=0.1) for s in sizes]
    m, v = ([floats(*s, low=low, high=0.1) for s in sizes] for low in (-0.1, 0.01))
    data = floats(n, c, low=0), floats(n, z)
    yield row("step of an autoencoder", _with_adam(_encoded, 5), *p, *m, *v, *data)
    n = 8 if small else 4096
    yield row("Sophia", _sophia, *(floats(n, n, low=0, seed=s) for s in range(4)))
    n = 16 if small else 4096
    yield row(
        "momentum in 8 bits",
        _blocks_of_8_bits,
        floats(n, n),
        floats(n, n, seed=2),
        whole(128, n * n // 256, 256, dtype="int8"),
        floats(n * n // 256, low=0, high=0.01),
    )
    n = 8 if small else 512
    eye = partial(np.eye, n, dtype="float32")
    yield row("fourth roots", _roots, eye, floats(n, 2 * n), eye)
