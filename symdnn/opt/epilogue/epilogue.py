"""Fuses scaling, addends, bias and activation functions into GEMMs and convolutions.

A library applies such an epilogue while it writes the result. This is worth it where it saves
memory traffic: where an elementwise kernel becomes superfluous, or, for cuBLASLt, where a sum is
stored and its terms are not. Where an elementwise kernel reads the result anyway, it does this work
at no cost. So the rule asks which groups elementwise fusion would make (:class:`Groups`).

The ops behind a GEMM or convolution are composed to one scalar program
(:mod:`symdnn.ops.lowered.epilogue`). The ``rules`` of the op say how much of it the library takes.
The plan chooses the kernel, and whether one or two run, once shapes are known.

With mixed precision the epilogue computes in float32 behind 16-bit operands and rounds once, which
libraries do as well. Each library says at which nodes chains start (:mod:`symdnn.libraries`). The
flag ``gpu.epilogue`` switches this off on a GPU, the tag ``epilogue`` on all targets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from symdnn.graph.origin import inherit
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.control.checkpoint import After
from symdnn.ops.core.scalar import Builder, ScalarProgram
from symdnn.ops.core.shape import DimShuffle, Reshape, dimshuffle, reshape
from symdnn.ops.elementwise.arithmetic import Mul, Neg, TrueDiv, cast
from symdnn.ops.linalg.dot import BatchedDot, Dot
from symdnn.ops.lowered.epilogue import BIAS, RESIDUAL, Affine, Epilogue, EpilogueOp, Operand
from symdnn.ops.lowered.lowered import neutral_of
from symdnn.ops.nn.channels_last import first_order
from symdnn.ops.nn.crossentropy import SoftmaxCrossentropy
from symdnn.opt.fuse.groups import Groups, number_in, widened
from symdnn.opt.precision.amp import amp_dtype
from symdnn.rewriting.facts import is_old_value, number, only_axis
from symdnn.rewriting.rewrite import Context


def same_type(a: Variable, b: Variable) -> bool:
    """Equal dtype and broadcast pattern: neither operand is broadcast to the other's shape."""
    s, t = a.type, b.type
    tensors = isinstance(s, TensorType) and isinstance(t, TensorType)
    return tensors and (s.dtype, s.broadcastable) == (t.dtype, t.broadcastable)


@dataclass(frozen=True)
class Chain:
    """A GEMM or convolution with the ops behind it that its epilogue replaces so far.

    ``value`` is the variable that the chain computes. ``op_inputs`` are the inputs of the GEMM or
    convolution, ``operands`` the epilogue's operands by name. ``reshape`` is a view of the result
    behind which the epilogue goes on: a reshape of a GEMM's that keeps the last dimension (a dense
    layer on more than two dimensions), or the view as NCHW of a convolution's in NHWC.
    """

    op: EpilogueOp
    epilogue: Epilogue
    op_inputs: tuple[Variable, ...]
    value: Variable
    operands: tuple[tuple[str, Variable], ...] = ()
    reshape: Apply | None = None

    @property
    def factors_dtype(self) -> str:
        """The dtype of the operands that are multiplied."""
        return str(self.op_inputs[0].type.dtype)

    @property
    def channel_axis(self) -> int:
        """The dimension of ``value`` along which a bias varies."""
        view = None if self.reshape is None else self.reshape.op
        if isinstance(view, DimShuffle):
            assert self.reshape is not None, "it has an op"
            return view.pattern.index(self.op.channel_axis(self.reshape.inputs[0].type.ndim))
        return self.op.channel_axis(self.value.type.ndim)

    @property
    def terms(self) -> Affine | None:
        """The epilogue as ``alpha * result + beta * residual + bias`` and an activation function.

        None where it has not this form.
        """
        return self.epilogue.affine(self.op.rules.activations)

    @property
    def is_taken(self) -> bool:
        """Whether the library takes the whole epilogue."""
        return self.op.rules.takes(self.epilogue, self.factors_dtype)

    def inputs(self) -> list[Variable]:
        """The inputs of the op with its epilogue."""
        operands = dict(self.operands)
        return [*self.op_inputs, *(operands[name] for name in self.epilogue.operands)]

    def apply(self) -> Variable:
        """A new variable with the chain's value, computed by the op with its epilogue."""
        terms = self.terms
        assert terms is not None, "the library takes the epilogue"
        activation = self.op.rules.op_of(terms.activation)
        # The program in its normal form, so that equal epilogues are equal programs.
        epilogue = terms.epilogue(self.epilogue.dtype, activation, self.factors_dtype)
        out: Variable = replace(self.op, epilogue=epilogue)(*self.inputs())
        return out if self.reshape is None else self.reshape.op(out, *self.reshape.inputs[1:])


