"""Batched indexing: different indices in each lane as one index over all lanes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from symdnn.graph.dims import Dim
from symdnn.graph.op import Axes
from symdnn.graph.operators import operator
from symdnn.graph.variable import Variable
from symdnn.ops.array.slices import FULL, IndexPattern
from symdnn.ops.core.lanes import same_for_all


@dataclass(frozen=True)
class ByLane:
    """A basic index in two steps: ``static`` with its ``bounds``, then integers for each lane.

    ``chosen`` has for each dimension of the first step's result an integer for each lane, or None.
    """

    static: IndexPattern
    bounds: tuple[Variable, ...]
    chosen: tuple[Variable | None, ...]

    def of(self, part: Variable, lanes: Dim, lead: bool) -> Variable:
        """The second step; with ``lead`` the lanes are the first dimension of ``part``."""
        own = [operator("arange")(lanes)] if lead else []
        picked = (slice(None) if c is None else c for c in self.chosen)
        found: Variable = operator("getitem")(part, (*own, *picked))
        places = [k for k, c in enumerate(self.chosen) if c is not None]
        first = places[0]
        if lead or places != list(range(first, places[-1] + 1)):
            return found
        rest = (d for d in range(found.type.ndim) if d != first)
        return found.dimshuffle(first, *rest)


def by_lane(index: IndexPattern, bounds: Sequence[Variable], axes: Axes) -> ByLane | None:
    """A basic index whose integers may differ by lane; None if bounds of slices differ."""
    given = iter(zip(bounds, axes, strict=True))
    static: list[Any] = []
    kept: list[Variable] = []
    chosen: list[Variable | None] = []
    for entry in index:
        own = [next(given) for e in _numbers(entry) if e == "?"]
        differs = any(a is not None for _, a in own)
        if isinstance(entry, tuple) and differs:
            return None
        static.append(FULL if differs else entry)
        kept += [] if differs else [v for v, _ in own]
        if differs or isinstance(entry, tuple):
            chosen.append(own[0][0] if differs else None)
    return ByLane(tuple(static), tuple(kept), tuple(chosen))


def _numbers(entry: Any) -> tuple[Any, ...]:
    return entry if isinstance(entry, tuple) else (entry,)


@dataclass(frozen=True)
class AdvancedLanes:
    """An index of arrays over all lanes: ``index`` with ``arrays``.

    ``order`` permutes the result's dimensions to those of one lane, after that of the lanes.
    """

    index: IndexPattern
    arrays: tuple[Variable, ...]
    order: tuple[int, ...]

    @property
    def back(self) -> tuple[int, ...]:
        """The inverse permutation: from the dimensions of one lane to those of the index."""
        return tuple(sorted(range(len(self.order)), key=self.order.__getitem__))

    @classmethod
    def of(
        cls, index: IndexPattern, arrays: Sequence[Variable], axes: Axes, lead: bool, lanes: Dim
    ) -> AdvancedLanes:
        """``lead``: the lanes are the first dimension of the indexed array."""
        places = [k for k, e in enumerate(index) if e == "a"]
        beside = places == list(range(places[0], places[-1] + 1))
        rest = len(index) - len(places)
        differs = any(a is not None for a in axes)
        depth = arrays[0].type.ndim - (axes[0] is not None)
        ndim, before = 1 + depth + rest, places[0] if beside else 0
        if not differs:
            moved = 0 if beside else depth
            return cls((FULL, *index), tuple(arrays), _to_front(moved, ndim))
        wide = tuple(same_for_all(v) if a is None else v for v, a in zip(arrays, axes))
        if not lead:
            return cls(index, wide, _to_front(before, ndim))
        own = operator("arange")(lanes).dimshuffle(0, *["x"] * depth)
        dims = list(range(1, ndim))
        order = (0, *dims[depth : depth + before], *dims[:depth], *dims[depth + before :])
        return cls(("a", *index), (own, *wide), order)


def _to_front(place: int, ndim: int) -> tuple[int, ...]:
    return (place, *(d for d in range(ndim) if d != place))
