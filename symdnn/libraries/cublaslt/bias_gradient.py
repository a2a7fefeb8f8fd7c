"""Gradients of a dense layer's weights and bias by one call: a GEMM that also sums an operand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from symdnn.graph.origin import inherit
from symdnn.graph.traverse import may_need
from symdnn.graph.variable import Apply
from symdnn.ops.array.reduce import Sum
from symdnn.ops.core.shape import dimshuffle
from symdnn.ops.linalg.dot import Dot
from symdnn.ops.vendor.gpublas import GpuGemm, GpuGemmBiasGrad
from symdnn.opt.epilogue.epilogue import Chain
from symdnn.opt.fuse.groups import reduction_in
from symdnn.rewriting.rewrite import Context

__all__ = ["bias_gradients"]


def _sum_over_rows(node: Apply) -> Sum | None:
    """The op of a sum of a matrix over its first dimension; None for other nodes."""
    op: Any = reduction_in(node)
    matrix = len(node.inputs) == 1 and node.inputs[0].type.ndim == 2
    return op if isinstance(op, Sum) and op.axes == (0,) and matrix else None


def _gemm_that_reads(
    node: Apply, context: Context, gemm_at: Callable[[Apply], Chain | None]
) -> Chain | None:
    """A GEMM that can sum its right operand, the matrix that ``node`` sums; None if none can."""
    v, out = node.inputs[0], node.outputs[0]
    for user in context.fgraph.user_nodes(v):
        chain = gemm_at(user) if user is not node else None
        terms = None if chain is None else chain.terms
        if chain is None or terms is None or not terms.is_linear or chain.op_inputs[1] is not v:
            continue
        fits = chain.op_inputs[0].type.ndim == 2 and chain.value.type.dtype == out.type.dtype
        needed = [w for w in chain.inputs() if w is not v]
        if fits and isinstance(chain.op.unlowered, Dot) and may_need(node, needed):
            return chain
    return None


def _merge_into_gemm(
    context: Context, node: Apply, gemm_at: Callable[[Apply], Chain | None]
) -> None:
    op, chain = _sum_over_rows(node), None
    if op is not None and node.inputs[0].type.dtype in GpuGemm.rules.dtypes:
        chain = _gemm_that_reads(node, context, gemm_at)
    if op is None or chain is None:
        return
    maker = chain.value.owner
    assert maker is not None, "a GEMM is made by a node"
    both = GpuGemmBiasGrad(epilogue=chain.op.epilogue)
    with inherit(maker.origin, maker.hints):
        product, summed = both(*chain.inputs())
        if op.keepdims:
            summed = dimshuffle(summed, ("x", 0))
        pairs = [(chain.value, product), (node.outputs[0], summed)]
        context.replace(pairs, "gemm_bias_gradient")


def bias_gradients(context: Context, gemm_at: Callable[[Apply], Chain | None]) -> None:
    """Merge each such pair of a graph. ``gemm_at(node)`` is the chain at a GEMM, or None."""
    for node in context.fgraph.toposort():
        if node in context.fgraph.nodes:
            _merge_into_gemm(context, node, gemm_at)
