"""Reductions of dimshuffles, reductions and scaled values; over no axes or axes of size 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from symdnn.graph.variable import Apply, Variable
from symdnn.ops.array.reduce import AllTrue, LogSumExp, Reduce, Sum
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.core.shape import DimShuffle, dimshuffle
from symdnn.ops.elementwise.arithmetic import Mul, Neg, TrueDiv
from symdnn.ops.elementwise.comparison import Eq, eq
from symdnn.ops.elemwise import like
from symdnn.rewriting.facts import all_ones, is_constant, made_by, node_of, number, real_float
from symdnn.rewriting.magnitudes import movable, unless_none
from symdnn.rewriting.rewrite import Context, node_rewrite, reads

PHASE = "canonicalize"
TAGS = ("reduce",)


def _op(node: Apply) -> Any:
    return node.op


@node_rewrite(Reduce, phase=PHASE, tags=(*TAGS, "local_reduce_broadcastable"))
def reduce_over_ones(node: Apply, context: Context) -> Variable | None:
    """Axes of size 1 are dropped instead of reduced; a reduction over no axes is its input."""
    op, x = _op(node), node.inputs[0]
    if op.keepdims:
        return None
    ones = [a for a in op.axes if x.type.shape[a] == 1]
    rest = [a for a in op.axes if a not in ones]
    kept = [d for d in range(x.type.ndim) if d not in ones]
    if rest and ones:
        return replace(op, axes=tuple(kept.index(a) for a in rest))(dimshuffle(x, kept))  # type: ignore[no-any-return]
    if rest or not op.keeps_one:
        return None
    return op.of_one(dimshuffle(x, kept))  # type: ignore[no-any-return]


@node_rewrite(
    Reduce, phase=PHASE, tags=(*TAGS, "local_sum_prod_dimshuffle"), admits=reads(DimShuffle)
)
def reduce_of_dimshuffle(node: Apply, context: Context) -> Variable | None:
    """``reduce(dimshuffle(x)) -> dimshuffle(reduce(x))``: the dimshuffle has fewer elements."""
    op, v = _op(node), node.inputs[0]
    if op.keepdims or not made_by(v, DimShuffle):
        return None
    pattern, x = node_of(v).op.pattern, node_of(v).inputs[0]
    axes = [int(pattern[a]) for a in op.axes if pattern[a] != "x"]
    if not (op.any_order or _in_order(axes, x)) or not (axes or op.keeps_one):
        return None
    left = [d for a, d in enumerate(pattern) if a not in op.axes]
    kept = [d for d in range(x.type.ndim) if d not in axes]
    reduced = replace(op, axes=tuple(sorted(axes)))(x) if axes else op.of_one(x)
    return dimshuffle(reduced, ["x" if d == "x" else kept.index(int(d)) for d in left])


def _in_order(axes: Sequence[int], x: Variable) -> bool:
    """Whether ``axes`` of ``x`` are reduced in the order of its dimensions, ignoring size 1."""
    wide = [a for a in axes if x.type.shape[a] != 1]
    return wide == sorted(wide)


@node_rewrite(Reduce, phase=PHASE, tags=(*TAGS, "local_op_of_op"), admits=reads(Reduce))
def reduce_of_reduce(node: Apply, context: Context) -> Variable | None:
    """A sum of a sum (a maximum of a maximum, ...) is one reduction over both sets of axes."""
    op, v = _op(node), node.inputs[0]
    if op.keepdims or not op.in_parts or not made_by(v, type(op)):
        return None
    inner, x = node_of(v).op, node_of(v).inputs[0]
    if inner.keepdims or replace(inner, axes=()) != replace(op, axes=()):
        return None
    if v.type.dtype != node.outputs[0].type.dtype:
        return None
    kept = [d for d in range(x.type.ndim) if d not in inner.axes]
    axes = sorted({*inner.axes, *(kept[a] for a in op.axes)})
    return replace(op, axes=tuple(axes))(x)  # type: ignore[no-any-return]


@node_rewrite(
    Sum, phase=PHASE, tags=(*TAGS, "local_sum_prod_mul_by_scalar"), admits=reads(Mul, TrueDiv)
)
def sum_of_multiple(node: Apply, context: Context) -> Variable | None:
    """``sum(a * x) -> a * sum(x)`` and ``sum(x / a) -> sum(x) / a`` for one element ``a``."""
    op, v = node.op, node.inputs[0]
    assert isinstance(op, Sum)
    if not _plain_sum(op, v) or not made_by(v, Mul, TrueDiv):
        return None
    first, second = node_of(v).inputs
    if made_by(v, Mul) and _factor(first, second):
        return op(second) * unless_none(dimshuffle(first, ()), second, op.axes, 0)
    if made_by(v, Mul) and _factor(second, first):
        return op(first) * unless_none(dimshuffle(second, ()), first, op.axes, 0)
    if made_by(v, TrueDiv) and _factor(second, first):
        return op(first) / unless_none(dimshuffle(second, ()), first, op.axes, 1)
    return None


def _plain_sum(op: Sum, v: Variable) -> bool:
    # float16 might overflow in a sum of values that the factor would have scaled down.
    dtypes = {op.dtype, op.acc_dtype, v.type.dtype}
    return not op.keepdims and len(dtypes) == 1 and not is_narrow_float(op.dtype)


def _factor(a: Variable, x: Variable) -> bool:
    if not all_ones(a) or all_ones(x) or is_constant(x) or a.type.dtype != x.type.dtype:
        return False
    return movable(a)


@node_rewrite(Sum, phase=PHASE, tags=(*TAGS, "local_sum_prod_neg"), admits=reads(Neg))
def sum_of_neg(node: Apply, context: Context) -> Variable | None:
    """``sum(-x) -> -sum(x)``."""
    op, v = node.op, node.inputs[0]
    assert isinstance(op, Sum)
    if not made_by(v, Neg) or op.keepdims or v.type.dtype != op.dtype:
        return None
    return -op(node_of(v).inputs[0])


@node_rewrite(Eq, phase=PHASE, tags=TAGS, admits=reads(LogSumExp))
def no_exponential_is_asked(node: Apply, context: Context) -> Variable | None:
    """``eq(logsumexp(x), -inf) -> all(eq(x, -inf))``, which needs no exponentials.

    Only where nothing else reads the sum: a gradient asks it whether a softmax is NaN.
    """
    for total, bound in (node.inputs, node.inputs[::-1]):
        if made_by(total, LogSumExp) and number(bound) == -np.inf and context.only_reader(total):
            op, x = node_of(total).op, node_of(total).inputs[0]
            return AllTrue(op.axes, op.keepdims)(eq(x, like(-np.inf, x))) if real_float(x) else None
    return None


RULES = [
    reduce_over_ones, reduce_of_dimshuffle, reduce_of_reduce, sum_of_multiple, sum_of_neg,
    no_exponential_is_asked,
]  # fmt: skip
