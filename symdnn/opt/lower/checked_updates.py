"""Updates of shared variables by index arrays, prepared for writes in place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from symdnn.graph.variable import Apply, Variable
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor, InBounds
from symdnn.ops.array.slices import FULL, is_slice
from symdnn.rewriting.rewrite import Context, node_rewrite

__all__ = ["RULES"]


@node_rewrite(AdvancedIncSubtensor, phase="lower", tags=("inplace", "indexing"))
def update_by_index_in_place(node: Apply, context: Context) -> Variable | None:
    """The indices of a write to a shared variable are checked first.

    The write cannot fail then, so it is made in the variable's own memory, which is not copied.
    """
    op: Any = node.op
    x, y, *rest = node.inputs
    updated = any(
        user is None and context.fgraph.updates.get(i) is x
        for user, i in context.fgraph.users(node.outputs[0])
    )
    if op.in_bounds or not updated:
        return None
    arrays = op.getter().arrays
    axes = [sum(e != "x" for e in op.index[:k]) for k in arrays]
    sizes = context.shapes.dims(x)
    if any(is_slice(e) and e != FULL for e in op.index):
        return None
    checked = [InBounds()(v, sizes[a]) for v, a in zip(rest, axes)]
    out: Variable = replace(op, in_bounds=True)(x, y, *checked, *rest[len(arrays) :])
    return out


RULES = (update_by_index_in_place,)
