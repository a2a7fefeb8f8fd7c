"""Ops whose results' sizes depend on data, on a GPU: a number is read, the rest stays there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symdnn.graph.variable import Apply, Variable
from symdnn.ops.array.advanced_index import AdvancedSubtensor
from symdnn.ops.array.create import full
from symdnn.ops.array.cumulative import cumsum
from symdnn.ops.array.getitem import Nonzero, getitem, set_subtensor
from symdnn.ops.array.join import concatenate
from symdnn.ops.array.reduce import sum
from symdnn.ops.array.slices import FULL
from symdnn.ops.array.sort import Unique, argsort, sort
from symdnn.ops.array.view import expand_dims, flatten, specify_shape
from symdnn.ops.core.shape import as_dim, dims_of, ones_like
from symdnn.ops.elementwise.arithmetic import cast
from symdnn.ops.elementwise.comparison import and_, eq, neq
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.lowered.of_values import ChosenCounts, ChosenPlaces, Compressed
from symdnn.rewriting.rewrite import Context, node_rewrite


@node_rewrite(Nonzero, phase="precision", tags=("fast_compile",), target="cuda")
def write_out_nonzero(node: Apply, context: Context) -> Sequence[Variable]:
    """The parts of an array are counted, and then each part has its places among the results."""
    (x,) = node.inputs
    rest, found = _places(flatten(x if x.type.dtype == "bool" else neq(x, 0), 1)), list[Variable]()
    for size in dims_of(x)[:0:-1]:
        found.append(rest % size)
        rest = rest // size
    return [rest, *reversed(found)]


def _places(mask: Variable) -> Variable:
    """The numbers of the elements of a vector of bools that are true."""
    counts = ChosenCounts()(mask)
    found: Variable = ChosenPlaces()(mask, cumsum(counts, axis=0), sum(counts))
    return found


@node_rewrite(Compressed, phase="precision", tags=("fast_compile",), target="cuda")
def write_out_compressed(node: Apply, context: Context) -> Variable:
    """``Compressed(x, mask) -> x[nonzero(mask)[0]]``.

    What is computed of ``x`` alone is computed of the elements that were chosen, in the same pass.
    """
    op: Any = node.op
    x, mask = node.inputs
    made = x.owner
    if made is not None and isinstance(made.op, Elemwise) and context.only_reader(x):
        whole = {v for v in made.inputs if v.type.shape[op.axis] != 1}
        if len(whole) == 1:
            inputs = [op(v, mask) if v in whole else v for v in made.inputs]
            computed: Variable = made.op(*inputs, hints=made.hints)
            return computed
    size = context.shapes.dims(x)[op.axis]
    if not context.shapes.same(size, context.shapes.dims(mask)[0]):
        mask = specify_shape(mask, [size])
    index = tuple("a" if d == op.axis else FULL for d in range(x.type.ndim))
    found: Variable = AdvancedSubtensor(index, in_bounds=True)(x, *Nonzero()(mask))
    return found


@node_rewrite(Unique, phase="lower", tags=("fast_compile",), target="cuda")
def write_out_unique(node: Apply, context: Context) -> Sequence[Variable] | None:
    """The elements that differ from those before them in ascending order."""
    op, (x,) = node.op, node.inputs
    assert isinstance(op, Unique)
    if op.axis is not None or x.type.is_complex:
        return None
    flat = flatten(x, 1)
    order = argsort(flat) if op.return_index or op.return_inverse else None
    ordered = sort(flat) if order is None else getitem(flat, order)
    first = _differ(ordered)
    (starts,) = Nonzero()(first)
    found, size = [getitem(ordered, starts)], as_dim(dims_of(flat)[0])
    if op.return_index and order is not None:
        found.append(getitem(order, starts))
    if op.return_inverse and order is not None:
        ranks = cumsum(cast(first, "int64"), axis=0) - 1
        found.append(set_subtensor(getitem(full(size, 0, "int64"), order), ranks))
    if op.return_counts:
        found.append(concatenate([starts, expand_dims(size, 0)])[1:] - starts)
    return found


def _differ(ordered: Variable) -> Variable:
    """Whether elements differ from those before them; NaNs, which come last, are one."""
    later, earlier = ordered[1:], ordered[:-1]
    new = neq(later, earlier)
    if ordered.type.is_float:
        new = and_(new, eq(earlier, earlier))
    return concatenate([ones_like(ordered[:1], "bool"), new])


RULES = (write_out_nonzero, write_out_compressed, write_out_unique)
