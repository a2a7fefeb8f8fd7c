"""Arrays that depend on sizes alone: zeros, ranges, identity and triangular matrices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeGuard

import numpy as np

from symdnn.config import config
from symdnn.errors import ArgumentError, AxisError, NdimMismatch, OptionError, ShapeMismatch
from symdnn.graph.dims import Dim, at_least_zero, dim_min, known, normal_axis
from symdnn.graph.names.torch_words import advises, makes_tensor, torch_words
from symdnn.graph.op import Axes, Batched, Grads, Host, Op, Shapes, Types, Vars
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array, DtypeLike, ShapeLike, TensorLike
from symdnn.graph.variable import Constant, Variable, as_variable, constant
from symdnn.ops.array.slices import slice_length
from symdnn.ops.array.view import transpose
from symdnn.ops.core.dtype import upcast
from symdnn.ops.core.lanes import on_lanes
from symdnn.ops.core.python_numbers import settled
from symdnn.ops.core.shape import (
    alloc,
    as_dim,
    dims_of,
    dimshuffle,
    shape_entries,
    shape_i,
    static_dim,
    zeros_like,
)
from symdnn.options import as_int

__all__ = ["ARange", "AllocDiag", "Diagonal"]


# -- one value ------------------------------------------------------------------------------------


@makes_tensor
def full(shape: ShapeLike, fill_value: TensorLike, dtype: DtypeLike | None = None) -> Variable:
    """``fill_value`` in ``shape``, in its own dtype or ``dtype``."""
    value = as_variable(fill_value)
    if dtype is not None and value.type.dtype != TensorType(dtype).dtype:
        value = operator("cast")(value, TensorType(dtype).dtype)
    return alloc(value, shape_entries(shape))


@makes_tensor
def zeros(shape: ShapeLike, *more: Any, dtype: DtypeLike | None = None) -> Variable:
    """Zeros in ``shape``: ints, integer scalars, or a vector of them; ``floatX`` by default.

    ``zeros(shape, dtype)`` is NumPy's, ``zeros(2, 3)`` PyTorch's.
    """
    shape, dtype = _shape_and_dtype("zeros", shape, more, dtype)
    return full(shape, constant(0, dtype=dtype or config.floatX))


@makes_tensor
def ones(shape: ShapeLike, *more: Any, dtype: DtypeLike | None = None) -> Variable:
    """Ones in ``shape``, as :func:`zeros`."""
    shape, dtype = _shape_and_dtype("ones", shape, more, dtype)
    return full(shape, constant(1, dtype=dtype or config.floatX))


@makes_tensor
def empty(shape: ShapeLike, *more: Any, dtype: DtypeLike | None = None) -> Variable:
    """An array of unspecified content: :func:`zeros` here."""
    return zeros(shape, *more, dtype=dtype)


def _shape_and_dtype(
    name: str, shape: ShapeLike, more: tuple[Any, ...], dtype: DtypeLike | None
) -> tuple[ShapeLike, DtypeLike | None]:
    """The words of NumPy, ``(shape, dtype)``, or of PyTorch, one size after the other."""
    if not more:
        return shape, dtype
    if all(isinstance(n, int | np.integer | Variable) for n in (shape, *more)):
        return (shape, *more), dtype
    if len(more) > 1 or dtype is not None:
        got = ", ".join(f"{v!r:.40}" for v in (shape, *more))
        raise ArgumentError(f"{name}: wanted a shape and a dtype, or sizes, got {got}")
    return shape, more[0]


@makes_tensor
def full_like(a: TensorLike, fill_value: TensorLike, dtype: DtypeLike | None = None) -> Variable:
    """``fill_value`` in the shape of ``a``, in its dtype or ``dtype``."""
    v = as_variable(a)
    value = settled([v, as_variable(fill_value)])[1]
    wanted = TensorType(dtype or v.type.dtype)
    if isinstance(value, Constant):
        with np.errstate(over="ignore"):
            value = constant(value.data.astype(wanted.numpy)).reading(v)
    return full(dims_of(v), value, wanted.dtype)


@makes_tensor
def empty_like(a: TensorLike, dtype: DtypeLike | None = None) -> Variable:
    """An array of the shape of ``a`` and of unspecified content: zeros here."""
    return zeros_like(a, dtype)


# -- ranges ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ARange(Op):
    """Integers from ``start`` up to ``stop`` by ``step`` (integer scalars), as ``dtype``."""

    no_gradients: ClassVar[bool] = True
    host_inputs: ClassVar[tuple[int, ...]] = (0, 1, 2)
    #: The end only determines the length.
    run_time_inputs: ClassVar[tuple[int, ...]] = (0, 2)
    dtype: str
    length: int | None = None

    def infer(self, start: TensorType, stop: TensorType, step: TensorType) -> TensorType:
        return TensorType(self.dtype, (self.length,))

    def reference(self, start: Array, stop: Array, step: Array) -> Array:
        values = np.arange(int(start), int(stop), _nonzero_step(self, int(step)))
        return values.astype(TensorType(self.dtype).numpy)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        if self.length is not None:
            return [(self.length,)]
        start, stop, step = (host[i] for i in self.host_inputs)
        if (stride := known(step)) is None:
            return [(_count(stop - start, step),)]
        _nonzero_step(self, stride)
        gap = stop if known(start) == 0 else stop - start
        if stride < 0:
            gap, stride = -1 * gap, -stride
        gap = at_least_zero(gap)
        return [(gap if stride == 1 else (gap + stride - 1) // stride,)]


def _count(gap: Dim, step: Dim) -> Dim:
    # ceil(gap / step) for either sign of the step: floor division rounds down.
    return at_least_zero(-1 * ((-1 * gap) // step))


def _nonzero_step(op: Op | str, step: int) -> int:
    if step == 0:
        raise ShapeMismatch(op, "a step other than 0", 0)
    return step


@makes_tensor
def arange(start: Any, stop: Any = None, step: Any = 1, dtype: DtypeLike | None = None) -> Variable:
    """Values from ``start`` (0 when only one argument is given) up to ``stop``, without it.

    The arguments are ints, floats and scalars, symbolic or not. Integers give int64 by default.
    """
    if stop is None:
        start, stop = 0, start
    parts = settled([as_variable(a) for a in (start, stop, step)])
    if any(v.type.ndim != 0 for v in parts):
        raise NdimMismatch("arange", "scalars", [v.type for v in parts])
    common = upcast(*(v.type.dtype for v in parts))
    if not TensorType(common).is_discrete:
        return _float_range(parts, TensorType(dtype or common).dtype)
    out = TensorType(dtype).dtype if dtype is not None else _wide_int(common)
    dims = [as_dim(v) for v in parts]
    length = None
    if all(isinstance(d, Constant) for d in dims):
        numbers = [static_dim(d) or 0 for d in dims]
        length = len(range(numbers[0], numbers[1], _nonzero_step("arange", numbers[2])))
    return ARange(out, length)(*dims)


def _wide_int(dtype: str) -> str:
    return "uint64" if dtype.startswith("uint") else "int64"


def _float_range(parts: Vars, dtype: str) -> Variable:
    if all(isinstance(v, Constant) for v in parts):
        first, last, by = (float(v.data) for v in parts if isinstance(v, Constant))
        return constant(np.arange(first, last, by).astype(TensorType(dtype).numpy))
    start, stop, step = (operator("cast")(v, "float64") for v in parts)
    count = operator("cast")(operator("ceil")((stop - start) / step), "int64")
    index = arange(operator("maximum")(count, 0))
    return operator("cast")(start + index * step, dtype)


@makes_tensor
@advises(steps="num", end="stop")
def linspace(
    start: TensorLike,
    stop: TensorLike,
    num: int | Variable = 50,
    endpoint: bool = True,
    dtype: DtypeLike | None = None,
) -> Variable:
    """``num`` evenly spaced values from ``start`` to ``stop``.

    The dtype is that of the float arrays among these two, ``floatX`` if there is none.
    """
    floats = [v.type.dtype for v in (start, stop) if _is_float(v)]
    out = TensorType(dtype or (upcast(*floats) if floats else config.floatX)).dtype
    a, b = (as_variable(v, dtype=_of_number(v)) for v in (start, stop))
    count = _number_of("linspace: num", num)
    known = static_dim(count)
    if known is None:
        steps = operator("maximum")(count - 1 if endpoint else count, 1)
        unit = arange(count).astype("float64") / steps
    else:
        last = known - 1 if endpoint else known
        unit = constant(np.arange(known, dtype=np.float64) / max(last, 1))
    values = a + unit * (b - a)
    return operator("cast")(values, out)


def _is_float(v: TensorLike) -> TypeGuard[Variable]:
    return isinstance(v, Variable) and v.number_kind is None and v.type.is_float


def _of_number(value: TensorLike) -> str | None:
    """A Python number as a constant that is not rounded to ``floatX``."""
    return "float64" if isinstance(value, int | float) else None


# -- matrices -------------------------------------------------------------------------------------


def _number_of(what: str, n: Any) -> Variable:
    """A number of elements; one that is known to be negative is refused."""
    count = as_dim(n)
    if isinstance(least := static_dim(count), int) and least < 0:
        raise ShapeMismatch(what, "at least 0 of them", least)
    return count


def _offsets(n: Any, m: Any) -> tuple[Variable, Variable]:
    """Row numbers as a column, column numbers as a row."""
    rows, columns = arange(_number_of("rows", n)), arange(_number_of("columns", m))
    return dimshuffle(rows, [0, "x"]), dimshuffle(columns, ["x", 0])


@makes_tensor
def eye(
    n: TensorLike, m: TensorLike | None = None, k: TensorLike = 0, dtype: DtypeLike | None = None
) -> Variable:
    """An ``(n, m)`` matrix of zeros with ones on the diagonal ``k``; sizes may be symbolic."""
    rows, columns = _offsets(n, n if m is None else m)
    return operator("cast")(
        operator("eq")(rows + _diagonal("eye", k), columns), dtype or config.floatX
    )


def _diagonal(name: str, k: TensorLike) -> TensorLike:
    """The number of a diagonal: a number or a scalar."""
    if as_variable(k).type.ndim:
        raise NdimMismatch(name, "the number of a diagonal, a scalar", as_variable(k).type)
    return k


def identity_like(x: TensorLike) -> Variable:
    """The identity matrix of the shape and dtype of the matrix ``x``."""
    v = as_variable(x)
    return eye(shape_i(v, 0), shape_i(v, 1), dtype=v.type.dtype)


def tri(
    N: TensorLike, M: TensorLike | None = None, k: TensorLike = 0, dtype: DtypeLike | None = None
) -> Variable:
    """An ``(N, M)`` matrix with ones on and below the diagonal ``k``, zeros above."""
    rows, columns = _offsets(N, N if M is None else M)
    return operator("cast")(
        operator("ge")(rows + _diagonal("tri", k), columns), dtype or config.floatX
    )


@torch_words()
def tril(m: TensorLike, k: TensorLike = 0) -> Variable:
    """The last two dimensions' lower triangle up to the diagonal ``k``, zeros above it."""
    v = as_variable(m)
    rows, columns = _offsets(shape_i(v, -2), shape_i(v, -1))
    return _where(operator("ge")(rows + _diagonal("tril", k), columns), v)


