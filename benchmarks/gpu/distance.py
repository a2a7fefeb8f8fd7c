"""How far the numbers of two programs are apart."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["FAR", "distance"]

#: How far numbers may be from those in float64, as a part of the largest; a GPU has TF32.
FAR = {True: 2e-2, False: 1e-3}
_LEFT_OUT = 0.03
#: The norm of all differences on a GPU, as a part of that of the numbers. Emulated TF32 moves the
#: gradients of 48 examples of a convolution of 32 and 64 filters by 0.027.
_FAR_AS_NORM = 5e-2


def distance(own: np.ndarray, true: np.ndarray, rounds: bool) -> Any:
    """The largest difference as a part of the largest number.

    A GPU rounds products to TF32, so that in some of many examples another pixel is the largest of
    its window, or a unit is on the other side of 0. With ``rounds`` some entries of a long first
    axis are left out for this, and differences that are small in all, as a norm, count as allowed.
    """
    if rounds and np.linalg.norm(own - true) <= _FAR_AS_NORM * np.linalg.norm(true):
        return min(FAR[True], distance(own, true, False))
    with np.errstate(invalid="ignore"):
        same = (own == true) | (np.isnan(own) & np.isnan(true))  # infinities are
        apart = np.where(same, 0, np.abs(own - true))
    entries = apart.reshape(len(true) if true.ndim else 1, -1).max(1)
    left_out = int(len(entries) * _LEFT_OUT) if rounds else 0
    return np.sort(entries)[len(entries) - 1 - left_out] / (
        np.abs(true).max(initial=0, where=np.isfinite(true)) or 1
    )
