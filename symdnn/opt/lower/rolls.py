"""Rolls along several axes as one gather: each roll of its own is two copies of the whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.array.advanced_index import AdvancedSubtensor
from symdnn.ops.array.join import Roll
from symdnn.ops.array.slices import FULL
from symdnn.rewriting.facts import made_by, node_of, number
from symdnn.rewriting.rewrite import Context, node_rewrite

#: On a CPU the shortest lines that are worth looking at indices, and how much of a line may be its
#: shorter part.
_MIN_LINE, _MOST_MOVED = 64, 1 / 16


@node_rewrite(Roll, phase="lower", tags=("indexing",))
def rolls_are_one_gather(node: Apply, context: Context) -> Variable | None:
    """``roll(roll(x, 2, 0), 3, 1) -> x[i, j]``, where shifts and sizes are known.

    On a GPU not along the last axis, of which copies move long pieces, and a gather single
    elements. On a CPU a gather copies the longer part of a line, and single elements of the other
    one, which must be short. Along one axis two copies read and write the array once.
    """
    (out,) = node.outputs
    readers = context.fgraph.user_nodes(out)
    if len(readers) == 1 and isinstance(readers[0].op, Roll):
        return None  # the last one of a chain replaces all of them
    shifts: dict[int, int] = {}
    v = out
    while made_by(v, Roll) and (v is out or context.only_user(v)):
        op: Any = node_of(v).op
        x, shift = node_of(v).inputs
        known = number(shift)
        size = x.type.shape[op.axis]
        if known is None or size is None:
            return None
        if not _is_worth(context.target.kind, op.axis, x.type.shape, int(known)):
            return None
        shifts[op.axis] = shifts.get(op.axis, 0) + int(known)
        v = x
    axes = sorted(shifts)
    if len(axes) == 1 or axes != list(range(axes[0], axes[-1] + 1)):
        return None
    index = tuple("a" if d in axes else FULL for d in range(v.type.ndim))
    return AdvancedSubtensor(index)(v, *(_places(v, axes, a, shifts[a]) for a in axes))


def _is_worth(target: str, axis: int, shape: Sequence[int | None], shift: int) -> bool:
    """Whether a gather along an axis takes less time than a roll of its own."""
    line, is_last = shape[-1], axis == len(shape) - 1
    if target == "cuda":
        return not is_last
    if line is None or line < _MIN_LINE:
        return False
    return not is_last or min(shift % line, -shift % line) <= _MOST_MOVED * line


def _places(x: Variable, axes: list[int], axis: int, shift: int) -> Constant:
    """The source of each element along an axis, as an index array beside those of other axes."""
    size = x.type.shape[axis]
    assert size is not None, "the caller asks for known sizes"
    shape = [size if a == axis else 1 for a in axes]
    return Constant(((np.arange(size) - shift) % max(size, 1)).reshape(shape))


RULES = (rolls_are_one_gather,)
