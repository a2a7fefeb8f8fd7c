"""Log-softmax to SciPy's."""

from __future__ import annotations

from typing import Any

from symdnn.graph.target import Target
from symdnn.graph.variable import Apply, Variable
from symdnn.ops.nn.softmax import LogSoftmax
from symdnn.ops.vendor.scipy_ops import ScipyLogSoftmax
from symdnn.opt.lower.lowering import Backend, Library
from symdnn.rewriting.rewrite import Context

__all__ = ["SCIPY"]


def _problem(target: Target) -> str | None:
    """Why SciPy is not used at all; None where it is there."""
    if target.kind != "cpu":
        return f"the target is {target}"
    return None if target.has("scipy") else "SciPy is not installed"


BACKEND = Backend("scipy", "cpu", _problem, (None, "scipy"))


def _refuses(node: Apply, context: Context) -> str | None:
    (x,) = node.inputs
    if x.type.dtype not in ScipyLogSoftmax.dtypes:
        return f"SciPy has it for {ScipyLogSoftmax.dtypes}, not for {x.type.dtype}"
    return None


@BACKEND.lowering("log_softmax_to_scipy", LogSoftmax, refuses=_refuses)
def log_softmax(node: Apply, context: Context) -> Variable:
    """LogSoftmax to ScipyLogSoftmax."""
    op: Any = node.op
    return ScipyLogSoftmax(op.axis)(*node.inputs)  # type: ignore[no-any-return]


SCIPY = Library(BACKEND, (log_softmax,), detected_by="symdnn.cpu.scipy_kernels")
