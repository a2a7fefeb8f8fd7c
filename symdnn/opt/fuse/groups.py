"""The fusion groups of a graph: which elementwise nodes are computed together.

A group is a set of nodes of one shape that are computed together, element by element. Values that
only the group reads are never stored. A group must not depend on itself through a node outside of
it. Levels ensure that: an edge inside a group keeps the level and every other edge raises it, so a
path that leaves a group never comes back to its level. This takes one pass over the graph and no
search for cycles. Nodes with ordered effects have levels in their order, so that no group is
computed behind one of them and read before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from symdnn.graph.origin import Hints
from symdnn.graph.traverse import in_written_order
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.array.argreduce import ArgExtreme
from symdnn.ops.array.reduce import Reduce
from symdnn.ops.core.dtype import is_narrow_float
from symdnn.ops.core.scalar import REFERENCE_ONLY, Builder, ScalarProgram, identity_program
from symdnn.ops.core.shape import DimShuffle
from symdnn.ops.elementwise.arithmetic import Cast
from symdnn.ops.elementwise.complex_meaning import complex_meaning, part_dtypes
from symdnn.ops.elementwise.scalar_meaning import meaning
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.lowered.fused import FusedElemwise, FusedReduce, fused_elementwise
from symdnn.ops.lowered.lowered import neutral_of
from symdnn.opt.fuse.branches import branch_paths, effects_among
from symdnn.opt.fuse.transfer import Places
from symdnn.rewriting.facts import all_ones, node_of
from symdnn.rewriting.rewrite import Context

__all__ = [
    "FUSABLE_BACKENDS", "KERNEL_LIMIT_ADDITIONS", "MAX_INPUTS", "MAX_INSTRUCTIONS",
    "MAX_REDUCTIONS", "GraphFacts", "Group", "Groups", "Member", "fusable_program", "number_in",
    "reduction_in", "reductions_in", "scalar_behind", "widened",
]  # fmt: skip

#: Limits of a fused kernel: operands (pointers among its parameters), results, and instructions
#: (whose values need registers).
MAX_INPUTS, MAX_OUTPUTS, MAX_INSTRUCTIONS = 24, 8, 400
#: The most that a kernel computes again, in additions.
KERNEL_LIMIT_ADDITIONS = 192
#: The most reductions of one kernel.
MAX_REDUCTIONS = 4
#: Values of a hint's ``backend`` with which elementwise nodes are fused. ``cudnn`` and ``onednn``
#: are among them, since the epilogues of their ops are taken from elementwise groups.
FUSABLE_BACKENDS = (None, "cuda", "nn", "cudnn", "onednn")


def _elementwise_hints(hints: Hints) -> tuple[str | None, str | None]:
    """The hints that have an effect on an elementwise op, for comparison."""
    return hints.name, hints.precision


def _is_view_of_leaf(v: Variable) -> bool:
    """Whether ``v`` is a leaf or a dimshuffle of one, which no group computes."""
    while v.owner is not None and isinstance(v.owner.op, DimShuffle):
        v = v.owner.inputs[0]
    return v.owner is None


def fusable_program(node: Apply) -> ScalarProgram | None:
    """The scalar program of an elementwise node; None where it cannot be fused."""
    op = node.op
    if isinstance(op, FusedElemwise):
        return op.program
    return _program_by(meaning, node)


def _program_by(
    meaning_of: Callable[[Elemwise, tuple[str, ...]], ScalarProgram | None], node: Apply
) -> ScalarProgram | None:
    op = node.op
    if not isinstance(op, Elemwise) or op.unmergeable:
        return None
    if node.hints.backend not in FUSABLE_BACKENDS:
        return None
    if not all(isinstance(v.type, TensorType) for v in node.inputs):
        return None
    program = meaning_of(op, tuple(v.type.dtype for v in node.inputs))
    if program is None or program.names & REFERENCE_ONLY:
        return None
    # Flags that decide the dtype may have changed since the node was made.
    made = part_dtypes(node.outputs[0].type.dtype)
    return program if program.output_dtypes == made else None


@dataclass
class Member:
    """A node that may be fused, with its program. Only nodes of equal ``kind`` are fused.

    The kind is (broadcast pattern, hints, path of lazy branches). An elementwise node and its
    operands of equal broadcast pattern have equal shapes, since unknown sizes must agree.
    """

    node: Apply
    program: ScalarProgram
    kind: Any


class GraphFacts:
    """Where the nodes of a graph run, in which order, and which branches need them."""

    def __init__(self, context: Context, order: list[Apply]) -> None:
        self.context, self.fgraph = context, context.fgraph
        self.places = Places(context.fgraph, context.target, inner=context.inner)
        self.paths = branch_paths(context.fgraph, order)
        effects = effects_among(order)
        written = in_written_order(order, effects)
        #: Places in an order of all nodes; what was made later has none.
        self.numbers = {node: i for i, node in enumerate(written)}
        chain = [node for node in written if node in effects]
        #: For a node with an ordered effect the one before it.
        self.before = dict(zip(chain[1:], chain))
        #: What depends on a node has no smaller number than this.
        self.first = dict(self.numbers)

    def is_ours(self, node: Apply) -> bool:
        """Whether a node runs on the target, without a hint for a library."""
        on_target = self.places(node) == self.context.target.place
        return on_target and node.hints.backend in FUSABLE_BACKENDS

    def replaced(self, made: Iterable[Apply], old: Iterable[Apply]) -> None:
        """Know that nodes have taken the place of others.

        What reads one of them depends on all that is behind it, which may have larger numbers.
        """
        first, pending = min(self.first[n] for n in old), list(made)
        while pending:
            node = pending.pop()
            if self.first.get(node, first + 1) > first:
                self.first[node] = first
                pending += self.behind(node)

    def behind(self, node: Apply) -> list[Apply]:
        """The nodes that run before a node: those of its inputs, and the effect before it."""
        before = self.before.get(node)
        made = [v.owner for v in node.inputs if v.owner is not None]
        return made if before is None else [*made, before]


Group = list[Member]


class Groups:
    """The fusion groups of a graph. ``group`` maps each member to its group's representative."""

    def __init__(self, context: Context) -> None:
        self.context, self.fgraph = context, context.fgraph
        self.order = self.fgraph.toposort()
        self.places = Places(self.fgraph, context.target, inner=context.inner)
        self.paths = branch_paths(self.fgraph, self.order)
        self.members: dict[Apply, Member] = {}
        self.levels: dict[Apply, int] = {}
        self._fuses_cache: dict[int, bool] = {}  # by identity: ops and nodes keep programs
        self._effects = 0  # the level of the last ordered effect
        effects = effects_among(self.order)
        self.order = in_written_order(self.order, effects)
        for node in self.order:
            self._consider(node, node in effects)
        self.group = self._joined_groups()
        #: The level of each group; the node that represents it may join another one.
        self.group_levels = {root: self.levels[root] for root in self.group.values()}
        self._join_readers()
        self._join_later()

    def _consider(self, node: Apply, effect: bool) -> None:
        """Compute the level and the membership of a node, whose inputs have theirs already."""
        member = self._member(node)
        if member is not None:
            self.members[node] = member
        level = 0
        for v in node.inputs:
            if v.owner is not None and not _is_view_of_leaf(v):
                inside = member is not None and self._kind(v.owner) == member.kind
                level = max(level, self.levels[v.owner] + (not inside))
        if effect:
            self._effects = level = max(level, self._effects)
        self.levels[node] = level

    def _member(self, node: Apply) -> Member | None:
        if self.places(node) != self.context.target.place or node in self.places.read_on_host:
            return None
        program = fusable_program(node) or _program_by(complex_meaning, node)
        if program is None or not self._fuses(node, program):
            return None
        pattern = node.outputs[0].type.broadcastable
        return Member(node, program, (pattern, _elementwise_hints(node.hints), self.paths[node]))

    def _fuses(self, node: Apply, program: ScalarProgram) -> bool:
        """Whether the target has generated kernels for a program; cached by program."""
        found = self._fuses_cache.get(id(program))
        if found is None:
            fuses, kind = self.context.capabilities.fuses, self.context.target.kind
            dtypes = [[v.type.dtype for v in vs] for vs in (node.inputs, node.outputs)]
            found = fuses(fused_elementwise(program, *dtypes), kind)
            self._fuses_cache[id(program)] = found
        return found

    def _kind(self, node: Apply) -> Any:
        member = self.members.get(node)
        return None if member is None else member.kind

    # -- groups -------------------------------------------------------------------------------

    def _joined_groups(self) -> dict[Apply, Apply]:
        """For each member the representative of its group, by union-find.

        Joined are the two ends of an edge within a level, and readers of one array of their shape
        on one level.
        """
        parent = {node: node for node in self.members}
        self.alone = {node for node in self.members if self._is_summed_apart(node)}

        def root(node: Apply) -> Apply:
            while parent[node] is not node:
                parent[node] = parent[parent[node]]
                node = parent[node]
            return node

        readers: dict[Any, Apply] = {}
        for node, member in self.members.items():
            if node in self.alone:
                continue
            here = (self.levels[node], member.kind)
            for v in node.inputs:
                maker = v.owner
                if maker in self.members and (self.levels[maker], self._kind(maker)) == here:
                    parent[root(maker)] = root(node)
                elif not isinstance(v, Constant) and v.type.broadcastable == member.kind[0]:
                    parent[root(readers.setdefault((v, here), node))] = root(node)
        return {node: root(node) for node in self.members}

    def _is_summed_apart(self, node: Apply) -> bool:
        """Whether only reductions read a node's result, and would rather compute it themselves.

        That is, of operands that are in memory anyway, of fewer bytes than the result is written
        and read with. Sums by columns are added where their operand is computed (``column_sums``).
        """
        (v,) = node.outputs if len(node.outputs) == 1 else (None,)
        if v is None or self.context.target.kind != "cuda":
            return False
        users = [user for user, _ in self.fgraph.users(v)]
        ops = [op for user in users if user is not None and (op := reduction_in(user))]
        same = len({(op.axes, op.keepdims) for op in ops}) == 1 and len(ops) <= MAX_REDUCTIONS
        if not same or len(ops) < len(users):
            return False
        pattern = v.type.broadcastable
        long = [a for a, one in enumerate(pattern) if not one]
        summed = [a for a in long if a in ops[0].axes]
        if summed == long[: len(summed)] or v.type.ndim - 1 in ops[0].axes:
            return False  # by columns; or over rows, which kernels of rows take in
        full = [w for w in self.operands_of_node(node) if w.type.broadcastable == pattern]
        nbytes = sum(w.type.numpy.itemsize for w in dict.fromkeys(full))
        return nbytes <= 2 * v.type.numpy.itemsize and all(
            self._is_in_memory(w, node) for w in full
        )

    def _is_in_memory(self, v: Variable, reader: Apply) -> bool:
        """Whether a value is stored whatever group ``reader`` is in, or computed again."""
        if v.owner is None or v.owner not in self.members or self.fgraph.is_output(v):
            return True
        here = (self.levels[v.owner], self._kind(v.owner))
        pending, elsewhere = list(self.fgraph.users(v)), here != (
            self.levels[reader], self._kind(reader),
        )  # fmt: skip
        while pending and not elsewhere:
            user, _ = pending.pop()
            if user is not None and self.widens(user, v):
                pending += self.fgraph.users(user.outputs[0])
            elif user not in self.members:
                elsewhere = user is None or reduction_in(user) is None
            else:
                elsewhere = here != (self.levels[user], self._kind(user))
        return elsewhere

    def _join_readers(self) -> None:
        """Nodes whose results only one later group reads join it, so that nothing is stored.

        All inputs of such a node have lower levels than the node, so than the later group.
        """
        for node in reversed(self.order):
            member = self.members.get(node)
            if member is None or any(self.fgraph.is_output(v) for v in node.outputs):
                continue
            users = {u for v in node.outputs for u in self.fgraph.user_nodes(v)}
            found = {self.group.get(u) for u in users}
            (target,) = found if len(found) == 1 else (None,)
            if target is not None and self._kind(target) == member.kind:
                self.group[node], self.levels[node] = target, self.group_levels[target]

    def _join_later(self) -> None:
        """A group joins a later one that reads its results or what it reads, of equal shapes.

        Nothing on or below the later one's level may read it, so nothing between them does.
        """
        found: dict[Apply, list[Apply]] = {}
        readers: dict[Any, list[Apply]] = {}  # of whole arrays
        for node, member in self.members.items():
            found.setdefault(self.group[node], []).append(node)
            for v in node.inputs:
                if not isinstance(v, Constant) and v.type.broadcastable == member.kind[0]:
                    readers.setdefault((v, member.kind), []).append(node)
        level, levels = self.group_levels.__getitem__, self.levels
        for first in sorted(found, key=level, reverse=True):
            kind, group = self._kind(found[first][0]), found[first]
            low, high = levels[group[0]], self._first_use(group)
            near = {u for n in group for v in (*n.inputs, *n.outputs)
                    for u in readers.get((v, kind), ()) if low < levels[u] <= high}  # fmt: skip
            later = {self.group[u] for u in near}
            for target in sorted(later, key=level):
                if self._may_join(group, found[target]):
                    found[target] += found.pop(first)
                    for node in group:
                        self.group[node], self.levels[node] = target, level(target)
                    break

    def _first_use(self, group: list[Apply]) -> float:
        """The lowest level of nodes beside a group that read it, which it cannot be computed above.

        An array that all steps of a long graph read has a group of readers for each of them.
        """
        users = {u for n in group for v in n.outputs for u in self.fgraph.user_nodes(v)}
        return min((self.levels[u] for u in users.difference(group)), default=math.inf)

    def _may_join(self, group: list[Apply], later: list[Apply]) -> bool:
        """Whether a group can be computed with a later one, in one kernel."""
        level, both = self.levels[later[0]], {*group, *later}
        if not self.alone.isdisjoint(both):
            return False
        users = {u for n in group for v in n.outputs for u, _ in self.fgraph.users(v)} - both
        if any(u is not None and self.levels[u] <= level for u in users):
            return False
        piece = [self.members[n] for n in both]
        reads = {v for m in piece for v in m.node.inputs if v.owner not in both}
        few = self._stores_few(piece) and len(reads) <= MAX_INPUTS
        return few and sum(len(m.program.body) for m in piece) <= MAX_INSTRUCTIONS

    def reads_widened(self, node: Apply) -> bool:
        """Whether a node reads a cast from 16 bits that a fused kernel would do on reading."""
        return any(widened(v) is not None and v.owner in self.members for v in node.inputs)

    def groups(self) -> list[Group]:
        """Members of each group in topological order, split to sizes that a kernel can have."""
        found: dict[Apply, list[Member]] = {}
        for node in self.order:
            if node in self.members:
                found.setdefault(self.group[node], []).append(self.members[node])
        return [piece for group in found.values() for piece in self._split(group)]

    def _split(self, group: Group) -> list[Group]:
        pieces: list[Group] = []
        piece: Group = []
        inputs, own = set[Variable](), set[Apply]()
        size = 0
        for member in group:
            reads = {v for v in member.node.inputs if not isinstance(v, Constant)}
            wanted = inputs | {v for v in reads if v.owner not in own}
            steps = size + len(member.program.body)
            if piece and (len(wanted) > 2 * MAX_INPUTS or steps > MAX_INSTRUCTIONS):
                pieces.append(piece)
                piece, wanted, steps = [], reads, len(member.program.body)
                own = set()
            piece.append(member)
            own.add(member.node)
            inputs, size = wanted, steps
        pieces.append(piece)
        return [small for p in pieces for small in self._halved(p)]

    def _halved(self, piece: Group) -> list[Group]:
        """The piece, halved until its operands and results are within the limits."""
        own = {m.node for m in piece}
        reads = {v for m in piece for v in m.node.inputs if v.owner not in own}
        few = self._stores_few(piece) and len(reads) <= MAX_INPUTS
        if few or len(piece) == 1:
            return [piece]
        middle = len(piece) // 2
        return self._halved(piece[:middle]) + self._halved(piece[middle:])

    def _stores_few(self, piece: Group) -> bool:
        """Whether a kernel can store the results of a piece, but for those of which only sums of
        everything are taken: these compute them again (``apart``)."""
        stored, own = self.stored_values(piece), {m.node for m in piece}
        cheap = sum(m.program.cost for m in piece) <= KERNEL_LIMIT_ADDITIONS
        if len(stored) > MAX_OUTPUTS and cheap and self.context.target.kind == "cuda":
            stored = [v for v in stored if not self._is_summed_whole(v, own)]
        return len(stored) <= MAX_OUTPUTS

    def _is_summed_whole(self, v: Variable, own: set[Apply]) -> bool:
        """Whether all that others read of ``v`` are reductions over all axes."""
        long = {a for a, one in enumerate(v.type.broadcastable) if not one}
        ops = [None if u is None else reduction_in(u) for u in self._readers_outside(v, own)]
        return all(op is not None and long <= {*op.axes} for op in ops)

    @staticmethod
    def fits(operands: int, instructions: int) -> bool:
        """Whether one kernel may have so many."""
        return operands <= MAX_INPUTS and instructions <= MAX_INSTRUCTIONS

    def operands_of(self, group: Sequence[Member]) -> set[Variable]:
        """What the kernel of a group reads, but for scalars that it may compute again."""
        own = {m.node for m in group}
        found = {w for m in group for w in self.operands_of_node(m.node) if w.owner not in own}
        return found

    def operands_of_node(self, node: Apply) -> list[Variable]:
        """What a kernel reads for a node: no numbers, and the narrow values behind wide ones."""
        read = [v for v in node.inputs if number_in(v) is None]
        narrow = [v if (w := widened(v)) is None else w for v in read]
        return [v for v in narrow if number_in(v) is None]

    def widens(self, node: Apply, v: Variable) -> bool:
        """Whether a node casts ``v`` from 16 bits, as each kernel that reads it would."""
        return any(widened(w) is v for w in node.outputs)

    def stored_values(self, group: Sequence[Member]) -> list[Variable]:
        """Values of a group that others read, except widened ones that others can widen."""
        own = {m.node for m in group}
        return [v for m in group for v in m.node.outputs if self._is_stored(v, own)]

    def _is_stored(self, v: Variable, own: set[Apply]) -> bool:
        others = self._readers_outside(v, own)
        if widened(v) is None:
            return bool(others) or any(
                self._is_widened_outside(node.outputs[0], own)
                for node in self.fgraph.user_nodes(v)
                if node in own and widened(node.outputs[0]) is v
            )
        outside = [u for u in others if u not in self.members]
        return bool(outside) and not self._widened_by(outside, v)

    def _is_widened_outside(self, wide: Variable, own: set[Apply]) -> bool:
        """Whether other groups or reductions read the narrow value in place of this one."""
        outside = self._readers_outside(wide, own)
        return bool(outside) and (
            any(u in self.members for u in outside) or not self._is_stored(wide, own)
        )

    def _readers_outside(self, v: Variable, own: set[Apply]) -> set[Apply | None]:
        return {user for user, _ in self.fgraph.users(v) if user not in own}

    def _widened_by(self, readers: Sequence[Apply | None], v: Variable) -> bool:
        """Whether all readers are reductions whose kernel will widen the narrow value itself."""
        found = [None if r is None else reduction_in(r) for r in readers]
        ops = [op for op in found if op is not None]
        if len(ops) < len(found):
            return False
        chosen = Builder([node_of(v).inputs[0].type.dtype])
        wide = chosen.cast(chosen.input(0), v.type.dtype)
        parts: dict[Any, list[Reduce]] = {}
        for op in ops:
            parts.setdefault((op.axes, op.keepdims), []).append(op)
        kind, fuses = self.context.target.kind, self.context.capabilities.fuses
        return all(
            len(part) <= MAX_REDUCTIONS
            and fuses(FusedReduce(chosen.program([wide] * len(part)), tuple(part)), kind)
            for part in parts.values()
        )


