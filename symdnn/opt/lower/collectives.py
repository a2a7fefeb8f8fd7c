"""Reductions over ranks in two halves, so that the nodes between them run meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

from symdnn.config import config
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.collective.base import Collective
from symdnn.ops.collective.overlapped import (
    AllReduceStart,
    AllReduceWait,
    AllSucceeded,
    MoveStart,
    MoveWait,
    StreamStart,
    StreamWait,
)
from symdnn.ops.collective.reductions import AllGather, AllReduce, ReduceScatter
from symdnn.rewriting.rewrite import Context, node_rewrite

__all__ = ["RULES"]


@node_rewrite(AllReduce, phase="transfer", tags=("fast_compile",), name="overlap_all_reduce")
def overlap(node: Apply[AllReduce], context: Context) -> Sequence[Variable] | None:
    """A reduction to its start, and a wait that the program puts as late as it can."""
    if node.op.group.size == 1 or context.target.kind != "cpu":
        return _on_a_stream(node, context)
    started = AllReduceStart(node.op.group, node.op.op)(*node.inputs)
    return AllReduceWait(len(node.inputs))(started, *node.inputs)


@node_rewrite(
    AllGather, ReduceScatter, phase="transfer", tags=("fast_compile",), name="overlap_moves"
)
def overlap_moves(
    node: Apply[Collective], context: Context
) -> Variable | Sequence[Variable] | None:
    """Likewise a gathering, or a reduction to parts."""
    if node.op.group.size == 1 or context.target.kind != "cpu":
        return _on_a_stream(node, context)
    return MoveWait()(*MoveStart(node.op.group, node.op)(*node.inputs))


@node_rewrite(AllSucceeded, phase="transfer", tags=("fast_compile",), name="overlap_agreement")
def overlap_agreement(node: Apply[AllSucceeded], context: Context) -> Sequence[Variable] | None:
    """On a GPU the agreement before updates, likewise."""
    return _on_a_stream(node, context) if context.target.kind != "cpu" else None


def _on_a_stream(node: Apply[Collective], context: Context) -> Sequence[Variable] | None:
    """Both halves on a GPU, of several ranks, if the program has other nodes to run meanwhile."""
    if node.op.group.size == 1 or context.inner or not config.distributed.overlap:
        return None
    started = StreamStart(node.op.group, node.op).make_node(*node.inputs)
    if context.capabilities.kernel_reason(started, context.target.kind) is not None:
        return None  # the host runs it
    return StreamWait(len(started.outputs)).make_node(*started.outputs, *node.inputs).outputs


RULES = (overlap, overlap_moves, overlap_agreement)
