"""A vector of scalars."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from symdnn.errors import NdimMismatch, TypeMismatch
from symdnn.graph.op import Axes, Batched, Grads, Host, Op, Shapes, Types, Vars
from symdnn.graph.operators import operator
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array, TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.core.lanes import lanes_of, stacked
from symdnn.ops.core.python_numbers import alike


@dataclass(frozen=True)
class MakeVector(Op):
    """A vector of scalars of one dtype; ``stack`` of scalars makes it."""

    dtype: str

    def infer(self, *scalars: TensorType) -> TensorType:
        if any(t.ndim != 0 or t.dtype != self.dtype for t in scalars):
            raise TypeMismatch(self, f"scalars of dtype {self.dtype}", list(scalars))
        return TensorType(self.dtype, (len(scalars),))

    def reference(self, *scalars: Array) -> Array:
        return np.array([a[()] for a in scalars], dtype=TensorType(self.dtype).numpy)

    def shapes(self, types: Types, shapes: Shapes, host: Host) -> Shapes | None:
        return [(len(types),)]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Vars) -> Grads:
        return [cotangents[0][i] for i in range(len(inputs))]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        lanes = lanes_of(inputs, axes)
        columns = [stacked(v, a, lanes).dimshuffle(0, "x") for v, a in zip(inputs, axes)]
        return [operator("join")(1, *columns)], [0]


def make_vector(scalars: Sequence[TensorLike]) -> Variable:
    """Scalars (variables or numbers) as a vector of their common dtype."""
    if not isinstance(scalars, Iterable):
        raise NdimMismatch("make_vector", "a sequence of scalars", repr(scalars))
    vs = [as_variable(s) for s in scalars]
    if not vs:
        raise NdimMismatch("make_vector", "at least one scalar", "none")
    made = alike(vs)
    return MakeVector(made[0].type.dtype)(*made)


OPERATORS = {"make_vector": make_vector}
