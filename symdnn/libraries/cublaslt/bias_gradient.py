"""Gradients of a dense layer's weights and bias by one call: a GEMM that also sums an operand.

The operand, the gradient of the layer's result, is the right one for weights (inputs, outputs), and
its transpose is the left one for PyTorch's weights (outputs, inputs).

With mixed precision the operand has 16 bits, and the bias and its gradient are float32. Both
results of such a GEMM are float32, so it is worth it where the weights' gradient is read in float32
only, and where no kernel that computes the operand could sum it on the way
(:mod:`symdnn.opt.fuse.column_sums`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from symdnn.graph.origin import inherit
from symdnn.graph.traverse import may_need
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.array.reduce import Sum
from symdnn.ops.core.shape import DimShuffle, Reshape, dimshuffle
from symdnn.ops.linalg.dot import Dot
from symdnn.ops.vendor.gpublas import GpuGemm, GpuGemmBiasGrad
from symdnn.opt.epilogue.epilogue import Chain
from symdnn.opt.fuse.groups import fusable_program, reduction_in, widened
from symdnn.rewriting.rewrite import Context


@dataclass(frozen=True)
class _Totals:
    """Sums of all rows of ``operand``, of two or more dimensions, read in float32 if ``wide``."""

    node: Apply
    op: Sum
    operand: Variable
    wide: bool

    @property
    def dtype(self) -> str:
        """The dtype of the sums."""
        return str(self.node.outputs[0].type.dtype)


def _totals_at(node: Apply) -> _Totals | None:
    """The sums of a node over all dimensions but the last one, and of size 1; None for others."""
    op: Any = reduction_in(node)
    if not isinstance(op, Sum) or len(node.inputs) != 1:
        return None
    v = node.inputs[0]
    rows = range(v.type.ndim - 1)
    long = {i for i in rows if not v.type.broadcastable[i]}
    if not rows or not long <= set(op.axes) <= set(rows):
        return None
    narrow = widened(v)
    if narrow is None and v.type.ndim != 2:
        return None
    found = _Totals(node, op, v if narrow is None else narrow, narrow is not None)
    if found.operand.type.dtype not in GpuGemm.rules.dtypes:
        return None
    return None if found.wide and _is_computed_by_rows(found.operand) else found


def _is_computed_by_rows(v: Variable) -> bool:
    """Whether a generated kernel computes ``v``, which adds its columns for nothing."""
    return v.owner is not None and fusable_program(v.owner) is not None


def _matrices(v: Variable, context: Context) -> Iterator[tuple[Variable, bool]]:
    """The matrices whose rows are all rows of ``v``, then (.., True) for their transposes."""
    sources = [v]
    if v.owner is not None and _keeps_order(v.owner):
        sources.append(v.owner.inputs[0])
    around = [*sources]
    for s in sources:
        around += [u.outputs[0] for u in _users(s, context) if _keeps_order(u)]
    last = context.shapes.dims(v)[-1]
    for w in dict.fromkeys(around):
        if w.type.ndim < 2 or not context.shapes.same(context.shapes.dims(w)[-1], last):
            continue
        if w.type.ndim == 2:
            yield w, False
        for u in _users(w, context):
            if isinstance(u.op, DimShuffle) and u.outputs[0].type.ndim == 2:
                first, second = u.op.pattern
                if first == w.type.ndim - 1 and second != "x":
                    yield u.outputs[0], True


def _users(v: Variable, context: Context) -> list[Apply]:
    """The nodes that read ``v`` first."""
    return [u for u in context.fgraph.user_nodes(v) if u.inputs[0] is v]


def _keeps_order(node: Apply) -> bool:
    """Whether a node is a reshape, or a dimshuffle that only adds or drops dimensions of size 1."""
    if not isinstance(node.op, DimShuffle):
        return isinstance(node.op, Reshape)
    kept = [d for d in node.op.pattern if isinstance(d, int)]
    return kept == sorted(kept)


def _gemm_that_reads(
    totals: _Totals, context: Context, gemm_at: Callable[[Apply], Chain | None]
) -> tuple[Chain, bool] | None:
    """A GEMM that can sum the matrix, and whether that is its left operand; None if none can."""
    for v, left in _matrices(totals.operand, context):
        for user in context.fgraph.user_nodes(v):
            chain = gemm_at(user)
            if chain is not None and _can_sum(chain, v, int(not left), totals, context):
                return chain, left
    return None


def _can_sum(chain: Chain, v: Variable, at: int, totals: _Totals, context: Context) -> bool:
    """Whether a GEMM reads the matrix ``v`` as operand ``at``, and can be at the sums' node."""
    terms, other = chain.terms, chain.op_inputs[1 - at]
    if terms is None or not terms.is_linear or not isinstance(chain.op.unlowered, Dot):
        return False
    if chain.op_inputs[at] is not v or other.type.ndim != 2:
        return False
    needed = [w for w in chain.inputs() if w is not v]
    return _has_dtype(chain, totals, context) and may_need(totals.node, needed)


def _has_dtype(chain: Chain, totals: _Totals, context: Context) -> bool:
    """Whether the GEMM's result has the dtype of the sums, or is read in it alone."""
    if chain.value.type.dtype == totals.dtype:
        return True
    return totals.wide and totals.dtype == "float32" and bool(_casts(chain, context))


def _casts(chain: Chain, context: Context) -> list[Apply]:
    """The casts to float32 that alone read a GEMM's 16-bit result; empty for other readers."""
    users = [] if context.fgraph.is_output(chain.value) else context.fgraph.user_nodes(chain.value)
    return users if all(widened(u.outputs[0]) is chain.value for u in users) else []


def _merge_into_gemm(
    context: Context, node: Apply, gemm_at: Callable[[Apply], Chain | None]
) -> None:
    totals = _totals_at(node)
    found = None if totals is None else _gemm_that_reads(totals, context, gemm_at)
    if totals is None or found is None:
        return
    chain, left = found
    maker = chain.value.owner
    assert maker is not None, "a GEMM is made by a node"
    read = [chain.value]
    epilogue = chain.op.epilogue
    if chain.value.type.dtype != totals.dtype:
        read = [cast.outputs[0] for cast in _casts(chain, context)]
        terms = chain.terms
        assert terms is not None, "the GEMM is linear"
        epilogue = terms.epilogue(totals.dtype, None, chain.factors_dtype)
    both = GpuGemmBiasGrad(left=left, epilogue=epilogue)
    with inherit(maker.origin, maker.hints):
        product, summed = both(*chain.inputs())
        ones = node.outputs[0].type.ndim - 1
        summed = dimshuffle(summed, (*["x"] * ones, 0)) if ones else summed
        pairs = [*((v, product) for v in read), (node.outputs[0], summed)]
        context.replace(pairs, "gemm_bias_gradient")


def bias_gradients(context: Context, gemm_at: Callable[[Apply], Chain | None]) -> None:
    """Merge each such pair of a graph. ``gemm_at(node)`` is the chain at a GEMM, or None."""
    for node in context.fgraph.toposort():
        if node in context.fgraph.nodes:
            _merge_into_gemm(context, node, gemm_at)
