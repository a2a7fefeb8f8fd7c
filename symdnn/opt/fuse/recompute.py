"""Values that a later kernel computes again instead of reading them.

A gradient reads what the forward pass computed. Where such a value is cheap, and follows from
arrays that stay in memory until then anyway (``sigmoid(x)`` beside ``x``, a normalised row beside
the row and its norm), each group that reads it computes it again from those: it is never stored.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod

from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.array.reduce import Reduce
from symdnn.ops.core.gradient_control import Identity
from symdnn.ops.core.scalar import ScalarProgram
from symdnn.ops.core.shape import Alloc, DimShuffle, Reshape, ShapeI
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.lowered.lowered import neutral_of
from symdnn.ops.nn.batchnorm import LayerNorm, LayerNormGrad
from symdnn.ops.nn.softmax import LogSoftmax, LogSoftmaxGrad, Softmax, SoftmaxGrad
from symdnn.opt.fuse.groups import KERNEL_LIMIT_ADDITIONS, Group, Groups
from symdnn.rewriting.facts import all_ones, node_of

__all__ = ["VALUE_LIMIT_ADDITIONS", "Recomputed", "is_expanded", "is_small", "recomputed_values"]

#: Ops behind which a value is not far away: a kernel of rows may join what is before and behind.
_NEAR = (
    Elemwise, Reduce, DimShuffle, Reshape, ShapeI, Alloc, Identity, LayerNorm, LayerNormGrad,
    Softmax, SoftmaxGrad, LogSoftmax, LogSoftmaxGrad,
)  # fmt: skip
#: The cost, in additions, up to which a value is computed again, by kind of target: a processor
#: takes as long for an exponential as for reading it.
VALUE_LIMIT_ADDITIONS = {"cuda": 48, "cpu": 8}
#: The most nodes that are looked through for one value.
_MOST_NODES = 16
#: The part of an array that an operand of another shape (a norm of each row) may have.
_SMALL_PART = 8


@dataclass
class Recomputed:
    """``by_group``: what each group (by number) computes again; ``values``: what none stores."""

    by_group: list[dict[Variable, ScalarProgram]]
    values: set[Variable] = field(default_factory=set)


@dataclass
class _Again:
    """Nodes that a group computes again, each after what it reads, and what it reads for them."""

    nodes: list[Apply] = field(default_factory=list)
    reads: set[Variable] = field(default_factory=set)
    #: Nodes whose operands are looked at: each of them will be one of ``nodes``.
    begun: int = 0


def recomputed_values(groups: Groups, pieces: Sequence[Group]) -> Recomputed:
    """What the groups ``pieces`` compute again. A value is, by all that read it, or by none."""
    return _Search(groups, pieces).found


class _Search:
    """Goes through the stored values in topological order."""

    def __init__(self, groups: Groups, pieces: Sequence[Group]) -> None:
        self.groups, self.fgraph, self.pieces = groups, groups.fgraph, pieces
        self.found = Recomputed([{} for _ in pieces])
        self.number = {m.node: i for i, piece in enumerate(pieces) for m in piece}
        self.place = {node: i for i, node in enumerate(groups.order)}
        self.depth = _depths(groups.order)
        stored = [groups.stored_values(piece) for piece in pieces]
        self.stored = {v for values in stored for v in values}
        #: When a group runs: when the first of its results is needed.
        self.times = [min((self._place(v) for v in values), default=0) for values in stored]
        self.steps = [sum(len(m.program.body) for m in piece) for piece in pieces]
        self.added = [0] * len(pieces)
        self.reads = [groups.operands_of(piece) for piece in pieces]
        self.limit = VALUE_LIMIT_ADDITIONS.get(groups.context.target.kind, 0)
        for v in sorted(self.stored, key=self._place):
            self._decide(v)

    def _place(self, v: Variable) -> int:
        return -1 if v.owner is None else self.place[v.owner]

    def _program(self, node: Apply) -> ScalarProgram:
        return self.groups.members[node].program

    def _decide(self, v: Variable) -> None:
        readers = set() if all_ones(v) else self._readers(v)
        far = all(self._is_far(v, i) for i in readers)
        plans = {i: self._plan(v, i) for i in readers}
        if not plans or not all(plans.values()):
            return
        reads = {w for plan in plans.values() if plan is not None for w in plan.reads}
        if not far and not _is_spread(v, reads):
            return
        self.found.values.add(v)
        self.stored.discard(v)
        for i, plan in plans.items():
            assert plan is not None
            programs = [self._program(node) for node in plan.nodes]
            made = {node.outputs[0]: p for node, p in zip(plan.nodes, programs, strict=True)}
            self.found.by_group[i].update(made)
            self.reads[i] = (self.reads[i] - {v}) | plan.reads
            self.added[i] += sum(p.cost for p in programs)
            self.steps[i] += sum(len(p.body) for p in programs)

    def _readers(self, v: Variable) -> set[int]:
        """The other groups that read ``v``; none where anything else does."""
        own, found = self.number[node_of(v)], set[int]()
        pending = [v]
        while pending:
            w = pending.pop()
            if self.fgraph.is_output(w):
                return set()
            for user in self.fgraph.user_nodes(w):
                if user not in self.number:
                    return set()
                if self.number[user] != own:
                    found.add(self.number[user])
                if self.groups.widens(user, v):
                    pending += user.outputs
        return found

    def _is_far(self, v: Variable, group: int) -> bool:
        """Whether a product, or the like, is between ``v`` and a group of its own kind."""
        first = self.pieces[group][0]
        like = first.kind[1] == self.groups.members[node_of(v)].kind[1]
        return like and max(self.depth[m.node] for m in self.pieces[group]) > self.depth[node_of(v)]

    def _plan(self, v: Variable, group: int) -> _Again | None:
        """How ``group`` computes ``v``; None where that costs more than reading it."""
        again = _Again()
        if not self._add(v, v, group, again):
            return None
        programs = [self._program(node) for node in again.nodes]
        cost = sum(p.cost for p in programs)
        steps = self.steps[group] + sum(len(p.body) for p in programs)
        worth = cost <= self.limit and self.added[group] + cost <= KERNEL_LIMIT_ADDITIONS
        worth &= _bytes(again.reads - self.reads[group], v) <= _bytes([v], v)
        fits = self.groups.fits(len(self.reads[group] | again.reads), steps)
        return again if worth and fits else None

    def _add(self, w: Variable, v: Variable, group: int, again: _Again) -> bool:
        """Let ``group`` have ``w``, of which ``v`` is computed: False if that is not possible."""
        if w in self.found.by_group[group] or w.owner in again.nodes:
            return True
        if w in self.reads[group] - {v} or (w is not v and self._lasts(w, v, group)):
            again.reads.add(w)
            return True
        node = w.owner
        if node is None or len(node.outputs) != 1 or node not in self.number:
            return False
        if self.number[node] != self.number[node_of(v)]:
            return False
        again.begun += 1
        if again.begun > _MOST_NODES or not all(
            self._add(x, v, group, again) for x in self.groups.operands_of_node(node)
        ):
            return False
        again.nodes.append(node)
        return True

    def _lasts(self, w: Variable, v: Variable, group: int) -> bool:
        """Whether ``w`` is in memory when ``group`` runs, also if the group does not read it."""
        if w.owner is None or self.fgraph.is_output(w):
            return True
        if w.owner in self.number and w not in self.stored:
            return False
        if all_ones(w):
            return w.owner not in self.number
        users = (user for user in self.fgraph.user_nodes(w) if user is not v.owner)
        return not _is_like(w, v) or any(self._time(u) >= self.times[group] for u in users)

    def _time(self, node: Apply) -> int:
        number = self.number.get(node)
        return self.place[node] if number is None else self.times[number]


def _depths(order: Sequence[Apply]) -> dict[Apply, int]:
    """For each node the most products, and the like, on a path that ends in it."""
    found: dict[Apply, int] = {}
    for node in order:
        before = max((found[v.owner] for v in node.inputs if v.owner is not None), default=0)
        found[node] = before + (not isinstance(neutral_of(node.op), _NEAR))
    return found


def _is_like(w: Variable, v: Variable) -> bool:
    """Whether two arrays have the same broadcast pattern, so the same shape."""
    return bool(w.type.broadcastable == v.type.broadcastable)


def is_expanded(node: Apply) -> bool:
    """Whether all that a node reads is far smaller than its result, as in ``x[:, None] - y``."""
    return bool(node.inputs) and all(is_small(w, node.outputs[0]) for w in node.inputs)


def is_small(w: Variable, v: Variable) -> bool:
    """Whether ``w``, which broadcasts to ``v``, may be far smaller."""
    return isinstance(w, Constant) or _repeats(w, v) >= _SMALL_PART


def _repeats(w: Variable, v: Variable) -> int:
    """How often each element of ``w`` is read for ``v``, to which it broadcasts."""
    parts = zip(w.type.broadcastable, v.type.broadcastable, v.type.shape)
    return prod(_SMALL_PART if n is None else max(n, 1) for one, of, n in parts if one and not of)


def _is_spread(v: Variable, reads: Collection[Variable]) -> bool:
    """Whether all that ``v`` follows from is smaller, and not more bytes."""
    return not any(_is_like(w, v) for w in reads) and _bytes(reads, v) <= _bytes([v], v)


def _bytes(reads: Iterable[Variable], v: Variable) -> float:
    """Bytes of arrays for each element of ``v``, but for those that are small."""
    large = [w for w in reads if not is_small(w, v)]
    return float(sum(w.type.numpy.itemsize / _repeats(w, v) for w in large))
