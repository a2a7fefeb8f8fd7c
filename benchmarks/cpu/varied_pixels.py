"""Rows of :mod:`benchmarks.cpu.survey_varied`: pixels, whole numbers, histograms, small matrices,
masks."""

from __future__ import annotations

from typing import Any

from benchmarks.cpu.family_rows import made
from benchmarks.cpu.varied_spaces import Rows


def rows() -> Rows:
    """Those of this module."""
    yield from _colours()
    yield from _whole_numbers()
    yield from _counts()
    yield from _matrices()
    yield from _masks()


def _colours() -> Rows:
    frame = made(240, 320, 3, dtype="uint8", high=256)
    batch = made(8, 96, 96, 3, dtype="uint8", high=256)
    floats, alpha = made(200, 300, 3), made(200, 300, 4, dtype="uint8", high=256)
    yield "RGB to BGR", (frame,), lambda xp, x: xp.flip(x, 2), "", ()
    yield "RGB to BGR float", (floats,), lambda xp, x: xp.flip(x, 2) * 2 - 1, "", (0,)
    yield "mirrored image", (frame,), lambda xp, x: xp.flip(x, 1), "", ()
    yield "upside down, mirrored", (floats,), lambda xp, x: xp.flip(xp.flip(x, 0), 1) + 1, "", (0,)
    yield "colours by mean and std", (batch, made(3), made(3)), by_mean_and_std, "", (1,)
    yield "alpha over white", (alpha,), over_white, "", ()
    yield "grey to three channels", (made(240, 320, dtype="uint8", high=256),), grey3, "", ()
    yield "saturation", (floats, made(1)), saturated, "", (0,)
    yield "brightness and contrast", (batch,), contrast, "", ()
    yield "gamma of a table", (frame, made(256, dtype="uint8", high=256)), table, "", ()
    yield "colour matrix", (floats, made(3, 3)), lambda xp, x, w: x @ w, "", (0, 1)
    yield "quarter turn", (frame,), lambda xp, x: xp.flip(x.swapaxes(0, 1), 0), "", ()
    yield "box of 2x2 uint8", (made(240, 320, dtype="uint8", high=256),), half, "", ()
    yield "largest channel", (frame,), lambda xp, x: x.max(2), "", ()
    yield "channel by channel minimum", (floats,), dark_channel, "", ()
    yield "unit normals", (floats,), unit, "", (0,)


def by_mean_and_std(xp: Any, x: Any, m: Any, s: Any) -> Any:
    return (xp.cast(x, "float32") / 255 - m) / (s * s + 1)


