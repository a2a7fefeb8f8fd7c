"""The softmax loss of labels without its log-softmax, which is as large as the logits.

The loss is the log-sum-exp of a row less the label's logit. Where the classes are the last axis,
one kernel computes the loss and its gradient, and reads the logits once; else the gradient reads
them again. A cast of 16-bit logits before, or of the gradient after it, is part of the kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from symdnn.graph.origin import inherit
from symdnn.graph.traverse import may_need
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor, InBounds
from symdnn.ops.array.create import arange
from symdnn.ops.array.reduce import LogSumExp
from symdnn.ops.core.dtype import is_narrow_float, work_dtype
from symdnn.ops.core.shape import Alloc, as_dim, dimshuffle
from symdnn.ops.elementwise.arithmetic import Cast
from symdnn.ops.elementwise.comparison import eq, switch
from symdnn.ops.elemwise import like
from symdnn.ops.lowered.label_loss import LabelLoss, LabelLossGrad
from symdnn.ops.lowered.lowered import neutral_of
from symdnn.ops.nn.crossentropy import PickLabel, SoftmaxCrossentropy, SoftmaxCrossentropyGrad
from symdnn.ops.nn.softmax import LogSoftmax, LogSoftmaxGrad, LogSoftmaxGradOfLogits
from symdnn.opt.fuse.branches import branch_paths
from symdnn.opt.fuse.groups import fusable_program, widened
from symdnn.rewriting.facts import is_zero
from symdnn.rewriting.rewrite import Context, graph_rewrite
from symdnn.stable.softmax import Picked, picked_of


@graph_rewrite("fuse", tags=("fusion",), name="loss_of_logits")
def loss_of_logits(context: Context) -> None:
    """Losses of labels, and their gradients, are computed from the logits on a GPU."""
    if context.target.kind != "cuda":
        return
    order = context.fgraph.toposort()
    found = [n for n in order if isinstance(neutral_of(n.op), SoftmaxCrossentropy | LogSoftmax)]
    paths = branch_paths(context.fgraph, order) if found else {}
    for node in found:
        _without_log_softmax(context, node, paths)


def _without_log_softmax(context: Context, node: Apply, paths: Mapping[Apply, Any]) -> None:
    logs = node.outputs[-1]
    users = context.fgraph.users(logs)
    if not all(user is not None and i == 1 and _is_gradient(user) for user, i in users):
        return
    axis = neutral_of(node.op).axis  # type: ignore[attr-defined]
    grads = [user for user, _ in users if user is not None]
    if len(node.outputs) == 1 and not grads:
        return
    with inherit(node.origin, node.hints):
        narrow = widened(node.inputs[0])
        x = node.inputs[0] if narrow is None else narrow
        if len(grads) == 1 and _is_one_pass(node, grads[0], axis, paths):
            _in_one_pass(context, node, grads[0], x)
            return
        work = work_dtype(x.type.dtype)
        total = LogSumExp((axis,))(x.astype(work))
        for grad in grads:
            _replace_gradient(context, grad, x, total)
        if len(node.outputs) == 2:
            picked = PickLabel(axis)(x, node.inputs[1]).astype(work)
            loss = (total - picked).astype(logs.type.dtype)
            context.replace([(node.outputs[0], loss)], "loss_of_logits")


def _is_gradient(user: Apply) -> bool:
    return isinstance(user.op, SoftmaxCrossentropyGrad)


def _is_one_pass(node: Apply, grad: Apply, axis: int, paths: Mapping[Apply, Any]) -> bool:
    """Whether one kernel may compute the loss and its gradient, which does not depend on it."""
    d, _, labels = grad.inputs
    same = len(node.outputs) == 1 or labels is node.inputs[1]
    beside = grad in paths and paths[grad] == paths[node] and grad.hints == node.hints
    last = axis == node.inputs[0].type.ndim - 1
    return same and beside and last and may_need(node, [d, labels])


def _in_one_pass(context: Context, node: Apply, grad: Apply, x: Variable) -> None:
    d, _, labels = grad.inputs
    old = _narrowed(context, grad)
    maker = d.owner
    if maker is not None and isinstance(maker.op, Alloc):
        value = maker.inputs[0]
        d = value if all(value.type.broadcastable) and value.type.ndim == d.type.ndim else d
    op = LabelLoss(grad.op.axis, old.type.dtype)  # type: ignore[attr-defined]
    loss, new = op(d, x, labels)
    pairs = [(old, new)]
    if len(node.outputs) == 2:
        pairs.append((node.outputs[0], loss.astype(node.outputs[0].type.dtype)))
    context.replace(pairs, "loss_of_logits")


def _narrowed(context: Context, grad: Apply) -> Variable:
    """A gradient, or the cast to 16 bits that alone reads it."""
    users = context.fgraph.users(grad.outputs[0])
    if len(users) == 1 and users[0][0] is not None and _narrows(users[0][0]):
        return users[0][0].outputs[0]
    return grad.outputs[0]


def _replace_gradient(context: Context, grad: Apply, x: Variable, total: Variable) -> None:
    """Replace a gradient, and the cast to 16 bits that alone reads it."""
    d, _, labels = grad.inputs
    old = _narrowed(context, grad)
    with inherit(grad.origin, grad.hints):
        new = LabelLossGrad(grad.op.axis, old.type.dtype)(d, total, x, labels)  # type: ignore[attr-defined]
    context.replace([(old, new)], "loss_of_logits")


def _narrows(user: Apply) -> bool:
    return isinstance(user.op, Cast) and is_narrow_float(user.outputs[0].type.dtype)


@graph_rewrite("fuse", tags=("fusion",), name="log_softmax_gradient_of_logits")
def log_softmax_gradient_of_logits(context: Context) -> None:
    """Gradients that alone read a log-softmax read the logits, for one exponential each."""
    for node in context.fgraph.toposort():
        if not isinstance(neutral_of(node.op), LogSoftmaxGrad):
            continue
        logs, dy = node.inputs
        maker = logs.owner
        if maker is None or len(context.fgraph.users(logs)) != 1:
            continue
        op = neutral_of(maker.op)
        if not isinstance(op, LogSoftmax):
            continue
        with inherit(node.origin, node.hints):
            made = LogSoftmaxGradOfLogits(op.axis)(maker.inputs[0], dy)
        call = made.owner
        if call and context.capabilities.has_own_kernel(call, context.target.kind):
            context.replace([(node.outputs[0], made)], "log_softmax_gradient_of_logits")


@graph_rewrite("fuse", tags=("fusion",), name="compared_labels")
def compared_labels(context: Context) -> None:
    """What is added to zeros at one label of each row is chosen by comparisons with the labels.

    Elementwise kernels that read it compute it then, without an array of zeros.
    """
    if context.target.kind != "cuda":
        return
    for node in context.fgraph.toposort():
        op: Any = node.op
        if not isinstance(op, AdvancedIncSubtensor) or op.set_instead_of_inc or op.host_inputs:
            continue
        zeros, y, *indices = node.inputs
        if not is_zero(zeros) or not _is_read_by_elements(context, node):
            continue
        found = picked_of(op.getter(), zeros, indices, context)
        if found is not None and _has_all_rows(context, zeros, found):
            with inherit(node.origin, node.hints):
                made = _chosen(context, zeros, y, found)
            context.replace([(node.outputs[0], made)], "compared_labels")


def _is_read_by_elements(context: Context, node: Apply) -> bool:
    """Whether only elementwise nodes of its size read a result."""
    (out,) = node.outputs
    users = [user for user, _ in context.fgraph.users(out)]
    return bool(users) and all(
        user is not None
        and fusable_program(user) is not None
        and user.outputs[0].type.broadcastable == out.type.broadcastable
        for user in users
    )


def _has_all_rows(context: Context, zeros: Variable, found: Picked) -> bool:
    dims = context.shapes.dims(zeros)
    return all(context.shapes.same(dims[a], n) for a, n in found.counts.items())


def _chosen(context: Context, zeros: Variable, y: Variable, found: Picked) -> Variable:
    """``y`` where an element's place along the axis is its row's label, 0 elsewhere."""
    size = as_dim(context.shapes.dims(zeros)[found.axis])
    checked = found._replace(labels=InBounds()(found.labels, size))
    ndim, axis = zeros.type.ndim, found.axis
    rows = [a for a in range(ndim) if a != axis]
    spread = [rows.index(a) if a != axis else "x" for a in range(ndim)]
    labels = checked.classes.astype("int64")
    along: list[int | str] = [0 if a == axis else "x" for a in range(ndim)]
    places = dimshuffle(arange(size, dtype="int64"), along)
    values = y if found.keeps else dimshuffle(y, spread)
    here = eq(places, dimshuffle(labels, spread))
    return switch(here, values, like(0, values))


RULES = (log_softmax_gradient_of_logits, loss_of_logits, compared_labels)
