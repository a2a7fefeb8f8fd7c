"""SciPy's kernels, and whether it is there."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np

from symdnn.graph.kernel import Call, Kernel, Launch, Row, Traits
from symdnn.graph.typing import Array, Arrays
from symdnn.libraries.scipy.ops import ScipyFilter

__all__ = ["KERNELS", "ScipyFilterKernel", "facts"]


def facts() -> dict[str, Any]:
    """SciPy's version, or a note that there is none."""
    if find_spec("scipy") is None:
        return {"notes": ("SciPy is not installed",)}
    import scipy

    major, minor, *_ = scipy.__version__.split(".")
    return {"scipy": (int(major), int(minor))}


class ScipyFilterKernel(Kernel[ScipyFilter]):
    """A filter by SciPy."""

    name = "scipy.lfilter"
    traits = Traits("scipy", runs_user_code=True)

    def bind(self, call: Call[ScipyFilter]) -> Launch[Array]:
        """A launch for any layout."""
        from scipy.signal import lfilter

        op = call.op

        def launch(inputs: Arrays, outputs: Arrays) -> None:
            x, b, a = inputs
            turn = slice(None, None, -1 if op.reverse else None)
            moved = np.moveaxis(x, op.axis, 0)[turn]
            np.moveaxis(outputs[0], op.axis, 0)[turn] = lfilter(b, [1.0, *a], moved, axis=0)

        return launch


KERNELS: tuple[Row, ...] = (((ScipyFilter,), (ScipyFilterKernel(),)),)
