"""CUDA graphs: work enqueued once on the compute stream, then launched as one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from symdnn.errors import SymdnnError
from symdnn.gpu.context import Context

__all__ = ["CaptureFailed", "Graph"]


class CaptureFailed(SymdnnError, RuntimeError):
    """Work could not be captured; it can still be enqueued piece by piece."""


class Graph:
    """What ``enqueue`` put on the context's stream, ready to be launched again and again.

    Addresses are part of it: everything that it reads and writes must stay where it is.
    (``cuStreamBeginCapture``, ``cuStreamEndCapture``, ``cuGraphInstantiate``.)
    """

    def __init__(self, context: Context, enqueue: Callable[[], None]) -> None:
        from cuda.bindings import driver

        self._driver: Any = driver
        self._stream = driver.CUstream(context.stream)
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        self._checked(driver.cuStreamBeginCapture(self._stream, mode))
        try:
            enqueue()
        except Exception as error:
            driver.cuStreamEndCapture(self._stream)
            raise CaptureFailed(f"{type(error).__name__}: {error}") from error
        graph = self._checked(driver.cuStreamEndCapture(self._stream))
        self._executable = self._checked(driver.cuGraphInstantiate(graph, 0))
        self._checked(driver.cuGraphDestroy(graph))

    def launch(self) -> None:
        """Enqueue all of it."""
        self._checked(self._driver.cuGraphLaunch(self._executable, self._stream))

    def __del__(self) -> None:
        # At the end of the process the driver may be gone already.
        if getattr(self, "_executable", None) is not None and self._driver is not None:
            self._driver.cuGraphExecDestroy(self._executable)

    @staticmethod
    def _checked(result: Any) -> Any:
        status, *values = result
        if int(status) != 0:
            raise CaptureFailed(f"CUDA driver: {status!r}")
        return values[0] if values else None
