"""Loops with drawn bodies, for comparing a compiled loop with the same steps one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import symdnn
import symdnn.tensor as T
from symdnn import control

__all__ = ["Drawn", "drawn"]

_N = 4
#: Leaves of the carried value: a count, a number, a vector, a matrix, a stack of rows.
SHAPES = ((), (), (_N,), (_N, _N), (3, _N))
DTYPES = ("int64", "float", "float", "float", "float")


class Drawn:
    """A function of a carried value ``(k, a, v, m, rows)`` with a drawn step."""

    def __init__(self, seed: int, dtype: str, smooth: bool = False) -> None:
        self.r = np.random.default_rng(seed)
        self.dtype, self.smooth, self.seed = dtype, smooth, seed
        self.leaves = [
            np.asarray(self.r.integers(0, 3)) if d == "int64"
            else np.asarray(self.r.normal(size=s), dtype)
            for s, d in zip(SHAPES, DTYPES)
        ]  # fmt: skip
        self.w = np.asarray(self.r.normal(size=(_N, _N)) / 2, dtype)
        self.xs = np.asarray(self.r.normal(size=(12, _N)), dtype)

    def step(self, x: Any, w: Any, value: Any, depth: int = 0) -> Any:
        """The next value; ``x`` is a vector of this step, ``w`` a matrix of all steps."""
        k, a, v, m, rows = value
        for _ in range(int(self.r.integers(2, 5))):
            change = self._changes()[int(self.r.integers(len(self._changes())))]
            a, v, m, rows = change(k, a, v, m, rows, x, w, depth)
        return k + 1, T.tanh(a), T.tanh(v), T.tanh(m), T.tanh(rows)

    def _changes(self) -> list[Callable[..., Any]]:
        smooth = [self._product, self._sum, self._set, self._cond, self._softmax, self._slices,
                  self._scan, self._turn, self._norm]  # fmt: skip
        return smooth if self.smooth else [*smooth, self._largest, self._gather, self._while]

    def _product(self, k, a, v, m, rows, x, w, depth):  # type: ignore[no-untyped-def]
        kind = int(self.r.integers(5))
        if kind == 0:
            return a, T.dot(v, w) + x, m, rows
        if kind == 1:
            return a, v, T.dot(m, w.T), rows
        if kind == 2:
            return a + T.dot(v, x), T.dot(m, v), m, rows
        if kind == 3:
            return a, v, m, T.dot(rows, m)
        return a, T.dot(m.T, x), T.dot(rows.T, rows), rows

    def _sum(self, k, a, v, m, rows, x, w, depth):  # type: ignore[no-untyped-def]
        if self.r.integers(2):
            return a + rows.mean(), m.sum(axis=0), m, rows * v
        return (v * x).sum(), rows.prod(axis=0), T.cumsum(m, axis=1), rows

    def _set(self, k, a, v, m, rows, x, w, depth):  # type: ignore[no-untyped-def]
        at = k % 3 if self.r.integers(2) else -1 - k % 3
        if self.r.integers(2):
            return a, v, T.set_subtensor(m[at], v), T.inc_subtensor(rows[at, 1:], x[1:])
        return a + v[at], T.inc_subtensor(v[1:3], a), m, T.set_subtensor(rows[:, at], a)

    def _cond(self, k, a, v, m, rows, x, w, depth):  # type: ignore[no-untyped-def]
        yes = lambda v, m: (v * x, T.dot(m, w))  # noqa: E731
        no = lambda v, m: (v + a, T.exp(-m * m))  # noqa: E731
        v, m = control.cond(T.eq(k % 2, 0) if self.smooth else a > 0, yes, no, v, m)
        return a, v, m, rows

    def _softmax(self, k, a, v, m, rows, x, w, depth):  # type: ignore[no-untyped-def]
        scores = T.nnet.softmax(T.dot(rows, w))
        return a, v * scores[0], T.dot(rows.T, T.nnet.logsoftmax(scores)), rows

    def _slices(self, k, a, v, m, rows, x, w, depth):  # type: ignore[no-untyped-def]
        return a, T.concatenate([v[2:], x[:2]]), m[::-1].T, T.stack([rows[0], v, x])

    def _turn(self, k, a, v, m, rows, x, w, depth):  # type: ignore[no-untyped-def]
        wide = rows.reshape((_N, 3)).T
        return a * m[0, 0], v, (m.dimshuffle(0, 1, "x") * v).sum(axis=1), wide.reshape((3, _N))

    def _norm(self, k, a, v, m, rows, x, w, depth):  # type: ignore[no-untyped-def]
        centred = rows - rows.mean(axis=1, keepdims=True)
        return a, v, m, centred / T.sqrt((centred**2).mean(axis=1, keepdims=True) + 0.1)

    def _scan(self, k, a, v, m, rows, x, w, depth):  # type: ignore[no-untyped-def]
        last, found = control.scan(lambda h, e: (T.tanh(T.dot(h, w) + e), h * a), v, rows)
        return a, last, m, found

    def _largest(self, k, a, v, m, rows, x, w, depth):  # type: ignore[no-untyped-def]
        place = T.argmax(v)
        return a + v[place], v / (1 + T.abs(v).max()), T.switch(m > a, m, x), rows

    def _gather(self, k, a, v, m, rows, x, w, depth):  # type: ignore[no-untyped-def]
        order = T.stack([k % 3, (k + 1) % 3, -1 - k % 2])
        return a, v[order].sum() * x, m, rows[order]

    def _while(self, k, a, v, m, rows, x, w, depth):  # type: ignore[no-untyped-def]
        ends = lambda s: T.abs(s[1]) > 0.1  # noqa: E731
        count, b = control.while_loop(ends, lambda s: (s[0] + 1, s[1] * 0.6), (k, a))
        return b + (count - k).astype(self.dtype), v, m, rows

    # -- the loops ------------------------------------------------------------------------------

    def loop(self, kind: str) -> Callable[..., Any]:
        """A function of (leaves, xs, w), by a loop of this kind; its results are a list."""
        begun = self.r.bit_generator.state

        def again(x: Any, w: Any, value: Any) -> Any:
            self.r.bit_generator.state = begun
            return self.step(x, w, value)

        def run(leaves: Any, xs: Any, w: Any) -> Any:
            value = tuple(leaves)
            if kind == "fori":
                return list(control.fori_loop(0, 12, lambda i, s: again(xs[i], w, s), value))
            if kind == "while":
                more = lambda s: s[0] < 9  # noqa: E731
                return list(control.while_loop(more, lambda s: again(xs[s[0]], w, s), value))
            body = lambda s, x: ((new := again(x, w, s)), (new[2], new[1]))  # noqa: E731
            last, found = control.scan(body, value, xs)
            return [*last, *found]

        return run

    def loss(self, kind: str) -> Callable[..., Any]:
        """The gradients of a sum of all results, by everything that is a float."""
        run = self.loop(kind)

        def value(floats: Any, xs: Any, w: Any) -> Any:
            found = run([self.leaves[0], *floats], xs, w)
            return sum((f * f).sum() for f in found[1:])

        return symdnn.grad(value, (0, 1, 2))


def drawn(seed: int, dtype: str = "float64", smooth: bool = False) -> Drawn:
    """A drawn step."""
    return Drawn(seed, dtype, smooth)
