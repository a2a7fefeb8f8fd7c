"""NumPy's statistics: reductions that skip NaN, counts, averages, quantiles and histograms."""

from __future__ import annotations

from typing import Any

import numpy as np

from symdnn.errors import NdimMismatch, OptionError
from symdnn.graph.dims import product
from symdnn.graph.names.torch_words import torch_words
from symdnn.graph.operators import operator
from symdnn.graph.typing import AxisLike, DtypeLike, TensorLike
from symdnn.graph.variable import Constant, Variable, as_variable, constant
from symdnn.ops.array.argreduce import argmax, argmin
from symdnn.ops.array.create import linspace, zeros
from symdnn.ops.array.getitem import inc_subtensor
from symdnn.ops.array.join import concatenate
from symdnn.ops.array.moments import mean
from symdnn.ops.array.norms import root
from symdnn.ops.array.order_statistics import OrderStatistics
from symdnn.ops.array.reduce import all as all_true
from symdnn.ops.array.reduce import max as largest_of
from symdnn.ops.array.reduce import min as smallest_of
from symdnn.ops.array.reduce import normal_axes, prod
from symdnn.ops.array.reduce import sum as sum_of
from symdnn.ops.array.sort import searchsorted
from symdnn.ops.array.view import expand_dims, flatten, moveaxis, of_sizes
from symdnn.ops.core.shape import dims_of
from symdnn.ops.elementwise.arithmetic import cast, clip, maximum, minimum
from symdnn.ops.elementwise.comparison import eq, ge, gt, invert, isinf, isnan, neq, switch
from symdnn.ops.elementwise.rounding import floor, round_half_to_even
from symdnn.ops.elemwise import like
from symdnn.options import as_numbers

__all__ = [
    "average", "count_nonzero", "digitize", "histogram", "median", "nanargmax", "nanargmin",
    "nanmax", "nanmean", "nanmin", "nanprod", "nanstd", "nansum", "nanvar", "percentile",
    "quantile",
]  # fmt: skip


def _real(x: TensorLike) -> Variable:
    """A float variable: ints and bools become float64, as in a mean."""
    v = as_variable(x)
    return cast(v, "float64") if v.type.is_discrete else v


def _double(x: TensorLike) -> Variable:
    """``x`` in float64; a Python number does not pass through ``floatX``."""
    if isinstance(x, Variable):
        return cast(x, "float64")
    return as_variable(as_numbers("the numbers given", x, "float64"))


def _filled(v: Variable, value: float) -> Variable:
    """``v`` with ``value`` where it is NaN."""
    return v if v.type.is_discrete else switch(isnan(v), like(value, v), v)


def _missing(v: Variable) -> Variable:
    return operator("zeros_like")(v, "bool") if v.type.is_discrete else isnan(v)


@torch_words()
def nansum(
    a: TensorLike, axis: AxisLike = None, dtype: DtypeLike | None = None, keepdims: bool = False
) -> Variable:
    """The sum over ``axis`` of the elements that are not NaN (0 without any)."""
    return sum_of(_filled(as_variable(a), 0), axis, dtype, keepdims)


def nanprod(
    a: TensorLike, axis: AxisLike = None, dtype: DtypeLike | None = None, keepdims: bool = False
) -> Variable:
    """The product over ``axis`` of the elements that are not NaN (1 without any)."""
    return prod(_filled(as_variable(a), 1), axis, dtype, keepdims)


def _valid(v: Variable, axis: AxisLike, keepdims: bool) -> Variable:
    return cast(sum_of(invert(_missing(v)), axis, keepdims=keepdims), v.type.dtype)


@torch_words()
def nanmean(a: TensorLike, axis: AxisLike = None, keepdims: bool = False) -> Variable:
    """The mean over ``axis`` of the elements that are not NaN (NaN without any)."""
    v = _real(a)
    return nansum(v, axis, keepdims=keepdims) / _valid(v, axis, keepdims)


