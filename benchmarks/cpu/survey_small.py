"""Rows of :mod:`benchmarks.cpu.nest` of odd layouts, small arrays, small integers and NumPy's rarer
functions: Fortran order, reversed axes, masks, searches, sets, statistics, pads, tiles.

    python -m benchmarks.cpu.survey_small --check
    python -m benchmarks.cpu.survey_small --avx2 --window-ms 3 --peers ../peers/bin/python
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.cpu.family_rows import SAME, each, made
from benchmarks.cpu.nest import Nest, main, np
from benchmarks.cpu.survey_patterns import _Table


def rows() -> Iterator[Nest]:
    """All rows."""
    for table in (
        _layouts(),
        _small(),
        _integers(),
        _masks(),
        _searches(),
        _statistics(),
        _moves(),
    ):
        for name, arrays, texts in table:
            yield each(name, arrays, texts)


def _fortran(*shape: int, dtype: str = "float32") -> Callable[[], Any]:
    return lambda: np.asfortranarray(made(*shape, dtype=dtype)())


def _ordered(n: int, dtype: str = "float32") -> Callable[[], Any]:
    return lambda: np.sort(made(n, dtype=dtype, high=10**6)())


def _layouts() -> _Table:
    x, y, f, b = made(317, 211), made(317, 211, seed=1), _fortran(317, 211), made(211)
    c, i8 = made(19, 47, 83), _fortran(700, 601, dtype="int8")
    return [
        ("F x + 1", (f,), ("x + 1", SAME, SAME, SAME)),
        ("F x + C y", (f, y), ("x + y", SAME, SAME, SAME)),
        ("F exp", (f,), ("xp.exp(x)", SAME, SAME, SAME)),
        ("F sum 0", (f,), ("x.sum(0)", SAME, SAME, SAME)),
        ("F sum 1", (f,), ("x.sum(1)", SAME, SAME, SAME)),
        ("F argmax 1", (f,), ("x.argmax(1)", SAME, SAME, SAME)),
        ("F roll 1", (f,), ("xp.roll(x, 3, 1)", "torch.roll(x, 3, 1)", SAME, SAME)),
        ("F int8 roll 0", (i8,), ("xp.roll(x, 3, 0)", "torch.roll(x, 3, 0)", SAME, SAME)),
        ("F cumsum 1", (f,), ("xp.cumsum(x, 1)", SAME, SAME, SAME)),
        ("F sort 1", (f,), ("xp.sort(x, 1)", "torch.sort(x, 1)[0]", SAME, SAME)),
        ("F softmax", (f,), ("T.nnet.softmax(x, axis=1)", "torch.softmax(x, 1)",
                             "jax.nn.softmax(x, 1)", None)),
        ("reversed x + y", (x, y), ("x[::-1, ::-1] + y", None, SAME, SAME)),
        ("reversed sum 1", (x,), ("x[:, ::-1].sum(1)", None, SAME, SAME)),
        ("reversed cumsum", (x,), ("xp.cumsum(x[:, ::-1], 1)", None, SAME, SAME)),
        ("every third column", (x,), ("x[:, ::3] * 2", SAME, SAME, SAME)),
        ("middle any", (c,), ("(x > 2).any(1)", SAME, SAME, SAME)),
        ("middle argmin", (c,), ("x.argmin(1)", SAME, SAME, SAME)),
        ("middle cumprod", (c,), ("xp.cumprod(x, 1)", SAME, SAME, SAME)),
        ("middle max, ends sum", (c,), ("x.max(1).sum()", "x.amax(1).sum()", SAME, SAME)),
        ("column product", (x, b), ("(x * y).sum(1)", SAME, SAME, SAME)),
    ]  # fmt: skip


def _small() -> _Table:
    found: _Table = []
    for n in (1, 10, 100, 1000):
        x, y = made(n), made(n, seed=1)
        found += [
            (f"exp of {n}", (x,), ("xp.exp(x)", SAME, SAME, SAME)),
            (f"x * y + 1 of {n}", (x, y), ("x * y + 1", SAME, SAME, SAME)),
            (f"sum of {n}", (x,), ("x.sum()", SAME, SAME, SAME)),
            (f"sort of {n}", (x,), ("xp.sort(x)", "torch.sort(x)[0]", SAME, SAME)),
            (f"argmax of {n}", (x,), ("x.argmax()", SAME, SAME, SAME)),
            (f"gammaln of {n}", (x,), ("T.gammaln(x)", "torch.lgamma(x)",
                                       "jax.scipy.special.gammaln(x)", None)),
        ]  # fmt: skip
    x, y = made(7, 5), made(5, 3)
    found += [
        ("7x5 @ 5x3", (x, y), ("x @ y", SAME, SAME, SAME)),
        ("softmax of 7x5", (x,), ("T.nnet.softmax(x, axis=1)", "torch.softmax(x, 1)",
                                  "jax.nn.softmax(x, 1)", None)),
        ("median of 7x5", (x,), ("xp.median(x)", None, SAME, SAME)),
        ("concatenate 3 of 7x5", (x, x, x), (
            "xp.concatenate([x, y, z])", "torch.cat([x, y, z])", SAME, SAME)),
        ("cov of 7x5", (x,), ("xp.cov(x)", SAME, SAME, SAME)),
    ]  # fmt: skip
    return found


def _integers() -> _Table:
    i, j = made(317, 211, dtype="int8", low=1), made(317, 211, dtype="int8", low=1, seed=1)
    u, b = made(317, 211, dtype="uint8"), made(317, 211, dtype="bool")
    c, x = made(317, 211, dtype="bool", seed=1), made(317, 211)
    wide = made(317, 211, dtype="int64", low=1)
    return [
        ("int8 * int8", (i, j), ("x * y", SAME, SAME, SAME)),
        ("int8 // int8", (i, j), ("x // y", SAME, SAME, SAME)),
        ("int8 max 1", (i,), ("x.max(1)", "x.amax(1)", SAME, SAME)),
        ("uint8 + float32", (u, x), ("x + y", SAME, SAME, None)),
        ("uint8 >> 2", (u,), ("x >> 2", SAME, SAME, SAME)),
        ("uint8 mean", (u,), ("x.mean()", "x.float().mean()", SAME, SAME)),
        ("uint8 / 255", (u,), ("T.cast(x, 'float32') / 255", "x.float() / 255",
                               "x.astype('float32') / 255", "x.astype('float32') / 255")),
        ("bool & bool", (b, c), ("x & y", SAME, SAME, SAME)),
        ("bool sum 1", (b,), ("x.sum(1)", SAME, SAME, SAME)),
        ("bool where", (b, x), ("xp.where(x, y, 0)", SAME, SAME, None)),
        ("bool * float32", (b, x), ("x * y", SAME, SAME, SAME)),
        ("int64 % 7", (wide,), ("x % 7", SAME, SAME, SAME)),
        ("int64 cumsum", (wide,), ("xp.cumsum(x, 1)", SAME, SAME, SAME)),
        ("int8 + int64", (i, wide), ("x + y", SAME, SAME, SAME)),
        ("one hot", (made(2000, dtype="int64", high=50),), (
            "T.extra_ops.to_one_hot(x, 50)", "F.one_hot(x, 50)", "jax.nn.one_hot(x, 50)", None)),
        ("argmin int8 1", (i,), ("x.argmin(1)", SAME, SAME, SAME)),
        ("float64 to float16", (made(317, 211, dtype="float64"),), (
            "T.cast(x, 'float16')", "x.to(torch.float16)", "x.astype('float16')",
            "x.astype('float16')")),
        ("float16 to float32", (made(317, 211, dtype="float16"),), (
            "T.cast(x, 'float32')", "x.to(torch.float32)", "x.astype('float32')",
            "x.astype('float32')")),
    ]  # fmt: skip


def _masks() -> _Table:
    x, m = made(317, 211), made(317, 211, dtype="bool")
    return [
        ("masked sum 1", (x, m), ("xp.where(y, x, 0).sum(1)", SAME, SAME, None)),
        ("masked max 1", (x, m), ("xp.where(y, x, -9).max(1)", "torch.where(y, x, -9).amax(1)",
                                  SAME, None)),
        ("masked mean 0", (x, m), ("xp.where(y, x, 0).sum(0) / y.sum(0)", SAME, SAME, None)),
        ("nansum", (x,), ("T.nansum(x, 1)", "torch.nansum(x, 1)", "jnp.nansum(x, 1)",
                          "np.nansum(x, 1)")),
        ("nanmax", (x,), ("T.nanmax(x, 1)", None, "jnp.nanmax(x, 1)", "np.nanmax(x, 1)")),
        ("nanmean", (x,), ("T.nanmean(x, 1)", "torch.nanmean(x, 1)", "jnp.nanmean(x, 1)",
                           "np.nanmean(x, 1)")),
        ("count_nonzero", (x,), ("xp.count_nonzero(x > 1)", SAME, SAME, SAME)),
        ("clip of rows", (x,), ("xp.clip(x, -1, 1).sum(1)", SAME, SAME, SAME)),
    ]  # fmt: skip


def _searches() -> _Table:
    line, few = _ordered(1000), made(5000)
    i = made(5000, dtype="int64", high=300)
    return [
        ("searchsorted 5000 in 1000", (line, few), ("xp.searchsorted(x, y)", SAME, SAME, SAME)),
        ("searchsorted right", (line, few), (
            "xp.searchsorted(x, y, side='right')", SAME, SAME, SAME)),
        ("digitize", (few, _ordered(40)), (
            "xp.digitize(x, y)", "torch.bucketize(x, y)", SAME, SAME)),
        ("unique int64", (i,), ("xp.unique(x)", SAME, None, SAME)),
        ("bincount", (i,), ("xp.bincount(x)", SAME, None, SAME)),
        ("histogram", (few,), ("T.histogram(x, 20)[0]", "torch.histc(x, 20)",
                               "jnp.histogram(x, 20)[0]", "np.histogram(x, 20)[0]")),
        ("interp", (few, line, _ordered(1000)), ("T.interp(x, y, z)", None, "jnp.interp(x, y, z)",
                                                 "np.interp(x, y, z)")),
        ("nonzero", (few,), ("xp.nonzero(x > 1)[0]", None, None, SAME)),
        ("isin", (i, made(40, dtype="int64", high=300, seed=1)), (
            "xp.isin(x, y)", SAME, SAME, SAME)),
        ("argsort", (few,), ("xp.argsort(x)", SAME, SAME, SAME)),
        ("partition", (made(300, 317),), ("xp.partition(x, 20, 1)", None, SAME, SAME)),
        ("sort of pairs", (made(20000, 2),), ("xp.sort(x, 1)", "torch.sort(x, 1)[0]", SAME, SAME)),
        ("sort of fives", (made(20000, 5),), ("xp.sort(x, 1)", "torch.sort(x, 1)[0]", SAME, SAME)),
        ("argsort of fives", (made(20000, 5),), ("xp.argsort(x, 1)", SAME, SAME, SAME)),
    ]  # fmt: skip


def _statistics() -> _Table:
    x, line = made(317, 211), made(5000)
    return [
        ("diff 1", (x,), ("xp.diff(x, 1, 1)", "torch.diff(x, 1, 1)", SAME, SAME)),
        ("diff 2 of 0", (x,), ("xp.diff(x, 2, 0)", "torch.diff(x, 2, 0)", SAME, SAME)),
        ("trapezoid", (x,), ("T.trapezoid(x, axis=1)", "torch.trapezoid(x, dim=1)",
                             "jnp.trapezoid(x, axis=1)", "np.trapezoid(x, axis=1)")),
        ("median 1", (x,), ("xp.median(x, 1)", "torch.median(x, 1)[0]", SAME, SAME)),
        ("median 0", (x,), ("xp.median(x, 0)", "torch.median(x, 0)[0]", SAME, SAME)),
        ("percentile", (line,), ("xp.percentile(x, 30)", "torch.quantile(x, 0.3)", SAME, SAME)),
        ("quantiles 1", (x,), ("xp.quantile(x, (0.1, 0.5, 0.9), 1)",
                               "torch.quantile(x, torch.tensor([0.1, 0.5, 0.9]), 1)",
                               "jnp.quantile(x, jnp.array([0.1, 0.5, 0.9]), 1)", SAME)),
        ("cov", (x,), ("xp.cov(x)", SAME, SAME, SAME)),
        ("corrcoef", (x,), ("xp.corrcoef(x)", SAME, SAME, SAME)),
        ("cumprod 1", (x,), ("xp.cumprod(x, 1)", SAME, SAME, SAME)),
        ("cumprod 0", (x,), ("xp.cumprod(x, 0)", SAME, SAME, SAME)),
        ("cumsum float16", (made(317, 211, dtype="float16"),), (
            "xp.cumsum(x, 1)", SAME, SAME, SAME)),
        ("var 1", (x,), ("x.var(1)", "x.var(1, correction=0)", SAME, SAME)),
        ("ptp", (x,), ("xp.ptp(x, 1)", "x.amax(1) - x.amin(1)", SAME, SAME)),
        ("gradient", (line,), ("xp.gradient(x)", "torch.gradient(x)[0]", SAME, SAME)),
    ]  # fmt: skip


def _moves() -> _Table:
    x, a, b = made(317, 211), made(17, 13), made(11, 19)
    wide = made(201, 307, dtype="int64", low=-9)
    return [
        ("kron", (a, b), ("xp.kron(x, y)", SAME, SAME, SAME)),
        ("tile", (a,), ("xp.tile(x, (3, 5))", SAME, SAME, SAME)),
        ("repeat 0", (x,), ("xp.repeat(x, 3, 0)", "x.repeat_interleave(3, 0)", SAME, SAME)),
        ("repeat 1", (x,), ("xp.repeat(x, 3, 1)", "x.repeat_interleave(3, 1)", SAME, SAME)),
        ("pad constant", (x,), ("xp.pad(x, 3)", "F.pad(x, (3, 3, 3, 3))", SAME, SAME)),
        ("pad reflect", (x,), ("xp.pad(x, 3, 'reflect')",
                               "F.pad(x[None], (3, 3, 3, 3), mode='reflect')[0]", SAME, SAME)),
        ("pad edge", (x,), ("xp.pad(x, 3, 'edge')",
                            "F.pad(x[None], (3, 3, 3, 3), mode='replicate')[0]", SAME, SAME)),
        ("pad wrap", (x,), ("xp.pad(x, 3, 'wrap')",
                            "F.pad(x[None], (3, 3, 3, 3), mode='circular')[0]", SAME, SAME)),
        ("tril", (x,), ("xp.tril(x)", SAME, SAME, SAME)),
        ("flip", (x,), ("xp.flip(x, 1) * 1", "torch.flip(x, (1,))", SAME, SAME)),
        ("rot90", (x,), ("xp.rot90(x) * 1", SAME, SAME, SAME)),
        ("outer", (made(317), made(211)), ("xp.outer(x, y)", SAME, SAME, SAME)),
        ("x @ x.T int64", (wide,), ("x @ x.T", SAME, SAME, SAME)),
        ("stack 1", (x, x), ("xp.stack([x, y], 1)", SAME, SAME, SAME)),
        ("take rows", (x, made(500, dtype="int64", high=300)), ("x[y]", SAME, SAME, SAME)),
        ("bag of 5", (made(3000, 64), made(2000, 5, dtype="int64", high=3000)), (
            "x[y].sum(1)", "F.embedding_bag(y, x, mode='sum')", SAME, SAME)),
        ("swapaxes copy", (made(19, 47, 83),), (
            "xp.swapaxes(x, 0, 2) * 1", SAME, SAME, SAME)),
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(module="benchmarks.cpu.survey_small"))
