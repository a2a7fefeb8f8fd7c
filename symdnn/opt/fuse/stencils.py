"""On a GPU, elementwise nodes that read each other's results shifted or padded are one node.

Fusion ends where an element is read at another place: at slices of what is computed, at paddings
and rolls. Between them arrays would be stored and read again, a padded one by two more copies.
Such nodes become the stages of a :class:`~symdnn.ops.lowered.stencil.FusedStencil`, which computes
what is near the edges of its tiles more than once. What is rolled last is stored where it rolls to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from symdnn.graph.origin import inherit
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.array.advanced_index import AdvancedSubtensor
from symdnn.ops.array.index import Subtensor
from symdnn.ops.array.join import Roll
from symdnn.ops.array.pad import Pad
from symdnn.ops.array.slices import FULL, is_slice
from symdnn.ops.core.scalar import Builder, Scalar, ScalarProgram, text_of_number
from symdnn.ops.lowered.stencil import (
    BORDERS,
    FusedStencil,
    Shifted,
    StencilResult,
    StencilStage,
    needs_of,
    within,
)
from symdnn.opt.fuse.fuse import joined_origin, without_numbers
from symdnn.opt.fuse.groups import GraphFacts, fusable_program
from symdnn.rewriting.facts import number
from symdnn.rewriting.rewrite import Context, graph_rewrite

__all__ = ["RULES", "fuse_stencils"]

#: Limits of a kernel: inputs, results, stages, instructions.
_MAX_INPUTS, _MAX_RESULTS, _MAX_STAGES, _MAX_INSTRUCTIONS = 32, 16, 16, 800
#: Elements of a usual tile along the last axis and the others, and how many times as much as the
#: results a stage may compute.
_TILE, _LAST_TILE, _MOST_REPEATED = 16, 64, 3.0
_MOVES = Subtensor | Pad | Roll | AdvancedSubtensor


@graph_rewrite("fuse", tags=("fusion",), name="fuse_stencils")
def fuse_stencils(context: Context) -> None:
    """``f(g(x)[1:], pad(y)) -> FusedStencil(x, y)``, where sizes are known."""
    order = context.fgraph.toposort()
    here = context.target.kind == "cuda" and not context.inner
    if here and any(isinstance(node.op, _MOVES) for node in order):
        graph = _Graph(context, order)
        for cluster in graph.clusters():
            graph.fuse(cluster)


@dataclass(frozen=True)
class _Read:
    """An operand as elements of a variable, by a :class:`Shifted` whose array is not yet known."""

    source: Variable
    how: Shifted

    @property
    def moves(self) -> bool:
        """Whether elements are read at other places than their own."""
        return any(self.how.begin) or self.bounded

    @property
    def bounded(self) -> bool:
        """Whether some are padded or wrap around."""
        return bool(self.how.fill) or any(self.how.border)


@dataclass(eq=False)
class _Node:
    """An elementwise node, its program without constants, and how that reads its operands."""

    node: Apply
    program: ScalarProgram
    reads: list[_Read]
    shape: tuple[int, ...]


class _Graph:
    """The elementwise nodes of a graph, and which of them become one."""

    def __init__(self, context: Context, order: list[Apply]) -> None:
        self.context, self.fgraph = context, context.fgraph
        self.facts = GraphFacts(context, order)
        self.nodes: dict[Apply, _Node] = {}
        #: What was put in the place of results.
        self.new: dict[Variable, Variable] = {}
        for node in order:
            found = self._node(node)
            if found is not None:
                self.nodes[node] = found

    def _node(self, node: Apply) -> _Node | None:
        program = fusable_program(node)
        if program is None or not self.facts.is_ours(node):
            return None
        if node in self.facts.places.read_on_host or not all(map(_is_known, node.outputs)):
            return None
        program, operands = without_numbers(program, node.inputs)
        shape = _sizes(node.outputs[0])
        if not operands or not all(
            _is_known(v) and len(v.type.shape) == len(shape) for v in operands
        ):
            return None
        return _Node(node, program, [self._read(v, shape) for v in operands], shape)

    def _read(self, v: Variable, shape: tuple[int, ...]) -> _Read:
        """What is behind slices, paddings and rolls, if that spares storing it or is computed."""
        ndim = len(shape)
        how = Shifted(-1, (0,) * ndim, ("",) * ndim, (None,) * ndim)
        found = _Read(v, how)
        source: Variable | None = v
        while v.type.shape == shape and source is not None and source.owner is not None:
            node = source.owner
            source = None
            moved = _moved(how, node) if _is_known(node.inputs[0]) else None
            if moved is not None:
                how, source = moved, node.inputs[0]
                if not isinstance(node.op, Subtensor) or source.owner in self.nodes:
                    found = _Read(source, how)
        return _Read(found.source, _needed(found.how, shape))

    # -- which nodes ------------------------------------------------------------------------------

    def clusters(self) -> list[list[_Node]]:
        """Nodes that become one, in their order."""
        cluster = {node: [own] for node, own in self.nodes.items()}
        for moved in (True, False):  # then those that are read as they are
            for own in self.nodes.values():
                for read in own.reads:
                    maker = read.source.owner
                    if maker is None or maker not in cluster or read.moves != moved:
                        continue
                    first, second = cluster[maker], cluster[own.node]
                    if first is second or not (moved or self._moves(first) or self._moves(second)):
                        continue
                    both = self._joined(first, second)
                    if both is not None:
                        cluster.update((n.node, both) for n in both)
        found = {id(c): c for c in cluster.values()}
        return [c for c in found.values() if self._moves(c)]

    def _moves(self, cluster: list[_Node]) -> bool:
        """Whether it has several nodes, a bounded operand, or a result that is only rolled."""
        return (
            len(cluster) > 1
            or any(r.bounded for r in cluster[0].reads)
            or any(self._rolled(v) is not None for v in cluster[0].node.outputs)
        )

    def _joined(self, first: list[_Node], second: list[_Node]) -> list[_Node] | None:
        """Two clusters as one, in the order of the graph; None if that is not possible or slow."""
        numbers = self.facts.numbers
        both = sorted([*first, *second], key=lambda n: numbers[n.node])
        if len({(self.facts.paths[n.node], n.node.hints.name) for n in both}) > 1:
            return None
        own = {n.node for n in both}
        inside = [(n, r) for n in both for r in n.reads if r.source.owner in own]
        if any(_repeats(_sizes(r.source), n.shape) for n, r in inside):
            return None
        if self._returns(both, own):
            return None
        op = self._op(both)[0]
        return both if op is not None and _is_cheap(op) else None

    def _returns(self, cluster: list[_Node], own: set[Apply]) -> bool:
        """Whether an operand depends on the cluster by what is not part of it."""
        read = [r.source.owner for n in cluster for r in n.reads if r.source.owner not in own]
        return self._depend(read, own, min(self.facts.numbers[n] for n in own))

    def _depend(self, nodes: Sequence[Apply | None], own: set[Apply], least: int = 0) -> bool:
        """Whether one of these nodes depends on one of ``own``; not by any before ``least``."""
        pending, seen = [*nodes], set[Apply]()
        while pending:
            node = pending.pop()
            if node is None or node in seen or self.facts.numbers.get(node, least) < least:
                continue
            if node in own:
                return True
            seen.add(node)
            pending += self.facts.behind(node)
        return False

    # -- the op -----------------------------------------------------------------------------------

    def fuse(self, cluster: list[_Node]) -> None:
        """Put an op in the place of a cluster, if a kernel takes it."""
        op, inputs, stored = self._op(cluster)
        if op is None:
            return
        last, given = cluster[-1].node, [*map(self._now, inputs)]
        if self.new and self._depend([v.owner for v in given], {n.node for n in cluster}):
            return  # a cluster that was put in before reads its results
        with inherit(joined_origin([n.node for n in cluster]), last.hints):
            made = op.make_node(*given)
        if self.context.capabilities.kernel_reason(made, self.context.target.kind):
            return
        pairs = list(zip(stored, made.outputs, strict=True))
        if self.context.replace(pairs, "fuse_stencils"):
            self.new.update(pairs)

    def _now(self, v: Variable) -> Variable:
        while v in self.new:
            v = self.new[v]
        return v

    def _op(
        self, cluster: list[_Node]
    ) -> tuple[FusedStencil | None, list[Variable], list[Variable]]:
        """The op, its inputs, and the variables that its results replace; no op beyond limits."""
        own = {n.node for n in cluster}
        inputs = list(
            dict.fromkeys(r.source for n in cluster for r in n.reads if r.source.owner not in own)
        )
        stages, numbers = list[StencilStage](), {v: i for i, v in enumerate(inputs)}
        for stage in _stages(cluster, own):
            made, values = _as_stage(stage, numbers)
            first = len(inputs) + sum(len(s.program.outputs) for s in stages)
            numbers.update((v, first + i) for i, v in enumerate(values))
            stages.append(made)
        results, stored = list[StencilResult](), list[Variable]()
        for v in (v for n in cluster for v in n.node.outputs if self._is_stored(v, own)):
            found = self._rolled(v, own)
            shift, final = found if found is not None else ((0,) * v.type.ndim, v)
            results.append(StencilResult(numbers[v], shift))
            stored.append(final)
        few = len(inputs) <= _MAX_INPUTS and 0 < len(results) <= _MAX_RESULTS
        few = few and len(stages) <= _MAX_STAGES
        if not few or sum(len(s.program.body) for s in stages) > _MAX_INSTRUCTIONS:
            return None, inputs, stored
        return FusedStencil(len(inputs), tuple(stages), tuple(results)), inputs, stored

    def _is_stored(self, v: Variable, own: set[Apply]) -> bool:
        """Whether others than these nodes read it, or read what is moved of it."""
        for user, _ in self.fgraph.users(v):
            if user is None:
                return True
            if user in own:
                continue
            if not isinstance(user.op, _MOVES) or self._is_stored(user.outputs[0], own):
                return True
        return False

    def _rolled(
        self, v: Variable, own: set[Apply] | None = None
    ) -> tuple[tuple[int, ...], Variable] | None:
        """How far all that is stored of ``v`` is rolled, and that; None if others read ``v``."""
        shift, final = [0] * v.type.ndim, v
        while True:
            users = {user for user, _ in self.fgraph.users(final)} - (own or set())
            (user,) = users if len(users) == 1 else (None,)
            if user is None or not isinstance(user.op, Roll) or self.fgraph.is_output(final):
                break
            known = number(user.inputs[1])
            if known is None or not _is_known(final):
                break
            if any(reader in self.nodes for reader, _ in self.fgraph.users(user.outputs[0])):
                break  # which reads v itself, at other places
            axis = user.op.axis
            shift[axis] = (shift[axis] + int(known)) % _sizes(final)[axis]
            final = user.outputs[0]
        return None if final is v else (tuple(shift), final)


def _is_known(v: Variable) -> bool:
    """Whether it is an array of real numbers of known sizes, none of which is 0."""
    t = v.type
    return isinstance(t, TensorType) and not t.is_complex and t.ndim > 0 and all(t.shape)


def _sizes(v: Variable) -> tuple[int, ...]:
    """The shape of an array of known sizes."""
    shape: Any = v.type.shape
    return tuple(shape)


def _repeats(source: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether an array of one shape broadcasts to the other."""
    return any(a == 1 < b for a, b in zip(source, shape, strict=True))


