"""Sizes are computed from the sizes of inputs, so that no value is computed only for its shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symdnn.graph.variable import Apply, Variable, constant
from symdnn.ops.array.view import Copy, SpecifyShape
from symdnn.ops.control.checkpoint import Checkpoint
from symdnn.ops.control.scan_binomial import BinomialCheckpoint
from symdnn.ops.core.gradient_control import Identity
from symdnn.ops.core.make_vector import MakeVector, make_vector
from symdnn.ops.core.shape import (
    ShapeI,
    ShapeVector,
    SpecifyType,
    as_dim,
    specify_type,
)
from symdnn.rewriting.rewrite import Context, node_rewrite

PHASE = "canonicalize"
TAGS = ("fast_compile", "cleanup", "shape")


@node_rewrite(ShapeI, phase=PHASE, tags=(*TAGS, "local_shape_to_shape_i", "ShapeOpt"))
def size_of_result(node: Apply, context: Context) -> Variable | None:
    """The size of a computed value becomes an expression of the sizes of the graph's inputs."""
    (x,) = node.inputs
    assert isinstance(node.op, ShapeI)
    found = context.shapes.dims(x)[node.op.axis]
    if not isinstance(found, Variable):
        return constant(int(found), dtype="int64")
    owner = found.owner
    if owner is not None and owner.op == node.op and owner.inputs[0] is x:
        return None
    return as_dim(found)


@node_rewrite(ShapeVector, phase=PHASE, tags=(*TAGS, "local_shape_to_shape_i"))
def shape_to_sizes(node: Apply, context: Context) -> Variable:
    """A shape becomes the vector of its sizes."""
    (x,) = node.inputs
    sizes = context.shapes.dims(x)
    if not sizes:
        return MakeVector("int64")()
    return make_vector([as_dim(d) for d in sizes])


@node_rewrite(SpecifyType, phase=PHASE, tags=(*TAGS, "local_useless_SpecifyShape"))
def type_known_already(node: Apply, context: Context) -> Variable | None:
    """A check of static sizes that the type has already is dropped."""
    (x,) = node.inputs
    return x if x.type == node.outputs[0].type else None


@node_rewrite(SpecifyShape, phase=PHASE, tags=(*TAGS, "local_useless_SpecifyShape"))
def shape_known_already(node: Apply[SpecifyShape], context: Context) -> Variable | None:
    """A check of a shape that is known to be right is dropped."""
    x, *wanted = node.inputs
    known = node.op.static
    for a, b, s in zip(context.shapes.dims(x), wanted, known, strict=True):
        if s is None and not context.shapes.same(a, b):
            return None
    static: Any = node.outputs[0].type
    return specify_type(x, static)


@node_rewrite(Copy, phase=PHASE, tags=("fast_compile", "cleanup", "local_copy"))
def copy_removed(node: Apply, context: Context) -> Variable:
    """A copy is the value itself: memory planning decides which values share memory."""
    return node.inputs[0]


@node_rewrite(Identity, phase=PHASE, tags=("fast_compile", "local_view_op"))
def gradient_control_removed(node: Apply, context: Context) -> Variable | None:
    """Ops that only change gradients (``disconnected_grad``, ``grad_clip``) are identities now."""
    assert isinstance(node.op, Identity)
    return node.inputs[0] if node.op.gradient_only and not node.op.unmergeable else None


@node_rewrite(Checkpoint, BinomialCheckpoint, phase=PHASE, tags=("fast_compile",))
def checkpoint_removed(node: Apply, context: Context) -> Sequence[Variable]:
    """Gradients have been taken: what they compute again does not go through it."""
    return node.inputs[: len(node.outputs)]


RULES = [
    size_of_result,
    shape_to_sizes,
    type_known_already,
    shape_known_already,
    copy_removed,
    gradient_control_removed,
    checkpoint_removed,
]
