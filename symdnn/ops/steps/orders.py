"""Sorts of short lines: an element's place is the number of those before it, counted at once."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from symdnn.graph.variable import Apply
from symdnn.ops.array.sort import ArgSort, Sort, TopK
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.core.scalar import Builder, Scalar
from symdnn.ops.nest.monoid import extreme, lowest, ranks_before, total
from symdnn.ops.nest.nest import Fold
from symdnn.ops.steps.block import Block, Rule
from symdnn.ops.steps.code import NotLowered
from symdnn.ops.steps.statements import Folding, Statement, View

#: Elements of a line at most: the work is their square.
_LONGEST = 96


def _sorted(block: Block, node: Apply) -> list[Statement] | None:
    return _in_order(block, node, False, [not isinstance(node.op, Sort)])


def _top_k(block: Block, node: Apply) -> list[Statement] | None:
    op: Any = node.op
    count = block.known(node.inputs[1]) if op.static is None else op.static
    return None if count is None else _in_order(block, node, int(count) > 0, [False, True])


def _in_order(block: Block, node: Apply, largest: bool, told: list[bool]) -> list[Statement] | None:
    """The best elements of each line, or where ``told`` their numbers."""
    op: Any = node.op
    dtype = node.inputs[0].type.dtype
    if dtype == "bool" or node.inputs[0].type.is_complex:
        return None
    shapes, x = block.shapes(node), _last(block.view(node.inputs[0]), op.axis)
    *lines, n = x.shape
    if n > _LONGEST:
        raise NotLowered(f"lines of more than {_LONGEST} elements are sorted")
    numbers = block.code.constant(np.arange(n, dtype=np.int32)).spread(x.shape)
    places, sizes = block.code.buffer("int32", x.shape), (*lines, n, n)
    pairs = _kept(x, n), _folded(x, n), _kept(numbers, n), _folded(numbers, n)
    fold = _counting(dtype, largest)
    found: list[Statement] = [Folding(fold, sizes, (len(sizes) - 1,), pairs, (_kept(places, n),))]
    for v, shape, is_number in zip(node.outputs, shapes, told, strict=True):
        out = _last(block.make(v, shape), op.axis)
        count, read = out.shape[-1], numbers if is_number else x
        own = _kept(replace(numbers, shape=out.shape), n)
        reads = _folded(read, count), _folded(places, count), own
        fold = _taking(read.dtype, v.type.dtype)
        found.append(Folding(fold, (*lines, count, n), (len(sizes) - 1,), reads, (_kept(out, n),)))
    return found


def _last(view: View, axis: int) -> View:
    """With this axis behind the others."""
    return view.order([*(d for d in range(len(view.shape)) if d != axis), axis])


def _kept(view: View, n: int) -> View:
    """The same for each of ``n`` elements along a new last axis."""
    return replace(view, shape=(*view.shape, n), steps=(*view.steps, 0))


def _folded(view: View, n: int) -> View:
    """The same for each of ``n`` elements along a new axis before the last one."""
    return replace(view, shape=(*view.shape[:-1], n, view.shape[-1]),
                   steps=(*view.steps[:-1], 0, view.steps[-1]))  # fmt: skip


@cache
def _counting(dtype: str, largest: bool) -> Fold:
    """How many elements come before one; of equal ones the first does."""
    b = Builder([dtype, dtype, "int32", "int32"])
    x, y = (_wide(b, b.input(i)) for i in range(2))
    tie = b.call("and", b.call("not", ranks_before(b, x, y, largest)),
                 b.call("lt", b.input(3), b.input(2)))  # fmt: skip
    before = b.call("or", ranks_before(b, y, x, largest), tie)
    return Fold(b.program([before]), (total("add", "bool", "int32", "int32"),))


@cache
def _taking(dtype: str, out: str) -> Fold:
    """The element whose place is the one that is wanted."""
    b = Builder([dtype, "int32", "int32"])
    x = _wide(b, b.input(0))
    chosen = b.select(b.call("eq", b.input(1), b.input(2)), x, b.const(lowest(x.dtype), x.dtype))
    return Fold(b.program([chosen]), (extreme("max", x.dtype, x.dtype, out),))


def _wide(b: Builder, x: Scalar) -> Scalar:
    return b.cast(x, "float32") if is_narrow_float(x.dtype) else x


ORDERS: dict[type, Rule] = {Sort: _sorted, ArgSort: _sorted, TopK: _top_k}
