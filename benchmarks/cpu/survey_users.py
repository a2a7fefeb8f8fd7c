"""Rows of :mod:`benchmarks.cpu.nest` as users write them: one expression for all libraries where
their names agree (``xp``), at tiny, middle and large sizes and in five dtypes, many with gradients.

    python -m benchmarks.cpu.survey_users --check
    python -m benchmarks.cpu.survey_users --peers ../peers/bin/python --out survey-users-cpu.txt
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.cpu.nest import F, Nest, T, drawn, jax, jnp, main, nn, np, symdnn, torch
from benchmarks.cpu.survey import _positive, _whole
from benchmarks.cpu.survey_wide import graded, shape_text

_SIZES = ((10, 10), (1000, 1000), (4000, 4000))
_SPACES: dict[str, Any] = {
    "symdnn": T, "torch": torch, "jax": jnp, "numpy": np,
}  # fmt: skip
_NAMES = {"T": T, "nn": nn, "F": F, "torch": torch, "jax": jax, "jnp": jnp, "np": np}
_NAMES["symdnn"] = symdnn


def _function(text: str | None, space: str, letters: str) -> Callable[..., Any] | None:
    """A function of ``letters`` by its text, whose ``xp`` is the library's module."""
    if text is None:
        return None
    names = _NAMES | {"xp": _SPACES[space]}
    return eval(f"lambda {', '.join(letters)}: {text}", names)  # type: ignore[no-any-return]


def _row(
    name: str, arrays: tuple[Any, ...], ours: str, torch_: str | None = "=", jax_: str | None = "=",
    numpy_: str | None = "=", static: bool = False,
) -> Nest:  # fmt: skip
    """A row of expressions in x, y, z and so on; "=" is ours."""
    letters = "xyzwuv"[: len(arrays)]
    texts = {"symdnn": ours, "torch": torch_, "jax": jax_, "numpy": numpy_}
    f = {k: _function(ours if t == "=" else t, k, letters) for k, t in texts.items()}
    assert f["symdnn"] is not None
    return Nest(name, arrays, f["symdnn"], f["torch"], f["jax"], f["numpy"], static=static)


def rows() -> Iterator[Nest]:
    """All rows."""
    for shape in _SIZES:
        yield from _by_size(shape)
        for dtype in ("float32", "float64", "int64", "bool", "bfloat16"):
            yield from _by_dtype(shape, dtype)
    yield from _axes()
    yield from _selections()
    yield from _networks()


