"""The UCI handwritten digits that scikit-learn has: 1797 grey images of 8x8 pixels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

__all__ = ["Digits", "batches", "load_digits"]

Array = np.ndarray


@dataclass(frozen=True)
class Digits:
    """Training and test images, float32 (N, 1, 8, 8) in 0 to 1, and labels, int32 (N,)."""

    train_x: Array
    train_y: Array
    test_x: Array
    test_y: Array


def load_digits() -> Digits:
    """The data, a quarter of it kept for testing (stratified, fixed split)."""
    from sklearn.datasets import load_digits as sklearn_digits
    from sklearn.model_selection import train_test_split

    images, labels = sklearn_digits(return_X_y=True)
    images = (images / 16).astype("float32").reshape(-1, 1, 8, 8)
    a, b, c, d = train_test_split(
        images, labels.astype("int32"), test_size=0.25, stratify=labels, random_state=0
    )
    return Digits(a, c, b, d)


def batches(
    x: Array, y: Array, size: int, rng: np.random.Generator
) -> Iterator[tuple[Array, Array]]:
    """Shuffled batches, each image shifted by up to one pixel in each direction."""
    order = rng.permutation(len(x))
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        yield moved(x[chosen], rng), y[chosen]


def moved(x: Array, rng: np.random.Generator) -> Array:
    """Images shifted by -1, 0 or 1 pixels down and right; new pixels are black."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    down, right = rng.integers(0, 3, (2, len(x)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (8, 8), axis=(2, 3))
    return windows[np.arange(len(x)), :, down, right]
