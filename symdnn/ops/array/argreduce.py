"""Indices of largest and smallest elements."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from symdnn.graph.names.torch_words import torch_words
from symdnn.graph.type import numpy_dtype
from symdnn.graph.typing import Array, AxisLike, TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.array.reduce import Reduce, max, normal_axes

__all__ = ["ArgExtreme", "ArgMax", "ArgMin", "argmax", "argmin", "max_and_argmax"]


class ArgExtreme(Reduce):
    """Base of argmax and argmin: an int64 index into the elements over ``axes`` in C order.

    Of several equal elements it is the first one, and with a NaN the first NaN.
    """

    no_gradients: ClassVar[bool] = True
    abstract: ClassVar[bool] = True
    keeps_one: ClassVar[bool] = True
    needs_elements: ClassVar[bool] = True
    kinds: ClassVar[str] = "bif"
    function: ClassVar[Any] = None

    def out_dtype(self, dtype: str) -> str:
        return "int64"

    def of_one(self, x: Variable) -> Variable:
        return x.zeros_like(dtype="int64")

    def reference(self, x: Array) -> Array:
        self.check_elements(x.shape)
        if x.dtype == numpy_dtype("bfloat16"):
            x = x.astype(np.float32)
        kept = [i for i in range(x.ndim) if i not in self.axes]
        rows = x.transpose((*kept, *self.axes)).reshape(
            (*(x.shape[i] for i in kept), int(np.prod([x.shape[i] for i in self.axes], dtype=int)))
        )
        found = np.asarray(type(self).function(rows, axis=-1), dtype=np.int64)
        return found.reshape(self._reduced(x.shape))


class ArgMax(ArgExtreme):
    """Index of the largest element."""

    function = np.argmax


class ArgMin(ArgExtreme):
    """Index of the smallest element."""

    function = np.argmin


@torch_words()
def argmax(x: TensorLike, axis: AxisLike = None, keepdims: bool = False) -> Variable:
    """Index (int64) of the largest element over ``axis``: the first of several, or the first NaN.

    With None or several axes it counts in C order over them all.
    """
    v = as_variable(x)
    axes = normal_axes(axis, v.type.ndim, "argmax")
    return ArgMax(axes, keepdims)(v)


@torch_words()
def argmin(x: TensorLike, axis: AxisLike = None, keepdims: bool = False) -> Variable:
    """Index (int64) of the smallest element over ``axis``; otherwise as :func:`argmax`."""
    v = as_variable(x)
    axes = normal_axes(axis, v.type.ndim, "argmin")
    return ArgMin(axes, keepdims)(v)


def max_and_argmax(
    a: TensorLike, axis: AxisLike = None, keepdims: bool = False
) -> tuple[Variable, Variable]:
    """``(max(a, axis), argmax(a, axis))``."""
    return max(a, axis, keepdims), argmax(a, axis, keepdims)


OPERATORS = {"argmax": argmax, "argmin": argmin}
