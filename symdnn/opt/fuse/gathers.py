"""What index arrays select is read where it is used, and what is added there is not stored.

A graph network sends the rows of nodes along edges and sums them where they arrive; the gradient
does the same in the other direction. The rows of the edges are many times those of the nodes. So on
a GPU a gather becomes an operand of the elementwise kernels, reductions and scatters that read it,
and a scatter takes in the elementwise node that makes what it adds. Scatters into one array that
read the same are one kernel: the gradient of a bilinear sample goes to four places.

A gather stays stored where another node reads it, or a loop in which it repeats; and where several
kernels read it and its rows are shorter than the piece of memory that each read moves: stored, its
elements are next to each other. A roll by a known shift is read so, too: it selects neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

import numpy as np

from symdnn.config import config
from symdnn.graph.origin import inherit
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor, AdvancedSubtensor
from symdnn.ops.array.join import Roll
from symdnn.ops.array.reduce import Reduce
from symdnn.ops.array.slices import FULL, is_slice
from symdnn.ops.core.scalar import Builder, ScalarProgram, identity_program
from symdnn.ops.core.shape import Alloc, DimShuffle, Reshape, reshape
from symdnn.ops.lowered.gathered import FusedIndexed, Selection
from symdnn.ops.nest.monoid import picked, reads_of
from symdnn.opt.fuse.fuse import joined_origin, unrounded, without_numbers
from symdnn.opt.fuse.groups import (
    MAX_INPUTS,
    MAX_INSTRUCTIONS,
    fusable_program,
    reductions_in,
)
from symdnn.opt.fuse.recompute import VALUE_LIMIT_ADDITIONS
from symdnn.opt.fuse.transfer import Places
from symdnn.opt.lower.rolls import rolled
from symdnn.rewriting.rewrite import Context, graph_rewrite

__all__ = ["RULES", "fuse_additions", "fuse_gathers", "fuse_scatters"]

#: Dtypes with atomic addition on a GPU; sums of others have an array of their own.
_DTYPES = ("float32", "float64", "int32", "uint32", "int64", "uint64")
#: The bytes that a read from memory moves, and the most kernels that gather the same rows.
_SECTOR_BYTES, _MOST_READERS = 32, 4


class _Loop(NamedTuple):
    """A node as one loop: the op and its inputs, and the node that is replaced by it."""

    node: Apply
    op: FusedIndexed
    inputs: Sequence[Variable]

    @property
    def operands(self) -> Sequence[Variable]:
        """What its program reads, or what that is selected from."""
        first = int(bool(self.op.adds))
        return self.inputs[first : first + len(self.op.reads)]


class _Gather(NamedTuple):
    """A node whose result is elements of an array, by an op and its inputs."""

    node: Apply
    op: AdvancedSubtensor
    inputs: Sequence[Variable]


class _Graph:
    """What the rules know of a graph, and changes in it."""

    def __init__(self, context: Context) -> None:
        self.context, self.fgraph = context, context.fgraph
        self.places = Places(context.fgraph, context.target, inner=context.inner)
        #: What was put in the place of results: a loop may read those of one that was replaced.
        self.new: dict[Variable, Variable] = {}

    def is_ours(self, node: Apply) -> bool:
        """Whether a node runs on the target, by one of our kernels."""
        on_target = self.places(node) == self.context.target.place
        ours = node.hints.backend in (None, "cuda") and node not in self.places.read_on_host
        return on_target and ours and all(_is_real(v) for v in (*node.inputs, *node.outputs))

    def users(self, v: Variable) -> list[Apply] | None:
        """The nodes that read ``v``; None if it is a result of the graph."""
        return None if self.fgraph.is_output(v) else self.fgraph.user_nodes(v)

    def may_add(self, node: Apply) -> bool:
        """Whether a node adds where index arrays say, in any order, and is no update by checked
        indices, which is written in the memory of the variable."""
        op = node.op
        if not isinstance(op, AdvancedIncSubtensor) or op.set_instead_of_inc or op.host_inputs:
            return False
        x, y, *rest = node.inputs
        exact = (config.deterministic == "more" or op.same_bits) and x.type.is_float
        if exact or x.type.dtype not in _DTYPES or not self.is_ours(node):
            return False
        part: Any = op.getter().infer(x.type, *(v.type for v in rest))
        return bool(part.broadcastable == y.type.broadcastable)

    def loop(self, node: Apply, get: _Gather) -> _Loop | None:
        """A node as a loop that may gather; None if it is none, or what may fail is an update."""
        op: Any = node.op
        if any(map(self.fgraph.is_update, node.outputs)) and not get.op.in_bounds:
            return None
        if isinstance(op, FusedIndexed):
            return _Loop(node, op, node.inputs)
        if not self.is_ours(node):
            return None
        if (scatter := self.scatter(node)) is not None:
            return scatter
        if (reduced := reductions_in(node)) is not None:
            program, reductions = reduced
        else:
            found = fusable_program(node)
            if found is None or any(map(_is_turned, node.inputs)):
                return None
            program, reductions = found, ()
        program, operands = without_numbers(program, node.inputs)
        if not operands or len({v.type.ndim for v in operands}) != 1:
            return None
        return _Loop(node, FusedIndexed(program, (None,) * len(operands), reductions), operands)

    def scatter(self, node: Apply) -> _Loop | None:
        """A node as a loop that adds where index arrays say."""
        op: Any = node.op
        if isinstance(op, FusedIndexed):
            return _Loop(node, op, node.inputs) if op.adds else None
        if not self.may_add(node):
            return None
        x, y, *rest = node.inputs
        program = identity_program(y.type.dtype)
        return _Loop(node, FusedIndexed(program, (None,), (), (op,)), [x, y, *rest])

    def _now(self, v: Variable) -> Variable:
        while v in self.new:
            v = self.new[v]
        return v

    def replace(self, old: _Loop, op: Any, inputs: Sequence[Variable], taken: Apply) -> None:
        """Put a node in the place of another one, with what that has taken in."""
        node = old.node
        with inherit(joined_origin([node, taken]), node.hints):
            made = op.make_node(*map(self._now, inputs))
        pairs = list(zip(node.outputs, made.outputs, strict=True))
        if any(a.type.broadcastable != b.type.broadcastable for a, b in pairs):
            return
        self.context.replace(pairs, "fuse_gathers")
        self.new.update(pairs)
        self.places.node[made] = self.context.target.place


def _is_real(v: Variable) -> bool:
    return isinstance(v.type, TensorType) and not v.type.is_complex


def _is_turned(v: Variable) -> bool:
    """Whether it is a view whose axes are in another order: such operands are read in tiles."""
    if v.owner is None or not isinstance(v.owner.op, DimShuffle):
        return False
    kept = [int(d) for d in v.owner.op.pattern if d != "x"]
    return kept != sorted(kept)


# -- scatters of what is computed -----------------------------------------------------------------


@graph_rewrite("fuse", tags=("fusion",), name="fuse_scatters")
def fuse_scatters(context: Context) -> None:
    """``x[i] += f(y)`` on a GPU, if only such nodes and reductions read ``f(y)``."""
    if context.target.kind != "cuda":
        return
    order = context.fgraph.toposort()
    if any(isinstance(n.op, AdvancedIncSubtensor) for n in order):
        graph = _Graph(context)
        for node in reversed(order):
            program = fusable_program(node) if graph.is_ours(node) else None
            if program is not None and (loops := _takers(node, program, graph)):
                for loop in loops:
                    graph.replace(loop, loop.op, loop.inputs, node)


def _takers(node: Apply, program: ScalarProgram, graph: _Graph) -> list[_Loop]:
    """All readers of an elementwise node, at least one of which adds its result, as loops that
    compute it; none if that takes longer than to read it."""
    found, adds = list[_Loop](), 0
    users = [graph.users(v) for v in node.outputs]
    for user in dict.fromkeys(user for some in users for user in some or []):
        loop = _taker(user, node, program, graph)
        if loop is None or len(loop.inputs) > MAX_INPUTS:
            return []
        adds += bool(loop.op.adds)
        found.append(loop)
    again = sum(_cost(loop) for loop in found) - program.cost
    if not adds or not all(users) or again > VALUE_LIMIT_ADDITIONS["cuda"]:
        return []
    like = node.outputs[0]
    selected = [v for v in node.inputs if v.owner and isinstance(v.owner.op, AdvancedSubtensor)]
    own = [v for v in selected if graph.users(v) == [node]]  # which need not be stored, either
    now = (
        _nbytes(node.inputs, like)
        + _nbytes(own, like)
        + sum(_nbytes([v], like) for v in node.outputs)
    )
    now += sum(_nbytes(loop.node.inputs, like) for loop in found)
    return found if sum(_nbytes(loop.operands, like) for loop in found) < now else []


def _cost(loop: _Loop) -> float:
    """What a loop takes for what it computes, without what it did before."""
    before = reductions_in(loop.node)
    return loop.op.program.cost - (0 if before is None else before[0].cost)


def _taker(user: Apply, node: Apply, program: ScalarProgram, graph: _Graph) -> _Loop | None:
    """A reader of an elementwise node as one that computes what it reads of it."""
    add = user.op
    if isinstance(add, AdvancedIncSubtensor):
        _, v, *rest = user.inputs
        used = user.inputs.count(v) == 1 and not set(node.outputs) & {user.inputs[0], *rest}
        if not used or not graph.may_add(user) or any(map(graph.fgraph.is_update, user.outputs)):
            return None
        part, operands = _computed(identity_program(v.type.dtype), [v], node, program)
        if not operands or user.inputs[0] in operands:
            return None
        op = FusedIndexed(part, (None,) * len(operands), (), (add,))
        return _Loop(user, op, [user.inputs[0], *operands, *rest])
    reduced = reductions_in(user)
    if reduced is None or not graph.is_ours(user) or not _is_whole(node, user):
        return None
    part, operands = _computed(reduced[0], user.inputs, node, program, reduced[1])
    op = FusedIndexed(part, (None,) * len(operands), reduced[1])
    return _Loop(user, op, operands) if operands else None


def _is_whole(node: Apply, user: Apply) -> bool:
    """Whether the results of a node are as large as the loop of their reader."""
    patterns = zip(*(v.type.broadcastable for v in user.inputs))
    return tuple(all(ones) for ones in patterns) == node.outputs[0].type.broadcastable


def _computed(
    outer: ScalarProgram,
    inputs: Sequence[Variable],
    node: Apply,
    program: ScalarProgram,
    reductions: Sequence[Reduce] = (),
) -> tuple[ScalarProgram, list[Variable]]:
    """A program of ``inputs`` with those that a node makes by another one computed in it."""
    kept = [v for v in inputs if v not in node.outputs]
    operands = [*node.inputs, *kept]
    b, count = Builder([v.type.dtype for v in operands]), len(node.inputs)
    inner = dict(zip(node.outputs, b.inline(program, [b.input(i) for i in range(count)])))
    values = b.inline(outer, [inner.get(v) or b.input(count + kept.index(v)) for v in inputs])
    for i, reduce in enumerate(reductions):
        values[i] = unrounded(values[i], reduce)
    both = b.program(values)
    used = sorted(reads_of(both, both.outputs))
    part = picked(both, used, range(len(values)))
    return without_numbers(part, [operands[i] for i in used])


def _nbytes(variables: Sequence[Variable], like: Variable) -> int:
    """Bytes of an element of those that are as large as ``like``."""
    pattern = like.type.broadcastable
    full = {v for v in variables if v.type.broadcastable == pattern}
    return sum(v.type.numpy.itemsize for v in full if not isinstance(v, Constant))


# -- gathers --------------------------------------------------------------------------------------


@graph_rewrite("fuse", tags=("fusion",), name="fuse_gathers")
def fuse_gathers(context: Context) -> None:
    """``f(x[i], y)`` on a GPU without ``x[i]`` in memory, if all that reads it is such a loop."""
    if context.target.kind != "cuda":
        return
    order = context.fgraph.toposort()
    if any(isinstance(n.op, AdvancedSubtensor | Roll | Reshape) for n in order):
        graph = _Graph(context)
        for node in reversed(order):
            get = _gather(node, context) if graph.is_ours(node) else None
            if get is not None:
                _join(get, graph)


def _gather(node: Apply, context: Context) -> _Gather | None:
    """A node as a gather: a selection, the last one of several rolls, or repeated elements."""
    if isinstance(node.op, AdvancedSubtensor):
        return None if node.op.host_inputs else _Gather(node, node.op, node.inputs)
    if isinstance(node.op, Reshape):
        return _repeated(node)
    if not isinstance(node.op, Roll) or (found := rolled(node.outputs[0], context)) is None:
        return None
    op, inputs = found.gather()
    return _Gather(node, replace(op, in_bounds=True), inputs)


def _repeated(node: Apply) -> _Gather | None:
    """Elements that an ``Alloc`` repeats and a reshape puts in a row, as the gradient of means of
    blocks is spread, by indices along neighbouring axes."""
    (out,), spread = node.outputs, node.inputs[0]
    made = spread.owner
    if made is None or not isinstance(made.op, Alloc) or None in spread.type.shape:
        return None
    v = made.inputs[0]
    groups = _merged(spread.type.shape, out.type.shape)
    if groups is None or v.type.ndim != spread.type.ndim or None in v.type.shape:
        return None
    old, new = ([int(n or 0) for n in u.type.shape] for u in (v, spread))
    sizes = [[(old[d], new[d]) for d in group] for group in groups]
    moved = [k for k, pairs in enumerate(sizes) if any(own != n for own, n in pairs)]
    if not moved or moved != list(range(moved[0], moved[-1] + 1)):
        return None
    arrays, dims = list[Variable](), list[Any]()
    for k, pairs in enumerate(sizes):
        own = [a for a, _ in pairs]
        dims.append(prod(own))
        if k in moved:
            at = np.broadcast_to(np.arange(prod(own)).reshape(own), [n for _, n in pairs])
            where = [-1 if j == k else 1 for j in moved]
            arrays.append(Constant(np.ascontiguousarray(at, np.int32).reshape(where)))
    op = AdvancedSubtensor(tuple("a" if k in moved else FULL for k in range(len(dims))), True)
    return _Gather(node, op, [reshape(v, dims), *arrays])


def _merged(sizes: Sequence[Any], merged: Sequence[Any]) -> list[list[int]] | None:
    """The dimensions of an array that each dimension of its reshaped form is made of; or None."""
    found, rest = list[list[int]](), list(range(len(sizes)))
    for n in merged:
        group = [rest.pop(0)] if rest else []
        while rest and prod(sizes[d] for d in group) != n:
            group.append(rest.pop(0))
        if not group or prod(sizes[d] for d in group) != n:
            return None
        found.append(group)
    return None if rest else found


def _join(get: _Gather, graph: _Graph) -> None:
    """Let all readers of what is selected select it themselves, if they can."""
    views, found = _views(get, graph), list[_Loop]()
    for v in views:
        for user in graph.users(v) or []:
            if user.outputs and user.outputs[0] in views:
                continue
            loop = graph.loop(user, get)
            if loop is None or not _may_read(loop, v, get):
                return
            found.append(loop)
    near = isinstance(get.node.op, Roll) or _row_bytes(get) >= _SECTOR_BYTES
    if not found or not (near or len(found) == 1) or len(found) > _MOST_READERS:
        return
    if any(graph.users(v) is None for v in views) or len({f.node for f in found}) < len(found):
        return
    for loop in found:
        for v in views:
            if v in loop.operands:
                made, inputs = _with_gather(loop, v, get)
                graph.replace(loop, made, inputs, get.node)


def _views(get: _Gather, graph: _Graph) -> dict[Variable, None]:
    """What is selected, and views of it with more axes."""
    found = {get.node.outputs[0]: None}
    for v in list(found):
        for user in graph.users(v) or []:
            if isinstance(user.op, DimShuffle) and not _is_turned(user.outputs[0]):
                found[user.outputs[0]] = None
    return found


def _may_read(loop: _Loop, v: Variable, get: _Gather) -> bool:
    """Whether a loop may read what is selected: it has its shape, and other inputs keep theirs.

    A loop that selects of it already would have to do so twice.
    """
    operands, op = loop.operands, loop.op
    if loop.inputs.count(v) != 1 or v not in operands or op.reads[operands.index(v)] is not None:
        return False
    if op.adds and get.inputs[0] is loop.inputs[0]:
        return False
    patterns = [
        (read.infer(o.type, *_arrays(loop, k)) if read is not None else o.type).broadcastable
        for k, (o, read) in enumerate(zip(operands, op.reads))
    ]
    pattern = tuple(all(ones) for ones in zip(*patterns))
    few = len({*loop.inputs, *get.inputs} - {v}) <= MAX_INPUTS
    return few and not all(pattern) and pattern == v.type.broadcastable


def _arrays(loop: _Loop, k: int) -> list[TensorType]:
    """The types of the index arrays of an operand."""
    _, operands, _ = loop.op.apart([v.type for v in loop.inputs])
    return operands[k][1:]


def _row_bytes(get: _Gather) -> float:
    """Bytes behind each index; those of rows of unknown lengths are enough."""
    rows, at = list[float](), 0
    for k, e in enumerate(get.op.index):
        if e != "x":
            size = get.inputs[0].type.shape[at]
            at += 1
            if is_slice(e) and k > get.op.arrays[-1]:
                rows.append(float("inf") if size is None else size)
    return prod(rows) * get.inputs[0].type.numpy.itemsize


def _with_gather(loop: _Loop, v: Variable, get: _Gather) -> tuple[FusedIndexed, list[Variable]]:
    """A loop that reads ``v``, which is selected or a view of that, as one that selects it."""
    op, (source, *arrays) = loop.op, get.inputs
    k = loop.operands.index(v)
    view: Any = None if v is get.node.outputs[0] else v.owner
    pattern = tuple(range(v.type.ndim)) if view is None else view.op.pattern
    reads = list(op.reads)
    reads[k] = Selection(get.op, pattern)
    x, operands, places = op.apart(loop.inputs)
    operands[k] = [source, *arrays]
    return replace(op, reads=tuple(reads)), _joined(x, operands, places)


def _joined(
    x: Variable | None, operands: Sequence[list[Variable]], places: Sequence[list[Variable]]
) -> list[Variable]:
    """The inputs of a loop: the opposite of ``FusedIndexed.apart``."""
    first = [] if x is None else [x]
    moved = [a for own in operands for a in own[1:]]
    return [*first, *(own[0] for own in operands), *moved, *(a for own in places for a in own)]


# -- scatters into one array ----------------------------------------------------------------------


@graph_rewrite("fuse", tags=("fusion",), name="fuse_additions")
def fuse_additions(context: Context) -> None:
    """``x[i] += f(y)`` and ``x[j] += g(y)`` on a GPU by one loop that reads ``y`` once."""
    if context.target.kind != "cuda":
        return
    graph = _Graph(context)
    for node in context.fgraph.toposort():
        loop = graph.scatter(node)
        inner = loop.inputs[0].owner if loop is not None else None
        if loop is None or inner is None or graph.users(loop.inputs[0]) != [node]:
            continue
        first = graph.scatter(inner)
        if first is not None and (both := _both(first, loop)) is not None:
            graph.replace(loop, *both, inner)


def _both(first: _Loop, then: _Loop) -> tuple[FusedIndexed, list[Variable]] | None:
    """A scatter after another one as one op, if they read an array of their shape together."""
    x, operands, places = first.op.apart(first.inputs)
    _, more, others = then.op.apart(then.inputs)
    read = [*zip(first.op.reads, operands), *zip(then.op.reads, more)]
    if x in then.inputs or not _read_together(first, then):
        return None
    ways = list(dict.fromkeys((r, *own) for r, own in read))
    b = Builder([own[0].type.dtype for _, *own in ways])
    given = [b.input(ways.index((r, *own))) for r, own in read]
    cut = len(operands)
    values = b.inline(first.op.program, given[:cut]) + b.inline(then.op.program, given[cut:])
    inputs = _joined(x, [list(own) for _, *own in ways], [*places, *others])
    if len(set(inputs)) > MAX_INPUTS or len(b.program(values).body) > MAX_INSTRUCTIONS:
        return None
    reads = tuple(r for r, *_ in ways)
    return FusedIndexed(b.program(values), reads, (), (*first.op.adds, *then.op.adds)), inputs


def _read_together(first: _Loop, then: _Loop) -> bool:
    """Whether both read an array of the shape of the loop, which they have in common then."""
    found = []
    for loop in (first, then):
        own = loop.op.apart(loop.inputs)[1]
        types = [o[0].type if r is None else r.infer(*(v.type for v in o))
                 for r, o in zip(loop.op.reads, own)]  # fmt: skip
        pattern = tuple(all(ones) for ones in zip(*(t.broadcastable for t in types)))
        whole = {
            (r, *o) for r, o, t in zip(loop.op.reads, own, types) if t.broadcastable == pattern
        }
        found.append(whole)
    return bool(found[0] & found[1])


RULES = (fuse_scatters, fuse_additions, fuse_gathers)
