"""One op for each result whose length the values decide.

In two ops the second one has a plan for each length. See :mod:`symdnn.ops.lowered.of_values`. On a
GPU elements by a mask are two again (:mod:`symdnn.opt.lower.data_sizes`), once rules have moved
what is computed of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor, AdvancedSubtensor
from symdnn.ops.array.getitem import Nonzero
from symdnn.ops.array.slices import FULL
from symdnn.ops.array.take import BincountLength
from symdnn.ops.array.view import SpecifyShape
from symdnn.ops.core.shape import Alloc
from symdnn.ops.elementwise.arithmetic import Cast
from symdnn.ops.lowered.of_values import Compressed, Counted
from symdnn.rewriting.facts import all_ones, is_zero, made_by, node_of
from symdnn.rewriting.rewrite import Context, node_rewrite


@node_rewrite(AdvancedSubtensor, phase="lower", tags=("indexing",))
def elements_by_mask(node: Apply, context: Context) -> Variable | None:
    """``x[nonzero(mask)[0]] -> Compressed(x, mask)``, also where others read the indices."""
    x, *index = node.inputs
    found = mask_behind(node, x, index, context)
    return None if found is None else Compressed(found[1])(x, found[0])


def mask_behind(
    node: Apply, x: Variable, index: Sequence[Variable], context: Context
) -> tuple[Variable, int] | None:
    """(mask, axis) of a node that reads or writes ``x`` at the places where a mask of bools along
    one axis holds; None if that is not what its index inputs say.
    """
    entries: Any = node.op.index  # type: ignore[attr-defined]
    if len(index) != 1 or entries.count("a") != 1 or any(e not in ("a", FULL) for e in entries):
        return None
    if not made_by(index[0], Nonzero) or len(node_of(index[0]).outputs) != 1:
        return None
    (mask,), axis = node_of(index[0]).inputs, entries.index("a")
    same = context.shapes.same(context.shapes.dims(x)[axis], _size(mask, context))
    return (mask, axis) if same and mask.type.dtype == "bool" else None


def _size(v: Variable, context: Context) -> Any:
    """The size of a vector: that which it is checked to have."""
    (own,) = context.shapes.dims(v)
    checked = made_by(v, SpecifyShape) and not isinstance(own, int)
    return node_of(v).inputs[1] if checked else own


@node_rewrite(AdvancedIncSubtensor, phase="lower", tags=("indexing",), target="cpu")
def counts_of_values(node: Apply, context: Context) -> Variable | None:
    """``inc_subtensor(zeros(bincount_length(x))[x], weights) -> Counted(x, weights)``."""
    op: Any = node.op
    zeros, added, index, *more = node.inputs
    if more or op.index != ("a",) or op.set_instead_of_inc or op.same_bits:
        return None
    if not made_by(zeros, Alloc) or not is_zero(zeros) or not context.only_user(zeros):
        return None
    (length,) = node_of(zeros).inputs[1:]
    if not made_by(length, BincountLength):
        return None
    x, least = node_of(length).inputs
    if index is not x and not (made_by(index, Cast) and node_of(index).inputs[0] is x):
        return None
    if isinstance(added, Constant):
        ones = added.type.dtype == "int64" and all_ones(added)
        return Counted()(x, least) if ones else None
    fits = added.type.ndim == 1 and added.type.dtype in ("float32", "float64")
    spread = added.type.broadcastable != x.type.broadcastable
    return Counted()(x, least, added) if fits and not spread else None


RULES = (elements_by_mask, counts_of_values)
