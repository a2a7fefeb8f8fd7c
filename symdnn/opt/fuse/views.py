"""Permuted results of elementwise nodes become elementwise nodes of permuted operands.

Canonical form has a permutation behind the op. There it parts two groups: the first would store its
result, and the second read that with other strides. Before the op the permutation is a view of what
is in memory anyway, and the two are one group. Reductions of permuted arrays, as the phase
``layout`` leaves them, reduce the array itself.

Groups whose operands are all views with their axes in one other order run in the operands' order,
if their readers have that, too. A program in NCHW that reads what it gathers from arrays in NHWC,
and adds the gradient there, has such groups, which would read and write across the rows of memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeGuard

from symdnn.graph.origin import inherit
from symdnn.graph.variable import Apply, Constant, Variable
from symdnn.ops.core.shape import DimShuffle, dimshuffle
from symdnn.ops.lowered.lowered import Lowered
from symdnn.opt.fuse.groups import fusable_program, reduction_in
from symdnn.opt.fuse.transfer import Places
from symdnn.rewriting.facts import all_ones, node_of
from symdnn.rewriting.rewrite import Context, graph_rewrite


@graph_rewrite("fuse", tags=("fusion",), name="views_before_elementwise")
def views_before_elementwise(context: Context) -> None:
    """``f(x).T * y -> f(x.T) * y``, where nothing else reads ``f(x)``."""
    order = context.fgraph.toposort()
    pending = [node for node in order if isinstance(node.op, DimShuffle)]
    if not pending:
        return
    places = Places(context.fgraph, context.target, inner=context.inner)
    ours = {n for n in order if places(n) == context.target.place} - places.read_on_host
    while pending:
        node = pending.pop()
        if node in context.fgraph.nodes and _parts_groups(node, context, ours):
            turned = _turned(node, context)
            ours.update(turned)
            pending += [new for new in turned if isinstance(new.op, DimShuffle)]


def _parts_groups(node: Apply, context: Context, ours: set[Apply]) -> bool:
    """Whether a dimshuffle is between an elementwise node that only such ones read, and others."""
    (v,), (out,) = node.inputs, node.outputs
    maker = v.owner
    if maker not in ours or maker is None or len(maker.outputs) != 1 or all_ones(out):
        return False
    alike = _alike(node, context)
    if not alike or maker.hints.name:
        return False
    one = len({w.type.ndim for w in maker.inputs}) == 1
    users = [user for each in alike for user, _ in context.fgraph.users(each.outputs[0])]
    joins = bool(users) and all(user in ours and _joins(user, out) for user in users)
    return one and joins and fusable_program(maker) is not None


def _alike(node: Apply, context: Context) -> list[Apply]:
    """The dimshuffles of one pattern that read what ``node`` reads; none if anything else does."""
    users = [user for user, _ in context.fgraph.users(node.inputs[0])]
    same = [user for user in users if user is not None and user.op == node.op]
    return same if len(same) == len(users) else []


def _joins(user: Apply | None, v: Variable) -> bool:
    """Whether a reader computes with the elements of ``v``, each of them once."""
    if user is None or reduction_in(user) is not None:
        return user is not None
    if fusable_program(user) is None or len(user.outputs) != 1:
        return False
    return bool(user.outputs[0].type.broadcastable == v.type.broadcastable)


def _turned(node: Apply, context: Context) -> list[Apply]:
    """Put a dimshuffle before the node that it reads; returns the new nodes, the last one last."""
    maker: Any = node.inputs[0].owner
    pattern = node.op.pattern  # type: ignore[attr-defined]
    with inherit(maker.origin, maker.hints):
        operands = [permuted(v, pattern) for v in maker.inputs]
        (new,) = maker.op.make_node(*operands).outputs
    if new.type != node.outputs[0].type:
        return []
    pairs = [(each.outputs[0], new) for each in _alike(node, context)]
    context.replace(pairs, "views_before_elementwise")
    views = [v for v in maker.inputs if not _is_number(v)]  # which all of a graph may read
    found = [user for v in views for user, _ in context.fgraph.users(v)]  # some were there
    return [*(u for u in found if u is not None and isinstance(u.op, DimShuffle)), new.owner]


def _is_number(v: Variable) -> TypeGuard[Constant]:
    return isinstance(v, Constant) and all_ones(v)


def permuted(v: Variable, pattern: Sequence[Any]) -> Variable:
    """An operand as the result is: two dimshuffles are one, numbers stay constants."""
    if _is_number(v):
        return v.reshaped((1,) * len(pattern))
    if v.owner is not None and isinstance(v.owner.op, DimShuffle):
        inner, source = v.owner.op.pattern, v.owner.inputs[0]
        joined = ["x" if d == "x" else inner[d] for d in pattern]
        return source if joined == list(range(source.type.ndim)) else dimshuffle(source, joined)
    return dimshuffle(v, pattern)


@graph_rewrite("fuse", tags=("fusion",), name="reductions_before_views")
def reductions_before_views(context: Context) -> None:
    """A reduction of a dimshuffle becomes one of the operand, next to what computes that."""
    places: Places | None = None
    for node in context.fgraph.toposort():
        op: Any = reduction_in(node)
        v = node.inputs[0] if node.inputs else None
        view = None if v is None else v.owner
        if op is None or op.keepdims or not op.any_order or view is None:
            continue
        if len(node.inputs) > 1 or not isinstance(view.op, DimShuffle):
            continue
        places = places or Places(context.fgraph, context.target, inner=context.inner)
        found = _of_operand(node, view) if places(node) == context.target.place else None
        if found is not None:
            context.replace([(node.outputs[0], found)], "reductions_before_views")


def _of_operand(node: Apply, view: Apply) -> Variable | None:
    """A reduction of a dimshuffle as one of the latter's operand; None if none of it is reduced."""
    op: Any = node.op
    (x,), pattern = view.inputs, view.op.pattern  # type: ignore[attr-defined]
    axes: Any = op.reduced_axes if isinstance(op, Lowered) else op.axes
    left = [d for a, d in enumerate(pattern) if a not in axes]
    gone = [d for d in range(x.type.ndim) if d not in left]
    if not gone:
        return None
    with inherit(node.origin, node.hints):
        over = tuple(gone)
        y = (op.over(over) if isinstance(op, Lowered) else replace(op, axes=over))(x)
        kept = [d for d in range(x.type.ndim) if d not in gone]
        order = ["x" if d == "x" else kept.index(d) for d in left]
        found: Variable = y if order == [*range(y.type.ndim)] else dimshuffle(y, order)
    return found if found.type == node.outputs[0].type else None


