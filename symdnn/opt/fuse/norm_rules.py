"""Batch normalisation split into reductions and elementwise nodes, which are then fused.

Forward, the statistics are a :class:`BatchMoments` node, and the normalisation is an elementwise
node that fuses with its readers. Backward, the two sums are a :class:`BatchSums` node, and the
input's gradient is an elementwise node. Elementwise nodes before the cotangent (a relu's gradient)
are recomputed in both, where the cotangent then need not be stored. On a GPU a cotangent that
others read, too, is written by the node of the sums. On a CPU normalisation by given statistics is
elementwise, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from symdnn.config import config
from symdnn.graph.origin import inherit
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.core.scalar import Builder, Scalar, ScalarProgram
from symdnn.ops.lowered.fused import FusedElemwise
from symdnn.ops.lowered.lowered import Lowered, neutral_of
from symdnn.ops.lowered.norm_formulas import formula, grad_program, grad_terms, normalised
from symdnn.ops.lowered.norm_parts import BatchMoments, BatchSums
from symdnn.ops.nn.batchnorm import BatchNormGrad, BatchNormInference, BatchNormTrain
from symdnn.ops.nn.channels_last import last_order
from symdnn.opt.fuse.groups import fusable_program, number_in, widened
from symdnn.rewriting.facts import node_of
from symdnn.rewriting.rewrite import Context, graph_rewrite

#: Limits of a backward kernel: arrays of the input's size that it reads instead of input and
#: cotangent (more if it writes the cotangent), all operands, and instructions.
_MAX_ARRAYS, _MAX_INPUTS, _MAX_INSTRUCTIONS = 3, 16, 100
_MAX_ARRAYS_OF_WRITING = 5
#: The most values between the input and one that is computed from it again.
_MAX_FOLLOWED = 32


@graph_rewrite("fuse", tags=("fusion",), name="split_batch_norm")
def split_batch_norm(context: Context) -> None:
    """Batch normalisation is split where its elementwise part fuses with other nodes.

    On a CPU it is always split: the generated loops are bound by memory and faster than oneDNN's.
    """
    kind = context.target.kind
    if not (_enabled_on_cpu(context) if kind == "cpu" else kind == "cuda" and _enabled_on_cuda()):
        return
    always = kind == "cpu" or str(config.dnn.batch_norm) == "fused"
    for node in context.fgraph.toposort():
        op = neutral_of(node.op)
        if isinstance(op, BatchNormTrain) and _may_split(node, kind):
            _split_forward(context, node, always)
        elif isinstance(op, BatchNormInference) and kind == "cpu" and _is_ours(node):
            _write_out_inference(context, node)
    nodes = context.fgraph.toposort()
    order = {node: i for i, node in enumerate(nodes)}
    for node in nodes:
        if isinstance(neutral_of(node.op), BatchNormGrad) and _may_split(node, kind):
            _split_backward(context, node, always, order)


def _enabled_on_cuda() -> bool:
    chosen = str(config.dnn.batch_norm)
    return chosen == "fused" or (chosen == "auto" and str(config.gpu.prefer) == "own")


def _enabled_on_cpu(context: Context) -> bool:
    """Whether the CPU has generated kernels for elementwise ops."""
    return context.capabilities.fuses(FusedElemwise(grad_terms(["float32"] * 4)), "cpu")


def _may_split(node: Apply, kind: str) -> bool:
    if kind == "cuda":
        return node.hints.backend in (None, "cuda", "nn")
    # Sums of squares of float64 would lose digits.
    return _is_ours(node) and node.inputs[0].type.dtype != "float64"


def _is_ours(node: Apply) -> bool:
    """Whether no hint asks for a library on a CPU. One for cuDNN has no effect there."""
    return node.hints.backend in (None, "cudnn", "nn")


def _op_of(node: Apply) -> Any:
    """The neutral op, with its axes in the layout of the node's operands."""
    op: Any = neutral_of(node.op)
    if getattr(node.op, "layout", "NCHW") == "NCHW":
        return op
    order = last_order(node.inputs[0].type.ndim)
    return replace(op, axes=tuple(sorted(order.index(a) for a in op.axes)))


# -- forward --------------------------------------------------------------------------------------


def _split_forward(context: Context, node: Apply, always: bool) -> None:
    y = node.outputs[0]
    if not always and not any(fusable_program(u) for u in context.fgraph.user_nodes(y)):
        return
    op = _op_of(node)
    given = node.op.neutral_inputs(node.inputs) if isinstance(node.op, Lowered) else node.inputs
    x, gamma, beta, *rest = given
    with inherit(node.origin, node.hints):
        found = list(BatchMoments(op.axes, op.epsilon, bool(rest))(x, *rest))
        operands = [x, gamma, beta, *found[:2]]
        program = formula([v.type.dtype for v in operands], normalised, x.type.dtype)
        (made,) = FusedElemwise(program)(*operands)
        context.replace(zip(node.outputs, [made, *found], strict=True), "split_batch_norm")


