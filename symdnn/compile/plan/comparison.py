"""Compares the collectives of a new plan with those of the other ranks, before it runs."""

from __future__ import annotations

from typing import Any

from symdnn.ops.collective.base import Collective
from symdnn.world import process
from symdnn.world.group import Group

__all__ = ["Compared"]


class Compared:
    """The lists of collectives of a segment's plans that the ranks have found equal.

    A list is compared when it is first met, which all ranks do in the same call: plans of other
    sizes with the same collectives (the last batch of an epoch) need no other comparison.
    """

    def __init__(self) -> None:
        self._known: set[tuple[Group, tuple[str, ...]]] = set()

    def check(self, specialised: Any) -> None:
        """Raise :class:`~symdnn.errors.CollectiveMismatch` where ranks differ."""
        lists: dict[Group, list[str]] = {}
        for node in specialised.segment.nodes:
            op = node.op
            if isinstance(op, Collective) and op.by_all and op.group.size > 1:
                inputs = specialised.call(node).inputs
                lists.setdefault(op.group, []).append(op.text(inputs))
        for group, texts in lists.items():
            key = group, tuple(texts)
            if key not in self._known:
                process.current().compare(group, texts)
                self._known.add(key)
