"""Methods of a variable that apply one function to each element: ``x.exp()``, ``x.sqrt()``, ..."""

from __future__ import annotations

from typing import TYPE_CHECKING

from symdnn.graph.operators import operator
from symdnn.graph.typing import TensorLike

if TYPE_CHECKING:
    from symdnn.graph.variable import Variable


class ElementwiseMethods:
    """Functions of one argument as methods, under Theano's and NumPy's names."""

    __slots__ = ()

    def _elementwise(self, name: str) -> Variable:
        return operator(name)(self)

    def arccos(self) -> Variable:
        """Inverse cosine."""
        return self._elementwise("arccos")

    def arccosh(self) -> Variable:
        """Inverse hyperbolic cosine."""
        return self._elementwise("arccosh")

    def arcsin(self) -> Variable:
        """Inverse sine."""
        return self._elementwise("arcsin")

    def arcsinh(self) -> Variable:
        """Inverse hyperbolic sine."""
        return self._elementwise("arcsinh")

    def arctan(self) -> Variable:
        """Inverse tangent."""
        return self._elementwise("arctan")

    def arctanh(self) -> Variable:
        """Inverse hyperbolic tangent."""
        return self._elementwise("arctanh")

    def ceil(self) -> Variable:
        """Rounded up."""
        return self._elementwise("ceil")

    def cos(self) -> Variable:
        """Cosine."""
        return self._elementwise("cos")

    def cosh(self) -> Variable:
        """Hyperbolic cosine."""
        return self._elementwise("cosh")

    def deg2rad(self) -> Variable:
        """Degrees as radians."""
        return self._elementwise("deg2rad")

    def exp(self) -> Variable:
        """Exponential."""
        return self._elementwise("exp")

    def exp2(self) -> Variable:
        """2 to the power of the elements."""
        return self._elementwise("exp2")

    def expm1(self) -> Variable:
        """``exp(x) - 1``, precise for small ``x``."""
        return self._elementwise("expm1")

    def floor(self) -> Variable:
        """Rounded down."""
        return self._elementwise("floor")

    def log(self) -> Variable:
        """Natural logarithm."""
        return self._elementwise("log")

    def log10(self) -> Variable:
        """Logarithm to base 10."""
        return self._elementwise("log10")

    def log1p(self) -> Variable:
        """``log(1 + x)``, precise for small ``x``."""
        return self._elementwise("log1p")

    def log2(self) -> Variable:
        """Logarithm to base 2."""
        return self._elementwise("log2")

    def rad2deg(self) -> Variable:
        """Radians as degrees."""
        return self._elementwise("rad2deg")

    def sin(self) -> Variable:
        """Sine."""
        return self._elementwise("sin")

    def sinh(self) -> Variable:
        """Hyperbolic sine."""
        return self._elementwise("sinh")

    def sqrt(self) -> Variable:
        """Square root."""
        return self._elementwise("sqrt")

    def tan(self) -> Variable:
        """Tangent."""
        return self._elementwise("tan")

    def tanh(self) -> Variable:
        """Hyperbolic tangent."""
        return self._elementwise("tanh")

    def trunc(self) -> Variable:
        """Rounded towards 0."""
        return self._elementwise("trunc")

    def clip(
        self, a_min: TensorLike | None = None, a_max: TensorLike | None = None, *,
        min: TensorLike | None = None, max: TensorLike | None = None,
    ) -> Variable:  # fmt: skip
        """Values limited to ``[min, max]`` (or ``[a_min, a_max]``), of which one may be None."""
        return operator("clip")(self, a_min if min is None else min, a_max if max is None else max)

    def round(self, mode: str | int | None = None, *, decimals: int = 0) -> Variable:
        """Rounded to integers, or to so many decimals (half to even by default)."""
        return operator("round")(self, mode, decimals=decimals)
