"""Programs that read neighbours: of images, fields and signals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

import symdnn.tensor as T

__all__ = ["PROGRAMS", "pad_by_one"]

Program = Callable[..., Sequence[Any]]
_B, _H, _W = 2, 19, 38
_rng = np.random.default_rng(7)


def _draw(*shape: int) -> Any:
    """Small numbers with few digits, so that sums are exact."""
    return (_rng.integers(-8, 9, shape) / 4).astype("float32")


def pad_by_one(x: Any, value: float = 0.0) -> Any:
    """An array with a number around its last two axes."""
    return T.pad(x, ((0, 0),) * (x.ndim - 2) + ((1, 1), (1, 1)), constant_values=value)


def _edges(x: Any) -> Any:
    g = pad_by_one(0.25 * x[:, 0] + 0.5 * x[:, 1] + 0.25 * x[:, 2])
    a, b, c = g[:, :-2], g[:, 1:-1], g[:, 2:]
    down = (c - a)[:, :, :-2] + 2 * (c - a)[:, :, 1:-1] + (c - a)[:, :, 2:]
    mixed = a + 2 * b + c
    across = mixed[:, :, 2:] - mixed[:, :, :-2]
    return [down * down + across * across]


def _opened(x: Any) -> Any:
    def window(f: Any, v: Any, h: int, w: int) -> Any:
        v = reduce(f, [v[:, k : k + h - 4] for k in range(5)])
        return reduce(f, [v[:, :, k : k + w - 4] for k in range(5)])

    found = window(T.maximum, window(T.minimum, x, _H, _W), _H - 4, _W - 4)
    return [found, x[:, 4:-4, 4:-4] - found]


def _rolled_states(f: Any) -> Any:
    total = f.sum(0)
    return [T.roll(T.roll(f[k] * 2 - total, k, 0), -k, 1) for k in range(3)]


def _periodic(u: Any) -> Any:
    for _ in range(3):
        near = [T.roll(u, s, a) for s in (1, -1) for a in (1, 2)]
        u = u + 0.25 * (reduce(T.add, near) - 4 * u)
    return [u]


def _padded(mode: str) -> Program:
    """Two steps whose border is as NumPy pads."""

    def steps(u: Any) -> Any:
        for _ in range(2):
            p = T.pad(u, ((0, 0), (1, 1), (2, 1)), mode=mode)
            u = u + 0.5 * (p[:, 2:, 2:-1] + p[:, :-2, 2:-1] - p[:, 1:-1, 3:] - p[:, 1:-1, :-3])
        return [u, T.pad(u * 2, ((0, 0), (0, 2), (0, 0)), mode=mode) + 1]

    return steps


def _life(x: Any) -> Any:
    p = pad_by_one(x)
    near = [p[1 + i : 1 + i + _H, 1 + j : 1 + j + _W] for i in (-1, 0, 1) for j in (-1, 0, 1)]
    count = reduce(T.add, near) - x
    return [T.cast(T.eq(count, 3) | (T.eq(x, 1) & T.eq(count, 2)), "int32")]


def _waves(e: Any, h: Any, v: Any) -> Any:
    """A step of finite differences in time, of fields on shifted grids."""
    h = h - 0.5 * (e[:, 1:] - e[:, :-1])
    v = v + 0.5 * (e[1:] - e[:-1])
    curl = (v[1:, 1:-1] - v[:-1, 1:-1]) - (h[1:-1, 1:] - h[1:-1, :-1])
    return [e + T.pad(0.5 * curl, 1), h, v]


def _causal(x: Any, w: Any) -> Any:
    for k in range(3):
        p = T.pad(x, ((0, 0), (2 * 2**k, 0), (0, 0)))
        x = x + 0.5 * reduce(T.add, [p[:, j * 2**k : j * 2**k + _H] * w[k, j] for j in range(3)])
    return [x]


def _channels_last(x: Any) -> Any:
    y = x * x
    p = T.pad(y, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=1.5)
    return [p[:, 1:-1, 2:] - p[:, 1:-1, :-2], p[:, 2:, 1:-1] - y, T.roll(y + x, 2, 2)]


#: Programs with their arguments. On a GPU each is one node.
PROGRAMS: dict[str, tuple[Program, list[Any]]] = {
    "edges": (_edges, [_draw(_B, 3, _H, _W)]),
    "opened": (_opened, [_draw(_B, _H, _W)]),
    "rolled states": (_rolled_states, [_draw(3, _H, _W)]),
    "periodic": (_periodic, [_draw(_B, _H, _W)]),
    "constant": (_padded("constant"), [_draw(_B, _H, _W)]),
    "edge": (_padded("edge"), [_draw(_B, _H, _W)]),
    "reflect": (_padded("reflect"), [_draw(_B, _H, _W)]),
    "symmetric": (_padded("symmetric"), [_draw(_B, _H, _W)]),
    "wrap": (_padded("wrap"), [_draw(_B, _H, _W)]),
    "life": (_life, [_rng.integers(0, 2, (_H, _W)).astype("int32")]),
    "waves": (_waves, [_draw(_H, _W), _draw(_H, _W - 1), _draw(_H - 1, _W)]),
    "causal": (_causal, [_draw(_B, _H, 24), _draw(3, 3, 24)]),
    "channels last": (_channels_last, [_draw(_B, 9, 11, 3)]),
}
