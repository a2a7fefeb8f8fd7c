"""Products and convolutions take in what follows them: factors, addends, a bias, an activation.

The library does it while it writes the result. That is worth it where it saves memory traffic:
where the elementwise kernel that would do it goes away, or, for cuBLASLt, where a sum is wanted
itself and its terms are not. It is not where an elementwise kernel reads the result anyway: that
one does it for nothing. So the groups that fusion would make are asked.

What follows is composed to one scalar program (:mod:`symdnn.ops.vendor.epilogue`), operand by
operand; how much of it is taken in, the ``rules`` of the op say. Which kernel then runs it, and
whether that is one or two, is chosen when the shapes are known.

What mixed precision computes in float32 behind factors of 16 bits and rounds once, libraries do
too. The flag ``gpu.epilogue`` switches it off on a GPU, the tag ``epilogue`` everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from symdnn.config import config
from symdnn.graph.origin import inherit
from symdnn.graph.type import OpaqueType, TensorType
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.core.shape import DimShuffle, Reshape, dimshuffle
from symdnn.ops.elementwise.arithmetic import Mul, Neg, TrueDiv, cast
from symdnn.ops.linalg.dot import BatchedDot, Dot
from symdnn.ops.vendor.epilogue import BIAS, RESIDUAL, Affine, Epilogue, EpilogueOp, Operand
from symdnn.ops.vendor.gpublas import GpuGemm
from symdnn.ops.vendor.gpudnn_conv import GpuDnnConv
from symdnn.ops.vendor.gpudnn_epilogue import GpuDnnConvBiasActivation
from symdnn.opt.fuse.fuse import Groups, number_in, widened
from symdnn.opt.lower.lower_cudnn_merge import is_old_value
from symdnn.rewriting.facts import number
from symdnn.rewriting.rewrite import Context, graph_rewrite

__all__ = ["RULES", "Chain", "epilogues_wanted", "product_at"]


def epilogues_wanted(context: Context) -> bool:
    """Whether the target has these libraries and the flag ``gpu.epilogue`` lets them fuse."""
    return context.target.kind == "cuda" and str(config.gpu.epilogue) != "off"


def same_type(a: Variable, b: Variable) -> bool:
    """Equal dtype and broadcast pattern: neither stretches the other."""
    return bool(a.type.dtype == b.type.dtype and a.type.broadcastable == b.type.broadcastable)


@dataclass(frozen=True)
class Chain:
    """An op with what it has taken in so far; ``value`` is what it stands for.

    ``own`` are the inputs of the product or convolution, ``given`` the epilogue's operands by name.
    ``seen`` is the reshape that the result goes through: a product over the last dimension of more
    than two.
    """

    op: EpilogueOp
    epilogue: Epilogue
    own: tuple[Variable, ...]
    value: Variable
    given: tuple[tuple[str, Variable], ...] = ()
    seen: Apply | None = None

    @property
    def factors_dtype(self) -> str:
        """The dtype of what is multiplied."""
        return str(self.own[0].type.dtype)

    @property
    def terms(self) -> Affine | None:
        """What was taken in, in the library's words; None where it has none for it."""
        return self.epilogue.affine(self.op.rules.activations)

    @property
    def is_taken(self) -> bool:
        """Whether the library does all of it."""
        return self.op.rules.takes(self.epilogue, self.factors_dtype)

    def inputs(self) -> list[Variable]:
        """The inputs of the op."""
        given = dict(self.given)
        return [*self.own, *(given[name] for name in self.epilogue.operands)]

    def apply(self) -> Variable:
        """What it computes, anew."""
        terms = self.terms
        assert terms is not None, "it was taken"
        activation = self.op.rules.op_of(terms.activation)
        # However it was written: equal epilogues are equal programs.
        epilogue = terms.epilogue(self.epilogue.dtype, activation, self.factors_dtype)
        out: Variable = replace(self.op, epilogue=epilogue)(*self.inputs())
        return out if self.seen is None else self.seen.op(out, *self.seen.inputs[1:])


def chain_at(op: EpilogueOp, node: Apply) -> Chain:
    """The chain that begins with a node, whose op ``op`` stands for."""
    own, operands = op.split(node.inputs)
    dtype = node.outputs[0].type.dtype
    epilogue = op.epilogue or Affine().epilogue(dtype, None)
    given = tuple(zip(op.operand_names, operands, strict=True))
    return Chain(op, epilogue, tuple(own), node.outputs[0], given)


# -- one op more ----------------------------------------------------------------------------------


