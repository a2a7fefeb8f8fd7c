"""Dead code: branches that are never taken, and unused outputs of ops.

The graph drops a node without readers by itself. These rules handle nodes of which some outputs are
read, for which a cheaper op exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from symdnn.graph.dims import product
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.attention.attention import Attention, AttentionGrad
from symdnn.ops.attention.parts import attention_of_one_key
from symdnn.ops.control.control import IfElse
from symdnn.ops.core.gradient_control import Assert
from symdnn.ops.nn.batchnorm import BatchNormTrain
from symdnn.ops.nn.crossentropy import SoftmaxCrossentropy
from symdnn.ops.nn.ctc import CTCCosts, CTCLoss
from symdnn.ops.nn.dropout import Dropout
from symdnn.ops.nn.rnn import RNNForward, RNNGrad
from symdnn.ops.nn.softmax import LogSoftmax
from symdnn.ops.random.random import state_after
from symdnn.opt.canonicalize.dimshuffle_rules import fields_of
from symdnn.rewriting.facts import number
from symdnn.rewriting.rewrite import Context, node_rewrite

PHASE = "canonicalize"
TAGS = ("fast_compile", "dead")

Replacements = Sequence[Variable | None] | None


def _unread(node: Apply, context: Context) -> list[bool]:
    return [not context.fgraph.clients.get(v) for v in node.outputs]


# -- lazy choices ---------------------------------------------------------------------------------


def _branches(node: Apply) -> tuple[Any, tuple[Variable, ...], tuple[Variable, ...]]:
    count = len(node.outputs)
    return node.inputs[0], node.inputs[1 : 1 + count], node.inputs[1 + count :]


@node_rewrite(IfElse, phase=PHASE, tags=(*TAGS, "ifelse", "cond_make_inplace"))
def ifelse_of_constant(node: Apply, context: Context) -> Replacements:
    """A constant condition leaves one branch."""
    condition, yes, no = _branches(node)
    if not isinstance(condition, Constant):
        return None
    return yes if condition.data else no


@node_rewrite(IfElse, phase=PHASE, tags=(*TAGS, "ifelse"))
def ifelse_of_equals(node: Apply, context: Context) -> Replacements:
    """Where both branches give the same variable, the choice is that variable."""
    _, yes, no = _branches(node)
    found = [a if a is b else None for a, b in zip(yes, no, strict=True)]
    return found if any(v is not None for v in found) else None


@node_rewrite(IfElse, phase=PHASE, tags=(*TAGS, "ifelse"))
def ifelse_in_branch(node: Apply, context: Context) -> Replacements:
    """A choice in a branch of a choice with the same condition is decided already."""
    condition, yes, no = _branches(node)
    new_yes = [_decided(v, condition, True) for v in yes]
    new_no = [_decided(v, condition, False) for v in no]
    if all(a is b for a, b in zip((*new_yes, *new_no), (*yes, *no), strict=True)):
        return None
    return node.op.make_node(condition, *new_yes, *new_no).outputs


def _decided(v: Variable, condition: Variable, truth: bool) -> Variable:
    node = v.owner
    if node is None or not isinstance(node.op, IfElse) or node.inputs[0] is not condition:
        return v
    _, yes, no = _branches(node)
    chosen = (yes if truth else no)[v.index or 0]
    return chosen if chosen.type == v.type else v


@node_rewrite(IfElse, phase=PHASE, tags=(*TAGS, "ifelse", "cond_remove_unused"))
def ifelse_without_unread(node: Apply, context: Context) -> Replacements:
    """Drop unused outputs from both branches."""
    unread = _unread(node, context)
    if not any(unread) or all(unread):
        return None
    condition, yes, no = _branches(node)
    kept = [i for i, u in enumerate(unread) if not u]
    out = iter(IfElse(len(kept))(condition, *(yes[i] for i in kept), *(no[i] for i in kept)))
    return [None if u else next(out) for u in unread]


@node_rewrite(Assert, phase=PHASE, tags=(*TAGS, "local_remove_useless_assert"))
def assert_without_known(node: Apply, context: Context) -> Variable | None:
    """Conditions that are constant and true need no check."""
    value, *conditions = node.inputs
    left = [c for c in conditions if not (number(c) is not None and bool(number(c)))]
    if len(left) == len(conditions):
        return None
    return node.op(value, *left) if left else value


# -- cheaper forms --------------------------------------------------------------------------------


@node_rewrite(BatchNormTrain, phase=PHASE, tags=TAGS)
def batch_norm_without_running(node: Apply, context: Context) -> Replacements:
    """Drop unused running averages."""
    op: Any = node.op
    if not op.running or not all(_unread(node, context)[3:]):
        return None
    plain = replace(op, running=False)(*node.inputs[:3])
    return [*plain, None, None]


@node_rewrite(SoftmaxCrossentropy, phase="lower", tags=TAGS)
def crossentropy_without_loss(node: Apply, context: Context) -> Replacements:
    """A fused loss of which only the log-softmax is read becomes a log-softmax.

    Its reader is a gradient, which checks the labels itself. This runs after the phase
    ``stabilize``, which makes the fused node of the loss that the user wrote.
    """
    loss, logp = node.outputs
    if context.fgraph.clients.get(loss) or not context.fgraph.clients.get(logp):
        return None
    return [None, LogSoftmax(fields_of(node).axis)(node.inputs[0])]


@node_rewrite(Dropout, phase="lower", tags=TAGS)
def dropout_without_values(node: Apply, context: Context) -> Replacements:
    """If only its random state is used, a dropout draws nothing: the state advances by the same
    count.

    This runs after the phase ``stabilize``, in which another op may have come to draw its numbers.
    """
    if _unread(node, context) != [True, True, False]:
        return None
    state, x, _ = node.inputs
    drawn = product(fields_of(node).mask_shape(tuple(context.shapes.dims(x))))
    return [None, None, state_after(state, drawn)]


@node_rewrite(RNNForward, phase=PHASE, tags=TAGS)
def rnn_without_reserve(node: Apply, context: Context) -> Replacements:
    """Where no gradient reads the reserve, the inference form is used, which makes none."""
    op: Any = node.op
    if not op.keeps_reserve or not _unread(node, context)[-1]:
        return None
    return [*replace(op, keeps_reserve=False)(*node.inputs), None]


@node_rewrite(RNNGrad, phase=PHASE, tags=TAGS)
def rnn_grad_without_weights(node: Apply, context: Context) -> Replacements:
    """Drop unused gradients of the parameters of a lane."""
    op: Any = node.op
    if not op.lanes or not _unread(node, context)[0]:
        return None
    return [None, *op.without_weights(node.inputs)]


@node_rewrite(CTCLoss, phase="lower", tags=TAGS, target="cpu")
def ctc_without_gradients(node: Apply, context: Context) -> Replacements:
    """Drop unused gradients: costs need one pass over the frames, and not two."""
    return [CTCCosts()(*node.inputs), None] if _unread(node, context)[1] else None


@node_rewrite(AttentionGrad, phase=PHASE, tags=TAGS)
def attention_grad_without_mask(node: Apply, context: Context) -> Replacements:
    """Drop an unused gradient of a mask: it is as large as the scores."""
    op: Any = node.op
    if len(node.outputs) == 3 or not _unread(node, context)[3]:
        return None
    return [*replace(op, of_mask=False)(*node.inputs, hints=node.hints), None]


@node_rewrite(Attention, phase=PHASE, tags=TAGS)
def attention_to_one_key(node: Apply, context: Context) -> Replacements:
    """Attention of one query to one key is that key's value, as for the new token of a decoding
    step.
    """
    op: Any = node.op
    q, k = node.inputs[:2]
    if op.how.extras or q.type.shape[2] != 1 or k.type.shape[2] != 1:
        return None
    return list(attention_of_one_key(op.how, *node.inputs))


RULES = [
    ifelse_of_constant,
    ifelse_of_equals,
    ifelse_in_branch,
    ifelse_without_unread,
    assert_without_known,
    batch_norm_without_running,
    crossentropy_without_loss,
    dropout_without_values,
    rnn_without_reserve,
    rnn_grad_without_weights,
    ctc_without_gradients,
    attention_grad_without_mask,
    attention_to_one_key,
]