def _moved(how: Shifted, node: Apply) -> Shifted | None:
    """Elements of a result as those of what a slice, a padding or a roll is of; None if of none."""
    op: Any = node.op
    shape = _sizes(node.inputs[0])
    if isinstance(op, Roll):
        known = number(node.inputs[1])
        if known is None or how.fill:
            return None
        begin = (b - int(known) * (d == op.axis) for d, b in enumerate(how.begin))
        border = tuple("wrap" if d == op.axis else own for d, own in enumerate(how.border))
        alike = set(how.border) <= {"", "wrap"}
        return replace(how, begin=tuple(begin), border=border) if alike else None
    if any(how.border):
        return None
    if isinstance(op, AdvancedSubtensor):
        return None if how.fill else _beyond_border(how, node, shape)
    if isinstance(op, Pad):
        return _padded(how, node, shape)
    if not isinstance(op, Subtensor) or op.host_inputs or not all(map(is_slice, op.index)):
        return None
    ranges = [range(*slice(*e).indices(n)) for e, n in zip(op.index, shape, strict=True)]
    if any(r.step != 1 for r in ranges):
        return None
    starts = [r.start for r in ranges]
    inside = [
        None if own is None else (own[0] + s, own[1] + s)
        for own, s in zip(how.inside, starts, strict=True)
    ]
    begin = (b + s for b, s in zip(how.begin, starts, strict=True))
    return replace(how, begin=tuple(begin), inside=tuple(inside))


