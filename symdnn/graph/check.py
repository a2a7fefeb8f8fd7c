"""Checks that a graph is well formed: between phases, in tests and in debug mode."""

from __future__ import annotations

from symdnn.errors import GraphError
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.variable import Apply

__all__ = ["check_graph"]


def check_graph(fgraph: FunctionGraph) -> None:
    """Raise :class:`GraphError` unless clients, nodes and order of ``fgraph`` agree."""
    order = fgraph.toposort()  # first, since other walks would not end in a cycle
    if set(order) != set(fgraph.nodes):
        raise GraphError("the graph's table of nodes differs from the nodes that its outputs need")
    for node in order:
        _check_node(fgraph, node)
    for i, v in enumerate(fgraph.outputs):
        if (None, i) not in fgraph.clients.get(v, {}):
            raise GraphError(f"output {i} ({v}) is not registered as a client")


def _check_node(fgraph: FunctionGraph, node: Apply) -> None:
    for i, v in enumerate(node.inputs):
        if (node, i) not in fgraph.clients.get(v, {}):
            raise GraphError(f"{node}: input {i} does not list it as a client")
    for i, v in enumerate(node.outputs):
        if v.owner is not node or v.index != i:
            raise GraphError(f"{node}: output {i} does not know its owner")
