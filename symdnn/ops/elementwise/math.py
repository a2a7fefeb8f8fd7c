"""Exponentials, logarithms, trigonometric and hyperbolic functions. Ints give ``floatX``."""

from __future__ import annotations

from dataclasses import dataclass
from math import log as ln
from math import pi
from typing import Any, ClassVar

import numpy as np

from symdnn.graph.op import Grads, Vars
from symdnn.graph.operators import operator
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Variable
from symdnn.ops.core.gradient_control import disconnected_grad
from symdnn.ops.core.scalar import Scalar
from symdnn.ops.elementwise.arithmetic import inv, maximum, sqr, sqrt
from symdnn.ops.elementwise.comparison import eq, isinf, switch
from symdnn.ops.elemwise import FloatElemwise, apply_elemwise, as_computed, like

__all__ = [
    "ArcCos", "ArcCosh", "ArcSin", "ArcSinh", "ArcTan", "ArcTan2", "ArcTanh", "Cbrt", "Cos", "Cosh",
    "Deg2Rad", "Exp", "Exp2", "Expm1", "Log", "Log1p", "Log2", "Log10", "LogAddExp", "Rad2Deg",
    "Sin", "Sinh", "Tan", "Tanh", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2",
    "arctanh", "cbrt", "cos", "cosh", "deg2rad", "exp", "exp2", "expm1", "log", "log1p", "log2",
    "log10", "logaddexp", "rad2deg", "sin", "sinh", "tan", "tanh",
]  # fmt: skip


@dataclass(frozen=True)
class Exp(FloatElemwise):
    """``e ** x``."""

    nonnegative: ClassVar[bool] = True
    function = np.exp
    formula = "exp"

    def slope(self, x: Variable, y: Variable) -> Variable:
        return y


@dataclass(frozen=True)
class Exp2(FloatElemwise):
    """``2 ** x``."""

    function = np.exp2
    formula = "exp2"
    kinds: ClassVar[str] = "bif"

    def slope(self, x: Variable, y: Variable) -> Variable:
        return y * like(ln(2), y)


@dataclass(frozen=True)
class Expm1(FloatElemwise):
    """``e ** x - 1``, exact near 0."""

    function = np.expm1
    formula = "expm1"

    def slope(self, x: Variable, y: Variable) -> Variable:
        return y + 1


@dataclass(frozen=True)
class Log(FloatElemwise):
    """Natural logarithm."""

    function = np.log
    formula = "log"

    def slope(self, x: Variable, y: Variable) -> Variable:
        return inv(x)


@dataclass(frozen=True)
class Log2(FloatElemwise):
    """Logarithm to base 2."""

    function = np.log2
    formula = "log2"

    def slope(self, x: Variable, y: Variable) -> Variable:
        return inv(x * like(ln(2), y))


@dataclass(frozen=True)
class Log10(FloatElemwise):
    """Logarithm to base 10."""

    function = np.log10
    formula = "log10"

    def slope(self, x: Variable, y: Variable) -> Variable:
        return inv(x * like(ln(10), y))


def _log1p(z: Array) -> Array:
    """``log(1 + x)`` of complex numbers, without the cancellation of NumPy's near 0."""
    x, y = np.real(z).astype(np.float64), np.imag(z).astype(np.float64)
    near = np.hypot(x, y) < 0.5
    size = np.log1p(np.where(near, x * (2 + x) + y * y, 0)) / 2
    found = np.where(near, size + 1j * np.arctan2(y, 1 + x), np.log1p(z.astype(np.complex128)))
    return found.astype(np.asarray(z).dtype)


@dataclass(frozen=True)
class Log1p(FloatElemwise):
    """``log(1 + x)``, exact near 0."""

    function = np.log1p
    formula = "log1p"

    def reference(self, *inputs: Array) -> Array:
        (x,) = inputs
        return _log1p(x) if np.iscomplexobj(x) else super().reference(x)

    def slope(self, x: Variable, y: Variable) -> Variable:
        return inv(x + 1)


@dataclass(frozen=True)
class Cbrt(FloatElemwise):
    """The real cube root, with the sign of ``x``; its slope at 0 is infinite."""

    function = np.cbrt
    kinds: ClassVar[str] = "bif"

    @staticmethod
    def formula(x: Scalar) -> Scalar:
        size = x.call("abs")
        near = (size.call("log") * (1 / 3)).call("exp")
        exact = near - (near - size / (near * near)) / 3  # Newton's step: twice the digits
        outside = size.call("eq", 0).call("or", size.call("isinf"))
        return outside.where(x, exact.call("copysign", x))

    def slope(self, x: Variable, y: Variable) -> Variable:
        return like(1 / 3, y) * sqr(inv(y))  # infinite at 0, and so is its own slope


