"""Finds nodes that only one branch of a lazy choice needs, so that fusion keeps it lazy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import TypeVar

from symdnn.graph.fgraph import Client, FunctionGraph
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.control.control import IfElse

T = TypeVar("T")

#: The lazy choices on the way from a node to the outputs, outermost first: (choice, branch).
Path = tuple[tuple[Apply, bool], ...]
#: Conditions of choices, each with the value by which a node is needed.
Decided = frozenset[tuple[Variable, bool]]


def branch_paths(fgraph: FunctionGraph, order: Sequence[Apply]) -> dict[Apply, Path]:
    """For each node of the topological order ``order`` the path that all its readers share.

    Nodes with equal paths are needed in the same calls, so fusing them computes nothing in vain.
    """
    if not any([isinstance(node.op, IfElse) for node in order]):
        return dict.fromkeys(order, ())
    return _by_readers(fgraph, order, _path_of, _common, ())


def decided_by(fgraph: FunctionGraph, order: Sequence[Apply]) -> dict[Apply, Decided]:
    """For each node of a topological order the conditions without which nothing reads it.

    Choices by one condition count as one.
    """
    return _by_readers(fgraph, order, decided_for, frozenset.__and__, frozenset())


def _by_readers(
    fgraph: FunctionGraph, order: Sequence[Apply], of: Callable[[Client, dict[Apply, T]], T],
    common: Callable[[T, T], T], none: T,
) -> dict[Apply, T]:  # fmt: skip
    """For each node what all its readers have in ``common``; ``none`` where nothing reads it."""
    found: dict[Apply, T] = {}
    for node in reversed(order):
        values = [of(client, found) for v in node.outputs for client in fgraph.users(v)]
        found[node] = reduce(common, values) if values else none
    return found


def effects_among(order: Sequence[Apply]) -> set[Apply]:
    """Nodes of a topological order with ordered effects, and lazy choices behind such nodes."""
    found: set[Apply] = set()
    if not any([node.op.ordered for node in order]):
        return found
    reached: set[Apply] = set()
    for node in order:
        if node.op.ordered or any(v.owner in reached for v in node.inputs):
            reached.add(node)
        if node.op.ordered or (isinstance(node.op, IfElse) and node in reached):
            found.add(node)
    return found


def _path_of(client: Client, paths: dict[Apply, Path]) -> Path:
    node, index = client
    if node is None:
        return ()
    path = paths.get(node, ())
    if isinstance(node.op, IfElse) and index > 0:
        return (*path, (node, index <= node.op.count))
    return path


def decided_for(client: Client, found: dict[Apply, Decided]) -> Decided:
    """The conditions without which this reader does not read."""
    node, index = client
    if node is None:
        return frozenset()
    own = found.get(node, frozenset())
    if isinstance(node.op, IfElse) and index > 0:
        return own | {(node.inputs[0], index <= node.op.count)}
    return own


def _common(a: Path, b: Path) -> Path:
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return a[:n]
