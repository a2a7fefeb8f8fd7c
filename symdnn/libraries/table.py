"""The table of libraries. A new library adds a line here, and its room."""

from __future__ import annotations

from collections.abc import Callable

from symdnn.graph.fgraph import FunctionGraph
from symdnn.graph.target import Target
from symdnn.graph.variable import Apply
from symdnn.libraries.cublaslt.rules import CUBLASLT
from symdnn.libraries.cudnn.rules import CUDNN
from symdnn.libraries.cufft.rules import CUFFT
from symdnn.libraries.onednn.rules import ONEDNN
from symdnn.opt.lower.lowering import Library, why_not
from symdnn.opt.phases import RULES as NEUTRAL_RULES
from symdnn.rewriting.rewrite import GraphRewrite, Rewrite

__all__ = ["ALL_RULES", "LIBRARIES", "RULES", "not_lowered"]

#: All libraries, in the order in which their rules are printed.
LIBRARIES: tuple[Library, ...] = (CUDNN, CUBLASLT, CUFFT, ONEDNN)

#: The rewrites of all libraries.
RULES: tuple[Rewrite | GraphRewrite, ...] = tuple(r for each in LIBRARIES for r in each.rules)

#: All rewrites.
ALL_RULES = (*NEUTRAL_RULES, *RULES)


def not_lowered(
    fgraph: FunctionGraph, target: Target, takes: Callable[[Rewrite], bool] = lambda rewrite: True
) -> dict[Apply, str]:
    """Nodes of a rewritten graph that a library of the target's kind could have run but does not.

    Each with the reason. ``takes`` says which rewrites were switched on (:meth:`Selection.takes`).
    """
    lowerings = [
        x for each in LIBRARIES if each.backend.kind == target.kind for x in each.lowerings
    ]
    return why_not(lowerings, fgraph, target, takes)
