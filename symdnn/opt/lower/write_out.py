"""Ops that no library and no kernel takes are written out in simpler ops."""

from __future__ import annotations

from collections.abc import Sequence

from symdnn.config import config
from symdnn.graph.target import Target
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.attention.attention import Attention, AttentionGrad
from symdnn.rewriting.rewrite import Context, node_rewrite

__all__ = ["RULES"]


@node_rewrite(
    Attention, AttentionGrad, phase="lower", tags=("fast_compile",), name="write_out_attention",
    last_resort=True,
)  # fmt: skip
def write_out(node: Apply, context: Context) -> Sequence[Variable] | None:
    """Attention and its gradient to products, a softmax and elementwise ops."""
    assert isinstance(node.op, Attention | AttentionGrad)
    own = context.capabilities.has_own_kernel(node, context.target.kind)
    if own and not _on_tensor_cores(node, context.target):
        return None
    return node.op.parts(node.inputs)


def _on_tensor_cores(node: Apply, target: Target) -> bool:
    """Whether flags let GEMMs of a GPU round float32 operands; our own kernel does not."""
    if target.kind != "cuda" or node.inputs[0].type.dtype != "float32":
        return False
    narrow = node.hints.precision is None and config.amp != "off"
    return narrow or bool(config.dnn.conv.allow_tf32)


RULES = (write_out,)
