"""Logarithms and cross-entropies of softmax as fused ops, which have fused gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from symdnn.graph.origin import Hints, current_hints
from symdnn.graph.pattern import Match, p, pattern_vars
from symdnn.graph.variable import Apply, Constant, Variable
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

__all__ = ["RULES", "Picked", "counting", "picked_of"]

FAMILY = Family("stabilize", ("numerics", "stabilize"))
rule, on = FAMILY.rule, FAMILY.on
x, y, labels, g = pattern_vars("x y labels g")
(one,) = pattern_vars("one", when=all_ones)


#: Dtypes in which the exponential of a rounded logarithm has enough digits: its error is as many
#: units more as the logarithm's magnitude, at most 104 of float32 and 745 of float64.
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


# -- x[arange(n), labels], take_along_axis(x, labels) ---------------------------------------------


class Picked(NamedTuple):
    """What an index picks of an array: an element for each label, along an axis.

    ``labels`` lack the axis, which the result may keep, of size 1. ``counts`` are the sizes of the
    other axes, along each of which the index counts.
    """

    scores: Variable
    axis: int
    labels: Variable
    counts: dict[int, Any]
    keeps: bool

    @property
    def classes(self) -> Variable:
        """Labels without negative indices, which the fused ops do not take."""
        if self.labels.type.dtype.startswith("uint"):
            return self.labels
        count = as_dim(shape_i(self.scores, self.axis))
        wide = self.labels.astype("int64")
        return switch(lt(wide, like(0, wide)), wide + count, wide)

    def shown(self, v: Variable) -> Variable:
        """A value for each label, with the axis where the index keeps it."""
        return _expanded(v, self.axis) if self.keeps else v


def _expanded(v: Variable, axis: int) -> Variable:
    order: list[int | str] = list(range(v.type.ndim))
    return v.dimshuffle([*order[:axis], "x", *order[axis:]])


@on(AdvancedSubtensor, names=("local_advanced_indexing_crossentropy_onehot",))
def rows_at_labels(node: Apply, context: Context) -> Variable | None:
    """``p[arange(n), labels]`` of a softmax is ``PickLabel`` on the first ``n`` rows.

    So is ``take_along_axis`` with a label for each row, of any number of dimensions.
    """
    found = _picked(node.outputs[0], context)
    if found is None or not made_by(found.scores, Softmax, LogSoftmax):
        return None
    if node_of(found.scores).op.axis != found.axis:
        return None
    scores = _first_rows(found.scores, found.counts, context)
    return found.shown(PickLabel(found.axis)(scores, found.classes))


def _first_rows(v: Variable, counts: dict[int, Any], context: Context) -> Variable:
    """A softmax of as many rows, so that further rules see softmax and labels together."""
    dims = context.shapes.dims(v)
    fewer = {a: n for a, n in counts.items() if not context.shapes.same(dims[a], n)}
    if not fewer:
        return v
    parts = [slice(None, fewer.get(a)) for a in range(v.type.ndim)]
    part: Variable = node_of(v).op(subtensor(node_of(v).inputs[0], parts))
    return part


def _picked(v: Variable, context: Context) -> Picked | None:
    if not made_by(v, AdvancedSubtensor):
        return None
    x, *indices = node_of(v).inputs
    return picked_of(node_of(v).op, x, indices, context)


def picked_of(
    op: AdvancedSubtensor, x: Variable, indices: Sequence[Variable], context: Context
) -> Picked | None:
    """What an index picks that counts along all axes but one; None for other indices."""
    ndim = x.type.ndim
    if ndim < 2 or op.index != ("a",) * ndim:
        return None
    keeps = all(i.type.ndim == ndim for i in indices)
    if not keeps and (ndim != 2 or any(i.type.ndim != 1 for i in indices)):
        return None
    places = range(ndim) if keeps else (0, 0)
    rows = [counting(i, at) for i, at in zip(indices, places)]
    chosen = [a for a, row in enumerate(rows) if row is None]
    if len(chosen) != 1 or not (keeps or chosen == [1]):
        return None
    axis, vectors = chosen[0], {a: r for a, r in enumerate(rows) if r is not None}
    ones = list(indices[axis].type.broadcastable)
    if keeps and not ones.pop(axis):
        return None
    if ones != [r.type.broadcastable[0] for r in vectors.values()]:
        return None  # one of them would be broadcast
    others = [a for a in range(ndim) if a != axis]
    labels = indices[axis].dimshuffle(others) if keeps else indices[axis]
    counts = {a: context.shapes.dims(r)[0] for a, r in vectors.items()}
    return Picked(x, axis, labels, counts, keeps)


def counting(v: Variable, axis: int) -> Variable | None:
    """The vector ``arange(n)`` that ``v`` is along an axis; None where it is none."""
    if isinstance(v, Constant):
        flat = v.data.reshape(-1)
        along = v.data.size == v.data.shape[axis] and np.array_equal(flat, np.arange(flat.size))
        return as_constant(flat) if along else None
    if v.type.ndim > 1:
        if not made_by(v, DimShuffle) or node_of(v).op.pattern[axis] != 0:
            return None
        (v,) = node_of(v).inputs
        if v.type.ndim > 1:
            return None
    if not made_by(v, ARange):
        return None
    start, _, step = node_of(v).inputs
    return v if number(start) == 0 and number(step) == 1 else None


# -- written with logsumexp, and with one-hot vectors ---------------------------------------------


@on(Sub, names=("local_advanced_indexing_crossentropy_onehot",))
def log_sum_exp_without_label(node: Apply, context: Context) -> Variable | None:
    """``logsumexp(x, 1) - x[arange(n), labels]`` is the loss of the labels, as columns too."""
    total, picked = node.inputs
    kept = _added(total)  # keepdims=True has become a DimShuffle
    total = total if kept is None else node_of(total).inputs[0]
    if not made_by(total, LogSumExp) or len(node_of(total).op.axes) != 1:
        return None
    (axis,), (scores,) = node_of(total).op.axes, node_of(total).inputs
    if kept not in (None, axis) or node_of(total).op != LogSumExp((axis,)):
        return None
    chosen = _label_of(picked, scores, axis, kept is not None, context)
    if chosen is None or picked.type.dtype != scores.type.dtype or not scores.type.is_float:
        return None
    loss = nll_of(axis, scores, chosen)[0]
    return loss if kept is None else _expanded(loss, axis)


def _added(v: Variable) -> int | None:
    """The axis of size 1 that a DimShuffle adds, where that is all it does; else None."""
    pattern = list(node_of(v).op.pattern) if made_by(v, DimShuffle) else []
    axis = pattern.index("x") if "x" in pattern else None
    rest = [d for d in pattern if d != "x"]
    return axis if rest == list(range(len(pattern) - 1)) else None


def _label_of(
    picked: Variable, scores: Variable, axis: int, keeps: bool, context: Context
) -> Variable | None:
    """The labels with which ``picked`` is one score of each row; None if it is not.

    With ``keeps`` it has the axis, too.
    """
    if made_by(picked, PickLabel):
        given, chosen = node_of(picked).inputs
        return chosen if given is scores and node_of(picked).op.axis == axis else None
    whole = picked
    if not keeps and made_by(picked, DimShuffle):  # the axis is dropped
        whole = node_of(picked).inputs[0]
        order = tuple(a for a in range(whole.type.ndim) if a != axis)
        if node_of(picked).op.pattern != order:
            return None
    found = _picked(whole, context)
    if found is None or found.scores is not scores or found.axis != axis:
        return None
    if found.keeps != (keeps or whole is not picked):
        return None
    rows = [scores.type.broadcastable[a] for a in found.counts]
    return found.classes if rows == list(found.labels.type.broadcastable) else None


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
