"""Padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from symdnn.errors import NdimMismatch, OptionError, ShapeMismatch, TypeMismatch
from symdnn.graph.dims import Dim, dim_max, known
from symdnn.graph.names.torch_words import advises
from symdnn.graph.op import Axes, Batched, Grads, Host, Op, Shapes, Types, Vars
from symdnn.graph.operators import operator, or_zeros
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Constant, Variable, as_variable, constant
from symdnn.ops.array.create import arange
from symdnn.ops.array.join import concatenate
from symdnn.ops.array.sort import sort
from symdnn.ops.array.view import expand_dims
from symdnn.ops.core.lanes import lanes_of, same_for_all, sizes_of, stacked
from symdnn.ops.core.shape import as_dim, shape_i, static_dim
from symdnn.ops.elementwise.rounding import round_half_to_even

_MODES = (
    "constant", "edge", "empty", "linear_ramp", "maximum", "mean", "median", "minimum", "reflect",
    "symmetric", "wrap",
)  # fmt: skip
#: Modes that pad with a statistic of the lines, and the builder of it.
_STATISTICS = {"maximum": "max", "mean": "mean", "median": "", "minimum": "min"}


@dataclass(frozen=True)
class Pad(Op):
    """``x`` with ``value`` around it.

    Inputs: ``x``, ``value`` (a scalar of its dtype), then for each dimension two integer scalars,
    how many to add before and after; none may be negative.
    """

    static: tuple[int | None, ...]

    @property
    def host_inputs(self) -> tuple[int, ...]:
        return tuple(range(2, 2 + len(self.static)))

    def infer(self, x: TensorType, value: TensorType, *widths: TensorType) -> TensorType:
        if value.ndim != 0 or value.dtype != x.dtype:
            raise TypeMismatch(self, f"a scalar of dtype {x.dtype} to pad with", value)
        if len(self.static) != 2 * x.ndim:
            raise NdimMismatch(self, f"two widths for each of {x.ndim} dimension(s)", x)
        return x.with_shape(self._padded(x.shape, self.static))

    def _padded(self, shape: Sequence[Any], widths: Sequence[Any]) -> tuple[Any, ...]:
        if any(w is not None and (n := known(w)) is not None and n < 0 for w in widths):
            raise ShapeMismatch(self, "widths that are not negative", tuple(widths))
        pairs = zip(widths[::2], widths[1::2], strict=True)
        return tuple(
            None if None in (n, low, high) else n + low + high
            for n, (low, high) in zip(shape, pairs, strict=True)
        )

    def reference(self, x: Array, value: Array, *widths: Array) -> Array:
        ints = [int(w) for w in widths]
        out = np.full(self._padded(x.shape, ints), value, dtype=x.dtype)
        out[tuple(slice(w, w + n) for w, n in zip(ints[::2], x.shape, strict=True))] = x
        return out

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        widths = [host[i] if s is None else s for i, s in enumerate(self.static, 2)]
        return [self._padded(shapes[0], widths)]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        (x, _, *widths), (dy,) = inputs, cotangents
        inner = dy[_inside(x, widths)]
        outside = dy.sum() - inner.sum()
        return [inner, outside, *(None for _ in widths)]

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        return [self(*or_zeros(tangents[:2], inputs[:2]), *inputs[2:])]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        x, value, *widths = inputs
        if any(a is not None for a in axes[2:]):
            return None
        nothing, same = as_dim(0), axes[1] is None
        op, around = Pad((0, 0, *self.static)), value if same else constant(0, dtype=x.type.dtype)
        whole = stacked(x, axes[0], lanes_of(inputs, axes))
        out = op(whole, around, nothing, nothing, *widths)
        if same:
            return [out], [0]
        within = operator("alloc")(constant(True), *sizes_of(whole)[1:])
        inside = Pad(self.static)(within, constant(False), *widths)
        filled = value.dimshuffle(0, *["x"] * (out.type.ndim - 1))
        return [operator("switch")(same_for_all(inside), out, filled)], [0]


def _inside(x: Variable, widths: Vars) -> tuple[slice, ...]:
    """The slices of ``x`` in the padded tensor."""

    def end(low: Variable, high: Variable, d: int) -> Any:
        low_number, high_number, n = static_dim(low), static_dim(high), x.type.shape[d]
        if n is None and low_number is not None and high_number is not None:
            return -high_number or None  # known, whatever the size is
        size = shape_i(x, d) if n is None else n
        return (low if low_number is None else low_number) + size

    pairs = zip(widths[::2], widths[1::2], strict=True)
    return tuple(slice(low, end(low, high, d)) for d, (low, high) in enumerate(pairs))


@advises(value="constant_values", pad="pad_width")
def pad(
    x: TensorLike, pad_width: Any, mode: str = "constant", constant_values: Any = 0, *,
    end_values: Any = 0, stat_length: Any = None, reflect_type: str = "even",
) -> Variable:  # fmt: skip
    """``x`` with ``pad_width`` elements around it, as ``numpy.pad``.

    ``pad_width``: a number, ``(before, after)`` for all dimensions, or one such pair for each;
    entries may be integer scalars. ``mode`` is ``"constant"`` (the scalar ``constant_values``),
    ``"edge"``, ``"reflect"`` (without repeating the edge), ``"symmetric"`` (repeating it),
    ``"wrap"``, ``"linear_ramp"`` (to ``end_values``), ``"maximum"``, ``"mean"``, ``"median"``,
    ``"minimum"`` (of the ``stat_length`` elements next to the edge, None: all), or ``"empty"``,
    here zeros. ``constant_values``, ``end_values`` and ``stat_length`` may be given by side, as the
    widths. ``reflect_type="odd"`` continues by twice the edge minus the mirror image. All are
    differentiable.
    """
    v = as_variable(x)
    pairs = _pairs(pad_width, v.type.ndim)
    if mode not in _MODES:
        raise OptionError(f"pad: mode={mode!r}: wanted one of {', '.join(_MODES)}")
    if reflect_type not in ("even", "odd"):
        raise OptionError(f"pad: reflect_type={reflect_type!r}: wanted 'even' or 'odd'")
    listed = isinstance(constant_values, list | tuple)
    if mode == "constant" and (
        listed or (isinstance(constant_values, np.ndarray) and constant_values.ndim)
    ):
        return _by_side(v, pairs, mode, constant_values)
    if mode == "linear_ramp" or mode in _STATISTICS:
        return _by_side(v, pairs, mode, end_values if mode == "linear_ramp" else stat_length)
    if mode in ("reflect", "symmetric") and reflect_type == "odd":
        return _odd(v, pairs, mode)
    if mode in ("constant", "empty"):
        widths = [as_dim(w) for pair in pairs for w in pair]
        value = operator("cast")(
            as_variable(constant_values if mode == "constant" else 0), v.type.dtype
        )
        return Pad(tuple(map(static_dim, widths)))(v, value, *widths)
    for first, after in _runs([tuple(map(known_or, p)) != (0, 0) for p in pairs]):
        index: list[slice | Variable] = [slice(None)] * first
        for axis in range(first, after):
            place = _source(shape_i(v, axis), *pairs[axis], mode)
            index.append(place.dimshuffle(0, *"x" * (after - axis - 1)))
        v = operator("getitem")(v, tuple(index))
    return v


def _runs(padded: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """First axes of neighbours that are padded, and the axes behind them: one gather has them."""
    first = 0
    for wide, axes in groupby(padded):
        after = first + len(list(axes))
        if wide:
            yield first, after
        first = after


def _by_side(v: Variable, pairs: Sequence[tuple[Any, Any]], mode: str, given: Any) -> Variable:
    """Padding axis by axis with what ``mode`` makes of the line next to each side."""
    settings = _pairs(given, v.type.ndim)
    whole = v.type.dtype
    for axis, (widths, each) in enumerate(zip(pairs, settings, strict=True)):
        parts: list[Variable | None] = []
        for side, (width, setting) in enumerate(zip(widths, each, strict=True)):
            if known_or(width) == 0:
                parts.append(None)
            elif mode == "linear_ramp":
                parts.append(_ramp(v, axis, side, width, setting))
            elif mode == "constant":
                value = operator("cast")(as_variable(setting), whole)
                parts.append(_spread(v, axis, width, value))
            else:
                parts.append(_spread(v, axis, width, _statistic(v, axis, side, mode, setting)))
        joined = [part for part in (parts[0], v, parts[1]) if part is not None]
        v = concatenate(joined, axis) if len(joined) > 1 else v
    return v


def _edge(v: Variable, axis: int, side: int) -> Variable:
    """The entry next to a side, with its axis."""
    return expand_dims(v[(*(slice(None),) * axis, 0 if side == 0 else -1)], axis)


def _line(v: Variable, axis: int, side: int, length: Any) -> Variable:
    """The ``length`` entries next to a side."""
    at = slice(None, length) if side == 0 else slice(-length, None)
    return v[(*(slice(None),) * axis, at)]


def _spread(v: Variable, axis: int, width: Any, value: Variable) -> Variable:
    """``value``, of size 1 along ``axis`` (or a scalar), ``width`` times."""
    dims = [width if d == axis else shape_i(v, d) for d in range(v.type.ndim)]
    return operator("alloc")(value, *dims)


def _statistic(v: Variable, axis: int, side: int, mode: str, length: Any) -> Variable:
    part = v if length is None else _line(v, axis, side, length)
    made = _middle if mode == "median" else operator(_STATISTICS[mode])
    found = made(part, axis, keepdims=True)
    if v.type.is_integer:
        found = round_half_to_even(found)
    return operator("cast")(found, v.type.dtype)


def _middle(x: Variable, axis: int, keepdims: bool) -> Variable:
    """The median, with its axis."""
    ordered, n = sort(x, axis), shape_i(x, axis)
    lead = (slice(None),) * axis
    low, high = (n - 1) // 2, n // 2
    pair = [expand_dims(ordered[(*lead, i)], axis) for i in (low, high)]
    return (pair[0] + pair[1]) / 2


def _ramp(v: Variable, axis: int, side: int, width: Any, end: Any) -> Variable:
    edge = _edge(v, axis, side)
    kind = v.type.dtype if v.type.is_float else "float64"
    first = operator("cast")(as_variable(end), kind)
    share = operator("cast")(arange(width), kind) / operator("cast")(as_variable(width), kind)
    share = share if side == 0 else share[::-1]
    share = share.dimshuffle(*("x" if d != axis else 0 for d in range(v.type.ndim)))
    line = first + (operator("cast")(edge, kind) - first) * share
    if v.type.is_integer:
        line = operator("floor")(line)
    return operator("cast")(line, v.type.dtype)


def _odd(v: Variable, pairs: Sequence[tuple[Any, Any]], mode: str) -> Variable:
    """Point reflections at both edges, of which two are a shift by twice the line's rise."""
    for axis, widths in enumerate(pairs):
        if tuple(map(known_or, widths)) == (0, 0):
            continue
        position, period, turn, back = _reflected(shape_i(v, axis), *widths, mode)
        column = (slice(None), *(None,) * (v.type.ndim - axis - 1))
        source = operator("minimum")(turn, back)
        line = operator("getitem")(v, (*(slice(None),) * axis, source))
        mirrored, shifts = (turn > back)[column], ((position - turn) // period)[column]
        first, last = _edge(v, axis, 0), _edge(v, axis, 1)
        rise = 2 * (last - first) * operator("cast")(shifts, v.type.dtype)
        line = operator("switch")(mirrored, 2 * last - line, line)
        v = operator("switch")(operator("eq")(shifts, 0), line, line + rise)
    return v


def known_or(width: Any) -> int | None:
    """The width if it is a number."""
    return known(width) if isinstance(width, int | Variable) else int(width)


def _pairs(pad_width: Any, ndim: int) -> list[tuple[Any, Any]]:
    if isinstance(pad_width, np.ndarray):
        pad_width = pad_width.tolist()
    if not isinstance(pad_width, list | tuple):
        return [(pad_width, pad_width)] * ndim
    entries = list(pad_width)
    if len(entries) == 2 and not any(isinstance(e, list | tuple) for e in entries):
        return [(entries[0], entries[1])] * ndim
    if len(entries) == 1:
        entries = entries * ndim
    if len(entries) != ndim:
        raise NdimMismatch("pad", f"a pair of widths for each of {ndim} dimension(s)", pad_width)
    pairs = [tuple(e) if isinstance(e, list | tuple) else (e, e) for e in entries]
    return [(p[0], p[-1]) for p in pairs]


def _source(size: Variable, low: int, high: int, mode: str) -> Variable:
    """For each padded position the index of the element of ``x`` that it repeats."""
    if mode in ("reflect", "symmetric"):
        _, _, turn, back = _reflected(size, low, high, mode)
        return operator("minimum")(turn, back)
    n, position = _positions(size, low, high)
    if mode == "edge":
        return operator("maximum")(operator("minimum")(position, n - 1), 0)
    return operator("mod")(position, n)


def _positions(size: Variable, low: int, high: int) -> tuple[Dim, Variable]:
    """The size of the line, and the padded positions counted from its first element."""
    n: Dim = int(size.data) if isinstance(size, Constant) else size
    return n, arange(-1 * as_dim(low), n + as_dim(high))


def _reflected(
    size: Variable, low: int, high: int, mode: str
) -> tuple[Variable, Dim, Variable, Variable]:
    """The padded positions, their period, and the elements within it counted from both edges."""
    n, position = _positions(size, low, high)
    period = 2 * n if mode == "symmetric" else dim_max(2 * n - 2, 1)
    turn = operator("mod")(position, period)
    return position, period, turn, (period - 1 if mode == "symmetric" else period) - turn


OPERATORS = {"pad": pad}
