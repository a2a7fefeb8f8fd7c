"""Programs of :mod:`user_programs`: images, blocks of networks for them, samples at places.

Those of :mod:`user_signals`, :mod:`user_sciences` and :mod:`user_trained` are rows here, too. All
have sizes for tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Any

from benchmarks.cpu.nest import Nest
from benchmarks.gpu import user_sciences, user_signals, user_trained
from benchmarks.gpu.user_names import floats, mask, row, whole

__all__ = ["rows"]


def rows(small: bool = False) -> Iterator[Nest]:
    """All rows, or the same in sizes for tests."""
    more = user_signals.rows, user_sciences.rows, user_trained.rows
    for family in (_images, _blocks, _places, *more):
        yield from family(small)


# -- images ---------------------------------------------------------------------------------------


def _similar(N: Any, x: Any, y: Any, g: Any) -> Any:
    """The structural similarity of images, in windows."""
    n, c, h, w = N.dims(x)

    def blurred(v: Any) -> Any:
        return N.conv(v.reshape((n * c, 1, h, w)), g)

    a, b = blurred(x), blurred(y)
    aa, bb, ab = blurred(x * x) - a * a, blurred(y * y) - b * b, blurred(x * y) - a * b
    top = (2 * a * b + 1e-2) * (2 * ab + 9e-2)
    return 1 - N.mean(top / ((a * a + b * b + 1e-2) * (aa + bb + 9e-2)))


def _detected(N: Any, z: Any, box: Any, y: Any, goal: Any, used: Any) -> Any:
    """A focal loss of every class, and a smooth distance of the boxes that are used."""
    hot = N.to_float(N.eq(N.arange(20)[None, None, :], y[:, :, None]))
    p = N.sigmoid(z)
    loss = hot * N.softplus(-z) + (1 - hot) * N.softplus(z)
    wrong = hot * (1 - p) + (1 - hot) * p
    focal = (0.25 * hot + 0.75 * (1 - hot)) * wrong**2 * loss
    far = N.abs(box - goal)
    smooth = N.sum(N.where(far < 0.11, 4.5 * far * far, far - 0.055), 2)
    count = N.sum(N.to_float(used)) + 1.0
    return (N.sum(focal) + N.sum(N.where(used, smooth, 0.0))) / count


def _edges(N: Any, x: Any) -> Any:
    g = N.pad(0.299 * x[:, 0] + 0.587 * x[:, 1] + 0.114 * x[:, 2], ((0, 0), (1, 1), (1, 1)))
    a, b, c = g[:, :-2], g[:, 1:-1], g[:, 2:]
    down = (c - a)[:, :, :-2] + 2 * (c - a)[:, :, 1:-1] + (c - a)[:, :, 2:]
    mixed = a + 2 * b + c
    across = mixed[:, :, 2:] - mixed[:, :, :-2]
    size = N.sqrt(down * down + across * across)
    return size, size > 0.5 * N.max(size, (1, 2), True)


def _opened(N: Any, x: Any) -> Any:
    """The largest of the least in windows of 5 by 5, and what it takes away."""
    n = N.dims(x)[1]

    def window(f: Any, v: Any, n: int) -> Any:
        v = reduce(f, [v[:, k : k + n - 4] for k in range(5)])
        return reduce(f, [v[:, :, k : k + n - 4] for k in range(5)])

    opened = window(N.maximum, window(N.minimum, x, n), n - 4)
    return opened, x[:, 4:-4, 4:-4] - opened


def _equalised(N: Any, x: Any) -> Any:
    """Levels by how many pixels of the image are below."""
    n, size = N.dims(x)
    image = N.arange(n)[:, None]
    counts = N.bincount((image * 256 + x).reshape((n * size,)), n * 256).reshape((n, 256))
    below = N.to_float(N.cumsum(counts, 1)) / size
    return N.take_along(below, x, 1)


def _box_filtered(N: Any, x: Any) -> Any:
    """Means of windows of 16 by 16, by an integral image; the variance beside."""

    def mean(v: Any) -> Any:
        s = N.cumsum(N.cumsum(N.pad(v, ((0, 0), (1, 0), (1, 0))), 1), 2)
        s = s[:, 16:, 16:] - s[:, :-16, 16:] - s[:, 16:, :-16] + s[:, :-16, :-16]
        return s / 256.0

    m = mean(x)
    return m, mean(x * x) - m * m


def _images(small: bool) -> Iterator[Nest]:
    n, h = (2, 24) if small else (32, 256)
    window = floats(1, 1, 7, 7, low=0, high=0.04)
    pair = [floats(n, 3, h, h, seed=s, low=0) for s in range(2)]
    yield row("similar images", _similar, *pair, window, wrt=1)
    n, boxes = (2, 50) if small else (32, 8732)
    yield row(
        "focal loss of boxes",
        _detected,
        floats(n, boxes, 20),
        floats(n, boxes, 4),
        whole(40, n, boxes),
        floats(n, boxes, 4, seed=2),
        mask(n, boxes),
        wrt=2,
    )
    n, h = (2, 20) if small else (32, 512)
    yield row("edges of images", _edges, floats(n, 3, h, h, low=0))
    yield row("opened images", _opened, floats(n, h, h))
    yield row("equalised images", _equalised, whole(256, n, h * h))
    yield row("means of windows", _box_filtered, floats(n, h, h))


# -- blocks of networks ---------------------------------------------------------------------------


def _normed(N: Any, x: Any, gamma: Any, beta: Any, axes: Any = (0, 2, 3)) -> Any:
    d = x - N.mean(x, axes, True)
    return d * N.rsqrt(N.mean(d * d, axes, True) + 1e-5) * gamma + beta


def _inverted(N: Any, x: Any, a: Any, d: Any, s: Any, t: Any, b: Any, *norms: Any) -> Any:
    """An inverted residual block with excited channels."""
    h = _normed(N, N.conv(x, a), *norms[:2])
    h = h * N.sigmoid(h)
    h = _normed(N, N.conv(h, d, pad=1, groups=N.dims(d)[0]), *norms[2:4])
    h = h * N.sigmoid(h)
    e = N.matmul(N.mean(h, (2, 3)), s)
    e = N.sigmoid(N.matmul(e * N.sigmoid(e), t))
    return N.mean((x + N.conv(h * e[:, :, None, None], b)) ** 2)


def _convnext(N: Any, x: Any, d: Any, gamma: Any, beta: Any, a: Any, b: Any, scale: Any) -> Any:
    h = N.transpose(N.conv(x, d, pad=3, groups=N.dims(d)[0]), (0, 2, 3, 1))
    h = N.matmul(_normed(N, h, gamma, beta, -1), a)
    h = N.matmul(0.5 * h * (1 + N.erf(h * 0.70710678)), b) * scale
    return N.mean((x + N.transpose(h, (0, 3, 1, 2))) ** 2)


def _up_and_down(N: Any, x: Any, a: Any, b: Any, c: Any) -> Any:
    """Convolved, halved, convolved, doubled, joined, convolved."""
    n, _, h, w = N.dims(x)
    left = N.maximum(N.conv(x, a, pad=1), 0.0)
    low = N.max(left.reshape((n, -1, h // 2, 2, w // 2, 2)), (3, 5))
    low = N.maximum(N.conv(low, b, pad=1), 0.0)
    up = N.repeat(N.repeat(low, 2, 2), 2, 3)
    return N.mean(N.conv(N.concatenate([left, up], 1), c, pad=1) ** 2)


def _pyramid(N: Any, x: Any, y: Any, z: Any, a: Any, b: Any, c: Any) -> Any:
    """Three scales, each with what the next one says."""

    def doubled(v: Any) -> Any:
        return N.repeat(N.repeat(v, 2, 2), 2, 3)

    top = N.conv(z, c)
    middle = N.conv(y, b) + doubled(top)
    low = N.conv(x, a) + doubled(middle)
    return N.mean(low**2) + N.mean(middle**2) + N.mean(top**2)


def _shifted(N: Any, q: Any, k: Any, v: Any, table: Any) -> Any:
    """Attention in shifted windows of 7 by 7, with a bias of relative places."""
    n = N.arange(49)
    apart = (n[:, None] // 7 - n[None, :] // 7 + 6) * 13 + n[:, None] % 7 - n[None, :] % 7 + 6
    bias = N.transpose(table[apart], (2, 0, 1))
    part = N.to_int(n // 7 >= 4) * 2 + N.to_int(n % 7 >= 4)
    fill = N.where(N.eq(part[:, None], part[None, :]), 0.0, -100.0)
    s = N.matmul(q, N.transpose(k, (0, 1, 3, 2))) * 0.1767767 + bias + fill
    return N.mean(N.matmul(N.softmax(s, -1), v) ** 2)


def _blocks(small: bool) -> Iterator[Nest]:
    n, c, e, h = (2, 4, 8, 6) if small else (32, 64, 256, 28)
    yield row(
        "inverted residual block",
        _inverted,
        floats(n, c, h, h),
        floats(e, c, 1, 1, low=-0.2, high=0.2),
        floats(e, 1, 3, 3, seed=2),
        floats(e, c // 4, low=-0.2, high=0.2),
        floats(c // 4, e, low=-0.2, high=0.2),
        floats(c, e, 1, 1, low=-0.1, high=0.1),
        *(floats(1, e, 1, 1, seed=s, low=0.5) for s in range(4)),
        wrt=10,
    )
    n, c, h = (2, 8, 9) if small else (32, 192, 28)
    yield row(
        "block of a ConvNeXt",
        _convnext,
        floats(n, c, h, h),
        floats(c, 1, 7, 7, low=-0.2, high=0.2),
        floats(c),
        floats(c, seed=2),
        floats(c, 4 * c, low=-0.1, high=0.1),
        floats(4 * c, c, low=-0.1, high=0.1),
        floats(c, low=0, high=0.1),
        wrt=7,
    )
    n, c, h = (2, 4, 8) if small else (8, 32, 128)
    yield row(
        "halved, doubled and joined",
        _up_and_down,
        floats(n, c, h, h),
        floats(c, c, 3, 3, low=-0.1, high=0.1),
        floats(c, c, 3, 3, low=-0.1, high=0.1, seed=2),
        floats(c, 2 * c, 3, 3, low=-0.1, high=0.1),
        wrt=4,
    )
    n, c, h = (2, 4, 8) if small else (8, 128, 64)
    yield row(
        "pyramid of features",
        _pyramid,
        *(floats(n, c << s, h >> s, h >> s) for s in range(3)),
        *(floats(c, c << s, 1, 1, low=-0.1, high=0.1) for s in range(3)),
        wrt=6,
    )
    windows, heads = (2, 3) if small else (1024, 6)
    qkv = [floats(windows, heads, 49, 32, seed=s) for s in range(3)]
    yield row("attention in shifted windows", _shifted, *qkv, floats(169, heads), wrt=4)


# -- samples at places ----------------------------------------------------------------------------


def _bilinear(N: Any, x: Any, n: Any, py: Any, px: Any) -> Any:
    """Of images (n, h, w, c) at fractional places; 0 outside."""
    _, h, w, _ = N.dims(x)
    y, z = N.floor(py), N.floor(px)
    fy, fx = py - y, px - z
    found = 0.0
    for a, wy in ((y, 1 - fy), (y + 1, fy)):
        for b, wx in ((z, 1 - fx), (z + 1, fx)):
            inside = (a >= 0) & (a <= h - 1) & (b >= 0) & (b <= w - 1)
            i = N.to_int(N.clip(a, 0.0, h - 1.0))
            j = N.to_int(N.clip(b, 0.0, w - 1.0))
            found = found + x[n, i, j] * (wy * wx * N.to_float(inside))[..., None]
    return found


def _flow(N: Any, flow: Any, one: Any, other: Any) -> Any:
    """A warped image beside the other, and how smooth the flow is."""
    b, h, w, _ = N.dims(one)
    y = N.to_float(N.arange(h))[None, :, None] + flow[:, 0]
    x = N.to_float(N.arange(w))[None, None, :] + flow[:, 1]
    apart = _bilinear(N, one, N.arange(b)[:, None, None], y, x) - other
    photo = N.mean(N.sqrt(apart * apart + 1e-6))
    down, across = flow[:, :, 1:] - flow[:, :, :-1], flow[..., 1:] - flow[..., :-1]
    return photo + 0.1 * (N.mean(N.abs(down)) + N.mean(N.abs(across)))


def _aligned(N: Any, x: Any, box: Any, image: Any) -> Any:
    """Means of 2 by 2 samples in each of 7 by 7 parts of a box."""
    k = N.dims(box)[0]
    part = (N.to_float(N.arange(14)) + 0.5) / 14.0
    y = box[:, 0:1] + (box[:, 2:3] - box[:, 0:1]) * part
    z = box[:, 1:2] + (box[:, 3:4] - box[:, 1:2]) * part
    at = _bilinear(N, x, image[:, None, None], y[:, :, None], z[:, None, :])
    return N.mean(N.mean(at.reshape((k, 7, 2, 7, 2, -1)), (2, 4)) ** 2)


def _deformed(N: Any, x: Any, offset: Any, w: Any) -> Any:
    """A deformable convolution of 3 by 3."""
    b, h, v, c = N.dims(x)
    tap = N.arange(9)
    y = N.to_float(N.arange(h)[:, None, None] + tap // 3 - 1) + offset[..., :9]
    z = N.to_float(N.arange(v)[None, :, None] + tap % 3 - 1) + offset[..., 9:]
    at = _bilinear(N, x, N.arange(b)[:, None, None, None], y, z)
    return N.mean(N.matmul(at.reshape((b * h * v, 9 * c)), w) ** 2)


def _resized(N: Any, x: Any) -> Any:
    """Twice as large, bilinear, without aligned corners."""
    _, _, h, w = N.dims(x)

    def along(v: Any, n: int, axis: int) -> Any:
        at = N.clip((N.to_float(N.arange(2 * n)) + 0.5) / 2 - 0.5, 0.0, n - 1.0)
        low = N.to_int(N.floor(at))
        high, part = N.minimum(low + 1, n - 1), at - N.to_float(low)
        if axis == 2:
            return v[:, :, low] * (1 - part)[:, None] + v[:, :, high] * part[:, None]
        return v[..., low] * (1 - part) + v[..., high] * part

    return N.mean(along(along(x, h, 2), w, 3) ** 3)


def _suppressed(N: Any, box: Any, score: Any) -> Any:
    """Boxes by score, and whether a better one covers more than half of them."""
    order = N.argsort(-score, 0)
    b = box[order]
    low = N.maximum(b[:, None, :2], b[None, :, :2])
    high = N.minimum(b[:, None, :2] + b[:, None, 2:], b[None, :, :2] + b[None, :, 2:])
    side = N.maximum(high - low, 0.0)
    both, area = side[:, :, 0] * side[:, :, 1], b[:, 2] * b[:, 3]
    part = both / (area[:, None] + area[None, :] - both)
    worst = N.max(N.triu(part, 1), 0)
    return order, worst, worst < 0.5


def _places(small: bool) -> Iterator[Nest]:
    b, h, c = (2, 8, 3) if small else (8, 256, 16)
    yield row(
        "flow between images",
        _flow,
        floats(b, 2, h, h, low=-3, high=3),
        floats(b, h, h, c),
        floats(b, h, h, c, seed=2),
        wrt=1,
    )
    k, c = (6, 4) if small else (1024, 64)
    yield row(
        "aligned regions",
        _aligned,
        floats(2, 16, 16, c) if small else floats(8, 64, 64, c),
        floats(k, 4, low=0, high=14),
        whole(2 if small else 8, k),
        wrt=1,
    )
    b, h, c = (2, 6, 4) if small else (8, 64, 64)
    yield row(
        "deformed convolution",
        _deformed,
        floats(b, h, h, c),
        floats(b, h, h, 18),
        floats(9 * c, c, low=-0.1, high=0.1),
        wrt=3,
    )
    b, h = (2, 6) if small else (16, 128)
    yield row("images twice as large", _resized, floats(b, 16, h, h), wrt=1)
    n = 40 if small else 4096
    yield row("suppressed boxes", _suppressed, floats(n, 4, low=0), floats(n, seed=2))
