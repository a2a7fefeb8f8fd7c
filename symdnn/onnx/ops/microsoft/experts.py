"""Layers of which each row uses a few experts, of ``com.microsoft``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import symdnn.tensor as T
from symdnn.graph.variable import Variable
from symdnn.onnx.model.node import Node
from symdnn.onnx.ops.elementwise import number
from symdnn.onnx.ops.microsoft.known import known
from symdnn.ops.core.shape import dims_of

#: ONNX Runtime's gelu here is the one by tanh.
_ACTIVATIONS: dict[str, Callable[[Variable], Variable]] = {
    "relu": T.nnet.relu, "gelu": lambda x: T.nnet.gelu(x, approximate="tanh"),
    "silu": T.nnet.silu, "identity": lambda x: x,
}  # fmt: skip


def _experts(node: Node) -> Variable:
    """Two dense layers of each expert, and the sum of the best experts' results.

    All experts are computed for all rows: which are used follows from data.
    """
    x, scores, first, second = (node.x(i) for i in (0, 1, 2, 4))
    rows = x.reshape((-1, dims_of(x)[-1]))
    h = _of_each(rows.dimshuffle("x", 0, 1), first, node.x(3) if node.has(3) else None)
    y = _of_each(_activated(node, h), second, node.x(5) if node.has(5) else None)
    weights = _weights(node, scores).T.dimshuffle(0, 1, "x")
    return (weights * y).sum(axis=0).reshape(dims_of(x))


def _of_each(x: Variable, w: Variable, b: Variable | None) -> Variable:
    """A dense layer of each expert: (experts, rows, features)."""
    y = T.matmul(x, w.transpose((0, 2, 1)))
    return y if b is None else y + b.dimshuffle(0, "x", 1)


def _activated(node: Node, h: Variable) -> Variable:
    kind = node.attribute("activation_type", "relu")
    if kind in _ACTIVATIONS:
        return _ACTIVATIONS[kind](h)
    if kind != "swiglu" or node.attribute("swiglu_fusion", 0) != 1:
        raise node.error(f"its activation {kind!r}, or how its gates lie, is not known")
    gate, line = h[:, :, ::2], h[:, :, 1::2]
    if node.attribute("swiglu_limit") is not None:
        most = number(h, node.attribute("swiglu_limit"))
        gate, line = T.minimum(gate, most), T.clip(line, -most, most)
    slope, shift = node.attribute("activation_alpha", 1.0), node.attribute("activation_beta", 0.0)
    return gate * T.nnet.sigmoid(number(h, slope) * gate) * (line + number(h, shift))


def _weights(node: Node, scores: Variable) -> Variable:
    """The weight of each expert for each row: its probability; 0 if it is not among the best."""
    best = T.argtopk(scores, int(node.attribute("k", 1)), axis=1)
    places = T.arange(dims_of(scores)[1]).dimshuffle("x", "x", 0)
    is_best = T.eq(best.dimshuffle(0, 1, "x"), places).any(axis=1)
    weights = T.nnet.softmax(scores, axis=-1) * is_best.astype(scores.type.dtype)
    if not node.attribute("normalize_routing_weights", 0):
        return weights
    return weights / weights.sum(axis=1, keepdims=True)


OPS: dict[str, Any] = {
    "MoE": known(
        _experts, 6, "k activation_type normalize_routing_weights swiglu_fusion swiglu_limit "
        "activation_alpha activation_beta",
    ),
}  # fmt: skip
