"""Dimensions that cannot be longer than 1, such as the second one of ``x[:, :1]``.

Their size is not statically 1, since that of ``x`` may be 0. Beside a dimension that may be longer
they are meant to broadcast, as in NumPy: there the size is declared to be 1, and a call checks it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symdnn.graph.variable import Constant, Variable
from symdnn.ops.core.shape import specify_type

__all__ = ["is_short", "with_short_axes_declared"]

#: Levels of elementwise ops and views in which a slice is looked for.
_DEPTH = 6


def with_short_axes_declared(operands: Sequence[Variable]) -> Sequence[Variable]:
    """Operands of one ndim; dimensions of at most 1 are declared to be 1 beside longer ones."""
    made = list(operands)
    for axis in range(operands[0].type.ndim):
        sizes = [v.type.shape[axis] for v in operands]
        if None not in sizes or 0 in sizes:
            continue
        short = [s is None and is_short(v, axis) for v, s in zip(operands, sizes, strict=True)]
        if any(s != 1 and not at_most for s, at_most in zip(sizes, short, strict=True)):
            for k in [k for k, at_most in enumerate(short) if at_most]:
                one = [1 if d == axis else None for d in range(made[k].type.ndim)]
                made[k] = specify_type(made[k], made[k].type.with_shape(one))
    return made


def is_short(v: Variable, axis: int, depth: int = _DEPTH) -> bool:
    """Whether a dimension is of size 0 or 1 by the slice that made it."""
    size = v.type.shape[axis]
    if size is not None:
        return bool(size <= 1)
    node = v.owner
    if node is None or depth == 0:
        return False
    op: Any = node.op
    kind = type(op).__name__
    if kind == "Subtensor":
        return _slice_is_short(node.inputs, op.index, axis)
    if kind == "DimShuffle":
        source = op.pattern[axis]
        return source != "x" and is_short(node.inputs[0], source, depth - 1)
    if hasattr(op, "scalar_op"):
        return all(is_short(i, axis, depth - 1) for i in node.inputs)
    return False


def _slice_is_short(inputs: Sequence[Variable], index: Sequence[Any], axis: int) -> bool:
    """Whether the slice that makes an axis of a part has at most one element."""
    bounds = iter(inputs[1:])
    filled = [
        tuple(next(bounds) if b == "?" else b for b in e) if isinstance(e, tuple) else e
        for e in index if isinstance(e, tuple) or _skip(e, bounds)
    ]  # fmt: skip
    start, stop, step = filled[axis]
    if isinstance(start, Variable) or isinstance(stop, Variable):
        return step is None and _follows(start, stop)
    if isinstance(step, Variable) or (step is not None and step < 0):
        return False
    if stop is None:
        return bool(start == -1)
    first = start or 0
    return (first < 0) == (stop < 0) and len(range(first, stop, step or 1)) <= 1


def _skip(entry: Any, bounds: Any) -> bool:
    """An integer index has no axis; its value is passed over."""
    if entry == "?":
        next(bounds)
    return False


def _follows(start: Any, stop: Any) -> bool:
    """Whether a bound is the other one plus 1."""
    node = stop.owner if isinstance(stop, Variable) else None
    if node is None or type(node.op).__name__ != "Add" or len(node.inputs) != 2:
        return False
    ones = [i for i in node.inputs if isinstance(i, Constant) and i.data.size == 1 and i.data == 1]
    return len(ones) == 1 and start in [_uncast(i) for i in node.inputs] + list(node.inputs)


def _uncast(v: Variable) -> Variable:
    return v.owner.inputs[0] if v.owner is not None and type(v.owner.op).__name__ == "Cast" else v
