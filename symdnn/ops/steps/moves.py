"""Elements that move: rolls, padding, diagonals, index arrays; and places in sorted vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from symdnn.graph.variable import Apply
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor, AdvancedSubtensor, InBounds
from symdnn.ops.array.create import AllocDiag
from symdnn.ops.array.join import Roll
from symdnn.ops.array.pad import Pad
from symdnn.ops.array.slices import FULL
from symdnn.ops.array.sort import SearchSorted
from symdnn.ops.core.scalar import Builder, ScalarProgram
from symdnn.ops.elementwise.comparison import isnan
from symdnn.ops.linalg.products import MatchSizes
from symdnn.ops.lowered.gathered import FusedIndexed
from symdnn.ops.steps.block import Block, Rule
from symdnn.ops.steps.code import NotLowered, same
from symdnn.ops.steps.complex_numbers import part_dtypes, parts
from symdnn.ops.steps.statements import Index, Map, Repeat, Statement, View


def added(place: View, value: View) -> Map:
    """The statement that adds numbers to those at a place."""
    return Map(_sums(place.dtype), place.shape, parts([place, value]), parts([place]))


@cache
def _sums(dtype: str) -> ScalarProgram:
    own = part_dtypes(dtype)
    b = Builder([*own, *own])
    narrow = dtype in ("float16", "bfloat16")
    x = [b.input(i).cast("float32") if narrow else b.input(i) for i in range(2 * len(own))]
    sums = [x[i] + x[i + len(own)] for i in range(len(own))]
    return b.program([v.cast(dtype) if narrow else v for v in sums])


def _part(view: View, axis: int, start: int, count: int) -> View:
    """``count`` entries along an axis, from ``start`` on."""
    shape = tuple(count if d == axis else n for d, n in enumerate(view.shape))
    return replace(view, shape=shape, offset=view.offset + start * view.steps[axis])


def _roll(block: Block, node: Apply) -> list[Statement]:
    op: Any = node.op
    axis: int = op.axis
    view, shift = block.view(node.inputs[0]), block.known(node.inputs[1])
    if shift is None:
        raise NotLowered("the shift of a roll is not known")
    n = view.shape[axis]
    first = int(shift) % n
    out = block.make(node.outputs[0], view.shape)
    ahead = same(_part(out, axis, first, n - first), _part(view, axis, 0, n - first))
    return ahead + same(_part(out, axis, 0, first), _part(view, axis, n - first, first))


def _pad(block: Block, node: Apply) -> list[Statement]:
    (shape,) = block.shapes(node)
    view, value = block.view(node.inputs[0]), block.view(node.inputs[1])
    out = block.make(node.outputs[0], shape)
    part = out
    for axis, n in enumerate(view.shape):
        part = _part(part, axis, int(block.known(node.inputs[2 + 2 * axis])), n)
    return [*same(out, value), *same(part, view)]


def _diagonal(block: Block, node: Apply) -> list[Statement]:
    (shape,) = block.shapes(node)
    view, out = block.view(node.inputs[0]), block.make(node.outputs[0], shape)
    op: Any = node.op
    offset: int = op.offset
    rows, columns = out.steps[-2:]
    at = max(-offset, 0) * rows + max(offset, 0) * columns
    steps = (*out.steps[:-2], rows + columns)
    line = replace(out, shape=view.shape, steps=steps, offset=out.offset + at)
    zero = block.code.constant(np.zeros((), view.dtype))
    return [*same(out, zero), *same(line, view)]


def _checked(block: Block, node: Apply) -> list[Statement]:
    """The first input as it is: sizes are checked here, indices where they are used."""
    block.shapes(node)
    block.set(node.outputs[0], block.env_value(node.inputs[0]))
    return []


# -- index arrays ----------------------------------------------------------------------------------


class _Chosen:
    """The part of an array that index arrays side by side choose, entry by entry.

    ``there`` is an entry of the array, ``place`` gives that of a view of the whole part.
    """

    def __init__(
        self, block: Block, axes: Sequence[int], view: View, indices: Sequence[View], checked: bool
    ) -> None:
        self.first = axes[0]
        self.sizes = np.broadcast_shapes(*(i.shape for i in indices))
        self.names = [block.code.name("step") for _ in self.sizes]
        self.checks: list[Statement] = []
        there = view.order([d for d in range(len(view.shape)) if d not in axes])
        for axis, index in zip(axes, indices, strict=True):
            name = block.code.name("index")
            self.checks.append(Index(name, self._number(index), view.shape[axis], checked))
            there = there.moved(name, view.steps[axis])
        self.there = there

    def _number(self, index: View) -> View:
        wide = index.spread(self.sizes)
        number = replace(wide, shape=(), steps=())
        for name, step in zip(self.names, wide.steps, strict=True):
            number = number.moved(name, step)
        return number

    def place(self, part: View) -> View:
        """The entry of a view of the whole part."""
        own = range(self.first, self.first + len(self.sizes))
        found = part.order([d for d in range(len(part.shape)) if d not in own])
        for name, d in zip(self.names, own, strict=True):
            found = found.moved(name, part.steps[d])
        return found

    def each(self, body: Sequence[Statement]) -> list[Statement]:
        """``body`` for each choice."""
        found: Statement | None = None
        for name, n in zip(self.names[::-1], self.sizes[::-1], strict=True):
            inside = (*self.checks, *body) if found is None else (found,)
            found = Repeat(name, n, inside, ())
        assert found is not None
        return [found]


def _indexed(op: Any, inputs: Sequence[Any]) -> tuple[int, ...] | None:
    """The axes of index arrays that stand side by side, with whole axes around them."""
    if any(e not in ("a", FULL) for e in op.index):
        return None
    axes = tuple(k for k, e in enumerate(op.index) if e == "a")
    if axes != tuple(range(axes[0], axes[-1] + 1)) or len(axes) != len(inputs):
        return None
    return axes if inputs[0].type.ndim > 0 else None


def _gather(block: Block, node: Apply) -> list[Statement] | None:
    x, *arrays = node.inputs
    axes = _indexed(node.op, arrays)
    if axes is None:
        return None
    (shape,) = block.shapes(node)
    out = block.make(node.outputs[0], shape)
    op: Any = node.op
    indices = [block.view(v) for v in arrays]
    chosen = _Chosen(block, axes, block.view(x), indices, not op.in_bounds)
    return chosen.each(same(chosen.place(out), chosen.there))


def _scatter(block: Block, node: Apply) -> list[Statement] | None:
    op: Any = node.op
    (x, y, *arrays), (out,) = node.inputs, node.outputs
    axes = _indexed(op, arrays)
    if axes is None:
        return None
    view, value, indices = block.view(x), block.view(y), [block.view(v) for v in arrays]
    there = None if out in block.targets else block.overwrites(x)
    made = block.make(out, view.shape) if there is None else there
    copies = same(made, view) if there is None else []
    if there is not None:
        block.set(out, there)
    chosen = _Chosen(block, axes, made, indices, not op.in_bounds)
    rest = [n for d, n in enumerate(view.shape) if d not in axes]
    part = (*rest[: axes[0]], *chosen.sizes, *rest[axes[0] :])
    new = chosen.place(value.spread(part))
    if op.set_instead_of_inc:
        return copies + chosen.each(same(chosen.there, new))
    place = chosen.there
    return copies + chosen.each([added(place, new)])


def _of_selected(block: Block, node: Apply) -> list[Statement]:
    """A loop over what index arrays select, by the ops of which it is made."""
    op: Any = node.op
    return block.expression(node, op.written_out(*node.inputs))


def _searched(block: Block, node: Apply) -> list[Statement] | None:
    """The number of elements before each value; NaN is behind all numbers."""
    op: Any = node.op
    table, v = node.inputs
    if v.type.is_complex:
        return None
    values = v.dimshuffle(*range(v.type.ndim), "x")
    right = op.side == "right"
    before = table <= values if right else table < values
    if v.type.is_float:
        nans = isnan(values)
        before = before | (nans if right else nans & ~isnan(table))
    return block.expression(node, [before.astype("int64").sum(axis=-1)])


MOVES: dict[type, Rule] = {
    Roll: _roll, Pad: _pad, AllocDiag: _diagonal, InBounds: _checked, MatchSizes: _checked,
    AdvancedSubtensor: _gather, AdvancedIncSubtensor: _scatter, FusedIndexed: _of_selected,
    SearchSorted: _searched,
}  # fmt: skip
