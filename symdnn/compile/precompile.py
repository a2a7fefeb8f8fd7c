"""Code that a program will need whatever its shapes: asked for while it is still rewritten."""

from __future__ import annotations

from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.kernel import Call, kernels_for, sized
from symdnn.graph.target import Target

__all__ = ["begin_kernels"]


def begin_kernels(fgraph: FunctionGraph, target: Target, phase: str) -> None:
    """Tell kernels that have one code for all shapes (``begin(call)``) of the nodes that they may
    run, once ``phase`` has lowered them; what is compiled is compiled by another process."""
    if phase != "lower" or target.kind != "cpu":
        return
    for node in fgraph.nodes:
        kernels = [k for k in kernels_for(type(node.op), "cpu") if k.begins]
        if not kernels:
            continue
        inputs, outputs = (sized(*[v.type for v in vs]) for vs in (node.inputs, node.outputs))
        call = Call(node.op, inputs, outputs, node.hints, node)
        for kernel in kernels:
            if kernel.refuses(call) is None:
                kernel.begin(call)
