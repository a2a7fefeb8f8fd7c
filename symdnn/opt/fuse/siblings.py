"""Reductions that read an array in common become one kernel, which reads it once.

They have the same axes, or one has more of them: that one is a reduction over the others' axes,
and then of the few results. None may depend on the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.origin import inherit
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.array.reduce import Accumulate, Extreme, Prod, Reduce, Sum
from symdnn.ops.core.scalar import ScalarProgram
from symdnn.ops.lowered.fused import FusedReduce
from symdnn.opt.fuse.apart import by_columns
from symdnn.opt.fuse.branches import branch_paths
from symdnn.opt.fuse.fuse import joined_origin, joined_programs
from symdnn.opt.fuse.groups import (
    FUSABLE_BACKENDS,
    MAX_INPUTS,
    MAX_INSTRUCTIONS,
    MAX_REDUCTIONS,
    fusable_program,
    reduction_in,
    reductions_in,
)
from symdnn.opt.fuse.transfer import Places
from symdnn.rewriting.facts import node_of
from symdnn.rewriting.rewrite import Context, graph_rewrite


@graph_rewrite("fuse", tags=("fusion",), name="fuse_sibling_reductions")
def fuse_sibling_reductions(context: Context) -> None:
    """Reductions of the same elements, which do not follow from each other, become one node."""
    if context.target.kind != "cuda":
        return
    order = context.fgraph.toposort()
    places = Places(context.fgraph, context.target, inner=context.inner)
    paths = branch_paths(context.fgraph, order)
    readers: dict[object, list[_Reductions]] = {}
    for node in order:
        ours = places(node) == context.target.place and node.hints.backend in FUSABLE_BACKENDS
        found = _reductions(node, paths[node]) if ours else None
        if found is not None:
            for source in found.sources:
                readers.setdefault(source, []).append(found)
    numbers: _Numbers | None = None
    for some in readers.values():
        if len(some) > 1:
            numbers = numbers or _Numbers(context.fgraph)
            for made in _joined_readers(context, numbers, some):
                for source in made.sources:
                    readers[source].append(made)


@dataclass(eq=False)
class _Reductions:
    """A node of reductions over the same axes: what it computes, and what it may share."""

    node: Apply
    program: ScalarProgram
    ops: tuple[Reduce, ...]
    path: object
    shared: list[Variable]

    @property
    def key(self) -> object:
        """What is equal of those that may be joined."""
        return self.path, self.node.hints

    @property
    def sources(self) -> list[object]:
        """The arrays that they may share, or the elementwise nodes that make these."""
        return list(dict.fromkeys(v.owner if _is_computed(v) else v for v in self.shared))


def _reductions(node: Apply, path: object) -> _Reductions | None:
    found = reductions_in(node)
    if found is None:
        return None
    program, ops = found
    if not all(isinstance(r, Sum | Prod | Extreme) for r in ops):
        return None
    pattern = [all(one) for one in zip(*(v.type.broadcastable for v in node.inputs))]
    full = [v for v in node.inputs if list(v.type.broadcastable) == pattern]
    shared = [v for v in full if not isinstance(v, Constant)]
    added = by_columns(ops[0].axes, node.inputs) and all(map(_is_computed, shared))
    return None if added else _Reductions(node, program, ops, path, list(dict.fromkeys(shared)))


def _is_computed(v: Variable) -> bool:
    """Whether an elementwise node makes it, which adds sums by columns itself."""
    return v.owner is not None and fusable_program(v.owner) is not None


class _Numbers:
    """Places of nodes in a topological order, which each replacement makes anew."""

    def __init__(self, fgraph: FunctionGraph) -> None:
        self.fgraph = fgraph
        self.renew()

    def renew(self) -> None:
        """After a replacement."""
        self._of = {n: i for i, n in enumerate(self.fgraph.toposort())}

    def apart(self, a: Apply, b: Apply) -> bool:
        """Whether neither of two nodes depends on the other."""
        first, last = sorted((a, b), key=self._of.__getitem__)
        least, pending, seen = self._of[first], [last], {last}
        while pending:
            for v in pending.pop().inputs:
                node = v.owner
                if node is first:
                    return False
                if node is not None and node not in seen and self._of.get(node, least) > least:
                    seen.add(node)
                    pending.append(node)
        return True


def _joined_readers(
    context: Context, numbers: _Numbers, found: Iterable[_Reductions]
) -> list[_Reductions]:
    """Join those reductions that can be, each with the first that it can join; what is made."""
    kernels: list[_Reductions] = []
    alive = [r for r in found if r.node in context.fgraph.nodes]
    # Those over few axes come first: the others are made of them.
    for each in sorted(alive, key=lambda r: len(r.ops[0].axes)):
        for i, kernel in enumerate(kernels):
            made = _joined(context, numbers, kernel, each)
            if made is not None:
                kernels[i] = made
                break
        else:
            kernels.append(each)
    return [k for k in kernels if k not in alive]


def _joined(
    context: Context, numbers: _Numbers, a: _Reductions, b: _Reductions
) -> _Reductions | None:
    """Both as one node; None where that is not possible."""
    parts = [_in_parts(op, a.ops[0], len(a.shared[0].type.shape)) for op in b.ops]
    counts = (
        len(a.ops) + len(b.ops) <= MAX_REDUCTIONS,
        len({*a.node.inputs, *b.node.inputs}) <= MAX_INPUTS,
        len(a.program.body) + len(b.program.body) <= MAX_INSTRUCTIONS,
    )
    if a.key != b.key or None in parts or not all(counts) or not numbers.apart(a.node, b.node):
        return None
    operands, builder, values = joined_programs([(r.node, r.program) for r in (a, b)])
    old = [*a.node.outputs, *b.node.outputs]
    first = [p[0] for p in parts if p is not None]
    op = FusedReduce(builder.program([values[v] for v in old]), (*a.ops, *first))
    with inherit(joined_origin([a.node, b.node]), a.node.hints):
        made = op(*operands)
        last = [y if p is None or p[1] is None else p[1](y) for y, p in
                zip(made[len(a.ops) :], parts, strict=True)]  # fmt: skip
        pairs = zip(old, [*made[: len(a.ops)], *last], strict=True)
        context.replace(pairs, "fuse_sibling_reductions")
    numbers.renew()
    shared = list(dict.fromkeys([*a.shared, *b.shared]))
    return _Reductions(node_of(made[0]), op.program, op.reductions, a.path, shared)


def _in_parts(op: Reduce, like: Reduce, ndim: int) -> tuple[Reduce, Reduce | None] | None:
    """``op`` as a reduction over the axes of another one, and one of its results, if needed."""
    if (op.axes, op.keepdims) == (like.axes, like.keepdims):
        return op, None
    rounds = isinstance(op, Accumulate) and op.dtype != op.acc_dtype
    if not set(like.axes) < set(op.axes) or not op.in_parts or rounds:
        return None
    if op.keepdims and not like.keepdims:
        return None
    kept: Sequence[int] = [i for i in range(ndim) if like.keepdims or i not in like.axes]
    rest = tuple(kept.index(i) for i in op.axes if i in kept)
    axes, keepdims = like.axes, like.keepdims
    if isinstance(op, Extreme):  # errors are those of the whole
        first = replace(op, axes=axes, keepdims=keepdims, whole=op.whole or op)
        return first, replace(op, axes=rest, whole=None)
    return replace(op, axes=axes, keepdims=keepdims), replace(op, axes=rest)


def part_over(node: Apply, axes: tuple[int, ...]) -> tuple[Apply, list[Variable]] | None:
    """The reduction over some of its axes alone, and the results of ``node`` made of that.

    None if it is no reduction of parts.
    """
    op, plain = node.op, reduction_in(node)
    whole = op.reductions if isinstance(op, FusedReduce) else (plain,) if plain else ()
    first, rest = list[Reduce](), list[Reduce]()
    for r in whole:
        own = replace(r, axes=axes, keepdims=False)
        part, after = _in_parts(r, own, len(node.inputs[0].type.shape)) or (r, None)
        first.append(part)
        rest += [after] if after is not None else []
    if not whole or len(rest) < len(whole):
        return None
    with inherit(node.origin, node.hints):
        made = FusedReduce(op.program, tuple(first)) if isinstance(op, FusedReduce) else first[0]
        part_node = made.make_node(*node.inputs)
        return part_node, [r(v) for r, v in zip(rest, part_node.outputs, strict=True)]


RULES = (fuse_sibling_reductions,)
