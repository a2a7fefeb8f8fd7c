"""Reductions over ranks in two halves, so that the nodes between them run meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

from symdnn.graph.variable import Apply, Variable
from symdnn.ops.collective.base import Collective
from symdnn.ops.collective.overlapped import AllReduceStart, AllReduceWait, MoveStart, MoveWait
from symdnn.ops.collective.reductions import AllGather, AllReduce, ReduceScatter
from symdnn.rewriting.rewrite import Context, node_rewrite

__all__ = ["RULES"]


@node_rewrite(AllReduce, phase="transfer", tags=("fast_compile",), name="overlap_all_reduce")
def overlap(node: Apply[AllReduce], context: Context) -> Sequence[Variable] | None:
    """A reduction to its start, and a wait that the program puts as late as it can.

    On a GPU it is one node, on a stream of its own.
    """
    if node.op.group.size == 1 or context.target.kind != "cpu":
        return None
    started = AllReduceStart(node.op.group, node.op.op)(*node.inputs)
    return AllReduceWait(len(node.inputs))(started, *node.inputs)


@node_rewrite(
    AllGather, ReduceScatter, phase="transfer", tags=("fast_compile",), name="overlap_moves"
)
def overlap_moves(node: Apply[Collective], context: Context) -> Variable | None:
    """Likewise a gathering, or a reduction to parts."""
    if node.op.group.size == 1 or context.target.kind != "cpu":
        return None
    return MoveWait()(*MoveStart(node.op.group, node.op)(*node.inputs))


RULES = (overlap, overlap_moves)
