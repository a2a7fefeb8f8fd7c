"""What is lowered to SciPy."""

from __future__ import annotations

from symdnn.graph.target import Target
from symdnn.libraries.scipy.ops import ScipyFilter
from symdnn.ops.array.filters import LinearFilter
from symdnn.opt.lower.lowering import Backend, Library

__all__ = ["SCIPY"]


def problem(target: Target) -> str | None:
    """Why SciPy is not used at all; None where it is there."""
    if target.kind != "cpu":
        return f"the target is {target}"
    return None if target.has("scipy") else "SciPy is not installed"


BACKEND = Backend("scipy", "cpu", problem, (None, "scipy"))
LOWERINGS = (BACKEND.row("filter_to_scipy", ScipyFilter, LinearFilter),)
KERNELS_AT = "symdnn.libraries.scipy.kernels"
SCIPY = Library(BACKEND, LOWERINGS, detected_by=KERNELS_AT, kernels=KERNELS_AT)
