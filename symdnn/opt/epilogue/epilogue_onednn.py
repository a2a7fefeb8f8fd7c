"""Convolutions and products of oneDNN take in what follows them: an addend, a bias, an activation.

oneDNN does it before it writes the result. As on a GPU (:mod:`symdnn.opt.epilogue.epilogue_gemm`)
it is worth it where the elementwise kernel that would do it goes away.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from symdnn.graph.variable import Apply, Constant
from symdnn.ops.elementwise.arithmetic import Add
from symdnn.ops.vendor.onednn import ACTIVATIONS, OneDnnEpilogue
from symdnn.opt.epilogue.epilogue_chain import Chain, is_channel_bias, take_in, with_activation
from symdnn.opt.epilogue.epilogue_gemm import same_type
from symdnn.rewriting.rewrite import Context, graph_rewrite

__all__ = ["RULES"]


def _start(node: Apply) -> Chain | None:
    """One that has taken in nothing yet, in float32."""
    op, out = node.op, node.outputs[0]
    if not isinstance(op, OneDnnEpilogue) or not op.is_plain or out.type.dtype != "float32":
        return None
    return Chain(op, tuple(node.inputs), out)


def _taken(chain: Chain, user: Apply) -> Chain | None:
    """The chain with its one reader taken in; None where that can't be."""
    out = user.outputs[0]
    if chain.op.activation or not same_type(out, chain.value):
        return None
    if isinstance(user.op, Add):
        return _added(chain, user)
    return with_activation(chain, user, ACTIVATIONS)


def _added(chain: Chain, user: Apply) -> Chain | None:
    a, b = user.inputs
    out = user.outputs[0]
    if a is b:
        return None
    other = b if a is chain.value else a
    if is_channel_bias(other, chain.op.channel_axis(out.type.ndim), out):
        if chain.bias is not None:
            return None
        return replace(chain, op=replace(chain.op, bias=True), bias=other, value=out)
    if chain.z is not None or isinstance(other, Constant) or not same_type(other, out):
        return None
    return replace(chain, op=replace(chain.op, residual=True), z=other, value=out)


@graph_rewrite("epilogue", tags=("epilogue", "onednn"), name="onednn_epilogue")
def onednn_epilogue(context: Context) -> None:
    """Convolutions and products take in what follows where that saves a kernel."""
    if context.target.kind != "cpu" or not context.target.has("onednn"):
        return
    take_in(context, "onednn_epilogue", _start, _taken)


RULES: tuple[Any, ...] = (onednn_epilogue,)
