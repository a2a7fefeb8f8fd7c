"""Rolls along several axes as one gather: each roll of its own is two copies of the whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.array.advanced_index import AdvancedSubtensor
from symdnn.ops.array.join import Roll
from symdnn.ops.array.slices import FULL
from symdnn.rewriting.facts import made_by, node_of, number
from symdnn.rewriting.rewrite import Context, node_rewrite

__all__ = ["RULES", "Rolled", "rolled"]

#: On a CPU the shortest lines that are worth looking at indices, and how much of a line may be its
#: shorter part.
_MIN_LINE, _MOST_MOVED = 64, 1 / 16


class Rolled(NamedTuple):
    """A chain of rolls by known shifts: what it begins with, and how far each axis moves."""

    x: Variable
    shifts: dict[int, int]

    def gather(self) -> tuple[AdvancedSubtensor, list[Variable]]:
        """The op that selects the same elements, and its inputs."""
        axes = range(min(self.shifts), max(self.shifts) + 1)
        index = tuple("a" if d in axes else FULL for d in range(self.x.type.ndim))
        return AdvancedSubtensor(index), [self.x, *(self._places(axes, a) for a in axes)]

    def _places(self, axes: Sequence[int], axis: int) -> Constant:
        """The source of each element along an axis, as an index array beside those of others."""
        size = self.x.type.shape[axis]
        assert size is not None, "rolled asks for known sizes"
        shape = [size if a == axis else 1 for a in axes]
        places = (np.arange(size) - self.shifts.get(axis, 0)) % max(size, 1)
        return Constant(places.reshape(shape))


def rolled(out: Variable, context: Context) -> Rolled | None:
    """The chain of rolls that ends with ``out``; nothing else reads what is between them."""
    shifts, v = dict[int, int](), out
    while made_by(v, Roll) and (v is out or context.only_user(v)):
        op: Any = node_of(v).op
        x, shift = node_of(v).inputs
        known = number(shift)
        if known is None:
            break
        shifts[op.axis] = shifts.get(op.axis, 0) + int(known)
        v = x
    if not shifts or None in v.type.shape[min(shifts) : max(shifts) + 1]:
        return None
    return Rolled(v, shifts)


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
    found = rolled(out, context)
    if found is None or made_by(found.x, Roll):
        return None
    x, shifts = found
    near = len(shifts) == max(shifts) - min(shifts) + 1
    shape, kind = x.type.shape, context.target.kind
    if not near or len(shifts) == 1:
        return None
    if not all(_is_worth(kind, a, shape, shift) for a, shift in shifts.items()):
        return None
    op, inputs = found.gather()
    return op(*inputs)


def _is_worth(target: str, axis: int, shape: Sequence[int | None], shift: int) -> bool:
    """Whether a gather along an axis takes less time than a roll of its own."""
    line, is_last = shape[-1], axis == len(shape) - 1
    if target == "cuda":
        return not is_last
    if line is None or line < _MIN_LINE:
        return False
    return not is_last or min(shift % line, -shift % line) <= _MOST_MOVED * line


RULES = (rolls_are_one_gather,)
