"""Whether something may be measured now: time is left, and the shapes are worth it.

The flag ``dnn.conv.time_total`` bounds the time of all measurements of a process. A plan for shapes
that its segment has not met is made without measurements (a guess, or a choice on disk), unless it
is the segment's first. If the shapes return, it is made again, with them: many shapes of a program
that changes them never do.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf

from symdnn.config import config


class Visit:
    """The making of one plan: whether it may measure, and whether it would have measured."""

    def __init__(self, may_measure: bool) -> None:
        self.may_measure, self.postponed = may_measure, False


_visit: ContextVar[Visit | None] = ContextVar("visit", default=None)
_spent_ms = [0.0]
_lock = threading.Lock()


def _in_child() -> None:
    """A thread that a forked child has not may have had the lock."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_in_child)


@contextmanager
def visiting(may_measure: bool) -> Iterator[Visit]:
    """A context in which a plan is made."""
    visit = Visit(may_measure)
    token = _visit.set(visit)
    try:
        yield visit
    finally:
        _visit.reset(token)


class Runs:
    """The runs of the plan that is being made, whose kernels may measure when they run.

    If the plan may not, its first run may not, either; later ones are of shapes that return.
    """

    def __init__(self) -> None:
        visit = _visit.get()
        self._is_new = visit is not None and not visit.may_measure
        #: Whether a measurement of the last run was put off until the next one.
        self.postponed = False

    @contextmanager
    def run(self, waits: bool = True) -> Iterator[None]:
        """A context in which the plan runs; all may be measured unless it ``waits``."""
        waits, self._is_new, self.postponed = waits and self._is_new, False, False
        if not waits:
            yield
            return
        with visiting(may_measure=False) as visit:
            yield
        self.postponed = visit.postponed


def may_measure() -> bool:
    """Whether the plan that is being made may measure; if not, it notes that it would have."""
    visit = _visit.get()
    if visit is None or visit.may_measure:
        return True
    visit.postponed = True
    return False


def postponed() -> bool:
    """Whether a measurement of the plan that is being made was put off."""
    visit = _visit.get()
    return visit is not None and visit.postponed


def left_ms() -> float:
    """Milliseconds that measurements of this process may still take; infinite without a bound."""
    total = int(config.dnn.conv.time_total)
    return max(0.0, total - _spent_ms[0]) if total else inf


@contextmanager
def spending() -> Iterator[None]:
    """A context whose time counts as measuring."""
    start = time.perf_counter()
    try:
        yield
    finally:
        with _lock:
            _spent_ms[0] += (time.perf_counter() - start) * 1e3


def forget_spent() -> None:
    """Count from zero again."""
    with _lock:
        _spent_ms[0] = 0.0
