"""Programs of :mod:`user_programs`: parts of models of today, their losses and optimisers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.cpu.nest import Nest
from benchmarks.gpu.user_names import floats, row, whole

__all__ = ["rows"]


def rows() -> Iterator[Nest]:
    """All rows."""
    for family in (_sequences, _layers, _generated, _learned, _weights):
        yield from family()


# -- sequences ------------------------------------------------------------------------------------


def _selective_scan(N: Any, x: Any, dt: Any, a: Any, b: Any, c: Any) -> Any:
    h, total = 0.0, 0.0
    for t in range(16):
        step = N.softplus(dt[t])
        keep = N.exp(-step[:, :, None] * N.exp(a))
        h = keep * h + (step * x[t])[:, :, None] * b[t][:, None, :]
        total = total + N.mean(N.sum(h * c[t][:, None, :], 2) ** 2)
    return total


def _aligned(N: Any, z: Any, y: Any) -> Any:
    """The loss of CTC without blanks between equal labels: a step, or a label further."""
    logp = N.log_softmax(z, 2)
    none = logp[0, :, 0:1] * 0 - 1e9
    own = N.stack([N.take_along(logp[t], y, 1) for t in range(24)], 0)
    a = N.concatenate([own[0][:, :1], none, none, none, none, none, none, none], 1)
    for t in range(1, 24):
        a = N.logaddexp(a, N.concatenate([none, a[:, :-1]], 1)) + own[t]
    return -N.mean(a[:, -1])


def _random_field(N: Any, e: Any, a: Any, y: Any, n: Any) -> Any:
    total, score = e[0], N.take_along(e[0], y[0][:, None], 1)[:, 0]
    for t in range(1, 16):
        inside = t < n
        step = N.logsumexp(total[:, :, None] + a, 1) + e[t]
        total = N.where(inside[:, None], step, total)
        more = N.take_along(e[t], y[t][:, None], 1)[:, 0] + a[y[t - 1], y[t]]
        score = score + N.where(inside, more, 0.0)
    return N.mean(N.logsumexp(total, 1) - score)


def _decomposed(N: Any, x: Any) -> Any:
    c = N.cumsum(x, 1)
    trend = (c[:, 24:] - c[:, :-24]) / 24.0
    rest = x[:, 12:-12] - trend
    season = N.mean(rest.reshape((4096, 40, 24)), 1)
    left = rest.reshape((4096, 40, 24)) - season[:, None, :]
    return trend, season, N.sqrt(N.mean(left * left, (1, 2)))


def _retained(N: Any, q: Any, k: Any, v: Any, decay: Any) -> Any:
    i = N.arange(64)
    far = N.to_float(i[:, None] - i[None, :])
    fade = N.where(far >= 0, N.exp(-decay[:, None, None] * far), 0.0)
    own = N.matmul(N.matmul(q, N.transpose(k, (0, 1, 3, 2))) * fade, v)
    out = own / N.maximum(N.sqrt(N.mean(own * own, -1, True)), 1e-3)
    return N.mean(out**3)


def _sequences() -> Iterator[Nest]:
    yield row(
        "selective scan of 16 steps",
        _selective_scan,
        floats(16, 32, 512),
        floats(16, 32, 512, seed=2),
        floats(512, 16),
        floats(16, 32, 16, seed=3),
        floats(16, 32, 16, seed=4),
        wrt=5,
    )
    yield row("alignments of 24 steps", _aligned, floats(24, 512, 64), whole(64, 512, 8), wrt=1)
    yield row(
        "random field of 16 tags",
        _random_field,
        floats(16, 1024, 16),
        floats(16, 16),
        whole(16, 16, 1024),
        whole(17, 1024),
        wrt=2,
    )
    yield row("trend and season", _decomposed, floats(4096, 984))
    four = [floats(64, 8, 64, 64, seed=s) for s in range(3)]
    yield row("retention in chunks", _retained, *four, floats(8, low=0), wrt=3)


# -- layers ---------------------------------------------------------------------------------------


def _gelu(N: Any, x: Any) -> Any:
    return 0.5 * x * (1 + N.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def _experts(N: Any, x: Any, gate: Any, w: Any, v: Any) -> Any:
    p = N.softmax(N.matmul(x, gate), 1)
    best, _ = N.topk(N.stop(p), 2)
    share = N.where(p >= best[:, 1:2], p, 0.0)
    share = share / N.sum(share, 1, True)
    y = N.matmul(_gelu(N, N.matmul(x[None], w)), v)
    return N.mean(N.sum(share.T[:, :, None] * y, 0) ** 2)


def _windows(N: Any, x: Any, w: Any, bias: Any) -> Any:
    x = N.roll(x, (-4, -4), (1, 2)).reshape((16, 7, 8, 7, 8, 96))
    x = N.transpose(x, (0, 1, 3, 2, 4, 5)).reshape((784, 64, 96))
    qkv = N.transpose(N.matmul(x, w).reshape((784, 64, 3, 3, 32)), (2, 0, 3, 1, 4))
    s = N.matmul(qkv[0] * 0.1767767, N.transpose(qkv[1], (0, 1, 3, 2))) + bias
    y = N.transpose(N.matmul(N.softmax(s, -1), qkv[2]), (0, 2, 1, 3)).reshape((16, 7, 7, 8, 8, 96))
    y = N.transpose(y, (0, 1, 3, 2, 4, 5)).reshape((16, 56, 56, 96))
    return N.mean(N.roll(y, (4, 4), (1, 2)) ** 2)


def _patches(N: Any, x: Any, w: Any, b: Any, places: Any) -> Any:
    x = N.transpose(x.reshape((64, 3, 14, 16, 14, 16)), (0, 2, 4, 1, 3, 5)).reshape((64, 196, 768))
    return N.mean((N.matmul(x, w) + b + places) ** 2)


def _low_rank(N: Any, a: Any, b: Any, x: Any, w: Any) -> Any:
    return N.mean((N.matmul(x, w) + 0.5 * N.matmul(N.matmul(x, a), b)) ** 2)


def _layers() -> Iterator[Nest]:
    yield row(
        "mixture of experts",
        _experts,
        floats(4096, 256),
        floats(256, 8),
        floats(8, 256, 512, low=-0.1, high=0.1),
        floats(8, 512, 256, low=-0.1, high=0.1),
        wrt=4,
    )
    yield row(
        "attention in windows",
        _windows,
        floats(16, 56, 56, 96),
        floats(96, 288, low=-0.2, high=0.2),
        floats(3, 64, 64),
        wrt=3,
    )
    yield row(
        "patches of images",
        _patches,
        floats(64, 3, 224, 224),
        floats(768, 384, low=-0.05, high=0.05),
        floats(384),
        floats(196, 384),
        wrt=4,
    )
    yield row(
        "adapters of low rank",
        _low_rank,
        floats(1024, 16, low=-0.1, high=0.1),
        floats(16, 1024, low=-0.1, high=0.1),
        floats(8192, 1024),
        floats(1024, 1024, low=-0.05, high=0.05),
        wrt=2,
    )


# -- generative models ----------------------------------------------------------------------------


def _couplings(N: Any, x: Any, *w: Any) -> Any:
    left, right, volume = x[:, :32], x[:, 32:], 0.0
    for k in range(0, len(w), 2):
        h = N.matmul(N.maximum(N.matmul(left, w[k]), 0.0), w[k + 1])
        s = N.tanh(h[:, :32])
        left, right = right * N.exp(s) + h[:, 32:], left
        volume = volume + N.sum(s, 1)
    return N.mean(0.5 * N.sum(left * left, 1) + 0.5 * N.sum(right * right, 1) - volume)


def _denoised(
    N: Any, w: Any, u: Any, v: Any, x: Any, e: Any, t: Any, table: Any, rates: Any
) -> Any:
    a = table[t][:, None]
    noisy = N.sqrt(a) * x + N.sqrt(1 - a) * e
    phase = N.to_float(t)[:, None] * rates
    h = N.matmul(noisy, w) + N.matmul(N.concatenate([N.sin(phase), N.cos(phase)], 1), u)
    return N.mean((N.matmul(h * N.sigmoid(h), v) - e) ** 2)


def _rendered(N: Any, sigma: Any, rgb: Any, far: Any) -> Any:
    alpha = 1 - N.exp(-N.maximum(sigma, 0.0) * far)
    passed = N.cumsum(N.log(1 - alpha + 1e-6), 1)
    weight = alpha * N.exp(passed - N.log(1 - alpha + 1e-6))
    return N.mean((N.sum(weight[:, :, None] * rgb, 1) - 0.5) ** 2)


def _waves(N: Any, x: Any) -> Any:
    phases = [x * (2.0**k) for k in range(8)]
    return N.concatenate([x, *(f(p) for p in phases for f in (N.sin, N.cos))], 1)


def _generated() -> Iterator[Nest]:
    sides = [floats(32, 128, low=-0.2, high=0.2), floats(128, 64, low=-0.1, high=0.1)] * 4
    yield row("couplings of a flow", _couplings, floats(16384, 64), *sides, wrt=9)
    yield row(
        "noise of a diffusion",
        _denoised,
        floats(256, 512, low=-0.1, high=0.1),
        floats(64, 512, low=-0.1, high=0.1),
        floats(512, 256, low=-0.1, high=0.1),
        floats(16384, 256),
        floats(16384, 256, seed=2),
        whole(1000, 16384),
        floats(1000, low=0.01, high=0.99),
        floats(32, low=0),
        wrt=3,
    )
    rays = floats(32768, 64), floats(32768, 64, 3, low=0), floats(32768, 64, low=0, high=0.1)
    yield row("light along rays", _rendered, *rays, wrt=2)
    yield row("waves of places", _waves, floats(1 << 18, 3))


# -- agents, points, mixtures ---------------------------------------------------------------------


def _double_values(N: Any, q: Any, then: Any, goal: Any, a: Any, r: Any, done: Any) -> Any:
    best = N.take_along(goal, N.argmax(then, 1)[:, None], 1)[:, 0]
    apart = N.take_along(q, a[:, None], 1)[:, 0] - N.stop(r + 0.99 * (1 - done) * best)
    far = N.abs(apart)
    return N.mean(N.where(far < 1, 0.5 * apart * apart, far - 0.5))


def _point_net(N: Any, x: Any, w: Any, u: Any, v: Any) -> Any:
    h = N.maximum(N.matmul(N.maximum(N.matmul(x, w), 0.0), u), 0.0)
    return N.mean(N.matmul(N.max(h, 1), v) ** 2)


def _expectation(N: Any, x: Any, mu: Any, s: Any, pi: Any) -> Any:
    z = (x[:, None, :] - mu) * N.exp(-s)
    p = N.softmax(pi - N.sum(0.5 * z * z + s, 2), 1)
    count = N.sum(p, 0) + 1e-6
    mean = N.matmul(p.T, x) / count[:, None]
    return mean, N.matmul(p.T, x * x) / count[:, None] - mean * mean, count / x.shape[0]


def _moved(N: Any, x: Any, y: Any) -> Any:
    return N.mean(N.abs(N.sorted(x) - N.sorted(y)))


def _learned() -> Iterator[Nest]:
    n = 1 << 18
    three = [floats(n, 18, seed=s) for s in range(3)]
    more = whole(18, n), floats(n), floats(n, low=0)
    yield row("double values of actions", _double_values, *three, *more, wrt=1)
    nets = floats(3, 64), floats(64, 256, low=-0.2, high=0.2), floats(256, 40)
    yield row("features of points", _point_net, floats(32, 1024, 3), *nets, wrt=4)
    mixture = floats(32, 8), floats(32, 8, seed=2), floats(32)
    yield row("step of a mixture", _expectation, floats(1 << 17, 8), *mixture)
    yield row("sorted distances", _moved, floats(1024, 2048), floats(1024, 2048, seed=2), wrt=1)


# -- weights --------------------------------------------------------------------------------------


def _four_bits(N: Any, w: Any) -> Any:
    g = w.reshape((4096, 32, 128))
    low, high = N.min(g, 2, True), N.max(g, 2, True)
    scale = (high - low) / 15.0 + 1e-8
    return N.to_int8(N.clip(N.round((g - low) / scale), 0.0, 15.0)), scale, low


def _product_of_codes(N: Any, x: Any, q: Any, scale: Any, low: Any) -> Any:
    w = (N.to_float(q) * scale + low).reshape((4096, 4096))
    return N.matmul(x, w)


def _spectral(N: Any, w: Any, u: Any, x: Any) -> Any:
    def unit(v: Any) -> Any:
        return v / (N.sqrt(N.sum(v * v)) + 1e-12)

    v = N.stop(unit(N.matmul(w.T, u)))
    u = N.stop(unit(N.matmul(w, v)))
    norm = N.sum(u * N.matmul(w, v))
    return N.mean(N.matmul(x, w.T / norm) ** 2)


def _orthogonal(N: Any, g: Any) -> Any:
    x = g / (N.sqrt(N.sum(g * g)) + 1e-7)
    for _ in range(5):
        a = N.matmul(x, x.T)
        x = 3.4445 * x + N.matmul(-4.775 * a + 2.0315 * N.matmul(a, a), x)
    return x


def _weights() -> Iterator[Nest]:
    yield row("weights in 4 bits", _four_bits, floats(4096, 4096))
    yield row(
        "product with codes",
        _product_of_codes,
        floats(64, 4096),
        whole(16, 4096, 32, 128, dtype="int8"),
        floats(4096, 32, 1),
        floats(4096, 32, 1, seed=2),
    )
    yield row(
        "spectral norm", _spectral, floats(2048, 1024), floats(2048), floats(512, 1024), wrt=1
    )
    yield row("step to orthogonal weights", _orthogonal, floats(1024, 1024))