def widened(v: Variable) -> Variable | None:
    """The 16-bit operand, if ``v`` is a cast of one to float32; else None.

    Every kernel does this cast on reading, so the float32 value need not be stored.
    """
    if v.owner is None or not isinstance(v.owner.op, Cast) or v.owner.hints:
        return None
    x = v.owner.inputs[0]
    return x if is_narrow_float(x.type.dtype) and v.type.dtype == "float32" else None


def number_in(v: Variable) -> Any:
    """The number of a constant of one element; None for anything else."""
    if isinstance(v, Constant) and v.data.size == 1 and not v.type.is_complex:
        return v.data.reshape(())
    return None


def scalar_behind(v: Variable) -> Variable | None:
    """The variable that ``v``, of static sizes 1, is a dimshuffle of; None for other sizes."""
    if not isinstance(v.type, TensorType) or not all_ones(v):
        return None
    while v.owner is not None and isinstance(v.owner.op, DimShuffle):
        v = v.owner.inputs[0]
    return v


def reduction_in(node: Apply) -> Reduce | None:
    """The neutral reduction of a node, if a generated kernel can run it; else None."""
    op = neutral_of(node.op)
    if not isinstance(op, Reduce) or not (op.any_order or isinstance(op, ArgExtreme)):
        return None
    out = node.outputs[0].type
    return None if len(node.outputs) != 1 or out.is_complex else op


def reductions_in(node: Apply) -> tuple[ScalarProgram, tuple[Reduce, ...]] | None:
    """The reductions of a node, fused or alone, and the program of what they reduce."""
    if isinstance(node.op, FusedReduce):
        return node.op.program, node.op.reductions
    plain = reduction_in(node)
    if plain is None or len(node.inputs) != 1:
        return None
    return identity_program(node.inputs[0].type.dtype), (plain,)
