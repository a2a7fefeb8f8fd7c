"""Comparisons, logical and bitwise ops, and the choice :class:`Switch`.

Only the choice has a gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import TypeMismatch
from symdnn.graph.op import Grads, Vars
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Constant, Variable, as_variable, constant
from symdnn.ops.core.python_numbers import settled
from symdnn.ops.core.scalar import STORED, Scalar
from symdnn.ops.elemwise import Elemwise, apply_elemwise

__all__ = [
    "And", "Compare", "Eq", "Ge", "Gt", "Invert", "IsFinite", "IsInf", "IsNan", "Le", "LeftShift",
    "Lt", "Neq", "Or", "RightShift", "Switch", "Xor", "allclose", "and_", "eq", "ge", "gt",
    "invert", "isclose", "isfinite", "isinf", "isnan", "le", "left_shift", "lt", "neq", "or_",
    "right_shift", "switch", "xor",
]  # fmt: skip


@dataclass(frozen=True)
class Compare(Elemwise):
    """Base of comparisons; the result is bool and has no gradient."""

    abstract: ClassVar[bool] = True
    is_comparison: ClassVar[bool] = True
    arity: ClassVar[int] = 2
    kinds: ClassVar[str] = "bif"
    mixes_dtypes: ClassVar[bool] = True

    def _compared(self, name: str, x: Scalar, y: Scalar) -> Scalar:
        """A comparison that is exact also between int64 and uint64."""
        signed = [s for s in (x, y) if s.dtype.startswith("int")]
        if len(signed) == 1 and "uint64" in (x.dtype, y.dtype):
            below = {"lt": signed[0] is x, "le": signed[0] is x, "eq": False, "ne": True}[name]
            exact = x.cast("uint64").call(name, y.cast("uint64"))
            return (signed[0] < 0).where(below, exact)
        work = self.work_dtype(x.dtype, y.dtype)
        return x.cast(work, STORED).call(name, y.cast(work, STORED))

    def out_dtype(self, *dtypes: str) -> str:
        return "bool"

    def scalar_vjp(self, inputs: Vars, output: Variable, cotangent: Variable) -> Grads:
        return [None] * self.arity


class Lt(Compare):
    """``x < y``."""

    function = np.less

    def formula(self, x: Scalar, y: Scalar) -> Scalar:
        return self._compared("lt", x, y)


class Le(Compare):
    """``x <= y``."""

    function = np.less_equal

    def formula(self, x: Scalar, y: Scalar) -> Scalar:
        return self._compared("le", x, y)


class Gt(Compare):
    """``x > y``."""

    function = np.greater

    def formula(self, x: Scalar, y: Scalar) -> Scalar:
        return self._compared("lt", y, x)


class Ge(Compare):
    """``x >= y``."""

    function = np.greater_equal

    def formula(self, x: Scalar, y: Scalar) -> Scalar:
        return self._compared("le", y, x)


class Eq(Compare):
    """``x == y`` of each element."""

    function = np.equal
    commutative: ClassVar[bool] = True
    kinds: ClassVar[str] = "bifc"

    def formula(self, x: Scalar, y: Scalar) -> Scalar:
        return self._compared("eq", x, y)


class Neq(Compare):
    """``x != y`` of each element."""

    function = np.not_equal
    commutative: ClassVar[bool] = True
    kinds: ClassVar[str] = "bifc"

    def formula(self, x: Scalar, y: Scalar) -> Scalar:
        return self._compared("ne", x, y)


class FloatTest(Compare):
    """Base of the tests of one float operand; for ints the result is constant."""

    abstract: ClassVar[bool] = True
    arity: ClassVar[int] = 1
    kinds: ClassVar[str] = "bifc"
    mixes_dtypes: ClassVar[bool] = False
    decides: ClassVar[bool] = True


class IsNan(FloatTest):
    """Whether an element is NaN."""

    function = np.isnan
    formula = "isnan"


class IsInf(FloatTest):
    """Whether an element is plus or minus infinity."""

    function = np.isinf
    formula = "isinf"


class IsFinite(FloatTest):
    """Whether an element is neither NaN nor infinite."""

    function = np.isfinite
    formula = "isfinite"


@dataclass(frozen=True)
class Bitwise(Elemwise):
    """Base of bitwise ops on ints, which are logical ops on bools."""

    abstract: ClassVar[bool] = True
    arity: ClassVar[int] = 2
    kinds: ClassVar[str] = "bi"
    advice: ClassVar[str] = "Compare (x > 0) or cast to an integer dtype first"

    def infer(self, *inputs: TensorType) -> TensorType:
        out = super().infer(*inputs)
        if not out.is_discrete:  # int64 with uint64
            raise TypeMismatch(
                self, "dtypes with a common integer dtype", list(inputs), "Cast one of them"
            )
        return out

    def scalar_vjp(self, inputs: Vars, output: Variable, cotangent: Variable) -> Grads:
        return [None] * self.arity


class And(Bitwise):
    """``x & y``."""

    function = np.bitwise_and
    formula = "and"
    commutative: ClassVar[bool] = True


class Or(Bitwise):
    """``x | y``."""

    function = np.bitwise_or
    formula = "or"
    commutative: ClassVar[bool] = True


class Xor(Bitwise):
    """``x ^ y``."""

    function = np.bitwise_xor
    formula = "xor"
    commutative: ClassVar[bool] = True


class Invert(Bitwise):
    """``~x``: every bit inverted, or the logical not of a bool."""

    function = np.invert
    formula = "not"
    arity: ClassVar[int] = 1


class LeftShift(Bitwise):
    """``x << y``."""

    function = np.left_shift
    formula = "shl"
    kinds: ClassVar[str] = "i"


class RightShift(Bitwise):
    """``x >> y``; the sign is kept."""

    function = np.right_shift
    formula = "shr"
    kinds: ClassVar[str] = "i"


def _choose(condition: Array, x: Array, y: Array) -> Array:
    return np.where(condition if condition.dtype == np.bool_ else condition != 0, x, y)


@dataclass(frozen=True)
class Switch(Elemwise):
    """``x`` where ``condition`` is not zero, else ``y``. Both are computed."""

    may_overwrite: ClassVar[Mapping[int, tuple[int, ...]]] = {0: (1, 2)}
    function = _choose
    chooses: ClassVar[bool] = True
    arity: ClassVar[int] = 3
    first: ClassVar[int] = 1
    mixes_dtypes: ClassVar[bool] = True

    def chosen_from(self, inputs: Vars, output: int) -> Vars:
        return inputs[1:]

    def formula(self, condition: Scalar, yes: Scalar, no: Scalar) -> Scalar:
        work = self.work_dtype(yes.dtype, no.dtype)
        return condition.cast("bool", STORED).where(yes.cast(work), no.cast(work))

    def out_dtype(self, *dtypes: str) -> str:
        return super().out_dtype(*dtypes[1:])

    def scalar_vjp(self, inputs: Vars, output: Variable, cotangent: Variable) -> Grads:
        c, _, _ = inputs
        zero = constant(0, dtype=cotangent.type.dtype)
        return [None, switch(c, cotangent, zero), switch(c, zero, cotangent)]


def lt(x: TensorLike, y: TensorLike) -> Variable:
    """``x < y``, as bool."""
    return apply_elemwise(Lt(), x, y)


def le(x: TensorLike, y: TensorLike) -> Variable:
    """``x <= y``, as bool."""
    return apply_elemwise(Le(), x, y)


def gt(x: TensorLike, y: TensorLike) -> Variable:
    """``x > y``, as bool."""
    return apply_elemwise(Gt(), x, y)


def ge(x: TensorLike, y: TensorLike) -> Variable:
    """``x >= y``, as bool."""
    return apply_elemwise(Ge(), x, y)


def eq(x: TensorLike, y: TensorLike) -> Variable:
    """Where the elements are equal, as bool (``==`` itself compares the variables)."""
    return apply_elemwise(Eq(), x, y)


def neq(x: TensorLike, y: TensorLike) -> Variable:
    """Where the elements differ, as bool."""
    return apply_elemwise(Neq(), x, y)


def isnan(x: TensorLike) -> Variable:
    """Where ``x`` is NaN (nowhere for ints), as bool."""
    return apply_elemwise(IsNan(), x)


def isinf(x: TensorLike) -> Variable:
    """Where ``x`` is infinite (nowhere for ints), as bool."""
    return apply_elemwise(IsInf(), x)


def isfinite(x: TensorLike) -> Variable:
    """Where ``x`` is neither NaN nor infinite, as bool."""
    return apply_elemwise(IsFinite(), x)


def isclose(
    a: TensorLike, b: TensorLike, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> Variable:
    """Where ``|a - b| <= atol + rtol * |b|``; equal infinities are close, as in NumPy.

    With ``equal_nan`` two NaNs are close too.
    """
    x, y = _inexact(a), _inexact(b)
    bound = constant(atol, dtype="float64") + constant(rtol, dtype="float64") * abs(y)
    near = and_(le(abs(x - y), bound), isfinite(y))
    close = or_(near, eq(x, y))
    return or_(close, and_(isnan(x), isnan(y))) if equal_nan else close


def _inexact(x: TensorLike) -> Variable:
    # The difference of two unsigned ints would wrap around.
    v = as_variable(x)
    return v.astype("float64") if v.type.is_discrete else v


def allclose(
    a: TensorLike, b: TensorLike, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> Variable:
    """Whether all elements are close (:func:`isclose`): a bool scalar."""
    return isclose(a, b, rtol, atol, equal_nan).all()


def and_(x: TensorLike, y: TensorLike) -> Variable:
    """``x & y``: bits of ints, logic of bools. Also ``bitwise_and``."""
    return _bitwise(And(), x, y)


def or_(x: TensorLike, y: TensorLike) -> Variable:
    """``x | y``: bits of ints, logic of bools. Also ``bitwise_or``."""
    return _bitwise(Or(), x, y)


def xor(x: TensorLike, y: TensorLike) -> Variable:
    """``x ^ y``: bits of ints, logic of bools. Also ``bitwise_xor``."""
    return _bitwise(Xor(), x, y)


def invert(x: Any) -> Variable:
    """``~x``: bits of ints, logical not of bools. Also ``bitwise_not``."""
    return apply_elemwise(Invert(), x)


def left_shift(x: TensorLike, y: TensorLike) -> Variable:
    """``x << y`` of ints."""
    return _bitwise(LeftShift(), x, y)


def right_shift(x: TensorLike, y: TensorLike) -> Variable:
    """``x >> y`` of ints."""
    return _bitwise(RightShift(), x, y)


def _bitwise(op: Bitwise, x: TensorLike, y: TensorLike) -> Variable:
    a, b = settled([as_variable(x), as_variable(y)])
    return apply_elemwise(op, _unsigned(a, b), _unsigned(b, a))


def _unsigned(v: Variable, other: Variable) -> Variable:
    # The 2 of `x << 2` is an int8, which has no common integer dtype with a uint64.
    if (
        isinstance(v, Constant)
        and TensorType(v.type.dtype).is_integer
        and other.type.dtype == "uint64"
        and bool(np.all(v.data >= 0))
    ):
        return Constant(v.data.astype(np.uint64), v.name)
    return v


def switch(condition: Any, x: Any, y: Any) -> Variable:
    """``x`` where ``condition`` is not zero, else ``y``; the three broadcast."""
    return apply_elemwise(Switch(), condition, x, y)


OPERATORS = {
    "lt": lt,
    "le": le,
    "gt": gt,
    "ge": ge,
    "eq": eq,
    "neq": neq,
    "and_": and_,
    "or_": or_,
    "xor": xor,
    "invert": invert,
    "left_shift": left_shift,
    "right_shift": right_shift,
    "switch": switch,
}
