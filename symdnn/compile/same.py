"""When two values count as equal: to rounding of their dtype, relative to their size."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["difference", "tolerance"]

_TOLERANCE = {"float16": 5e-3, "bfloat16": 4e-2, "float32": 1e-4, "complex64": 1e-4}


def tolerance(dtype: Any) -> float:
    """How far two floating values may differ, relative to the largest of them."""
    return _TOLERANCE.get(np.dtype(dtype).name, 1e-8)


def difference(wanted: Any, got: Any, exact_nan: bool = False) -> str:
    """What distinguishes ``got`` from ``wanted``, in words; empty when they are equal.

    Where ``wanted`` is not finite, ``got`` may be anything (a stable form gives a number where
    the plain one overflows), unless ``exact_nan``.
    """
    wanted, got = np.asarray(wanted), np.asarray(got)
    if wanted.shape != got.shape or wanted.dtype != got.dtype:
        return f"wanted {wanted.dtype}{wanted.shape}, got {got.dtype}{got.shape}"
    if wanted.dtype.kind in "biu":
        count = int((wanted != got).sum())
        return f"{count} of {wanted.size} elements differ" if count else ""
    return _float_difference(wanted, got, exact_nan)


def _float_difference(wanted: Any, got: Any, exact_nan: bool) -> str:
    allowed = tolerance(wanted.dtype)
    wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
    a, b = wanted.astype(wide), got.astype(wide)
    with np.errstate(all="ignore"):
        finite = np.isfinite(a)
        if exact_nan and not np.array_equal(a[~finite], b[~finite], equal_nan=True):
            return "NaN or infinities differ"
        if not finite.any():
            return ""
        size = max(1.0, float(np.abs(a[finite]).max()))
        gap = np.abs(a[finite] - b[finite])
        worst = float(np.where(np.isnan(gap), np.inf, gap).max())
    if worst <= allowed * size:
        return ""
    return f"largest difference {worst:.3g}, allowed {allowed * size:.3g}"
