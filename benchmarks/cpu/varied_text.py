"""Rows of :mod:`benchmarks.cpu.survey_varied`: text."""

from __future__ import annotations

from typing import Any

from benchmarks.cpu.family_rows import made
from benchmarks.cpu.varied_spaces import Rows


def rows() -> Rows:
    """Those of this module."""
    yield from _text()


# -- text ------------------------------------------------------------------------------------------


def _text() -> Rows:
    tokens = made(64, 40, dtype="int64", high=2000)
    yield "bag of words", (tokens,), bag_of_words, "", ()
    yield "tf-idf", (made(200, 1000, dtype="int32", high=3),), tf_idf, "", ()
    yield (
        "word2vec step",
        (
            made(2000, 50),
            made(2000, 50, seed=1),
            made(256, dtype="int64", high=2000),
            made(256, 6, dtype="int64", high=2000, seed=1),
        ),
        word2vec,
        "",
        (0, 1),
    )
    yield (
        "attention, one token, cache",
        (made(8, 1, 64), made(8, 300, 64), made(8, 300, 64, seed=1)),
        one_token,
        "",
        (),
    )
    yield (
        "cache update and attention",
        (made(4, 256, 32), made(4, 32, seed=1), made(1, dtype="int64", low=100, high=101)),
        cached,
        "",
        (),
    )
    yield "beam step", (made(5, 3000), made(5)), beam, "numpy", ()
    yield "top-p mask", (made(4, 3000),), top_p, "", ()
    yield (
        "int8 linear",
        (made(4, 256, dtype="int8", low=-100), made(256, 256, dtype="int8", low=-100), made(256)),
        int8_linear,
        "",
        (),
    )
    yield (
        "int8 weights, float rows",
        (made(1, 512), made(512, 512, dtype="int8", low=-100), made(512)),
        int8_weights,
        "",
        (),
    )
    yield (
        "normed MLP of batch 1",
        (made(1, 128), made(128, 512), made(512, 128), made(128), made(128)),
        normed_mlp,
        "",
        (),
    )
    yield "rotary", (made(2, 50, 4, 32),), rotary, "", (0,)
    yield "ALiBi scores", (made(4, 60, 60),), alibi, "", (0,)
    yield "upper case and spaces", (made(100000, dtype="uint8", low=32, high=127),), upper, "", ()
    yield "rolling hash", (made(50000, dtype="uint8", low=32, high=127),), rolling_hash, "", ()
    yield (
        "edit distance by scan",
        (made(50, dtype="int64", high=4), made(60, dtype="int64", high=4)),
        edit,
        "",
        (),
    )
    yield "bigram counts", (made(20000, dtype="int64", high=64),), bigrams, "", ()
    yield (
        "label smoothing",
        (made(128, 1000), made(128, dtype="int64", high=1000)),
        smoothing,
        "",
        (0,),
    )
    yield "CRF by scan", (made(40, 12), made(12, 12)), crf, "", (0, 1)


def bag_of_words(xp: Any, x: Any) -> Any:
    rows = xp.arange(64)[:, None] * 2000 + x
    zeros = xp.cast(xp.arange(128000) * 0, "float32")
    return xp.added(zeros, rows.reshape(-1), xp.cast(rows.reshape(-1) * 0 + 1, "float32")).reshape(
        64, 2000
    )


def tf_idf(xp: Any, x: Any) -> Any:
    x = xp.cast(x, "float32")
    tf = x / xp.clip(x.sum(1, keepdims=True), 1, 1e9)
    found = tf * xp.log(200 / (1 + xp.cast(x > 0, "float32").sum(0)))
    return found / xp.sqrt((found * found).sum(1, keepdims=True) + 1e-6)


def word2vec(xp: Any, a: Any, b: Any, at: Any, others: Any) -> Any:
    s = (a[at][:, None] * b[others]).sum(2)
    own, negative = s[:, 0], s[:, 1:]
    return (xp.log(1 + xp.exp(-own)) + xp.log(1 + xp.exp(negative)).sum(1)).mean()


def one_token(xp: Any, q: Any, k: Any, v: Any) -> Any:
    s = q @ xp.transpose(k, (0, 2, 1)) * 0.125
    return xp.softmax(s, -1) @ v


def cached(xp: Any, cache: Any, k: Any, at: Any) -> Any:
    cache = xp.put(cache, (slice(None), at), k[:, None])
    s = (cache * k[:, None]).sum(2)
    s = xp.where(xp.arange(256) <= at, s, -1e9)
    return (xp.softmax(s, 1)[:, :, None] * cache).sum(1)


