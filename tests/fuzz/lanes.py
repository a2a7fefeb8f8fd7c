"""Programs of loops and choices over a new dimension: against NumPy, gradients against entries.

A program is a tree of choices, loops with bounds that differ between entries, and checkpoints,
around elementwise functions of a vector. Each entry has a vector and a whole number of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import symdnn
import symdnn.tensor as T
from symdnn import control
from tests.fuzz.areas import Area, Context, Failure, error_text

SIZE = 3


@dataclass(frozen=True)
class Both:
    """A function of a vector and a whole number, by symdnn and by NumPy, and its text."""

    made: Callable[[Any, Any], Any]
    wanted: Callable[[Any, int], Any]
    text: str


def program(rng: np.random.Generator, depth: int) -> Both:
    """A random program."""
    if depth == 0:
        return _simple(rng)
    return _MAKERS[int(rng.integers(len(_MAKERS)))](rng, depth - 1)


def _simple(rng: np.random.Generator) -> Both:
    a, b = (float(c) for c in np.round(rng.uniform(-1, 1, 2), 2))
    if rng.random() < 0.5:
        return Both(lambda v, n: T.tanh(v * a + b), lambda v, n: np.tanh(v * a + b),
                    f"tanh({a} v + {b})")  # fmt: skip
    return Both(lambda v, n: T.sin(v) + b * v[::-1], lambda v, n: np.sin(v) + b * v[::-1],
                f"sin(v) + {b} v[::-1]")  # fmt: skip


def _after(rng: np.random.Generator, depth: int) -> Both:
    f, g = program(rng, depth), program(rng, depth)
    return Both(lambda v, n: g.made(f.made(v, n), n), lambda v, n: g.wanted(f.wanted(v, n), n),
                f"({g.text} after {f.text})")  # fmt: skip


def _checkpoint(rng: np.random.Generator, depth: int) -> Both:
    f = program(rng, depth)
    return Both(lambda v, n: symdnn.checkpoint(lambda v: f.made(v, n))(v), f.wanted,
                f"checkpoint({f.text})")  # fmt: skip


def _cond(rng: np.random.Generator, depth: int) -> Both:
    f, g, c = program(rng, depth), program(rng, depth), float(np.round(rng.uniform(-1, 1), 3))

    def made(v: Any, n: Any) -> Any:
        return control.cond(v.sum() > c, lambda v: f.made(v, n), lambda v: g.made(v, n), v)

    return Both(made, lambda v, n: (f if v.sum() > c else g).wanted(v, n),
                f"cond(sum > {c}, {f.text}, {g.text})")  # fmt: skip


def _switch(rng: np.random.Generator, depth: int) -> Both:
    parts = [program(rng, depth) for _ in range(int(rng.integers(2, 4)))]
    last = len(parts) - 1

    def made(v: Any, n: Any) -> Any:
        return control.switch(n, [lambda v, p=p: p.made(v, n) for p in parts], v)

    return Both(made, lambda v, n: parts[min(max(n, 0), last)].wanted(v, n),
                f"switch(n, {', '.join(p.text for p in parts)})")  # fmt: skip


def _fori(rng: np.random.Generator, depth: int) -> Both:
    f, own = program(rng, depth), bool(rng.random() < 0.6)
    low = int(rng.integers(-1, 2))

    def made(v: Any, n: Any) -> Any:
        return control.fori_loop(low, n if own else 3, lambda i, v: f.made(v, n) + 0.125 * i, v)

    def wanted(v: Any, n: int) -> Any:
        for i in range(low, n if own else 3):
            v = f.wanted(v, n) + 0.125 * i
        return v

    return Both(made, wanted, f"fori({low}, {'n' if own else 3}, {f.text})")


def _while(rng: np.random.Generator, depth: int) -> Both:
    f, c = program(rng, depth), float(np.round(rng.uniform(0.5, 2), 3))

    def made(v: Any, n: Any) -> Any:
        more = lambda s: (abs(s[0]).sum() < c) & (s[1] < 4)  # noqa: E731
        return control.while_loop(more, lambda s: (f.made(s[0], n) + 0.2, s[1] + 1), (v, 0))[0]

    def wanted(v: Any, n: int) -> Any:
        k = 0
        while np.abs(v).sum() < c and k < 4:
            v, k = f.wanted(v, n) + 0.2, k + 1
        return v

    return Both(made, wanted, f"while(size < {c}, {f.text})")


def _scan(rng: np.random.Generator, depth: int) -> Both:
    f, back = program(rng, depth), bool(rng.random() < 0.5)

    def made(v: Any, n: Any) -> Any:
        last, ys = control.scan(lambda c, x: (f.made(c, n) * x, c.sum()), v, v, reverse=back)
        return last + ys

    def wanted(v: Any, n: int) -> Any:
        c, ys = v, np.zeros(SIZE)
        for k in range(SIZE)[:: -1 if back else 1]:
            c, ys[k] = f.wanted(c, n) * v[k], c.sum()
        return c + ys

    return Both(made, wanted, f"scan({f.text}, reverse={back})")


#: Sines of larger numbers differ by their rounding.
_LARGE = 1e4

_MAKERS = (_after, _checkpoint, _cond, _switch, _fori, _while, _scan)


def check(ctx: Context) -> list[Failure]:
    """A program of several entries, and its gradient."""
    rng = ctx.rng
    p = program(rng, int(rng.integers(1, 4)))
    lanes = int(rng.integers(1, 4))
    x, n = rng.standard_normal((lanes, SIZE)), rng.integers(-1, 4, lanes)
    f = symdnn.vmap(p.made)
    try:
        whole = symdnn.jit(lambda x, n: (f(x, n), symdnn.grad(lambda x: (f(x, n) ** 2).sum())(x)))
        alone = symdnn.jit(symdnn.grad(lambda v, n: (p.made(v, n) ** 2).sum()))
        found, slopes = whole(x, n)
        each = [alone(v, k) for v, k in zip(x, n)]
    except Exception as error:
        return [ctx.fail(f"{p.text}: {error_text(error)}")]
    with np.errstate(all="ignore"):
        wanted = np.array([p.wanted(v, int(k)) for v, k in zip(x, n)])
    if not np.all(np.abs(wanted) < _LARGE):
        return []
    ctx.count("programs")
    if not np.allclose(found, wanted, 1e-9, 1e-9):
        return [ctx.fail(f"{p.text} of {x.tolist()}, {n.tolist()}: the value differs")]
    if not np.allclose(slopes, each, 1e-8, 1e-8):
        return [ctx.fail(f"{p.text} of {x.tolist()}, {n.tolist()}: the gradient differs")]
    return []


AREA = Area("lanes", "programs", check, in_tests=15)
