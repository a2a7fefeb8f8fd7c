"""Kernels that call SciPy, and which SciPy is there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from symdnn.graph.kernel import Call, Kernel, Launch, Row, Traits
from symdnn.graph.typing import Array
from symdnn.libraries.scipy.ops import ScipySoftmax

__all__ = ["KERNELS", "ScipyKernel", "facts"]


def facts() -> dict[str, Any]:
    """The version of SciPy."""
    try:
        import scipy
    except ImportError:
        return {"notes": ("SciPy is not installed",)}
    return {"scipy": tuple(int(n) for n in scipy.__version__.split(".")[:2])}


class ScipyKernel(Kernel[ScipySoftmax]):
    """Softmax by SciPy."""

    name = "scipy.softmax"
    traits = Traits("scipy", runs_user_code=True)

    def bind(self, call: Call[ScipySoftmax]) -> Launch[Array]:
        """``scipy.special.softmax`` into the output."""
        from scipy.special import softmax

        axis = call.op.axis

        def launch(inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
            outputs[0][...] = softmax(inputs[0], axis)

        return launch


KERNELS: tuple[Row, ...] = (((ScipySoftmax,), (ScipyKernel(),)),)
