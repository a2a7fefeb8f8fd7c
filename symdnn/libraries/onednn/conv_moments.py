"""Batch statistics of a convolution's result are computed by the convolution's kernel."""

from __future__ import annotations

from typing import Any

from symdnn.graph.origin import inherit
from symdnn.graph.traverse import may_need
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.lowered.norm_parts import BatchMoments
from symdnn.ops.vendor.conv_moments import OneDnnConvMoments
from symdnn.ops.vendor.onednn import OneDnnConv
from symdnn.rewriting.rewrite import Context, graph_rewrite

#: The fewest input and output channels that Winograd's kernels take.
_MIN_CHANNELS = 16


@graph_rewrite("fuse", tags=("fusion", "onednn"), name="moments_of_convolutions")
def moments_of_convolutions(context: Context) -> None:
    """A convolution and the statistics of its result become one node.

    Only where the convolution may run by Winograd's algorithm: other kernels give no sums, and
    would read the result again. (On a GPU cuDNN's convolutions give none either.) A convolution
    with a hint for a backend stays as it is, so that the hint is followed.
    """
    if context.target.kind != "cpu":
        return
    for node in context.fgraph.toposort():
        if isinstance(node.op, OneDnnConv) and _may_run_by_winograd(node):
            _merge(context, node, _reader(context, node.outputs[0]))


def _may_run_by_winograd(node: Apply) -> bool:
    op: Any = node.op
    conv = op.op
    plain = not (op.residual or op.activation) and op.layout != "NCHW"
    steps = {*conv.stride, *conv.dilation} == {1} and conv.groups == 1 and conv.ndim == 2
    outputs, channels, *sizes = node.inputs[1].type.shape
    few = any(n is not None and n < _MIN_CHANNELS for n in (outputs, channels))
    suits = not few and set(sizes) != {1}
    free = node.hints.backend is None
    return free and plain and steps and suits and node.outputs[0].type.dtype == "float32"


def _reader(context: Context, y: Variable) -> Apply | None:
    """The node that computes the statistics of each channel of ``y``; None if there is none."""
    for user in context.fgraph.user_nodes(y):
        op = user.op
        if isinstance(op, BatchMoments) and user.inputs[0] is y and op.axes == (0, 1, 2):
            return user
    return None


def _merge(context: Context, node: Apply, reader: Apply | None) -> None:
    if reader is None:
        return
    more = reader.inputs[1:]
    if not may_need(node, more):  # running values may be computed from the result
        return
    with inherit(node.origin, node.hints):
        op = OneDnnConvMoments(node.op, reader.op)  # type: ignore[arg-type]
        made = op(*node.inputs, *more)
        old = [node.outputs[0], *reader.outputs]
        context.replace(zip(old, made, strict=True), "moments_of_convolutions")
