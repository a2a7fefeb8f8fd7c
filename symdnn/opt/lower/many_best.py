"""Orders without a whole sort: the best of many elements, and ranks.

Top-k of many elements is a partition: a CPU's kernel inserts each of the best among the others,
which takes longer than to part a line and sort a part of it. A GPU does not sort a permutation: it
writes the inverse's elements, or what they would gather, where they belong.
"""

from __future__ import annotations

from math import log, prod
from typing import Any

import numpy as np

from symdnn.graph.operators import operator
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.array.advanced_index import AdvancedSubtensor
from symdnn.ops.array.create import arange
from symdnn.ops.array.order_statistics import ArgPartition
from symdnn.ops.array.sort import ArgSort, Sort, TopK, argsort
from symdnn.ops.array.take import put_along_axis, take_along_axis
from symdnn.ops.core.shape import dimshuffle, shape_i
from symdnn.rewriting.facts import made_by, node_of
from symdnn.rewriting.rewrite import Context, node_rewrite
from symdnn.stable.softmax import counting

#: The most elements that are inserted, and elements of a call for which nothing is compiled.
_MOST_INSERTED, _FEW = 256, 1 << 12
#: Nanoseconds of an insertion and for each element that may have to move for it, of an element of
#: a line that is parted, and of one of those that are sorted.
_INSERT, _MOVE, _PART, _SORT = 25.0, 0.4, 6.0, 25.0


@node_rewrite(TopK, phase="lower", tags=("indexing",), target="cpu")
def many_best_by_partition(node: Apply, context: Context) -> list[Variable] | None:
    """The indices of the best, in the order of the line, are sorted by their elements.

    Of equal elements the first ones count. So the largest are looked for in the line backwards,
    where they are the last of a partition.
    """
    op: Any = node.op
    x, axis, k = node.inputs[0], op.axis, op.static
    n = x.type.shape[axis]
    real = x.type.is_float or x.type.is_integer
    if not (k and n and real) or not _pays(abs(k), n, x.type.shape):
        return None
    count, last = abs(k), n - abs(k)

    def along(v: Variable, part: slice) -> Variable:
        return v[(slice(None),) * axis + (part,)]

    line = along(x, slice(None, None, -1)) if k > 0 else x
    place = Constant(np.array([last if k > 0 else count - 1]))
    best = along(ArgPartition(axis)(line, place), slice(last, None) if k > 0 else slice(count))
    values = take_along_axis(line, best, axis)
    order = argsort(values, axis)
    order = along(order, slice(None, None, -1)) if k > 0 else order
    indices = take_along_axis(best, order, axis)
    indices = n - 1 - indices if k > 0 else indices
    values = take_along_axis(values, order, axis)
    return [values, operator("cast")(indices, op.index_dtype)]


@node_rewrite(ArgSort, phase="lower", tags=("indexing",), target="cuda")
def ranks_by_places(node: Apply, context: Context) -> Variable | None:
    """``argsort(argsort(x))``: the i-th place has rank i. Integers are added in any order.

    A CPU sorts across rows sooner than it writes to each of them.
    """
    op: Any = node.op
    (places,) = node.inputs
    if not made_by(places, ArgSort) or node_of(places).op != op:
        return None
    ones = ["x"] * (places.type.ndim - 1 - op.axis)
    ranks = dimshuffle(arange(shape_i(places, op.axis)), ["x"] * op.axis + [0, *ones])
    zeros = operator("zeros_like")(places)
    return put_along_axis(zeros, places, ranks, op.axis, add=True)


@node_rewrite(AdvancedSubtensor, phase="canonicalize", tags=("indexing",), target="cuda")
def values_at_ranks(node: Apply, context: Context) -> Variable | None:
    """``g[argsort(places)]``, of an ``argsort``, puts the i-th number at the i-th place.

    The gradient of a sort along an axis is that. Each place is written once.
    """
    op: Any = node.op
    g, *index = node.inputs
    ranked = [a for a, i in enumerate(index) if made_by(i, ArgSort)]
    if op.index != ("a",) * g.type.ndim or len(ranked) != 1:
        return None
    (axis,), dims = ranked, context.shapes.dims
    (places,) = node_of(index[axis]).inputs
    twice = made_by(places, ArgSort) and node_of(places).op == node_of(index[axis]).op
    if not twice or node_of(places).op.axis != axis or places.type.ndim != g.type.ndim:
        return None
    counts = {a: counting(i, a) for a, i in enumerate(index) if a != axis}
    sizes = [(dims(g)[axis], dims(places)[axis])]
    for a, count in counts.items():
        if count is None or places.type.broadcastable[a] != g.type.broadcastable[a]:
            return None
        sizes += [(dims(g)[a], dims(count)[0]), (dims(g)[a], dims(places)[a])]
    if not all(context.shapes.same(*pair) for pair in sizes):
        return None
    return put_along_axis(operator("zeros_like")(g), places, g, axis)


@node_rewrite(Sort, phase="lower", tags=("indexing",), target="cuda")
def sort_beside_its_places(node: Apply, context: Context) -> Variable | None:
    """``sort(x)`` is a gather where the graph has ``argsort(x)``: one sort is enough."""
    op: Any = node.op
    (x,) = node.inputs
    for user in context.fgraph.user_nodes(x):
        if isinstance(user.op, ArgSort) and user.op.axis == op.axis:
            return take_along_axis(x, user.outputs[0], op.axis)
    return None


def _pays(k: int, n: int, shape: tuple[int | None, ...]) -> bool:
    """Whether a partition is quicker than insertions into numbers in any order."""
    if None not in shape and prod(d or 0 for d in shape) < _FEW:
        return False
    inserted = k * (1 + log(n / k)) * (_INSERT + _MOVE * k)
    return k > _MOST_INSERTED or inserted > _PART * n + _SORT * k


RULES = (many_best_by_partition, ranks_by_places, values_at_ranks, sort_beside_its_places)
