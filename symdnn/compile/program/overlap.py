"""Starts reductions over ranks as early as possible and waits for them as late as possible.

Nodes between a start and its wait run while bytes move. The first bucket's nodes come first, then
its start, then the nodes that the second bucket needs besides, and so on; a wait is moved down to
the first node that reads it.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence

from symdnn.graph.variable import Apply, Variable
from symdnn.ops.collective.base import Reducing
from symdnn.ops.collective.overlapped import (
    AllReduceStart,
    AllReduceWait,
    MoveStart,
    MoveWait,
    StreamStart,
    StreamWait,
)

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
            needed = nodes_needed(goal, maker, done)
            done.update(dict.fromkeys(sorted(needed, key=place.__getitem__)))
    done.update(dict.fromkeys(nodes))
    return waits_late(list(done))


def nodes_needed(
    goal: Apply, maker: Mapping[Variable, Apply], done: Container[Apply]
) -> set[Apply]:
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
    most_bytes = _SHARE_ON_ITS_WAY * sum(map(reduced_bytes, starts))
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
    sizes = [*map(reduced_bytes, (start, *on_their_way[::-1]))]
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


def reduced_bytes(node: Apply) -> int:
    """The bytes of a reduction's operands, by its start or its wait on a GPU; 0 for others, and
    where a size is not known."""
    if isinstance(node.op, StreamWait):
        start = node.inputs[0].owner
        return 0 if start is None else reduced_bytes(start)
    if not isinstance(node.op, StreamStart) or not isinstance(node.op.of, Reducing):
        return 0
    sizes = [(v.type.numpy.itemsize, *v.type.shape) for v in node.inputs]
    return sum(math.prod(n or 0 for n in s) for s in sizes)