def _array(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Callable[[], Any]:
    if dtype == "bool":
        return lambda: np.random.default_rng(seed).integers(0, 2, shape).astype(bool)
    if dtype == "int64":
        return lambda: np.random.default_rng(seed).integers(1, 100, shape)
    if dtype == "bfloat16":
        return _positive(*shape, dtype=dtype)
    return drawn(*shape, dtype=dtype, seed=seed)


def _by_dtype(shape: tuple[int, int], dtype: str) -> Iterator[Nest]:
    mark = f"{dtype} {shape_text(shape)}"
    x, y = _array(shape, dtype), _array(shape, dtype, 1)
    column, row = _array((shape[0], 1), dtype, 2), _array((shape[1],), dtype, 3)
    c = _array(shape, "bool", 4)
    known = None if dtype == "bfloat16" else "="
    yield _row(f"x < y {mark}", (x, y), "x < y", numpy_=known)
    yield _row(f"where {mark}", (c, x, y), "xp.where(x, y, z)", numpy_=known)
    yield _row(f"x.T copy {mark}", (x,), "x.T", "x.T.contiguous()", "x.T", "x.T.copy()")
    yield _row(f"outer == {mark}", (column, row), "xp.equal(x, y)", "torch.eq(x, y)", numpy_=known,
               static=True)  # fmt: skip
    if dtype == "bool":
        yield _row(f"any axis 0 {mark}", (x,), "x.any(0)")
        yield _row(f"any axis 1 {mark}", (x,), "x.any(1)")
        yield _row(f"all {mark}", (x,), "x.all()")
        yield _row(f"sum axis 1 {mark}", (x,), "x.sum(1)")
        yield _row(f"(x & y) | ~x {mark}", (x, y), "(x & y) | ~x")
        yield _row(f"xor {mark}", (x, y), "x ^ y")
        yield _row(f"to float {mark}", (x,), "x.astype('float32')", "x.float()")
        yield _row(f"argmax axis 1 {mark}", (x,), "x.argmax(1)", "x.int().argmax(1)")
        return
    yield _row(f"sum {mark}", (x,), "x.sum()", numpy_=known)
    yield _row(f"sum axis 0 {mark}", (x,), "x.sum(0)", numpy_=known)
    yield _row(f"max axis 1 {mark}", (x,), "x.max(1)", "x.amax(1)", numpy_=known)
    yield _row(f"x * column + row {mark}", (x, column, row), "x * y + z", numpy_=known,
               static=True)  # fmt: skip
    yield _row(f"clip {mark}", (x,), "xp.clip(x, 1, 3)", numpy_=known)
    yield _row(f"argmin axis 0 {mark}", (x,), "x.argmin(0)", numpy_=known)
    if shape[0] < 4000:
        yield _row(f"cumsum axis 0 {mark}", (x,), "xp.cumsum(x, 0)", numpy_=known)
        yield _row(f"cumsum axis 1 {mark}", (x,), "xp.cumsum(x, 1)", numpy_=known)
    if dtype == "int64":
        yield _row(f"x // 3 + y % 4 {mark}", (x, y), "x // 3 + y % 4")
        yield _row(f"mean {mark}", (x,), "x.mean()", "x.double().mean()")
        yield _row(f"prod axis 0 {mark}", (x,), "x.prod(0)")
    else:
        yield _row(f"sqrt chain {mark}", (x, y), "xp.sqrt(x * x + y * y) + 1", numpy_=known)
        yield _row(
            f"softmax {mark}", (x,), "T.softmax(x, axis=1)", "torch.softmax(x, 1)",
            "jax.nn.softmax(x, 1)", None,
        )  # fmt: skip


def _by_size(shape: tuple[int, int]) -> Iterator[Nest]:
    mark = f"float32 {shape_text(shape)}"
    x, y, c = drawn(*shape), drawn(*shape, seed=1), _array(shape, "bool", 4)
    numbers = _whole("int64", 0, shape[1], (shape[0],))
    table: list[Nest] = [
        _row(
            f"var axis 0 keepdims {mark}",
            (x,),
            "x.var(0, keepdims=True)",
            "x.var(0, correction=0, keepdim=True)",
        ),
        _row(f"std {mark}", (x,), "T.std(x)", "x.std(correction=0)", "x.std()", "x.std()"),
        _row(
            f"centred rows {mark}",
            (x,),
            "x - x.mean(1, keepdims=True)",
            "x - x.mean(1, keepdim=True)",
        ),
        _row(
            f"top 5 of columns {mark}",
            (x,),
            "T.topk(x, 5, axis=0)",
            "torch.topk(x, 5, 0)[0]",
            "jax.lax.top_k(x.T, 5)[0].T",
            None,
        ),
        _row(
            f"one-hot product {mark}",
            (numbers, x),
            "T.dot(T.to_one_hot(x, y.shape[1], 'float32'), y.T)",
            "F.one_hot(x, y.shape[1]).float() @ y.T",
            "jax.nn.one_hot(x, y.shape[1]) @ y.T",
            None,
        ),
        _row(
            f"masked softmax {mark}",
            (x, c),
            "T.softmax(T.where(y, x, -np.inf), axis=1)",
            "torch.softmax(x.masked_fill(~y, -torch.inf), 1)",
            "jax.nn.softmax(jnp.where(y, x, -jnp.inf), 1)",
            None,
        ),
        _row(
            f"log-softmax, NLL {mark}",
            (x, numbers),
            "-T.log_softmax(x, axis=1)[T.arange(x.shape[0]), y].mean()",
            "F.nll_loss(F.log_softmax(x, 1), y)",
            "-jax.nn.log_softmax(x, 1)[jnp.arange(x.shape[0]), y].mean()",
            None,
        ),
        _row(
            f"repeat 2 axis 1 {mark}",
            (x,),
            "xp.repeat(x, 2, 1)",
            "torch.repeat_interleave(x, 2, 1)",
        ),
        _row(f"tile {mark}", (x,), "T.tile(x, (2, 3))", "x.repeat(2, 3)", "jnp.tile(x, (2, 3))",
             "np.tile(x, (2, 3))"),
        _row(f"roll both {mark}", (x,), "T.roll(T.roll(x, 1, 0), -2, 1)",
             "torch.roll(x, (1, -2), (0, 1))", "jnp.roll(x, (1, -2), (0, 1))",
             "np.roll(x, (1, -2), (0, 1))"),
        _row(f"flip up {mark}", (x,), "xp.flip(x, 0)", "torch.flip(x, (0,))", "=",
             "x[::-1].copy()"),
        _row(f"tril {mark}", (x,), "xp.tril(x)"),
        _row(f"diagonal {mark}", (x,), "T.diagonal(x)", "torch.diagonal(x).contiguous()",
             "jnp.diagonal(x)", "np.diagonal(x).copy()"),
        _row(f"trace {mark}", (x,), "xp.trace(x)"),
        _row(f"diag of row {mark}", (x,), "xp.diag(x[0])"),
        _row(f"outer {mark}", (x,), "xp.outer(x[0], x[1])"),
        _row(f"concatenate 0 {mark}", (x, y), "xp.concatenate([x, y], 0)", "torch.cat([x, y])"),
        _row(f"stack 1 {mark}", (x, y), "xp.stack([x, y], 1)", "torch.stack([x, y], 1)"),
        _row(f"halves {mark}", (x,), "x[:, ::2] * x[:, 1::2]"),
        _row(f"differences {mark}", (x,), "x[1:] - x[:-1]"),
        _row(f"slice {mark}", (x,), "x[1:-1, 2:]", "x[1:-1, 2:].contiguous()", "x[1:-1, 2:]",
             "x[1:-1, 2:].copy()"),
        _row(f"pad constant {mark}", (x,), "xp.pad(x, ((1, 1), (2, 2)))", "F.pad(x, (2, 2, 1, 1))"),
        _row(f"pad reflect {mark}", (x,), "xp.pad(x, ((2, 2), (3, 3)), mode='reflect')",
             "F.pad(x[None], (3, 3, 2, 2), mode='reflect')[0]"),
        _row(f"take_along_axis {mark}", (x, _whole("int64", 0, shape[1], (shape[0], 5))),
             "xp.take_along_axis(x, y, 1)", "torch.gather(x, 1, y)"),
        _row(f"scatter add {mark}", (x, _whole("int64", 0, 10, (shape[0],))),
             "T.inc_subtensor(T.zeros((10, x.shape[1]), 'float32')[y], x)",
             "torch.zeros(10, x.shape[1]).index_add(0, y, x)",
             "jnp.zeros((10, x.shape[1]), 'float32').at[y].add(x)", None),
        _row(f"sum of tanh {mark}", (x, y), "xp.tanh(x @ y.T).sum()" if shape[0] < 4000 else
             "xp.tanh(x * y).sum()"),
        _row(f"norm of rows {mark}", (x,), "x / xp.sqrt((x**2).sum(1, keepdims=True))",
             "x / torch.sqrt((x**2).sum(1, keepdim=True))"),
        _row(f"argmax {mark}", (x,), "x.argmax()"),
        _row(f"ptp axis 0 {mark}", (x,), "x.max(0) - x.min(0)", "x.amax(0) - x.amin(0)"),
        _row(f"layer norm {mark}", (x, drawn(shape[1]), drawn(shape[1])),
             "T.nnet.layer_norm(x, y, z)", "F.layer_norm(x, x.shape[1:], y, z)",
             "(x - x.mean(1, keepdims=True)) / jnp.sqrt(x.var(1, keepdims=True) + 1e-5) * y + z",
             None),
    ]  # fmt: skip
    for row in table:
        yield row
        if shape[0] < 4000 and row.name.split(" float32")[0] in _GRADED:
            yield graded(row)
    if shape[0] < 4000:
        yield _row(f"sort axis 0 {mark}", (x,), "xp.sort(x, 0)", "torch.sort(x, 0)[0]")
        yield _row(f"sort axis 1 {mark}", (x,), "xp.sort(x, 1)", "torch.sort(x, 1)[0]")
        yield _row(f"argsort axis 1 {mark}", (x,), "xp.argsort(x, 1)", "torch.argsort(x, 1)")
        yield _row(f"cdist {mark}", (x, y),
                   "T.sqrt(T.maximum((x**2).sum(1)[:, None] + (y**2).sum(1)"
                   " - 2 * T.dot(x, y.T), 0))",
                   "torch.cdist(x, y)",
                   "jnp.sqrt(jnp.maximum((x**2).sum(1)[:, None] + (y**2).sum(1)"
                   " - 2 * x @ y.T, 0))",
                   None)  # fmt: skip
        yield _row(f"quantile {mark}", (x,), "T.quantile(x, 0.3, axis=1)",
                   "torch.quantile(x, 0.3, 1)", "jnp.quantile(x, 0.3, 1)",
                   "np.quantile(x, 0.3, 1)")  # fmt: skip
        yield _row(f"cov {mark}", (x,), "xp.cov(x)", "torch.cov(x)")


_GRADED = {
    "var axis 0 keepdims", "top 5 of columns", "masked softmax", "log-softmax, NLL",
    "repeat 2 axis 1", "tile", "roll both", "tril", "concatenate 0", "stack 1", "halves",
    "differences", "slice", "pad constant", "pad reflect", "take_along_axis", "scatter add",
    "norm of rows", "layer norm", "diagonal",
}  # fmt: skip


def _axes() -> Iterator[Nest]:
    for shape, axis in (
        ((8, 64, 50, 20), (1,)), ((8, 64, 50, 20), (0, 2)), ((8, 64, 50, 20), (0, 2, 3)),
        ((8, 64, 50, 20), (2,)), ((200, 3, 700), (1,)), ((4, 5, 3), (1,)),
    ):  # fmt: skip
        a, m = repr(axis), f"{shape_text(shape)} axis {axis}"
        x = (drawn(*shape),)
        yield _row(f"mean keepdims {m}", x, f"x - x.mean({a}, keepdims=True)",
                   f"x - x.mean({a}, keepdim=True)")  # fmt: skip
        yield _row(f"var {m}", x, f"x.var({a})", f"x.var({a}, correction=0)")
        yield _row(f"max {m}", x, f"x.max({a})", f"x.amax({a})")
        yield _row(f"exp sum {m}", x, f"xp.exp(x).sum({a})")
        if len(axis) == 1:
            yield _row(f"argmin {m}", x, f"x.argmin({axis[0]})")
            yield _row(f"cumsum {m}", x, f"xp.cumsum(x, {axis[0]})")
            yield _row(f"log_softmax {m}", x, f"T.log_softmax(x, axis={axis[0]})",
                       f"torch.log_softmax(x, {axis[0]})", f"jax.nn.log_softmax(x, {axis[0]})",
                       None)  # fmt: skip


def _selections() -> Iterator[Nest]:
    for n in (100, 300000):
        i, v = _whole("int64", 0, 100, (n,)), drawn(n)
        s = n
        yield _row(f"bincount {s}", (i,), "xp.bincount(x, minlength=100)", "=",
                   "jnp.bincount(x, length=100)")  # fmt: skip
        yield _row(f"histogram {s}", (v,), "xp.histogram(x, 20, range=(-3.0, 3.0))[0]",
                   "torch.histc(x, 20, -3, 3)")  # fmt: skip
        yield _row(f"searchsorted {s}", (drawn(500), v), "xp.searchsorted(xp.sort(x), y)",
                   "torch.searchsorted(torch.sort(x)[0], y)")  # fmt: skip
        yield _row(f"unique {s}", (i,), "xp.unique(x)", "=", None)
        yield _row(f"nonzero {s}", (v,), "T.nonzero(x > 0)[0]", "torch.nonzero(x > 0)[:, 0]", None,
                   "np.nonzero(x > 0)[0]")  # fmt: skip
        yield _row(f"x[x > 0] {s}", (v,), "x[x > 0]", "=", None)
        yield _row(f"x[i] {s}", (v, _whole("int64", 0, n, (n,))), "x[y]")
        yield _row(f"x[i] += y {s}", (v, _whole("int64", 0, n, (n,)), v),
                   "T.inc_subtensor(x[y], z)",
                   "x.index_add(0, y, z)", "x.at[y].add(z)", None)  # fmt: skip
        yield _row(f"x[i] = y {s}", (v, _whole("int64", 0, n, (n,)), v), "T.set_subtensor(x[y], z)",
                   "x.index_copy(0, y, z)", "x.at[y].set(z)", None)  # fmt: skip
        yield _row(f"count_nonzero {s}", (v,), "xp.count_nonzero(x > 1)")
        yield _row(f"weighted bincount {s}", (i, v), "xp.bincount(x, y, minlength=100)", "=",
                   "jnp.bincount(x, y, length=100)")  # fmt: skip
        yield _row(f"isin {s}", (i, _whole("int64", 0, 100, (10,))), "xp.isin(x, y)")
        yield _row(f"digitize {s}", (v,), "T.digitize(x, np.linspace(-2, 2, 9, dtype='float32'))",
                   "torch.bucketize(x, torch.linspace(-2, 2, 9))",
                   "jnp.digitize(x, jnp.linspace(-2, 2, 9))",
                   "np.digitize(x, np.linspace(-2, 2, 9))")  # fmt: skip
    for batch, a, b, k in ((500, 4, 4, 4), (2000, 3, 3, 3), (64, 10, 20, 30), (16, 100, 100, 100)):
        x, y = drawn(batch, a, k), drawn(batch, k, b)
        row = _row(f"batched product {batch}x{a}x{k}x{b}", (x, y), "xp.matmul(x, y)")
        yield row
        yield graded(row)
    for spec, shapes in (
        ("ij,j->i", ((300, 400), (400,))), ("bi,bi->b", ((1000, 50), (1000, 50))),
        ("bhqd,bhkd->bhqk", ((4, 8, 60, 32), (4, 8, 60, 32))), ("ijk->ki", ((30, 40, 50),)),
        ("bnd,de->bne", ((8, 50, 64), (64, 48))),
        ("abc,cd,bd->ad", ((20, 30, 40), (40, 10), (30, 10))),
        ("i,j,k->ijk", ((50,), (60,), (70,))), ("iij->j", ((60, 60, 50),)),
    ):  # fmt: skip
        arrays = tuple(drawn(*s, seed=n) for n, s in enumerate(shapes))
        names = ", ".join("xyzw"[: len(arrays)])
        row = _row(f"einsum {spec}", arrays, f"xp.einsum('{spec}', {names})")
        yield row
        yield graded(row)


def _networks() -> Iterator[Nest]:
    convolutions: list[tuple[str, tuple[int, ...], tuple[int, ...], str, str]] = [
        ("1d", (4, 16, 100), (24, 16, 3), "border_mode=(1,)", "padding=1"),
        ("1d dilated", (4, 16, 100), (24, 16, 3), "border_mode=(2,), filter_dilation=(2,)",
         "padding=2, dilation=2"),
        ("1d depthwise", (8, 128, 200), (128, 1, 5), "border_mode=(2,), num_groups=128",
         "padding=2, groups=128"),
        ("2d strided", (4, 16, 32, 32), (32, 16, 3, 3), "border_mode=(1, 1), subsample=(2, 2)",
         "padding=1, stride=2"),
        ("2d dilated", (4, 16, 32, 32), (32, 16, 3, 3),
         "border_mode=(2, 2), filter_dilation=(2, 2)", "padding=2, dilation=2"),
        ("2d grouped", (4, 32, 32, 32), (32, 8, 3, 3), "border_mode=(1, 1), num_groups=4",
         "padding=1, groups=4"),
        ("2d depthwise strided", (8, 32, 56, 56), (32, 1, 3, 3),
         "border_mode=(1, 1), num_groups=32, subsample=(2, 2)", "padding=1, groups=32, stride=2"),
        ("2d depthwise dilated", (8, 32, 56, 56), (32, 1, 3, 3),
         "border_mode=(2, 2), num_groups=32, filter_dilation=(2, 2)",
         "padding=2, groups=32, dilation=2"),
        ("2d tiny", (1, 1, 10, 10), (1, 1, 3, 3), "border_mode=(1, 1)", "padding=1"),
        ("3d", (2, 8, 10, 16, 16), (8, 8, 3, 3, 3), "border_mode=(1, 1, 1)", "padding=1"),
        ("3d strided", (2, 8, 10, 16, 16), (8, 8, 3, 3, 3),
         "border_mode=(1, 1, 1), subsample=(2, 2, 2)", "padding=1, stride=2"),
        ("3d depthwise", (2, 32, 10, 16, 16), (32, 1, 3, 3, 3),
         "border_mode=(1, 1, 1), num_groups=32", "padding=1, groups=32"),
        ("3d grouped", (2, 16, 10, 16, 16), (16, 4, 3, 3, 3),
         "border_mode=(1, 1, 1), num_groups=4", "padding=1, groups=4"),
    ]  # fmt: skip
    for name, xs, ws, ours, theirs in convolutions:
        d = f"{len(xs) - 2}d"
        row = _row(f"conv{name}", (drawn(*xs), drawn(*ws, seed=1)),
                   f"T.nnet.conv{d}(x, y, filter_flip=False, {ours})", f"F.conv{d}(x, y, {theirs})",
                   None, None, static=True)  # fmt: skip
        yield row
        yield graded(row, 0)
        yield graded(Nest(f"{row.name} filter", row.arrays, row.symdnn, row.torch, static=True), 1)
    layers: list[tuple[str, tuple[int, ...], str, str]] = [
        ("max pool channels last", (8, 28, 28, 32),
         "T.signal.pool.pool_2d(x.dimshuffle(0, 3, 1, 2), (2, 2), ignore_border=True)"
         ".dimshuffle(0, 2, 3, 1)",
         "F.max_pool2d(x.permute(0, 3, 1, 2), 2).permute(0, 2, 3, 1)"),
        ("average pool channels last", (8, 28, 28, 32),
         "T.signal.pool.pool_2d(x.dimshuffle(0, 3, 1, 2), (3, 3), ignore_border=True,"
         " stride=(2, 2), mode='average_exc_pad').dimshuffle(0, 2, 3, 1)",
         "F.avg_pool2d(x.permute(0, 3, 1, 2), 3, 2).permute(0, 2, 3, 1)"),
        ("max pool 1d", (8, 32, 400), "nn.MaxPool1d(3, 2)(x)", "F.max_pool1d(x, 3, 2)"),
        ("adaptive average 7", (8, 32, 30, 30), "nn.AdaptiveAvgPool2d((7, 7))(x)",
         "F.adaptive_avg_pool2d(x, 7)"),
        ("adaptive max 5", (8, 32, 30, 30), "nn.AdaptiveMaxPool2d((5, 5))(x)",
         "F.adaptive_max_pool2d(x, 5)"),
        ("global average", (8, 32, 30, 30), "x.mean((2, 3))", "x.mean((2, 3))"),
        ("bilinear x2", (4, 16, 30, 30), "nn.Upsample(scale_factor=2, mode='bilinear')(x)",
         "F.interpolate(x, scale_factor=2, mode='bilinear')"),
        ("nearest x2", (4, 16, 30, 30), "nn.Upsample(scale_factor=2, mode='nearest')(x)",
         "F.interpolate(x, scale_factor=2, mode='nearest')"),
        ("group norm", (4, 32, 20, 20), "T.nnet.group_norm(x, 4)", "F.group_norm(x, 4)"),
        ("group norm tiny", (2, 6, 5, 5), "T.nnet.group_norm(x, 2)", "F.group_norm(x, 2)"),
        ("instance norm", (4, 32, 20, 20), "T.nnet.instance_norm(x)", "F.instance_norm(x)"),
        ("pixel shuffle", (4, 16, 30, 30), "nn.PixelShuffle(2)(x)", "F.pixel_shuffle(x, 2)"),
        ("glu", (300, 512), "x[:, :256] * T.sigmoid(x[:, 256:])", "F.glu(x, 1)"),
        ("gelu tanh", (300, 512), "T.nnet.gelu(x, approximate='tanh')",
         "F.gelu(x, approximate='tanh')"),
        ("unfold", (4, 8, 30, 30), "nn.Unfold((3, 3), padding=1)(x)",
         "F.unfold(x, 3, padding=1)"),
        ("zero pad", (4, 16, 30, 30), "nn.ZeroPad2d(2)(x)", "F.pad(x, (2, 2, 2, 2))"),
        ("reflection pad", (4, 16, 30, 30), "nn.ReflectionPad2d(2)(x)",
         "F.pad(x, (2, 2, 2, 2), mode='reflect')"),
        ("replication pad", (4, 16, 30, 30), "nn.ReplicationPad2d(2)(x)",
         "F.pad(x, (2, 2, 2, 2), mode='replicate')"),
        ("circular pad", (4, 16, 30, 30), "T.pad(x, ((0, 0), (0, 0), (2, 2), (2, 2)), mode='wrap')",
         "F.pad(x, (2, 2, 2, 2), mode='circular')"),
        ("normalize", (300, 512), "nn.functional.normalize(x)", "F.normalize(x)"),
        ("cosine of pairs", (300, 512), "nn.functional.cosine_similarity(x[:150], x[150:])",
         "F.cosine_similarity(x[:150], x[150:])"),
    ]  # fmt: skip
    for name, shape, ours, theirs in layers:
        row = _row(name, (drawn(*shape),), ours, theirs, None, None, static=True)
        yield row
        yield graded(row)
    table, i = drawn(1000, 32), _whole("int64", 0, 1000, (100, 20))
    row = _row("embedding bag", (table, i), "x[y].sum(1)", "F.embedding_bag(y, x, mode='sum')",
               "x[y].sum(1)", "x[y].sum(1)")  # fmt: skip
    yield row
    yield graded(row)
    x, h, c = drawn(16, 64), drawn(16, 64, seed=1), drawn(16, 64, seed=2)
    w, u = drawn(256, 64), drawn(256, 64, seed=3)
    zero = drawn(256, seed=4)
    row = _row(
        "LSTM cell", (x, h, c, w, u, zero),
        "(lambda g: T.sigmoid(g[:, 192:]) * T.tanh(T.sigmoid(g[:, 64:128]) * z"
        " + T.sigmoid(g[:, :64]) * T.tanh(g[:, 128:192])))(T.dot(x, w.T) + T.dot(y, u.T) + v)",
        "torch.lstm_cell(x, (y, z), w, u, v, torch.zeros_like(v))[0]",
        "(lambda g: jax.nn.sigmoid(g[:, 192:]) * jnp.tanh(jax.nn.sigmoid(g[:, 64:128]) * z"
        " + jax.nn.sigmoid(g[:, :64]) * jnp.tanh(g[:, 128:192])))(x @ w.T + y @ u.T + v)", None,
    )  # fmt: skip
    yield row
    yield graded(row, 3)
    image, grid = (
        drawn(2, 8, 20, 20),
        lambda: np.random.default_rng(3).uniform(-1, 1, (2, 24, 24, 2)).astype("float32"),
    )
    row = _row("grid sample", (image, grid), "nn.functional.grid_sample(x, y)",
               "F.grid_sample(x, y, align_corners=False)", None, None, static=True)  # fmt: skip
    yield row
    yield graded(row)
    yield graded(Nest("grid sample by grid", row.arrays, row.symdnn, row.torch, static=True), 1)
    row = _row("transposed conv2d", (drawn(4, 16, 20, 20), drawn(16, 8, 4, 4)),
               "T.nnet.conv2d_transpose(x, y, (4, 8, 40, 40), None, (1, 1), (2, 2), False)",
               "F.conv_transpose2d(x, y, stride=2, padding=1)", None, None,
               static=True)  # fmt: skip
    yield row
    yield graded(row)
    for n in (100, 2000):
        yield _row(
            f"scan decay {n}", (drawn(n),),
            "symdnn.scan(lambda v, s: s * 0.9 + v, sequences=[x],"
            " outputs_info=[T.constant(np.float32(0))])[0]", None,
            "jax.lax.scan(lambda s, v: (s * 0.9 + v,) * 2, jnp.float32(0), x)[1]", None,
        )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(module="benchmarks.cpu.survey_users"))
