"""Drawers of what shapes, joins and makes arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.fuzz.drawing import Call, Drawer, call, factors
from tests.fuzz.growth import Growth, Term

# -- shapes ---------------------------------------------------------------------------------------


def reshape(g: Growth) -> Call:
    t = g.term()
    shape = factors(g, int(np.prod(t.shape)))
    if g.chance(0.5) and 0 not in shape:
        shape[g.integer(0, len(shape) - 1)] = -1
    return call(t, tuple(shape))


def dimshuffle(g: Growth) -> Call:
    t = g.term()
    kept = [a for a in range(t.ndim) if t.v.type.shape[a] != 1 or g.chance(0.5)]
    pattern: list[Any] = [kept[k] for k in g.order(len(kept))]
    for _ in range(g.integer(0, 2)):
        pattern.insert(g.integer(0, len(pattern)), "x")
    return call(t, tuple(pattern))


def moveaxis(g: Growth) -> Call:
    t = g.term((1, 2, 3, 4))
    n = g.integer(1, t.ndim)
    return call(t, g.order(t.ndim)[:n], g.order(t.ndim)[:n])


def squeeze(g: Growth) -> Call:
    def known(t: Term) -> bool:
        return t.shape.count(1) == t.v.type.shape.count(1)

    t = g.term(where=known)
    ones = [a for a, n in enumerate(t.shape) if n == 1]
    return call(t, g.of(ones)) if ones and g.chance(0.6) else call(t)


def expand(g: Growth) -> Call:
    t = g.term((0, 1, 2, 3))
    a = g.integer(-t.ndim - 1, t.ndim)
    return call(t, a)


def statics(g: Growth) -> Call:
    t = g.term(where=lambda t: 1 in t.shape)
    ones = [a for a, n in enumerate(t.shape) if n == 1]
    return call(t, *[a for a in ones if g.chance(0.7)])


def pattern(g: Growth) -> Call:
    t = g.term()
    return call(t, tuple(n == 1 and g.chance(0.6) for n in t.shape))


def specify(g: Growth) -> Call:
    t = g.term()
    return call(t, tuple(n if g.chance(0.6) else None for n in t.shape))


def sizes(g: Growth, n: int | None = None) -> tuple[int, ...]:
    return tuple(g.of([*g.sizes, 1]) for _ in range(g.integer(1, 3) if n is None else n))


def alloc(g: Growth) -> Call:
    t = g.term((0, 1, 2))
    shape = [g.of(g.sizes) if n == 1 == s else n for n, s in zip(t.shape, t.v.type.shape)]
    return call(t, *sizes(g, g.integer(0, 1)), *shape)


def broadcast_to(g: Growth) -> Call:
    args, _ = alloc(g)
    return call(args[0], tuple(args[1:]))


def fill(g: Growth) -> Call:
    t = g.term()
    return call(t, g.term(0) if g.chance(0.5) else g.number())


def pad(g: Growth) -> Call:
    t = g.term((1, 2, 3), low=1)
    mode = g.of(["constant", "constant", "edge", "reflect", "symmetric", "wrap"])
    width = [(g.integer(0, 3), g.integer(0, 3)) for _ in t.shape]
    return call(t, tuple(width), mode)


# -- joining --------------------------------------------------------------------------------------


def alike(g: Growth, t: Term, axis: int | None) -> Term:
    """A term of the shape of ``t``, but for one axis."""

    def fits(o: Term) -> bool:
        return o.ndim == t.ndim and all(
            m == n for a, (m, n) in enumerate(zip(o.shape, t.shape)) if a != axis
        )

    found = [o for o in g.terms if fits(o)]
    if g.chance(0.8):
        return g.of(found)  # type: ignore[no-any-return]
    shape = [g.of(g.sizes) if a == axis else n for a, n in enumerate(t.shape)]
    return g.fresh(shape, t.dtype)


def join(g: Growth) -> Call:
    t = g.term((1, 2, 3))
    a = g.axis(t)
    return call(a, t, *(alike(g, t, a % t.ndim) for _ in range(g.integer(0, 3))))


def concatenate(g: Growth) -> Call:
    (a, *parts), _ = join(g)
    return call(list(parts), axis=a)


def stack(g: Growth) -> Call:
    t = g.term((0, 1, 2))
    parts = [t, *(alike(g, t, None) for _ in range(g.integer(0, 3)))]
    return call(parts, axis=g.integer(-t.ndim - 1, t.ndim))


def stacklists(g: Growth) -> Call:
    t = g.term((0, 1))
    return call([[t, alike(g, t, None)], [alike(g, t, None), t]])


def rows(axis: int) -> Drawer:
    def draw(g: Growth) -> Call:
        t = g.term(2)
        return call([t, alike(g, t, axis), t])

    return draw


def flat_rows(axis: int) -> Drawer:
    def draw(g: Growth) -> Call:
        (parts,), _ = rows(axis)(g)
        return call(*parts)

    return draw


def split(g: Growth) -> Call:
    t = g.term((1, 2, 3))
    a = g.integer(0, t.ndim - 1)
    cuts = sorted(g.integer(0, t.shape[a]) for _ in range(g.integer(0, 3)))
    sizes = np.diff([0, *cuts, t.shape[a]]).tolist()
    return call(t, sizes, len(sizes), a)


def roll(g: Growth) -> Call:
    t = g.term((1, 2, 3))
    return call(t, g.integer(-5, 9), g.axis(t) if g.chance(0.8) else None)


def repeat(g: Growth) -> Call:
    t = g.term((1, 2, 3))
    a = g.axis(t)
    if g.chance(0.4):
        each = [g.integer(0, 2) for _ in range(t.shape[a])]
        return call(t, each, axis=a)
    return call(t, g.integer(0, 3), axis=a if g.chance(0.8) else None)


def tile(g: Growth) -> Call:
    t = g.term((0, 1, 2))
    return call(t, tuple(g.integer(0, 3) for _ in range(g.integer(1, 3))))


def meshgrid(g: Growth) -> Call:
    return call(*(g.term(1) for _ in range(g.integer(1, 3))))


# -- diagonals and ranges -------------------------------------------------------------------------


def diagonal(g: Growth) -> Call:
    t = g.term((2, 3))
    a, b = g.order(t.ndim)[:2]
    return call(t, g.integer(-3, 3), a, b)


def part(g: Growth) -> Call:
    return call(g.term((2, 3)), g.integer(-3, 3))


def arange(g: Growth) -> Call:
    step = g.of([1, 2, 3, -1, -2])
    if g.chance(0.4):
        values = np.array(g.integer(-3, 7))
        stop: Any = g.fresh((), "int64", values)
    else:
        stop = g.integer(-5, 9)
    return call(g.integer(-3, 3), stop, step)


def linspace(g: Growth) -> Call:
    return call(g.integer(0, 3), g.integer(4, 9), g.integer(2, 9), dtype="float64")


def fill_diagonal(g: Growth) -> Call:
    t = g.term(2, kinds="fc")
    return call(t, g.number(), g.integer(-2, 2))
