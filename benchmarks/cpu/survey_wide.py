"""Rows of :mod:`benchmarks.cpu.nest` of what programs do beside their networks: statistics,
selections, joins, gathers, windows, norms, losses, at small and large sizes, with gradients.

    python -m benchmarks.cpu.survey_wide --check
    python -m benchmarks.cpu.survey_wide --peers ../peers/bin/python --out survey-wide-cpu.txt
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.cpu.nest import F, Nest, T, drawn, jax, jnp, main, symdnn, torch
from benchmarks.cpu.survey import _positive, _whole

#: Of a small, a middle and a large matrix.
SIZES = ((10, 10), (250, 400), (2500, 4000))
_Call = Callable[..., Any]


def rows() -> Iterator[Nest]:
    """All rows."""
    yield from _statistics()
    yield from _selections()
    yield from _moves()
    yield from _gathers()
    yield from _chains()


def plain_row(
    name: str, arrays: tuple[_Call, ...], ours: _Call, torch_: _Call | None, jax_: _Call | None,
    static: bool = False,
) -> Nest:  # fmt: skip
    return Nest(name, arrays, ours, torch_, jax_, static=static)


def graded(row: Nest, argument: int = 0) -> Nest:
    """The gradient of a row's sum of squares with respect to an argument."""

    def ours(*xs: Any) -> Any:
        return symdnn.grad((row.symdnn(*xs) ** 2).sum(), xs[argument])

    def torch_(*xs: Any) -> Any:
        own = [x.detach().requires_grad_() if i == argument else x for i, x in enumerate(xs)]
        return torch.autograd.grad((row.torch(*own) ** 2).sum(), own[argument])  # type: ignore[misc]

    def jax_(*xs: Any) -> Any:
        return jax.grad(lambda *a: (row.jax(*a) ** 2).sum(), argument)(*xs)  # type: ignore[misc]

    return Nest(
        f"{row.name} gradient", row.arrays, ours, torch_ if row.torch else None,
        jax_ if row.jax else None, static=row.static,
    )  # fmt: skip


