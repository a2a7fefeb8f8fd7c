"""Ops on activations in the layout NHWC (channels last), for all ops in one place.

A convolution, a pooling or a normalisation is written for (N, C, \\*sizes). The layout in memory is
a choice of the target: :class:`ChannelsLast` is the same op on (N, \\*sizes, C). It changes the
layout of all tensors of four or more dimensions, of filters too: (K, \\*sizes, C).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import OptionError, TypeMismatch
from symdnn.graph.dims import DimT
from symdnn.graph.op import Axes, Batched, Grads, Host, Op, Shapes, Types, Vars
from symdnn.graph.type import TensorType, Type
from symdnn.graph.typing import Array
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.core.lanes import on_lanes
from symdnn.ops.core.shape import dimshuffle

#: The values of an op's field ``layout``; they are used for volumes (NCDHW, NDHWC), too.
LAYOUTS = ("NCHW", "NHWC")


def last_order(ndim: int) -> tuple[int, ...]:
    """The dimensions of (N, C, \\*sizes) in the order (N, \\*sizes, C)."""
    return (0, *range(2, ndim), 1)


def first_order(ndim: int) -> tuple[int, ...]:
    """The dimensions of (N, \\*sizes, C) in the order (N, C, \\*sizes)."""
    return (0, ndim - 1, *range(1, ndim - 1))


def moved_axis(axis: int, ndim: int) -> int:
    """The position in (N, \\*sizes, C) of dimension ``axis`` of (N, C, \\*sizes)."""
    return last_order(ndim).index(axis)


def last_shape(shape: Sequence[DimT]) -> tuple[DimT, ...]:
    """(N, C, \\*sizes) as (N, \\*sizes, C)."""
    return tuple(shape[i] for i in last_order(len(shape)))


def first_shape(shape: Sequence[DimT]) -> tuple[DimT, ...]:
    """(N, \\*sizes, C) as (N, C, \\*sizes)."""
    return tuple(shape[i] for i in first_order(len(shape)))


def is_image(type_: TensorType) -> bool:
    """Whether a layout changes the order of this type's dimensions."""
    return isinstance(type_, TensorType) and type_.ndim >= 4


def in_layout(op: Op, layout: str, filter_index: int | None = None) -> Op:
    """``op`` on arrays of this layout; raises :class:`OptionError` for an unknown one.

    ``filter_index`` as in :class:`ChannelsLast`.
    """
    if layout not in LAYOUTS:
        raise OptionError(f"layout={layout!r}: wanted one of {', '.join(LAYOUTS)}")
    return op if layout == "NCHW" else ChannelsLast(op, filter_index)


@dataclass(frozen=True)
class ChannelsLast(Op):
    """``op`` on activations in NHWC. It is never a node itself: applied to variables it makes
    ``op`` between two transpositions.

    ``filter_index`` is the input that is (K, C, \\*sizes) in every layout, -1 for the result; None
    where filters have the layout of the activations.
    """

    abstract: ClassVar[bool] = True
    op: Op
    filter_index: int | None = None

    def _inside(self, inputs: Sequence[Any], move: Callable[[Any], Any]) -> list[Any]:
        """What ``op`` gets for inputs, or entries for each input."""
        return [v if i == self.filter_index else move(v) for i, v in enumerate(inputs)]

    def _outside(self, outputs: Sequence[Any], move: Callable[[Any], Any]) -> tuple[Any, ...]:
        """What this op returns for what ``op`` returns."""
        return tuple(outputs) if self.filter_index == -1 else tuple(map(move, outputs))

    def output_types(self, inputs: Sequence[Type]) -> tuple[Type, ...]:
        return self._outside(self.op.output_types(self._inside(inputs, _first_type)), _last_type)

    def infer(self, *inputs: TensorType) -> tuple[Type, ...]:
        return self.output_types(inputs)

    def compute(self, *inputs: Array) -> tuple[Array, ...]:
        found = self.op.compute(*self._inside(inputs, partial(_moved, order=first_order)))
        return self._outside(found, lambda a: np.ascontiguousarray(_moved(a, last_order)))

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        return self.compute(*inputs)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        given = self._inside(shapes, lambda s: first_shape(s) if len(s) >= 4 else s)
        found = self.op.shapes(self._inside(types, _first_type), given, host)
        return found and self._outside(found, lambda s: last_shape(s) if len(s) >= 4 else s)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        results = (self._outside(vs, _first) for vs in (outputs, cotangents))
        return self._inside(self.op.vjp(self._inside(inputs, _first), *results), _last)

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        inner = self._inside(inputs, _first), self._outside(outputs, _first)
        found = self.op.jvp(*inner, self._inside(tangents, _first))
        return None if found is None else self._outside(found, _last)

    @property
    def host_inputs(self) -> tuple[int, ...]:
        return self.op.host_inputs

    @property
    def run_time_inputs(self) -> tuple[int, ...]:
        return self.op.run_time_inputs

    def __call__(self, *inputs: Any, **words: Any) -> Any:
        """``op`` on transposed inputs, with its results transposed back."""
        out: Any = self.op(*self._inside(inputs, _first), **words)
        if isinstance(out, Variable):
            return self._outside([out], _last)[0]
        return self._outside(out, _last)

    def results(self, node: Apply) -> Any:
        return self.op.results(node)


def _moved(array: Array, order: Any) -> Array:
    value = np.asarray(array)
    return value.transpose(order(value.ndim)) if value.ndim >= 4 else value


def _first_type(t: Any) -> Any:
    return t.with_shape(first_shape(t.shape)) if is_image(t) else t


def _last_type(t: Any) -> Any:
    return t.with_shape(last_shape(t.shape)) if is_image(t) else t


def _first(v: Any) -> Any:
    return _ordered(v, first_order)


def _last(v: Any) -> Any:
    return _ordered(v, last_order)


def _ordered(v: Any, order: Any) -> Any:
    if not isinstance(v, Variable) or not is_image(v.type):
        return v
    return dimshuffle(v, order(v.type.ndim))


@dataclass(frozen=True)
class Reorder(Op):
    """``x`` copied to another layout: its dimensions in another order, in new memory.

    A :class:`~symdnn.ops.core.shape.DimShuffle` is a view of the same memory instead.
    """

    linear_in_first: ClassVar[bool] = True
    order: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        if not isinstance(x, TensorType) or sorted(self.order) != list(range(x.ndim)):
            raise TypeMismatch(self, f"a tensor of {len(self.order)} dimensions", x)
        return x.with_shape(x.shape[d] for d in self.order)

    def reference(self, x: Array) -> Array:
        return np.ascontiguousarray(x.transpose(self.order))

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return [tuple(shapes[0][d] for d in self.order)]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        back = tuple(self.order.index(d) for d in range(len(self.order)))
        return [Reorder(back)(cotangents[0])]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return on_lanes(Reorder((0, *(d + 1 for d in self.order))), inputs, axes)
