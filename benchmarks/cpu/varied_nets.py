"""Rows of :mod:`benchmarks.cpu.survey_varied`: control, recommendation and networks."""

from __future__ import annotations

from typing import Any

from benchmarks.cpu.family_rows import made
from benchmarks.cpu.varied_spaces import Rows


def rows() -> Rows:
    """Those of this module."""
    yield from _control()
    yield from _nets()


# -- control, recommendation -----------------------------------------------------------------------


def _control() -> Rows:
    yield (
        "tabular Q update",
        (
            made(500, 6),
            *(made(64, dtype="int64", high=h, seed=s) for h, s in ((500, 0), (6, 1), (500, 2))),
            made(64),
        ),
        q_update,
        "",
        (),
    )
    yield "GAE by scan", (made(128, 16), made(129, 16, seed=1)), gae, "", ()
    yield (
        "PPO loss",
        (made(512, 6), made(512), made(512, dtype="int64", high=6), made(512, seed=2)),
        ppo,
        "",
        (0,),
    )
    yield "replay sample", (made(5000, 12), made(64, dtype="int64", high=5000)), replay, "", ()
    yield "discounted returns", (made(200, 32),), discounted, "", (0,)
    yield "value iteration", (made(4, 100, 100), made(4, 100)), value_iteration, "", ()
    yield (
        "matrix factorisation",
        (
            made(1000, 16),
            made(800, 16),
            made(512, dtype="int64", high=1000),
            made(512, dtype="int64", high=800),
            made(512),
        ),
        factors,
        "",
        (0, 1),
    )
    yield (
        "BPR loss",
        (
            made(1000, 16),
            made(800, 16),
            *(made(512, dtype="int64", high=h, seed=s) for h, s in ((1000, 0), (800, 1), (800, 2))),
        ),
        bpr,
        "",
        (0,),
    )
    yield "DLRM interactions", (made(128, 9, 16),), interactions, "", (0,)
    yield "NDCG", (made(200, 50), made(200, 50, dtype="int64", high=4)), ndcg, "", ()
    yield "recall at 10", (made(200, 1000), made(200, dtype="int64", high=1000)), recall, "", ()
    yield "categorical DQN projection", (made(32, 51), made(32)), c51, "", ()


def q_update(xp: Any, q: Any, s: Any, a: Any, after: Any, r: Any) -> Any:
    target = r + 0.99 * xp.amax(q[after], 1)
    return xp.added(q, (s, a), 0.1 * (target - q[s, a]))


def gae(xp: Any, r: Any, v: Any) -> Any:
    delta = r + 0.99 * v[1:] - v[:-1]
    return xp.flip(xp.scan(lambda s, d: d + 0.95 * 0.99 * s, delta[0] * 0, xp.flip(delta, 0)), 0)


def ppo(xp: Any, x: Any, before: Any, a: Any, gain: Any) -> Any:
    logp = x - xp.logsumexp(x, 1)[:, None]
    own = xp.take_along_axis(logp, a[:, None], 1)[:, 0]
    ratio = xp.exp(own + abs(before) * 0.1)
    gain = (gain - gain.mean()) / xp.sqrt(((gain - gain.mean()) ** 2).mean() + 1e-6)
    entropy = -(xp.exp(logp) * logp).sum(1).mean()
    return -xp.minimum(ratio * gain, xp.clip(ratio, 0.8, 1.2) * gain).mean() - 0.01 * entropy


def replay(xp: Any, x: Any, at: Any) -> Any:
    return [x[at], x[(at + 1) % 5000], x[at, 0] > 0]


def discounted(xp: Any, r: Any) -> Any:
    n = xp.cast(xp.arange(200), "float32")
    w = xp.where(n >= n[:, None], 0.99 ** abs(n - n[:, None]), 0 * n)
    return (w[:, :, None] * r).sum(1)