def shape_text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def _statistics() -> Iterator[Nest]:
    several: list[tuple[tuple[int, ...], Any]] = [
        ((10, 10), 1), ((16, 25, 25), (0, 2)), ((20, 30, 8, 20), (1, 3)), ((20, 30, 8, 20), (0, 2)),
        ((8, 10, 12, 10, 11), (1, 2, 3)), ((8, 10, 12, 10, 11), (0, 4)), ((30000, 3), 1),
        ((3, 30000), 0), ((2500, 4000), 1), ((2500, 4000), 0),
    ]  # fmt: skip
    for shape, axis in several:
        mark = f"float32 {shape_text(shape)} axis {axis}"
        x = (drawn(*shape),)
        table: list[tuple[str, _Call, _Call, _Call]] = [
            ("std", lambda v, a: T.std(v, a), lambda v, a: v.std(a, correction=0),
             lambda v, a: v.std(a)),
            ("norm", lambda v, a: T.norm(v, 2, a), lambda v, a: torch.linalg.vector_norm(v, 2, a),
             lambda v, a: jnp.sqrt((v * v).sum(a))),
            ("l1", lambda v, a: abs(v).sum(a), lambda v, a: v.abs().sum(a),
             lambda v, a: abs(v).sum(a)),
            ("prod", lambda v, a: T.prod(v, a), None, lambda v, a: v.prod(a)),
            ("ptp", lambda v, a: v.max(a) - v.min(a), lambda v, a: v.amax(a) - v.amin(a),
             lambda v, a: v.max(a) - v.min(a)),
            ("standardised", lambda v, a: (v - v.mean(a, keepdims=True)) / v.std(a, keepdims=True),
             lambda v, a: (v - v.mean(a, keepdim=True)) / v.std(a, correction=0, keepdim=True),
             lambda v, a: (v - v.mean(a, keepdims=True)) / v.std(a, keepdims=True)),
            ("unit", lambda v, a: v / T.sqrt((v * v).sum(a, keepdims=True)),
             lambda v, a: v / torch.sqrt((v * v).sum(a, keepdim=True)),
             lambda v, a: v / jnp.sqrt((v * v).sum(a, keepdims=True))),
            ("count > 0", lambda v, a: T.gt(v, 0).sum(a), lambda v, a: (v > 0).sum(a),
             lambda v, a: (v > 0).sum(a)),
        ]  # fmt: skip
        for name, ours, torch_, jax_ in table:
            each = [f and (lambda v, f=f, a=axis: f(v, a)) for f in (ours, torch_, jax_)]
            row = plain_row(f"{name} {mark}", x, each[0], each[1], each[2])
            yield row
            if name in ("std", "norm", "unit", "standardised"):
                yield graded(row)
    for shape, axis in (
        ((10, 10), 1),
        ((20000, 5), 1),
        ((400, 250), 0),
        ((16, 25, 250), 1),
        ((33, 1000, 3), 1),
        ((2500, 4000), 1),
    ):
        mark = f"float32 {shape_text(shape)} axis {axis}"
        x = (drawn(*shape),)
        for name, ours, torch_, jax_ in (
            ("softmax", lambda v, a: T.softmax(v, axis=a), lambda v, a: torch.softmax(v, a),
             lambda v, a: jax.nn.softmax(v, a)),
            ("logsumexp", lambda v, a: T.logsumexp(v, axis=a), lambda v, a: torch.logsumexp(v, a),
             lambda v, a: jax.nn.logsumexp(v, a)),
            ("argmin", lambda v, a: T.argmin(v, a), lambda v, a: v.argmin(a),
             lambda v, a: v.argmin(a)),
            ("max and argmax", lambda v, a: list(T.max_and_argmax(v, a)), lambda v, a: v.max(a),
             lambda v, a: (v.max(a), v.argmax(a))),
            ("cumsum", lambda v, a: T.cumsum(v, a), lambda v, a: torch.cumsum(v, a),
             lambda v, a: jnp.cumsum(v, a)),
            ("cummax", lambda v, a: T.cummax(v, a), lambda v, a: torch.cummax(v, a)[0],
             lambda v, a: jax.lax.cummax(v, a)),
            ("logcumsumexp", lambda v, a: T.logcumsumexp(v, a),
             lambda v, a: torch.logcumsumexp(v, a), lambda v, a: jax.lax.cumlogsumexp(v, a)),
        ):  # fmt: skip
            each = [lambda v, f=f, a=axis: f(v, a) for f in (ours, torch_, jax_)]
            row = plain_row(f"{name} {mark}", x, each[0], each[1], each[2])
            yield row
            if name in ("softmax", "logsumexp", "cumsum", "logcumsumexp"):
                yield graded(row)
        if shape[0] < 2500 or axis:
            for name, ours, torch_, jax_ in (
                ("sort", lambda v, a: T.sort(v, a), lambda v, a: torch.sort(v, a)[0],
                 lambda v, a: jnp.sort(v, a)),
                ("argsort", lambda v, a: T.argsort(v, a),
                 lambda v, a: torch.argsort(v, dim=a, stable=True), lambda v, a: jnp.argsort(v, a)),
                ("median", lambda v, a: T.median(v, a), None,
                 lambda v, a: jnp.median(v, a)),
                ("topk 3", lambda v, a: T.topk(v, 3, axis=a), lambda v, a: torch.topk(v, 3, a)[0],
                 lambda v, a: jnp.moveaxis(jax.lax.top_k(jnp.moveaxis(v, a, -1), 3)[0], -1, a)),
            ):  # fmt: skip
                each = [lambda v, f=f, a=axis: f(v, a) for f in (ours, torch_, jax_)]
                yield plain_row(f"{name} {mark}", x, each[0], each[1], each[2])


