"""Stable forms of ``1 - v`` and ``1 + v``, where ``v`` may have been rounded to 1 or -1."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from symdnn.graph.variable import Variable
from symdnn.ops.array.reduce import sum
from symdnn.ops.elementwise.activations import Sigmoid, sigmoid
from symdnn.ops.elementwise.arithmetic import Mul, Neg, minimum, sub
from symdnn.ops.elementwise.comparison import gt, switch
from symdnn.ops.elementwise.math import Exp, Expm1, Tanh, exp, expm1
from symdnn.ops.elementwise.special import Erf, Erfc, erf, erfc
from symdnn.ops.elemwise import like
from symdnn.ops.nn.softmax import LogSoftmax, Softmax
from symdnn.rewriting.facts import made_by, node_of, number, real_float
from symdnn.stable.moves import through_data_movement
from symdnn.stable.scaled import in_bounds, negated

#: The most data movement ops between an expression and the op with a stable form.
MAX_DEPTH_NODES = 20


def complement(v: Variable, depth: int = 0) -> Variable | None:
    """A stable form of ``1 - v``; None where ``v`` has none."""
    node = v.owner
    if node is None or not real_float(v) or depth > MAX_DEPTH_NODES:
        return None
    if isinstance(node.op, Mul):
        return _one_minus_half_erfc(v)
    if made_by(v, Neg):
        return one_plus(node.inputs[0], depth + 1)
    if type(node.op) in _COMPLEMENTS:
        (x,) = node.inputs
        return _COMPLEMENTS[type(node.op)](x, v) if x.type.dtype == v.type.dtype else None
    return through_data_movement(
        v, lambda u: complement(u, depth + 1), lambda u: sub(like(1, u), u)
    )


def one_plus(v: Variable, depth: int = 0) -> Variable | None:
    """A stable form of ``1 + v``; None where ``v`` has none."""
    if not real_float(v) or v.owner is None or depth > MAX_DEPTH_NODES:
        return None
    if made_by(v, Erf):
        return erfc(negated(node_of(v).inputs[0]))
    if made_by(v, Tanh):
        return _one_plus_tanh(node_of(v).inputs[0])
    if made_by(v, Expm1):
        return exp(node_of(v).inputs[0])
    return through_data_movement(v, lambda u: one_plus(u, depth + 1), lambda u: like(1, u) + u)


def _one_minus_exp(x: Variable, v: Variable) -> Variable | None:
    if made_by(x, LogSoftmax):
        return _one_minus_probability(x, v)
    return None if in_bounds(x) else -expm1(x)


def _one_minus_half_erfc(v: Variable) -> Variable | None:
    """The other tail of the normal distribution: ``1 - erfc(x) / 2`` is ``erfc(-x) / 2``."""
    factors = node_of(v).inputs
    tails = [u for u in factors if made_by(u, Erfc)]
    halves = [u for u in factors if number(u) == 0.5]
    if len(factors) != 2 or not tails or not halves:
        return None
    found: Variable = halves[0] * erfc(negated(node_of(tails[0]).inputs[0]))
    return found


def _one_plus_tanh(x: Variable) -> Variable:
    two = like(2, x)
    return two * sigmoid(two * x)


def _one_minus_softmax(x: Variable, v: Variable) -> Variable:
    op: Any = node_of(v).op
    return _one_minus_probability(LogSoftmax(op.axis)(x), v)


def _one_minus_probability(logs: Variable, v: Variable) -> Variable:
    """For an element of a softmax that is above one half, the sum of the others."""
    op: Any = node_of(logs).op
    large = gt(logs, like(-math.log(2), logs))
    others = sum(switch(large, like(0, v), v), axis=op.axis, keepdims=True)
    return switch(large, others, like(1, v) - minimum(v, like(0.75, v)))


_COMPLEMENTS: dict[type, Callable[[Variable, Variable], Variable | None]] = {
    Sigmoid: lambda x, v: sigmoid(negated(x)),
    Exp: _one_minus_exp,
    Erf: lambda x, v: erfc(x),
    Erfc: lambda x, v: erf(x),
    Tanh: lambda x, v: _one_plus_tanh(negated(x)),
    Softmax: _one_minus_softmax,
}
