"""Softmax becomes SciPy's."""

from __future__ import annotations

from symdnn.graph.target import Target
from symdnn.libraries.scipy.ops import ScipySoftmax
from symdnn.ops.nn.softmax import Softmax
from symdnn.opt.lower.lowering import Backend, Library

__all__ = ["SCIPY"]


def _problem(target: Target) -> str | None:
    """Why SciPy is not used at all; None where it is there."""
    if target.kind != "cpu":
        return f"the target is {target}"
    return None if target.has("scipy") else "SciPy is not installed"


BACKEND = Backend("scipy", "cpu", _problem, (None, "scipy"))

LOWERINGS = (BACKEND.row("softmax_to_scipy", ScipySoftmax, Softmax),)
_KERNELS = "symdnn.libraries.scipy.kernels"
SCIPY = Library(BACKEND, LOWERINGS, detected_by=_KERNELS, kernels=_KERNELS)
