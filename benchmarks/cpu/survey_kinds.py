"""Rows of :mod:`benchmarks.cpu.nest` of kinds that were slower than the best peer: answers known
after one element, lengths that depend on values, masks of rows, samples, orders of short lines,
gradients of products and of log-sum-exp, stacks of odd matrices, Fourier transforms of short lines.

    python -m benchmarks.cpu.survey_kinds --check
    python -m benchmarks.cpu.survey_kinds --window-ms 3 --before TREE --peers ../peers/bin/python
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from benchmarks.cpu.family_rows import SAME, each, made, row_of
from benchmarks.cpu.nest import Nest, main
from benchmarks.cpu.survey_patterns import _Table
from benchmarks.cpu.survey_wide import graded


def rows() -> Iterator[Nest]:
    """All rows."""
    for table in (_early(), _lengths(), _masked(), _orders(), _tables(), _products(), _lines()):
        for name, arrays, texts in table:
            yield each(name, arrays, texts)
    for name, arrays, three in _differentiated():
        yield graded(row_of(name, arrays, *three))


def _early() -> _Table:
    flags, x = made(300, 1000, dtype="bool"), made(300, 1000)
    half, i = made(300, 1000, dtype="float16"), made(300, 1000, dtype="int32")
    return [
        ("argmax bool 1", (flags,), ("x.argmax(1)", None, SAME, SAME)),
        ("argmax bool 0", (flags,), ("x.argmax(0)", None, SAME, SAME)),
        ("argmax bool all", (flags,), ("x.argmax()", None, SAME, SAME)),
        ("argmin bool 1", (flags,), ("x.argmin(1)", None, SAME, SAME)),
        ("any bool all", (flags,), ("x.any()", SAME, SAME, SAME)),
        ("any bool 1", (flags,), ("x.any(1)", SAME, SAME, SAME)),
        ("any bool 0", (flags,), ("x.any(0)", SAME, SAME, SAME)),
        ("all bool all", (flags,), ("x.all()", SAME, SAME, SAME)),
        ("any > all", (x,), ("(x > 1).any()", SAME, SAME, SAME)),
        ("any > 1", (x,), ("(x > 1).any(1)", SAME, SAME, SAME)),
        ("any float32 all", (x,), ("x.any()", SAME, SAME, SAME)),
        ("any float32 1", (x,), ("x.any(1)", SAME, SAME, SAME)),
        ("any int32 all", (i,), ("x.any()", SAME, SAME, SAME)),
        ("any float16 1", (half,), ("x.any(1)", SAME, SAME, SAME)),
        ("all int32 1", (i,), ("x.all(1)", SAME, SAME, SAME)),
        ("isclose all", (x, made(300, 1000, seed=1)), (
            "xp.isclose(x, y).all()", SAME, SAME, SAME)),
        ("== all", (x, x), ("xp.equal(x, y).all()", "torch.eq(x, y).all()", SAME, SAME)),
        ("isfinite all", (x,), ("xp.isfinite(x).all()", SAME, SAME, SAME)),
    ]  # fmt: skip


def _lengths() -> _Table:
    found: _Table = []
    for n in (100, 1000, 50000):
        i, few = made(n, dtype="int64"), made(n, dtype="int32", high=5000)
        wide, x = made(n, dtype="int64", high=10**9), made(n)
        found += [
            (f"bincount {n}", (i,), ("xp.bincount(x)", SAME, None, SAME)),
            (f"nonzero {n}", (few,), ("T.nonzero(x > 2500)[0]", "torch.nonzero(x > 2500)[:, 0]",
                                      None, "np.nonzero(x > 2500)[0]")),
            (f"compressed {n}", (x,), ("x[x > 0]", SAME, None, SAME)),
            (f"unique int32 {n}", (few,), ("xp.unique(x)", SAME, None, SAME)),
            (f"unique int64 {n}", (i,), ("xp.unique(x)", SAME, None, SAME)),
            (f"unique wide int64 {n}", (wide,), ("xp.unique(x)", SAME, None, SAME)),
            (f"unique float32 {n}", (x,), ("xp.unique(x)", SAME, None, SAME)),
            (f"unique counts {n}", (i,), ("xp.unique(x, return_counts=True)", SAME, None, SAME)),
            (f"unique inverse {n}", (few,), ("xp.unique(x, return_inverse=True)", SAME, None,
                                             SAME)),
        ]  # fmt: skip
    return found


def _masked() -> _Table:
    rows_, flags = made(5000, 40), made(300, dtype="bool")
    return [
        ("rows by a mask", (rows_,), ("x[x[:, 0] > 0]", SAME, None, SAME)),
        ("rows of 1000 by a mask", (made(300, 1000), flags), ("x[y]", SAME, None, SAME)),
        ("float64 rows by a mask", (made(300, 1000, dtype="float64"), flags),
         ("x[y]", SAME, None, SAME)),
        ("rows of 3 by a mask", (made(20000, 3), made(20000, dtype="bool")),
         ("x[y]", SAME, None, SAME)),
        ("columns by a mask", (made(1000, 300), flags), ("x[:, y]", SAME, None, SAME)),
        ("100 rows by a mask", (made(100, 10), made(100, dtype="bool")), (
            "x[y]", SAME, None, SAME)),
        ("sum of rows by a mask", (rows_,), ("x[x[:, 0] > 0].sum(0)", SAME, None, SAME)),
    ]  # fmt: skip


def _orders() -> _Table:
    found: _Table = []
    for n in (100, 1000, 10000):
        x, f64 = made(n), made(n, dtype="float64")
        found += [
            (f"quantile {n}", (x,), ("xp.quantile(x, 0.3)", SAME, SAME, SAME)),
            (f"median {n}", (x,), ("xp.median(x)", "x.quantile(0.5)", SAME, SAME)),
            (f"median float64 {n}", (f64,), ("xp.median(x)", "x.quantile(0.5)", SAME, SAME)),
            (f"percentiles {n}", (x,), ("xp.percentile(x, [25, 75])",
             "torch.quantile(x, torch.tensor([0.25, 0.75]))",
             "jnp.percentile(x, jnp.array([25, 75]))", SAME)),
        ]  # fmt: skip
    found += [
        ("median rows of 1000", (made(100, 1000),), (
            "xp.median(x, 1)", "x.quantile(0.5, 1)", SAME, SAME)),
        ("median columns of 300", (made(300, 100),), (
            "xp.median(x, 0)", "x.quantile(0.5, 0)", SAME, SAME)),
    ]  # fmt: skip
    for dtype in ("int64", "int32", "float64", "float32"):
        line = made(100000, dtype=dtype, high=10**9)
        few = made(100000, dtype=dtype, high=10**9, seed=1)
        small = made(1000, dtype=dtype, high=10**9, seed=1)
        for name, y in (("100000", few), ("1000", small)):
            found.append((f"searchsorted {dtype} {name} in 100000", (line, y), (
                "xp.searchsorted(xp.sort(x), y)",
                "torch.searchsorted(torch.sort(x)[0], y)", SAME, SAME)))  # fmt: skip
        found.append((f"searchsorted {dtype} 100000 in 500", (line, made(
            500, dtype=dtype, high=10**9)), (
                "xp.searchsorted(xp.sort(y), x)",
                "torch.searchsorted(torch.sort(y)[0], x)", SAME, SAME)))  # fmt: skip
    return found


def _tables() -> _Table:
    found: _Table = []
    for n, k in ((100, 10), (1000, 100), (5000, 50), (5000, 1000), (3000, 10)):
        i = made(n, dtype="int64", high=k)
        found += [
            (f"one-hot {n} of {k}", (i,), (f"T.to_one_hot(x, {k}, 'float32')",
             f"F.one_hot(x, {k}).float()", f"jax.nn.one_hot(x, {k})",
             f"np.eye({k}, dtype='float32')[x]")),
            (f"one-hot by == {n} of {k}", (i,), (
             f"T.cast(x[:, None] == T.arange({k}), 'float32')",
             f"(x[:, None] == torch.arange({k})).float()",
             f"(x[:, None] == jnp.arange({k})).astype('float32')",
             f"(x[:, None] == np.arange({k})).astype('float32')")),
        ]  # fmt: skip
    for n, k, dtype in ((9001, 13, "float64"), (9001, 13, "float32"), (100, 10, "float32"),
                        (300000, 100, "float32"), (300000, 5000, "float64")):  # fmt: skip
        i, w = made(n, dtype="int64", high=k), made(n, dtype=dtype)
        found.append((f"counts by weights {n} in {k} {dtype}", (i, w), (
            f"xp.bincount(x, y, {k})", SAME, f"jnp.bincount(x, y, length={k})", SAME)))  # fmt: skip
    grid = made(4, 40, 50, 2)
    found += [
        ("grid sample", (made(4, 8, 30, 30), grid), ("nn.functional.grid_sample(x, y)",
         "F.grid_sample(x, y, align_corners=False)", None, None)),
        ("grid sample nearest", (made(4, 8, 30, 30), grid), (
         "nn.functional.grid_sample(x, y, mode='nearest')",
         "F.grid_sample(x, y, mode='nearest', align_corners=False)", None, None)),
        ("grid sample border", (made(4, 8, 30, 30), grid), (
         "nn.functional.grid_sample(x, y, padding_mode='border')",
         "F.grid_sample(x, y, padding_mode='border', align_corners=False)", None, None)),
    ]  # fmt: skip
    return found


def _products() -> _Table:
    found: _Table = [
        (f"{m}x{k} @ {k}x{n} {dtype}", (made(m, k, dtype=dtype), made(k, n, dtype=dtype)),
         ("x @ y", SAME, SAME, SAME))
        for m, k, n in ((3, 1999, 5), (1, 1999, 5), (8, 5000, 8), (5, 300, 3), (2, 100000, 2),
                        (16, 1000, 16), (10, 784, 10))
        for dtype in ("float32", "float64")
    ]  # fmt: skip
    for m, k, n in ((25, 25, 25), (30, 30, 30), (31, 29, 27), (33, 33, 33), (40, 50, 20),
                    (50, 37, 13)):  # fmt: skip
        found.append((f"stacks float64 50x{m}x{k}x{n}", (
            made(50, m, k, dtype="float64"), made(50, k, n, dtype="float64")), (
                "x @ y", SAME, SAME, SAME)))  # fmt: skip
    return found


def _lines() -> _Table:
    found: _Table = [
        (f"{name} of {n} lines of {k} {dtype}", (made(n, k, dtype=dtype),),
         (f"xp.fft.{name}(x)", f"torch.fft.{name}(x)", f"jnp.fft.{name}(x)", f"np.fft.{name}(x)"))
        for n, k in ((3000, 16), (3000, 64), (1000, 100), (2000, 30), (300, 256))
        for name, dtype in (("fft", "complex64"), ("rfft", "float32"), ("rfft", "float64"))
    ]  # fmt: skip
    for dtype in ("float16", "bfloat16", "float32"):
        numpy = None if dtype == "bfloat16" else SAME
        for m, n in ((500, 600), (5000, 50), (3, 100000)):
            found.append((f"cumsum 1 {dtype} {m}x{n}", (made(m, n, dtype=dtype),), (
                "xp.cumsum(x, 1)", SAME, SAME, numpy)))  # fmt: skip
    return found


def _differentiated() -> list[tuple[str, tuple[Any, ...], tuple[str, str, str]]]:
    x, cube, wide = made(500, 600), made(37, 53, 149), made(8, 30, 17, 23)
    found: list[tuple[str, tuple[Any, ...], tuple[str, str, str]]] = []
    for name, of, axes in (
        ("0", x, "0"), ("1", x, "1"), ("0, 1", x, "(0, 1)"), ("middle", cube, "1"),
        ("0, 2", cube, "(0, 2)"), ("1, 3", wide, "(1, 3)"), ("0, 2, 3", wide, "(0, 2, 3)"),
        ("2, 3", wide, "(2, 3)"),
    ):  # fmt: skip
        found.append((f"logsumexp {name}", (of,), (
            f"T.logsumexp(x, {axes})", f"torch.logsumexp(x, {axes})",
            f"jax.nn.logsumexp(x, {axes})")))  # fmt: skip
    for name, of, k, axis in (("5", x, 5, 1), ("1", x, 1, 1), ("50", x, 50, 1), ("7, 0", x, 7, 0),
                              ("3 of 20", made(5000, 20), 3, 1)):  # fmt: skip
        jax = f"jax.lax.top_k(x, {k})[0]" if axis else f"jax.lax.top_k(x.T, {k})[0].T"
        found.append((f"top {name}", (of,), (
            f"T.topk(x, {k}, axis={axis})", f"torch.topk(x, {k}, {axis})[0]", jax)))  # fmt: skip
    for name, of, text in (
        ("1", x, "xp.prod(x * 0.1 + 1, 1)"), ("0", x, "xp.prod(x * 0.1 + 1, 0)"),
        ("0 of 30", x, "xp.prod(x[:30], 0)"), ("1 of 30", x, "xp.prod(x[:, :30], 1)"),
        ("of 3", made(20000, 3), "xp.prod(x, 1)"), ("middle", cube, "xp.prod(x * 0.1 + 1, 1)"),
        ("all of 1000", made(1000), "xp.prod(x * 0.1 + 1)"),
        ("float64 1", made(500, 600, dtype="float64"), "xp.prod(x * 0.1 + 1, 1)"),
    ):  # fmt: skip
        found.append((f"prod {name}", (of,), (text, text.replace("xp", "torch"), SAME)))
    return found


if __name__ == "__main__":
    sys.exit(main(module="benchmarks.cpu.survey_kinds"))
