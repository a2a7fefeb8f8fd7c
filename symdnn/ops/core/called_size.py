"""``x.size`` as a number, as in NumPy, and as a method, as in PyTorch."""

from __future__ import annotations

from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Constant, Variable, as_variable
from symdnn.ops.core.shape import as_dim, dims_of, shape, size

__all__ = ["callable_size"]


class _Called:
    """A number of elements that is called in PyTorch's way, ``x.size(0)``, too."""

    __slots__ = ()

    def __call__(self, dim: int | None = None) -> Variable:
        x: Variable = self.__dict__["whole"]
        return shape(x) if dim is None else as_dim(dims_of(x)[dim])


class _Size(_Called, Variable):
    __slots__ = ()


class _ConstantSize(_Called, Constant):
    __slots__ = ()


def callable_size(x: TensorLike) -> Variable:
    """:func:`size` as the attribute of a variable: ``x.size``, ``x.size()``, ``x.size(0)``."""
    v = as_variable(x)
    number = size(v)
    kinds: dict[type, type] = {Variable: _Size, Constant: _ConstantSize}
    if type(number) in kinds:
        number.__class__ = kinds[type(number)]
        number.__dict__["whole"] = v
    return number


OPERATORS = {"callable_size": callable_size}
