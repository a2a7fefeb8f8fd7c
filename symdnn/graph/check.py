"""Checks that a graph is well formed: between phases, in tests and in debug mode."""

from __future__ import annotations

from collections.abc import Iterable

from symdnn.errors import GraphError
from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.variable import Apply

__all__ = ["check_graph"]


def check_graph(fgraph: FunctionGraph) -> None:
    """Raise :class:`GraphError` unless clients, nodes and order of ``fgraph`` agree."""
    _check_cycles(fgraph)  # first, since other walks would not end in a cycle
    order = fgraph.toposort()
    if set(order) != set(fgraph.nodes):
        raise GraphError("the graph's table of nodes differs from the nodes that its outputs need")
    for node in order:
        _check_node(fgraph, node)
    for i, v in enumerate(fgraph.outputs):
        if (None, i) not in fgraph.clients.get(v, {}):
            raise GraphError(f"output {i} ({v}) is not registered as a client")


def _check_cycles(fgraph: FunctionGraph) -> None:
    """Raise :class:`GraphError` that names the nodes of a cycle, if there is one."""
    makers = {n: {v.owner for v in n.inputs if v.owner in fgraph.nodes} for n in fgraph.nodes}
    users: dict[Apply | None, list[Apply]] = {}
    for node, before in makers.items():
        for maker in before:
            users.setdefault(maker, []).append(node)
    missing = {node: len(before) for node, before in makers.items()}
    ready = [node for node, count in missing.items() if count == 0]
    while ready:
        node = ready.pop()
        del missing[node]
        for user in users.get(node, ()):
            missing[user] -= 1
            if missing[user] == 0:
                ready.append(user)
    if missing:
        raise GraphError(f"the graph has a cycle: {_cycle_among(missing)}")


def _cycle_among(nodes: Iterable[Apply]) -> str:
    """The ops of one cycle among ``nodes``, which contain at least one."""
    import networkx

    edges = [(v.owner, n) for n in nodes for v in n.inputs if v.owner is not None]
    found = networkx.find_cycle(networkx.DiGraph(edges))
    return " -> ".join(str(a.op) for a, _ in [*found, found[0]])


def _check_node(fgraph: FunctionGraph, node: Apply) -> None:
    for i, v in enumerate(node.inputs):
        if (node, i) not in fgraph.clients.get(v, {}):
            raise GraphError(f"{node}: input {i} does not list it as a client")
    for i, v in enumerate(node.outputs):
        if v.owner is not node or v.index != i:
            raise GraphError(f"{node}: output {i} does not know its owner")
