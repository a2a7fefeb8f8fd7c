"""Mean, variance and standard deviation as expressions of sums."""

from __future__ import annotations

from typing import Any

from symdnn.graph.dims import product
from symdnn.graph.names.torch_words import torch_words
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType
from symdnn.graph.typing import AxisLike, DtypeLike, TensorLike
from symdnn.graph.variable import Variable, as_variable, constant
from symdnn.ops.array.norms import root
from symdnn.ops.array.reduce import masked, normal_axes, sum
from symdnn.ops.core.dtype import is_narrow_float, work_dtype
from symdnn.ops.core.shape import dims_of
from symdnn.ops.elementwise.arithmetic import abs, cast, sqr
from symdnn.options import as_number


@torch_words()
def mean(
    input: TensorLike,
    axis: AxisLike = None,
    dtype: DtypeLike | None = None,
    op: bool = False,
    keepdims: bool = False,
    acc_dtype: DtypeLike | None = None,
    *,
    where: TensorLike | None = None,
) -> Variable:
    """Mean over ``axis``: of ints and bools float64, else in the dtype of ``input``.

    float16 is summed and divided in float32 and stored as float16. ``dtype`` is the result's,
    ``acc_dtype`` the accumulator's; ``op`` is accepted for compatibility with Theano. Without
    elements it is NaN. Those where ``where`` (bools that broadcast) is False are left out.
    """
    v = as_variable(input)
    axes = normal_axes(axis, v.type.ndim, "mean")
    if dtype is not None:
        out = TensorType(dtype).dtype
    else:
        out = "float64" if v.type.is_discrete else v.type.dtype
    # float16 overflows early, and a mean of ints is no int until the end.
    work = work_dtype(out)
    work = "float64" if TensorType(work).is_discrete else work
    total = sum(v, axes, dtype=work, keepdims=keepdims, acc_dtype=acc_dtype, where=where)
    if where is not None:
        chosen = masked("mean", operator("ones_like")(v, "bool"), where, False)
        return cast(total / cast(sum(chosen, axes, keepdims=keepdims), work), out)
    return cast(total / _count(v, axes, work), out)


def _count(v: Variable, axes: tuple[int, ...], dtype: str, less: int = 0) -> Variable:
    """The number of elements over ``axes``, minus ``less``, as a scalar of ``dtype``."""
    dims = dims_of(v)
    total = product(dims[a] for a in axes) - less
    if not isinstance(total, Variable):
        return constant(total, dtype=dtype)
    return cast(total, dtype)


@torch_words("var", "unbiased", "correction")
def var(
    input: TensorLike,
    axis: AxisLike = None,
    ddof: int = 0,
    keepdims: bool = False,
    corrected: bool = False,
) -> Variable:
    """Variance over ``axis``: the squares of the differences from the mean, over ``n - ddof``.

    Dtypes as in :func:`mean`; for complex numbers it is real. ``corrected`` subtracts the rounding
    error in the mean of the differences (the corrected two-pass algorithm; Chan, Golub, LeVeque
    1983).
    """
    v = as_variable(input)
    axes = normal_axes(axis, v.type.ndim, "var")
    less: Any = ddof
    if not isinstance(less, Variable):
        as_number("var: ddof", less)
    out = v.type.dtype
    if v.type.is_discrete:
        v = cast(v, "float64")
        out = "float64"
    elif is_narrow_float(out):
        v = cast(v, "float32")
    centred = v - mean(v, axes, keepdims=True)
    squares = sqr(abs(centred)) if v.type.is_complex else sqr(centred)
    work = squares.type.dtype
    total = sum(squares, axes, keepdims=keepdims)
    if corrected:
        rest = sum(centred, axes, keepdims=keepdims)
        rest = sqr(abs(rest)) if v.type.is_complex else sqr(rest)
        total = total - rest / _count(v, axes, work)
    result = total / _count(v, axes, work, ddof)
    return cast(result, out) if is_narrow_float(out) else result


@torch_words("std", "unbiased", "correction")
def std(
    input: TensorLike,
    axis: AxisLike = None,
    ddof: int = 0,
    keepdims: bool = False,
    corrected: bool = False,
) -> Variable:
    """Standard deviation over ``axis``: the root of :func:`var`, with gradient 0 at 0."""
    v = as_variable(input)
    if is_narrow_float(v.type.dtype):  # the variance may be above the largest float16
        wide = root(var(cast(v, "float32"), axis, ddof, keepdims, corrected))
        return cast(wide, v.type.dtype)
    return root(var(v, axis, ddof, keepdims, corrected))


OPERATORS = {"mean": mean, "var": var, "std": std}
