"""Logarithms and cross-entropies of softmax as fused ops, which have fused gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from symdnn.graph.origin import Hints, current_hints
from symdnn.graph.pattern import Match, p, pattern_vars
from symdnn.graph.variable import Apply, Constant, Variable, as_variable
from symdnn.graph.variable import constant as as_constant
from symdnn.ops.array.advanced_index import AdvancedSubtensor
from symdnn.ops.array.create import ARange
from symdnn.ops.array.index import subtensor
from symdnn.ops.array.reduce import LogSumExp, Sum
from symdnn.ops.array.take import OneHot
from symdnn.ops.core.shape import DimShuffle, as_dim, shape_i
from symdnn.ops.elementwise.arithmetic import Add, Mul, Sub
from symdnn.ops.elementwise.comparison import lt, switch
from symdnn.ops.elementwise.math import Exp, exp, log
from symdnn.ops.elemwise import like
from symdnn.ops.nn.crossentropy import (
    CrossentropyCategorical1Hot,
    PickLabel,
    SoftmaxCrossentropy,
)
from symdnn.ops.nn.softmax import LogSoftmax, LogSoftmaxGrad, Softmax, SoftmaxGrad
from symdnn.rewriting.facts import all_ones, made_by, node_of, number
from symdnn.rewriting.rewrite import Context, Family

__all__ = ["RULES"]

FAMILY = Family("stabilize", ("numerics", "stabilize"))
rule, on = FAMILY.rule, FAMILY.on
x, y, labels, g = pattern_vars("x y labels g")
(one,) = pattern_vars("one", when=all_ones)


#: Dtypes in which the exponential of a logarithm has as many digits as another number.
_WIDE = ("float32", "float64")

# -- log of softmax -------------------------------------------------------------------------------


@on(Softmax, LogSoftmax)
def softmax_without_shift(node: Apply, context: Context) -> Variable | None:
    """A shift that is constant along the axis (the maximum, say) is dropped: it cancels."""
    (v,) = node.inputs
    if not made_by(v, Sub, Add):
        return None
    op: Any = node.op
    scores, shift = node_of(v).inputs
    if shift.type.shape[op.axis] != 1 or scores.type != v.type or isinstance(shift, Constant):
        return None
    if not context.shapes.covers(scores, shift):
        return None
    return node.op(scores)


def _logarithm(x: Variable, axis: int, context: Context) -> Variable | None:
    """The log-softmax that the graph has of ``x``, where more than its exponentials read it."""
    for node in context.fgraph.user_nodes(x):
        (v, *_) = node.outputs
        if isinstance(node.op, LogSoftmax) and node.op.axis == axis and not node.hints:
            readers = context.fgraph.users(v)
            others = any(n is None or not isinstance(n.op, Exp) for n, _ in readers)
            return v if others else None
    return None


@on(Softmax)
def softmax_beside_its_logarithm(node: Apply, context: Context) -> Variable | None:
    """``softmax(x)`` is ``exp(log_softmax(x))`` where the graph has that: rows are read once.

    Not in 16 bits, where the exponential of a rounded logarithm has few digits.
    """
    (x,) = node.inputs
    op: Any = node.op
    if x.type.dtype not in _WIDE or node.hints:
        return None
    logs = _logarithm(x, op.axis, context)
    return None if logs is None else exp(logs)


@on(SoftmaxGrad)
def gradient_by_the_logarithm(node: Apply, context: Context) -> Variable | None:
    """The gradient of ``exp(log_softmax(x))`` is one of the logarithm."""
    y, dy = node.inputs
    op: Any = node.op
    logs = node_of(y).inputs[0] if made_by(y, Exp) and y.type.dtype in _WIDE else None
    if logs is None or not made_by(logs, LogSoftmax) or node_of(logs).op.axis != op.axis:
        return None
    return LogSoftmaxGrad(op.axis)(logs, dy * y)


@on(Add)
def sum_of_log_softmax_gradients(node: Apply, context: Context) -> Variable | None:
    """Two gradients by one log-softmax are the gradient of their sum."""
    a, b = node.inputs
    both = made_by(a, LogSoftmaxGrad) and made_by(b, LogSoftmaxGrad) and a.type.dtype in _WIDE
    if not both or not (context.only_reader(a) and context.only_reader(b)):
        return None
    (logs, first), (other, second) = (node_of(v).inputs for v in (a, b))
    op = node_of(a).op
    alike = logs is other and op == node_of(b).op and first.type == second.type
    return op(logs, first + second) if alike else None


LOGS = [
    softmax_beside_its_logarithm,
    gradient_by_the_logarithm,
    sum_of_log_softmax_gradients,
    softmax_without_shift,
    rule("log_of_softmax", log(Softmax(p.axis)(x)), LogSoftmax(p.axis)(x), "local_logsoftmax"),
]


# -- the log-likelihood of labels -----------------------------------------------------------------


def nll_of(axis: int, scores: Variable, labels: Variable) -> tuple[Variable, Variable]:
    """(loss per row, log-softmax).

    No library has the op, so a hint for a backend is dropped; both passes share the node.
    """
    own = current_hints()
    hints = Hints(name=own.name, precision=own.precision)
    loss, logp = SoftmaxCrossentropy(axis)(scores, labels, hints=hints)
    return loss, logp


def nll(m: Match) -> Variable:
    """The loss of the fused op."""
    return nll_of(m.params["axis"], m.x, m.labels)[0]


_softmax, _log_softmax = Softmax(p.axis)(x), LogSoftmax(p.axis)(x)

FUSED = [
    rule(
        "crossentropy_of_softmax", CrossentropyCategorical1Hot(p.axis)(_softmax, labels), nll,
        "crossentropy_to_crossentropy_with_softmax",
    ),
    rule(
        "log_softmax_at_labels", PickLabel(p.axis)(_log_softmax, labels), lambda m: -nll(m),
        "local_advanced_indexing_crossentropy_onehot",
    ),
    rule(
        "log_of_softmax_at_labels", log(PickLabel(p.axis)(_softmax, labels)), lambda m: -nll(m),
        "local_advanced_indexing_crossentropy_onehot",
    ),
]  # fmt: skip


# -- x[arange(n), labels] -------------------------------------------------------------------------


@on(AdvancedSubtensor, names=("local_advanced_indexing_crossentropy_onehot",))
def rows_at_labels(node: Apply, context: Context) -> Variable | None:
    """``p[arange(n), labels]`` of a softmax is ``PickLabel`` on the first ``n`` rows.

    Both indices may be columns, as ``take_along_axis`` has them.
    """
    v, *given = node.inputs
    rest, columns = _vectors(given)
    if not _of_softmax(v) or not _picks_rows(node.op, rest, context):
        return None
    chosen, count = _labels(rest[1], v), context.shapes.dims(rest[0])[0]
    whole = _has_rows(v, count, context)
    found = PickLabel(1)(v, chosen) if whole else _of_first_rows(v, count, chosen)
    return found.dimshuffle(0, "x") if columns else found


def _vectors(indices: list[Variable]) -> tuple[list[Variable], bool]:
    """The vectors of indices that are all columns, else the indices; whether they are columns."""
    columns = all(v.type.ndim == 2 and v.type.shape[1] == 1 for v in indices)
    return ([_of_column(v) for v in indices] if columns else indices), columns


def _of_column(v: Variable) -> Variable:
    """The vector of a column."""
    if made_by(v, DimShuffle) and node_of(v).op.pattern == (0, "x"):
        return as_variable(node_of(v).inputs[0])
    return as_constant(v.data[:, 0]) if isinstance(v, Constant) else v.dimshuffle(0)


def _has_rows(v: Variable, count: Any, context: Context) -> bool:
    return context.shapes.same(context.shapes.dims(v)[0], count)


def _of_first_rows(v: Variable, count: Any, chosen: Variable) -> Variable:
    """Slices rows before the softmax, so that further rules see softmax and labels together."""
    softmax: Any = v.owner
    rows = subtensor(softmax.inputs[0], [slice(None, count)])
    return PickLabel(1)(softmax.op(rows), chosen)


def _of_softmax(v: Variable) -> bool:
    return v.type.ndim == 2 and made_by(v, Softmax, LogSoftmax) and node_of(v).op.axis == 1


def _picks_rows(op: Any, rest: list[Variable], context: Context) -> bool:
    """Whether the index is ``[arange(n), labels]`` with ``n`` labels."""
    if op.index != ("a", "a") or any(v.type.ndim != 1 for v in rest):
        return False
    dims = context.shapes.dims
    counts = _counts(rest[0]) and rest[1].type.shape != (1,)
    return counts and (_agree(rest) or context.shapes.same(*(dims(v)[0] for v in rest)))


def _counts(rows: Variable) -> bool:
    """Whether it is ``arange(n)``, also a constant one."""
    if isinstance(rows, Constant):
        return bool(np.array_equal(rows.data, np.arange(rows.data.size)))
    if not made_by(rows, ARange):
        return False
    start, _, step = node_of(rows).inputs
    return bool(number(start) == 0 and number(step) == 1)


def _agree(arrays: list[Variable]) -> bool:
    """Whether the index arrays raise at run time unless their sizes are equal."""
    return all(v.type.shape != (1,) for v in arrays)


def _labels(v: Variable, scores: Variable) -> Variable:
    """Labels without negative indices, which the fused ops do not take."""
    if v.type.dtype.startswith("uint"):
        return v
    classes = as_dim(shape_i(scores, 1))
    wide = v.astype("int64")
    return switch(lt(wide, like(0, wide)), wide + classes, wide)


# -- written with logsumexp, and with one-hot vectors ---------------------------------------------


@on(Sub, names=("local_advanced_indexing_crossentropy_onehot",))
def log_sum_exp_without_label(node: Apply, context: Context) -> Variable | None:
    """``logsumexp(x, 1) - x[arange(n), labels]`` is the loss of the labels, as columns too."""
    total, picked = node.inputs
    column = picked.type.ndim == 2
    if column:  # keepdims=True has become a DimShuffle
        if not made_by(total, DimShuffle) or node_of(total).op.pattern != (0, "x"):
            return None
        (total,) = node_of(total).inputs
    if not made_by(total, LogSumExp) or node_of(total).op != LogSumExp((1,)):
        return None
    scores = node_of(total).inputs[0]
    chosen = _label_of(picked, scores, context)
    if chosen is None or picked.type.dtype != scores.type.dtype or not scores.type.is_float:
        return None
    loss = nll_of(1, scores, chosen)[0]
    return loss.dimshuffle(0, "x") if column else loss


def _label_of(picked: Variable, scores: Variable, context: Context) -> Variable | None:
    """The labels with which ``picked`` is one score of each row; None if it is not."""
    if made_by(picked, PickLabel):
        given, chosen = node_of(picked).inputs
        return chosen if given is scores and node_of(picked).op.axis == 1 else None
    if scores.type.ndim != 2 or not made_by(picked, AdvancedSubtensor):
        return None
    given, *indices = node_of(picked).inputs
    rest, _ = _vectors(indices)
    rows = picked.type.broadcastable[:1] == scores.type.broadcastable[:1]
    if not rows or given is not scores or not _picks_rows(node_of(picked).op, rest, context):
        return None
    return _labels(rest[1], scores)


@on(Sum, names=("local_advanced_indexing_crossentropy_onehot",))
def sum_at_one_hot(node: Apply, context: Context) -> Variable | None:
    """``sum(one_hot(labels) * log_softmax(x))`` is minus the loss of the labels."""
    op: Any = node.op
    (v,) = node.inputs
    last = v.type.ndim - 1
    if op.keepdims or last not in op.axes or not made_by(v, Mul) or len(node_of(v).inputs) != 2:
        return None
    logs, hot = sorted(node_of(v).inputs, key=lambda w: made_by(w, OneHot))
    if not made_by(hot, OneHot) or not made_by(logs, LogSoftmax) or logs.type != v.type:
        return None
    dims = context.shapes.dims
    alike = logs.type.broadcastable == hot.type.broadcastable
    if (
        node_of(logs).op.axis != last
        or not alike
        or not context.shapes.same(dims(logs)[last], dims(hot)[last])
    ):
        return None
    loss = nll_of(last, node_of(logs).inputs[0], node_of(hot).inputs[0])[0]
    others = tuple(a for a in op.axes if a != last)
    return -(replace(op, axes=others)(loss) if others else loss.astype(op.out_dtype(v.type.dtype)))


RULES = [*LOGS, *FUSED, rows_at_labels, log_sum_exp_without_label, sum_at_one_hot]
