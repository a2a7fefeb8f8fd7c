"""The kernel that calls numexpr, and the facts about it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from symdnn.graph.kernel import Call, Kernel, Launch, Row, Traits
from symdnn.graph.typing import Array
from symdnn.libraries.numexpr.ops import NumexprLog1p

__all__ = ["KERNELS", "facts"]


def facts() -> dict[str, Any]:
    """The version; a note where it is absent."""
    try:
        found = version("numexpr")
    except PackageNotFoundError:
        return {"notes": ("numexpr is not installed",)}
    return {"numexpr": tuple(map(int, found.split(".")[:2]))}


class Log1pKernel(Kernel[NumexprLog1p]):
    """``log1p`` by ``numexpr.evaluate``."""

    name = "numexpr.log1p"
    traits = Traits("numexpr", runs_user_code=True)

    def bind(self, call: Call[NumexprLog1p]) -> Launch[Array]:
        """A launch that writes into the plan's memory."""
        import numexpr

        def launch(inputs: Any, outputs: Any) -> None:
            numexpr.evaluate("log1p(x)", {"x": inputs[0]}, out=outputs[0])

        return launch


KERNELS: tuple[Row, ...] = (((NumexprLog1p,), (Log1pKernel(),)),)