@torch_words()
def triu(m: TensorLike, k: TensorLike = 0) -> Variable:
    """The last two dimensions' upper triangle from the diagonal ``k``, zeros below it."""
    v = as_variable(m)
    rows, columns = _offsets(shape_i(v, -2), shape_i(v, -1))
    return _where(operator("le")(rows + _diagonal("triu", k), columns), v)


def _where(mask: Variable, v: Variable) -> Variable:
    return operator("switch")(mask, v, constant(0, dtype=v.type.dtype))


@dataclass(frozen=True)
class Diagonal(Op):
    """The diagonal ``offset`` of the last two dimensions, as the last dimension. A view."""

    views: ClassVar[Mapping[int, int]] = {0: 0}
    linear_in_first: ClassVar[bool] = True
    offset: int = 0

    def infer(self, x: TensorType) -> TensorType:
        if x.ndim < 2:
            raise NdimMismatch(self, "a tensor of at least 2 dimensions", x)
        n, m = x.shape[-2:]
        both = n is not None and m is not None
        return x.with_shape((*x.shape[:-2], self.length(n, m) if both else None))

    def length(self, n: Any, m: Any) -> Any:
        """The length of the diagonal of an ``(n, m)`` matrix."""
        down, right = max(-self.offset, 0), max(self.offset, 0)
        return dim_min(slice_length(n, down, None, None), slice_length(m, right, None, None))

    def reference(self, x: Array) -> Array:
        return np.diagonal(x, self.offset, -2, -1)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        (*lead, n, m) = shapes[0]
        return [(*lead, self.length(n, m))]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        n, m = dims_of(inputs[0])[-2:]
        return [_alloc_diag(cotangents[0], n, m, self.offset)]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return on_lanes(self, inputs, axes)


