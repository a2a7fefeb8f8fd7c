"""Programs of :mod:`user_programs`: steps of optimisers and decoding, images, metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.cpu.nest import Nest
from benchmarks.gpu.user_names import Make, floats, mask, number, row, whole

__all__ = ["rows"]


def rows() -> Iterator[Nest]:
    """All rows."""
    for family in (_optimisers, _images, _decoding, _metrics, _others):
        yield from family()


# -- optimisers -----------------------------------------------------------------------------------


def _adam(N: Any, p: Any, g: Any, m: Any, v: Any, lr: Any, t: Any) -> Any:
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    step = lr * N.sqrt(1 - 0.999**t) / (1 - 0.9**t)
    return p - step * m / (N.sqrt(v) + 1e-8) - lr * 0.01 * p, m, v


def _lion(N: Any, p: Any, g: Any, m: Any, lr: Any) -> Any:
    return p - lr * (N.sign(0.9 * m + 0.1 * g) + 0.1 * p), 0.99 * m + 0.01 * g


def _adafactor(N: Any, p: Any, g: Any, r: Any, c: Any, lr: Any) -> Any:
    square = g * g + 1e-30
    r, c = 0.99 * r + 0.01 * N.mean(square, 1), 0.99 * c + 0.01 * N.mean(square, 0)
    u = g * N.rsqrt(r / N.mean(r))[:, None] * N.rsqrt(c)[None, :]
    return p - lr * u / N.maximum(N.sqrt(N.mean(u * u)), 1.0), r, c


def _lamb(N: Any, p: Any, g: Any, m: Any, v: Any, lr: Any) -> Any:
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    u = m / (N.sqrt(v) + 1e-6) + 0.01 * p
    trust = N.sqrt(N.sum(p * p)) / (N.sqrt(N.sum(u * u)) + 1e-6)
    return p - lr * trust * u, m, v


def _clipped(N: Any, *gs: Any) -> Any:
    norm = N.sqrt(sum(N.sum(g * g) for g in gs))
    return tuple(g * N.minimum(1.0 / (norm + 1e-6), 1.0) for g in gs)


def _averaged(N: Any, *both: Any) -> Any:
    half = len(both) // 2
    return tuple(0.999 * a + 0.001 * b for a, b in zip(both[:half], both[half:]))


def _optimisers() -> Iterator[Nest]:
    four = [floats(4096, 4096, seed=s, low=0) for s in range(4)]
    yield row("Adam, rate and step given", _adam, *four, number(1e-3), number(7.0))
    yield row("Adam, an integer step", _adam, *four, number(1e-3), number(7, "int64"))
    yield row("Lion", _lion, *four[:3], number(0.5))
    yield row(
        "Adafactor", _adafactor, *four[:2], floats(4096, low=0), floats(4096, low=0), number(1e-3)
    )
    yield row("LAMB", _lamb, *four, number(1e-3))
    sizes = [(1024, 1024 + 64 * s) for s in range(10)]
    yield row("clipped to a norm", _clipped, *(floats(*s) for s in sizes))
    yield row(
        "moving averages", _averaged, *(floats(*s) for s in sizes), *(floats(*s) for s in sizes)
    )


# -- images ---------------------------------------------------------------------------------------


def _pixels(N: Any, x: Any, mean: Any, std: Any) -> Any:
    return N.transpose((N.to_float(x) / 255 - mean) / std, (0, 3, 1, 2))


def _flipped(N: Any, x: Any, m: Any) -> Any:
    return N.where(m[:, None, None, None], N.flip(x, 3), x)


def _cropped(N: Any, x: Any, top: Any, left: Any) -> Any:
    n, i = N.arange(64), N.arange(192)
    return x[n[:, None, None], :, (top[:, None] + i)[:, :, None], (left[:, None] + i)[:, None, :]]


def _mixed(N: Any, x: Any, order: Any, part: Any) -> Any:
    part = part[:, None, None, None]
    return part * x + (1 - part) * x[order]


def _jittered(N: Any, x: Any, b: Any, c: Any, s: Any) -> Any:
    x = x * b[:, None, None, None]
    x = N.mean(x, (1, 2, 3), True) * (1 - c[:, None, None, None]) + x * c[:, None, None, None]
    gray = 0.299 * x[:, 0:1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:3]
    return N.clip(gray * (1 - s[:, None, None, None]) + x * s[:, None, None, None], 0.0, 1.0)


def _erased(N: Any, x: Any, box: Any) -> Any:
    i = N.arange(224)[None, :]
    y = (i >= box[:, 0:1]) & (i < box[:, 1:2])
    z = (i >= box[:, 2:3]) & (i < box[:, 3:4])
    return N.where((y[:, :, None] & z[:, None, :])[:, None], 0.0, x)


def _images() -> Iterator[Nest]:
    x = floats(64, 3, 224, 224, low=0)
    yield row(
        "pixels to floats",
        _pixels,
        whole(256, 128, 224, 224, 3, dtype="uint8"),
        floats(3),
        floats(3, low=1, high=2),
    )
    yield row("flips by a mask", _flipped, x, mask(64))
    yield row("crops", _cropped, x, whole(32, 64), whole(32, 64, seed=2))
    yield row("mixup", _mixed, x, whole(64, 64), floats(64, low=0))
    yield row("colours changed", _jittered, x, *(floats(64, low=0, seed=s) for s in range(3)))
    yield row("boxes erased", _erased, x, whole(224, 64, 4))


# -- decoding, metrics, others --------------------------------------------------------------------


def _beam(N: Any, z: Any, score: Any) -> Any:
    total = (score[:, :, None] + N.log_softmax(z, 2)).reshape((64, 8 * 8192))
    best, at = N.topk(total, 8)
    return best, at // 8192, at % 8192


def _nucleus(N: Any, z: Any, u: Any) -> Any:
    p = N.softmax(z, 1)
    order = N.argsort(-p, 1)
    sorted_ = N.take_along(p, order, 1)
    kept = N.where(N.cumsum(sorted_, 1) - sorted_ < 0.9, sorted_, 0.0)
    return N.take_along(order, N.argmax(N.log(kept) + u, 1)[:, None], 1)


def _gumbel(N: Any, z: Any, u: Any) -> Any:
    return N.argmax(z / 0.8 - N.log(-N.log(u)), 1)


def _decoding() -> Iterator[Nest]:
    yield row("step of a beam search", _beam, floats(64, 8, 8192), floats(64, 8))
    yield row("nucleus", _nucleus, floats(256, 8192, high=5), floats(256, 8192, seed=2))
    yield row(
        "Gumbel's sampling", _gumbel, floats(2048, 8192), floats(2048, 8192, low=1e-3, seed=2)
    )


def _accuracies(N: Any, z: Any, y: Any) -> Any:
    own = N.take_along(z, y[:, None], 1)
    rank = N.sum(N.to_int(z > own), 1)
    hits = (
        N.mean(N.to_float(rank < 1)),
        N.mean(N.to_float(rank < 5)),
        N.mean(1.0 / (1 + N.to_float(rank))),
    )
    return hits


def _confusion(N: Any, z: Any, y: Any) -> Any:
    return N.bincount(y * 100 + N.argmax(z, 1), 10000)


def _correlations(N: Any, x: Any, y: Any) -> Any:
    a, b = x - N.mean(x, 0, True), y - N.mean(y, 0, True)
    return N.sum(a * b, 0) / N.sqrt(N.sum(a * a, 0) * N.sum(b * b, 0))


def _area(N: Any, s: Any, y: Any) -> Any:
    hit = y[N.argsort(s, 0)]
    return N.sum(hit * N.cumsum(1 - hit, 0)) / (N.sum(hit) * N.sum(1 - hit))


def _intersections(N: Any, z: Any, t: Any) -> Any:
    own, true = z > 0, t > 0
    return N.sum(N.to_float(own & true), (0, 2, 3)) / N.sum(N.to_float(own | true), (0, 2, 3))


def _metrics() -> Iterator[Nest]:
    yield row("accuracies and ranks", _accuracies, floats(16384, 1000), whole(1000, 16384))
    yield row("confusions", _confusion, floats(1 << 18, 100), whole(100, 1 << 18))
    yield row(
        "correlations of columns", _correlations, floats(65536, 256), floats(65536, 256, seed=2)
    )
    yield row("area under a curve", _area, floats(1 << 20), _mask_of_floats(1 << 20))
    yield row(
        "intersections over unions",
        _intersections,
        floats(32, 16, 256, 256),
        floats(32, 16, 256, 256, seed=2),
    )


def _mask_of_floats(n: int) -> Make:
    return lambda: mask(n)().astype("float32")


def _means(N: Any, x: Any, c: Any) -> Any:
    far = N.sum(c * c, 1)[None, :] - 2 * N.matmul(x, c.T)
    near = N.to_float(N.eq(N.arange(64)[None, :], N.argmin(far, 1)[:, None]))
    return N.matmul(near.T, x) / (N.sum(near, 0)[:, None] + 1e-6)


def _sinkhorn(N: Any, c: Any) -> Any:
    f, g = N.sum(c, 1) * 0, N.sum(c, 0) * 0
    for _ in range(5):
        f = -N.logsumexp(g[None, :] - c, 1)
        g = -N.logsumexp(f[:, None] - c, 0)
    return N.exp(f[:, None] + g[None, :] - c)


def _gru(N: Any, x: Any, h: Any) -> Any:
    r, z = N.sigmoid(x[:, :1024] + h[:, :1024]), N.sigmoid(x[:, 1024:2048] + h[:, 1024:2048])
    n = N.tanh(x[:, 2048:] + r * h[:, 2048:])
    return N.sum(((1 - z) * n + z) ** 2)


def _swiglu(N: Any, a: Any, b: Any) -> Any:
    return N.sum(N.to_float(a * N.sigmoid(a) * b))


def _excited(N: Any, x: Any, w: Any, v: Any) -> Any:
    s = N.sigmoid(N.matmul(N.maximum(N.matmul(N.mean(x, (2, 3)), w), 0.0), v))
    return N.sum((x * s[:, :, None, None]) ** 2)


def _distances(N: Any, x: Any, y: Any) -> Any:
    return N.mean(N.sqrt(N.sum((x[:, None, :] - y[None, :, :]) ** 2, 2) + 1e-6))


def _columns(N: Any, x: Any, w: Any) -> Any:
    return N.sum(N.log_softmax(x, 0) * w)


def _mixtures(N: Any, x: Any, mu: Any, s: Any, pi: Any) -> Any:
    z = (x[:, None] - mu) * N.exp(-s)
    return -N.mean(N.logsumexp(N.log_softmax(pi, 1) - 0.5 * z * z - s, 1))


def _others() -> Iterator[Nest]:
    yield row("step of k means", _means, floats(1 << 18, 32), floats(64, 32, seed=2))
    yield row("Sinkhorn", _sinkhorn, floats(4096, 4096, low=0))
    yield row("cell of a GRU", _gru, floats(8192, 3072), floats(8192, 3072, seed=2), wrt=2)
    yield row(
        "SwiGLU, bfloat16",
        _swiglu,
        floats(8192, 4096, dtype="bfloat16"),
        floats(8192, 4096, dtype="bfloat16", seed=2),
        wrt=2,
    )
    yield row(
        "channels excited",
        _excited,
        floats(64, 256, 56, 56),
        floats(256, 16),
        floats(16, 256),
        wrt=3,
    )
    yield row("distances of points", _distances, floats(2048, 16), floats(2048, 16, seed=2), wrt=2)
    yield row(
        "log-softmax of columns", _columns, floats(8192, 4096), floats(8192, 4096, seed=2), wrt=1
    )
    yield row(
        "mixture density",
        _mixtures,
        floats(1 << 20),
        floats(1 << 20, 8),
        floats(1 << 20, 8, seed=2),
        floats(1 << 20, 8, seed=3),
        wrt=4,
    )
