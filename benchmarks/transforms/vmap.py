"""Per-example gradients, Jacobians and Hessians beside PyTorch's and JAX's vmap.

    python -m benchmarks.transforms.vmap --peers ../peers/bin/python --out vmap-cpu.txt
    python -m benchmarks.transforms.vmap --only '^hessian' --rounds 9
    python -m benchmarks.transforms.vmap --device cuda --out vmap-h200.txt

The rows run as those of :mod:`benchmarks.cpu.nest`, on a GPU with larger ones as those of
:mod:`benchmarks.gpu.rows`, which compares the numbers first. PyTorch is ``torch.func``, as it is
and by ``torch.compile``; JAX is ``jax.jit(jax.vmap(...))``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.cpu.nest import F, LazyModule, Nest, T, drawn, jax, jnp, symdnn, torch
from benchmarks.gpu import rows as gpu_rows

__all__ = ["main", "rows", "wide_rows"]

func = LazyModule("torch.func")


def rows() -> Iterator[Nest]:
    """All rows."""
    for batch in (64, 256):
        yield from _mlp(batch)
        yield from _convnet(batch)
    yield from _recurrent(64)
    yield from _hessians()
    yield from _jacobians()
    yield from _products()


def wide_rows() -> Iterator[Nest]:
    """Rows in sizes for a GPU."""
    yield from _mlp(256, 256)
    yield from _convnet(256, (32, 64), 28)
    yield from _recurrent(256, 128)
    yield from _hessians(1600, 4000)
    yield from _jacobians(1000, 512, 128)
    yield from _products(1024, 256)


def main(argv: list[str] | None = None) -> int:
    """Time the rows on a device and print them."""
    return gpu_rows.main(argv, "benchmarks.transforms.vmap", 110, rows(), wide_rows())


def _scaled(scale: float, *shape: int, seed: int = 0) -> Callable[[], Any]:
    return lambda: (drawn(*shape, seed=seed)() * scale).astype("float32")


def _labels(below: int, count: int) -> Callable[[], Any]:
    return lambda: np.random.default_rng(1).integers(0, below, count)


def _per_example(
    name: str, arrays: Any, ours: Any, torch_loss: Any, jax_loss: Any
) -> Iterator[Nest]:
    """Gradients with respect to all parameters, for each of the examples ``x`` with labels ``y``.

    The losses take parameters, an example and a label; the arrays are x, y, then the parameters.
    """
    count = len(arrays) - 2

    def our_gradients(x: Any, y: Any, *params: Any) -> Any:
        def of_one(ps: Any, v: Any, label: Any) -> Any:
            return symdnn.grad(ours(ps, v, label), list(ps))

        return symdnn.vmap(of_one, in_axes=(None, 0, 0))(list(params), x, y)

    def torch_gradients(x: Any, y: Any, *params: Any) -> Any:
        each = func.vmap(func.grad(torch_loss), in_dims=((None,) * count, 0, 0))
        return each(params, x, y)

    def jax_gradients(x: Any, y: Any, *params: Any) -> Any:
        return jax.vmap(jax.grad(jax_loss), in_axes=(None, 0, 0))(params, x, y)

    for static in (False, True):
        yield Nest(
            f"{name}{', sizes declared' if static else ''}", arrays, our_gradients,
            torch_gradients, jax_gradients, compiled=torch_gradients, static=static,
        )  # fmt: skip


def _mlp(batch: int, wide: int = 16) -> Iterator[Nest]:
    """Three layers of some units and 10 classes."""
    sizes, scale = [*[(wide, wide)] * 3, (wide, 10)], 1.2 * wide**-0.5
    params = [
        p for i, s in enumerate(sizes) for p in (_scaled(scale, *s, seed=i), _scaled(0.1, s[1]))
    ]
    arrays = (drawn(batch, wide), _labels(10, batch), *params)

    def ours(ps: Any, v: Any, label: Any) -> Any:
        for w, b in zip(ps[:-2:2], ps[1:-2:2]):
            v = T.tanh(v.dot(w) + b)
        return -T.nnet.logsoftmax((v.dot(ps[-2]) + ps[-1]), axis=0)[label]

    def torch_loss(ps: Any, v: Any, label: Any) -> Any:
        for w, b in zip(ps[:-2:2], ps[1:-2:2]):
            v = torch.tanh(v @ w + b)
        return F.cross_entropy((v @ ps[-2] + ps[-1])[None], label[None])

    def jax_loss(ps: Any, v: Any, label: Any) -> Any:
        for w, b in zip(ps[:-2:2], ps[1:-2:2]):
            v = jnp.tanh(v @ w + b)
        return -jax.nn.log_softmax(v @ ps[-2] + ps[-1])[label]

    name = f"per-example gradients, MLP{f' of {wide}' if wide > 16 else ''}, batch {batch}"
    yield from _per_example(name, arrays, ours, torch_loss, jax_loss)


def _convnet(batch: int, filters: tuple[int, int] = (8, 16), side: int = 14) -> Iterator[Nest]:
    """Two convolutions with some filters of 3 by 3, pooling, 10 classes; square images."""
    first, second = filters
    params = (
        _scaled(0.3, first, 1, 3, 3), _scaled(0.1, first),
        _scaled(0.3 * first**-0.5, second, first, 3, 3, seed=1), _scaled(0.1, second),
        _scaled(0.6 / (second * (side // 4) ** 2) ** 0.5, second * (side // 4) ** 2, 10, seed=2),
        _scaled(0.1, 10),
    )  # fmt: skip
    arrays = (drawn(batch, 1, side, side), _labels(10, batch), *params)

    def ours(ps: Any, v: Any, label: Any) -> Any:
        v = v.dimshuffle("x", 0, 1, 2)
        for w, b in (ps[:2], ps[2:4]):
            v = T.nnet.conv2d(v, w, border_mode="half", filter_flip=False)
            v = T.nnet.relu(v + b.dimshuffle("x", 0, "x", "x"))
            v = T.signal.pool.pool_2d(v, (2, 2), ignore_border=True)
        return -T.nnet.logsoftmax(v.flatten(1).dot(ps[4]) + ps[5], axis=0)[label]

    def torch_loss(ps: Any, v: Any, label: Any) -> Any:
        v = v[None]
        for w, b in (ps[:2], ps[2:4]):
            v = F.max_pool2d(F.relu(F.conv2d(v, w, b, padding=1)), 2)
        return F.cross_entropy(v.flatten(1) @ ps[4] + ps[5], label[None])

    def jax_loss(ps: Any, v: Any, label: Any) -> Any:
        v = v[None]
        for w, b in (ps[:2], ps[2:4]):
            v = jax.lax.conv(v, w, (1, 1), "SAME")
            v = jnp.maximum(v + b[None, :, None, None], 0)
            v = jax.lax.reduce_window(v, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
        return -jax.nn.log_softmax(v.reshape(-1) @ ps[4] + ps[5])[label]

    size = f" of {first} and {second}" if side > 14 else ""
    name = f"per-example gradients, convolutions{size}, batch {batch}"
    yield from _per_example(name, arrays, ours, torch_loss, jax_loss)


def _recurrent(batch: int, hidden: int = 64) -> Iterator[Nest]:
    """An LSTM over 50 steps of 32 features, of whose last state there are 10 classes.

    JAX has a scan, in which the product with the input is one before the loop.
    """
    steps, features = 50, 32
    params = (
        _scaled(0.1, 4 * hidden, features), _scaled(0.1, 4 * hidden, hidden, seed=1),
        _scaled(0.1, 4 * hidden, seed=2), _scaled(0.1, hidden, 10, seed=3),
    )  # fmt: skip
    arrays = (drawn(batch, steps, features), _labels(10, batch), *params)

    def ours(ps: Any, v: Any, label: Any) -> Any:
        w, r, b, out = ps
        vector = T.concatenate([w.flatten(), r.flatten(), b, T.zeros_like(b)])
        first = T.zeros((1, 1, hidden), "float32")
        block = T.nnet.RNNBlock("float32", hidden, 1, "lstm")
        last = block.apply(vector, v.dimshuffle(0, "x", 1), first, first)[1]
        return -T.nnet.logsoftmax(last[0, 0].dot(out), axis=0)[label]

    def torch_loss(ps: Any, v: Any, label: Any) -> Any:
        w, r, b, out = ps
        first = v.new_zeros(1, 1, hidden)
        flat = [w, r, b, torch.zeros_like(b)]
        found = torch.lstm(v[:, None], (first, first), flat, True, 1, 0.0, False, False, False)
        return F.cross_entropy(found[1][0] @ out, label[None])

    def jax_loss(ps: Any, v: Any, label: Any) -> Any:
        w, r, b, out = ps

        def step(state: Any, x: Any) -> Any:
            h, c = state
            i, f, g, o = jnp.split(x + h @ r.T, 4)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

        first = jnp.zeros(hidden, v.dtype), jnp.zeros(hidden, v.dtype)
        (h, _), _ = jax.lax.scan(step, first, v @ w.T + b)
        return -jax.nn.log_softmax(h @ out)[label]

    size = f" of {hidden}" if hidden > 64 else ""
    name = f"per-example gradients, LSTM{size}, batch {batch}"
    yield from _per_example(name, arrays, ours, torch_loss, jax_loss)


def _hessians(count: int = 200, examples: int = 500) -> Iterator[Nest]:
    """Of a logistic regression, of Rosenbrock's function, of a network of 16 inputs."""
    x, y = drawn(examples, count), lambda: np.sign(drawn(examples, seed=1)())

    def derived(name: str, arrays: Any, ours: Any, torch_cost: Any, jax_cost: Any) -> Nest:
        return Nest(
            f"hessian of {count}, {name}", arrays,
            lambda w, *rest: symdnn.hessian(ours(w, *rest), w),
            lambda w, *rest: func.hessian(torch_cost)(w, *rest),
            lambda w, *rest: jax.hessian(jax_cost)(w, *rest),
            compiled=lambda w, *rest: func.hessian(torch_cost)(w, *rest),
        )  # fmt: skip

    yield derived(
        "logistic regression", (_scaled(1.4 * count**-0.5, count), x, y),
        lambda w, a, t: T.softplus(-t * a.dot(w)).mean() + 0.01 * (w**2).sum(),
        lambda w, a, t: F.softplus(-t * (a @ w)).mean() + 0.01 * (w**2).sum(),
        lambda w, a, t: jax.nn.softplus(-t * (a @ w)).mean() + 0.01 * (w**2).sum(),
    )  # fmt: skip

    def rosenbrock(w: Any) -> Any:
        return (100 * (w[1:] - w[:-1] ** 2) ** 2 + (1 - w[:-1]) ** 2).sum()

    yield derived("Rosenbrock", (_scaled(0.1, count),), rosenbrock, rosenbrock, rosenbrock)

    units = count // 20
    bias, last = 16 * units, 19 * units

    def network(tanh: Any) -> Any:
        def cost(w: Any, a: Any) -> Any:
            hidden = tanh(a @ w[:bias].reshape((16, units)) + w[bias : bias + units])
            out = tanh(hidden @ w[bias + units : last].reshape((units, 2)) + w[last : last + 2])
            return (out**2).mean() + (w[last + 2 :] ** 2).sum()

        return cost

    yield derived(
        "network", (_scaled(0.3, count), drawn(examples // 5, 16)), network(lambda v: T.tanh(v)),
        network(lambda v: torch.tanh(v)), network(lambda v: jnp.tanh(v)),
    )  # fmt: skip


def _jacobians(wide: int = 100, batch: int = 64, units: int = 30) -> Iterator[Nest]:
    """Of a layer by its input, and of each example."""
    w, x = _scaled(wide**-0.5, wide, wide), drawn(wide)

    yield Nest(
        f"jacobian of a layer of {wide}", (x, w),
        lambda v, a: symdnn.jacobian(T.tanh(a.dot(v)), v),
        lambda v, a: func.jacrev(lambda u: torch.tanh(a @ u))(v),
        lambda v, a: jax.jacrev(lambda u: jnp.tanh(a @ u))(v),
        compiled=lambda v, a: func.jacrev(lambda u: torch.tanh(a @ u))(v),
    )  # fmt: skip
    xs = drawn(batch, units)
    small = _scaled(0.6 * units**-0.5, units, units)
    yield Nest(
        f"jacobians of {batch} examples, layer of {units}", (xs, small),
        lambda v, a: symdnn.vmap(lambda u: symdnn.jacobian(T.tanh(a.dot(u)), u))(v),
        lambda v, a: func.vmap(func.jacrev(lambda u: torch.tanh(a @ u)))(v),
        lambda v, a: jax.vmap(jax.jacrev(lambda u: jnp.tanh(a @ u)))(v),
        compiled=lambda v, a: func.vmap(func.jacrev(lambda u: torch.tanh(a @ u)))(v),
    )  # fmt: skip


def _products(count: int = 128, units: int = 64) -> Iterator[Nest]:
    """A bilinear form of all pairs by a nest of two, and a linear layer of each example."""
    x, y, m = drawn(count, units), drawn(count, units, seed=1), _scaled(0.1, units, units)
    yield Nest(
        f"all pairs of {f'{count} in ' if count > 128 else ''}a bilinear form", (x, y, m),
        lambda a, b, q: symdnn.vmap(
            lambda u: symdnn.vmap(lambda v: u.dot(q).dot(v))(b)
        )(a),
        lambda a, b, q: func.vmap(lambda u: func.vmap(lambda v: (u @ q) @ v)(b))(a),
        lambda a, b, q: jax.vmap(lambda u: jax.vmap(lambda v: (u @ q) @ v)(b))(a),
    )  # fmt: skip
    ws = _scaled(0.1, 128, units, units)
    yield Nest(
        f"an ensemble of 128 layers{f' of {units}' if units > 64 else ''}", (ws, x),
        lambda a, b: symdnn.vmap(lambda q: T.tanh(b.dot(q)))(a),
        lambda a, b: func.vmap(lambda q: torch.tanh(b @ q))(a),
        lambda a, b: jax.vmap(lambda q: jnp.tanh(b @ q))(a),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