@dataclass(frozen=True)
class AllocDiag(Op):
    """Zeros with the last dimension of ``x`` on the diagonal ``offset`` of two new last ones.

    Inputs: ``x`` (..., k), and the sizes n and m (integer scalars) of the new dimensions, whose
    diagonal must have length k.
    """

    host_inputs: ClassVar[tuple[int, ...]] = (1, 2)
    linear_in_first: ClassVar[bool] = True
    offset: int = 0
    static: tuple[int | None, int | None] = (None, None)

    def infer(self, x: TensorType, n: TensorType, m: TensorType) -> TensorType:
        if x.ndim < 1:
            raise NdimMismatch(self, "a tensor of at least 1 dimension", x)
        return x.with_shape((*x.shape[:-1], *self.static))

    def reference(self, x: Array, n: Array, m: Array) -> Array:
        self._check(x.shape[-1], int(n), int(m))
        out = np.zeros((*x.shape[:-1], int(n), int(m)), x.dtype)
        k = np.arange(x.shape[-1])
        out[..., k + max(-self.offset, 0), k + max(self.offset, 0)] = x
        return out

    def _check(self, k: Dim, n: Dim, m: Dim) -> None:
        length = Diagonal(self.offset).length(n, m)
        if None not in (known(k), known(length)) and known(k) != known(length):
            raise ShapeMismatch(self, f"a diagonal of length {length}", k)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        self._check(shapes[0][-1], host[1], host[2])
        return [(*shapes[0][:-1], host[1], host[2])]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        return [Diagonal(self.offset)(cotangents[0]), None, None]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return on_lanes(self, inputs, axes)


