"""Starts compiling kernels that any shapes need while the graph is still rewritten."""

from __future__ import annotations

from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.kernel import Call, kernels_for
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
        types = (tuple(v.type for v in node.inputs), tuple(v.type for v in node.outputs))
        call = Call(node.op, *types, node.hints, node)
        for kernel in kernels:
            if kernel.refuses(call) is None:
                kernel.begin(call)
