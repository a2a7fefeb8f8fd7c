"""Rows of :mod:`benchmarks.cpu.nest` of programs in many dtypes: normalised and clipped arrays,
extremes by places, running and sliding sums, outer differences, counts, masks, orders, joins, odd
sizes from 3 to a million.

    python -m benchmarks.cpu.survey_mixed --check
    python -m benchmarks.cpu.survey_mixed --window-ms 3 --peers ../peers/bin/python
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
    for table in (_elements(), _folds(), _running(), _places(), _orders(), _moves(), _products()):
        for name, arrays, texts in table:
            yield each(name, arrays, texts, static=True)
    for name, arrays, texts in _differentiated():
        yield graded(row_of(name, arrays, *texts, static=True))


def _elements() -> _Table:
    x, f16, c = made(1000, 317), made(1000, 317, dtype="float16"), made(90001, dtype="complex64")
    u8, i32 = made(1000, 317, dtype="uint8", high=256), made(1000, 317, dtype="int32", low=-99)
    million, flags = made(10**6), made(1000, 317, dtype="bool")
    return [
        ("normalise, clip, where", (x,), (
            "xp.where(x > 0, xp.clip((x - x.mean(0)) / x.std(0), -2, 2), 0)",
            "torch.where(x > 0, torch.clip((x - x.mean(0)) / x.std(0, correction=0), -2, 2), 0)",
            SAME, SAME)),
        ("normalise rows float16", (f16,), (
            "(x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)",
            "(x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True, correction=0)", SAME, SAME)),
        ("million x * x + 1", (million,), ("x * x + 1", SAME, SAME, SAME)),
        ("uint8 to float, scaled", (u8,), (
            "T.cast(x, 'float32') / 255 - 0.5", "x.to(torch.float32) / 255 - 0.5",
            "x.astype('float32') / 255 - 0.5", "x.astype('float32') / np.float32(255) - 0.5")),
        ("float to uint8, clipped", (x,), (
            "T.cast(xp.clip(x * 50 + 128, 0, 255), 'uint8')",
            "torch.clip(x * 50 + 128, 0, 255).to(torch.uint8)",
            "jnp.clip(x * 50 + 128, 0, 255).astype('uint8')",
            "np.clip(x * 50 + 128, 0, 255).astype('uint8')")),
        ("uint8 maximum of shifts", (u8,), ("xp.maximum(x[1:], x[:-1])", SAME, SAME, SAME)),
        ("int32 gcd-like", (i32, i32), ("abs(x) % (abs(y) + 1)", SAME, SAME, SAME)),
        ("float16 a * b + c", (f16, f16, f16), ("x * y + z", SAME, SAME, SAME)),
        ("float16 exp", (f16,), ("xp.exp(x)", SAME, SAME, SAME)),
        ("complex64 abs", (c,), ("abs(x)", SAME, SAME, SAME)),
        ("complex64 angle", (c,), ("xp.angle(x)", SAME, SAME, SAME)),
        ("complex64 / complex64", (c, c), ("x / (y + 1)", SAME, SAME, SAME)),
        ("bools: xor, not", (flags, flags), ("(x ^ y) & ~x", SAME, SAME, SAME)),
        ("where of int32 and bool", (flags, i32), ("xp.where(x, y, -y)", SAME, SAME, SAME)),
        ("hypot", (x, x), ("xp.hypot(x, y + 1)", SAME, SAME, SAME)),
        ("arctan2 float64", (made(90001, dtype="float64"), made(90001, dtype="float64", seed=1)),
         ("xp.arctan2(x, y)", SAME, SAME, SAME)),
        ("round float64", (made(1000, 317, dtype="float64"),), (
            "xp.round(x * 10)", SAME, SAME, SAME)),
        ("int16 * int16", (made(1000, 317, dtype="int16"), made(1000, 317, dtype="int16")),
         ("x * y", SAME, SAME, SAME)),
        ("isfinite and where", (x,), ("xp.where(xp.isfinite(x), x, 0)", SAME, SAME, SAME)),
        ("outer differences", (made(613), made(517)), ("abs(x[:, None] - y)", SAME, SAME, SAME)),
        ("17 numbers, sqrt", (made(17, dtype="float64"),), ("xp.sqrt(abs(x))", SAME, SAME, SAME)),
        ("3 numbers, x - mean", (made(3),), ("x - x.mean()", SAME, SAME, SAME)),
        ("1 number, tanh", (made(1),), ("xp.tanh(x)", SAME, SAME, SAME)),
    ]  # fmt: skip


def _folds() -> _Table:
    x, cube = made(1000, 317), made(31, 57, 173)
    f16, i8 = made(1000, 317, dtype="float16"), made(31, 57, 173, dtype="int8", low=-99)
    flags = made(1000, 317, dtype="bool")
    return [
        ("softmax over the first axis", (cube,), (
            "T.softmax(x, axis=0)", "torch.softmax(x, 0)", "jax.nn.softmax(x, 0)", None)),
        ("softmax float16", (f16,), (
            "T.softmax(x, axis=1)", "torch.softmax(x, 1)", "jax.nn.softmax(x, 1)", None)),
        ("argmin of distances", (made(40001),), ("abs(x - 0.3).argmin()", SAME, SAME, SAME)),
        ("nearest of 50", (made(5003), made(50)), (
            "abs(x[:, None] - y).argmin(1)", SAME, SAME, SAME)),
        ("masked mean", (x, flags), (
            "(x * y).sum(1) / y.sum(1)", SAME, SAME, SAME)),
        ("mean where", (x,), (
            "xp.where(x > 0, x, 0).sum(0) / (x > 0).sum(0)", SAME, SAME, SAME)),
        ("var of float16 0", (f16,), ("x.var(0)", "x.var(0, correction=0)", SAME, SAME)),
        ("max of float16 1", (f16,), ("x.max(1)", "x.amax(1)", SAME, SAME)),
        ("min of int8 0, 2", (i8,), ("x.min((0, 2))", "x.amin((0, 2))", SAME, SAME)),
        ("argmax uint8 0", (made(1000, 317, dtype="uint8", high=256),), (
            "x.argmax(0)", SAME, SAME, SAME)),
        ("sum of int32 1", (made(1000, 317, dtype="int32"),), ("x.sum(1)", SAME, SAME, SAME)),
        ("count above a bound", (x,), ("(x > 0.5).sum()", SAME, SAME, SAME)),
        ("all of rows", (flags,), ("x.all(1)", SAME, SAME, SAME)),
        ("product complex64 1", (made(300, 317, dtype="complex64"),), (
            "xp.prod(x, 1)", "torch.prod(x, 1)", SAME, SAME)),
        ("mean of complex64 0", (made(1000, 317, dtype="complex64"),), (
            "x.mean(0)", SAME, SAME, SAME)),
        ("largest minus smallest 0, 1", (cube,), (
            "x.max((0, 1)) - x.min((0, 1))", "x.amax((0, 1)) - x.amin((0, 1))", SAME, SAME)),
        ("sum of every third row", (x,), ("x[::3].sum(0)", SAME, SAME, SAME)),
        ("trace", (made(1000, 1000),), ("xp.trace(x)", SAME, SAME, SAME)),
    ]  # fmt: skip


def _running() -> _Table:
    x, i32 = made(1000, 317), made(1000, 317, dtype="int32")
    return [
        ("cumprod rows float64", (made(1000, 317, dtype="float64"),), (
            "xp.cumprod(x, 1)", SAME, SAME, SAME)),
        ("cumsum float16 0", (made(1000, 317, dtype="float16"),), (
            "xp.cumsum(x, 0)", SAME, SAME, SAME)),
        ("cumsum uint8", (made(300001, dtype="uint8"),), ("xp.cumsum(x, 0)", SAME, SAME, SAME)),
        ("cumsum complex64 1", (made(500, 317, dtype="complex64"),), (
            "xp.cumsum(x, 1)", SAME, SAME, SAME)),
        ("sliding sums of 20", (x,), (
            "xp.cumsum(x, 1)[:, 20:] - xp.cumsum(x, 1)[:, :-20]", SAME, SAME, SAME)),
        ("differences int32", (i32,), (
            "xp.diff(x, axis=1)", "torch.diff(x, dim=1)", SAME, SAME)),
        ("second differences 0", (x,), ("x[2:] - 2 * x[1:-1] + x[:-2]", SAME, SAME, SAME)),
        ("trapezoid float64", (made(1000, 317, dtype="float64"),), (
            "((x[:, 1:] + x[:, :-1]) / 2).sum(1)", SAME, SAME, SAME)),
    ]  # fmt: skip


def _places() -> _Table:
    x, line = made(1000, 317), made(30001)
    few, some = made(50001, dtype="int64", high=40), made(9001, dtype="int64", high=1000)
    return [
        ("counts of 50001 in 40", (few,), (
            "xp.bincount(x, None, 40)", "torch.bincount(x, minlength=40)",
            "jnp.bincount(x, length=40)", "np.bincount(x, minlength=40)")),
        ("one-hot float32 of 40", (made(5001, dtype="int64", high=40),), (
            "T.to_one_hot(x, 40, 'float32')",
            "torch.nn.functional.one_hot(x, 40).to(torch.float32)",
            "jax.nn.one_hot(x, 40, dtype='float32')", "np.eye(40, dtype='float32')[x]")),
        ("take along 1", (x, made(1000, 20, dtype="int64", high=317)), (
            "xp.take_along_axis(x, y, 1)", "torch.gather(x, 1, y)", SAME, SAME)),
        ("take float16 rows", (made(1000, 317, dtype="float16"), some), (
            "x[y]", SAME, SAME, SAME)),
        ("take every column of uint8", (made(1000, 317, dtype="uint8"),
                                        made(500, dtype="int64", high=317)), (
            "x[:, y]", SAME, SAME, SAME)),
        ("scatter-add with collisions", (made(7), few, made(50001)), (
            "T.inc_subtensor(x[y % 7], z)", "x.index_add(0, y % 7, z)", "x.at[y % 7].add(z)",
            None)),
        ("scatter-add int32", (made(1000, dtype="int32"), some, made(9001, dtype="int32")), (
            "T.inc_subtensor(x[y], z)", "x.index_add(0, y, z)", "x.at[y].add(z)", None)),
        ("sums by group", (few, made(50001)), (
            "T.inc_subtensor(T.zeros(40)[x], y)", "torch.zeros(40).index_add(0, x, y)",
            "jax.ops.segment_sum(y, x, 40)", None)),
        ("rows of a boolean column", (x, made(1000, dtype="bool")), (
            "x[y]", SAME, None, SAME)),
        ("line by booleans", (line, made(30001, dtype="bool")), ("x[y]", SAME, None, SAME)),
        ("histogram of 30", (line,), (
            "xp.histogram(x, 30, (-3, 3))[0]", "torch.histc(x, 30, -3, 3)",
            "jnp.histogram(x, 30, (-3, 3))[0]", "np.histogram(x, 30, (-3, 3))[0]")),
    ]  # fmt: skip


def _orders() -> _Table:
    x, i32 = made(300, 317), made(50001, dtype="int32", high=10**6)
    return [
        ("top 100 of 1000", (made(300, 1000),), (
            "T.topk(x, 100)", "torch.topk(x, 100, 1)[0]", "jax.lax.top_k(x, 100)[0]", None)),
        ("sorted and different", (i32,), ("xp.unique(x)", SAME, None, SAME)),
        ("different of few int8", (made(50001, dtype="int8"),), ("xp.unique(x)", SAME, None, SAME)),
        ("sort float16 rows", (made(300, 317, dtype="float16"),), (
            "xp.sort(x, 1)", "torch.sort(x, 1)[0]", SAME, SAME)),
        ("sort backwards", (x,), (
            "xp.flip(xp.sort(x, 1), 1)", "torch.flip(torch.sort(x, 1)[0], (1,))", SAME, SAME)),
        ("rank of each", (made(20001),), (
            "xp.argsort(xp.argsort(x))", "torch.argsort(torch.argsort(x))", SAME, SAME)),
        ("median 0", (x,), ("xp.median(x, 0)", "torch.quantile(x, 0.5, 0)", SAME, SAME)),
        ("sort 3 rows of 10001", (made(3, 10001, dtype="float64"),), (
            "xp.sort(x, 1)", "torch.sort(x, 1)[0]", SAME, SAME)),
    ]  # fmt: skip


def _moves() -> _Table:
    x, image, u8 = made(1000, 317), made(4, 16, 33, 37), made(1000, 317, dtype="uint8")
    return [
        ("upsampling by 2", (image,), (
            "xp.repeat(xp.repeat(x, 2, 2), 2, 3)",
            "x.repeat_interleave(2, 2).repeat_interleave(2, 3)", SAME, SAME)),
        ("pad reflect float64", (made(61, 64, 67, dtype="float64"),), (
            "xp.pad(x, ((0, 0), (2, 2), (3, 3)), 'reflect')",
            "torch.nn.functional.pad(x, (3, 3, 2, 2), 'reflect')", SAME, SAME)),
        ("pad constant uint8", (u8,), (
            "xp.pad(x, ((1, 2), (3, 4)))", "torch.nn.functional.pad(x, (3, 4, 1, 2))", SAME, SAME)),
        ("roll both axes", (x,), (
            "xp.roll(x, (3, -5), (0, 1))", "torch.roll(x, (3, -5), (0, 1))", SAME, SAME)),
        ("tril", (made(601, 601),), ("xp.tril(x)", SAME, SAME, SAME)),
        ("triu of int32, k 3", (made(601, 601, dtype="int32"),), ("xp.triu(x, 3)", SAME, SAME,
                                                                  SAME)),
        ("tile", (made(50, 61),), ("xp.tile(x, (7, 11))", SAME, SAME, SAME)),
        ("float16 copy of x.T", (made(700, 601, dtype="float16"),), (
            "x.T + 0", "(x.T + 0).contiguous()", SAME, "np.ascontiguousarray(x.T + 0)")),
        ("join of int8 and int32", (made(501, 613, dtype="int8"), made(501, 613, dtype="int32")), (
            "xp.concatenate([x, y], 1)", "torch.cat([x, y], 1)", SAME, SAME)),
        ("stack last, float64", (made(90001, dtype="float64"), made(90001, dtype="float64")), (
            "xp.stack([x, y], 1)", SAME, SAME, SAME)),
        ("blocks of an image", (made(8, 64, 96),), (
            "xp.transpose(x.reshape((8, 8, 8, 12, 8)), (0, 1, 3, 2, 4)).reshape((8, 96, 64)) + 1",
            "x.reshape((8, 8, 8, 12, 8)).permute((0, 1, 3, 2, 4)).reshape((8, 96, 64)) + 1", SAME,
            SAME)),
    ]  # fmt: skip


def _products() -> _Table:
    x, y = made(701, 3), made(701, 3, seed=1)
    return [
        ("kron", (made(17, 19), made(23, 29)), ("xp.kron(x, y)", SAME, SAME, SAME)),
        ("cross of 701", (x, y), (
            "xp.cross(x, y)", "torch.linalg.cross(x, y)", SAME, SAME)),
        ("cdist of 3", (x, made(317, 3)), (
            "xp.sqrt(((x[:, None] - y) ** 2).sum(2))", "torch.cdist(x, y)", SAME, SAME)),
        ("cityblock of 17", (made(301, 17), made(217, 17)), (
            "abs(x[:, None] - y).sum(2)", "torch.cdist(x, y, 1)", SAME, SAME)),
        ("einsum of three, float64", (
            made(31, 37, dtype="float64"), made(37, 41, dtype="float64"),
            made(31, 41, dtype="float64")), (
            "xp.einsum('ij,jk,ik->i', x, y, z)", SAME, SAME, SAME)),
        ("einsum trace of products", (made(101, 31, 37), made(101, 37, 31)), (
            "xp.einsum('bij,bji->b', x, y)", SAME, SAME, SAME)),
        ("conv1d of 7", (made(8, 16, 301), made(24, 16, 7)), (
            "T.nnet.conv1d(x, y, filter_flip=False)", "torch.nn.functional.conv1d(x, y)",
            "jax.lax.conv(x, y, (1,), 'VALID')", None)),
        ("float16 @ float16", (made(129, 131, dtype="float16"), made(131, 127, dtype="float16")),
         ("x @ y", SAME, SAME, SAME)),
        ("complex64 @ complex64", (made(97, 101, dtype="complex64"),
                                   made(101, 103, dtype="complex64")), ("x @ y", SAME, SAME, SAME)),
        ("uint8 @ uint8", (made(97, 101, dtype="uint8"), made(101, 103, dtype="uint8")),
         ("x @ y", SAME, SAME, SAME)),
    ]  # fmt: skip


def _differentiated() -> _Table:
    x, cube = made(1000, 317), made(31, 57, 173)
    return [
        ("normalise, clip", (x,), (
            "xp.clip((x - x.mean(0)) / x.std(0), -2, 2)",
            "torch.clip((x - x.mean(0)) / x.std(0, correction=0), -2, 2)", SAME)),
        ("softmax over the first axis", (cube,), (
            "T.softmax(x, axis=0)", "torch.softmax(x, 0)", "jax.nn.softmax(x, 0)")),
        ("logsumexp 0", (cube,), (
            "T.logsumexp(x, 0)", "torch.logsumexp(x, 0)", "jax.nn.logsumexp(x, 0)")),
        ("cdist of 3", (made(701, 3), made(317, 3)), (
            "((x[:, None] - y) ** 2).sum(2)", SAME, SAME)),
        ("take along 1", (x, made(1000, 20, dtype="int64", high=317)), (
            "xp.take_along_axis(x, y, 1)", "torch.gather(x, 1, y)", SAME)),
        ("roll both axes", (x,), (
            "xp.roll(x, (3, -5), (0, 1))", "torch.roll(x, (3, -5), (0, 1))", SAME)),
        ("upsampling by 2", (made(4, 16, 33, 37),), (
            "xp.repeat(xp.repeat(x, 2, 2), 2, 3)",
            "x.repeat_interleave(2, 2).repeat_interleave(2, 3)", SAME)),
        ("tril", (made(601, 601),), ("xp.tril(x)", SAME, SAME)),
        ("masked mean", (x, made(1000, 317, dtype="bool")), (
            "(x * y).sum(1) / y.sum(1)", SAME, SAME)),
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(module="benchmarks.cpu.survey_mixed"))
