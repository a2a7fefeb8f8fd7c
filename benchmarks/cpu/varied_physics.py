"""Rows of :mod:`benchmarks.cpu.survey_varied`: simulation and arrays of odd kinds."""

from __future__ import annotations

from typing import Any

from benchmarks.cpu.family_rows import made
from benchmarks.cpu.varied_spaces import Rows


def rows() -> Rows:
    """Those of this module."""
    yield from _simulation()
    yield from _arrays()


# -- simulation ------------------------------------------------------------------------------------


def _simulation() -> Rows:
    grid, cube = made(300, 300), made(48, 48, 48)
    f64 = made(300, 300, dtype="float64")
    yield "heat 2D", (grid,), heat2, "", (0,)
    yield "heat 2D float64, periodic", (f64,), heat_periodic, "", (0,)
    yield "heat 3D", (cube,), heat3, "", (0,)
    yield "wave 2D, 10 steps by scan", (made(100, 100),), wave, "", ()
    yield "N-body forces", (made(300, 3), made(300)), n_body, "", (0,)
    yield "Poisson by FFT", (made(256, 256),), poisson_fft, "", (0,)
    yield "Lorenz by RK4", (made(1000, 3),), lorenz, "", (0,)
    yield "game of life", (made(300, 300, dtype="uint8", high=2),), life, "", ()
    yield "rule 110", (made(10000, dtype="uint8", high=2),), rule110, "", ()
    yield (
        "sparse matvec",
        (
            made(30000),
            made(30000, dtype="int64", high=3000),
            made(30000, dtype="int64", high=3000, seed=1),
            made(3000),
        ),
        spmv,
        "",
        (0, 3),
    )
    yield "advection upwind", (made(200, 200), made(200, 200, seed=1)), upwind, "", (0,)
    yield "Lennard-Jones", (made(200, 3),), lennard_jones, "", (0,)
    yield "Jacobi tridiagonal", (made(5000, dtype="float64"),), jacobi, "", (0,)
    yield "Thomas by scan", (made(100, 50),), thomas, "", ()
    yield "Mandelbrot by scan", (made(100, 120),), mandelbrot, "", ()
    yield "LBM equilibrium", (made(100, 100), made(2, 100, 100), made(9, 2)), lbm, "", (0,)
    yield "quaternion rotations", (made(5000, 4), made(5000, 3)), quaternions, "", ()
    yield "charges on a grid", (made(4000), made(4000)), deposit, "", (1,)
    yield "spring chain", (made(2000, 3),), springs, "", (0,)


def heat2(xp: Any, x: Any) -> Any:
    inner = x[1:-1, 1:-1]
    around = x[2:, 1:-1] + x[:-2, 1:-1] + x[1:-1, 2:] + x[1:-1, :-2]
    return xp.pad(inner + 0.1 * (around - 4 * inner), ((1, 1), (1, 1)))


def heat_periodic(xp: Any, x: Any) -> Any:
    around = sum(xp.roll(x, n, a) for n in (1, -1) for a in (0, 1))
    return x + 0.1 * (around - 4 * x)


def heat3(xp: Any, x: Any) -> Any:
    c = x[1:-1, 1:-1, 1:-1]
    around = (
        x[2:, 1:-1, 1:-1] + x[:-2, 1:-1, 1:-1] + x[1:-1, 2:, 1:-1]
        + x[1:-1, :-2, 1:-1] + x[1:-1, 1:-1, 2:] + x[1:-1, 1:-1, :-2]
    )  # fmt: skip
    return c + 0.1 * (around - 6 * c)


def wave(xp: Any, x: Any) -> Any:
    def step(s: Any, _: Any) -> Any:
        u, before = s[0], s[1]
        around = sum(xp.roll(u, n, a) for n in (1, -1) for a in (0, 1))
        return xp.stack([2 * u - before + 0.2 * (around - 4 * u), u])

    return xp.scan(step, xp.stack([x, x]), x[0, :10])[-1]


