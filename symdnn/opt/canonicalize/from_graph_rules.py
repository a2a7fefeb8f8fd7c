"""``OpFromGraph`` is replaced by its graph."""

from __future__ import annotations

from collections.abc import Sequence

from symdnn.graph.traverse import toposort
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.control.from_graph import OpFromGraph
from symdnn.rewriting.rewrite import Context, node_rewrite


def _graph(node: Apply) -> Sequence[Variable]:
    assert isinstance(node.op, OpFromGraph)
    outputs = node.op.inner.apply(node.inputs, node.written)
    name = (node.op.name or "OpFromGraph").replace(".", "_")
    for new in toposort(outputs, blockers=node.inputs):
        new.origin = new.origin.called_in(node.origin.module, name)
    return outputs


@node_rewrite(OpFromGraph, phase="canonicalize", tags=("fast_compile", "inline"))
def inline_graph(node: Apply[OpFromGraph], context: Context) -> Sequence[Variable] | None:
    """With ``inline=True``: at once, so that all rules see its nodes."""
    return _graph(node) if node.op.inline else None


@node_rewrite(OpFromGraph, phase="lower", tags=("fast_compile", "inline"))
def expand_graph(node: Apply, context: Context) -> Sequence[Variable] | None:
    """With ``inline=False``: in the phase ``lower``, when both graphs are canonical."""
    return _graph(node)


RULES = [inline_graph, expand_graph]
