"""Rows of :mod:`benchmarks.cpu.nest` of array code: selections, orders, counts, sums in narrow and
complex dtypes, odd axes, gathers, casts, windows, stacks of small matrices, and gradients.

    python -m benchmarks.cpu.survey_unseen --check
    python -m benchmarks.cpu.survey_unseen --window-ms 8 --peers ../peers/bin/python
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from benchmarks.cpu.family_rows import SAME, Texts, each, made, row_of
from benchmarks.cpu.nest import Nest, main
from benchmarks.cpu.survey_wide import graded

_Table = list[tuple[str, tuple[Any, ...], Texts]]


def rows() -> Iterator[Nest]:
    """All rows."""
    for table in (_selections(), _orders(), _sums(), _gathers(), _casts(), _moves(), _algebra()):
        for name, arrays, texts in table:
            yield each(name, arrays, texts)
    for name, arrays, texts in _differentiated():
        yield graded(row_of(name, arrays, *texts))


def _selections() -> _Table:
    found: _Table = []
    for dtype in ("float32", "float64", "int32"):
        line, rows = made(300000, dtype=dtype, high=10**6), made(300, 1000, dtype=dtype)
        tall = made(1000, 300, dtype=dtype)
        for mark, x, k, axis in (
            ("line", line, 1000, 0), ("rows", rows, 500, 1), ("columns", tall, 500, 0),
        ):  # fmt: skip
            kth = f"torch.kthvalue(x, {k + 1}, {axis})"
            found += [
                (f"partition {mark} {dtype}", (x,),
                 (f"xp.partition(x, {k}, {axis})", None, SAME, SAME)),
                (f"argpartition {mark} {dtype}", (x,),
                 (f"xp.argpartition(x, {k}, {axis})", None, SAME, SAME)),
                (f"kth {mark} {dtype}", (x,),
                 (f"T.kthvalue(x, {k + 1}, {axis})[0]", f"{kth}[0]",
                  f"jnp.partition(x, {k}, {axis}).take({k}, {axis})",
                  f"np.partition(x, {k}, {axis}).take({k}, {axis})")),
            ]  # fmt: skip
        found += [
            (f"top 5 line {dtype}", (line,),
             ("T.topk(x, 5)", "torch.topk(x, 5)[0]", "jax.lax.top_k(x, 5)[0]", None)),
            (f"median rows {dtype}", (rows,),
             ("xp.median(x, 1)", "x.double().quantile(0.5, 1)" if dtype == "int32" else
              "x.quantile(0.5, 1)", SAME, SAME)),
        ]  # fmt: skip
    return found


def _orders() -> _Table:
    line, few = made(100000, dtype="int32", high=5000), made(100000, dtype="int64", high=40)
    floats, table = made(100000), made(1000, dtype="int32", high=5000, seed=1)
    words = made(300, 300, dtype="int64", high=10**6)
    return [
        ("unique int32", (line,), ("xp.unique(x)", "torch.unique(x)", None, SAME)),
        ("unique few", (few,), ("xp.unique(x)", "torch.unique(x)", None, SAME)),
        ("unique floats", (floats,), ("xp.unique(x)", "torch.unique(x)", None, SAME)),
        ("unique counts", (few,), (
            "list(xp.unique(x, return_counts=True))", "torch.unique(x, return_counts=True)", None,
            SAME)),
        ("isin", (line, table), ("xp.isin(x, y)", SAME, SAME, SAME)),
        ("isin of 10", (line, made(10, dtype="int32", high=5000)),
         ("xp.isin(x, y)", SAME, SAME, SAME)),
        ("searchsorted sorted", (floats, floats), (
            "xp.searchsorted(xp.sort(x), xp.sort(y))",
            "torch.searchsorted(torch.sort(x)[0], torch.sort(y)[0])",
            SAME, SAME)),
        ("searchsorted 1000", (table, made(1000, dtype="int32", high=5000)),
         ("xp.searchsorted(x, y)", SAME, SAME, SAME)),
        ("searchsorted int64", (made(100000, dtype="int64", high=10**9), few), (
            "xp.searchsorted(xp.sort(x), y)",
            "torch.searchsorted(torch.sort(x)[0], y)", SAME, SAME)),
        ("lexsort", (few, line), ("xp.lexsort((y, x))", None, SAME, SAME)),
        ("bincount", (few,), ("xp.bincount(x)", SAME, None, SAME)),
        ("bincount 100", (made(100, dtype="int64", high=40),),
         ("xp.bincount(x)", SAME, None, SAME)),
        ("nonzero", (few,), ("xp.nonzero(x > 20)[0]", "torch.nonzero(x > 20)[:, 0]", None, SAME)),
        ("argwhere", (words,), ("xp.argwhere(x > 900000)", SAME, None, SAME)),
        ("sort descending", (floats,), ("-xp.sort(-x)", "-torch.sort(-x)[0]", SAME, SAME)),
        ("argsort int64 rows", (words,), (
            "xp.argsort(x, 1)", SAME, SAME, SAME)),
        ("rank", (floats,), ("xp.argsort(xp.argsort(x))", SAME, SAME, SAME)),
        ("permuted rows", (made(1000, 300), made(1000)), (
            "x[xp.argsort(y)]", SAME, SAME, SAME)),
        ("searchsorted right", (floats, made(1000, seed=2)), (
            "xp.searchsorted(xp.sort(y), x, side='right')",
            "torch.searchsorted(torch.sort(y)[0], x, side='right')", SAME, SAME)),
        ("histogram", (floats,),
         ("xp.histogram(x, 50)[0]", "torch.histogram(x, 50)[0]", SAME, SAME)),
        ("union", (few, line), ("xp.union1d(x, y)", None, None, SAME)),
        ("setdiff", (line, table), ("xp.setdiff1d(x, y)", None, None, SAME)),
        ("median abs deviation", (floats,), (
            "xp.median(abs(x - xp.median(x)))",
            "(x - x.quantile(0.5)).abs().quantile(0.5)", SAME, SAME)),
        ("compressed", (floats,), ("x[x > 0]", SAME, None, SAME)),
        ("compressed sum", (floats,), ("x[x > 0].sum()", SAME, None, SAME)),
        ("count of a mask", (floats,), ("(x > 0.3).sum()", SAME, SAME, SAME)),
    ]  # fmt: skip


def _sums() -> _Table:
    found: _Table = []
    for dtype in (
        "float16",
        "bfloat16",
        "int16",
        "int8",
        "float32",
        "complex64",
        "complex128",
        "bool",
    ):
        x, known = made(500, 600, dtype=dtype), None if dtype == "bfloat16" else SAME
        volume = made(30, 40, 250, dtype=dtype)
        for name, text in (
            ("all", "x.sum()"),
            ("0", "x.sum(0)"),
            ("1", "x.sum(1)"),
            ("x*x 1", "(x * x).sum(1)"),
        ):
            found.append((f"sum {name} {dtype}", (x,), (text, SAME, SAME, known)))
        found.append((f"sum 0, 2 {dtype}", (volume,), ("x.sum((0, 2))", SAME, SAME, known)))
        if dtype not in ("bool", "int16", "int8"):
            found.append((f"mean 1 {dtype}", (x,), ("x.mean(1)", SAME, SAME, known)))
            found.append((f"cumsum 1 {dtype}", (x,), ("xp.cumsum(x, 1)", SAME, SAME, known)))
    x, wide = made(500, 600), made(2000, 2500)
    for name, a, text, theirs in (
        ("var 0", x, "x.var(0)", "x.var(0, correction=0)"),
        ("std all", x, "x.std()", "x.std(correction=0)"),
        ("norm 1", x, "xp.linalg.norm(x, axis=1)", "torch.linalg.vector_norm(x, dim=1)"),
        ("dot of itself", x, "(x * x).sum()", SAME),
        ("large sum all", wide, "x.sum()", SAME), ("large sum 0", wide, "x.sum(0)", SAME),
        ("large sum 1", wide, "x.sum(1)", SAME),
         ("large mean of squares", wide, "(x * x).mean()", SAME),
        ("max - min 0", x, "x.max(0) - x.min(0)", "x.amax(0) - x.amin(0)"),
        ("nansum", x, "xp.nansum(x, 1)", SAME), ("prod 1", x, "xp.prod(x[:, :20], 1)", SAME),
        ("cumprod", x, "xp.cumprod(x, 1)", SAME),
        ("cummax", x, "T.cummax(x, 1)", "torch.cummax(x, 1)[0]"),
        ("every second", wide, "x[::2, ::3].sum(0)", SAME),
         ("backwards", x, "xp.cumsum(xp.flip(x, 0), 0)",
         "torch.cumsum(torch.flip(x, (0,)), 0)"),
        ("weighted", x, "(x * x[0]).sum(1) / x[0].sum()", SAME),
        ("centred", x, "x - x.mean(1, keepdims=True)", SAME),
        ("standardised", x, "(x - x.mean(0)) / x.std(0)",
        "(x - x.mean(0)) / x.std(0, correction=0)"),
        ("diff 1", x, "xp.diff(x, axis=1)", "torch.diff(x, dim=1)"),
        ("second diff", x, "xp.diff(x, 2, 0)", "torch.diff(x, 2, 0)"),
        ("trapezoid", x, "xp.trapezoid(x, axis=1)", "torch.trapezoid(x, dim=1)"),
        ("any > 3", x, "(x > 3).any(1)", SAME), ("all > -9", x, "(x > -9).all()", SAME),
    ):  # fmt: skip
        third, fourth = SAME, SAME
        if name == "cummax":
            third, fourth = "jax.lax.cummax(x, 1)", "np.maximum.accumulate(x, 1)"
        found.append((f"float32 {name}", (a,), (text, theirs, third, fourth)))
    return found


def _gathers() -> _Table:
    x, i = made(5000, 40), made(20000, dtype="int64", high=5000, seed=1)
    pixels, wide = made(200000, 3), made(40, 5000)
    places = made(40, 300, dtype="int64", high=5000, seed=2)
    u8 = made(20000, dtype="uint8", high=100)
    return [
        ("rows by index", (x, i), ("x[y]", SAME, SAME, SAME)),
        ("rows by int32", (x, made(20000, dtype="int32", high=5000)),
         ("x[y]", "x[y.long()]", SAME, SAME)),
        ("columns by index", (wide, i), ("x[:, y]", SAME, SAME, SAME)),
        ("take_along 1", (wide, places), (
            "xp.take_along_axis(x, y, 1)", "torch.take_along_dim(x, y, 1)", SAME, SAME)),
        ("two indices", (x, i, made(20000, dtype="int64", high=40)), ("x[y, z]", SAME, SAME, SAME)),
        ("pixels by index", (pixels, made(100000, dtype="int64", high=200000)), (
            "x[y]", SAME, SAME, SAME)),
        ("one byte table", (made(256), u8), ("x[y]", "x[y.long()]", SAME, SAME)),
        ("rows by a mask", (x,), ("x[x[:, 0] > 0]", SAME, None, SAME)),
        ("one-hot", (made(5000, dtype="int64", high=50),), (
            "T.to_one_hot(x, 50, 'float32')", "torch.nn.functional.one_hot(x, 50).float()",
            "jax.nn.one_hot(x, 50)", "np.eye(50, dtype='float32')[x]")),
        ("one-hot by ==", (made(5000, dtype="int64", high=50),), (
            "T.cast(x[:, None] == T.arange(50), 'float32')",
            "(x[:, None] == torch.arange(50)).float()",
            "(x[:, None] == jnp.arange(50)).astype('float32')",
            "(x[:, None] == np.arange(50)).astype('float32')")),
        ("added rows", (x, made(20000, 40), i), (
            "T.inc_subtensor(x[z], y)", "x.index_add(0, z, y)", "x.at[z].add(y)", None)),
        ("added numbers", (made(5000), made(20000), i), (
            "T.inc_subtensor(x[z], y)", "x.index_add(0, z, y)", "x.at[z].add(y)", None)),
        ("set rows", (x, made(500, 40), made(500, dtype="int64", high=5000)), (
            "T.set_subtensor(x[z], y)", "x.index_copy(0, z, y)", "x.at[z].set(y)", None)),
        ("set a slice", (x,), ("T.set_subtensor(x[::2], 0)", None, "x.at[::2].set(0)", None)),
        ("choice by rank", (x,), ("xp.take_along_axis(x, xp.argsort(x, 1)[:, :5], 1)",
                                  "torch.take_along_dim(x, torch.argsort(x, 1)[:, :5], 1)",
                                  SAME, SAME)),
        ("argmax rows", (x,), ("x[xp.arange(5000), x.argmax(1)]", SAME, SAME, SAME)),
        ("where of three", (x,), ("xp.where(x > 1, 1, xp.where(x < -1, -1, x))", SAME, SAME, SAME)),
        ("where broadcast", (x, made(5000), made(40)), (
            "xp.where(x > y[:, None], x, z)", SAME, SAME, SAME)),
        ("clipped count", (x,), ("((x > -1) & (x < 1)).sum(0)", SAME, SAME, SAME)),
        ("choose of bool", (made(5000, 40, dtype="bool"), x),
         ("xp.where(x, y, 0)", SAME, SAME, SAME)),
    ]  # fmt: skip


def _casts() -> _Table:
    kinds = (
        "bool",
        "uint8",
        "int16",
        "int32",
        "int64",
        "float16",
        "bfloat16",
        "float32",
        "float64",
    )
    found: _Table = []
    for n, a in enumerate(kinds):
        for k in (1, 4, 6):
            b = kinds[(n + k) % len(kinds)]
            known = None if "bfloat16" in (a, b) else f"x.astype('{b}')"
            found.append(
                (
                    f"cast {a} to {b}",
                    (made(500, 600, dtype=a, high=100),),
                    (f"T.cast(x, '{b}')", f"x.to(torch.{b})", f"x.astype('{b}')", known),
                )
            )
    c = made(500, 600, dtype="complex64")
    for name, text in (
        ("c * c", "x * xp.conj(x)"), ("abs", "abs(x)"), ("real + imag", "xp.real(x) + xp.imag(x)"),
        ("angle", "xp.angle(x)"),
         ("c + row", "x + x[0]"), ("c sum of abs2 0", "(abs(x) ** 2).sum(0)"),
        ("c matmul", "x @ x.T"), ("c mean", "x.mean(0)"), ("c exp", "xp.exp(x * 1j)"),
    ):  # fmt: skip
        found.append((f"complex64 {name}", (c,), (text, SAME, SAME, SAME)))
    t = ("T.copy(x.T)", "x.T.contiguous()", "x.T.copy()", "x.T.copy()")
    for dtype in ("complex64", "complex128", "float16", "uint8"):
        found.append(
            (f"copy of x.T {dtype}", (made(500, 600, dtype=dtype),), ("x.T.copy()", *t[1:]))
        )
    return found


def _moves() -> _Table:
    x, image, signal = made(600, 500), made(4, 3, 200, 210), made(300000)
    return [
        ("roll 2", (x,), ("xp.roll(x, (3, -5), (0, 1))", SAME, SAME, SAME)),
        ("pad constant", (image,), ("xp.pad(x, ((0, 0), (0, 0), (2, 3), (1, 4)))",
         "torch.nn.functional.pad(x, (1, 4, 2, 3))", SAME, SAME)),
        ("strided slice", (x,), ("x[10:-10:3, ::-2] * 2", None, SAME, SAME)),
        ("tile", (x,), ("xp.tile(x, (2, 3))", SAME, SAME, SAME)),
        ("repeat", (x,), ("xp.repeat(x, 3, 1)", "torch.repeat_interleave(x, 3, 1)", SAME, SAME)),
        ("interleaved", (x, x), ("xp.stack([x, y], 2).reshape((600, 1000))", SAME, SAME, SAME)),
        ("to NHWC", (image,),
         ("xp.transpose(x, (0, 2, 3, 1)) + 1", "x.permute(0, 2, 3, 1).contiguous() + 1",
                               SAME, SAME)),
        ("patches", (image,), (
                      "xp.transpose(x.reshape((4, 3, 20, 10, 21, 10)), (0, 2, 4, 1, 3, 5))"
              ".reshape((1680, 300))",
            "x.reshape(4, 3, 20, 10, 21, 10).permute(0, 2, 4, 1, 3, 5).reshape(1680, 300)",
            SAME, SAME)),
        ("rot90", (x,), ("xp.rot90(x) + 0", "torch.rot90(x) + 0", SAME, SAME)),
        ("triu", (x,), ("xp.triu(x)", SAME, SAME, SAME)),
        ("diagonal", (x,), ("xp.diagonal(x) * 2", SAME, SAME, SAME)),
        ("block diagonal", (made(100, 100),), ("xp.kron(xp.eye(4, dtype='float32'), x)",
         "torch.kron(torch.eye(4), x)", SAME, SAME)),
        ("outer difference", (made(1000), made(800)), ("x[:, None] - y", SAME, SAME, SAME)),
        ("distances", (made(500, 3), made(400, 3)),
         ("((x[:, None] - y) ** 2).sum(2)", SAME, SAME, SAME)),
        ("nearest", (made(500, 3), made(400, 3)),
         ("((x[:, None] - y) ** 2).sum(2).argmin(1)", SAME, SAME, SAME)),
        ("moving mean", (signal,),
         ("xp.convolve(x, xp.ones(7, dtype='float32') / 7, 'same')", None, SAME, SAME)),
        ("moving sum", (signal,),
         ("xp.cumsum(x)[10:] - xp.cumsum(x)[:-10]",
          "torch.cumsum(x, 0)[10:] - torch.cumsum(x, 0)[:-10]", SAME, SAME)),
        ("laplacian", (x,),
         ("x[2:, 1:-1] + x[:-2, 1:-1] + x[1:-1, 2:] + x[1:-1, :-2] - 4 * x[1:-1, 1:-1]",
          SAME, SAME, SAME)),
        ("gradient", (x,), ("xp.gradient(x, axis=1)", "torch.gradient(x, dim=1)[0]", SAME, SAME)),
        ("meshgrid", (made(700), made(900)),
         ("xp.meshgrid(x, y)[0] * 2", "torch.meshgrid(x, y, indexing='xy')[0] * 2", SAME, SAME)),
        ("interp", (signal,),
         ("xp.interp(x, xp.arange(-4., 5.), xp.arange(9.))", None, SAME, SAME)),
        ("polyval", (signal,), ("((x * 2 + 3) * x - 1) * x + 0.5", SAME, SAME, SAME)),
        ("halves joined", (x,),
         ("xp.concatenate([x[:, 250:], x[:, :250]], 1)",
          "torch.cat([x[:, 250:], x[:, :250]], 1)", SAME, SAME)),
        ("small 10x10 chain", (made(10, 10),), ("xp.exp(-x * x).sum(1)", SAME, SAME, SAME)),
        ("small 1000 max", (made(1000),), ("x.max()", SAME, SAME, SAME)),
        ("small 1000 where", (made(1000),), ("xp.where(x > 0, x, 0.1 * x)", SAME, SAME, SAME)),
    ]  # fmt: skip


def _algebra() -> _Table:
    a, b, v = made(200, 30, 40), made(200, 40, 20), made(200, 40)
    s = made(2000, 5, 5)
    return [
        ("einsum bij,bjk", (a, b), ("xp.einsum('bij,bjk->bik', x, y)", SAME, SAME, SAME)),
        ("einsum bij,bj", (a, v), ("xp.einsum('bij,bj->bi', x, y)", SAME, SAME, SAME)),
        ("einsum bij->bji", (a,), ("xp.einsum('bij->bji', x) + 1", SAME, SAME, SAME)),
        ("einsum ij,ij", (v, v), ("xp.einsum('ij,ij->', x, y)", SAME, SAME, SAME)),
        ("einsum bi,bj", (v, v), ("xp.einsum('bi,bj->bij', x, y)", SAME, SAME, SAME)),
        ("einsum ijk,ljk", (a, a), ("xp.einsum('ijk,ljk->il', x, y)", SAME, SAME, SAME)),
        ("einsum bii", (s,), ("xp.einsum('bii->b', x)", SAME, SAME, SAME)),
        ("tensordot", (a, made(40, 30)),
         ("xp.tensordot(x, y, ((2, 1), (0, 1)))",
          "torch.tensordot(x, y, ((2, 1), (0, 1)))", SAME, SAME)),
        ("det 5x5", (s,), ("xp.linalg.det(x)", SAME, SAME, SAME)),
        ("inv 5x5", (s,), ("xp.linalg.inv(x)", SAME, SAME, SAME)),
        ("solve 5x5", (s, made(2000, 5, 1)), ("xp.linalg.solve(x, y)", SAME, SAME, SAME)),
        ("trace", (s,), ("xp.trace(x, axis1=1, axis2=2)", None, SAME, SAME)),
        ("matvec", (made(1000, 800), made(800)), ("x @ y", SAME, SAME, SAME)),
        ("vecmat", (made(1000), made(1000, 800)), ("x @ y", SAME, SAME, SAME)),
        ("matmul f64 100", (made(100, 100, dtype="float64"),), ("x @ x", SAME, SAME, SAME)),
        ("int matmul", (made(100, 100, dtype="int64"),), ("x @ x", SAME, SAME, SAME)),
        ("cov", (made(20, 5000),), ("xp.cov(x)", SAME, SAME, SAME)),
        ("cross", (made(20000, 3), made(20000, 3)),
         ("xp.cross(x, y)", "torch.linalg.cross(x, y)", SAME, SAME)),
    ]  # fmt: skip


def _differentiated() -> _Table:
    x, line = made(500, 600), made(300000)
    return [
        ("diff 1", (x,), ("xp.diff(x, axis=1)", "torch.diff(x, dim=1)", SAME)),
        ("diff line", (line,), ("xp.diff(x)", SAME, SAME)),
        ("prod 1", (x,), ("xp.prod(x[:, :30], 1)", SAME, SAME)),
        ("prod 0", (x,), ("xp.prod(x[:30], 0)", SAME, SAME)),
        ("cumsum 1", (x,), ("xp.cumsum(x, 1)", SAME, SAME)),
        ("cumprod 1", (made(100, 50),), ("xp.cumprod(x, 1)", SAME, SAME)),
        ("sort 1", (x,), ("xp.sort(x, 1)", "torch.sort(x, 1)[0]", SAME)),
        ("max 1", (x,), ("x.max(1)", "x.amax(1)", SAME)),
        ("std 0", (x,), ("x.std(0)", "x.std(0, correction=0)", SAME)),
        ("slice", (x,), ("x[1:-1, ::2]", SAME, SAME)),
        ("laplacian", (x,), ("x[2:] - 2 * x[1:-1] + x[:-2]", SAME, SAME)),
        ("gather", (x, made(2000, dtype="int64", high=500)), ("x[y]", SAME, SAME)),
        ("norm 1", (x,), ("xp.sqrt((x * x).sum(1) + 1)", SAME, SAME)),
        ("where", (x,), ("xp.where(x > 0, x * x, xp.exp(x))", SAME, SAME)),
        ("softmax", (x,), ("T.softmax(x, axis=1)", "torch.softmax(x, 1)", "jax.nn.softmax(x, 1)")),
        ("roll", (x,), ("xp.roll(x, 3, 1) * x", SAME, SAME)),
        ("logsumexp 0", (x,),
         ("T.logsumexp(x, 0)", "torch.logsumexp(x, 0)", "jax.nn.logsumexp(x, 0)")),
        ("trapezoid", (x,), ("xp.trapezoid(x, axis=1)", "torch.trapezoid(x, dim=1)", SAME)),
        ("kron", (made(30, 30), made(20, 20)), ("xp.kron(x, y)", SAME, SAME)),
        ("distances", (made(500, 3), made(400, 3)), ("((x[:, None] - y) ** 2).sum(2)", SAME, SAME)),
        ("top 5", (x,), ("T.topk(x, 5)", "torch.topk(x, 5, 1)[0]", "jax.lax.top_k(x, 5)[0]")),
        ("var 1", (x,), ("x.var(1)", "x.var(1, correction=0)", SAME)),
        ("outer", (made(600), made(500)), ("x[:, None] * y", SAME, SAME)),
        ("einsum", (made(200, 30, 40), made(200, 40, 20)),
         ("xp.einsum('bij,bjk->bik', x, y)", SAME, SAME)),
        ("median 1", (x,), ("xp.median(x, 1)", "x.quantile(0.5, 1)", SAME)),
        ("pad", (x,), ("xp.pad(x, 3)", "torch.nn.functional.pad(x, (3, 3, 3, 3))", SAME)),
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(module="benchmarks.cpu.survey_unseen"))
