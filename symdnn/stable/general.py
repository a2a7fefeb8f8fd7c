"""Rules for all expressions with a :class:`~symdnn.stable.scaled.Scaled` form.

The other rules of this package are special cases of these with a shorter result.
"""

from __future__ import annotations

import math

from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.core.shape import DimShuffle
from symdnn.ops.elementwise.activations import Sigmoid, sigmoid, softplus
from symdnn.ops.elementwise.arithmetic import (
    Add,
    Maximum,
    Mul,
    Neg,
    Pow,
    Sqrt,
    Sub,
    TrueDiv,
    maximum,
    minimum,
    sub,
)
from symdnn.ops.elementwise.comparison import gt, switch
from symdnn.ops.elementwise.math import Exp, Expm1, Log, Log1p, Log2, Log10, exp, expm1, log, log1p
from symdnn.ops.elementwise.special import Erfc, Logit, logit
from symdnn.ops.elemwise import like
from symdnn.ops.nn.softmax import LogSoftmax, Softmax
from symdnn.rewriting.facts import made_by, node_of, number, real_float
from symdnn.rewriting.rewrite import Context, Family, reads
from symdnn.stable.complements import MAX_DEPTH_NODES, complement, one_plus
from symdnn.stable.moves import through_data_movement
from symdnn.stable.scaled import in_bounds, negated, scaled, scaled_pair

#: Ops between an average of squares and what a step is divided by.
_OF_AVERAGES = (Add, Sub, Mul, TrueDiv, Maximum, Pow, Sqrt, DimShuffle)

FAMILY = Family("stabilize", ("numerics", "stabilize"))
on = FAMILY.on


@on(Log, Log2, Log10)
def log_of_exponential(node: Apply, context: Context) -> Variable | None:
    """``log(v)`` of products, quotients, sums or elements of exponentials, without ``exp``."""
    (v,) = node.inputs
    found = _of_one_minus_exp(v)
    if found is None:
        value = scaled(v)
        found = None if value is None else value.as_log()
    if found is None or isinstance(node.op, Log):
        return found
    return found * like(1 / math.log(2 if isinstance(node.op, Log2) else 10), found)


def _of_one_minus_exp(v: Variable, depth: int = 0) -> Variable | None:
    """``log(v)`` for ``v = -expm1(x)``, also behind data movement; None for other values."""
    if made_by(v, Neg) and made_by(node_of(v).inputs[0], Expm1):
        return log_of_one_minus_exp(node_of(node_of(v).inputs[0]).inputs[0])
    if depth > MAX_DEPTH_NODES or not real_float(v):
        return None
    return through_data_movement(v, lambda u: _of_one_minus_exp(u, depth + 1), log)


def log_of_one_minus_exp(x: Variable) -> Variable | None:
    """``log(1 - exp(x))``, by that of two formulas that loses no digits (Maechler 2012)."""
    if made_by(x, LogSoftmax):
        rest = complement(exp(x))
        return None if rest is None else log(rest)
    if in_bounds(x) or not real_float(x):
        return None
    near = log(-expm1(maximum(x, like(-1, x))))
    far = log1p(-exp(minimum(x, like(-0.5, x))))
    return switch(gt(x, like(-math.log(2), x)), near, far)


@on(Log1p)
def log1p_of_exponential(node: Apply, context: Context) -> Variable | None:
    """``log1p(v)`` of exponentials, and of values that may be near -1."""
    (v,) = node.inputs
    if made_by(v, Neg):
        rest = complement(node_of(v).inputs[0])
        return None if rest is None else log(rest)
    value = scaled(v)
    if value is None or value.factor is not None or not value.grows:
        return None
    return softplus(value.log)


@on(Logit)
def logit_of_exponential(node: Apply, context: Context) -> Variable | None:
    """``logit(sigmoid(x)) -> x``, and of other exponentials the difference of two logarithms."""
    (v,) = node.inputs
    found = _logit_of_sigmoid(v)
    if found is None and scaled(v) is not None:
        found = sub(log(v), log1p(-v))
    return found


def _logit_of_sigmoid(v: Variable, depth: int = 0) -> Variable | None:
    """``x`` for ``v = sigmoid(x)``, also behind data movement; None for other values."""
    if made_by(v, Sigmoid):
        inner: Variable = node_of(v).inputs[0]
        return inner
    if depth > MAX_DEPTH_NODES or not real_float(v):
        return None
    return through_data_movement(v, lambda u: _logit_of_sigmoid(u, depth + 1), logit)


