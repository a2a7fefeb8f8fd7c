"""Norms of rows take the elementwise nodes before and behind them, in one node that reads once.

A layer norm of a sum (a residual connection) computes the sum, too; a cast of its result, or a sum
with its gradient, is computed from registers. Norms that are written as sums over rows and
elementwise nodes (RMS norm) are found, too. An elementwise node before the sums is taken in where
they read it whole; values of it that others read become results. Nodes behind are taken in where
their other operands do not depend on the norm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod
from typing import Any

from symdnn.config import config
from symdnn.graph.origin import inherit
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.core.dtype import is_narrow_float, work_dtype
from symdnn.ops.core.scalar import ScalarProgram
from symdnn.ops.core.shape import Alloc, DimShuffle, dimshuffle
from symdnn.ops.nn.batchnorm import LayerNorm, LayerNormGrad
from symdnn.opt.fuse.fuse import joined_origin
from symdnn.opt.fuse.groups import (
    GraphFacts,
    fusable_program,
    number_in,
    widened,
)
from symdnn.opt.fuse.row_parts import (
    RowNodes,
    RowParts,
    fold_of,
    of_fold,
    of_norm,
    of_softmax,
    softmax_of,
)
from symdnn.opt.fuse.siblings import part_over
from symdnn.rewriting.facts import node_of
from symdnn.rewriting.rewrite import Context, graph_rewrite

__all__ = ["RULES", "fuse_rows"]

#: Limits of a kernel: live values of an element, results, sums over rows, operands, instructions.
_MAX_VALUES, _MAX_RESULTS, _MAX_SUMS, _MAX_INPUTS, _MAX_INSTRUCTIONS = 4, 6, 3, 12, 100
#: Shorter rows have too few elements for a thread.
_SHORT_ROW = 8


@graph_rewrite("fuse", tags=("fusion",), name="fuse_rows")
def fuse_rows(context: Context) -> None:
    """Sums over rows become one node with their elementwise neighbours."""
    if context.target.kind != "cuda":
        return
    order = context.fgraph.toposort()
    graph: _Graph | None = None
    for node in order:
        if not (_is_norm_of_rows(node) or _is_softmax_of_rows(node) or _reduces_rows(node)):
            continue
        graph = graph or _Graph(context, order)
        if node in context.fgraph.nodes and graph.is_ours(node):
            _Neighbours(graph, node).join()


def _is_norm_of_rows(node: Apply) -> bool:
    """Whether it is a norm over the last axes, with parameters by columns."""
    op: Any = node.op
    if not isinstance(op, LayerNorm | LayerNormGrad):
        return False
    x = node.inputs[0].type
    first = x.ndim - len(op.axes)
    if tuple(op.axes) != tuple(range(first, x.ndim)):
        return False
    if isinstance(op, LayerNormGrad):
        one, x_one = node.inputs[2].type.broadcastable, x.broadcastable
        if not all(one[:first]) or one[first:] != x_one[first:]:
            return False
    return True


def _is_softmax_of_rows(node: Apply) -> bool:
    """Whether it is a softmax, or a gradient of one, that is not left to cuDNN."""
    found = None if _is_left_to_cudnn(node) else softmax_of(node)
    if found is None:
        return False
    shape = found[1][0].type.shape
    return len(shape) > 1 and (shape[-1] is None or shape[-1] >= _SHORT_ROW)


def _is_left_to_cudnn(node: Apply) -> bool:
    return str(config.gpu.prefer) == "cudnn" or node.hints.backend == "cudnn"


def _reduces_rows(node: Apply) -> bool:
    """Whether a node reduces the last axes, where they are not known to be short."""
    fold = None if _is_left_to_cudnn(node) else fold_of(node, narrow=True)
    if fold is None:
        return False
    types = [v.type for v in node.inputs]
    ndim = max(t.ndim for t in types)
    if not ndim - len(fold.axes) > 0 or any(t.ndim != ndim for t in types):
        return False
    known = [[t.shape[i] for t in types if t.shape[i] != 1] for i in fold.axes]
    row = _known_size((*d, 1)[0] for d in known)
    last = fold.axes == tuple(range(ndim - len(fold.axes), ndim))
    return last and (row is None or row >= _SHORT_ROW)


def _known_size(dims: Iterable[int | None]) -> int | None:
    found = list(dims)
    return None if None in found else prod(d for d in found if d is not None)


class _Graph(GraphFacts):
    """Neighbours in a graph, and dependences between nodes.

    A node with an ordered effect depends on the effect before it, too.
    """

    def is_beside(self, node: Apply | None, other: Apply) -> bool:
        """Whether a node of the target is needed in the same calls as ``other``."""
        if node is None or node not in self.numbers or node not in self.fgraph.nodes:
            return False
        return self.is_ours(node) and self.paths[node] == self.paths[other]

    def depends(self, v: Variable, node: Apply) -> bool:
        """Whether ``v`` is computed from results of ``node``."""
        first = self.first[node]
        stack, seen = [] if v.owner is None else [v.owner], set()
        while stack:
            n = stack.pop()
            if n is node:
                return True
            # A joined node has no number: its inputs are used.
            if n not in seen and self.numbers.get(n, first) >= first:
                seen.add(n)
                stack += self.behind(n)
        return False


class _Neighbours:
    """Sums over rows, and the nodes that are taken in."""

    def __init__(self, graph: _Graph, node: Apply) -> None:
        self.graph, self.node = graph, node
        self.fgraph = graph.fgraph
        self.taken: list[Apply] = [node]
        #: The results of those that are made of what is taken in, a reduction over rows alone.
        self.made: dict[Apply, list[Variable]] = {}
        self.widens = False  # whether it does a cast to float32, which others may do, too
        self.behind = False  # whether it has a node behind the sums
        patterns = [v.type.broadcastable for v in node.inputs]
        self.pattern = tuple(all(p[i] for p in patterns) for i in range(len(patterns[0])))
        fold, softmax = fold_of(node, narrow=True), softmax_of(node)
        self.has_result = fold is None
        if fold is not None:
            self.parts = of_fold(node, fold, self._is_full)
        else:
            self.parts = of_norm(node) if softmax is None else of_softmax(node, *softmax)

    def join(self) -> None:
        """Make one node of all, if there are neighbours to take in."""
        joins = self.has_result or any(self._users()) or self._has_later_fold()
        if not (joins and self.parts.early):
            return
        while (
            self._take_before()
            or self._take_sums(over_rows=True)
            or self._take_row_node()
            or self._take_gradient()
            or self._take_behind()
            or self._take_sums(over_rows=False)
        ):
            pass
        parts, context = self.parts.only(self._others_read), self.graph.context
        some = len(self.taken) > 1 or self.widens
        fuses = context.capabilities.fuses(parts.op, context.target.kind)
        wanted = (self.has_result or self.behind) if parts.results else len(parts.op.stages) > 1
        if not (some and fuses and wanted):
            return
        for whole, made in self.made.items():
            context.replace(zip(whole.outputs, made, strict=True), "fuse_rows")
        with inherit(joined_origin(self.taken), self.node.hints):
            pairs = list(parts.made())
        context.replace(pairs, "fuse_rows")
        self.graph.replaced([node_of(new) for _, new in pairs], self.taken)

    def _has_later_fold(self) -> bool:
        """Whether another node reduces the same rows, perhaps with values of this one's."""
        users = {user for v in self.parts.early for user in self.fgraph.user_nodes(v)}
        folds = (fold_of(user, narrow=True) for user in users - {self.node})
        return any(f is not None and f.axes == self.parts.op.axes for f in folds)

    def _others_read(self, v: Variable) -> bool:
        ours = v.owner is not None and v.owner not in self.fgraph.nodes
        return ours or any(user not in self.taken for user, _ in self.fgraph.users(v))

    def _is_full(self, v: Variable) -> bool:
        return not isinstance(v, Constant) and v.type.broadcastable == self.pattern

    def _program(self, node: Apply | None) -> ScalarProgram | None:
        """The program of an elementwise node that may be taken in."""
        if node is None or node in self.taken or not self.graph.is_beside(node, self.node):
            return None
        program = fusable_program(node)  # only of tensors
        if program is None or len({v.type.ndim for v in (*node.inputs, *node.outputs)}) > 1:
            return None
        return program

    def _may_read(self, late: Iterable[Variable]) -> bool:
        """Whether these operands do not depend on a node that is taken in."""
        return not any(self.graph.depends(w, n) for w in late for n in self.taken)

    def _take(self, node: Apply, parts: RowParts) -> bool:
        """Add a node if the parts stay within the limits and do not depend on it."""
        op = parts.op
        counts = (
            len(op.before.outputs) <= _MAX_VALUES,
            len(op.after.outputs) <= _MAX_RESULTS,
            op.sums is None or len(op.sums.outputs) <= _MAX_SUMS,
            len(parts.early) + len(parts.late) <= _MAX_INPUTS,
            len(op.before.body) + len(op.after.body) <= _MAX_INSTRUCTIONS,
        )
        inputs = (*parts.early, *parts.late)
        fits = all(counts) and not any(self.graph.depends(w, node) for w in inputs)
        if fits:
            self.parts = parts
            self.taken.append(node)
        return fits

    # -- before -------------------------------------------------------------------------------

    def _take_before(self) -> bool:
        """Take in a node that makes an early input."""
        for v in self.parts.early:
            maker = v.owner
            if maker is not None and self._is_filled(v):
                self.parts, self.widens = self.parts.with_number(v, maker.inputs[0]), True
                return True
            program = self._program(maker) if self._is_full(v) else None
            if maker is None or program is None:
                continue
            if widened(v) is not None:
                self.parts, self.widens = self.parts.with_maker(maker, program, ()), True
                return True
            stored = [w for w in maker.outputs if self._others_read(w)]
            apart = any(w.owner is maker for w in self.parts.late)
            if apart or not all(self._is_value(w) for w in stored):
                continue
            if self._take(maker, self.parts.with_maker(maker, program, stored)):
                return True
        return False

    def _is_filled(self, v: Variable) -> bool:
        """Whether all elements are one number, and another input has the size."""
        filled = v.owner is not None and isinstance(v.owner.op, Alloc)
        others = [w for w in self.parts.early if w is not v and self._is_full(w)]
        return filled and bool(others) and number_in(node_of(v).inputs[0]) is not None

    def _is_value(self, v: Variable) -> bool:
        """Whether a value of the dtype of computation has all of ``v``."""
        return v.type.dtype == self.parts.op.work or is_narrow_float(v.type.dtype)

    # -- row values ---------------------------------------------------------------------------

    def _take_row_node(self) -> bool:
        """Add a node whose inputs are row values."""
        rows = self.parts.rows
        for v in rows:
            for user in self.fgraph.user_nodes(v):
                program = None if self._is_full(user.outputs[0]) else self._program(user)
                known = all(w in rows or isinstance(w, Constant) for w in user.inputs)
                work = all(w.type.dtype == self.parts.op.work for w in user.outputs)
                known &= all(self.parts.knows(w) for w in user.inputs)
                if program is None or not (known and work):
                    continue
                if self._take(user, self.parts.with_row_node(user, program)):
                    return True
        return False

    def _row_nodes(self, v: Variable, found: RowNodes) -> bool:
        """Add the nodes by which ``v`` follows from row values; False if it does not."""
        node, rows = v.owner, self.parts.rows
        program = None if self._is_full(v) else self._program(node)
        if node is None or program is None:
            return False
        if node in found.programs:
            return True
        following = [w for w in node.inputs if w in rows or self._row_nodes(w, found)]
        if following:
            found.programs[node] = program
            for w in node.inputs:
                if w not in following and not self.parts.knows(w):
                    ones = ["x"] * (len(self.pattern) - w.type.ndim)
                    found.padded[w] = dimshuffle(w, (*range(w.type.ndim), *ones)) if ones else w
        return bool(following)

    # -- behind -------------------------------------------------------------------------------

    def _users(self) -> Iterator[Apply]:
        """Elementwise nodes of whole arrays that read results, or values computed from
        row values.
        """
        pending, seen = [*self.parts.results, *self.parts.rows], set[Apply]()
        while pending:
            for user in self.fgraph.user_nodes(pending.pop()):
                if user in seen or user in self.taken:
                    continue
                seen.add(user)
                if isinstance(user.op, DimShuffle):
                    pending += user.outputs
                elif self._program(user) is not None:
                    if self._is_full(user.outputs[0]):
                        yield user
                    elif user.outputs[0].type.ndim <= len(self.pattern):
                        pending += user.outputs

    def _take_behind(self) -> bool:
        """Add a node that reads results, or row values together with arrays that are read
        anyway.
        """
        parts = self.parts
        near = {*parts.results, *parts.held, *parts.early}
        for user in self._users():
            program = self._program(user)
            if program is None or not any(w in near and self._is_full(w) for w in user.inputs):
                continue
            if self._take_elementwise(user, program):
                self.behind = True
                return True
        return False

    def _take_elementwise(self, node: Apply, program: ScalarProgram) -> bool:
        """Add a node of the size of the rows; its operands that are not known become late ones."""
        parts, between, late = self.parts, RowNodes(), []
        for w in node.inputs:
            if not parts.knows(w) and not self._row_nodes(parts.row_behind(w), between):
                late.append(w)
        may = self._may_read([*late, *between.padded.values()])
        return may and self._take(node, parts.with_user(node, program, late, between))

    def _take_gradient(self) -> bool:
        """Add the gradient of a softmax of results or values, which are then not stored."""
        parts = self.parts
        for v in (*parts.results, *parts.held):
            for user in self.fgraph.user_nodes(v):
                softmax = None if user in self.taken else softmax_of(user)
                if softmax is None or len(softmax[1]) < 2:
                    continue
                op, given = softmax
                alike = all(w.type.ndim == v.type.ndim for w in given)
                rows = parts.op.axes == (op.axis,) and self._is_full(user.outputs[0])
                same = work_dtype(user.outputs[0].type.dtype) == parts.op.work
                if not (alike and rows and same and self.graph.is_beside(user, self.node)):
                    continue
                if not all(map(self._is_at_hand, given)):
                    continue
                if self._take(user, self.parts.with_gradient(user, op, given)):
                    self.behind = True
                    return True
        return False

    def _is_at_hand(self, v: Variable) -> bool:
        """Whether an operand is known or read; an elementwise node that makes it is taken in."""
        if self.parts.knows(v) or v in self.parts.late:
            return True
        program = self._program(v.owner) if self._is_full(v) else None
        return program is not None and self._take_elementwise(node_of(v), program)

    def _long_axes(self, axes: Iterable[int]) -> tuple[int, ...]:
        """Those of some axes whose size is not statically 1."""
        return tuple(i for i in axes if not self.pattern[i])

    def _take_sums(self, over_rows: bool) -> bool:
        """Take in reductions of values or results: over rows, or sums over all other axes.

        One over rows and other axes is one of row values.
        """
        parts = self.parts
        others = self._long_axes(range(parts.op.axes[0]))
        for v in (*parts.results, *parts.held):
            for user in self.fgraph.user_nodes(v):
                fold = None if user in self.taken else fold_of(user, narrow=over_rows)
                if fold is None or not self.graph.is_beside(user, self.node):
                    continue
                known = all(parts.knows(w) and w.type.ndim == v.type.ndim for w in user.inputs)
                if not known or fold.work != parts.op.work:
                    continue
                part, made = user, list[Variable]()
                if over_rows and set(fold.axes) > set(parts.op.axes) and fold_of(user):
                    part, made = part_over(user, parts.op.axes) or (user, [])
                    fold = fold_of(part) or fold
                if over_rows and fold.axes == parts.op.axes:
                    found = parts.with_fold(part, fold)
                elif not over_rows and self._long_axes(fold.axes) == others and fold.adds:
                    found = parts.with_column_sums(user, fold)
                else:
                    continue
                if self._take(user, found):
                    self.made |= {user: made} if made else {}
                    return True
        return False


RULES = (fuse_rows,)
