"""Indexing by integer arrays: ``AdvancedSubtensor`` and ``AdvancedIncSubtensor``."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import IndexOutOfRange, ShapeMismatch, TypeMismatch
from symdnn.graph.dims import Dim, DimT, Unknown, common, dim_where, known, names_advice
from symdnn.graph.op import Axes, Batched, Grads, Host, Op, Shapes, Types, Vars
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array
from symdnn.ops.array.index import Increment
from symdnn.ops.array.index_lanes import AdvancedLanes
from symdnn.ops.array.slices import (
    IndexPattern,
    as_python,
    fill_in,
    is_slice,
    pattern_text,
    slice_length,
    static_length,
    symbolic_count,
)
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.core.lanes import lanes_of, same_for_all, stacked
from symdnn.ops.elemwise import broadcast_static

__all__ = [
    "AdvancedIncSubtensor", "AdvancedIncrement", "AdvancedSubtensor", "InBounds", "scatter_add"
]  # fmt: skip


@dataclass(frozen=True)
class AdvancedSubtensor(Op):
    """``x`` indexed by integer arrays, which broadcast together, mixed with slices and None.

    ``index`` has an entry for each dimension of ``x`` (``"a"`` for an array) and each new one
    (``"x"``). Inputs: ``x``, the index arrays (integers, all of one ndim), then the symbolic
    bounds. The broadcast dimensions of the arrays take the place of the first of them, or come
    first when the arrays are not side by side: NumPy's rule. Negative indices count from the
    end; one out of range raises :class:`~symdnn.errors.IndexOutOfRange`. Indices ``in_bounds`` are
    in range by the way they are computed: no device looks.
    """

    linear_in_first: ClassVar[bool] = True
    index: IndexPattern
    in_bounds: bool = False

    @property
    def never_fails(self) -> bool:
        return self.in_bounds

    @property
    def arrays(self) -> tuple[int, ...]:
        """Positions of the index arrays in ``index``."""
        return tuple(k for k, e in enumerate(self.index) if e == "a")

    @property
    def side_by_side(self) -> bool:
        """Whether the arrays index neighbouring dimensions."""
        places = self.arrays
        return places == tuple(range(places[0], places[-1] + 1))

    @property
    def host_inputs(self) -> tuple[int, ...]:
        first = 1 + len(self.arrays)
        return tuple(range(first, first + symbolic_count(self.index)))

    def infer(self, x: TensorType, *rest: TensorType) -> TensorType:
        arrays = rest[: len(self.arrays)]
        if x.ndim != sum(e != "x" for e in self.index):
            raise TypeMismatch(self, "as many dimensions as indices", x)
        for t in arrays:
            if not t.is_integer or t.ndim != arrays[0].ndim:
                raise TypeMismatch(self, "integer index arrays of one ndim", list(arrays))
        places = broadcast_static(self, arrays)
        return x.with_shape(self._arrange(x.shape, self.index, places, static_length))

    def _arrange(
        self,
        shape: Sequence[DimT],
        entries: Sequence[Any],
        places: Sequence[DimT],
        length: Callable[[DimT, Any], DimT],
    ) -> tuple[DimT, ...]:
        sizes = iter(shape)
        out: list[Any] = [] if self.side_by_side else list(places)
        for k, e in enumerate(entries):
            size = 1 if e == "x" else next(sizes)
            if is_slice(e):
                out.append(length(size, e))
            elif e == "x":
                out.append(1)
            elif self.side_by_side and k == self.arrays[0]:
                out.extend(places)
        return tuple(out)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        n = 1 + len(self.arrays)
        arrays = shapes[1:n]
        places = tuple(_spread(self, dims, arrays) for dims in zip(*arrays))
        entries = fill_in(self.index, [host[i] for i in self.host_inputs])

        def length(size: Dim, entry: Any) -> Dim:
            return slice_length(size, *entry)

        return [self._arrange(shapes[0], entries, places, length)]

    def reference(self, x: Array, *rest: Array) -> Any:
        return x[self.numpy_index(x.shape, rest)]

    def numpy_index(self, shape: Sequence[int], rest: Sequence[Array]) -> tuple[Any, ...]:
        """NumPy's index, the arrays checked against ``shape`` and made signed."""
        arrays = iter(rest[: len(self.arrays)])
        entries = fill_in(self.index, [int(b) for b in rest[len(self.arrays) :]])
        index, axis = [], 0
        for e in entries:
            if e == "a":
                index.append(self._checked(next(arrays), shape[axis], axis))
            else:
                index.extend(as_python([e]))
            axis += e != "x"
        return tuple(index)

    def _checked(self, array: Array, size: int, axis: int) -> Array:
        check_range(self, array, size, f"axis {axis}")
        return np.asarray(array, np.int64, order="C")  # NumPy assigns in the order of memory

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        x, *rest = inputs
        zeros = operator("zeros_like")(x)
        add = AdvancedIncSubtensor(self.index, in_bounds=self.in_bounds)
        return [add(zeros, cotangents[0], *rest), *(None for _ in rest)]

    def __str__(self) -> str:
        checked = ", in bounds" if self.in_bounds else ""
        return f"AdvancedSubtensor{{{pattern_text(self.index)}{checked}}}"

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        x, arrays, bounds = inputs[0], *self._apart(inputs)
        if any(a is not None for a in axes[1 + len(arrays) :]):
            return None
        own, lead = axes[1 : 1 + len(arrays)], axes[0] == 0
        wide = AdvancedLanes.of(self.index, arrays, own, lead, lanes_of(inputs, axes))
        found = replace(self, index=wide.index)(x, *wide.arrays, *bounds)
        return [found.dimshuffle(*wide.order)], [0]

    def _apart(self, inputs: Vars) -> tuple[Sequence[Any], Sequence[Any]]:
        """(index arrays, bounds) of the inputs."""
        first = 1 + len(self.arrays)
        return inputs[1:first], inputs[first:]


