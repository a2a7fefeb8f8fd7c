"""Ops that no library and no kernel takes are written out in simpler ops."""

from __future__ import annotations

from collections.abc import Sequence

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
    if context.capabilities.has_own_kernel(node, context.target.kind):
        return None
    return node.op.parts(node.inputs)


RULES = (write_out,)
