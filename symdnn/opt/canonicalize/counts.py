"""On a GPU, counts of integers whose number is known: the host need not ask for the largest.

``bincount(x, minlength=n)`` has more than ``n`` counts where ``x`` has larger numbers. So the host
waits for what computes ``x``, unless it is known to be below ``n`` or only ``n`` counts are read.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from symdnn.graph.variable import Apply, Constant, Variable, constant
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor, AdvancedSubtensor
from symdnn.ops.array.argreduce import ArgExtreme
from symdnn.ops.array.getitem import getitem, inc_subtensor
from symdnn.ops.array.index import Subtensor
from symdnn.ops.array.take import BincountLength
from symdnn.ops.array.view import SpecifyShape
from symdnn.ops.core.gradient_control import assert_
from symdnn.ops.core.shape import Alloc, DimShuffle, Reshape, alloc
from symdnn.ops.elementwise.arithmetic import (
    Add,
    Cast,
    Clip,
    IntDiv,
    Maximum,
    Minimum,
    Mod,
    Mul,
    Sub,
    minimum,
)  # fmt: skip
from symdnn.ops.elementwise.comparison import ge
from symdnn.rewriting.facts import is_zero, made_by, node_of, number
from symdnn.rewriting.rewrite import Context, node_rewrite

__all__ = ["RULES", "bounds_of"]

PHASE = "canonicalize"
#: Nodes through which bounds are followed.
_DEEP = 12
_SAME_VALUES = (AdvancedSubtensor, DimShuffle, Reshape, SpecifyShape, Subtensor)
Bounds = tuple[int, int]


def bounds_of(v: Variable) -> Bounds:
    """The smallest and the largest number that the bools or integers ``v`` may have."""
    return _bounds(v, _DEEP, {})


def _bounds(v: Variable, deep: int, known: dict[tuple[Variable, int], Bounds]) -> Bounds:
    """The bounds by up to so many nodes; those of variables that are read again are ``known``."""
    if (v, deep) in known:
        return known[v, deep]
    dtype = v.type.numpy
    whole = (0, 1) if dtype.kind == "b" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    if isinstance(v, Constant):
        return (int(v.data.min()), int(v.data.max())) if v.data.size else whole
    found = None
    if v.owner is not None and deep:
        found = _of_node(v.owner, lambda x: _bounds(x, deep - 1, known))
    within = found is not None and whole[0] <= found[0] and found[1] <= whole[1]
    known[v, deep] = found if found is not None and within else whole
    return known[v, deep]


def _of_node(node: Apply, bounds: Callable[[Variable], Bounds]) -> Bounds | None:
    """The bounds by what a node computes, as if in integers without limits."""
    op: Any = node.op
    if isinstance(op, ArgExtreme):
        sizes = [node.inputs[0].type.shape[a] for a in op.axes]
        return None if None in sizes else (0, prod(n for n in sizes if n is not None) - 1)
    if not all(v.type.is_discrete for v in node.inputs):
        return None
    if isinstance(op, (*_SAME_VALUES, Cast)):
        return bounds(node.inputs[0])
    if isinstance(op, Add | Sub | Mul | Maximum | Minimum | Clip | IntDiv | Mod):
        return _of_arithmetic(op, [bounds(v) for v in node.inputs])
    return None


def _of_arithmetic(op: object, given: list[Bounds]) -> Bounds | None:
    (low, high), *rest = given
    if isinstance(op, IntDiv | Mod):
        (divisor, same) = rest[0]
        if divisor != same or divisor <= 0:
            return None
        return (0, divisor - 1) if isinstance(op, Mod) else (low // divisor, high // divisor)
    if isinstance(op, Clip):
        (a, b), (c, d) = rest
        return min(max(low, a), c), max(min(high, d), b)
    for a, b in rest:
        if isinstance(op, Add):
            low, high = low + a, high + b
        elif isinstance(op, Sub):
            low, high = low - b, high - a
        elif isinstance(op, Mul):
            products = [n * m for n in (low, high) for m in (a, b)]
            low, high = min(products), max(products)
        else:
            best = max if isinstance(op, Maximum) else min
            low, high = best(low, a), best(high, b)
    return low, high


@node_rewrite(BincountLength, phase=PHASE, tags=("indexing",), target="cuda")
def known_number_of_counts(node: Apply, context: Context) -> Variable | None:
    """``bincount_length(x, n) -> n`` where ``x`` is known to be at least 0 and below ``n``."""
    x, least = node.inputs
    low, high = bounds_of(x)
    return least if low >= 0 and high < bounds_of(least)[0] else None


@node_rewrite(Subtensor, phase=PHASE, tags=("indexing",), target="cuda")
def first_counts(node: Apply, context: Context) -> Variable | None:
    """``bincount(x, minlength=n)[:m]``, ``m <= n``: larger numbers are counted together behind."""
    op: Any = node.op
    counts = node.inputs[0]
    start, stop, step = op.index[0] if isinstance(op.index[0], tuple) else (None, "?", None)
    from_start = all(isinstance(n, int) and n >= 0 for n in (start or 0, stop))
    if not from_start or counts.type.ndim != 1 or not made_by(counts, AdvancedIncSubtensor):
        return None
    zeros, added, index, *more = node_of(counts).inputs
    plain = not more and not node_of(counts).op.set_instead_of_inc and is_zero(zeros)
    length = node_of(zeros).inputs[-1] if plain and made_by(zeros, Alloc) else None
    if length is None or not made_by(length, BincountLength):
        return None
    x, least = node_of(length).inputs
    same = index is x or (made_by(index, Cast) and node_of(index).inputs[0] is x)
    known = number(least)
    if not same or known is None or not known >= stop or step not in (None, 1):
        return None
    place, empty = minimum(index, constant(stop)), alloc(node_of(zeros).inputs[0], stop + 1)
    if bounds_of(x)[0] < 0:
        empty = assert_(empty, ge(index, 0), message=BincountLength.MESSAGE)
    made = inc_subtensor(getitem(empty, place), added)
    found: Variable = getitem(made, slice(start, stop, step))
    return found


RULES = (known_number_of_counts, first_counts)
