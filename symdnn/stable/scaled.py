"""Values as ``factor * exp(log)``, where the exponential may overflow or underflow its dtype.

Each op that makes such a value has a form here. Sums, products, quotients, powers, reductions and
copies of such values have this form again. The logarithm of one is ``log(factor) + log``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np

from symdnn.graph.type import float_limits
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.array.cumulative import CumProd, CumSum
from symdnn.ops.array.reduce import LogSumExp, Max, Min, Prod, Sum
from symdnn.ops.core.gradient_control import disconnected_grad
from symdnn.ops.core.shape import alloc, dims_of, dimshuffle
from symdnn.ops.elementwise.activations import Sigmoid, Softplus, softplus
from symdnn.ops.elementwise.arithmetic import (
    Abs,
    Add,
    Clip,
    Inv,
    Maximum,
    Minimum,
    Mul,
    Neg,
    Pow,
    Sqr,
    Sqrt,
    Sub,
    TrueDiv,
    abs,
    add,
    clip,
    inv,
    maximum,
    minimum,
    mul,
    neg,
    sqr,
    sqrt,
    sub,
)
from symdnn.ops.elementwise.comparison import eq, lt, neq, switch
from symdnn.ops.elementwise.math import (
    Cosh,
    Exp,
    Exp2,
    Expm1,
    Sinh,
    exp,
    expm1,
    log,
    log1p,
    logaddexp,
    sinh,
)
from symdnn.ops.elementwise.special import Erfc, log_erfc, log_half_erfc
from symdnn.ops.elemwise import like, pad_left
from symdnn.ops.nn.softmax import LogSoftmax, Softmax
from symdnn.rewriting.facts import is_nonnegative, made_by, node_of, number, real_float
from symdnn.stable.moves import moved, operands

#: The most nodes of one search, and its greatest depth, so that searches take linear time.
MAX_NODES, MAX_DEPTH_NODES = 200, 30

#: The largest argument of an exp that is computed, in nats above the largest logarithm. Only terms
#: with factor 0 can exceed it.
MAX_EXCESS_NATS = 80.0


@dataclass(frozen=True)
class Scaled:
    """``factor * exp(log)``; without a factor the value is positive.

    ``grows`` says that ``exp(log)`` may overflow, ``deep`` that it may underflow, since it comes
    from an ``exp``.
    """

    log: Variable
    factor: Variable | None = None
    grows: bool = False
    deep: bool = False

    def as_log(self) -> Variable:
        """The logarithm of the value."""
        return self.log if self.factor is None else log(self.factor) + self.log


def scaled(v: Variable) -> Scaled | None:
    """``v`` as a scaled exponential; None where it has no such form."""
    return _Search().at(v)


def scaled_pair(u: Variable, v: Variable) -> tuple[Scaled | None, Scaled | None]:
    """``u`` and ``v``, to be divided: sums of many terms are relative to their largest exponential,
    which is one variable for sums of the same exponentials.

    The logarithm of such a sum would lose what is added to 1, so :func:`scaled` adds in pairs.
    """
    search = _Search(tops={})
    return search.at(u), search.at(v)


def negated(v: Variable) -> Variable:
    """``-v``, without a double sign."""
    return node_of(v).inputs[0] if made_by(v, Neg) else neg(v)


class _Search:
    """A search for the scaled form of an expression, from its result to its inputs."""

    def __init__(self, tops: dict[frozenset[Variable], Variable] | None = None) -> None:
        self.left, self.depth = MAX_NODES, 0
        self.seen: dict[Variable, Scaled | None] = {}
        self.tops = tops

    def at(self, v: Variable) -> Scaled | None:
        if v.owner is None or not real_float(v):
            return None
        if v not in self.seen:
            self.left -= 1
            if self.left < 0 or self.depth >= MAX_DEPTH_NODES:
                return None
            self.depth += 1
            self.seen[v] = self._form(v, v.owner)
            self.depth -= 1
        return self.seen[v]

    def _form(self, v: Variable, node: Apply) -> Scaled | None:
        kind = type(node.op)
        if kind in EXPONENTIALS:
            x = node.inputs[0]
            return EXPONENTIALS[kind](
                x if x.type.dtype == v.type.dtype else x.astype(v.type.dtype), node
            )
        if kind is Add and self.tops is not None and len(terms := _terms(v)) > 2:
            return self._sum_of_terms(node, terms, self.tops)
        if kind in COMBINATIONS:
            parts = [self.at(i) for i in node.inputs]
            return COMBINATIONS[kind](node, parts) if any(p is not None for p in parts) else None
        return self._moved(v, node)

    def _sum_of_terms(
        self, node: Apply, terms: Sequence[Variable], tops: dict[frozenset[Variable], Variable]
    ) -> Scaled | None:
        parts = [self.at(t) for t in terms]
        traits = _traits(parts)
        if not any(parts) or (None in parts and not traits[0]):
            return None
        zero = like(0, node.outputs[0])
        pairs = [_split(p, t) for p, t in zip(parts, terms)]
        logs = [zero if z is None else z for z, _ in pairs]
        key = frozenset(logs)
        if key not in tops:
            tops[key] = _top(list(dict.fromkeys(logs)))
        return _relative(node.op, tops[key], logs, [f for _, f in pairs], traits)

    def _moved(self, v: Variable, node: Apply) -> Scaled | None:
        where = operands(node)
        parts = {i: self.at(node.inputs[i]) for i in where}
        if not any(p is not None for p in parts.values()):
            return None

        def log_of(i: int, part: Variable) -> Variable:
            p = parts[i]
            return part.zeros_like() if p is None else _full(p.log, part)

        def factor_of(i: int, part: Variable) -> Variable:
            p = parts[i]
            if p is None:
                return part
            return part.ones_like() if p.factor is None else _full(p.factor, part)

        index = v.index or 0
        plain = all(p is not None and p.factor is None for p in parts.values())
        factor = None if plain else moved(node, index, factor_of)
        return Scaled(moved(node, index, log_of), factor, *_traits(list(parts.values())))


def _full(part: Variable, whole: Variable) -> Variable:
    """``part`` broadcast to the shape of ``whole``, in its dtype."""
    if part.type.dtype != whole.type.dtype:
        part = part.astype(whole.type.dtype)
    if part.type.broadcastable == whole.type.broadcastable:
        return part
    return alloc(part, *dims_of(whole))


# -- ops that make an exponential -----------------------------------------------------------------

Form = Callable[[Variable, Apply], Scaled | None]


def _exp(x: Variable, node: Apply) -> Scaled | None:
    if in_bounds(x):
        return None
    return Scaled(x, None, not never_positive(x), True)


def _exp2(x: Variable, node: Apply) -> Scaled | None:
    return Scaled(x * like(math.log(2), x), None, True, True)


def _sigmoid(x: Variable, node: Apply) -> Scaled | None:
    return Scaled(-softplus(negated(x)))


def _softplus(x: Variable, node: Apply) -> Scaled | None:
    """Below -20 softplus(x) is exp(x) (1 - exp(x) / 2), up to less than a rounding error."""
    if in_bounds(x):
        return None
    edge = like(-20, x)
    low = minimum(x, edge)
    small = low - like(0.5, x) * exp(low)
    return Scaled(switch(lt(x, edge), small, log(softplus(maximum(x, edge)))))


def _softmax(x: Variable, node: Apply) -> Scaled | None:
    op: Any = node.op
    return Scaled(LogSoftmax(op.axis)(x))


def _erfc(x: Variable, node: Apply) -> Scaled | None:
    return Scaled(log_erfc(x), None, False, True)


def _expm1(x: Variable, node: Apply) -> Scaled | None:
    """``exp(max(x, 0)) sgn(x) (1 - exp(-|x|))``."""
    if in_bounds(x) or never_positive(x):
        return None
    return Scaled(maximum(x, like(0, x)), _gap(x), True, True)


def _cosh(x: Variable, node: Apply) -> Scaled | None:
    """Near 0 ``cosh(x)`` is ``1 + 2 sinh(x / 2)^2``."""
    if in_bounds(x):
        return None
    one, half = like(1, x), like(0.5, x)
    near = log1p(like(2, x) * sqr(sinh(half * clip(x, -one, one))))
    far = logaddexp(x, -x) - like(math.log(2), x)
    return Scaled(switch(lt(abs(x), one), near, far), None, True, True)


def _sinh(x: Variable, node: Apply) -> Scaled | None:
    return Scaled(-_fall(x) - like(math.log(2), x), _gap(like(2, x) * x), True, True)


def _gap(d: Variable) -> Variable:
    """``(exp(a) - exp(b)) / exp(max(a, b))`` for ``d = a - b``, with its derivatives where it is 0:
    there it is one of the branches, the one that ``maximum(a, b)`` takes."""
    fall = _fall(d)
    part = expm1(minimum(fall, like(0, fall)))  # the bound says that it is no exponential to divide
    return switch(lt(d, like(0, d)), part, -part)


def _fall(d: Variable) -> Variable:
    """``-|d|``, whose slope at 0 is -1."""
    return switch(lt(d, like(0, d)), d, -d)


EXPONENTIALS: dict[type, Form] = {
    Exp: _exp, Exp2: _exp2, Sigmoid: _sigmoid, Softplus: _softplus, Softmax: _softmax, Erfc: _erfc,
    Expm1: _expm1, Cosh: _cosh, Sinh: _sinh,
}  # fmt: skip


def in_bounds(x: Variable) -> bool:
    """Whether ``x`` is bounded by a constant, by one of these rules or by the user."""
    cut = made_by(x, Maximum, Minimum, Clip)
    return cut and any(isinstance(i, Constant) for i in node_of(x).inputs)


def never_positive(x: Variable) -> bool:
    """Whether the last op of ``x`` shows that no element is above 0."""
    if made_by(x, Neg):
        return is_nonnegative(node_of(x).inputs[0])
    if made_by(x, Mul, TrueDiv):
        a, b = node_of(x).inputs
        return (_below_zero(a) and is_nonnegative(b)) or (is_nonnegative(a) and _below_zero(b))
    return False


def _below_zero(v: Variable) -> bool:
    value = number(v)
    if value is not None:
        return bool(value < 0)
    return made_by(v, Neg) and is_nonnegative(node_of(v).inputs[0])


# -- ops that keep the form -----------------------------------------------------------------------

Parts = Sequence[Scaled | None]
Combined = Callable[[Apply, Parts], Scaled | None]


def _neg(node: Apply, parts: Parts) -> Scaled | None:
    p = _only(parts)
    return replace(p, factor=like(-1, p.log) if p.factor is None else -p.factor)


def _half_erfc(node: Apply) -> Variable | None:
    """``log(erfc(x) / 2)`` for a node ``0.5 * erfc(x)``, also behind data movement."""
    for c, v in (node.inputs, node.inputs[::-1]):
        if isinstance(c, Constant) and number(c) == 0.5:
            return _log_of_half(v)
    return None


def _log_of_half(v: Variable) -> Variable | None:
    if made_by(v, Erfc):
        (x,) = node_of(v).inputs
        return log_half_erfc(x) if x.type.dtype == v.type.dtype else None
    where = () if v.owner is None else operands(v.owner)
    parts = {i: _log_of_half(node_of(v).inputs[i]) for i in where}
    if not parts or any(p is None for p in parts.values()):
        return None
    return moved(node_of(v), v.index or 0, lambda i, part: parts[i] or part)


def _mul(node: Apply, parts: Parts) -> Scaled | None:
    if (found := _half_erfc(node)) is not None:
        return Scaled(found, None, False, True)
    (za, fa), (zb, fb) = (_split(p, v) for p, v in zip(parts, node.inputs))
    return Scaled(_joined(add, za, zb), _joined(mul, fa, fb), *_traits(parts))


def _div(node: Apply, parts: Parts) -> Scaled | None:
    (za, fa), (zb, fb) = (_split(p, v) for p, v in zip(parts, node.inputs))
    log_ = negated(zb) if za is None and zb is not None else _joined(sub, za, zb)
    factor = fa if fb is None else inv(fb) if fa is None else fa / fb
    return Scaled(log_, factor, True, _traits(parts)[1])


def _inv(node: Apply, parts: Parts) -> Scaled | None:
    p = _only(parts)
    return Scaled(negated(p.log), None if p.factor is None else inv(p.factor), True, p.deep)


def _add(node: Apply, parts: Parts) -> Scaled | None:
    traits = _traits(parts)
    if None in parts and not traits[0]:
        return None  # a sum of an exponential that cannot overflow and another value
    (za, fa), (zb, fb) = (_split(p, v) for p, v in zip(parts, node.inputs))
    if fa is not None or fb is not None or za is None or zb is None:
        return _weighted(node, (za, fa), (zb, fb), traits)
    if isinstance(node.op, Sub):
        return Scaled(maximum(za, zb), _gap(za - zb), *traits)
    if number(za) == 0 or number(zb) == 0:
        return Scaled(softplus(za if number(zb) == 0 else zb), None, *traits)
    return Scaled(logaddexp(za, zb), None, *traits)


Pair = tuple[Variable | None, Variable | None]


def _weighted(node: Apply, a: Pair, b: Pair, traits: tuple[bool, bool]) -> Scaled:
    """The sum of two terms as a multiple of the larger exponential, a constant to gradients."""
    zero = like(0, node.outputs[0])
    logs = [zero if z is None else z for z, _ in (a, b)]
    return _relative(node.op, _top(logs), logs, (a[1], b[1]), traits)


def _terms(v: Variable) -> list[Variable]:
    """What nested additions add, up to :data:`MAX_NODES`, without zeros."""
    found, left = list[Variable](), [v]
    while left:
        u = left.pop()
        if made_by(u, Add) and u.type.dtype == v.type.dtype and len(found) + len(left) < MAX_NODES:
            left += node_of(u).inputs[::-1]
        elif number(u) != 0:
            found.append(u)
    return found


def _top(logs: Sequence[Variable]) -> Variable:
    """The largest of logarithms, a constant to gradients; a finite number of infinite ones."""
    top = reduce(maximum, logs)
    most = like(float(float_limits(top.type.dtype).max), top)
    return disconnected_grad(clip(top, -most, most))


def _relative(
    op: Any,
    top: Variable,
    logs: Sequence[Variable],
    factors: Sequence[Variable | None],
    traits: tuple[bool, bool],
) -> Scaled:
    """The sum (or difference) of ``factor * exp(log)`` as a multiple of ``exp(top)``.

    No logarithm is above ``top`` but an infinite one, whose exponential stays infinite. The bound
    says that the others are no exponentials to divide.
    """
    terms, most = [], like(float(float_limits(top.type.dtype).max), top)
    for z, f in zip(logs, factors):
        e = exp(minimum(z - top, most))
        terms.append(e if f is None else f * e)
    return Scaled(top, reduce(op, _padded(terms)), *traits)


def _padded(terms: Sequence[Variable]) -> list[Variable]:
    ndim = max(t.type.ndim for t in terms)
    return [pad_left(t, ndim) for t in terms]


def _abs(node: Apply, parts: Parts) -> Scaled | None:
    p = _only(parts)
    return p if p.factor is None else replace(p, factor=abs(p.factor))


def _to_the(exponent: float, function: Callable[[Any], Variable]) -> Combined:
    """The form of a square or a root."""

    def form(node: Apply, parts: Parts) -> Scaled | None:
        p = _only(parts)
        factor = None if p.factor is None else function(p.factor)
        return replace(p, log=like(exponent, p.log) * p.log, factor=factor)

    return form


def _pow(node: Apply, parts: Parts) -> Scaled | None:
    p, exponent = parts[0], node.inputs[1]
    if p is None or parts[1] is not None or p.factor is not None:
        return None
    return Scaled(p.log * exponent.astype(p.log.type.dtype), None, True, p.deep)


def _sum(node: Apply, parts: Parts) -> Scaled | None:
    """``sum(exp(z))`` by logsumexp; with factors, their sum relative to the largest exponential."""
    op: Any = node.op
    p, x, dtype = _only(parts), node.inputs[0], node.outputs[0].type.dtype
    z = _full(p.log, x).astype(dtype)
    if p.factor is None:
        return replace(p, log=LogSumExp(op.axes, op.keepdims)(z))
    factor = _full(p.factor, x).astype(dtype)
    top = LogSumExp(op.axes, True)(switch(neq(factor, 0), z, like(-np.inf, z)))
    top = disconnected_grad(switch(eq(top, like(-np.inf, top)), like(0, top), top))
    total = op(factor * exp(minimum(z - top, like(MAX_EXCESS_NATS, z))))
    if not op.keepdims:
        top = dimshuffle(top, [i for i in range(x.type.ndim) if i not in op.axes])
    return replace(p, log=top, factor=total)


def _along(kind: type) -> Combined:
    """The form of a product, by the sum of logarithms, or of an extreme, by their extreme."""

    def form(node: Apply, parts: Parts) -> Scaled | None:
        op: Any = node.op
        p = _only(parts)
        if p.factor is not None or node.inputs[0].type.dtype != node.outputs[0].type.dtype:
            return None
        z = _full(p.log, node.inputs[0])
        if kind is Sum:
            return replace(p, log=Sum(op.axes, op.keepdims, op.dtype, op.acc_dtype)(z))
        return replace(p, log=(CumSum(op.axis) if kind is CumSum else op)(z))

    return form


COMBINATIONS: dict[type, Combined] = {
    Neg: _neg, Mul: _mul, TrueDiv: _div, Inv: _inv, Add: _add, Sub: _add, Abs: _abs,
    Sqr: _to_the(2, sqr), Sqrt: _to_the(0.5, sqrt), Pow: _pow, Sum: _sum, Prod: _along(Sum),
    CumProd: _along(CumSum), Max: _along(Max), Min: _along(Min),
}  # fmt: skip


def _only(parts: Parts) -> Scaled:
    (p,) = parts
    assert p is not None, "an operand has a scaled form"
    return p


def _split(p: Scaled | None, v: Variable) -> Pair:
    """(log, factor) of an operand; a positive constant has a logarithm."""
    if p is not None:
        return p.log, p.factor
    value = number(v)
    if value is None or not value > 0:
        return None, v
    dtype = v.type.numpy if v.type.is_float else np.dtype(np.float32)
    return Constant(np.full(v.type.shape, math.log(value), dtype)), None


def _joined(op: Any, a: Variable | None, b: Variable | None) -> Any:
    return b if a is None else a if b is None else op(a, b)


def _traits(parts: Parts) -> tuple[bool, bool]:
    """(grows, deep) of a combination."""
    some = [p for p in parts if p is not None]
    return any(p.grows for p in some), any(p.deep for p in some)
