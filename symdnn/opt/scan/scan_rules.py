"""Loops without dead outputs, states and histories."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

from symdnn.graph.origin import inherit
from symdnn.graph.traverse import leaves
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.array.index import Subtensor
from symdnn.ops.array.slices import FULL
from symdnn.ops.control.scan import Scan
from symdnn.ops.control.scan_parts import Built, Parts
from symdnn.ops.core.shape import DimShuffle
from symdnn.rewriting.facts import made_by, node_of
from symdnn.rewriting.rewrite import Context, GraphRewrite, Rewrite, graph_rewrite, node_rewrite

PHASE = "canonicalize"
TAGS = ("fast_compile", "scan")


def turned(x: Variable) -> Variable | None:
    """``y`` of ``x = y[::-1]``, also where ``y`` has its dimensions in another order."""
    shuffle: Any = node_of(x).op if made_by(x, DimShuffle) else None
    axis, part = (0, x) if shuffle is None else (shuffle.pattern[0], node_of(x).inputs[0])
    if not made_by(part, Subtensor) or axis == "x":
        return None
    whole: list[Any] = [FULL] * part.type.ndim
    whole[axis] = (None, None, -1)
    taken: Any = node_of(part).op
    if list(taken.index) not in (whole, whole[: axis + 1]):
        return None
    y = node_of(part).inputs[0]
    return y if shuffle is None else cast(Variable, shuffle(y))


# -- the last value of a history is an output of its own ------------------------------------------


@graph_rewrite(PHASE, (*TAGS, "scan_save_mem", "scanOp_save_mem"))
def last_of_history(context: Context) -> None:
    """``history[-1]`` becomes the output with the last value, so the history may be dead."""
    for node in context.fgraph.toposort():
        if isinstance(node.op, Scan) and node in context.fgraph.nodes:
            _read_last(node, node.op, context)


def _read_last(node: Apply, op: Scan, context: Context) -> None:
    pairs, strict = [], False
    for c, (history, last) in zip(op.states, op.places(), strict=True):
        if history is None:
            continue
        for reader, skipped in _readers_of_last(node.outputs[history], c.depth, context):
            pairs.append((reader, last))
            strict = strict or skipped == c.depth
    if not pairs:
        return
    least = max(op.least, 1) if strict else op.least
    with inherit(node.origin, node.hints, node.written):
        new = replace(op, least=least).make_node(*node.inputs) if least != op.least else node
        found = [(r.outputs[0], _rest(r, new.outputs[last])) for r, last in pairs]
    if new is not node:
        found += zip(node.outputs, new.outputs, strict=True)
    context.fgraph.replace_all(found, "last_of_history")


def _readers_of_last(
    history: Variable, depth: int, context: Context
) -> Iterator[tuple[Apply, int]]:
    """Nodes ``history[k:][-1, ...]``, each with k."""
    for reader in context.fgraph.user_nodes(history):
        if not isinstance(reader.op, Subtensor):
            continue
        first, *rest = reader.op.index
        if first == -1:
            yield reader, 0
        elif isinstance(first, tuple) and all(e == FULL for e in rest):
            start, stop, step = first
            inside = start is None or (isinstance(start, int) and 0 <= start <= depth)
            if inside and stop is None and step is None:
                for further in context.fgraph.user_nodes(reader.outputs[0]):
                    if isinstance(further.op, Subtensor) and further.op.index[0] == -1:
                        yield further, start or 0


def _rest(reader: Apply, last: Variable) -> Variable:
    """The part of the last entry that ``reader`` indexes."""
    index = reader.op.index[1:]  # type: ignore[attr-defined]
    if all(e == FULL for e in index):
        return last
    return Subtensor(index)(last, *reader.inputs[1:])


# -- outputs, states and inputs that nobody reads --------------------------------------------------


@node_rewrite(Scan, phase=PHASE, tags=(*TAGS, "scan_drop_unread"))
def scan_drop_unread(node: Apply, context: Context) -> Sequence[Variable | None] | None:
    """Histories, collected outputs and states that nobody reads are dropped."""
    op = node.op
    assert isinstance(op, Scan)
    read = [bool(context.fgraph.clients.get(v)) for v in node.outputs]
    histories = [h is not None and read[h] for h, _ in op.places()]
    collected = [i for i in range(op.collected) if read[op.first_collected + i]]
    wanted = {i for i, (h, last) in enumerate(op.places()) if histories[i] or read[last]}
    states = _needed_states(op, wanted, collected)
    if (
        len(states) == len(op.states)
        and len(collected) == op.collected
        and histories == [c.history for c in op.states]
    ):
        return None
    parts = Parts.of(op, node.inputs, own=True)
    for state, history in zip(parts.states, histories, strict=True):
        state.history = history
    parts.states = [parts.states[i] for i in states]
    parts.collected = [parts.collected[i] for i in collected]
    return in_order(op, parts.build(), states, collected)


def _needed_states(op: Scan, wanted: set[int], collected: Sequence[int]) -> list[int]:
    """Indices of the states that are read outside, or that such states or outputs depend on."""
    owner = {
        v: i
        for i, taps in enumerate(op.split_inner(op.inner.inputs).initials)
        for v in taps
    }  # fmt: skip
    count = len(op.states)
    roots = [op.inner.outputs[count + i] for i in collected]
    roots += [op.inner.outputs[-1]] if op.until else []
    needed = set(wanted)
    while True:
        read = leaves([*roots, *(op.inner.outputs[i] for i in needed)])
        found = needed | {owner[v] for v in read if v in owner}
        if found == needed:
            return sorted(needed)
        needed = found


def in_order(
    op: Scan, built: Built, states: Sequence[int], collected: Sequence[int]
) -> list[Variable | None]:
    """Outputs of a new scan in the order of the old one's; None for dropped outputs.

    ``states`` and ``collected`` are the old indices of the new scan's states and outputs.
    """
    new = {i: k for k, i in enumerate(states)}
    out: list[Variable | None] = []
    for i, c in enumerate(op.states):
        if c.history:
            out.append(built.histories[new[i]] if i in new else None)
        out.append(built.last[new[i]] if i in new else None)
    place = {i: k for k, i in enumerate(collected)}
    out += [built.collected[place[i]] if i in place else None for i in range(op.collected)]
    return [*out, built.steps] if op.until else out


RULES: list[Rewrite | GraphRewrite] = [last_of_history, scan_drop_unread]
