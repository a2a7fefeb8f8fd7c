"""Forward mode of a scan: the same loop, which carries tangents beside its states."""

from __future__ import annotations

from collections.abc import Sequence

from symdnn.graph.backprop import forward_sweep
from symdnn.graph.operators import operator
from symdnn.graph.variable import Variable
from symdnn.ops.control.scan import Scan
from symdnn.ops.control.scan_parts import Parts, State

Maybe = Variable | None


def scan_jvp(op: Scan, inputs: Sequence[Variable], tangents: Sequence[Maybe]) -> list[Maybe] | None:
    """Tangents of a scan's outputs; None where a gradient goes back some steps only."""
    if op.truncate >= 0:
        return None
    parts, given = Parts.of(op, inputs), op.split(tangents)
    known: dict[Variable, Variable] = {}
    sequences = [
        (_tangent_of(inner, known), t)
        for (inner, _), t in zip(parts.sequences, given.sequences, strict=True)
        if t is not None
    ]
    others = [
        (_tangent_of(inner, known), t)
        for (inner, _), t in zip(parts.others, given.others, strict=True)
        if t is not None
    ]
    carried = [i for i, t in enumerate(given.initials) if t is not None]
    inside = {i: [_tangent_of(v, known) for v in parts.states[i].inside] for i in carried}
    while True:
        found = forward_sweep(known, parts.inner_outputs())
        more = [
            i for i, t in enumerate(found[: len(parts.states)]) if t is not None and i not in inside
        ]
        if not more:
            break
        inside |= {i: [_tangent_of(v, known) for v in parts.states[i].inside] for i in more}
    return _joined(op, parts, sequences, others, given.initials, inside, found)


def _tangent_of(v: Variable, known: dict[Variable, Variable]) -> Variable:
    known[v] = v.type()
    return known[v]


def _joined(
    op: Scan, parts: Parts, sequences: list[tuple[Variable, Variable]],
    others: list[tuple[Variable, Variable]], initials: Sequence[Maybe],
    inside: dict[int, list[Variable]], found: Sequence[Maybe],
) -> list[Maybe]:  # fmt: skip
    """The loop with both, and what it gives for each output of the scan."""
    count = len(parts.states)
    order = sorted(inside)
    zeros = operator("zeros_like")
    for i in order:
        s, initial, new = parts.states[i], initials[i], found[i]
        start = zeros(s.initial) if initial is None else initial
        after = zeros(s.next) if new is None else new
        history, label = op.states[i].history, f"the tangent of {s.label}"
        parts.states.append(State(s.taps, inside[i], start, after, history, label))
    stacked = [t for t in found[count : count + op.collected] if t is not None]
    parts.sequences += sequences
    parts.others += others
    parts.collected = stacked
    for s in parts.states[:count]:
        s.history = False
    built = parts.build()
    results: list[Maybe] = []
    place = {i: count + k for k, i in enumerate(order)}
    for i, c in enumerate(op.states):
        at = place.get(i)
        results += [None if at is None else built.histories[at]] if c.history else []
        results.append(None if at is None else built.last[at])
    values = iter(built.collected)
    results += [None if t is None else next(values) for t in found[count : count + op.collected]]
    return [*results, None] if op.until else results
