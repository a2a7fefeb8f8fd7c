"""Drawers of NumPy's rarer names: makers, sets, polynomials, order, functions of functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.fuzz.drawers_numpy import among, quantile
from tests.fuzz.drawers_shape import alike, sizes
from tests.fuzz.drawers_value import axis_or_none, top_indices
from tests.fuzz.drawing import Call, Drawer, call
from tests.fuzz.growth import Growth, Term


@dataclass(frozen=True)
class Method:
    """A function that is a method of variables and of arrays, and is written as such."""

    name: str

    def __call__(self, x: Any, *args: Any) -> Any:
        return getattr(x, self.name)(*args)

    def __repr__(self) -> str:
        return f"(lambda x, *a: x.{self.name}(*a))"


# -- functions of functions -----------------------------------------------------------------------


def along_axis(g: Growth) -> Call:
    shape = [g.integer(1, 4) for _ in range(g.integer(1, 3))]
    t = g.fresh(shape, "float64", known=1.0)
    return call(Method(g.of(["max", "__neg__", "min"])), g.axis(t), t)


def over_axes(g: Growth) -> Call:
    t = g.term((1, 2, 3), "iuf", low=1)
    return call(Method(g.of(["max", "min"])), t, tuple(g.order(t.ndim)[: g.integer(1, 2)]))


def pieces(g: Growth) -> Call:
    t = g.term((1, 2), "f")
    conditions = [g.fresh(t.shape, "bool") for _ in range(g.integer(1, 3))]
    n = len(conditions) + g.integer(0, 1)
    return call(t, conditions, [g.of([Method("__neg__"), g.number()]) for _ in range(n)])


# -- choosing -------------------------------------------------------------------------------------


def selected(g: Growth) -> Call:
    t = g.term((0, 1, 2), "f")
    n = g.integer(1, 3)
    conditions = [g.fresh(t.shape, "bool") for _ in range(n)]
    return call(conditions, [t, *(alike(g, t, None) for _ in range(n - 1))])


def deleted(g: Growth) -> Call:
    t = g.term((1, 2, 3), low=1)
    a = g.axis(t) if g.chance(0.8) else None
    n = t.shape[a] if a is not None else int(np.prod(t.shape))
    some = [g.integer(-n, n - 1) for _ in range(g.integer(1, 3))]
    return call(t, g.of([some[0], some, g.rng.random(n) < 0.4]), axis=a)


def extracted(g: Growth) -> Call:
    t = g.term((1, 2))
    return call(g.fresh(t.shape, "bool"), t)


def rows_at(g: Growth) -> Call:
    return call(*(g.term(1, "biu") for _ in range(g.integer(1, 3))))


def matrix(g: Growth) -> Term:
    n = g.integer(1, 5)
    return g.fresh((n, n), "float32")


def pair(same: bool) -> Drawer:
    def draw(g: Growth) -> Call:
        t = g.term()
        return call(t, alike(g, t, None) if same else g.partner(t))

    return draw


# -- numbers --------------------------------------------------------------------------------------


def scaled(g: Growth) -> Call:
    t = g.term(kinds="f")
    n = g.rng.integers(-3, 6, t.shape).astype("int32")
    return call(t, g.fresh(t.shape, "int32", n))


def whole(g: Growth) -> Call:
    t = g.term(kinds="iu")
    return call(t, g.partner(t, "iu"))


def neighbours(g: Growth) -> Call:
    t = g.term(kinds="f", where=lambda t: t.dtype == "float64")
    return call(t, g.fresh(t.shape, "float64"))


def steps(g: Growth) -> Call:
    return call(g.term(kinds="f", where=lambda t: t.dtype == "float64"))


def angles(g: Growth) -> Call:
    t = g.term((1, 2), "f", low=1, where=lambda t: t.dtype == "float64")
    return call(t, axis=g.axis(t))


def keys(g: Growth) -> Call:
    t = g.term((1, 2), "iuf")
    others = [g.fresh(t.shape, "int8") for _ in range(g.integer(0, 2))]
    return call([*others, t], axis=g.axis(t))


def running(g: Growth) -> Call:
    t = g.term((1, 2, 3), "biuf")
    return call(t, axis=g.axis(t), include_initial=g.chance(0.5))


def parted(g: Growth) -> Call:
    t = g.term((1, 2, 3), "iuf", low=1)
    a = g.axis(t)
    return call(t, g.integer(0, t.shape[a] - 1), axis=a)


def spaced(g: Growth) -> Call:
    kwargs = {"endpoint": False} if g.chance(0.3) else {}
    return call(g.integer(1, 3), g.integer(4, 6), g.integer(2, 9), dtype="float64", **kwargs)


def counts(g: Growth) -> Call:
    n = g.of(g.sizes)
    x, y = g.fresh((n,), "int64"), g.fresh((n,), "int64")
    return call(x, y, g.of([4, 8]), range=((0, 8), (-4, 4)))


def edges(g: Growth) -> Call:
    return call(g.fresh((g.of(g.sizes),), "int64"), g.of([4, 8]), range=(0, 8))


# -- products and statistics ----------------------------------------------------------------------


def product(first: str, second: str, batches: tuple[str, ...] = ("", "b")) -> Drawer:
    """Of one batch or none; letters are sizes."""

    def draw(g: Growth) -> Call:
        size = {k: g.of(g.sizes) for k in "bnmp"}
        lead = g.of(batches)
        dtype = g.of(g.dtypes or ["float32", "float64", "complex128"])
        return call(*(g.fresh([size[k] for k in lead + s], dtype) for s in (first, second)))

    return draw


def covariance(g: Growth) -> Call:
    t = g.term((1, 2), "f", low=2)
    return call(t, rowvar=g.chance(0.5))


def slopes(g: Growth) -> Call:
    t = g.term((1, 2, 3), "f", low=3)
    steps = [g.of([0.5, 2.0])] if g.chance(0.4) else []
    return call(t, *steps, axis=g.of([None, g.axis(t)]), edge_order=g.integer(1, 2))


# -- polynomials ----------------------------------------------------------------------------------


def coefficients(g: Growth) -> Term:
    return g.fresh((g.integer(1, 5),), g.of(g.dtypes or ["float32", "float64"]), known=1.0)


def fitted(g: Growth) -> Call:
    n, deg = g.integer(4, 9), g.integer(0, 2)
    x = np.linspace(-1, 1, n) + 0.1 * g.rng.uniform(-1, 1, n)
    shape = (n,) if g.chance(0.6) else (n, 2)
    return call(g.fresh((n,), "float64", x), g.fresh(shape, "float64"), deg)


def two(g: Growth) -> Call:
    return call(coefficients(g), coefficients(g))


def evaluated(g: Growth) -> Call:
    return call(coefficients(g), g.term((0, 1, 2), "f"))


def powers(g: Growth) -> Call:
    return call(coefficients(g), g.integer(0, 4), g.chance(0.5))


def derived(g: Growth) -> Call:
    return call(coefficients(g), g.integer(0, 2))


def window(g: Growth) -> Call:
    return call(g.integer(0, 9))


DRAWERS: dict[str, Drawer] = {
    "apply_along_axis": along_axis, "apply_over_axes": over_axes, "piecewise": pieces,
    "fromfunction": lambda g: call(Method("__add__"), (g.integer(0, 4), g.integer(0, 4))),
    "argpartition": top_indices, "partition": parted, "array_equal": pair(True),
    "array_equiv": pair(False), "asarray": lambda g: (
        lambda t: call(g.of([t, [t, alike(g, t, None)]])))(g.term((0, 1, 2))),
    **dict.fromkeys(("bartlett", "blackman", "hamming", "hanning"), window),
    "kaiser": lambda g: call(g.integer(0, 9), g.of([0.0, 2.5, 14.0])),
    "bitwise_count": lambda g: call(g.term((0, 1, 2), "iub")),
    "broadcast_arrays": pair(False), "cov": covariance, "delete": deleted,
    "diag_indices_from": lambda g: call(matrix(g)),
    "diagflat": lambda g: call(g.term((0, 1, 2)), g.integer(-2, 2)),
    "ediff1d": lambda g: call(g.term((1, 2), "if")), "extract": extracted, "gcd": whole,
    "lcm": whole, "geomspace": spaced, "logspace": spaced, "gradient": slopes,
    "histogram_bin_edges": edges, "identity": lambda g: call(g.integer(0, 5)),
    "indices": lambda g: call(sizes(g)), "ix_": rows_at, "ldexp": scaled, "lexsort": keys,
    **dict.fromkeys(("intersect1d", "setdiff1d", "setxor1d", "union1d"), among),
    "matvec": product("nm", "m"), "vecmat": product("n", "nm"), "vecdot": product("n", "n"),
    "nancumprod": axis_or_none, "nancumsum": axis_or_none, "cumulative_sum": running,
    "cumulative_prod": running, "nanpercentile": quantile(100.0), "nanquantile": quantile(1.0),
    "mm": product("nm", "mp", ("",)), "bmm": product("nm", "mp", ("b",)), "corrcoef": covariance,
    "histogram2d": counts, "polyder": derived, "polyint": derived, "polyval": evaluated,
    "spacing": steps, "unwrap": angles, "vander": powers, "nextafter": neighbours,
    "poly": lambda g: call(coefficients(g)), "polyadd": two,
    "polysub": two, "polymul": two, "polyfit": fitted,
    "resize": lambda g: call(g.term((0, 1, 2), low=1), sizes(g)), "select": selected,
    **dict.fromkeys(("tril_indices_from", "triu_indices_from"), lambda g: call(
        g.term(2), g.integer(-3, 3))),
}  # fmt: skip
