"""Rows of :mod:`benchmarks.cpu.survey_varied`: images, sound and series."""

from __future__ import annotations

from typing import Any

from benchmarks.cpu.family_rows import made
from benchmarks.cpu.varied_spaces import Rows


def rows() -> Rows:
    """Those of this module."""
    yield from _images()
    yield from _audio()
    yield from _series()


# -- images ----------------------------------------------------------------------------------------


def _images() -> Rows:
    frame, batch = (
        made(240, 320, 3, dtype="uint8", high=256),
        made(8, 120, 160, 3, dtype="uint8", high=256),
    )
    plane, plane8 = made(300, 400), made(300, 400, dtype="uint8", high=256)
    yield "image to CHW float", (batch,), to_chw, "", ()
    yield "image to CHW float, one", (frame,), to_chw_one, "", ()
    yield "grey of RGB uint8", (batch,), grey, "", ()
    yield "RGB to HSV", (made(200, 300, 3),), hsv, "", ()
    yield "RGB to YCbCr uint8", (frame,), ycbcr, "", ()
    yield "bilateral 5x5", (plane,), bilateral, "", (0,)
    yield "dilation 3x3 uint8", (plane8,), dilation, "", ()
    yield "opening 3x3 float", (plane,), opening, "", ()
    yield "median 3x3", (made(150, 200),), median3, "", ()
    yield "histogram equalisation", (plane8,), equalised, "jax", ()
    yield "Sobel magnitude", (plane,), sobel, "", (0,)
    yield "nearest resize", (batch,), nearest_resize, "", ()
    yield "bilinear resize by gathers", (made(120, 160, 3),), bilinear, "", (0,)
    yield "box blur by cumsum", (plane,), box_blur, "", (0,)
    yield (
        "random crops and flips",
        (batch, made(8, dtype="int64", high=20), made(8, dtype="bool")),
        crops,
        "",
        (),
    )
    yield "cutout", (made(16, 3, 64, 64), made(16, dtype="int64", high=64)), cutout, "", (0,)
    yield (
        "mixup",
        (made(32, 3, 48, 48), made(32, dtype="int64", high=32), made(32)),
        mixup,
        "",
        (0,),
    )
    yield "SSIM-like 8x8 blocks", (plane, made(300, 400, seed=1)), ssim, "", (0,)
    yield "IoU of boxes", (made(300, 4), made(200, 4, seed=1)), iou, "", (0,)
    yield "integral image sums", (plane8,), integral, "", ()
    yield "Floyd thresholds", (plane8,), ordered_dither, "", ()
    yield (
        "dice loss",
        (made(8, 4, 64, 64), made(8, 64, 64, dtype="int64", high=4)),
        dice,
        "",
        (0,),
    )
    yield "max pool by windows", (made(8, 16, 64, 64),), pool_by_reshape, "", (0,)


def to_chw(xp: Any, x: Any) -> Any:
    mean, std = 0.45, 0.225
    return (xp.transpose(xp.cast(x, "float32"), (0, 3, 1, 2)) / 255 - mean) / std + 0


def to_chw_one(xp: Any, x: Any) -> Any:
    return xp.transpose(xp.cast(x, "float32") / 255, (2, 0, 1)) * 2 - 1


def grey(xp: Any, x: Any) -> Any:
    f = xp.cast(x, "float32")
    return xp.cast(0.299 * f[..., 0] + 0.587 * f[..., 1] + 0.114 * f[..., 2], "uint8")


def hsv(xp: Any, x: Any) -> Any:
    x = xp.sigmoid(x)
    r, g, b = x[..., 0], x[..., 1], x[..., 2]
    top, low = xp.amax(x, -1), xp.amin(x, -1)
    span = top - low + 1e-6
    h = xp.where(
        top <= r, (g - b) / span % 6, xp.where(top <= g, (b - r) / span + 2, (r - g) / span + 4)
    )
    return xp.stack([h / 6, span / (top + 1e-6), top], -1)


