"""Rows of :mod:`benchmarks.cpu.nest`: ``scan`` beside JAX's ``lax.scan`` and PyTensor's ``scan``.

    python -m benchmarks.cpu.nest --only ^scan --peers PYTHON --pytensor PYTHON

Recurrent networks with their gradients, recurrences of numbers and of vectors, whose steps are
short, so that they show what a step costs beside its arithmetic. All sides have the same steps and
float32, but the last row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.cpu.nest import LazyModule, Nest, T, drawn, jax, jnp, pytensor, symdnn

__all__ = ["rows"]

lax, pt = LazyModule("jax.lax"), LazyModule("pytensor.tensor")

#: Steps, examples, size of the state.
_NETWORKS = ((1000, 1, 16), (100, 16, 64), (100, 64, 256))


def rows() -> Iterator[Nest]:
    """All rows."""
    for steps, batch, size in _NETWORKS:
        mark = f"{steps} steps, {batch}x{size}"
        x, w = drawn(steps, batch, size), _weights(size, size)
        h = _zeros(batch, size)
        yield _network(f"RNN {mark}", (x, h, w), _rnn)
        yield _network(f"RNN and gradient {mark}", (x, h, w), _rnn, gradient=True)
        x, w = drawn(steps, batch, 4 * size), _weights(size, 4 * size)
        lstm = partial(_lstm, n=size)
        yield _network(f"LSTM and gradient {mark}", (x, h, w), lstm, gradient=True, states=2)
    yield from _recurrences()


def _weights(*shape: int) -> Callable[[], Any]:
    return lambda: (drawn(*shape, seed=2)() / np.sqrt(shape[0])).astype("float32")


def _zeros(*shape: int) -> Callable[[], Any]:
    return lambda: np.zeros(shape, "float32")


# -- networks -------------------------------------------------------------------------------------


def _rnn(m: Any, x: Any, states: Any, w: Any) -> Any:
    (h,) = states
    return [m.tanh(x + m.dot(h, w))]


def _lstm(m: Any, x: Any, states: Any, w: Any, n: int) -> Any:
    h, c = states
    gates = x + m.dot(h, w)
    i, f, o = (_sigmoid(m, gates[:, k * n : (k + 1) * n]) for k in range(3))
    c = f * c + i * m.tanh(gates[:, 3 * n :])
    return [o * m.tanh(c), c]


def _sigmoid(m: Any, x: Any) -> Any:
    if m is T:
        return T.nnet.sigmoid(x)
    return m.sigmoid(x) if m is pt else jax.nn.sigmoid(x)


def _network(name: str, arrays: Any, step: Any, gradient: bool = False, states: int = 1) -> Nest:
    """The sum of squares of all states ``h``, and its gradient by the inputs and the weights."""
    count = states

    def graph(m: Any, library: Any, x: Any, h: Any, w: Any) -> Any:
        found = library.scan(
            lambda x, *rest: step(m, x, rest[:count], rest[count]), sequences=[x],
            outputs_info=[h] * count, non_sequences=[w], **({} if m is T else _PYTENSORS),
        )  # fmt: skip
        values = found if m is not T else found[0]
        cost = ((values[0] if isinstance(values, list | tuple) else values) ** 2).sum()
        return [cost, *library.grad(cost, [x, w])] if gradient else cost

    def of_jax(x: Any, h: Any, w: Any) -> Any:
        def body(states: Any, x: Any) -> Any:
            new = step(jnp, x, states, w)
            return tuple(new), new[0]

        return (lax.scan(body, (h,) * count, x)[1] ** 2).sum()

    return Nest(
        f"scan {name}", arrays, lambda *v: graph(T, symdnn, *v), None,
        (lambda x, h, w: jax.value_and_grad(of_jax, (0, 2))(x, h, w)) if gradient else of_jax, None,
        lambda *v: graph(pt, pytensor, *v),
    )  # fmt: skip


_PYTENSORS = {"return_updates": False}


# -- recurrences ----------------------------------------------------------------------------------


def _recurrences() -> Iterator[Nest]:
    for size, steps in ((1, 10_000), (100, 1000), (100_000, 100)):
        yield _recurrence(
            f"logistic map {steps} steps, {size}", (drawn(size),), steps,
            lambda x: 3.7 * x * (1 - x), last=True,
        )  # fmt: skip
    yield _recurrence(
        "exponential averages 2000 steps, 64", (drawn(2000, 64), drawn(64)), None,
        lambda x, h: 0.9 * h + 0.1 * x,
    )  # fmt: skip
    yield _recurrence(
        "power of a matrix 50 steps, 32x32", (drawn(32, 32), _weights(32, 32)), 50,
        lambda h, w: h @ w, last=True,
    )  # fmt: skip


def _recurrence(
    name: str, arrays: Any, steps: int | None, step: Callable[..., Any], last: bool = False
) -> Nest:
    """All values of a recurrence, or the last one. Without ``steps`` the first array is the
    sequence; a second array with them is what all steps read."""

    def graph(library: Any, *v: Any) -> Any:
        more: Any = {} if library is symdnn else _PYTENSORS
        given: dict[str, Any]
        if steps is None:
            given = {"sequences": [v[0]], "outputs_info": [v[1]]}
        else:
            given = {"outputs_info": [v[0]], "non_sequences": list(v[1:]), "n_steps": steps}
        found = library.scan(step, **given, **more)
        states = found[0] if library is symdnn else found
        return states[-1] if last else states

    def of_jax(*v: Any) -> Any:
        if steps is None:

            def body(h: Any, x: Any) -> Any:
                h = step(x, h)
                return h, h

            return lax.scan(body, v[1], v[0])[1]
        return lax.scan(lambda h, _: (step(h, *v[1:]), None), v[0], None, length=steps)[0]

    return Nest(
        f"scan {name}", arrays, lambda *v: graph(symdnn, *v), None, of_jax, None,
        lambda *v: graph(pytensor, *v),
    )  # fmt: skip
