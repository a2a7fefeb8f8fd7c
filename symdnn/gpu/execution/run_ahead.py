"""The in-flight limit: how many calls of a captured plan may be enqueued and not finished."""

from __future__ import annotations

from typing import Any

from symdnn.gpu.device.capture import Queue


class InFlightCalls:
    """Calls that are enqueued and may not be finished, in two halves, with the arrays they read.

    Each half has at most ``max_calls`` calls and an event after its last one. Before a half is
    reused, its event is waited for. A call that is ``alone`` is a half of its own. Pinned memory
    that the host wrote for a half is not written again before that half is reused.
    """

    def __init__(self, queue: Queue, max_calls: int) -> None:
        self.max_calls, self.half = max_calls, 0
        self._events = [queue.event(), queue.event()]
        self._held: list[list[Any]] = [[], []]
        self._full = True

    def begin(self, keep: Any, alone: bool) -> bool:
        """Before a call: keep ``keep`` alive until it is finished. Returns whether a half began."""
        began = alone or self._full
        if began:
            if not self._full:
                self._events[self.half].record()
            self.half = 1 - self.half
            self._events[self.half].wait()
            self._held[self.half].clear()
        held = self._held[self.half]
        held.append(keep)
        self._full = alone or len(held) >= self.max_calls
        return began

    def end(self) -> None:
        """After a call was enqueued."""
        if self._full:
            self._events[self.half].record()

    def finish(self) -> None:
        """Wait for all calls."""
        if not self._full:
            self._events[self.half].record()
        for event in self._events:
            event.wait()
