"""Products that take in what is done to their result: factors, addends, a bias, an activation.

cuBLASLt scales, adds and applies an activation while it writes a product. That is worth it where it
saves memory traffic: where the elementwise kernel that would do it goes away, or where the sum is
wanted itself and its terms are not. It is not where an elementwise kernel reads the
result anyway: that one does it for nothing. So the groups that fusion would make are asked.

The flag ``gpu.epilogue`` and the tag ``epilogue`` switch it off.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from symdnn.config import config
from symdnn.graph.origin import inherit
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.array.reduce import Sum
from symdnn.ops.core.shape import DimShuffle, Reshape, dimshuffle
from symdnn.ops.elementwise.arithmetic import Add, Cast, Mul, Neg, Sub, TrueDiv
from symdnn.ops.linalg.dot import BatchedDot, Dot
from symdnn.ops.vendor.gpublas import ACTIVATIONS, GpuGemm, GpuGemmBiasGrad
from symdnn.opt.fuse.fuse import Groups, reduction_in
from symdnn.opt.lower.lower_cudnn_merge import is_old_value
from symdnn.rewriting.facts import number
from symdnn.rewriting.rewrite import Context, graph_rewrite

__all__ = ["RULES", "behind_factor", "epilogues_wanted", "same_type"]

#: Where cuBLASLt has epilogues; factors and addends it also has for float64.
_WITH_EPILOGUES = ("float16", "bfloat16", "float32")
_NARROW = ("float16", "bfloat16")


def epilogues_wanted(context: Context) -> bool:
    """Whether the target has these libraries and the flag ``gpu.epilogue`` lets them fuse."""
    return context.target.kind == "cuda" and str(config.gpu.epilogue) != "off"


@dataclass(frozen=True)
class _Chain:
    """A product with what it has taken in so far: the op, its operands, what it computes.

    ``seen`` is the reshape that its result goes through: a product over the last dimension of
    more than two.
    """

    op: GpuGemm
    factors: tuple[Variable, Variable]
    value: Variable
    c: Variable | None = None
    bias: Variable | None = None
    seen: Apply | None = None

    @property
    def has_epilogue(self) -> bool:
        """Whether nothing can be scaled or added before it any more."""
        return self.bias is not None or bool(self.op.activation)

    def inputs(self) -> list[Variable]:
        """The operands of the op."""
        return [*self.factors, *(v for v in (self.c, self.bias) if v is not None)]

    def apply(self) -> Variable:
        """What it computes, anew."""
        out: Variable = self.op(*self.inputs())
        if self.seen is not None:
            out = self.seen.op(out, *self.seen.inputs[1:])
        return out


def _start(node: Apply) -> _Chain | None:
    """A product as it is."""
    out = node.outputs[0]
    if not isinstance(out.type, TensorType) or out.type.dtype not in (*_WITH_EPILOGUES, "float64"):
        return None
    if isinstance(node.op, Dot | BatchedDot):
        if out.type.ndim == 0:
            return None
        op = GpuGemm(batched=isinstance(node.op, BatchedDot))
        return _Chain(op, (node.inputs[0], node.inputs[1]), out)
    if not isinstance(node.op, GpuGemm):
        return None
    x, y, *more = node.inputs
    bias = more.pop() if node.op.bias else None
    return _Chain(node.op, (x, y), out, more[0] if more else None, bias)


def same_type(a: Variable, b: Variable) -> bool:
    """Equal dtype and broadcast pattern: neither stretches the other."""
    s, t = a.type, b.type
    return bool(s.dtype == t.dtype and s.broadcastable == t.broadcastable)


# -- one op more ----------------------------------------------------------------------------------


def _taken(chain: _Chain, user: Apply, context: Context) -> _Chain | None:
    """The chain with its one reader taken in; None where cuBLASLt has no such thing."""
    out = user.outputs[0]
    if isinstance(user.op, Cast):
        return _widened(chain, out)
    if chain.op.activation or not same_type(out, chain.value):
        return None
    if isinstance(user.op, Mul | Neg | TrueDiv):
        factor = _factor(user, chain.value)
        return None if factor is None or chain.has_epilogue else _scaled(chain, factor, out)
    if isinstance(user.op, Add | Sub):
        return _added(chain, user, context)
    if out.type.dtype in _WITH_EPILOGUES:
        for word, op in ACTIVATIONS.items():
            if user.op == op:
                return replace(chain, op=replace(chain.op, activation=word), value=out)
    return None


def _widened(chain: _Chain, out: Variable) -> _Chain | None:
    """A product of 16-bit factors in float32, not rounded in between."""
    alone = chain.c is None and not chain.has_epilogue and not chain.op.dtype
    if not alone or chain.value.type.dtype not in _NARROW or out.type.dtype != "float32":
        return None
    return replace(chain, op=replace(chain.op, dtype="float32"), value=out)


def _factor(node: Apply, v: Variable) -> float | None:
    """The number by which a node multiplies ``v``."""
    if isinstance(node.op, Neg):
        return -1.0
    other = [w for w in node.inputs if w is not v]
    n = number(other[0]) if len(other) == 1 else None
    if n is None or n == 0 or (isinstance(node.op, TrueDiv) and node.inputs[0] is not v):
        return None
    return 1 / float(n) if isinstance(node.op, TrueDiv) else float(n)


def _scaled(chain: _Chain, factor: float, value: Variable) -> _Chain:
    op = replace(chain.op, alpha=chain.op.alpha * factor, beta=chain.op.beta * factor)
    return replace(chain, op=op, value=value)


def _added(chain: _Chain, user: Apply, context: Context) -> _Chain | None:
    """``chain + other`` in any order and with any signs."""
    a, b = user.inputs
    if a is b:
        return None
    other = b if a is chain.value else a
    minus = isinstance(user.op, Sub)
    own, sign = (-1.0 if minus and other is a else 1.0), (-1.0 if minus and other is b else 1.0)
    if own < 0 and chain.has_epilogue:
        return None
    out = user.outputs[0]
    chain = _scaled(chain, own, out)
    if _is_bias(other, out):
        return _with_bias(chain, other) if sign > 0 else None
    if isinstance(other, Constant) or not same_type(other, out) or chain.c is not None:
        return None
    if chain.seen is not None:
        return None
    if is_old_value(other):
        return None  # an update, which an elementwise kernel computes in place
    c, beta = behind_factor(other, context)
    return replace(chain, op=replace(chain.op, beta=sign * beta), c=c)


def _is_bias(v: Variable, out: Variable) -> bool:
    """Whether ``v`` has the last dimension alone."""
    ones = v.type.broadcastable
    return out.type.ndim >= 2 and all(ones[:-1]) and not ones[-1] and v.type.dtype == out.type.dtype


def _with_bias(chain: _Chain, row: Variable) -> _Chain | None:
    if chain.bias is not None or row.type.dtype not in _WITH_EPILOGUES:
        return None
    if row.owner is not None and isinstance(row.owner.op, DimShuffle):
        inner = row.owner.inputs[0]
        vector = inner if inner.type.ndim == 1 else None
    else:
        vector = None
    if vector is None:
        vector = dimshuffle(row, (row.type.ndim - 1,))
    return replace(chain, op=replace(chain.op, bias=True), bias=vector)


def behind_factor(v: Variable, context: Context) -> tuple[Variable, float]:
    """(c, beta) with ``v = beta c``: a factor that nobody else needs is taken in, too."""
    node = v.owner
    if node is not None and isinstance(node.op, Mul | Neg) and context.only_user(v):
        for w in node.inputs:
            factor = _factor(node, w)
            if factor is not None and not isinstance(w, Constant) and same_type(w, v):
                return w, factor
    return v, 1.0


# -- what pays ------------------------------------------------------------------------------------


def _readers(v: Variable, groups: Groups, group: Apply | None) -> tuple[bool, bool]:
    """Whether ``v`` is read by its maker's own group, and by anything else."""
    users = [node for node, _ in groups.fgraph.users(v)]
    inside = [u is not None and groups.group.get(u) is group for u in users]
    return any(inside), not all(inside)


