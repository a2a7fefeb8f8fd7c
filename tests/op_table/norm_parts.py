from __future__ import annotations

import numpy as np

from symdnn.ops.norm_formulas import grad_terms
from symdnn.ops.norm_parts import BatchMoments, BatchSums
from tests.op_table.record import OpCase, normal, uniform

EPS = 1e-3


def moments(x, axes):
    return x.mean(axes, keepdims=True), (x.var(axes, keepdims=True) + EPS) ** -0.5


def running(x, f, m, v):
    var = x.var((0, 2), ddof=1, keepdims=True)
    new = (1 - f) * m + f * x.mean((0, 2), keepdims=True), (1 - f) * v + f * var
    return (*moments(x, (0, 2)), *new)


def sums(axes):
    return lambda x, dy, m, r: BatchSums(grad_terms((x.type.dtype,) * 4), axes)(x, dy, m, r)


def slow_sums(axes):
    def found(x, dy, m, r):
        g, h = np.broadcast_arrays(dy, dy * (x - m) * r)
        both = [v.sum(axes, keepdims=True) for v in (g, h)]
        return (*both, *(v.mean(axes, keepdims=True) for v in (g, h)))

    return found


CASES = [
    OpCase("batch_moments", (BatchMoments,), lambda x: BatchMoments((0, 2), EPS)(x),
           (normal(6, 3, 4),), lambda x: moments(x, (0, 2)), grad=False),
    OpCase("batch_moments_channels_last", (BatchMoments,),
           lambda x: BatchMoments((0, 1), EPS)(x), (normal(5, 3, 8),),
           lambda x: moments(x, (0, 1)), grad=False),
    OpCase("batch_moments_running", (BatchMoments,),
           lambda x, f, m, v: BatchMoments((0, 2), EPS, True)(x, f, m, v),
           (normal(6, 3, 4), uniform(0.1, 0.9), normal(1, 3, 1), normal(1, 3, 1)), running,
           grad=False),
    OpCase("batch_sums", (BatchSums,), sums((0, 2)),
           (normal(6, 3, 4), normal(6, 3, 4), normal(1, 3, 1), normal(1, 3, 1)),
           slow_sums((0, 2)), grad=False),
    OpCase("batch_sums_channels_last", (BatchSums,), sums((0, 1)),
           (normal(5, 3, 8), normal(5, 3, 8), normal(1, 1, 8), normal(1, 1, 8)),
           slow_sums((0, 1)), grad=False),
]  # fmt: skip
