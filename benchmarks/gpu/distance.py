"""How far the numbers of two programs are apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

__all__ = ["FAR", "distance", "farthest", "staying"]

#: How far numbers may be from those in float64, as a part of the largest; a GPU has TF32.
FAR = {True: 2e-2, False: 1e-3}
_LEFT_OUT = 0.03
#: The norm of all differences on a GPU, as a part of that of the numbers. Emulated TF32 moves the
#: gradients of 48 examples of a convolution of 32 and 64 filters by 0.027.
_FAR_AS_NORM = 5e-2
#: How far operands move to nearby ones, as a part of the largest; numbers that stay move by less
#: than the other two, as a part of themselves and of the largest.
_NEARBY, _STAYS, _STAYS_OF_LARGEST = 1e-10, 1e-5, 1e-7


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


def farthest(
    own: Iterable[np.ndarray], true: Sequence[np.ndarray], rounds: bool, looked_at: int,
    stays: Sequence[np.ndarray] | None = None,
) -> float:  # fmt: skip
    """The largest :func:`distance` of results, by about ``looked_at`` numbers of each.

    With ``stays``, of these numbers alone (:func:`staying`), and of NaN.
    """
    far = 0.0
    for i, (a, b) in enumerate(zip(own, true, strict=True)):
        if a.shape != b.shape:
            raise ValueError(f"wrong shape: {a.shape}, not {b.shape}")
        if stays is not None:
            looked = stays[i] | np.isnan(a)
            a, b = np.where(looked, a, 0), np.where(looked, b, 0)
        if b.size:  # NaN counts as wrong
            far = float(np.maximum(far, distance(*_some(looked_at, a, b), rounds)))
    return far


def _some(looked_at: int, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The arrays, or of long ones every nth number, n odd."""
    step = a.size // looked_at | 1
    return (a, b) if step < 2 else (a.reshape(-1)[::step], b.reshape(-1)[::step])


def staying(
    numbers: Callable[[list[Any]], Sequence[np.ndarray] | None], arrays: Sequence[Any]
) -> list[np.ndarray] | None:
    """For each result of a function of float64, which numbers stay as they are at nearby operands.

    Equal operands of an extreme share its gradient as a library likes; a little apart they have
    one gradient. None where there are no results.
    """
    rng = np.random.default_rng(3)
    here = [a if a.dtype.kind in "biuc" else a.astype("float64") for a in arrays]
    nearby = [_moved(rng, a) for a in here]
    pairs = [numbers(here), numbers(nearby)]
    if pairs[0] is None or pairs[1] is None:
        return None
    return [_stays(a, b) for a, b in zip(*pairs, strict=True)]


def _moved(rng: np.random.Generator, a: Any) -> Any:
    if a.dtype.kind != "f":
        return a
    return a + _NEARBY * np.abs(a).max(initial=0) * rng.standard_normal(a.shape)


def _stays(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    size = float(np.abs(a).max(initial=0, where=np.isfinite(a)))
    return np.isclose(b, a, _STAYS, _STAYS_OF_LARGEST * size, equal_nan=True)