def over_white(xp: Any, x: Any) -> Any:
    v = xp.cast(x, "int32")
    a = v[:, :, 3:]
    return xp.cast((v[:, :, :3] * a + 255 * (255 - a) + 127) // 255, "uint8")


def grey3(xp: Any, x: Any) -> Any:
    return xp.stack([x, x, x], -1)


def saturated(xp: Any, x: Any, share: Any) -> Any:
    grey = x.mean(2, keepdims=True)
    return xp.clip(grey + (x - grey) * (1 + share), 0, 1)


def contrast(xp: Any, x: Any) -> Any:
    v = xp.cast(x, "float32")
    m = v.mean((1, 2, 3), keepdims=True)
    return xp.cast(xp.clip((v - m) * 1.3 + m + 10, 0, 255), "uint8")


def table(xp: Any, x: Any, t: Any) -> Any:
    return t[xp.cast(x, "int64")]


def half(xp: Any, x: Any) -> Any:
    v = xp.cast(x, "int32")
    total = v[::2, ::2] + v[1::2, ::2] + v[::2, 1::2] + v[1::2, 1::2]
    return xp.cast((total + 2) // 4, "uint8")


def dark_channel(xp: Any, x: Any) -> Any:
    return xp.minimum(xp.minimum(x[:, :, 0], x[:, :, 1]), x[:, :, 2])


def unit(xp: Any, x: Any) -> Any:
    return x / xp.sqrt((x * x).sum(2, keepdims=True) + 1e-6)


def _whole_numbers() -> Rows:
    plane = made(240, 320, dtype="uint8", high=256)
    longs = made(60000, dtype="int64", high=1 << 40)
    yield "blend of bytes", (plane, plane), blended, "", ()
    yield "levels of bytes", (plane,), lambda xp, x: x // 32 * 32 + 16, "", ()
    yield "bits of bytes", (plane,), lambda xp, x: (x[:, :, None] >> xp.arange(8)) & 1, "torch", ()
    yield "checksum", (longs,), lambda xp, x: ((x % 65521) * 31 + (x >> 16) % 65521) % 65521, "", ()
    yield "digits", (longs,), digits, "", ()
    yield "hours and minutes", (made(60000, dtype="int32", high=86400),), clock, "", ()
    yield "cells of a grid", (made(50000, 2),), cells, "", ()
    yield "int16 mix", (made(60000, dtype="int16", high=3000),) * 2, mixed, "", ()


def blended(xp: Any, x: Any, y: Any) -> Any:
    total = xp.cast(x, "int32") * 77 + xp.cast(y, "int32") * 179 + 128
    return xp.cast(total // 256, "uint8")


def digits(xp: Any, x: Any) -> Any:
    total = 0
    for n in range(6):
        total = total + x // 10**n % 10
    return total


def clock(xp: Any, x: Any) -> Any:
    return xp.stack([x // 3600, x // 60 % 60, x % 60], 1)


def cells(xp: Any, x: Any) -> Any:
    at = xp.cast(xp.floor(x * 16), "int64")
    return (at[:, 0] % 64) * 64 + at[:, 1] % 64


def mixed(xp: Any, x: Any, y: Any) -> Any:
    return xp.cast((xp.cast(x, "int32") + xp.cast(y, "int32")) // 2, "int16")


def _counts() -> Rows:
    few = made(300, dtype="int64", high=12)
    plane = made(240, 320, dtype="uint8", high=256)
    yield "bincount of few", (few,), lambda xp, x: xp.bincount(x, minlength=12), "jax", ()
    yield "median of few", (made(31),), lambda xp, x: xp.sort(x)[15], "", ()
    yield "histogram of bytes", (plane,), counted, "jax", ()
    yield "one-hot of labels", (made(4000, dtype="int64", high=10),), hot, "", ()
    yield "votes", (made(500, 9, dtype="int64", high=5),), votes, "", ()
    yield "largest five", (made(200, 64),), lambda xp, x: xp.sort(x, -1)[:, -5:], "", (0,)
    yield "share above", (made(400, 250),), lambda xp, x: (x > 0.5).sum(1), "", ()
    yield "stack of five means", (made(5, 20000),), five, "", (0,)


def counted(xp: Any, x: Any) -> Any:
    return xp.bincount(xp.cast(x.reshape(-1), "int64"), minlength=256)


def hot(xp: Any, x: Any) -> Any:
    return xp.cast(abs(x[:, None] - xp.arange(10)) < 1, "float32")


def votes(xp: Any, x: Any) -> Any:
    return (xp.cast(abs(x[:, :, None] - xp.arange(5)) < 1, "int32").sum(1)).argmax(1)


def five(xp: Any, x: Any) -> Any:
    a, b, c, d, e = (x[n] for n in range(5))
    return xp.stack([a, b, c, d, e], 0).mean(0) + xp.maximum(a, b * 2)


def _matrices() -> Rows:
    points = made(20000, 3)
    yield "points turned", (points, made(3, 3)), lambda xp, x, w: x @ w.T + w[0], "", (0,)
    yield "cross products", (points, points), cross, "", (0,)
    yield "quaternions", (made(10000, 4), made(10000, 4)), quaternion, "", (0,)
    yield "2x2 inverses", (made(5000, 2, 2),), inverse2, "", (0,)
    yield "3x3 solves", (made(500, 3, 3), made(500, 3)), solve3, "", ()
    yield "whitening", (made(4000, 6), made(6, 6)), white, "", (0,)


def cross(xp: Any, x: Any, y: Any) -> Any:
    (a, b, c), (d, e, f) = ([v[:, n] for n in range(3)] for v in (x, y))
    return xp.stack([b * f - c * e, c * d - a * f, a * e - b * d], 1)


def quaternion(xp: Any, x: Any, y: Any) -> Any:
    (a, b, c, d), (e, f, g, h) = ([v[:, n] for n in range(4)] for v in (x, y))
    return xp.stack(
        [a * e - b * f - c * g - d * h, a * f + b * e + c * h - d * g,
         a * g - b * h + c * e + d * f, a * h + b * g - c * f + d * e], 1,
    )  # fmt: skip


def inverse2(xp: Any, x: Any) -> Any:
    a, b, c, d = x[:, 0, 0], x[:, 0, 1], x[:, 1, 0], x[:, 1, 1]
    det = a * d - b * c + 3
    rows = xp.stack([xp.stack([d, -b], 1), xp.stack([-c, a], 1)], 1)
    return rows / det[:, None, None]


def solve3(xp: Any, x: Any, y: Any) -> Any:
    a = x @ x.swapaxes(1, 2) + 3 * xp.eye(3, dtype=x.dtype)
    return xp.linalg.solve(a, y[:, :, None])[:, :, 0]


def white(xp: Any, x: Any, w: Any) -> Any:
    p = xp.linalg.inv(w @ w.T + xp.eye(6, dtype=w.dtype))
    return (x - x.mean(0)) @ p


def _masks() -> Rows:
    x = made(8, 64, 96)
    yield "masked mean", (x, made(8, 64, dtype="bool")), masked_mean, "", (0,)
    yield "lengths to mask", (x, made(8, dtype="int64", high=64)), by_length, "", (0,)
    yield "border to zero", (made(16, 64, 64),), border, "", (0,)
    yield "checkers", (made(200, 300),), checkers, "", (0,)
    yield "either of two", (x, x), lambda xp, a, b: xp.where(a > b, a - b, b * 0.5), "", (0,)
    yield "dropped pixels", (made(100, 120, 3), made(100, 120, dtype="bool")), dropped, "", (0,)


def masked_mean(xp: Any, x: Any, m: Any) -> Any:
    w = xp.cast(m, "float32")[:, :, None]
    return (x * w).sum(1) / (w.sum(1) + 1e-6)


def by_length(xp: Any, x: Any, n: Any) -> Any:
    m = xp.arange(64)[None] < n[:, None]
    return xp.where(m[:, :, None], x, 0).sum(1)


def border(xp: Any, x: Any) -> Any:
    at = xp.arange(64)
    inside = (at > 3) & (at < 60)
    return xp.where(inside[:, None] & inside, x, 0)


def checkers(xp: Any, x: Any) -> Any:
    i, j = xp.arange(200)[:, None], xp.arange(300)
    return xp.where((i // 8 + j // 8) % 2 > 0, x, -x)


def dropped(xp: Any, x: Any, m: Any) -> Any:
    return xp.where(m[:, :, None], x, x.mean((0, 1)))