def _write_out_inference(context: Context, node: Apply) -> None:
    op = _op_of(node)
    x, gamma, beta, mean, var = node.inputs
    with inherit(node.origin, node.hints):
        (invstd,) = FusedElemwise(_inverse_deviation(var.type.dtype, op.epsilon))(var)
        operands = [x, gamma, beta, mean, invstd]
        program = formula([v.type.dtype for v in operands], normalised, x.type.dtype)
        (made,) = FusedElemwise(program)(*operands)
        context.replace([(node.outputs[0], made)], "split_batch_norm")


def _inverse_deviation(dtype: str, epsilon: float) -> ScalarProgram:
    return formula([dtype], lambda variance: 1 / (variance + epsilon).call("sqrt"))


# -- backward -------------------------------------------------------------------------------------


def _split_backward(context: Context, node: Apply, always: bool, order: dict[Apply, int]) -> None:
    x, dy, gamma, mean, _ = node.inputs
    if gamma.type.broadcastable != mean.type.broadcastable:
        return
    source = CotangentSource(context, node)
    if source.inputs == [x, dy] and (_split_writing(context, node, order) or not always):
        return
    with inherit(node.origin, node.hints):
        dbeta, dgamma, a, b = source.sums(_op_of(node).axes)
        dx = source.computed([*node.inputs, a, b], _gradient)
        context.replace(zip(node.outputs, [dx, dgamma, dbeta], strict=True), "split_batch_norm")


def _split_writing(context: Context, node: Apply, order: dict[Apply, int]) -> bool:
    """Split a gradient whose cotangent others read, too, if the sums can write it."""
    x, dy, gamma, mean, invstd = node.inputs
    source = CotangentSource(context, node, writes=True)
    if context.target.kind != "cuda" or dy in source.inputs:
        return False
    after = order.get(node_of(dy), -1)
    if any(v.owner is not None and order.get(v.owner, after) >= after for v in (x, mean, invstd)):
        return False  # they may follow from what is written
    with inherit(node.origin, node.hints):
        dbeta, dgamma, a, b, whole = source.sums(_op_of(node).axes, _terms_and_cotangent)
        operands = [x, whole, gamma, mean, invstd, a, b]
        (dx,) = FusedElemwise(_gradient([v.type.dtype for v in operands]))(*operands)
        replaced = zip([dy, *node.outputs], [whole, dx, dgamma, dbeta], strict=True)
        context.replace(replaced, "split_batch_norm")
    return True


#: A program for values of these dtypes.
Formula = Callable[[Sequence[str]], ScalarProgram]


