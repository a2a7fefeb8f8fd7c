"""Memory for what a plan gives."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from sys import getrefcount
from typing import Any

import numpy as np

__all__ = ["KeptResults", "Results"]

Array = Any

#: Results of so many bytes are kept for the next call, unless someone holds them.
_LARGE = 1 << 16
#: References to an array that only its plan has: the plan's, a local name, the question itself.
_UNHELD = 3


class Results:
    """Memory for what a plan gives; what is large and held by nobody any more is used again.

    Fresh memory of such a size in each call would cost more in page faults than many a kernel.
    """

    def __init__(self, places: Sequence[tuple[int, tuple[int, ...], Any]]) -> None:
        self.places = list(places)
        self.last: list[Array] = [None] * len(places)

    def large(self, k: int) -> bool:
        """Whether result ``k`` is one that may be used again."""
        _, shape, dtype = self.places[k]
        return prod(shape) * dtype.itemsize >= _LARGE

    def make(self, k: int) -> Array:
        """Memory for result ``k``."""
        last = self.last[k]
        if last is not None and getrefcount(last) == _UNHELD:
            return last
        _, shape, dtype = self.places[k]
        made = np.empty(shape, dtype)
        if made.nbytes >= _LARGE:
            self.last[k] = made
        return made


class KeptResults(Results):
    """Memory for what a kept segment gives: the same in each run."""

    def large(self, k: int) -> bool:
        """All of them are used again."""
        return True

    def make(self, k: int) -> Array:
        """Memory for result ``k``."""
        if self.last[k] is None:
            _, shape, dtype = self.places[k]
            self.last[k] = np.empty(shape, dtype)
        return self.last[k]
