"""The reverse and the forward sweep, over a graph that was brought into stable form before.

What is differentiated is the stable form, so that its derivative has one, too: the derivative of
``log(sigmoid(x))`` as it is written divides by what may have been rounded to 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from symdnn.graph import backprop as plain
from symdnn.graph.traverse import toposort
from symdnn.graph.variable import Variable
from symdnn.stable.engine import StableGraph

__all__ = ["backprop", "forward_sweep"]

Maybe = Variable | None
Seeds = Mapping[Variable, Variable]


def backprop(
    cotangents: Seeds, wrt: Sequence[Variable], consider_constant: Iterable[Variable] = ()
) -> list[Maybe]:
    """Gradients with respect to ``wrt``, given those of some outputs.

    None for a variable on which no output depends in a differentiable way. Variables of all three
    arguments stay what they are: no rule looks through one.
    """
    constants = list(consider_constant)
    fixed = {v for v in (*cotangents, *constants) if v.owner is not None}
    stable = StableGraph(list(cotangents), wrt, fixed, constants)
    if not stable.fired:
        return plain.backprop(cotangents, wrt, constants)
    found: dict[Variable, Maybe] = {}
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
    """Variables whose gradients one sweep gives, with the graph to sweep over.

    The gradient with respect to ``p = sigmoid(x)`` must not look through ``p``, that with respect
    to ``x`` must.
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
    """The variables in groups of which none needs another of its group."""
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
) -> list[Maybe]:
    seeds = {graph.at(v): c for v, c in cotangents.items()}
    found = plain.backprop(seeds, [graph.at(v) for v in wrt], [graph.at(v) for v in constants])
    return graph.in_users_terms(found)


def forward_sweep(tangents: Seeds, outputs: Sequence[Variable]) -> list[Maybe]:
    """Tangents of ``outputs`` given those of some variables (None: does not vary)."""
    fixed = {v for v in (*tangents, *outputs) if v.owner is not None}
    stable = StableGraph(list(outputs), tangents, fixed)
    if not stable.fired:
        return plain.forward_sweep(tangents, outputs)
    known = {stable.at(v): t for v, t in tangents.items()}
    return stable.in_users_terms(plain.forward_sweep(known, [stable.at(v) for v in outputs]))
