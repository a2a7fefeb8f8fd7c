"""One step's op over all steps at once: what stands for it when its operands get a first dimension.

``batched`` knows elementwise ops, moves of dimensions, reductions, softmax and products; for every
other op it answers None, and the op stays in its loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from symdnn.graph.op import Op
from symdnn.graph.variable import Variable
from symdnn.ops.array.reduce import Reduce
from symdnn.ops.core.shape import DimShuffle, dims_of, reshape
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.linalg.dot import BatchedDot, Dot
from symdnn.ops.nn.softmax import AlongAxis

__all__ = ["Operand", "batched"]


@dataclass(frozen=True)
class Operand:
    """A value outside of a loop: one entry per step along dimension 0, or the same for all."""

    value: Variable
    stacked: bool

    @property
    def ndim(self) -> int:
        """Number of dimensions of an entry."""
        return int(self.value.type.ndim) - self.stacked

    @property
    def broadcastable(self) -> tuple[bool, ...]:
        """Which dimensions of an entry are statically 1."""
        return tuple(self.value.type.broadcastable[self.stacked :])


def batched(op: Op, operands: Sequence[Operand]) -> Variable | None:
    """``op`` of each entry, stacked along dimension 0; None where there is no way to write it."""
    if not any(o.stacked for o in operands):
        return None
    if isinstance(op, Elemwise):
        return _elementwise(op, operands)
    if isinstance(op, Dot):
        return _dot(*operands)
    first = operands[0]
    if isinstance(op, DimShuffle):
        moved = tuple("x" if d == "x" else int(d) + 1 for d in op.pattern)
        return DimShuffle((0, *moved))(first.value)  # type: ignore[no-any-return]
    if isinstance(op, Reduce):
        return replace(op, axes=tuple(a + 1 for a in op.axes))(first.value)  # type: ignore[no-any-return]
    if isinstance(op, AlongAxis) and op.axis >= 0 and all(o.stacked for o in operands):
        shifted: Any = replace(op, axis=op.axis + 1)
        return shifted(*(o.value for o in operands))  # type: ignore[no-any-return]
    return None


def _elementwise(op: Elemwise, operands: Sequence[Operand]) -> Variable | None:
    wide = tuple(map(all, zip(*(o.broadcastable for o in operands))))
    if not any(o.stacked and o.broadcastable == wide for o in operands):
        return None  # it would blow up: an outer product at each step, say
    values = [o.value if o.stacked else _same_for_all(o.value) for o in operands]
    return op(*values)  # type: ignore[no-any-return]


def _same_for_all(v: Variable) -> Variable:
    return v.dimshuffle("x", *range(v.type.ndim))


def _dot(x: Operand, y: Operand) -> Variable:
    if x.stacked and y.stacked:
        return _dot_of_stacks(x, y)
    if x.stacked:
        return _stack_by_one(x.value, y.value)
    if y.ndim == 1:
        return _stack_by_one(y.value, x.value.dimshuffle(*reversed(range(x.ndim))))
    left = x.value.dimshuffle("x", *(("x", 0) if x.ndim == 1 else (0, 1)))
    found = BatchedDot()(left, y.value)
    return found.dimshuffle(0, 2) if x.ndim == 1 else found  # type: ignore[no-any-return]


def _stack_by_one(x: Variable, y: Variable) -> Variable:
    """A stack of vectors or matrices by one matrix or vector: a single product."""
    if x.type.ndim == 2:
        return Dot()(x, y)  # type: ignore[no-any-return]
    steps, rows, inner = dims_of(x)
    found = Dot()(reshape(x, (steps * rows, inner)), y)
    return reshape(found, (steps, rows, *dims_of(found)[1:]))


def _dot_of_stacks(x: Operand, y: Operand) -> Variable:
    if x.ndim == 1 and y.ndim == 1:
        return (x.value * y.value).sum(axis=1)
    left = x.value if x.ndim == 2 else x.value.dimshuffle(0, "x", 1)
    right = y.value if y.ndim == 2 else y.value.dimshuffle(0, 1, "x")
    found = BatchedDot()(left, right)
    kept = [0, *([1] if x.ndim == 2 else []), *([2] if y.ndim == 2 else [])]
    return found.dimshuffle(*kept) if len(kept) < 3 else found  # type: ignore[no-any-return]
