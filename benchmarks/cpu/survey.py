"""Rows of :mod:`benchmarks.cpu.nest` over many ops and dtypes: elementwise functions, reductions
over any axes, arg-reductions, cumulative ops, pooling, depthwise convolutions, embeddings.

    python -m benchmarks.cpu.survey --peers ../peers/bin/python --out survey-cpu.txt
    python -m benchmarks.cpu.survey --only 'float64'

Each op has an array of some 300,000 elements, which fits the second cache in part.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.cpu.nest import Nest, T, drawn, jax, jnp, main, symdnn, torch

_SHAPE = (300, 1000)
#: Functions whose operands have both signs.
_SIGNED = frozenset({"tanh", "erf", "gelu", "relu", "elu", "sigmoid", "softplus", "abs", "sin"})
_FLOATS = ("float32", "float64", "bfloat16")


def _positive(*shape: int, dtype: str, low: float = 0.1, high: float = 5.0) -> Callable[[], Any]:
    def make() -> Any:
        import ml_dtypes  # noqa: F401 (its import names bfloat16 for NumPy)

        return np.random.default_rng(2).uniform(low, high, shape).astype(np.dtype(dtype))

    return make


def _whole(dtype: str, low: int = 0, high: int = 100, shape: Any = _SHAPE) -> Callable[[], Any]:
    return lambda: np.random.default_rng(3).integers(low, high, shape).astype(dtype)


def rows() -> Iterator[Nest]:
    """All rows."""
    for dtype in _FLOATS:
        yield from _unary(dtype)
        yield from _binary(dtype)
        yield from _reduced(dtype)
        yield from _scans(dtype)
        yield from _images(dtype)
        yield from _moved(dtype)
    yield from _of_ints()


def _unary(dtype: str) -> Iterator[Nest]:
    special, nn = "torch.special", "torch.nn.functional"
    names: list[tuple[str, Any, Any, Any]] = [
        (n, f"symdnn.tensor.{n}", f"torch.{n}", f"jax.numpy.{n}") for n in (
            "exp", "exp2", "log", "log2", "log1p", "expm1", "sin", "cos", "tan", "tanh", "sinh",
            "arctan", "sqrt", "floor", "abs",
        )
    ]  # fmt: skip
    names += [
        ("arcsin", lambda v: T.arcsin(v * 0.1), lambda v: torch.arcsin(v * 0.1),
         lambda v: jnp.arcsin(v * 0.1)),
        ("erf", "symdnn.tensor.erf", f"{special}.erf", "jax.scipy.special.erf"),
        ("erfc", "symdnn.tensor.erfc", f"{special}.erfc", "jax.scipy.special.erfc"),
        ("gammaln", "symdnn.tensor.gammaln", f"{special}.gammaln", "jax.scipy.special.gammaln"),
        ("psi", "symdnn.tensor.psi", f"{special}.digamma", "jax.scipy.special.digamma"),
        ("sigmoid", "symdnn.tensor.nnet.sigmoid", "torch.sigmoid", "jax.nn.sigmoid"),
        ("softplus", "symdnn.tensor.nnet.softplus", f"{nn}.softplus", "jax.nn.softplus"),
        ("gelu", "symdnn.tensor.nnet.gelu", f"{nn}.gelu",
         lambda v: jax.nn.gelu(v, approximate=False)),
        ("relu", "symdnn.tensor.nnet.relu", "torch.relu", "jax.nn.relu"),
        ("elu", "symdnn.tensor.nnet.elu", f"{nn}.elu", "jax.nn.elu"),
        ("reciprocal", lambda v: 1 / v, lambda v: 1 / v, lambda v: 1 / v),
        ("x**3", lambda v: v**3, lambda v: v**3, lambda v: v**3),
        ("x**1.7", lambda v: v**1.7, lambda v: v**1.7, lambda v: v**1.7),
        ("clip", lambda v: T.clip(v, 0.5, 2), lambda v: v.clip(0.5, 2), lambda v: v.clip(0.5, 2)),
        ("to float32", lambda v: T.cast(v, "float32"), lambda v: v.to(torch.float32),
         lambda v: v.astype("float32")),
        ("to bfloat16", lambda v: T.cast(v, "bfloat16"), lambda v: v.to(torch.bfloat16),
         lambda v: v.astype("bfloat16")),
        ("to int32", lambda v: T.cast(v, "int32"), lambda v: v.to(torch.int32),
         lambda v: v.astype("int32")),
        ("isnan", "symdnn.tensor.isnan", "torch.isnan", "jax.numpy.isnan"),
    ]  # fmt: skip
    for name, ours, torch_, jax_ in names:
        if name == f"to {dtype}":
            continue
        x = _positive(*_SHAPE, dtype=dtype, low=-3.0 if name in _SIGNED else 0.1)
        yield Nest(f"{name} {dtype}", (x,), _named(ours), _named(torch_), _named(jax_))
        if name in ("psi", "gammaln", "gelu", "softplus", "tanh", "elu") and dtype != "bfloat16":
            own = _named(ours)
            yield Nest(
                f"{name} gradient {dtype}", (x, x), lambda v, d, f=own: symdnn.Lop(f(v), v, d),
                _torch_vjp(_named(torch_)), _jax_vjp(_named(jax_)),
            )  # fmt: skip


def _named(what: Any) -> Callable[..., Any]:
    """A peer's function by its dotted name, looked up in the peer's process."""
    if not isinstance(what, str):
        return what  # type: ignore[no-any-return]

    def call(*args: Any) -> Any:
        import importlib

        module, _, name = what.rpartition(".")
        return getattr(importlib.import_module(module), name)(*args)

    return call


def _torch_vjp(f: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        *xs, d = args
        own = [x.detach().requires_grad_() for x in xs]
        return torch.autograd.grad(f(*own), own, d)

    return call


def _jax_vjp(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: jax.vjp(f, *args[:-1])[1](args[-1])


def _binary(dtype: str) -> Iterator[Nest]:
    x, y = _positive(*_SHAPE, dtype=dtype), _positive(*_SHAPE, dtype=dtype, low=0.5)
    row, column = _positive(1000, dtype=dtype), _positive(300, 1, dtype=dtype)
    ops: list[tuple[str, Any, Any, Any]] = [
        ("add", lambda a, b: a + b, lambda a, b: a + b, lambda a, b: a + b),
        ("div", lambda a, b: a / b, lambda a, b: a / b, lambda a, b: a / b),
        ("pow", lambda a, b: a**b, lambda a, b: a**b, lambda a, b: a**b),
        ("mod", lambda a, b: a % b, lambda a, b: a % b, lambda a, b: a % b),
        ("floor div", lambda a, b: a // b, lambda a, b: a // b, lambda a, b: a // b),
        ("arctan2", "symdnn.tensor.arctan2", "torch.arctan2", "jax.numpy.arctan2"),
        ("maximum", "symdnn.tensor.maximum", "torch.maximum", "jax.numpy.maximum"),
        ("less", "symdnn.tensor.lt", "torch.lt", "jax.numpy.less"),
        ("where", lambda a, b: T.switch(T.gt(a, b), a, b), lambda a, b: torch.where(a > b, a, b),
         lambda a, b: jnp.where(a > b, a, b)),
        ("hypot", lambda a, b: T.sqrt(a * a + b * b), lambda a, b: torch.sqrt(a * a + b * b),
         lambda a, b: jnp.sqrt(a * a + b * b)),
    ]  # fmt: skip
    for name, ours, torch_, jax_ in ops:
        yield Nest(f"{name} {dtype}", (x, y), _named(ours), _named(torch_), _named(jax_))
    for name, other in (("row", row), ("column", column)):
        yield Nest(
            f"x * {name} {dtype}", (x, other), lambda a, b: a * b, lambda a, b: a * b,
            lambda a, b: a * b,
        )  # fmt: skip
    yield Nest(
        f"sum to row, column gradient {dtype}", (x, x),
        lambda a, d: [(a * d).sum(0), (a * d).sum(1)],
        lambda a, d: ((a * d).sum(0), (a * d).sum(1)),
        lambda a, d: ((a * d).sum(0), (a * d).sum(1)),
    )  # fmt: skip


def _reduced(dtype: str) -> Iterator[Nest]:
    ops: list[tuple[str, Any, Any, Any]] = [
        ("sum", lambda v, a: v.sum(a), lambda v, a: v.sum(a), lambda v, a: v.sum(a)),
        ("mean", lambda v, a: v.mean(a), lambda v, a: v.mean(a), lambda v, a: v.mean(a)),
        ("max", lambda v, a: v.max(a), lambda v, a: v.amax(a), lambda v, a: v.max(a)),
        ("sum of squares", lambda v, a: (v * v).sum(a), lambda v, a: (v * v).sum(a),
         lambda v, a: (v * v).sum(a)),
        ("var", lambda v, a: v.var(a), lambda v, a: v.var(a, correction=0), lambda v, a: v.var(a)),
        ("any > 6", lambda v, a: T.any(v > 6, a), lambda v, a: (v > 6).any(a),
         lambda v, a: (v > 6).any(a)),
        ("logsumexp", lambda v, a: T.logsumexp(v, axis=a), lambda v, a: torch.logsumexp(v, a),
         lambda v, a: jax.scipy.special.logsumexp(v, a)),
        ("softmax", lambda v, a: T.nnet.softmax(v, axis=a), lambda v, a: torch.softmax(v, a),
         lambda v, a: jax.nn.softmax(v, a)),
        ("argmax", "symdnn.tensor.argmax", lambda v, a: v.argmax(a), lambda v, a: v.argmax(a)),
    ]  # fmt: skip
    shapes: list[tuple[tuple[int, ...], Any]] = [
        ((300, 1000), 0), ((300, 1000), 1), ((30, 100, 100), 1), ((30, 100, 100), (0, 2)),
        ((10000, 30), 1), ((300, 1000), (0, 1)),
    ]  # fmt: skip
    for name, ours, torch_, jax_ in ops:
        for shape, axis in shapes:
            if name in ("softmax", "argmax") and isinstance(axis, tuple):
                continue
            x = _positive(*shape, dtype=dtype)
            each = tuple(lambda v, f=f, a=axis: f(v, a) for f in map(_named, (ours, torch_, jax_)))
            yield Nest(f"{name} {dtype} {'x'.join(map(str, shape))} axis {axis}", (x,), *each)


def _scans(dtype: str) -> Iterator[Nest]:
    for axis in (0, 1):
        x = _positive(*_SHAPE, dtype=dtype, low=0.9, high=1.1)
        for name, ours, torch_, jax_ in (
            ("cumsum", "symdnn.tensor.cumsum", "torch.cumsum", "jax.numpy.cumsum"),
            ("cumprod", "symdnn.tensor.cumprod", "torch.cumprod", "jax.numpy.cumprod"),
        ):
            own, theirs, third = _named(ours), _named(torch_), _named(jax_)
            each = tuple(lambda v, f=f, a=axis: f(v, a) for f in (own, theirs, third))
            yield Nest(f"{name} {dtype} axis {axis}", (x,), *each)
        yield Nest(
            f"flip {dtype} axis {axis}", (x,),
            lambda v, a=axis: T.exp(v[::-1] if a == 0 else v[:, ::-1]),
            lambda v, a=axis: torch.exp(torch.flip(v, (a,))),
            lambda v, a=axis: jnp.exp(jnp.flip(v, a)),
        )  # fmt: skip
    yield Nest(
        f"topk 8 {dtype}", (x,), lambda v: T.topk(v, 8, axis=1),
        lambda v: torch.topk(v, 8, 1)[0], lambda v: jax.lax.top_k(v, 8)[0],
    )  # fmt: skip


def _images(dtype: str) -> Iterator[Nest]:
    from importlib import import_module

    x = _positive(8, 32, 36, 36, dtype=dtype)
    nn = "torch.nn.functional"

    def torch_pool(name: str, size: int, stride: int) -> Callable[..., Any]:
        return lambda v: getattr(import_module(nn), name)(v, size, stride)

    def ours(mode: str, size: int, stride: int) -> Callable[..., Any]:
        return lambda v: T.signal.pool.pool_2d(
            v, (size, size), ignore_border=True, stride=(stride, stride), mode=mode
        )

    def jax_pool(mode: str, size: int, stride: int) -> Callable[..., Any]:
        window, steps = (1, 1, size, size), (1, 1, stride, stride)

        def maximum(v: Any) -> Any:
            low = jnp.array(-jnp.inf, v.dtype)
            return jax.lax.reduce_window(v, low, jax.lax.max, window, steps, "VALID")

        def mean(v: Any) -> Any:
            zero = jnp.array(0, v.dtype)
            found = jax.lax.reduce_window(v, zero, jax.lax.add, window, steps, "VALID")
            return found / size**2

        return maximum if mode == "max" else mean

    for mode, name in (("max", "max_pool2d"), ("average_exc_pad", "avg_pool2d")):
        for size, stride in ((2, 2), (3, 2), (3, 1)):
            own, theirs = ours(mode, size, stride), torch_pool(name, size, stride)
            third = jax_pool(mode, size, stride)
            mark = f"{mode} pool {size}/{stride} {dtype}"
            yield Nest(mark, (x,), own, theirs, third)
            if dtype != "bfloat16":
                n = (36 - size) // stride + 1
                dy = _positive(8, 32, n, n, dtype=dtype)
                yield Nest(
                    f"{mark} gradient", (x, dy), lambda v, d, f=own: symdnn.Lop(f(v), v, d),
                    _torch_vjp(theirs), _jax_vjp(third),
                )  # fmt: skip
    w = _positive(32, 1, 3, 3, dtype=dtype)
    yield Nest(
        f"depthwise 3x3 {dtype}", (x, w),
        lambda v, k: T.nnet.conv2d(v, k, border_mode="half", num_groups=32),
        lambda v, k: torch.conv2d(v, k, padding=1, groups=32),
        lambda v, k: jax.lax.conv_general_dilated(v, k, (1, 1), "SAME", feature_group_count=32),
        static=True,
    )  # fmt: skip
    scale = _positive(32, dtype=dtype)
    yield Nest(
        f"batch norm inference {dtype}", (x, scale, scale),
        lambda v, g, b: v * g.dimshuffle("x", 0, "x", "x") + b.dimshuffle("x", 0, "x", "x"),
        lambda v, g, b: v * g[:, None, None] + b[:, None, None],
        lambda v, g, b: v * g[:, None, None] + b[:, None, None],
    )  # fmt: skip
    yield Nest(
        f"global average {dtype}", (x,), lambda v: v.mean((2, 3)), lambda v: v.mean((2, 3)),
        lambda v: v.mean((2, 3)),
    )  # fmt: skip


def _moved(dtype: str) -> Iterator[Nest]:
    x, wide = _positive(*_SHAPE, dtype=dtype), _positive(300, 1, 1000, dtype=dtype)
    table, numbers = _positive(5000, 128, dtype=dtype), _whole("int64", 0, 5000, (4096,))
    yield Nest(
        f"embedding {dtype}", (table, numbers), lambda t, i: t[i], lambda t, i: t[i],
        lambda t, i: t[i], lambda t, i: t[i],
    )  # fmt: skip
    yield Nest(
        f"columns taken {dtype}", (x, _whole("int64", 0, 1000, (700,))), lambda t, i: t[:, i],
        lambda t, i: t[:, i], lambda t, i: t[:, i], lambda t, i: t[:, i],
    )  # fmt: skip
    yield Nest(
        f"join {dtype}", (x, x), lambda a, b: T.concatenate([a, b], 1),
        lambda a, b: torch.cat([a, b], 1), lambda a, b: jnp.concatenate([a, b], 1),
        lambda a, b: np.concatenate([a, b], 1),
    )  # fmt: skip
    yield Nest(
        f"roll {dtype}", (x,), lambda v: T.roll(v, 7, 1), lambda v: torch.roll(v, 7, 1),
        lambda v: jnp.roll(v, 7, 1), lambda v: np.roll(v, 7, 1),
    )  # fmt: skip
    yield Nest(
        f"repeat {dtype}", (x,), lambda v: T.repeat(v, 3, 0),
        lambda v: torch.repeat_interleave(v, 3, 0), lambda v: jnp.repeat(v, 3, 0),
        lambda v: np.repeat(v, 3, 0),
    )  # fmt: skip
    yield Nest(
        f"strided {dtype}", (x,), lambda v: v[::2, ::3] * 2, lambda v: v[::2, ::3] * 2,
        lambda v: v[::2, ::3] * 2, lambda v: v[::2, ::3] * 2,
    )  # fmt: skip
    yield Nest(
        f"broadcast {dtype}", (wide,), lambda v: T.exp(v) + v.dimshuffle(1, 0, 2)[:, :4],
        lambda v: torch.exp(v) + v.permute(1, 0, 2)[:, :4],
        lambda v: jnp.exp(v) + v.transpose(1, 0, 2)[:, :4],
    )  # fmt: skip
    yield Nest(
        f"x @ y.T {dtype}", (x, x), lambda a, b: T.dot(a, b.T), lambda a, b: a @ b.T,
        lambda a, b: a @ b.T,
    )  # fmt: skip
    cube = _positive(100, 32, 32, dtype=dtype)
    yield Nest(
        f"batched products {dtype}", (cube, cube), lambda a, b: T.matmul(a, b),
        lambda a, b: a @ b, lambda a, b: a @ b,
    )  # fmt: skip
    yield Nest(
        f"triangle {dtype}", (x,), lambda v: T.tril(v), lambda v: torch.tril(v),
        lambda v: jnp.tril(v), lambda v: np.tril(v),
    )  # fmt: skip


def _of_ints() -> Iterator[Nest]:
    for dtype in ("int8", "int32", "int64"):
        x, y = _whole(dtype), _whole(dtype, 1, 9)
        ops: list[tuple[str, Any]] = [
            ("add", lambda a, b: a + b), ("mul", lambda a, b: a * b),
            ("floor div", lambda a, b: a // b), ("mod", lambda a, b: a % b),
            ("and", lambda a, b: a & b),
        ]  # fmt: skip
        for name, f in ops:
            yield Nest(f"{name} {dtype}", (x, y), f, f, f, f)
        yield Nest(
            f"equal {dtype}",
            (x, y),
            _named("symdnn.tensor.eq"),
            lambda a, b: a == b,
            lambda a, b: a == b,
        )
        for axis in (0, 1):
            each = tuple(
                lambda v, a=axis, f=f: f(v, a)
                for f in (lambda v, a: v.sum(a), lambda v, a: v.sum(a), lambda v, a: v.sum(a))
            )
            yield Nest(f"sum {dtype} axis {axis}", (x,), *each)
            yield Nest(
                f"max {dtype} axis {axis}", (x,), lambda v, a=axis: v.max(a),
                lambda v, a=axis: v.amax(a), lambda v, a=axis: v.max(a),
            )  # fmt: skip
        yield Nest(
            f"to float32 {dtype}", (x,), lambda v: T.cast(v, "float32"),
            lambda v: v.to(torch.float32), lambda v: v.astype("float32"),
        )  # fmt: skip
    yield Nest(
        "one hot", (_whole("int64", 0, 1000, (300,)),), lambda i: T.eq(i[:, None], T.arange(1000)),
        lambda i: i[:, None] == torch.arange(1000), lambda i: i[:, None] == jnp.arange(1000),
    )  # fmt: skip
    yield Nest(
        "bool all", (_whole("bool", 1, 2),), lambda v: T.all(v, 1), lambda v: v.all(1),
        lambda v: v.all(1), lambda v: v.all(1),
    )  # fmt: skip
    yield Nest(
        "bool where", (_whole("bool", 0, 2), drawn(*_SHAPE), drawn(*_SHAPE)),
        lambda c, a, b: T.switch(c, a, b),
        lambda c, a, b: torch.where(c, a, b), lambda c, a, b: jnp.where(c, a, b),
        lambda c, a, b: np.where(c, a, b),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(module="benchmarks.cpu.survey"))
