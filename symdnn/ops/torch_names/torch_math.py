"""PyTorch's arithmetic, reductions and conversions, with its arguments.

Each is a method of a variable, too: ``clamp(x, 0, 1)`` and ``x.clamp(0, 1)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from symdnn.errors import InputError, NdimMismatch, TypeMismatch
from symdnn.graph.names.torch_words import advises, torch_words
from symdnn.graph.operators import operator
from symdnn.graph.typing import AxisLike, TensorLike
from symdnn.graph.variable import Shared, Variable, as_variable
from symdnn.ops.array import create, cumulative
from symdnn.ops.array.argreduce import argmax, argmin
from symdnn.ops.array.join import roll
from symdnn.ops.array.moments import std, var
from symdnn.ops.array.order_statistics import OrderStatistics
from symdnn.ops.array.reduce import logsumexp, normal_axes
from symdnn.ops.array.reduce import max as largest
from symdnn.ops.array.reduce import min as smallest
from symdnn.ops.array.sort import argsort, topk_and_argtopk
from symdnn.ops.array.take import diff, take_along_axis
from symdnn.ops.array.view import broadcast_to, flatten, squeeze
from symdnn.ops.core.gradient_control import disconnected_grad
from symdnn.ops.elementwise import arithmetic, comparison
from symdnn.ops.elementwise.activations import relu, sigmoid
from symdnn.ops.elementwise.arithmetic import abs as absolute
from symdnn.ops.elementwise.arithmetic import cast, maximum, minimum
from symdnn.ops.elementwise.comparison import and_, eq, isnan, neq, or_, switch
from symdnn.ops.elementwise.entropy import xlogy0
from symdnn.ops.elementwise.rounding import trunc
from symdnn.ops.elementwise.special import erf, gammaln, psi
from symdnn.ops.linalg import dot as dot_products
from symdnn.ops.linalg.dot import dot
from symdnn.ops.numpy_names import numpy_math, numpy_reductions
from symdnn.options import as_int

__all__ = [
    "addbmm", "addcdiv", "addcmul", "addmm", "addmv", "addr", "amax", "amin", "aminmax",
    "baddbmm", "bmm", "clamp", "clamp_max", "clamp_min", "dist", "frac", "kthvalue", "mm", "mv",
    "ne", "numel", "std_mean", "var_mean", "xlogy",
]  # fmt: skip


# -- elements --------------------------------------------------------------------------------------


def clamp(x: TensorLike, min: TensorLike | None = None, max: TensorLike | None = None) -> Variable:
    """``x`` limited to ``min`` .. ``max``, either of which may be None."""
    if min is None and max is None:
        raise InputError("clamp: wanted min, max or both, got neither")
    v = as_variable(x)
    if min is not None and max is not None:
        return operator("clip")(v, min, max)
    return minimum(v, max) if min is None else maximum(v, min)


def clamp_min(x: TensorLike, min: TensorLike) -> Variable:
    """``x``, or ``min`` where that is larger."""
    return clamp(x, min)


def clamp_max(x: TensorLike, max: TensorLike) -> Variable:
    """``x``, or ``max`` where that is smaller."""
    return clamp(x, None, max)


def frac(x: TensorLike) -> Variable:
    """The part behind the point, with the sign of ``x``."""
    v = as_variable(x)
    return v - trunc(v)


def xlogy(x: TensorLike, y: TensorLike) -> Variable:
    """``x log(y)``, 0 where ``x`` is 0; NaN where ``y`` is NaN."""
    return xlogy0(x, y)


def ne(x: TensorLike, y: TensorLike) -> Variable:
    """Whether the elements differ."""
    return neq(x, y)


def detach(x: TensorLike) -> Variable:
    """The same value, through which no gradient goes."""
    return disconnected_grad(as_variable(x))


def numel(x: TensorLike) -> Variable | int:
    """The number of elements, an int64 scalar; of a parameter whose sizes are fixed, an int."""
    v = as_variable(x)
    sizes = [n for n in v.type.shape if n is not None]
    return math.prod(sizes) if isinstance(v, Shared) and len(sizes) == v.ndim else v.size


def addcmul(
    x: TensorLike, tensor1: TensorLike, tensor2: TensorLike, *, value: TensorLike = 1
) -> Variable:
    """``x + value tensor1 tensor2``."""
    return as_variable(x) + as_variable(tensor1) * value * tensor2


def addcdiv(
    x: TensorLike, tensor1: TensorLike, tensor2: TensorLike, *, value: TensorLike = 1
) -> Variable:
    """``x + value tensor1 / tensor2``."""
    return as_variable(x) + as_variable(tensor1) * value / tensor2


# -- products --------------------------------------------------------------------------------------


def _ranked(name: str, wanted: int, *values: TensorLike) -> list[Variable]:
    found = [as_variable(v) for v in values]
    for v in found:
        if v.type.ndim != wanted:
            raise NdimMismatch(name, f"tensors of {wanted} dimensions", v.type)
    return found


@advises(input="x", mat2="y")
def mm(x: TensorLike, y: TensorLike) -> Variable:
    """The product of two matrices."""
    return dot(*_ranked("mm", 2, x, y))


@advises(input="x", mat2="y")
def bmm(x: TensorLike, y: TensorLike) -> Variable:
    """The products of two batches of matrices, (B, n, m) and (B, m, p)."""
    a, b = _ranked("bmm", 3, x, y)
    return a @ b


def mv(x: TensorLike, vector: TensorLike) -> Variable:
    """The product of a matrix and a vector."""
    return dot(_ranked("mv", 2, x)[0], _ranked("mv", 1, vector)[0])


def _scaled_sum(x: TensorLike, product: Variable, beta: TensorLike, alpha: TensorLike) -> Variable:
    def times(v: Variable, factor: TensorLike) -> Variable:
        return v if isinstance(factor, int | float) and factor == 1 else v * factor

    return times(as_variable(x), beta) + times(product, alpha)


def addmm(
    x: TensorLike, a: TensorLike, b: TensorLike, *, beta: TensorLike = 1, alpha: TensorLike = 1
) -> Variable:
    """``beta x + alpha a b`` of matrices."""
    return _scaled_sum(x, mm(a, b), beta, alpha)


def addmv(
    x: TensorLike, a: TensorLike, b: TensorLike, *, beta: TensorLike = 1, alpha: TensorLike = 1
) -> Variable:
    """``beta x + alpha a b`` of a matrix and a vector."""
    return _scaled_sum(x, mv(a, b), beta, alpha)


def addr(
    x: TensorLike, a: TensorLike, b: TensorLike, *, beta: TensorLike = 1, alpha: TensorLike = 1
) -> Variable:
    """``beta x + alpha a b^T`` of vectors."""
    first, second = _ranked("addr", 1, a, b)
    return _scaled_sum(x, first.dimshuffle(0, "x") * second, beta, alpha)


def baddbmm(
    x: TensorLike, a: TensorLike, b: TensorLike, *, beta: TensorLike = 1, alpha: TensorLike = 1
) -> Variable:
    """``beta x + alpha a b`` of batches of matrices."""
    return _scaled_sum(x, bmm(a, b), beta, alpha)


def addbmm(
    x: TensorLike, a: TensorLike, b: TensorLike, *, beta: TensorLike = 1, alpha: TensorLike = 1
) -> Variable:
    """``beta x`` and the sum over the batch of ``alpha a b``."""
    return _scaled_sum(x, bmm(a, b).sum(axis=0), beta, alpha)


def dist(x: TensorLike, other: TensorLike, p: float = 2.0) -> Variable:
    """The p-norm of the difference."""
    return operator("norm")(as_variable(x) - other, p)


# -- reductions ------------------------------------------------------------------------------------


class Values(NamedTuple):
    """Elements and their places along the axis, as PyTorch returns them."""

    values: Variable
    indices: Variable


@torch_words()
def amax(x: TensorLike, axis: AxisLike = None, keepdims: bool = False) -> Variable:
    """The largest element over ``axis`` (all when None)."""
    return largest(x, axis, keepdims)


@torch_words()
def amin(x: TensorLike, axis: AxisLike = None, keepdims: bool = False) -> Variable:
    """The smallest element over ``axis`` (all when None)."""
    return smallest(x, axis, keepdims)


def aminmax(
    x: TensorLike, *, dim: AxisLike = None, keepdim: bool = False
) -> tuple[Variable, Variable]:
    """:func:`amin` and :func:`amax`."""
    return amin(x, dim, keepdim), amax(x, dim, keepdim)


def torch_max(x: TensorLike, dim: int, keepdim: bool = False) -> Values:
    """The largest elements over ``dim`` and their indices."""
    return Values(largest(x, dim, keepdim), argmax(x, dim, keepdim))


def torch_min(x: TensorLike, dim: int, keepdim: bool = False) -> Values:
    """The smallest elements over ``dim`` and their indices."""
    return Values(smallest(x, dim, keepdim), argmin(x, dim, keepdim))


def torch_sort(
    x: TensorLike, dim: int = -1, descending: bool = False, stable: bool = False
) -> Values:
    """The elements in order along ``dim``, and their indices. NaN is above all others."""
    v = as_variable(x)
    if not descending:
        at = argsort(v, dim, "stable")
    else:  # reversed twice, so that equal elements are in the order of their indices
        (axis,) = normal_axes(dim, v.type.ndim, "sort")
        back = (slice(None),) * axis + (slice(None, None, -1),)
        at = v.shape[axis] - 1 - argsort(v[back], axis, "stable")[back]
    return Values(take_along_axis(v, at, dim), at)


def torch_argsort(
    x: TensorLike, dim: int = -1, descending: bool = False, stable: bool = False
) -> Variable:
    """The indices of :func:`torch_sort`."""
    return torch_sort(x, dim, descending, stable).indices


def torch_topk(
    x: TensorLike, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True
) -> Values:
    """The ``k`` largest (or smallest) elements along ``dim`` in order, and their indices."""
    return Values(*topk_and_argtopk(x, k if largest else -k, dim, sorted))


def kthvalue(x: TensorLike, k: int, dim: int = -1, keepdim: bool = False) -> Values:
    """The ``k``-th smallest element along ``dim``, counted from 1, and the index of the first one
    that is equal to it. NaN is larger than all.
    """
    v = as_variable(x)
    (axis,) = normal_axes(as_int("kthvalue: dim", dim), v.type.ndim, "kthvalue")
    if not (v.type.is_float or v.type.is_integer):
        found = torch_sort(v, axis)
        at = (slice(None),) * axis + ((slice(k - 1, k) if keepdim else k - 1),)
        return Values(found.values[at], found.indices[at])
    kept = OrderStatistics(axis)(v, cast(as_variable(k) - 1, "int64").reshape((1,)))
    same = eq(v, kept)
    if v.type.is_float:
        same = or_(same, and_(isnan(v), isnan(kept)))
    index = argmax(same, axis, keepdims=keepdim)
    return Values(kept if keepdim else squeeze(kept, axis), index)


def _moment(
    function: Callable[..., Variable], x: TensorLike, dim: AxisLike, correction: int,
    keepdim: bool, unbiased: bool | None,
) -> Variable:  # fmt: skip
    ddof = correction if unbiased is None else int(unbiased)
    return function(x, dim, ddof, keepdim)


def torch_var(
    x: TensorLike, dim: AxisLike = None, unbiased: bool | None = None, keepdim: bool = False, *,
    correction: int = 1,
) -> Variable:  # fmt: skip
    """The variance over ``dim``, of ``n - correction``."""
    return _moment(var, x, dim, correction, keepdim, unbiased)


def torch_std(
    x: TensorLike, dim: AxisLike = None, unbiased: bool | None = None, keepdim: bool = False, *,
    correction: int = 1,
) -> Variable:  # fmt: skip
    """The root of :func:`torch_var`."""
    return _moment(std, x, dim, correction, keepdim, unbiased)


def var_mean(
    x: TensorLike, dim: AxisLike = None, unbiased: bool | None = None, keepdim: bool = False, *,
    correction: int = 1,
) -> tuple[Variable, Variable]:  # fmt: skip
    """Variance and mean over ``dim``."""
    v = as_variable(x)
    spread = torch_var(v, dim, unbiased, keepdim, correction=correction)
    return spread, v.mean(dim, keepdims=keepdim)


def std_mean(
    x: TensorLike, dim: AxisLike = None, unbiased: bool | None = None, keepdim: bool = False, *,
    correction: int = 1,
) -> tuple[Variable, Variable]:  # fmt: skip
    """Standard deviation and mean over ``dim``."""
    v = as_variable(x)
    spread = torch_std(v, dim, unbiased, keepdim, correction=correction)
    return spread, v.mean(dim, keepdims=keepdim)


def torch_median(x: TensorLike, dim: int | None = None, keepdim: bool = False) -> Values | Variable:
    """The lower of the middle elements along ``dim``, and its index (PyTorch's median).

    A NaN, if there is one. Without ``dim`` it is that of all elements, without an index.
    """
    return _middle("median", x, dim, keepdim, with_nan=True)


def torch_nanmedian(
    x: TensorLike, dim: int | None = None, keepdim: bool = False
) -> Values | Variable:
    """The median of the elements that are no NaN; NaN where there are none."""
    return _middle("nanmedian", x, dim, keepdim, with_nan=False)


def _middle(
    name: str, x: TensorLike, dim: int | None, keepdim: bool, with_nan: bool
) -> Values | Variable:
    v = as_variable(x)
    if dim is None:
        found = _middle(name, flatten(v, 1), 0, False, with_nan)
        return found[0]
    (axis,) = normal_axes(dim, v.type.ndim, name)
    found, size = torch_sort(v, axis), cast(v.shape[axis], "int64")
    missing = neq(v, v).sum(axis=axis, keepdims=True)  # NaNs come last
    known = size - missing
    last = switch(missing > 0, known, (size - 1) // 2)
    place = last if with_nan else maximum(known - 1, 0) // 2
    values, indices = (take_along_axis(each, place, axis) for each in found)
    at = (slice(None),) * axis + (slice(None) if keepdim else 0,)
    return Values(values[at], indices[at])


def _running(of: Callable[..., Variable], x: TensorLike, dim: int) -> Values:
    """Extremes so far along ``dim``, and the index of the last element that is it."""
    v = as_variable(x)
    (axis,) = normal_axes(dim, v.type.ndim, of.__name__)
    values = of(v, axis)
    pattern = [0 if d == axis else "x" for d in range(v.type.ndim)]
    places = create.arange(v.shape[axis], dtype="int64").dimshuffle(pattern)
    here = eq(v, values) | neq(v, v)
    return Values(values, cumulative.cummax(switch(here, places, 0), axis))


# -- methods ---------------------------------------------------------------------------------------


def _same(x: Variable) -> Variable:
    return x


def _requires_grad(x: Variable, requires_grad: bool = True) -> Variable:
    """``x``, which optimisers train or not."""
    if isinstance(x, Shared):
        x.requires_grad = bool(requires_grad)
    elif not requires_grad:
        raise TypeMismatch(
            "requires_grad_", "a parameter (a shared variable)", f"{x} of type {x.type}",
            "x.detach() is a constant for gradients",
        )  # fmt: skip
    return x


def _new(x: Variable, builder: str, shape: Any, value: TensorLike | None = None) -> Variable:
    fill = {"new_zeros": 0, "new_ones": 1}.get(builder, value)
    scalar = cast(as_variable(0 if fill is None else fill), x.type.dtype)
    return broadcast_to(scalar, shape)


def _new_of(builder: str, x: Variable, *shape: Any) -> Variable:
    given = shape[0] if len(shape) == 1 and isinstance(shape[0], list | tuple) else shape
    return _new(x, builder, given)


def _to(dtype: str, x: Variable) -> Variable:
    return cast(x, dtype)


def to(x: TensorLike, other: Any = None, *, dtype: Any = None) -> Variable:
    """``x`` in the dtype ``other`` (or ``dtype``), or in that of a tensor.

    Raises :class:`~symdnn.errors.TypeMismatch` for a device: the flag ``device`` says where
    functions run.
    """
    if isinstance(other, str) and other.partition(":")[0] in ("cpu", "cuda", "gpu"):
        raise TypeMismatch(
            "to", "a dtype", repr(other),
            "The flag device says where functions run, symdnn.Mode(target='cuda') where one does",
        )  # fmt: skip
    if (other is None) == (dtype is None):
        raise InputError("to: wanted one dtype, x.to('float64') or x.to(dtype='float64')")
    wanted = dtype if other is None else other
    return cast(x, wanted.type.dtype if isinstance(wanted, Variable) else wanted)


def _scaled(
    function: Callable[..., Variable], x: Variable, other: TensorLike, *, alpha: TensorLike = 1
) -> Variable:
    plain = isinstance(alpha, int | float) and alpha == 1
    return function(x, other if plain else as_variable(other) * alpha)


def torch_roll(x: TensorLike, shifts: Any, dims: Any = None) -> Variable:
    """``x`` shifted cyclically by ``shifts`` along ``dims``."""
    return roll(x, shifts, dims)


_DTYPES = {
    "float": "float32", "double": "float64", "half": "float16", "bfloat16": "bfloat16",
    "long": "int64", "int": "int32", "short": "int16", "char": "int8", "byte": "uint8",
    "bool": "bool",
}  # fmt: skip

METHODS: dict[str, Callable[..., Any]] = {
    **{
        f.__name__: f
        for f in (
            addbmm, addcdiv, addcmul, addmm, addmv, addr, amax, amin, aminmax, baddbmm, bmm,
            clamp, clamp_max, clamp_min, detach, dist, frac, kthvalue, mm, mv, ne, numel, xlogy,
            relu, to, numpy_math.softmax, numpy_math.log_softmax, numpy_math.nan_to_num,
            numpy_math.rsqrt, numpy_math.logical_and, numpy_math.logical_or,
            numpy_math.logical_not, numpy_math.lerp, numpy_reductions.quantile,
        )
    },
    "topk": torch_topk, "median": torch_median, "nanmedian": torch_nanmedian, "nelement": numel,
    "contiguous": _same, "clone": _same, "requires_grad_": _requires_grad,
    "type_as": lambda x, other: cast(x, as_variable(other).type.dtype),
    "dim": lambda x: x.type.ndim, "ndimension": lambda x: x.type.ndim,
    "reciprocal": lambda x: 1 / x,
    "new_zeros": partial(_new_of, "new_zeros"), "new_ones": partial(_new_of, "new_ones"),
    "new_full": lambda x, size, fill_value: _new(x, "new_full", size, fill_value),
    "where": lambda x, condition, other: switch(condition, x, other),
    **{name: partial(_to, dtype) for name, dtype in _DTYPES.items()},
    "abs": absolute, "absolute": absolute, "matmul": dot_products.matmul, "eq": eq,
    "lt": comparison.lt, "le": comparison.le, "gt": comparison.gt, "ge": comparison.ge,
    "add": partial(_scaled, arithmetic.add), "sub": partial(_scaled, arithmetic.sub),
    "mul": arithmetic.mul, "multiply": arithmetic.mul, "div": arithmetic.true_div,
    "pow": arithmetic.pow, "neg": arithmetic.neg, "square": arithmetic.sqr,
    "sign": arithmetic.sgn, "sigmoid": sigmoid, "erf": erf, "maximum": maximum,
    "minimum": minimum, "isnan": comparison.isnan, "isinf": comparison.isinf,
    "isfinite": comparison.isfinite, "outer": dot_products.outer, "tril": create.tril,
    "triu": create.triu, "roll": torch_roll, "logsumexp": logsumexp, "diag": create.diag,
    "lgamma": gammaln, "digamma": psi, "cummax": cumulative.cummax, "cummin": cumulative.cummin,
    "logcumsumexp": cumulative.logcumsumexp, "diff": diff, "log_softmax": numpy_math.log_softmax,
    "count_nonzero": numpy_reductions.count_nonzero,
    "nansum": numpy_reductions.nansum, "nanmean": numpy_reductions.nanmean,
}  # fmt: skip

#: What functions and methods are where PyTorch's words are given.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "cummax": partial(_running, cumulative.cummax),
    "cummin": partial(_running, cumulative.cummin),
    "argsort": torch_argsort, "max": torch_max, "median": torch_median, "min": torch_min,
    "nanmedian": torch_nanmedian,
    "sort": torch_sort, "std": torch_std, "topk": torch_topk, "var": torch_var,
}  # fmt: skip
