"""How many threads are worth it while others want the processors too.

Threads that meet at a barrier wait for the last of them. Where another process has its processor,
that one waits for the scheduler, slices of 3 to 10 ms, and so do all the others, at each barrier:
what takes 0.2 ms by one thread takes 10 by two. So :class:`Crowd` looks from time to time how long
this process's threads were ready to run and did not, as Linux counts it (``schedstat``). Where that
is much, half of them stay out of it, and half of those, until what Linux counts as ready to run on
the machine (``loadavg``) leaves processors for more.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from math import inf

__all__ = ["CROWD", "Crowd", "ready", "waits"]

#: A thread's part of the time in which it was ready to run, that it waited, and the least wait in
#: seconds, from which on processors are taken. Two threads on one processor wait for a half; beside
#: others of the lowest priority (``nice -n 19``) one waits for 0.02.
_MUCH, _LEAST = 0.2, 0.002
#: Seconds between looks: after the first, or after more threads were tried; then. A look takes at
#: most a thousandth of the time.
_SOON, _EVERY, _COST = 0.02, 0.05, 1e-3
#: Seconds for which fewer threads stay, each time twice as long where more of them waited at once
#: again; and how many times as long they stay where ``loadavg`` says that processors are taken.
_HOLDS, _LONGEST, _PATIENCE = 0.1, 6.4, 50
#: Seconds after which more threads were right.
_LASTS = 1.0

Waits = dict[str, tuple[int, int]]


class Crowd:
    """What is known of the processors; calls take turns to ask it."""

    def __init__(self) -> None:
        #: How many threads find processors, and when it is time to look again.
        self.free: float = inf
        self.next = self._changed = -inf
        self._seen: Waits | None = None
        self._holds = _HOLDS
        #: Whether more threads were tried, and have not been looked at since.
        self._trying = False

    def fitting(self, wanted: int) -> int:
        """How many of ``wanted`` threads to use: all, or a half of them, or a half of that."""
        now = time.monotonic()
        if now >= self.next:
            self._look(now, wanted)
        return wanted if self.free >= wanted else _halved(wanted, self.free)

    def _look(self, now: float, wanted: int) -> None:
        used = _halved(wanted, self.free)
        taken = self._taken(used)
        if taken is None:
            self.next = now + _SOON
        elif taken and used > 1:
            self._fewer(now, used)
        elif used < wanted:
            self._more(now, wanted, used, taken)
        else:
            self.next, self._trying = now + _EVERY, False
            if now - self._changed > _LASTS:
                self._holds = _HOLDS
        self.next = max(self.next, now + (time.monotonic() - now) / _COST)

    def _taken(self, used: int) -> bool | None:
        """Whether the threads waited since the last look; None where there was none."""
        before, self._seen = self._seen, waits()
        if not self._seen:
            return ready() > _processors()
        if before is None:
            return None
        for thread, (ran, waited) in self._seen.items():
            if thread in before:
                ran, waited = ran - before[thread][0], waited - before[thread][1]
                if waited > _LEAST * 1e9 and waited > _MUCH * (ran + waited):
                    return True
        return False

    def _fewer(self, now: float, used: int) -> None:
        self._holds = min(2 * self._holds, _LONGEST) if self._trying else self._holds
        self.free = max(1, min(used // 2, _processors() - max(1, ready() - used)))
        self._changed, self.next, self._trying = now, now + self._holds, False

    def _more(self, now: float, wanted: int, used: int, taken: bool) -> None:
        """Try more threads where there seem to be processors for them, or when it is time to."""
        count = ready()
        free = _processors() - max(0, count - used) if count else (used if taken else wanted)
        if now - self._changed > _PATIENCE * self._holds:
            free = wanted
        if _halved(wanted, free) > used:
            self.free = free if free < wanted else inf
            self._changed, self.next, self._trying = now, now + _SOON, True
        else:
            self.next = now + _HOLDS


#: That of this process.
CROWD = Crowd()


def _halved(wanted: int, free: float) -> int:
    """The most threads for so many processors."""
    while wanted > 1 and wanted > free:
        wanted //= 2
    return wanted


def _processors() -> int:
    return len(os.sched_getaffinity(0))


def waits() -> Waits:
    """Nanoseconds that each thread of this process ran, and waited to run.

    Empty where that is not counted; of more than 256 threads it is only the caller's.
    """
    found = {}
    try:
        threads = os.listdir("/proc/self/task")
        if len(threads) > 256:
            threads = [str(threading.get_native_id())]
        for each in threads:
            with (
                contextlib.suppress(FileNotFoundError, ProcessLookupError),  # it has ended
                open(f"/proc/self/task/{each}/schedstat", "rb", buffering=0) as file,
            ):
                ran, waited, _ = file.read(80).split()
                found[each] = int(ran), int(waited)
    except (OSError, ValueError):
        return {}
    return found if any(ran for ran, _ in found.values()) else {}


def ready() -> int:
    """How many threads of all processes run or could; 0 where that is not known.

    It is the whole machine's, so it is not known either where this process may use a part of it.
    """
    try:
        if _processors() < (os.cpu_count() or 1):
            return 0
        with open("/proc/loadavg", "rb", buffering=0) as file:
            return int(file.read(80).split()[3].partition(b"/")[0])
    except (OSError, ValueError, IndexError):
        return 0
