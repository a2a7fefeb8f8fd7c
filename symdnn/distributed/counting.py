"""Means and sums over the samples of all ranks, in expressions that are built for several ranks.

A training averages the ranks' losses by their numbers of samples. That is the loss of all samples
where each rank's is a mean over its samples. Other losses are made such here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from symdnn.distributed.gradients import DataParallel
from symdnn.graph.variable import Variable, as_variable
from symdnn.ops.collective.functions import all_reduce
from symdnn.ops.elementwise.arithmetic import cast, maximum
from symdnn.ops.elementwise.comparison import gt, switch

__all__ = ["counted", "counting", "divisor_of_all", "sum_of_all"]

_parallel: ContextVar[DataParallel | None] = ContextVar("parallel", default=None)


@contextmanager
def counting(parallel: DataParallel | None) -> Iterator[None]:
    """Expressions that are built inside are of ranks with ``parallel.samples`` samples each; with
    0 of them a rank has arrays that stand for none."""
    found = None if parallel is None or parallel.samples is None else parallel
    before = _parallel.set(found)
    try:
        yield
    finally:
        _parallel.reset(before)


def counted(v: Variable) -> Variable:
    """``v``, or zeros where this rank has no sample."""
    parallel = _parallel.get()
    if parallel is None:
        return v
    own = as_variable(parallel.samples)
    return switch(gt(own, 0), v, np.asarray(0, v.type.numpy))


def divisor_of_all(total: Variable) -> Variable:
    """What a sum over this rank's samples is divided by, where over all samples it would be by the
    total of all ranks' ``total``, such as a sum of weights; ``total`` itself for one rank."""
    parallel = _parallel.get()
    if parallel is None:
        return total
    own = cast(as_variable(parallel.samples), "float64")
    mine = counted(cast(total, "float64"))
    totals, samples = all_reduce([mine, own], "mean", parallel.ranks)
    return cast(totals * maximum(own, np.float64(1)) / samples, total.type.dtype)


def sum_of_all(total: Variable) -> Variable:
    """A sum over this rank's samples, as a value whose average over ranks, by their numbers of
    samples, is the sum over all; ``total`` itself for one rank."""
    parallel = _parallel.get()
    if parallel is None:
        return total
    own = cast(as_variable(parallel.samples), "float64")
    everywhere = all_reduce(own, "sum", parallel.ranks)
    return total * cast(everywhere / maximum(own, np.float64(1)), total.type.dtype)
