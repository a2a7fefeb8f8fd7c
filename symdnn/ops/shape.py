"""Ops that move dimensions about or make arrays of a given shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from symdnn.errors import ShapeMismatch, TypeMismatch
from symdnn.graph.dims import Shape, product
from symdnn.graph.op import Grads, Host, Op, Vars
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Constant, Variable, as_variable, constant

__all__ = ["Alloc", "DimShuffle", "Reshape", "ShapeI", "SpecifyType"]


@dataclass(frozen=True)
class DimShuffle(Op):
    """Reorder dimensions, drop static ones of size 1, insert new ones (``"x"``). A view."""

    pattern: tuple[int | str, ...]

    def infer(self, x: TensorType) -> Any:
        kept = [d for d in self.pattern if d != "x"]
        if len(set(kept)) != len(kept) or any(not 0 <= int(d) < x.ndim for d in kept):
            raise TypeMismatch(self, f"each of {x.ndim} dimensions at most once", x)
        for d in set(range(x.ndim)) - {int(d) for d in kept}:
            if x.shape[d] != 1:
                raise TypeMismatch(
                    self, f"a dropped dimension {d} that is statically 1", x,
                    "Sum over it, take an index of it, or declare it with T.addbroadcast",
                )
        return x.with_shape(1 if d == "x" else x.shape[int(d)] for d in self.pattern)

    def reference(self, x: Any) -> Any:
        kept = [int(d) for d in self.pattern if d != "x"]
        dropped = tuple(d for d in range(x.ndim) if d not in kept)
        moved = x.transpose((*kept, *dropped))
        index = tuple(None if d == "x" else slice(None) for d in self.pattern)
        return moved[(*index, *(0 for _ in dropped))]

    def shapes(
        self, types: Sequence[Any], shapes: Sequence[Shape], host: Host
    ) -> Sequence[Shape] | None:
        (x,) = shapes
        return [tuple(1 if d == "x" else x[int(d)] for d in self.pattern)]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        (x,), (dy,) = inputs, cotangents
        back: list[int | str] = ["x"] * x.type.ndim
        for i, d in enumerate(self.pattern):
            if d != "x":
                back[int(d)] = i
        return [dimshuffle(dy, back)]

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Vars) -> Grads | None:
        return [DimShuffle(self.pattern)(tangents[0])]

    @property
    def views(self) -> Mapping[int, int]:
        return {0: 0}


def dimshuffle(x: Any, pattern: Sequence[int | str]) -> Variable:
    """``x`` with its dimensions in the order of ``pattern``; ``"x"`` inserts one of size 1."""
    v = as_variable(x)
    order = tuple(d if d == "x" else int(d) % max(v.type.ndim, 1) for d in pattern)
    if order == tuple(range(v.type.ndim)):
        return v
    return DimShuffle(order)(v)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class ShapeI(Op):
    """The size of one dimension, an int64 scalar. Reads no data."""

    axis: int

    def infer(self, x: TensorType) -> Any:
        if not 0 <= self.axis < x.ndim:
            raise TypeMismatch(self, f"a tensor with a dimension {self.axis}", x)
        return TensorType("int64", ())

    def reference(self, x: Any) -> Any:
        return np.int64(x.shape[self.axis])

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        return [None]


def shape_i(x: Variable, axis: int) -> Variable:
    """The size of dimension ``axis``: a constant where it is static."""
    size = x.type.shape[axis]
    if size is not None:
        return constant(size, dtype="int64")
    return ShapeI(axis % x.type.ndim)(x)  # type: ignore[no-any-return]


def dims_of(x: Variable) -> tuple[Any, ...]:
    """The shape as ints where static, else integer scalars."""
    return tuple(
        d if d is not None else shape_i(x, i) for i, d in enumerate(x.type.shape)
    )


def as_dim(value: Any) -> Variable:
    """A dimension, bound or count as an int64 scalar variable; refuses other types."""
    v = as_variable(value)
    if not (isinstance(v.type, TensorType) and v.type.ndim == 0 and v.type.is_discrete):
        raise TypeMismatch("a dimension", "an integer scalar", v.type)
    if isinstance(v, Constant):
        return constant(int(v.data), dtype="int64")
    return v if v.type.dtype == "int64" else operator("cast")(v, "int64")


def static_dim(v: Variable) -> int | None:
    """The value of a dimension that is a constant."""
    return int(v.data) if isinstance(v, Constant) else None


@dataclass(frozen=True)
class Reshape(Op):
    """The same elements, in C order, in the shape given by the integer scalars after ``x``.

    One of them may be -1 (as a constant or at run time): what is left for that dimension.
    """

    static: tuple[int | None, ...]

    @property
    def host_inputs(self) -> tuple[int, ...]:
        return tuple(range(1, 1 + len(self.static)))

    def infer(self, x: TensorType, *dims: TensorType) -> Any:
        known = [d for d in self.static if d is not None and d != -1]
        shape = [None if d == -1 else d for d in self.static]
        if x.is_static and -1 in self.static and len(known) == len(self.static) - 1:
            total, rest = product(x.shape), product(known)
            if rest and total % rest == 0:
                shape = [total // rest if d == -1 else d for d in self.static]
        return x.with_shape(shape)

    def reference(self, x: Any, *dims: Any) -> Any:
        return x.reshape(self._resolve(tuple(x.shape), [int(d) for d in dims]))

    def _resolve(self, old: Shape, new: Sequence[int]) -> tuple[int, ...]:
        total, rest = product(old), product(d for d in new if d != -1)
        fits = (rest and total % rest == 0) if -1 in new else total == rest
        if list(new).count(-1) > 1 or not fits or any(d < -1 for d in new):
            raise ShapeMismatch(self, f"a shape of {total} elements", tuple(new), f"x has {old}")
        return tuple(total // rest if d == -1 else d for d in new)

    def shapes(
        self, types: Sequence[Any], shapes: Sequence[Shape], host: Host
    ) -> Sequence[Shape] | None:
        new = [host[i] for i in self.host_inputs]
        if all(isinstance(d, int | np.integer) for d in (*new, *shapes[0])):
            return [self._resolve(shapes[0], [int(d) for d in new])]
        unknown = [i for i, d in enumerate(self.static) if d is None]
        if -1 in self.static:
            rest = product(d for d in new if not (isinstance(d, int) and d == -1))
            total = product(shapes[0])
            return [tuple(total // rest if s == -1 else d for s, d in zip(self.static, new))]
        # A symbolic entry might be -1 at run time only when there is just one to be found.
        return [tuple(new)] if not unknown else None

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        return [reshape(cotangents[0], dims_of(inputs[0])), *(None for _ in self.static)]

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Vars) -> Grads | None:
        return [None if tangents[0] is None else self(tangents[0], *inputs[1:])]

    @property
    def views(self) -> Mapping[int, int]:
        return {0: 0}


def reshape(x: Any, newshape: Any, ndim: int | None = None) -> Variable:
    """``x`` in another shape: ints, integer scalars, one -1, or a symbolic vector with ``ndim``."""
    v = as_variable(x)
    dims = [as_dim(d) for d in _entries(newshape, ndim)]
    return Reshape(tuple(static_dim(d) for d in dims))(v, *dims)  # type: ignore[no-any-return]


def _entries(newshape: Any, ndim: int | None) -> list[Any]:
    if isinstance(newshape, list | tuple):
        return list(newshape)
    if isinstance(newshape, Variable) and newshape.type.ndim == 1:
        length = ndim if ndim is not None else newshape.type.shape[0]
        if length is None:
            raise TypeMismatch("reshape", "a shape of known length; pass ndim=", newshape.type)
        return [newshape[i] for i in range(length)]
    array = np.asarray(newshape) if not isinstance(newshape, Variable) else None
    if array is not None and array.ndim == 1:
        return [int(d) for d in array]
    return [newshape]


@dataclass(frozen=True)
class Alloc(Op):
    """``value`` (a tensor that broadcasts) in the shape given by integer scalars."""

    static: tuple[int | None, ...]

    @property
    def host_inputs(self) -> tuple[int, ...]:
        return tuple(range(1, 1 + len(self.static)))

    def infer(self, value: TensorType, *dims: TensorType) -> Any:
        if value.ndim > len(self.static):
            raise TypeMismatch(self, f"a value of at most {len(self.static)} dimensions", value)
        return value.with_shape(self.static)

    def reference(self, value: Any, *dims: Any) -> Any:
        shape = tuple(int(d) for d in dims)
        if any(d < 0 for d in shape):
            raise ShapeMismatch(self, "dimensions that are not negative", shape)
        return np.broadcast_to(value, shape).copy()

    def shapes(
        self, types: Sequence[Any], shapes: Sequence[Shape], host: Host
    ) -> Sequence[Shape] | None:
        return [tuple(host[i] for i in self.host_inputs)]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        value, dy = inputs[0], cotangents[0]
        lead = dy.type.ndim - value.type.ndim
        kept = [lead + i for i, b in enumerate(value.type.broadcastable) if b]
        kept = [i for i in kept if dy.type.shape[i] != 1]
        total = dy.sum(axis=kept, keepdims=True) if kept else dy
        total = total.sum(axis=list(range(lead))) if lead else total
        return [total, *(None for _ in self.static)]

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Vars) -> Grads | None:
        return [None if tangents[0] is None else self(tangents[0], *inputs[1:])]


def alloc(value: Any, *shape: Any) -> Variable:
    """``value`` broadcast to ``shape`` (ints or integer scalars), as a new array."""
    v = as_variable(value)
    dims = [as_dim(d) for d in shape]
    return Alloc(tuple(static_dim(d) for d in dims))(v, *dims)  # type: ignore[no-any-return]


def fill(like: Variable, value: Any) -> Variable:
    """``value`` in the shape of ``like``."""
    return alloc(value, *dims_of(like))


def zeros_like(x: Any, dtype: Any = None) -> Variable:
    """Zeros in the shape of ``x``."""
    v = as_variable(x)
    return fill(v, constant(0, dtype=dtype or v.type.dtype))


def ones_like(x: Any, dtype: Any = None) -> Variable:
    """Ones in the shape of ``x``."""
    v = as_variable(x)
    return fill(v, constant(1, dtype=dtype or v.type.dtype))


@dataclass(frozen=True)
class SpecifyType(Op):
    """``x``, known to have these static dimensions; checked when a plan is made. A view."""

    static: tuple[int | None, ...]

    def infer(self, x: TensorType) -> Any:
        if x.ndim != len(self.static):
            raise TypeMismatch(self, f"a tensor of {len(self.static)} dimensions", x)
        merged = []
        for a, b in zip(x.shape, self.static):
            if a is not None and b is not None and a != b:
                raise ShapeMismatch(self, f"{self.static}", str(x))
            merged.append(a if b is None else b)
        return x.with_shape(merged)

    def reference(self, x: Any) -> Any:
        self.shapes([TensorType(x.dtype.name, x.shape)], [x.shape], {})
        return x

    def shapes(
        self, types: Sequence[Any], shapes: Sequence[Shape], host: Host
    ) -> Sequence[Shape] | None:
        (x,) = shapes
        for d, want in zip(x, self.static):
            if want is not None and isinstance(d, int | np.integer) and d != want:
                raise ShapeMismatch(self, f"the static dimensions {self.static}", tuple(x))
        return [tuple(d if want is None else want for d, want in zip(x, self.static))]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        return [cotangents[0]]

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Vars) -> Grads | None:
        return [self(tangents[0])]

    @property
    def views(self) -> Mapping[int, int]:
        return {0: 0}


def specify_type(x: Variable, type_: TensorType) -> Variable:
    """``x`` with the static dimensions of ``type_`` (a no-op where they are known already)."""
    if all(b is None or a == b for a, b in zip(x.type.shape, type_.shape)):
        return x
    return SpecifyType(type_.shape)(x)  # type: ignore[no-any-return]


OPERATORS = {
    "alloc": alloc, "dimshuffle": dimshuffle, "fill": fill, "ones_like": ones_like,
    "reshape": reshape, "specify_type": specify_type, "zeros_like": zeros_like,
    "shape_i": shape_i,
}
