"""Activation functions: ops if stability or a kernel needs one, else composed of other ops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import pi, sqrt
from typing import Any, ClassVar

import numpy as np

from symdnn.config import config
from symdnn.errors import OptionError
from symdnn.graph.names.torch_words import advises
from symdnn.graph.op import Grads, Vars
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Variable, as_variable, constant
from symdnn.ops.core.dtype import is_narrow_float, upcast
from symdnn.ops.core.python_numbers import settled
from symdnn.ops.core.scalar import Scalar, gelu_of, gelu_slope_of
from symdnn.ops.elementwise.arithmetic import abs, cast, clip, minimum, mul, sgn, sqr
from symdnn.ops.elementwise.comparison import gt, lt, switch
from symdnn.ops.elementwise.math import exp
from symdnn.ops.elemwise import Elemwise, FloatElemwise, apply_elemwise, as_computed, like

__all__ = [
    "Elu", "Gelu", "GeluSlope", "GeluTanh", "LeakyRelu", "Relu", "Sigmoid", "Softplus", "Step",
    "clipped_relu",
    "elu", "gelu", "hard_sigmoid", "leaky_relu", "log_sigmoid", "relu", "rounded_once", "selu",
    "sigmoid", "silu", "softplus", "softsign", "swish", "ultra_fast_sigmoid",
]  # fmt: skip


def _sigmoid(x: Array) -> Any:
    from scipy.special import expit

    return expit(x)


@dataclass(frozen=True)
class Sigmoid(FloatElemwise):
    """``1 / (1 + exp(-x))``, exact in both tails (cuDNN: ``CUDNN_ACTIVATION_SIGMOID``)."""

    nonnegative: ClassVar[bool] = True
    function = _sigmoid
    kinds: ClassVar[str] = "bif"

    @staticmethod
    def formula(x: Scalar) -> Scalar:
        e = (-x.call("abs")).call("exp")
        return (x < 0).where(e, x.like(1)) / (1 + e)

    def slope(self, x: Variable, y: Variable) -> Variable:
        return y * sigmoid(-x)  # sigmoid(-x) is 1 - y, exact even if y was rounded to 1


def _softplus(x: Array) -> Any:
    return np.logaddexp(x, np.zeros((), x.dtype))


@dataclass(frozen=True)
class Softplus(FloatElemwise):
    """``log(1 + exp(x))`` without overflow."""

    nonnegative: ClassVar[bool] = True
    function = _softplus
    kinds: ClassVar[str] = "bif"

    @staticmethod
    def formula(x: Scalar) -> Scalar:
        return x.call("max", 0) + (-x.call("abs")).call("exp").call("log1p")

    def slope(self, x: Variable, y: Variable) -> Variable:
        return sigmoid(x)


def _step(x: Array) -> Any:
    return np.heaviside(x, np.asarray(0.5, x.dtype))


@dataclass(frozen=True)
class Step(FloatElemwise):
    """0 below 0, 1 above, 0.5 at 0: Theano's slope of :class:`Relu`. Its own slope is 0."""

    function = _step
    kinds: ClassVar[str] = "bif"
    decides: ClassVar[bool] = True

    @staticmethod
    def formula(x: Scalar) -> Scalar:
        rest = x.call("isnan").where(x, x.like(0.5))
        return (x > 0).where(1, (x < 0).where(0, rest))

    def scalar_vjp(self, inputs: Vars, output: Variable, cotangent: Variable) -> Grads:
        return [cotangent.zeros_like()]


def _relu(x: Array) -> Any:
    return np.maximum(x, np.zeros((), x.dtype))


def _slope_of_relu(x: Variable, like_x: Variable) -> Variable:
    """0 below 0, 1 above; at 0 the flag's value when the gradient is taken.

    With the flag ``zero`` it uses ``like_x``, which is above 0 where ``x`` is: relu's result.
    """
    if str(config.relu_grad_at_0) == "zero":
        return cast(gt(like_x, 0), x.type.dtype)
    return Step()(x)


@dataclass(frozen=True)
class Relu(Elemwise):
    """``max(x, 0)``; NaN stays (cuDNN: ``CUDNN_ACTIVATION_RELU``).

    The gradient at 0 is 0.5, or 0 with the flag ``relu_grad_at_0=zero``.
    """

    nonnegative: ClassVar[bool] = True
    function = _relu
    kinds: ClassVar[str] = "bif"

    @staticmethod
    def formula(x: Scalar) -> Scalar:
        return x.call("max", 0)

    def scalar_vjp(self, inputs: Vars, output: Variable, cotangent: Variable) -> Grads:
        # The result is kept for the gradient anyway; the input need not be.
        return [cotangent * _slope_of_relu(inputs[0], output)]


