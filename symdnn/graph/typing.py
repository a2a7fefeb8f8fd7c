"""Types of arguments for signatures: arrays, dtypes, sizes, axes, and values for variables.

They are for readers and type checkers, and are never used when the program runs: an alias that
contains a variable is a string.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from symdnn.graph.op import Op
    from symdnn.graph.variable import Variable

    #: The op of a node, a call, a kernel or a rewrite: ``Apply[Conv]``; any op where none is named.
    #: Tables hold kernels of all ops, and call each of them for its own op only.
    OpT = TypeVar("OpT", bound=Op, covariant=True, default=Op)
else:
    from typing import TypeVar

    OpT = TypeVar("OpT", covariant=True)

__all__ = [
    "Array", "Arrays", "AxisLike", "BorderMode", "DtypeLike", "OpT", "PerAxis",
    "Scalar", "ShapeLike", "StaticShape", "TensorLike",
]  # fmt: skip

#: A NumPy array of any dtype and shape.
Array = np.ndarray[Any, np.dtype[Any]]
Arrays = Sequence[Array]
#: A number of Python or NumPy.
Scalar: TypeAlias = "bool | int | float | complex | np.number[Any] | np.bool_"
#: What :func:`~symdnn.graph.variable.as_variable` takes: a variable, an array, a number, or a list.
TensorLike: TypeAlias = "Variable | Array | Scalar | Sequence[TensorLike]"
#: A dtype: its name (``"floatX"`` too), NumPy's object for it, or a scalar type.
DtypeLike: TypeAlias = "str | np.dtype[Any] | type[np.generic] | type[complex]"
#: One axis or several; negative ones count from the end, None stands for all.
AxisLike: TypeAlias = "int | Sequence[int] | None"
#: The shape of a tensor: sizes as ints or variables, or a vector of them; one size is a vector's.
ShapeLike: TypeAlias = "int | Variable | Array | Sequence[int | Variable]"
#: The known part of a tensor's shape: None for each unknown size, or for the whole.
StaticShape: TypeAlias = "Sequence[int | Variable | None] | None"
#: A number for each spatial axis, or one for all of them: strides, windows, dilations.
PerAxis: TypeAlias = "int | Sequence[int]"
#: Padding: ``"valid"``, ``"full"``, ``"half"``, or elements for each axis (before and after it).
BorderMode: TypeAlias = "str | int | Sequence[int | Sequence[int]]"
