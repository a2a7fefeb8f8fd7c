"""Logs of softmax and cross-entropies of softmax with their gradients, as fused ops.

Gradient ops are explicit, so forward and backward are recognised alike: ``SoftmaxGrad(p, dy / p)``
is the gradient of the log of the softmax ``p``.
"""

from __future__ import annotations

from typing import Any

from symdnn.graph.origin import Hints, current_hints
from symdnn.graph.pattern import Match, p, pattern_vars
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.advanced_index import AdvancedIncSubtensor, AdvancedSubtensor
from symdnn.ops.comparison import lt, switch
from symdnn.ops.create import ARange
from symdnn.ops.crossentropy import (
    CrossentropyCategorical1Hot,
    CrossentropyCategorical1HotGrad,
    PickLabel,
    PlaceLabel,
    SoftmaxCrossentropy,
    SoftmaxCrossentropyGrad,
    place_label,
)
from symdnn.ops.elemwise import like
from symdnn.ops.index import IncSubtensor, subtensor
from symdnn.ops.math import log
from symdnn.ops.shape import alloc, as_dim, dims_of, shape_i
from symdnn.ops.softmax import LogSoftmax, LogSoftmaxGrad, Softmax, SoftmaxGrad
from symdnn.opt.indexing_rules import is_zero
from symdnn.rewriting.facts import all_ones, made_by, node_of, number
from symdnn.rewriting.rewrite import Context, Family

__all__ = ["RULES"]

FAMILY = Family("stabilize", ("numerics", "stabilize"))
rule, on = FAMILY.rule, FAMILY.on
x, y, labels, g = pattern_vars("x y labels g")
(one,) = pattern_vars("one", when=all_ones)


# -- log of softmax -------------------------------------------------------------------------------


def log_softmax_grad(m: Match) -> Variable:
    """The gradient of a log-softmax; its cotangent may have to be spread to full shape."""
    axis, full = m.params["axis"], m.node.outputs[0]
    g = m.g if m.g.type.broadcastable == full.type.broadcastable else alloc(m.g, *dims_of(m.x))
    return LogSoftmaxGrad(axis)(LogSoftmax(axis)(m.x), g)  # type: ignore[no-any-return]


def g_is_full(m: Match) -> bool:
    """The rest of the cotangent has the shape and dtype of the whole."""
    full = m.node.inputs[1].type
    return bool(m.g.type == full and m.one.type.dtype == full.dtype)


LOGS = [
    rule("log_of_softmax", log(Softmax(p.axis)(x)), LogSoftmax(p.axis)(x), "local_logsoftmax"),
    rule(
        "softmax_grad_of_log", SoftmaxGrad(p.axis)(Softmax(p.axis)(x), g / Softmax(p.axis)(x)),
        log_softmax_grad, "local_logsoftmax_grad",
    ),
    rule("softmax_grad_of_neg", SoftmaxGrad(p.axis)(y, -g), -SoftmaxGrad(p.axis)(y, g)),
    rule(
        "softmax_grad_of_multiple",
        SoftmaxGrad(p.axis)(y, one * g), one * SoftmaxGrad(p.axis)(y, g), when=g_is_full,
    ),
    rule("log_softmax_grad_of_neg", LogSoftmaxGrad(p.axis)(y, -g), -LogSoftmaxGrad(p.axis)(y, g)),
]  # fmt: skip


# -- the log-likelihood of labels -----------------------------------------------------------------


def nll_of(axis: int, scores: Variable, labels: Variable) -> tuple[Variable, Variable]:
    """(loss per row, log-softmax).

    No library has the op, so that it serves both passes whatever backends these were made for.
    """
    own = current_hints()
    hints = Hints(name=own.name, precision=own.precision)
    loss, logp = SoftmaxCrossentropy(axis)(scores, labels, hints=hints)
    return loss, logp


def nll(m: Match) -> Variable:
    """The loss of the fused op."""
    return nll_of(m.params["axis"], m.x, m.labels)[0]


def nll_grad(m: Match) -> Variable:
    """The fused gradient, from the fused op's own log-softmax."""
    return _fused_grad(m, m.g)


def negative_nll_grad(m: Match) -> Variable:
    """As :func:`nll_grad`, for a cotangent of the log-likelihood itself."""
    return _fused_grad(m, -m.g)


def _fused_grad(m: Match, g: Variable) -> Variable:
    axis = m.params["axis"]
    logp = nll_of(axis, m.x, m.labels)[1]
    if g.type.broadcastable != m.labels.type.broadcastable:
        g = alloc(g, *dims_of(m.labels))  # the cotangent of a mean is one number
    return SoftmaxCrossentropyGrad(axis)(g, logp, m.labels)  # type: ignore[no-any-return]


_softmax, _log_softmax = Softmax(p.axis)(x), LogSoftmax(p.axis)(x)

