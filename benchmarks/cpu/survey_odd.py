"""Rows of :mod:`benchmarks.cpu.nest` with odd sizes, narrow dtypes, middle axes and unusual
broadcasts; gathers by negative indices, scatters with collisions, orders of odd lengths.

    python -m benchmarks.cpu.survey_odd --check
    python -m benchmarks.cpu.survey_odd --window-ms 3 --peers ../peers/bin/python
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from benchmarks.cpu.family_rows import SAME, each, made, row_of
from benchmarks.cpu.nest import Nest, main
from benchmarks.cpu.survey_patterns import _Table
from benchmarks.cpu.survey_wide import graded


def rows() -> Iterator[Nest]:
    """All rows."""
    for table in (_elements(), _folds(), _running(), _places(), _orders(), _products()):
        for name, arrays, texts in table:
            yield each(name, arrays, texts, static=True)
    for name, arrays, texts in _differentiated():
        yield graded(row_of(name, arrays, *texts, static=True))


def _elements() -> _Table:
    i8, i16 = made(501, 613, dtype="int8", low=-90), made(501, 613, dtype="int16", low=-900)
    x, f64 = made(501, 613), made(501, 613, dtype="float64")
    a, b, c = made(17, 1, 29, 1), made(1, 31, 1, 19), made(31, 1, 1)
    half = made(501, 613, dtype="bfloat16")
    return [
        ("int8 + int8", (i8, i8), ("x + y", SAME, SAME, SAME)),
        ("int8 // 3", (i8,), ("x // 3", SAME, SAME, SAME)),
        ("int64 // int64", (made(501, 613, dtype="int64", low=-10**6, high=10**6),
                            made(501, 613, dtype="int64", low=1)), ("x // y", SAME, SAME, SAME)),
        ("uint8 % uint8", (made(501, 613, dtype="uint8"), made(501, 613, dtype="uint8", low=1)),
         ("x % y", SAME, SAME, SAME)),
        ("int16 abs minus", (i16,), ("xp.maximum(abs(x) - 5, 0)",
         "torch.clamp_min(abs(x) - 5, 0)", SAME, SAME)),
        ("clip int16", (i16,), ("xp.clip(x, -100, 100)", SAME, SAME, SAME)),
        ("clip of clip float64", (f64,), ("xp.clip(xp.clip(x, -1, 1) * 2, 0, 1.5)",
                                          SAME, SAME, SAME)),
        ("4 axes broadcast", (a, b, c), ("x * y - z", SAME, SAME, SAME)),
        ("column of a cube", (made(61, 1, 71), made(61, 67, 1), made(61, 67, 71)),
         ("xp.where(x > y, z, x)", SAME, SAME, SAME)),
        ("where chain of bf16", (half,), (
            "xp.where(x > 1, x * 2, xp.where(x < -1, x * 0.5, x))", SAME, SAME, None)),
        ("int32 to bf16", (made(501, 613, dtype="int32"),), (
            "T.cast(x, 'bfloat16')", "x.to(torch.bfloat16)", "x.astype('bfloat16')", None)),
        ("float64 to int8", (f64,), (
            "T.cast(x, 'int8')", "x.to(torch.int8)", "x.astype('int8')", "x.astype('int8')")),
        ("float floor division", (x, x), ("x // (y * y + 1)", SAME, SAME, SAME)),
        ("sign and power", (x,), ("xp.sign(x) * abs(x) ** 1.5", SAME, SAME, SAME)),
        ("logical of three", (x, f64, i8), ("((x > 0) & (y < 0.5)) | (z == 3)", SAME, SAME, SAME)),
    ]  # fmt: skip


def _folds() -> _Table:
    cube, wide = made(37, 53, 149), made(7, 11, 13, 17, 19)
    i8 = made(37, 53, 149, dtype="int8", low=-90)
    return [
        ("sum of 3 of 5 axes", (wide,), ("x.sum((0, 2, 4))", SAME, SAME, SAME)),
        ("sum of axes 1, 3 float64", (made(7, 11, 13, 17, 19, dtype="float64"),),
         ("x.sum((1, 3))", SAME, SAME, SAME)),
        ("max of axes 0, 1 int8", (i8,), ("x.max((0, 1))", "x.amax((0, 1))", SAME, SAME)),
        ("sum int8 1", (i8,), ("x.sum(1)", SAME, SAME, SAME)),
        ("argmax int8 last", (i8,), ("x.argmax(2)", SAME, SAME, SAME)),
        ("argmax of 7", (made(40001, 7),), ("x.argmax(1)", SAME, SAME, SAME)),
        ("argmin middle float64", (made(37, 53, 149, dtype="float64"),),
         ("x.argmin(1)", SAME, SAME, SAME)),
        ("var of a view", (cube,), ("x[:, ::2, 3:].var((0, 2))",
                                    "x[:, ::2, 3:].var((0, 2), correction=0)", SAME, SAME)),
        ("mean of bf16 0, 2", (made(37, 53, 149, dtype="bfloat16"),), (
            "x.mean((0, 2))", SAME, SAME, None)),
        ("any of a comparison 1", (cube,), ("(x > 3.5).any(1)", SAME, SAME, SAME)),
        ("norm of middle", (cube,), ("xp.sqrt((x * x).sum(1))", SAME, SAME, SAME)),
        ("product uint8 last", (made(3001, 101, dtype="uint8"),), ("xp.prod(x, 1)",
                                                                  "torch.prod(x, 1)", SAME, SAME)),
        ("logsumexp middle", (cube,), ("T.logsumexp(x, 1)", "torch.logsumexp(x, 1)",
                                       "jax.nn.logsumexp(x, 1)", None)),
        ("softmax of 3", (made(50021, 3),), (
            "T.softmax(x, axis=1)", "torch.softmax(x, 1)", "jax.nn.softmax(x, 1)", None)),
        ("softmax 1 of 4 axes", (made(5, 21, 47, 59),), (
            "T.softmax(x, axis=1)", "torch.softmax(x, 1)", "jax.nn.softmax(x, 1)", None)),
    ]  # fmt: skip


def _running() -> _Table:
    cube = made(37, 53, 149)
    return [
        (
            "cumsum middle float64",
            (made(37, 53, 149, dtype="float64"),),
            ("xp.cumsum(x, 1)", SAME, SAME, SAME),
        ),
        ("cumsum 0 int8", (made(1999, 151, dtype="int8"),), ("xp.cumsum(x, 0)", SAME, SAME, SAME)),
        ("cumprod middle", (cube,), ("xp.cumprod(x, 1)", SAME, SAME, SAME)),
        (
            "cummax last",
            (cube,),
            (
                "T.cummax(x, 2)",
                "torch.cummax(x, 2)[0]",
                "jax.lax.cummax(x, 2)",
                "np.maximum.accumulate(x, 2)",
            ),
        ),
        (
            "cumsum backwards",
            (cube,),
            (
                "xp.flip(xp.cumsum(xp.flip(x, 1), 1), 1)",
                "torch.flip(torch.cumsum(torch.flip(x, (1,)), 1), (1,))",
                SAME,
                SAME,
            ),
        ),
        ("cumsum of rows of 5", (made(60013, 5),), ("xp.cumsum(x, 1)", SAME, SAME, SAME)),
    ]


def _places() -> _Table:
    x, low = made(2003, 67), made(9001, dtype="int64", low=-2003, high=2003)
    i32, few = made(9001, dtype="int32", low=-67, high=67), made(9001, dtype="int64", high=13)
    return [
        ("rows by negative indices", (x, low), ("x[y]", SAME, SAME, SAME)),
        ("columns by negative int32", (x, made(301, dtype="int32", low=-67, high=67)),
         ("x[:, y]", SAME, SAME, SAME)),
        ("pairs of negative indices", (x, low, i32), ("x[y, z]", SAME, SAME, SAME)),
        ("int8 rows by index", (made(2003, 67, dtype="int8"), low), ("x[y]", SAME, SAME, SAME)),
        ("middle axis by index", (made(61, 97, 53), made(41, dtype="int64", low=-97, high=97)),
         ("x[:, y]", SAME, SAME, SAME)),
        ("take along 0", (x, made(301, 67, dtype="int64", high=2003)), (
            "xp.take_along_axis(x, y, 0)", "torch.gather(x, 0, y)", SAME, SAME)),
        ("rows added to 13", (made(13, 31), few, made(9001, 31)), (
            "T.inc_subtensor(x[y], z)", "x.index_add(0, y, z)", "x.at[y].add(z)", None)),
        ("float64 numbers added to 13", (
            made(13, dtype="float64"), few, made(9001, dtype="float64")), (
            "T.inc_subtensor(x[y], z)", "x.index_add(0, y, z)", "x.at[y].add(z)", None)),
        ("middle axis scattered", (
            made(61, 97, 53), made(41, dtype="int64", high=97), made(61, 41, 53)), (
            "T.inc_subtensor(x[:, y], z)", "x.index_add(1, y, z)", "x.at[:, y].add(z)", None)),
        ("set at pairs", (x, made(9001, dtype="int64", high=2003), i32, made(9001)), (
            "T.set_subtensor(x[y, z], 1.5)",
            "x.index_put((y, z % 67), torch.tensor(1.5, dtype=x.dtype))",
            "x.at[y, z].set(1.5)", None)),
        ("minimum at rows", (made(501, 31), made(9001, dtype="int64", high=501), made(9001, 31)), (
            "T.scatter_reduce(x, 0, T.broadcast_to(y[:, None], (9001, 31)), z, 'amin')",
            "x.scatter_reduce(0, y[:, None].expand(9001, 31), z, 'amin')", "x.at[y].min(z)",
            None)),
        ("histogram by weights", (few, made(9001, dtype="float64")), (
            "xp.bincount(x, y, 13)", SAME, "jnp.bincount(x, y, length=13)", SAME)),
    ]  # fmt: skip


def _orders() -> _Table:
    x, i16 = made(409, 257), made(409, 257, dtype="int16", low=-9000, high=9000)
    return [
        ("sort rows int16 of 257", (i16,), ("xp.sort(x, 1)", "torch.sort(x, 1)[0]", SAME, SAME)),
        ("sort columns float64", (made(409, 257, dtype="float64"),), (
            "xp.sort(x, 0)", "torch.sort(x, 0)[0]", SAME, SAME)),
        ("argsort middle", (made(23, 41, 67),), ("xp.argsort(x, 1)", SAME, SAME, SAME)),
        ("top 7 of columns", (x,), (
            "T.topk(x, 7, axis=0)", "torch.topk(x, 7, 0)[0]", "jax.lax.top_k(x.T, 7)[0].T", None)),
        ("top 1 of int32 rows", (made(3001, 33, dtype="int32", high=10**6),), (
            "T.topk(x, 1)", "torch.topk(x, 1, 1)[0]", "jax.lax.top_k(x, 1)[0]", None)),
        ("median of 9", (made(20011, 9),), (
            "xp.median(x, 1)", "torch.median(x, 1)[0]", SAME, SAME)),
        ("quantile of rows", (x,), (
            "xp.quantile(x, 0.3, 1)", "torch.quantile(x, 0.3, 1)",
            "jnp.quantile(x, 0.3, 1)", "np.quantile(x, 0.3, 1)")),
    ]  # fmt: skip


def _products() -> _Table:
    return [
        ("matmul 37x53x41 float64", (made(37, 53, dtype="float64"), made(53, 41, dtype="float64")),
         ("x @ y", SAME, SAME, SAME)),
        ("matmul 301x7x203", (made(301, 7), made(7, 203)), ("x @ y", SAME, SAME, SAME)),
        ("matmul 3x1999x5", (made(3, 1999), made(1999, 5)), ("x @ y", SAME, SAME, SAME)),
        ("stacks 101x13x17x11", (made(101, 13, 17), made(101, 17, 11)),
         ("x @ y", SAME, SAME, SAME)),
        ("stack times a turned one", (made(23, 31, 47), made(23, 29, 47)),
         ("x @ xp.swapaxes(y, 1, 2)", SAME, SAME, SAME)),
        ("int32 matmul 61x67x71", (made(61, 67, dtype="int32"), made(67, 71, dtype="int32")),
         ("x @ y", SAME, SAME, SAME)),
        ("row times 613x501", (made(613), made(613, 501)), ("x @ y", SAME, SAME, SAME)),
        ("einsum abc,cd,bd", (made(31, 37, 41), made(41, 43), made(37, 43)),
         ("xp.einsum('abc,cd,bd->ab', x, y, z)", SAME, SAME, SAME)),
        ("three factors of a sum", (made(61, 1, 71), made(1, 67, 71), made(61, 67, 1)),
         ("(x * y * z).sum(2)", SAME, SAME, SAME)),
    ]  # fmt: skip


def _differentiated() -> _Table:
    cube = made(37, 53, 149)
    return [
        ("middle slice", (cube,), ("x[:, 5:-3:2] * 3", SAME, SAME)),
        ("differences of middle", (cube,), ("x[:, 1:] - x[:, :-1]", SAME, SAME)),
        ("4 axes broadcast", (made(17, 1, 29, 1), made(1, 31, 1, 19)), ("xp.sin(x * y)", SAME,
                                                                        SAME)),
        ("rows by negative indices", (made(2003, 67), made(
            9001, dtype="int64", low=-2003, high=2003)), ("x[y]", SAME, SAME)),
        ("std of middle", (cube,), ("x.std(1)", "x.std(1, correction=0)", SAME)),
        ("cumprod of columns", (made(31, 1511),), ("xp.cumprod(x, 0)", SAME, SAME)),
        ("sort of rows", (made(409, 257),), ("xp.sort(x, 1)", "torch.sort(x, 1)[0]", SAME)),
        ("stack times stack", (made(101, 13, 17), made(101, 17, 11)), ("x @ y", SAME, SAME)),
        ("turned and joined", (made(301, 203), made(203, 301)), (
            "xp.concatenate([xp.transpose(x), y * 2], 1)", "torch.cat([x.T, y * 2], 1)", SAME)),
        ("clipped", (cube,), ("xp.clip(x, -0.5, 1.5)", SAME, SAME)),
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(module="benchmarks.cpu.survey_odd"))