@dataclass(frozen=True)
class Sin(FloatElemwise):
    """Sine."""

    function = np.sin
    formula = "sin"

    def slope(self, x: Variable, y: Variable) -> Variable:
        return cos(x)


@dataclass(frozen=True)
class Cos(FloatElemwise):
    """Cosine."""

    function = np.cos
    formula = "cos"

    def slope(self, x: Variable, y: Variable) -> Variable:
        return -sin(x)


@dataclass(frozen=True)
class Tan(FloatElemwise):
    """Tangent."""

    function = np.tan
    formula = "tan"

    def slope(self, x: Variable, y: Variable) -> Variable:
        return 1 + sqr(y)


@dataclass(frozen=True)
class ArcSin(FloatElemwise):
    """Inverse sine, in ``[-pi/2, pi/2]``."""

    function = np.arcsin
    formula = "asin"

    def slope(self, x: Variable, y: Variable) -> Variable:
        return inv(sqrt(1 - sqr(x)))


@dataclass(frozen=True)
class ArcCos(FloatElemwise):
    """Inverse cosine, in ``[0, pi]``."""

    function = np.arccos
    formula = "acos"

    def slope(self, x: Variable, y: Variable) -> Variable:
        return -inv(sqrt(1 - sqr(x)))


@dataclass(frozen=True)
class ArcTan(FloatElemwise):
    """Inverse tangent, in ``[-pi/2, pi/2]``."""

    function = np.arctan
    formula = "atan"

    def slope(self, x: Variable, y: Variable) -> Variable:
        return inv(1 + sqr(x))


@dataclass(frozen=True)
class Sinh(FloatElemwise):
    """Hyperbolic sine."""

    function = np.sinh
    formula = "sinh"

    def slope(self, x: Variable, y: Variable) -> Variable:
        return cosh(x)


@dataclass(frozen=True)
class Cosh(FloatElemwise):
    """Hyperbolic cosine."""

    function = np.cosh
    formula = "cosh"

    def slope(self, x: Variable, y: Variable) -> Variable:
        return sinh(x)


@dataclass(frozen=True)
class Tanh(FloatElemwise):
    """Hyperbolic tangent."""

    function = np.tanh
    formula = "tanh"

    def slope(self, x: Variable, y: Variable) -> Variable:
        return 1 - sqr(y)


@dataclass(frozen=True)
class ArcSinh(FloatElemwise):
    """Inverse hyperbolic sine."""

    function = np.arcsinh
    formula = "asinh"

    def slope(self, x: Variable, y: Variable) -> Variable:
        return inv(sqrt(1 + sqr(x)))


@dataclass(frozen=True)
class ArcCosh(FloatElemwise):
    """Inverse hyperbolic cosine, of ``x >= 1``."""

    function = np.arccosh
    formula = "acosh"

    def slope(self, x: Variable, y: Variable) -> Variable:
        return inv(sqrt(x - 1) * sqrt(x + 1))


@dataclass(frozen=True)
class ArcTanh(FloatElemwise):
    """Inverse hyperbolic tangent, of ``-1 < x < 1``."""

    function = np.arctanh
    formula = "atanh"

    def slope(self, x: Variable, y: Variable) -> Variable:
        return inv(1 - sqr(x))


@dataclass(frozen=True)
class Deg2Rad(FloatElemwise):
    """Degrees as radians."""

    function = np.deg2rad
    kinds: ClassVar[str] = "bif"

    @staticmethod
    def formula(x: Scalar) -> Scalar:
        return x * (pi / 180)

    def slope(self, x: Variable, y: Variable) -> Variable:
        return like(pi / 180, y)


@dataclass(frozen=True)
class Rad2Deg(FloatElemwise):
    """Radians as degrees."""

    function = np.rad2deg
    kinds: ClassVar[str] = "bif"

    @staticmethod
    def formula(x: Scalar) -> Scalar:
        return x * (180 / pi)

    def slope(self, x: Variable, y: Variable) -> Variable:
        return like(180 / pi, y)


@dataclass(frozen=True)
class ArcTan2(FloatElemwise):
    """The angle of the point ``(y, x)``: the operands are ``y, x``, the result in ``[-pi, pi]``."""

    function = np.arctan2
    formula = "atan2"
    arity: ClassVar[int] = 2
    kinds: ClassVar[str] = "bif"

    def scalar_vjp(self, inputs: Vars, output: Variable, cotangent: Variable) -> Grads:
        y, x = as_computed(inputs, output)
        # Scaled, since squares may become 0 or infinite; the result does not depend on the scale.
        larger = disconnected_grad(maximum(abs(x), abs(y)))
        x, y = x / larger, y / larger
        scaled = cotangent / larger / (sqr(x) + sqr(y))
        return [scaled * x, -scaled * y]


