"""The arena: scratch memory that all plans on the CPU overlay."""

from __future__ import annotations

import weakref
from typing import Any, Protocol

import numpy as np

from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array


class ArenaUser(Protocol):
    """A plan whose values are views of an arena."""

    def detach(self) -> None:
        """Drop all views of the arena."""


#: An arena of at most this size is not shrunk: plans would have to bind to a new one.
_MIN_BYTES_TO_SHRINK = 1 << 20


class Arena:
    """Scratch memory that the plans of one nesting depth overlay.

    It is as large as the largest plan needs, and is freed with the last plan. :meth:`shrink` frees
    it when the largest plans are gone; the next plan that runs gets a smaller one.
    """

    def __init__(self) -> None:
        self.bytes: Array = np.empty(0, np.uint8)
        self._plans: dict[int, tuple[weakref.ref[ArenaUser], int]] = {}

    def reserve(self, nbytes: int, plan: ArenaUser) -> Array:
        """At least ``nbytes`` for ``plan``, aligned to 64 bytes; a new array if it had to grow."""
        if self.bytes.nbytes < nbytes:
            self._replace(nbytes)
        key = id(plan)
        self._plans[key] = weakref.ref(plan, lambda _: self._gone(key)), nbytes
        return self.bytes

    def shrink(self) -> None:
        """Free the arena if it is more than twice what the plans need; no plan may be running."""
        most = max((n for _, n in list(self._plans.values())), default=0)
        if self.bytes.nbytes > max(2 * most, _MIN_BYTES_TO_SHRINK):
            self._replace(0)

    def leave(self, plan: ArenaUser) -> None:
        """A plan gives its share back until it runs again; no plan may be running."""
        plan.detach()
        self._gone(id(plan))
        self.shrink()

    def _replace(self, nbytes: int) -> None:
        for plan, _ in list(self._plans.values()):
            if (bound := plan()) is not None:
                bound.detach()  # else the plan's views would keep the old arena alive
        self._plans.clear()
        self.bytes = np.empty(0, np.uint8)  # free the old one first
        if nbytes:
            raw = np.empty(nbytes + 64, np.uint8)
            start = -raw.__array_interface__["data"][0] % 64
            self.bytes = raw[start : start + nbytes]

    def _gone(self, key: int) -> None:
        self._plans.pop(key, None)
        if not self._plans:
            self.bytes = self.bytes[:0].copy()  # not by np.empty: at exit the module may be gone


class Arenas(Protocol):
    """An arena for each depth of nested calls (by a user's callback); ``depth`` is the current."""

    arenas: list[Arena]
    depth: int


def array_at(arena: Array, view: Any, type_: Any) -> Array:
    """The view of an arena's bytes that a value of this type has."""
    assert isinstance(type_, TensorType)
    if 0 in view.shape:
        return np.empty(view.shape, type_.numpy)
    start = view.buffer.offset + view.offset
    return np.ndarray(view.shape, type_.numpy, arena, start, view.strides)