def value_iteration(xp: Any, p: Any, r: Any) -> Any:
    p, v = xp.softmax(p, 2), r[0] * 0
    for _ in range(5):
        v = xp.amax(r + 0.9 * (p @ v), 0)
    return v


def factors(xp: Any, u: Any, v: Any, i: Any, j: Any, y: Any) -> Any:
    a, b = u[i], v[j]
    return (((a * b).sum(1) - y) ** 2).mean() + 0.01 * ((a * a).mean() + (b * b).mean())


def bpr(xp: Any, u: Any, v: Any, i: Any, j: Any, k: Any) -> Any:
    return xp.log(1 + xp.exp(-(u[i] * (v[j] - v[k])).sum(1))).mean()


def interactions(xp: Any, x: Any) -> Any:
    z = x @ xp.transpose(x, (0, 2, 1))
    return xp.concatenate(
        [x[:, 0], xp.stack([z[:, i, j] for i in range(9) for j in range(i)], 1)], 1
    )


def ndcg(xp: Any, x: Any, y: Any) -> Any:
    gains = 2.0 ** xp.cast(y, "float32") - 1
    weights = 1 / xp.log2(xp.cast(xp.arange(50), "float32") + 2)
    own = xp.take_along_axis(gains, xp.argsort(-x, 1), 1)
    ideal = xp.flip(xp.sort(gains, 1), 1)
    return ((own * weights).sum(1) / ((ideal * weights).sum(1) + 1e-6)).mean()


def recall(xp: Any, x: Any, y: Any) -> Any:
    own = xp.take_along_axis(x, y[:, None], 1)
    return xp.cast((x > own).sum(1) < 10, "float32").mean()


def c51(xp: Any, x: Any, r: Any) -> Any:
    p = xp.softmax(x, 1)
    z = xp.cast(xp.arange(51), "float32")
    place = xp.clip(z * 0.99 + r[:, None], 0, 50)
    return (xp.clip(1 - abs(place[:, :, None] - z), 0, 1) * p[:, :, None]).sum(1)


# -- networks --------------------------------------------------------------------------------------


def _nets() -> Rows:
    yield (
        "MobileNet block of 1",
        (made(1, 32, 28, 28), made(96, 32, 1, 1), made(96, 1, 3, 3), made(32, 96, 1, 1)),
        mobile,
        "numpy",
        (1,),
    )
    yield (
        "conv1d stack",
        (made(2, 8, 400), made(16, 8, 5), made(16, 16, 5), made(4, 16, 5)),
        conv1d_stack,
        "numpy",
        (1,),
    )
    yield (
        "LSTM step of 1",
        (made(1, 64), made(1, 64), made(1, 64, seed=1), made(128, 256), made(256)),
        lstm_step,
        "",
        (),
    )
    yield "GRU by scan", (made(50, 4, 16), made(4, 32), made(16, 96), made(32, 96)), gru, "", (2,)
    yield (
        "mixer block",
        (made(2, 49, 64), made(49, 49), made(64, 128), made(128, 64), made(64), made(64)),
        mixer,
        "",
        (1,),
    )
    yield "squeeze and excite", (made(4, 32, 20, 20), made(32, 8), made(8, 32)), squeeze, "", (0,)
    yield (
        "100 small parameters by Adam",
        tuple(made(*s, seed=n) for n, s in enumerate([(7, 9), (9,), (11, 5)] * 2)),
        adam_many,
        "",
        (),
    )
    yield (
        "clip by global norm",
        tuple(made(*s, seed=n) for n, s in enumerate([(64, 32), (64,), (32, 10), (10,)])),
        clip_norm,
        "",
        (),
    )
    yield "EMA of parameters", (made(100000), made(100000, seed=1)), ema, "", ()
    yield (
        "graph convolution",
        (
            made(1000, 16),
            made(5000, dtype="int64", high=1000),
            made(5000, dtype="int64", high=1000, seed=1),
            made(16, 16),
        ),
        gcn,
        "",
        (0, 3),
    )
    yield (
        "edge softmax",
        (made(5000), made(5000, dtype="int64", high=1000)),
        edge_softmax,
        "numpy",
        (),
    )
    yield "NeRF encoding", (made(4000, 3),), nerf, "", (0,)
    yield "volume rendering", (made(500, 64), made(500, 64, 3)), render, "", (0,)
    yield (
        "VAE loss",
        (made(64, 20), made(64, 20, seed=1), made(64, 100), made(20, 100)),
        vae,
        "",
        (0,),
    )
    yield "InfoNCE", (made(128, 64), made(128, 64, seed=1)), info_nce, "", (0,)
    yield "focal loss", (made(4000, 10), made(4000, dtype="int64", high=10)), focal, "", (0,)
    yield (
        "triplet loss",
        (made(128, 64), made(128, 64, seed=1), made(128, 64, seed=2)),
        triplet,
        "",
        (0,),
    )
    yield "mixture of experts", (made(128, 16), made(16, 4), made(4, 16, 32)), experts, "", (1, 2)
    yield "PINN residual", (made(256, 2), made(2, 32), made(32, 1)), pinn, "", ()
    yield (
        "bf16 MLP",
        (
            made(32, 64, dtype="bfloat16"),
            made(64, 128, dtype="bfloat16"),
            made(128, 16, dtype="bfloat16"),
        ),
        mlp,
        "numpy",
        (1,),
    )