def nanvar(a: TensorLike, axis: AxisLike = None, ddof: int = 0, keepdims: bool = False) -> Variable:
    """The variance over ``axis`` without NaNs; NaN for at most ``ddof`` elements."""
    v = _real(a)
    apart = v - nanmean(v, axis, keepdims=True)  # of an infinity NaN, which is to stay
    apart = switch(_missing(v), like(0, v), apart)
    count = _valid(v, axis, keepdims) - like(ddof, v)
    total = sum_of(apart * operator("conj")(apart), axis, keepdims=keepdims)
    return switch(count > 0, total / count, like(np.nan, total))


def nanstd(a: TensorLike, axis: AxisLike = None, ddof: int = 0, keepdims: bool = False) -> Variable:
    """The standard deviation over ``axis`` without NaNs."""
    return root(nanvar(a, axis, ddof, keepdims))


def _nan_extreme(a: TensorLike, axis: AxisLike, keepdims: bool, of: Any, fill: float) -> Variable:
    v = as_variable(a)
    if v.type.is_discrete:
        made: Variable = of(v, axis, keepdims)
        return made
    found = of(_filled(v, fill), axis, keepdims)
    return switch(all_true(isnan(v), axis, keepdims), like(np.nan, v), found)


def nanmax(a: TensorLike, axis: AxisLike = None, keepdims: bool = False) -> Variable:
    """The largest element over ``axis`` that is not NaN (NaN if all are)."""
    return _nan_extreme(a, axis, keepdims, largest_of, -np.inf)


def nanmin(a: TensorLike, axis: AxisLike = None, keepdims: bool = False) -> Variable:
    """The smallest element over ``axis`` that is not NaN (NaN if all are)."""
    return _nan_extreme(a, axis, keepdims, smallest_of, np.inf)


def nanargmax(a: TensorLike, axis: AxisLike = None, keepdims: bool = False) -> Variable:
    """The index of the largest element over ``axis`` that is not NaN."""
    return argmax(_filled(as_variable(a), -np.inf), axis, keepdims)


def nanargmin(a: TensorLike, axis: AxisLike = None, keepdims: bool = False) -> Variable:
    """The index of the smallest element over ``axis`` that is not NaN."""
    return argmin(_filled(as_variable(a), np.inf), axis, keepdims)


@torch_words()
def count_nonzero(a: TensorLike, axis: AxisLike = None, keepdims: bool = False) -> Variable:
    """The number of elements over ``axis`` that are not 0, an int64."""
    v = as_variable(a)
    counted = v if v.type.dtype == "bool" else neq(v, 0)
    return sum_of(counted, axis, keepdims=keepdims)


def average(
    a: TensorLike, axis: AxisLike = None, weights: TensorLike | None = None, keepdims: bool = False
) -> Variable:
    """The mean over ``axis``, weighted if ``weights`` are given: of the shape of ``a``, or a vector
    along one ``axis``.
    """
    v = as_variable(a)
    if weights is None:
        return mean(v, axis, keepdims=keepdims)
    w = as_variable(weights)
    if w.type.ndim == 1 and v.type.ndim > 1:
        axes = normal_axes(axis, v.type.ndim, "average")
        if len(axes) != 1:
            raise NdimMismatch("average", "weights of the shape of a, or one axis", w.type)
        w = of_sizes(w, [dims_of(v)[axes[0]]], "average: weights")
        w = w.dimshuffle([0 if d == axes[0] else "x" for d in range(v.type.ndim)])
        w = operator("fill")(v, w)
    elif w.type.ndim == v.type.ndim:
        w = of_sizes(w, dims_of(v), "average: weights")
    total = sum_of(v * w, axis, keepdims=keepdims)
    return operator("true_div")(total, sum_of(w, axis, keepdims=keepdims))


# -- order statistics ------------------------------------------------------------------------------


def _last(v: Variable, axes: tuple[int, ...]) -> Variable:
    """``v`` with ``axes`` joined into one, the last."""
    kept = [d for d in range(v.type.ndim) if d not in axes]
    moved = v.dimshuffle([*kept, *axes])
    dims = dims_of(moved)
    joined = product(dims[len(kept) :])
    return moved.reshape((*dims[: len(kept)], joined), ndim=len(kept) + 1)


