"""Rows of :mod:`benchmarks.cpu.nest` by families: dtypes, strides of inputs, odd axes, selections,
windows, products of small matrices, counts and orders, each over several shapes.

    python -m benchmarks.cpu.survey_families --check
    python -m benchmarks.cpu.survey_families --draw 60 --seed 1 --avx2 --peers ../peers/bin/python
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.cpu import family_nets
from benchmarks.cpu.family_rows import SAME, Texts, each, made, row_of
from benchmarks.cpu.nest import Nest, main, np
from benchmarks.cpu.survey_wide import graded, shape_text


def rows() -> Iterator[Nest]:
    """All rows."""
    for family in (
        _dtypes, _strided_inputs, _mixtures, _axes, _gathers, _masks, _einsums, _orders, _counts,
        family_nets.rows,
    ):  # fmt: skip
        yield from family()


def _dtypes() -> Iterator[Nest]:
    """Ops along both axes in dtypes beside float32."""
    for dtype in ("float16", "bfloat16", "int16", "uint8", "int8", "complex64", "complex128"):
        known = None if dtype == "bfloat16" else SAME
        whole, twisted = dtype[0] in "iu", dtype[0] == "c"
        x, y = made(300, 1000, dtype=dtype), made(300, 1000, dtype=dtype, low=1, seed=1)
        table: list[tuple[str, str, str | None]] = [
            ("x * y + x", "x * y + x", SAME), ("sum 0", "x.sum(0)", SAME),
            ("sum 1", "x.sum(1)", SAME), ("sum", "x.sum()", SAME),
            ("cumsum 0", "xp.cumsum(x, 0)", SAME), ("cumsum 1", "xp.cumsum(x, 1)", SAME),
            ("x == y", "x == y", SAME), ("copy of x.T", "x.T + y[:, :300].T[:1]", SAME),
            ("where", "xp.where(x == y, x, y)", SAME),
            ("flip", "xp.flip(x, 1) + y", "torch.flip(x, (1,)) + y"),
            ("take", "x[y[:, 0] % 100]" if whole else "x[::3, ::2] * 2", "x[::3, ::2] * 2"),
        ]  # fmt: skip
        table += [("prod 1", "x.prod(1)", SAME), ("mean 0", "x.mean(0)", "x.mean(0)")]
        if twisted:
            table += [
                ("abs", "abs(x)", SAME), ("exp", "xp.exp(x)", SAME), ("div", "x / y", SAME),
                ("real", "xp.real(x) * 2", SAME), ("conj", "xp.conj(x) * y", SAME),
                ("abs2 sum 1", "(abs(x) ** 2).sum(1)", SAME), ("sqrt", "xp.sqrt(x)", SAME),
                ("dot", "xp.matmul(x, y.T)", SAME), ("angle", "xp.angle(x)", SAME),
                ("log", "xp.log(x)", SAME),
            ]  # fmt: skip
        else:
            table += [
                ("max 0", "x.max(0)", "x.amax(0)"), ("max 1", "x.max(1)", "x.amax(1)"),
                ("argmax 0", "x.argmax(0)", SAME), ("argmax 1", "x.argmax(1)", SAME),
                ("sort 1", "xp.sort(x, 1)", "torch.sort(x, 1)[0]"),
                ("sort 0", "xp.sort(x, 0)", "torch.sort(x, 0)[0]"),
                ("argsort 1", "xp.argsort(x, 1)", "torch.argsort(x, 1, stable=True)"),
                ("clip", "xp.clip(x, 1, 50)", SAME), ("x < y", "(x < y) & (y < 50)", SAME),
                ("var 1", "x.var(1)", None if whole else "x.var(1, correction=0)"),
                ("abs diff", "xp.maximum(x, y) - xp.minimum(x, y)", SAME),
            ]  # fmt: skip
        for name, text, theirs in table:
            if whole and name in ("mean 0", "take"):
                theirs = None
            third = "jnp.argsort(x, 1, stable=True)" if name == "argsort 1" else SAME
            fourth = "np.argsort(x, 1, kind='stable')" if name == "argsort 1" else known
            yield row_of(f"dtype {dtype} {name}", (x, y), text, theirs, third, known and fourth)
        if whole:
            ints = [("x // y", "x // y"), ("x % y", "x % y"), ("x ^ y", "x ^ y"), ("x >> 2",
                "x >> 2"),
                    ("to float32", "x * np.float32(0.5) + 1")]  # fmt: skip
            for name, text in ints:
                yield row_of(f"dtype {dtype} {name}", (x, y), text)
        elif not twisted:
            for f in ("exp", "tanh", "log1p", "sin"):
                yield row_of(f"dtype {dtype} {f}", (x,), f"xp.{f}(abs(x))", numpy_=known)
            yield row_of(f"dtype {dtype} softmax", (x,), "T.softmax(x, axis=1)",
                       "torch.softmax(x, 1)", "jax.nn.softmax(x, 1)", None)  # fmt: skip
            yield row_of(f"dtype {dtype} dot", (x, y), "xp.matmul(x, y.T)", numpy_=None)


def _strided_inputs() -> Iterator[Nest]:
    """Arguments that are no whole arrays in C order."""
    views: dict[str, Callable[[Any], Any]] = {
        "every second row": lambda a: a[::2], "every second column": lambda a: a[:, ::2],
        "transposed": lambda a: a.T, "column of a wide one": lambda a: a[:, 3:11],
        "broadcast rows": lambda a: np.broadcast_to(a[:1], a.shape),
        "broadcast columns": lambda a: np.broadcast_to(a[:, :1], a.shape),
        "Fortran order": lambda a: np.asfortranarray(a),
    }  # fmt: skip
    texts: list[tuple[str, str, str]] = [
        ("exp", "xp.exp(x) + 1", SAME), ("sum 0", "x.sum(0)", SAME), ("sum 1", "x.sum(1)", SAME),
        ("argmax 1", "x.argmax(1)", SAME), ("cumsum 0", "xp.cumsum(x, 0)", SAME),
        ("sort 1", "xp.sort(x, 1)", "torch.sort(x, 1)[0]"), ("dot", "xp.matmul(x[:200], x[:200].T)",
            SAME),
        ("row", "x - x[0]", SAME),
    ]  # fmt: skip
    for dtype in ("float32", "float64", "uint8"):
        whole = made(600, 1000, dtype=dtype)
        for view, of in views.items():
            x = (lambda whole=whole, of=of: of(whole()),)
            for name, text, theirs in texts:
                if dtype == "uint8" and name in ("exp", "dot"):
                    continue
                yield row_of(f"strided {view} {dtype} {name}", x, text, theirs)


def _mixtures() -> Iterator[Nest]:
    """Two dtypes in one expression."""
    for a, b in (
        ("float32", "int8"), ("float32", "bool"), ("float64", "float32"), ("int64", "float64"),
        ("int8", "int64"), ("uint8", "float32"), ("float16", "float32"), ("complex64", "float32"),
        ("int16", "int32"), ("bool", "int8"),
    ):  # fmt: skip
        x, y = (made(300, 1000, dtype=a), made(300, 1000, dtype=b, seed=1))
        for name, text in (
            ("x * y", "x * y"), ("sum", "(x * y).sum(1)"), ("columns", "(x * y).sum(0)"),
            ("where", "xp.where(y > 1, x, y)"),
            ("less", "x == y"), ("turned", "x[:, :300] + y[:, :300].T"),
        ):  # fmt: skip
            yield row_of(f"mixture {a} {b} {name}", (x, y), text)


_SHAPES: tuple[tuple[tuple[int, ...], tuple[Any, ...]], ...] = (
    ((20, 30, 25, 20), (1, 2, (1, 3), (0, 2), (0, 3))),
    ((6, 10, 9, 11, 50), ((0, 2, 4), (1, 3), 2, (0, 4))), ((5, 7, 9, 8, 11, 10), ((1, 2, 5), 3)),
    ((4000, 3, 25), (1, 2, (0, 2))), ((3, 25, 4000), (0, 1, (0, 2))),
    ((200000, 2), (0, 1)), ((2, 200000), (0, 1)), ((300000,), (0,)), ((1000, 17, 17), (1, (1, 2))),
)  # fmt: skip


def _axes() -> Iterator[Nest]:
    for shape, axes in _SHAPES:
        x = (made(*shape),)
        for axis in axes:
            mark, a = f"{shape_text(shape)} {axis}", repr(axis)
            table: list[tuple[str, Texts]] = [
                ("sum", (f"x.sum({a})",) * 4), ("mean of squares", (f"(x * x).mean({a})",) * 4),
                ("max", (f"x.max({a})", f"x.amax({a})", f"x.max({a})", f"x.max({a})")),
                ("var", (f"x.var({a})", f"x.var({a}, correction=0)", f"x.var({a})", f"x.var({a})")),
                ("logsumexp", (f"T.logsumexp(x, axis={a})", f"torch.logsumexp(x, {a})",
                               f"jax.nn.logsumexp(x, {a})", None)),
                ("norm 2", (f"xp.sqrt((x ** 2).sum({a}))",) * 4),
                ("norm 3", (f"(abs(x) ** 3).sum({a}) ** (1 / 3)",) * 4),
                ("any", (f"(x > 4).any({a})",) * 4), ("count", (f"(x > 1).sum({a})",) * 4),
                ("prod", (f"x.prod({a})", None, f"x.prod({a})", f"x.prod({a})")),
            ]  # fmt: skip
            if isinstance(axis, int):
                table += [
                    ("argmax", (f"x.argmax({a})",) * 4), ("cumsum", (f"xp.cumsum(x, {a})",) * 4),
                    ("cumprod", (f"xp.cumprod(x, {a})",) * 4),
                    ("cummax", (f"T.cummax(x, {a})", f"torch.cummax(x, {a})[0]",
                                f"jax.lax.cummax(x, {a})", f"np.maximum.accumulate(x, {a})")),
                    ("softmax", (f"T.softmax(x, axis={a})", f"torch.softmax(x, {a})",
                                 f"jax.nn.softmax(x, {a})", None)),
                    ("sort", (f"xp.sort(x, {a})", f"torch.sort(x, {a})[0]") + (f"xp.sort(x, {a})",
                        ) * 2),
                    ("median", (f"xp.median(x, {a})", None) + (f"xp.median(x, {a})",) * 2),
                    ("diff", (f"xp.diff(x, 1, {a})",) * 4),
                    ("roll", (f"xp.roll(x, 2, {a}) * 1",) * 4),
                    ("flip", (f"xp.flip(x, {a}) * 2",
                        f"torch.flip(x, ({a},)) * 2") + (f"xp.flip(x, {a}) * 2",) * 2),
                ]  # fmt: skip
            for name, texts in table:
                row = each(f"axes {name} {mark}", x, texts)
                yield row
                if name in ("var", "logsumexp", "cumsum", "softmax", "max", "diff", "prod"):
                    yield graded(row)


def _gathers() -> Iterator[Nest]:
    for shape, axis in (
        ((40, 50, 150), 0), ((40, 50, 150), 1), ((40, 50, 150), 2), ((5000, 8), 0), ((8, 5000), 1),
        ((100, 4, 500), 1), ((300000,), 0),
    ):  # fmt: skip
        n, mark = shape[axis], f"{shape_text(shape)} {axis}"
        places = tuple(n if i == axis else s for i, s in enumerate(shape))
        x, at = made(*shape), made(n, dtype="int64", high=n, seed=1)
        wide = made(*places, dtype="int64", high=n, seed=2)
        at_axis = ":, " * axis + "y"
        taken = row_of(f"gather take {mark}", (x, at), f"xp.take(x, y, {axis})",
                     f"torch.index_select(x, {axis}, y)")  # fmt: skip
        along = row_of(f"gather along {mark}", (x, wide), f"xp.take_along_axis(x, y, {axis})",
                     f"torch.gather(x, {axis}, y)")  # fmt: skip
        for row in (taken, along):
            yield row
            yield graded(row)
        yield row_of(f"scatter set {mark}", (x, at, x), f"T.set_subtensor(x[{at_axis}], z)",
                   f"x.index_copy({axis}, y, z)", f"x.at[{at_axis}].set(z)", None)  # fmt: skip
        yield row_of(f"scatter add {mark}", (x, at, x), f"T.inc_subtensor(x[{at_axis}], z)",
                   f"x.index_add({axis}, y, z)", f"x.at[{at_axis}].add(z)", None)  # fmt: skip
        yield row_of(f"scatter fill {mark}", (x, at), f"T.set_subtensor(x[{at_axis}], 0)",
                   f"x.index_fill({axis}, y, 0)", f"x.at[{at_axis}].set(0)", None)  # fmt: skip
    image, i, j = (
        made(200, 300, 3),
        made(50000, dtype="int64", high=200),
        made(50000, dtype="int64", high=300),
    )
    yield row_of("gather pixels", (image, i, j), "x[y, z]")
    yield graded(row_of("gather pixels", (image, i, j), "x[y, z]"))
    yield row_of("gather elements", (image, i, j), "x[y, z, 1]")
    mask = made(300, 1000, dtype="bool")
    for dtype in ("float32", "float64", "uint8"):
        x = made(300, 1000, dtype=dtype)
        yield row_of(f"gather by mask {dtype}", (x, mask), "x[y]", "=", None)
        yield row_of(
            f"gather rows by mask {dtype}", (x, made(300, dtype="bool")), "x[y]", "=", None
        )
    for name in ("max", "min", "prod"):
        reduce = {"max": "amax", "min": "amin", "prod": "prod"}[name]
        yield row_of(
            f"segment {name}", (made(20000, 16), made(20000, dtype="int64", high=500)),
            f"T.segment_{name}(x, y, 500)",
            f"torch.zeros(500, 16).index_reduce(0, y, x, '{reduce}', include_self=False)",
            f"jax.ops.segment_{name}(x, y, 500)", None,
        )  # fmt: skip


def _masks() -> Iterator[Nest]:
    for shape in ((30, 30), (300, 1000), (2000, 2000)):
        for dtype in ("float32", "float64", "int32", "uint8"):
            mark = f"{dtype} {shape_text(shape)}"
            x, y, c = (
                made(*shape, dtype=dtype),
                made(*shape, dtype=dtype, seed=1),
                made(*shape, dtype="bool"),
            )
            for name, text in (
                ("between", "(x > 1) & (x < 50)"), ("not equal", "xp.not_equal(x, y) | (x > y)"),
                ("where scalar", "xp.where(z, x, 0)"), ("count", "(x > y).sum()"),
                ("any row", "(x == y).any(1)"), ("all", "(x == x).all()"), ("sum where",
                    "xp.where(z, x, 0).sum(0)"),
                ("sign", "xp.sign(x)"), ("not", "~z"), ("first", "xp.argmax(x == 5, 1)"),
            ):  # fmt: skip
                theirs = (
                    "(x == 5).int().argmax(1)"
                    if name == "first"
                    else text.replace("not_equal", "ne")
                )
                yield row_of(f"mask {name} {mark}", (x, y, c), text, theirs)
        x = made(*shape)
        mark = shape_text(shape)
        for name, text in (("triu", "xp.triu(x, 1)"), ("tril", "xp.tril(x, -1)"), ("isnan",
            "xp.isnan(x).any()"),
                           ("isfinite", "xp.isfinite(x).all(1)"), ("nan_to_num",
                               "xp.nan_to_num(x)")):  # fmt: skip
            yield row_of(f"mask {name} {mark}", (x,), text)
        for name in ("triu", "tril"):
            yield graded(row_of(f"mask {name} {mark}", (x,), f"xp.{name}(x)"))
        yield row_of(f"mask nansum {mark}", (x,), "xp.nansum(x, 0)")
        yield row_of(f"mask nanmax {mark}", (x,), "xp.nanmax(x, 1)", None)
        hidden = made(*shape, dtype="bool")
        text = "xp.where(y, -np.inf, x)"
        yield row_of(f"mask fill {mark}", (x, hidden), text, "x.masked_fill(y, -torch.inf)")


def _einsums() -> Iterator[Nest]:
    for spec, *shapes in (
        ("ijk,kl->ijl", (20, 30, 40), (40, 50)), ("ijk,jl->ikl", (20, 30, 40), (30, 50)),
        ("ijk,il->jkl", (20, 30, 40), (20, 50)), ("ijk,ikl->ijl", (50, 20, 30), (50, 30, 25)),
        ("ijk,ilk->ijl", (50, 20, 30), (50, 25, 30)), ("ijk,jik->jk", (60, 50, 40), (50, 60, 40)),
        ("ij,ij->", (500, 600), (500, 600)), ("ij,ji->", (500, 600), (600, 500)),
        ("ij,jk,kl->il", (100, 80), (80, 90), (90, 70)), ("ii->i", (700, 700)),
        ("ijj->i", (50, 60, 60)), ("i,ij,j->", (300,), (300, 400), (400,)),
        ("bik,bjk->bij", (300, 4, 16), (300, 5, 16)), ("bi,bj->bij", (1000, 16), (1000, 20)),
        ("ijkl,jl->ik", (20, 25, 20, 25), (25, 25)), ("ij,ik->ijk", (300, 30), (300, 30)),
        ("bhwc,cd->bhwd", (4, 20, 20, 32), (32, 48)), ("bchw,cd->bdhw", (4, 32, 20, 20), (32, 48)),
        ("bqhd,bkhd->bhqk", (2, 50, 8, 32), (2, 50, 8, 32)), ("bhqk,bkhd->bqhd", (2, 8, 50, 50), (2,
            50, 8, 32)),
        ("bij,bj->bi", (2000, 10, 12), (2000, 12)),
        ("bij,bi->bj", (2000, 10, 12), (2000, 10)),
    ):  # fmt: skip
        names = ", ".join("xyzw"[: len(shapes)])
        arrays = tuple(made(*s, seed=n) for n, s in enumerate(shapes))
        row = row_of(f"einsum {spec}", arrays, f"xp.einsum('{spec}', {names})")
        yield row
        if len(shapes) == 2:
            yield graded(row)


def _orders() -> Iterator[Nest]:
    for shape, axis in (
        ((300, 1000), 0),
        ((300, 1000), 1),
        ((100000,), 0),
        ((30, 100, 100), 1),
        ((50000, 6), 1),
    ):
        for dtype in ("float32", "float64", "int32", "int64", "int8", "bool", "uint16"):
            x, a = (made(*shape, dtype=dtype),), axis
            mark = f"{dtype} {shape_text(shape)} {axis}"
            yield each(f"order sort {mark}", x, (f"xp.sort(x, {a})", f"torch.sort(x, {a})[0]",
                f"jnp.sort(x, {a})", f"np.sort(x, {a})"))  # fmt: skip
            yield each(f"order argsort {mark}", x, (
                f"xp.argsort(x, {a})", f"torch.argsort(x, dim={a}, stable=True)",
                    f"jnp.argsort(x, {a}, stable=True)",
                f"np.argsort(x, {a}, kind='stable')"))  # fmt: skip
        x = (made(*shape),)
        mark = f"{shape_text(shape)} {axis}"
        for q in (0.5, 0.9):
            yield row_of(f"order quantile {q} {mark}", x, f"xp.quantile(x, {q}, {axis})")
        yield row_of(f"order percentile {mark}", x, f"xp.percentile(x, [25, 75], {axis})", None)
        if shape[axis] > 5:
            for k in (1, 5, 50):
                if k < shape[axis]:
                    last = f"jax.lax.top_k(jnp.moveaxis(x, {axis}, -1), {k})[0]"
                    k_row = row_of(
                        f"order top {k} {mark}", x, f"T.topk(x, {k}, axis={axis})",
                        f"torch.topk(x, {k}, {axis})[0]", f"jnp.moveaxis({last}, -1, {axis})", None,
                    )  # fmt: skip
                    yield k_row
                    yield graded(k_row)
            yield row_of(f"order partition {mark}", x, f"xp.partition(x, 3, {axis})", None)
            yield row_of(
                f"order kth {mark}",
                x,
                f"T.kthvalue(x, 4, {axis})[0]",
                f"torch.kthvalue(x, 4, {axis})[0]",
                None,
                None,
            )


def _counts() -> Iterator[Nest]:
    for n in (1000, 300000):
        i, x, few = made(n, dtype="int64"), made(n), made(20, dtype="int64", seed=1)
        table: list[tuple[str, tuple[Any, ...], Texts]] = [
            ("bincount", (i,), ("xp.bincount(x, minlength=100)", SAME,
                "jnp.bincount(x, length=100)", SAME)),
            ("bincount weights", (i, x), ("xp.bincount(x, y, minlength=100)", SAME,
                "jnp.bincount(x, y, length=100)", SAME)),
            ("one hot", (i,), ("T.to_one_hot(x, 100, 'float32')", "F.one_hot(x, 100).float()",
                "jax.nn.one_hot(x, 100)",
                               "np.eye(100, dtype='float32')[x]")),
            ("searchsorted", (made(300), x), ("xp.searchsorted(xp.sort(x), y)",
                "torch.searchsorted(torch.sort(x)[0], y)", SAME, SAME)),
            ("unique", (i,), ("xp.unique(x)", SAME, None, SAME)),
            ("unique floats", (x,), ("xp.unique(x)", SAME, None, SAME)),
            ("unique counts", (i,), ("xp.unique(x, return_counts=True)", SAME, None, SAME)),
            ("isin", (i, few), ("xp.isin(x, y)", SAME, SAME, SAME)),
            ("isin floats", (x, x), ("xp.isin(x, y[:50])", SAME, SAME, SAME)),
            ("histogram", (x,), ("xp.histogram(x, 30, range=(-3.0, 3.0))[0]",
                "torch.histc(x, 30, -3, 3)", SAME, SAME)),
            ("interp", (x, made(100)), ("xp.interp(x, xp.arange(100) * 0.1, y)", None, SAME,
                SAME)),
            ("nonzero", (i,), ("xp.nonzero(x > 50)[0]", "torch.nonzero(x > 50)[:, 0]", None,
                SAME)),
            ("count_nonzero", (i,), ("xp.count_nonzero(x)", SAME, SAME, SAME)),
            ("count of bools", (made(n, dtype="bool"),), ("x.sum()", SAME, SAME, SAME)),
            ("argwhere of bools", (made(n, dtype="bool"),), ("xp.argwhere(x)", SAME, None, SAME)),
            ("gradient", (x,), ("xp.gradient(x)", "torch.gradient(x)[0]", SAME, SAME)),
            ("convolve", (x, made(9)), ("xp.convolve(x, y, mode='same')",
                "F.conv1d(x[None, None], y.flip(0)[None, None], padding=4)[0, 0]", SAME, SAME)),
            ("trapezoid", (x,), ("xp.trapezoid(x)", SAME, SAME, SAME)),
            ("cov", (x,), ("xp.cov(x.reshape((10, -1)))", SAME, SAME, SAME)),
            ("diff 2", (x,), ("xp.diff(x, 2)", SAME, SAME, SAME)),
            ("digitize", (x, made(16)), ("xp.digitize(x, xp.sort(y))",
                "torch.bucketize(x, torch.sort(y)[0])", SAME, SAME)),
            ("outer equal", (i,), ("x[:1000, None] == xp.arange(300)", SAME, SAME, SAME)),
            ("permutation", (i,), ("xp.argsort(xp.argsort(x))", SAME, SAME, SAME)),
            ("cummax", (i,), ("T.cummax(x, 0)", "torch.cummax(x, 0)[0]", "jax.lax.cummax(x)",
                "np.maximum.accumulate(x)")),
        ]  # fmt: skip
        for name, arrays, texts in table:
            yield each(f"count {name} {n}", arrays, texts)


if __name__ == "__main__":
    sys.exit(main(module="benchmarks.cpu.survey_families"))
