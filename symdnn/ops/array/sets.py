"""Elements as sets: which are in another array, and the different ones of integers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np

from symdnn.graph.op import Axes, Batched, Grads, Vars
from symdnn.graph.type import TensorType
from symdnn.graph.typing import Array
from symdnn.graph.variable import Variable
from symdnn.ops.array.join import concatenate
from symdnn.ops.array.reduce import any as any_true
from symdnn.ops.array.sort import searchsorted, sort
from symdnn.ops.array.take import take
from symdnn.ops.array.view import expand_dims
from symdnn.ops.core.composed import Composed
from symdnn.ops.core.dtype import upcast, work_dtype
from symdnn.ops.core.lanes import on_lanes
from symdnn.ops.core.shape import shape_i
from symdnn.ops.elementwise.arithmetic import cast
from symdnn.ops.elementwise.comparison import and_, eq, lt, or_
from symdnn.ops.elemwise import like

#: So many tests are compared with each element: by the graph, and by :class:`IsIn` in parts of so
#: many elements.
_FEW, _FEW_OF_CALL, _PART = 32, 12, 8192
#: So many are compared one after another.
_CHAINED = 16


@dataclass(frozen=True)
class IsIn(Composed):
    """Whether each integer of ``x`` is one of the vector ``tests``, of the same dtype."""

    def infer(self, *inputs: TensorType) -> TensorType:
        return inputs[0].with_dtype("bool")

    def reference(self, *inputs: Array) -> Array:
        x, tests = inputs
        if tests.size > _FEW_OF_CALL:
            return np.isin(x, tests)
        flat, found = x.reshape(-1), np.zeros(x.size, bool)
        equal = np.empty(min(_PART, x.size), bool)
        for start in range(0, x.size, _PART):
            some, own = flat[start : start + _PART], found[start : start + _PART]
            for test in tests:
                np.equal(some, test, out=equal[: some.size])
                np.logical_or(own, equal[: some.size], out=own)
        return found.reshape(x.shape)

    def expanded(self, *inputs: Variable) -> list[Variable]:
        """Each element with each of few tests, or a search among them in order."""
        (count,) = inputs[1].type.shape
        few = count is not None and count <= _FEW
        return [_compared(*inputs) if few else _searched(*inputs)]

    def vjp(self, inputs: Vars, outputs: Vars, cotangents: Grads) -> Grads:
        return [None, None]

    def batch(self, inputs: Vars, axes: Axes) -> Batched:
        return on_lanes(self, inputs, axes, same=(1,))


def _compared(v: Variable, tests: Variable) -> Variable:
    count = tests.type.shape[0]
    if count is not None and 0 < count <= _CHAINED:  # one loop over elements, without a sum
        return reduce(or_, [eq(v, tests[k]) for k in range(count)])
    row = tests.dimshuffle(["x"] * v.type.ndim + [0])
    return any_true(eq(expand_dims(v, -1), row), axis=-1)


def _searched(v: Variable, tests: Variable) -> Variable:
    ordered = sort(tests)
    place = searchsorted(ordered, v)
    # One more at the end, for what is larger than all; NaN is equal to none.
    last = like(np.nan if tests.type.is_float else 0, tests)
    found = eq(take(concatenate([ordered, expand_dims(last, 0)]), place), v)
    return found if tests.type.is_float else and_(found, lt(place, shape_i(tests, 0)))


def contained(v: Variable, tests: Variable) -> Variable:
    """Whether each element of ``v`` is one of the vector ``tests``."""
    count, dtype = tests.type.shape[0], upcast(v.type.dtype, tests.type.dtype)
    kind = TensorType(dtype)
    if (count is not None and count <= _FEW) or not (kind.is_float or kind.is_integer):
        return _compared(v, tests)
    if kind.is_integer:
        return IsIn()(cast(v, dtype), cast(tests, dtype))
    dtype = work_dtype(dtype)
    return _searched(cast(v, dtype), cast(tests, dtype))
