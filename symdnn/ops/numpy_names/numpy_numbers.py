"""Integers' divisors, parts of floats, windows and order under NumPy's names, composed of ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from symdnn.errors import DtypeError, InputError, TypeMismatch
from symdnn.graph.dims import normal_axis
from symdnn.graph.names.torch_words import torch_words
from symdnn.graph.typing import AxisLike, DtypeLike, TensorLike
from symdnn.graph.variable import Variable, as_variable, constant
from symdnn.ops.array.cumulative import cumprod, cumsum
from symdnn.ops.array.join import concatenate
from symdnn.ops.array.order_statistics import ArgPartition, OrderStatistics, Partition
from symdnn.ops.array.reduce import any as any_true
from symdnn.ops.array.reduce import normal_axes
from symdnn.ops.array.sort import argsort, sort
from symdnn.ops.array.take import diff, take, take_along_axis
from symdnn.ops.array.view import broadcast_to, expand_dims, moveaxis
from symdnn.ops.control.loops import while_loop
from symdnn.ops.core.dtype import float_of, upcast
from symdnn.ops.core.gradient_control import straight_through, zero_grad
from symdnn.ops.core.python_numbers import settled
from symdnn.ops.core.shape import dims_of
from symdnn.ops.elementwise.arithmetic import abs as absolute
from symdnn.ops.elementwise.arithmetic import cast, clip, maximum
from symdnn.ops.elementwise.comparison import and_, eq, isfinite, isinf, isnan, neq, or_, switch
from symdnn.ops.elementwise.math import log2
from symdnn.ops.elementwise.rounding import floor, trunc
from symdnn.ops.elementwise.storage import bitcast
from symdnn.ops.elemwise import like
from symdnn.ops.numpy_names.numpy_math import copysign
from symdnn.ops.numpy_names.numpy_reductions import (
    between,
    checked_shares,
    neighbours,
    of_hundred,
    quantile,
)

__all__ = [
    "argpartition", "bartlett", "bitwise_count", "blackman", "cumulative_prod", "cumulative_sum",
    "ediff1d", "fix", "frexp", "gcd", "hamming", "hanning", "kaiser", "lcm", "ldexp", "lexsort",
    "modf", "nancumprod", "nancumsum", "nanmedian", "nanpercentile", "nanquantile", "nextafter",
    "partition", "spacing", "unwrap",
]  # fmt: skip


# -- integers --------------------------------------------------------------------------------------


def _integers(name: str, x: TensorLike, y: TensorLike) -> tuple[Variable, Variable]:
    a, b = as_variable(x), as_variable(y)
    for v in (a, b):
        if not v.type.is_integer:
            raise TypeMismatch(name, "integers", v.type)
    dtype = upcast(a.type.dtype, b.type.dtype)
    a, b = cast(a, dtype), cast(b, dtype)
    return a + b * like(0, b), b + a * like(0, a)  # both of the common shape


def gcd(x1: TensorLike, x2: TensorLike) -> Variable:
    """The greatest common divisor of integers (Euclid's algorithm); of 0 and 0 it is 0."""
    a, b = _integers("gcd", x1, x2)

    def step(state: Sequence[Variable]) -> tuple[Variable, Variable]:
        m, n = state
        done = eq(n, 0)
        rest = m % switch(done, like(1, n), n)
        return switch(done, m, n), switch(done, n, rest)

    m, _ = while_loop(lambda s: any_true(neq(s[1], 0)), step, (absolute(a), absolute(b)))
    return absolute(m)


def lcm(x1: TensorLike, x2: TensorLike) -> Variable:
    """The least common multiple of integers; 0 where one of them is."""
    a, b = _integers("lcm", x1, x2)
    divisor = gcd(a, b)
    return absolute(a) // switch(eq(divisor, 0), like(1, divisor), divisor) * absolute(b)


def bitwise_count(x: TensorLike) -> Variable:
    """How many bits of the magnitude of integers are 1, as uint8."""
    v = as_variable(x)
    if not v.type.is_discrete:
        raise TypeMismatch("bitwise_count", "integers or bools", v.type)
    u = v if v.type.dtype == "uint64" else absolute(cast(v, "int64"))
    u = cast(u, "uint64")

    def word(byte: int) -> Variable:
        return constant(np.uint64(byte * 0x0101010101010101), dtype="uint64")

    def right(value: Variable, places: int) -> Variable:
        return value // constant(np.uint64(1 << places), dtype="uint64")

    # Counts of pairs, of fours and of bytes; a product adds the bytes into the first one.
    u = u - (right(u, 1) & word(0x55))
    u = (u & word(0x33)) + (right(u, 2) & word(0x33))
    u = (u + right(u, 4)) & word(0x0F)
    return cast(right(u * word(0x01), 56), "uint8")


# -- parts of floats -------------------------------------------------------------------------------

#: By dtype, the integers of its width.
_BITS = {"float16": "int16", "bfloat16": "int16", "float32": "int32", "float64": "int64"}


def _float(name: str, x: TensorLike) -> Variable:
    v = as_variable(x)
    v = cast(v, "floatX") if v.type.is_discrete else v
    if v.type.dtype not in _BITS:
        raise DtypeError(f"{name}: wanted floats, got {v.type}")
    return v


def modf(x: TensorLike) -> tuple[Variable, Variable]:
    """The part behind the point and the whole part, both with the sign of ``x``."""
    v = _float("modf", x)
    whole = trunc(v)
    behind = switch(isinf(v), like(0, v), v - whole)
    return copysign(behind, v), whole


def fix(x: TensorLike) -> Variable:
    """Rounded towards 0."""
    return trunc(_float("fix", x))


def _powers(v: Variable) -> tuple[Variable, int]:
    """Exact powers of 2 of the dtype of ``v``, and the place of 2^0."""
    reach = {"float16": 24, "bfloat16": 133, "float32": 149, "float64": 1074}[v.type.dtype]
    kind = "float32" if v.type.dtype == "bfloat16" else v.type.dtype
    with np.errstate(over="ignore"):
        table = np.ldexp(np.ones(2 * reach + 1), np.arange(-reach, reach + 1)).astype(kind)
    return constant(table, dtype=v.type.dtype), reach


def ldexp(x1: TensorLike, x2: TensorLike) -> Variable:
    """``x1 2^x2`` for integers ``x2``, exact where the result is no subnormal number."""
    v, n = _float("ldexp", x1), as_variable(x2)
    if not n.type.is_integer:
        raise TypeMismatch("ldexp", "integers as exponents", n.type)
    table, zero = _powers(v)
    n = clip(cast(n, "int64"), -2 * zero, 2 * zero)
    part = clip(n // 2, -zero, zero)  # 2^n alone may overflow where the result does not
    half = take(table, part + zero)
    rest = take(table, clip(n - part, -zero, zero) + zero)
    return v * half * rest


def frexp(x: TensorLike) -> tuple[Variable, Variable]:
    """``(m, e)`` with ``x = m 2^e`` and ``m`` from 1/2 to below 1, ``e`` int32; of 0 (0, 0)."""
    v = _float("frexp", x)
    plain = and_(isfinite(v), neq(v, 0))
    size = switch(plain, absolute(v), like(1, v))
    e = cast(floor(log2(size)), "int32") + 1
    m = ldexp(size, -e)
    for _ in range(2):  # a logarithm may be rounded over a power of 2
        e = e + cast(m >= 1, "int32") - cast(m < like(0.5, m), "int32")
        m = ldexp(size, -e)
    signed = switch(v < 0, -m, m)
    return switch(plain, signed, v), switch(plain, e, like(0, e))


def nextafter(x1: TensorLike, x2: TensorLike) -> Variable:
    """The next number after ``x1`` towards ``x2``. Its gradient is that of ``x1``."""
    a, b = settled([as_variable(x1), as_variable(x2)])
    dtype = float_of(a.type.dtype, b.type.dtype)
    a, b = (_float("nextafter", cast(v, dtype)) for v in (a, b))
    bits = bitcast(a, _BITS[dtype])
    up = b > a
    away = or_(and_(up, a > 0), and_(b < a, a < 0))
    moved = bitcast(bits + switch(away, like(1, bits), like(-1, bits)), dtype)
    least = bitcast(like(1, bits), dtype)
    moved = switch(eq(a, 0), switch(up, least, -least), moved)
    found = switch(eq(a, b), b, moved)
    found = switch(or_(isnan(a), isnan(b)), like(np.nan, a), found)
    return straight_through(found, switch(eq(a, b), a, a))


def spacing(x: TensorLike) -> Variable:
    """The distance to the next number away from 0. Its gradient is 0."""
    v = zero_grad(as_variable(x))
    if v.type.dtype not in _BITS:
        raise DtypeError(f"spacing: wanted floats, got {v.type}")
    return nextafter(v, switch(v < 0, like(-np.inf, v), like(np.inf, v))) - v


# -- running sums, order, jumps --------------------------------------------------------------------


def nancumsum(a: TensorLike, axis: int | None = None) -> Variable:
    """:func:`cumsum` with NaN as 0."""
    v = as_variable(a)
    return cumsum(switch(isnan(v), like(0, v), v) if v.type.is_float else v, axis)


def nancumprod(a: TensorLike, axis: int | None = None) -> Variable:
    """:func:`cumprod` with NaN as 1."""
    v = as_variable(a)
    return cumprod(switch(isnan(v), like(1, v), v) if v.type.is_float else v, axis)


def _cumulative(
    function: Callable[..., Variable], start: int, x: TensorLike, axis: int | None,
    dtype: DtypeLike | None, include_initial: bool,
) -> Variable:  # fmt: skip
    v = as_variable(x)
    if axis is None:
        if v.type.ndim != 1:
            raise InputError("cumulative_sum, cumulative_prod: wanted axis for several dimensions")
        axis = 0
    found = function(v if dtype is None else cast(v, dtype), axis)
    if not include_initial:
        return found
    where = normal_axis("cumulative", axis, v.type.ndim)
    shape = [1 if d == where else n for d, n in enumerate(dims_of(found))]
    first = constant(np.asarray(start, found.type.dtype)).dimshuffle(["x"] * v.type.ndim)
    return concatenate([broadcast_to(first, shape), found], axis=where)


def cumulative_sum(
    x: TensorLike, *, axis: int | None = None, dtype: DtypeLike | None = None,
    include_initial: bool = False,
) -> Variable:  # fmt: skip
    """The array API's :func:`cumsum`; ``include_initial`` puts a 0 in front."""
    return _cumulative(cumsum, 0, x, axis, dtype, include_initial)


def cumulative_prod(
    x: TensorLike, *, axis: int | None = None, dtype: DtypeLike | None = None,
    include_initial: bool = False,
) -> Variable:  # fmt: skip
    """The array API's :func:`cumprod`; ``include_initial`` puts a 1 in front."""
    return _cumulative(cumprod, 1, x, axis, dtype, include_initial)


def ediff1d(
    ary: TensorLike, to_end: TensorLike | None = None, to_begin: TensorLike | None = None
) -> Variable:
    """The differences of neighbours of the flattened array, between these vectors."""
    v = as_variable(ary).flatten()
    parts = [None if p is None else cast(p, v.type.dtype).flatten() for p in (to_begin, to_end)]
    found = [p for p in (parts[0], v[1:] - v[:-1], parts[1]) if p is not None]
    return concatenate(found) if len(found) > 1 else found[0]


def unwrap(
    p: TensorLike, discont: TensorLike | None = None, axis: int = -1, *,
    period: float = 2 * np.pi,
) -> Variable:  # fmt: skip
    """Angles without jumps of more than half a ``period`` along ``axis``."""
    v = _float("unwrap", p)
    where = normal_axis("unwrap", axis, v.type.ndim)
    step, whole, half = diff(v, axis=where), like(period, v), like(period / 2, v)
    least = half if discont is None else maximum(cast(discont, v.type.dtype), half)
    inside = (step + half) % whole - half
    inside = switch(and_(eq(inside, -half), step > 0), half, inside)
    jump = switch(absolute(step) < least, like(0, v), inside - step)
    lead = (slice(None),) * where
    rest = v[(*lead, slice(1, None))] + cumsum(jump, where)
    return concatenate([v[(*lead, slice(0, 1))], rest], axis=where)


def partition(a: TensorLike, kth: Any, axis: int | None = -1) -> Variable:
    """``a`` with its ``kth`` element in order along ``axis``: those before it, the equal ones,
    those behind it, each in the order of ``a``.

    With several ``kth``, and of booleans, all elements are in order.
    """
    return _parted(Partition, sort, a, kth, axis)


def argpartition(a: TensorLike, kth: Any, axis: int | None = -1) -> Variable:
    """The indices of :func:`partition`."""
    return _parted(ArgPartition, argsort, a, kth, axis)


def _parted(
    op: type[Partition] | type[ArgPartition], whole: Callable[..., Variable], a: TensorLike,
    kth: Any, axis: int | None,
) -> Variable:  # fmt: skip
    v, place = as_variable(a), as_variable(kth)
    if not place.type.is_integer:
        raise TypeMismatch("partition", "a whole number, or several, as kth", place.type)
    real = v.type.is_float or v.type.is_integer
    if not real or place.type.ndim:
        return whole(v, axis)
    if axis is None or v.type.ndim == 0:
        v, axis = v.flatten(), 0
    where = normal_axis("partition", axis, v.type.ndim)
    place = cast(place, "int64")
    place = place + switch(place < 0, v.shape[where], 0)
    return op(where)(v, place.reshape((1,)))


def lexsort(keys: Sequence[TensorLike], axis: int = -1) -> Variable:
    """The indices that sort by the last of ``keys``, equal ones by the one before it, ..."""
    if not isinstance(keys, list | tuple) or not keys:
        raise InputError(f"lexsort: wanted a list of keys, got {keys!r:.60}")
    vs = [as_variable(k) for k in keys]
    normal_axes(axis, vs[0].type.ndim, "lexsort")
    order = argsort(vs[0], axis, "stable")
    for v in vs[1:]:
        inner = argsort(take_along_axis(v, order, axis), axis, "stable")
        order = take_along_axis(order, inner, axis)
    return order


@torch_words()
def nanquantile(
    a: TensorLike,
    q: TensorLike,
    axis: AxisLike = None,
    keepdims: bool = False,
    *,
    method: str = "linear",
) -> Variable:
    """:func:`quantile` of the elements that are not NaN; NaN if there are none."""
    v, at = as_variable(a), checked_shares("nanquantile", q)
    if not v.type.is_float:
        return quantile(v, q, axis, keepdims, method=method)
    where = normal_axes(axis, v.type.ndim, "nanquantile")
    kept = [d for d in range(v.type.ndim) if d not in where]
    lead = [dims_of(v)[d] for d in kept]
    count: Any = 1
    for d in where:  # a -1 would be any size where one of ``lead`` is 0
        count = count * dims_of(v)[d]
    rows = v.dimshuffle([*kept, *where]).reshape((*lead, count))
    none = isnan(rows)
    filled = switch(none, like(np.inf, rows), rows)
    count = cast(~none, "int64").sum(axis=-1, keepdims=True)
    lower, upper, share = neighbours(at.flatten(), count, method)
    if kept:  # each line has places of its own
        ordered = sort(filled, -1)
        low, high = (take_along_axis(ordered, i, -1) for i in (lower, upper))
    else:
        both = OrderStatistics(0)(filled, concatenate([lower, upper]))
        low, high = both[: dims_of(lower)[0]], both[dims_of(lower)[0] :]
    found = between(low, high, share)
    found = switch(count > 0, found, like(np.nan, found))
    found = moveaxis(found, -1, 0)
    if keepdims:
        found = expand_dims(found, [1 + d for d in where])
    if at.type.ndim == 0:
        return found[0]
    return found.reshape((*dims_of(at), *dims_of(found)[1:]))


def nanpercentile(
    a: TensorLike,
    q: TensorLike,
    axis: AxisLike = None,
    keepdims: bool = False,
    *,
    method: str = "linear",
) -> Variable:
    """:func:`nanquantile` of ``q / 100``."""
    return nanquantile(a, of_hundred("nanpercentile", q), axis, keepdims, method=method)


@torch_words("nanmedian")
def nanmedian(a: TensorLike, axis: AxisLike = None, keepdims: bool = False) -> Variable:
    """The median of the elements that are not NaN."""
    return nanquantile(a, 0.5, axis, keepdims)


# -- windows of signals ----------------------------------------------------------------------------


def _window(function: Callable[..., Any], *numbers: Any) -> Variable:
    if not all(isinstance(n, int | float | np.number) for n in numbers):
        raise InputError(f"{function.__name__}: wanted numbers, got {numbers!r:.60}")
    value: Any = function(*numbers)
    return cast(as_variable(value), "floatX")


def bartlett(M: int) -> Variable:
    """NumPy's window of ``M`` numbers (an int), in ``floatX``."""
    return _window(np.bartlett, M)


def blackman(M: int) -> Variable:
    """NumPy's window of ``M`` numbers (an int), in ``floatX``."""
    return _window(np.blackman, M)


def hamming(M: int) -> Variable:
    """NumPy's window of ``M`` numbers (an int), in ``floatX``."""
    return _window(np.hamming, M)


def hanning(M: int) -> Variable:
    """NumPy's window of ``M`` numbers (an int), in ``floatX``."""
    return _window(np.hanning, M)


def kaiser(M: int, beta: float) -> Variable:
    """NumPy's window of ``M`` numbers (an int), in ``floatX``."""
    return _window(np.kaiser, M, beta)
