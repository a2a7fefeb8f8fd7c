"""Views, and copies to a device, are made where they are read, by segments or by loops.

A view that leaves a segment is a copy, and so is that of an argument on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.array.index import Subtensor
from symdnn.ops.array.slices import FULL
from symdnn.ops.lowered.transfer import GpuFromHost


def sink(
    order: Sequence[Apply],
    stage_of: dict[Apply, int],
    users: Mapping[Variable, Sequence[Apply]],
    results: Collection[Variable],
    is_inside: Callable[[Apply], bool],
) -> None:
    """Move views, and copies to a device, to the stage of their first reader.

    A view moves where what it is of is known there anyway. Nodes that are part of no segment on the
    host (not ``is_inside``) stay, and so do views of what nothing reads later: their copy may be
    smaller. ``stage_of`` is changed.
    """
    for node in reversed(order):
        readers, stage = users.get(node.outputs[0], ()), stage_of[node]
        if not readers or not _is_plain_view(node) or node.outputs[0] in results:
            continue
        if not all(map(is_inside, (node, *readers))):
            continue
        seen = node.inputs[node.op.views[0]]
        others = [n for n in users[seen] if n is not node]
        if seen.owner is None or any(stage_of[n] > stage or not is_inside(n) for n in others):
            stage_of[node] = max(stage, min(stage_of[n] for n in readers))
    _sink_copies(order, stage_of, users, results)


def _sink_copies(
    order: Sequence[Apply],
    stage_of: dict[Apply, int],
    users: Mapping[Variable, Sequence[Apply]],
    results: Collection[Variable],
) -> None:
    """Move copies of inputs to a device to the stage of their first reader.

    Lazy choices and loops are the last regions of their stages, so they may read such a copy too.
    """
    for node in order:
        if isinstance(node.op, GpuFromHost) and node.inputs[0].owner is None:
            readers = users.get(node.outputs[0], ())
            if readers and node.outputs[0] not in results:
                stage_of[node] = max(stage_of[node], min(stage_of[n] for n in readers))


def _is_plain_view(node: Apply) -> bool:
    """Whether a node is a view that is the same at any time."""
    op = node.op
    bounds = (node.inputs[i] for i in op.run_time_inputs)
    if op.views.get(0) is None or op.unmergeable or op.ordered:
        return False
    return all(isinstance(v, Constant) for v in bounds)


def views_of_loop(
    loop: Apply, results: Collection[Variable], is_inside: Callable[[Apply], bool]
) -> list[Apply]:
    """The views that a loop reads and makes itself, each behind what it is of.

    They turn the steps round, or leave out a fixed number of them: what they are of takes hardly
    more memory than a copy. Those that are ``results`` of a program are made before.
    """
    found: dict[Apply, None] = {}
    for v in loop.inputs:
        chain: list[Apply] = []
        while (node := v.owner) is not None and is_inside(node) and _has_most_steps(node):
            if node.outputs[0] in results:
                break
            chain.append(node)
            v = node.inputs[0]
        found.update(dict.fromkeys(reversed(chain)))
    return list(found)


def without_unread(
    order: Sequence[Apply], views: Iterable[Sequence[Apply]], users: Mapping[Variable, list[Apply]]
) -> list[Apply]:
    """``order`` without the ``views`` of loops that nothing else reads; ``users`` are changed."""
    of_loops, unread = {n for some in views for n in some}, set[Apply]()
    for node in reversed(order):
        if node in of_loops and not users.get(node.outputs[0]):
            unread.add(node)
            users[node.inputs[0]].remove(node)
    return [n for n in order if n not in unread]


def _has_most_steps(node: Apply) -> bool:
    """Whether it is ``x[::-1]``, or ``x[a:b]`` without the first and last entries."""
    if not isinstance(node.op, Subtensor) or len(node.inputs) > 1:
        return False
    first, *rest = node.op.index
    if not isinstance(first, tuple) or any(e != FULL for e in rest):
        return False
    start, stop, step = first
    if step not in (None, 1):
        return first == (None, None, -1)
    return (start is None or (isinstance(start, int) and start >= 0)) and (
        stop is None or (isinstance(stop, int) and stop < 0)
    )