def ycbcr(xp: Any, x: Any) -> Any:
    f = xp.cast(x, "float32")
    r, g, b = f[..., 0], f[..., 1], f[..., 2]
    y = 0.299 * r + 0.587 * g + 0.114 * b
    planes = [y, (b - y) * 0.564 + 128, (r - y) * 0.713 + 128]
    return xp.cast(xp.clip(xp.stack(planes, -1), 0, 255), "uint8")


def _shifts(xp: Any, x: Any, n: int, mode: str = "edge") -> list[Any]:
    p = xp.pad(x, ((n, n), (n, n)), mode)
    h, w = x.shape
    return [p[i : i + h, j : j + w] for i in range(2 * n + 1) for j in range(2 * n + 1)]


def bilateral(xp: Any, x: Any) -> Any:
    total, weights = 0.0, 0.0
    for n, s in enumerate(_shifts(xp, x, 2)):
        i, j = n // 5 - 2, n % 5 - 2
        w = xp.exp(-((s - x) ** 2) * 2 - (i * i + j * j) / 8)
        total, weights = total + w * s, weights + w
    return total / weights


def dilation(xp: Any, x: Any) -> Any:
    found, *others = _shifts(xp, xp.cast(x, "int32"), 1, "constant")
    for s in others:
        found = xp.maximum(found, s)
    return xp.cast(found, "uint8")


def opening(xp: Any, x: Any) -> Any:
    for f in (xp.minimum, xp.maximum):
        found, *others = _shifts(xp, x, 1)
        for s in others:
            found = f(found, s)
        x = found
    return x


def median3(xp: Any, x: Any) -> Any:
    return xp.sort(xp.stack(_shifts(xp, x, 1), -1), -1)[..., 4]


def equalised(xp: Any, x: Any) -> Any:
    counts = xp.bincount(xp.cast(x.reshape(-1), "int64"), minlength=256)
    below = xp.cast(xp.cumsum(counts, 0), "float32")
    table = xp.cast(xp.clip(below / below[-1] * 255, 0, 255), "uint8")
    return table[xp.cast(x, "int64")]


def sobel(xp: Any, x: Any) -> Any:
    a, b, c, d, _, f, g, h, i = _shifts(xp, x, 1)
    gx, gy = c + 2 * f + i - a - 2 * d - g, g + 2 * h + i - a - 2 * b - c
    return xp.sqrt(gx * gx + gy * gy + 1e-6)


def nearest_resize(xp: Any, x: Any) -> Any:
    rows, columns = xp.arange(90) * 120 // 90, xp.arange(200) * 160 // 200
    return x[:, rows][:, :, columns]


def bilinear(xp: Any, x: Any) -> Any:
    v, u = (
        xp.cast(xp.arange(180), "float32") * (119 / 179),
        xp.cast(xp.arange(200), "float32") * (159 / 199),
    )
    i, j = xp.clip(xp.cast(v, "int64"), 0, 118), xp.clip(xp.cast(u, "int64"), 0, 158)
    a, b = (v - i)[:, None, None], (u - j)[None, :, None]
    top, low = x[i], x[i + 1]
    rows = xp.cast(top * (1 - a) + low * a, "float32")
    return xp.cast(rows[:, j] * (1 - b) + rows[:, j + 1] * b, "float32")


def box_blur(xp: Any, x: Any) -> Any:
    n = 9
    s = xp.cumsum(xp.pad(x, ((n, 0), (0, 0))), 0)
    x = (s[n:] - s[:-n]) / n
    s = xp.cumsum(xp.pad(x, ((0, 0), (n, 0))), 1)
    return (s[:, n:] - s[:, :-n]) / n


def crops(xp: Any, x: Any, at: Any, flipped: Any) -> Any:
    rows = at[:, None] + xp.arange(100)
    n = xp.arange(8)[:, None]
    found = x[n, rows][:, :, 10:138]
    return xp.where(flipped[:, None, None, None], xp.flip(found, 2), found)


