"""Small programs that users write, one text for symdnn, PyTorch and JAX, in sizes for a GPU.

    python -m benchmarks.ops.peers --device cuda --module benchmarks.gpu.user_programs

Losses and norms with their gradients, attention with masks, and those of :mod:`user_steps`,
:mod:`user_models`, :mod:`user_modern` and :mod:`user_varied`. A text is a function of a library's
names (:mod:`user_names`) and its arrays.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.cpu.nest import Nest
from benchmarks.gpu import user_models, user_modern, user_steps, user_varied
from benchmarks.gpu.user_names import floats, mask, row, whole

__all__ = ["rows"]


def rows() -> Iterator[Nest]:
    """All rows."""
    more = user_steps.rows, user_models.rows, user_modern.rows, user_varied.rows
    for family in (_losses, _more_losses, _norms, _attention, *more):
        yield from family()


# -- losses ---------------------------------------------------------------------------------------


def _focal(N: Any, z: Any, y: Any) -> Any:
    p = N.take_along(N.log_softmax(z, 1), y[:, None], 1)[:, 0]
    return -N.mean((1 - N.exp(p)) ** 2 * p)


def _smoothed(N: Any, z: Any, y: Any) -> Any:
    logp = N.log_softmax(z, 1)
    return -N.mean(0.9 * N.take_along(logp, y[:, None], 1)[:, 0] + 0.1 * N.mean(logp, 1))


def _dice(N: Any, z: Any, t: Any) -> Any:
    p = N.softmax(z, 1)
    both, all_ = N.sum(p * t, (2, 3)), N.sum(p, (2, 3)) + N.sum(t, (2, 3))
    return 1 - N.mean((2 * both + 1) / (all_ + 1))


def _huber(N: Any, x: Any, t: Any, m: Any) -> Any:
    d = N.abs(x - t)
    return N.sum(N.where(m, N.where(d < 0.5, d * d, d - 0.25), 0.0)) / N.sum(N.to_float(m))


def _triplet(N: Any, a: Any, p: Any, n: Any) -> Any:
    near, far = N.sum((a - p) ** 2, 1), N.sum((a - n) ** 2, 1)
    return N.mean(N.maximum(N.sqrt(near + 1e-6) - N.sqrt(far + 1e-6) + 0.5, 0.0))


def _cosine(N: Any, a: Any, b: Any) -> Any:
    dot = N.sum(a * b, 1)
    return N.mean(1 - dot / N.sqrt(N.sum(a * a, 1) * N.sum(b * b, 1) + 1e-8))


def _distilled(N: Any, z: Any, t: Any) -> Any:
    p = N.softmax(t / 4.0, 1)
    return 16 * N.mean(N.sum(p * (N.log_softmax(t / 4.0, 1) - N.log_softmax(z / 4.0, 1)), 1))


def _bce(N: Any, z: Any, y: Any, w: Any) -> Any:
    return N.mean(w * y * N.softplus(-z) + (1 - y) * N.softplus(z))


def _vae(N: Any, mu: Any, logvar: Any, x: Any, e: Any) -> Any:
    z = mu + N.exp(0.5 * logvar) * e
    kl = -0.5 * N.sum(1 + logvar - mu**2 - N.exp(logvar), 1)
    return N.mean(kl + N.sum((N.tanh(z) - x) ** 2, 1))


def _losses() -> Iterator[Nest]:
    labels = whole(1000, 16384)
    yield row("focal loss", _focal, floats(16384, 1000), labels, wrt=1)
    yield row("smoothed labels", _smoothed, floats(16384, 1000), labels, wrt=1)
    yield row(
        "smoothed labels, bfloat16", _smoothed, floats(16384, 1000, dtype="bfloat16"), labels, wrt=1
    )
    yield row("dice", _dice, floats(16, 8, 256, 256), floats(16, 8, 256, 256, low=0), wrt=1)
    yield row(
        "huber with mask",
        _huber,
        floats(4096, 4096),
        floats(4096, 4096, seed=2),
        mask(4096, 4096),
        wrt=1,
    )
    three = [floats(65536, 128, seed=s) for s in range(3)]
    yield row("triplets", _triplet, *three, wrt=3)
    yield row("cosines", _cosine, *three[:2], wrt=2)
    yield row("distillation", _distilled, floats(16384, 1000), floats(16384, 1000, seed=2), wrt=1)
    yield row(
        "weighted logistic",
        _bce,
        floats(16384, 1000),
        floats(16384, 1000, low=0),
        floats(1000, low=0),
        wrt=1,
    )
    four = [floats(16384, 512, seed=s) for s in range(4)]
    yield row("VAE", _vae, *four, wrt=2)


def _quantiles(N: Any, p: Any, t: Any, q: Any) -> Any:
    d = t[:, None] - p
    return N.mean(N.maximum(q * d, (q - 1) * d))


def _barlow(N: Any, a: Any, b: Any) -> Any:
    def unit(v: Any) -> Any:
        d = v - N.mean(v, 0, True)
        return d / N.sqrt(N.mean(d * d, 0, True) + 1e-5)

    c = N.matmul(unit(a).T, unit(b)) / a.shape[0]
    return N.sum(c * c) * 0.01 + N.sum((N.diagonal(c) - 1) ** 2)


def _masked_language(N: Any, z: Any, y: Any, m: Any) -> Any:
    logp = N.take_along(N.log_softmax(z, 1), y[:, None], 1)[:, 0]
    return -N.sum(N.where(m, logp, 0.0)) / N.sum(N.to_float(m))


def _z_loss(N: Any, z: Any, y: Any) -> Any:
    lse = N.logsumexp(z, 1)
    return N.mean(lse - N.take_along(z, y[:, None], 1)[:, 0] + 1e-3 * lse**2)


def _ppo(N: Any, z: Any, v: Any, a: Any, old: Any, adv: Any, ret: Any) -> Any:
    logp = N.log_softmax(z, 1)
    ratio = N.exp(N.take_along(logp, a[:, None], 1)[:, 0] - old)
    gain = N.minimum(ratio * adv, N.clip(ratio, 0.8, 1.2) * adv)
    entropy = -N.sum(N.exp(logp) * logp, 1)
    return N.mean(-gain + 0.5 * (v - ret) ** 2 - 0.01 * entropy)


def _giou(N: Any, p: Any, t: Any) -> Any:
    x0, y0, x1, y1 = (p[:, k] for k in range(4))
    u0, v0, u1, v1 = (t[:, k] for k in range(4))
    w = N.maximum(N.minimum(x1, u1) - N.maximum(x0, u0), 0.0)
    h = N.maximum(N.minimum(y1, v1) - N.maximum(y0, v0), 0.0)
    both = w * h
    union = (x1 - x0) * (y1 - y0) + (u1 - u0) * (v1 - v0) - both
    hull = (N.maximum(x1, u1) - N.minimum(x0, u0)) * (N.maximum(y1, v1) - N.minimum(y0, v0))
    return N.mean(1 - both / (union + 1e-3) + (hull - union) / (hull + 1e-3))


def _variation(N: Any, x: Any) -> Any:
    across, down = x[:, :, :, 1:] - x[:, :, :, :-1], x[:, :, 1:, :] - x[:, :, :-1, :]
    return N.mean(N.abs(across)) + N.mean(N.abs(down))


def _hinges(N: Any, s: Any, r: Any) -> Any:
    apart = s[:, None, :] - s[:, :, None]
    order = r[:, None, :] < r[:, :, None]
    return N.mean(N.where(order, N.maximum(1 + apart, 0.0), 0.0))


def _more_losses() -> Iterator[Nest]:
    yield row(
        "three quantiles",
        _quantiles,
        floats(1 << 22, 3),
        floats(1 << 22, seed=4),
        floats(3, low=0),
        wrt=1,
    )
    yield row("Barlow twins", _barlow, floats(8192, 1024), floats(8192, 1024, seed=2), wrt=2)
    yield row(
        "masked language",
        _masked_language,
        floats(8192, 4096),
        whole(4096, 8192),
        mask(8192),
        wrt=1,
    )
    yield row("cross-entropy with z", _z_loss, floats(8192, 4096), whole(4096, 8192), wrt=1)
    n = 1 << 18
    yield row(
        "PPO",
        _ppo,
        floats(n, 18),
        floats(n, seed=2),
        whole(18, n),
        floats(n, low=-3, high=-2),
        floats(n),
        floats(n, seed=3),
        wrt=2,
    )
    yield row("GIoU of boxes", _giou, floats(1 << 22, 4), floats(1 << 22, 4, seed=2), wrt=1)
    yield row("total variation", _variation, floats(32, 3, 384, 384), wrt=1)
    yield row("pairwise hinges", _hinges, floats(64, 512), floats(64, 512, seed=2), wrt=1)


# -- norms ----------------------------------------------------------------------------------------


def _normed(axes: Any, eps: float = 1e-5) -> Any:
    def program(N: Any, x: Any, gamma: Any, beta: Any, w: Any) -> Any:
        d = x - N.mean(x, axes, True)
        y = d / N.sqrt(N.mean(d * d, axes, True) + eps) * gamma + beta
        return N.sum(N.to_float(y * w))

    return program


def _rms(N: Any, x: Any, gamma: Any, w: Any) -> Any:
    wide = N.to_float(x)
    y = wide * N.rsqrt(N.mean(wide * wide, -1, True) + 1e-6) * gamma
    return N.sum(y * N.to_float(w))


def _grouped(N: Any, x: Any, gamma: Any, beta: Any, w: Any) -> Any:
    g = x.reshape((32, 8, 16, 56, 56))
    d = g - N.mean(g, (2, 3, 4), True)
    y = (d / N.sqrt(N.mean(d * d, (2, 3, 4), True) + 1e-5)).reshape((32, 128, 56, 56))
    z = y * gamma + beta
    return N.sum(z * N.sigmoid(z) * w)


def _weight_norm(N: Any, v: Any, g: Any, c: Any) -> Any:
    return N.sum(g * v / N.sqrt(N.sum(v * v, 1, True)) * c)


def _batch_statistics(N: Any, x: Any) -> Any:
    mean = N.mean(x, (0, 2, 3))
    return mean, N.mean(x * x, (0, 2, 3)) - mean**2, N.max(x, (0, 2, 3)), N.min(x, (0, 2, 3))


def _norms() -> Iterator[Nest]:
    yield row(
        "batch norm written out",
        _normed((0, 2, 3)),
        floats(64, 128, 56, 56),
        floats(1, 128, 1, 1),
        floats(1, 128, 1, 1, seed=3),
        floats(64, 128, 56, 56, seed=2),
        wrt=3,
    )
    yield row(
        "batch norm of columns",
        _normed(0),
        floats(65536, 256),
        floats(256),
        floats(256, seed=3),
        floats(65536, 256, seed=2),
        wrt=3,
    )
    yield row(
        "norm of channels first",
        _normed(1),
        floats(32, 96, 112, 112),
        floats(1, 96, 1, 1),
        floats(1, 96, 1, 1, seed=3),
        floats(32, 96, 112, 112, seed=2),
        wrt=3,
    )
    yield row(
        "instance norm",
        _normed((2, 3)),
        floats(32, 64, 112, 112),
        floats(1, 64, 1, 1),
        floats(1, 64, 1, 1, seed=3),
        floats(32, 64, 112, 112, seed=2),
        wrt=3,
    )
    yield row(
        "layer norm written out",
        _normed(1),
        floats(16384, 1024),
        floats(1024),
        floats(1024, seed=3),
        floats(16384, 1024, seed=2),
        wrt=3,
    )
    yield row(
        "RMS norm, bfloat16",
        _rms,
        floats(16384, 2048, dtype="bfloat16"),
        floats(2048),
        floats(16384, 2048, dtype="bfloat16", seed=2),
        wrt=2,
    )
    yield row(
        "group norm and silu",
        _grouped,
        floats(32, 128, 56, 56),
        floats(1, 128, 1, 1),
        floats(1, 128, 1, 1, seed=3),
        floats(32, 128, 56, 56, seed=2),
        wrt=3,
    )
    yield row(
        "weight norm",
        _weight_norm,
        floats(4096, 4096),
        floats(4096, 1),
        floats(4096, 4096, seed=2),
        wrt=2,
    )
    yield row("statistics of channels", _batch_statistics, floats(64, 128, 56, 56))


# -- attention ------------------------------------------------------------------------------------


def _attended(N: Any, q: Any, k: Any, v: Any, bias: Any) -> Any:
    s = N.matmul(q, N.transpose(k, (0, 1, 3, 2))) * 0.125
    return N.matmul(N.softmax(bias(s), -1), v)


def _causal(N: Any, q: Any, k: Any, v: Any, keep: Any) -> Any:
    i = N.arange(512)
    seen = (i[None, :] <= i[:, None])[None, None] & keep[:, None, None, :]
    return N.sum(_attended(N, q, k, v, lambda s: N.where(seen, s, -1e9)) ** 2)


def _alibi(N: Any, q: Any, k: Any, v: Any, slopes: Any) -> Any:
    i = N.arange(512)
    far = N.to_float(N.abs(i[None, :] - i[:, None]))
    return N.sum(_attended(N, q, k, v, lambda s: s - slopes[:, None, None] * far) ** 2)


def _relative(N: Any, q: Any, k: Any, v: Any, table: Any) -> Any:
    i = N.arange(512)
    bias = table[:, i[None, :] - i[:, None] + 511]
    return N.sum(_attended(N, q, k, v, lambda s: s + bias) ** 2)


def _linear_attention(N: Any, q: Any, k: Any, v: Any) -> Any:
    q, k = N.elu(q) + 1, N.elu(k) + 1
    over = N.matmul(q, N.matmul(N.transpose(k, (0, 1, 3, 2)), v))
    return N.sum((over / N.sum(q * N.sum(k, 2, True), -1, True)) ** 2)


def _rotary(N: Any, x: Any, cos: Any, sin: Any) -> Any:
    a, b = x[:, :, :, :32], x[:, :, :, 32:]
    return N.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def _one_query(N: Any, q: Any, k: Any, v: Any, n: Any) -> Any:
    s = N.sum(q[:, :, None, :] * k, -1) * 0.125
    s = N.where(N.arange(2048)[None, None, :] < n[:, None, None], s, -1e9)
    return N.sum(N.softmax(s, -1)[:, :, :, None] * v, 2)


def _attention() -> Iterator[Nest]:
    qkv = [floats(16, 8, 512, 64, seed=s) for s in range(3)]
    half = [floats(16, 8, 512, 64, seed=s, dtype="bfloat16") for s in range(3)]
    yield row("causal attention of padded texts", _causal, *qkv, mask(16, 512), wrt=3)
    yield row("attention with slopes", _alibi, *qkv, floats(8, low=0), wrt=3)
    yield row("attention with relative places", _relative, *qkv, floats(8, 1023), wrt=4)
    yield row("linear attention", _linear_attention, *qkv, wrt=3)
    yield row(
        "rotation of places, bfloat16",
        _rotary,
        half[0],
        floats(512, 32, dtype="bfloat16"),
        floats(512, 32, dtype="bfloat16", seed=2),
    )
    yield row(
        "one query and a cache",
        _one_query,
        floats(32, 8, 64),
        floats(32, 8, 2048, 64),
        floats(32, 8, 2048, 64, seed=1),
        whole(2048, 32),
    )
