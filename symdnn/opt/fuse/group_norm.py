"""Group norm of activations split into reductions and elementwise nodes, which are then fused.

Statistics are computed for each channel, over its positions, then for each group of channels from
those: no variance is a difference of large numbers, and the large reduction is one pass that suits
both layouts. The elementwise nodes have the shape of the activations, so that activation functions,
biases and residuals around a norm are one kernel with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from symdnn.graph.origin import inherit
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.array.reduce import Sum
from symdnn.ops.core.scalar import Scalar, ScalarProgram
from symdnn.ops.core.shape import dims_of
from symdnn.ops.lowered.fused import FusedElemwise, FusedReduce
from symdnn.ops.lowered.fused_rows import FusedRows, Stage, program
from symdnn.ops.lowered.group_norm import GroupNorm, GroupNormGrad
from symdnn.ops.lowered.norm_formulas import formula, normalised
from symdnn.ops.lowered.norm_parts import BatchMoments
from symdnn.opt.fuse.norm_rules import CotangentSource
from symdnn.rewriting.rewrite import Context, graph_rewrite


@graph_rewrite("fuse", tags=("always",), name="split_group_norm")
def split_group_norm(context: Context) -> None:
    """A group norm of activations becomes moments, sums and elementwise nodes."""
    for node in context.fgraph.toposort():
        if isinstance(node.op, GroupNorm):
            _split(context, node, _forward)
    for node in context.fgraph.toposort():
        if isinstance(node.op, GroupNormGrad):
            _split(context, node, _backward)


def _split(
    context: Context, node: Apply, parts: Callable[[Context, Apply], Sequence[Variable]]
) -> None:
    with inherit(node.origin, node.hints):
        new = parts(context, node)
        context.replace(zip(node.outputs, new, strict=True), "split_group_norm")


def _forward(context: Context, node: Apply) -> Sequence[Variable]:
    op: Any = node.op
    x, gamma, beta = node.inputs
    mean, invstd = BatchMoments(op.positions(x.type.ndim), op.epsilon)(x)
    if op.groups != x.type.shape[op.channels]:
        rows = _statistics(mean.type.dtype, op.epsilon)
        own = [_by_group(op, v) for v in (mean, invstd)]
        mean, invstd = (v.reshape(dims_of(mean), ndim=x.type.ndim) for v in rows(*own))
    operands = [x, gamma, beta, mean, invstd]
    result = formula([v.type.dtype for v in operands], normalised, x.type.dtype)
    (y,) = FusedElemwise(result)(*operands)
    return [y, mean, invstd]


def _backward(context: Context, node: Apply) -> Sequence[Variable]:
    op: Any = node.op
    x, _, gamma, mean, _ = node.inputs
    source = CotangentSource(context, node)
    *totals, a, b = source.sums(op.positions(x.type.ndim))
    work = mean.type.dtype
    over_batch = program((work, work), lambda s, t: (s, t))
    dbeta, dgamma = FusedReduce(over_batch, (Sum((0,), True, work, work),) * 2)(*totals)
    own = [_by_group(op, v) for v in (a, b, gamma)]
    a, b = (v.reshape(dims_of(mean), ndim=x.type.ndim) for v in _means(work)(*own))
    return [source.computed([*node.inputs, a, b], _gradient), dgamma, dbeta]


def _by_group(op: GroupNorm | GroupNormGrad, v: Variable) -> Variable:
    """A statistic or a parameter as (batch, groups, channels of a group)."""
    dims = dims_of(v)
    return v.reshape((dims[0], op.groups, dims[op.channels] // op.groups))


@lru_cache(maxsize=64)
def _statistics(work: str, epsilon: float) -> FusedRows:
    """(mean, invstd) of groups, for each channel, of those of the channels."""

    def squares(m: Scalar, variance: Scalar, mean: Scalar) -> Scalar:
        return variance + (m - mean) * (m - mean)

    first = Stage(
        program((work,) * 2, lambda m, variance: m), program((work,) * 2, lambda s, n: s / n)
    )
    second = Stage(
        program((work,) * 3, squares),
        program((work,) * 3, lambda mean, s, n: 1 / (s / n + epsilon).call("sqrt")),
    )
    values = program((work,) * 2, lambda m, r: (m, 1 / (r * r) - epsilon))
    after = program((work,) * 4, lambda m, variance, mean, r: (mean, r))
    return FusedRows((2,), values, (first, second), after)


@lru_cache(maxsize=64)
def _means(work: str) -> FusedRows:
    """The means of groups, for each channel, of two means of the channels times gamma."""
    values = program((work,) * 3, lambda a, b, gamma: (a * gamma, b * gamma))
    stage = Stage(
        program((work,) * 2, lambda a, b: (a, b)),
        program((work,) * 3, lambda a, b, n: (a / n, b / n)),
    )
    return FusedRows(
        (2,), values, (stage,), program((work,) * 4, lambda a, b, mean_a, mean_b: (mean_a, mean_b))
    )


def _of_groups(
    x: Scalar, dy: Scalar, gamma: Scalar, mean: Scalar, r: Scalar, a: Scalar, b: Scalar
) -> Scalar:
    """The gradient of x, where a and b are the group's means of dy and dy xhat times gamma."""
    return (dy * gamma - a - ((x - mean) * r) * b) * r


def _gradient(dtypes: Sequence[str]) -> ScalarProgram:
    return formula(dtypes, _of_groups, dtypes[0])


RULES = (split_group_norm,)
