"""Programs of :mod:`user_varied`: sound, texts, recommendations and agents."""

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
    for family in (_sound, _texts, _language, _tables, _agents):
        yield from family(small)


# -- sound ----------------------------------------------------------------------------------------


def _frames(N: Any, x: Any, n: int, hop: int) -> Any:
    count = (N.dims(x)[1] - n) // hop + 1
    at = N.arange(count)[:, None] * hop + N.arange(n)[None, :]
    window = 0.5 - 0.5 * N.cos(N.to_float(N.arange(n)) * (6.2831853 / n))
    return x[:, at] * window


def _mel(N: Any, x: Any, filters: Any) -> Any:
    f = N.fft.rfft(_frames(N, x, 400, 160))
    power = N.abs(f) ** 2
    m = N.log(N.matmul(power, filters) + 1e-6)
    return (m - N.mean(m, 1, True)) / (
        N.sqrt(N.mean((m - N.mean(m, 1, True)) ** 2, 1, True)) + 1e-3
    )


def _energies(N: Any, e: Any) -> Any:
    """Energies over their smoothed past (PCEN)."""
    _, past = N.scan(lambda m, v: (0.975 * m + 0.025 * v, 0.975 * m + 0.025 * v), e[0], e)
    return N.sqrt(e / (past + 1e-3) ** 0.98 + 2.0) - 1.4142135