#: Hyndman and Fan 1996: the alpha and beta of methods that interpolate.
_PLOTTING = {
    "interpolated_inverted_cdf": (0, 1), "hazen": (0.5, 0.5), "weibull": (0, 0),
    "median_unbiased": (1 / 3, 1 / 3), "normal_unbiased": (3 / 8, 3 / 8),
}  # fmt: skip
_METHODS = (
    "linear", "lower", "higher", "midpoint", "nearest", "inverted_cdf", "averaged_inverted_cdf",
    *_PLOTTING,
)  # fmt: skip


def _position(at: Variable, size: Variable, method: str) -> tuple[Variable, Variable]:
    """The index below each quantile of ``size`` sorted elements, and the share of the next one."""
    final = maximum(size - 1, 0)
    if method in _PLOTTING:
        alpha, beta = _PLOTTING[method]
        given = clip(size * at + (alpha + at * (1 - alpha - beta)) - 1, 0, final)
    elif method in ("inverted_cdf", "averaged_inverted_cdf"):
        given = size * at - 1
    else:
        given = at * final
    lower = floor(given)
    rest = given - lower
    exact = eq(rest, 0)
    if method == "lower":
        rest = rest * 0
    elif method == "higher":
        rest = switch(exact, 0.0, 1.0)
    elif method == "midpoint":
        rest = switch(exact, 0.0, 0.5)
    elif method == "nearest":
        rest = round_half_to_even(given) - lower
    elif method in ("inverted_cdf", "averaged_inverted_cdf"):
        rest = switch(exact, 0.0 if method == "inverted_cdf" else 0.5, 1.0)
    return cast(lower, "int64"), rest


def checked_shares(name: str, q: Any) -> Variable:
    """``q`` in float64; numbers that are known are in [0, 1]."""
    at = _double(q)
    if isinstance(at, Constant) and not bool(np.all((at.data >= 0) & (at.data <= 1))):
        raise OptionError(f"{name}: q={q!r:.60}; wanted numbers in [0, 1]")
    return at


def of_hundred(name: str, q: Any) -> Any:
    """``q / 100`` in float64; a number stays one."""
    if isinstance(q, Variable):
        return cast(q, "float64") / 100
    return as_numbers(f"{name}: q", q, "float64") / 100


def neighbours(at: Variable, size: Variable, method: str) -> tuple[Variable, Variable, Variable]:
    """The indices of the two of ``size`` sorted elements around each quantile; the second's share.

    They are one index where the share is 0 or 1: the other element may be infinite.
    """
    if method not in _METHODS:
        raise OptionError(f"quantile: method={method!r}; wanted one of {', '.join(_METHODS)}")
    final = maximum(size - 1, 0)
    below, share = _position(at, size, method)
    steps = (ge(share, 1), gt(share, 0))
    lower, upper = (minimum(maximum(below + step, 0), final) for step in steps)
    return lower, upper, share


def between(low: Variable, high: Variable, share: Variable) -> Variable:
    """``low`` and ``share`` of the way to ``high``; either may be infinite."""
    share, apart = cast(share, low.type.dtype), high - low
    weighted = low * (1 - share) + high * share
    inner = switch(isinf(apart), weighted, low + apart * share)
    return switch(eq(low, high), low, inner)


@torch_words()
def quantile(
    a: TensorLike,
    q: Any,
    axis: AxisLike = None,
    keepdims: bool = False,
    *,
    method: str = "linear",
) -> Variable:
    """Quantiles over ``axis``, by NumPy's ``method``: "linear" is between the nearest elements.

    ``q``, a number or an array of them in [0, 1], symbolic or not, gives the leading dimensions of
    the result. It is NaN if an element is NaN, and without elements. Differentiable in ``a``.

    >>> quantile(np.array([1.0, 2, 4, 8]), [0, 0.5, 0.75]).eval().tolist()
    [1.0, 3.0, 5.0]
    """
    v, at = _real(a), checked_shares("quantile", q)
    axes = normal_axes(axis, v.type.ndim, "quantile")
    lines = _last(v, axes)
    last = lines.type.ndim - 1
    size = cast(lines.shape[last], "int64")
    lower, upper, share = neighbours(at.flatten(), size, method)
    final = maximum(size - 1, 0).dimshuffle("x")
    found = OrderStatistics(last)(lines, concatenate([lower, upper, final]))
    count, lead = dims_of(lower)[0], (slice(None),) * last
    low, high = found[(*lead, slice(count))], found[(*lead, slice(count, 2 * count))]
    bad = isnan(found[(*lead, -1)]).dimshuffle(*range(last), "x")
    found = between(low, high, share.dimshuffle([*["x"] * last, 0]))
    found = switch(bad, like(np.nan, v), found)
    found = found.reshape((*dims_of(lines)[:last], *dims_of(at)), ndim=last + at.type.ndim)
    if at.type.ndim:
        ends = list(range(last, last + at.type.ndim))
        found = moveaxis(found, ends, list(range(at.type.ndim)))
    return expand_dims(found, [at.type.ndim + a for a in axes]) if keepdims else found


