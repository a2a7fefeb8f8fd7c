"""Data movement: elementwise functions commute with ops that only copy elements."""

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

#: Ops whose results are elements of their first input.
_COPIES_OF_FIRST_INPUT = (
    DimShuffle, Reshape, Subtensor, AdvancedSubtensor, PickLabel, Alloc, SpecifyType, SpecifyShape,
    ForgetShape, Copy, Roll, Diagonal, Split,
)  # fmt: skip
#: Ops that write their second input into their first, where they set and do not increment.
_SUBTENSOR_WRITES = (IncSubtensor, AdvancedIncSubtensor)


def operands(node: Apply) -> Sequence[int]:
    """Indices of the inputs of which a data movement op copies elements; none for other ops."""
    op: Any = node.op
    if isinstance(op, _COPIES_OF_FIRST_INPUT):
        return (0,)
    if isinstance(op, Cast):
        both = node.inputs[0].type, node.outputs[0].type
        return (0,) if all(t.is_float for t in both) else ()
    if isinstance(op, Join):
        return range(len(node.inputs))
    if isinstance(op, Switch):
        return (1, 2)
    return (0, 1) if isinstance(op, _SUBTENSOR_WRITES) and op.set_instead_of_inc else ()


def through_data_movement(
    v: Variable,
    better: Callable[[Variable], Variable | None],
    plain: Callable[[Variable], Variable],
) -> Variable | None:
    """An elementwise function of ``v``, applied to the operands of the data movement before it.

    ``better`` gives a stable form for an operand, or None; then ``plain`` is used. The result is
    None if no operand has a stable form.
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
    """Output ``index`` of the data movement ``node`` on operands ``change(i, operand)``."""
    where = operands(node)
    inputs = [change(i, v) if i in where else v for i, v in enumerate(node.inputs)]
    if isinstance(node.op, Cast):
        return cast(inputs[0], node.outputs[0].type.dtype)
    found = as_type("Variable | tuple[Variable, ...]", node.op(*inputs))
    return found[index] if isinstance(found, tuple) else found
