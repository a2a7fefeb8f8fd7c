"""Scratch memory that plans of the CPU share."""

from __future__ import annotations

import weakref
from typing import Any, Protocol

import numpy as np

__all__ = ["Arena", "Arenas"]

Array = Any


class Bound(Protocol):
    """A plan whose values are views of an arena."""

    def detach(self) -> None:
        """Let go of the arena."""


#: Memory below this is not worth that plans attach anew.
_SMALL = 1 << 20


class Arena:
    """Scratch memory that the plans of one nesting depth overlay.

    It grows with the largest plan, and goes with the last one. Where plans went that needed most of
    it, the others get a smaller one when one is next asked for.
    """

    def __init__(self) -> None:
        self.bytes: Array = np.empty(0, np.uint8)
        self._plans: dict[int, tuple[weakref.ref[Bound], int]] = {}

    def reserve(self, nbytes: int, plan: Bound) -> Array:
        """At least ``nbytes`` for ``plan``, aligned to 64; a new array when it had to grow."""
        if self.bytes.nbytes < nbytes:
            self._replace(nbytes)
        key = id(plan)
        self._plans[key] = weakref.ref(plan, lambda _: self._gone(key)), nbytes
        return self.bytes

    def shrink(self) -> None:
        """Give back what no plan needs; none of them may be running."""
        most = max((n for _, n in list(self._plans.values())), default=0)
        if self.bytes.nbytes > max(2 * most, _SMALL):
            self._replace(0)

    def _replace(self, nbytes: int) -> None:
        for plan, _ in list(self._plans.values()):
            if (bound := plan()) is not None:
                bound.detach()  # else each plan would keep the arena that it was bound to
        self._plans.clear()
        self.bytes = np.empty(0, np.uint8)  # before the new one is made
        if nbytes:
            raw = np.empty(nbytes + 64, np.uint8)
            start = -raw.__array_interface__["data"][0] % 64
            self.bytes = raw[start : start + nbytes]

    def _gone(self, key: int) -> None:
        self._plans.pop(key, None)
        if not self._plans:
            self.bytes = self.bytes[:0].copy()  # without NumPy's name: at exit that may be gone


class Arenas(Protocol):
    """An arena for each depth of calls within calls (a user's callback); ``depth`` is now's."""

    arenas: list[Arena]
    depth: int
