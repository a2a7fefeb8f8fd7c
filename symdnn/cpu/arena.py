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


class Arena:
    """Scratch memory that the plans of one nesting depth overlay; it only grows."""

    def __init__(self) -> None:
        self.bytes: Array = np.empty(0, np.uint8)
        self._plans: weakref.WeakSet[Bound] = weakref.WeakSet()

    def reserve(self, nbytes: int, plan: Bound) -> Array:
        """At least ``nbytes`` for ``plan``, aligned to 64; a new array when it had to grow."""
        if self.bytes.nbytes < nbytes:
            for other in self._plans:
                other.detach()  # else each plan would keep the arena that it was bound to
            self._plans.clear()
            raw = np.empty(nbytes + 64, np.uint8)
            start = -raw.__array_interface__["data"][0] % 64
            self.bytes = raw[start : start + nbytes]
        self._plans.add(plan)
        return self.bytes


class Arenas(Protocol):
    """An arena for each depth of calls within calls (a user's callback); ``depth`` is now's."""

    arenas: list[Arena]
    depth: int
