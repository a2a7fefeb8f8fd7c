"""No computation only to know a shape: sizes are computed from the sizes of inputs."""

from __future__ import annotations

from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply, Variable, as_variable, constant
from symdnn.ops.shape import ShapeI, dims_of
from symdnn.opt.rewrite import Context, node_rewrite
from symdnn.opt.shapes import op_shapes

__all__ = ["RULES"]


@node_rewrite(ShapeI, phase="canonicalize", tags=("fast_compile", "shape"))
def size_of_result(node: Apply, context: Context) -> Variable | None:
    """The size of an op's result, by the op's shape rule."""
    (x,) = node.inputs
    assert isinstance(node.op, ShapeI)
    static = x.type.shape[node.op.axis]
    if static is not None:
        return constant(static, dtype="int64")
    if x.owner is None:
        return None
    sizes = [dims_of(v) if isinstance(v.type, TensorType) else () for v in x.owner.inputs]
    shapes = op_shapes(x.owner, sizes)
    if shapes is None or x.index is None:
        return None
    size = as_variable(shapes[x.index][node.op.axis], dtype="int64")
    return None if size is node.outputs[0] else size


RULES = [size_of_result]