@dataclass(frozen=True)
class LogAddExp(FloatElemwise):
    """``log(exp(x) + exp(y))`` without overflow: a sum of probabilities given as logarithms."""

    function = np.logaddexp
    arity: ClassVar[int] = 2
    commutative: ClassVar[bool] = True
    kinds: ClassVar[str] = "bif"

    @staticmethod
    def formula(x: Scalar, y: Scalar) -> Scalar:
        top = x.call("max", y) + (-(x - y).call("abs")).call("exp").call("log1p")
        # Of two equal infinities the difference is NaN.
        return x.call("eq", y).where(x + ln(2), top)

    def scalar_vjp(self, inputs: Vars, output: Variable, cotangent: Variable) -> Grads:
        x, y = as_computed(inputs, output)
        # Two probabilities of 0 share the gradient, although -inf - -inf is NaN.
        no_number = eq(x, y) & isinf(x)
        share = operator("sigmoid")(switch(no_number, like(0, output), x - y))
        return [cotangent * share, cotangent * (1 - share)]


def exp(x: Any) -> Variable:
    """``e ** x``."""
    return apply_elemwise(Exp(), x)


def exp2(x: TensorLike) -> Variable:
    """``2 ** x``."""
    return apply_elemwise(Exp2(), x)


def expm1(x: Any) -> Variable:
    """``e ** x - 1``, exact near 0."""
    return apply_elemwise(Expm1(), x)


def log(x: Any) -> Variable:
    """Natural logarithm."""
    return apply_elemwise(Log(), x)


def log2(x: TensorLike) -> Variable:
    """Logarithm to base 2."""
    return apply_elemwise(Log2(), x)


def log10(x: TensorLike) -> Variable:
    """Logarithm to base 10."""
    return apply_elemwise(Log10(), x)


def log1p(x: Any) -> Variable:
    """``log(1 + x)``, exact near 0."""
    return apply_elemwise(Log1p(), x)


def cbrt(x: TensorLike) -> Variable:
    """The real cube root, with the sign of ``x``."""
    return apply_elemwise(Cbrt(), x)


def sin(x: TensorLike) -> Variable:
    """Sine."""
    return apply_elemwise(Sin(), x)


def cos(x: Any) -> Variable:
    """Cosine."""
    return apply_elemwise(Cos(), x)


def tan(x: TensorLike) -> Variable:
    """Tangent."""
    return apply_elemwise(Tan(), x)


def arcsin(x: TensorLike) -> Variable:
    """Inverse sine, in ``[-pi/2, pi/2]``."""
    return apply_elemwise(ArcSin(), x)


def arccos(x: TensorLike) -> Variable:
    """Inverse cosine, in ``[0, pi]``."""
    return apply_elemwise(ArcCos(), x)


def arctan(x: TensorLike) -> Variable:
    """Inverse tangent, in ``[-pi/2, pi/2]``."""
    return apply_elemwise(ArcTan(), x)


def sinh(x: TensorLike) -> Variable:
    """Hyperbolic sine."""
    return apply_elemwise(Sinh(), x)


def cosh(x: Any) -> Variable:
    """Hyperbolic cosine."""
    return apply_elemwise(Cosh(), x)


def tanh(x: TensorLike) -> Variable:
    """Hyperbolic tangent."""
    return apply_elemwise(Tanh(), x)


def arcsinh(x: TensorLike) -> Variable:
    """Inverse hyperbolic sine."""
    return apply_elemwise(ArcSinh(), x)


def arccosh(x: TensorLike) -> Variable:
    """Inverse hyperbolic cosine, of ``x >= 1``."""
    return apply_elemwise(ArcCosh(), x)


def arctanh(x: TensorLike) -> Variable:
    """Inverse hyperbolic tangent, of ``-1 < x < 1``."""
    return apply_elemwise(ArcTanh(), x)


def deg2rad(x: TensorLike) -> Variable:
    """Degrees as radians."""
    return apply_elemwise(Deg2Rad(), x)


def rad2deg(x: TensorLike) -> Variable:
    """Radians as degrees."""
    return apply_elemwise(Rad2Deg(), x)


def arctan2(y: TensorLike, x: TensorLike) -> Variable:
    """The angle of the point ``(y, x)``, in ``[-pi, pi]``."""
    return apply_elemwise(ArcTan2(), y, x)


def logaddexp(x: Any, y: Any) -> Variable:
    """``log(exp(x) + exp(y))`` without overflow; of infinities too."""
    return apply_elemwise(LogAddExp(), x, y)


OPERATORS = {
    f.__name__: f
    for f in (
        arccos, arccosh, arcsin, arcsinh, arctan, arctanh, cos, cosh, deg2rad, exp, exp2, expm1,
        log, log10, log1p, log2, rad2deg, sin, sinh, tan, tanh,
    )
}  # fmt: skip
