"""Gradients of a log-sum-exp in one pass over the rows, with the sum where it is wanted as well.

The gradient is a softmax times a number of each row, and 0 in rows of -inf alone, whose softmax
would be NaN. On a CPU all of this is one node, which has one exponential for each element. On a GPU
a softmax of a sum of smaller arrays is computed from their log-sum-exp where it is read, and one of
long columns from the parts of theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

import numpy as np

from symdnn.config import config
from symdnn.graph.origin import inherit
from symdnn.graph.traverse import may_need, toposort
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.array.reduce import AllTrue, LogSumExp
from symdnn.ops.core.dtype import is_narrow_float, work_dtype
from symdnn.ops.core.scalar import Scalar
from symdnn.ops.core.shape import DimShuffle, dimshuffle
from symdnn.ops.elementwise.arithmetic import Add, Mul, Sub
from symdnn.ops.elementwise.comparison import Eq, Switch, eq, switch
from symdnn.ops.elementwise.math import exp
from symdnn.ops.elemwise import like
from symdnn.ops.lowered.fused_rows import FusedRows, Stage, program
from symdnn.ops.lowered.lowered import neutral_of
from symdnn.ops.lowered.norm_parts import SoftmaxParts
from symdnn.ops.nn.softmax import LogSoftmax, LogSoftmaxGrad, Softmax, SoftmaxGrad
from symdnn.opt.fuse.branches import branch_paths
from symdnn.opt.fuse.fuse import joined_origin
from symdnn.rewriting.facts import made_by, node_of, number
from symdnn.rewriting.rewrite import Context, graph_rewrite, node_rewrite

__all__ = ["RULES", "log_sum_exp_gradient", "softmax_of_a_broadcast"]


@graph_rewrite("fuse", tags=("fusion",), name="log_sum_exp_gradient")
def log_sum_exp_gradient(context: Context) -> None:
    """A softmax times numbers of rows, 0 where all are -inf, is one pass with their log-sum-exp."""
    # The code of a whole loop computes an exponential again faster than it stores it.
    ours = context.target.kind == "cpu" and not context.inner
    order = context.fgraph.toposort() if ours else []
    found = [n for n in order if isinstance(n.op, Switch) and number(n.inputs[1]) == 0]
    paths = branch_paths(context.fgraph, order) if found else {}
    for node in found:
        taken = _taken(context, node)
        axis = _axis(taken[0]) if taken else -1
        if axis < 0 or not _asks_for_nothing(node.inputs[0], taken[0], axis):
            continue
        x = taken[0].inputs[0]
        factors = [v for v in taken[-1].inputs if v is not taken[0].outputs[0]] * (len(taken) > 1)
        sums = [
            user for user in context.fgraph.user_nodes(x)
            if _sums(user, x, axis) and paths[user] == paths[node]
        ]  # fmt: skip
        first = all(may_need(user, factors) for user in sums)
        make = _in_one_node if first else _in_two_nodes
        with inherit(joined_origin([*sums, *taken, node]), taken[0].hints):
            result, totals = make(x, axis, factors, sums)
        rows = next(n for n in toposort([result], [x, *factors]) if isinstance(n.op, FusedRows))
        if context.capabilities.has_own_kernel(rows, context.target.kind):
            pairs = zip([node.outputs[0], *(n.outputs[0] for n in sums)], [result, *totals])
            context.replace(list(pairs), "log_sum_exp_gradient")


Sums = Sequence[Apply]


def _in_one_node(
    x: Variable, axis: int, factors: Sequence[Variable], sums: Sums
) -> tuple[Variable, list[Variable]]:
    """The gradient, and the log-sum-exps, none of which the factors need."""
    found = _rows(axis, x.type.dtype, len(factors), bool(sums))(x, *factors)
    return found[0], [_like(found[1], user.outputs[0], axis) for user in sums]


def _in_two_nodes(
    x: Variable, axis: int, factors: Sequence[Variable], sums: Sums
) -> tuple[Variable, list[Variable]]:
    """The same where factors need a log-sum-exp, which leaves the exponentials for the gradient."""
    powers, part, total = _rows(axis, x.type.dtype, 0, True, False)(x)
    for factor in factors:
        part = part * factor.astype(part.type.dtype)
    part = switch(eq(total, -np.inf), like(0, part), part)
    found = (powers.astype(part.type.dtype) * part).astype(x.type.dtype)
    return found, [_like(total, user.outputs[0], axis) for user in sums]


def _taken(context: Context, node: Apply) -> list[Apply]:
    """The softmax that a choice has, and where it is multiplied by numbers of rows the product."""
    v = node.inputs[2]
    if v.owner is None or not context.only_reader(v) or node.outputs[0].type != v.type:
        return []
    if _axis(v.owner) >= 0:
        return [v.owner]
    found = [w.owner for w in v.owner.inputs if w.owner is not None and _axis(w.owner) >= 0]
    if not isinstance(v.owner.op, Mul) or len(found) != 1:
        return []
    (softmax,) = found
    (share,), axis = softmax.outputs, _axis(softmax)
    others = [w.type for w in v.owner.inputs if w is not share]
    fits = len(others) == len(v.owner.inputs) - 1 and v.type == share.type
    fits &= all(t.dtype == share.type.dtype and t.broadcastable[axis] for t in others)
    return [softmax, v.owner] if fits and context.only_reader(share) else []


def _axis(node: Apply) -> int:
    """The axis of a softmax that may be longer than 1; -1 for other nodes."""
    op = neutral_of(node.op)
    known = isinstance(op, Softmax) and not node.inputs[0].type.broadcastable[op.axis]
    return op.axis if known and isinstance(op, Softmax) else -1


def _asks_for_nothing(v: Variable, softmax: Apply, axis: int) -> bool:
    """Whether ``v`` says of which rows of a softmax all elements are -inf."""
    x = softmax.inputs[0]
    if made_by(v, DimShuffle):
        v, pattern = node_of(v).inputs[0], node_of(v).op.pattern
        kept = tuple(d - (d > axis) if d != axis else "x" for d in range(x.type.ndim))
        if pattern != kept or v.type.ndim != x.type.ndim - 1:
            return False
    every = made_by(v, AllTrue) and node_of(v).op.axes == (axis,)
    v = node_of(v).inputs[0] if every else v
    if not made_by(v, Eq):
        return False
    a, b = node_of(v).inputs if number(node_of(v).inputs[0]) is None else node_of(v).inputs[::-1]
    of_x = a is x if every else a.owner is not None and _sums(a.owner, x, axis)
    return of_x and number(b) == -np.inf


def _sums(node: Apply, x: Variable, axis: int) -> bool:
    """Whether it is the log-sum-exp of ``x`` along the axis."""
    op = node.op
    return isinstance(op, LogSumExp) and op.axes == (axis,) and node.inputs[0] is x


def _like(total: Variable, old: Variable, axis: int) -> Variable:
    """A row value with the dtype and ndim of a log-sum-exp."""
    keeps = total.type.ndim == old.type.ndim
    rows = tuple(d for d in range(total.type.ndim) if d != axis)
    return (total if keeps else dimshuffle(total, rows)).astype(old.type.dtype)


@lru_cache(maxsize=256)
def _rows(axis: int, dtype: str, factors: int, total: bool, whole: bool = True) -> FusedRows:
    """dx of (x, factors of rows), and with ``total`` the log-sum-exp of x.

    Unless ``whole``: exponentials, and of each row by what they are to be multiplied.
    """
    w = work_dtype(dtype)
    late = (dtype,) * factors

    def base(top: Scalar, count: Scalar) -> tuple[Scalar, ...]:
        return top, (top <= -np.inf).where(0.0, top)

    def power(x: Scalar, top: Scalar, less: Scalar, *late: Scalar) -> Scalar:
        return (x - less).call("exp")

    def row(top: Scalar, less: Scalar, added: Scalar, count: Scalar) -> tuple[Scalar, ...]:
        known = (top.call("abs") >= np.inf).where(top, added.call("log") + less)
        return (1 / added, known) if total else (1 / added,)

    def result(x: Scalar, top: Scalar, less: Scalar, part: Scalar, *more: Scalar) -> Scalar:
        found = power(x, top, less)
        if not whole:
            return found
        found = found * part
        for factor in more[total:]:
            found = found * factor.cast(w)
        return (top <= -np.inf).where(0.0, found)

    largest = Stage(program((w, *late), lambda x, *late: x), program((w, w), base), ("max",))
    powers = Stage(program((w, w, w, *late), power), program((w,) * 4, row))
    after = program((*(w,) * (4 + total), *late), result, dtype)
    kept = ((3,) if whole else (2, 3)) if total else ()
    before = program((dtype,), lambda x: x.cast(w))
    return FusedRows((axis,), before, (largest, powers), after, kept)


@node_rewrite(Softmax, phase="lower", tags=("fusion",), target="cuda")
def softmax_of_a_broadcast(node: Apply, context: Context) -> Variable | None:
    """``softmax(a + b)`` of smaller arrays is ``exp(a + b - logsumexp(a + b))`` beside the latter.

    Its readers, sums as a rule, then compute it, and nothing of its size is stored. An error of the
    log-sum-exp is that of all of a row, as large as those of ``a + b``: a row of huge numbers need
    not add up to 1. A row with infinity is NaN there, and 0 elsewhere. (PyTorch's gradient of
    ``logsumexp`` is the same.)
    """
    (x,), op = node.inputs, node.op
    assert isinstance(op, Softmax)
    if x.type.dtype not in ("float32", "float64") or not made_by(x, Add, Sub) or node.hints:
        return None
    wide = x.type.broadcastable
    if any(v.type.broadcastable == wide for v in node_of(x).inputs):
        return None
    for user in context.fgraph.user_nodes(x):
        if _sums(user, x, op.axis):
            (total,) = user.outputs
            rows = [d - (d > op.axis) if d != op.axis else "x" for d in range(x.type.ndim)]
            kept = total.type.ndim == x.type.ndim
            return exp(x - (total if kept else dimshuffle(total, rows)))
    return None


#: Elements of an axis before others, from which on no kernel holds it: of operands of 32 and 64
#: bits, and of 16; a gradient has two operands.
_HELD, _HELD_OF_16_BITS = 4096, 2048


def _is_long(node: Apply, operands: int) -> bool:
    """Whether no kernel of a softmax holds its axis, whose elements are apart in memory."""
    t, axis = node.outputs[0].type, node.op.axis  # type: ignore[attr-defined]
    sizes = [n for n in t.shape[axis:] if n is not None]
    held = _HELD_OF_16_BITS if is_narrow_float(t.dtype) else _HELD
    known = len(sizes) == t.ndim - axis and prod(sizes[1:]) > 1
    own = not node.hints and str(config.gpu.prefer) == "own"
    return known and own and sizes[0] * operands > held


@node_rewrite(Softmax, LogSoftmax, phase="lower", tags=("fusion",), target="cuda")
def softmax_in_parts(node: Apply, context: Context) -> Variable | None:
    """A softmax of long columns is a reduction and an elementwise op, which joins its readers."""
    if not _is_long(node, 1):
        return None
    (x,), op = node.inputs, node.op
    top, rest = SoftmaxParts(op.axis).make_node(x).outputs  # type: ignore[attr-defined]
    found = x.astype(top.type.dtype) - top - rest
    return (exp(found) if isinstance(op, Softmax) else found).astype(x.type.dtype)


@node_rewrite(SoftmaxGrad, LogSoftmaxGrad, phase="lower", tags=("fusion",), target="cuda")
def softmax_gradient_in_parts(node: Apply, context: Context) -> Variable | None:
    """So is the gradient of a softmax of long columns."""
    if not _is_long(node, 2):
        return None
    dtype, axis = node.outputs[0].type.dtype, node.op.axis  # type: ignore[attr-defined]
    y, dy = (v.astype(work_dtype(dtype)) for v in node.inputs)
    if isinstance(node.op, SoftmaxGrad):
        return (y * (dy - (y * dy).sum(axis=axis, keepdims=True))).astype(dtype)
    return (dy - exp(y) * dy.sum(axis=axis, keepdims=True)).astype(dtype)


RULES = (
    log_sum_exp_gradient, softmax_of_a_broadcast, softmax_in_parts, softmax_gradient_in_parts,
)  # fmt: skip
