"""The cheapest assignment of one of two labels to each node, as a min cut.

Some nodes have a fixed label, the others are free. Each value has a cost if its maker and a reader
have different labels. An assignment is a cut of a flow network, and the maximum flow finds the
cheapest cut (Dinic 1970). So the result does not depend on the order of the nodes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

_INFINITE = float("inf")
#: Edges with less capacity left, in bytes, count as full: sums of costs are rounded.
_FULL_EDGE_BYTES = 1e-9


class FlowNetwork:
    """A flow network over nodes named by anything hashable."""

    def __init__(self) -> None:
        self._names: dict[object, int] = {}
        self._edges: list[list[int]] = []  # the indices of each node's edges
        self._target_of: list[int] = []
        self._capacity: list[float] = []  # residual capacities; edge ^ 1 is the reverse edge
        self._source, self._sink = self._node(("end", 0)), self._node(("end", 1))

    def _node(self, name: object) -> int:
        if name not in self._names:
            self._names[name] = len(self._edges)
            self._edges.append([])
        return self._names[name]

    def _add_edge(self, a: int, b: int, there: float, back: float = 0.0) -> None:
        for start, end, capacity in ((a, b, there), (b, a, back)):
            self._edges[start].append(len(self._target_of))
            self._target_of.append(end)
            self._capacity.append(capacity)

    def fix(self, name: object, at_source: bool) -> None:
        """Give a node the source's label or the sink's."""
        if at_source:
            self._add_edge(self._source, self._node(name), _INFINITE)
        else:
            self._add_edge(self._node(name), self._sink, _INFINITE)

    def pair(self, a: object, b: object, cost: float) -> None:
        """Add a cost for different labels of two nodes."""
        self._add_edge(self._node(a), self._node(b), cost, cost)

    def value(self, name: object, maker: object, readers: Iterable[object], cost: float) -> None:
        """Add a cost, counted once, for any reader with a label other than the maker's."""
        m = self._node(maker)
        there, back = self._node((name, "there")), self._node((name, "back"))
        self._add_edge(m, there, cost)
        self._add_edge(back, m, cost)
        for reader in readers:
            r = self._node(reader)
            self._add_edge(there, r, _INFINITE)
            self._add_edge(r, back, _INFINITE)

    def at_source(self, largest: bool = False) -> set[object]:
        """The nodes on the source's side of the cheapest cut.

        Of several such cuts the one with the fewest nodes there; with ``largest`` the most.
        """
        while (levels := self._distances(self._source))[self._sink] >= 0:
            next_edge = [0] * len(self._edges)
            while self._push(levels, next_edge):
                pass
        if largest:
            to_sink = self._distances(self._sink, backwards=True)
            return {name for name, i in self._names.items() if to_sink[i] < 0}
        return {name for name, i in self._names.items() if levels[i] >= 0}

    def _distances(self, start: int, backwards: bool = False) -> list[int]:
        """Distances from ``start`` by edges with residual capacity; -1: out of reach.

        With ``backwards`` they are distances to ``start``.
        """
        found = [-1] * len(self._edges)
        found[start] = 0
        queue = deque([start])
        while queue:
            node = queue.popleft()
            for edge in self._edges[node]:
                end = self._target_of[edge]
                if found[end] < 0 and self._capacity[edge ^ backwards] > _FULL_EDGE_BYTES:
                    found[end] = found[node] + 1
                    queue.append(end)
        return found

    def _push(self, levels: list[int], next_edge: list[int]) -> bool:
        """Send flow along one shortest path to the sink; whether there was one."""
        path: list[int] = []
        node = self._source
        while node != self._sink:
            edge = self._next(node, levels, next_edge)
            if edge is not None:
                path.append(edge)
                node = self._target_of[edge]
            elif path:
                back = path.pop()
                node = self._target_of[back ^ 1]
                next_edge[node] += 1
            else:
                return False
        amount = min(self._capacity[edge] for edge in path)
        for edge in path:
            self._capacity[edge] -= amount
            self._capacity[edge ^ 1] += amount
        return True

    def _next(self, node: int, levels: list[int], next_edge: list[int]) -> int | None:
        edges = self._edges[node]
        while next_edge[node] < len(edges):
            edge = edges[next_edge[node]]
            if (
                levels[self._target_of[edge]] == levels[node] + 1
                and self._capacity[edge] > _FULL_EDGE_BYTES
            ):
                return edge
            next_edge[node] += 1
        return None
