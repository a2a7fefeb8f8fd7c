"""Broadcasts are postponed: gradients of sums and means materialise no array of ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symdnn.graph.variable import Apply, Variable
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor
from symdnn.ops.array.index import IncSubtensor
from symdnn.ops.array.reduce import Reduce, Sum
from symdnn.ops.core.shape import (
    Alloc,
    DimShuffle,
    alloc,
    as_dim,
    dims_of,
    dimshuffle,
    specify_type,
)
from symdnn.ops.elementwise.arithmetic import Mul, cast
from symdnn.ops.elemwise import Elemwise, pad_left
from symdnn.opt.canonicalize.dimshuffle_rules import fields_of
from symdnn.rewriting.facts import made_by, node_of
from symdnn.rewriting.magnitudes import unless_none
from symdnn.rewriting.rewrite import Context, node_rewrite, reads

PHASE = "canonicalize"
TAGS = ("alloc",)


def alloc_value(v: Variable) -> Variable:
    """The value of an alloc, padded to the result's ndim, with size 1 where the result has it."""
    value = pad_left(node_of(v).inputs[0], v.type.ndim)
    ones = [1 if n == 1 else None for n in v.type.shape]
    return specify_type(value, v.type.with_shape(ones))


def broadcast_axes(v: Variable) -> tuple[int, ...]:
    """Axes along which the alloc ``v`` broadcasts its value."""
    pairs = zip(alloc_value(v).type.shape, v.type.shape)
    return tuple(i for i, (a, b) in enumerate(pairs) if a == 1 and b != 1)


@node_rewrite(Alloc, phase=PHASE, tags=(*TAGS, "local_useless_alloc"))
def alloc_of_own_shape(node: Apply, context: Context) -> Variable | None:
    """An alloc of the shape of its value is the value."""
    value, out = pad_left(node.inputs[0], node.outputs[0].type.ndim), node.outputs[0]
    alike = value.type.broadcastable == out.type.broadcastable
    return value if alike and context.shapes.same_shape(value, out) else None


@node_rewrite(Alloc, phase=PHASE, tags=(*TAGS, "local_alloc_of_alloc"))
def alloc_of_alloc(node: Apply, context: Context) -> Variable | None:
    """``alloc(alloc(x))`` is one alloc, where its sizes are known to agree."""
    inner, out = node.inputs[0], node.outputs[0]
    if not made_by(inner, Alloc) or not context.shapes.covers(out, inner):
        return None
    return alloc(node_of(inner).inputs[0], *node.inputs[1:])


@node_rewrite(Alloc, phase=PHASE, tags=TAGS)
def alloc_of_padded(node: Apply, context: Context) -> Variable | None:
    """Leading dimensions of size 1 need not be added before an alloc, which broadcasts."""
    value = node.inputs[0]
    if not made_by(value, DimShuffle):
        return None
    pattern, inner = node_of(value).op.pattern, node_of(value).inputs[0]
    if pattern != ("x",) * (value.type.ndim - inner.type.ndim) + tuple(range(inner.type.ndim)):
        return None
    return alloc(inner, *node.inputs[1:])


@node_rewrite(DimShuffle, phase=PHASE, tags=(*TAGS, "local_alloc_dimshuffle"), admits=reads(Alloc))
def dimshuffle_of_alloc(node: Apply, context: Context) -> Variable | None:
    """``dimshuffle(alloc(x)) -> alloc(dimshuffle(x))``: on the smaller value."""
    v = node.inputs[0]
    if not made_by(v, Alloc):
        return None
    pattern: tuple[Any, ...] = fields_of(node).pattern
    sizes = node_of(v).inputs[1:]
    value = alloc_value(v)
    if any(n != 1 for d, n in enumerate(value.type.shape) if d not in pattern):
        return None  # a dropped dimension has size 1, but the value's type does not know it
    value = dimshuffle(value, pattern)
    return alloc(value, *(1 if d == "x" else sizes[int(d)] for d in pattern))


@node_rewrite(Elemwise, phase=PHASE, tags=(*TAGS, "local_elemwise_alloc"), admits=reads(Alloc))
def alloc_beside_operand(node: Apply, context: Context) -> Variable | None:
    """An alloc beside an operand of its shape is its value: the op broadcasts by itself."""
    for i, v in enumerate(node.inputs):
        if not made_by(v, Alloc):
            continue
        others = [w for k, w in enumerate(node.inputs) if k != i]
        if all(_has_size_elsewhere(v, axis, others, context) for axis in broadcast_axes(v)):
            inputs = list(node.inputs)
            inputs[i] = alloc_value(v)
            return node.op(*inputs)
    return None


@node_rewrite(Mul, phase=PHASE, tags=(*TAGS, "local_elemwise_alloc"), admits=reads(Mul))
def alloc_in_product(node: Apply, context: Context) -> Variable | None:
    """``(alloc(x) * y) * z -> (x * y) * z``, where ``z`` has the alloc's shape."""
    for v, other in (node.inputs, node.inputs[::-1]):
        found = _without_alloc(v, other, context, 0)
        if found is not None:
            return node.op(found, other)
    return None


