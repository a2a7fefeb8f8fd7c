"""The softmax loss of labels without its log-softmax, which is as large as the logits.

The loss is the log-sum-exp of a row less the label's logit. The gradient reads the logits again and
writes once. A cast of 16-bit logits before, or of the gradient after it, is part of the kernels.
"""

from __future__ import annotations

from symdnn.graph.origin import inherit
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.array.reduce import LogSumExp
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.elementwise.arithmetic import Cast
from symdnn.ops.lowered.label_loss import LabelLossGrad
from symdnn.ops.lowered.lowered import neutral_of
from symdnn.ops.nn.crossentropy import PickLabel, SoftmaxCrossentropy, SoftmaxCrossentropyGrad
from symdnn.ops.nn.softmax import LogSoftmax, LogSoftmaxGrad, LogSoftmaxGradOfLogits
from symdnn.opt.fuse.groups import widened
from symdnn.rewriting.rewrite import Context, graph_rewrite

__all__ = ["RULES", "log_softmax_gradient_of_logits", "loss_of_logits"]


@graph_rewrite("fuse", tags=("fusion",), name="loss_of_logits")
def loss_of_logits(context: Context) -> None:
    """Losses of labels, and their gradients, are computed from the logits on a GPU."""
    if context.target.kind != "cuda":
        return
    for node in context.fgraph.toposort():
        if isinstance(neutral_of(node.op), SoftmaxCrossentropy | LogSoftmax):
            _without_log_softmax(context, node)


def _without_log_softmax(context: Context, node: Apply) -> None:
    logs = node.outputs[-1]
    users = context.fgraph.users(logs)
    if not all(user is not None and i == 1 and _is_gradient(user) for user, i in users):
        return
    axis = neutral_of(node.op).axis  # type: ignore[attr-defined]
    grads = [user for user, _ in users if user is not None]
    if len(node.outputs) == 1 and not grads:
        return
    with inherit(node.origin, node.hints):
        x = widened(node.inputs[0]) or node.inputs[0]
        work = "float32" if is_narrow_float(x.type.dtype) else x.type.dtype
        total = LogSumExp((axis,))(x.astype(work))
        for grad in grads:
            _replace_gradient(context, grad, x, total)
        if len(node.outputs) == 2:
            picked = PickLabel(axis)(x, node.inputs[1]).astype(work)
            loss = (total - picked).astype(logs.type.dtype)
            context.replace([(node.outputs[0], loss)], "loss_of_logits")


def _is_gradient(user: Apply) -> bool:
    return isinstance(user.op, SoftmaxCrossentropyGrad)


def _replace_gradient(context: Context, grad: Apply, x: Variable, total: Variable) -> None:
    """Replace a gradient, and the cast to 16 bits that alone reads it."""
    d, _, labels = grad.inputs
    old = grad.outputs[0]
    users = context.fgraph.users(old)
    if len(users) == 1 and users[0][0] is not None and _narrows(users[0][0]):
        old = users[0][0].outputs[0]
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


RULES = (log_softmax_gradient_of_logits, loss_of_logits)
