"""The order of nodes: which names a node reads, and nodes after what they read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Any


def graphs_of(node: Any) -> Iterator[Any]:
    """The graphs among the attributes of a node."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def used_by(node: Any) -> set[str]:
    """Names that a node reads, in the graphs among its attributes too, from around these."""
    found = {n for n in node.input if n}
    for graph in graphs_of(node):
        own = {v.name for v in graph.input} | {t.name for t in graph.initializer}
        own |= {t.values.name for t in graph.sparse_initializer}
        read = {o.name for o in graph.output}
        for inner in graph.node:
            read |= used_by(inner)
            own.update(inner.output)
        found |= read - own
    return found


def is_ordered(model: Any) -> bool:
    """Whether each node of a model, in its functions and inner graphs too, is after what it reads.

    A file may have another order: ONNX asks for this one, but programs that change models write
    nodes as they come, and ONNX Runtime orders them.
    """
    return all(_places(nodes) is None for nodes in _lists(model))


def put_in_order(model: Any) -> None:
    """Puts nodes after what they read, otherwise in the order of the file. Cycles stay."""
    for nodes in list(_lists(model)):
        places = _places(nodes)
        if places is not None:
            nodes.sort(key=lambda node: places[tuple(node.output)])


def _lists(model: Any) -> Iterator[Any]:
    """The nodes of each graph and function."""
    waiting = [model.graph.node, *(f.node for f in model.functions)]
    while waiting:
        nodes = waiting.pop()
        yield nodes
        waiting += [graph.node for node in nodes for graph in graphs_of(node)]


def _places(nodes: Sequence[Any]) -> dict[tuple[str, ...], int] | None:
    """The place of each node by its outputs; None where nodes are in order, or can't be."""
    made = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    reads = [{made[n] for n in used_by(node) if n in made} for node in nodes]
    if all(j < i for i, read in enumerate(reads) for j in read):
        return None
    readers: list[list[int]] = [[] for _ in nodes]
    for i, read in enumerate(reads):
        for j in read:
            readers[j].append(i)
    missing = [len(read) for read in reads]
    ready = [i for i, n in enumerate(missing) if not n]
    heapify(ready)
    places: dict[tuple[str, ...], int] = {}
    while ready:
        i = heappop(ready)
        places[tuple(nodes[i].output)] = len(places)
        for reader in readers[i]:
            missing[reader] -= 1
            if not missing[reader]:
                heappush(ready, reader)
    return places if len(places) == len(nodes) else None
