"""What is computed of elements by a mask is computed of all elements, where that is cheap: its plan
does not depend on how many were chosen, and a GPU does not wait for their number.

``x[mask] * 2 + 1`` chooses from the result of all elements. A reduction chooses nothing: what the
mask leaves out counts as what changes no result, so ``x[x > 0].sum()`` is one pass. An addition to
elements by a mask is a choice for each element. A number of elements is the mask's sum. Modes that
look at values have no rule that computes some of elements that are left out (``before_mask``).
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from symdnn.graph.variable import Apply, Variable
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor
from symdnn.ops.array.getitem import Nonzero
from symdnn.ops.array.reduce import AllTrue, AnyTrue, LogSumExp, Max, Min, Prod, Reduce, Sum, sum
from symdnn.ops.array.view import SpecifyShape
from symdnn.ops.core.shape import Alloc, DimShuffle, ShapeI, dimshuffle
from symdnn.ops.elementwise.comparison import neq, switch
from symdnn.ops.elementwise.scalar_meaning import meaning
from symdnn.ops.elemwise import Elemwise, like, pad_left
from symdnn.ops.linalg.products import Dot
from symdnn.ops.lowered.of_values import Compressed, SomeChosen
from symdnn.ops.nest.monoid import lowest
from symdnn.opt.lower.of_values import mask_behind
from symdnn.rewriting.facts import is_zero, made_by, node_of
from symdnn.rewriting.rewrite import Context, graph_rewrite, node_rewrite, reads

#: The cost of a function, in additions, up to which it is computed of elements that are left out.
_MOST_ADDITIONS = 64
#: Bytes behind an axis up to which elements that are left out are read with the others: those are
#: in the same cache lines.
_MOST_BYTES = 64
#: On a GPU it takes longer to wait for a number, and to make a plan for it, than to read them all.
_MOST_DEVICE_BYTES = 4096


@node_rewrite(
    Elemwise, phase="lower", tags=("indexing", "before_mask"), admits=reads(Compressed)
)  # fmt: skip
def elementwise_before_mask(node: Apply, context: Context) -> Variable | None:
    """``f(x[mask], y[mask], s) -> f(x, y, s)[mask]``, of a function that is cheap."""
    chosen = next(v for v in node.inputs if made_by(v, Compressed))
    axis, mask = node_of(chosen).op.axis, node_of(chosen).inputs[1]
    found = [_whole(v, mask, axis) for v in node.inputs]
    whole, thin = [w for w in found if w is not None], _is_thin(node.outputs[0], axis, context)
    if len(whole) < len(found) or not _is_cheap(node) or not thin:
        return None
    if len({w.type.shape[axis] == 1 for v, w in zip(node.inputs, whole) if w is not v}) > 1:
        return None  # elements that would be repeated for others
    return Compressed(axis)(node.op(*whole, hints=node.hints), mask)


@node_rewrite(DimShuffle, phase="lower", tags=("indexing",), admits=reads(Compressed))
def dimshuffle_before_mask(node: Apply, context: Context) -> Variable | None:
    """``x[mask].dimshuffle(...) -> x.dimshuffle(...)[mask]``."""
    op: Any = node.op
    x, mask, axis, pattern = *_chosen(node), op.pattern
    if not _is_thin(node.outputs[0], pattern.index(axis), context):
        return None
    return Compressed(pattern.index(axis))(dimshuffle(x, pattern), mask)


@node_rewrite(
    Sum, Prod, AllTrue, AnyTrue, Max, Min, LogSumExp,
    phase="lower", tags=("indexing",), admits=reads(Compressed),
)  # fmt: skip
def reduction_by_mask(node: Apply, context: Context) -> Variable | None:
    """``x[mask].sum() -> where(mask, x, 0).sum()``, and of other reductions."""
    op: Any = node.op
    x, mask, axis = _chosen(node)
    if not _is_thin(x, axis, context) or (isinstance(op, LogSumExp) and not x.type.is_float):
        return None
    if axis not in op.axes:
        before = 0 if op.keepdims else len([a for a in op.axes if a < axis])
        return Compressed(axis - before)(op(x), mask)
    mask = _checked_by(x, axis, mask, context)
    found = op(switch(_along(mask, axis, x.type.ndim), x, like(_neutral(op, x.type.dtype), x)))
    return SomeChosen(op)(found, AnyTrue((0,))(mask)) if op.needs_elements else found


@node_rewrite(Dot, phase="lower", tags=("indexing", "before_mask"), admits=reads(Compressed))
def dot_by_mask(node: Apply, context: Context) -> Variable | None:
    """``dot(x[mask], y[mask]) -> where(mask, x * y, 0).sum()``, of vectors."""
    if any(v.type.ndim != 1 for v in node.inputs) or not made_by(node.inputs[0], Compressed):
        return None
    mask = node_of(node.inputs[0]).inputs[1]
    x, y = (_whole(v, mask, 0) for v in node.inputs)
    if x is None or y is None or (x.type.shape[0] == 1) != (y.type.shape[0] == 1):
        return None
    terms, mask = x * y, _checked_by(x, 0, mask, context)
    return sum(switch(mask, terms, like(0, terms)), dtype=node.outputs[0].type.dtype)


@node_rewrite(
    AdvancedIncSubtensor, phase="lower", tags=("indexing", "before_mask"), admits=reads(Nonzero)
)  # fmt: skip
def increment_by_mask(node: Apply, context: Context) -> Variable | None:
    """``inc_subtensor(x[mask], y[mask]) -> where(mask, x + y, x)``, or ``y`` of an assignment."""
    op: Any = node.op
    x, value, *index = node.inputs
    found = mask_behind(node, x, index, context)
    if found is None:
        return None
    mask, axis = found
    if made_by(value, Alloc):
        value = node_of(value).inputs[0]
        value = pad_left(value, x.type.ndim)
    whole = _whole(value, mask, axis)
    if whole is None or not _is_thin(x, axis, context):
        return None
    chosen, zero = _along(mask, axis, x.type.ndim), is_zero(x)
    new = whole if zero or op.set_instead_of_inc else x + whole
    full = zero and (x.type.ndim == 1 or whole is not value)
    return switch(chosen, new, like(0, x) if full else x)


@graph_rewrite("precision", tags=("indexing",))
def numbers_of_chosen(context: Context) -> None:
    """``nonzero(mask)[0].shape[0] -> mask.sum()``, where the numbers themselves are not wanted."""
    nodes = context.fgraph.toposort()
    for node in [n for n in nodes if isinstance(n.op, ShapeI) and made_by(n.inputs[0], Nonzero)]:
        made = node_of(node.inputs[0])
        (mask,) = made.inputs
        if mask.type.ndim == 1 and all(map(context.unread, made.outputs)):
            held = mask if mask.type.dtype == "bool" else neq(mask, 0)
            pair = node.outputs[0], sum(held, dtype="int64")
            context.replace([pair], "numbers_of_chosen")


def _neutral(op: Reduce, dtype: str) -> Any:
    """The element that changes no result of a reduction."""
    if isinstance(op, Max | Min):
        return lowest(dtype, isinstance(op, Max))
    return -np.inf if isinstance(op, LogSumExp) else int(isinstance(op, Prod | AllTrue))


def _chosen(node: Apply) -> tuple[Variable, Variable, int]:
    """(x, mask, axis) of the operand, elements by a mask."""
    made = node_of(node.inputs[0])
    return *made.inputs, made.op.axis


def _whole(v: Variable, mask: Variable, axis: int) -> Variable | None:
    """``w`` of an operand ``w[mask]``; the operand itself if it is the same for all elements."""
    if not made_by(v, Compressed):
        return v if v.type.shape[axis] == 1 else None
    made = node_of(v)
    same = made.op.axis == axis and _unchecked(made.inputs[1]) is _unchecked(mask)
    return made.inputs[0] if same else None


def _unchecked(mask: Variable) -> Variable:
    while made_by(mask, SpecifyShape):
        mask = node_of(mask).inputs[0]
    return mask


def _checked_by(x: Variable, axis: int, mask: Variable, context: Context) -> Variable:
    """The mask without a check of its size, where a choice from ``x`` makes the same one."""
    if not made_by(mask, SpecifyShape) or 1 in (x.type.shape[axis], mask.type.shape[0]):
        return mask
    own, wanted = node_of(mask).inputs
    if own.type.shape[0] == 1 or not context.shapes.same(wanted, context.shapes.dims(x)[axis]):
        return mask
    return own  # type: ignore[no-any-return]


def _along(mask: Variable, axis: int, ndim: int) -> Variable:
    return dimshuffle(mask, ["x"] * axis + [0] + ["x"] * (ndim - 1 - axis))


def _is_cheap(node: Apply) -> bool:
    op: Any = node.op
    program = meaning(op, tuple(v.type.dtype for v in node.inputs))
    return not op.unmergeable and program is not None and program.cost <= _MOST_ADDITIONS


def _is_thin(v: Variable, axis: int, context: Context) -> bool:
    """Whether the elements of ``v`` along the axis are of few bytes."""
    behind, on_host = v.type.shape[axis + 1 :], context.target.kind == "cpu"
    count = prod(1 if n is None else n for n in behind)
    most = _MOST_BYTES if on_host else _MOST_DEVICE_BYTES
    return not (on_host and None in behind) and count * int(v.type.numpy.itemsize) <= most


RULES = (
    elementwise_before_mask, dimshuffle_before_mask, reduction_by_mask, dot_by_mask,
    increment_by_mask, numbers_of_chosen,
)  # fmt: skip
