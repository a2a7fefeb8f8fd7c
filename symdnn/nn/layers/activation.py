"""Functions of each element, as modules.

Torch7's argument ``inplace`` is accepted and changes nothing: the memory plan decides
for every function whether its result overwrites an operand that is not read again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import InputError, TypeMismatch, UnknownWord
from symdnn.graph.variable import Shared, Variable
from symdnn.nn import init
from symdnn.nn.modules.arguments import positive, tensor_input
from symdnn.nn.modules.module import Module
from symdnn.nn.modules.torch_keywords import torch_keywords
from symdnn.ops.core.shape import shape
from symdnn.ops.elementwise import activations, arithmetic
from symdnn.ops.elementwise import math as functions
from symdnn.ops.elementwise.comparison import gt, le, switch
from symdnn.ops.elemwise import like
from symdnn.ops.random.random_stream import RandomStream

__all__ = [
    "Abs", "AddConstant", "Clamp", "ClippedReLU", "ELU", "Exp", "GELU", "HardShrink",
    "HardSigmoid", "HardSwish", "HardTanh", "LeakyReLU", "Log", "LogSigmoid", "Mish",
    "MulConstant", "PReLU", "Power", "RReLU", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid",
    "SoftPlus", "SoftShrink", "SoftSign", "Softplus", "Sqrt", "Square", "Swish", "Tanh",
    "TanhShrink", "Threshold",
]  # fmt: skip


class _Pointwise(Module):
    """``function`` of each element; ``inplace`` is accepted and without effect (see the module)."""

    function: ClassVar[Callable[..., Any]]

    def __init__(self, inplace: bool = False) -> None:
        self.inplace = bool(inplace)

    def forward(self, x: Variable) -> Variable:
        tensor_input(self, x, "a float tensor")
        return self.value(x)

    def value(self, x: Variable) -> Variable:
        """The output for a float tensor."""
        made: Variable = type(self).function(x)
        return made


class ReLU(_Pointwise):
    """``max(x, 0)``; its gradient at 0 is 0.5. (cudnn.ReLU.)

    >>> ReLU(True)
    nn.ReLU
    """

    function = staticmethod(activations.relu)


class Tanh(_Pointwise):
    """``tanh(x)``. (cudnn.Tanh.)"""

    function = staticmethod(functions.tanh)


class Sigmoid(_Pointwise):
    """``1 / (1 + exp(-x))``. (cudnn.Sigmoid.)"""

    function = staticmethod(activations.sigmoid)


class SiLU(_Pointwise):
    """``x * sigmoid(x)``."""

    function = staticmethod(activations.silu)


class SELU(_Pointwise):
    """The self-normalising ELU of Klambauer et al. 2017."""

    function = staticmethod(activations.selu)


class SoftSign(_Pointwise):
    """``x / (1 + |x|)``."""

    function = staticmethod(activations.softsign)


class LogSigmoid(_Pointwise):
    """``log(sigmoid(x))`` without underflow."""

    function = staticmethod(activations.log_sigmoid)


class Abs(_Pointwise):
    """``|x|``."""

    function = staticmethod(arithmetic.abs)


class Exp(_Pointwise):
    """``exp(x)``."""

    function = staticmethod(functions.exp)


class Log(_Pointwise):
    """``log(x)``."""

    function = staticmethod(functions.log)


class Sqrt(_Pointwise):
    """``sqrt(x)``."""

    function = staticmethod(arithmetic.sqrt)


class Square(_Pointwise):
    """``x**2``."""

    function = staticmethod(arithmetic.sqr)


class Mish(_Pointwise):
    """``x * tanh(softplus(x))`` (Misra 2019)."""

    def value(self, x: Variable) -> Variable:
        return x * functions.tanh(activations.softplus(x))


class TanhShrink(_Pointwise):
    """``x - tanh(x)``."""

    def value(self, x: Variable) -> Variable:
        return x - functions.tanh(x)


def _hard_sigmoid(x: Variable) -> Variable:
    line = x * like(1 / 6, x) + like(0.5, x)
    return arithmetic.clip(line, like(0, x), like(1, x))


class HardSigmoid(_Pointwise):
    """``x / 6 + 1 / 2`` limited to 0 .. 1, as in PyTorch.

    (``T.nnet.hard_sigmoid`` is Theano's, of slope 0.2.)
    """

    def value(self, x: Variable) -> Variable:
        return activations.rounded_once(_hard_sigmoid, x)


class HardSwish(_Pointwise):
    """``x`` times :class:`HardSigmoid` (Howard et al. 2019)."""

    def value(self, x: Variable) -> Variable:
        return activations.rounded_once(lambda x: x * _hard_sigmoid(x), x)


class ClippedReLU(_Pointwise):
    """``min(max(x, 0), ceiling)``. (cudnn.ClippedReLU.)

    >>> ClippedReLU(6)
    nn.ClippedReLU(6)
    """

    _shown = "{0.ceiling:g}"

    def __init__(self, ceiling: float, inplace: bool = False) -> None:
        super().__init__(inplace)
        if not ceiling > 0:
            raise InputError(f"ClippedReLU: wanted a ceiling above 0, got {ceiling!r}")
        self.ceiling = float(ceiling)

    def value(self, x: Variable) -> Variable:
        return activations.clipped_relu(x, like(self.ceiling, x))


class ReLU6(ClippedReLU):
    """:class:`ClippedReLU` of ceiling 6."""

    _shown = ""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__(6, inplace)


class ELU(_Pointwise):
    """``x`` above 0, ``alpha * (exp(x) - 1)`` below (Clevert et al. 2015)."""

    _shown = "{0.alpha:g}"

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.alpha = float(alpha)

    def value(self, x: Variable) -> Variable:
        return activations.elu(x, self.alpha)


@torch_keywords(negative_slope="negval")
class LeakyReLU(_Pointwise):
    """``x`` above 0, ``negval * x`` below."""

    _shown = "{0.negval:g}"

    def __init__(self, negval: float = 0.01, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.negval = float(negval)

    def value(self, x: Variable) -> Variable:
        return activations.leaky_relu(x, self.negval)


@torch_keywords(num_parameters="nOutputPlane", init="initial")
class PReLU(_Pointwise):
    """A leaky ReLU of learnt slope: one, or one for each of ``nOutputPlane`` planes (axis 1).

    ``weight`` (1,) or (nOutputPlane,) starts at ``initial`` (He et al. 2015).
    """

    weight: Shared

    def __init__(
        self, nOutputPlane: int = 0, initial: float = 0.25, *, dtype: str | None = None
    ) -> None:
        super().__init__()
        positive("PReLU: nOutputPlane", nOutputPlane, least=0)
        self.nOutputPlane = int(nOutputPlane)
        self.parameter("weight", (max(1, self.nOutputPlane),), init.constant(initial), dtype)

    def value(self, x: Variable) -> Variable:
        pattern: list[Any] = ["x"] * x.type.ndim
        if self.nOutputPlane > 1:
            if x.type.ndim < 2:
                raise TypeMismatch("PReLU", "a float tensor (batch, planes, ...)", x.type)
            pattern[1] = 0
            return activations.relu(x, self.weight.dimshuffle(*pattern))
        return activations.relu(x, self.weight.dimshuffle(*pattern[1:], 0) if pattern else x)

    def describe(self) -> str:
        return f"({self.nOutputPlane})" if self.nOutputPlane else ""


class RReLU(_Pointwise):
    """``x`` above 0, ``a x`` below, ``a`` random for each element (Xu et al. 2015).

    In training ``a`` is uniform from ``lower`` to ``upper``, in evaluation their mean.
    """

    _shown = "{0.lower:g}, {0.upper:g}"

    def __init__(
        self, lower: float = 1 / 8, upper: float = 1 / 3, inplace: bool = False, *,
        seed: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(inplace)
        if not lower <= upper:
            raise InputError(f"RReLU: wanted lower <= upper, got {lower!r} and {upper!r}")
        self.lower, self.upper = float(lower), float(upper)
        self.seed = int(init.generator().integers(2**62)) if seed is None else int(seed)
        self.calls = 0

    def value(self, x: Variable) -> Variable:
        if not self.training:
            return activations.relu(x, like((self.lower + self.upper) / 2, x))
        stream = RandomStream((self.seed, self.calls))
        self.calls += 1
        u = stream.uniform(shape(x), self.lower, self.upper, dtype=x.type.dtype, ndim=x.type.ndim)
        return switch(x > 0, x, x * u)


class GELU(_Pointwise):
    """``x`` times the normal probability below ``x``; ``approximate="tanh"`` as GPT-2 has it."""

    def __init__(self, approximate: str | bool = "none", inplace: bool = False) -> None:
        super().__init__(inplace)
        if approximate not in ("none", "tanh", True, False):
            raise UnknownWord(f"GELU: wanted approximate='none' or 'tanh', got {approximate!r}")
        self.approximate = "tanh" if approximate in ("tanh", True) else "none"

    def value(self, x: Variable) -> Variable:
        return activations.gelu(x, self.approximate)


class Swish(_Pointwise):
    """``x * sigmoid(beta x)``."""

    def __init__(self, beta: float = 1.0, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.beta = float(beta)

    def value(self, x: Variable) -> Variable:
        return activations.swish(x, self.beta)


class SoftPlus(_Pointwise):
    """``log(1 + exp(beta x)) / beta`` without overflow (Torch7's name; also ``Softplus``).

    Where ``beta x`` is above ``threshold`` it is ``x``. None, the default, is where both are equal:
    20, that of Torch7 and PyTorch, is another value by ``2.1e-9 / beta`` at most.
    """

    def __init__(self, beta: float = 1.0, threshold: float | None = None) -> None:
        super().__init__()
        if not beta > 0:
            raise InputError(f"SoftPlus: wanted beta above 0, got {beta!r}")
        self.beta, self.threshold = float(beta), threshold

    def value(self, x: Variable) -> Variable:
        scaled = x if self.beta == 1 else x * like(self.beta, x)
        curve = activations.softplus(scaled)
        threshold = self.threshold
        if self.beta != 1:
            curve = curve / like(self.beta, x)
            if threshold is None:  # exp(-40) is nothing beside 40 in float64; beta x may overflow
                threshold = 40.0
        return curve if threshold is None else switch(gt(scaled, like(threshold, x)), x, curve)


Softplus = SoftPlus


class _Between(_Pointwise):
    """Values limited to an interval."""

    _shown = "{0.min_value:g}, {0.max_value:g}"

    def __init__(self, min_value: float, max_value: float, inplace: bool = False) -> None:
        super().__init__(inplace)
        if not min_value < max_value:
            raise InputError(
                f"{type(self).__name__}: wanted min_value < max_value, got {min_value}, {max_value}"
            )
        self.min_value, self.max_value = float(min_value), float(max_value)

    def value(self, x: Variable) -> Variable:
        return arithmetic.clip(x, like(self.min_value, x), like(self.max_value, x))


@torch_keywords(min_val="min_value", max_val="max_value")
class HardTanh(_Between):
    """``x`` limited to -1 .. 1, or to ``min_value`` .. ``max_value``."""

    def __init__(
        self, min_value: float = -1.0, max_value: float = 1.0, inplace: bool = False
    ) -> None:
        super().__init__(min_value, max_value, inplace)


class Clamp(_Between):
    """``x`` limited to ``min_value`` .. ``max_value``."""


@torch_keywords(threshold="th", value="v")
class Threshold(_Pointwise):
    """``x`` where it is above ``th``, else ``v``."""

    _shown = "{0.th:g}, {0.v:g}"

    def __init__(self, th: float = 1e-6, v: float = 0.0, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.th, self.v = float(th), float(v)

    def value(self, x: Variable) -> Variable:
        return switch(le(x, like(self.th, x)), like(self.v, x), x)  # NaN stays NaN


class _Shrink(_Pointwise):
    """Nothing within ``lambd`` of 0."""

    _shown = "{0.lambd:g}"

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        positive_number = isinstance(lambd, int | float) and lambd >= 0
        if not positive_number:
            raise InputError(f"{type(self).__name__}: wanted lambd of 0 or more, got {lambd!r}")
        self.lambd = float(lambd)


class HardShrink(_Shrink):
    """``x`` beyond ``lambd``, 0 within."""

    def value(self, x: Variable) -> Variable:
        near = le(arithmetic.abs(x), like(self.lambd, x))  # not where it is NaN
        return switch(near, like(0, x), x)


class SoftShrink(_Shrink):
    """``x`` moved towards 0 by ``lambd``, 0 within."""

    def value(self, x: Variable) -> Variable:
        limit = np.float64(self.lambd)
        return x - arithmetic.clip(x, like(-limit, x), like(limit, x))


class Power(_Pointwise):
    """``x**p``."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.pow = float(p)

    def value(self, x: Variable) -> Variable:
        return x ** like(self.pow, x)


class MulConstant(_Pointwise):
    """``x`` times a number."""

    def __init__(self, constant_scalar: float, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.constant_scalar = float(constant_scalar)

    def value(self, x: Variable) -> Variable:
        return x * like(self.constant_scalar, x)


class AddConstant(_Pointwise):
    """``x`` plus a number."""

    def __init__(self, constant_scalar: float, inplace: bool = False) -> None:
        super().__init__(inplace)
        self.constant_scalar = float(constant_scalar)

    def value(self, x: Variable) -> Variable:
        return x + like(self.constant_scalar, x)
