"""Expressions as ops."""

from __future__ import annotations

import numpy as np

from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType
from symdnn.ops.control.from_graph import OpFromGraph
from tests.op_table.record import OpCase, normal

VECTOR, MATRIX = TensorType("float64", (None,)), TensorType("float64", (None, None))


def layer(x, w):
    a, b = VECTOR(), MATRIX()
    h = operator("tanh")(a.dot(b))
    return OpFromGraph([a, b], [h, h.sum() * a])(x, w)


def layer_numpy(x, w):
    h = np.tanh(x @ w)
    return h, h.sum() * x


def inlined_twice(x):
    a = VECTOR()
    square = OpFromGraph([a], [a * a], inline=True)
    return square(square(x) + 1)


CASES = [
    OpCase(
        "from_graph_layer", (OpFromGraph,), layer, (normal(3), normal(3, 2)), layer_numpy,
               options={"single": False},
    ),
    OpCase(
        "from_graph_twice", (OpFromGraph,), inlined_twice, (normal(4),), lambda x: (x * x + 1) ** 2,
               options={"single": False},
    ),
]  # fmt: skip
