"""How long work on the compute stream takes, between events, launched from a CUDA graph.

A launch from Python costs tens of microseconds of the host, behind which a short kernel would hide.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from symdnn.errors import SymdnnError
from symdnn.gpu.device.capture import CaptureFailed, Graph
from symdnn.gpu.device.context import Context

__all__ = ["Clock", "ClockFailed", "being_captured", "race_ms", "replay_ms"]

_WINDOWS = 5
_WINDOW_MS = 2.0
_SHORT_MS = 0.05  # below it a graph holds several launches
_REPEATS = 8
_FAR = 1.5  # so many times as slow as the best so far: not worth timing well
#: Launches in a graph of :func:`replay_ms`, and its replays, of which the shortest counts.
_LAUNCHES, _REPLAYS = 10, 5


class ClockFailed(SymdnnError, RuntimeError):
    """The driver refused an event, or a kernel before it failed."""


class Clock:
    """Device time between events on a context's compute stream."""

    def __init__(self, context: Context) -> None:
        from cuda.bindings import driver

        self._driver: Any = driver
        self.context = context

    def time(self, enqueue: Callable[[], object], good_ms: float = inf) -> float:
        """Median milliseconds of one ``enqueue``; a first estimate where that is far from good."""
        replay, count = self.repeated(enqueue, 1), 1
        replay()
        rough = min(self.between(replay, 1) for _ in range(2))
        if rough > _FAR * good_ms:
            return rough
        if rough < _SHORT_MS:
            replay, count = self.repeated(enqueue, _REPEATS), _REPEATS
            replay()
        launches = max(1, min(50, round(_WINDOW_MS / (rough * count))))
        windows = [self.between(replay, launches) for _ in range(_WINDOWS)]
        return statistics.median(windows) / launches / count

    def repeated(self, enqueue: Callable[[], object], count: int) -> Callable[[], object]:
        """A captured graph of ``count`` runs; the runs themselves where it can't be captured."""

        def all_of_them() -> None:
            for _ in range(count):
                enqueue()

        try:
            return Graph(self.context, all_of_them).launch
        except CaptureFailed:
            return all_of_them

    def between(self, enqueue: Callable[[], object], launches: int) -> float:
        """Milliseconds from the start of the first to the end of the last."""
        start, end = (_checked(self._driver.cuEventCreate(0)) for _ in range(2))
        try:
            _checked(self._driver.cuEventRecord(start, self.context.stream))
            for _ in range(launches):
                enqueue()
            _checked(self._driver.cuEventRecord(end, self.context.stream))
            _checked(self._driver.cuEventSynchronize(end))
            return float(_checked(self._driver.cuEventElapsedTime(start, end)))
        finally:
            for event in (start, end):
                _checked(self._driver.cuEventDestroy(event))


def replay_ms(env: Any, enqueue: Callable[[], object], good_ms: float = inf) -> float:
    """Milliseconds of one ``enqueue()``, the shortest mean of a few replays: quick, for many.

    What is far from ``good_ms`` is not replayed again.
    """
    clock = Clock(env.context)
    enqueue()  # what it loads or allocates when it first runs is not captured
    replay = clock.repeated(enqueue, _LAUNCHES)
    first = clock.between(replay, 1) / _LAUNCHES
    if first > _FAR * good_ms:
        return first
    return min(clock.between(replay, 1) for _ in range(_REPLAYS)) / _LAUNCHES


def race_ms(env: Any, enqueues: Sequence[Callable[[], object]]) -> list[float]:
    """Milliseconds of each, its replays alternated with the others': they meet the same clocks."""
    clock = Clock(env.context)
    replays = [clock.repeated(enqueue, _LAUNCHES) for enqueue in enqueues]
    rounds = [[clock.between(replay, 1) for replay in replays] for _ in range(2 * _REPLAYS)]
    return [statistics.median(own) / _LAUNCHES for own in zip(*rounds, strict=True)]


def being_captured(env: Any) -> bool:
    """Whether what is enqueued now goes into a graph: then nothing can be timed."""
    from cuda.bindings import driver

    status = _checked(driver.cuStreamIsCapturing(env.stream))
    return int(status) != int(driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)


def _checked(result: Any) -> Any:
    status, *values = result
    if int(status) != 0:
        raise ClockFailed(f"no time could be taken: CUDA driver: {status!r}")
    return values[0] if values else None
