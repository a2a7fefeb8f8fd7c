"""A gather whose values are only added elsewhere becomes one node with the scatter.

A graph network sends the rows of nodes along edges and sums them where they arrive; the gradient
does the same in the other direction. The rows of the edges are many times those of the nodes.
"""

from __future__ import annotations

from typing import Any

from symdnn.config import config
from symdnn.graph.origin import inherit
from symdnn.graph.type import TensorType
from symdnn.graph.variable import Apply
from symdnn.ops.array.advanced_index import AdvancedIncSubtensor, AdvancedSubtensor
from symdnn.ops.lowered.gathered import AddGathered
from symdnn.opt.fuse.fuse import joined_origin
from symdnn.opt.fuse.transfer import Places
from symdnn.rewriting.rewrite import Context, graph_rewrite

__all__ = ["RULES"]

#: Dtypes with atomic addition on a GPU; sums of others have an array of their own.
_DTYPES = ("float32", "float64", "int32", "uint32", "int64", "uint64")


@graph_rewrite("fuse", tags=("fusion",), name="fuse_gathers")
def fuse_gathers(context: Context) -> None:
    """``x[i] += source[j]`` on a GPU, if nothing else reads ``source[j]``."""
    if context.target.kind != "cuda":
        return
    order = context.fgraph.toposort()
    found = [n for n in order if isinstance(n.op, AdvancedIncSubtensor) and _may_join(n, context)]
    if not found:
        return
    places = Places(context.fgraph, context.target, inner=context.inner)
    for node in found:
        get: Any = node.inputs[1].owner
        if places(node) == places(get) == context.target.place:
            op: Any = node.op
            x, _, *rest = node.inputs
            with inherit(joined_origin([get, node]), node.hints):
                made = AddGathered(get.op, op)(x, *get.inputs, *rest)
            context.replace([(node.outputs[0], made)], "fuse_gathers")


def _may_join(node: Apply, context: Context) -> bool:
    op: Any = node.op
    x, y, *rest = node.inputs
    get = y.owner
    if get is None or not isinstance(get.op, AdvancedSubtensor) or op.set_instead_of_inc:
        return False
    if op.host_inputs or get.op.host_inputs or get.inputs[0] is x:
        return False
    if not {node.hints.backend, get.hints.backend} <= {None, "cuda"}:
        return False
    exact = (config.deterministic == "more" or op.same_bits) and x.type.is_float
    if exact or x.type.dtype not in _DTYPES or context.fgraph.is_output(y):
        return False
    part: Any = op.getter().infer(x.type, *(v.type for v in rest))
    assert isinstance(part, TensorType)
    if part.broadcastable != y.type.broadcastable:
        return False
    return [user for user, _ in context.fgraph.users(y)] == [node]


RULES = (fuse_gathers,)
