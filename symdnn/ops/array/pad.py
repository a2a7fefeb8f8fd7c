"""Padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from symdnn.errors import NdimMismatch, OptionError, ShapeMismatch, TypeMismatch
from symdnn.graph.dims import Dim, Shape, dim_max, known
from symdnn.graph.op import Axes, Batched, Grads, Host, Op, Vars
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Constant, Variable, as_variable, constant
from symdnn.ops.array.create import arange
from symdnn.ops.core.lanes import lanes_of, same_for_all, sizes_of, stacked
from symdnn.ops.core.shape import as_dim, shape_i, static_dim

__all__ = ["Pad"]

_MODES = ("constant", "edge", "reflect", "symmetric", "wrap")


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

    def shapes(
        self, types: Sequence[TensorType], shapes: Sequence[Shape], host: Host
    ) -> Sequence[Shape] | None:
        widths = [host[i] if s is None else s for i, s in enumerate(self.static, 2)]
        return [self._padded(shapes[0], widths)]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        (x, _, *widths), (dy,) = inputs, cotangents
        inner = dy[_inside(x, widths)]
        outside = dy.sum() - inner.sum()
        return [inner, outside, *(None for _ in widths)]

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        x, value = (
            operator("zeros_like")(v) if t is None else t
            for v, t in zip(inputs[:2], tangents[:2], strict=True)
        )
        return [self(x, value, *inputs[2:])]

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


def _inside(x: Variable, widths: Sequence[Variable]) -> tuple[slice, ...]:
    """The slices of ``x`` in the padded tensor."""

    def end(low: Variable, d: int) -> Any:
        low_number, n = static_dim(low), x.type.shape[d]
        size = shape_i(x, d) if n is None else n
        return (low if low_number is None else low_number) + size

    lows = widths[::2]
    return tuple(slice(low, end(low, d)) for d, low in enumerate(lows))


def pad(
    x: TensorLike, pad_width: Any, mode: str = "constant", constant_values: TensorLike = 0
) -> Variable:
    """``x`` with ``pad_width`` elements around it, as ``numpy.pad``.

    ``pad_width``: a number, ``(before, after)`` for all dimensions, or one such pair for each;
    entries may be integer scalars. ``mode`` is ``"constant"`` (the scalar ``constant_values``),
    ``"edge"``, ``"reflect"`` (without repeating the edge), ``"symmetric"`` (repeating it) or
    ``"wrap"``. All are differentiable.
    """
    v = as_variable(x)
    pairs = _pairs(pad_width, v.type.ndim)
    if mode not in _MODES:
        raise OptionError(f"pad: mode={mode!r}: wanted one of {', '.join(_MODES)}")
    if mode == "constant":
        widths = [as_dim(w) for pair in pairs for w in pair]
        value = operator("cast")(as_variable(constant_values), v.type.dtype)
        return Pad(tuple(map(static_dim, widths)))(v, value, *widths)
    for axis, (low, high) in enumerate(pairs):
        if (known_or(low), known_or(high)) != (0, 0):
            v = operator("take")(v, _source(shape_i(v, axis), low, high, mode), axis)
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
    n: Dim = int(size.data) if isinstance(size, Constant) else size
    position = arange(-1 * as_dim(low), n + as_dim(high))
    if mode == "edge":
        return operator("maximum")(operator("minimum")(position, n - 1), 0)
    if mode == "wrap":
        return operator("mod")(position, n)
    if mode == "symmetric":
        turn = operator("mod")(position, 2 * n)
        return operator("minimum")(turn, 2 * n - 1 - turn)
    period = dim_max(2 * n - 2, 1)
    turn = operator("mod")(position, period)
    return operator("minimum")(turn, period - turn)


OPERATORS = {"pad": pad}