def cutout(xp: Any, x: Any, at: Any) -> Any:
    near = abs(xp.arange(64) - at[:, None]) < 8
    hidden = near[:, None, :, None] & near[:, None, None, :]
    return xp.where(hidden, 0, x)


def mixup(xp: Any, x: Any, other: Any, share: Any) -> Any:
    a = xp.sigmoid(share)[:, None, None, None]
    return a * x + (1 - a) * x[other]


def ssim(xp: Any, x: Any, y: Any) -> Any:
    x, y = (v[:296].reshape(37, 8, 50, 8) for v in (x, y))
    mx, my = x.mean((1, 3)), y.mean((1, 3))
    vx, vy = (x * x).mean((1, 3)) - mx * mx, (y * y).mean((1, 3)) - my * my
    both = (x * y).mean((1, 3)) - mx * my
    found = (2 * mx * my + 0.01) * (2 * both + 0.03)
    return (found / ((mx * mx + my * my + 0.01) * (vx + vy + 0.03))).mean()


def iou(xp: Any, x: Any, y: Any) -> Any:
    low = xp.maximum(x[:, None, :2], y[:, :2])
    top = xp.minimum(x[:, None, :2] + abs(x[:, None, 2:]), y[:, :2] + abs(y[:, 2:]))
    sides = xp.maximum(top - low, 0 * low)
    inner = sides[..., 0] * sides[..., 1]
    area, other = (abs(v[:, 2] * v[:, 3]) for v in (x, y))
    return inner / (area[:, None] + other - inner + 1e-6)


def integral(xp: Any, x: Any) -> Any:
    s = xp.cumsum(xp.cumsum(xp.cast(x, "int64"), 0), 1)
    return s[20:, 20:] - s[:-20, 20:] - s[20:, :-20] + s[:-20, :-20]


def ordered_dither(xp: Any, x: Any) -> Any:
    i, j = xp.arange(300)[:, None] % 4, xp.arange(400) % 4
    bound = ((i ^ j) * 4 + j) * 16 + 8
    return xp.cast(xp.cast(x, "int64") > bound, "uint8") * 255


def dice(xp: Any, x: Any, y: Any) -> Any:
    p = xp.softmax(x, 1)
    hot = xp.cast(y[:, None] - xp.arange(4)[:, None, None] <= 0, "float32")
    both, sums = (p * hot).sum((2, 3)), (p + hot).sum((2, 3))
    return 1 - (2 * both / (sums + 1)).mean()


def pool_by_reshape(xp: Any, x: Any) -> Any:
    v = x.reshape(8, 16, 32, 2, 32, 2)
    return xp.amax(v, (3, 5))


# -- sound -----------------------------------------------------------------------------------------


def _audio() -> Rows:
    wave, waves = made(48000), made(8, 16000)
    yield "STFT magnitudes", (waves, made(400)), stft, "", (0,)
    yield "log-mel", (waves, made(400), made(40, 201)), log_mel, "", (0,)
    yield "pre-emphasis", (waves,), preemphasis, "", (0,)
    yield "overlap-add", (made(200, 512), made(512)), overlap_add, "", (0,)
    yield "one-pole filter by scan", (made(400, 64),), one_pole, "", (0,)
    yield "biquad by scan", (made(300, 16),), biquad, "", ()
    yield "mu-law coding", (wave,), mu_law, "", ()
    yield "autocorrelation by FFT", (waves,), autocorrelation, "", (0,)
    yield "zero crossings", (waves,), zero_crossings, "", ()
    yield "spectral centroid", (made(8, 100, 257),), centroid, "", (0,)
    yield "decimate by mean", (wave,), decimate, "", (0,)
    yield "DCT-II by matrix", (made(800, 40), made(40, 13)), dct, "", (0,)


def stft(xp: Any, x: Any, w: Any) -> Any:
    return abs(xp.fft.rfft(xp.window(x, 400, 160) * w))


def log_mel(xp: Any, x: Any, w: Any, mel: Any) -> Any:
    s = xp.fft.rfft(xp.window(x, 400, 160) * w)
    power = xp.real(s) ** 2 + xp.imag(s) ** 2
    return xp.log(power @ abs(mel).T + 1e-3)


