"""Sums with increments of zeros: the increments are made in the other term.

The gradient of a table that is read by rows, and by a product as well (tied embeddings), is a sum
of both. Zeros to scatter into would be filled, written, and read again for the sum.
"""

from __future__ import annotations

from typing import Any

from symdnn.graph.op import Op
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor
from symdnn.ops.array.slices import FULL
from symdnn.ops.elementwise.arithmetic import Add
from symdnn.ops.elemwise import Elemwise
from symdnn.rewriting.facts import is_zero, made_by, node_of
from symdnn.rewriting.rewrite import Context, node_rewrite

__all__ = ["RULES"]


@node_rewrite(Add, phase="lower", tags=("indexing", "inplace"))
def sum_with_rows_of_zeros(node: Apply, context: Context) -> Variable | None:
    """``x + inc_subtensor(zeros[i], y) -> inc_subtensor(x[i], y)`` for arrays ``i`` of rows.

    An elementwise ``x`` is left alone: it is computed with the sum, without memory of its own.
    """
    for x, v in (node.inputs, node.inputs[::-1]):
        whole = x.owner is not None and not isinstance(x.owner.op, Elemwise)
        if whole and context.only_user(x) and context.shapes.same_shape(x, v):
            found = _onto(x, v, context) if x.type.dtype == v.type.dtype else None
            if found is not None:
                return found
    return None


def _onto(x: Variable, v: Variable, context: Context) -> Variable | None:
    """The increments that make ``v`` of zeros, made of ``x`` in their place."""
    if not made_by(v, AdvancedIncSubtensor) or not context.only_user(v):
        return None
    op: Any = node_of(v).op
    base, y, *rest = node_of(v).inputs
    if not _adds_to_rows(op):
        return None
    start = x if is_zero(base) else _onto(x, base, context)
    out: Variable | None = None if start is None else op(start, y, *rest)
    return out


def _adds_to_rows(op: Op) -> bool:
    assert isinstance(op, AdvancedIncSubtensor), "the caller asks for these"
    rows = op.index[:1] == ("a",) and all(e == FULL for e in op.index[1:])
    return rows and not op.set_instead_of_inc


RULES = (sum_with_rows_of_zeros,)