def _best(start: _Chain, groups: Groups) -> _Chain | None:
    """How much a product should take in; None for nothing."""
    context, chain, best = groups.context, start, None
    while context.only_user(chain.value):
        (user,) = groups.fgraph.user_nodes(chain.value)
        if isinstance(user.op, Reshape) and _keeps_last(user, context) and chain.seen is None:
            chain = replace(chain, value=user.outputs[0], seen=user)
            continue
        if user not in groups.members:
            break
        longer = _taken(chain, user, context)
        if longer is None:
            break
        chain = longer
        inside, outside = _readers(chain.value, groups, groups.group[user])
        if not inside or (outside and chain.c is not None and not chain.has_epilogue):
            best = chain
    return best


def _keeps_last(node: Apply, context: Context) -> bool:
    """Whether a reshape of a matrix leaves the last dimension as it is."""
    v, out = node.inputs[0], node.outputs[0]
    if v.type.ndim != 2 or out.type.ndim < 2:
        return False
    return context.shapes.same(context.shapes.dims(v)[-1], context.shapes.dims(out)[-1])


def _take_in_once(context: Context) -> bool:
    """One pass over all products; whether anything changed."""
    groups, changed = Groups(context), False
    for node in context.fgraph.toposort():
        # Read when its turn comes: what it reads may have been replaced.
        start = _start(node) if node in context.fgraph.nodes else None
        chain = None if start is None else _best(start, groups)
        if chain is not None:
            changed |= _replace(context, node, chain)
    return changed


