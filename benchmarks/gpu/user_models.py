"""Programs of :mod:`user_programs`: parts of models, second derivatives, graphs, recurrences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.cpu.nest import Nest
from benchmarks.gpu.user_names import floats, mask, row, whole

__all__ = ["rows"]


def rows() -> Iterator[Nest]:
    """All rows."""
    for family in (_contrasts, _agents, _derivatives, _graphs, _recurrences, _parts, _points):
        yield from family()


# -- losses of pairs and of agents ----------------------------------------------------------------


def _unit(N: Any, v: Any) -> Any:
    return v / N.sqrt(N.sum(v * v, 1, True) + 1e-8)


def _info_nce(N: Any, a: Any, b: Any) -> Any:
    s = N.matmul(_unit(N, a), _unit(N, b).T) * 10.0
    own = N.diagonal(s)
    return N.mean(N.logsumexp(s, 1) - own) + N.mean(N.logsumexp(s, 0) - own)


def _supervised(N: Any, z: Any, y: Any) -> Any:
    s = N.matmul(z, z.T) * 0.1
    i = N.arange(2048)
    other = ~N.eq(i[:, None], i[None, :])
    same = N.to_float(N.eq(y[:, None], y[None, :]) & other)
    logp = s - N.logsumexp(N.where(other, s, -1e9), 1)[:, None]
    return -N.mean(N.sum(same * logp, 1) / (N.sum(same, 1) + 1e-6))


def _discrepancy(N: Any, x: Any, y: Any) -> Any:
    def kernel(a: Any, b: Any) -> Any:
        far = N.sum(a * a, 1)[:, None] + N.sum(b * b, 1)[None, :] - 2 * N.matmul(a, b.T)
        return N.mean(N.exp(-far) + N.exp(-0.25 * far) + N.exp(-0.0625 * far))

    return kernel(x, x) + kernel(y, y) - 2 * kernel(x, y)


def _preferences(N: Any, z: Any, old: Any, y: Any, m: Any) -> Any:
    def total(logits: Any) -> Any:
        logp = N.take_along(N.log_softmax(logits, 2), y[:, :, None], 2)[:, :, 0]
        return N.sum(N.where(m, logp, 0.0), 1)

    gain = total(z) - total(old)
    return N.mean(N.softplus(-0.1 * (gain[:16] - gain[16:])))


def _contrasts() -> Iterator[Nest]:
    pair = [floats(4096, 256, seed=s) for s in range(2)]
    yield row("InfoNCE both ways", _info_nce, *pair, wrt=2)
    yield row("supervised contrasts", _supervised, floats(2048, 128), whole(10, 2048), wrt=1)
    yield row("mean discrepancy", _discrepancy, floats(2048, 64), floats(2048, 64, seed=2), wrt=2)
    yield row(
        "preferences of texts",
        _preferences,
        floats(32, 128, 4096),
        floats(32, 128, 4096, seed=2),
        whole(4096, 32, 128),
        mask(32, 128),
        wrt=1,
    )


def _soft_actor(N: Any, mu: Any, s: Any, e: Any, q1: Any, q2: Any) -> Any:
    s = N.clip(s, -5.0, 2.0)
    u = mu + N.exp(s) * e
    a = N.tanh(u)
    logp = N.sum(-0.5 * e * e - s - N.log(1 - a * a + 1e-6), 1)
    return N.mean(0.2 * logp - N.minimum(N.sum(q1 * a, 1), N.sum(q2 * a, 1)))


def _quantile_values(N: Any, q: Any, target: Any, tau: Any) -> Any:
    u = target[:, None, :] - q[:, :, None]
    far = N.abs(u)
    huber = N.where(far < 1, 0.5 * u * u, far - 0.5)
    return N.mean(N.sum(N.abs(tau[None, :, None] - N.to_float(u < 0)) * huber, 1))


def _advantages(N: Any, r: Any, v: Any, done: Any) -> Any:
    found, last = [], r[0] * 0
    for t in reversed(range(32)):
        keep = 0.99 * (1 - done[t])
        last = r[t] + keep * v[t + 1] - v[t] + 0.95 * keep * last
        found.append(last)
    a = N.stack(found[::-1], 0)
    return (a - N.mean(a)) / (N.sqrt(N.mean((a - N.mean(a)) ** 2)) + 1e-8)


def _agents() -> Iterator[Nest]:
    five = [floats(1 << 18, 16, seed=s) for s in range(5)]
    yield row("soft actor", _soft_actor, *five, wrt=2)
    yield row(
        "quantiles of values",
        _quantile_values,
        floats(2048, 64),
        floats(2048, 64, seed=2),
        floats(64, low=0),
        wrt=1,
    )
    yield row(
        "advantages of 32 steps",
        _advantages,
        floats(32, 65536),
        floats(33, 65536, seed=2),
        floats(32, 65536, seed=3, low=0, high=0.5),
    )


# -- derivatives of derivatives -------------------------------------------------------------------


def _net(N: Any, x: Any, *w: Any) -> Any:
    for v in w[:-1]:
        x = N.tanh(N.matmul(x, v))
    return N.matmul(x, w[-1])


def _penalty(N: Any, u: Any, v: Any, w: Any, x: Any) -> Any:
    slope = N.slope(lambda a: _net(N, a, u, v, w), x)
    return N.mean((N.sqrt(N.sum(slope * slope, 1) + 1e-8) - 1) ** 2) - N.mean(_net(N, x, u, v, w))


def _heat(N: Any, u: Any, v: Any, w: Any, t: Any, x: Any) -> Any:
    def value(t: Any, x: Any) -> Any:
        return _net(N, N.concatenate([t, x], 1), u, v, w)

    def slope(x: Any) -> Any:
        return N.slope(lambda b: value(t, b), x)

    left, right = N.slope(lambda a: value(a, x), t), N.slope(slope, x)
    return N.mean((left - 0.1 * right + value(t, x) ** 3) ** 2)


def _energy(N: Any, x: Any, k: Any) -> Any:
    def energy(x: Any) -> Any:
        d = x[:, None, :] - x[None, :, :]
        r = N.sqrt(N.sum(d * d, 2) + 1e-3)
        return N.sum(k * (r - 1) ** 2 + N.exp(-2 * r), 1)

    return N.slope(energy, x)


def _derivatives() -> Iterator[Nest]:
    wide = [floats(128, 256), floats(256, 256, seed=1, low=-0.1, high=0.1), floats(256, 1)]
    yield row("penalty of slopes", _penalty, *wide, floats(8192, 128), wrt=3)
    yield row(
        "equation of heat",
        _heat,
        floats(2, 128),
        floats(128, 128, low=-0.2, high=0.2),
        floats(128, 1),
        floats(16384, 1),
        floats(16384, 1, seed=2),
        wrt=3,
    )
    yield row("forces of pairs", _energy, floats(2048, 3, low=-9, high=9), floats(2048, 2048))


# -- graphs, points, tables -----------------------------------------------------------------------


def _messages(N: Any, x: Any, w: Any, to: Any, sent: Any) -> Any:
    h = N.maximum(N.matmul(x, w), 0.0)[sent]
    count = N.segment_sum(N.to_float(to >= 0), to, 65536)
    mean = N.segment_sum(h, to, 65536) / N.maximum(count, 1.0)[:, None]
    return N.mean((mean - x) ** 2)


def _edges(N: Any, h: Any, a: Any, b: Any, to: Any, sent: Any) -> Any:
    s = N.sum(h * a, 1)[to] + N.sum(h * b, 1)[sent]
    e = N.exp(N.where(s > 0, s, 0.2 * s))
    part = e / (N.segment_sum(e, to, 65536) + 1e-9)[to]
    return N.mean(N.segment_sum(part[:, None] * h[sent], to, 65536) ** 2)


def _bags(N: Any, table: Any, i: Any, m: Any, w: Any) -> Any:
    some = N.to_float(m)
    mean = N.sum(table[i] * some[:, :, None], 1) / (N.sum(some, 1)[:, None] + 1e-6)
    return N.mean(N.sum(mean * w, 1) ** 2)


def _calibration(N: Any, z: Any, y: Any) -> Any:
    p = N.softmax(z, 1)
    sure, hit = N.max(p, 1), N.to_float(N.eq(N.argmax(z, 1), y))
    bins = N.to_int(N.clip(N.floor(sure * 15), 0.0, 14.0))
    return N.sum(N.abs(N.segment_sum(sure - hit, bins, 15))) / z.shape[0]


def _hazards(N: Any, risk: Any, event: Any) -> Any:
    later = N.log(N.flip(N.cumsum(N.flip(N.exp(risk), 0), 0), 0))
    return -N.sum((risk - later) * event) / N.sum(event)


def _graphs() -> Iterator[Nest]:
    n, edges = 65536, 1 << 19
    to, sent = whole(n, edges), whole(n, edges, seed=2)
    yield row("messages of a graph", _messages, floats(n, 64), floats(64, 64), to, sent, wrt=2)
    yield row("attention of edges", _edges, floats(n, 32), floats(32), floats(32), to, sent, wrt=3)
    yield row(
        "bags of words",
        _bags,
        floats(50000, 128),
        whole(50000, 8192, 20),
        mask(8192, 20),
        floats(8192, 128),
        wrt=1,
    )
    yield row("calibration", _calibration, floats(1 << 16, 100, high=4), whole(100, 1 << 16))
    yield row("hazards", _hazards, floats(1 << 20), floats(1 << 20, low=0), wrt=1)


# -- recurrences ----------------------------------------------------------------------------------


def _hidden_markov(N: Any, start: Any, a: Any, e: Any) -> Any:
    alpha = start + e[0]
    for t in range(1, 16):
        alpha = N.logsumexp(alpha[:, :, None] + a, 1) + e[t]
    return -N.mean(N.logsumexp(alpha, 1))


def _gated(N: Any, x: Any, g: Any) -> Any:
    h, total = x[0] * 0, 0.0
    for t in range(24):
        keep = N.sigmoid(g[t])
        h = keep * h + (1 - keep) * x[t]
        total = total + N.mean(h * h)
    return total


def _kalman(N: Any, x: Any, p: Any, f: Any, q: Any, r: Any, z: Any) -> Any:
    x, p = N.matmul(f, x), N.matmul(N.matmul(f, p), f.T) + q
    s = p[:, :2, :2] + r
    gain = N.matmul(p[:, :, :2], N.linalg.inv(s))
    return x + N.matmul(gain, z - x[:, :2]), p - N.matmul(gain, p[:, :2, :])


def _recurrences() -> Iterator[Nest]:
    yield row(
        "hidden states of 16 steps",
        _hidden_markov,
        floats(1024, 32),
        floats(32, 32, seed=2),
        floats(16, 1024, 32, seed=3),
        wrt=3,
    )
    yield row("gated sums", _gated, floats(24, 256, 2048), floats(24, 256, 2048, seed=2), wrt=2)
    n = 65536
    yield row(
        "step of Kalman filters",
        _kalman,
        floats(n, 4, 1),
        floats(n, 4, 4),
        floats(4, 4, seed=2),
        floats(4, 4, seed=3),
        lambda: 5 * np.eye(2, dtype="float32"),
        floats(n, 2, 1, seed=4),
    )


# -- parts of models ------------------------------------------------------------------------------


def _quantised(N: Any, x: Any, w: Any) -> Any:
    scale = N.max(N.abs(x), 1, True) / 127.0
    q = N.clip(N.round(x / scale), -127.0, 127.0) * scale
    return N.mean(((x + N.stop(q - x)) * w) ** 2)


def _int8_rows(N: Any, x: Any) -> Any:
    scale = N.max(N.abs(N.to_float(x)), 1, True) / 127.0
    return N.to_int8(N.clip(N.round(N.to_float(x) / scale), -127.0, 127.0)), scale


def _residual(N: Any, x: Any, y: Any, m: Any, gamma: Any, beta: Any) -> Any:
    h = x + N.where(m, y / 0.7, 0.0)
    d = h - N.mean(h, 1, True)
    return N.sum((d * N.rsqrt(N.mean(d * d, 1, True) + 1e-5) * gamma + beta) ** 2)


def _pairs_turned(N: Any, x: Any, cos: Any, sin: Any) -> Any:
    a, b = x[..., 0::2], x[..., 1::2]
    turned = N.stack([a * cos - b * sin, a * sin + b * cos], -1)
    return turned.reshape((16, 8, 512, 64))


def _straight_gumbel(N: Any, z: Any, u: Any, table: Any) -> Any:
    p = N.softmax((z - N.log(-N.log(u))) / 0.5, 1)
    hard = N.to_float(N.eq(N.arange(512)[None, :], N.argmax(p, 1)[:, None]))
    return N.mean(N.matmul(p + N.stop(hard - p), table) ** 2)


def _routed(N: Any, z: Any) -> Any:
    p = N.softmax(z, 1)
    best, at = N.topk(p, 2)
    first = N.to_float(N.eq(N.arange(64)[None, :], at[:, 0:1]))
    balance = 64 * N.sum(N.mean(first, 0) * N.mean(p, 0))
    return best / N.sum(best, 1, True), at, balance


def _sharpness(N: Any, *both: Any) -> Any:
    half = len(both) // 2
    norm = N.sqrt(sum(N.sum(g * g) for g in both[half:]))
    return tuple(p + 0.05 * g / (norm + 1e-12) for p, g in zip(both[:half], both[half:]))


def _low_pass(N: Any, x: Any, keep: Any) -> Any:
    return N.fft.irfft2(N.fft.rfft2(x) * keep)


def _parts() -> Iterator[Nest]:
    yield row("rows as if of 8 bits", _quantised, floats(8192, 4096), floats(4096), wrt=2)
    yield row("rows in 8 bits, bfloat16", _int8_rows, floats(8192, 4096, dtype="bfloat16"))
    yield row(
        "dropout, sum and norm",
        _residual,
        floats(16384, 1024),
        floats(16384, 1024, seed=2),
        mask(16384, 1024),
        floats(1024),
        floats(1024, seed=3),
        wrt=2,
    )
    yield row(
        "rotation of pairs, bfloat16",
        _pairs_turned,
        floats(16, 8, 512, 64, dtype="bfloat16"),
        floats(512, 32, dtype="bfloat16"),
        floats(512, 32, dtype="bfloat16", seed=2),
    )
    yield row(
        "straight through Gumbel's",
        _straight_gumbel,
        floats(16384, 512),
        floats(16384, 512, low=1e-3, seed=2),
        floats(512, 64),
        wrt=1,
    )
    yield row("routing to experts", _routed, floats(65536, 64, high=4))
    sizes = [(1024, 1024 + 64 * s) for s in range(8)]
    both = [floats(*s) for s in sizes], [floats(*s, seed=2) for s in sizes]
    yield row("step to sharpness", _sharpness, *both[0], *both[1])
    yield row("low pass of images", _low_pass, floats(64, 3, 256, 256), floats(256, 129, low=0))


# -- points ---------------------------------------------------------------------------------------


def _chamfer(N: Any, x: Any, y: Any) -> Any:
    far = N.sum((x[:, :, None, :] - y[:, None, :, :]) ** 2, 3)
    return N.mean(N.min(far, 2)) + N.mean(N.min(far, 1))


def _neighbours(N: Any, x: Any, y: Any) -> Any:
    far = N.sum(x * x, 1)[:, None] - 2 * N.matmul(x, y.T) + N.sum(y * y, 1)[None, :]
    return N.topk(-far, 8)


def _overlaps(N: Any, p: Any, t: Any) -> Any:
    low = N.maximum(p[:, None, :2], t[None, :, :2])
    high = N.minimum(p[:, None, 2:], t[None, :, 2:])
    side = N.maximum(high - low, 0.0)
    both = side[:, :, 0] * side[:, :, 1]
    area, other = ((v[:, 2] - v[:, 0]) * (v[:, 3] - v[:, 1]) for v in (p, t))
    return both / (area[:, None] + other[None, :] - both)


def _sampled(N: Any, x: Any, px: Any, py: Any) -> Any:
    x0, y0 = N.floor(px), N.floor(py)
    fx, fy = (px - x0)[:, None], (py - y0)[:, None]
    i, j = N.to_int(x0), N.to_int(y0)
    n = N.arange(16)[:, None, None]

    def at(a: Any, b: Any) -> Any:
        return N.transpose(x[n, N.clip(b, 0, 127), N.clip(a, 0, 127)], (0, 3, 1, 2))

    top = at(i, j) * (1 - fx) + at(i + 1, j) * fx
    low = at(i, j + 1) * (1 - fx) + at(i + 1, j + 1) * fx
    return N.mean((top * (1 - fy) + low * fy) ** 2)


def _points() -> Iterator[Nest]:
    yield row("chamfer", _chamfer, floats(8, 1024, 3), floats(8, 1024, 3, seed=2), wrt=2)
    yield row("nearest neighbours", _neighbours, floats(2048, 64), floats(16384, 64, seed=2))
    boxes = [floats(4096, 4, low=0, seed=s) for s in range(2)]
    yield row("overlaps of all boxes", _overlaps, *boxes)
    places = [floats(16, 128, 128, low=0, high=127, seed=s) for s in range(2)]
    yield row("samples of images", _sampled, floats(16, 128, 128, 32), *places, wrt=1)
