"""Starts reductions over ranks as early as possible and waits for them as late as possible.

Nodes between a start and its wait run while bytes move. The first bucket's nodes come first, then
its start, then the nodes that the second bucket needs besides, and so on; a wait is moved down to
the first node that reads it. On a GPU, where a wait raises nothing, updates with buckets that have
come run before the wait for the others.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence

from symdnn.graph.variable import Apply, Variable
from symdnn.ops.collective.base import Reducing
from symdnn.ops.collective.overlapped import (
    AllReduceStart,
    AllReduceWait,
    AllSucceeded,
    MoveStart,
    MoveWait,
    StreamStart,
    StreamWait,
    is_agreement,
)

__all__ = ["agreed", "overlapped", "updates_between", "waits_late"]


#: Reductions of a GPU between their halves, beyond which the oldest is waited for: operands keep
#: their memory until then, and two keep the other stream busy.
_MOST_ON_THEIR_WAY = 2
#: There may be more, up to this share of the bytes of all. Each needs what was computed last, so
#: that a wait for a large one would leave the first stream with nothing to do.
_SHARE_ON_ITS_WAY = 0.5
_STARTS = (AllReduceStart, MoveStart, StreamStart)
_WAITS = (AllReduceWait, MoveWait, StreamWait)


def overlapped(nodes: Sequence[Apply]) -> list[Apply]:
    """``nodes``, in a valid order, with early starts and late waits."""
    if not any(isinstance(n.op, _STARTS) for n in nodes):
        return list(nodes)
    maker = {v: n for n in nodes for v in n.outputs}
    place = {n: i for i, n in enumerate(nodes)}
    done: dict[Apply, None] = {}
    for goal in nodes:
        if goal.op.ordered:
            needed = _needed(goal, maker, done)
            done.update(dict.fromkeys(sorted(needed, key=place.__getitem__)))
    done.update(dict.fromkeys(nodes))
    return waits_late(list(done))


def _needed(goal: Apply, maker: Mapping[Variable, Apply], done: Container[Apply]) -> set[Apply]:
    """``goal`` and the nodes that it needs and that are not ``done``."""
    found, left = {goal}, [goal]
    while left:
        for v in left.pop().inputs:
            n = maker.get(v)
            if n is not None and n not in found and n not in done:
                found.add(n)
                left.append(n)
    return found


def waits_late(nodes: Sequence[Apply]) -> list[Apply]:
    """``nodes``, in a valid order, with each wait just before its first reader; on a GPU before the
    start by which too many would be on their way."""
    if not any(isinstance(n.op, _WAITS) for n in nodes):
        return list(nodes)
    waiting: dict[Apply, None] = {}
    made = {v: n for n in nodes if isinstance(n.op, _WAITS) for v in n.outputs}
    arrival = {v: n for n in nodes if isinstance(n.op, StreamWait) for v in n.inputs[: n.op.count]}
    starts = [n for n in nodes if isinstance(n.op, StreamStart)]
    begun = {v for n in starts for v in n.outputs}
    most_bytes = _SHARE_ON_ITS_WAY * sum(map(_reduced_bytes, starts))
    order: list[Apply] = []

    def come(last: Apply) -> None:
        """Wait for one, and for those before it, which are done earlier."""
        for earlier in list(waiting):
            order.append(earlier)
            del waiting[earlier]
            if earlier is last:
                break

    for n in nodes:
        if isinstance(n.op, StreamWait) and n.inputs[0] in begun:
            continue  # it waits since its start
        if isinstance(n.op, _WAITS):
            waiting[n] = None
            continue
        for v in n.inputs:
            if (wait := made.get(v)) in waiting:
                come(wait)
        if isinstance(n.op, StreamStart):
            on_their_way = [w for w in waiting if isinstance(w.op, StreamWait) and _reduces(w)]
            first = _waited_for(n, on_their_way, most_bytes) if _reduces(n) else None
            if first is not None:
                come(first)
            if n.outputs[0] in arrival:
                waiting[arrival[n.outputs[0]]] = None
        order.append(n)
    return [*order, *waiting]


def _waited_for(start: Apply, on_their_way: Sequence[Apply], most_bytes: float) -> Apply | None:
    """The last of the waits on their way, in order, that has to come before another start."""
    sizes = [*map(_reduced_bytes, (start, *on_their_way[::-1]))]
    kept = _MOST_ON_THEIR_WAY
    while kept < len(sizes) and all(sizes[: kept + 1]) and sum(sizes[: kept + 1]) <= most_bytes:
        kept += 1
    return on_their_way[-kept] if kept < len(sizes) else None


def _reduces(node: Apply) -> bool:
    """Whether a start or a wait on a GPU is that of a reduction."""
    start = node.inputs[0].owner if isinstance(node.op, StreamWait) else node
    return (
        start is not None
        and isinstance(start.op, StreamStart)
        and isinstance(start.op.of, Reducing)
    )


def _reduced_bytes(node: Apply) -> int:
    """The bytes of a reduction's operands, by its start or its wait on a GPU; 0 for others, and
    where a size is not known."""
    if isinstance(node.op, StreamWait):
        start = node.inputs[0].owner
        return 0 if start is None else _reduced_bytes(start)
    if not isinstance(node.op, StreamStart) or not isinstance(node.op.of, Reducing):
        return 0
    sizes = [(v.type.numpy.itemsize, *v.type.shape) for v in node.inputs]
    return sum(math.prod(n or 0 for n in s) for s in sizes)


def agreed(nodes: Sequence[Apply], late: bool = False) -> list[Apply]:
    """``nodes`` that come before updates, with the agreement that no rank failed behind them.

    Its halves on a GPU begin behind the last node that can fail, where it costs no time, or with
    ``late`` behind all.
    """
    early = [n for n in nodes if isinstance(n.op, StreamStart) and is_agreement(n)]
    if not early:
        return _agreement_last(nodes)
    can_fail = [i for i, n in enumerate(nodes) if late or not n.op.never_fails]
    first = nodes[: max(can_fail, default=-1) + 1]
    maker = {v: n for n in nodes for v in n.outputs}
    wanted = set[Apply]().union(*(_needed(n, maker, set(first)) for n in early)) | set(early)
    waits = [n for n in nodes if _ends_agreement(n)]
    moved = [n for n in nodes if n in wanted]
    rest = [n for n in nodes[len(first) :] if n not in wanted and n not in waits]
    tail = len(rest)
    while tail and isinstance(rest[tail - 1].op, StreamWait):
        tail -= 1
    after = {v for n in waits for v in n.outputs}
    at = next((i for i, n in enumerate(rest[:tail]) if not after.isdisjoint(n.inputs)), tail)
    kept = [n for n in first if n not in wanted and n not in waits]
    return [*kept, *moved, *rest[:at], *waits, *rest[at:]]


def _ends_agreement(node: Apply) -> bool:
    start = node.inputs[0].owner if isinstance(node.op, StreamWait) else None
    return start is not None and is_agreement(start)


def updates_between(nodes: Sequence[Apply], updates: Sequence[Apply]) -> list[Apply]:
    """``nodes`` and then ``updates``, each as soon as the last waits among ``nodes`` allow; all of
    them are behind the agreement."""
    end = len(nodes)
    while end and isinstance(nodes[end - 1].op, StreamWait):
        end -= 1
    waits = nodes[end:]
    at = {v: i for i, n in enumerate(waits) for v in n.outputs}
    first = max((i for i, n in enumerate(waits) if _ends_agreement(n)), default=-1)
    behind: dict[int, list[Apply]] = {}
    for n in updates:
        k = max([first, *(at[v] for v in n.inputs if v in at)])
        behind.setdefault(k, []).append(n)
        at.update(dict.fromkeys(n.outputs, k))
    order = [*nodes[:end], *behind.get(-1, ())]
    for i, wait in enumerate(waits):
        order += [wait, *behind.get(i, ())]
    return order


def _agreement_last(nodes: Sequence[Apply]) -> list[Apply]:
    last = [n for n in nodes if isinstance(n.op, AllSucceeded)]
    if not last:
        return list(nodes)
    after = {v for n in last for v in n.outputs}
    moved = [*last]
    for n in nodes:
        if n not in last and any(v in after for v in n.inputs):
            after.update(n.outputs)
            moved.append(n)
    return [*(n for n in nodes if n not in moved), *moved]