def beam(xp: Any, x: Any, scores: Any) -> Any:
    from benchmarks.cpu.nest import T, jax, torch

    logp = x - xp.logsumexp(x, 1)[:, None] + scores[:, None]
    of = {"_Symdnn": lambda v: T.topk_and_argtopk(v, 5), "_Torch": lambda v: torch.topk(v, 5),
          "_Jax": lambda v: jax.lax.top_k(v, 5)}  # fmt: skip
    best, at = of[type(xp).__name__](logp.reshape(-1))
    return [best, at // 3000, at % 3000]


def top_p(xp: Any, x: Any) -> Any:
    p = xp.softmax(x, 1)
    order = xp.argsort(-p, 1)
    sorted_ = xp.take_along_axis(p, order, 1)
    kept = xp.cumsum(sorted_, 1) - sorted_ < 0.9
    return xp.take_along_axis(kept, xp.argsort(order, 1), 1)


def int8_linear(xp: Any, x: Any, w: Any, s: Any) -> Any:
    y = xp.cast(x, "int32") @ xp.cast(w, "int32").T
    return xp.cast(y, "float32") * (abs(s) * 0.01)


def int8_weights(xp: Any, x: Any, w: Any, s: Any) -> Any:
    return x @ (xp.cast(w, "float32") * (s * 0.01))


def normed_mlp(xp: Any, x: Any, a: Any, b: Any, w: Any, c: Any) -> Any:
    return x + xp.gelu(xp.layer_norm(x, w, c) @ a) @ b


def rotary(xp: Any, x: Any) -> Any:
    t = xp.cast(xp.arange(50), "float32")[:, None]
    angles = t * xp.exp(xp.cast(xp.arange(16), "float32") * -0.5)
    c, s = xp.cos(angles)[:, None], xp.sin(angles)[:, None]
    a, b = x[..., ::2], x[..., 1::2]
    return xp.stack([a * c - b * s, a * s + b * c], -1).reshape(2, 50, 4, 32)


def alibi(xp: Any, x: Any) -> Any:
    n = xp.arange(60)
    away = n[:, None] - n
    slopes = xp.exp(-xp.cast(xp.arange(4), "float32"))[:, None, None]
    s = xp.where(away >= 0, x - slopes * xp.cast(away, "float32"), -1e9)
    return xp.softmax(s, -1)


def upper(xp: Any, x: Any) -> Any:
    found = xp.where((x >= 97) & (x <= 122), x - 32, x)
    words = ((x[1:] > 32) & (x[:-1] <= 32)).sum()
    return [found, words]


def rolling_hash(xp: Any, x: Any) -> Any:
    v, found = xp.cast(x, "int64"), 0
    for n in range(6):
        found = (found * 257 + v[n : 50000 - 5 + n]) % 1000003
    return found


def edit(xp: Any, x: Any, y: Any) -> Any:
    n = xp.arange(61)

    def step(row: Any, c: Any) -> Any:
        differ = xp.cast(abs(y - c) > 0, "int64")
        low = xp.minimum(row[1:] + 1, row[:-1] + differ)
        first = xp.concatenate([row[:1] + 1, low]) - n
        found = first
        for s in (1, 2, 4, 8, 16, 32):  # the running minimum
            found = xp.minimum(
                found,
                xp.concatenate([found[:1] * 0 + 10**6] * 1 + [found[:-s]])
                if s == 1
                else xp.concatenate([found[:s] * 0 + 10**6, found[:-s]]),
            )
        return found + n

    return xp.scan(step, n, x)[-1]


def bigrams(xp: Any, x: Any) -> Any:
    counts = xp.added(xp.cast(xp.arange(4096) * 0, "int64"), x[:-1] * 64 + x[1:], x[1:] * 0 + 1)
    counts = xp.cast(counts.reshape(64, 64), "float32") + 1
    return xp.log(counts / counts.sum(1, keepdims=True))


def smoothing(xp: Any, x: Any, y: Any) -> Any:
    logp = x - xp.logsumexp(x, 1)[:, None]
    own = xp.take_along_axis(logp, y[:, None], 1)[:, 0]
    return -(0.9 * own + 0.1 * logp.mean(1)).mean()


def crf(xp: Any, x: Any, t: Any) -> Any:
    def step(a: Any, v: Any) -> Any:
        return xp.logsumexp(a[:, None] + t, 0) + v

    return xp.logsumexp(xp.scan(step, x[0], x[1:])[-1], 0)
