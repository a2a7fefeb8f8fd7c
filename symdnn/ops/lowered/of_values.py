"""Results whose length the values decide, each by one op: elements by a mask, and counts.

Written in simpler ops they are two programs: one finds the length, and the other one is planned for
it. Each length would have a plan of its own, which takes longer to make than most results.
``opt/lower/of_values.py`` makes them after gradients were taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import AssertionFailed, ShapeMismatch, TypeMismatch
from symdnn.graph.dims import ceil_div
from symdnn.graph.op import Host, Op, Shapes, Types
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array
from symdnn.ops.array.reduce import Reduce
from symdnn.ops.array.take import BincountLength

#: Elements of a mask that are counted together.
PART = 4096


@dataclass(frozen=True)
class ChosenCounts(Op):
    """How many elements of each part of the boolean vector ``mask`` are true, behind a 0.

    Their running sum has for each part how many are before it.
    """

    def infer(self, mask: TensorType) -> TensorType:
        if mask.dtype != "bool" or mask.ndim != 1:
            raise TypeMismatch(self, "a boolean vector", [mask])
        (size,) = mask.shape
        return TensorType("int64", (None if size is None else 1 - -size // PART,))

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return [(1 + ceil_div(shapes[0][0], PART),)]

    def reference(self, mask: Array) -> Array:
        parts = range(0, mask.size, PART)
        return np.array([0, *(np.count_nonzero(mask[k : k + PART]) for k in parts)], np.int64)


@dataclass(frozen=True)
class ChosenPlaces(Op):
    """The numbers of the elements of the boolean vector ``mask`` that are true.

    Inputs: the mask, the running sum of its :class:`ChosenCounts`, and how many there are.
    """

    host_inputs: ClassVar[tuple[int, ...]] = (2,)
    run_time_inputs: ClassVar[tuple[int, ...]] = ()

    def infer(self, mask: TensorType, before: TensorType, count: TensorType) -> TensorType:
        if mask.dtype != "bool" or mask.ndim != 1 or before.ndim != 1 or count.ndim:
            wanted = "a boolean vector, an int64 vector and an int64 scalar"
            raise TypeMismatch(self, wanted, [mask, before, count])
        return TensorType("int64", (None,))

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return [(host[2],)]

    def reference(self, mask: Array, before: Array, count: Array) -> Array:
        return np.flatnonzero(mask)


@dataclass(frozen=True)
class Compressed(Op):
    """The elements of ``x`` along ``axis`` where the boolean vector ``mask`` holds, in order."""

    axis: int

    def infer(self, x: TensorType, mask: TensorType) -> TensorType:
        if mask.dtype != "bool" or mask.ndim != 1 or x.ndim <= self.axis:
            raise TypeMismatch(self, "an array with that axis and a boolean vector", [x, mask])
        return x.with_shape((*x.shape[: self.axis], None, *x.shape[self.axis + 1 :]))

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return None

    def reference(self, x: Array, mask: Array) -> Array:
        if x.shape[self.axis] != mask.size:
            raise ShapeMismatch(self, f"a mask of {x.shape[self.axis]}", mask.shape)
        return x[(slice(None),) * self.axis + (mask,)]


@dataclass(frozen=True)
class SomeChosen(Op):
    """``x``, an ``extreme`` of elements by a mask; its error if ``some`` says that there are none.

    ``some`` is a boolean scalar.
    """

    shaped_as: ClassVar[int | None] = 0
    extreme: Reduce

    def infer(self, x: TensorType, some: TensorType) -> TensorType:
        if some.dtype != "bool" or some.ndim:
            raise TypeMismatch(self, "a tensor, and a boolean scalar", [x, some])
        return x

    def reference(self, x: Array, some: Array) -> Array:
        if not some:
            raise self.failure(0)
        return np.array(x)

    def failure(self, condition: int) -> ShapeMismatch:
        """The extreme's error."""
        try:
            self.extreme.check_elements((0,) * (max(self.extreme.axes) + 1))
        except ShapeMismatch as error:
            return error
        raise AssertionError(f"{self.extreme} needs no elements")


@dataclass(frozen=True)
class Counted(Op):
    """How often each of 0, 1, ... occurs in the integer vector ``x``, or the sums of its weights.

    Inputs: ``x``, the least length (an integer scalar), and the weights, if there are any: a vector
    of as many floats. The length is the largest element and 1, or the least one. A negative element
    raises :class:`~symdnn.errors.AssertionFailed`. Weights are added in float64.
    """

    def infer(self, x: TensorType, least: TensorType, *weights: TensorType) -> TensorType:
        if x.ndim != 1 or not x.is_discrete or any(w.ndim != 1 or not w.is_float for w in weights):
            raise TypeMismatch(self, "an integer vector, and floats", [x, *weights])
        return TensorType(weights[0].dtype if weights else "int64", (None,))

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return None

    def reference(self, x: Array, least: Array, *weights: Array) -> Array:
        if weights and weights[0].shape != x.shape:
            raise ShapeMismatch(self, f"weights of {x.shape}", weights[0].shape)
        places = x if x.dtype == np.int64 else x.astype(np.int64)
        try:
            found = np.bincount(places, weights[0] if weights else None, int(least))
        except ValueError as error:
            raise AssertionFailed(BincountLength.MESSAGE) from error
        return self.rounded(found, weights[0].dtype) if weights else found

    @staticmethod
    def rounded(sums: Array, dtype: Any) -> Array:
        """Sums in float64 as the weights' dtype, in which those too large are infinite."""
        with np.errstate(all="ignore"):
            return sums.astype(dtype, copy=False)
