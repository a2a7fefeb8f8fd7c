"""Elements at given places of the sorted order, and what is before and behind one of them, without
sorting all the others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from symdnn.errors import AxisError, IndexOutOfRange, TypeMismatch
from symdnn.graph.op import Axes, Batched, Grads, Host, Shapes, Types, Vars
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array
from symdnn.graph.variable import Variable
from symdnn.ops.array.join import join
from symdnn.ops.array.sort import argsort, ordered, sort
from symdnn.ops.array.take import take, take_along_axis
from symdnn.ops.core.composed import Composed, vjp_of_expressions
from symdnn.ops.core.lanes import on_lanes
from symdnn.ops.core.shape import alloc, dims_of
from symdnn.ops.elementwise.arithmetic import cast, maximum
from symdnn.ops.elementwise.comparison import and_, eq, invert, isnan, lt, or_, switch
from symdnn.ops.elemwise import like

#: Shorter lines are sorted, and lines of which more elements are wanted.
MIN_SELECTED, MOST_SELECTED = 1 << 12, 8
#: Elements whose indices, for gradients, are found by partitions; those of more by a sort.
_MOST_PARTED = 4


@dataclass(frozen=True)
class _Selection(Composed):
    """An op of a line's elements at some ``places`` of its order."""

    abstract: ClassVar[bool] = True

    axis: int

    def infer(self, *inputs: TensorType) -> TensorType:
        x, places = inputs
        if not 0 <= self.axis < x.ndim:
            raise AxisError(self, f"a tensor with a dimension {self.axis}", x)
        real = x.is_float or x.is_integer
        if not real or places.ndim != 1 or places.dtype != "int64":
            raise TypeMismatch(self, "real numbers, and places, an int64 vector", [x, places])
        return x

    def check_places(self, x: Array, places: Array) -> None:
        """Raise the error of a place that is not in a line."""
        size = x.shape[self.axis] or int(x.dtype.kind not in "iu")
        # Read as unsigned numbers, negative ones are the largest.
        if places.size and int(places.view("u8").max()) >= size:
            wrong = (places < 0) | (places >= size)
            raise IndexOutOfRange(f"{self}: place {places[wrong][0]} is not within 0..{size - 1}")

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return on_lanes(replace(self, axis=self.axis + 1), inputs, axes, same=(1,))


class OrderStatistics(_Selection):
    """The elements that would be at ``places`` if ``x`` were sorted along ``axis``, NaNs last.

    Inputs: ``x`` (real numbers), ``places`` (an int64 vector, whose size is that of the result
    along ``axis``). Where ``x`` has no elements, place 0 of floats has NaN.
    """

    def infer(self, *inputs: TensorType) -> TensorType:
        x, places = super().infer(*inputs), inputs[1]
        return x.with_shape((*x.shape[: self.axis], *places.shape, *x.shape[self.axis + 1 :]))

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        x, places = shapes
        return [(*x[: self.axis], *places, *x[self.axis + 1 :])]

    def reference(self, *inputs: Array) -> Array:
        x, places = inputs
        self.check_places(x, places)
        wide = ordered(x)
        if 0 < x.shape[self.axis] < MIN_SELECTED:
            return np.sort(wide, self.axis).take(places, self.axis).astype(x.dtype, copy=False)
        found = _selected(np.moveaxis(wide, self.axis, -1), places)
        return np.moveaxis(found, -1, self.axis).astype(x.dtype, copy=False)

    def expanded(self, *inputs: Variable) -> list[Variable]:
        """The elements of a sort. No place counts from the end, or is behind it: such ones are
        moved out of the range of ``take``."""
        x, places = inputs
        lines = self._with_one(sort(x, self.axis), np.nan)
        size = cast(dims_of(x)[self.axis], "int64")
        size = maximum(size, 1) if x.type.is_float else size
        behind = switch(lt(places, size), places, places + 1)
        return [take(lines, switch(lt(places, 0), places - size - 1, behind), self.axis)]

    def _with_one(self, lines: Variable, value: float) -> Variable:
        """Lines that have one more element where they may have none."""
        if lines.type.shape[self.axis]:
            return lines
        dims = [*dims_of(lines)]
        dims[self.axis] = 1
        last = like(value if lines.type.is_float else 0, lines)
        return join(self.axis, lines, alloc(last, *dims))

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Grads) -> Grads:
        count = inputs[1].type.shape[0]
        if count is None or count > _MOST_PARTED:
            return super().vjp(inputs, outputs, cotangents)

        def selected(x: Variable, places: Variable) -> list[Variable]:
            parted = ArgPartition(self.axis)
            wanted = [places[k : k + 1] for k in range(count)]
            at = [take(self._with_one(parted(x, p), 0), p, self.axis) for p in wanted]
            whole = self._with_one(x, np.nan)
            return [take_along_axis(whole, join(self.axis, *at), self.axis)]

        return vjp_of_expressions(selected, inputs, cotangents)