def n_body(xp: Any, x: Any, m: Any) -> Any:
    d = x[None] - x[:, None]
    r2 = (d * d).sum(-1) + 0.01
    return (abs(m)[None, :, None] * d / (r2 * xp.sqrt(r2))[..., None]).sum(1)


def poisson_fft(xp: Any, x: Any) -> Any:
    n = xp.cast(xp.arange(256), "float32")
    k = xp.where(n < 128, n, n - 256)
    k2 = k[:, None] ** 2 + k[:129] ** 2
    return xp.fft.irfft2(xp.fft.rfft2(x) / -(k2 + 1e-3))


def lorenz(xp: Any, x: Any) -> Any:
    def f(v: Any) -> Any:
        a, b, c = v[:, 0], v[:, 1], v[:, 2]
        return xp.stack([10 * (b - a), a * (28 - c) - b, a * b - 8 / 3 * c], 1)

    for _ in range(2):
        k1 = f(x)
        k2 = f(x + 0.005 * k1)
        k3 = f(x + 0.005 * k2)
        x = x + 0.01 / 6 * (k1 + 2 * k2 + 2 * k3 + f(x + 0.01 * k3))
    return x


def life(xp: Any, x: Any) -> Any:
    n = sum(xp.roll(xp.roll(x, i, 0), j, 1) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j)
    return xp.cast(((n >= 3) & (n <= 3)) | ((x > 0) & (n >= 2) & (n <= 2)), "uint8")


def rule110(xp: Any, x: Any) -> Any:
    for _ in range(4):
        code = xp.roll(x, 1, 0) * 4 + x * 2 + xp.roll(x, -1, 0)
        x = (code * 0 + 110 >> code) & 1
    return x


def spmv(xp: Any, values: Any, rows: Any, columns: Any, x: Any) -> Any:
    return xp.added(x * 0, rows, values * x[columns])


def upwind(xp: Any, x: Any, v: Any) -> Any:
    back, ahead = x - xp.roll(x, 1, 1), xp.roll(x, -1, 1) - x
    return x - 0.1 * xp.where(v > 0, v * back, v * ahead)


def lennard_jones(xp: Any, x: Any) -> Any:
    d = x[:, None] - x
    r2 = (d * d).sum(-1) + xp.eye(200, dtype=x.dtype) + 0.5
    s = 1 / r2**3
    return (4 * (s * s - s) * (1 - xp.eye(200, dtype=x.dtype))).sum() / 2


def jacobi(xp: Any, b: Any) -> Any:
    x = b * 0
    for _ in range(6):
        x = (b + xp.pad(x[1:], ((0, 1),)) + xp.pad(x[:-1], ((1, 0),))) / 2.5
    return x


def thomas(xp: Any, d: Any) -> Any:
    def step(s: Any, v: Any) -> Any:
        r = 1 / (4 - s[0])
        return xp.stack([r, (v + s[1]) * r])

    found = xp.scan(step, xp.stack([d[0] * 0, d[0] * 0]), d)
    return found[:, 1]


def mandelbrot(xp: Any, x: Any) -> Any:
    cr, ci = x * 0.5 - 0.5, xp.flip(x, 1) * 0.5

    def step(s: Any, _: Any) -> Any:
        a, b, n = s[0], s[1], s[2]
        inside = a * a + b * b < 4
        a, b = xp.where(inside, a * a - b * b + cr, a), xp.where(inside, 2 * a * b + ci, b)
        return xp.stack([a, b, n + xp.cast(inside, "float32")])

    return xp.scan(step, xp.stack([cr * 0] * 3), x[0, :20])[-1][2]


def lbm(xp: Any, rho: Any, u: Any, e: Any) -> Any:
    eu = xp.einsum("qd,dij->qij", e, u)
    return rho * (1 + 3 * eu + 4.5 * eu**2 - 1.5 * (u * u).sum(0))