class CotangentSource:
    """The elementwise nodes from which a cotangent dy is recomputed.

    ``inputs`` are x and the variables that are read instead of dy. With ``writes`` it is computed
    for others, too.
    """

    def __init__(self, context: Context, node: Apply, writes: bool = False) -> None:
        self.fgraph, self.node, self.writes = context.fgraph, node, writes
        self.x, self.dy, *_ = node.inputs
        self.pattern = self.x.type.broadcastable
        self.programs: dict[Apply, ScalarProgram] = {}
        self.shared: set[Apply] = set()  # those that others compute, too
        self.inputs = [self.x, self.dy]
        self._extend()

    def sums(self, axes: tuple[int, ...], terms: Formula = grad_terms) -> list[Variable]:
        """What :class:`BatchSums` gives for the ``terms`` of x, dy, mean and invstd."""
        mean, invstd = self.node.inputs[3:]
        operands = list(dict.fromkeys([*self.inputs, mean, invstd]))
        program = self.program(operands, [self.x, self.dy, mean, invstd], terms)
        return list(BatchSums(program, axes, self.writes)(*operands))

    def computed(self, given: Sequence[Variable], formula: Formula) -> Variable:
        """An elementwise node by a formula of ``given``, which are x, dy, ..."""
        operands = list(dict.fromkeys([*self.inputs, *given[2:]]))
        (made,) = FusedElemwise(self.program(operands, given, formula))(*operands)
        return made

    def _extend(self) -> None:
        """Add nodes from dy backwards: all of them, or as long as the inputs stay within limits.

        The terms of a sum (the slope of silu) may need more arrays than all that they follow from.
        """
        self._grow(within_limits=False)
        found = self._leaves()
        if not self._fits(found):
            self.programs, self.shared = {}, set()
            self._grow(within_limits=True)
            found = self._leaves()
        self.inputs = found

    def _grow(self, within_limits: bool) -> None:
        pending = [self.dy]
        while pending and len(self.programs) < _MAX_INSTRUCTIONS:
            v = pending.pop()
            if v.owner in self.shared and self._read_only_here(v):  # by nodes added since
                self.shared.discard(v.owner)
                pending += [w for w in v.owner.inputs if self._is_full_size(w)]
                continue
            program = self._program(v)
            if program is None:
                continue
            own = self._read_only_here(v) or self._follows_from_x(v)
            own = own or (self.writes and v is self.dy)
            if not own and widened(v) is None:
                continue
            node = node_of(v)
            self.programs[node] = program
            if within_limits and not self._fits(self._leaves()):
                del self.programs[node]
                continue
            if own:
                pending += [w for w in node.inputs if self._is_full_size(w)]
            else:  # others cast it on reading, too
                self.shared.add(node)

    def _program(self, v: Variable) -> ScalarProgram | None:
        if v.owner is None or v is self.x or v.owner in self.programs or not self._is_full_size(v):
            return None
        return fusable_program(v.owner)

    def _is_full_size(self, v: Variable) -> bool:
        """Whether ``v`` has the input's shape and is no constant."""
        return not isinstance(v, Constant) and v.type.broadcastable == self.pattern

    def _read_only_here(self, v: Variable) -> bool:
        """Whether only the gradient and nodes added so far read the node of ``v``."""
        users = {u for out in node_of(v).outputs for u, _ in self.fgraph.users(out)}
        return all(u is self.node or (u in self.programs and u not in self.shared) for u in users)

    def _follows_from_x(self, v: Variable) -> bool:
        """Whether ``v`` is computed only from x, which is read anyway, and small arrays."""
        stack, seen = [v], set[Variable]()
        while stack:
            w = stack.pop()
            if w is self.x or w in seen or not self._is_full_size(w):
                continue
            seen.add(w)
            if w.owner is None or len(seen) > _MAX_FOLLOWED or fusable_program(w.owner) is None:
                return False
            stack += w.owner.inputs
        return True

    def _leaves(self) -> list[Variable]:
        """x, and the variables that the programs so far read."""
        found = {self.x: None, **({} if self.dy.owner in self.programs else {self.dy: None})}
        for made in self.programs:
            for v in made.inputs:
                if v.owner not in self.programs and number_in(v) is None:
                    found[v] = None
        return list(found)

    def _fits(self, inputs: Sequence[Variable]) -> bool:
        arrays = sum(map(self._is_full_size, inputs))
        size = sum(len(p.body) for p in self.programs.values())
        one_ndim = all(v.type.ndim == self.x.type.ndim for v in inputs)
        most = _MAX_ARRAYS_OF_WRITING if self.writes else _MAX_ARRAYS
        few = arrays <= most and len(inputs) <= _MAX_INPUTS
        return few and one_ndim and size <= _MAX_INSTRUCTIONS

    # -- programs -----------------------------------------------------------------------------

    def _value(self, v: Variable, builder: Builder, values: dict[Variable, Scalar]) -> Scalar:
        if v not in values:
            number = number_in(v)
            if number is not None:
                return builder.const(number, v.type.dtype)
            assert v.owner is not None
            args = [self._value(w, builder, values) for w in v.owner.inputs]
            results = builder.inline(self.programs[v.owner], args)
            values.update(zip(v.owner.outputs, results, strict=True))
        return values[v]

    def program(
        self, operands: Sequence[Variable], variables: Sequence[Variable], formula_of: Formula
    ) -> ScalarProgram:
        """``formula_of(dtypes)`` of the values ``variables``, dy computed from ``operands``."""
        builder = Builder([v.type.dtype for v in operands])
        values = {v: builder.input(i) for i, v in enumerate(operands)}
        given = [self._value(v, builder, values) for v in variables]
        return builder.program(builder.inline(formula_of([v.type.dtype for v in variables]), given))


def _terms_and_cotangent(dtypes: Sequence[str]) -> ScalarProgram:
    """The terms of both sums, and dy, of (x, dy, mean, invstd)."""
    builder = Builder(dtypes)
    given = [builder.input(i) for i in range(len(dtypes))]
    return builder.program([*builder.inline(grad_terms(dtypes), given), given[1]])


def _gradient(dtypes: Sequence[str]) -> ScalarProgram:
    """The gradient of x, in its dtype."""
    return formula(dtypes, grad_program, dtypes[0])


RULES = (split_batch_norm,)
