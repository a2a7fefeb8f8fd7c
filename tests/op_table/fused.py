from __future__ import annotations

import numpy as np

from symdnn.ops.array.reduce import AnyTrue, Max, Sum
from symdnn.ops.core.scalar import Builder
from symdnn.ops.lowered.fused import FusedElemwise, FusedReduce
from tests.op_table.record import OpCase, normal


def two_results(dtype):
    """(exp(a) * b, a < b)."""
    p = Builder((dtype, dtype))
    a, b = p.input(0), p.input(1)
    return p.program([a.call("exp") * b, a < b])


def fused(a, b):
    return FusedElemwise(two_results(a.type.dtype))(a, b)


def rows(a, b):
    dtype = a.type.dtype
    reductions = (Sum((1,), False, dtype, dtype), AnyTrue((1,)))
    return FusedReduce(two_results(dtype), reductions)(a, b)


def planes(a, b):
    reductions = (Max((0, 2), True), AnyTrue((0, 2), True))
    return FusedReduce(two_results(a.type.dtype), reductions)(a, b)


def mixed():
    """float16 a and float32 b: a * b as float16, in float32 as the ops themselves."""
    p = Builder(("float16", "float32"))
    return p.program([(p.input(0).cast("float32") * p.input(1)).cast("float16")])


CASES = [
    OpCase("fused_elementwise", (FusedElemwise,), fused,
           (normal(3, 4), normal(3, 4)), lambda a, b: (np.exp(a) * b, a < b), grad=False),
    OpCase("fused_elementwise_broadcast", (FusedElemwise,), fused,
           (normal(3, 1, 4), normal(1, 5, 4)), lambda a, b: (np.exp(a) * b, a < b), grad=False),
    OpCase("fused_elementwise_float16", (FusedElemwise,), FusedElemwise(mixed()),
           (normal(7, dtype="float16"), normal(7, dtype="float32")),
           lambda a, b: (a.astype("float32") * b).astype("float16"), grad=False, rtol=1e-3),
    OpCase("fused_reduce", (FusedReduce,), rows,
           (normal(3, 4), normal(3, 4)),
           lambda a, b: ((np.exp(a) * b).sum(1), (a < b).any(1)), grad=False),
    OpCase("fused_reduce_broadcast", (FusedReduce,), planes,
           (normal(3, 1, 4), normal(1, 5, 4)),
           lambda a, b: ((np.exp(a) * b).max((0, 2), keepdims=True),
                         (a < b).any((0, 2), keepdims=True)), grad=False),
]  # fmt: skip