def _alloc_diag(x: Variable, n: Any, m: Any, offset: int) -> Variable:
    rows, columns = as_dim(n), as_dim(m)
    op = AllocDiag(offset, (static_dim(rows), static_dim(columns)))
    return op(x, rows, columns)


@torch_words()
def diagonal(a: TensorLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Variable:
    """The diagonal over two axes, which it replaces by a new last dimension. A view."""
    v = as_variable(a)
    if v.type.ndim < 2:
        raise NdimMismatch("diagonal", "a tensor of at least 2 dimensions", v.type)
    first, second = (normal_axis("diagonal", a, v.type.ndim) for a in (axis1, axis2))
    if first == second:
        raise AxisError("diagonal", "two different axes", f"{axis1}, {axis2}")
    rest = [d for d in range(v.type.ndim) if d not in (first, second)]
    return Diagonal(as_int("diagonal: offset", offset))(transpose(v, [*rest, first, second]))


def alloc_diag(v: TensorLike, offset: int = 0) -> Variable:
    """Square matrices with the last dimension of ``v`` on their diagonal ``offset``."""
    x, at = as_variable(v), as_int("diag: offset", offset)
    size = shape_i(x, -1)
    k = static_dim(size)
    side = size + abs(at) if k is None else k + abs(at)
    return _alloc_diag(x, side, side, at)


def diag(v: TensorLike, k: int = 0) -> Variable:
    """A vector's square matrix with it on the diagonal ``k``, or a matrix's diagonal ``k``."""
    x = as_variable(v)
    if x.type.ndim not in (1, 2):
        raise NdimMismatch("diag", "a vector or a matrix", x.type)
    return alloc_diag(x, k) if x.type.ndim == 1 else diagonal(x, k)


def trace(a: TensorLike, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Variable:
    """The sum of the diagonal ``offset`` over two axes."""
    return diagonal(a, offset, axis1, axis2).sum(axis=-1)


def meshgrid(*vectors: TensorLike, indexing: str = "xy") -> list[Variable]:
    """Coordinate arrays of vectors, all of the full shape; NumPy's ``indexing`` rule."""
    if indexing not in ("xy", "ij"):
        raise OptionError(f"meshgrid: indexing={indexing!r}: wanted 'xy' or 'ij'")
    vs = [as_variable(v) for v in vectors]
    order = list(range(len(vs)))
    if indexing == "xy" and len(vs) > 1:
        order[:2] = [1, 0]
    dims: list[Any] = [None] * len(vs)
    for place, v in zip(order, vs, strict=True):
        dims[place] = shape_i(v, 0)
    grids = []
    for place, v in zip(order, vs, strict=True):
        pattern: list[int | str] = [0 if d == place else "x" for d in range(len(vs))]
        grids.append(alloc(dimshuffle(v, pattern), *dims))
    return grids


OPERATORS = {"arange": arange, "diagonal": diagonal, "trace": trace, "zeros": zeros}