def _selections() -> Iterator[Nest]:
    for shape in SIZES:
        x, y = drawn(*shape), drawn(*shape, seed=1)
        mark = f"float32 {shape_text(shape)}"
        mask = _whole("bool", 0, 2, shape)
        yield plain_row(
            f"masked mean {mark}", (x, mask), lambda v, m: T.where(m, v, 0).sum(1) / m.sum(1),
            lambda v, m: torch.where(m, v, 0).sum(1) / m.sum(1),
            lambda v, m: jnp.where(m, v, 0).sum(1) / m.sum(1),
        )  # fmt: skip
        yield plain_row(
            f"masked softmax {mark}", (x, mask),
            lambda v, m: T.softmax(T.where(m, v, -1e9), axis=-1),
            lambda v, m: torch.softmax(v.masked_fill(~m, -1e9), -1),
            lambda v, m: jax.nn.softmax(jnp.where(m, v, -1e9), -1),
        )  # fmt: skip
        yield plain_row(
            f"clip of sum {mark}", (x, y), lambda v, w: T.clip(v + w, -1, 1) * v,
            lambda v, w: (v + w).clip(-1, 1) * v, lambda v, w: (v + w).clip(-1, 1) * v,
        )  # fmt: skip
        yield plain_row(
            f"nan to num {mark}", (x,), lambda v: T.where(T.isnan(v), 0, v), torch_nan, jax_nan
        )
        yield plain_row(
            f"nanmean {mark}", (x,), lambda v: T.nanmean(v, 1), lambda v: torch.nanmean(v, 1),
            lambda v: jnp.nanmean(v, 1),
        )  # fmt: skip
        yield plain_row(
            f"positive numbers {mark}", (x,), lambda v: v[T.gt(v, 0)], lambda v: v[v > 0], None
        )
        yield plain_row(
            f"nonzero {mark}", (x,), lambda v: T.nonzero(T.gt(v, 1)),
            lambda v: torch.nonzero(v > 1, as_tuple=True), None,
        )  # fmt: skip
        yield plain_row(
            f"causal mask {mark}", (x,),
            lambda v: T.where(T.ge(T.arange(v.shape[0])[:, None], T.arange(v.shape[1])), v, -1e9),
            lambda v: v.masked_fill(
                torch.arange(v.shape[0])[:, None] < torch.arange(v.shape[1]), -1e9),
            lambda v: jnp.where(jnp.arange(v.shape[0])[:, None] >= jnp.arange(v.shape[1]), v, -1e9),
        )  # fmt: skip
    yield plain_row(
        "unique of 100000", (_whole("int64", 0, 5000, (100000,)),), lambda i: T.unique(i),
        lambda i: torch.unique(i), lambda i: jnp.unique(i, size=5000),
    )  # fmt: skip
    yield plain_row(
        "searchsorted 100000 in 1000", (_whole("float32", 0, 1000, (1000,)), drawn(100000)),
        lambda a, v: T.searchsorted(T.sort(a), v),
        lambda a, v: torch.searchsorted(torch.sort(a)[0], v),
        lambda a, v: jnp.searchsorted(jnp.sort(a), v),
    )  # fmt: skip
    yield plain_row(
        "bincount 100000", (_whole("int64", 0, 500, (100000,)),),
        lambda i: T.bincount(i, minlength=500), lambda i: torch.bincount(i, minlength=500),
        lambda i: jnp.bincount(i, length=500),
    )  # fmt: skip
    yield plain_row(
        "bincount weighted 100000", (_whole("int64", 0, 500, (100000,)), drawn(100000)),
        lambda i, w: T.bincount(i, w, minlength=500),
        lambda i, w: torch.bincount(i, w, minlength=500),
        lambda i, w: jnp.bincount(i, w, length=500),
    )  # fmt: skip
    yield plain_row(
        "isin 100000 of 100",
        (_whole("int64", 0, 5000, (100000,)), _whole("int64", 0, 5000, (100,))),
        lambda a, b: T.isin(a, b), lambda a, b: torch.isin(a, b), lambda a, b: jnp.isin(a, b),
    )  # fmt: skip
    yield plain_row(
        "histogram 100000", (drawn(100000),),
        lambda v: T.histogram(v, 50, range=(-3.0, 3.0))[0],
        lambda v: torch.histc(v, 50, -3, 3), lambda v: jnp.histogram(v, 50, (-3.0, 3.0))[0],
    )  # fmt: skip
    yield plain_row(
        "interp 100000", (drawn(100000), drawn(100)),
        lambda v, f: T.interp(v, T.linspace(-3.0, 3.0, 100).astype("float32"), f), None,
        lambda v, f: jnp.interp(v, jnp.linspace(-3, 3, 100, dtype="float32"), f),
    )  # fmt: skip


def torch_nan(v: Any) -> Any:
    return torch.where(torch.isnan(v), 0, v)


def jax_nan(v: Any) -> Any:
    return jnp.where(jnp.isnan(v), 0, v)