def _relu6(xp: Any, x: Any) -> Any:
    return xp.clip(x, 0, 6)


def mobile(xp: Any, x: Any, a: Any, b: Any, c: Any) -> Any:
    y = _relu6(xp, xp.conv(x, a))
    y = _relu6(xp, xp.conv(y, b, padding=1, groups=96))
    return x + xp.conv(y, c)


def conv1d_stack(xp: Any, x: Any, a: Any, b: Any, c: Any) -> Any:
    y = xp.tanh(xp.conv(x, a, padding=2))
    y = xp.tanh(xp.conv(y, b, padding=4, dilation=2))
    return xp.conv(y, c, padding=2, stride=2)


def lstm_step(xp: Any, x: Any, h: Any, c: Any, w: Any, b: Any) -> Any:
    g = xp.concatenate([x, h], 1) @ w + b
    i, f, o = (xp.sigmoid(g[:, n * 64 : n * 64 + 64]) for n in range(3))
    c = f * c + i * xp.tanh(g[:, 192:])
    return [o * xp.tanh(c), c]


def gru(xp: Any, x: Any, h: Any, w: Any, u: Any) -> Any:
    def step(h: Any, v: Any) -> Any:
        a, b = 0.2 * (v @ w), 0.2 * (h @ u)
        z, r = xp.sigmoid(a[:, :32] + b[:, :32]), xp.sigmoid(a[:, 32:64] + b[:, 32:64])
        return z * h + (1 - z) * xp.tanh(a[:, 64:] + r * b[:, 64:])

    return xp.scan(step, h, x)


def mixer(xp: Any, x: Any, t: Any, a: Any, b: Any, w: Any, c: Any) -> Any:
    y = xp.layer_norm(x, w, c)
    x = x + xp.transpose(xp.gelu(xp.transpose(y, (0, 2, 1)) @ t), (0, 2, 1))
    return x + xp.gelu(xp.layer_norm(x, w, c) @ a) @ b


def squeeze(xp: Any, x: Any, a: Any, b: Any) -> Any:
    s = x.mean((2, 3)) @ a
    return x * xp.sigmoid(xp.where(s > 0, s, 0 * s) @ b)[:, :, None, None]


def adam_many(xp: Any, *ps: Any) -> Any:
    found = []
    for n in range(17):
        for p in ps:
            g = p * (0.1 + n)
            m, v = 0.9 * p + 0.1 * g, 0.999 * abs(p) + 0.001 * g * g
            found.append(p - 0.001 * m / (xp.sqrt(v) + 1e-8))
    return found


