"""Kernels that call SciPy."""

from __future__ import annotations

from typing import Any

from symdnn.graph.kernel import Call, Kernel, Row, Traits
from symdnn.ops.vendor.scipy_ops import ScipyLogSoftmax

__all__ = ["KERNELS", "facts"]


def facts() -> dict[str, Any]:
    """Which SciPy is there."""
    try:
        import scipy
    except ImportError:
        return {"notes": ("SciPy is not installed",)}
    return {"scipy": tuple(int(n) for n in scipy.__version__.split(".")[:2])}


class ScipyKernel(Kernel):
    """Log-softmax by SciPy."""

    name = "scipy.log_softmax"
    traits = Traits("scipy", runs_user_code=True)

    def bind(self, call: Call) -> Any:
        """``scipy.special.log_softmax`` into the output."""
        from scipy.special import log_softmax

        op: Any = call.op
        axis = op.axis

        def launch(inputs: Any, outputs: Any) -> None:
            outputs[0][...] = log_softmax(inputs[0], axis)

        return launch


KERNELS: tuple[Row, ...] = (((ScipyLogSoftmax,), (ScipyKernel(),)),)
