"""How far calls of a captured plan run ahead of the device."""

from __future__ import annotations

from typing import Any

from symdnn.gpu.device.capture import Queue

__all__ = ["Ahead"]


class Ahead:
    """Calls that are enqueued and may not be finished, in two halves, with what they read.

    Each half has at most ``most`` calls and an event behind its last one, which is waited for
    before the half begins anew. A call that is ``alone`` is a half of its own: what is written on
    the host for one half stays until that half begins again.
    """

    def __init__(self, queue: Queue, most: int) -> None:
        self.most, self.half = most, 0
        self._events = [queue.event(), queue.event()]
        self._held: list[list[Any]] = [[], []]
        self._full = True

    def begin(self, keep: Any, alone: bool) -> bool:
        """Before a call: ``keep`` stays alive until it is finished. Whether a half began."""
        began = alone or self._full
        if began:
            if not self._full:
                self._events[self.half].record()
            self.half = 1 - self.half
            self._events[self.half].wait()
            self._held[self.half].clear()
        held = self._held[self.half]
        held.append(keep)
        self._full = alone or len(held) >= self.most
        return began

    def end(self) -> None:
        """After it was enqueued."""
        if self._full:
            self._events[self.half].record()

    def finish(self) -> None:
        """Wait for all of them."""
        if not self._full:
            self._events[self.half].record()
        for event in self._events:
            event.wait()