def quaternions(xp: Any, q: Any, v: Any) -> Any:
    q = q / xp.sqrt((q * q).sum(1, keepdims=True))
    w, a = q[:, :1], q[:, 1:]

    def cross(s: Any, t: Any) -> Any:
        return xp.stack([
            s[:, 1] * t[:, 2] - s[:, 2] * t[:, 1], s[:, 2] * t[:, 0] - s[:, 0] * t[:, 2],
            s[:, 0] * t[:, 1] - s[:, 1] * t[:, 0],
        ], 1)  # fmt: skip

    t = 2 * cross(a, v)
    return v + w * t + cross(a, t)


def deposit(xp: Any, x: Any, q: Any) -> Any:
    place = xp.sigmoid(x) * 62
    i = xp.cast(place, "int64")
    part = xp.cast(place - i, "float32")
    return xp.added(xp.added(q[:64] * 0, i, q * (1 - part)), i + 1, q * part)


def springs(xp: Any, x: Any) -> Any:
    d = x[1:] - x[:-1]
    n = xp.sqrt((d * d).sum(1, keepdims=True) + 1e-6)
    f = (n - 1) * d / n
    return xp.pad(f, ((0, 1), (0, 0))) - xp.pad(f, ((1, 0), (0, 0)))


# -- arrays ----------------------------------------------------------------------------------------


def _arrays() -> Rows:
    x = made(300, 200)
    yield "odd broadcasts", (made(7, 1, 9, 1, 5), made(11, 1, 3, 1)), odd_broadcast, "", (0,)
    yield (
        "mixed dtypes",
        (made(300, 200, dtype="int8"), made(200), made(300, 1, dtype="float64")),
        mixed,
        "",
        (),
    )
    yield "negative strides", (x,), negative, "", (0,)
    yield (
        "cumsum of middle, masked",
        (made(20, 50, 60), made(20, 50, 60, dtype="bool")),
        middle,
        "",
        (0,),
    )
    yield "bits of uint8", (made(50000, dtype="uint8", high=256),), bits, "", ()
    yield "xorshift int64", (made(50000, dtype="int64", high=10**9),), xorshift, "", ()
    yield (
        "int division and modulo",
        (
            made(50000, dtype="int32", low=-999, high=999),
            made(50000, dtype="int32", low=1, high=99),
        ),
        division,
        "",
        (),
    )
    yield "Gray codes", (made(50000, dtype="int32", high=10**6),), gray, "", ()
    yield "days to dates", (made(50000, dtype="int64", high=40000),), dates, "", ()
    yield "empty rows", (made(0, 5), made(5)), empty, "", (1,)
    yield "sizes of 1", (made(1, 1), made(1)), ones, "", (0,)
    yield "polar of complex", (made(300, 200, dtype="complex64"),), polar, "", ()
    yield "float16 statistics", (made(300, 200, dtype="float16"),), half_stats, "", ()
    yield (
        "group means by argsort",
        (made(5000), made(5000, dtype="int64", high=50)),
        grouped,
        "",
        (),
    )
    yield (
        "one-hot sums",
        (made(2000, 8), made(2000, dtype="int64", high=12)),
        one_hot_sums,
        "",
        (0,),
    )
    yield "unravel and compare", (made(60, 70),), unravel, "numpy", ()
    yield "block matrix", (made(40, 40), made(40, 30), made(30, 30)), blocks, "", (0,)
    yield "pairs of triangles", (made(200, 200),), triangles, "", (0,)
    yield "nan-aware scaling", (x,), nan_scaling, "", ()
    yield "interpolate in a table", (made(20000), made(64)), table, "", (0, 1)


def odd_broadcast(xp: Any, x: Any, y: Any) -> Any:
    return xp.tanh(x * y + x).sum((0, 3))


def mixed(xp: Any, x: Any, y: Any, z: Any) -> Any:
    return (x * y + z).sum(0)


