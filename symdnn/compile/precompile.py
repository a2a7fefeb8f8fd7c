"""Starts compiling kernels that any shapes need while the graph is still rewritten."""

from __future__ import annotations

from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.kernel import Call, kernels_for, sized
from symdnn.graph.target import Target

__all__ = ["begin_kernels"]


def begin_kernels(fgraph: FunctionGraph, target: Target, phase: str) -> None:
    """After the phase ``lower`` let kernels start to compile for the nodes that they may run.

    These are kernels with one code for all shapes (``begins``). Another process compiles.
    """
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