class ArgPartition(_Selection):
    """The int64 indices of :class:`Partition`."""

    def infer(self, *inputs: TensorType) -> TensorType:
        return super().infer(*inputs).with_dtype("int64")

    def reference(self, *inputs: Array) -> Array:
        x, places = inputs
        if not x.size:
            self.check_places(x, places)
            return np.zeros(x.shape, np.int64)
        chosen = OrderStatistics(self.axis).reference(x, places)
        before, same = x < chosen, x == chosen
        if x.dtype.kind not in "iu":
            last = np.isnan(chosen)
            before, same = before | (last & ~np.isnan(x)), same | (last & np.isnan(x))
        kinds = 2 - 2 * before.astype(np.int8) - same
        return np.argsort(kinds, self.axis, kind="stable").astype(np.int64, copy=False)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return [shapes[0]]

    def expanded(self, *inputs: Variable) -> list[Variable]:
        """The order of three kinds of elements, which keeps that of equal ones."""
        x, places = inputs
        chosen = OrderStatistics(self.axis)(x, places)
        before, same = lt(x, chosen), eq(x, chosen)
        if x.type.is_float:
            last, none = isnan(chosen), isnan(x)
            before, same = or_(before, and_(last, invert(none))), or_(same, and_(last, none))
        kinds = 2 - 2 * cast(before, "int8") - cast(same, "int8")
        return [argsort(cast(kinds, "int8"), self.axis)]


class Partition(_Selection):
    """The elements of ``x`` before the one at a place of the order along ``axis``, then those equal
    to it, then those behind it, each in the order of ``x``.

    Inputs: ``x`` (real numbers), ``places`` (an int64 vector of one).
    """

    def reference(self, *inputs: Array) -> Array:
        order = ArgPartition(self.axis).reference(*inputs)
        return np.take_along_axis(inputs[0], order, self.axis)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return [shapes[0]]

    def expanded(self, *inputs: Variable) -> list[Variable]:
        """The elements at the indices of a partition."""
        order = ArgPartition(self.axis)(*inputs)
        return [take_along_axis(inputs[0], order, self.axis)]


def _selected(x: Array, places: Array) -> Array:
    """Elements of the sorted last axis, by NumPy's selection.

    Each place is looked for behind the one before it, where the next one is the smallest number.
    """
    size = x.shape[-1]
    if not x.size or not len(places):
        return np.full((*x.shape[:-1], len(places)), np.nan, x.dtype)
    wanted = sorted(set(places.tolist()))
    if len(wanted) > MOST_SELECTED:
        return np.sort(x, axis=-1)[..., places]
    found, rest, start = {}, x, 0
    if wanted[-1:] == [size - 1]:
        with np.errstate(invalid="ignore"):
            found[wanted.pop()] = x.max(-1)  # NaN where there is any
    for place in wanted:
        if place == start:
            found[place] = np.fmin.reduce(rest, axis=-1)
            continue
        rest = np.partition(rest, place - start, axis=-1)
        found[place] = rest[..., place - start]
        rest, start = rest[..., place - start + 1 :], place + 1
    return np.stack([found[p] for p in places.tolist()], axis=-1)