def preemphasis(xp: Any, x: Any) -> Any:
    y = xp.concatenate([x[:, :1], x[:, 1:] - 0.97 * x[:, :-1]], 1)
    return y / (abs(y).mean(1, keepdims=True) + 1e-5)


def overlap_add(xp: Any, x: Any, w: Any) -> Any:
    y = x * w
    a, b = y[:, :256], y[:, 256:]
    joined = xp.concatenate([xp.pad(a, ((0, 1), (0, 0))) + xp.pad(b, ((1, 0), (0, 0)))], 0)
    return joined.reshape(-1)


def one_pole(xp: Any, x: Any) -> Any:
    return xp.scan(lambda s, v: 0.9 * s + 0.1 * v, x[0], x)


def biquad(xp: Any, x: Any) -> Any:
    def step(s: Any, v: Any) -> Any:
        y = 0.2 * v + s[0]
        return xp.stack([0.4 * v - 0.5 * y + s[1], 0.2 * v + 0.3 * y])

    return xp.scan(step, x[:2] * 0, x)


def mu_law(xp: Any, x: Any) -> Any:
    x = xp.tanh(x)
    y = xp.sign(x) * xp.log1p(255 * abs(x)) / xp.log1p(0 * x + 255)
    return xp.cast((y + 1) * 127.5, "uint8") // 4


def autocorrelation(xp: Any, x: Any) -> Any:
    s = xp.fft.rfft(x, 32768)
    return xp.fft.irfft(s * xp.conj(s), 32768)[:, :400] / 16000


def zero_crossings(xp: Any, x: Any) -> Any:
    frames = x.reshape(8, 40, 400)
    return ((frames[..., 1:] > 0) ^ (frames[..., :-1] > 0)).sum(-1)


def centroid(xp: Any, x: Any) -> Any:
    power = x * x
    return (power * xp.cast(xp.arange(257), "float32")).sum(-1) / (power.sum(-1) + 1e-6)


def decimate(xp: Any, x: Any) -> Any:
    return xp.tanh(x.reshape(-1, 6).mean(1))


def dct(xp: Any, x: Any, w: Any) -> Any:
    y = xp.log(abs(x) + 1) @ w
    return y - y.mean(0)


# -- series ----------------------------------------------------------------------------------------


def _series() -> Rows:
    table, line = made(2000, 30), made(20000)
    yield "ewma by scan", (made(500, 30),), ewma, "", (0,)
    yield "ARIMA residuals by scan", (made(300, 8), made(8)), arma, "", (1,)
    yield "rolling mean and std", (table,), rolling, "", (0,)
    yield "rolling max", (table,), rolling_max, "", (0,)
    yield "lag features", (line,), lags, "", (0,)
    yield "DTW by scan", (made(60), made(60, seed=1)), dtw, "", ()
    yield "drawdown", (table,), drawdown, "numpy", ()
    yield "log returns, z-scores", (table,), returns, "", ()
    yield "seasonal means", (made(24 * 100, 12),), seasonal, "", (0,)
    yield "forward fill by index", (table, made(2000, dtype="bool")), fill_index, "numpy", ()
    yield "linear detrend", (table,), detrend, "", (0,)
    yield "autocovariances", (made(5000),), autocovariances, "", (0,)
    yield "run lengths", (made(20000, dtype="int64", high=3),), runs, "numpy", ()
    yield "Kalman by scan", (made(200, 2), made(4, 4)), kalman, "", ()


def ewma(xp: Any, x: Any) -> Any:
    return xp.scan(lambda s, v: s + (v - s) * 0.05, x[0], x)


def arma(xp: Any, x: Any, w: Any) -> Any:
    a = xp.tanh(w)
    e = xp.scan(lambda s, v: v - a * s, x[0] * 0, x[1:] - 0.5 * x[:-1])
    return (e * e).mean(0)