def clip_norm(xp: Any, *gs: Any) -> Any:
    norm = xp.sqrt(sum((g * g).sum() for g in gs))
    scale = xp.clip(1 / (norm + 1e-6), 0, 1)
    return [g * scale for g in gs]


def ema(xp: Any, x: Any, y: Any) -> Any:
    return x * 0.999 + y * (1 - 0.999)


def gcn(xp: Any, x: Any, i: Any, j: Any, w: Any) -> Any:
    degree = xp.added(x[:, 0] * 0 + 1, i, x[:1, 0] * 0 + 1 + 0 * xp.cast(i, "float32"))
    y = (x @ w) / xp.sqrt(degree)[:, None]
    return xp.tanh((xp.added(y, i, y[j])) / xp.sqrt(degree)[:, None])


def edge_softmax(xp: Any, s: Any, i: Any) -> Any:
    e = xp.exp(s - s.max())
    sums = xp.added(s[:1000] * 0, i, e)
    return e / sums[i]


def nerf(xp: Any, x: Any) -> Any:
    f = 2.0 ** xp.cast(xp.arange(6), "float32")
    y = (x[:, :, None] * f).reshape(4000, 18)
    return xp.concatenate([x, xp.sin(y), xp.cos(y)], 1)


def render(xp: Any, s: Any, c: Any) -> Any:
    alpha = 1 - xp.exp(-abs(s) * 0.1)
    through = xp.cumprod(1 - alpha + 1e-6, 1)
    w = alpha * xp.concatenate([through[:, :1] * 0 + 1, through[:, :-1]], 1)
    return (w[:, :, None] * xp.sigmoid(c)).sum(1)


def vae(xp: Any, m: Any, v: Any, x: Any, w: Any) -> Any:
    z = m + xp.exp(0.5 * v) * xp.sin(m * 9)
    s = z @ w
    y = xp.cast(x > 0, "float32")
    data = (xp.maximum(s, 0 * s) - s * y + xp.log1p(xp.exp(-abs(s)))).sum(1)
    return (data - 0.5 * (1 + v - m * m - xp.exp(v)).sum(1)).mean()


def info_nce(xp: Any, x: Any, y: Any) -> Any:
    x, y = (v / xp.sqrt((v * v).sum(1, keepdims=True)) for v in (x, y))
    s = x @ y.T / 0.07
    own = (x * y).sum(1) / 0.07
    return (xp.logsumexp(s, 1) + xp.logsumexp(s, 0) - 2 * own).mean()


def focal(xp: Any, x: Any, y: Any) -> Any:
    logp = x - xp.logsumexp(x, 1)[:, None]
    own = xp.take_along_axis(logp, y[:, None], 1)[:, 0]
    return -((1 - xp.exp(own)) ** 2 * own).mean()


def triplet(xp: Any, a: Any, b: Any, c: Any) -> Any:
    near, far = (xp.sqrt(((a - v) ** 2).sum(1) + 1e-6) for v in (b, c))
    over = near - far + 1
    return xp.where(over > 0, over, 0 * over).mean()


def experts(xp: Any, x: Any, gate: Any, w: Any) -> Any:
    p = xp.softmax(x @ gate, 1)
    best = p >= xp.amax(p, 1)[:, None]
    y = xp.tanh(xp.einsum("nd,edh->neh", x, w))
    return (y * xp.where(best, p, 0 * p)[:, :, None]).sum(1)


def pinn(xp: Any, x: Any, a: Any, b: Any) -> Any:
    t = xp.tanh(x @ a)
    slope = 1 - t * t
    ux, uxx = (slope * a[0]) @ b, (-2 * t * slope * a[0] ** 2) @ b
    u = t @ b
    return ((slope * a[1]) @ b + u * ux - 0.01 * uxx)[:, 0]


def mlp(xp: Any, x: Any, a: Any, b: Any) -> Any:
    y = x @ a
    return xp.where(y > 0, y, y * 0) @ b