def _longer(chain: Chain, user: Apply, groups: Groups) -> Chain | None:
    """The chain with its one reader taken in; None where it can't be written so."""
    (out, *more), pattern = user.outputs, chain.value.type.broadcastable
    if more or out.type.broadcastable != pattern:
        return None
    args: list[Any] = []
    given = dict(chain.given)
    for v in user.inputs:
        n = None if v is chain.value else number_in(v)
        found = None if v is chain.value or n is not None else _operand(chain, v, out, groups)
        if found is not None:
            name, variable, factor = found
            if name in given:
                return None
            given[name] = variable
            args.append(Operand(name, variable.type.dtype, factor))
        elif v is chain.value or n is not None:
            args.append(n)
        else:
            return None
    epilogue = chain.epilogue.then(groups.members[user].program, args)
    return replace(chain, epilogue=epilogue, value=out, given=tuple(given.items()))


def _operand(
    chain: Chain, v: Variable, out: Variable, groups: Groups
) -> tuple[str, Variable, float] | None:
    """(name, variable, its factor) of what else a reader of the chain reads."""
    if _is_bias(v, chain.op.channel_axis(out.type.ndim), out):
        return BIAS, _bias(_rounded(chain, v) or cast(v, chain.factors_dtype), chain), 1.0
    if isinstance(v, Constant) or not same_type(v, out) or chain.seen is not None:
        return None
    narrow = _rounded(chain, v)
    if narrow is None or is_old_value(v):  # an update is computed in place, elementwise
        return None
    return RESIDUAL, *behind_factor(narrow, groups.context)


def _is_bias(v: Variable, axis: int, out: Variable) -> bool:
    """Whether ``v`` has the dimension ``axis`` of ``out`` alone."""
    ones = v.type.broadcastable
    alone = len(ones) == out.type.ndim >= 2 and all(b == (i != axis) for i, b in enumerate(ones))
    return alone and bool(v.type.dtype == out.type.dtype)


def _rounded(chain: Chain, v: Variable) -> Variable | None:
    """``v`` in the dtype that the library reads beside the factors; None where it has none yet."""
    if not chain.op.rules.rounds_operands or v.type.dtype == chain.factors_dtype:
        return v
    return widened(v)


def _bias(v: Variable, chain: Chain) -> Variable:
    """A bias in the dimensions of the op's own result, which a reshape may follow."""
    if chain.seen is None:
        return v
    ndim, last = chain.seen.inputs[0].type.ndim, v.type.ndim - 1
    if v.owner is not None and isinstance(v.owner.op, DimShuffle):
        inner = v.owner.inputs[0]
        v, last = (inner, 0) if inner.type.ndim == 1 else (v, last)
    return dimshuffle(v, (*["x"] * (ndim - 1), last))


def factor_in(node: Apply, v: Variable) -> float | None:
    """The number by which a node multiplies ``v``."""
    if isinstance(node.op, Neg):
        return -1.0
    other = [w for w in node.inputs if w is not v]
    n = number(other[0]) if len(other) == 1 else None
    if n is None or n == 0 or (isinstance(node.op, TrueDiv) and node.inputs[0] is not v):
        return None
    return 1 / float(n) if isinstance(node.op, TrueDiv) else float(n)


def behind_factor(v: Variable, context: Context) -> tuple[Variable, float]:
    """(c, beta) with ``v = beta c``: a factor that nobody else needs is taken in, too."""
    node = v.owner
    if node is not None and isinstance(node.op, Mul | Neg) and context.only_user(v):
        for w in node.inputs:
            factor = factor_in(node, w)
            if factor is not None and not isinstance(w, Constant) and same_type(w, v):
                return w, factor
    return v, 1.0


# -- what pays ------------------------------------------------------------------------------------


def _best(start: Chain, groups: Groups) -> Chain | None:
    """How much a chain should take in; None for nothing."""
    context, chain, best = groups.context, start, None
    while context.only_user(chain.value):
        (user,) = groups.fgraph.user_nodes(chain.value)
        if _keeps_last(chain, user, context):
            chain = replace(chain, value=user.outputs[0], seen=user)
            continue
        longer = _longer(chain, user, groups) if user in groups.members else None
        if longer is None or longer.terms is None:
            break
        chain = longer
        if chain.is_taken and _pays(chain, groups, groups.group[user]):
            best = chain
    return best