def chain_at(op: EpilogueOp, node: Apply) -> Chain:
    """The chain that starts at ``node``; ``op`` is the node's op, or the library's op for it."""
    op_inputs, extra = op.split(node.inputs)
    dtype = node.outputs[0].type.dtype
    epilogue = op.epilogue or Affine().epilogue(dtype, None)
    operands = tuple(zip(op.operand_names, extra, strict=True))
    return Chain(op, epilogue, tuple(op_inputs), node.outputs[0], operands)


# -- adding ops -----------------------------------------------------------------------------------

#: Ops of one activation function, at most: x / 6 + 1 / 2 limited to 0 .. 1 and times x are four.
_MAX_FORMULA_OPS = 6


def _longer(chain: Chain, groups: Groups) -> tuple[Chain, Apply] | None:
    """The chain with what reads it in the epilogue, and the last node; None where impossible."""
    readers = _readers(chain.value, groups)
    nodes = _formula(chain.value, readers, groups) or readers[: len(readers) == 1]
    if not nodes:
        return None
    out = nodes[-1].outputs[0]
    known = {chain.value, *(v for n in nodes for v in n.outputs)}
    read = dict.fromkeys(v for n in nodes for v in n.inputs)
    others = [v for v in read if v not in known and number_in(v) is None]
    operands = dict(chain.operands)
    args: list[Operand | None] = [None]
    for v in others:
        found = _operand(chain, v, out, groups)
        if found is None or found[0] in operands:
            return None
        name, operands[name], factor = found
        args.append(Operand(name, operands[name].type.dtype, factor))
    epilogue = chain.epilogue.then(_composed([chain.value, *others], nodes, groups), args)
    longer = replace(chain, epilogue=epilogue, value=out, operands=tuple(operands.items()))
    return longer, nodes[-1]


def _formula(value: Variable, readers: list[Apply], groups: Groups) -> list[Apply]:
    """Nodes that compute a function of ``value`` and numbers alone, the result's last.

    They end where all of its readers have led to one node. Empty where there is none.
    """
    known, waiting = {value}, readers
    found: list[Apply] = []
    while waiting and len(found) < _MAX_FORMULA_OPS:
        ready = [n for n in waiting if _is_function_of(n, known)]
        if not ready:
            break
        node = ready[0]
        found.append(node)
        if len(waiting) == 1:
            return found
        known.add(node.outputs[0])
        more = _readers(node.outputs[0], groups)
        waiting = [n for n in dict.fromkeys([*waiting, *more]) if n is not node] if more else []
    return []


def _readers(v: Variable, groups: Groups) -> list[Apply]:
    """Readers that elementwise fusion would take; empty if there is another one.

    Libraries write no complex numbers, which fusion computes as two parts.
    """
    nodes = [] if groups.fgraph.is_output(v) else groups.fgraph.user_nodes(v)
    made = [n.outputs[0].type for n in nodes if n in groups.members and len(n.outputs) == 1]
    pattern = v.type.broadcastable
    same = all(t.broadcastable == pattern and not t.is_complex for t in made)
    return nodes if same and len(made) == len(nodes) else []


def _is_function_of(node: Apply, known: set[Variable]) -> bool:
    return all(v in known or number_in(v) is not None for v in node.inputs)


def _composed(values: Sequence[Variable], nodes: Sequence[Apply], groups: Groups) -> ScalarProgram:
    """The program of nodes that compute a function of ``values`` and numbers, the last's result."""
    p = Builder(tuple(v.type.dtype for v in values))
    at = {v: p.input(i) for i, v in enumerate(values)}
    for node in nodes:
        program = groups.members[node].program
        args = [
            at[v] if v in at else p.const(number_in(v), dtype)
            for v, dtype in zip(node.inputs, program.inputs, strict=True)
        ]
        (at[node.outputs[0]],) = p.inline(program, args)
    return p.program([at[nodes[-1].outputs[0]]])


def _operand(
    chain: Chain, v: Variable, out: Variable, groups: Groups
) -> tuple[str, Variable, float] | None:
    """The operand ``v`` of the chain's reader as (name, variable, factor); None if unsuitable."""
    if _is_bias(v, chain.channel_axis, out):
        found = _in_operand_dtype(chain, v)
        return BIAS, _bias(cast(v, chain.factors_dtype) if found is None else found, chain), 1.0
    if isinstance(v, Constant) or not same_type(v, out):
        return None
    narrow = _in_operand_dtype(chain, v)
    if narrow is None or is_old_value(v):  # a fused elementwise kernel updates in place
        return None
    addend, factor = without_factor(narrow, groups.context)
    return RESIDUAL, _before_view(addend, chain, groups.context), factor