def _leaky_relu(x: Array, alpha: Array) -> Array:
    return np.where(x > 0, x, alpha * x)


@dataclass(frozen=True)
class LeakyRelu(Elemwise):
    """``x`` above 0, ``alpha * x`` below.

    The gradient at 0 is ``(1 + alpha) / 2``, or ``alpha`` with the flag ``relu_grad_at_0=zero``.
    """

    function = _leaky_relu
    arity: ClassVar[int] = 2
    kinds: ClassVar[str] = "bif"

    @staticmethod
    def formula(x: Scalar, alpha: Scalar) -> Scalar:
        return (x > 0).where(x, alpha * x)

    def scalar_vjp(self, inputs: Vars, output: Variable, cotangent: Variable) -> Grads:
        x, alpha = inputs
        step = _slope_of_relu(x, x)
        return [cotangent * (step + alpha * (1 - step)), cotangent * minimum(x, 0)]


def _elu(x: Array, alpha: Array) -> Array:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, np.zeros((), x.dtype))))


@dataclass(frozen=True)
class Elu(FloatElemwise):
    """``x`` above 0, ``alpha * (exp(x) - 1)`` below (cuDNN: ``CUDNN_ACTIVATION_ELU``)."""

    function = _elu
    arity: ClassVar[int] = 2
    kinds: ClassVar[str] = "bif"

    @staticmethod
    def formula(x: Scalar, alpha: Scalar) -> Scalar:
        return (x > 0).where(x, alpha * x.call("min", 0).call("expm1"))

    def scalar_vjp(self, inputs: Vars, output: Variable, cotangent: Variable) -> Grads:
        x, alpha = as_computed(inputs, output)
        decay = exp(minimum(x, 0))
        above = gt(x, 0)
        to_x = cotangent * switch(above, like(1, decay), alpha * decay)
        return [to_x, switch(above, like(0, cotangent), cotangent * (decay - 1))]


@dataclass(frozen=True)
class Gelu(FloatElemwise):
    """``x`` times the normal distribution's probability below ``x`` (Hendrycks, Gimpel 2016).

    Exact to a few units in the last place in its tail too; of ``-inf`` it is 0.
    """

    function = gelu_of
    formula = "gelu"
    kinds: ClassVar[str] = "bif"

    def slope(self, x: Variable, y: Variable) -> Variable:
        return apply_elemwise(GeluSlope(), x)


@dataclass(frozen=True)
class GeluSlope(FloatElemwise):
    """The derivative of :class:`Gelu`: the probability below ``x`` plus ``x`` times the density."""

    function = gelu_slope_of
    formula = "gelu_slope"
    kinds: ClassVar[str] = "bif"

    def slope(self, x: Variable, y: Variable) -> Variable:
        square = minimum(sqr(x), 3000)  # keeps 2 - x * x finite where exp is 0
        return like(1 / sqrt(2 * pi), y) * exp(like(-0.5, y) * square) * (like(2, y) - square)


_GELU_SCALE, _GELU_CUBE = sqrt(2 / pi), 0.044715


def _gelu_tanh(x: Array) -> Any:
    scale, cube, half = map(x.dtype.type, (_GELU_SCALE, _GELU_CUBE, 0.5))
    return half * x * (1 + np.tanh(scale * (x + cube * x * x * x)))


@dataclass(frozen=True)
class GeluTanh(FloatElemwise):
    """:class:`Gelu` approximated by a tanh, as GPT-2 and BERT have it."""

    function = _gelu_tanh
    kinds: ClassVar[str] = "bif"

    @staticmethod
    def formula(x: Scalar) -> Scalar:
        inner = _GELU_SCALE * (x + _GELU_CUBE * x * x * x)
        return 0.5 * x * (1 + inner.call("tanh"))

    def slope(self, x: Variable, y: Variable) -> Variable:
        scale, cube = like(2 * _GELU_SCALE, y), like(_GELU_CUBE, y)
        z = scale * x * (1 + cube * sqr(x))  # y is x sigmoid(z)
        inner = scale * (1 + 3 * cube * sqr(x))
        return sigmoid(z) + sigmoid(z) * sigmoid(-z) * x * inner


def sigmoid(x: Any) -> Variable:
    """``1 / (1 + exp(-x))``."""
    return apply_elemwise(Sigmoid(), x)


def log_sigmoid(x: TensorLike) -> Variable:
    """``log(sigmoid(x))`` without underflow."""
    return -softplus(-_inexact(x))  # -x of an unsigned x would wrap around


def hard_sigmoid(x: TensorLike) -> Variable:
    """``0.2 x + 0.5`` limited to ``[0, 1]``: a piecewise linear sigmoid."""
    v = _inexact(x)
    return clip(v * like(0.2, v) + like(0.5, v), like(0, v), like(1, v))


