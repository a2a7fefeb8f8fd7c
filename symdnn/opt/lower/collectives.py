"""Reductions over ranks in two halves, so that the nodes between them run meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

from symdnn.graph.variable import Apply, Variable
from symdnn.ops.collective.overlapped import AllReduceStart, AllReduceWait
from symdnn.ops.collective.reductions import AllReduce
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


RULES = (overlap,)
