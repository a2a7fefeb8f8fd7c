"""Rows of :mod:`benchmarks.cpu.nest`: sorts, transposes, reductions, rows, copies and gathers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.cpu.nest import F, Nest, T, drawn, jax, jnp, symdnn, torch

__all__ = ["rows"]


def rows() -> Iterator[Nest]:
    """All rows."""
    yield from _sorts()
    yield from _transposes()
    yield from _turned()
    yield from _reductions()
    yield from _inner_axes()
    yield from _moved()
    yield from _wide_rows()
    yield from _gathers()


def _numbers(below: int, count: int) -> Callable[[], Any]:
    return lambda: np.random.default_rng(1).integers(0, below, count)


def _sorts() -> Iterator[Nest]:
    shapes: list[tuple[tuple[int, ...], int]]
    shapes = [((16384, 16), 1), ((4096, 100), 1), ((256, 1024), 1), ((20, 10000), 1)]
    shapes += [((4, 100000), 1), ((1000, 256), 0), ((1000000,), 0)]
    for dtype in ("float32", "float64", "int64"):
        for shape, axis in shapes:
            x = drawn(*shape, dtype=dtype)
            mark = f"{dtype} {'x'.join(map(str, shape))} axis {axis}"
            yield Nest(
                f"sort {mark}", (x,), lambda v, a=axis: T.sort(v, a),
                lambda v, a=axis: torch.sort(v, a)[0], lambda v, a=axis: jnp.sort(v, a),
                lambda v, a=axis: np.sort(v, a),
            )  # fmt: skip
            yield Nest(
                f"argsort {mark}", (x,), lambda v, a=axis: T.argsort(v, a),
                lambda v, a=axis: torch.argsort(v, dim=a, stable=True),
                lambda v, a=axis: jnp.argsort(v, a),
                lambda v, a=axis: np.argsort(v, a, kind="stable"),
            )  # fmt: skip


_ORDERS = [
    ((1000, 1000), (1, 0)), ((2048, 2048), (1, 0)), ((4096, 64), (1, 0)), ((64, 4096), (1, 0)),
    ((100000, 4), (1, 0)), ((3, 300000), (1, 0)), ((64, 100, 100), (0, 2, 1)),
    ((100, 64, 80), (2, 1, 0)), ((100, 64, 80), (1, 0, 2)), ((16, 64, 56, 56), (0, 2, 3, 1)),
    ((16, 56, 56, 64), (0, 3, 1, 2)), ((32, 3, 64, 64), (0, 2, 3, 1)),
    ((8, 128, 12, 64), (0, 2, 1, 3)), ((8, 12, 128, 64), (0, 1, 3, 2)),
]  # fmt: skip


def _transposes() -> Iterator[Nest]:
    for dtype in ("float32", "float64", "float16"):
        for shape, order in _ORDERS if dtype == "float32" else _ORDERS[:10:3]:
            x = drawn(*shape, dtype=dtype)
            yield Nest(
                f"transpose {dtype} {'x'.join(map(str, shape))} to {order}", (x,),
                lambda v, o=order: _copied(v.dimshuffle(*o)),
                lambda v, o=order: v.permute(o).contiguous(),
                lambda v, o=order: jnp.transpose(v, o),
                lambda v, o=order: np.ascontiguousarray(v.transpose(o)),
            )  # fmt: skip


def _copied(v: Any) -> Any:
    """A result in C order: what a reshape reads."""
    return v.reshape((-1,))


def _turned() -> Iterator[Nest]:
    """Elementwise ops and reductions with an operand that lies otherwise in memory."""

    for shape in ((1000, 1000), (2048, 2048), (4096, 64), (64, 4096)):
        for dtype in ("float32", "float64"):
            x, y = drawn(*shape, dtype=dtype), drawn(*shape[::-1], dtype=dtype)
            mark = f"{dtype} {'x'.join(map(str, shape))}"
            yield Nest(
                f"x + y.T {mark}", (x, y), lambda a, b: a + b.T, lambda a, b: a + b.T,
                lambda a, b: a + b.T, lambda a, b: a + b.T,
            )  # fmt: skip
            yield Nest(
                f"tanh(x) * y.T {mark}", (x, y), lambda a, b: T.tanh(a) * b.T,
                lambda a, b: torch.tanh(a) * b.T, lambda a, b: jnp.tanh(a) * b.T,
            )  # fmt: skip
            yield Nest(
                f"sum(x * y.T, 1) {mark}", (x, y), lambda a, b: (a * b.T).sum(1),
                lambda a, b: (a * b.T).sum(1), lambda a, b: (a * b.T).sum(1),
                lambda a, b: (a * b.T).sum(1),
            )  # fmt: skip
            yield Nest(
                f"sum(x * y.T) {mark}", (x, y), lambda a, b: (a * b.T).sum(),
                lambda a, b: (a * b.T).sum(), lambda a, b: (a * b.T).sum(),
                lambda a, b: (a * b.T).sum(),
            )  # fmt: skip
            yield Nest(
                f"max(x.T, 0) {mark}", (x,), lambda a: a.T.max(0), lambda a: a.T.amax(0),
                lambda a: a.T.max(0), lambda a: a.T.max(0),
            )  # fmt: skip
            yield Nest(
                f"softmax(x.T, 1) {mark}", (x,), lambda a: T.nnet.softmax(a.T, axis=1),
                lambda a: torch.softmax(a.T, 1), lambda a: jax.nn.softmax(a.T, 1),
            )  # fmt: skip


def _reductions() -> Iterator[Nest]:
    """Reductions along one axis of three, and of a transposed array, with and without producers."""
    ops: dict[str, tuple[Any, Any, Any]] = {
        "sum": (lambda v, a: v.sum(a), lambda v, a: v.sum(a), lambda v, a: v.sum(a)),
        "max": (lambda v, a: v.max(a), lambda v, a: v.amax(a), lambda v, a: v.max(a)),
        "argmax": (lambda v, a: T.argmax(v, a), lambda v, a: v.argmax(a), lambda v, a: v.argmax(a)),
        "var": (lambda v, a: v.var(a), lambda v, a: v.var(a, correction=0), lambda v, a: v.var(a)),
        "norm": (
            lambda v, a: T.sqrt((v * v).sum(a)), lambda v, a: torch.linalg.vector_norm(v, dim=a),
            lambda v, a: jnp.sqrt((v * v).sum(a)),
        ),
    }  # fmt: skip
    shapes: tuple[tuple[tuple[int, ...], int], ...]
    shapes = (((64, 100, 96), 0), ((64, 100, 96), 1), ((64, 100, 96), 2), ((200000, 5), 1))
    for shape, axis in shapes:
        for dtype in ("float32", "float64"):
            x, mark = drawn(*shape, dtype=dtype), f"{dtype} {'x'.join(map(str, shape))}"
            for name, fs in ops.items():
                each = tuple(lambda v, f=f, a=axis: f(v, a) for f in fs)
                yield Nest(f"{name} axis {axis} {mark}", (x,), *each)
    for dtype in ("float32", "float64"):
        x, mark = drawn(1000, 800, dtype=dtype), f"{dtype} 800x1000"
        for name, fs in ops.items():
            for axis in (0, 1):
                each = tuple(lambda v, f=f, a=axis: f(v.T, a) for f in fs)
                yield Nest(f"{name} axis {axis} transposed {mark}", (x,), *each)


def _softmaxes(x: Any, dy: Any, mark: str) -> Iterator[Nest]:
    """Softmax and log-softmax along axis 1 with their gradients, and log-sum-exp."""
    ops: dict[str, tuple[Any, Any, Any]] = {
        "softmax": (lambda v: T.nnet.softmax(v, axis=1), lambda v: torch.softmax(v, 1),
                    lambda v: jax.nn.softmax(v, 1)),
        "log_softmax": (lambda v: T.nnet.logsoftmax(v, axis=1), lambda v: torch.log_softmax(v, 1),
                        lambda v: jax.nn.log_softmax(v, 1)),
    }  # fmt: skip
    for name, (ours, torch_, jax_) in ops.items():
        yield Nest(f"{name} {mark}", (x,), ours, torch_, jax_)
        yield Nest(
            f"{name} gradient {mark}", (x, dy),
            lambda v, d, f=ours: symdnn.Lop(f(v), v, d),
            lambda v, d, f=torch_: _torch_gradient(f, (v,), d),
            lambda v, d, f=jax_: jax.vjp(f, v)[1](d)[0],
        )  # fmt: skip
    yield Nest(
        f"logsumexp {mark}", (x,), lambda v: T.logsumexp(v, axis=1),
        lambda v: torch.logsumexp(v, 1), lambda v: jax.scipy.special.logsumexp(v, 1),
    )  # fmt: skip


def _inner_axes() -> Iterator[Nest]:
    for dtype in ("float32", "float64"):
        for shape in ((16, 21, 64, 64), (64, 1000, 32), (8, 12, 128, 128)):
            x, mark = drawn(*shape, dtype=dtype), f"{dtype} {'x'.join(map(str, shape))} axis 1"
            dy = drawn(*shape, dtype=dtype, seed=1)
            yield from _softmaxes(x, dy, mark)


def _moved() -> Iterator[Nest]:
    """Copies whose rows are short: joins, slices, padding, repeats and tiles."""
    for dtype in ("float32", "float64"):
        for rows, n in ((100000, 5), (20000, 17), (4096, 200)):
            x, y = drawn(rows, n, dtype=dtype), drawn(rows, n, dtype=dtype, seed=1)
            mark = f"{dtype} {rows}x{n}"
            yield Nest(
                f"joined along rows {mark}", (x, y), lambda a, b: T.concatenate([a, b], axis=1),
                lambda a, b: torch.cat([a, b], 1), lambda a, b: jnp.concatenate([a, b], 1),
                lambda a, b: np.concatenate([a, b], 1),
            )  # fmt: skip
            yield Nest(
                f"sliced {mark}", (x,), lambda a: _copied(a[:, 1:-1]),
                lambda a: a[:, 1:-1].contiguous(), lambda a: a[:, 1:-1],
                lambda a: np.ascontiguousarray(a[:, 1:-1]),
            )  # fmt: skip
            yield Nest(
                f"padded {mark}", (x,), lambda a: T.pad(a, [(1, 1), (2, 2)]),
                lambda a: F.pad(a, (2, 2, 1, 1)), lambda a: jnp.pad(a, [(1, 1), (2, 2)]),
                lambda a: np.pad(a, [(1, 1), (2, 2)]),
            )  # fmt: skip
            yield Nest(
                f"tiled {mark}", (x,), lambda a: T.tile(a, (1, 3)), lambda a: a.repeat(1, 3),
                lambda a: jnp.tile(a, (1, 3)), lambda a: np.tile(a, (1, 3)),
            )  # fmt: skip
            yield Nest(
                f"repeated {mark}", (x,), lambda a: T.repeat(a, 3, axis=1),
                lambda a: a.repeat_interleave(3, 1), lambda a: jnp.repeat(a, 3, 1),
                lambda a: np.repeat(a, 3, 1),
            )  # fmt: skip


_WIDTHS = ((16384, 64), (4096, 100), (4096, 512), (1024, 1000), (1024, 4096), (100, 10000)) + (
    (64, 50257), (8, 128000),
)  # fmt: skip


def _wide_rows() -> Iterator[Nest]:
    for rows, n in _WIDTHS:
        for dtype in ("float32", "float64"):
            yield from _rows(rows, n, dtype)


def _rows(rows: int, n: int, dtype: str) -> Iterator[Nest]:

    x, dy = drawn(rows, n, dtype=dtype), drawn(rows, n, dtype=dtype, seed=1)
    w, b = drawn(n, dtype=dtype), drawn(n, dtype=dtype)
    y = _numbers(n, rows)
    mark = f"{dtype} {rows}x{n}"
    yield from _softmaxes(x, dy, mark)

    def jax_loss(v: Any, labels: Any) -> Any:
        return -jnp.take_along_axis(jax.nn.log_softmax(v, 1), labels[:, None], 1).mean()

    def our_loss(v: Any, labels: Any) -> Any:
        return T.nnet.softmax_crossentropy(v, labels).mean()

    yield Nest(
        f"cross-entropy {mark}", (x, y), our_loss, lambda v, t: F.cross_entropy(v, t), jax_loss
    )
    yield Nest(
        f"cross-entropy and gradient {mark}", (x, y),
        lambda v, t: [our_loss(v, t), symdnn.grad(our_loss(v, t), v)],
        lambda v, t: _torch_gradient(lambda u: F.cross_entropy(u, t), (v,), None),
        lambda v, t: jax.value_and_grad(jax_loss)(v, t),
    )  # fmt: skip

    def jax_norm(v: Any, s: Any, o: Any) -> Any:
        mean = v.mean(1, keepdims=True)
        return (v - mean) * jax.lax.rsqrt(v.var(1, keepdims=True) + 1e-5) * s + o

    def our_norm(v: Any, s: Any, o: Any) -> Any:
        return T.nnet.layer_norm(v, s, o)

    yield Nest(
        f"layer norm {mark}", (x, w, b), our_norm,
        lambda v, s, o: F.layer_norm(v, (v.shape[1],), s, o), jax_norm,
    )  # fmt: skip
    yield Nest(
        f"layer norm gradient {mark}", (x, w, b, dy),
        lambda v, s, o, d: symdnn.Lop(our_norm(v, s, o), [v, s, o], d),
        lambda v, s, o, d: _torch_gradient(
            lambda *a: F.layer_norm(a[0], (v.shape[1],), *a[1:]), (v, s, o), d
        ),
        lambda v, s, o, d: jax.vjp(jax_norm, v, s, o)[1](d),
    )  # fmt: skip


def _torch_gradient(f: Any, inputs: Any, dy: Any) -> Any:
    leaves = [v.detach().requires_grad_() for v in inputs]
    return torch.autograd.grad(f(*leaves), leaves, dy)


def _gathers() -> Iterator[Nest]:
    for dtype in ("float32", "float64"):
        for words, width, count in ((50000, 64, 8192), (1000, 512, 4096), (50000, 768, 2048)):
            w, at = drawn(words, width, dtype=dtype), _numbers(words, count)
            dy = drawn(count, width, dtype=dtype)
            mark = f"{dtype} {count} of {words}x{width}"
            yield Nest(
                f"embedding {mark}", (w, at), lambda a, i: a[i], lambda a, i: F.embedding(i, a),
                lambda a, i: a[i], lambda a, i: a[i],
            )  # fmt: skip
            yield Nest(
                f"embedding gradient {mark}", (w, at, dy),
                lambda a, i, d: symdnn.Lop(a[i], a, d),
                lambda a, i, d: _torch_gradient(lambda v: F.embedding(i, v), (a,), d),
                lambda a, i, d: jax.vjp(lambda v: v[i], a)[1](d)[0],
            )  # fmt: skip
            yield Nest(
                f"rows incremented {mark}", (w, at, dy),
                lambda a, i, d: T.inc_subtensor(a[i], d),
                lambda a, i, d: a.index_add(0, i, d), lambda a, i, d: a.at[i].add(d),
            )  # fmt: skip
        for shape, axis in (((1000, 1000), 1), ((1000, 1000), 0), ((64, 50257), 1)):
            x = drawn(*shape, dtype=dtype)

            def at(x: Any = x, axis: int = axis) -> Any:
                return np.argsort(x(), axis)

            mark = f"{dtype} {shape[0]}x{shape[1]} axis {axis}"
            yield Nest(
                f"take_along_axis {mark}", (x, at),
                lambda v, i, a=axis: T.take_along_axis(v, i, a),
                lambda v, i, a=axis: torch.gather(v, a, i),
                lambda v, i, a=axis: jnp.take_along_axis(v, i, a),
                lambda v, i, a=axis: np.take_along_axis(v, i, a),
            )  # fmt: skip
            yield Nest(
                f"take_along_axis gradient {mark}", (x, at, x),
                lambda v, i, d, a=axis: symdnn.Lop(T.take_along_axis(v, i, a), v, d),
                lambda v, i, d, a=axis: torch.zeros_like(v).scatter_add(a, i, d),
                lambda v, i, d, a=axis: jax.vjp(lambda u: jnp.take_along_axis(u, i, a), v)[1](d)[0],
            )  # fmt: skip
