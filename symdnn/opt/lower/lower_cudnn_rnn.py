"""Recurrent nets, dropout (where cuDNN's is asked for) and the CTC loss to cuDNN's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from symdnn.config import config
from symdnn.graph.origin import Hints
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.nn.ctc import CTCLoss
from symdnn.ops.nn.dropout import Dropout, DropoutGrad
from symdnn.ops.nn.rnn import RNNForward, RNNGrad
from symdnn.ops.vendor.gpudnn_rnn import (
    GpuDnnCTCLoss,
    GpuDnnDropoutGrad,
    GpuDnnDropoutOp,
    GpuDnnRNNGradInputs,
    GpuDnnRNNGradWeights,
    GpuDnnRNNOp,
)
from symdnn.opt.lower.lowering import dtype_reason, lowering
from symdnn.rewriting.facts import number
from symdnn.rewriting.rewrite import Context

__all__ = ["LOWERINGS"]


# -- recurrent nets -------------------------------------------------------------------------------


def rnn_refuses(node: Apply, context: Context) -> str | None:
    """The dtype alone: so forward and gradient, which share a reserve, are lowered together."""
    return dtype_reason(context.target, node.inputs[0].type.dtype)


def _hints(node: Apply) -> Hints:
    """The node's, with the algorithm that the flag names where they do not.

    Settled here, so that forward pass and gradients, which share a reserve, have the same.
    """
    algo = node.hints.algo or str(config.dnn.rnn.algo)
    return node.hints if algo == "standard" else replace(node.hints, algo=algo)


@lowering("local_dnn_rnn", RNNForward, refuses=rnn_refuses)
def rnn(node: Apply, context: Context) -> Sequence[Variable]:
    """A recurrent net to GpuDnnRNNOp."""
    assert isinstance(node.op, RNNForward)
    return GpuDnnRNNOp.of(node.op)(*node.inputs, hints=_hints(node))  # type: ignore[no-any-return]


@lowering("local_dnn_rnn_grad", RNNGrad, refuses=rnn_refuses)
def rnn_grad(node: Apply, context: Context) -> Sequence[Variable]:
    """Its gradient to two ops; that of the weights reads what that of the inputs leaves."""
    op = node.op
    assert isinstance(op, RNNGrad)
    hints = _hints(node)
    *grads, reserve = GpuDnnRNNGradInputs.of(op)(*node.inputs, hints=hints)
    cell, lengths = int(op.has_cell), int(op.lengths)
    w, x, hx = node.inputs[:3]
    given = node.inputs[3 + cell : 3 + cell + lengths]
    y = node.inputs[3 + cell + lengths]
    dw = GpuDnnRNNGradWeights.of(op)(w, x, hx, *given, y, reserve, hints=hints)
    return [dw, *grads]


# -- CTC ------------------------------------------------------------------------------------------


def ctc_refuses(node: Apply, context: Context) -> str | None:
    """float32 only."""
    dtype = node.inputs[0].type.dtype
    return None if dtype == "float32" else f"cuDNN's CTC loss is for float32, not {dtype}"


@lowering("local_dnn_ctc", CTCLoss, refuses=ctc_refuses)
def ctc(node: Apply, context: Context) -> Sequence[Variable]:
    """The CTC loss to GpuDnnCTCLoss."""
    return GpuDnnCTCLoss()(*node.inputs)


# -- dropout --------------------------------------------------------------------------------------


def _forward_of(node: Apply) -> Apply | None:
    """The Dropout that made the mask of a gradient; the node itself when it is one."""
    if isinstance(node.op, Dropout):
        return node
    made = node.inputs[1].owner
    return made if made is not None and isinstance(made.op, Dropout) else None


def dropout_refuses(node: Apply, context: Context) -> str | None:
    """Only where asked for: our own kernel draws the same mask on every target."""
    forward = _forward_of(node)
    if forward is None or forward.hints.backend != "cudnn":
        return "our own kernel draws the same mask on every target"
    op: Any = forward.op
    mask = forward.outputs[1]
    if op.shared or not op.scale or number(forward.inputs[2]) is None:
        return "cuDNN's dropout has a constant rate, scales, and decides for each element"
    users = context.fgraph.users(mask)
    if any(n is None or i != 1 or not isinstance(n.op, DropoutGrad) for n, i in users):
        return "cuDNN's dropout mask can be read by its gradient only"
    return dtype_reason(context.target, forward.outputs[0].type.dtype)


def _made_forward(forward: Apply) -> Sequence[Variable]:
    """The forward op; asked twice, the graph merges it into one."""
    op = GpuDnnDropoutOp(dropout=float(number(forward.inputs[2])))
    return op.make_node(*forward.inputs[:2], hints=forward.hints).outputs


@lowering("local_dnn_dropout", Dropout, refuses=dropout_refuses)
def dropout(node: Apply, context: Context) -> Sequence[Variable | None] | None:
    """Dropout to GpuDnnDropoutOp, once its gradient reads that one's reserve."""
    if context.fgraph.users(node.outputs[1]):
        return None
    y, state, _ = _made_forward(node)
    return [y, None, state]


@lowering("local_dnn_dropout_grad", DropoutGrad, refuses=dropout_refuses)
def dropout_grad(node: Apply, context: Context) -> Variable | None:
    """Its gradient to GpuDnnDropoutGrad."""
    forward = _forward_of(node)
    assert forward is not None
    _, _, reserve = _made_forward(forward)
    rate = float(number(forward.inputs[2]))
    return GpuDnnDropoutGrad(dropout=rate)(node.inputs[0], reserve)


LOWERINGS = (rnn, rnn_grad, ctc, dropout, dropout_grad)