FUSED = [
    rule(
        "crossentropy_of_softmax", CrossentropyCategorical1Hot(p.axis)(_softmax, labels), nll,
        "crossentropy_to_crossentropy_with_softmax",
    ),
    rule(
        "crossentropy_grad_of_softmax",
        SoftmaxGrad(p.axis)(_softmax, CrossentropyCategorical1HotGrad(p.axis)(g, _softmax, labels)),
        nll_grad, "local_softmax_grad_to_crossentropy_with_softmax_grad",
    ),
    rule(
        "log_softmax_at_labels", PickLabel(p.axis)(_log_softmax, labels), lambda m: -nll(m),
        "local_advanced_indexing_crossentropy_onehot",
    ),
    rule(
        "log_of_softmax_at_labels", log(PickLabel(p.axis)(_softmax, labels)), lambda m: -nll(m),
        "local_advanced_indexing_crossentropy_onehot",
    ),
    rule(
        "log_softmax_grad_at_labels",
        LogSoftmaxGrad(p.axis)(_log_softmax, PlaceLabel(p.axis, p.classes)(g, labels, y)),
        negative_nll_grad,
        "local_advanced_indexing_crossentropy_onehot_grad",
    ),
    rule(
        "softmax_grad_at_labels",
        SoftmaxGrad(p.axis)(
        _softmax,
        PlaceLabel(p.axis, p.classes)(g / PickLabel(p.axis)(_softmax, labels), labels, y),
        ),
        negative_nll_grad,
        "local_advanced_indexing_crossentropy_onehot_grad",
    ),
]  # fmt: skip


# -- x[arange(n), labels] -------------------------------------------------------------------------


@on(AdvancedSubtensor, names=("local_advanced_indexing_crossentropy_onehot",))
def rows_at_labels(node: Apply, context: Context) -> Variable | None:
    """``p[arange(n), labels]`` of a softmax picks one label of each of the first ``n`` rows."""
    v, *rest = node.inputs
    if not _of_softmax(v) or not _picks_rows(node.op, rest, context):
        return None
    chosen, count = _labels(rest[1], v), context.shapes.dims(rest[0])[0]
    if context.shapes.same(context.shapes.dims(v)[0], count):
        return PickLabel(1)(v, chosen)  # type: ignore[no-any-return]
    return _of_first_rows(v, count, chosen)


def _of_first_rows(v: Variable, count: Any, chosen: Variable) -> Variable:
    """The rows are cut before the softmax, so that both stay next to each other."""
    softmax: Any = v.owner
    rows = subtensor(softmax.inputs[0], [slice(None, count)])
    return PickLabel(1)(softmax.op(rows), chosen)  # type: ignore[no-any-return]


def _of_softmax(v: Variable) -> bool:
    return v.type.ndim == 2 and made_by(v, Softmax, LogSoftmax) and node_of(v).op.axis == 1


def _picks_rows(op: Any, rest: list[Variable], context: Context) -> bool:
    """Whether the index is ``[arange(n), labels]`` with ``n`` labels."""
    if op.index != ("a", "a") or any(v.type.ndim != 1 for v in rest):
        return False
    rows = rest[0].owner
    if rows is None or not isinstance(rows.op, ARange) or rest[1].type.shape == (1,):
        return False
    start, _, step = rows.inputs
    dims = context.shapes.dims
    from_zero = number(start) == 0 and number(step) == 1
    return from_zero and context.shapes.same(dims(rest[0])[0], dims(rest[1])[0])


def _labels(v: Variable, scores: Variable) -> Variable:
    """Labels that count from the front, as the fused ops want them."""
    if v.type.dtype.startswith("uint"):
        return v
    classes = as_dim(shape_i(scores, 1))
    wide = v.astype("int64")
    return switch(lt(wide, like(0, wide)), wide + classes, wide)


@on(SoftmaxGrad, LogSoftmaxGrad, names=("local_advanced_indexing_crossentropy_onehot_grad",))
def grad_at_rows_and_labels(node: Apply, context: Context) -> Variable | None:
    """The gradient of :data:`rows_at_labels`: what was put in zeros at ``[arange(n), labels]``."""
    v, placed = node.inputs
    if not _of_softmax(v) or not made_by(placed, AdvancedIncSubtensor):
        return None
    put: Any = placed.owner
    zeros, dy, *rest = put.inputs
    if put.op.set_instead_of_inc or not is_zero(zeros) or not _picks_rows(put.op, rest, context):
        return None
    softmax: Any = v.owner
    rows, count = softmax.inputs[0], context.shapes.dims(rest[0])[0]
    whole = context.shapes.same(context.shapes.dims(v)[0], count)
    part = rows if whole else subtensor(rows, [slice(None, count)])
    if dy.type.shape == (1,) != rest[1].type.shape:
        dy = alloc(dy, count)
    chosen = _labels(rest[1], v)
    spread = place_label(dy, chosen, dims_of(v)[1], 1)
    grad: Variable = node.op(softmax.op(part), spread)
    if whole:
        return grad
    return IncSubtensor(((None, "?", None), (None, None, None)))(zeros, grad, as_dim(count))  # type: ignore[no-any-return]


RULES = [*LOGS, *FUSED, rows_at_labels, grad_at_rows_and_labels]
