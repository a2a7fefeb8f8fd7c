"""Reductions, running sums and norms of ``T``, under Theano's names."""

from symdnn.ops.argreduce import argmax, argmin, max_and_argmax
from symdnn.ops.cumulative import cumprod, cumsum
from symdnn.ops.moments import mean, std, var
from symdnn.ops.norms import norm
from symdnn.ops.reduce import all, any, logsumexp, max, min, prod, ptp, sum

__all__ = [
    "all", "any", "argmax", "argmin", "cumprod", "cumsum", "logsumexp", "max", "max_and_argmax",
    "mean", "min", "norm", "prod", "ptp", "std", "sum", "var",
]  # fmt: skip
