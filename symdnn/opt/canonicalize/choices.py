"""Lazy choices by one condition: what one of them decides holds in the branches of the others.

A gradient has a choice for each variable. Their branches share the backward pass, which is lazy
only if one choice needs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from symdnn.graph.origin import inherit
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.control.control import IfElse
from symdnn.rewriting.rewrite import Context, graph_rewrite

__all__ = ["RULES"]

#: Conditions of choices, each with the value by which a node is needed.
_Decided = frozenset[tuple[Variable, bool]]


def _choices(order: Sequence[Apply]) -> dict[Variable, list[Apply]]:
    """The choices by each condition that several have, inputs first."""
    found: dict[Variable, list[Apply]] = {}
    for node in order:
        if isinstance(node.op, IfElse):
            found.setdefault(node.inputs[0], []).append(node)
    return {condition: nodes for condition, nodes in found.items() if len(nodes) > 1}


def _needed_by(order: Sequence[Apply], context: Context) -> dict[Apply, _Decided]:
    """For each node the conditions, with their values, without which nothing reads it."""
    found: dict[Apply, _Decided] = {}
    for node in reversed(order):
        uses = [use for v in node.outputs for use in context.fgraph.users(v)]
        sets = [_decided_for(user, i, found) for user, i in uses]
        found[node] = frozenset.intersection(*sets) if sets else frozenset()
    return found


def _decided_for(user: Apply | None, i: int, found: dict[Apply, _Decided]) -> _Decided:
    if user is None:
        return frozenset()
    if isinstance(user.op, IfElse) and i > 0:
        return found[user] | {(user.inputs[0], i <= user.op.count)}
    return found[user]


@graph_rewrite("canonicalize", ("fast_compile", "dead", "ifelse"), "choices_decided_in_branches")
def choices_decided_in_branches(context: Context) -> None:
    """What only a branch needs reads, in place of a choice by the same condition, its branch."""
    order = context.fgraph.toposort()
    if not (several := _choices(order)):
        return
    needed = _needed_by(order, context)
    for node in order:
        if node not in context.fgraph.nodes:  # it became equal to another one
            continue
        decided = {c: truth for c, truth in needed[node] if c in several}
        inputs = [_branch(v, decided) for v in node.inputs]
        if decided and any(a is not b for a, b in zip(inputs, node.inputs, strict=True)):
            with inherit(node.origin, node.hints, node.written):
                new = node.clone_with(inputs)
            context.replace(
                list(zip(node.outputs, new.outputs, strict=True)), "choices_decided_in_branches"
            )


def _branch(v: Variable, decided: dict[Variable, bool]) -> Variable:
    node = v.owner
    if node is None or not isinstance(node.op, IfElse) or node.inputs[0] not in decided:
        return v
    first = 1 if decided[node.inputs[0]] else 1 + node.op.count
    chosen = node.inputs[first + (v.index or 0)]
    return _branch(chosen, decided) if chosen.type == v.type else v


@graph_rewrite("lower", ("fast_compile", "ifelse", "cond_merge"), "join_choices")
def join_choices(context: Context) -> None:
    """Choices by one condition whose branches share nodes become one, so that these stay lazy."""
    order = context.fgraph.toposort()
    if any(node.op.ordered for node in order):
        return
    for condition in _choices(order):
        order = context.fgraph.toposort()
        needed = _needed_by(order, context)
        for nodes in _independent(order, condition):
            if _shares(nodes, order, {n for n, by in needed.items() if _under(by, condition)}):
                _join(context, nodes)


def _under(by: _Decided, condition: Variable) -> bool:
    return any(c is condition for c, _ in by)


def _independent(order: Sequence[Apply], condition: Variable) -> Iterator[list[Apply]]:
    """The choices by ``condition`` in groups of which none reads a result of another."""
    depth: dict[Apply, int] = {}
    groups: dict[int, list[Apply]] = {}
    for node in order:
        above = [(v.owner, depth[v.owner]) for v in node.inputs if v.owner is not None]
        depth[node] = max((d + _chooses(n, condition) for n, d in above), default=0)
        if _chooses(node, condition):
            groups.setdefault(depth[node], []).append(node)
    return (nodes for nodes in groups.values() if len(nodes) > 1)


def _chooses(node: Apply, condition: Variable) -> bool:
    return isinstance(node.op, IfElse) and node.inputs[0] is condition


def _shares(nodes: Sequence[Apply], order: Sequence[Apply], lazy: set[Apply]) -> bool:
    """Whether two of ``nodes`` need one of the nodes ``lazy``."""
    readers: dict[Apply, set[Apply]] = {}
    for node in reversed(order):
        own = readers.setdefault(node, set()) | ({node} if node in nodes else set())
        if len(own) > 1 and node in lazy:
            return True
        for v in node.inputs:
            if v.owner is not None:
                readers.setdefault(v.owner, set()).update(own)
    return False


def _join(context: Context, nodes: Sequence[Apply]) -> None:
    sides: tuple[list[Variable], list[Variable]] = ([], [])
    for node in nodes:
        count = len(node.outputs)
        sides[0].extend(node.inputs[1 : 1 + count])
        sides[1].extend(node.inputs[1 + count :])
    with inherit(nodes[0].origin, nodes[0].hints, nodes[0].written):
        joined = IfElse(len(sides[0])).make_node(nodes[0].inputs[0], *sides[0], *sides[1])
    old = [v for node in nodes for v in node.outputs]
    context.replace(list(zip(old, joined.outputs, strict=True)), "join_choices")


RULES = (choices_decided_in_branches, join_choices)
