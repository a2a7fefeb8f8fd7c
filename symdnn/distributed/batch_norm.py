"""Batch normalisation whose batch is that of several ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from symdnn.distributed.counting import counted
from symdnn.graph.typing import TensorLike
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.array.reduce import sum as total
from symdnn.ops.collective.functions import all_reduce
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.core.shape import dims_of, dimshuffle
from symdnn.ops.elementwise.arithmetic import cast, maximum, sqr, sqrt
from symdnn.world.group import Group

__all__ = ["batch_norm_of_ranks"]


def batch_norm_of_ranks(
    x: Variable, gamma: TensorLike, beta: TensorLike, eps: float, group: Group
) -> tuple[Variable, Variable, Variable]:
    """``x`` (N, C, ...) normalised by mean and variance of the samples of all ranks of ``group``.

    Ranks may have different numbers of samples (:mod:`symdnn.distributed.counting`). Returns the
    result, in the dtype of ``x``, the mean and the unbiased variance (C,). The variance is the
    mean of squared differences, by a second reduction, so that it keeps its digits; 16-bit inputs
    are summed in float32.
    """
    wide = "float32" if is_narrow_float(x.type.dtype) else x.type.dtype
    v, axes = cast(x, wide), [0, *range(2, x.type.ndim)]
    count: Any = 1
    for axis in axes:
        count = count * dims_of(x)[axis]
    own = cast(as_variable(count), wide)
    sums, everywhere = all_reduce([counted(total(v, axis=axes)), counted(own)], "sum", group)
    mean = sums / everywhere
    apart = v - _planes(mean, x.type.ndim)
    squares = all_reduce(counted(total(sqr(apart), axis=axes)), "sum", group)
    variance = squares / everywhere
    scale = as_variable(gamma) / sqrt(variance + np.asarray(eps, v.type.numpy))
    out = apart * _planes(cast(scale, wide), x.type.ndim)
    out = out + _planes(cast(as_variable(beta), wide), x.type.ndim)
    one = np.asarray(1, v.type.numpy)
    return cast(out, x.type.dtype), mean, squares / maximum(everywhere - one, one)


def _planes(v: Variable, ndim: int) -> Variable:
    return dimshuffle(v, ["x", 0, *["x"] * (ndim - 2)])
