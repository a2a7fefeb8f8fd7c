"""What a loop's states are: lists, tensors that grow, or of one size at every step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from symdnn.errors import ModelError
from symdnn.graph.traverse import ancestors
from symdnn.graph.variable import Variable
from symdnn.onnx.model.values import Sequence as Tensors
from symdnn.onnx.model.values import Value
from symdnn.ops.elementwise.arithmetic import Add
from symdnn.rewriting.shapes import ShapeResolver


class Grows(ModelError):
    """A state that becomes larger at each step."""


def check_sizes(news: Sequence[Variable], olds: Sequence[Variable]) -> None:
    """Raises :class:`Grows` if a next state is the state's and more."""
    resolver = ShapeResolver()
    for new, old in zip(news, olds):
        for a, b in zip(resolver.shape(new), resolver.shape(old)):
            node = a.owner if isinstance(a, Variable) else None
            if node is not None and isinstance(node.op, Add) and b in ancestors([a]):
                raise Grows(f"a state of size {b} becomes one of size {a}")


def listed_states(body: Any, states: list[Any]) -> dict[int, tuple[None, str]]:
    """Empty sequences to which each step appends a tensor: state -> None, and the tensor's name."""
    found: dict[int, tuple[None, str]] = {}
    makers = {o: n for n in body.node for o in n.output}
    uses = Counter(n for node in body.node for n in used_names(node))
    for k, state in enumerate(states):
        name, maker = body.input[2 + k].name, makers.get(body.output[1 + k].name)
        if not isinstance(state, Tensors) or state or maker is None or uses[name] != 1:
            continue
        if maker.op_type == "SequenceInsert" and [*maker.input[:1], *maker.input[2:]] == [name]:
            found[k] = None, maker.input[1]
    return found


def growing_states(body: Any, states: list[Any]) -> dict[int, tuple[int | None, str]]:
    """States to which each step only appends: state -> the axis, and the name of what is added.

    A loop collects such pieces, since its states can't change their sizes.
    """
    found: dict[int, tuple[int | None, str]] = {}
    makers = {o: n for n in body.node for o in n.output}
    uses = Counter(n for node in body.node for n in used_names(node))
    for k, state in enumerate(states):
        if not isinstance(state, Value):
            continue
        name, result = body.input[2 + k].name, body.output[1 + k].name
        maker = makers.get(result)
        while maker is not None and maker.op_type == "Identity":
            maker = makers.get(maker.input[0])
        if maker is None or maker.op_type != "Concat" or len(maker.input) != 2:
            continue
        first = maker.input[0]
        while first != name and first in makers and makers[first].op_type in ("Cast", "Identity"):
            if uses[first] != 1:
                break
            first = makers[first].input[0]
        if first == name and uses[name] == 1 and maker.input[1] != name:
            axis = next((int(a.i) for a in maker.attribute if a.name == "axis"), 0)
            found[k] = (axis, maker.input[1])
    return found


def used_names(node: Any) -> list[str]:
    """Names that a node reads, in the graphs among its attributes too."""
    found = list(node.input)
    for a in node.attribute:
        for graph in [a.g] * a.HasField("g") + list(a.graphs):
            found += [o.name for o in graph.output]
            for inner in graph.node:
                found += used_names(inner)
    return found
