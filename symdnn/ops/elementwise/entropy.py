"""``x log y`` and its kin, the terms of entropies: 0 where ``x`` is 0. Ints give ``floatX``."""

from __future__ import annotations

from dataclasses import dataclass
from math import log as log_of
from typing import Any, ClassVar

import numpy as np

from symdnn.graph.op import Grads, Vars
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Variable
from symdnn.ops.core.scalar import Scalar
from symdnn.ops.elementwise.comparison import eq, isnan, switch
from symdnn.ops.elementwise.math import log, log1p
from symdnn.ops.elementwise.of_order import SpecialFunction
from symdnn.ops.elementwise.special_values import scipy_function
from symdnn.ops.elemwise import FloatElemwise, apply_elemwise, as_computed, like

__all__ = [
    "KlDiv", "RelEntr", "XLog1pY", "XLogX", "XLogY", "kl_div", "rel_entr", "xlog1py", "xlogx",
    "xlogy0",
]  # fmt: skip


def _xlogx(x: Array) -> Array:
    return np.where(x == 0, 0, x * np.log(np.where(x == 0, 1, x)))


@dataclass(frozen=True)
class XLogX(FloatElemwise):
    """``x log(x)``, 0 at 0."""

    function = _xlogx
    kinds: ClassVar[str] = "bif"

    @staticmethod
    def formula(x: Scalar) -> Scalar:
        return XLogY.formula(x, x)

    def slope(self, x: Variable, y: Variable) -> Variable:
        return 1 + log(x)


def _gradients_by_log(x: Variable, y: Variable, log_y: Variable, cotangent: Variable) -> Grads:
    """The gradients of ``x log(y)``, which is 0 where ``x`` is 0 and ``y`` is a number."""
    zero = eq(x, 0) & ~isnan(y)
    to_y = switch(zero, like(0, cotangent), cotangent * x / switch(zero, like(1, y), y))
    return [cotangent * log_y, to_y]


def _xlogy(x: Array, y: Array) -> Array:
    product = np.where(x == 0, 0, x * np.log(np.where(x == 0, 1, y)))
    return np.where(np.isnan(y), y, product)


@dataclass(frozen=True)
class XLogY(FloatElemwise):
    """``x log(y)``, 0 where ``x`` is 0 and ``y`` is a number."""

    function = _xlogy
    arity: ClassVar[int] = 2
    kinds: ClassVar[str] = "bif"

    @staticmethod
    def formula(x: Scalar, y: Scalar) -> Scalar:
        zero = x.call("eq", 0)
        product = zero.where(0, x * zero.where(1, y).call("log"))
        return y.call("isnan").where(y, product)

    def scalar_vjp(self, inputs: Vars, output: Variable, cotangent: Variable) -> Grads:
        x, y = as_computed(inputs, output)
        return _gradients_by_log(x, y, log(y), cotangent)


class XLog1pY(SpecialFunction):
    """``x log(1 + y)``, 0 where ``x`` is 0 and ``y`` is a number, exact where ``y`` is near 0."""

    function: ClassVar[Any] = scipy_function("xlog1py")
    arity: ClassVar[int] = 2

    @staticmethod
    def formula(x: Scalar, y: Scalar) -> Scalar:
        product = x * x.call("eq", 0).where(1, y).call("log1p")
        return y.call("isnan").where(y, product)

    def scalar_vjp(self, inputs: Vars, output: Any, cotangent: Any) -> Grads:
        x, y = as_computed(inputs, output)
        return _gradients_by_log(x, 1 + y, log1p(y), cotangent)


#: Numbers whose ratio is larger are brought nearer to each other by these exponents of 2.
_SCALES = {"float32": (30, 70), "float64": (100, 900)}


class RelEntr(SpecialFunction):
    """``x log(x / y)``, 0 where ``x`` is 0, and infinite where there is no logarithm."""

    function: ClassVar[Any] = scipy_function("rel_entr")
    arity: ClassVar[int] = 2

    @staticmethod
    def formula(x: Scalar, y: Scalar) -> Scalar:
        least, most = x.call("min", y), x.call("max", y)
        down, up = _SCALES[x.dtype]
        more = least.like(0.0)
        for _ in range(2):  # their ratio may be infinite
            far = (least < most * 2.0 ** -(down + up)).call("and", most.call("isfinite"))
            least, most = far.where(least * 2.0**up, least), far.where(most * 2.0**-down, most)
            more = far.where(more + (down + up) * log_of(2), more)
        size = ((most - least) / least).call("log1p") + more
        value = x * (x < y).where(-size, size)
        zero = x.call("eq", 0).call("and", y >= 0)
        value = zero.where(0, (x < 0).call("or", y <= 0).where(np.inf, value))
        return x.call("isnan").where(x, y.call("isnan").where(y, value))

    def scalar_vjp(self, inputs: Vars, output: Any, cotangent: Any) -> Grads:
        x, y = as_computed(inputs, output)
        zeros = eq(x, 0) & eq(y, 0)
        x, y = (switch(zeros, like(1, v), v) for v in (x, y))
        to_y = switch(zeros, like(0, cotangent), -cotangent * x / y)
        return [cotangent * (1 + log(x) - log(y)), to_y]


class KlDiv(SpecialFunction):
    """``x log(x / y) - x + y``: 0 where both are equal, ``y`` where ``x`` is 0."""

    function: ClassVar[Any] = scipy_function("kl_div")
    arity: ClassVar[int] = 2

    @staticmethod
    def formula(x: Scalar, y: Scalar) -> Scalar:
        entropy = RelEntr.formula(x, y)
        return entropy.call("eq", np.inf).where(entropy, entropy - (x - y))

    def scalar_vjp(self, inputs: Vars, output: Any, cotangent: Any) -> Grads:
        x, y = as_computed(inputs, output)
        zeros = eq(x, 0) & eq(y, 0)
        x, y = (switch(zeros, like(1, v), v) for v in (x, y))
        return [cotangent * (log(x) - log(y)), cotangent * (1 - x / y)]


def kl_div(x: Any, y: Any) -> Variable:
    """``x log(x / y) - x + y``, a convex term of relative entropy (SciPy's name).

    Of two distributions it has the sum of :func:`rel_entr`, in terms that are not negative.

    >>> print(kl_div([0.5, 0.0], [0.25, 0.5]).eval())
    [0.09657359 0.5       ]
    """
    return apply_elemwise(KlDiv(), x, y)


def rel_entr(x: Any, y: Any) -> Variable:
    """``x log(x / y)``, a term of relative entropy, exact for ``x`` near ``y`` (SciPy's name).

    >>> print(rel_entr([0.5, 0.0], [0.25, 0.5]).eval())
    [0.34657359 0.        ]
    """
    return apply_elemwise(RelEntr(), x, y)


def xlogx(x: TensorLike) -> Variable:
    """``x log(x)``, 0 at 0."""
    return apply_elemwise(XLogX(), x)


def xlog1py(x: Any, y: Any) -> Variable:
    """``x log(1 + y)`` exact for ``y`` near 0; 0 where ``x`` is 0, also where ``y`` is -1."""
    return apply_elemwise(XLog1pY(), x, y)


def xlogy0(x: TensorLike, y: TensorLike) -> Variable:
    """``x log(y)``, 0 where ``x`` is 0, also where ``y`` is 0; NaN where ``y`` is NaN."""
    return apply_elemwise(XLogY(), x, y)