def _without_alloc(v: Variable, other: Variable, context: Context, depth: int) -> Variable | None:
    """The product ``v`` with the value in place of an alloc of the shape of ``other``."""
    if not made_by(v, Mul) or depth > 4:
        return None
    a, b = node_of(v).inputs
    for part, rest in ((a, b), (b, a)):
        if made_by(part, Alloc):
            axes = broadcast_axes(part)
            if axes and all(_has_size_elsewhere(part, axis, [other], context) for axis in axes):
                return node_of(v).op(alloc_value(part), rest)  # type: ignore[no-any-return]
        elif (found := _without_alloc(part, other, context, depth + 1)) is not None:
            return node_of(v).op(found, rest)  # type: ignore[no-any-return]
    return None


def _has_size_elsewhere(
    v: Variable, axis: int, others: Sequence[Variable], context: Context
) -> bool:
    size = context.shapes.dims(v)[axis]
    return any(
        w.type.shape[axis] != 1 and context.shapes.same(context.shapes.dims(w)[axis], size)
        for w in others
    )


@node_rewrite(
    Elemwise,
    phase=PHASE,
    tags=(*TAGS, "local_fill_sink", "local_alloc_elemwise"),
    admits=reads(Alloc),
)
def alloc_after_elemwise(node: Apply, context: Context) -> Variable | None:
    """``f(alloc(x)) -> alloc(f(x))``: computed before it is broadcast.

    Axes along which another operand has elements stay with the alloc inside.
    """
    for i, v in enumerate(node.inputs):
        if not made_by(v, Alloc):
            continue
        others = [w for k, w in enumerate(node.inputs) if k != i]
        spread = [a for a in broadcast_axes(v) if all(w.type.shape[a] == 1 for w in others)]
        if not spread:
            continue
        inputs, given = list(node.inputs), node_of(v).inputs[1:]
        kept = set(broadcast_axes(v)).difference(spread)
        inputs[i] = alloc_value(v)
        if kept:
            inside = [1 if a in spread else size for a, size in enumerate(given)]
            inputs[i] = alloc(inputs[i], *inside)
        small = node.op(*inputs)
        sizes = list(dims_of(small))
        for a in spread:
            sizes[a] = given[a]
        return alloc(small, *sizes)
    return None


@node_rewrite(
    IncSubtensor,
    AdvancedIncSubtensor,
    phase=PHASE,
    tags=(*TAGS, "local_useless_inc_subtensor_alloc"),
)
def alloc_into_part(node: Apply, context: Context) -> Variable | None:
    """``inc_subtensor(x[i], alloc(y)) -> inc_subtensor(x[i], y)``: the increment broadcasts."""
    x, y, *bounds = node.inputs
    if not made_by(y, Alloc):
        return None
    part = fields_of(node).getter()(x, *bounds)
    if not context.shapes.same_shape(part, y):
        return None
    return node.op(x, alloc_value(y), *bounds)


# -- reductions -----------------------------------------------------------------------------------


@node_rewrite(Sum, phase=PHASE, tags=(*TAGS, "local_sum_prod_of_alloc"))
def sum_of_alloc(node: Apply, context: Context) -> Variable | None:
    """The sum of an alloc over an axis that it broadcasts is the value times the size."""
    op, v = node.op, node.inputs[0]
    assert isinstance(op, Sum)
    if not made_by(v, Alloc) or op.keepdims or op.acc_dtype == "bool":
        return None
    spread = [a for a in broadcast_axes(v) if a in op.axes]
    if not spread:
        return None
    sizes = node_of(v).inputs[1:]
    left = [1 if a in spread else d for a, d in enumerate(sizes)]
    value = unless_none(alloc_value(v), v, spread, 0)
    once = Sum(op.axes, False, op.acc_dtype, op.acc_dtype)(alloc(value, *left))
    count: Any = as_dim(1)
    for a in spread:
        count = count * sizes[a]
    return cast(once * cast(count, op.acc_dtype), op.dtype)


@node_rewrite(Reduce, phase=PHASE, tags=(*TAGS, "local_max_of_alloc"))
def extreme_of_alloc(node: Apply, context: Context) -> Variable | None:
    """An idempotent reduction (a maximum, say) of an alloc needs one of the equal values."""
    op, v = fields_of(node), node.inputs[0]
    if not op.idempotent or not made_by(v, Alloc) or op.keepdims:
        return None
    spread = [a for a in broadcast_axes(v) if a in op.axes and v.type.shape[a]]
    if not spread:
        return None
    sizes = node_of(v).inputs[1:]
    left = [1 if a in spread else d for a, d in enumerate(sizes)]
    return op(alloc(alloc_value(v), *left))  # type: ignore[no-any-return]


RULES = [
    alloc_of_own_shape,
    alloc_of_alloc,
    alloc_of_padded,
    dimshuffle_of_alloc,
    alloc_beside_operand,
    alloc_in_product,
    alloc_after_elemwise,
    alloc_into_part,
    sum_of_alloc,
    extreme_of_alloc,
]
