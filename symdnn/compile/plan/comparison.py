"""What ranks know of each other's plans: the lists of their collectives, which are equal.

Ranks may have different sizes, so that one has a new plan where another one has an old one. But
in each call all ranks of a group run the same collectives, so what is decided by their lists, in
the order of calls, is decided alike on all ranks: which calls are captured, and which lists have
no plans any more.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from symdnn.config import config
from symdnn.errors import DistributedError
from symdnn.ops.collective.base import Collective
from symdnn.world import process
from symdnn.world.group import Group

#: Lists that were met in one row of calls only which keep their plans.
_MAX_NEW_LISTS = 16


@dataclass(eq=False)
class _List:
    """The collectives of one group in a plan."""

    #: The ranks that run it; None for sends and receipts, which each rank has others of.
    group: Group | None
    #: Why a rank of the group can't capture plans with it; empty if all ranks can.
    why: str = ""
    #: Whether there was a call with it; and whether all ranks have captured one.
    ran: bool = False
    captured: bool = False


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

    @property
    def first(self) -> bool:
        """Whether the ranks have not captured any yet, and may."""
        return any(not (one.captured or one.why) for one in self.of)

    def captured(self, failure: str) -> str:
        """Tell the other ranks why the first capture failed here, empty if it did not; why it
        failed on one of them. Raises for a later one: they replay theirs by then.

        The lists of a plan are told together: a second time with what all of them have brought, so
        that a list's ranks learn of a failure in another group of one of them.
        """
        if failure and any(one.captured for one in self.of):
            raise DistributedError(
                "the graph of a call with collectives can't be captured, and other ranks "
                f"replay theirs: {failure}. With gpu.graph=off no rank captures any"
            )
        left, said = [one for one in self.of if not one.captured], failure
        world = process.current()
        for one in left:
            if one.group is not None:
                said = world.first_said("a first graph", failure, one.group) or said
        for one in left:
            one.why = said
            if one.group is not None:
                told = world.gather("all that first graphs say", said, one.group)
                one.why = next((words for words in told if words), "")
            one.captured = not one.why
        return self.why


class Compared:
    """The lists of collectives of a segment's plans that the ranks have found equal.

    A list is compared when it is first met, which all ranks do in the same call: plans of other
    sizes with the same collectives (the last batch of an epoch) need no other comparison.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Group | None, bytes], _List] = {}
        self._lists: dict[tuple[tuple[Group | None, bytes], ...], Lists] = {}
        #: Those that may have plans, the one that was called last at the end; and the number of
        #: calls before it came there.
        self._kept: OrderedDict[Lists, None] = OrderedDict()
        self._calls_before = 0
        #: The oldest of them whose plans take too much memory on a rank.
        self._too_many = 0

    def check(
        self, specialised: Any, why: str = "", nbytes: Mapping[Lists, int] | None = None
    ) -> Lists | None:
        """The collectives of a new plan, which can't be captured here for the reason ``why``.

        ``nbytes`` are those of the plans. None if there are no collectives. Raises
        :class:`~symdnn.errors.CollectiveMismatch` where ranks differ.
        """
        lists: dict[Group | None, list[str]] = {}
        for node in specialised.segment.nodes:
            op = node.op
            if isinstance(op, Collective) and op.group.size > 1:
                inputs = specialised.call(node).inputs
                group = op.group if op.by_all else None
                lists.setdefault(group, []).append(op.text(inputs))
        for group, texts in lists.items():
            key = group, _digest(texts)
            if key in self._known:
                continue
            self._known[key] = _List(group)
            if group is not None:
                said = process.current().compare(group, texts, why, self._over(nbytes or {}))
                self._known[key].why, many = said
                self._too_many = max(self._too_many, many)
        keys = tuple((group, _digest(texts)) for group, texts in lists.items())
        if not keys:
            return None
        if keys not in self._lists:
            self._lists[keys] = Lists(tuple(self._known[key] for key in keys))
        return self._lists[keys]

    def _over(self, nbytes: Mapping[Lists, int]) -> int:
        """How many of the oldest lists have to lose their plans, for those of this rank to take no
        more memory than they may."""
        left, limit = sum(nbytes.values()), int(config.plan_cache_bytes)
        for count, one in enumerate(self._kept):
            if not limit or left <= limit:
                return count
            left -= nbytes.get(one, 0)
        return len(self._kept)

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
        gone += [one for one in list(self._kept)[: self._too_many] if one not in gone]
        left = [one for one in self._kept if one not in gone]
        gone += left[: max(0, len(left) - limit)]
        self._too_many = 0
        for one in gone:
            del self._kept[one]
            one.returned = False
        return set(gone)


def _digest(texts: list[str]) -> bytes:
    return hashlib.sha256("\n".join(texts).encode()).digest()
