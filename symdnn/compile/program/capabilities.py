"""The capabilities of libraries and kernels, for rewriting and placing."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.kernel import Call, kernels_for, own_kernels_for, sized
from symdnn.graph.op import Op
from symdnn.graph.target import Target
from symdnn.graph.variable import Apply
from symdnn.opt.fuse.transfer import Places
from symdnn.rewriting.rewrite import Capabilities, GraphRewrite


def kernel_reason(node: Apply, kind: str) -> str | None:
    """The reasons why no kernel of this kind of target takes ``node``; None if one does."""
    call, reasons = _call(node), []
    for kernel in kernels_for(type(node.op), kind):
        reason = kernel.refuses(call)
        if reason is None:
            return None
        reasons.append(f"{kernel.name}: {reason}")
    return "; ".join(reasons) or f"there is no {kind} kernel for {type(node.op).__name__}"


def _has_own_kernel(node: Apply, kind: str) -> bool:
    """Whether a kernel for just this op takes ``node``."""
    call = _call(node)
    return any(k.refuses(call) is None for k in own_kernels_for(type(node.op), kind))


def _call(node: Apply) -> Call:
    inputs, outputs = (sized(*(v.type for v in vs)) for vs in (node.inputs, node.outputs))
    return Call(node.op, inputs, outputs, node.hints)


def _fuses(op: Op, kind: str) -> bool:
    """Whether this kind of target has good kernels for a fused op.

    CUDA has for all. Kernels of the CPU say so: without LLVM there is nothing to gain.
    """
    if kind == "cuda":
        return True
    return any(k.fuses(op) for k in kernels_for(type(op), kind))


@cache
def all_capabilities() -> Capabilities:
    """All libraries, which are imported where a graph is first rewritten, and the kernel table."""
    from symdnn.libraries.table import RULES, not_lowered

    return Capabilities(RULES, kernel_reason, _fuses, not_lowered, _has_own_kernel)


def demanded(takes: Callable[[GraphRewrite], bool]) -> bool:
    """Whether compiling fails without some library; ``takes`` is :meth:`Selection.takes`."""
    from symdnn.libraries.table import LIBRARIES

    return any(each.demanded(takes) for each in LIBRARIES)


def places_of(fgraph: FunctionGraph, target: Target, inner: bool = False) -> Places:
    """The places of the nodes of a graph that has its transfers."""
    return Places(fgraph, target, all_capabilities(), inner)
