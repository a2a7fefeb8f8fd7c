"""A loop that another one contains is not run: forward mode carries its values beside tangents."""

from __future__ import annotations

from collections.abc import Sequence

from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.origin import inherit
from symdnn.graph.traverse import clone_graph, toposort
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.control.scan import Scan
from symdnn.ops.control.scan_parts import Built, Parts
from symdnn.rewriting.rewrite import Context, GraphRewrite, graph_rewrite

PHASE = "canonicalize"
TAGS = ("scan", "scan_contained")


@graph_rewrite(PHASE, TAGS)
def contained_loops(context: Context) -> None:
    """A loop whose states, next values and condition are among those of another one is that one."""
    loops = [n for n in context.fgraph.toposort() if isinstance(n.op, Scan)]
    for small in loops:
        for large in loops:
            if small in context.fgraph.nodes and large in context.fgraph.nodes:
                _join(small, large, context)


def _join(small: Apply, large: Apply, context: Context) -> None:
    a, b = small.op, large.op
    assert isinstance(a, Scan)
    assert isinstance(b, Scan)
    if (
        small is large
        or small.inputs[0] is not large.inputs[0]
        or (a.until, a.truncate) != (b.until, b.truncate)
        or len(a.states) > len(b.states)
        or a.inner.unmergeable
        or b.inner.unmergeable
    ):
        return
    parts = Parts.of(b, large.inputs)
    _read_once(parts)
    found = _places(small, a, parts)
    if found is None or small in toposort(large.inputs):
        return
    states, collected = found
    for i, j in enumerate(states):
        parts.states[j].history |= a.states[i].history
    with inherit(large.origin, large.hints, large.written):
        parts.least = max(a.least, b.least)
        built = parts.build()
    pairs = _pairs(large, b, built, range(len(b.states)), range(b.collected))
    pairs += _pairs(small, a, built, states, collected)
    if all(old.type == new.type for old, new in pairs):
        context.fgraph.replace_all(pairs, "contained_loops")


def _read_once(parts: Parts) -> None:
    """Let a value that enters the loop several times enter it once."""
    replace: dict[Variable, Variable] = {}
    for pairs in (parts.sequences, parts.others):
        first: dict[Variable, Variable] = {}
        for v, x in pairs:
            if first.setdefault(x, v) is not v:
                replace[v] = first[x]
        pairs[:] = [(v, x) for v, x in pairs if v not in replace]
    if replace:
        parts.substitute(replace)


def _places(small: Apply, a: Scan, parts: Parts) -> tuple[list[int], list[int]] | None:
    """Where the small loop's states and collected values are in the large one; None if not all are.

    Collected values that the large loop lacks are added to it.
    """
    inner, outer = a.split_inner(a.inner.inputs), a.split(small.inputs)
    replace: dict[Variable, Variable] = {}
    for mine, theirs, given in (
        (inner.sequences, outer.sequences, parts.sequences),
        (inner.others, outer.others, parts.others),
    ):
        known = {x: v for v, x in given}
        if any(x not in known for x in theirs):
            return None
        replace.update((v, known[x]) for v, x in zip(mine, theirs, strict=True))
    states: list[int] = []
    for c, taps, initial in zip(a.states, inner.initials, outer.initials, strict=True):
        fitting = (
            j for j, s in enumerate(parts.states)
            if j not in states and s.initial is initial and s.taps == c.taps
        )  # fmt: skip
        j = next(fitting, None)
        if j is None:
            return None
        states.append(j)
        replace.update(zip(taps, parts.states[j].inside, strict=True))
    memo = clone_graph(a.inner.outputs, replace)
    return _equal(a, [memo[v] for v in a.inner.outputs], parts, states)


def _equal(
    a: Scan, outputs: Sequence[Variable], parts: Parts, states: list[int]
) -> tuple[list[int], list[int]] | None:
    """Compare next values and conditions, in a graph in which equal nodes are one."""
    theirs = parts.inner_outputs()
    inputs = [v for v, _ in (*parts.sequences, *parts.others)]
    inputs += [v for s in parts.states for v in s.inside]
    merged = FunctionGraph(inputs, [*theirs, *outputs]).outputs
    known, own = merged[: len(theirs)], merged[len(theirs) :]
    if any(own[i] is not known[j] for i, j in enumerate(states)):
        return None
    if a.until and own[-1] is not known[-1]:
        return None
    first, count = len(parts.states), len(parts.collected)
    places: list[int] = []
    for i in range(a.collected):
        value = own[len(states) + i]
        at = next((k for k in range(count) if known[first + k] is value), None)
        if at is None:
            at = len(parts.collected)
            parts.collected.append(outputs[len(states) + i])
        places.append(at)
    return states, places


def _pairs(
    node: Apply, op: Scan, built: Built, states: Sequence[int], collected: Sequence[int]
) -> list[tuple[Variable, Variable]]:
    """The outputs of a loop with those of the joined one."""
    pairs: list[tuple[Variable, Variable]] = []
    for j, (history, last) in zip(states, op.places(), strict=True):
        if history is not None:
            found = built.histories[j]
            assert found is not None
            pairs.append((node.outputs[history], found))
        pairs.append((node.outputs[last], built.last[j]))
    first = op.first_collected
    pairs += [(node.outputs[first + i], built.collected[k]) for i, k in enumerate(collected)]
    return [*pairs, (node.outputs[-1], built.steps)] if op.until else pairs


RULES: list[GraphRewrite] = [contained_loops]
