"""Activation functions that users write out, as their ops: the forms of GELU."""

from __future__ import annotations

from collections.abc import Mapping
from math import pi, sqrt

import numpy as np

from symdnn.graph.variable import Apply, Constant, Variable, as_variable
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.core.shape import DimShuffle
from symdnn.ops.elementwise.activations import Sigmoid, gelu
from symdnn.ops.elementwise.arithmetic import Add, Mul, Neg, Pow, Sqr, Sub, TrueDiv
from symdnn.ops.elementwise.special import Erfc
from symdnn.rewriting.facts import made_by, node_of, number, real_float
from symdnn.rewriting.rewrite import Context, Family

__all__ = ["RULES"]

#: Ops that are followed, and the highest power of a polynomial.
_DEPTH, _MAX_POWER = 8, 3
#: A user's constants may be off by so many roundings.
_ROUNDINGS = 4
_SCALE, _CUBE = sqrt(2 / pi), 0.044715
#: Of the tail of a distribution: the factor beside it and x, the powers of x in its argument, and
#: whether it is the approximation. ``1 + erf(u)`` is ``erfc(-u)`` and ``1 + tanh(u)`` is
#: ``2 sigmoid(2 u)`` by then.
_FORMS = {
    Erfc: (0.5, {1: -sqrt(0.5)}, False),
    Sigmoid: (1.0, {1: 2 * _SCALE, 3: 2 * _SCALE * _CUBE}, True),
}

Powers = Mapping[int, float]

FAMILY = Family("stabilize", ("numerics", "stabilize"))


@FAMILY.on(Mul, TrueDiv)
def gelu_written_out(node: Apply, context: Context) -> Variable | None:
    """``x / 2 (1 + erf(x / sqrt(2)))``, or with ``tanh(sqrt(2 / pi) (x + 0.044715 x^3))``."""
    (out,) = node.outputs
    factor, parts = _factors(out, _DEPTH)
    if len(parts) != 2 or not real_float(out):
        return None
    for x, tail in (parts, parts[::-1]):
        form = next((f for op, f in _FORMS.items() if made_by(tail, op)), None)
        if form is None or (x.type.dtype, x.type.ndim) != (out.type.dtype, out.type.ndim):
            continue
        wanted, powers, by_tanh = form
        found = _powers(as_variable(node_of(tail).inputs[0]), x, _DEPTH)
        if found is not None and _are_near({0: factor, **found}, {0: wanted, **powers}, x):
            return gelu(x, approximate=by_tanh)
    return None


def _are_near(found: Powers, wanted: Powers, x: Variable) -> bool:
    dtype = "float32" if is_narrow_float(x.type.dtype) else x.type.dtype
    rtol = _ROUNDINGS * float(np.finfo(dtype).eps)
    return {*found} == {*wanted} and all(
        abs(found[k] - w) <= rtol * abs(w) for k, w in wanted.items()
    )


def _factors(v: Variable, depth: int) -> tuple[float, list[Variable]]:
    """A product as a number and the other factors."""
    if (value := _single(v)) is not None:
        return value, []
    if not depth or not made_by(v, Mul, TrueDiv):
        return 1.0, [v]
    a, b = map(as_variable, node_of(v).inputs)
    factor, parts = _factors(a, depth - 1)
    if made_by(v, Mul):
        other, more = _factors(b, depth - 1)
        return factor * other, parts + more
    divisor = _single(b)
    return (factor / divisor, parts) if divisor else (1.0, [v])


def _single(v: Variable) -> float | None:
    """The value of a constant of one element."""
    while made_by(v, DimShuffle):
        v = as_variable(node_of(v).inputs[0])
    if not isinstance(v, Constant) or v.data.size != 1 or v.data.dtype.kind not in "iuf":
        return None
    return float(number(v))


def _powers(v: Variable, x: Variable, depth: int) -> dict[int, float] | None:
    """The factors of the powers of ``x`` in a polynomial without a constant term; None if ``v`` is
    no such polynomial."""
    found = _polynomial(v, x, depth)
    return None if found is None or found.get(0) else {k: f for k, f in found.items() if f}


def _polynomial(v: Variable, x: Variable, depth: int) -> dict[int, float] | None:
    if v is x:
        return {1: 1.0}
    if (value := _single(v)) is not None:
        return {0: value}
    if not depth or not made_by(v, Add, Sub, Mul, Neg, TrueDiv, Sqr, Pow):
        return None
    inputs = [as_variable(u) for u in node_of(v).inputs]
    a, *others = [_polynomial(u, x, depth - 1) for u in inputs]
    b = others[0] if others else {0: 1.0}
    if a is None or b is None:
        return None
    if made_by(v, Add, Sub):
        sign = 1.0 if made_by(v, Add) else -1.0
        return {k: a.get(k, 0.0) + sign * b.get(k, 0.0) for k in {**a, **b}}
    if made_by(v, Neg):
        return {k: -f for k, f in a.items()}
    if made_by(v, Mul):
        return _product(a, b)
    if made_by(v, Sqr):
        return _product(a, a)
    if {*b} != {0} or not b[0]:
        return None
    if made_by(v, TrueDiv):
        return {k: f / b[0] for k, f in a.items()}
    return _power(a, b[0])


def _product(a: Powers, b: Powers) -> dict[int, float] | None:
    found: dict[int, float] = {}
    for i, f in a.items():
        for j, g in b.items():
            found[i + j] = found.get(i + j, 0.0) + f * g
    return found if max(found) <= _MAX_POWER else None


def _power(a: Powers, exponent: float) -> dict[int, float] | None:
    if exponent not in range(1, _MAX_POWER + 1):
        return None
    found: dict[int, float] | None = {0: 1.0}
    for _ in range(int(exponent)):
        found = None if found is None else _product(found, a)
    return found


RULES = [gelu_written_out]
