"""Per-example gradients, Jacobians and Hessians beside PyTorch's and JAX's vmap.

    python -m benchmarks.transforms.vmap --peers ../peers/bin/python --out vmap-cpu.txt
    python -m benchmarks.transforms.vmap --only '^hessian' --rounds 9

The rows run as those of :mod:`benchmarks.cpu.nest`. PyTorch is ``torch.func``, as it is and by
``torch.compile``; JAX is ``jax.jit(jax.vmap(...))``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.cpu.nest import F, LazyModule, Nest, T, drawn, jax, jnp, main, symdnn, torch

__all__ = ["rows"]

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


def _mlp(batch: int) -> Iterator[Nest]:
    """Three layers of 16 units and 10 classes."""
    sizes = [(16, 16), (16, 16), (16, 16), (16, 10)]
    params = [
        p for i, s in enumerate(sizes) for p in (_scaled(0.3, *s, seed=i), _scaled(0.1, s[1]))
    ]
    arrays = (drawn(batch, 16), _labels(10, batch), *params)

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

    name = f"per-example gradients, MLP, batch {batch}"
    yield from _per_example(name, arrays, ours, torch_loss, jax_loss)


def _convnet(batch: int) -> Iterator[Nest]:
    """Two convolutions with 8 and 16 filters of 3 by 3, pooling, 10 classes; images of 14 by 14."""
    params = (
        _scaled(0.3, 8, 1, 3, 3), _scaled(0.1, 8), _scaled(0.1, 16, 8, 3, 3, seed=1),
        _scaled(0.1, 16), _scaled(0.05, 16 * 9, 10, seed=2), _scaled(0.1, 10),
    )  # fmt: skip
    arrays = (drawn(batch, 1, 14, 14), _labels(10, batch), *params)

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

    name = f"per-example gradients, convolutions, batch {batch}"
    yield from _per_example(name, arrays, ours, torch_loss, jax_loss)


def _recurrent(batch: int) -> Iterator[Nest]:
    """An LSTM of 64 units over 50 steps of 32 features, of whose last state there are 10 classes.

    JAX has a scan, in which the product with the input is one before the loop.
    """
    steps, features, hidden = 50, 32, 64
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

        first = jnp.zeros(hidden), jnp.zeros(hidden)
        (h, _), _ = jax.lax.scan(step, first, v @ w.T + b)
        return -jax.nn.log_softmax(h @ out)[label]

    yield from _per_example(
        f"per-example gradients, LSTM, batch {batch}", arrays, ours, torch_loss, jax_loss
    )


def _hessians() -> Iterator[Nest]:
    """Of 200 parameters: of a logistic regression, of Rosenbrock's function, of a small network."""
    x, y = drawn(500, 200), lambda: np.sign(drawn(500, seed=1)())

    def derived(name: str, arrays: Any, ours: Any, torch_cost: Any, jax_cost: Any) -> Nest:
        return Nest(
            f"hessian of 200, {name}", arrays,
            lambda w, *rest: symdnn.hessian(ours(w, *rest), w),
            lambda w, *rest: func.hessian(torch_cost)(w, *rest),
            lambda w, *rest: jax.hessian(jax_cost)(w, *rest),
            compiled=lambda w, *rest: func.hessian(torch_cost)(w, *rest),
        )  # fmt: skip

    yield derived(
        "logistic regression", (_scaled(0.1, 200), x, y),
        lambda w, a, t: T.softplus(-t * a.dot(w)).mean() + 0.01 * (w**2).sum(),
        lambda w, a, t: F.softplus(-t * (a @ w)).mean() + 0.01 * (w**2).sum(),
        lambda w, a, t: jax.nn.softplus(-t * (a @ w)).mean() + 0.01 * (w**2).sum(),
    )  # fmt: skip

    def rosenbrock(w: Any) -> Any:
        return (100 * (w[1:] - w[:-1] ** 2) ** 2 + (1 - w[:-1]) ** 2).sum()

    yield derived("Rosenbrock", (_scaled(0.1, 200),), rosenbrock, rosenbrock, rosenbrock)

    def network(tanh: Any) -> Any:
        def cost(w: Any, a: Any) -> Any:
            hidden = tanh(a @ w[:160].reshape((16, 10)) + w[160:170])
            out = tanh(hidden @ w[170:190].reshape((10, 2)) + w[190:192])
            return (out**2).mean() + (w[192:] ** 2).sum()

        return cost

    yield derived(
        "network", (_scaled(0.3, 200), drawn(100, 16)), network(lambda v: T.tanh(v)),
        network(lambda v: torch.tanh(v)), network(lambda v: jnp.tanh(v)),
    )  # fmt: skip


def _jacobians() -> Iterator[Nest]:
    """Of a layer by its input, and of each example."""
    w, x = _scaled(0.1, 100, 100), drawn(100)

    yield Nest(
        "jacobian of a layer of 100", (x, w),
        lambda v, a: symdnn.jacobian(T.tanh(a.dot(v)), v),
        lambda v, a: func.jacrev(lambda u: torch.tanh(a @ u))(v),
        lambda v, a: jax.jacrev(lambda u: jnp.tanh(a @ u))(v),
        compiled=lambda v, a: func.jacrev(lambda u: torch.tanh(a @ u))(v),
    )  # fmt: skip
    xs = drawn(64, 30)
    small = _scaled(0.1, 30, 30)
    yield Nest(
        "jacobians of 64 examples, layer of 30", (xs, small),
        lambda v, a: symdnn.vmap(lambda u: symdnn.jacobian(T.tanh(a.dot(u)), u))(v),
        lambda v, a: func.vmap(func.jacrev(lambda u: torch.tanh(a @ u)))(v),
        lambda v, a: jax.vmap(jax.jacrev(lambda u: jnp.tanh(a @ u)))(v),
        compiled=lambda v, a: func.vmap(func.jacrev(lambda u: torch.tanh(a @ u)))(v),
    )  # fmt: skip


def _products() -> Iterator[Nest]:
    """A bilinear form of all pairs by a nest of two, and a linear layer of each example."""
    x, y, m = drawn(128, 64), drawn(128, 64, seed=1), _scaled(0.1, 64, 64)
    yield Nest(
        "all pairs of a bilinear form", (x, y, m),
        lambda a, b, q: symdnn.vmap(
            lambda u: symdnn.vmap(lambda v: u.dot(q).dot(v))(b)
        )(a),
        lambda a, b, q: func.vmap(lambda u: func.vmap(lambda v: (u @ q) @ v)(b))(a),
        lambda a, b, q: jax.vmap(lambda u: jax.vmap(lambda v: (u @ q) @ v)(b))(a),
    )  # fmt: skip
    ws = _scaled(0.1, 128, 64, 64)
    yield Nest(
        "an ensemble of 128 layers", (ws, x),
        lambda a, b: symdnn.vmap(lambda q: T.tanh(b.dot(q)))(a),
        lambda a, b: func.vmap(lambda q: torch.tanh(b @ q))(a),
        lambda a, b: jax.vmap(lambda q: jnp.tanh(b @ q))(a),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(module="benchmarks.transforms.vmap"))
