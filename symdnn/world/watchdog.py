"""Ends this process where a call of a library that waits for other ranks does not return.

Waits of our own are polls, which raise within the time limit (:mod:`symdnn.world.communicator`). A
call of the driver or of NCCL may block inside of the library instead: no exception reaches a thread
there. A thread beside it then says where all threads are, tells the other ranks, and ends the
process, so that its launcher ends the others.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Seconds between looks, and those that the news of the end may take.
_LOOK, _TELLING = 0.25, 2.0


class Watchdog:
    """Looks after sections of code that must end within some seconds.

    ``told`` is called, once, with the words of the error, before the process ends with status 1. It
    may hang, too: it gets some seconds.
    """

    def __init__(self, told: Callable[[str], None]) -> None:
        self._told = told
        #: By number: when a section must have ended, its seconds, and what it does.
        self._sections: dict[int, tuple[float, float, str]] = {}
        self._next = 0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @contextmanager
    def during(self, what: str, seconds: float) -> Iterator[None]:
        """End the process unless the body ends within so many seconds."""
        self._begin_thread()
        self._next = number = self._next + 1
        self._sections[number] = time.monotonic() + seconds, seconds, what
        try:
            yield
        finally:
            del self._sections[number]

    def _begin_thread(self) -> None:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():  # a fork has no threads
                self._thread = threading.Thread(target=self._look, daemon=True, name="watchdog")
                self._thread.start()

    def _look(self) -> None:
        while True:
            time.sleep(_LOOK)
            for end, seconds, what in list(self._sections.values()):
                if time.monotonic() >= end:
                    self._end(f"{what} did not return within {seconds:g} s")

    def _end(self, why: str) -> None:
        telling = threading.Thread(target=self._told, args=(why,), daemon=True)
        telling.start()
        telling.join(_TELLING)
        for stream in (sys.stdout, sys.stderr):
            flushing = threading.Thread(target=stream.flush, daemon=True)
            flushing.start()  # another thread may hold its lock
            flushing.join(_TELLING)
        faulthandler.dump_traceback(file=2, all_threads=True)
        os._exit(1)
