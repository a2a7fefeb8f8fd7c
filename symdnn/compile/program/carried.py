"""Loop states that a step updates in place, in the buffer of the previous value.

Only one step owns such a value. So its plan may write the next value into the same memory, after
the last node that reads the old one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from symdnn.compile.program.program import Program, Segment
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.control.scan import Scan


def with_carried(op: Scan, body: Program) -> Program:
    """The body of a loop, with the states that its segment may update in place."""
    if len(body.regions) != 1 or not isinstance(body.regions[0], Segment):
        return body
    segment = body.regions[0]
    pairs = tuple(_pairs(op, segment))
    if not pairs:
        return body
    nodes = _readers_first(segment.nodes, pairs)
    return replace(body, regions=(replace(segment, nodes=nodes, carried=pairs),))


def carried_states(op: Scan, body: Program) -> list[int]:
    """The indices of the states that are updated in place."""
    region = body.regions[0] if body.regions else None
    pairs = region.carried if isinstance(region, Segment) else ()
    return [i for i, new in enumerate(op.inner.outputs[: len(op.states)]) if new in dict(pairs)]


def _pairs(op: Scan, segment: Segment) -> Iterable[tuple[Variable, Variable]]:
    outputs = op.inner.outputs
    times, made = Counter(outputs), {v for n in segment.nodes for v in n.outputs}
    #: The loop holds these itself: next values of states without a history.
    kept = [outputs[i] for i, c in enumerate(op.states) if not c.history]
    roots = Counter(_root(v) for v in kept)
    at = op.sequences
    for i, c in enumerate(op.states):
        new, old = outputs[i], op.inner.inputs[at]
        at += len(c.taps)
        alone = times[new] == 1 and roots[_root(new)] == 1 and roots[old] == 0
        if c.taps == (-1,) and not c.history and new in made and _root(new) is new and alone:
            yield new, old


def _root(v: Variable) -> Variable:
    """The value of which ``v`` is a view."""
    while v.owner is not None and (i := v.owner.op.views.get(v.owner.outputs.index(v))) is not None:
        v = v.owner.inputs[i]
    return v


def _readers_first(
    nodes: Sequence[Apply], pairs: Sequence[tuple[Variable, Variable]]
) -> tuple[Apply, ...]:
    """The nodes, reordered so that readers of an old value run before the new one is made."""
    order = list(nodes)
    for new, old in pairs:
        if new.owner not in order:
            continue
        start = order.index(new.owner)
        seen = {old}
        for n in order:
            if any(n.inputs[i] in seen for i in n.op.views.values()):
                seen.update(n.outputs)
        after: set[Variable] = set()
        later: list[Apply] = []
        sooner: list[Apply] = []
        for n in order[start:]:
            behind = n is new.owner or any(v in after for v in n.inputs)
            after.update(n.outputs if behind else ())
            (later if behind else sooner).append(n)
        if any(v in seen for n in sooner for v in n.inputs):
            order[start:] = [*sooner, *later]
    return tuple(order)
