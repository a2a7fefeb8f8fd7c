"""Dimensions that cannot be longer than 1, such as the second one of ``x[:, :1]``.

Their size is not statically 1, since that of ``x`` may be 0. Beside a dimension that may be longer
they are meant to broadcast, as in NumPy: there the size is declared to be 1, and a call checks it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symdnn.graph.variable import Variable
from symdnn.ops.core.shape import ShapeI, specify_type

__all__ = ["is_short", "with_short_axes_declared", "with_short_axes_for"]

#: Levels of elementwise ops and views in which a slice is looked for.
_DEPTH = 6


def with_short_axes_declared(operands: Sequence[Variable]) -> Sequence[Variable]:
    """Operands of one ndim; dimensions of at most 1 are declared to be 1 beside longer ones."""
    short_axes = [_short_axes(v) for v in operands]
    if not any(short_axes):
        return operands
    made = list(operands)
    for axis in sorted({axis for axes in short_axes for axis in axes}):
        sizes = [v.type.shape[axis] for v in operands]
        short = [axis in axes for axes in short_axes]
        if 0 not in sizes and any(s != 1 and not at_most for s, at_most in zip(sizes, short)):
            for k in [k for k, at_most in enumerate(short) if at_most]:
                one = [1 if d == axis else None for d in range(made[k].type.ndim)]
                made[k] = specify_type(made[k], made[k].type.with_shape(one))
    return made


def with_short_axes_for(v: Variable, shape: Sequence[Variable | int]) -> Variable:
    """``v``, which is to fill ``shape``, with dimensions of at most 1 declared to be 1."""
    sizes = shape[max(len(shape) - v.type.ndim, 0) :]
    filled = [
        1 if s is None and is_short(v, axis) and not _is_own(n, v, axis) else s
        for axis, (s, n) in enumerate(zip(v.type.shape, sizes))
    ]
    same = filled == list(v.type.shape[: len(filled)])
    return v if same else specify_type(v, v.type.with_shape(filled))


def _is_own(n: Variable | int, v: Variable, axis: int) -> bool:
    """Whether a size is 0, or that which the dimension has."""
    node = n.owner if isinstance(n, Variable) else None
    if node is None or not isinstance(node.op, ShapeI):
        return isinstance(n, int) and n == 0
    return node.op.axis == axis and node.inputs[0] is v


def is_short(v: Variable, axis: int, depth: int = _DEPTH) -> bool:
    """Whether a dimension is of size 0 or 1, by its type or by the slice that made it."""
    size = v.type.shape[axis]
    return axis in _short_axes(v, depth) if size is None else size <= 1


def _short_axes(v: Variable, depth: int = _DEPTH) -> tuple[int, ...]:
    """The axes of unknown size that are no longer than 1, as far as ``depth`` new levels show."""
    if v.short_axes is not None or depth == 0:
        return v.short_axes or ()
    unknown = () if v.owner is None else [k for k, d in enumerate(v.type.shape) if d is None]
    v.short_axes = tuple([axis for axis in unknown if _made_short(v.owner, axis, depth)])
    return v.short_axes


def _made_short(node: Any, axis: int, depth: int) -> bool:
    found = node.op.short_with(node.inputs, axis)
    return found is not None and all([is_short(u, a, depth - 1) for u, a in found])
