"""Helpers of drawers: a call, indices, sizes that divide a size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.fuzz.growth import Growth, Term
from tests.fuzz.noise import Unusable

Call = tuple[tuple[Any, ...], dict[str, Any]]
Drawer = Callable[[Growth], Call]


def call(*args: Any, **kwargs: Any) -> Call:
    """Arguments; terms stand for their references."""

    def bare(a: Any) -> Any:
        if isinstance(a, Term):
            return a.ref
        if isinstance(a, list):
            return [bare(x) for x in a]
        return a

    return tuple(map(bare, args)), {k: bare(v) for k, v in kwargs.items()}


def indices(g: Growth, n: int, shape: Any, negative: bool = True) -> Term:
    """A new integer array of indices of a dimension of size ``n``."""
    if n == 0 and int(np.prod(shape)) > 0:
        raise Unusable("nothing to index")
    dtype = g.of(["int64", "int64", "int32", "int8", "uint8", "int16", "uint32"])
    low = -n if negative and dtype[0] != "u" else 0
    values = g.rng.integers(low, max(n, 1), shape).astype(dtype)
    return g.fresh(values.shape, dtype, values)


def factors(g: Growth, n: int) -> list[int]:
    """Sizes whose product is ``n``, some of them 1."""
    out, rest = [], n
    for p in (2, 3, 5, 7):
        while rest and rest % p == 0 and g.chance(0.6):
            out.append(p)
            rest //= p
    out.append(rest)
    if g.chance(0.3):
        out.append(1)
    return [out[k] for k in g.order(len(out))][:6] if len(out) <= 6 else [n]