def _is_bias(v: Variable, axis: int, out: Variable) -> bool:
    """Whether ``v`` broadcasts along all dimensions of ``out`` except ``axis``."""
    return (
        v.type.ndim == out.type.ndim >= 2
        and only_axis(v) == axis
        and bool(v.type.dtype == out.type.dtype)
    )


def _in_operand_dtype(chain: Chain, v: Variable) -> Variable | None:
    """``v`` in the dtype in which the library reads it; None where that would round ``v``.

    Some libraries read all operands in the dtype of those that are multiplied.
    """
    if not chain.op.rules.rounds_operands or v.type.dtype == chain.factors_dtype:
        return v
    return widened(v)


def _with_rounded_bias(chain: Chain, context: Context) -> Chain:
    """With mixed precision the chain with its bias in the dtype of the operands and the result.

    cuBLASLt reads a bias in the dtype of the result.
    """
    dtype, terms, operands = chain.epilogue.dtype, chain.terms, dict(chain.operands)
    if BIAS not in operands or terms is None or amp_dtype(context.target) != dtype:
        return chain
    others = [v.type.dtype for name, v in operands.items() if name != BIAS]
    if dtype != chain.factors_dtype or any(d != dtype for d in others):
        return chain
    operands[BIAS] = cast(operands[BIAS], dtype)
    activation = chain.op.rules.op_of(terms.activation)
    epilogue = terms.epilogue(dtype, activation, chain.factors_dtype)
    return replace(chain, epilogue=epilogue, operands=tuple(operands.items()))


def _bias(v: Variable, chain: Chain) -> Variable:
    """A bias with the dimensions of the op's result, before the chain's reshape."""
    if chain.reshape is None:
        return v
    view = chain.reshape.op
    if isinstance(view, DimShuffle):
        before = range(chain.reshape.inputs[0].type.ndim)
        return dimshuffle(v, tuple(view.pattern.index(d) for d in before))
    ndim, last = chain.reshape.inputs[0].type.ndim, v.type.ndim - 1
    if v.owner is not None and isinstance(v.owner.op, DimShuffle):
        inner = v.owner.inputs[0]
        v, last = (inner, 0) if inner.type.ndim == 1 else (v, last)
    return dimshuffle(v, (*["x"] * (ndim - 1), last))


def _before_view(v: Variable, chain: Chain, context: Context) -> Variable:
    """An addend of the result's shape with the dimensions that it has before the reshape."""
    if chain.reshape is None:
        return v
    view, inner = chain.reshape.op, chain.reshape.inputs[0]
    if isinstance(view, DimShuffle):
        return dimshuffle(v, tuple(view.pattern.index(d) for d in range(inner.type.ndim)))
    return reshape(v, context.shapes.dims(inner))


def constant_factor(node: Apply, v: Variable) -> float | None:
    """The constant number by which a node multiplies ``v``; None if there is none."""
    if isinstance(node.op, Neg):
        return -1.0
    other = [w for w in node.inputs if w is not v]
    n = number(other[0]) if len(other) == 1 else None
    if n is None or n == 0 or (isinstance(node.op, TrueDiv) and node.inputs[0] is not v):
        return None
    return 1 / float(n) if isinstance(node.op, TrueDiv) else float(n)


def without_factor(v: Variable, context: Context) -> tuple[Variable, float]:
    """(c, beta) with ``v = beta c`` for a constant beta, if ``v`` has one reader; else (v, 1)."""
    node = v.owner
    if node is not None and isinstance(node.op, Mul | Neg) and context.only_user(v):
        for w in node.inputs:
            factor = constant_factor(node, w)
            if factor is not None and not isinstance(w, Constant) and same_type(w, v):
                return w, factor
    return v, 1.0


# -- the best chain -------------------------------------------------------------------------------


def _best(start: Chain, groups: Groups) -> Chain | None:
    """The longest chain from ``start`` that saves memory traffic; None if there is none."""
    chain, best, unknown = start, None, 0
    while unknown < _MAX_FORMULA_OPS:
        behind = behind_reshape(chain, groups.context)
        if behind is not None:
            chain = behind
            continue
        longer = _longer(chain, groups)
        if longer is None:
            break
        chain, last = longer
        chain = _with_rounded_bias(chain, groups.context)
        unknown = unknown + 1 if chain.terms is None else 0
        if chain.is_taken and _saves_traffic(chain, groups, groups.group[last]):
            best = chain
    return best


def behind_reshape(chain: Chain, context: Context) -> Chain | None:
    """The chain with the reshape that alone reads it; None if there is none."""
    if not context.only_user(chain.value):
        return None
    (user,) = context.fgraph.user_nodes(chain.value)
    if not (_is_view_as_nchw(chain, user) or _is_reshape_of_gemm(chain, user, context)):
        return None
    return replace(chain, value=user.outputs[0], reshape=user)


