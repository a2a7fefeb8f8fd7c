"""Names for what signatures say: arrays, dtypes, sizes, axes, and what becomes a variable.

They are read by people and by checkers of types, never when the program runs: an alias with a
variable in it is a string.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from symdnn.graph.op import Op
    from symdnn.graph.variable import Variable

    #: The op of a node, a call, a kernel or a rewrite: ``Apply[Conv]``; any op where none is named.
    #: Tables hold those of all ops, and see to it that each is asked about its own only.
    OpT = TypeVar("OpT", bound=Op, covariant=True, default=Op)
else:
    from typing import TypeVar

    OpT = TypeVar("OpT", covariant=True)

__all__ = [
    "Array", "AxisLike", "BorderMode", "DtypeLike", "NumpyFunction", "OpT", "PerAxis", "Scalar",
    "ShapeLike", "StaticShape", "TensorLike",
]  # fmt: skip

#: An array of NumPy's, of any dtype and shape.
Array = np.ndarray[Any, np.dtype[Any]]
#: A function of arrays that gives an array: one of NumPy's, or written as these are.
NumpyFunction = Callable[..., Array]
#: A number of Python's or NumPy's.
Scalar: TypeAlias = "bool | int | float | complex | np.number[Any] | np.bool_"
#: What :func:`~symdnn.graph.variable.as_variable` takes: a variable, an array, a number, or a list.
TensorLike: TypeAlias = "Variable | Array | Scalar | Sequence[TensorLike]"
#: What says a dtype: its name (``"floatX"`` too), NumPy's object for it, or a scalar type.
DtypeLike: TypeAlias = "str | np.dtype[Any] | type[np.generic] | type[complex]"
#: One axis or several; negative ones count from the end, None stands for all.
AxisLike: TypeAlias = "int | Sequence[int] | None"
#: Sizes of a tensor: int scalars, variables among them, or a vector; a single one is a vector's.
ShapeLike: TypeAlias = "int | Variable | Array | Sequence[int | Variable]"
#: Sizes of a tensor as far as they are known; None, or None among them, where they are not.
StaticShape: TypeAlias = "Sequence[int | Variable | None] | None"
#: A number for each spatial axis, or one for all of them: strides, windows, dilations.
PerAxis: TypeAlias = "int | Sequence[int]"
#: Padding: ``"valid"``, ``"full"``, ``"half"``, or elements for each axis (before and after it).
BorderMode: TypeAlias = "str | int | Sequence[int | Sequence[int]]"
