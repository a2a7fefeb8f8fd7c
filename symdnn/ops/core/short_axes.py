"""Dimensions that cannot be longer than 1, such as the second one of ``x[:, :1]``.

Their size is not statically 1, since that of ``x`` may be 0. Beside a dimension that may be longer
they are meant to broadcast, as in NumPy: there the size is declared to be 1, and a call checks it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from symdnn.config import config
from symdnn.errors import ShapeMismatch
from symdnn.graph.dims import Size, Unknown, is_size
from symdnn.graph.origin import NO_HINTS, NOWHERE, inherit, is_inherited
from symdnn.graph.type import OpaqueType
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.core.shape import ShapeI, specify_type


def with_short_axes_declared(operands: Sequence[Variable]) -> Sequence[Variable]:
    """Operands of one ndim; dimensions of at most 1 are declared to be 1 beside longer ones.

    Nodes of gradients and rewrites are left alone: what they broadcast is declared already.
    """
    short_axes = () if is_inherited() else [_short_axes(v) for v in operands]
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


def is_short(v: Variable, axis: int) -> bool:
    """Whether a dimension is of size 0 or 1, by its type or by the slice that made it."""
    size = v.type.shape[axis]
    return axis in _short_axes(v) if size is None else size <= 1


def _short_axes(v: Variable) -> tuple[int, ...]:
    """The axes of unknown size that are no longer than 1; each variable is looked at once."""
    waiting = [v]
    while waiting:
        u = waiting[-1]
        if u.short_axes is None:
            node, unknown = u.owner, _unknown(u)
            sources = _sources(node) if node and unknown else []
            if before := [w for w in sources if w.short_axes is None]:
                waiting += before
                continue
            sizes = _SizesOf(u, node, sources) if node and unknown else None
            u.short_axes = tuple([axis for axis in unknown if sizes and sizes.is_short(axis)])
        waiting.pop()
    return v.short_axes or ()


def _unknown(v: Variable) -> list[int]:
    """The axes of unknown size."""
    if isinstance(v.type, OpaqueType):
        return []
    return [k for k, d in enumerate(v.type.shape) if d is None]


def _sources(node: Apply) -> list[Variable]:
    """The operands, and of what the sizes among them are."""
    given = [node.inputs[i].owner for i in node.op.host_inputs]
    return [*node.inputs, *[n.inputs[0] for n in given if n and n.op.size_of is not None]]


class _SizesOf:
    """Which sizes of a node's result are no longer than 1."""

    def __init__(self, v: Variable, node: Apply, sources: Sequence[Variable]) -> None:
        self.v, self.node = v, node
        self.occurs = any([w.short_axes for w in sources])

    @cached_property
    def short(self) -> Size:
        """One symbol for all short sizes of operands."""
        return Size()

    def is_short(self, axis: int) -> bool:
        """By what the op says of the axis, or else because its size is one of an operand."""
        found = self.node.op.short_with(self.node.inputs, axis)
        if found is not None:
            return all([is_short(u, a) for u, a in found])
        return self.occurs and self._shape[axis] is self.short

    @cached_property
    def _shape(self) -> Sequence[Any]:
        """The sizes by the op's shape rule."""
        op, inputs = self.node.op, self.node.inputs
        unknown = (None,) * self.v.type.ndim
        sizes = [self._sizes(u) for u in inputs]
        host = {i: self._number(inputs[i]) for i in op.host_inputs}
        try:
            with inherit(NOWHERE, NO_HINTS), config.change_flags(compute_test_value="off"):
                shapes = op.shapes([u.type for u in inputs], sizes, host)
        except ShapeMismatch:
            return unknown
        assert self.v.index is not None, "an output"
        return unknown if shapes is None else shapes[self.v.index]

    def _sizes(self, u: Variable) -> tuple[Any, ...]:
        """Numbers, and symbols for unknown sizes."""
        if isinstance(u.type, OpaqueType):
            return ()
        short_axes = _short_axes(u)
        sizes = enumerate(u.type.shape)
        return tuple([self._symbol(k in short_axes) if d is None else d for k, d in sizes])

    def _number(self, u: Variable) -> Any:
        """The same for an integer on the host, which may be a size."""
        if isinstance(u, Constant):
            return int(u.data)
        node = u.owner
        if node is None or node.op.size_of is None:
            return Size() if is_size(u) else Unknown()
        return self._symbol(node.op.size_of in _short_axes(node.inputs[0]))

    def _symbol(self, short: bool) -> Size:
        return self.short if short else Size()
