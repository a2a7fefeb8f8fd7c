"""A second stream of a device, whose work runs beside that of the first where nothing waits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from symdnn.gpu.device.driver_api import NON_BLOCKING, bindings, checked

_NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING


class SideStream:
    """Of the highest priority, so that its blocks start as soon as others of the first end.

    Within a capture of the first stream its work becomes part of the same graph: each
    :meth:`leave` must have its :meth:`arrive` in that capture. (``cuStreamWaitEvent``.)
    """

    def __init__(self, first: int) -> None:
        self._driver: Any = bindings()
        _, highest = checked_pair(self._driver.cuCtxGetStreamPriorityRange())
        made = self._driver.cuStreamCreateWithPriority(NON_BLOCKING, highest)
        self.first, self.stream = first, int(checked(made))
        self._free: list[Any] = []
        #: By the key of :meth:`leave`: the event behind its work, and what that reads.
        #: No event: the work is on the first stream.
        self._left: dict[int, tuple[Any | None, Sequence[Any]]] = {}

    def enter(self) -> int:
        """Let later work here wait for all work of the first stream so far; the stream."""
        event = self._event()
        checked(self._driver.cuEventRecord(event, self.first))
        checked(self._driver.cuStreamWaitEvent(self.stream, event, 0))
        self._free.append(event)
        return self.stream

    def leave(self, key: int, kept: Sequence[Any] = ()) -> None:
        """Mark the end of work for which :meth:`arrive` waits; ``kept`` lives until then."""
        event = self._event()
        checked(self._driver.cuEventRecord(event, self.stream))
        self._put(key, event, kept)

    def came(self, key: int) -> None:
        """Work for which :meth:`arrive` need not wait: it was enqueued on the first stream."""
        self._put(key, None, ())

    @contextmanager
    def apart(self) -> Iterator[None]:
        """The context of a call within another: all that has left is waited for, and may arrive
        after the call, whose work has keys of its own."""
        outer, self._left = self._left, {}
        for event, _ in outer.values():
            self._waited(event)
        try:
            yield
        finally:
            self._left = dict.fromkeys(outer, (None, ()))

    def _put(self, key: int, event: Any | None, kept: Sequence[Any]) -> None:
        before, _ = self._left.get(key, (None, ()))  # of a call that failed before it came there
        if before is not None:
            self._free.append(before)
        self._left[key] = event, kept

    def arrive(self, key: int) -> None:
        """Let later work of the first stream wait for the work before ``leave(key)``."""
        event, _ = self._left.pop(key)
        self._waited(event)

    def _waited(self, event: Any | None) -> None:
        if event is not None:
            checked(self._driver.cuStreamWaitEvent(self.first, event, 0))
            self._free.append(event)

    def _event(self) -> Any:
        return self._free.pop() if self._free else checked(self._driver.cuEventCreate(_NO_TIMING))


def checked_pair(result: Any) -> tuple[int, int]:
    """Two values of a call of cuda-bindings."""
    checked(result[:1])
    _, least, greatest = result
    return int(least), int(greatest)
