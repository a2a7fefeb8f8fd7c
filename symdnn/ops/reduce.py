"""Reductions over axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from symdnn.errors import TypeMismatch
from symdnn.graph.dims import Shape
from symdnn.graph.op import Grads, Host, Op, Vars
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Variable, as_variable

__all__ = ["Reduce", "Sum", "normal_axes"]


def normal_axes(axis: Any, ndim: int, op: Any = "a reduction") -> tuple[int, ...]:
    """``axis`` (None, an int, a sequence) as sorted non-negative ints."""
    if axis is None:
        return tuple(range(ndim))
    axes = [int(a) for a in np.atleast_1d(np.asarray(axis, dtype=np.int64))]
    if any(not -ndim <= a < ndim for a in axes):
        raise TypeMismatch(op, f"axes of a tensor of {ndim} dimension(s)", str(axis))
    normal = sorted(a % ndim for a in axes)
    if len(set(normal)) != len(normal):
        raise TypeMismatch(op, "each axis once", str(axis))
    return tuple(normal)


@dataclass(frozen=True)
class Reduce(Op):
    """Base of reductions: ``axes`` disappear, or stay as size 1 with ``keepdims``."""

    abstract: ClassVar[bool] = True
    axes: tuple[int, ...]
    keepdims: bool = False

    def out_dtype(self, dtype: str) -> str:
        """The result's dtype."""
        return dtype

    def infer(self, x: TensorType) -> Any:
        if any(a >= x.ndim for a in self.axes):
            raise TypeMismatch(self, f"a tensor with dimensions {self.axes}", x)
        return TensorType(self.out_dtype(x.dtype), self._reduced(x.shape))

    def _reduced(self, shape: Sequence[Any]) -> tuple[Any, ...]:
        if self.keepdims:
            return tuple(1 if i in self.axes else d for i, d in enumerate(shape))
        return tuple(d for i, d in enumerate(shape) if i not in self.axes)

    def shapes(
        self, types: Sequence[Any], shapes: Sequence[Shape], host: Host
    ) -> Sequence[Shape] | None:
        return [self._reduced(shapes[0])]

    def expand(self, reduced: Variable, ndim: int) -> Variable:
        """A reduced variable with its axes back as size 1."""
        if self.keepdims:
            return reduced
        kept = iter(range(ndim - len(self.axes)))
        pattern: list[int | str] = ["x" if i in self.axes else next(kept) for i in range(ndim)]
        return reduced.dimshuffle(pattern)


@dataclass(frozen=True)
class Sum(Reduce):
    """Sum over ``axes``, accumulated in ``acc_dtype``, returned as ``dtype``."""

    dtype: str = "float32"
    acc_dtype: str = "float32"

    def out_dtype(self, dtype: str) -> str:
        return self.dtype

    def reference(self, x: Any) -> Any:
        total = np.sum(
            x, axis=self.axes, keepdims=self.keepdims, dtype=TensorType(self.acc_dtype).numpy
        )
        return np.asarray(total).astype(TensorType(self.dtype).numpy, copy=False)

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        (x,), (dy,) = inputs, cotangents
        return [operator("fill")(x, self.expand(dy, x.type.ndim))]

    def jvp(self, inputs: Vars, outputs: Vars, tangents: Vars) -> Grads | None:
        return [self(tangents[0])]


def accumulator(dtype: str) -> tuple[str, str]:
    """Theano's (result, accumulator) dtypes of a sum: ints widen, float16 sums in float32."""
    if dtype == "bool" or dtype in ("int8", "int16", "int32", "int64"):
        return "int64", "int64"
    if dtype in ("uint8", "uint16", "uint32", "uint64"):
        return "uint64", "uint64"
    if dtype in ("float16", "bfloat16"):
        return dtype, "float32"
    return dtype, dtype


def sum(
    x: Any, axis: Any = None, dtype: Any = None, keepdims: bool = False, acc_dtype: Any = None
) -> Variable:
    """Sum over ``axis`` (None: all). Ints are summed as int64, float16 in float32."""
    v = as_variable(x)
    default, default_acc = accumulator(v.type.dtype if dtype is None else TensorType(dtype).dtype)
    out = TensorType(dtype).dtype if dtype is not None else default
    acc = TensorType(acc_dtype).dtype if acc_dtype is not None else default_acc
    axes = normal_axes(axis, v.type.ndim, "sum")
    return Sum(axes, keepdims, out, acc)(v)  # type: ignore[no-any-return]


OPERATORS = {"sum": sum}
