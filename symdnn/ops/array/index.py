"""Basic indexing by integers and slices: ``Subtensor``, a view, and ``IncSubtensor``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import IndexOutOfRange, ShapeMismatch, TypeMismatch
from symdnn.graph.dims import Dim, common, known, names_advice
from symdnn.graph.op import Axes, Batched, Grads, Host, Op, Shapes, Types, Vars
from symdnn.graph.operators import operator, or_zeros
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Variable
from symdnn.ops.array.index_lanes import by_lane
from symdnn.ops.array.slices import (
    FULL,
    IndexPattern,
    as_python,
    check_index,
    fill_in,
    is_short,
    is_slice,
    pattern_text,
    shape_has_end,
    slice_length,
    static_length,
    symbolic_count,
)
from symdnn.ops.core.lanes import lanes_of, same_for_all, stacked
from symdnn.ops.core.shape import as_dim, static_dim
from symdnn.ops.elemwise import unbroadcast

_BROADCASTS = "Only a dimension that is statically 1 broadcasts"


@dataclass(frozen=True)
class Subtensor(Op):
    """``x`` indexed by integers and slices; a view.

    ``index`` has one entry per dimension (see :mod:`symdnn.ops.array.slices`); symbolic ints and
    bounds are int64 scalars after ``x``. Bounds are clamped as Python does; an integer out of range
    raises :class:`~symdnn.errors.IndexOutOfRange`.
    """

    views: ClassVar[Mapping[int, int]] = {0: 0}
    linear_in_first: ClassVar[bool] = True
    index: IndexPattern

    @property
    def host_inputs(self) -> tuple[int, ...]:
        return tuple(range(1, 1 + symbolic_count(self.index)))

    @property
    def run_time_inputs(self) -> tuple[int, ...]:
        """All but the ends that :meth:`with_ends` finds."""
        filled = fill_in(self.index, self.host_inputs)
        ends = [e[1] for e, was in zip(filled, self.index, strict=True) if shape_has_end(was)]
        return tuple(i for i in self.host_inputs if i not in ends)

    def with_ends(self, bounds: Sequence[Any], whole: Sequence[int], part: Sequence[int]) -> Any:
        """The bounds, with the ends of slices that begin at a known place found from the shapes
        of ``x`` and of the result."""
        entries, sizes, found = fill_in(self.index, bounds), iter(part), list[Any]()
        for was, e, size in zip(self.index, entries, whole, strict=True):
            length = next(sizes) if is_slice(e) else 1
            if shape_has_end(was):
                e = (e[0], slice(e[0], None).indices(size)[0] + length * (e[2] or 1), e[2])
            pairs = zip(was, e, strict=True) if is_slice(was) else ((was, e),)
            found += [b for old, b in pairs if old == "?"]
        return found

    @property
    def never_fails(self) -> bool:
        return not self.host_inputs

    @property
    def choosing_inputs(self) -> tuple[int, ...]:
        filled = fill_in(self.index, self.host_inputs)
        return tuple(e for e, was in zip(filled, self.index, strict=True) if was == "?")

    def infer(self, x: TensorType, *bounds: TensorType) -> TensorType:
        if x.ndim != len(self.index):
            raise TypeMismatch(self, f"a tensor of {len(self.index)} dimension(s)", x)
        shape = []
        for axis, (size, e) in enumerate(zip(x.shape, self.index, strict=True)):
            if is_slice(e):
                shape.append(static_length(size, e))
            elif e != "?":
                check_index(self, e, size, axis)
        return x.with_shape(shape)

    def reference(self, x: Array, *bounds: Array) -> Array:
        entries = fill_in(self.index, [int(b) for b in bounds])
        for axis, e in enumerate(entries):
            if not is_slice(e):
                check_index(self, e, x.shape[axis], axis)
        return x[(*as_python(entries), Ellipsis)]

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        entries = fill_in(self.index, [host[i] for i in self.host_inputs])
        out = []
        for axis, (size, e) in enumerate(zip(shapes[0], entries, strict=True)):
            if is_slice(e):
                out.append(slice_length(size, *e))
            else:
                check_index(self, e, size, axis)
        return [tuple(out)]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        x, *bounds = inputs
        zeros = operator("zeros_like")(x)
        return [IncSubtensor(self.index)(zeros, cotangents[0], *bounds), *(None for _ in bounds)]

    def __str__(self) -> str:
        return f"Subtensor{{{pattern_text(self.index)}}}"

    def short_with(self, inputs: Vars, axis: int) -> Sequence[tuple[Variable, int]] | None:
        slices = [e for e in fill_in(self.index, inputs[1:]) if is_slice(e)]
        return [] if is_short(*slices[axis]) else None

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        x, *bounds = inputs
        lead = [FULL] * (axes[0] == 0)
        if all(a is None for a in axes[1:]):
            return [Subtensor((*lead, *self.index))(x, *bounds)], [0]
        parts = by_lane(self.index, bounds, axes[1:])
        if parts is None:
            return None
        part = Subtensor((*lead, *parts.static))(x, *parts.bounds)
        return [parts.of(part, lanes_of(inputs, axes), bool(lead))], [0]


def subtensor(x: Variable, entries: Sequence[Any]) -> Variable:
    """``x`` indexed by ``entries``: ints, integer scalars and slices; full slices are implied."""
    ndim = x.type.ndim
    if len(entries) > ndim:
        raise IndexOutOfRange(f"{len(entries)} indices for {x}, which has {ndim} dimension(s)")
    index, bounds = encode([*entries, *(slice(None) for _ in range(ndim - len(entries)))])
    return Subtensor(index)(x, *bounds)


def encode(entries: Sequence[Any]) -> tuple[IndexPattern, list[Variable]]:
    """Ints, scalars, slices, ``"a"`` and ``"x"`` as a pattern and its symbolic values."""
    bounds: list[Variable] = []

    def bound(value: TensorLike) -> Any:
        v = as_dim(value)
        number = static_dim(v)
        if number is None:
            bounds.append(v)
        return "?" if number is None else number

    def entry(e: Any) -> Any:
        if isinstance(e, slice):
            triple = tuple(None if b is None else bound(b) for b in (e.start, e.stop, e.step))
            if triple[2] == 0:
                raise IndexOutOfRange("an index: the step of a slice cannot be 0")
            # A step of 1 and a start of 0 are defaults: they become None, so that equal ops merge.
            start, stop, step = triple[0], triple[1], None if triple[2] == 1 else triple[2]
            ahead = step is None or (isinstance(step, int) and step > 0)
            return (None if start == 0 and ahead else start, stop, step)
        return e if isinstance(e, str) else bound(e)

    return tuple(entry(e) for e in entries), bounds


@dataclass(frozen=True)
class Increment(Op):
    """Base of the ops that add ``y`` to a part of ``x`` or assign it, in a new array."""

    may_overwrite: ClassVar[Mapping[int, tuple[int, ...]]] = {0: (0,)}
    abstract: ClassVar[bool] = True
    index: IndexPattern
    set_instead_of_inc: bool = False

    def getter(self) -> Op:
        """The op that reads the part that this one writes."""
        raise NotImplementedError

    @property
    def host_inputs(self) -> tuple[int, ...]:
        return tuple(i + 1 for i in self.getter().host_inputs)

    @property
    def choosing_inputs(self) -> tuple[int, ...]:
        return self.host_inputs

    def chosen_from(self, inputs: Vars, output: int) -> Vars:
        return inputs[:2] if self.set_instead_of_inc else ()

    def infer(self, x: TensorType, y: TensorType, *rest: TensorType) -> TensorType:
        part: Any = self.getter().output_types([x, *rest])[0]
        if x.dtype != y.dtype or y.ndim != part.ndim:
            raise TypeMismatch(self, f"a value of type {part}", y)
        self._check(y, y.shape, part.shape)
        return x

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        found = self.getter().shapes(
            [types[0], *types[2:]],
            [shapes[0], *shapes[2:]],
            {i - 1: host[i] for i in self.host_inputs},
        )
        if found is not None:
            self._check(types[1], shapes[1], found[0])
        return [shapes[0]]

    def _check(self, y: TensorType, old: Sequence[Dim | None], part: Sequence[Dim | None]) -> None:
        for static, a, b in zip(y.shape, old, part, strict=True):
            if static != 1 and a is not None and b is not None and common((a, b)) is None:
                raise ShapeMismatch(
                    self,
                    f"a value of shape {tuple(part)}, that of the indexed part",
                    tuple(old),
                    _BROADCASTS if known(a) == 1 else names_advice((a, b)),
                )

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        (_, y, *rest), (dz,) = inputs, cotangents
        dy = unbroadcast(self.getter()(dz, *rest), y)
        dx = self(dz, operator("zeros_like")(y), *rest) if self.set_instead_of_inc else dz
        return [dx, dy, *(None for _ in rest)]

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        return [self(*or_zeros(tangents[:2], inputs[:2]), *inputs[2:])]

    def __str__(self) -> str:
        what = "set" if self.set_instead_of_inc else "inc"
        return f"{type(self).__name__}{{{what} {pattern_text(self.index)}}}"


class IncSubtensor(Increment):
    """``x`` with ``y`` added to, or assigned to, ``x[index]``.

    Inputs: ``x``, ``y`` (the dtype of ``x``, the ndim of the part; static 1s broadcast), then the
    symbolic ints and bounds as for :class:`Subtensor`.
    """

    def getter(self) -> Op:
        return Subtensor(self.index)

    def reference(self, x: Array, y: Array, *bounds: Array) -> Array:
        out = np.array(x, copy=True)
        part = Subtensor(self.index).reference(out, *bounds)
        part[...] = y if self.set_instead_of_inc else part + y
        return out

    def __str__(self) -> str:
        return super().__str__()

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        x, y, *bounds = inputs
        parts, lanes = by_lane(self.index, bounds, axes[2:]), lanes_of(inputs, axes)
        if parts is None:
            return None
        whole = stacked(x, axes[0], lanes)
        value = same_for_all(y) if axes[1] is None else y
        index = (FULL, *parts.static)
        if all(a is None for a in axes[2:]):
            return [replace(self, index=index)(whole, value, *bounds)], [0]
        part = parts.of(Subtensor(index)(whole, *parts.bounds), lanes, True)
        write = operator("set_subtensor" if self.set_instead_of_inc else "inc_subtensor")
        return [IncSubtensor(index, True)(whole, write(part, value), *parts.bounds)], [0]
