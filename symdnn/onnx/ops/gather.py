"""Elements by indices: gathers and scatters."""

from __future__ import annotations

from typing import Any

import symdnn.tensor as T
from symdnn.graph.variable import Variable
from symdnn.onnx.model.node import Node
from symdnn.ops.array.getitem import reduce_subtensor
from symdnn.ops.core.shape import dims_of


def positive(indices: Variable, size: Any) -> Variable:
    """Indices of which negative ones count from the end, from 0 on, as int64."""
    if indices.type.dtype.startswith("uint"):
        return indices.astype("int64")
    wide = indices.astype("int64")
    return T.switch(wide < 0, wide + size, wide)


def _gather(node: Node) -> Variable:
    x, indices = node.x(), node.x(1)
    axis = node.axis(x.ndim)
    known = node.value(1).array
    if known is not None and known.ndim == 0:
        place = [slice(None)] * axis + [int(known)]
        return x[tuple(place)]
    return T.take(x, indices.astype("int64"), axis=axis)


def _gather_elements(node: Node) -> Variable:
    x, indices = node.x(), node.x(1)
    axis = node.axis(x.ndim)
    return x[_places(x, indices, axis)]


def _places(x: Variable, indices: Variable, axis: int) -> tuple[Variable, ...]:
    """The index of each element that ``indices`` name along ``axis``."""
    found = []
    for i, d in enumerate(dims_of(indices)):
        if i == axis:
            found.append(positive(indices, dims_of(x)[axis]))
            continue
        along = T.arange(d, dtype="int64")
        found.append(along.dimshuffle(*[0 if k == i else "x" for k in range(indices.ndim)]))
    return tuple(found)


def _gather_nd(node: Node) -> Variable:
    x, indices = node.x(), node.x(1)
    lead = int(node.attribute("batch_dims", 0))
    depth = indices.type.shape[-1]
    if depth is None:
        depth = int(node.settled(dims_of(indices)[-1], "the length of an index"))
    sizes = dims_of(indices)
    ndim = indices.ndim - 1
    index: list[Variable] = []
    for i in range(lead):
        along = T.arange(sizes[i], dtype="int64")
        index.append(
            along.dimshuffle(*[0 if k == i else "x" for k in range(ndim)]) if ndim else along
        )
    for k in range(depth):
        index.append(positive(indices[..., k], dims_of(x)[lead + k]))
    return x[tuple(index)]


#: What a scatter does with an element and its update.
def _scattered(node: Node, x: Variable, index: tuple[Variable, ...], updates: Variable) -> Variable:
    reduction = node.attribute("reduction", "none")
    if reduction == "none":
        return T.set_subtensor(x[index], updates)
    if reduction == "add":
        return T.inc_subtensor(x[index], updates)
    if reduction not in ("mul", "max", "min"):
        raise node.error(f"reduction {reduction!r}: wanted none, add, mul, max or min")
    return reduce_subtensor(x[index], updates, reduction)


def _scatter_elements(node: Node) -> Variable:
    x, indices, updates = node.x(), node.x(1), node.x(2)
    axis = node.axis(x.ndim)
    index = _places(x, indices, axis)
    return _scattered(node, x, index, updates)


def _scatter_nd(node: Node) -> Variable:
    x, indices, updates = node.x(), node.x(1), node.x(2)
    depth = indices.type.shape[-1]
    if depth is None:
        depth = int(node.settled(dims_of(indices)[-1], "the length of an index"))
    if depth == 0:
        raise node.error("indices of no entries")
    index = tuple(positive(indices[..., k], dims_of(x)[k]) for k in range(depth))
    return _scattered(node, x, index, updates)


def _tensor_scatter(node: Node) -> Variable:
    """Updates written at a place of their own for each example: a cache of keys or values."""
    past, update = node.x(), node.x(1)
    axis = node.normal(int(node.attribute("axis", -2)), past.ndim)
    batch, n = dims_of(past)[0], dims_of(past)[axis]
    rows = T.arange(dims_of(update)[axis], dtype="int64")
    starts = node.x(2).astype("int64") if node.has(2) else T.zeros((batch,), dtype="int64")
    places = starts.dimshuffle(0, "x") + rows.dimshuffle("x", 0)
    if node.attribute("mode", "linear") == "circular":
        places = T.mod(places, n)
    order = [0, axis, *(i for i in range(1, past.ndim) if i != axis)]
    back = [order.index(i) for i in range(past.ndim)]
    examples = T.arange(batch, dtype="int64").dimshuffle(0, "x")
    moved = past.transpose(order)
    return T.set_subtensor(moved[examples, places], update.transpose(order)).transpose(back)


OPS: dict[str, Any] = {
    "Gather": _gather, "GatherElements": _gather_elements, "GatherND": _gather_nd,
    "Scatter": _scatter_elements, "ScatterElements": _scatter_elements, "ScatterND": _scatter_nd,
    "TensorScatter": _tensor_scatter,
}  # fmt: skip
