"""Time of work on the compute stream, between events, launched from a CUDA graph.

A launch from Python takes the host tens of microseconds, longer than a short kernel runs.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from symdnn.errors import SymdnnError
from symdnn.gpu.device.capture import CaptureFailed, Graph
from symdnn.gpu.device.context import Context

#: The fastest few are timed again, in longer windows that alternate (:mod:`..conv.bench`).
_WINDOW_COUNT = 3
_WINDOW_MS = 1.0
#: A graph has several runs of work that takes less.
_SINGLE_RUN_MIN_MS = 0.05
_RUNS_PER_GRAPH = 8
#: A candidate gets only a first estimate if that is this many times the best time so far, plus the
#: overhead of a graph of one run.
_GIVE_UP_RATIO, _GIVE_UP_MS = 1.25, 0.01
#: Runs in a graph of :func:`replay_ms`, and replays, of which the shortest counts.
_RUNS_PER_REPLAY, _REPLAY_COUNT = 10, 5


class ClockFailed(SymdnnError, RuntimeError):
    """The driver refused an event, or a kernel before the event failed."""


class Clock:
    """Device time between events on a context's compute stream."""

    def __init__(self, context: Context) -> None:
        from cuda.bindings import driver

        self._driver: Any = driver
        self.context = context

    def time(self, enqueue: Callable[[], object], good_ms: float = inf) -> float:
        """Median milliseconds of one ``enqueue``; an estimate if far slower than ``good_ms``."""
        replay, count = self.captured_runs(enqueue, 1), 1
        replay()
        rough = min(self.elapsed_ms(replay, 1) for _ in range(2))
        if rough > _GIVE_UP_RATIO * good_ms + _GIVE_UP_MS:
            return rough
        if rough < _SINGLE_RUN_MIN_MS:
            replay, count = (
                self.captured_runs(enqueue, _RUNS_PER_GRAPH),
                _RUNS_PER_GRAPH,
            )
            replay()
        launches = max(1, min(50, round(_WINDOW_MS / (rough * count))))
        windows = [self.elapsed_ms(replay, launches) for _ in range(_WINDOW_COUNT)]
        return statistics.median(windows) / launches / count

    def captured_runs(self, enqueue: Callable[[], object], count: int) -> Callable[[], object]:
        """The launch of a graph of ``count`` runs; a plain loop where they can't be captured."""

        def all_of_them() -> None:
            for _ in range(count):
                enqueue()

        try:
            return Graph(self.context, all_of_them).launch
        except CaptureFailed:
            return all_of_them

    def elapsed_ms(self, enqueue: Callable[[], object], launches: int) -> float:
        """Milliseconds from the start of the first launch to the end of the last."""
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
    """Milliseconds of one ``enqueue()``, the shortest mean of a few replays.

    It is quick enough for many candidates. One far slower than ``good_ms`` is replayed only once.
    """
    clock = Clock(env.context)
    enqueue()  # its first run may load modules and allocate, which cannot be captured
    replay = clock.captured_runs(enqueue, _RUNS_PER_REPLAY)
    first = clock.elapsed_ms(replay, 1) / _RUNS_PER_REPLAY
    if first > _GIVE_UP_RATIO * good_ms + _GIVE_UP_MS:
        return first
    return min(clock.elapsed_ms(replay, 1) for _ in range(_REPLAY_COUNT)) / _RUNS_PER_REPLAY


def race_ms(env: Any, enqueues: Sequence[Callable[[], object]]) -> list[float]:
    """Milliseconds of each. Their replays alternate, so that all run at the same clock rates."""
    clock = Clock(env.context)
    replays = [clock.captured_runs(enqueue, _RUNS_PER_REPLAY) for enqueue in enqueues]
    rounds = [[clock.elapsed_ms(replay, 1) for replay in replays] for _ in range(2 * _REPLAY_COUNT)]
    return [statistics.median(own) / _RUNS_PER_REPLAY for own in zip(*rounds, strict=True)]


def is_capturing(env: Any) -> bool:
    """Whether the stream is being captured into a graph. Nothing can be timed then."""
    from cuda.bindings import driver

    status = _checked(driver.cuStreamIsCapturing(env.stream))
    return int(status) != int(driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE)


def _checked(result: Any) -> Any:
    status, *values = result
    if int(status) != 0:
        raise ClockFailed(f"no time could be taken: CUDA driver: {status!r}")
    return values[0] if values else None
