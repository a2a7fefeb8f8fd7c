"""Selecting elements by value or index: take, choose, compress, one-hot, counting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from symdnn.config import config
from symdnn.errors import AssertionFailed, IndexOutOfRange, NdimMismatch, OptionError, TypeMismatch
from symdnn.graph.dims import normal_axis
from symdnn.graph.names.torch_words import torch_words
from symdnn.graph.op import Axes, Batched, Grads, Host, Op, Shapes, Types, Vars
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array, DtypeLike, TensorLike
from symdnn.graph.variable import Variable, as_variable, constant
from symdnn.ops.array.create import arange, zeros
from symdnn.ops.array.getitem import getitem, inc_subtensor, nonzero, set_subtensor
from symdnn.ops.array.join import join, stack
from symdnn.ops.array.view import flatten, of_sizes, shape_padleft
from symdnn.ops.core.composed import Composed
from symdnn.ops.core.lanes import on_lanes
from symdnn.ops.core.python_numbers import alike
from symdnn.ops.core.shape import alloc, as_dim, dims_of, dimshuffle, shape_i, static_dim
from symdnn.options import as_int

__all__ = ["BincountLength", "OneHot"]


def take(
    a: TensorLike, indices: TensorLike, axis: int | None = None, mode: str = "raise"
) -> Variable:
    """Elements of ``a`` by integer ``indices`` along ``axis`` (of the flattened ``a`` when None).

    The dimensions of ``indices`` take the place of ``axis``. ``mode`` says what an index out of
    range does: ``"raise"`` (negative ones count from the end), ``"wrap"`` or ``"clip"``.
    """
    v, i = as_variable(a), as_variable(indices)
    if i.type.is_float and i.type.shape == (0,):
        i = constant(np.zeros(0, np.int64))  # an empty list
    if not i.type.is_integer:
        raise TypeMismatch("take", "integer indices", i.type)
    if axis is None:
        v, axis = flatten(v, 1), 0
    where = normal_axis("take", axis, v.type.ndim)
    i = _in_range("take", i, shape_i(v, where), mode)
    return getitem(v, (*(slice(None) for _ in range(where)), i))


def _in_range(what: str, index: Variable, size: Variable, mode: str) -> Variable:
    if mode == "raise":
        return index
    if mode == "wrap":
        return operator("mod")(index, size)
    if mode == "clip":
        return operator("maximum")(operator("minimum")(index, size - 1), 0)
    raise OptionError(f"{what}: mode={mode!r}: wanted 'raise', 'wrap' or 'clip'")


def _grid(sizes: Vars, skip: int) -> list[Variable | None]:
    """For each axis its indices, shaped to broadcast; None for the axis ``skip``."""
    ndim = len(sizes)
    return [
        None if d == skip else dimshuffle(arange(n), ["x"] * d + [0] + ["x"] * (ndim - 1 - d))
        for d, n in enumerate(sizes)
    ]


def _along(arr: Variable, indices: Variable, axis: int) -> tuple[Variable | None, ...]:
    if not indices.type.is_integer or indices.type.ndim != arr.type.ndim:
        raise TypeMismatch(
            "take_along_axis", f"integer indices of {arr.type.ndim} dimension(s)", indices.type
        )
    index = _grid([shape_i(arr, d) for d in range(arr.type.ndim)], axis)
    index[axis] = indices
    return tuple(index)


def take_along_axis(arr: Any, indices: TensorLike, axis: int | None = -1) -> Variable:
    """``arr`` at ``indices`` along ``axis``, matched position by position in the other axes.

    ``indices`` has the ndim of ``arr``, as the results of argsort and argtopk; static 1s broadcast.
    """
    v, i = as_variable(arr), as_variable(indices)
    if axis is None:
        v, axis = flatten(v, 1), 0
    where = normal_axis("take_along_axis", axis, v.type.ndim)
    return getitem(v, _along(v, i, where))


def put_along_axis(
    arr: TensorLike, indices: TensorLike, values: TensorLike, axis: int, add: bool = False
) -> Variable:
    """``arr`` with ``values`` assigned or added to the elements of :func:`take_along_axis`."""
    part = take_along_axis(arr, indices, axis)
    return (inc_subtensor if add else set_subtensor)(part, values)


def choose(a: TensorLike, choices: TensorLike, mode: str = "raise") -> Variable:
    """At each position the element of ``choices[a]`` there; all broadcast together.

    ``choices`` is a list of tensors or one tensor whose first dimension counts them; ``mode`` as
    in :func:`take`.
    """
    i = as_variable(a)
    if isinstance(choices, list | tuple):
        vs = alike([as_variable(c) for c in choices])
        ndim = max(v.type.ndim for v in vs)
        table = stack(_same_shape([shape_padleft(v, ndim - v.type.ndim) for v in vs]))
    else:
        table = as_variable(choices)
    if not i.type.is_integer and i.type.dtype != "bool":
        raise TypeMismatch("choose", "integer positions", i.type)
    if i.type.dtype == "bool":
        i = operator("cast")(i, "int8")
    i = _in_range("choose", i, shape_i(table, 0), mode)
    sizes = [shape_i(table, d) for d in range(1, table.type.ndim)]
    return getitem(table, (i, *_grid(sizes, -1)))


def _same_shape(vs: Vars) -> list[Variable]:
    """Tensors of one ndim, each broadcast to the common shape by its static 1s."""
    if len({v.type.broadcastable for v in vs}) == 1:
        return list(vs)
    total = vs[0]
    for v in vs[1:]:
        total = operator("add")(total, v)
    return [operator("fill")(total, v) for v in vs]


def compress(condition: TensorLike, x: TensorLike, axis: int | None = None) -> Variable:
    """Slices of ``x`` along ``axis`` for which the vector ``condition`` is not zero."""
    return take(x, flatnonzero(condition), axis)


def flatnonzero(a: TensorLike) -> Variable:
    """Indices in the flattened ``a`` of the elements that are not zero; their number is data."""
    made: Variable = nonzero(flatten(a, 1))[0]
    return made


def nonzero_values(a: TensorLike) -> Variable:
    """The elements that are not zero, as a vector."""
    v = flatten(as_variable(a), 1)
    return getitem(v, flatnonzero(v))


@dataclass(frozen=True)
class OneHot(Op):
    """Integer labels as vectors with a 1 at the label: a new last dimension of ``n`` classes.

    Inputs: ``labels``, ``n`` (an integer scalar). A label outside of ``[0, n)`` raises
    :class:`~symdnn.errors.IndexOutOfRange`.
    """

    no_gradients: ClassVar[bool] = True
    host_inputs: ClassVar[tuple[int, ...]] = (1,)
    dtype: str
    static: int | None = None

    def infer(self, labels: TensorType, n: TensorType) -> TensorType:
        if not labels.is_integer:
            raise TypeMismatch(self, "integer labels", labels)
        return TensorType(self.dtype, (*labels.shape, self.static))

    def reference(self, labels: Array, n: Array) -> Any:
        out = np.empty((*labels.shape, int(n)), TensorType(self.dtype).numpy)
        self.write(out, labels)
        return out

    def write(self, out: Array, labels: Array) -> None:
        """Write the vectors to ``out``, after a look at the labels."""
        count = out.shape[-1]
        # Read as unsigned numbers, negative ones are the largest.
        if labels.size and int(labels.view(f"u{labels.itemsize}").max()) >= count:
            wrong = np.atleast_1d((labels < 0) | (labels >= count))
            place = tuple(int(p[0]) for p in np.nonzero(wrong))
            label = int(np.atleast_1d(labels)[place])
            raise IndexOutOfRange(
                f"{self}: label {label} at position {place} is not in 0..{count - 1} "
                f"(there are {count} classes)"
            )
        out[...] = 0
        at = labels.astype(np.int64)
        if out.flags.c_contiguous:
            out.reshape(-1)[np.arange(0, out.size, max(count, 1)) + at.reshape(-1)] = 1
        else:
            np.put_along_axis(out, at[..., None], 1, -1)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return [(*shapes[0], host[1] if self.static is None else self.static)]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return on_lanes(self, inputs, axes)


def to_one_hot(y: TensorLike, nb_class: TensorLike, dtype: DtypeLike | None = None) -> Variable:
    """Labels ``y`` as rows with a single 1: ``(n,)`` integers give ``(n, nb_class)``.

    ``floatX`` by default; labels of any ndim are taken.
    """
    n = as_dim(nb_class)
    op = OneHot(TensorType(dtype or config.floatX).dtype, static_dim(n))
    return op(as_variable(y), n)


@dataclass(frozen=True)
class BincountLength(Composed):
    """The number of counts of integers ``x``, a vector: its largest element and 1, or ``least``.

    A negative element raises :class:`~symdnn.errors.AssertionFailed`.
    """

    MESSAGE: ClassVar[str] = "bincount: wanted integers of 0 or more, got a negative one"

    def expanded(self, *inputs: Variable) -> list[Variable]:
        """The largest element, after a look at all signs."""
        v, least = inputs
        wide = operator("cast")(v, "int64")
        length = join(0, wide, constant(np.array([-1]))).max() + 1
        length = operator("maximum")(length, least)
        if not v.type.dtype.startswith(("u", "b")):
            none_below = operator("ge")(wide, 0).all()
            length = operator("assert_")(length, none_below, message=self.MESSAGE)
        return [length]

    def reference(self, *inputs: Array) -> Array:
        x, least = inputs
        if not x.size:
            return np.maximum(np.int64(0), least)
        # Read as unsigned numbers, negative ones are the largest.
        highest = int(x.view(f"u{x.itemsize}").max())
        if x.dtype.kind == "i" and highest > np.iinfo(x.dtype).max:
            raise AssertionFailed(self.MESSAGE)
        return np.maximum(np.int64(highest + 1), least)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Grads) -> Grads:
        return [None, None]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return None


def bincount(x: TensorLike, weights: TensorLike | None = None, minlength: Any = None) -> Variable:
    """How often each of 0, 1, ... occurs in the vector ``x``, or the sum of its ``weights``.

    The length, at least ``minlength``, depends on the largest value. A negative one is an error.
    """
    v = as_variable(x)
    if v.type.ndim != 1 or not v.type.is_discrete:
        raise TypeMismatch("bincount", "an integer vector", v.type)
    least = as_dim(0 if minlength is None else minlength)
    length, wide = BincountLength()(v, least), operator("cast")(v, "int64")
    length.name = "the number of counts of bincount"
    values = constant(1, dtype="int64") if weights is None else as_variable(weights)
    if values.type.ndim:
        values = of_sizes(values, dims_of(v), "bincount: weights")
    counts = zeros(length, values.type.dtype)
    return inc_subtensor(getitem(counts, wide), values)


def _as_part(v: Variable, end: Variable, axis: int) -> Variable:
    """``end`` for joining with ``v``: a number becomes one entry along ``axis``."""
    if end.type.ndim:
        return end
    one = v[(*(slice(None),) * axis, slice(0, 1))]
    sizes = [constant(1) if d == axis else n for d, n in enumerate(dims_of(one))]
    return alloc(end, *sizes)


@torch_words()
def diff(
    x: TensorLike, n: int = 1, axis: int = -1, prepend: TensorLike | None = None,
    append: TensorLike | None = None,
) -> Variable:  # fmt: skip
    """Differences of neighbours along ``axis``, taken ``n`` times.

    ``prepend`` and ``append`` are values before the first and after the last one; a number is one.
    """
    v, times = as_variable(x), as_int("diff: n", n)
    where = normal_axis("diff", axis, v.type.ndim)
    if times == 0:
        return v
    ends = [None if e is None else _as_part(v, as_variable(e), where) for e in (prepend, append)]
    parts = [part for part in (ends[0], v, ends[1]) if part is not None]
    v = operator("join")(where, *parts)
    lead = (slice(None),) * where
    for _ in range(times):
        later, earlier = v[(*lead, slice(1, None))], v[(*lead, slice(None, -1))]
        v = operator("neq")(later, earlier) if v.type.dtype == "bool" else later - earlier
    return v


def fill_diagonal(a: TensorLike, val: TensorLike, offset: int = 0) -> Variable:
    """The matrix ``a`` with ``val`` on the diagonal ``offset``.

    Of an array of more dimensions, which must be of one size, the elements of equal indices.
    """
    v = as_variable(a)
    if v.type.ndim > 2 and offset == 0:
        k = arange(shape_i(v, 0))
        return set_subtensor(v[(k,) * v.type.ndim], val)
    if v.type.ndim != 2:
        raise NdimMismatch("fill_diagonal", "a matrix", v.type)
    length = shape_i(operator("diagonal")(v, offset), 0)
    k = arange(length)
    return set_subtensor(v[k + max(-offset, 0), k + max(offset, 0)], val)


def fill_diagonal_offset(a: TensorLike, val: TensorLike, offset: Any) -> Variable:
    """:func:`fill_diagonal` with an offset, which may be a symbolic integer."""
    if not isinstance(offset, Variable):
        return fill_diagonal(a, val, offset)
    v, k = as_variable(a), as_dim(offset)
    if v.type.ndim != 2:
        raise NdimMismatch("fill_diagonal_offset", "a matrix", v.type)
    rows, columns = (arange(shape_i(v, d)) for d in (0, 1))
    on_it = operator("eq")(rows.dimshuffle(0, "x") + k, columns.dimshuffle("x", 0))
    return operator("switch")(on_it, operator("cast")(val, v.type.dtype), v)


OPERATORS = {
    "choose": choose,
    "compress": compress,
    "nonzero_values": nonzero_values,
    "put_along_axis": put_along_axis,
    "take": take,
    "take_along_axis": take_along_axis,
}
