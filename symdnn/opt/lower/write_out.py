"""Ops that no library and no kernel takes are written out in simpler ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symdnn.config import config
from symdnn.graph.target import Target
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.attention.attention import Attention, AttentionGrad
from symdnn.ops.core.shape import dimshuffle
from symdnn.ops.elementwise.arithmetic import cast
from symdnn.ops.quantized.product import QuantizedProduct
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


@node_rewrite(
    QuantizedProduct, phase="lower", tags=("fast_compile",), name="write_out_quantized_product",
    last_resort=True,
)  # fmt: skip
def write_out_product(node: Apply, context: Context) -> Variable | None:
    """int32 sums of 8-bit integers that no library takes, as sums in float64, which are exact."""
    op: Any = node.op
    if op.out != "int32" or op.is_float8:
        return None
    given = dict(zip(op.terms, node.inputs[2:], strict=True))
    x, w = (cast(v, "float64") for v in node.inputs[:2])
    if "x_zero" in given:
        x = x - cast(given["x_zero"], "float64")
    if (zero := given.get("w_zero")) is not None:
        first = op.is_conv and zero.type.ndim
        wide = dimshuffle(zero, (0, *["x"] * (w.type.ndim - 1))) if first else zero
        w = w - cast(wide, "float64")
    return cast(op.op(x, w), "int32")


RULES = (write_out, write_out_product)
