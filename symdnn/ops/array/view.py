"""Moving, joining and declaring dimensions: builders over ``DimShuffle`` and ``Reshape``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import (
    AxisError,
    NdimMismatch,
    ShapeMismatch,
    SpecifiedShapeMismatch,
    TypeMismatch,
)
from symdnn.graph.dims import Dim, known, normal_axis, one_size, product
from symdnn.graph.names.torch_words import torch_words
from symdnn.graph.op import Axes, Batched, Grads, Host, Op, Shapes, Types, Vars
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array, AxisLike, ShapeLike, TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.core.lanes import on_lanes
from symdnn.ops.core.shape import (
    alloc,
    as_dim,
    dims_of,
    dimshuffle,
    reshape,
    shape_entries,
    specify_type,
    static_dim,
)
from symdnn.ops.core.short_axes import with_short_axes_for
from symdnn.options import as_int, as_list

__all__ = ["Copy", "ForgetShape", "SpecifyShape"]


# -- the order of dimensions ----------------------------------------------------------------------


def _axes(axes: AxisLike) -> tuple[Any, ...]:
    return tuple(axes) if isinstance(axes, list | tuple | np.ndarray) else (axes,)


def transpose(
    x: TensorLike, axes: Sequence[int] | int | None = None, dim1: int | None = None, *,
    dim0: int | None = None,
) -> Variable:  # fmt: skip
    """``x`` with its dimensions in the order of ``axes`` (reversed when None).

    ``transpose(x, dim0, dim1)`` is PyTorch's: it exchanges two.
    """
    v = as_variable(x)
    if dim0 is not None or dim1 is not None:
        two: list[Any] = [d for d in (axes, dim0, dim1) if d is not None]
        if len(two) != 2:
            raise AxisError("transpose", "two axes, dim0 and dim1", str(two))
        return swapaxes(v, *two)
    order = tuple(reversed(range(v.type.ndim))) if axes is None else _axes(axes)
    if len(order) != v.type.ndim:
        raise AxisError("transpose", f"{v.type.ndim} axes", str(order))
    return dimshuffle(v, [normal_axis("transpose", a, v.type.ndim) for a in order])


def swapaxes(x: TensorLike, axis1: int, axis2: int) -> Variable:
    """``x`` with two dimensions exchanged."""
    v = as_variable(x)
    order = list(range(v.type.ndim))
    a, b = (normal_axis("swapaxes", i, v.type.ndim) for i in (axis1, axis2))
    order[a], order[b] = order[b], order[a]
    return dimshuffle(v, order)


def moveaxis(x: TensorLike, source: Any, destination: Any) -> Variable:
    """``x`` with dimensions ``source`` at the places ``destination`` (ints or sequences)."""
    v = as_variable(x)
    ndim = v.type.ndim
    sources = [normal_axis("moveaxis", a, ndim) for a in np.atleast_1d(source)]
    places = [normal_axis("moveaxis", a, ndim) for a in np.atleast_1d(destination)]
    if len(sources) != len(places) or len(set(sources)) != len(sources):
        raise AxisError("moveaxis", "as many different sources as places", f"{source}")
    order = [d for d in range(ndim) if d not in sources]
    for place, d in sorted(zip(places, sources, strict=True)):
        order.insert(place, d)
    return dimshuffle(v, order)


def rollaxis(x: TensorLike, axis: int, start: int = 0) -> Variable:
    """``x`` with ``axis`` moved before the dimension ``start``."""
    v = as_variable(x)
    order = list(range(v.type.ndim))
    a = normal_axis("rollaxis", axis, v.type.ndim)
    before = start + v.type.ndim if start < 0 else start
    order.remove(a)
    order.insert(before - 1 if a < before else before, a)
    return dimshuffle(v, order)


# -- dimensions of size 1 -------------------------------------------------------------------------


@torch_words()
def squeeze(x: TensorLike, axis: AxisLike = None) -> Variable:
    """``x`` without its static-1 dimensions, or without those of ``axis`` (an int or several).

    A dimension named in ``axis`` whose size is unknown is declared to be 1, and checked when
    the function runs.
    """
    v = as_variable(x)
    if axis is None:
        drop = {i for i, b in enumerate(v.type.broadcastable) if b}
    else:
        drop = {normal_axis("squeeze", a, v.type.ndim) for a in _axes(axis)}
        v = addbroadcast(v, *drop)
    return dimshuffle(v, [i for i in range(v.type.ndim) if i not in drop])


@torch_words()
def expand_dims(x: TensorLike, axis: AxisLike) -> Variable:
    """``x`` with new dimensions of size 1 at the places ``axis`` (an int or several)."""
    v = as_variable(x)
    axes = _axes(axis)
    ndim = v.type.ndim + len(axes)
    new = {normal_axis("expand_dims", a, ndim) for a in axes}
    if len(new) != len(axes):
        raise AxisError("expand_dims", "different axes", str(axis))
    old = iter(range(v.type.ndim))
    return dimshuffle(v, ["x" if i in new else next(old) for i in range(ndim)])


def shape_padleft(t: TensorLike, n_ones: int = 1) -> Variable:
    """``t`` with ``n_ones`` new dimensions of size 1 in front."""
    v = as_variable(t)
    count = as_int("shape_padleft: n_ones", n_ones)
    return dimshuffle(v, [*("x" for _ in range(count)), *range(v.type.ndim)])


def shape_padright(t: TensorLike, n_ones: int = 1) -> Variable:
    """``t`` with ``n_ones`` new dimensions of size 1 at the end."""
    v = as_variable(t)
    count = as_int("shape_padright: n_ones", n_ones)
    return dimshuffle(v, [*range(v.type.ndim), *("x" for _ in range(count))])


def shape_padaxis(t: TensorLike, axis: int) -> Variable:
    """``t`` with a new dimension of size 1 at ``axis``."""
    return expand_dims(t, axis)


def atleast_nd(x: TensorLike, n: int = 1, left: bool = True) -> Variable:
    """``x`` with dimensions of size 1 added (in front, or at the end) up to ``n``."""
    v = as_variable(x)
    return (shape_padleft if left else shape_padright)(
        v, max(0, as_int("atleast_nd: n", n) - v.type.ndim)
    )


# -- static sizes of dimensions -------------------------------------------------------------------


@dataclass(frozen=True)
class ForgetShape(Op):
    """``x`` with the sizes of ``axes`` no longer static, so that they do not broadcast. A view."""

    shaped_as: ClassVar[int | None] = 0
    views: ClassVar[Mapping[int, int]] = {0: 0}
    linear_in_first: ClassVar[bool] = True
    axes: tuple[int, ...]

    def infer(self, x: TensorType) -> TensorType:
        if any(not 0 <= a < x.ndim for a in self.axes):
            raise AxisError(self, f"axes of a tensor of {x.ndim} dimension(s)", x)
        return x.with_shape(None if i in self.axes else d for i, d in enumerate(x.shape))

    def reference(self, x: Array) -> Array:
        return x

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        return [specify_type(cotangents[0], inputs[0].type)]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return on_lanes(ForgetShape(tuple(a + 1 for a in self.axes)), inputs, axes)


def addbroadcast(x: TensorLike, *axes: int) -> Variable:
    """``x`` whose ``axes`` are declared to have size 1, so that they broadcast.

    Checked when the function runs: another size raises :class:`ShapeMismatch`.
    """
    v = as_variable(x)
    ones = {normal_axis("addbroadcast", a, v.type.ndim) for a in axes}
    return specify_type(v, v.type.with_shape(1 if i in ones else None for i in range(v.type.ndim)))


def unbroadcast(x: TensorLike, *axes: int) -> Variable:
    """``x`` whose ``axes`` are of unknown size, so that they do not broadcast."""
    v = as_variable(x)
    chosen = {normal_axis("unbroadcast", a, v.type.ndim) for a in axes}
    forget = tuple(sorted(a for a in chosen if v.type.shape[a] == 1))
    return ForgetShape(forget)(v) if forget else v


def patternbroadcast(x: TensorLike, broadcastable: Sequence[bool]) -> Variable:
    """``x`` with exactly this broadcast pattern: :func:`addbroadcast` and :func:`unbroadcast`."""
    v = as_variable(x)
    given = as_list("patternbroadcast: broadcastable", broadcastable, "booleans")
    flags = [bool(b) for b in given]
    if len(flags) != v.type.ndim:
        raise TypeMismatch("patternbroadcast", f"{v.type.ndim} flags", str(tuple(flags)))
    v = addbroadcast(v, *(i for i, b in enumerate(flags) if b))
    return unbroadcast(v, *(i for i, b in enumerate(flags) if not b))


@dataclass(frozen=True)
class SpecifyShape(Op):
    """``x`` with a check that it has the shape given by the integer scalars after it. A view."""

    views: ClassVar[Mapping[int, int]] = {0: 0}
    linear_in_first: ClassVar[bool] = True
    static: tuple[int | None, ...]

    @property
    def host_inputs(self) -> tuple[int, ...]:
        return tuple(range(1, 1 + len(self.static)))

    def infer(self, x: TensorType, *dims: TensorType) -> TensorType:
        if x.ndim != len(self.static):
            raise NdimMismatch(self, f"a tensor of {len(self.static)} dimensions", x)
        merged = []
        for a, b in zip(x.shape, self.static, strict=True):
            if a is not None and b is not None and a != b:
                raise SpecifiedShapeMismatch(self, f"the shape {self.static}", str(x))
            merged.append(a if b is None else b)
        return x.with_shape(merged)

    def reference(self, x: Array, *dims: Array) -> Array:
        wanted = tuple(int(d) for d in dims)
        if x.shape != wanted:
            raise SpecifiedShapeMismatch(self, f"the shape {wanted}", x.shape)
        return x

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        (x, *_), wanted = shapes, tuple(host[i] for i in self.host_inputs)
        for a, b in zip(x, wanted, strict=True):
            m, n = known(a), known(b)
            if m is not None and n is not None and m != n:
                raise SpecifiedShapeMismatch(self, f"the shape {wanted}", tuple(x))
        return [tuple(one_size((a, b)) for a, b in zip(x, wanted, strict=True))]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        return [cotangents[0], *(None for _ in self.static)]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        x, *dims = inputs
        if axes[0] is None or any(a is not None for a in axes[1:]):
            return None
        return [specify_shape(x, [None, *dims])], [0]


def specify_shape(
    x: TensorLike, shape: Variable | Array | Sequence[int | Variable | None]
) -> Variable:
    """``x`` whose shape is declared: ints, integer scalars, None for any size, or a vector.

    ``specify_shape(x, (y.shape[0], None))`` declares that two sizes are equal; if they have
    different names, the result's size has both.

    Raises :class:`ShapeMismatch` for another shape, when the function runs at the latest.
    """
    v = as_variable(x)
    entries = [d if d is None else as_dim(d) for d in shape_entries(shape, v.type.ndim)]
    if len(entries) != v.type.ndim:
        raise NdimMismatch("specify_shape", f"{v.type.ndim} sizes", f"{len(entries)}")
    static = tuple(None if d is None else static_dim(d) for d in entries)
    if all(d is None or s is not None for d, s in zip(entries, static, strict=True)):
        return specify_type(v, v.type.with_shape(static))
    dims = [own if d is None else d for d, own in zip(entries, dims_of(v), strict=True)]
    return SpecifyShape(static)(v, *dims)


def of_sizes(v: Variable, sizes: Sequence[Dim], what: str) -> Variable:
    """``v``, whose last sizes are these. One that is 1 does not broadcast there."""
    lead = v.type.ndim - len(sizes)
    if lead < 0:
        raise NdimMismatch(what, f"{len(sizes)} dimension(s) at least", v.type)
    own = v.type.shape[lead:]
    known_ones = [(a, b) for a, b in zip(own, sizes, strict=True) if isinstance(a, int)]
    if any(isinstance(b, int) and a != b for a, b in known_ones):
        wanted = tuple(b if isinstance(b, int) else None for b in sizes)
        raise ShapeMismatch(what, f"the size(s) {wanted}", own)
    # Of two unknown sizes neither broadcasts. One that is 1 might.
    unsure = any((a == 1) != (isinstance(b, int) and b == 1) for a, b in zip(own, sizes))
    return specify_shape(v, [*[None] * lead, *sizes]) if unsure else v


@dataclass(frozen=True)
class Copy(Op):
    """The same value in its own memory."""

    shaped_as: ClassVar[int | None] = 0
    may_overwrite: ClassVar[Mapping[int, tuple[int, ...]]] = {0: (0,)}

    def infer(self, x: TensorType) -> TensorType:
        return x

    def reference(self, x: Array) -> Array:
        return np.array(x, copy=True)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        return [cotangents[0]]

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        return [tangents[0]]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return on_lanes(self, inputs, axes)


def copy(x: TensorLike, name: str | None = None) -> Variable:
    """A new variable of the same value (Theano's ``tensor_copy``)."""
    return Copy()(as_variable(x), name=name)


# -- shapes ---------------------------------------------------------------------------------------


@torch_words("flatten", "start_dim", "end_dim")
def flatten(x: TensorLike, ndim: int | None = None, outdim: int | None = None) -> Variable:
    """``x`` with ``ndim`` dimensions: the first ``ndim - 1`` kept, the rest joined into one.

    ``outdim`` is Theano's old name of ``ndim``; the default is 1.
    """
    v = as_variable(x)
    if ndim is not None and outdim is not None:
        raise NdimMismatch("flatten", "ndim alone", "ndim and outdim")
    wanted = as_int("flatten: ndim", next((n for n in (ndim, outdim) if n is not None), 1))
    if wanted < 1 or wanted > max(1, v.type.ndim):
        raise NdimMismatch("flatten", f"ndim in 1..{v.type.ndim}", str(wanted))
    if wanted == v.type.ndim:
        return v
    dims = dims_of(v)
    # The product, not -1, which is undetermined if another size is 0.
    last = product(dims[wanted - 1 :]) if wanted > 1 or v.type.is_static else -1
    return reshape(v, (*dims[: wanted - 1], last))


def ravel(x: TensorLike) -> Variable:
    """All elements as a vector, in C order."""
    return flatten(x, 1)


def broadcast_to(x: TensorLike, shape: ShapeLike) -> Variable:
    """``x`` in ``shape``, repeated along its static-1 and new leading dimensions (a new array)."""
    dims = shape_entries(shape)
    return alloc(with_short_axes_for(as_variable(x), dims), *dims)


def _transpose_of(x: Variable, axes: Sequence[int] | None) -> Variable:
    """The method: two axes of a tensor that has more are exchanged, as in PyTorch."""
    if axes is not None and len(axes) == 2 < x.type.ndim:
        return swapaxes(x, *axes)
    return transpose(x, axes)


OPERATORS = {
    "copy": copy,
    "flatten": flatten,
    "squeeze": squeeze,
    "swapaxes": swapaxes,
    "transpose": transpose,
    "transpose_of": _transpose_of,
}