def ultra_fast_sigmoid(x: TensorLike) -> Variable:
    """A sigmoid approximated without exp, to about 0.03, by Theano's piecewise formula."""
    v = _inexact(x)
    half = abs(v) * like(0.5, v)
    curve = like(1.5, v) * half / (1 + half)
    line = like(0.935409070603099, v) + like(0.0458812946797165, v) * (half - like(1.7, v))
    tail = switch(lt(half, 3), line, like(0.99505475368673, v))
    z = switch(lt(half, like(1.7, v)), curve, tail)
    return like(0.5, v) * (1 + z * sgn(v))


def softplus(x: Any) -> Variable:
    """``log(1 + exp(x))`` without overflow."""
    return apply_elemwise(Softplus(), x)


def softsign(x: TensorLike) -> Variable:
    """``x / (1 + |x|)``."""
    v = _inexact(x)
    return v / (1 + abs(v))


@advises(negative_slope="alpha", slope="alpha", leakiness="alpha", input="x")
def relu(x: Any, alpha: Any = 0) -> Variable:
    """``max(x, 0)``; below 0 ``alpha * x``, where ``alpha`` is a number or a variable.

    The gradient at 0 is ``(1 + alpha) / 2``, as in Theano; with the flag ``relu_grad_at_0=zero``,
    which is read when the gradient is taken, it is ``alpha``, as in PyTorch and JAX.
    """
    if not isinstance(alpha, Variable) and np.ndim(alpha) == 0 and alpha == 0:
        return apply_elemwise(Relu(), x)
    v = as_variable(x)
    return apply_elemwise(LeakyRelu(), v, _as_slope(alpha, v))


@advises(negative_slope="alpha")
def leaky_relu(x: TensorLike, alpha: TensorLike = 0.01) -> Variable:
    """:func:`relu` with a slope of 0.01 below 0."""
    return relu(x, alpha)


def clipped_relu(x: TensorLike, ceiling: TensorLike = 6) -> Variable:
    """``relu(x)``, at most ``ceiling`` (cuDNN: ``CUDNN_ACTIVATION_CLIPPED_RELU``)."""
    v, top = settled([as_variable(x), as_variable(ceiling)])
    return minimum(relu(v), top)


def elu(x: TensorLike, alpha: TensorLike = 1) -> Variable:
    """``x`` above 0, ``alpha * (exp(x) - 1)`` below (Clevert, Unterthiner, Hochreiter 2015)."""
    v = as_variable(x)
    return apply_elemwise(Elu(), v, _as_slope(alpha, v))


def selu(x: TensorLike) -> Variable:
    """The self-normalising elu, scaled to keep mean 0 and variance 1 (Klambauer et al. 2017)."""
    v = _inexact(x)
    return like(1.0507009873554804934193349852946, v) * elu(v, 1.6732632423543772848170429916717)


def gelu(x: TensorLike, approximate: bool | str = False) -> Variable:
    """``x`` times the normal probability below ``x``; ``approximate`` (or ``"tanh"``) by tanh."""
    if approximate not in (False, True, "none", "tanh"):
        raise OptionError(f"gelu: approximate={approximate!r}: wanted a bool, 'none' or 'tanh'")
    return apply_elemwise(GeluTanh() if approximate in (True, "tanh") else Gelu(), x)


def swish(x: TensorLike, beta: Any = 1) -> Variable:
    """``x * sigmoid(beta * x)`` (cuDNN: ``CUDNN_ACTIVATION_SWISH``). Also ``silu``."""
    v = _inexact(x)
    one = not isinstance(beta, Variable) and np.ndim(beta) == 0 and beta == 1
    return v * sigmoid(v if one else mul(v, _as_slope(beta, v)))


silu = swish


def rounded_once(f: Callable[[Variable], Variable], x: Variable) -> Variable:
    """``f(x)``; in float32 for ``x`` of 16 bits, which have no close 1/6."""
    dtype = x.type.dtype
    return cast(f(cast(x, "float32")), dtype) if is_narrow_float(dtype) else f(x)


def _inexact(x: TensorLike) -> Variable:
    v = as_variable(x)
    return v.astype("floatX") if v.type.is_discrete else v


def _as_slope(alpha: TensorLike, x: Variable) -> TensorLike:
    # A Python number follows the dtype of x: 0.1 must not be rounded to float32 for a float64 x.
    if isinstance(alpha, float | int) and not isinstance(alpha, bool | np.generic):
        if x.type.is_float:
            return like(alpha, x)
        if isinstance(alpha, float) and x.type.is_discrete:  # exact with a wide int, too
            return constant(alpha, dtype=upcast(x.type.dtype, str(config.floatX)))
    return alpha


OPERATORS = {"sigmoid": sigmoid, "relu": relu, "softplus": softplus}