def _pays(chain: Chain, groups: Groups, group: Apply) -> bool:
    """Whether no kernel is left of the group that did it, or a sum is wanted for itself."""
    users = [node for node, _ in groups.fgraph.users(chain.value)]
    inside = [u is not None and groups.group.get(u) is group for u in users]
    if not any(inside):
        return True
    terms = chain.terms
    summed = terms is not None and terms.residual != 0 and terms.is_linear
    return isinstance(chain.op, GpuGemm) and summed and not all(inside)


def _keeps_last(chain: Chain, user: Apply, context: Context) -> bool:
    """Whether a reader reshapes a product of matrices and leaves the last dimension as it is."""
    if not isinstance(chain.op, GpuGemm) or not isinstance(user.op, Reshape) or chain.seen:
        return False
    v, out = user.inputs[0], user.outputs[0]
    if v.type.ndim != 2 or out.type.ndim < 2:
        return False
    return context.shapes.same(context.shapes.dims(v)[-1], context.shapes.dims(out)[-1])


def take_in(context: Context, name: str, start: Callable[[Apply], Chain | None]) -> bool:
    """Replace all chains of the graph, under the rewrite's ``name``; whether anything changed.

    ``start(node)`` begins a chain.
    """
    groups, changed = Groups(context), False
    for node in context.fgraph.toposort():
        # Read when its turn comes: what it reads may have been replaced.
        begun = start(node) if node in context.fgraph.nodes else None
        chain = None if begun is None else _best(begun, groups)
        if chain is not None:
            last = chain.value.owner
            assert last is not None, "a chain ends with what it took in"
            with inherit(last.origin, node.hints):
                changed |= context.replace([(chain.value, chain.apply())], name)
    return changed


# -- where chains begin ---------------------------------------------------------------------------


def product_at(node: Apply) -> Chain | None:
    """A product of floats, as cuBLASLt has it."""
    out = node.outputs[0]
    if isinstance(out.type, OpaqueType):
        return None
    if isinstance(node.op, Dot | BatchedDot):
        known = (*GpuGemm.rules.dtypes, *GpuGemm.rules.linear_dtypes)
        fits = out.type.ndim and out.type.dtype in known
        return chain_at(GpuGemm(node.op), node) if fits else None
    return chain_at(node.op, node) if isinstance(node.op, GpuGemm) else None


def convolution_at(node: Apply, context: Context) -> Chain | None:
    """A convolution of cuDNN as it is; one that adds to an operand already keeps that."""
    op = node.op
    if type(op) is not GpuDnnConv or op.ndim not in (2, 3):
        return None
    if node.outputs[0].type.dtype not in GpuDnnConvBiasActivation.rules.dtypes:
        return None
    chain = chain_at(GpuDnnConvBiasActivation.of(op), node)
    if not chain.given:
        return chain
    ((name, z),) = chain.given
    z, factor = behind_factor(z, context)
    made = op.ending(node.outputs[0].type.dtype, alpha=op.alpha, residual=op.beta * factor)
    assert made.epilogue is not None
    return replace(chain, epilogue=made.epilogue, given=((name, z),))


def onednn_at(node: Apply) -> Chain | None:
    """A convolution or product of oneDNN that has taken in nothing yet, in float32."""
    op, dtype = node.op, node.outputs[0].type
    if not isinstance(op, EpilogueOp) or not op.is_plain:
        return None
    assert isinstance(dtype, TensorType)
    return chain_at(op, node) if dtype.dtype in op.rules.dtypes else None


@graph_rewrite("epilogue", tags=("epilogue", "cudnn", "conv_dnn"), name="conv_epilogue")
def conv_epilogue(context: Context) -> None:
    """Convolutions take in addends, biases and activations where that saves a kernel."""
    if epilogues_wanted(context):
        take_in(context, "conv_epilogue", lambda node: convolution_at(node, context))


@graph_rewrite("epilogue", tags=("epilogue",), name="gemm_epilogue")
def gemm_epilogue(context: Context) -> None:
    """Products take in factors, addends, biases and activations where that saves traffic."""
    if epilogues_wanted(context):
        while take_in(context, "gemm_epilogue", product_at):
            pass


@graph_rewrite("epilogue", tags=("epilogue", "onednn"), name="onednn_epilogue")
def onednn_epilogue(context: Context) -> None:
    """Convolutions and products take in what follows where that saves a kernel."""
    if context.target.kind == "cpu" and context.target.has("onednn"):
        take_in(context, "onednn_epilogue", onednn_at)


RULES: tuple[Any, ...] = (conv_epilogue, gemm_epilogue, onednn_epilogue)
