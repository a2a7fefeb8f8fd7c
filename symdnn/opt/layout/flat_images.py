"""Ops between 1-D convolutions as ops of images with one row, so that they may have NHWC.

A 1-D convolution runs as a 2-D one on images (batch, channels, 1, positions). Elementwise ops and
slices between two of them have three dimensions and so no NHWC form: all their operands and results
would be reordered. Here they get the extra dimension too, if an operand has it.
"""

from __future__ import annotations

from typing import Any

from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.origin import inherit
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.array.index import Subtensor
from symdnn.ops.array.slices import FULL, is_slice
from symdnn.ops.core.shape import DimShuffle, dimshuffle
from symdnn.ops.elemwise import Elemwise
from symdnn.ops.lowered.lowered import neutral_of
from symdnn.ops.nn.conv import ConvGradWeight
from symdnn.opt.layout.layout_follow import may_have_nhwc

#: Images without the dimension of size 1, and with it.
_FLAT, _LIFTED = (0, 1, 3), (0, 1, "x", 2)


def lift_rows(fgraph: FunctionGraph) -> None:
    """Elementwise nodes and slices of rows of images become nodes of images."""
    of_filters: set[Variable] = set()  # gradients of filters, and the updates computed from them
    for node in fgraph.toposort():
        follows = isinstance(node.op, Elemwise | DimShuffle) and of_filters & set(node.inputs)
        if follows or isinstance(neutral_of(node.op), ConvGradWeight):
            of_filters.update(node.outputs)
        images = [v for v in map(_image_of, node.inputs) if v is not None]
        if not images or follows or not _may_lift(node):
            continue
        op: Any = node.op
        if isinstance(op, Subtensor):
            op = Subtensor((*op.index[:2], FULL, *op.index[2:]))
        with inherit(node.origin, node.hints, node.written):
            lifted = [_lifted(v) if v.type.ndim == 3 else v for v in node.inputs]
            new = dimshuffle(op(*lifted), _FLAT)
        if new.type.dtype == node.outputs[0].type.dtype:
            fgraph.replace_all([(node.outputs[0], new)], "lift_rows")


def _image_of(v: Variable) -> Variable | None:
    """The image of one row that ``v`` is a view of; None for other values."""
    made = v.owner
    if made is None or not isinstance(made.op, DimShuffle) or made.op.pattern != _FLAT:
        return None
    image = made.inputs[0]
    known = image.owner is not None and image.type.shape[2] == 1
    return image if known and image.owner and may_have_nhwc(image.owner) else None


def _may_lift(node: Apply) -> bool:
    if any(not isinstance(v.type, TensorType) for v in node.inputs):
        return False
    op = node.op
    if isinstance(op, Subtensor):
        return len(op.index) == 3 and all(map(is_slice, op.index))
    same = all(v.type.ndim == 3 for v in (*node.inputs, *node.outputs))
    return isinstance(op, Elemwise) and same and not op.unmergeable and len(node.outputs) == 1


def _lifted(v: Variable) -> Variable:
    image = _image_of(v)
    return dimshuffle(v, _LIFTED) if image is None else image
