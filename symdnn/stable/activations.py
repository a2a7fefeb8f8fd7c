"""Activation functions that users write out, as their ops: the forms of GELU."""

from __future__ import annotations

from math import pi, sqrt
from typing import TYPE_CHECKING

import numpy as np

from symdnn.graph.variable import Apply, Constant, Variable, as_variable
from symdnn.ops.core.dtype import work_dtype
from symdnn.ops.core.shape import DimShuffle
from symdnn.ops.elementwise.activations import Sigmoid, gelu
from symdnn.ops.elementwise.arithmetic import Add, Mul, Neg, Pow, Sqr, Sub, TrueDiv
from symdnn.ops.elementwise.special import Erfc
from symdnn.rewriting.facts import made_by, node_of, number, real_float
from symdnn.rewriting.rewrite import Context, Family

if TYPE_CHECKING:
    from numpy.polynomial import Polynomial
    from numpy.typing import ArrayLike

#: Ops that are followed, and the highest degree of a polynomial.
_DEPTH, _MAX_DEGREE = 8, 3
#: A user's constants may be off by so many roundings.
_ROUNDINGS = 4
_SCALE, _CUBE = sqrt(2 / pi), 0.044715
#: Of the tail of a distribution: the factor beside it and x, the polynomial in x that is its
#: argument, and whether it is the approximation. ``1 + erf(u)`` is ``erfc(-u)`` and ``1 + tanh(u)``
#: is ``2 sigmoid(2 u)`` by then.
_FORMS = {
    Erfc: (0.5, (0, -sqrt(0.5)), False),
    Sigmoid: (1.0, (0, 2 * _SCALE, 0, 2 * _SCALE * _CUBE), True),
}

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
        wanted, terms, by_tanh = form
        found = _polynomial(as_variable(node_of(tail).inputs[0]), x, _DEPTH)
        if found is not None and _is_near([factor, *found.coef], [wanted, *terms], x):
            return gelu(x, approximate=by_tanh)
    return None


def _is_near(found: ArrayLike, wanted: ArrayLike, x: Variable) -> bool:
    dtype = work_dtype(x.type.dtype)
    rtol = _ROUNDINGS * float(np.finfo(dtype).eps)
    return np.shape(found) == np.shape(wanted) and np.allclose(found, wanted, rtol, atol=0)


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


def _polynomial(v: Variable, x: Variable, depth: int) -> Polynomial | None:
    """``v`` as a polynomial in ``x``; None if it is none, or of too high a degree."""
    if v is x:
        return np.polynomial.Polynomial([0, 1])
    if (value := _single(v)) is not None:
        return np.polynomial.Polynomial([value])
    if not depth or not made_by(v, Add, Sub, Mul, Neg, TrueDiv, Sqr, Pow):
        return None
    parts = [_polynomial(as_variable(u), x, depth - 1) for u in node_of(v).inputs]
    known = [p for p in parts if p is not None]
    if len(known) < len(parts):
        return None
    found = _applied(v, *known)
    return None if found is None or found.degree() > _MAX_DEGREE else found.trim()


def _applied(v: Variable, a: Polynomial, b: Polynomial | None = None) -> Polynomial | None:
    """What the op of ``v`` makes of polynomials."""
    if b is None:
        return a * a if made_by(v, Sqr) else -a
    if made_by(v, Add):
        return a + b
    if made_by(v, Sub):
        return a - b
    if made_by(v, Mul):
        return a * b
    constant = float(b.coef[0])
    if b.degree() or not constant:
        return None
    if made_by(v, TrueDiv):
        return a / constant
    return a ** int(constant) if constant in range(1, _MAX_DEGREE + 1) else None


RULES = [gelu_written_out]
