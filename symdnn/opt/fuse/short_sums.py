"""Reductions of few elements as elementwise ops: of a stack of arrays, which is not made then, and
on a GPU sums of terms that follow from far smaller arrays, as of distances in space.

``sum((x[:, None] - y) ** 2, 2)`` of points in three dimensions is written as elementwise ops of the
columns of ``x`` and ``y``. Whoever reads it computes it again then, and no array of all pairs is
stored between its reductions and their gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from symdnn.graph.variable import Apply, Variable
from symdnn.ops.array.index import subtensor
from symdnn.ops.array.join import Join
from symdnn.ops.array.reduce import AllTrue, AnyTrue, Max, Min, Sum, Truth
from symdnn.ops.core.shape import dimshuffle
from symdnn.ops.elementwise.arithmetic import add, maximum, minimum
from symdnn.ops.elementwise.comparison import and_, or_
from symdnn.ops.elemwise import Elemwise
from symdnn.opt.fuse.groups import fusable_program
from symdnn.opt.fuse.recompute import VALUE_LIMIT_ADDITIONS, is_small
from symdnn.rewriting.facts import made_by, node_of
from symdnn.rewriting.rewrite import Context, node_rewrite, reads

__all__ = ["RULES"]

#: Terms of a sum, and elementwise nodes before it.
_MOST_TERMS, _MOST_NODES = 4, 8
#: Parts that may be read by themselves.
_MOST_PARTS = 16
#: Arrays of a stack.
_MOST_ARRAYS = 16
#: What reduces two elements.
_OF_TWO: dict[type, Callable[[Any, Any], Variable]] = {
    Sum: add, Max: maximum, Min: minimum, AllTrue: and_, AnyTrue: or_,
}  # fmt: skip
#: Where a few narrow integers are added without overflow.
_TWICE_AS_WIDE = {
    "bool": "uint8", "uint8": "uint16", "int8": "int16", "uint16": "uint32", "int16": "int32",
    "uint32": "uint64", "int32": "int64",
}  # fmt: skip


@node_rewrite(*_OF_TWO, phase="lower", tags=("fusion",), admits=reads(Join))
def reduction_of_a_stack(node: Apply, context: Context) -> Variable | None:
    """``sum(stack([a, b, c], axis), axis)`` is ``a + b + c``; also extremes and truths."""
    op: Any = node.op
    (v,) = node.inputs
    if len(op.axes) != 1 or not made_by(v, Join) or v.type.is_complex:
        return None
    (axis,), parts = op.axes, node_of(v).inputs
    stacked = node_of(v).op.axis == axis and all(p.type.shape[axis] == 1 for p in parts)
    if not stacked or len(parts) > _MOST_ARRAYS or not context.only_reader(v):
        return None
    rest = [d for d in range(v.type.ndim) if d != axis]
    # Unknown sizes that are not equal are an error of the elementwise op as they are of the stack.
    if not rest or len({p.type.broadcastable for p in parts}) > 1:
        return None
    terms = [dimshuffle(p, rest) for p in parts]
    if isinstance(op, Truth):
        terms = [op.of_one(t) for t in terms]
    elif isinstance(op, Sum):
        dtype = _added_in(op, v.type.dtype, context.target.kind)
        terms = [t.astype(dtype) for t in terms]
    total = reduce(_OF_TWO[type(op)], terms).astype(node.outputs[0].type.dtype)
    return dimshuffle(total, _with_axis(v, axis)) if op.keepdims else total


def _added_in(op: Sum, dtype: str, kind: str) -> str:
    """A dtype in which the sum is as right as in the one in which a kernel of the target adds."""
    if dtype in _TWICE_AS_WIDE and op.acc_dtype in ("int64", "uint64"):
        return _TWICE_AS_WIDE[dtype]
    return op.acc_dtype if kind == "cuda" else str(op.added_in)


def _with_axis(v: Variable, axis: int) -> list[Any]:
    """The pattern of a dimshuffle that puts a reduced axis of ``v`` back, with size 1."""
    return [d - (d > axis) if d != axis else "x" for d in range(v.type.ndim)]


@node_rewrite(Sum, phase="lower", tags=("fusion",), target="cuda", admits=reads(Elemwise))
def short_sum_of_a_broadcast(node: Apply, context: Context) -> Variable | None:
    """``sum(f(a, b), axis)`` of two to four terms is ``f(a[0], b[0]) + f(a[1], b[1]) + ...``.

    Where ``a`` and ``b`` are far smaller than ``f(a, b)``.
    """
    found = _short_axis(node, _MOST_TERMS)
    if found is None:
        return None
    (v,), (axis, terms) = node.inputs, found
    nodes = _elementwise(v, v, axis, {})
    if nodes is None or terms * sum(nodes.values()) > VALUE_LIMIT_ADDITIONS["cuda"]:
        return None
    return _added(node, axis, [_at(v, k, axis, nodes) for k in range(terms)])


@node_rewrite(Sum, phase="lower", tags=("fusion",), target="cuda")
def sum_of_parts_that_are_read(node: Apply, context: Context) -> Variable | None:
    """``sum(x, 0)`` is ``x[0] + x[1] + ...``, where most of these few parts are read anyway.

    Whoever reads them computes the sum, too: densities of a lattice, lengths of vectors.
    """
    short = _short_axis(node, _MOST_PARTS)
    (x,) = node.inputs
    if short is None or short[0] == x.type.ndim - 1:
        return None
    axis, terms = short
    rest = (slice(None),) * axis
    parts = [subtensor(x, [*rest, k]) for k in range(terms)]
    wanted = {part.owner.op for part in parts if part.owner is not None}
    found = {u.op for u in context.fgraph.user_nodes(x) if u.op in wanted}
    if 2 * len(found) < terms:
        return None
    return _added(node, axis, parts)


def _short_axis(node: Apply, most: int) -> tuple[int, int] | None:
    """The axis of a sum of two to ``most`` float32 or float64 in their dtype, and their number."""
    op: Any = node.op
    (v,) = node.inputs
    own = {v.type.dtype, op.acc_dtype, node.outputs[0].type.dtype}
    if len(op.axes) != 1 or len(own) > 1 or v.type.dtype not in ("float32", "float64"):
        return None
    (axis,) = op.axes
    terms = v.type.shape[axis] or 0
    return (axis, terms) if 1 < terms <= most else None


def _added(node: Apply, axis: int, terms: Sequence[Variable]) -> Variable:
    """The terms of a sum, one after the other, in its place."""
    total = reduce(add, terms)
    op: Any = node.op
    return dimshuffle(total, _with_axis(node.inputs[0], axis)) if op.keepdims else total


def _elementwise(
    w: Variable, v: Variable, axis: int, found: dict[Apply, int]
) -> dict[Apply, int] | None:
    """The nodes by which ``w`` follows from what is far smaller than ``v``, with their costs; None
    if it does not.

    That has a known size along the axis: a term of a longer operand would be no error.
    """
    if is_small(w, v):
        return found if w.type.shape[axis] is not None else None
    node = w.owner
    program = None if node is None else fusable_program(node)
    if node is None or program is None or len(node.outputs) > 1 or len(found) == _MOST_NODES:
        return None
    found[node] = program.cost
    whole = all(
        _elementwise(x, v, axis, found) is not None for x in node.inputs if x.owner not in found
    )
    return found if whole else None


def _at(w: Variable, k: int, axis: int, nodes: dict[Apply, int]) -> Variable:
    """The term ``k`` along an axis, without that."""
    if w.owner in nodes:
        node = node_of(w)
        made: Variable = node.op(*(_at(x, k, axis, nodes) for x in node.inputs))
        return made
    if w.type.broadcastable[axis]:
        return dimshuffle(w, [d for d in range(w.type.ndim) if d != axis])
    return subtensor(w, [slice(None)] * axis + [k])


RULES = (reduction_of_a_stack, short_sum_of_a_broadcast, sum_of_parts_that_are_read)
