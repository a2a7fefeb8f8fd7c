"""Norms of vectors over axes."""

from __future__ import annotations

from math import isinf
from typing import Any

from symdnn.graph.names.torch_words import torch_words
from symdnn.graph.typing import AxisLike, TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.array.reduce import max, min, sum
from symdnn.ops.core.dtype import float_of, is_narrow_float
from symdnn.ops.elementwise.arithmetic import abs, cast, pow, sqr, sqrt
from symdnn.ops.elementwise.comparison import eq, neq, switch
from symdnn.ops.elemwise import like
from symdnn.options import as_number


@torch_words()
def norm(x: TensorLike, L: Any = 2, axis: AxisLike = None, keepdims: bool = False) -> Variable:
    """The L-norm over ``axis`` (None: of all elements), ``sum(|x|^L)^(1/L)``.

    ``L`` is a number: 0 counts the elements that are not zero, ``inf`` and ``-inf`` give the
    largest and smallest modulus. The gradient at 0 is 0 for L above 1. Powers of 16-bit floats are
    computed in float32: those of 300 are above the largest float16.
    """
    v = as_variable(x)
    if v.type.is_discrete:
        v = cast(v, float_of(v.type.dtype))
    if is_narrow_float(v.type.dtype):
        return cast(norm(cast(v, "float32"), L, axis, keepdims), v.type.dtype)
    if L == 2:
        return root(sum(sqr(v if not v.type.is_complex else abs(v)), axis, keepdims=keepdims))
    modulus = abs(v)
    L = as_number("norm: the order", L)
    if isinf(L):
        return max(modulus, axis, keepdims) if L > 0 else min(modulus, axis, keepdims)
    if L == 0:
        return sum(neq(modulus, 0), axis, dtype=modulus.type.dtype, keepdims=keepdims)
    if L == 1:
        return sum(modulus, axis, keepdims=keepdims)
    total = sum(pow(modulus, like(L, modulus)), axis, keepdims=keepdims)
    return root(total, L) if L > 1 else pow(total, like(1 / L, modulus))


def root(powers: Variable, L: Any = 2) -> Variable:
    """The L-th root of a sum of powers; its gradient at 0, where that of the root is infinite,
    is 0: none of the powers can be lowered."""
    # At 0 the root of 1 is taken and not used.
    zero = eq(powers, 0)
    safe = switch(zero, like(1, powers), powers)
    return switch(zero, like(0, powers), sqrt(safe) if L == 2 else pow(safe, like(1 / L, powers)))


OPERATORS = {"norm": norm}
