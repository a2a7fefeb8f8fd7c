"""Elementwise arithmetic, comparison, selection and casts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from symdnn.graph.op import Grads, Vars
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.elemwise import Elemwise, FloatElemwise, apply_elemwise

__all__ = ["Add", "Cast", "Exp", "Log", "Mul", "Neg", "Sub", "Switch", "TrueDiv"]


@dataclass(frozen=True)
class Add(Elemwise):
    """``x + y``."""

    function: ClassVar[Any] = np.add
    commutative: ClassVar[bool] = True
    arity: ClassVar[int] = 2

    def scalar_vjp(self, inputs: Vars, output: Any, cotangent: Any) -> Grads:
        return [cotangent, cotangent]


@dataclass(frozen=True)
class Sub(Elemwise):
    """``x - y``."""

    function: ClassVar[Any] = np.subtract
    arity: ClassVar[int] = 2

    def scalar_vjp(self, inputs: Vars, output: Any, cotangent: Any) -> Grads:
        return [cotangent, -cotangent]


@dataclass(frozen=True)
class Mul(Elemwise):
    """``x * y``."""

    function: ClassVar[Any] = np.multiply
    commutative: ClassVar[bool] = True
    arity: ClassVar[int] = 2

    def scalar_vjp(self, inputs: Vars, output: Any, cotangent: Any) -> Grads:
        x, y = inputs
        return [cotangent * y, cotangent * x]


@dataclass(frozen=True)
class TrueDiv(FloatElemwise):
    """``x / y``; ints are divided as ``floatX``."""

    function: ClassVar[Any] = np.true_divide
    arity: ClassVar[int] = 2

    def scalar_vjp(self, inputs: Vars, output: Any, cotangent: Any) -> Grads:
        _, y = inputs
        dx = cotangent / y
        return [dx, -dx * output]


@dataclass(frozen=True)
class Neg(Elemwise):
    """``-x``."""

    function: ClassVar[Any] = np.negative

    def scalar_vjp(self, inputs: Vars, output: Any, cotangent: Any) -> Grads:
        return [-cotangent]


@dataclass(frozen=True)
class Exp(FloatElemwise):
    """``e ** x``."""

    function: ClassVar[Any] = np.exp

    def scalar_vjp(self, inputs: Vars, output: Any, cotangent: Any) -> Grads:
        return [cotangent * output]


@dataclass(frozen=True)
class Log(FloatElemwise):
    """Natural logarithm."""

    function: ClassVar[Any] = np.log

    def scalar_vjp(self, inputs: Vars, output: Any, cotangent: Any) -> Grads:
        return [cotangent / inputs[0]]


@dataclass(frozen=True)
class Cast(Elemwise):
    """The same values in another dtype."""

    dtype: str

    def infer(self, *inputs: Any) -> Any:
        return inputs[0].with_dtype(self.dtype)

    def reference(self, *inputs: Any) -> Any:
        x = inputs[0]
        if np.iscomplexobj(x) and not TensorType(self.dtype).is_complex:
            x = x.real
        return x.astype(TensorType(self.dtype).numpy)

    def scalar_vjp(self, inputs: Vars, output: Any, cotangent: Any) -> Grads:
        if not output.type.is_differentiable:
            return [None]
        return [cast(cotangent, inputs[0].type.dtype)]


def cast(x: Any, dtype: Any) -> Variable:
    """``x`` in another dtype; ``"floatX"`` is the flag's."""
    from symdnn.config import config

    v = as_variable(x)
    name = TensorType(config.floatX if dtype == "floatX" else dtype).dtype
    return v if v.type.dtype == name else Cast(name)(v)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Switch(Elemwise):
    """``x`` where ``condition`` is not zero, else ``y``."""

    function: ClassVar[Any] = staticmethod(lambda c, x, y: np.where(c != 0, x, y))
    arity: ClassVar[int] = 3

    def out_dtype(self, *dtypes: str) -> str:
        return super().out_dtype(*dtypes[1:])

    def scalar_vjp(self, inputs: Vars, output: Any, cotangent: Any) -> Grads:
        c, _, _ = inputs
        zero = cotangent.zeros_like()
        return [None, switch(c, cotangent, zero), switch(c, zero, cotangent)]


@dataclass(frozen=True)
class Compare(Elemwise):
    """Base of comparisons; the result is bool and has no gradient."""

    abstract: ClassVar[bool] = True
    is_comparison: ClassVar[bool] = True
    arity: ClassVar[int] = 2

    def out_dtype(self, *dtypes: str) -> str:
        return "bool"

    def scalar_vjp(self, inputs: Vars, output: Any, cotangent: Any) -> Grads:
        return [None, None]


@dataclass(frozen=True)
class Lt(Compare):
    """``x < y``."""

    function: ClassVar[Any] = np.less


def add(x: Any, y: Any, *more: Any) -> Variable:
    """Sum of two or more operands."""
    total = apply_elemwise(Add(), x, y)
    for term in more:
        total = apply_elemwise(Add(), total, term)
    return total  # type: ignore[no-any-return]


def sub(x: Any, y: Any) -> Variable:
    """``x - y``."""
    return apply_elemwise(Sub(), x, y)  # type: ignore[no-any-return]


def mul(x: Any, y: Any, *more: Any) -> Variable:
    """Product of two or more operands."""
    total = apply_elemwise(Mul(), x, y)
    for factor in more:
        total = apply_elemwise(Mul(), total, factor)
    return total  # type: ignore[no-any-return]


def true_div(x: Any, y: Any) -> Variable:
    """``x / y``."""
    return apply_elemwise(TrueDiv(), x, y)  # type: ignore[no-any-return]


def neg(x: Any) -> Variable:
    """``-x``."""
    return apply_elemwise(Neg(), x)  # type: ignore[no-any-return]


def exp(x: Any) -> Variable:
    """``e ** x``."""
    return apply_elemwise(Exp(), x)  # type: ignore[no-any-return]


def log(x: Any) -> Variable:
    """Natural logarithm."""
    return apply_elemwise(Log(), x)  # type: ignore[no-any-return]


def lt(x: Any, y: Any) -> Variable:
    """``x < y``."""
    return apply_elemwise(Lt(), x, y)  # type: ignore[no-any-return]


def switch(condition: Any, x: Any, y: Any) -> Variable:
    """``x`` where ``condition`` holds, else ``y``."""
    return apply_elemwise(Switch(), condition, x, y)  # type: ignore[no-any-return]


where = switch

OPERATORS = {
    "add": add, "sub": sub, "mul": mul, "true_div": true_div, "neg": neg, "lt": lt,
    "cast": cast, "switch": switch,
}
