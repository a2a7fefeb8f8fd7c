"""Divisions of a batch into parts that run one after the other, each in its own way.

A part has a smaller workspace, so a faster algorithm may fit (micro-batches, as in Oyama et al.,
"Accelerating Deep Learning Frameworks with Micro-Batches", CLUSTER 2018). Parts share one
workspace: a division needs the largest of theirs. Times and energies add.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Generic, TypeVar

from symdnn.tuning.budget import front

C = TypeVar("C")
_PARTS = (2, 4, 8, 16)


@dataclass(frozen=True)
class Part(Generic[C]):
    """``count`` samples in one ``way``."""

    count: int
    way: C
    workspace_bytes: int
    ms: float
    millijoules: float | None = None
    error: float = 0.0


@dataclass(frozen=True)
class Division(Generic[C]):
    """Parts in order. Its error is bounded by the largest of theirs."""

    parts: tuple[Part[C], ...] = ()
    ms: float = 0.0
    millijoules: float | None = 0.0
    workspace_bytes: int = 0
    error: float = 0.0

    def plus(self, part: Part[C]) -> Division[C]:
        """The division with one more part."""
        own, more = self.millijoules, part.millijoules
        return Division(
            (*self.parts, part), self.ms + part.ms,
            None if own is None or more is None else own + more,
            max(self.workspace_bytes, part.workspace_bytes), max(self.error, part.error),
        )  # fmt: skip

    def coordinates(self) -> tuple[float, ...]:
        """What smaller is better of; infinite for an energy that was not measured."""
        energy = inf if self.millijoules is None else self.millijoules
        return self.ms, self.workspace_bytes, self.error, energy


def sizes(total: int) -> list[tuple[int, ...]]:
    """The sizes of 2, 4, 8 and 16 nearly equal parts of ``total`` samples, at least 1 each.

    >>> sizes(10)
    [(5,), (3, 2), (2, 1)]
    """
    return [
        tuple(dict.fromkeys((-(-total // parts), total // parts)))
        for parts in _PARTS
        if parts <= total
    ]


def divisions(total: int, table: Sequence[Part[C]]) -> list[Division[C]]:
    """All divisions of ``total`` samples into parts of ``table`` that no other one is better than.

    "Better" is in time, workspace, error and energy at once. By dynamic programming over the
    samples, in which the order of the parts has no meaning; the result has the larger ones first.
    """
    by_count: Mapping[int, list[Part[C]]] = _fronts(table)
    found: dict[int, list[Division[C]]] = {0: [Division()]}
    for n in range(1, total + 1):
        made = [
            before.plus(part)
            for count, parts in by_count.items()
            for before in found.get(n - count, ())
            for part in parts
        ]
        if made:
            found[n] = [made[i] for i in front([d.coordinates() for d in made])]
    return [
        replace(d, parts=tuple(sorted(d.parts, key=lambda part: -part.count)))
        for d in found.get(total, [])
    ]


def _fronts(table: Sequence[Part[C]]) -> dict[int, list[Part[C]]]:
    """The parts of each count that no other one is better than."""
    found: dict[int, list[Part[C]]] = {}
    for part in table:
        found.setdefault(part.count, []).append(part)
    for count, parts in found.items():
        points = [Division[C]().plus(part).coordinates() for part in parts]
        found[count] = [parts[i] for i in front(points)]
    return found
