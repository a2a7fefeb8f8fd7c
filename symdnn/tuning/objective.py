"""The quantity that choices minimise: the flag ``dnn.conv.objective``.

It is ``time``, ``energy``, or a weighted sum, in which each is relative to its minimum: of one
table, or the sum over all tables that are chosen from together. ``memory`` is the workspace, then
the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Protocol


class Measured(Protocol):
    """One way to run a layer, with its measurements; None for missing ones."""

    @property
    def ms(self) -> float | None:
        """Milliseconds."""

    @property
    def millijoules(self) -> float | None:
        """Energy."""


def weights(objective: str) -> dict[str, float]:
    """The weights of ``time`` and ``energy`` in a value of the flag; ``memory`` is time here.

    >>> weights("0.7*time+0.3*energy")
    {'time': 0.7, 'energy': 0.3}
    """
    found = {"time": 0.0, "energy": 0.0}
    for term in objective.replace("memory", "time").split("+"):
        number, _, word = term.rpartition("*")
        found[word] += float(number or 1)
    return found


def measures_energy(objective: str) -> bool:
    """Whether the energy has to be measured."""
    return weights(objective)["energy"] > 0


def costs(tables: Sequence[Sequence[Measured]], objective: str) -> list[list[float]]:
    """The cost of each way of each table, infinite where a needed value was not measured.

    The minimised cost is the sum over the chosen ways, one of each table.
    """
    factors = weights(objective)
    found = [[0.0] * len(table) for table in tables]
    for word, weight in factors.items():
        if not weight:
            continue
        values = [[_value(way, word) for way in table] for table in tables]
        least = sum(min(row) for row in values if min(row, default=inf) < inf) or 1.0
        for row, own in zip(found, values, strict=True):
            for i, value in enumerate(own):
                row[i] += weight * value / least
    return found


def _value(way: Measured, word: str) -> float:
    value = way.ms if word == "time" else way.millijoules
    return inf if value is None else value
