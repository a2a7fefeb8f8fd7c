"""Functions of several tensors that broadcast."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

import symdnn.tensor as T
from symdnn.graph.variable import Constant, Variable
from symdnn.onnx.model.node import Node
from symdnn.ops.core.shape import dims_of


def broadcast(node: Node, function: Callable[..., Variable]) -> Variable:
    """``function`` of the two inputs; before opset 7 the second one has an axis of its own."""
    x, y = node.x(), node.x(1)
    if node.version < 7 and node.attribute("broadcast", 0) and y.ndim < x.ndim:
        axis = node.attribute("axis")
        if axis is not None:
            after = x.ndim - node.normal(axis, x.ndim) - y.ndim
            y = T.shape_padright(y, after)
    return function(*agreeing(x, y))


def agreeing(*given: Variable) -> list[Variable]:
    """Operands that broadcast: open sizes of one axis, which have different names, are equal."""
    made: list[Variable] = []
    for x in given:
        sizes: list[Any] = [None] * x.ndim
        for other in made:
            pairs = zip(reversed(x.type.names or ()), reversed(other.type.names or ()))
            for i, (a, b) in enumerate(pairs, start=1):
                if a is not None and b is not None and not a.agrees(b):
                    sizes[-i] = dims_of(other)[-i]
        differ = any(d is not None for d in sizes)
        made.append(T.specify_shape(x, sizes) if differ else x)
    return made


def _of(function: Callable[..., Variable]) -> Callable[[Node], Variable]:
    return lambda node: broadcast(node, function)


def _div(node: Node) -> Variable:
    return broadcast(node, _quotient)


def _quotient(x: Variable, y: Variable) -> Variable:
    """The quotient; that of ints is rounded towards 0."""
    if not x.type.is_discrete:
        return T.true_div(x, y)
    if x.type.dtype.startswith("uint") or (_not_negative(x) and _not_negative(y)):
        return T.int_div(x, y)
    return T.int_div(x - T.fmod(x, y), y)


def _not_negative(v: Variable) -> bool:
    """Whether an integer is known to be at least 0: a size, a number, sums and products of such."""
    if isinstance(v, Constant):
        return bool((np.asarray(v.data) >= 0).all())
    if v.owner is None or v.ndim:
        return False
    if v.owner.op.size_of is not None:
        return True
    plain = type(v.owner.op).__name__ in ("Mul", "Add", "IntDiv", "Cast", "Maximum")
    return plain and all(_not_negative(u) for u in v.owner.inputs)


def _mod(node: Node) -> Variable:
    return broadcast(node, T.fmod if node.attribute("fmod", 0) else T.mod)


def _pow(node: Node) -> Variable:
    x, y = node.x(), node.x(1)
    if x.type.is_float and y.type.dtype != x.type.dtype:
        y = y.astype(x.type.dtype)
    if x.type.is_discrete and y.type.is_discrete:
        y = y.astype("int64")
    return broadcast_pow(node, x, y)


def broadcast_pow(node: Node, x: Variable, y: Variable) -> Variable:
    """``x ** y`` in the dtype of ``x``."""
    if node.version < 7 and node.attribute("broadcast", 0):
        return broadcast(node, T.pow)
    return T.pow(*agreeing(x, y)).astype(x.type.dtype)


def _all(function: Callable[..., Variable]) -> Callable[[Node], Variable]:
    return lambda node: reduce(function, agreeing(*node.variables()))


def _mean(node: Node) -> Variable:
    given = agreeing(*node.variables())
    return reduce(T.add, given) / np.asarray(len(given), dtype=given[0].type.numpy)


def _where(node: Node) -> Variable:
    return T.switch(*agreeing(node.x(), node.x(1), node.x(2)))


def _shift(node: Node) -> Variable:
    shifts = {"LEFT": T.left_shift, "RIGHT": T.right_shift}
    direction = node.required("direction")
    if direction not in shifts:
        raise node.error(f"direction {direction!r}: wanted LEFT or RIGHT")
    return shifts[direction](node.x(), node.x(1))


OPS: dict[str, Any] = {
    "Add": _of(T.add), "Sub": _of(T.sub), "Mul": _of(T.mul), "Div": _div, "Mod": _mod, "Pow": _pow,
    "And": _of(T.and_), "Or": _of(T.or_), "Xor": _of(T.xor), "Equal": _of(T.eq),
    "Greater": _of(T.gt), "Less": _of(T.lt), "GreaterOrEqual": _of(T.ge), "LessOrEqual": _of(T.le),
    "BitwiseAnd": _of(T.and_), "BitwiseOr": _of(T.or_), "BitwiseXor": _of(T.xor),
    "BitShift": _shift, "Max": _all(T.maximum), "Min": _all(T.minimum), "Sum": _all(T.add),
    "Mean": _mean, "Where": _where,
}  # fmt: skip
