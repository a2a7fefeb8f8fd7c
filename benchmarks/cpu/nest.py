"""Sorts, transposes, wide rows and gathers beside PyTorch, JAX and NumPy, in one process.

    python -m benchmarks.cpu.nest --out nest-cpu.txt
    python -m benchmarks.cpu.nest --only sort --rounds 9

A row is one program and its peers, called in turn, with the same arrays and number of threads; each
time is the median of rounds. Printed is the best peer's time over ours: below 1 symdnn is slower.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import symdnn
import symdnn.tensor as T
from benchmarks.gpu.device import commit

__all__ = ["main"]


@dataclass(frozen=True)
class Nest:
    """A row: arrays, our program of variables, and the peers' functions of their own arrays."""

    name: str
    arrays: tuple[Any, ...]
    ours: Callable[..., Any]
    torch: Callable[..., Any] | None = None
    jax: Callable[..., Any] | None = None
    numpy: Callable[..., Any] | None = None


def main(argv: list[str] | None = None) -> int:
    """Time the rows and print them, the slowest first."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu.nest", description=__doc__)
    parser.add_argument("--only", default="", help="rows whose names contain this")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", help="file that the table is written to")
    args = parser.parse_args(argv)
    found = []
    for nest in _nests():
        if args.only in nest.name:
            found.append(_measured(nest, args.rounds))
            print(found[-1][1], flush=True)
    text = "\n".join([*_facts(), "", *(line for _, line in sorted(found))])
    print(text)
    if args.out:
        with open(args.out, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    return 0


def _facts() -> list[str]:
    import jax
    import torch

    with open("/proc/cpuinfo", encoding="utf-8") as file:
        model = next((line.partition(": ")[2].strip() for line in file if "model name" in line), "")
    return [
        f"{datetime.date.today()} {model} ({torch.get_num_threads()} threads), commit {commit()}",
        f"Python {platform.python_version()}, NumPy {np.__version__}, "
        f"PyTorch {torch.__version__}, JAX {jax.__version__}",
        "best peer's time / symdnn's, medians of alternated rounds",
    ]


def _measured(nest: Nest, rounds: int) -> tuple[float, str]:
    calls = dict(_calls(nest))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    counts = {name: _repeats(call) for name, call in calls.items()}
    for _ in range(rounds):
        for name, call in calls.items():
            began = time.perf_counter()
            for _ in range(counts[name]):
                call()
            times[name].append((time.perf_counter() - began) / counts[name])
    medians = {name: statistics.median(t) for name, t in times.items()}
    ours = medians.pop("symdnn")
    best = min(medians, key=lambda name: medians[name])
    ratios = ", ".join(f"{name} {t / ours:.2f}" for name, t in medians.items())
    return medians[best] / ours, f"{medians[best] / ours:6.2f}  {nest.name:44} {ratios}"


def _repeats(call: Callable[[], Any]) -> int:
    began = time.perf_counter()
    call()
    return max(1, int(0.03 / (time.perf_counter() - began)))


def _as_list(found: Any) -> list[Any]:
    return list(found) if isinstance(found, list | tuple) else [found]


def _calls(nest: Nest) -> Iterator[tuple[str, Callable[[], Any]]]:
    import jax
    import torch

    jax.config.update("jax_enable_x64", True)
    inputs = [T.tensor(a.dtype.name, (None,) * a.ndim) for a in nest.arrays]
    outs = [symdnn.Out(o, borrow=True) for o in _as_list(nest.ours(*inputs))]
    f = symdnn.function(inputs, outs)
    yield "symdnn", lambda: f(*nest.arrays)
    if nest.torch:
        tensors = [torch.from_numpy(a) for a in nest.arrays]
        torch_ = nest.torch
        yield "PyTorch", lambda: torch_(*tensors)
    if nest.jax:
        jitted = jax.jit(nest.jax)
        own = [jax.numpy.asarray(a) for a in nest.arrays]
        yield "JAX", lambda: jax.block_until_ready(jitted(*own))
    if nest.numpy:
        numpy_ = nest.numpy
        yield "NumPy", lambda: numpy_(*nest.arrays)


# -- rows -----------------------------------------------------------------------------------------


def _nests() -> Iterator[Nest]:
    yield from _sorts()
    yield from _transposes()
    yield from _turned()
    yield from _wide_rows()
    yield from _gathers()


def _drawn(*shape: int, dtype: str = "float32") -> Any:
    rng = np.random.default_rng(0)
    if dtype == "int64":
        return rng.integers(-(1 << 40), 1 << 40, shape)
    return rng.normal(size=shape).astype(dtype)


def _sorts() -> Iterator[Nest]:
    import jax.numpy as jnp
    import torch

    shapes = [((16384, 16), 1), ((4096, 100), 1), ((256, 1024), 1), ((20, 10000), 1)]
    shapes += [((4, 100000), 1), ((1000, 256), 0), ((1000000,), 0)]
    for dtype in ("float32", "float64", "int64"):
        for shape, axis in shapes:
            x = _drawn(*shape, dtype=dtype)
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
    import jax.numpy as jnp

    for dtype in ("float32", "float64", "float16"):
        for shape, order in _ORDERS if dtype == "float32" else _ORDERS[:10:3]:
            x = _drawn(*shape, dtype=dtype)
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
    import jax
    import jax.numpy as jnp
    import torch

    for shape in ((1000, 1000), (2048, 2048), (4096, 64), (64, 4096)):
        for dtype in ("float32", "float64"):
            x, y = _drawn(*shape, dtype=dtype), _drawn(*shape[::-1], dtype=dtype)
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


_WIDTHS = ((16384, 64), (4096, 100), (4096, 512), (1024, 1000), (1024, 4096), (100, 10000)) + (
    (64, 50257), (8, 128000),
)  # fmt: skip


def _wide_rows() -> Iterator[Nest]:
    for rows, n in _WIDTHS:
        for dtype in ("float32", "float64"):
            yield from _rows(rows, n, dtype)


def _rows(rows: int, n: int, dtype: str) -> Iterator[Nest]:
    import jax
    import jax.numpy as jnp
    import torch

    F = torch.nn.functional
    x, dy = _drawn(rows, n, dtype=dtype), _drawn(rows, n, dtype=dtype)[::-1].copy()
    w, b = _drawn(n, dtype=dtype), _drawn(n, dtype=dtype)
    y = np.random.default_rng(1).integers(0, n, rows)
    mark = f"{dtype} {rows}x{n}"
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

    def jax_loss(v: Any, labels: Any) -> Any:
        return -jnp.take_along_axis(jax.nn.log_softmax(v, 1), labels[:, None], 1).mean()

    def our_loss(v: Any, labels: Any) -> Any:
        return T.nnet.softmax_crossentropy(v, labels).mean()

    yield Nest(f"cross-entropy {mark}", (x, y), our_loss, F.cross_entropy, jax_loss)
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
    import torch

    leaves = [v.detach().requires_grad_() for v in inputs]
    return torch.autograd.grad(f(*leaves), leaves, dy)


def _gathers() -> Iterator[Nest]:
    import jax
    import jax.numpy as jnp
    import torch

    F = torch.nn.functional
    for dtype in ("float32", "float64"):
        for words, width, count in ((50000, 64, 8192), (1000, 512, 4096), (50000, 768, 2048)):
            rng = np.random.default_rng(2)
            w, at = _drawn(words, width, dtype=dtype), rng.integers(0, words, count)
            dy = _drawn(count, width, dtype=dtype)
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
            x = _drawn(*shape, dtype=dtype)
            at = np.argsort(x, axis)
            yield Nest(
                f"take_along_axis {dtype} {shape[0]}x{shape[1]} axis {axis}", (x, at),
                lambda v, i, a=axis: T.take_along_axis(v, i, a),
                lambda v, i, a=axis: torch.gather(v, a, i),
                lambda v, i, a=axis: jnp.take_along_axis(v, i, a),
                lambda v, i, a=axis: np.take_along_axis(v, i, a),
            )  # fmt: skip
            yield Nest(
                f"take_along_axis gradient {dtype} {shape[0]}x{shape[1]} axis {axis}", (x, at, x),
                lambda v, i, d, a=axis: symdnn.Lop(T.take_along_axis(v, i, a), v, d),
                lambda v, i, d, a=axis: torch.zeros_like(v).scatter_add(a, i, d),
                lambda v, i, d, a=axis: jax.vjp(lambda u: jnp.take_along_axis(u, i, a), v)[1](d)[0],
            )  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
