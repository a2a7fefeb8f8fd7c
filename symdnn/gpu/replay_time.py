"""How long work on the compute stream takes, launched from a CUDA graph: without host time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from symdnn.gpu.capture import Graph
from symdnn.gpu.context import Context

__all__ = ["being_captured", "replay_ms"]

#: Launches in a graph, and replays of which the shortest counts.
_LAUNCHES, _REPLAYS = 10, 5


def replay_ms(env: Any, enqueue: Callable[[], None]) -> float:
    """Milliseconds of one ``enqueue()``, the shortest mean of a few replays."""
    context: Context = env.context
    enqueue()  # what it loads or allocates when it first runs is not captured

    def repeated() -> None:
        for _ in range(_LAUNCHES):
            enqueue()

    graph = Graph(context, repeated)
    graph.launch()
    times = [_span_ms(context, graph) for _ in range(_REPLAYS)]
    return min(times) / _LAUNCHES


def _span_ms(context: Context, graph: Graph) -> float:
    from cuda.bindings import driver

    start, end = (_checked(driver.cuEventCreate(0)) for _ in range(2))
    try:
        _checked(driver.cuEventRecord(start, context.stream))
        graph.launch()
        _checked(driver.cuEventRecord(end, context.stream))
        _checked(driver.cuEventSynchronize(end))
        return float(_checked(driver.cuEventElapsedTime(start, end)))
    finally:
        for event in (start, end):
            _checked(driver.cuEventDestroy(event))


def being_captured(env: Any) -> bool:
    """Whether what is enqueued now goes into a graph: then nothing can be timed."""
    from cuda.bindings import driver

    status = _checked(driver.cuStreamIsCapturing(env.stream))
    return int(status) != int(driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)


def _checked(result: Any) -> Any:
    status, *values = result
    if int(status) != 0:
        raise RuntimeError(f"CUDA driver: {status!r}")
    return values[0] if values else None
