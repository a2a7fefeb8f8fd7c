"""Finds nodes that only one branch of a lazy choice needs, so that fusion keeps it lazy."""

from __future__ import annotations

from collections.abc import Sequence

from symdnn.graph.fgraph import Client, FunctionGraph
from symdnn.graph.variable import Apply
from symdnn.ops.control.control import IfElse

__all__ = ["Path", "branch_paths", "effects_among"]

#: The lazy choices on the way from a node to the outputs, outermost first: (choice, branch).
Path = tuple[tuple[Apply, bool], ...]


def branch_paths(fgraph: FunctionGraph, order: Sequence[Apply]) -> dict[Apply, Path]:
    """For each node of the topological order ``order`` the path that all its readers share.

    Nodes with equal paths are needed in the same calls, so fusing them computes nothing in vain.
    """
    if not any([isinstance(node.op, IfElse) for node in order]):
        return dict.fromkeys(order, ())
    paths: dict[Apply, Path] = {}
    for node in reversed(order):
        found: Path | None = None
        for client in (c for v in node.outputs for c in fgraph.users(v)):
            path = _path_of(client, paths)
            found = path if found is None else _common(found, path)
        paths[node] = found or ()
    return paths


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


def _common(a: Path, b: Path) -> Path:
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return a[:n]
