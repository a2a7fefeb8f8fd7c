"""Elementwise arithmetic: sums, products, quotients, powers, extremes, signs, casts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np

from symdnn.config import config
from symdnn.errors import ArgumentError
from symdnn.graph.names.torch_words import advises
from symdnn.graph.op import Grads, Vars
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType, tensor_type
from symdnn.graph.typing import Array, DtypeLike, TensorLike
from symdnn.graph.values.value import constant_array
from symdnn.graph.variable import Constant, Variable, as_variable, constant
from symdnn.ops.core.dtype import number_of, promote
from symdnn.ops.core.scalar import STORED, Scalar
from symdnn.ops.elementwise.comparison import eq, ge, gt, le, lt, neq, switch
from symdnn.ops.elemwise import (
    Elemwise,
    FloatElemwise,
    apply_elemwise,
    as_computed,
    conjugate,
    like,
)

__all__ = [
    "Abs", "Add", "Cast", "Clip", "IntDiv", "Inv", "Maximum", "Minimum", "Mod", "Mul",
    "Neg", "Pow", "Sgn", "Sqr", "Sqrt", "Sub", "TrueDiv", "abs", "add", "cast", "clip",
    "int_div", "inv", "largest", "maximum", "minimum", "mod", "mul",
    "neg", "pow", "sgn", "smallest", "sqr", "sqrt", "sub", "true_div",
]  # fmt: skip


@dataclass(frozen=True)
class Add(Elemwise):
    """``x + y``; for bools it is their or."""

    function = np.add
    formula = "add"
    keeps_sizes: ClassVar[str] = "all"
    adds: ClassVar[bool] = True
    commutative: ClassVar[bool] = True
    arity: ClassVar[int] = 2

    def scalar_vjp(self, inputs: Vars, output: Variable, cotangent: Variable) -> Grads:
        return [cotangent, cotangent]


@dataclass(frozen=True)
class Sub(Elemwise):
    """``x - y``."""

    function = np.subtract
    formula = "sub"
    arity: ClassVar[int] = 2

    def out_dtype(self, *dtypes: str) -> str:
        return number_of(*dtypes)

    def reference(self, *inputs: Array) -> Array:
        # NumPy refuses the difference of two bools; here it is an int8.
        if all(a.dtype == np.bool_ for a in inputs):
            inputs = tuple(a.astype(np.int8) for a in inputs)
        return super().reference(*inputs)

    def scalar_vjp(self, inputs: Vars, output: Variable, cotangent: Variable) -> Grads:
        return [cotangent, -cotangent]


@dataclass(frozen=True)
class Mul(Elemwise):
    """``x * y``; for bools it is their and."""

    function = np.multiply
    formula = "mul"
    keeps_sizes: ClassVar[str] = "all"
    multiplies: ClassVar[bool] = True
    commutative: ClassVar[bool] = True
    arity: ClassVar[int] = 2

    def scalar_vjp(self, inputs: Vars, output: Variable, cotangent: Variable) -> Grads:
        x, y = inputs
        return [cotangent * conjugate(y), cotangent * conjugate(x)]


@dataclass(frozen=True)
class TrueDiv(FloatElemwise):
    """``x / y``; ints are divided as ``floatX``."""

    function = np.true_divide
    formula = "div"
    arity: ClassVar[int] = 2

    def operand_dtype(self, *dtypes: str) -> str | None:
        discrete = tensor_type(promote(*dtypes)).is_discrete
        return str(config.floatX) if discrete else super().operand_dtype(*dtypes)

    def scalar_vjp(self, inputs: Vars, output: Variable, cotangent: Variable) -> Grads:
        _, y = inputs
        dx = cotangent / conjugate(y)
        return [dx, -dx * conjugate(output)]


@dataclass(frozen=True)
class IntDiv(Elemwise):
    """``x // y``: the quotient rounded down. Its gradient is 0."""

    function = np.floor_divide
    formula = "floor_div"
    keeps_sizes: ClassVar[str] = "all"
    arity: ClassVar[int] = 2
    kinds: ClassVar[str] = "bif"
    decides: ClassVar[bool] = True

    def out_dtype(self, *dtypes: str) -> str:
        return number_of(*dtypes)

    def scalar_vjp(self, inputs: Vars, output: Variable, cotangent: Variable) -> Grads:
        zero = cotangent.zeros_like()
        return [zero, zero]


