"""Recurrent networks, dropout (where a hint asks for cuDNN) and the CTC loss to cuDNN's ops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from symdnn.config import config
from symdnn.graph.origin import Hints
from symdnn.graph.variable import Apply, Variable
from symdnn.libraries.cudnn.backend import BACKEND
from symdnn.ops.nn.ctc import CTCLoss
from symdnn.ops.nn.dropout import Dropout, DropoutGrad
from symdnn.ops.nn.rnn import RNNForward, RNNGrad
from symdnn.ops.random.random import RandomBernoulli
from symdnn.ops.vendor.gpudnn_rnn import (
    GpuDnnCTCLoss,
    GpuDnnDropoutGrad,
    GpuDnnDropoutOp,
    GpuDnnRNNGradInputs,
    GpuDnnRNNGradWeights,
    GpuDnnRNNOp,
)
from symdnn.ops.written_out.rnn import rnn_in_float32
from symdnn.rewriting.facts import number
from symdnn.rewriting.rewrite import Context, node_rewrite

# -- recurrent networks ---------------------------------------------------------------------------


def rnn_refuses(node: Apply, context: Context) -> str | None:
    """A loop that draws the masks of dropout itself (a derivative of the gradient): cuDNN's differ.

    A gradient is taken if the forward op was, which made its reserve: only cuDNN can read that.
    Parameters' gradients of parts of the batch (``lanes``) are none of cuDNN's.
    """
    if isinstance(node.op, RNNGrad) and node.op.lanes:
        return "cuDNN adds up the parameters' gradients of all sequences"
    forward = node if isinstance(node.op, RNNForward) else node.inputs[-1].owner
    if forward is None or not isinstance(forward.op, RNNForward) or not forward.op.random:
        return None
    for reader, _ in context.fgraph.users(forward.inputs[-1]):
        if reader is not None and isinstance(reader.op, RandomBernoulli):
            return "a derivative of its gradient draws the masks of dropout by itself"
    return None


def _hints(node: Apply) -> Hints:
    """The node's hints, with the algorithm of the flag where they have none.

    The flag is read here, so that forward pass and gradients, which share a reserve, have the same
    algorithm.
    """
    algo = node.hints.algo or str(config.dnn.rnn.algo)
    return node.hints if algo == "standard" else replace(node.hints, algo=algo)


@BACKEND.lowering("local_dnn_rnn", GpuDnnRNNOp, RNNForward, refuses=rnn_refuses)
def rnn(node: Apply, context: Context) -> Sequence[Variable]:
    """A recurrent network to GpuDnnRNNOp."""
    assert isinstance(node.op, RNNForward)
    made: Sequence[Variable] = GpuDnnRNNOp.of(node.op)(*node.inputs, hints=_hints(node))
    return made


@node_rewrite(RNNForward, phase="lower", tags=("cudnn",))
def bfloat16_rnn_in_float32(node: Apply, context: Context) -> Sequence[Variable] | None:
    """Casts around a network in float32, for versions of cuDNN that have none in bfloat16."""
    target = context.target
    taken = target.kind == "cuda" and node.inputs[1].type.dtype == "bfloat16"
    lacking = taken and BACKEND.dtype_reason(target, "bfloat16", GpuDnnRNNOp)
    return rnn_in_float32(node) if lacking else None


@BACKEND.lowering("local_dnn_rnn_grad", GpuDnnRNNGradInputs, RNNGrad, refuses=rnn_refuses)
def rnn_grad(node: Apply, context: Context) -> Sequence[Variable]:
    """Its gradient to two ops. The second, of the weights, reads the reserve of the first."""
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


# -- dropout --------------------------------------------------------------------------------------


def _forward_of(node: Apply) -> Apply | None:
    """The Dropout node whose mask a gradient reads; the node itself if it is a Dropout."""
    if isinstance(node.op, Dropout):
        return node
    made = node.inputs[1].owner
    return made if made is not None and isinstance(made.op, Dropout) else None


def dropout_refuses(node: Apply, context: Context) -> str | None:
    """Only with a hint for cuDNN: symdnn's own kernel draws the same mask on every target."""
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
    return None


def _cudnn_dropout(forward: Apply) -> Sequence[Variable]:
    """cuDNN's forward op. Both lowerings make one; common subexpression elimination merges them."""
    op = GpuDnnDropoutOp(dropout=float(number(forward.inputs[2])))
    return op.make_node(*forward.inputs[:2], hints=forward.hints).outputs


@BACKEND.lowering("local_dnn_dropout", GpuDnnDropoutOp, Dropout, refuses=dropout_refuses)
def dropout(node: Apply, context: Context) -> Sequence[Variable | None] | None:
    """Dropout to GpuDnnDropoutOp, once its gradient reads cuDNN's reserve instead of the mask."""
    if context.fgraph.users(node.outputs[1]):
        return None
    y, state, _ = _cudnn_dropout(node)
    return [y, None, state]


@BACKEND.lowering("local_dnn_dropout_grad", GpuDnnDropoutGrad, DropoutGrad, refuses=dropout_refuses)
def dropout_grad(node: Apply, context: Context) -> Variable | None:
    """Its gradient to GpuDnnDropoutGrad."""
    forward = _forward_of(node)
    assert forward is not None
    _, _, reserve = _cudnn_dropout(forward)
    rate = float(number(forward.inputs[2]))
    return GpuDnnDropoutGrad(dropout=rate)(node.inputs[0], reserve)


LOWERINGS = (
    rnn, rnn_grad, BACKEND.row("local_dnn_ctc", GpuDnnCTCLoss, CTCLoss),
    dropout, dropout_grad,
)  # fmt: skip
