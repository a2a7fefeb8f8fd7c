"""Rows of :mod:`benchmarks.cpu.nest` by patterns of access: views with steps, broadcasts, middle
axes, running sums, gathers and scatters, orders, softmaxes, pads, chains of choices, short calls.

    python -m benchmarks.cpu.survey_patterns --check
    python -m benchmarks.cpu.survey_patterns --window-ms 5 --peers ../peers/bin/python
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
    for table in (_views(), _broadcasts(), _folds(), _places(), _orders(), _mixed(), _short()):
        for name, arrays, texts in table:
            yield each(name, arrays, texts, static=True)
    for name, arrays, texts in _differentiated():
        yield graded(row_of(name, arrays, *texts))


def _views() -> _Table:
    x, f64, u8 = made(700, 410), made(700, 410, dtype="float64"), made(700, 410, dtype="uint8")
    cube = made(20, 90, 170)
    return [
        ("every third column + 1", (x,), ("x[:, ::3] + 1", SAME, SAME, SAME)),
        ("rows backwards float64", (f64,),
         ("xp.flip(x, 0) * 2", "torch.flip(x, (0,)) * 2", SAME, SAME)),
        ("columns backwards uint8", (u8,),
         ("xp.flip(x, 1) + 1", "torch.flip(x, (1,)) + 1", SAME, SAME)),
        ("neighbours differ", (x,),
         ("xp.not_equal(x[:, 1:], x[:, :-1])", "x[:, 1:] != x[:, :-1]", SAME, SAME)),
        ("inner window mean", (cube,), ("x[:, 5:-5, 7:-7].mean((1, 2))", SAME, SAME, SAME)),
        ("even minus odd", (x,), ("x[:, ::2] - x[:, 1::2]", SAME, SAME, SAME)),
        ("swap of two axes + 1", (cube,),
         ("xp.swapaxes(x, 0, 1) + 1", SAME, SAME, SAME)),
        ("last axis first, exp", (cube,),
         ("xp.exp(xp.moveaxis(x, 2, 0))", SAME, SAME, SAME)),
        ("blocks' means", (x,),
         ("x[:, :400].reshape((70, 10, 40, 10)).mean((1, 3))", SAME, SAME, SAME)),
    ]  # fmt: skip


def _broadcasts() -> _Table:
    a, b, c = made(60, 1, 70), made(1, 80, 1), made(60, 80, 1)
    return [
        ("two broadcast each other", (a, b), ("x * y + 1", SAME, SAME, SAME)),
        ("three broadcast", (a, b, c), ("x * y + z", SAME, SAME, SAME)),
        ("outer maximum int32", (made(500, dtype="int32"), made(600, dtype="int32")),
         ("xp.maximum(x[:, None], y)", SAME, SAME, SAME)),
        ("outer and", (made(500, dtype="bool"), made(600, dtype="bool")),
         ("x[:, None] & y", SAME, SAME, SAME)),
        ("column * row sum", (made(900, 1), made(1, 800)), ("(x * y).sum(1)", SAME, SAME, SAME)),
        ("bias of channels", (made(8, 32, 28, 28), made(32)),
         ("x + y[:, None, None]", SAME, SAME, SAME)),
        ("scale and shift", (made(2000, 64), made(64), made(64)),
         ("x * y + z", SAME, SAME, SAME)),
        ("bf16 + column", (made(700, 500, dtype="bfloat16"), made(700, 1, dtype="bfloat16")),
         ("x + y", SAME, SAME, None)),
        ("pairs of points", (made(300, 2), made(250, 2)),
         ("abs(x[:, None] - y).max(2)", "abs(x[:, None] - y).amax(2)", SAME, SAME)),
    ]  # fmt: skip


def _folds() -> _Table:
    cube, f64, ints = (
        made(20, 90, 170),
        made(20, 90, 170, dtype="float64"),
        made(20, 90, 170, dtype="int32"),
    )
    half, thin = made(20, 90, 170, dtype="bfloat16"), made(50000, 6)
    return [
        ("middle sum float32", (cube,), ("x.sum(1)", SAME, SAME, SAME)),
        ("middle sum float64", (f64,), ("x.sum(1)", SAME, SAME, SAME)),
        ("middle max int32", (ints,), ("x.max(1)", "x.amax(1)", SAME, SAME)),
        ("middle argmin", (cube,), ("x.argmin(1)", SAME, SAME, SAME)),
        ("middle std", (cube,), ("x.std(1)", "x.std(1, correction=0)", SAME, SAME)),
        ("middle prod float64", (f64,), ("xp.prod(x, 1)", SAME, SAME, SAME)),
        ("bf16 mean 1", (half,), ("x.mean(1)", SAME, SAME, None)),
        ("thin rows sum", (thin,), ("x.sum(1)", SAME, SAME, SAME)),
        ("thin columns sum", (thin,), ("x.sum(0)", SAME, SAME, SAME)),
        ("thin columns mean of squares", (thin,), ("(x * x).mean(0)", SAME, SAME, SAME)),
        ("thin rows max", (thin,), ("x.max(1)", "x.amax(1)", SAME, SAME)),
        ("sum of ints", (ints,), ("x.sum()", SAME, SAME, SAME)),
        ("count of bools 1", (made(700, 410, dtype="bool"),), ("x.sum(1)", SAME, SAME, SAME)),
        ("range of rows", (made(700, 410),),
         ("x.max(1) - x.min(1)", "x.amax(1) - x.amin(1)", SAME, SAME)),
        ("middle cumsum", (cube,), ("xp.cumsum(x, 1)", SAME, SAME, SAME)),
        ("cumsum of bools", (made(300000, dtype="bool"),), ("xp.cumsum(x, 0)", SAME, SAME, SAME)),
        ("cumsum int32 1", (made(700, 410, dtype="int32"),), ("xp.cumsum(x, 1)", SAME, SAME, SAME)),
        ("running minimum", (cube,), (
            "T.cummin(x, 1)", "torch.cummin(x, 1)[0]", "jax.lax.cummin(x, 1)",
            "np.minimum.accumulate(x, 1)")),
        ("log-softmax middle", (cube,), (
            "T.log_softmax(x, axis=1)", "torch.log_softmax(x, 1)", "jax.nn.log_softmax(x, 1)",
            None)),
        ("softmax 0", (made(700, 410),), (
            "T.softmax(x, axis=0)", "torch.softmax(x, 0)", "jax.nn.softmax(x, 0)", None)),
        ("softmax of 10", (made(20000, 10),), (
            "T.softmax(x, axis=1)", "torch.softmax(x, 1)", "jax.nn.softmax(x, 1)", None)),
        ("softmax with temperature", (made(700, 410),), (
            "T.softmax(x / 0.7, axis=1)", "torch.softmax(x / 0.7, 1)",
            "jax.nn.softmax(x / 0.7, 1)", None)),
        ("softmax of a masked row", (made(700, 410), made(700, 410, dtype="bool")), (
            "T.softmax(T.switch(y, x, -1e9), axis=1)",
            "torch.softmax(torch.where(y, x, -1e9), 1)",
            "jax.nn.softmax(jnp.where(y, x, -1e9), 1)", None)),
    ]  # fmt: skip


def _places() -> _Table:
    x, i = made(3000, 100), made(10000, dtype="int64", high=3000)
    j = made(3000, dtype="int64", high=100)
    return [
        ("one of each row", (x, j), (
            "x[xp.arange(3000), y]", SAME, SAME, SAME)),
        ("gather float64", (made(3000, 100, dtype="float64"), i), ("x[y]", SAME, SAME, SAME)),
        ("gather numbers", (made(3000), i), ("x[y]", SAME, SAME, SAME)),
        ("gather of bools", (made(3000, dtype="bool"), i), ("x[y]", SAME, SAME, SAME)),
        ("gather and sum", (x, i), ("x[y].sum(1)", SAME, SAME, SAME)),
        ("bag of 5", (x, made(2000, 5, dtype="int64", high=3000)), (
            "x[y].sum(1)", "torch.nn.functional.embedding_bag(y, x, mode='sum')", SAME, SAME)),
        ("scatter add numbers", (made(3000), i, made(10000)), (
            "T.inc_subtensor(x[y], z)", "x.index_add(0, y, z)", "x.at[y].add(z)", None)),
        ("scatter max", (made(3000), i, made(10000)), (
            "T.scatter_reduce(x, 0, y, z, 'amax')",
            "x.scatter_reduce(0, y, z, 'amax')", "x.at[y].max(z)", None)),
        ("one-hot of 100, int64", (j,), (
            "T.to_one_hot(x, 100, 'int64')", "torch.nn.functional.one_hot(x, 100)",
            "jax.nn.one_hot(x, 100, dtype='int64')", "np.eye(100, dtype='int64')[x]")),
        ("set a column", (x, made(3000)), (
            "T.set_subtensor(x[:, 3], y)", None, "x.at[:, 3].set(y)", None)),
        ("column by number", (x, made(20, dtype="int64", high=100)), (
            "x[:, y]", SAME, SAME, SAME)),
    ]  # fmt: skip


def _orders() -> _Table:
    x, ints = made(500, 200), made(500, 200, dtype="int32", high=10**6)
    return [
        ("sort rows float32", (x,), ("xp.sort(x, 1)", "torch.sort(x, 1)[0]", SAME, SAME)),
        ("sort columns int32", (ints,), ("xp.sort(x, 0)", "torch.sort(x, 0)[0]", SAME, SAME)),
        ("argsort rows float64", (made(500, 200, dtype="float64"),),
         ("xp.argsort(x, 1)", SAME, SAME, SAME)),
        ("top 3 of rows", (x,), (
            "T.topk(x, 3)", "torch.topk(x, 3, 1)[0]", "jax.lax.top_k(x, 3)[0]", None)),
        ("top 20, and where", (made(100, 2000),), (
            "list(T.topk_and_argtopk(x, 20))", "list(torch.topk(x, 20, 1))",
            "list(jax.lax.top_k(x, 20))", None)),
        ("sort of 100", (made(100),), ("xp.sort(x)", "torch.sort(x)[0]", SAME, SAME)),
        ("sort of 4 numbers", (made(20000, 4),), (
            "xp.sort(x, 1)", "torch.sort(x, 1)[0]", SAME, SAME)),
        ("digitize", (made(100000), made(20, dtype="float32", seed=2)), (
            "xp.searchsorted(xp.sort(y), x)", "torch.searchsorted(torch.sort(y)[0], x)", SAME,
            SAME)),
    ]  # fmt: skip


def _mixed() -> _Table:
    x, image, line = made(700, 410), made(8, 3, 60, 70), made(200000)
    c = made(700, 410, dtype="complex64")
    return [
        ("pad edge", (image,), (
            "xp.pad(x, ((0, 0), (0, 0), (2, 2), (2, 2)), 'edge')",
            "torch.nn.functional.pad(x, (2, 2, 2, 2), 'replicate')",
            "jnp.pad(x, ((0, 0), (0, 0), (2, 2), (2, 2)), 'edge')", SAME)),
        ("pad reflect", (image,), (
            "xp.pad(x, ((0, 0), (0, 0), (3, 3), (3, 3)), 'reflect')",
            "torch.nn.functional.pad(x, (3, 3, 3, 3), 'reflect')", SAME, SAME)),
        ("roll a line", (line,), ("xp.roll(x, 1000, 0)", SAME, SAME, SAME)),
        ("where-chain of 4", (x,), (
            "xp.where(x > 1, 1, xp.where(x > 0, x, xp.where(x > -1, x * 0.1, -0.1)))", SAME, SAME,
            SAME)),
        ("select by three bands", (line,), (
            "(x < -1) * 1 + ((x >= -1) & (x < 1)) * 2 + (x >= 1) * 3", SAME, SAME, SAME)),
        ("ints by masks", (made(300000, dtype="int32"),), (
            "((x >> 3) & 7) ^ (x * 5)", SAME, SAME, SAME)),
        ("int division", (made(300000, dtype="int32"),), ("x // 7 + x % 7", SAME, SAME, SAME)),
        ("int64 power", (made(300000, dtype="int64"),), ("x ** 3 - x", SAME, SAME, SAME)),
        ("bf16 gelu-like", (made(700, 410, dtype="bfloat16"),), (
            "x / (1 + xp.exp(-x))", SAME, SAME, None)),
        ("float64 chain", (made(700, 410, dtype="float64"),), (
            "xp.sqrt(x * x + 1) * xp.tanh(x)", SAME, SAME, SAME)),
        ("complex rotation", (c, made(410)), ("x * xp.exp(1j * y)", SAME, SAME, SAME)),
        ("complex power spectrum", (c,), ("xp.real(x * xp.conj(x))", SAME, SAME, SAME)),
        ("complex a * b + c", (c, c, c), ("x * y + z", SAME, SAME, SAME)),
        ("complex from parts", (x, x), ("xp.real(x) + 1j * y", SAME, SAME, SAME)),
        ("complex mean square", (c,), ("(abs(x) ** 2).mean()", SAME, SAME, SAME)),
        ("einsum bhqd,bhkd", (made(4, 4, 40, 32), made(4, 4, 50, 32)), (
            "xp.einsum('bhqd,bhkd->bhqk', x, y)", SAME, SAME, SAME)),
        ("einsum ij,jk,kl", (made(50, 60), made(60, 70), made(70, 40)), (
            "xp.einsum('ij,jk,kl->il', x, y, z)", SAME, SAME, SAME)),
        ("einsum bi,bi->b", (made(3000, 60), made(3000, 60)), (
            "xp.einsum('bi,bi->b', x, y)", SAME, SAME, SAME)),
        ("stack of 3", (x, x, x), ("xp.stack([x, y, z], 0)", SAME, SAME, SAME)),
        ("cosine of rows", (x, x), (
            "(x * y).sum(1) / xp.sqrt((x * x).sum(1) * (y * y).sum(1))", SAME, SAME, SAME)),
    ]  # fmt: skip


def _short() -> _Table:
    v, m, i = made(64), made(16, 16), made(50, dtype="int64")
    return [
        ("short x + 1", (v,), ("x + 1", SAME, SAME, SAME)),
        ("short sum", (v,), ("x.sum()", SAME, SAME, SAME)),
        ("short row sums", (m,), ("x.sum(1)", SAME, SAME, SAME)),
        ("short x @ x", (m,), ("x @ x", SAME, SAME, SAME)),
        ("short int sum", (i,), ("x.sum()", SAME, SAME, SAME)),
        ("short transpose", (m,), ("xp.transpose(x).copy()", "x.T.contiguous()", SAME, SAME)),
        ("short where", (v,), ("xp.where(x > 0, x, 0)", SAME, SAME, SAME)),
        ("short gather", (v, i), ("x[y % 64]", SAME, SAME, SAME)),
        ("short argmax", (v,), ("x.argmax()", SAME, SAME, SAME)),
        ("short comparison", (v,), ("x > 0", SAME, SAME, SAME)),
        ("short join", (v, v), ("xp.concatenate([x, y])", "torch.cat([x, y])", SAME, SAME)),
        ("short softmax", (m,), (
            "T.softmax(x, axis=1)", "torch.softmax(x, 1)", "jax.nn.softmax(x, 1)", None)),
    ]  # fmt: skip


def _differentiated() -> _Table:
    x, cube = made(700, 410), made(20, 90, 170)
    return [
        ("middle mean", (cube,), ("x.mean(1) ** 2", SAME, SAME)),
        ("cumsum middle", (cube,), ("xp.cumsum(x, 1) ** 2", SAME, SAME)),
        ("even minus odd", (x,), ("(x[:, ::2] - x[:, 1::2]) ** 2", SAME, SAME)),
        ("outer", (made(500), made(600)), ("xp.tanh(x[:, None] * y)", SAME, SAME)),
        ("bias of channels", (made(8, 32, 28, 28), made(32)),
         ("xp.maximum(x + y[:, None, None], 0)",
          "torch.relu(x + y[:, None, None])", "jax.nn.relu(x + y[:, None, None])")),
        ("pad reflect", (made(8, 3, 60, 70),), (
            "xp.pad(x, ((0, 0), (0, 0), (3, 3), (3, 3)), 'reflect') ** 2",
            "torch.nn.functional.pad(x, (3, 3, 3, 3), 'reflect') ** 2", SAME)),
        ("top 3", (x,), ("T.topk(x, 3)", "torch.topk(x, 3, 1)[0]", "jax.lax.top_k(x, 3)[0]")),
        ("max of middle", (cube,), ("x.max(1)", "x.amax(1)", SAME)),
        ("where-chain", (x,), ("xp.where(x > 1, x * x, xp.where(x > 0, xp.exp(x), x))", SAME,
                               SAME)),
        ("one of each row", (made(3000, 100), made(3000, dtype="int64", high=100)), (
            "x[xp.arange(3000), y] ** 2", SAME, SAME)),
        ("joined", (x, x), ("xp.concatenate([x, y * 2], 1) ** 2", "torch.cat([x, y * 2], 1) ** 2",
                            SAME)),
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(module="benchmarks.cpu.survey_patterns"))
