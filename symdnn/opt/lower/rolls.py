"""Rolls along several axes as one gather: each roll of its own is two copies of the whole."""

from __future__ import annotations

from typing import Any

import numpy as np

from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.array.advanced_index import AdvancedSubtensor
from symdnn.ops.array.join import Roll
from symdnn.ops.array.slices import FULL
from symdnn.rewriting.facts import made_by, node_of, number
from symdnn.rewriting.rewrite import Context, node_rewrite

__all__ = ["RULES"]


@node_rewrite(Roll, phase="lower", tags=("indexing",))
def rolls_are_one_gather(node: Apply, context: Context) -> Variable | None:
    """``roll(roll(x, 2, 0), 3, 1) -> x[i, j]``, where shifts and sizes are known, on a GPU.

    Not along the last axis, of which copies move long pieces, and a gather single elements. Along
    one axis two copies read and write the array once.
    """
    (out,) = node.outputs
    readers = context.fgraph.user_nodes(out)
    if context.target.kind != "cuda" or (len(readers) == 1 and isinstance(readers[0].op, Roll)):
        return None  # the last one of a chain replaces all of them
    shifts: dict[int, int] = {}
    v = out
    while made_by(v, Roll) and (v is out or context.only_user(v)):
        op: Any = node_of(v).op
        x, shift = node_of(v).inputs
        known = number(shift)
        if known is None or x.type.shape[op.axis] is None or op.axis == x.type.ndim - 1:
            return None
        shifts[op.axis] = shifts.get(op.axis, 0) + int(known)
        v = x
    axes = sorted(shifts)
    if len(axes) == 1 or axes != list(range(axes[0], axes[-1] + 1)):
        return None
    index = tuple("a" if d in axes else FULL for d in range(v.type.ndim))
    return AdvancedSubtensor(index)(v, *(_places(v, axes, a, shifts[a]) for a in axes))


def _places(x: Variable, axes: list[int], axis: int, shift: int) -> Constant:
    """The source of each element along an axis, as an index array beside those of other axes."""
    size = x.type.shape[axis]
    assert size is not None, "the caller asks for known sizes"
    shape = [size if a == axis else 1 for a in axes]
    return Constant(((np.arange(size) - shift) % max(size, 1)).reshape(shape))


RULES = (rolls_are_one_gather,)