def _saves_traffic(chain: Chain, groups: Groups, group: Apply) -> bool:
    """Whether the elementwise group disappears, or a sum is stored that others read."""
    readers, terms = _readers_of_value(chain.value, groups), chain.terms
    if terms == Affine() and all(_widens_itself(u) for u in readers):
        return False
    if terms is None or not _is_worth_adding(chain, terms, readers, groups):
        return False
    inside = [u is not None and groups.group.get(u) is group for u in readers]
    if not any(inside):
        measured = terms.activation in chain.op.rules.measured
        return not measured or all(is_product(u, groups.context) for u in readers)
    summed = not terms.activation and bool(terms.residual or terms.bias)
    return chain.op.rules.saves_sums and summed and not all(inside)


def _is_worth_adding(
    chain: Chain, terms: Affine, readers: Sequence[Apply | None], groups: Groups
) -> bool:
    """Whether no norm reads a sum behind a reshape, which that adds at no cost.

    A norm is several elementwise nodes where it is no op. It reads the product in 16 bits, which a
    sum in float32 would need to be stored in float32.
    """
    if chain.reshape is None or not terms.residual:
        return True
    wide = chain.epilogue.dtype != chain.factors_dtype
    members = () if wide else groups.members
    return all(u in members or is_product(u, groups.context) for u in readers)


def is_product(node: Apply | None, context: Context) -> bool:
    """Whether a reader multiplies, or is behind the graph, views before it aside."""
    if node is not None and isinstance(node.op, Reshape | DimShuffle):
        return all(is_product(u, context) for u in read_by(node.outputs[0], context))
    return node is None or isinstance(node.op, Dot | BatchedDot | EpilogueOp)


def read_by(v: Variable, context: Context) -> list[Apply | None]:
    """The nodes that read a value, and None for an output; not those that only wait for it."""
    users = context.fgraph.users(v)
    return [u for u, i in users if u is None or i == 0 or not isinstance(u.op, After)]


def _widens_itself(node: Apply | None) -> bool:
    """Whether a node's kernels read logits in 16 bits, so that none are stored in float32."""
    return node is not None and isinstance(neutral_of(node.op), SoftmaxCrossentropy)


def _readers_of_value(v: Variable, groups: Groups) -> list[Apply | None]:
    """The readers of a value, those that read it widened to float32 included."""
    found: list[Apply | None] = []
    for node, _ in groups.fgraph.users(v):
        wide = node is not None and node in groups.members and widened(node.outputs[0]) is v
        found += _readers_of_value(node.outputs[0], groups) if node is not None and wide else [node]
    return found


def _is_view_as_nchw(chain: Chain, user: Apply) -> bool:
    """Whether ``user`` turns the result of a convolution in NHWC to NCHW, in place."""
    if chain.op.layout != "NHWC" or chain.reshape or not isinstance(user.op, DimShuffle):
        return False
    return user.op.pattern == first_order(chain.value.type.ndim)


def _is_reshape_of_gemm(chain: Chain, user: Apply, context: Context) -> bool:
    """Whether ``user`` reshapes the result of a GEMM and keeps the last dimension.

    A reshape that only adds dimensions of size 1, for a batch of one, is a dimshuffle.
    """
    v, out = user.inputs[0], user.outputs[0]
    if not chain.op.rules.through_reshape or chain.reshape or v.type.ndim != 2:
        return False
    if isinstance(user.op, DimShuffle):
        return [d for d in user.op.pattern if d != "x"] == [0, 1] and user.op.pattern[-1] == 1
    if not isinstance(user.op, Reshape) or out.type.ndim < 2:
        return False
    return context.shapes.same(context.shapes.dims(v)[-1], context.shapes.dims(out)[-1])


def fuse_epilogues(context: Context, name: str, start: Callable[[Apply], Chain | None]) -> bool:
    """Replace all chains of the graph for the rewrite ``name``; return whether anything changed.

    ``start(node)`` is the chain that starts at a node, or None.
    """
    groups, changed = None, False
    for node in context.fgraph.toposort():
        # Only now: inputs of the node may have been replaced in earlier iterations.
        begun = start(node) if node in context.fgraph.nodes else None
        if begun is None:
            continue
        groups = groups or Groups(context)  # before the first replacement, and only for one
        chain = _best(begun, groups)
        if chain is not None:
            last = chain.value.owner
            assert last is not None, "the chain ends with a node of its epilogue"
            with inherit(last.origin, node.hints):
                changed |= context.replace([(chain.value, chain.apply())], name)
    return changed
