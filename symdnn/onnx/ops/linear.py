"""Products of matrices, and einsum."""

from __future__ import annotations

from typing import Any

import symdnn.tensor as T
from symdnn.graph.variable import Variable
from symdnn.onnx.model.node import Node
from symdnn.onnx.ops.elementwise import number


def matmul(a: Variable, b: Variable) -> Variable:
    """The product as NumPy's ``matmul``, in the dtype of ``a``."""
    return T.matmul(a, b).astype(a.type.dtype)


def _matmul(node: Node) -> Variable:
    return matmul(node.x(), node.x(1))


def _gemm(node: Node) -> Variable:
    a, b = node.x(), node.x(1)
    a = a.T if node.attribute("transA", 0) else a
    b = b.T if node.attribute("transB", 0) else b
    alpha, beta = node.attribute("alpha", 1.0), node.attribute("beta", 1.0)
    y = T.dot(a, b).astype(a.type.dtype)
    y = y if alpha == 1 else y * number(y, alpha)
    if not node.has(2) or beta == 0:
        return y
    c = node.x(2)
    return y + (c if beta == 1 else c * number(c, beta))


def _einsum(node: Node) -> Variable:
    equation = "".join(str(node.required("equation")).split())
    return T.einsum(equation, *node.variables()).astype(node.carrier)


def _det(node: Node) -> Variable:
    return T.linalg.det(node.x())


OPS: dict[str, Any] = {"MatMul": _matmul, "Gemm": _gemm, "Einsum": _einsum, "Det": _det}
