"""Reductions, running sums and norms of ``T``, under Theano's names."""

from symdnn.ops.array.argreduce import argmax, argmin, max_and_argmax
from symdnn.ops.array.cumulative import cummax, cummin, cumprod, cumsum, forward_fill, logcumsumexp
from symdnn.ops.array.moments import mean, std, var
from symdnn.ops.array.norms import norm
from symdnn.ops.array.reduce import all, any, logsumexp, max, min, prod, ptp, sum

__all__ = [
    "all", "any", "argmax", "argmin", "cummax", "cummin", "cumprod", "cumsum", "forward_fill",
    "logcumsumexp", "logsumexp", "max", "max_and_argmax", "mean", "min", "norm", "prod", "ptp",
    "std", "sum", "var",
]  # fmt: skip
