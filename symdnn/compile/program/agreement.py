"""Where all ranks agree that none has failed, and which updates run before the last buckets come.

On a CPU a wait can raise an error, so that updates come behind all of them. On a GPU it can't.
There the agreement begins before the last buckets, and updates with buckets that have come run
while the last ones move.
"""

from __future__ import annotations

from collections.abc import Sequence

from symdnn.compile.program.overlap import nodes_needed, reduced_bytes
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.collective.base import Collective, Reducing
from symdnn.ops.collective.overlapped import AllSucceeded, StreamStart, StreamWait, is_agreement

#: The share of the bytes of all reductions that begin to move behind the agreement. It has come
#: before the last products then, and updates take about as long as these bytes.
_SHARE_BEHIND = 0.3


def agreed(nodes: Sequence[Apply], late: bool = False) -> list[Apply]:
    """``nodes`` that come before updates, with the agreement that no rank failed behind them.

    Its halves on a GPU begin before the last buckets, or with ``late`` behind all. Its place among
    the collectives follows from these alone: ranks may compute other things between them. Nodes
    that can fail come before it, but for those that need a later collective, which have the same
    values on all ranks.
    """
    starts = [n for n in nodes if isinstance(n.op, StreamStart) and is_agreement(n)]
    if not starts:
        return _agreement_last(nodes)
    waits = [n for n in nodes if _ends_agreement(n)]
    others = [n for n in nodes if n not in starts and n not in waits]
    at = len(others) if late else _place(others, starts[0])
    before, behind = others[:at], others[at:]
    maker = {v: n for n in nodes for v in n.outputs}
    moving = _with_readers(behind)
    done, wanted = set(before), set[Apply]()
    for n in (*behind, *starts):
        if n not in moving and (n in starts or not n.op.never_fails):
            wanted |= nodes_needed(n, maker, done)
    if not wanted.isdisjoint(moving):  # a value of later collectives is agreed on
        return agreed(nodes, late=True)
    pulled = [n for n in behind if n in wanted]
    rest = [n for n in behind if n not in wanted]
    values = {v for n in waits for v in n.outputs}
    end = _last_waits(rest)
    end = next((i for i, n in enumerate(rest[:end]) if not values.isdisjoint(n.inputs)), end)
    return [*before, *pulled, *starts, *rest[:end], *waits, *rest[end:]]


def _place(nodes: Sequence[Apply], start: Apply) -> int:
    """The index of the first of the last reductions by the group of ``start``; the end without."""
    found = [
        (i, reduced_bytes(n))
        for i, n in enumerate(nodes)
        if isinstance(n.op, StreamStart)
        and isinstance(n.op.of, Reducing)
        and isinstance(start.op, StreamStart)
        and n.op.group == start.op.group
    ]
    left = _SHARE_BEHIND * sum(nbytes for _, nbytes in found)
    for i, nbytes in reversed(found):
        left -= nbytes
        if left <= 0:
            return i
    return len(nodes)


def _last_waits(nodes: Sequence[Apply]) -> int:
    """The index from which on there are waits, and nodes that need one of these and cannot fail."""
    found = 0
    come: set[Variable] = set()
    for i, n in enumerate(nodes):
        if not isinstance(n.op, StreamWait) and (not n.op.never_fails or come.isdisjoint(n.inputs)):
            found, come = i + 1, set()
        else:
            come.update(n.outputs)
    return found


def _with_readers(nodes: Sequence[Apply]) -> set[Apply]:
    """The collectives among ``nodes``, and the nodes that need one of them."""
    found: set[Apply] = set()
    for n in nodes:
        if isinstance(n.op, Collective) or any(v.owner in found for v in n.inputs):
            found.add(n)
    return found


def _ends_agreement(node: Apply) -> bool:
    start = node.inputs[0].owner if isinstance(node.op, StreamWait) else None
    return start is not None and is_agreement(start)


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


def updates_between(nodes: Sequence[Apply], updates: Sequence[Apply]) -> list[Apply]:
    """``nodes`` and then ``updates``, each as soon as the last waits among ``nodes`` allow; all of
    them are behind the agreement."""
    end = _last_waits(nodes)
    waits = [n for n in nodes[end:] if isinstance(n.op, StreamWait)]
    at = {v: i for i, n in enumerate(waits) for v in n.outputs}
    first = max((i for i, n in enumerate(waits) if _ends_agreement(n)), default=-1)
    behind: dict[int, list[Apply]] = {}
    others = [n for n in nodes[end:] if not isinstance(n.op, StreamWait)]
    for n, least in (*((n, -1) for n in others), *((n, first) for n in updates)):
        k = max([least, *(at[v] for v in n.inputs if v in at)])
        behind.setdefault(k, []).append(n)
        at.update(dict.fromkeys(n.outputs, k))
    order = [*nodes[:end], *behind.get(-1, ())]
    for i, wait in enumerate(waits):
        order += [wait, *behind.get(i, ())]
    return order