def negative(xp: Any, x: Any) -> Any:
    a = xp.flip(x, 0)
    return (a * x)[1::3, ::2] - xp.flip(a, 1)[1::3, ::2]


def middle(xp: Any, x: Any, m: Any) -> Any:
    return xp.cumsum(xp.where(m, x, 0 * x), 1) / (1 + xp.cumsum(xp.cast(m, "float32"), 1))


def bits(xp: Any, x: Any) -> Any:
    planes = xp.stack([(x >> n) & 1 for n in range(8)], 1)
    return planes.sum(1)


def xorshift(xp: Any, x: Any) -> Any:
    for _ in range(3):
        x = x ^ (x << 13)
        x = x ^ (x >> 7)
        x = x ^ (x << 17)
    return x & 0xFFFF


def division(xp: Any, x: Any, y: Any) -> Any:
    return [x // y, x % y, (x * 3 + 1) // 2 - y % 5]


def gray(xp: Any, x: Any) -> Any:
    g = x ^ (x >> 1)
    for n in (16, 8, 4, 2, 1):
        g = g ^ (g >> n)
    return g


def dates(xp: Any, x: Any) -> Any:
    z = x + 719468
    era = z // 146097
    doe = z - era * 146097
    yoe = (doe - doe // 1460 + doe // 36524 - doe // 146096) // 365
    doy = doe - (365 * yoe + yoe // 4 - yoe // 100)
    month = (5 * doy + 2) // 153
    return [yoe + era * 400, month, doy - (153 * month + 2) // 5 + 1]


def empty(xp: Any, x: Any, y: Any) -> Any:
    return (x * y).sum(0) + y


def ones(xp: Any, x: Any, y: Any) -> Any:
    return xp.softmax(x @ x + y, 1) * y


def polar(xp: Any, x: Any) -> Any:
    return abs(x) * xp.exp(1j * xp.angle(x) * 2) + xp.real(x)


def half_stats(xp: Any, x: Any) -> Any:
    m = x.mean(0)
    return [m, ((x - m) ** 2).mean(0), abs(x).mean(1)]


def grouped(xp: Any, x: Any, y: Any) -> Any:
    order = xp.argsort(y)
    s = xp.cumsum(x[order], 0)
    ends = xp.searchsorted(y[order], xp.arange(50), side="right")
    at = s[ends - 1]
    return xp.concatenate([at[:1], at[1:] - at[:-1]])


def one_hot_sums(xp: Any, x: Any, y: Any) -> Any:
    hot = xp.cast(abs(y[:, None] - xp.arange(12)) < 1, "float32")
    return (hot.T @ x if x.dtype == hot.dtype else xp.cast(hot, "float64").T @ x) / (
        1 + hot.sum(0)[:, None]
    )


def unravel(xp: Any, x: Any) -> Any:
    at = x.reshape(-1).argmax()
    return [at // 70, at % 70, xp.amax(x)]


def blocks(xp: Any, a: Any, b: Any, c: Any) -> Any:
    top = xp.concatenate([a, b], 1)
    low = xp.concatenate([b.T, c], 1)
    m = xp.concatenate([top, low], 0)
    return m @ m.T


def triangles(xp: Any, x: Any) -> Any:
    return xp.tril(x) @ xp.triu(x) - xp.triu(x, 1)


def nan_scaling(xp: Any, x: Any) -> Any:
    v = xp.where(x > 1.5, float("nan"), x)
    known = ~xp.isnan(v)
    n = known.sum(0)
    mean = xp.where(known, v, 0 * x).sum(0) / n
    return xp.where(known, v - mean, 0 * x)


def table(xp: Any, x: Any, t: Any) -> Any:
    place = xp.sigmoid(x) * 62.5
    i = xp.cast(place, "int64")
    part = xp.cast(place - i, "float32")
    return t[i] * (1 - part) + t[i + 1] * part
