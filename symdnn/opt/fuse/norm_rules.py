"""Batch normalisation taken apart, so that fusion sees its elementwise half.

Forward: the statistics are a :class:`BatchMoments`, the normalisation is an elementwise node that
joins what reads it. Backward: the two sums are a :class:`BatchSums` and the input's gradient is an
elementwise node; what makes their cotangent element by element (a relu's gradient) is computed
again in both, if then nobody needs it stored.
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
from symdnn.ops.nn.batchnorm import BatchNormGrad, BatchNormTrain
from symdnn.ops.nn.channels_last import last_order
from symdnn.opt.fuse.fuse import fusable_program, number_in
from symdnn.rewriting.rewrite import Context, graph_rewrite

__all__ = ["RULES", "split_batch_norm"]

#: Arrays of the input's size that a sweep may read in place of the cotangent and the input.
_MOST_ARRAYS, _MOST_INPUTS, _MOST_INSTRUCTIONS = 3, 16, 100


@graph_rewrite("fuse", tags=("fusion",), name="split_batch_norm")
def split_batch_norm(context: Context) -> None:
    """Batch normalisation whose elementwise half has something to join is taken apart.

    On a CPU it is whether or not: its loops are bound by memory, and are faster than oneDNN's.
    """
    kind = context.target.kind
    if not (_wanted_on_cpu(context) if kind == "cpu" else kind == "cuda" and _wanted()):
        return
    always = kind == "cpu" or str(config.dnn.batch_norm) == "fused"
    for node in context.fgraph.toposort():
        if isinstance(neutral_of(node.op), BatchNormTrain) and _ours(node, kind):
            _split_forward(context, node, always)
    for node in context.fgraph.toposort():
        if isinstance(neutral_of(node.op), BatchNormGrad) and _ours(node, kind):
            _split_backward(context, node, always)


def _wanted() -> bool:
    chosen = str(config.dnn.batch_norm)
    return chosen == "fused" or (chosen == "auto" and str(config.gpu.prefer) == "own")


def _wanted_on_cpu(context: Context) -> bool:
    """Whether elementwise ops are compiled at all."""
    return context.capabilities.fuses(FusedElemwise(grad_terms(["float32"] * 4)), "cpu")


def _ours(node: Apply, kind: str) -> bool:
    if kind == "cuda":
        return node.hints.backend in (None, "cuda", "nn")
    # cuDNN's hint means little on a CPU; squares of float64 would not be summed up well enough.
    ours = node.hints.backend in (None, "cudnn", "nn")
    return ours and node.inputs[0].type.dtype in ("float32", "bfloat16")


def _op_of(node: Apply) -> Any:
    """The neutral op, its axes counted in the layout of the node's operands."""
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


# -- backward -------------------------------------------------------------------------------------


def _split_backward(context: Context, node: Apply, always: bool) -> None:
    x, dy, gamma, mean, invstd = node.inputs
    if gamma.type.broadcastable != mean.type.broadcastable:
        return
    source = _Source(context, node)
    if not always and source.inputs == [x, dy]:
        return
    with inherit(node.origin, node.hints):
        operands = list(dict.fromkeys([*source.inputs, mean, invstd]))
        terms = source.program(operands, [x, dy, mean, invstd], grad_terms)
        dbeta, dgamma, a, b = BatchSums(terms, _op_of(node).axes)(*operands)
        operands = list(dict.fromkeys([*operands, gamma, a, b]))
        gradient = source.program(operands, [x, dy, gamma, mean, invstd, a, b], _gradient)
        (dx,) = FusedElemwise(gradient)(*operands)
        context.replace(zip(node.outputs, [dx, dgamma, dbeta], strict=True), "split_batch_norm")


class _Source:
    """What a gradient's cotangent is computed from: ``inputs`` are x, and what is read for dy."""

    def __init__(self, context: Context, node: Apply) -> None:
        self.fgraph, self.node = context.fgraph, node
        self.x, self.dy, *_ = node.inputs
        self.pattern = self.x.type.broadcastable
        self.programs: dict[Apply, ScalarProgram] = {}
        self.inputs = [self.x, self.dy]
        self._grow()

    def _grow(self) -> None:
        """Go back from dy as long as fewer or as few arrays are read."""
        pending = [self.dy]
        while pending:
            v = pending.pop()
            program = self._program(v)
            if program is None or not (self._only_here(v) or self._from_x(v)):
                continue
            self.programs[v.owner] = program  # type: ignore[index]
            found = self._leaves()
            if not self._fits(found):
                del self.programs[v.owner]  # type: ignore[arg-type]
                continue
            self.inputs = found
            pending += [w for w in v.owner.inputs if self._whole(w)]  # type: ignore[union-attr]

    def _program(self, v: Variable) -> ScalarProgram | None:
        if v.owner is None or v is self.x or v.owner in self.programs or not self._whole(v):
            return None
        return fusable_program(v.owner)

    def _whole(self, v: Variable) -> bool:
        """Whether ``v`` is of the input's size, and no constant."""
        return not isinstance(v, Constant) and v.type.broadcastable == self.pattern

    def _only_here(self, v: Variable) -> bool:
        """Whether nobody else reads what the maker of ``v`` makes."""
        users = {u for out in v.owner.outputs for u, _ in self.fgraph.users(out)}  # type: ignore[union-attr]
        return all(u is self.node or u in self.programs for u in users)

    def _from_x(self, v: Variable) -> bool:
        """Whether ``v`` is computed from x, which is read anyway, and small arrays alone."""
        stack, seen = [v], 0
        while stack:
            w = stack.pop()
            seen += 1
            if w is self.x or not self._whole(w):
                continue
            if w.owner is None or seen > _MOST_INPUTS or fusable_program(w.owner) is None:
                return False
            stack += w.owner.inputs
        return True

    def _leaves(self) -> list[Variable]:
        """x, and what the programs so far read."""
        found = {self.x: None, **({} if self.dy.owner in self.programs else {self.dy: None})}
        for made in self.programs:
            for v in made.inputs:
                if v.owner not in self.programs and number_in(v) is None:
                    found[v] = None
        return list(found)

    def _fits(self, inputs: Sequence[Variable]) -> bool:
        arrays = sum(map(self._whole, inputs))
        size = sum(len(p.body) for p in self.programs.values())
        one_ndim = all(v.type.ndim == self.x.type.ndim for v in inputs)
        few = arrays <= _MOST_ARRAYS and len(inputs) <= _MOST_INPUTS
        return few and one_ndim and size <= _MOST_INSTRUCTIONS

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
        self,
        operands: Sequence[Variable],
        own: Sequence[Variable],
        what: Callable[[Sequence[str]], ScalarProgram],
    ) -> ScalarProgram:
        """``what(dtypes)`` of the values ``own``, dy computed from ``operands``."""
        builder = Builder([v.type.dtype for v in operands])
        values = {v: builder.input(i) for i, v in enumerate(operands)}
        given = [self._value(v, builder, values) for v in own]
        return builder.program(builder.inline(what([v.type.dtype for v in own]), given))


def _gradient(dtypes: Sequence[str]) -> ScalarProgram:
    """The gradient of x, in its dtype."""
    return formula(dtypes, grad_program, dtypes[0])


RULES = (split_batch_norm,)