def _spectra(N: Any, x: Any, y: Any) -> Any:
    """Distances of spectra in three resolutions."""
    loss = 0.0
    for n in (512, 1024, 256):
        a, b = (N.fft.rfft(_frames(N, v, n, n // 4)) for v in (x, y))
        a, b = (N.sqrt(N.real(v) ** 2 + N.imag(v) ** 2 + 1e-6) for v in (a, b))
        apart = N.sqrt(N.sum((a - b) ** 2)) / N.sqrt(N.sum(b * b))
        loss = loss + apart + N.mean(N.abs(N.log(a) - N.log(b)))
    return loss


def _companded(N: Any, x: Any) -> Any:
    """Sound in 256 levels, and from these."""
    y = N.sign(x) * N.log1p(255.0 * N.abs(x)) / 5.5451774
    q = N.to_int(N.floor((y + 1) * 127.5 + 0.5))
    z = 2.0 * N.to_float(q) / 255.0 - 1
    return q, N.sign(z) * (N.exp(N.abs(z) * 5.5451774) - 1) / 255.0


def _separated(N: Any, est: Any, ref: Any) -> Any:
    """The best order's ratio of signal to noise, of two sources."""
    a, b = est - N.mean(est, 2, True), ref - N.mean(ref, 2, True)
    a, b = a[:, :, None], b[:, None]
    s = N.sum(a * b, 3, True) * b / (N.sum(b * b, 3, True) + 1e-8)
    noise = a - s
    ratio = N.log(N.sum(s * s, 3) + 1e-8) - N.log(N.sum(noise * noise, 3) + 1e-8)
    one, other = ratio[:, 0, 0] + ratio[:, 1, 1], ratio[:, 0, 1] + ratio[:, 1, 0]
    return -N.mean(N.maximum(one, other)) * 2.17147


def _dilated(N: Any, x: Any, w: Any, v: Any, skip: Any) -> Any:
    """Gated, dilated sums of two steps, in four layers."""
    total = 0.0
    for k in range(4):
        past = N.pad(x, ((0, 0), (2**k, 0), (0, 0)))[:, : N.dims(x)[1]]
        h = N.matmul(x, w[k, 0]) + N.matmul(past, w[k, 1])
        c = N.dims(x)[2]
        h = N.tanh(h[..., :c]) * N.sigmoid(h[..., c:])
        x, total = x + N.matmul(h, v[k]), total + N.matmul(h, skip[k])
    return N.mean(N.maximum(total, 0.0) ** 2)


def _sound(small: bool) -> Iterator[Nest]:
    n, t = (2, 1200) if small else (64, 64000)
    yield row("mel spectra", _mel, floats(n, t), floats(201, 80, low=0))
    t, n = (12, 6) if small else (400, 128 * 64)
    yield row("energies over their past", _energies, floats(t, n, low=0))
    n, t = (1, 2048) if small else (16, 32768)
    yield row("distances of spectra", _spectra, floats(n, t), floats(n, t, seed=2), wrt=1)
    yield row("companded sound", _companded, floats(n, 64 * t))
    yield row(
        "separated sources", _separated, *(floats(n, 2, 4 * t, seed=s) for s in (1, 2)), wrt=1
    )
    n, t, c = (2, 12, 4) if small else (8, 4096, 64)
    yield row(
        "gated and dilated",
        _dilated,
        floats(n, t, c),
        floats(4, 2, c, 2 * c, low=-0.2, high=0.2),
        floats(4, c, c, low=-0.2, high=0.2, seed=2),
        floats(4, c, c, low=-0.2, high=0.2, seed=3),
        wrt=4,
    )


# -- attention and caches -------------------------------------------------------------------------


def _next(N: Any, q: Any, k: Any, v: Any, cache: Any, past: Any, at: Any) -> Any:
    """A step of grouped queries: the caches get a row each, and are attended."""
    b, g, t, d = N.dims(cache)
    n = N.arange(b)[:, None], N.arange(g)[None, :], at[:, None]
    cache, past = N.put(cache, n, k), N.put(past, n, v)
    s = N.matmul(q.reshape((b, g, -1, d)), N.transpose(cache, (0, 1, 3, 2))) * 0.125
    s = N.where(N.arange(t)[None, None, None, :] <= at[:, None, None, None], s, -1e9)
    return N.matmul(N.softmax(s, -1), past), cache, past


def _bucketed(N: Any, q: Any, k: Any, v: Any, table: Any) -> Any:
    """Attention with a bias of 32 buckets of distances, in logarithms."""
    t = N.dims(q)[2]
    n = N.arange(t)
    far = N.maximum(n[:, None] - n[None, :], 0)
    more = 16 + N.to_int(N.log(N.to_float(N.maximum(far, 1)) / 16.0) * (16 / 2.0794415))
    bucket = N.where(far < 16, far, N.minimum(more, 31))
    s = N.matmul(q, N.transpose(k, (0, 1, 3, 2))) + N.transpose(table[bucket], (2, 0, 1))
    s = N.where(n[:, None] >= n[None, :], s, -1e9)
    return N.mean(N.matmul(N.softmax(s, -1), v) ** 2)


def _packed(N: Any, q: Any, k: Any, v: Any, last: Any) -> Any:
    """Texts behind each other: each attends to its own past."""
    n = N.arange(N.dims(q)[2])
    text = N.cumsum(N.to_int(last), 1) - N.to_int(last)
    own = N.eq(text[:, :, None], text[:, None, :]) & (n[:, None] >= n[None, :])
    s = N.matmul(q, N.transpose(k, (0, 1, 3, 2))) * 0.125
    return N.mean(N.matmul(N.softmax(N.where(own[:, None], s, -1e9), -1), v) ** 2)


def _capped(N: Any, q: Any, k: Any, v: Any, gamma: Any, beta: Any) -> Any:
    """Normalised queries and keys, capped scores, a window of 64."""

    def unit(x: Any, w: Any) -> Any:
        return x * N.rsqrt(N.mean(x * x, -1, True) + 1e-6) * w

    n = N.arange(N.dims(q)[2])
    s = N.matmul(unit(q, gamma), N.transpose(unit(k, beta), (0, 1, 3, 2))) * 0.125
    s = 30.0 * N.tanh(s / 30.0)
    far = n[:, None] - n[None, :]
    return N.mean(N.matmul(N.softmax(N.where((far >= 0) & (far < 64), s, -1e9), -1), v) ** 2)


def _texts(small: bool) -> Iterator[Nest]:
    b, g, t, d = (2, 2, 12, 4) if small else (64, 8, 1024, 64)
    yield row(
        "step of grouped queries",
        _next,
        floats(b, 4 * g, d),
        floats(b, g, d),
        floats(b, g, d, seed=2),
        floats(b, g, t, d),
        floats(b, g, t, d, seed=2),
        whole(t, b),
    )
    b, h, t, d = (2, 2, 40, 4) if small else (8, 8, 512, 64)
    qkv = [floats(b, h, t, d, seed=s) for s in range(3)]
    yield row("attention with buckets", _bucketed, *qkv, floats(32, h), wrt=4)
    ends = partial(np.equal, whole(64, b, t)(), 0)
    yield row("attention of packed texts", _packed, *qkv, ends, wrt=3)
    yield row("attention with a cap", _capped, *qkv, floats(d), floats(d, seed=2), wrt=5)


# -- language -------------------------------------------------------------------------------------


def _dispatched(N: Any, x: Any, gate: Any, w: Any, v: Any) -> Any:
    """The best two of eight experts, each with room for a number of tokens."""
    n, c = N.dims(x)
    room = n // 3
    p = N.softmax(N.matmul(x, gate), 1)
    best, at = N.topk(p, 2)
    share = best / N.sum(best, 1, True)
    hot = N.to_int(N.eq(at.T[:, :, None], N.arange(8)[None, None, :])).reshape((2 * n, 8))
    place = N.sum((N.cumsum(hot, 0) - 1) * hot, 1)
    kept = place < room
    slot = N.where(kept, at.T.reshape((2 * n,)) * room + place, 8 * room)
    token = N.arange(2 * n) % n
    given = N.segment_sum(x[token], slot, 8 * room + 1)[: 8 * room].reshape((8, room, c))
    h = N.matmul(given, w)
    y = N.matmul(h * N.sigmoid(h), v).reshape((8 * room, c))
    found = y[N.minimum(slot, 8 * room - 1)] * N.to_float(kept)[:, None]
    mixed = N.sum(found.reshape((2, n, c)) * share.T[:, :, None], 0)
    return N.mean(mixed**2)


def _penalised(N: Any, z: Any, seen: Any, u: Any) -> Any:
    """Words seen are less likely; one of the best 50 that make 0.9 is drawn."""
    rows_ = N.arange(N.dims(z)[0])[:, None]
    own = N.take_along(z, seen, 1)
    z = N.put(z, (rows_, seen), N.where(own > 0, own / 1.2, own * 1.2)) / 0.7
    best, at = N.topk(z, 50)
    p = N.softmax(best, 1)
    before = N.cumsum(p, 1) - p
    draw = N.where(before < 0.9, best - N.log(-N.log(u)), -1e9)
    return N.take_along(at, N.argmax(draw, 1)[:, None], 1)[:, 0], N.logsumexp(z, 1)


def _group_gains(N: Any, z: Any, old: Any, ref: Any, y: Any, reward: Any, m: Any) -> Any:
    """Clipped gains of texts beside others of their group, and how far from a reference."""
    logp = N.take_along(N.log_softmax(z, 2), y[:, :, None], 2)[:, :, 0]
    r = reward.reshape((-1, 8))
    d = r - N.mean(r, 1, True)
    gain = (d / (N.sqrt(N.mean(d * d, 1, True)) + 1e-4)).reshape((-1, 1))
    ratio = N.exp(logp - old)
    clipped = N.minimum(ratio * gain, N.clip(ratio, 0.8, 1.2) * gain)
    apart = N.exp(ref - logp) - (ref - logp) - 1
    some = N.to_float(m)
    return -N.mean(N.sum((clipped - 0.04 * apart) * some, 1) / (N.sum(some, 1) + 1e-6))


def _tied(N: Any, table: Any, w: Any, y: Any, x: Any) -> Any:
    """A table of words before and after a layer."""
    h = N.tanh(N.matmul(table[x], w))
    z = N.matmul(h, table.T)
    return N.mean(N.logsumexp(z, 1) - N.take_along(z, y[:, None], 1)[:, 0])


def _sigmoid_pairs(N: Any, a: Any, b: Any, scale: Any, bias: Any) -> Any:
    def unit(v: Any) -> Any:
        return v / N.sqrt(N.sum(v * v, 1, True) + 1e-8)

    n = N.arange(N.dims(a)[0])
    z = N.matmul(unit(a), unit(b).T) * N.exp(scale) + bias
    sign = N.where(N.eq(n[:, None], n[None, :]), 1.0, -1.0)
    return N.sum(N.softplus(-sign * z)) / N.dims(a)[0]


def _accepted(N: Any, own: Any, draft: Any, word: Any, u: Any) -> Any:
    """How many words of a draft are accepted, and the next one's distribution."""
    p, q = N.softmax(own, 2), N.softmax(draft, 2)
    a = N.take_along(p[:, :-1], word[:, :, None], 2)[:, :, 0]
    b = N.take_along(q, word[:, :, None], 2)[:, :, 0]
    ok = N.to_int(u * b < a)
    count = N.sum(N.cumprod(ok, 1), 1)
    n = N.arange(N.dims(own)[0])
    k = N.minimum(count, N.dims(draft)[1] - 1)
    rest = N.maximum(p[n, count] - N.where((count < N.dims(draft)[1])[:, None], q[n, k], 0.0), 0.0)
    return count, rest / N.sum(rest, 1, True)


def _language(small: bool) -> Iterator[Nest]:
    n, c, h = (24, 8, 16) if small else (8192, 512, 1024)
    yield row(
        "experts with room",
        _dispatched,
        floats(n, c),
        floats(c, 8),
        floats(8, c, h, low=-0.1, high=0.1),
        floats(8, h, c, low=-0.1, high=0.1),
        wrt=4,
    )
    n, w = (3, 60) if small else (128, 32000)
    yield row(
        "words drawn with penalties",
        _penalised,
        floats(n, w, high=5),
        partial(np.tile, np.arange(40) * (w // 50), (n, 1)),
        floats(n, 50, low=1e-3, seed=2),
    )
    b, t, w = (16, 6, 20) if small else (32, 256, 8192)
    yield row(
        "gains in groups",
        _group_gains,
        floats(b, t, w),
        floats(b, t, low=-9, high=-8.5),
        floats(b, t, low=-9, high=-8.5, seed=2),
        whole(w, b, t),
        floats(b),
        mask(b, t),
        wrt=1,
    )
    n, w, c = (12, 30, 8) if small else (4096, 8192, 256)
    yield row(
        "words tied",
        _tied,
        floats(w, c, low=-0.1, high=0.1),
        floats(c, c, low=-0.1, high=0.1),
        whole(w, n),
        whole(w, n, seed=2),
        wrt=2,
    )
    n, c = (16, 8) if small else (4096, 512)
    number = floats(low=1, high=2), floats(low=-2, high=-1)
    yield row(
        "pairs by sigmoids", _sigmoid_pairs, floats(n, c), floats(n, c, seed=2), *number, wrt=4
    )
    b, t, w = (4, 3, 20) if small else (64, 4, 32000)
    yield row(
        "drafts accepted",
        _accepted,
        floats(b, t + 1, w, high=3),
        floats(b, t, w, high=3, seed=2),
        whole(w, b, t),
        floats(b, t, low=0),
    )


# -- tables ---------------------------------------------------------------------------------------


def _crossed(N: Any, tables: Any, x: Any, w: Any, top: Any, i: Any, y: Any) -> Any:
    """Products of all pairs of features, after a table for each."""
    n = N.arange(N.dims(i)[1])
    e = tables[n[None, :], i]
    dense = N.maximum(N.matmul(x, w), 0.0)
    z = N.concatenate([dense[:, None], e], 1)
    k = N.dims(i)[1] + 1
    pairs = N.matmul(z, N.transpose(z, (0, 2, 1))).reshape((-1, k * k))
    at = [a * k + b for a in range(k) for b in range(a)]
    kept = N.concatenate([dense, N.stack([pairs[:, p] for p in at], 1)], 1)
    logit = N.matmul(kept, top)[:, 0]
    return N.mean(N.softplus(logit) - y * logit)


def _factorised(N: Any, v: Any, w: Any, i: Any, y: Any) -> Any:
    e = v[i]
    s = N.sum(e, 1)
    z = N.sum(w[i], 1) + 0.5 * N.sum(s * s - N.sum(e * e, 1), 1)
    return N.mean(N.softplus(-y * z))


def _deep_cross(N: Any, w: Any, b: Any, last: Any, x: Any, y: Any) -> Any:
    h = x
    for k in range(3):
        h = x * (N.matmul(h, w[k]) + b[k]) + h
    z = N.matmul(h, last)[:, 0]
    return N.mean(N.softplus(z) - y * z)


def _interest(N: Any, table: Any, w: Any, u: Any, past: Any, item: Any, n: Any) -> Any:
    """What was clicked, weighted by the item that is asked for."""
    h, q = table[past], table[item][:, None]
    both = N.concatenate([h, h * q, h - q], 2)
    s = N.matmul(N.maximum(N.matmul(both, w), 0.0), u)[:, :, 0]
    s = N.where(N.arange(N.dims(past)[1])[None, :] < n[:, None], s, -1e9)
    return N.mean(N.sum(N.sum(N.softmax(s, 1)[:, :, None] * h, 1) * q[:, 0], 1) ** 2)


def _tables(small: bool) -> Iterator[Nest]:
    n, k, words, c = (6, 3, 10, 4) if small else (8192, 15, 10000, 32)
    yield row(
        "crossed features",
        _crossed,
        floats(k, words, c),
        floats(n, 13),
        floats(13, c),
        floats(c + k * (k + 1) // 2, 1),
        whole(words, n, k),
        floats(n, low=0),
        wrt=4,
    )
    n, k, words = (6, 4, 20) if small else (16384, 39, 100000)
    yield row(
        "factorised pairs", _factorised, floats(words, 16), floats(words), whole(words, n, k),
        floats(n), wrt=2,
    )  # fmt: skip
    n, c = (6, 5) if small else (8192, 512)
    yield row(
        "deep and crossed",
        _deep_cross,
        floats(3, c, c, low=-0.05, high=0.05),
        floats(3, c),
        floats(c, 1),
        floats(n, c),
        floats(n, low=0),
        wrt=3,
    )
    n, t, words, c = (4, 5, 20, 4) if small else (4096, 50, 50000, 32)
    yield row(
        "interests",
        _interest,
        floats(words, c),
        floats(3 * c, 36),
        floats(36, 1),
        whole(words, n, t),
        whole(words, n, seed=2),
        whole(t, n, seed=3),
        wrt=3,
    )


# -- agents ---------------------------------------------------------------------------------------


def _traces(N: Any, logp: Any, old: Any, r: Any, v: Any, keep: Any) -> Any:
    """Targets of values with clipped ratios, backwards in time."""
    ratio = N.minimum(N.exp(logp - old), 1.0)
    delta = ratio * (r + keep * v[1:] - v[:-1])
    both = N.flip(N.stack([delta, keep * ratio], 1), 0)

    def step(last: Any, now: Any) -> Any:
        last = now[0] + now[1] * last
        return last, last

    _, found = N.scan(step, delta[0] * 0, both)
    goal = N.flip(found, 0) + v[:-1]
    then = N.concatenate([goal[1:], v[-1:]], 0)
    return goal, ratio * (r + keep * then - v[:-1])


def _projected(N: Any, z: Any, then: Any, a: Any, r: Any, keep: Any) -> Any:
    """The cross-entropy with a shifted distribution on 51 atoms."""
    n = N.dims(z)[0]
    atom = N.to_float(N.arange(51)) * 0.4 - 10.0
    p = N.softmax(then, 2)
    best = N.argmax(N.sum(p * atom, 2), 1)
    p = p[N.arange(n), best]
    at = (N.clip(r[:, None] + keep[:, None] * atom, -10.0, 10.0) + 10.0) / 0.4
    near = 1 - N.abs(at[:, None, :] - N.to_float(N.arange(51))[None, :, None])
    goal = N.stop(N.sum(N.clip(near, 0.0, 1.0) * p[:, None, :], 2))
    return -N.mean(N.sum(goal * N.log_softmax(z[N.arange(n), a], 1), 1))


def _agents(small: bool) -> Iterator[Nest]:
    t, n = (5, 7) if small else (64, 16384)
    yield row(
        "traces of values",
        _traces,
        *(floats(t, n, seed=s) for s in range(3)),
        floats(t + 1, n, seed=3),
        floats(t, n, seed=4, low=0.9),
    )
    n, a = (5, 3) if small else (8192, 6)
    yield row(
        "distributions of values",
        _projected,
        floats(n, a, 51),
        floats(n, a, 51, seed=2),
        whole(a, n),
        floats(n, low=-3, high=3),
        floats(n, low=0.9),
        wrt=1,
    )
