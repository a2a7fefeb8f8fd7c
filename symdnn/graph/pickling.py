"""Pickles graphs of any depth without deep recursion.

A pickler descends from a variable to its node, from there to the node's inputs, and so on: a deep
graph would exhaust the stack. So the first variable writes all nodes above it first, inputs before
users; each node then finds its inputs in the pickler's memo.
"""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from symdnn.graph.traverse import toposort
from symdnn.graph.variable import Apply, Variable

if TYPE_CHECKING:
    from symdnn.graph.op import Op

__all__ = ["Bundle", "deepcopy_variable", "reduce_apply", "reduce_leaf", "reduce_variable"]

_state = threading.local()


class Bundle:
    """Variables, pickled with the nodes above them in an order that needs no deep recursion."""

    def __init__(self, variables: Sequence[Variable] = ()) -> None:
        self.variables = list(variables)

    def __reduce__(self) -> tuple[object, ...]:
        return _bundle, (_Nodes(self.variables), len(self.variables))


class _Nodes(list[Any]):
    """Nodes in order, then the variables asked for. While it is written, variables are plain."""

    def __init__(self, variables: Sequence[Variable] = ()) -> None:
        super().__init__()
        self.variables = variables

    def __reduce__(self) -> tuple[object, ...]:
        if is_writing():
            return list, (), None, iter(self.variables)
        _state.writer = weakref.ref(self)
        return list, (), None, self._items()

    def _items(self) -> Iterator[Any]:
        yield from toposort(self.variables)
        yield from self.variables
        yield _End()


class _End:
    """The last item: when it is written, all nodes have been."""

    def __reduce__(self) -> tuple[object, ...]:
        _state.writer = None
        return _End, ()


def is_writing() -> bool:
    """Whether the nodes above the variable being pickled have been written already."""
    writer = getattr(_state, "writer", None)
    # A weak reference: after a failure the pickler and its list of nodes go together.
    return writer is not None and writer() is not None


def reduce_variable(v: Variable) -> tuple[Any, ...]:
    """What ``Variable.__reduce__`` of an output of a node returns."""
    if is_writing():
        return _output, (v.owner, v.index)
    return _last, (_Nodes([v]),)


def reduce_leaf(v: Variable) -> tuple[Any, ...]:
    """What ``Variable.__reduce__`` of an input returns."""
    return _leaf, (v.type, v.name, v._tag)


def _leaf(type_: Any, name: str | None, tag: Any) -> Variable:
    v = Variable(type_, name)
    v._tag = tag
    return v


def deepcopy_variable(v: Variable, memo: dict[int, Any]) -> Variable:
    """A copy of ``v`` and of the graph above it, inputs too; no recursion along the graph."""
    if v.owner is None:
        return _leaf(v.type, v.name, copy.deepcopy(v._tag, memo))
    for node in toposort([v]):
        if id(node) in memo:
            continue
        inputs = [copy.deepcopy(i, memo) for i in node.inputs]
        outputs = [(o.type, o.name, copy.deepcopy(o._tag, memo)) for o in node.outputs]
        memo[id(node)] = new = _apply(node.op, inputs, outputs, node.origin, node.hints)
        for old, out in zip(node.outputs, new.outputs):
            memo[id(old)] = out
    made: Variable = memo[id(v)]
    return made


def reduce_apply(node: Apply) -> tuple[Any, ...]:
    """What ``Apply.__reduce__`` returns."""
    outputs = tuple((o.type, o.name, o._tag) for o in node.outputs)
    return _apply, (node.op, node.inputs, outputs, node.origin, node.hints)


def _apply(op: Op, inputs: Any, outputs: Any, origin: Any, hints: Any) -> Apply:
    node = Apply(op, inputs, [t for t, _, _ in outputs], origin, hints)
    for v, (_, name, tag) in zip(node.outputs, outputs):
        v.name, v._tag = name, tag
    return node


def _output(owner: Apply, index: int) -> Variable:
    return owner.outputs[index]


def _last(nodes: list[Any]) -> Variable:
    made: Variable = nodes[-2]
    return made


def _bundle(nodes: list[Any], count: int) -> Bundle:
    end = len(nodes) - 1 if nodes and isinstance(nodes[-1], _End) else len(nodes)
    return Bundle(nodes[end - count : end])