def _spread(op: Op, dims: Sequence[Dim], shapes: Shapes) -> Dim:
    """One broadcast dimension of index arrays: a 1 that only a call knows broadcasts, too."""
    wide = [d for d in dict.fromkeys(dims) if known(d) != 1]
    found = common(wide) if wide else 1
    if found is None:
        advice = names_advice(wide) or "Use index arrays of equal lengths, or of length 1"
        wanted = "index arrays that broadcast together"
        raise ShapeMismatch(op, wanted, f"shapes {[tuple(s) for s in shapes]}", advice)
    if len(wide) < 2 or known(found) is not None:
        return found
    if any(isinstance(d, Unknown) for d in wide):
        return Unknown()
    return reduce(lambda a, b: dim_where(operator("eq")(a, 1), b, a), wide)


class AdvancedIncrement(Increment):
    """Base of the ops that change elements that index arrays select."""

    abstract: ClassVar[bool] = True

    def getter(self) -> AdvancedSubtensor:
        return AdvancedSubtensor(self.index)

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        x, y, *rest = inputs
        count, lanes = len(self.getter().arrays), lanes_of(inputs, axes)
        if any(a is not None for a in axes[2 + count :]):
            return None
        wide = AdvancedLanes.of(self.index, rest[:count], axes[2 : 2 + count], True, lanes)
        value = (same_for_all(y) if axes[1] is None else y).dimshuffle(*wide.back)
        op = replace(self, index=wide.index)
        return [op(stacked(x, axes[0], lanes), value, *wide.arrays, *rest[count:])], [0]


