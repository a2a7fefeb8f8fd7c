"""Compares two values up to the differences that rounding may make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from symdnn.compile.modes.noise import epsilon, noise, unsure

#: The error that a kernel may have, relative to the largest element: by its order of summation, its
#: approximation of a function, Winograd's transforms.
_KERNEL_RELATIVE_ERROR = {"float16": 5e-3, "bfloat16": 4e-2, "float32": 2e-5, "complex64": 2e-5}
#: The allowed error relative to the largest change that random rounding made.
_ROUNDING_FACTOR = 16


def difference(
    wanted: object, got: object, exact_nan: bool = False, samples: Sequence[Any] = ()
) -> str:
    """The difference of ``got`` from ``wanted``, in words; empty if they count as equal.

    ``samples`` are values of ``wanted`` computed with random rounding
    (:mod:`symdnn.compile.modes.noise`): a difference of that size is no error. Where ``wanted`` is
    not finite, ``got`` may be anything (a stable form may be finite where the plain one overflows),
    unless ``exact_nan``.
    """
    wanted, got = np.asarray(wanted), np.asarray(got)
    if wanted.shape != got.shape or wanted.dtype != got.dtype:
        if any(np.shape(s) != wanted.shape for s in samples) and wanted.dtype == got.dtype:
            return ""  # the number of elements depends on rounding
        return f"wanted {wanted.dtype}{wanted.shape}, got {got.dtype}{got.shape}"
    if wanted.dtype.kind in "biu":
        count = int(((wanted != got) & ~unsure(wanted, samples)).sum())
        return f"{count} of {wanted.size} elements differ" if count else ""
    return _float_difference(wanted, got, exact_nan, samples)


def _float_difference(wanted: Any, got: Any, exact_nan: bool, samples: Sequence[Any]) -> str:
    own, lost = noise(wanted, samples)
    wide = np.complex128 if wanted.dtype.kind == "c" else np.float64
    a, b = wanted.astype(wide), got.astype(wide)
    with np.errstate(all="ignore"):
        finite = np.isfinite(a)
        rest = ~finite & ~lost
        if exact_nan and not np.array_equal(a[rest], b[rest], equal_nan=True):
            return "NaN or infinities differ"
        finite &= ~lost
        if not finite.any():
            return ""
        size = float(np.abs(a[finite]).max())
        gap = np.abs(a[finite] - b[finite])
        worst = float(np.where(np.isnan(gap), np.inf, gap).max())
    # A value that is 0 by cancellation of exact numbers has no noise.
    least = 8 * epsilon(wanted.dtype)
    allowed = max(
        _KERNEL_RELATIVE_ERROR.get(wanted.dtype.name, 1e-9) * size, _ROUNDING_FACTOR * own, least
    )
    if worst <= allowed:
        return ""
    return f"largest difference {worst:.3g}, allowed {allowed:.3g}"
