"""Batch statistics of a convolution's result are summed up where the result is made."""

from __future__ import annotations

from typing import Any

from symdnn.graph.origin import inherit
from symdnn.graph.traverse import ancestors, needs_more_effects
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.lowered.norm_parts import BatchMoments
from symdnn.ops.vendor.conv_moments import OneDnnConvMoments
from symdnn.ops.vendor.onednn import OneDnnConv
from symdnn.rewriting.rewrite import Context, graph_rewrite

__all__ = ["moments_of_convolutions"]

#: Winograd's kernels take no fewer.
_LEAST_CHANNELS = 16


@graph_rewrite("fuse", tags=("fusion", "onednn"), name="moments_of_convolutions")
def moments_of_convolutions(context: Context) -> None:
    """A convolution and the statistics of its result become one node.

    Only where it may run by Winograd's algorithm, which is the one that sums up; others would read
    the result once more as before. (On a GPU cuDNN's convolutions give no sums.) A
    convolution whose hint says whose kernel it wants stays by itself, where that is looked at.
    """
    if context.target.kind != "cpu":
        return
    for node in context.fgraph.toposort():
        if isinstance(node.op, OneDnnConv) and _may_sum(node):
            _merge(context, node, _reader(context, node.outputs[0]))


def _may_sum(node: Apply) -> bool:
    op: Any = node.op
    conv = op.op
    plain = not (op.residual or op.activation) and op.layout != "NCHW"
    steps = {*conv.stride, *conv.dilation} == {1} and conv.groups == 1 and conv.ndim == 2
    outputs, channels, *sizes = node.inputs[1].type.shape
    few = any(n is not None and n < _LEAST_CHANNELS for n in (outputs, channels))
    suits = not few and set(sizes) != {1}
    free = node.hints.backend is None
    return free and plain and steps and suits and node.outputs[0].type.dtype == "float32"


def _reader(context: Context, y: Variable) -> Apply | None:
    """What computes the statistics of each channel of ``y``."""
    for user in context.fgraph.user_nodes(y):
        op = user.op
        if isinstance(op, BatchMoments) and user.inputs[0] is y and op.axes == (0, 1, 2):
            return user
    return None


def _merge(context: Context, node: Apply, reader: Apply | None) -> None:
    if reader is None:
        return
    more = reader.inputs[1:]
    if node.outputs[0] in ancestors(more, node.inputs):
        return  # running values that are computed from the result would make a circle
    if needs_more_effects(more, node):
        return
    with inherit(node.origin, node.hints):
        op = OneDnnConvMoments(node.op, reader.op)  # type: ignore[arg-type]
        made = op(*node.inputs, *more)
        old = [node.outputs[0], *reader.outputs]
        context.replace(zip(old, made, strict=True), "moments_of_convolutions")
