"""What a communicator has moved so far, as a few numbers that travel with what it moves.

Ranks compare their plans' collectives before they first run. Later calls may still differ: a rank
may call another function, or with other sizes, that it has called before. An engine that does not
look at what it moves mixes the values of both then.
"""

from __future__ import annotations

from collections import deque
from typing import Any
from zlib import crc32

import numpy as np

from symdnn.world.communicator import Array

#: Elements of a mark.
MARKS = 3


class History:
    """All transfers of one communicator of ``size`` ranks, in order.

    >>> a, b = History(2), History(2)
    >>> a.add("all_reduce(sum)"); b.add("all_gather")
    >>> bool((a.mark(np.dtype("f4"), "sum") == b.mark(np.dtype("f4"), "sum")).all())
    False
    """

    def __init__(self, size: int) -> None:
        self._size, self._sum = size, 0
        #: The last ones, in words.
        self.latest: deque[str] = deque(maxlen=32)

    def add(self, text: str) -> None:
        """One more."""
        self.latest.append(text)
        self._sum = crc32(text.encode(), self._sum)

    def mark(self, dtype: np.dtype[Any], op: str) -> Array:
        """Elements in front of those that ``op`` reduces: equal ones where all came before is.

        A rank whose peers send no marks finds others than 0.
        """
        bits = 6 if dtype.itemsize == 1 else 10  # sums of floats are exact then
        h, low = self._sum, (1 << bits) - 1
        if op == "prod":
            return np.ones(MARKS, dtype)
        if op in ("max", "min"):  # equal to the rank's own only if all are
            return np.array([h & low, low - (h & low), h >> bits & low], dtype)
        return np.array([(h >> i * bits & low) + 1 for i in range(MARKS)], dtype)

    def reduced(self, mark: Array, op: str) -> Array:
        """What is there after the reduction of equal marks."""
        if op not in ("sum", "mean"):
            return mark
        size = np.asarray(self._size).astype(mark.dtype)  # small integers wrap around
        return np.asarray(mark * size)
