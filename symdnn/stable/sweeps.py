"""Reverse and forward mode over the stable form of a graph.

Derivatives are taken of the stable form, so that they are stable as well. The derivative of
``log(sigmoid(x))`` as it is written divides by a sigmoid that may have been rounded to 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from symdnn.graph import backprop as plain
from symdnn.graph.gc_pause import paused
from symdnn.graph.traverse import toposort
from symdnn.graph.variable import Variable
from symdnn.stable.engine import StableGraph

OptionalVariable = Variable | None
Seeds = Mapping[Variable, Variable]


@paused()
def backprop(
    cotangents: Seeds, wrt: Sequence[Variable], consider_constant: Iterable[Variable] = ()
) -> list[OptionalVariable]:
    """Gradients with respect to ``wrt`` by reverse mode, from ``cotangents`` of some outputs.

    None for a variable on which no output depends in a differentiable way. No rule replaces a
    variable of the three arguments, or matches a pattern through one.
    """
    constants = list(consider_constant)
    fixed = {v for v in (*cotangents, *constants) if v.owner is not None}
    stable = StableGraph(list(cotangents), wrt, fixed, constants)
    if not stable.fired:
        return plain.backprop(cotangents, wrt, constants)
    found: dict[Variable, OptionalVariable] = {}
    for group, graph in _groups(stable, cotangents, wrt, constants, fixed):
        found.update(zip(group, _swept(graph, cotangents, group, constants)))
    return [found[v] for v in wrt]


def _groups(
    stable: StableGraph,
    cotangents: Seeds,
    wrt: Sequence[Variable],
    constants: Sequence[Variable],
    fixed: set[Variable],
) -> list[tuple[list[Variable], StableGraph]]:
    """Groups of variables whose gradients one sweep gives, each with the graph to sweep over.

    For the gradient with respect to ``p = sigmoid(x)`` no pattern may match through ``p``; for that
    with respect to ``x`` patterns should.
    """
    leaves = [v for v in wrt if v.owner is None or v in fixed]
    inner = list(dict.fromkeys(v for v in wrt if v.owner is not None and v not in fixed))
    if not inner:
        return [(leaves, stable)]
    outputs = list(cotangents)
    cut = StableGraph(outputs, wrt, fixed | set(inner), constants)
    if cut.fired == stable.fired:
        return [(list(wrt), cut)]
    groups = [(leaves, stable)] if leaves else []
    for level in _levels(inner):
        groups.append((level, StableGraph(outputs, level, fixed | set(level), constants)))
    return groups


def _levels(variables: Sequence[Variable]) -> list[list[Variable]]:
    """The variables in groups, none of which depends on another of its group."""
    depth: dict[Variable, int] = {}
    wanted = set(variables)
    for node in toposort(variables):
        above = max((depth.get(v, 0) for v in node.inputs), default=0)
        for v in node.outputs:
            depth[v] = above + (v in wanted)
    levels: dict[int, list[Variable]] = {}
    for v in variables:
        levels.setdefault(depth[v], []).append(v)
    return list(levels.values())


def _swept(
    graph: StableGraph, cotangents: Seeds, wrt: Sequence[Variable], constants: Sequence[Variable]
) -> list[OptionalVariable]:
    seeds = {graph.at(v): c for v, c in cotangents.items()}
    found = plain.backprop(seeds, [graph.at(v) for v in wrt], [graph.at(v) for v in constants])
    return graph.in_users_terms(found)


@paused()
def forward_sweep(tangents: Seeds, outputs: Sequence[Variable]) -> list[OptionalVariable]:
    """Tangents of ``outputs`` by forward mode, from those of some variables; None for zero."""
    fixed = {v for v in (*tangents, *outputs) if v.owner is not None}
    stable = StableGraph(list(outputs), tangents, fixed)
    if not stable.fired:
        return plain.forward_sweep(tangents, outputs)
    known = {stable.at(v): t for v, t in tangents.items()}
    return stable.in_users_terms(plain.forward_sweep(known, [stable.at(v) for v in outputs]))