@dataclass(frozen=True)
class AdvancedIncSubtensor(AdvancedIncrement):
    """``x`` with ``y`` added to, or assigned to, the elements that index arrays select.

    Inputs: ``x``, ``y`` (of the part's ndim and the dtype of ``x``), then as for
    :class:`AdvancedSubtensor`. For an index that occurs twice increments accumulate, and of
    assigned values the last one stays. Indices ``in_bounds`` are known to be in range, such as
    those that :class:`InBounds` has checked. A sum of the ``same_bits`` adds floats in an order
    that the indices decide, whatever the flag ``deterministic`` says: all ranks that add the same
    values get the same bits.
    """

    in_bounds: bool = False
    same_bits: bool = False

    @property
    def never_fails(self) -> bool:
        return self.in_bounds

    def getter(self) -> AdvancedSubtensor:
        return AdvancedSubtensor(self.index, self.in_bounds)

    def reference(self, x: Array, y: Array, *rest: Array) -> Array:
        out = np.array(x, copy=True)
        self.write(out, y, *rest)
        return out

    def write(self, out: Array, y: Array, *rest: Array) -> None:
        """Add ``y`` to the elements of ``out``, or assign it, in place."""
        get = self.getter()
        index = get.numpy_index(out.shape, rest)
        if self.set_instead_of_inc:
            out[index] = np.asarray(y, order="C")
            return
        # First a view by all entries but the arrays; then array k indexes its dimension k.
        view = out[tuple(slice(None) if e == "a" else i for e, i in zip(self.index, index))]
        places = get.arrays
        arrays = np.broadcast_arrays(*(index[k] for k in places))
        rows = np.moveaxis(view, places, range(len(places)))
        depth = arrays[0].ndim
        values = np.broadcast_to(y, self._part_shape(arrays[0].shape, view.shape, get))
        if get.side_by_side:
            values = np.moveaxis(values, range(places[0], places[0] + depth), range(depth))
        scatter_add(rows, arrays, values)

    @staticmethod
    def _part_shape(
        places: tuple[int, ...], view: tuple[int, ...], get: AdvancedSubtensor
    ) -> tuple[int, ...]:
        kept = [n for k, n in enumerate(view) if k not in get.arrays]
        at = get.arrays[0] if get.side_by_side else 0
        return (*kept[:at], *places, *kept[at:])

    def __str__(self) -> str:
        found = super().__str__()
        return found.replace("}", ", in bounds}") if self.in_bounds else found


@dataclass(frozen=True)
class InBounds(Op):
    """The integer array ``index``, all of whose elements are in range for an axis of ``size``.

    Inputs: ``index``, and ``size``, an int64 scalar. An element below ``-size``, or not below
    ``size``, raises :class:`~symdnn.errors.IndexOutOfRange`. A compiler makes it, so that a write
    to a shared variable's own memory cannot fail any more.
    """

    shaped_as: ClassVar[int | None] = 0
    no_gradients: ClassVar[bool] = True
    host_inputs: ClassVar[tuple[int, ...]] = (1,)

    def infer(self, index: TensorType, size: TensorType) -> TensorType:
        if not index.is_integer or size.ndim or not size.is_integer:
            raise TypeMismatch(self, "an integer array, and an integer scalar", [index, size])
        return index

    def reference(self, index: Array, size: Array) -> Array:
        check_range(self, index, int(size), "an axis")
        return np.array(index)

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return None if axes[1] is not None else (self.make_node(*inputs).outputs, [axes[0]])


def check_range(op: Op, index: Array, size: int, axis: str) -> None:
    """Raise :class:`IndexOutOfRange` unless all elements of ``index`` are in range."""
    if index.size:
        for worst in (int(index.min()), int(index.max())):
            if not -size <= worst < size:
                raise IndexOutOfRange(
                    f"{op}: index {worst} is out of range for {axis} of size {size}"
                )


def scatter_add(rows: Array, arrays: Sequence[Array], values: Array) -> None:
    """Add ``values`` to ``rows[arrays]`` in place; several values for one row accumulate.

    ``arrays`` are int64 arrays of one shape, within bounds; ``values`` has that shape followed by
    the dimensions of ``rows`` after the indexed ones. Narrow floats are summed in float32.
    """
    sizes, rest = rows.shape[: len(arrays)], rows.shape[len(arrays) :]
    flat = np.zeros(arrays[0].shape, np.int64)
    for a, n in zip(arrays, sizes):
        flat = flat * n + np.where(a < 0, a + n, a)
    if flat.size == 0 or values.size == 0:
        return
    flat, values = flat.reshape(-1), values.reshape(flat.size, *rest)
    # One index array is the case for which np.add.at is fast.
    if rows.flags.c_contiguous and not is_narrow_float(rows.dtype.name):
        np.add.at(rows.reshape(-1, *rest), flat, values)
        return
    work = np.dtype(np.float32) if is_narrow_float(rows.dtype.name) else rows.dtype
    total = np.zeros((math.prod(sizes), *rest), work)
    np.add.at(total, flat, values.astype(work, copy=False))
    rows[...] = (rows.astype(work, copy=False) + total.reshape(rows.shape)).astype(rows.dtype)
