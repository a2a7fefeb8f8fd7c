"""Ops that only move elements: what is true of each element is true of the moved one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from typing import cast as as_type

from symdnn.graph.variable import Apply, Variable
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor, AdvancedSubtensor
from symdnn.ops.array.create import Diagonal
from symdnn.ops.array.index import IncSubtensor, Subtensor
from symdnn.ops.array.join import Join, Roll, Split
from symdnn.ops.array.view import Copy, ForgetShape, SpecifyShape
from symdnn.ops.core.shape import Alloc, DimShuffle, Reshape, SpecifyType
from symdnn.ops.elementwise.arithmetic import Cast, cast
from symdnn.ops.elementwise.comparison import Switch
from symdnn.ops.nn.crossentropy import PickLabel

__all__ = ["moved", "of_moved", "operands"]

#: Ops that move the elements of their first input.
_FIRST = (
    DimShuffle, Reshape, Subtensor, AdvancedSubtensor, PickLabel, Alloc, SpecifyType, SpecifyShape,
    ForgetShape, Copy, Roll, Diagonal, Split,
)  # fmt: skip
_SETS = (IncSubtensor, AdvancedIncSubtensor)


def operands(node: Apply) -> Sequence[int]:
    """Places of the inputs whose elements an op moves, or chooses from; none for other ops."""
    op: Any = node.op
    if isinstance(op, _FIRST):
        return (0,)
    if isinstance(op, Cast):
        both = node.inputs[0].type, node.outputs[0].type
        return (0,) if all(t.is_float for t in both) else ()
    if isinstance(op, Join):
        return range(len(node.inputs))
    if isinstance(op, Switch):
        return (1, 2)
    return (0, 1) if isinstance(op, _SETS) and op.set_instead_of_inc else ()


def of_moved(
    v: Variable,
    better: Callable[[Variable], Variable | None],
    plain: Callable[[Variable], Variable],
) -> Variable | None:
    """A function of ``v`` from the same of the elements that ``v`` moves.

    ``better`` gives None where it gains nothing by an operand, and ``plain`` is taken; None where
    it gains nothing by any.
    """
    if (node := v.owner) is None:
        return None
    found = {i: better(node.inputs[i]) for i in operands(node)}
    if all(part is None for part in found.values()):
        return None

    def change(i: int, operand: Variable) -> Variable:
        part = found[i]
        return plain(operand) if part is None else part

    return moved(node, v.index or 0, change)


def moved(node: Apply, index: int, change: Callable[[int, Variable], Variable]) -> Variable:
    """Output ``index`` of ``node`` on changed operands (place, operand)."""
    where = operands(node)
    inputs = [change(i, v) if i in where else v for i, v in enumerate(node.inputs)]
    if isinstance(node.op, Cast):
        return cast(inputs[0], node.outputs[0].type.dtype)
    found = as_type("Variable | tuple[Variable, ...]", node.op(*inputs))
    return found[index] if isinstance(found, tuple) else found
