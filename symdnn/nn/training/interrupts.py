"""Ctrl-C that waits for the end of a step, so that no state is half of one and half of the next.

Several ranks notice it at different times. Each tells the others with its next step, so that all
stop after the same one.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Interrupts:
    """Within it the first Ctrl-C is only noted, in :attr:`asked`; the second is as ever.

    In a thread that is not the main one it does nothing: there is no Ctrl-C.
    """

    def __init__(self) -> None:
        #: Whether an exception was raised in the middle of something.
        self.hard = False
        #: Whether Ctrl-C was pressed, and whether :meth:`end` was called.
        self.asked = self.ended = False
        self._before: Any = None

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            self.hard = True
            raise KeyboardInterrupt
        self.asked = True

    def end(self) -> None:
        """Raise ``KeyboardInterrupt`` behind a step; on several ranks all call this together."""
        self.ended = True
        raise KeyboardInterrupt
