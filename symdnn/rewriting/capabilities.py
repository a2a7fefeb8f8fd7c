"""What libraries and kernels can do, as far as rewriting asks.

``compile`` hands it to ``opt`` beside the target, so that ``opt`` knows no library and no kernel.
Its answers follow from the target and from static types: no hardware is needed for them, and a
program for ``cuda:sm_90`` is planned the same on any machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.op import Op
from symdnn.graph.target import Target
from symdnn.graph.variable import Apply

if TYPE_CHECKING:
    from symdnn.rewriting.rewrite import GraphRewrite, Rewrite

__all__ = ["NO_CAPABILITIES", "Capabilities"]


def _no_kernel(node: Apply, kind: str) -> str | None:
    return f"there is no {kind} kernel for {type(node.op).__name__}"


def _fuses_on_cuda(op: Op, kind: str) -> bool:
    return kind == "cuda"


def _not_asked(fgraph: FunctionGraph, target: Target, takes: Any) -> Mapping[Apply, str]:
    return {}


@dataclass(frozen=True)
class Capabilities:
    """``rules`` are the libraries' rewrites. ``kernel_reason(node, kind)`` says why no kernel of a
    kind of target takes a node, None when one does; ``fuses(op, kind)`` whether a fused op is worth
    making there; ``not_lowered(fgraph, target, takes)`` has the nodes that a library could have
    had, each with the reason why it has not (``takes``: which rewrites are switched on)."""

    rules: tuple[Rewrite | GraphRewrite, ...] = ()
    kernel_reason: Callable[[Apply, str], str | None] = _no_kernel
    fuses: Callable[[Op, str], bool] = _fuses_on_cuda
    not_lowered: Callable[[FunctionGraph, Target, Any], Mapping[Apply, str]] = _not_asked


#: Neither a library nor a kernel.
NO_CAPABILITIES = Capabilities()
