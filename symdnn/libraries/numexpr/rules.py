"""What numexpr takes."""

from __future__ import annotations

from symdnn.graph.target import Target
from symdnn.libraries.numexpr.ops import NumexprLog1p
from symdnn.ops.elementwise.math import Log1p
from symdnn.opt.lower.lowering import Backend, Library

__all__ = ["NUMEXPR"]


def _problem(target: Target) -> str | None:
    if target.kind != "cpu":
        return f"the target is {target}"
    return None if target.has("numexpr") else "numexpr is not installed"


BACKEND = Backend("numexpr", "cpu", _problem, (None, "numexpr"))
LOWERINGS = (BACKEND.row("log1p_to_numexpr", NumexprLog1p, Log1p),)
KERNELS_AT = "symdnn.libraries.numexpr.kernels"
NUMEXPR = Library(BACKEND, LOWERINGS, detected_by=KERNELS_AT, kernels=KERNELS_AT)
