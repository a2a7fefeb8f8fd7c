"""Sequences of tensors, whose lengths are known while the graph is built."""

from __future__ import annotations

from typing import Any

import numpy as np

import symdnn.tensor as T
from symdnn.graph.variable import Variable
from symdnn.onnx.model.node import Node
from symdnn.onnx.model.values import Sequence, Stacked, Value
from symdnn.onnx.ops.shaping import pieces
from symdnn.ops.core.shape import dims_of


def _construct(node: Node) -> Sequence:
    return Sequence(node.value(i) for i in range(len(node.inputs)))


def _empty(node: Node) -> Sequence:
    return Sequence((), node.kind_attribute("dtype", "float32"))


def _place(node: Node, i: int, size: int, beyond: int = 0) -> int:
    place = int(node.known(i, "the position").ravel()[0])
    if not -size <= place < size + beyond:
        raise node.error(f"position {place} of a sequence of {size}")
    return place + size if place < 0 else place


def _at(node: Node) -> Value:
    if isinstance(whole := node.input(0), Stacked):
        return Value(whole.variable[node.number(1)], whole.kind)
    given = node.sequence(0)
    return given[_place(node, 1, len(given))]


def _insert(node: Node) -> Sequence:
    given = node.sequence(0)
    place = _place(node, 2, len(given), 1) if node.has(2) else len(given)
    values = list(given)
    values.insert(place, node.value(1))
    return Sequence(values, given.kind)


def _erase(node: Node) -> Sequence:
    given = node.sequence(0)
    place = _place(node, 1, len(given)) if node.has(1) else len(given) - 1
    return Sequence([v for i, v in enumerate(given) if i != place], given.kind)


def _length(node: Node) -> Value:
    if isinstance(whole := node.input(0), Stacked):
        return Value(dims_of(whole.variable)[0], "int64")
    return Value.of(np.asarray(len(node.sequence(0)), np.int64))


def _concat(node: Node) -> Value:
    if isinstance(whole := node.input(0), Stacked):
        return Value(_joined(node, whole.variable), whole.kind)
    given = node.sequence(0)
    if not given:
        raise node.error("an empty sequence")
    variables, axis = [v.variable for v in given], int(node.required("axis"))
    if node.attribute("new_axis", 0):
        return Value(T.stack(variables, axis=axis), given.kind)
    axis = node.normal(axis, variables[0].ndim)
    return Value(T.concatenate(variables, axis=axis), given.kind)


def _joined(node: Node, v: Variable) -> Variable:
    """Tensors that are stacked along the first axis, stacked or side by side along another."""
    axis = int(node.required("axis"))
    if node.attribute("new_axis", 0):
        return T.moveaxis(v, 0, node.normal(axis, v.ndim))
    axis = node.normal(axis, v.ndim - 1)
    sizes = list(dims_of(v)[1:])
    sizes[axis] = sizes[axis] * dims_of(v)[0]
    return T.moveaxis(v, 0, axis).reshape(tuple(sizes))


def _split(node: Node) -> Sequence:
    x = node.x()
    axis = node.axis(x.ndim)
    size = x.type.shape[axis]
    if size is None:
        size = int(node.settled(dims_of(x)[axis], "the size that is split"))
    keep = True
    if not node.has(1):
        lengths = [1] * size
        keep = bool(node.attribute("keepdims", 1))
    else:
        given = node.known(1, "the lengths")
        if given.ndim:
            lengths = [int(n) for n in given]
        else:
            n = int(given)
            if n < 1:
                raise node.error(f"pieces of {n}")
            lengths = [min(n, size - start) for start in range(0, size, n)]
    found = pieces(x, lengths, axis)
    if not keep:
        found = [T.squeeze(v, axis) for v in found]
    return Sequence([Value(v, node.value(0).kind) for v in found], node.value(0).kind)


def _map(node: Node) -> list[Any]:
    """The body on each element; inputs that are tensors are the same for all."""
    body = node.required("body")
    length = len(node.sequence(0))
    found: list[Sequence] = [Sequence() for _ in body.output]
    for i in range(length):
        inputs = [v[i] if isinstance(v, Sequence) else v for v in node.inputs]
        for outs, value in zip(found, node.scope.subgraph(body, inputs)):
            outs.append(value)
            outs.kind = value.kind
    return list(found)


OPS: dict[str, Any] = {
    "SequenceConstruct": _construct, "SequenceEmpty": _empty, "SequenceAt": _at,
    "SequenceInsert": _insert, "SequenceErase": _erase, "SequenceLength": _length,
    "ConcatFromSequence": _concat, "SplitToSequence": _split, "SequenceMap": _map,
}  # fmt: skip