def _replace(context: Context, node: Apply, chain: _Chain) -> bool:
    last = chain.value.owner
    assert last is not None, "a chain ends with what it took in"
    with inherit(last.origin, node.hints):
        return context.replace([(chain.value, chain.apply())], "gemm_epilogue")


# -- the gradient of a bias -----------------------------------------------------------------------


def _sum_over_rows(node: Apply) -> Sum | None:
    """The node as a sum of a matrix over its first dimension."""
    op: Any = reduction_in(node)
    matrix = len(node.inputs) == 1 and node.inputs[0].type.ndim == 2
    return op if isinstance(op, Sum) and op.axes == (0,) and matrix else None


def _partner(node: Apply, context: Context) -> _Chain | None:
    """A product with the summed matrix on its right, which can sum it on the way."""
    v, out = node.inputs[0], node.outputs[0]
    for user in context.fgraph.user_nodes(v):
        chain = _start(user) if user is not node else None
        if chain is None or chain.has_epilogue or chain.factors[1] is not v:
            continue
        fits = chain.factors[0].type.ndim == 2 and chain.value.type.dtype == out.type.dtype
        needed = [w for w in chain.inputs() if w is not v]
        if fits and not chain.op.batched and not _depends(needed, node):
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


def _sum_with_product(context: Context, node: Apply) -> None:
    op, chain = _sum_over_rows(node), None
    if op is not None and node.inputs[0].type.dtype in _WITH_EPILOGUES:
        chain = _partner(node, context)
    if op is None or chain is None:
        return
    maker = chain.value.owner
    assert maker is not None, "a product was made by a node"
    g = chain.op
    with inherit(maker.origin, maker.hints):
        product, summed = GpuGemmBiasGrad(g.alpha, g.beta, g.dtype)(*chain.inputs())
        if op.keepdims:
            summed = dimshuffle(summed, ("x", 0))
        pairs = [(chain.value, product), (node.outputs[0], summed)]
        context.replace(pairs, "gemm_bias_gradient")


# -- rewrites -------------------------------------------------------------------------------------


@graph_rewrite("epilogue", tags=("epilogue",), name="gemm_epilogue")
def gemm_epilogue(context: Context) -> None:
    """Products take in factors, addends, biases and activations where that saves traffic."""
    if epilogues_wanted(context):
        while _take_in_once(context):
            pass


@graph_rewrite("epilogue", tags=("epilogue",), name="gemm_bias_gradient")
def gemm_bias_gradient(context: Context) -> None:
    """A product and the sum of its right factor over rows become one."""
    if not epilogues_wanted(context):
        return
    for node in context.fgraph.toposort():
        if node in context.fgraph.nodes:
            _sum_with_product(context, node)


RULES = (gemm_epilogue, gemm_bias_gradient)