@graph_rewrite("fuse", tags=("fusion",), name="groups_as_operands_lie")
def groups_as_operands_lie(context: Context) -> None:
    """``f(x.T, b).T -> f(x, b.T)``, where all else that reads ``f`` is sums of everything.

    Operands that are smaller turn as well, which is a view.
    """
    places: Places | None = None
    for node in context.fgraph.toposort():
        pattern = _turned_alike(node) if fusable_program(node) is not None else ()
        back = tuple(sorted(range(len(pattern)), key=lambda d: pattern[d]))
        if not pattern or not all(_turns_back(v, back, context) for v in node.outputs):
            continue
        places = places or Places(context.fgraph, context.target, inner=context.inner)
        if places(node) == context.target.place and node not in places.read_on_host:
            _turn(node, back, context)


def _turned_alike(node: Apply) -> tuple[int, ...]:
    """The permutation of all operands that are as large as the results; () without one."""
    if not node.inputs:
        return ()
    wide = node.outputs[0].type.broadcastable
    full = [v for v in node.inputs if v.type.broadcastable == wide and not all_ones(v)]
    made = {v.owner.op if v.owner is not None else None for v in full}
    op: Any = made.pop() if len(made) == 1 else None
    if not isinstance(op, DimShuffle) or "x" in op.pattern:
        return ()
    pattern = tuple(int(d) for d in op.pattern)
    whole = all(node_of(v).inputs[0].type.ndim == len(pattern) for v in full)
    return pattern if whole and pattern != tuple(sorted(pattern)) else ()


def _turns_back(v: Variable, back: tuple[int, ...], context: Context) -> bool:
    """Whether all that reads a result is such views of it, and reductions of all its axes."""
    for user, _ in context.fgraph.users(v):
        op: Any = None if user is None else reduction_in(user)
        if user is not None and isinstance(user.op, DimShuffle):
            if user.op.pattern != back:
                return False
        elif op is None or op.keepdims or not op.any_order or len(op.axes) < len(back):
            return False
    return True


def _turn(node: Apply, back: tuple[int, ...], context: Context) -> None:
    """Compute the group in the other order."""
    with inherit(node.origin, node.hints):
        made = node.op.make_node(*(permuted(v, back) for v in node.inputs)).outputs
    pairs = list[tuple[Variable, Variable]]()
    for old, new in zip(node.outputs, made, strict=True):
        for user in context.fgraph.user_nodes(old):
            with inherit(user.origin, user.hints):
                is_view = isinstance(user.op, DimShuffle)
                (found,) = [new] if is_view else user.op.make_node(new).outputs
            pairs.append((user.outputs[0], found))
    if all(old.type == new.type for old, new in pairs):
        context.replace(pairs, "groups_as_operands_lie")


RULES = (views_before_elementwise, reductions_before_views)
#: Those of what fusion has made.
GROUP_RULES = (groups_as_operands_lie,)