@dataclass(frozen=True)
class Mod(Elemwise):
    """``x % y`` with the sign of ``y``, as in Python."""

    function = np.mod
    formula = "mod"
    keeps_sizes: ClassVar[str] = "all"
    arity: ClassVar[int] = 2
    kinds: ClassVar[str] = "bif"
    decides: ClassVar[bool] = True

    def out_dtype(self, *dtypes: str) -> str:
        return number_of(*dtypes)

    def scalar_vjp(self, inputs: Vars, output: Variable, cotangent: Variable) -> Grads:
        x, y = inputs
        return [cotangent, -cotangent * (x // y)]


@dataclass(frozen=True)
class Pow(Elemwise):
    """``x ** y``. The gradient with respect to ``y`` is 0 where ``x`` is 0."""

    function = np.power
    formula = "pow"
    arity: ClassVar[int] = 2

    def out_dtype(self, *dtypes: str) -> str:
        return number_of(*dtypes)

    def scalar_vjp(self, inputs: Vars, output: Variable, cotangent: Variable) -> Grads:
        x, y = inputs
        dx = None
        if x.type.is_differentiable:
            dx = cotangent * conjugate(_power_slope(x, y, output))
        if not y.type.is_differentiable:
            return [dx, None]
        x, _ = as_computed(inputs, output)
        zero = eq(x, 0)
        base = switch(zero, like(1, x), x)
        slope = switch(zero, like(0, output), output * operator("log")(base))
        return [dx, cotangent * conjugate(slope)]


def _power_slope(x: Variable, y: Variable, output: Variable) -> Variable:
    """``y * x ** (y - 1)``, which must be 0 where ``y`` is 0, also at ``x`` = 0."""
    if isinstance(y, Constant) and y.data.size == 1:
        exponent = y.data.item()
        if exponent == 2:
            return 2 * x
        if exponent not in (0, 1):
            exact = None if y.type.is_discrete else output.type.dtype
            return y * pow(x, constant_array(exponent - 1, exact).reshape(y.data.shape))
    x, y = as_computed((x, y), output)
    less = y - 1
    safe = switch(eq(y, 0), like(0, less), less)
    return y * pow(x, safe)


@dataclass(frozen=True)
class Neg(Elemwise):
    """``-x``."""

    function = np.negative
    formula = "neg"
    kinds: ClassVar[str] = "ifc"
    advice: ClassVar[str] = "For a bool use invert (~x), or cast it to an integer dtype"

    def scalar_vjp(self, inputs: Vars, output: Variable, cotangent: Variable) -> Grads:
        return [-cotangent]


@dataclass(frozen=True)
class Abs(Elemwise):
    """``|x|``, real also for complex ``x``. The gradient at 0 is 0."""

    nonnegative: ClassVar[bool] = True
    function = np.abs
    formula = "abs"

    def out_dtype(self, *dtypes: str) -> str:
        (dtype,) = dtypes
        return {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)

    def scalar_vjp(self, inputs: Vars, output: Variable, cotangent: Variable) -> Grads:
        (x,) = inputs
        if x.type.is_complex:
            return [cotangent * (x / switch(eq(output, 0), like(1, output), output))]
        return [cotangent * sgn(x)]


@dataclass(frozen=True)
class Sgn(Elemwise):
    """The sign: -1, 0 or 1 (NaN of NaN). Its gradient is 0."""

    function = np.sign
    kinds: ClassVar[str] = "if"
    decides: ClassVar[bool] = True

    @staticmethod
    def formula(x: Scalar) -> Scalar:
        if TensorType(x.dtype).is_float:
            tested = (x < 0).where(-1, x)
            return (x > 0).where(1, x.call("eq", 0).where(0, tested))
        positive = (x > 0).where(1, x.like(0))
        return positive if x.dtype.startswith("u") else (x < 0).where(-1, positive)

    def scalar_vjp(self, inputs: Vars, output: Variable, cotangent: Variable) -> Grads:
        return [cotangent.zeros_like()]


@dataclass(frozen=True)
class Sqr(Elemwise):
    """``x * x``."""

    nonnegative: ClassVar[bool] = True
    function = np.square
    formula = staticmethod(lambda x: x * x)

    def slope(self, x: Variable, y: Variable) -> Variable:
        return 2 * x


@dataclass(frozen=True)
class Sqrt(FloatElemwise):
    """The square root; NaN below 0 where ``x`` is real."""

    nonnegative: ClassVar[bool] = True
    function = np.sqrt
    formula = "sqrt"

    def slope(self, x: Variable, y: Variable) -> Variable:
        return like(0.5, y) / y


@dataclass(frozen=True)
class Inv(FloatElemwise):
    """``1 / x``."""

    function = np.reciprocal
    formula = staticmethod(lambda x: 1 / x)

    def slope(self, x: Variable, y: Variable) -> Variable:
        return -sqr(y)


@dataclass(frozen=True)
class Extreme(Elemwise):
    """Base of the larger and the smaller of two operands."""

    abstract: ClassVar[bool] = True
    commutative: ClassVar[bool] = True
    arity: ClassVar[int] = 2
    kinds: ClassVar[str] = "bif"

    @staticmethod
    def _is_first(x: Variable, y: Variable) -> Variable:
        """Whether ``x`` is chosen."""
        raise NotImplementedError

    def scalar_vjp(self, inputs: Vars, output: Variable, cotangent: Variable) -> Grads:
        first = self._is_first(*inputs)
        zero = like(0, cotangent)
        return [switch(first, cotangent, zero), switch(first, zero, cotangent)]


class Maximum(Extreme):
    """The larger of two; NaN where either is. At a tie the gradient goes to the first."""

    function = np.maximum
    formula = "max"
    keeps_sizes: ClassVar[str] = "any"
    _is_first = staticmethod(ge)


class Minimum(Extreme):
    """The smaller of two; NaN where either is. At a tie the gradient goes to the first."""

    function = np.minimum
    formula = "min"
    keeps_sizes: ClassVar[str] = "all"
    _is_first = staticmethod(le)


def _clip(x: Array, low: Array, high: Array) -> Array:
    return np.where(x < low, low, np.where(x > high, high, x))


@dataclass(frozen=True)
class Clip(Elemwise):
    """``x`` limited to ``[low, high]``, ``low`` first; gradients pass at the edges."""

    function = _clip
    arity: ClassVar[int] = 3
    kinds: ClassVar[str] = "bif"

    @staticmethod
    def formula(x: Scalar, low: Scalar, high: Scalar) -> Scalar:
        return (x < low).where(low, (x > high).where(high, x))

    def scalar_vjp(self, inputs: Vars, output: Variable, cotangent: Variable) -> Grads:
        x, low, high = inputs
        zero = like(0, cotangent)
        below = lt(x, low)
        above = gt(x, high)
        to_high = switch(below, zero, switch(above, cotangent, zero))
        return [switch(below | above, zero, cotangent), switch(below, cotangent, zero), to_high]


@dataclass(frozen=True)
class Cast(Elemwise):
    """The same values in another dtype; from a complex to a real dtype the real part."""

    mixes_dtypes: ClassVar[bool] = True
    rounds: ClassVar[bool] = True
    dtype: str

    def formula(self, x: Scalar) -> Scalar:
        return x.cast(self.dtype, "" if TensorType(self.dtype).is_float else STORED)

    def out_dtype(self, *dtypes: str) -> str:
        return self.dtype

    def reference(self, *inputs: Array) -> Array:
        (x,), kind = inputs, TensorType(self.dtype)
        return (x if kind.is_complex or not np.iscomplexobj(x) else x.real).astype(kind.numpy)

    def scalar_vjp(self, inputs: Vars, output: Variable, cotangent: Variable) -> Grads:
        (x,) = inputs
        if not output.type.is_differentiable:
            return [None]
        return [cast(cotangent.real, x.type.dtype) if not x.type.is_complex else cotangent]

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Grads) -> Grads | None:
        if not outputs[0].type.is_differentiable or tangents[0] is None:
            return [None]
        return [cast(tangents[0], self.dtype)]


def add(x: TensorLike, *more: TensorLike) -> Variable:
    """Sum of one or more operands, each in the dtype of the whole."""
    return _together(Add(), x, more)


def sub(x: Any, y: Any) -> Variable:
    """``x - y``; of two bools as int8."""
    return apply_elemwise(Sub(), x, y)


def mul(x: TensorLike, *more: Any) -> Variable:
    """Product of one or more operands, element by element, each in the dtype of the whole."""
    return _together(Mul(), x, more)


def _together(op: Elemwise, x: Any, more: Sequence[Any]) -> Variable:
    parts = list(accumulate(more, partial(apply_elemwise, op), initial=x))
    narrower = len(more) > 1 and any(p.type.dtype != parts[-1].type.dtype for p in parts[1:-1])
    if narrower:  # partial results in a narrower dtype would be rounded or wrap around
        dtype = parts[-1].type.dtype
        return _together(op, cast(x, dtype), [cast(v, dtype) for v in more])
    return parts[-1] if more else as_variable(x)


def true_div(x: Any, y: Any) -> Variable:
    """``x / y``; ints give ``floatX``."""
    return apply_elemwise(TrueDiv(), x, y)


def int_div(x: Any, y: TensorLike) -> Variable:
    """``x // y``: the quotient rounded down, in the upcast dtype. Also ``floor_div``."""
    return apply_elemwise(IntDiv(), x, y)


def mod(x: Any, y: TensorLike) -> Variable:
    """``x % y`` with the sign of ``y``, as in Python."""
    return apply_elemwise(Mod(), x, y)


def pow(x: TensorLike, y: TensorLike) -> Variable:
    """``x ** y`` in the upcast dtype; an int to a negative int power is an error."""
    return apply_elemwise(Pow(), x, y)


def neg(x: Any) -> Variable:
    """``-x``; refuses bools."""
    return apply_elemwise(Neg(), x)


def abs(x: Any) -> Variable:
    """``|x|``, real also for complex ``x``; gradient 0 at 0. Also ``abs_``."""
    return apply_elemwise(Abs(), x)


def sgn(x: Any) -> Variable:
    """The sign: -1, 0 or 1, in the dtype of ``x``."""
    return apply_elemwise(Sgn(), x)


def sqr(x: Any) -> Variable:
    """``x * x``. Also ``square``."""
    return apply_elemwise(Sqr(), x)


def sqrt(x: Any) -> Variable:
    """The square root; ints give ``floatX``."""
    return apply_elemwise(Sqrt(), x)


def inv(x: Any) -> Variable:
    """``1 / x``; ints give ``floatX``. Also ``reciprocal``."""
    return apply_elemwise(Inv(), x)


def maximum(x: Any, y: Any) -> Variable:
    """The larger of two, element by element; NaN where either is."""
    return apply_elemwise(Maximum(), x, y)


def minimum(x: Any, y: Any) -> Variable:
    """The smaller of two, element by element; NaN where either is."""
    return apply_elemwise(Minimum(), x, y)


def largest(*args: TensorLike) -> Variable:
    """The largest of any number of operands, element by element."""
    return _folded(maximum, args)


def smallest(*args: TensorLike) -> Variable:
    """The smallest of any number of operands, element by element."""
    return _folded(minimum, args)


def _folded(pick: Any, args: tuple[TensorLike, ...]) -> Variable:
    if not args:
        raise ArgumentError("largest, smallest: wanted at least one operand, got none")
    return reduce(pick, args[1:], as_variable(args[0]))


@advises(a="x", a_min="min", a_max="max", lower="min", upper="max", input="x")
def clip(x: Any, min: Any = None, max: Any = None) -> Variable:
    """``x`` limited to ``[min, max]``, of which one may be None; gradients pass at the edges.
    Where ``min > max`` it is ``min`` below ``min``, else ``max`` (Theano's; NumPy's is ``max``).

    >>> clip([-2, 0, 2], 1, -1).eval().tolist()
    [1, 1, -1]
    """
    if min is None or max is None:
        return minimum(x, max) if min is None else maximum(x, min)
    return apply_elemwise(Clip(), x, min, max)


def cast(x: TensorLike, dtype: DtypeLike) -> Variable:
    """``x`` in another dtype (``"floatX"``: the flag's), or ``x`` itself if it has this dtype."""
    v = as_variable(x)
    name = TensorType(dtype).dtype
    if name == "bool" and v.type.dtype.startswith("complex"):  # true unless both parts are 0
        return neq(v, 0)
    if isinstance(v, Constant) and isinstance(v.number, int | float) and TensorType(name).is_float:
        return constant(v.number, v.name, v.type.ndim, name)  # of the number before any rounding
    return v if v.type.dtype == name else Cast(name)(v)


OPERATORS = {
    f.__name__: f
    for f in (
        add, sub, mul, true_div, int_div, mod, pow, neg, abs, sqr, sqrt, maximum, minimum, clip,
        cast,
    )
}  # fmt: skip