def percentile(
    a: TensorLike,
    q: TensorLike,
    axis: AxisLike = None,
    keepdims: bool = False,
    *,
    method: str = "linear",
) -> Variable:
    """:func:`quantile` of ``q / 100``."""
    return quantile(a, of_hundred("percentile", q), axis, keepdims, method=method)


@torch_words("median")
def median(a: TensorLike, axis: AxisLike = None, keepdims: bool = False) -> Variable:
    """The middle element over ``axis``, or the mean of the two middle ones."""
    return quantile(a, 0.5, axis, keepdims)


# -- bins ------------------------------------------------------------------------------------------


def digitize(x: TensorLike, bins: TensorLike, right: bool = False) -> Variable:
    """The index (from 0) of the interval between the sorted ``bins`` that has each element.

    ``bins`` may fall, too: then interval 0 is above the first of them, as in NumPy.
    """
    edges = as_variable(bins)
    if edges.type.ndim != 1:
        raise NdimMismatch("digitize", "bins of 1 dimension", edges.type)
    falling = (edges[1:] < edges[:-1]).any()
    rising = switch(falling, edges[::-1], edges)
    at = searchsorted(rising, x, side="left" if right else "right")
    return switch(falling, edges.shape[0] - at, at)


def histogram(
    a: TensorLike,
    bins: TensorLike = 10,
    range: Any = None,
    weights: TensorLike | None = None,
    density: bool = False,
) -> tuple[Variable, Variable]:
    """(the number of elements in each bin, the edges of the bins), as ``numpy.histogram``.

    ``bins`` is a number or increasing edges; ``range=(low, high)`` is that of the data by default.
    A bin contains its left edge, the last one both edges. ``weights`` are summed instead of ones;
    ``density`` divides by the total and the widths.
    """
    v = cast(flatten(as_variable(a), 1), "float64")
    edges = cast(_edges(v, bins, range), "float64")
    count = edges.shape[0] - 1
    inside = (v >= edges[0]) & (v <= edges[-1])
    where = clip(searchsorted(edges, v, side="right") - 1, 0, count - 1)
    w = constant(np.int64(1)) if weights is None else flatten(as_variable(weights), 1)
    w = operator("fill")(v, w) if weights is None else of_sizes(w, dims_of(v), "histogram: weights")
    kept = switch(inside, w, like(0, w))
    found = inc_subtensor(zeros((count,), w.type.dtype)[where], kept)
    if density:
        found = found / (cast(found.sum(), "float64") * (edges[1:] - edges[:-1]))
    return found, edges


def _edges(v: Variable, bins: TensorLike, limits: Any) -> Variable:
    b = as_variable(bins)
    if b.type.ndim == 1:
        return b
    if not isinstance(bins, int | np.integer) or bins < 1:
        raise OptionError(f"histogram: wanted bins as a number above 0, or as edges, got {bins!r}")
    low, high = limits if limits is not None else (smallest_of(v), largest_of(v))
    low, high = _double(low), _double(high)
    flat = eq(low, high)
    half = switch(flat, constant(np.float64(0.5)), constant(np.float64(0)))
    low, high = low - half, high + half
    inner = linspace(low, high, int(bins) + 1, dtype="float64")[:-1]
    return concatenate([inner, high.dimshuffle("x")])  # the last edge exactly
