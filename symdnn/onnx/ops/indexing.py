"""Slices, and what depends on values: places of elements, one-hot rows, unique elements."""

from __future__ import annotations

from typing import Any

import numpy as np

import symdnn.tensor as T
from symdnn.graph.variable import Variable
from symdnn.onnx.model.node import Node
from symdnn.onnx.ops.gather import positive
from symdnn.ops.core.shape import dims_of

#: A bound of a slice that no dimension reaches.
_BEYOND_ALL_SIZES = 1 << 31


def _slice(node: Node) -> Variable:
    x = node.x()
    if node.version < 10:
        starts, ends = list(node.required("starts")), list(node.required("ends"))
        axes, steps = node.attribute("axes"), None
    else:
        starts, ends = node.sizes(1, "the starts"), node.sizes(2, "the ends")
        axes = node.ints(3, "the axes") if node.has(3) else None
        steps = node.ints(4, "the steps") if node.has(4) else None
    axes = list(range(len(starts))) if axes is None else [node.normal(a, x.ndim) for a in axes]
    parts: list[Any] = [slice(None)] * x.ndim
    for i, a in enumerate(axes):
        step = 1 if steps is None else steps[i]
        if step == 0:
            raise node.error("a step of 0")
        parts[a] = _part(starts[i], ends[i], step)
    return x[tuple(parts)] if x.ndim else x


def _part(start: Any, end: Any, step: int) -> slice:
    """A slice of Python; bounds beyond all sizes mean an end."""
    if not isinstance(end, Variable) and abs(int(end)) >= _BEYOND_ALL_SIZES - 1:
        end = None if (end > 0) == (step > 0) else (0 if step > 0 else _BEYOND_ALL_SIZES)
    if not isinstance(start, Variable) and abs(int(start)) >= _BEYOND_ALL_SIZES - 1:
        start = None if (start > 0) == (step < 0) else (0 if step < 0 else _BEYOND_ALL_SIZES)
    return slice(start, end, step)


def _nonzero(node: Node) -> Variable:
    x = node.x()
    if x.ndim == 0:
        return T.stack(list(T.nonzero(x.reshape((1,)))))[:0]
    return T.stack(list(T.nonzero(x)))


def _compress(node: Node) -> Variable:
    x, condition = node.x(), node.x(1)
    axis = node.attribute("axis")
    if axis is None:
        x, axis = x.flatten(), 0
    (places,) = T.nonzero(condition)
    return T.take(x, places, axis=node.normal(axis, x.ndim))


def _one_hot(node: Node) -> Variable:
    indices, values = node.x(), node.x(2)
    depth = node.number(1)
    depth = depth.astype("int64") if isinstance(depth, Variable) else int(depth)
    ndim = indices.ndim + 1
    axis = node.normal(node.attribute("axis", -1), ndim)
    wide = T.expand_dims(positive(indices.astype("int64"), depth), axis)
    rows = T.arange(depth, dtype="int64")
    same = T.eq(wide, rows.dimshuffle(*[0 if i == axis else "x" for i in range(ndim)]))
    return T.switch(same, values[1], values[0])


def _reverse_sequence(node: Node) -> Variable:
    """The first ``lengths[i]`` steps of each example in reverse."""
    x, lengths = node.x(), node.x(1).astype("int64")
    time, batch = node.attribute("time_axis", 0), node.attribute("batch_axis", 1)
    steps = T.arange(dims_of(x)[time], dtype="int64")
    pair = ["x", 0] if time == 0 else [0, "x"]
    ends = lengths.dimshuffle(*pair)
    steps = steps.dimshuffle(*(pair[::-1]))
    places = T.switch(steps < ends, ends - 1 - steps, steps)
    examples = T.arange(dims_of(x)[batch], dtype="int64").dimshuffle(*pair)
    return x[(places, examples) if time == 0 else (examples, places)]


def _unique(node: Node) -> list[Variable]:
    x = node.x()
    axis = node.attribute("axis")
    if axis is None:
        x, axis = x.flatten(), 0
    else:
        axis = node.normal(axis, x.ndim)
    order, inverse, counts = _groups(node, x, axis)
    return [T.take(x, order, axis=axis), order, inverse, counts]


def _groups(node: Node, x: Variable, axis: int) -> tuple[Variable, Variable, Variable]:
    """First places of the different entries along ``axis``, the entry of each, and their counts."""
    if x.ndim > 1:
        rows = T.moveaxis(x, axis, 0)
        if any(d is None for d in rows.type.shape):
            node.settled(dims_of(rows)[next(i for i, d in enumerate(rows.type.shape) if d is None)],
                         "the sizes of entries")  # fmt: skip
        key: Any = _ranks(rows.reshape((dims_of(rows)[0], -1)))
    else:
        key = x
    found: Any = T.unique(key, True, True, True)
    _, first, inverse, counts = found
    if node.attribute("sorted", 1):
        return first, inverse.flatten(), counts
    by_place = T.argsort(first)
    rank = T.argsort(by_place)
    return first[by_place], rank[inverse.flatten()], counts[by_place]


def _ranks(rows: Variable) -> Variable:
    """For each row how many rows are before it in the order of words; equal for equal rows."""
    a, b = rows.dimshuffle(0, "x", 1), rows.dimshuffle("x", 0, 1)
    differ = T.neq(a, b)
    first = T.argmax(differ.astype("int8"), axis=2)
    n = dims_of(rows)[0]
    i = T.arange(n, dtype="int64").dimshuffle(0, "x")
    j = T.arange(n, dtype="int64").dimshuffle("x", 0)
    less = rows[j, first] < rows[i, first]
    return T.sum((less & T.any(differ, axis=2)).astype("int64"), axis=1)


def _center_crop_pad(node: Node) -> Variable:
    """The middle of ``x`` in other sizes: cut off, or with zeros around it."""
    x = node.x()
    axes = node.attribute("axes")
    axes = list(range(x.ndim)) if axes is None else [node.normal(a, x.ndim) for a in axes]
    sizes = node.ints(1, "the shape")
    parts: list[Any] = [slice(None)] * x.ndim
    pads: list[tuple[int, int]] = [(0, 0)] * x.ndim
    for a, wanted in zip(axes, sizes):
        have = x.type.shape[a]
        if have is None:
            have = int(node.settled(dims_of(x)[a], "a size"))
        if have > wanted:
            start = (have - wanted) // 2
            parts[a] = slice(start, start + wanted)
        else:
            before = (wanted - have) // 2
            pads[a] = (before, wanted - have - before)
    return T.pad(x[tuple(parts)], pads, constant_values=np.asarray(0, x.type.numpy))


OPS: dict[str, Any] = {
    "Slice": _slice, "NonZero": _nonzero, "Compress": _compress, "OneHot": _one_hot,
    "ReverseSequence": _reverse_sequence, "Unique": _unique, "CenterCropPad": _center_crop_pad,
}  # fmt: skip
