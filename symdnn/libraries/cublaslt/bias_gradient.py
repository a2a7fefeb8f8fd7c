"""The gradients in a layer's weights and bias by one call: a product that sums a factor, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from symdnn.graph.origin import inherit
from symdnn.graph.traverse import needs_more_effects
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.array.reduce import Sum
from symdnn.ops.core.shape import dimshuffle
from symdnn.ops.linalg.dot import Dot
from symdnn.ops.vendor.gpublas import GpuGemm, GpuGemmBiasGrad
from symdnn.opt.epilogue.epilogue import Chain
from symdnn.opt.fuse.fuse import reduction_in
from symdnn.rewriting.rewrite import Context

__all__ = ["bias_gradients"]


def _sum_over_rows(node: Apply) -> Sum | None:
    """The node as a sum of a matrix over its first dimension."""
    op: Any = reduction_in(node)
    matrix = len(node.inputs) == 1 and node.inputs[0].type.ndim == 2
    return op if isinstance(op, Sum) and op.axes == (0,) and matrix else None


def _partner(
    node: Apply, context: Context, product_at: Callable[[Apply], Chain | None]
) -> Chain | None:
    """A product with the summed matrix on its right, which can sum it on the way."""
    v, out = node.inputs[0], node.outputs[0]
    for user in context.fgraph.user_nodes(v):
        chain = product_at(user) if user is not node else None
        terms = None if chain is None else chain.terms
        if chain is None or terms is None or not terms.is_linear or chain.own[1] is not v:
            continue
        fits = chain.own[0].type.ndim == 2 and chain.value.type.dtype == out.type.dtype
        needed = [w for w in chain.inputs() if w is not v]
        apart = _depends(needed, node) or needs_more_effects(needed, node)
        if fits and isinstance(chain.op.unlowered, Dot) and not apart:
            return chain
    return None


def _depends(values: Iterable[Variable], node: Apply) -> bool:
    """Whether any of ``values`` is computed from the results of ``node``."""
    pending, seen = [v.owner for v in values if v.owner is not None], set()
    while pending:
        maker = pending.pop()
        if maker is node:
            return True
        if maker not in seen:
            seen.add(maker)
            pending += [v.owner for v in maker.inputs if v.owner is not None]
    return False


def _sum_with_product(
    context: Context, node: Apply, product_at: Callable[[Apply], Chain | None]
) -> None:
    op, chain = _sum_over_rows(node), None
    if op is not None and node.inputs[0].type.dtype in GpuGemm.rules.dtypes:
        chain = _partner(node, context, product_at)
    if op is None or chain is None:
        return
    maker = chain.value.owner
    assert maker is not None, "a product was made by a node"
    both = GpuGemmBiasGrad(epilogue=chain.op.epilogue)
    with inherit(maker.origin, maker.hints):
        product, summed = both(*chain.inputs())
        if op.keepdims:
            summed = dimshuffle(summed, ("x", 0))
        pairs = [(chain.value, product), (node.outputs[0], summed)]
        context.replace(pairs, "gemm_bias_gradient")


def bias_gradients(context: Context, product_at: Callable[[Apply], Chain | None]) -> None:
    """Make them one wherever a graph has both; ``product_at(node)`` is a node as a product."""
    for node in context.fgraph.toposort():
        if node in context.fgraph.nodes:
            _sum_with_product(context, node, product_at)
