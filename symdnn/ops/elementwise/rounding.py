"""Rounding, where ints and bools stay as they are and the gradient is 0; rounded quotients."""

from __future__ import annotations

import builtins
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import TypeMismatch
from symdnn.graph.op import Grads, Vars
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Variable, as_variable, constant
from symdnn.ops.core.dtype import float_of
from symdnn.ops.core.scalar import Scalar
from symdnn.ops.elementwise.arithmetic import cast, int_div, mod
from symdnn.ops.elementwise.comparison import neq
from symdnn.ops.elemwise import Elemwise
from symdnn.options import as_int

__all__ = [
    "Ceil", "Floor", "RoundHalfAwayFromZero", "RoundHalfToEven", "Trunc", "ceil", "ceil_intdiv",
    "divmod", "floor", "iround", "round", "round_half_away_from_zero", "round_half_to_even",
    "trunc",
]  # fmt: skip


@dataclass(frozen=True)
class Rounding(Elemwise):
    """Base of the ops that round a real number to a whole one, in the same dtype."""

    abstract: ClassVar[bool] = True
    kinds: ClassVar[str] = "f"
    decides: ClassVar[bool] = True

    def scalar_vjp(self, inputs: Vars, output: Variable, cotangent: Variable) -> Grads:
        return [cotangent.zeros_like()]


class Floor(Rounding):
    """Down, to the next smaller whole number."""

    function = np.floor
    formula = "floor"


class Ceil(Rounding):
    """Up, to the next larger whole number."""

    function = np.ceil
    formula = "ceil"


class Trunc(Rounding):
    """Towards 0."""

    function = np.trunc
    formula = "trunc"


class RoundHalfToEven(Rounding):
    """To the nearest; halves to the even one (2.5 to 2)."""

    function = np.rint
    formula = "rint"


def _half_away(x: Array) -> Any:
    # x + 0.5 would round 0.49999999999999994 up.
    whole = np.trunc(x)
    return whole + np.copysign(np.abs(x - whole) >= 0.5, x)


class RoundHalfAwayFromZero(Rounding):
    """To the nearest; halves away from 0 (2.5 to 3)."""

    function = _half_away

    @staticmethod
    def formula(x: Scalar) -> Scalar:
        whole = x.call("trunc")
        up = (x - whole).call("abs") < 0.5
        return whole + up.where(0, x.like(1)).call("copysign", x)


def _rounded(op: Rounding, x: TensorLike) -> Variable:
    v = as_variable(x)
    return v if v.type.is_discrete else op(v)


def floor(x: TensorLike) -> Variable:
    """Rounded down, in the dtype of ``x``."""
    return _rounded(Floor(), x)


def ceil(x: TensorLike) -> Variable:
    """Rounded up, in the dtype of ``x``."""
    return _rounded(Ceil(), x)


def trunc(x: TensorLike) -> Variable:
    """Rounded towards 0, in the dtype of ``x``."""
    return _rounded(Trunc(), x)


def round_half_to_even(x: TensorLike) -> Variable:
    """Rounded to the nearest, halves to the even one, in the dtype of ``x``."""
    return _rounded(RoundHalfToEven(), x)


def round_half_away_from_zero(x: TensorLike) -> Variable:
    """Rounded to the nearest, halves away from 0, in the dtype of ``x``."""
    return _rounded(RoundHalfAwayFromZero(), x)


_MODES = {
    "half_to_even": round_half_to_even,
    "half_away_from_zero": round_half_away_from_zero,
}


def round(a: TensorLike, mode: str | int | None = None, *, decimals: int = 0) -> Variable:
    """Rounded to the nearest whole number, in the dtype of ``a``.

    ``mode`` is ``"half_to_even"`` (the default) or ``"half_away_from_zero"``. ``decimals`` (which
    may stand in the place of ``mode``, as in NumPy) is the number of digits behind the point.
    """
    if isinstance(mode, int):
        return round(a, decimals=mode)
    if mode is not None and not isinstance(mode, str):
        raise TypeMismatch("round", f"mode one of {', '.join(_MODES)}", repr(mode))
    digits = as_int("round: decimals", decimals)
    if digits:
        v = as_variable(a)
        scale = constant(10.0 ** builtins.abs(digits), dtype=float_of(v.type.dtype))
        wide = v * scale if digits > 0 else v / scale
        whole = round(wide, mode)
        return cast(whole / scale if digits > 0 else whole * scale, v.type.dtype)
    if mode is not None and mode not in _MODES:
        raise TypeMismatch("round", f"mode one of {', '.join(_MODES)}", repr(mode))
    return _MODES[mode or "half_to_even"](a)


def iround(a: TensorLike, mode: str | None = None) -> Variable:
    """:func:`round`, as int64."""
    return cast(round(a, mode), "int64")


def ceil_intdiv(a: TensorLike, b: TensorLike) -> Variable:
    """The quotient of two ints, rounded up."""
    x, y = as_variable(a), as_variable(b)
    return int_div(x, y) + cast(neq(mod(x, y), 0), "int8")


def divmod(x: TensorLike, y: TensorLike) -> tuple[Variable, Variable]:
    """``(x // y, x % y)``."""
    return int_div(x, y), mod(x, y)


OPERATORS = {"floor": floor, "ceil": ceil, "trunc": trunc, "round": round}
