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
    "Array", "AxisLike", "DtypeLike", "NumpyFunction", "Number", "OpT", "ShapeLike",
    "TensorLike",
]  # fmt: skip

#: An array of NumPy's, of any dtype and shape.
Array = np.ndarray[Any, np.dtype[Any]]
#: A number of Python's or NumPy's.
Number: TypeAlias = "bool | int | float | complex | np.number[Any] | np.bool_"
#: What :func:`~symdnn.graph.variable.as_variable` takes: a variable, an array, a number, or a list.
TensorLike: TypeAlias = "Variable | Array | Number | Sequence[TensorLike]"
#: What says a dtype: its name (``"floatX"`` too), NumPy's object for it, or a scalar type.
DtypeLike: TypeAlias = "str | np.dtype[Any] | type[np.generic] | type[complex]"
#: One axis or several; negative ones count from the end, None stands for all.
AxisLike: TypeAlias = "int | Sequence[int] | None"
#: The sizes of a tensor, each an int or an integer scalar variable; a single one is a vector's.
ShapeLike: TypeAlias = "int | Variable | Sequence[int | Variable]"
#: A function of arrays that gives an array: one of NumPy's, or written as these are.
NumpyFunction = Callable[..., Array]
