"""Random draws. They are seeded, and each call of a function draws anew."""

from __future__ import annotations

from typing import Any

import numpy as np

import symdnn.tensor as T
from symdnn.graph.variable import Variable
from symdnn.onnx.model.node import Node
from symdnn.onnx.model.values import Value
from symdnn.ops.core.shape import dims_of
from symdnn.tensor.random import RandomStream

_SEED = 1234


def stream_of(node: Node) -> RandomStream:
    """A stream of the node's own: by its attribute ``seed``, else by its name."""
    seed = node.attribute("seed")
    if seed is None:
        number = _SEED
        for letter in node.name:
            number = (number * 31 + ord(letter)) % (1 << 31)
        return RandomStream(seed=number)
    return RandomStream(seed=int(np.float32(seed).view(np.uint32)))


def _draw(node: Node, dtype: str, sizes: Any, normal: bool) -> Variable:
    stream = stream_of(node)
    work = dtype if dtype in ("float32", "float64") else "float32"
    sizes = tuple(sizes)
    if normal:
        mean, scale = node.attribute("mean", 0.0), node.attribute("scale", 1.0)
        return stream.normal(size=sizes, avg=mean, std=scale, dtype=work).astype(dtype)
    low, high = node.attribute("low", 0.0), node.attribute("high", 1.0)
    return stream.uniform(size=sizes, low=low, high=high, dtype=work).astype(dtype)


def _of_shape(normal: bool) -> Any:
    def build(node: Node) -> Variable:
        kind = node.kind_attribute("dtype", "float32")
        return _draw(node, str(kind), node.required("shape"), normal)

    return build


def _like(normal: bool) -> Any:
    def build(node: Node) -> Variable:
        x = node.x()
        kind = node.kind_attribute("dtype", x.type.dtype)
        return _draw(node, str(kind), dims_of(x), normal)

    return build


def _bernoulli(node: Node) -> Value:
    x = node.x()
    kind = node.kind_attribute("dtype", x.type.dtype)
    draws = stream_of(node).uniform(size=tuple(dims_of(x)), dtype="float32")
    return Value((draws < x.astype("float32")).astype(str(kind)))


def _multinomial(node: Node) -> Variable:
    x, count = node.x(), int(node.attribute("sample_size", 1))
    kind = node.kind_attribute("dtype", "int32")
    rows, _ = dims_of(x)
    shares = T.cumsum(T.softmax(x.astype("float32"), axis=1), axis=1)
    draws = stream_of(node).uniform(size=(rows, count), dtype="float32")
    below = draws.dimshuffle(0, 1, "x") >= shares.dimshuffle(0, "x", 1)
    last = dims_of(x)[1] - 1
    return T.minimum(T.sum(below.astype("int64"), axis=2), last).astype(str(kind))


OPS: dict[str, Any] = {
    "RandomNormal": _of_shape(True), "RandomUniform": _of_shape(False),
    "RandomNormalLike": _like(True), "RandomUniformLike": _like(False), "Bernoulli": _bernoulli,
    "Multinomial": _multinomial,
}  # fmt: skip
