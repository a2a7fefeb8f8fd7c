"""The cheapest way to give each of many nodes one of two labels (a minimum cut).

Some nodes have their label, the rest are free, and each value costs something where its maker and
a reader differ. That is a cut of a network, and the largest flow through it finds the cheapest one
(Dinic 1970), so no order of looking at nodes and no back and forth decides.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

__all__ = ["Network"]

_INFINITE = float("inf")
_NOTHING = 1e-9


class Network:
    """A flow network over nodes named by anything hashable."""

    def __init__(self) -> None:
        self._names: dict[object, int] = {}
        self._edges: list[list[int]] = []  # of a node: its edges
        self._end: list[int] = []
        self._room: list[float] = []  # what an edge still takes; edge ^ 1 goes back
        self._source, self._sink = self._node(("end", 0)), self._node(("end", 1))

    def _node(self, name: object) -> int:
        if name not in self._names:
            self._names[name] = len(self._edges)
            self._edges.append([])
        return self._names[name]

    def _join(self, a: int, b: int, there: float, back: float = 0.0) -> None:
        for start, end, room in ((a, b, there), (b, a, back)):
            self._edges[start].append(len(self._end))
            self._end.append(end)
            self._room.append(room)

    def fix(self, name: object, at_source: bool) -> None:
        """Give a node its label."""
        if at_source:
            self._join(self._source, self._node(name), _INFINITE)
        else:
            self._join(self._node(name), self._sink, _INFINITE)

    def pair(self, a: object, b: object, cost: float) -> None:
        """What it costs where two nodes differ."""
        self._join(self._node(a), self._node(b), cost, cost)

    def value(self, name: object, maker: object, readers: Iterable[object], cost: float) -> None:
        """What it costs, once, where any of the readers differs from the maker."""
        m = self._node(maker)
        there, back = self._node((name, "there")), self._node((name, "back"))
        self._join(m, there, cost)
        self._join(back, m, cost)
        for reader in readers:
            r = self._node(reader)
            self._join(there, r, _INFINITE)
            self._join(r, back, _INFINITE)

    def at_source(self, largest: bool = False) -> set[object]:
        """The nodes on the source's side of the cheapest cut: of several, the smallest side.

        With ``largest`` the largest: cuts lie as far from the source as they may for their price.
        """
        while (levels := self._levels())[self._sink] >= 0:
            places = [0] * len(self._edges)
            while self._push(levels, places):
                pass
        inside = self._before_sink() if largest else [level >= 0 for level in self._levels()]
        return {name for name, i in self._names.items() if inside[i]}

    def _before_sink(self) -> list[bool]:
        """Which nodes cannot reach the sink by edges with room."""
        cut = [True] * len(self._edges)
        cut[self._sink] = False
        queue = deque([self._sink])
        while queue:
            node = queue.popleft()
            for edge in self._edges[node]:
                start = self._end[edge]
                if cut[start] and self._room[edge ^ 1] > _NOTHING:
                    cut[start] = False
                    queue.append(start)
        return cut

    def _levels(self) -> list[int]:
        """How many edges with room lie between the source and each node; -1: out of reach."""
        levels = [-1] * len(self._edges)
        levels[self._source] = 0
        queue = deque([self._source])
        while queue:
            node = queue.popleft()
            for edge in self._edges[node]:
                end = self._end[edge]
                if levels[end] < 0 and self._room[edge] > _NOTHING:
                    levels[end] = levels[node] + 1
                    queue.append(end)
        return levels

    def _push(self, levels: list[int], places: list[int]) -> bool:
        """Send flow along one shortest way to the sink; whether there was one."""
        path: list[int] = []
        node = self._source
        while node != self._sink:
            edge = self._next(node, levels, places)
            if edge is not None:
                path.append(edge)
                node = self._end[edge]
            elif path:
                back = path.pop()
                node = self._end[back ^ 1]
                places[node] += 1
            else:
                return False
        amount = min(self._room[edge] for edge in path)
        for edge in path:
            self._room[edge] -= amount
            self._room[edge ^ 1] += amount
        return True

    def _next(self, node: int, levels: list[int], places: list[int]) -> int | None:
        edges = self._edges[node]
        while places[node] < len(edges):
            edge = edges[places[node]]
            if levels[self._end[edge]] == levels[node] + 1 and self._room[edge] > _NOTHING:
                return edge
            places[node] += 1
        return None
