"""Updates of parts of shared variables, prepared for writes in place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from symdnn.graph.variable import Apply, Variable, as_variable
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor, InBounds
from symdnn.ops.array.index import IncSubtensor
from symdnn.ops.array.slices import FULL, is_slice
from symdnn.ops.core.shape import dimshuffle
from symdnn.ops.elementwise.arithmetic import Add, Mul, Neg, Sub
from symdnn.rewriting.facts import all_ones, is_zero, made_by, node_of
from symdnn.rewriting.rewrite import Context, node_rewrite


@node_rewrite(Add, Sub, phase="lower", tags=("indexing",))
def update_of_a_part(node: Apply, context: Context) -> Variable | None:
    """``w - rate * inc_subtensor(zeros[i], y) -> inc_subtensor(w[i], -rate * y)``.

    For an update of ``w`` itself: a step of gradient descent then reads and writes the rows of an
    embedding that were used, and no others.
    """
    pairs = [(node.inputs[0], node.inputs[1], isinstance(node.op, Sub))]
    pairs += [] if isinstance(node.op, Sub) else [(node.inputs[1], node.inputs[0], False)]
    for w, change, negative in pairs:
        found = _is_update(node, w, context) and _scaled_increment(change, context)
        if found:
            inc, factors = found
            zeros, y, *rest = inc.inputs
            if not (is_zero(zeros) and context.shapes.same_shape(w, zeros)):
                continue
            for factor in factors:
                y = y * dimshuffle(dimshuffle(factor, ()), ("x",) * y.type.ndim)
            if y.type.dtype == w.type.dtype:
                out: Variable = inc.op(w, -y if negative else y, *rest)
                return out
    return None


def _is_update(node: Apply, w: Variable, context: Context) -> bool:
    return any(
        user is None and context.fgraph.updates.get(i) is w
        for user, i in context.fgraph.users(node.outputs[0])
    )


def _scaled_increment(v: Variable, context: Context) -> tuple[Any, list[Variable]] | None:
    """The increment of which ``v`` is a multiple, and the factors, where nothing else reads it."""
    factors: list[Variable] = []
    while made_by(v, Mul, Neg) and context.only_user(v):
        one, *others = node_of(v).inputs
        if not others:
            factors.append(as_variable(np.asarray(-1, v.type.numpy)))
            v = one
            continue
        (other,) = others
        one, other = (one, other) if all_ones(one) else (other, one)
        if not all_ones(one):
            return None
        factors.append(one)
        v = other
    if not made_by(v, IncSubtensor, AdvancedIncSubtensor) or not context.only_user(v):
        return None
    inc = node_of(v)
    return None if inc.op.set_instead_of_inc else (inc, factors)


@node_rewrite(AdvancedIncSubtensor, phase="lower", tags=("inplace", "indexing"))
def update_by_index_in_place(node: Apply, context: Context) -> Variable | None:
    """The indices of a write to a shared variable are checked first.

    The write cannot fail then, so it is made in the variable's own memory, which is not copied.
    """
    op: Any = node.op
    x, y, *rest = node.inputs
    if op.in_bounds or not _is_update(node, x, context):
        return None
    arrays = op.getter().arrays
    axes = [sum(e != "x" for e in op.index[:k]) for k in arrays]
    sizes = context.shapes.dims(x)
    if any(is_slice(e) and e != FULL for e in op.index):
        return None
    checked = [InBounds()(v, sizes[a]) for v, a in zip(rest, axes)]
    out: Variable = replace(op, in_bounds=True)(x, y, *checked, *rest[len(arrays) :])
    return out


RULES = (update_of_a_part, update_by_index_in_place)