def _beyond_border(how: Shifted, node: Apply, shape: Sequence[int]) -> Shifted | None:
    """Elements of an array that known indices select: neighbours, and others beyond its border."""
    op: Any = node.op
    arrays = node.inputs[1:]
    rows = all(e == "a" or e == FULL for e in op.index) and op.side_by_side
    if not rows or op.host_inputs or len(arrays) != arrays[0].type.ndim:
        return None
    begin, border = list(how.begin), list(how.border)
    for k, (axis, v) in enumerate(zip(op.arrays, arrays, strict=True)):
        if not isinstance(v, Constant) or v.data.size != v.type.shape[k]:
            return None
        found = _border_of(v.data.reshape(-1), shape[axis])
        if found is None:
            return None
        begin[axis] += found[0]
        border[axis] = found[1]
    return replace(how, begin=tuple(begin), border=tuple(border))


def _border_of(places: np.ndarray[Any, Any], n: int) -> tuple[int, str] | None:
    """Where places along an axis begin, and the border that they have; None if there is none."""
    rising = np.flatnonzero(np.diff(places) == 1)
    if len(places) < 2 or not len(rising):
        return None
    where = np.arange(len(places))
    for first in dict.fromkeys(map(int, rising[[0, len(rising) // 2, -1]])):
        begin = int(places[first]) - first
        at = where + begin
        if begin < -n or at[-1] >= 2 * n:
            continue
        for border in BORDERS:
            if np.array_equal(within(at, n, border), places):
                return begin, border
    return None


def _padded(how: Shifted, node: Apply, shape: Sequence[int]) -> Shifted | None:
    """Elements of a padded array as those of the array, and the number around it."""
    op, value = node.op, number(node.inputs[1])
    widths: Sequence[int | None] = op.static  # type: ignore[attr-defined]
    if value is None or None in widths:
        return None
    fill = text_of_number(np.asarray(value), node.inputs[0].type.dtype)
    if how.fill not in ("", fill):
        return None
    begin, inside = list[int](), list[tuple[int, int] | None]()
    for d, (low, high) in enumerate(zip(widths[::2], widths[1::2], strict=True)):
        assert low is not None
        assert high is not None
        begin.append(how.begin[d] - low)
        own = how.inside[d]
        if own is not None:
            inside.append((max(own[0] - low, 0), min(own[1] - low, shape[d])))
        else:
            inside.append((0, shape[d]) if low or high else None)
    return replace(how, begin=tuple(begin), inside=tuple(inside), fill=fill)


def _needed(how: Shifted, shape: Sequence[int]) -> Shifted:
    """Without tests of places that are never outside."""
    inside = tuple(
        None if own is None or (own[0] <= b and b + n <= own[1]) else own
        for own, b, n in zip(how.inside, how.begin, shape, strict=True)
    )
    return replace(how, inside=inside, fill=how.fill if any(inside) else "")


def _is_cheap(op: FusedStencil) -> bool:
    """Whether little is computed more than once."""
    needs = needs_of(op)
    if needs is None:
        return False
    last = len(op.stages[0].shape) - 1
    for stage, need in zip(op.stages, needs, strict=True):
        tile = [min(_LAST_TILE if d == last else _TILE, n) for d, n in enumerate(stage.shape)]
        if prod(need.sizes(tile)) > _MOST_REPEATED * prod(tile):
            return False
    return True


def _stages(cluster: list[_Node], own: set[Apply]) -> Iterator[list[_Node]]:
    """Nodes that are computed together: those that read others as they are, which nobody moves."""
    moved = {r.source.owner for n in cluster for r in n.reads if r.moves}
    found, stage_of = list[list[_Node]](), dict[Apply, int]()
    for n in cluster:
        makers = {r.source.owner for r in n.reads} & own
        at = {stage_of[m] for m in makers if m is not None}
        (k,) = at if len(at) == 1 else (-1,)
        alike = k >= 0 and found[k][0].shape == n.shape
        if alike and makers.isdisjoint(moved) and n.node not in moved:
            found[k].append(n)
        else:
            k = len(found)
            found.append([n])
        stage_of[n.node] = k
    yield from found


def _as_stage(
    nodes: list[_Node], numbers: dict[Variable, int]
) -> tuple[StencilStage, list[Variable]]:
    """Nodes as one stage, and the variables of its values."""
    inside = {v for n in nodes for v in n.node.outputs}
    reads = list(dict.fromkeys(r for n in nodes for r in n.reads if r.source not in inside))
    builder = Builder([r.source.type.dtype for r in reads])
    given: dict[_Read, Scalar] = {r: builder.input(i) for i, r in enumerate(reads)}
    values: dict[Variable, Scalar] = {}
    for n in nodes:
        operands = [values[r.source] if r.source in inside else given[r] for r in n.reads]
        values.update(zip(n.node.outputs, builder.inline(n.program, operands), strict=True))
    program = builder.program(list(values.values()))
    shifted = tuple(replace(r.how, array=numbers[r.source]) for r in reads)
    return StencilStage(program, shifted, nodes[0].shape), list(values)


RULES = (fuse_stencils,)
