"""Pooling with ONNX's padding, dilations and last windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import symdnn.tensor as T
from symdnn.graph.dims import ceil_div, dim_max, dim_where
from symdnn.graph.variable import Variable
from symdnn.onnx.model.node import Node
from symdnn.onnx.ops.conv import Window, window_of
from symdnn.onnx.ops.elementwise import number
from symdnn.ops.core.shape import dims_of
from symdnn.ops.nn.pool import Pool


def _window(node: Node, x: Variable) -> Window:
    return window_of(node, node.required("kernel_shape"), dims_of(x)[2:])


def _counts(node: Node, window: Window, sizes: Sequence[Any]) -> list[tuple[Any, Any]]:
    """For each axis the number of windows, and the padding after it with which all are whole."""
    found = []
    for i, n in enumerate(sizes):
        before, after = window.pads[i]
        stride, reach = window.strides[i], (window.kernel[i] - 1) * window.dilations[i] + 1
        if not node.attribute("ceil_mode", 0) or stride == 1:
            found.append(((n + before + after - reach) // stride + 1, after))
            continue
        n = node.size(n, "a size that decides the last window")
        count = ceil_div(n + before + after - reach, stride) + 1
        behind = (count - 1) * stride >= n + before  # where the last one would begin
        count = dim_where(behind, count - 1, count)
        found.append((count, dim_max((count - 1) * stride + reach - n - before, after)))
    return found


def _plain(window: Window, counts: Sequence[tuple[Any, Any]]) -> bool:
    """Whether the pooling op has this window: no dilation, the same padding on both sides."""
    rank = len(window.kernel)
    return (
        rank <= 3
        and all(d == 1 for d in window.dilations)
        and all(b == a < k for (b, _), (_, a), k in zip(window.pads, counts, window.kernel))
        and all(isinstance(b, int) for pair in window.pads for b in pair)
    )


def _pool(x: Variable, window: Window, mode: str) -> Variable:
    pad = tuple(b for b, _ in window.pads)
    op = Pool(tuple(window.kernel), tuple(window.strides), pad, mode, True)
    return op(x)


def _surrounded(x: Variable, window: Window, counts: Any, value: Any) -> Variable:
    """``x`` with padding on each side such that all windows are whole."""
    pads = [(b, a) for (b, _), (_, a) in zip(window.pads, counts)]
    if not any(isinstance(n, Variable) or n for pair in pads for n in pair):
        return x
    return T.pad(x, [(0, 0), (0, 0), *pads], constant_values=np.asarray(value, x.type.numpy))


def _least(x: Variable) -> Any:
    dtype = x.type.numpy
    return np.iinfo(dtype).min if x.type.is_discrete else -np.inf


def _places(x: Variable, window: Window, counts: Any) -> list[Variable]:
    """For each place of the window the elements that all windows have there."""
    found = []
    for place in np.ndindex(*window.kernel):
        parts: list[Any] = [slice(None)] * 2
        for i, k in enumerate(place):
            start, stride = k * window.dilations[i], window.strides[i]
            parts.append(slice(start, start + (counts[i][0] - 1) * stride + 1, stride))
        found.append(x[tuple(parts)])
    return found


def _max_pool(node: Node) -> list[Variable]:
    x = node.x()
    window = _window(node, x)
    counts = _counts(node, window, dims_of(x)[2:])
    wants_places = len(node.wanted) > 1 and node.wanted[1]
    if not wants_places and _plain(window, counts):
        return [_pool(x, window, "max")]
    wide = _surrounded(x, window, counts, _least(x))
    if not wants_places and len(window.kernel) <= 3 and all(d == 1 for d in window.dilations):
        bare = Window(window.kernel, window.strides, None, [(0, 0)] * len(window.kernel))
        return [_cut(_pool(wide, bare, "max"), counts)]
    pieces = _places(wide, window, counts)
    best = pieces[0]
    if not wants_places:
        for piece in pieces[1:]:
            best = T.maximum(best, piece)
        return [best]
    chosen = T.argmax(T.stack(pieces), axis=0)
    for piece in pieces[1:]:
        best = T.maximum(best, piece)
    return [best, _flat_index(node, x, window, chosen)]


def _cut(y: Variable, counts: Any) -> Variable:
    parts = [slice(None)] * 2 + [slice(None, n) for n, _ in counts]
    return y[tuple(parts)]


def _flat_index(node: Node, x: Variable, window: Window, chosen: Variable) -> Variable:
    """The place of each maximum in the flattened input, from its place in the window."""
    sizes, rank = dims_of(x), len(window.kernel)
    places = np.array(list(np.ndindex(*window.kernel)), dtype=np.int64)
    coordinates: list[Variable] = []
    for i in range(rank):
        start = T.arange(dims_of(chosen)[2 + i], dtype="int64") * window.strides[i]
        start = start - window.pads[i][0]
        offset = T.constant(places[:, i] * window.dilations[i])[chosen]
        shape = [0 if k == 2 + i else "x" for k in range(x.ndim)]
        coordinates.append(start.dimshuffle(*shape) + offset)
    order = range(rank) if not node.attribute("storage_order", 0) else range(rank)[::-1]
    flat: Variable | None = None
    for i in order:
        flat = coordinates[i] if flat is None else flat * sizes[2 + i] + coordinates[i]
    assert flat is not None, "a window has a dimension"
    inner: Any = 1
    for d in sizes[2:]:
        inner = inner * d
    channel = T.arange(sizes[0] * sizes[1], dtype="int64") * inner
    lead = channel.reshape((sizes[0], sizes[1]))
    return flat + lead.dimshuffle(0, 1, *["x"] * rank)


def _average_pool(node: Node) -> Variable:
    x = node.x()
    window = _window(node, x)
    counts = _counts(node, window, dims_of(x)[2:])
    with_pad = bool(node.attribute("count_include_pad", 0))
    if _plain(window, counts) and not (with_pad and _ends_late(window, counts)):
        return _pool(x, window, "average_inc_pad" if with_pad else "average_exc_pad")
    total = _sums(_surrounded(x, window, counts, 0), window, counts)
    # What counts is the input, and its declared padding if that is wanted.
    one = T.ones((1, 1, *dims_of(x)[2:]), dtype=x.type.dtype)
    if with_pad:
        one = T.pad(one, [(0, 0), (0, 0), *window.pads], constant_values=number(x, 1))
        rest = [(0, a - p[1]) for (_, a), p in zip(counts, window.pads)]
        one = T.pad(one, [(0, 0), (0, 0), *rest], constant_values=number(x, 0))
    else:
        one = _surrounded(one, window, counts, 0)
    return total / _sums(one, window, counts)


def _ends_late(window: Window, counts: Any) -> bool:
    return any(a != p[1] for (_, a), p in zip(counts, window.pads))


def _sums(x: Variable, window: Window, counts: Any) -> Variable:
    """The sum of each window of a tensor that is padded already."""
    rank = len(window.kernel)
    if rank <= 3 and all(d == 1 for d in window.dilations):
        bare = Window(window.kernel, window.strides, None, [(0, 0)] * rank)
        return _cut(_pool(x, bare, "sum"), counts)
    pieces = _places(x, window, counts)
    total = pieces[0]
    for piece in pieces[1:]:
        total = total + piece
    return total


def _lp_pool(node: Node) -> Variable:
    x, p = node.x(), float(node.attribute("p", 2))
    window = _window(node, x)
    counts = _counts(node, window, dims_of(x)[2:])
    powers = T.pow(T.abs_(x), number(x, p))
    sums = _sums(_surrounded(powers, window, counts, 0), window, counts)
    return T.pow(sums, number(x, 1 / p))


def _global(node: Node, kind: str) -> Variable:
    x = node.x()
    axes = list(range(2, x.ndim))
    if kind == "max":
        return T.max(x, axis=axes, keepdims=True)
    if kind == "average":
        return T.mean(x, axis=axes, keepdims=True)
    p = float(node.attribute("p", 2))
    return T.pow(T.sum(T.pow(T.abs_(x), number(x, p)), axis=axes, keepdims=True), number(x, 1 / p))


def _max_unpool(node: Node) -> Variable:
    """Values at the places from which a maximum was taken, and zeros elsewhere."""
    x, places = node.x(), node.x(1).astype("int64")
    window = _window(node, x)
    own = dims_of(x)
    plain = [
        (n - 1) * s + k - b - a
        for n, s, k, (b, a) in zip(own[2:], window.strides, window.kernel, window.pads)
    ]
    inferred = [*own[:2], *plain]
    total: Any = 1
    for d in inferred:
        total = total * d
    empty = T.zeros((total,), dtype=x.type.dtype)
    y = T.set_subtensor(empty[places.flatten()], x.flatten()).reshape(tuple(inferred))
    if not node.has(2):
        return y
    # A larger shape only adds zeros: the places are those of the smallest one.
    sizes = node.sizes(2, "the output's shape")
    grown = [(0, w - d) for w, d in zip(sizes, inferred)]
    return T.pad(y, grown, constant_values=number(x, 0))


OPS: dict[str, Any] = {
    "MaxPool": _max_pool, "AveragePool": _average_pool, "LpPool": _lp_pool,
    "GlobalMaxPool": lambda node: _global(node, "max"),
    "GlobalAveragePool": lambda node: _global(node, "average"),
    "GlobalLpPool": lambda node: _global(node, "lp"), "MaxUnpool": _max_unpool,
}  # fmt: skip