def rolling(xp: Any, x: Any) -> Any:
    s, q = xp.cumsum(x, 0), xp.cumsum(x * x, 0)
    mean, square = (s[20:] - s[:-20]) / 20, (q[20:] - q[:-20]) / 20
    return (x[20:] - mean) / xp.sqrt(abs(square - mean * mean) + 1e-3)


def rolling_max(xp: Any, x: Any) -> Any:
    found = x[:-7]
    for n in range(1, 8):
        found = xp.maximum(found, x[n : n - 7 or None])
    return found - x[7:]


def lags(xp: Any, x: Any) -> Any:
    return xp.stack([x[10 - n : 20000 - n] for n in range(1, 11)], 1)


def dtw(xp: Any, x: Any, y: Any) -> Any:
    cost = abs(x[:, None] - y)
    wide = xp.pad(cost, ((0, 0), (0, 0))) + 0
    # the least sum to a cell by steps down or right, of rows: y[j] = min(up[j], up[j-1]) + c[j]

    def step(s: Any, c: Any) -> Any:
        before = xp.concatenate([s[:1] + 1000, s[:-1]])
        return xp.minimum(s, before) + c

    return xp.scan(step, xp.cumsum(cost[0], 0), wide[1:])[-1]


def drawdown(xp: Any, x: Any) -> Any:
    from benchmarks.cpu.nest import T, jax, torch

    v = xp.cumsum(x, 0)
    of = {"symdnn": lambda: T.cummax(v, 0), "torch": lambda: torch.cummax(v, 0)[0],
          "jax": lambda: jax.lax.cummax(v, 0)}  # fmt: skip
    top = of[type(xp).__name__[1:].lower()]()
    return xp.amax(top - v, 0)


def returns(xp: Any, x: Any) -> Any:
    r = xp.diff(xp.log(abs(x) + 1), axis=0)
    return (r - r.mean(0)) / xp.sqrt(((r - r.mean(0)) ** 2).mean(0) + 1e-6)


def seasonal(xp: Any, x: Any) -> Any:
    days = x.reshape(100, 24, 12)
    return (days - days.mean(0)).reshape(2400, 12)


def fill_index(xp: Any, x: Any, known: Any) -> Any:
    from benchmarks.cpu.nest import T, jax, torch

    at = xp.where(known, xp.arange(2000), 0)
    of = {"symdnn": lambda: T.cummax(at, 0), "torch": lambda: torch.cummax(at, 0)[0],
          "jax": lambda: jax.lax.cummax(at, 0)}  # fmt: skip
    return x[of[type(xp).__name__[1:].lower()]()]


def detrend(xp: Any, x: Any) -> Any:
    t = xp.cast(xp.arange(2000), "float32") / 2000 - 0.5
    slope = (t[:, None] * x).sum(0) / (t * t).sum()
    return x - x.mean(0) - t[:, None] * slope


def autocovariances(xp: Any, x: Any) -> Any:
    c = x - x.mean()
    return xp.stack([(c[n:] * c[: 5000 - n]).sum() / 5000 for n in range(16)])


def runs(xp: Any, x: Any) -> Any:
    ends = xp.nonzero(x[1:] - x[:-1])
    return xp.diff(ends[0]) if isinstance(ends, tuple | list) else xp.diff(ends[:, 0])


def kalman(xp: Any, z: Any, w: Any) -> Any:
    a = xp.eye(4, dtype=w.dtype) * 0.9 + 0.01 * w

    def step(s: Any, v: Any) -> Any:
        m, p = s[:, 0], s[:, 1:]
        m, p = a @ m, a @ p @ a.T + 0.1 * xp.eye(4, dtype=w.dtype)
        k = p[:, :2] @ xp.linalg.inv(p[:2, :2] + xp.eye(2, dtype=w.dtype))
        m, p = m + k @ (v - m[:2]), p - k @ p[:2]
        return xp.concatenate([m[:, None], p], 1)

    return xp.scan(step, xp.concatenate([w[:, :1] * 0, xp.eye(4, dtype=w.dtype)], 1), z)[:, :, 0]