@on(TrueDiv)
def quotient_of_exponentials(node: Apply, context: Context) -> Variable | None:
    """``u / v`` where both are exponentials that may over- or underflow.

    Not for a ``v`` that is kept in range: an average that the function gives back, as of Adam, is
    in range or the state is lost; and some sums have a maximum subtracted. Logarithms would take
    all of their terms once more.
    """
    top, below = node.inputs
    if _is_of_average(below, context) or _has_maximum(below):
        return None
    a, b = scaled_pair(top, below)
    if a is None or b is None or a.log.type.dtype != b.log.type.dtype:
        return None
    if a.factor is None and (found := _share(a.log, below)) is not None:
        return found
    small = all(made_by(v, Sigmoid, Softmax, Erfc) for v in node.inputs)
    if not small and not (a.deep and b.deep):
        return None
    if a.log is b.log and a.factor is not None and b.factor is not None:
        return a.factor / b.factor
    ratio = exp(a.log - b.log)
    if a.factor is not None:
        ratio = ratio * (a.factor if b.factor is None else a.factor / b.factor)
    elif b.factor is not None:
        ratio = ratio / b.factor
    return ratio


def _is_of_average(v: Variable, context: Context) -> bool:
    """Whether ``v`` is an elementwise function of an output that adds to a variable's own value."""
    seen = [v]
    for u in seen:  # grows while it is read
        node = u.owner
        if node is None or len(seen) > MAX_DEPTH_NODES:
            continue
        if made_by(u, Add) and context.fgraph.is_output(u):
            return any(_is_plain(part) for part in node.inputs)
        seen += node.inputs if isinstance(node.op, _OF_AVERAGES) else ()
    return False


def _is_plain(v: Variable) -> bool:
    """Whether ``v`` is an input of the graph, or a multiple of one."""
    if made_by(v, Mul):
        return any(_is_plain(part) for part in node_of(v).inputs)
    return v.owner is None and not isinstance(v, Constant) and v.type.ndim > 0


def _has_maximum(v: Variable) -> bool:
    """Whether ``v`` is ``p exp(x - m) + q exp(y - m)``, where ``m`` is the maximum of x and y.

    One of the exponentials is 1 then: the sum was brought into range by whoever wrote it.
    """
    if not made_by(v, Add):
        return False
    (a, near_a), (b, near_b) = (_subtracted_maximum(part) for part in node_of(v).inputs)
    return a is not None and a is b and (near_a or near_b)


def _subtracted_maximum(v: Variable) -> tuple[Variable | None, bool]:
    """``m`` of a factor ``exp(x - m)`` of ``v``, and whether ``m`` is a maximum of this ``x``."""
    if made_by(v, Mul):
        found = [_subtracted_maximum(part) for part in node_of(v).inputs]
        return next((pair for pair in found if pair[0] is not None), (None, False))
    if made_by(v, Exp) and made_by(node_of(v).inputs[0], Sub):
        x, m = node_of(node_of(v).inputs[0]).inputs
        if made_by(m, Maximum):
            return m, any(x is part for part in node_of(m).inputs)
    return None, False


def _share(log_top: Variable, below: Variable) -> Variable | None:
    """``exp(a) / (exp(a) + exp(b))`` is the sigmoid of ``a - b``."""
    if not made_by(below, Add):
        return None
    parts = [scaled(v) for v in node_of(below).inputs]
    for this, other in (parts, parts[::-1]):
        if this is None or other is None or this.factor is not None or other.factor is not None:
            return None
        if this.log is log_top:
            return sigmoid(log_top - other.log)
    return None


# -- values near 1 --------------------------------------------------------------------------------


@on(Sub)
def one_minus(node: Apply, context: Context) -> Variable | None:
    """``1 - v`` and ``v - 1``; ``c - c v`` too."""
    a, b = node.inputs
    if isinstance(a, Constant):
        scale, rest = _multiple(a, b)
        return None if rest is None else _scaled_by(scale, complement(rest))
    if isinstance(b, Constant) and number(b) == 1:
        found = complement(a)
        return None if found is None else negated(found)
    return None


@on(Add, admits=reads(Constant))
def one_plus_negative(node: Apply, context: Context) -> Variable | None:
    """``1 + v`` for a ``v`` that may be near -1; ``c + c v`` and ``v - 1`` too."""
    for a, b in (node.inputs, node.inputs[::-1]):
        if not isinstance(a, Constant):
            continue
        if number(a) == -1:
            found = complement(b)
            return None if found is None else negated(found)
        if made_by(b, Neg):
            scale, rest = _multiple(a, node_of(b).inputs[0])
            found = None if rest is None else complement(rest)
        else:
            scale, rest = _multiple(a, b)
            found = None if rest is None else one_plus(rest)
        return _scaled_by(scale, found)
    return None


def _scaled_by(scale: Variable | None, v: Variable | None) -> Variable | None:
    return v if scale is None or v is None else scale * v


def _multiple(c: Variable, v: Variable) -> tuple[Variable | None, Variable | None]:
    """(c, u) where ``v`` is ``c u`` for the number ``c``; None for a ``c`` of 1."""
    value = number(c)
    if value is None or value == 0 or not real_float(v):
        return c, None
    if value == 1:
        return None, v
    if made_by(v, Mul):
        a, b = node_of(v).inputs
        for d, u in ((a, b), (b, a)):
            if isinstance(d, Constant) and number(d) == value:
                return like(value, v), u
    return c, None


RULES = [
    log_of_exponential,
    log1p_of_exponential,
    logit_of_exponential,
    quotient_of_exponentials,
    one_minus,
    one_plus_negative,
]
