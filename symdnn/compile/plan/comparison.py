"""What ranks know of each other's plans: the lists of their collectives, which are equal.

Ranks may have different sizes, so that one has a new plan where another one has an old one. But
in each call all ranks of a group run the same collectives, so what is decided by their lists, in
the order of calls, is decided alike on all ranks: which calls are captured, and which lists have
no plans any more.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from symdnn.ops.collective.base import Collective
from symdnn.world import process
from symdnn.world.group import Group

__all__ = ["Compared", "Lists"]

#: Lists that were met in one row of calls only which keep their plans.
_MAX_NEW_LISTS = 16


@dataclass(eq=False)
class _List:
    """The collectives of one group in a plan."""

    #: Why a rank of the group can't capture plans with it; empty if all ranks can.
    why: str
    #: Whether there was a call with it.
    ran: bool = False


@dataclass(eq=False)
class Lists:
    """The collectives of a plan: a list for each group."""

    of: tuple[_List, ...]
    #: Whether it was called again after its first call.
    returned: bool = False

    def called(self) -> bool:
        """Count a call; whether its graph is to be captured by now.

        The first call of a list is enqueued step by step on all ranks. From the second one on it
        is a graph on all ranks, also where it is the first of a rank's plan.
        """
        ran = any(one.ran for one in self.of)
        for one in self.of:
            one.ran = True
        return ran

    @property
    def why(self) -> str:
        """Why a rank can't capture plans with these collectives; empty if all can."""
        return next((one.why for one in self.of if one.why), "")


class Compared:
    """The lists of collectives of a segment's plans that the ranks have found equal.

    A list is compared when it is first met, which all ranks do in the same call: plans of other
    sizes with the same collectives (the last batch of an epoch) need no other comparison.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Group, bytes], _List] = {}
        self._lists: dict[tuple[tuple[Group, bytes], ...], Lists] = {}
        #: Those that may have plans, the one that was called last at the end; and the number of
        #: calls before it came there.
        self._kept: OrderedDict[Lists, None] = OrderedDict()
        self._calls_before = 0

    def check(self, specialised: Any, why: str = "") -> Lists | None:
        """The collectives of a new plan, which can't be captured here for the reason ``why``.

        None if there are none. Raises :class:`~symdnn.errors.CollectiveMismatch` where ranks
        differ.
        """
        lists: dict[Group, list[str]] = {}
        for node in specialised.segment.nodes:
            op = node.op
            if isinstance(op, Collective) and op.by_all and op.group.size > 1:
                inputs = specialised.call(node).inputs
                lists.setdefault(op.group, []).append(op.text(inputs))
        for group, texts in lists.items():
            key = group, _digest(texts)
            if key not in self._known:
                self._known[key] = _List(process.current().compare(group, texts, why))
        keys = tuple((group, _digest(texts)) for group, texts in lists.items())
        if not keys:
            return None
        if keys not in self._lists:
            self._lists[keys] = Lists(tuple(self._known[key] for key in keys))
        return self._lists[keys]

    def use(self, lists: Lists, calls: int) -> None:
        """``lists`` are those of the next call, after so many calls of the segment."""
        latest = next(reversed(self._kept), None)
        if latest is lists:
            return
        if latest is not None and calls - self._calls_before > 1:
            latest.returned = True
        lists.returned |= lists not in self._kept and any(one.ran for one in lists.of)
        self._kept[lists] = None
        self._kept.move_to_end(lists)
        self._calls_before = calls

    def dropped(self, limit: int) -> set[Lists]:
        """The lists whose plans go now: all ranks drop theirs in the same call."""
        new = [one for one in list(self._kept)[:-1] if not one.returned]
        gone = new[: max(0, len(new) + 1 - _MAX_NEW_LISTS)]
        left = [one for one in self._kept if one not in gone]
        gone += left[: max(0, len(left) - limit)]
        for one in gone:
            del self._kept[one]
            one.returned = False
        return set(gone)


def _digest(texts: list[str]) -> bytes:
    return hashlib.sha256("\n".join(texts).encode()).digest()
