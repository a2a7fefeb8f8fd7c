"""The shapes and integers of a graph that follow from those of its inputs, without kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from symdnn.errors import SymdnnError
from symdnn.graph.evaluate import evaluate_node
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply, Constant, Shared, Variable
from symdnn.ops.core.shape import ShapeI

Shapes = dict[Variable, tuple[int, ...]]
Values = dict[Variable, Any]

#: The most elements of an array of integers whose values are sizes.
MOST_INTEGERS = 64


def known_sizes(
    nodes: Sequence[Apply], shapes: Mapping[Variable, tuple[int, ...]],
    values: Mapping[Variable, Any],
) -> tuple[Shapes, Values]:  # fmt: skip
    """The shapes and integers of a graph that follow from those of its inputs."""
    known, found = dict(shapes), dict(values)
    for n in nodes:
        try:
            if (results := _integers(n, known, found)) is not None:
                found.update(zip(n.outputs, results))
            made = _shapes_of(n, known, found)
        except (SymdnnError, KeyError):
            continue
        known.update((v, tuple(int(d) for d in s)) for v, s in zip(n.outputs, made))
    return known, found


def _integers(n: Apply, shapes: Shapes, values: Values) -> Sequence[Any] | None:
    """The values of a node of integers, if they are known."""
    if not all(isinstance(v.type, TensorType) and v.type.is_discrete for v in n.outputs):
        return None
    if isinstance(n.op, ShapeI):
        return [np.asarray(shape_of(n.inputs[0], shapes)[n.op.axis], np.int64)]
    given = [v.data if isinstance(v, Constant) else values.get(v) for v in n.inputs]
    few = all(a is not None and np.size(a) <= MOST_INTEGERS for a in given)
    if not few or n.op.unmergeable or n.op.host_callback:
        return None
    return evaluate_node(n, given)


def _shapes_of(n: Apply, shapes: Shapes, values: Values) -> Sequence[Sequence[int]]:
    read = {i: int(value_of(n.inputs[i], values)) for i in n.op.host_inputs}
    given = [shape_of(v, shapes) for v in n.inputs]
    found = n.op.shapes([v.type for v in n.inputs], given, read)
    if found is None or any(s is None for s in found):
        raise KeyError(n)
    return found  # type: ignore[return-value]


def bytes_of_shape(t: TensorType, shape: Sequence[int]) -> int:
    """The bytes of an array of this type's dtype."""
    return prod(shape) * int(t.numpy.itemsize)


def value_of(v: Variable, values: Values) -> Any:
    """A known integer; raises KeyError for others."""
    return v.data if isinstance(v, Constant) else values[v]


def shape_of(v: Variable, shapes: Shapes) -> tuple[int, ...]:
    """A known shape; raises KeyError for others."""
    if isinstance(v, Constant):
        return tuple(v.data.shape)
    if isinstance(v, Shared) and v not in shapes:
        return tuple(v.storage.shape)
    return shapes[v]
