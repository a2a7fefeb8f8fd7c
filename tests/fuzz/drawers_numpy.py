"""Drawers of the names that ``T`` has from NumPy alone; NumPy's function is the oracle."""

from __future__ import annotations

import numpy as np

from tests.fuzz.drawers_shape import alike, rows
from tests.fuzz.drawers_value import axis_or_none, vectors
from tests.fuzz.drawing import Call, Drawer, call, indices
from tests.fuzz.growth import Growth


def append(g: Growth) -> Call:
    t = g.term((1, 2, 3))
    a = g.axis(t)
    return call(t, alike(g, t, a % t.ndim), axis=a if g.chance(0.8) else None)


def parts(axis: int | None, exact: bool) -> Drawer:
    """``array_split`` and its kin: along an axis, into equal parts or not."""

    def draw(g: Growth) -> Call:
        t = g.term(3 if axis == 2 else (2, 3))
        a = g.integer(0, t.ndim - 1) if axis is None else axis
        n = t.shape[a]
        counts = [k for k in range(1, 5) if not exact or n % k == 0]
        return call(t, g.of(counts), *((a,) if axis is None else ()))

    return draw


def convolved(g: Growth) -> Call:
    t = g.term(1, "fi", low=1)
    return call(t, g.fresh((g.integer(1, 4),), t.dtype), mode=g.of(["full", "same", "valid"]))


def cross(g: Growth) -> Call:
    shape = (max(g.of(g.sizes), 1), 3)
    return call(g.fresh(shape, "float64"), g.fresh(shape, "float64"))


def digitized(g: Growth) -> Call:
    t = g.term((0, 1, 2), "f")
    edges = np.sort(g.rng.standard_normal(g.integer(1, 7))).astype("f4")
    return call(t, g.fresh(edges.shape, "float32", edges), g.chance(0.5))


def histogram(g: Growth) -> Call:
    """Of whole numbers, whose bins no rounding decides."""
    t = g.fresh((g.of(g.sizes),), "int64")
    return call(t, g.of([4, 8]), range=(0, 8))


def among(g: Growth) -> Call:
    return call(g.term((0, 1, 2), "iu"), g.term((1, 2), "iu"))


def interp(g: Growth) -> Call:
    xp = np.cumsum(g.rng.uniform(0.2, 1, g.integer(2, 6)))
    t = g.term((0, 1, 2), "f")
    return call(t, g.fresh(xp.shape, "float64", xp), g.fresh(xp.shape, "float64"))


def quantile(scale: float) -> Drawer:
    def draw(g: Growth) -> Call:
        t = g.term((1, 2, 3), "f", low=1)
        return call(t, g.of([0.0, 0.25, 0.5, 1.0]) * scale, axis=g.axis(t))

    return draw


def grid_index(g: Growth) -> Call:
    shape = tuple(max(g.of(g.sizes), 1) for _ in range(g.integer(1, 3)))
    return call(indices(g, int(np.prod(shape)), (g.of(g.sizes),), negative=False), shape)


def flat_index(g: Growth) -> Call:
    shape = tuple(max(g.of(g.sizes), 1) for _ in range(g.integer(1, 3)))
    n = g.of(g.sizes)
    return call([indices(g, m, (n,), negative=False) for m in shape], shape)


def turned(g: Growth) -> Call:
    t = g.term((2, 3))
    return call(t, g.integer(-3, 4), tuple(g.order(t.ndim)[:2]))


def trapezoid(g: Growth) -> Call:
    t = g.term((1, 2), "f", low=1)
    return call(t, axis=g.axis(t))


def inner(g: Growth) -> Call:
    t = g.term((1, 2), "fi")
    return call(t, g.fresh((g.of(g.sizes), t.shape[-1])[-t.ndim :], t.dtype))


DRAWERS: dict[str, Drawer] = {
    "append": append, "argwhere": lambda g: call(g.term((1, 2))), "array_split": parts(None, False),
    "chunk": parts(None, True), "hsplit": parts(1, True), "vsplit": parts(0, True),
    "dsplit": parts(2, True), "column_stack": rows(1), "row_stack": rows(0), "dstack": rows(1),
    "concat": lambda g: call([(t := g.term((1, 2))), alike(g, t, 0)]), "convolve": convolved,
    "correlate": convolved, "cross": cross, "diag_indices": lambda g: call(g.integer(0, 5)),
    "digitize": digitized, "fliplr": lambda g: call(g.term((2, 3))),
    "flipud": lambda g: call(g.term((1, 2, 3))), "histogram": histogram, "in1d": among,
    "isin": among, "inner": inner, "interp": interp, "log_softmax": lambda g: (
        lambda t: call(t, axis=g.axis(t)))(g.term((1, 2, 3), "f")),
    "matrix_transpose": lambda g: call(g.term((2, 3))), "nanargmax": axis_or_none,
    "nanargmin": axis_or_none, "percentile": quantile(100.0), "quantile": quantile(1.0),
    "permute_dims": lambda g: (lambda t: call(t, g.order(t.ndim)))(g.term((1, 2, 3))),
    "ravel_multi_index": flat_index, "unravel_index": grid_index, "rot90": turned,
    "trapezoid": trapezoid, "tril_indices": lambda g: call(g.integer(0, 5), g.integer(-2, 2)),
    "triu_indices": lambda g: call(g.integer(0, 5), g.integer(-2, 2)),
    "unstack": lambda g: (lambda t: call(t, g.integer(0, t.ndim - 1)))(g.term((1, 2))),
    "vdot": vectors,
}  # fmt: skip
