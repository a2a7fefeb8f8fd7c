"""The choice of one way for each of several layers: the least cost within rooms and an error bound.

The workspaces of layers that run one after the other share memory. So each has its own room, and
rooms alone leave independent choices. What joins them is the bound on the error: independent
roundings add as squares. That is a multiple-choice knapsack, solved exactly as an integer program
(:func:`scipy.optimize.milp`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import Protocol

from symdnn.errors import SymdnnError

#: Seconds after which the best choice so far is taken, with the bound on what it may lose.
_MAX_SECONDS = 10.0
#: A solver's tolerance, relative to the bound on the error.
_TOLERANCE = 1e-9


class Way(Protocol):
    """One way to run a layer."""

    @property
    def workspace_bytes(self) -> int:
        """Its scratch memory."""

    @property
    def error(self) -> float:
        """The relative error of its result."""


@dataclass(frozen=True)
class Chosen:
    """The index of the way of each layer, their cost, and how much less no choice can cost."""

    ways: tuple[int, ...]
    cost: float
    gap: float = 0.0


class Infeasible(SymdnnError, ValueError):
    """No choice is within the limits; ``layer`` is the first without a way, or None: all have one.

    ``least`` is the smallest workspace of that layer, or the smallest error of all.
    """

    def __init__(self, layer: int | None, least: float) -> None:
        super().__init__(f"layer {layer}: the least is {least:g}")
        self.layer, self.least = layer, least


def choose(
    tables: Sequence[Sequence[Way]],
    costs: Sequence[Sequence[float]],
    rooms: Sequence[int],
    error_bound: float = 0.0,
) -> Chosen:
    """The way of each layer with the least sum of ``costs``.

    A way needs no more workspace than its layer's room. The root of the sum of squares of the
    errors is at most ``error_bound`` (0: no bound). Of equal costs the smaller workspace is taken.
    Raises :class:`Infeasible`.
    """
    fitting: list[list[int]] = []
    for layer, (table, room) in enumerate(zip(tables, rooms, strict=True)):
        fitting.append([i for i, way in enumerate(table) if way.workspace_bytes <= room])
        if not fitting[-1]:
            raise Infeasible(layer, min(way.workspace_bytes for way in table))
    best = [min(own, key=lambda i: (c[i], t[i].workspace_bytes, i))
            for own, c, t in zip(fitting, costs, tables)]  # fmt: skip
    if not error_bound or _error(tables, best) <= error_bound:
        return Chosen(tuple(best), _cost(costs, best))
    least = _error(tables, [min(own, key=lambda i: t[i].error) for own, t in zip(fitting, tables)])
    if least > error_bound:
        raise Infeasible(None, least)
    return _by_program(tables, costs, fitting, error_bound)


def _by_program(
    tables: Sequence[Sequence[Way]],
    costs: Sequence[Sequence[float]],
    fitting: Sequence[Sequence[int]],
    error_bound: float,
) -> Chosen:
    """The choice by an integer program with a variable, 0 or 1, for each way."""
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp

    kept = [
        [own[k] for k in front([(c[i], t[i].error) for i in own])]
        for own, c, t in zip(fitting, costs, tables)
    ]
    places = [(layer, i) for layer, own in enumerate(kept) for i in own]
    cost = np.array([costs[layer][i] for layer, i in places])
    squares = np.array([(tables[layer][i].error / error_bound) ** 2 for layer, i in places])
    one = np.zeros((len(kept), len(places)))
    one[[layer for layer, _ in places], range(len(places))] = 1
    exactly_one = LinearConstraint(one, 1, 1)
    limit = 1.0
    while True:
        found = milp(
            cost / (cost.max() or 1.0),
            constraints=[exactly_one, LinearConstraint(squares[None], -np.inf, limit)],
            integrality=np.ones(len(places)), bounds=Bounds(0, 1),
            options={"mip_rel_gap": 0, "time_limit": _MAX_SECONDS},
        )  # fmt: skip
        if found.x is None:
            ways = [min(own, key=lambda i: t[i].error) for own, t in zip(fitting, tables)]
            return Chosen(tuple(ways), _cost(costs, ways), inf)
        ways = [i for (_, i), x in zip(places, found.x) if x > 0.5]
        if _error(tables, ways) <= error_bound * (1 + _TOLERANCE):
            gap = float(found.mip_gap or 0.0)
            return Chosen(tuple(ways), _cost(costs, ways), gap * _cost(costs, ways))
        limit -= _SOLVER_TOLERANCE


#: By so much a solution may exceed a limit.
_SOLVER_TOLERANCE = 1e-6


def front(points: Sequence[Sequence[float]]) -> list[int]:
    """The indices of points that no other one equals or is below in all coordinates.

    Of equal points the first is kept. They are in the order of their coordinates.

    >>> front([(1, 5), (2, 2), (3, 3), (2, 2)])
    [0, 1]
    """
    kept: list[int] = []
    for i in sorted(range(len(points)), key=lambda i: (tuple(points[i]), i)):
        if not any(_below(points[k], points[i]) for k in kept):
            kept.append(i)
    return kept


def _below(a: Iterable[float], b: Iterable[float]) -> bool:
    return all(x <= y for x, y in zip(a, b))


def _error(tables: Sequence[Sequence[Way]], ways: Sequence[int]) -> float:
    return sqrt(sum(table[i].error ** 2 for table, i in zip(tables, ways, strict=True)))


def _cost(costs: Sequence[Sequence[float]], ways: Sequence[int]) -> float:
    return sum(row[i] for row, i in zip(costs, ways, strict=True))
