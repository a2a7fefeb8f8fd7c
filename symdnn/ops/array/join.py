"""Joining, splitting, repeating and rolling along an axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import (
    AxisError,
    DataError,
    InputError,
    NdimMismatch,
    OptionError,
    ShapeMismatch,
    TypeMismatch,
)
from symdnn.graph.backprop import zeros_for
from symdnn.graph.dims import Dim, known, normal_axis, product, same_dim
from symdnn.graph.names.torch_words import torch_words
from symdnn.graph.op import Axes, Batched, Grads, Host, MultiOp, Op, Shapes, Types, Vars
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType, Type
from symdnn.graph.typing import Array, AxisLike, TensorLike
from symdnn.graph.variable import Constant, Variable, as_variable, constant
from symdnn.ops.array.view import expand_dims, flatten, shape_padleft, specify_shape
from symdnn.ops.core.dtype import upcast
from symdnn.ops.core.lanes import lanes_of, on_lanes, stacked
from symdnn.ops.core.make_vector import make_vector
from symdnn.ops.core.python_numbers import settled
from symdnn.ops.core.shape import (
    alloc,
    as_dim,
    dims_of,
    dimshuffle,
    reshape,
    shape_entries,
    shape_i,
    static_dim,
)

__all__ = ["Join", "RepeatIndex", "Roll", "Split"]


@dataclass(frozen=True)
class Join(Op):
    """Tensors of one dtype one after the other along ``axis``."""

    never_fails: ClassVar[bool] = True

    axis: int

    def infer(self, *tensors: TensorType) -> TensorType:
        first = tensors[0]
        if any(t.ndim != first.ndim or t.dtype != first.dtype for t in tensors):
            raise TypeMismatch(self, "tensors of one ndim and dtype", list(tensors))
        if not 0 <= self.axis < first.ndim:
            raise AxisError(self, f"tensors with a dimension {self.axis}", list(tensors))
        return first.with_shape(
            self._along([t.shape[d] for t in tensors])
            if d == self.axis
            else self._across(d, [t.shape for t in tensors])
            for d in range(first.ndim)
        )

    def _along(self, sizes: Sequence[Dim | None]) -> Any:
        known_sizes = [s for s in sizes if s is not None]
        return sum(known_sizes[1:], known_sizes[0]) if len(known_sizes) == len(sizes) else None

    def _across(self, d: int, shapes: Sequence[Any]) -> Any:
        sizes = [s[d] for s in shapes if s[d] is not None]
        return same_dim(self, sizes, f"equal sizes in dimension {d}", shapes) if sizes else None

    def reference(self, *tensors: Array) -> Array:
        shapes = [t.shape for t in tensors]
        for d in set(range(tensors[0].ndim)) - {self.axis}:
            self._across(d, shapes)
        return np.concatenate(tensors, axis=self.axis)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        columns = [[s[d] for s in shapes] for d in range(len(shapes[0]))]
        return [
            tuple(
                self._along(c) if d == self.axis else self._across(d, shapes)
                for d, c in enumerate(columns)
            )
        ]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        if len(inputs) == 1:
            return [cotangents[0]]
        sizes = [as_dim(shape_i(v, self.axis)) for v in inputs]
        return list(Split(self.axis, tuple(map(static_dim, sizes)))(cotangents[0], *sizes))

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        return [self(*zeros_for(inputs, tangents))]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return on_lanes(replace(self, axis=self.axis + 1), inputs, axes)


def join(axis: Any, *tensors: TensorLike) -> Variable:
    """Tensors one after the other along ``axis``, upcast to their common dtype.

    Their other dimensions are equal. Raises :class:`~symdnn.errors.TypeMismatch` for tensors of
    different ndim, :class:`~symdnn.errors.ShapeMismatch` for sizes that differ.

    >>> join(0, [[1, 2]], [[3, 4], [5, 6]]).eval().tolist()
    [[1, 2], [3, 4], [5, 6]]
    """
    vs: list[Variable] = settled([as_variable(t) for t in tensors])
    if not vs:
        raise TypeMismatch("join", "at least one tensor", "none")
    if any(v.type.ndim == 0 for v in vs):
        raise NdimMismatch(
            "join", "tensors with dimensions", [v.type for v in vs], "Use stack for scalars"
        )
    if len(vs) == 1:
        return vs[0]
    dtype = upcast(*(v.type.dtype for v in vs))
    cast = [v if v.type.dtype == dtype else operator("cast")(v, dtype) for v in vs]
    if isinstance(axis, Variable) and not isinstance(axis, Constant):
        return _join_along(as_dim(axis), cast)
    return Join(normal_axis("join", axis, vs[0].type.ndim))(*cast)


def _join_along(axis: Variable, vs: Vars) -> Variable:
    """:func:`join` along an axis that is known in a call only.

    The dimensions before the axis become one, the axis and those after it another. Joined along the
    second, the elements are in the order of the result.
    """
    ndim = vs[0].type.ndim
    if any(v.type.ndim != ndim for v in vs):
        raise NdimMismatch("join", f"tensors of {ndim} dimension(s)", [v.type for v in vs])
    where, eq = operator("switch"), operator("eq")
    axis = constant(np.arange(ndim))[axis]  # an invalid axis raises IndexError in the call
    first, sizes = dims_of(vs[0]), [dims_of(v) for v in vs]
    flat = []
    for v, own in zip(vs, sizes):
        wanted = [where(eq(axis, d), n, m) for d, (n, m) in enumerate(zip(own, first))]
        before = product(where(axis > d, m, 1) for d, m in enumerate(first))
        flat.append(reshape(specify_shape(v, wanted), (before, -1)))
    out = [where(eq(axis, d), sum(n[1:], n[0]), n[0]) for d, n in enumerate(zip(*sizes))]
    return reshape(Join(1)(*flat), out)


@torch_words()
def concatenate(tensor_list: Sequence[TensorLike], axis: TensorLike | None = 0) -> Variable:
    """The tensors of a list one after the other along ``axis`` (None: all flat); :func:`join`."""
    if not isinstance(tensor_list, list | tuple):
        raise InputError(f"concatenate: wanted a list or tuple of tensors, got {tensor_list!r}")
    return join(0, *map(flatten, tensor_list)) if axis is None else join(axis, *tensor_list)


def _tensors(what: str, tensors: TensorLike | Sequence[TensorLike]) -> list[Variable]:
    """The members of a list, tuple or array, or the rows of a variable of known length."""
    if not isinstance(tensors, list | tuple | np.ndarray | Variable):
        raise InputError(f"{what}: wanted a list or tuple of tensors, got {tensors!r}")
    vs = [as_variable(t) for t in tensors]
    if not vs:
        raise TypeMismatch(what, "at least one tensor", "none")
    return vs


@torch_words()
def stack(*arrays: Any, axis: int = 0, tensors: Sequence[Any] | None = None) -> Variable:
    """Tensors of one shape along a new dimension ``axis``: ``stack([a, b])`` or ``stack(a, b)``.

    Scalars give a vector. ``tensors=[a, b]`` is another way to pass them.
    """
    items: Any = arrays if tensors is None else tensors
    if arrays and isinstance(arrays[0], list | tuple):
        items, *more = arrays
        axis = more[0] if more else axis  # stack(tensors, axis)
    vs = _tensors("stack", items)
    if all(v.type.ndim == 0 for v in vs):
        normal_axis("stack", axis, 1)
        return make_vector(vs)
    where = normal_axis("stack", axis, vs[0].type.ndim + 1)
    return join(where, *(expand_dims(v, where) for v in vs))


def stacklists(arg: TensorLike) -> Variable:
    """Nested lists of tensors stacked, the outermost list first."""
    if isinstance(arg, list | tuple):
        return stack([stacklists(a) for a in arg])
    return as_variable(arg)


def hstack(tensors: Sequence[TensorLike]) -> Variable:
    """Tensors side by side: along axis 1, vectors along axis 0."""
    vs = _tensors("hstack", tensors)
    return join(0 if vs[0].type.ndim == 1 else 1, *vs)


def vstack(tensors: Sequence[TensorLike]) -> Variable:
    """Tensors one below the other: along axis 0, vectors as rows."""
    vs = _tensors("vstack", tensors)
    return join(0, *(shape_padleft(v) if v.type.ndim == 1 else v for v in vs))


def horizontal_stack(*args: TensorLike) -> Variable:
    """Matrices side by side."""
    return join(1, *args)


def vertical_stack(*args: TensorLike) -> Variable:
    """Matrices one below the other."""
    return join(0, *args)


@dataclass(frozen=True)
class Split(MultiOp):
    """``x`` cut along ``axis`` into pieces whose sizes (integer scalars) follow it. Views."""

    never_fails: ClassVar[bool] = True

    axis: int
    static: tuple[int | None, ...]

    @property
    def host_inputs(self) -> tuple[int, ...]:
        return tuple(range(1, 1 + len(self.static)))

    def infer(self, x: TensorType, *sizes: TensorType) -> tuple[Type, ...]:
        if not 0 <= self.axis < x.ndim:
            raise AxisError(self, f"a tensor with a dimension {self.axis}", x)
        self._check(x.shape[self.axis], self.static)
        return tuple(x.with_shape(self._piece(x.shape, s)) for s in self.static)

    def _piece(self, shape: Sequence[Dim | None], size: Dim | None) -> tuple[Any, ...]:
        return (*shape[: self.axis], size, *shape[self.axis + 1 :])

    def _check(self, whole: Dim | None, sizes: Sequence[Dim | None]) -> None:
        numbers = [None if s is None else known(s) for s in (whole, *sizes)]
        if any(n is not None and n < 0 for n in numbers):
            raise ShapeMismatch(self, "sizes that are not negative", tuple(sizes))
        total, *parts = numbers
        if total is None or None in parts:
            return
        if sum(n for n in parts if n is not None) != total:
            raise ShapeMismatch(self, f"sizes that add up to {total}", tuple(sizes))

    def reference(self, x: Array, *sizes: Array) -> tuple[Array, ...]:
        parts = [int(s) for s in sizes]
        self._check(x.shape[self.axis], parts)
        return tuple(np.split(x, np.cumsum(parts)[:-1], axis=self.axis))

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        sizes = [host[i] if s is None else s for i, s in enumerate(self.static, 1)]
        self._check(shapes[0][self.axis], sizes)
        return [self._piece(shapes[0], s) for s in sizes]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        return [join(self.axis, *zeros_for(outputs, cotangents)), *(None for _ in self.static)]

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        if tangents[0] is None:
            return [None] * len(outputs)
        return list(self(tangents[0], *inputs[1:]))

    @property
    def views(self) -> Mapping[int, int]:
        return {i: 0 for i in range(len(self.static))}

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return on_lanes(replace(self, axis=self.axis + 1), inputs, axes)


def _equal_parts(v: Variable, count: int, axis: int) -> list[Any]:
    """The sizes of ``count`` equal parts, which a call checks where the size is not known."""
    if count < 1:
        raise OptionError(f"split: wanted at least 1 part, got {count}")
    size = dims_of(v)[normal_axis("split", axis, v.type.ndim)]
    known = static_dim(size)
    if known is not None and known % count:
        raise ShapeMismatch(
            "split", f"a size that {count} parts divide", f"{known} along axis {axis}",
            "T.array_split makes nearly equal parts",
        )  # fmt: skip
    return [size // count if known is None else known // count] * count


@torch_words("split")
def split(
    x: TensorLike, splits_size: Any, n_splits: int | None = None, axis: int = 0
) -> list[Variable]:
    """``x`` cut along ``axis`` into ``n_splits`` pieces of the sizes ``splits_size``.

    ``splits_size`` is a list of ints and integer scalars or an integer vector; they must add up
    to the size of ``x``. An empty list of sizes with ``n_splits`` 0 gives an empty list. An int
    alone is NumPy's number of equal parts; with ``dim`` it is PyTorch's size of a part.
    """
    v = as_variable(x)
    if n_splits is None and isinstance(splits_size, int | np.integer):
        splits_size = _equal_parts(v, int(splits_size), axis)
    sizes = [as_dim(s) for s in shape_entries(splits_size, n_splits)]
    if n_splits is not None and len(sizes) != n_splits:
        raise NdimMismatch("split", f"{n_splits} sizes", f"{len(sizes)} of them")
    if not sizes:
        return []
    op = Split(normal_axis("split", axis, v.type.ndim), tuple(map(static_dim, sizes)))
    return list(op(v, *sizes))


# -- repeating ------------------------------------------------------------------------------------


def tile(x: TensorLike, reps: Any, ndim: int | None = None) -> Variable:
    """``x`` repeated ``reps`` times in each dimension (an int, a sequence, or a vector).

    As in NumPy, the shorter of ``x.shape`` and ``reps`` is extended by leading ones. ``ndim`` is
    the number of dimensions of the result, if larger, or the length of a symbolic ``reps``. Without
    ``ndim`` a symbolic ``reps`` has one entry for each dimension of ``x``, which is checked in a
    call.
    """
    v = as_variable(x)
    if isinstance(reps, Variable) and reps.type.ndim == 1 and ndim is None:
        reps = _of_known_length(reps, v.type.ndim)
    counts = [as_dim(r) for r in shape_entries(reps, ndim)]
    rank = max(len(counts), v.type.ndim)
    if ndim is not None and ndim < rank:
        raise NdimMismatch("tile", f"ndim of at least {rank}", str(ndim))
    rank = max(rank, ndim or 0)
    counts = [as_dim(1)] * (rank - len(counts)) + counts
    return _tiled(shape_padleft(v, rank - v.type.ndim), counts)


def _of_known_length(reps: Variable, ndim: int) -> Variable:
    return reps if reps.type.shape[0] is not None else specify_shape(reps, (ndim,))


def _tiled(v: Variable, counts: Vars) -> Variable:
    if all(static_dim(c) == 1 for c in counts):
        return v
    pattern: list[int | str] = []
    wide: list[Any] = []
    for d, (size, count) in enumerate(zip(dims_of(v), counts, strict=True)):
        if static_dim(count) != 1:
            pattern.append("x")
            wide.append(count)
        pattern.append(d)
        wide.append(size)
    spread = alloc(dimshuffle(v, pattern), *wide)
    return reshape(spread, [_times(s, c) for s, c in zip(dims_of(v), counts, strict=True)])


def _times(size: Dim, count: Variable) -> Dim:
    n = static_dim(count)
    if n == 1:
        return size
    if isinstance(size, int):
        return count if size == 1 else (size * n if n is not None else count * size)
    return size * (count if n is None else n)


@dataclass(frozen=True)
class RepeatIndex(Op):
    """Index ``i`` repeated ``repeats[i]`` times, for a vector of ``n`` counts.

    Inputs: ``repeats`` (an integer vector), ``n`` (an integer scalar). The length of the result
    depends on the data.
    """

    no_gradients: ClassVar[bool] = True
    host_inputs: ClassVar[tuple[int, ...]] = (1,)

    def infer(self, repeats: TensorType, n: TensorType) -> TensorType:
        if repeats.ndim != 1 or not repeats.is_discrete:
            raise TypeMismatch(self, "an integer vector of counts", repeats)
        return TensorType("int64", (None,))

    def reference(self, repeats: Array, n: Array) -> Array:
        if repeats.shape != (int(n),):
            raise ShapeMismatch(self, f"{int(n)} counts, one for each index", repeats.shape)
        if np.any(repeats < 0):
            raise DataError(f"{self}: wanted counts that are not negative, got {repeats.min()}")
        return np.repeat(np.arange(int(n), dtype=np.int64), repeats.astype(np.int64))

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return None


def repeat(x: TensorLike, repeats: TensorLike, axis: int | None = None) -> Variable:
    """Each element of ``x`` repeated along ``axis`` (of the flattened ``x`` when None).

    ``repeats`` is an int, an integer scalar, or an integer vector with one count for each index
    along ``axis`` (the result's shape then depends on the data unless it is a constant).
    """
    v, r = as_variable(x), as_variable(repeats)
    if axis is None:
        v, axis = flatten(v, 1), 0
    where = normal_axis("repeat", axis, v.type.ndim)
    if not r.type.is_discrete or r.type.ndim > 1:
        raise TypeMismatch("repeat", "an integer scalar or vector of repeats", r.type)
    if r.type.ndim == 1 and r.type.shape[0] == 1:
        r = dimshuffle(r, ())
    if r.type.ndim == 0:
        return _repeat_each(v, as_dim(r), where)
    n = shape_i(v, where)
    repeated = RepeatIndex()
    index = repeated(r, n)
    if isinstance(r, Constant) and isinstance(n, Constant):
        index = constant(repeated.reference(r.data, n.data))
    return operator("take")(v, index, where)


def _repeat_each(v: Variable, count: Variable, axis: int) -> Variable:
    dims = list(dims_of(v))
    spread = alloc(expand_dims(v, axis + 1), *dims[: axis + 1], count, *dims[axis + 1 :])
    return reshape(spread, [*dims[:axis], _times(dims[axis], count), *dims[axis + 1 :]])


def _repeat_of(x: Variable, repeats: TensorLike, axis: Any = None, *more: Any) -> Variable:
    """The method: with more numbers, or with one that is no axis, it is PyTorch's, a ``tile``."""
    if more or (isinstance(axis, int) and axis >= x.type.ndim > 0):
        return tile(x, [repeats, axis, *more])
    return repeat(x, repeats, axis)


# -- rolling --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Roll(Op):
    """``x`` shifted cyclically by ``shift`` (an integer scalar) along ``axis``."""

    shaped_as: ClassVar[int | None] = 0
    host_inputs: ClassVar[tuple[int, ...]] = (1,)
    linear_in_first: ClassVar[bool] = True
    axis: int

    def infer(self, x: TensorType, shift: TensorType) -> TensorType:
        if not 0 <= self.axis < x.ndim:
            raise AxisError(self, f"a tensor with a dimension {self.axis}", x)
        return x

    def reference(self, x: Array, shift: Array) -> Array:
        return np.roll(x, int(shift), axis=self.axis)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        back = static_dim(inputs[1])
        return [self(cotangents[0], as_dim(-inputs[1] if back is None else -back)), None]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        if axes[1] is None:
            return on_lanes(replace(self, axis=self.axis + 1), inputs, axes)
        whole = stacked(inputs[0], axes[0], lanes_of(inputs, axes))
        lanes, *sizes = dims_of(whole)
        place = operator("arange")(sizes[self.axis]) - inputs[1].dimshuffle(0, "x")
        index = [operator("arange")(lanes).dimshuffle(0, "x"), *[slice(None)] * self.axis]
        found = operator("getitem")(whole, (*index, place % sizes[self.axis]))
        if self.axis:  # the arrays are not side by side: their dimensions come first
            rest = range(self.axis + 2, found.type.ndim)
            found = found.dimshuffle(0, *range(2, self.axis + 2), 1, *rest)
        return [found], [0]


@torch_words()
def roll(x: TensorLike, shift: Any, axis: AxisLike = None) -> Variable:
    """Elements shifted cyclically by ``shift`` along ``axis`` (of the flattened ``x`` when None).

    ``shift`` may be symbolic; a sequence of axes takes one shift or as many.
    """
    v = as_variable(x)
    if axis is None:
        return reshape(roll(flatten(v, 1), shift, 0), dims_of(v))
    axes = list(axis) if isinstance(axis, list | tuple) else [axis]
    shifts = list(shift) if isinstance(shift, list | tuple) else [shift] * len(axes)
    if len(shifts) != len(axes):
        raise AxisError("roll", f"{len(axes)} shifts, one for each axis", f"{len(shifts)}")
    for s, a in zip(shifts, axes, strict=True):
        v = Roll(normal_axis("roll", a, v.type.ndim))(v, as_dim(s))
    return v


@torch_words()
def flip(x: TensorLike, axis: AxisLike = None) -> Variable:
    """``x`` in reverse order along ``axis`` (an int, several, or all when None). A view."""
    v = as_variable(x)
    axes = range(v.type.ndim) if axis is None else np.atleast_1d(axis)
    backward = {normal_axis("flip", a, v.type.ndim) for a in axes}
    step = tuple(slice(None, None, -1 if d in backward else None) for d in range(v.type.ndim))
    return v[step]


OPERATORS = {"join": join, "repeat": repeat, "repeat_of": _repeat_of, "roll": roll, "stack": stack}
