"""Estimates rounding errors by computing with values that are rounded at random.

A program is computed again with each floating value changed by a few units in its last place (Monte
Carlo arithmetic: D. Stott Parker, "Monte Carlo Arithmetic", UCLA CSD-970002, 1997). The differences
of the results show their uncertainty: of sums that cancel, quotients of values near 0, comparisons
of equal numbers. Small whole numbers count as exact and are not changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from symdnn.graph.typing import DtypeLike

#: The number of runs with random rounding.
SAMPLES = 2
#: The largest change of a value, in units in the last place.
_MAX_CHANGE_ULPS = 4.0
_EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7}


def epsilon(dtype: DtypeLike) -> float:
    """The distance from 1 to the next number of ``dtype``."""
    name = np.dtype(dtype).name
    return _EPSILON[name] if name in _EPSILON else float(np.finfo(dtype).eps)


def rounded(value: Any, rng: np.random.Generator) -> Any:
    """``value`` with each floating element changed by a few units in its last place."""
    if not is_floating(value) or value.size == 0:
        return value
    wide = np.complex128 if value.dtype.kind == "c" else np.float64
    a = value.astype(wide)
    with np.errstate(all="ignore"):
        moved = a * (
            1 + rng.uniform(-_MAX_CHANGE_ULPS, _MAX_CHANGE_ULPS, a.shape) * epsilon(value.dtype)
        )
        exact = (np.abs(a) <= 1024) & (a == np.round(a))
        return np.where(exact | ~np.isfinite(a), a, moved).astype(value.dtype)


def is_floating(value: object) -> bool:
    """Whether ``value`` is an array of floats (bfloat16 too) or of complex numbers."""
    return isinstance(value, np.ndarray) and (
        value.dtype.kind in "fc" or value.dtype.name == "bfloat16"
    )


def noise(value: Any, samples: Sequence[Any]) -> tuple[float, Any]:
    """(largest distance of a sample from ``value``, mask of where finiteness differs)."""
    found, lost = 0.0, np.zeros(value.shape, bool)
    wide = np.complex128 if value.dtype.kind == "c" else np.float64
    a = value.astype(wide)
    for sample in samples:
        if not isinstance(sample, np.ndarray) or sample.shape != value.shape:
            return 0.0, np.ones(value.shape, bool)
        with np.errstate(all="ignore"):
            b = sample.astype(wide)
            gap = np.abs(b - a)
        lost |= np.isfinite(a) != np.isfinite(b)
        found = max(found, float(np.max(gap, initial=0, where=np.isfinite(gap))))
    return found, lost


def unsure(value: Any, samples: Sequence[Any]) -> Any:
    """The mask of elements of an integer or bool array that rounding may change."""
    found = np.zeros(value.shape, bool)
    for sample in samples:
        if not isinstance(sample, np.ndarray) or sample.shape != value.shape:
            return np.ones(value.shape, bool)
        found |= sample != value
    return found
