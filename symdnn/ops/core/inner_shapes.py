"""Shapes of an inner graph's outputs from the shapes of its inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from symdnn.graph.dims import Shape
from symdnn.graph.evaluate import evaluate_node
from symdnn.graph.inner import InnerGraph
from symdnn.graph.op import Shapes
from symdnn.graph.type import OpaqueType, TensorType
from symdnn.graph.variable import Apply, Constant, Variable, as_variable
from symdnn.ops.core.make_vector import MakeVector
from symdnn.ops.core.shape import ShapeI, ShapeVector, as_dim


@lru_cache(maxsize=512)
def scalars_for_shapes(inner: InnerGraph, outputs: tuple[int, ...]) -> tuple[int, ...]:
    """Indices of the inputs, integer scalars, whose values determine shapes of these outputs."""
    _, values = _needs(inner, [inner.outputs[i] for i in outputs])
    return tuple(i for i, v in enumerate(inner.inputs) if v in values and v.type.is_integer_scalar)


def inner_shapes(
    inner: InnerGraph,
    outputs: Sequence[int],
    shapes: Shapes,
    values: Mapping[int, Any],
) -> list[Shape | None]:
    """Shapes of some outputs; None for a shape that depends on data.

    ``shapes`` are those of the inputs, ``values`` are those of integer scalars among them. For ints
    the result has ints, for integer scalars it is symbolic.
    """
    wanted = [inner.outputs[i] for i in outputs]
    known = _Known(inner, shapes, values)
    need_shape, need_value = _needs(inner, wanted)
    for node in inner.nodes:
        if any(v in need_shape for v in node.outputs):
            known.add_shapes(node)
        if any(v in need_value for v in node.outputs):
            known.add_values(node)
    return [known.shape(v) for v in wanted]


def _needs(inner: InnerGraph, wanted: Iterable[Variable]) -> tuple[set[Variable], set[Variable]]:
    """Variables whose shapes, and those whose values, the shapes of ``wanted`` depend on."""
    shapes, values = set(wanted), set[Variable]()
    for node in reversed(inner.nodes):
        if any(v in shapes and not _static(v) for v in node.outputs):
            shapes.update(node.inputs)
            values.update(node.inputs[i] for i in node.op.host_inputs)
        if any(v in values for v in node.outputs):
            by_shape = isinstance(node.op, ShapeI | ShapeVector)
            (shapes if by_shape else values).update(node.inputs)
    return shapes, values


class _Known:
    """Shapes and integer values found so far."""

    def __init__(self, inner: InnerGraph, shapes: Shapes, values: Mapping[int, Any]) -> None:
        self._shapes: dict[Variable, Shape] = dict(zip(inner.inputs, shapes, strict=True))
        self._values: dict[Variable, Variable] = {
            inner.inputs[i]: as_variable(value, dtype="int64") for i, value in values.items()
        }

    def shape(self, v: Variable) -> Shape | None:
        if isinstance(v, Constant):
            return tuple(v.data.shape)
        if isinstance(v.type, OpaqueType):
            return ()
        return self._shapes.get(v, v.type.shape if v.type.is_static else None)  # type: ignore[arg-type]

    def value(self, v: Variable) -> Variable | None:
        return v if isinstance(v, Constant) else self._values.get(v)

    def add_shapes(self, node: Apply) -> None:
        given = [self.shape(v) for v in node.inputs]
        host = {i: self.value(node.inputs[i]) for i in node.op.host_inputs}
        host |= {i: node.inputs[i] for i in node.op.choosing_inputs if host[i] is None}
        if any(s is None for s in given) or any(h is None for h in host.values()):
            return
        read = {i: int(h.data) if isinstance(h, Constant) else h for i, h in host.items()}
        found = node.op.shapes([v.type for v in node.inputs], given, read)  # type: ignore[arg-type]
        if found is not None:
            for v, s in zip(node.outputs, found, strict=True):
                self._shapes[v] = tuple(s)

    def add_values(self, node: Apply) -> None:
        if isinstance(node.op, ShapeI | ShapeVector):
            shape = self.shape(node.inputs[0])
            if shape is not None:
                self._values[node.outputs[0]] = _of_shape(node.op, shape)
            return
        inputs = [self.value(v) for v in node.inputs]
        if any(v is None for v in inputs):
            return
        made = node.op.make_node(*inputs)
        results: Sequence[Variable] = made.outputs
        if all(isinstance(v, Constant) for v in inputs):
            results = [Constant(a) for a in evaluate_node(made, [v.data for v in made.inputs])]  # type: ignore[attr-defined]
        self._values.update(zip(node.outputs, results, strict=True))


def _of_shape(op: ShapeI | ShapeVector, shape: Shape) -> Variable:
    if isinstance(op, ShapeI):
        return as_dim(shape[op.axis])
    dims = [as_dim(d) for d in shape]
    if all(isinstance(d, Constant) for d in dims):
        return as_variable([int(d.data) for d in dims], dtype="int64")  # type: ignore[attr-defined]
    return MakeVector("int64")(*dims)


def _static(v: Variable) -> bool:
    return not isinstance(v.type, TensorType) or v.type.is_static