def _moves() -> Iterator[Nest]:
    for shape in SIZES:
        for dtype in ("float32", "uint8"):
            x = drawn(*shape) if dtype == "float32" else _whole(dtype, 0, 200, shape)
            mark = f"{dtype} {shape_text(shape)}"
            table: list[tuple[str, _Call, _Call, _Call]] = [
                ("flip", lambda v: v[:, ::-1], lambda v: torch.flip(v, (1,)),
                 lambda v: v[:, ::-1]),
                ("flip both", lambda v: v[::-1, ::-1], lambda v: torch.flip(v, (0, 1)),
                 lambda v: v[::-1, ::-1]),
                ("middle", lambda v: v[1:-1, 1:-1], lambda v: v[1:-1, 1:-1].contiguous(),
                 lambda v: v[1:-1, 1:-1]),
                ("roll rows", lambda v: T.roll(v, 3, 0), lambda v: torch.roll(v, 3, 0),
                 lambda v: jnp.roll(v, 3, 0)),
                ("tile", lambda v: T.tile(v, (2, 2)), lambda v: v.repeat(2, 2),
                 lambda v: jnp.tile(v, (2, 2))),
                ("repeat columns", lambda v: T.repeat(v, 2, 1),
                 lambda v: torch.repeat_interleave(v, 2, 1), lambda v: jnp.repeat(v, 2, 1)),
                ("stack last", lambda v: T.stack([v, v], axis=-1),
                 lambda v: torch.stack([v, v], -1), lambda v: jnp.stack([v, v], -1)),
                ("stack first", lambda v: T.stack([v, v, v], axis=0),
                 lambda v: torch.stack([v, v, v], 0), lambda v: jnp.stack([v, v, v], 0)),
                ("split", lambda v: list(T.split(v, [v.shape[1] // 2, v.shape[1] // 2], 2, axis=1)),
                 lambda v: [a.contiguous() for a in torch.chunk(v, 2, 1)],
                 lambda v: jnp.split(v, 2, 1)),
                ("pad reflect", lambda v: T.pad(v, ((2, 2), (3, 3)), mode="reflect"),
                 lambda v: F.pad(v[None].float(), (3, 3, 2, 2), mode="reflect")[0].to(v.dtype),
                 lambda v: jnp.pad(v, ((2, 2), (3, 3)), mode="reflect")),
                ("pad edge", lambda v: T.pad(v, ((2, 2), (3, 3)), mode="edge"),
                 lambda v: F.pad(v[None].float(), (3, 3, 2, 2), mode="replicate")[0].to(v.dtype),
                 lambda v: jnp.pad(v, ((2, 2), (3, 3)), mode="edge")),
                ("transposed chain", lambda v: (v.T * 2 + 1).T[::2],
                 lambda v: (v.T * 2 + 1).T[::2].contiguous(), lambda v: (v.T * 2 + 1).T[::2]),
                ("rot90", lambda v: T.rot90(v), lambda v: torch.rot90(v), lambda v: jnp.rot90(v)),
            ]  # fmt: skip
            for name, *each in table:
                row = plain_row(f"{name} {mark}", (x,), *each)
                yield row
                if dtype == "float32" and name in (
                    "roll rows",
                    "tile",
                    "repeat columns",
                    "pad reflect",
                    "flip",
                    "stack last",
                ):
                    yield graded(row)
    x = drawn(8, 3, 64, 96)
    yield plain_row(
        "images to bytes", (_positive(8, 3, 64, 96, dtype="float32", low=0, high=1),),
        lambda v: T.clip(v * 255, 0, 255).astype("uint8").dimshuffle(0, 2, 3, 1),
        lambda v: (v * 255).clip(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous(),
        lambda v: (v * 255).clip(0, 255).astype("uint8").transpose(0, 2, 3, 1),
    )  # fmt: skip
    yield plain_row(
        "heads 8x100x12x64", (drawn(8, 100, 768),),
        lambda v: v.reshape((v.shape[0], v.shape[1], 12, 64)).dimshuffle(0, 2, 1, 3),
        lambda v: v.reshape(8, 100, 12, 64).permute(0, 2, 1, 3).contiguous(),
        lambda v: v.reshape(8, 100, 12, 64).transpose(0, 2, 1, 3),
    )  # fmt: skip
    yield plain_row(
        "patches 8x3x64x64", (drawn(8, 3, 64, 64),),
        lambda v: v.reshape((8, 3, 8, 8, 8, 8)).dimshuffle(0, 2, 4, 3, 5, 1).reshape((8, 64, 192)),
        lambda v: v.reshape(8, 3, 8, 8, 8, 8).permute(0, 2, 4, 3, 5, 1).reshape(8, 64, 192),
        lambda v: v.reshape(8, 3, 8, 8, 8, 8).transpose(0, 2, 4, 3, 5, 1).reshape(8, 64, 192),
    )  # fmt: skip


def _gathers() -> Iterator[Nest]:
    table, i = drawn(1000, 64), _whole("int64", 0, 1000, (4000,))
    for shape, count in (((10, 10), 10), ((1000, 100), 1000), ((100000, 100), 100000)):
        n = shape[0]
        x, j, k = drawn(*shape), _whole("int64", 0, n, (count,)), _whole("int64", 0, shape[1], (n,))
        mark = f"float32 {shape_text(shape)}"
        row = plain_row(
            f"rows {mark}", (x, j), lambda v, i: T.take(v, i, 0), lambda v, i: v[i],
            lambda v, i: v[i],
        )  # fmt: skip
        yield row
        yield graded(row)
        row = plain_row(
            f"picked {mark}", (x, k), lambda v, i: v[T.arange(v.shape[0]), i],
            lambda v, i: v[torch.arange(v.shape[0]), i], lambda v, i: v[jnp.arange(v.shape[0]), i],
        )  # fmt: skip
        yield row
        yield graded(row)
        yield plain_row(
            f"segment sum {mark}", (x, j),
            lambda v, i: T.inc_subtensor(T.zeros((50, v.shape[1]), "float32")[i % 50], v),
            lambda v, i: torch.zeros(50, v.shape[1], dtype=v.dtype).index_add(0, i % 50, v),
            lambda v, i: jnp.zeros((50, v.shape[1]), "float32").at[i % 50].add(v),
        )  # fmt: skip
        yield plain_row(
            f"rows set {mark}", (x, j), lambda v, i: T.set_subtensor(v[i], 1),
            lambda v, i: v.index_fill(0, i, 1), lambda v, i: v.at[i].set(1),
        )  # fmt: skip
        yield plain_row(
            f"shuffled {mark}", (x, j), lambda v, i: v[T.argsort(i)],
            lambda v, i: v[torch.argsort(i, stable=True)], lambda v, i: v[jnp.argsort(i)],
        )  # fmt: skip
    for classes in (10, 1000):
        yield plain_row(
            f"one hot {classes}", (_whole("int64", 0, classes, (1000,)),),
            lambda i, c=classes: T.to_one_hot(i, c, "float32"),
            lambda i, c=classes: F.one_hot(i, c).float(),
            lambda i, c=classes: jax.nn.one_hot(i, c, dtype="float32"),
        )  # fmt: skip
    yield plain_row(
        "take along axis 0", (drawn(300, 400), _whole("int64", 0, 300, (20, 400))),
        lambda v, i: T.take_along_axis(v, i, 0), lambda v, i: torch.take_along_dim(v, i, 0),
        lambda v, i: jnp.take_along_axis(v, i, 0),
    )  # fmt: skip
    yield plain_row(
        "take along axis 1", (drawn(300, 400), _whole("int64", 0, 400, (300, 20))),
        lambda v, i: T.take_along_axis(v, i, 1), lambda v, i: torch.take_along_dim(v, i, 1),
        lambda v, i: jnp.take_along_axis(v, i, 1),
    )  # fmt: skip
    bag = plain_row(
        "bag of words", (table, _whole("int64", 0, 1000, (200, 20))),
        lambda t, i: t[i].mean(1), lambda t, i: t[i].mean(1), lambda t, i: t[i].mean(1),
    )  # fmt: skip
    yield bag
    yield graded(bag)
    edges = plain_row(
        "messages of a graph", (table, i, _whole("int64", 0, 1000, (4000,), )),
        lambda v, a, b: T.inc_subtensor(T.zeros_like(v)[a], v[b]),
        lambda v, a, b: torch.zeros_like(v).index_add(0, a, v[b]),
        lambda v, a, b: jnp.zeros_like(v).at[a].add(v[b]),
    )  # fmt: skip
    yield edges
    yield graded(edges)


def _chains() -> Iterator[Nest]:
    for shape in SIZES:
        for dtype in ("float32", "float64", "float16", "bfloat16"):
            x, y = _positive(*shape, dtype=dtype), _positive(*shape, dtype=dtype, low=0.5)
            mark = f"{dtype} {shape_text(shape)}"
            table: list[tuple[str, _Call, _Call, _Call]] = [
                ("adam", lambda g, m: [0.9 * m + 0.1 * g, m - 0.01 * g / (T.sqrt(g * g) + 0.001)],
                 lambda g, m: [0.9 * m + 0.1 * g, m - 0.01 * g / (torch.sqrt(g * g) + 0.001)],
                 lambda g, m: [0.9 * m + 0.1 * g, m - 0.01 * g / (jnp.sqrt(g * g) + 0.001)]),
                ("gate", lambda a, b: T.sigmoid(a) * T.tanh(b),
                 lambda a, b: torch.sigmoid(a) * torch.tanh(b),
                 lambda a, b: jax.nn.sigmoid(a) * jnp.tanh(b)),
                ("softplus log1p", lambda a, b: T.softplus(a) + T.log1p(b),
                 lambda a, b: F.softplus(a) + torch.log1p(b),
                 lambda a, b: jax.nn.softplus(a) + jnp.log1p(b)),
                ("mean squares", lambda a, b: ((a - b) ** 2).mean(),
                 lambda a, b: ((a - b) ** 2).mean(), lambda a, b: ((a - b) ** 2).mean()),
                ("silu", lambda a, b: T.silu(a) * b, lambda a, b: F.silu(a) * b,
                 lambda a, b: jax.nn.silu(a) * b),
            ]  # fmt: skip
            for name, *each in table:
                row = plain_row(f"{name} {mark}", (x, y), *each)
                yield row
                if name in ("gate", "silu") and dtype in ("float32", "float16"):
                    yield graded(row)
        for dtype in ("int32", "int64", "uint8", "int16"):
            x, y = _whole(dtype, 0, 100, shape), _whole(dtype, 1, 9, shape)
            mark = f"{dtype} {shape_text(shape)}"
            ints: list[tuple[str, _Call]] = [
                ("x // 7 + y % 5", lambda a, b: a // 7 + b % 5),
                ("x // y", lambda a, b: a // b),
                ("x ** 2 - y", lambda a, b: a**2 - b),
                ("x / y", lambda a, b: a / b),
                ("bits", lambda a, b: (a & b) ^ (a >> 2)),
                ("compare", lambda a, b: (a > 3) & (b < 5)),
            ]
            for name, f in ints:
                yield plain_row(f"{name} {mark}", (x, y), f, f, f)
            yield plain_row(f"sum {mark}", (x,), *[lambda a: a.sum()] * 3)
    row_, column = drawn(1000), drawn(800)
    yield plain_row(
        "outer sum", (column, row_), lambda a, b: T.tanh(a[:, None] + b),
        lambda a, b: torch.tanh(a[:, None] + b), lambda a, b: jnp.tanh(a[:, None] + b),
    )  # fmt: skip
    yield plain_row(
        "pairwise distances", (drawn(300, 3), drawn(400, 3, seed=1)),
        lambda a, b: T.sqrt(((a[:, None] - b) ** 2).sum(2)),
        lambda a, b: torch.sqrt(((a[:, None] - b) ** 2).sum(2)),
        lambda a, b: jnp.sqrt(((a[:, None] - b) ** 2).sum(2)),
    )  # fmt: skip
    yield plain_row(
        "polynomial float64", (drawn(100000, dtype="float64"),),
        lambda v: v**5 - 3 * v**4 + 2 * v**3 - v**2 + 7,
        lambda v: v**5 - 3 * v**4 + 2 * v**3 - v**2 + 7,
        lambda v: v**5 - 3 * v**4 + 2 * v**3 - v**2 + 7,
    )  # fmt: skip
    yield plain_row(
        "complex magnitude", (drawn(100000), drawn(100000, seed=1)),
        lambda a, b: abs(T.complex(a, b)), lambda a, b: abs(torch.complex(a, b)),
        lambda a, b: abs(jax.lax.complex(a, b)),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(module="benchmarks.cpu.survey_wide"))
