"""Transposed GEMMs: the operands are transposed instead, as views.

The gradient of a dense layer's weights (out, in) is a transposed GEMM, which an optimiser reads
elementwise. With the transposition behind the GEMM it would read with a large stride, and
horizontal fusion could not update all parameters in one launch. BLAS, oneDNN and cuBLASLt take
operands transposed or not.
"""

from __future__ import annotations

from symdnn.graph.variable import Apply, Variable
from symdnn.ops.core.shape import DimShuffle
from symdnn.ops.linalg.dot import Dot
from symdnn.opt.canonicalize.dimshuffle_rules import fields_of
from symdnn.rewriting.facts import made_by, node_of
from symdnn.rewriting.rewrite import Context, node_rewrite, reads


@node_rewrite(
    DimShuffle, phase="canonicalize", tags=("local_lift_transpose_through_dot",), admits=reads(Dot)
)
def transposed_product(node: Apply, context: Context) -> Variable | None:
    """``dot(x, y).T -> dot(y.T, x.T)`` of matrices, where nothing else reads the GEMM."""
    (product,) = node.inputs
    if fields_of(node).pattern != (1, 0) or not made_by(product, Dot):
        return None
    x, y = node_of(product).inputs
    if (x.type.ndim, y.type.ndim) != (2, 2) or not context.only_user(product):
        return None
    return Dot()(y.dimshuffle(1, 0), x.dimshuffle(1, 0))


RULES = [transposed_product]
