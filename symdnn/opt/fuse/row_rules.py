"""Norms of rows take the elementwise nodes before and behind them, in one node that reads once.

A layer norm of a sum (a residual connection) computes the sum, too; a cast of its result, or a sum
with its gradient, is computed from registers. An elementwise node before it is taken in where the
norm reads it whole; values of it that others read become results. Nodes behind it are taken in
where their other operands do not depend on the norm.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from symdnn.graph.origin import inherit
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.core.scalar import RESULT, Builder, Scalar, ScalarProgram
from symdnn.ops.lowered.fused_rows import FusedRows, layer_norm_grad_rows, layer_norm_rows
from symdnn.ops.nn.batchnorm import LayerNorm, LayerNormGrad
from symdnn.opt.fuse.branches import branch_paths, effects_among
from symdnn.opt.fuse.fuse import (
    FUSABLE_BACKENDS,
    fusable_program,
    joined_origin,
    number_in,
    widened,
)
from symdnn.opt.fuse.transfer import Places
from symdnn.rewriting.rewrite import Context, graph_rewrite

__all__ = ["RULES", "fuse_rows"]

#: Limits of a kernel: values kept for an element, results, operands, and instructions.
_MAX_VALUES, _MAX_RESULTS, _MAX_INPUTS, _MAX_INSTRUCTIONS = 3, 6, 12, 100
#: Longer rows are read several times; of fewer ones other kernels make chunks.
_LONG_ROW, _MIN_LONG_ROWS = 1 << 15, 64


@graph_rewrite("fuse", tags=("fusion",), name="fuse_rows")
def fuse_rows(context: Context) -> None:
    """Layer norms and their gradients become one node with their elementwise neighbours."""
    order = context.fgraph.toposort()
    if effects_among(order):
        return
    graph: _Graph | None = None
    for node in order:
        if node in context.fgraph.nodes and _is_norm_of_rows(node):
            graph = graph or _Graph(context, order)
            if graph.is_ours(node):
                _Neighbours(graph, node).join()


def _is_norm_of_rows(node: Apply) -> bool:
    """Whether it is a norm over the last axes that one kernel runs well, with sums by columns."""
    op: Any = node.op
    if not isinstance(op, LayerNorm | LayerNormGrad):
        return False
    x = node.inputs[0].type
    first = x.ndim - len(op.axes)
    if tuple(op.axes) != tuple(range(first, x.ndim)):
        return False
    if isinstance(op, LayerNormGrad):
        one = node.inputs[2].type.broadcastable
        if not all(one[:first]) or any(
            a and not b for a, b in zip(one[first:], x.broadcastable[first:])
        ):
            return False
    row, rows = (_known_size(x.shape[i] for i in part) for part in (op.axes, range(first)))
    return not (row is not None and rows is not None and row > _LONG_ROW and rows < _MIN_LONG_ROWS)


def _known_size(dims: Iterable[int | None]) -> int | None:
    found = list(dims)
    return None if None in found else prod(d for d in found if d is not None)


class _Graph:
    """What is known of a graph: places, branches, and which node depends on which."""

    def __init__(self, context: Context, order: Sequence[Apply]) -> None:
        self.context, self.fgraph = context, context.fgraph
        self.places = Places(context.fgraph, context.target, inner=context.inner)
        self.paths = branch_paths(context.fgraph, order)
        self.numbers = {node: i for i, node in enumerate(order)}

    def is_ours(self, node: Apply) -> bool:
        """Whether a node runs on the target, without a hint for a library."""
        on_target = self.places(node) == self.context.target.place
        return on_target and node.hints.backend in FUSABLE_BACKENDS

    def program_of(self, node: Apply | None, beside: Apply) -> ScalarProgram | None:
        """The program of an elementwise node that is needed in the calls that need ``beside``."""
        if node is None or node not in self.numbers or node not in self.fgraph.nodes:
            return None
        if not self.is_ours(node) or self.paths[node] != self.paths[beside]:
            return None
        return fusable_program(node)

    def depends(self, v: Variable, node: Apply) -> bool:
        """Whether ``v`` is computed from results of ``node``."""
        first = self.numbers[node]
        stack, seen = [v.owner], set()
        while stack:
            n = stack.pop()
            if n is node:
                return True
            # A joined node has no number and is asked for what it reads.
            if n is None or n in seen or self.numbers.get(n, first) < first:
                continue
            seen.add(n)
            stack += [w.owner for w in n.inputs]
        return False


@dataclass
class _Parts:
    """A node in the making: its op, early and late inputs, and the variables of its outputs."""

    op: FusedRows
    early: list[Variable]
    late: list[Variable]
    outputs: list[Variable]

    @property
    def results(self) -> list[Variable]:
        """The variables of the results, which are the first outputs."""
        return self.outputs[: len(self.op.after.outputs)]

    @property
    def rest(self) -> list[Variable]:
        """The variables of row values and sums."""
        return self.outputs[len(self.op.after.outputs) :]


class _Neighbours:
    """A norm and the elementwise nodes that it takes in."""

    def __init__(self, graph: _Graph, node: Apply) -> None:
        self.graph, self.node = graph, node
        self.fgraph = graph.fgraph
        self.taken: list[Apply] = [node]
        self.widens = False  # whether it does a cast to float32, which others may do, too
        self.parts = _whole(node)
        self.pattern = node.inputs[0].type.broadcastable

    def join(self) -> None:
        """Make one node of all, if there are neighbours to take in."""
        while self._take_before() or self._take_behind():
            pass
        parts, context = self._without_unread(), self.graph.context
        alone = len(self.taken) == 1 and not self.widens
        fuses = context.capabilities.fuses(parts.op, context.target.kind)
        if alone or not fuses or not parts.results:
            return
        with inherit(joined_origin(self.taken), self.node.hints):
            made = parts.op(*parts.early, *parts.late)
            context.replace(list(zip(parts.outputs, made, strict=True)), "fuse_rows")

    def _others_read(self, v: Variable) -> bool:
        return any(user not in self.taken for user, _ in self.fgraph.users(v))

    def _is_full(self, v: Variable) -> bool:
        return not isinstance(v, Constant) and v.type.broadcastable == self.pattern

    # -- before -------------------------------------------------------------------------------

    def _take_before(self) -> bool:
        """Take in a node that makes an early input."""
        for v in self.parts.early:
            maker = v.owner
            if maker is None or maker in self.taken or not self._is_full(v):
                continue
            program = self.graph.program_of(maker, self.node)
            if program is None or any(w.type.ndim != v.type.ndim for w in maker.inputs):
                continue
            widens = widened(v) is not None
            stored = [w for w in maker.outputs if not widens and self._is_stored(w, maker)]
            if not all(self._is_value(w) for w in stored) or self._cyclic(maker, stored):
                continue
            found = self._with_maker(maker, program, stored)
            if self._fits(found):
                self.parts = found
                self.widens |= widens
                self.taken += [] if widens else [maker]
                return True
        return False

    def _is_stored(self, v: Variable, maker: Apply) -> bool:
        """Whether a node that is not taken in reads ``v``, which ``maker`` makes."""
        return any(u not in self.taken and u is not maker for u, _ in self.fgraph.users(v))

    def _is_value(self, v: Variable) -> bool:
        """Whether a value of the dtype of computation has all of ``v``."""
        return v.type.dtype == self.parts.op.work or is_narrow_float(v.type.dtype)

    def _cyclic(self, maker: Apply, stored: Sequence[Variable]) -> bool:
        """Whether another operand depends on what the node makes for others."""
        if any(w.owner is maker for w in self.parts.late):
            return True
        others = [w for w in (*self.parts.early, *self.parts.late) if w.owner is not maker]
        return bool(stored) and any(self.graph.depends(w, maker) for w in others)

    def _with_maker(
        self, maker: Apply, program: ScalarProgram, stored: Sequence[Variable]
    ) -> _Parts:
        """The parts with ``program`` before the values; its ``stored`` results are results, too."""
        parts, op = self.parts, self.parts.op
        early = [w for w in parts.early if w.owner is not maker]
        early += [w for w in dict.fromkeys(maker.inputs) if w not in early and number_in(w) is None]
        builder = Builder([w.type.dtype for w in early])
        made = builder.inline(program, [_given(builder, w, early) for w in maker.inputs])
        by_maker = dict(zip(maker.outputs, made, strict=True))
        given = [
            by_maker[w] if w in by_maker else builder.input(early.index(w)) for w in parts.early
        ]
        values = builder.inline(op.before, given)
        count = len(values)
        places: list[int] = []
        for w in stored:
            wide = by_maker[w].cast(op.work)
            numbers = [x.number for x in values]
            if wide.number not in numbers:
                values.append(wide)
            places.append(numbers.index(wide.number) if wide.number in numbers else len(numbers))
        wider = _with_values(op, [x.dtype for x in values[count:]])
        results = _Results(wider, parts.late)
        before = results.inline(wider.after, parts.late)
        new = [results.builder.input(i).cast(w.type.dtype, RESULT) for w, i in zip(stored, places)]
        found = results.builder.program([*before, *new])
        fused = replace(wider, before=builder.program(values), after=found)
        return _Parts(fused, early, parts.late, [*parts.results, *stored, *parts.rest])

    # -- behind -------------------------------------------------------------------------------

    def _take_behind(self) -> bool:
        """Take in a node that reads a result."""
        for v in self.parts.results:
            for user in self.fgraph.user_nodes(v):
                if user in self.taken or not self._is_full(user.outputs[0]):
                    continue
                program = self.graph.program_of(user, self.node)
                if program is None or any(w.type.ndim != v.type.ndim for w in user.inputs):
                    continue
                own = self.parts.results
                rest = [w for w in user.inputs if w not in own and number_in(w) is None]
                if any(w in self.parts.outputs for w in rest):
                    continue
                if any(self.graph.depends(w, n) for w in rest for n in self.taken):
                    continue
                found = self._with_user(user, program, rest)
                if self._fits(found):
                    self.parts = found
                    self.taken.append(user)
                    return True
        return False

    def _with_user(self, user: Apply, program: ScalarProgram, rest: Sequence[Variable]) -> _Parts:
        """The parts with ``program`` behind the results."""
        parts = self.parts
        late = list(dict.fromkeys([*parts.late, *rest]))
        wider = _with_late(parts.op, late)
        results = _Results(wider, late)
        before = results.inline(wider.after, late)
        known = dict(zip(parts.results, before, strict=True))
        given = [known[w] if w in known else results.given(w) for w in user.inputs]
        found = results.builder.program([*before, *results.builder.inline(program, given)])
        outputs = [*parts.results, *user.outputs, *parts.rest]
        return _Parts(replace(wider, after=found), parts.early, late, outputs)

    # -- limits -------------------------------------------------------------------------------

    def _fits(self, parts: _Parts) -> bool:
        op = parts.op
        few = len(op.before.outputs) <= _MAX_VALUES and len(op.after.outputs) <= _MAX_RESULTS
        size = len(op.before.body) + len(op.after.body)
        inputs = len(parts.early) + len(parts.late)
        return few and inputs <= _MAX_INPUTS and size <= _MAX_INSTRUCTIONS

    def _without_unread(self) -> _Parts:
        """The parts without results and row values that no other node reads."""
        parts, op = self.parts, self.parts.op
        cut, sums = len(parts.results), len(parts.results) + len(op.kept)
        read = [i for i in range(sums) if self._others_read(parts.outputs[i])]
        results = replace(op.after, outputs=tuple(op.after.outputs[i] for i in read if i < cut))
        kept = tuple(op.kept[i - cut] for i in read if i >= cut)
        outputs = [*(parts.outputs[i] for i in read), *parts.outputs[sums:]]
        fused = replace(op, after=_with_inputs(results, 0, ()), kept=kept)
        return _Parts(fused, parts.early, parts.late, outputs)


def _whole(node: Apply) -> _Parts:
    """The parts of a norm alone."""
    op, outputs = node.op, list(node.outputs)
    if isinstance(op, LayerNorm):
        x, gamma, beta = node.inputs
        return _Parts(layer_norm_rows(op, x.type.dtype), [x], [gamma, beta], outputs)
    assert isinstance(op, LayerNormGrad)
    x, dy, gamma, mean, invstd = node.inputs
    rows = layer_norm_grad_rows(op, x.type.dtype, True)
    return _Parts(rows, [x, dy, mean], [gamma, invstd], outputs)


class _Results:
    """Builds a new ``after`` of an op from its values, row values and late inputs."""

    def __init__(self, op: FusedRows, late: Sequence[Variable]) -> None:
        self.late, self.known = list(late), len(op.before.outputs) + op.row_values
        self.builder = Builder(op.after.inputs)

    def inline(self, program: ScalarProgram, late: Sequence[Variable]) -> list[Scalar]:
        """The results of a program of all values and of ``late``."""
        before = [self.builder.input(i) for i in range(self.known)]
        return self.builder.inline(program, [*before, *map(self.given, late)])

    def given(self, v: Variable) -> Scalar:
        """A late input, or a number."""
        if v in self.late:
            return self.builder.input(self.known + self.late.index(v))
        return _constant(self.builder, v, number_in(v))


def _constant(builder: Builder, v: Variable, number: Any) -> Scalar:
    exact = v.exact  # type: ignore[attr-defined]
    if exact is None:
        return builder.const(number, v.type.dtype)
    return builder.const(exact, "float32").cast(v.type.dtype, RESULT)


def _given(builder: Builder, v: Variable, inputs: Sequence[Variable]) -> Scalar:
    number = number_in(v)
    return builder.input(inputs.index(v)) if number is None else _constant(builder, v, number)


def _with_inputs(program: ScalarProgram, at: int, dtypes: Sequence[str]) -> ScalarProgram:
    """The program with further inputs, which it does not read, before number ``at``."""
    builder = Builder([*program.inputs[:at], *dtypes, *program.inputs[at:]])
    numbers = [*range(at), *range(at + len(dtypes), len(builder.inputs))]
    return builder.program(builder.inline(program, [builder.input(i) for i in numbers]))


def _with_values(op: FusedRows, dtypes: Sequence[str]) -> FusedRows:
    """The op whose programs take further values, behind those there are."""
    at = len(op.before.outputs)

    def wider(program: ScalarProgram) -> ScalarProgram:
        return _with_inputs(program, at, dtypes)

    stages = tuple(replace(s, terms=wider(s.terms)) for s in op.stages)
    sums = None if op.sums is None else wider(op.sums)
    return replace(op, stages=stages, after=wider(op.after), sums=sums)


def _with_late(op: FusedRows, late: Sequence[Variable]) -> FusedRows:
    """The op whose stages and sums take these late inputs, the first ones as before."""
    dtypes = [v.type.dtype for v in late]

    def wider(program: ScalarProgram, known: int) -> ScalarProgram:
        more = dtypes[len(program.inputs) - known :]
        return _with_inputs(program, len(program.inputs), more)

    known, stages = len(op.before.outputs), []
    for stage in op.stages:
        stages.append(replace(stage, terms=wider(stage.terms, known)))
        known += len(stage.rows.outputs)
    sums = None if op.sums is None else wider(op.sums, known)
    return replace(op, stages=tuple(stages), after=wider(op.after, known), sums=sums)


RULES = (fuse_rows,)
