"""Groups whose operands are all views with the axes in one other order run in the operands' order.

A program in NCHW that reads what it gathers from arrays in NHWC, and adds the gradient there, has
such groups. Their kernels would read and write across the rows of memory.
"""

from __future__ import annotations

from typing import Any

from symdnn.graph.origin import inherit
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.core.shape import DimShuffle
from symdnn.opt.fuse.groups import fusable_program, reduction_in
from symdnn.opt.fuse.transfer import Places
from symdnn.opt.fuse.views import permuted
from symdnn.rewriting.facts import all_ones, node_of
from symdnn.rewriting.rewrite import Context, graph_rewrite

__all__ = ["RULES", "groups_as_operands_lie"]


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


RULES = (groups_as_operands_lie,)
