"""How many threads to use while other processes want the processors too.

Threads wait for the last of them at each barrier. If another process holds its processor, that one
waits for slices of the scheduler, 3 to 10 ms, and so do all the others: what takes 0.2 ms with one
thread takes 10 with two. So :class:`ContentionMonitor` checks from time to time how long this
process's threads were runnable but waiting, as Linux counts it (``schedstat``). If that is long, it
halves the number of threads, and again. It raises the number when the count of runnable threads on
the machine (``loadavg``) leaves processors free.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from math import inf

#: There is contention if a thread waited for more than this fraction of the time in which it was
#: runnable, and at least so many seconds. Two threads on one processor wait for 0.5 of the time;
#: beside processes of the lowest priority (``nice -n 19``) one waits for 0.02.
_MAX_WAIT_FRACTION, _MIN_WAIT_S = 0.2, 0.002
#: Seconds to the next check: after the first check or an increase; otherwise. Checks take at most
#: this fraction of the time.
_FIRST_INTERVAL_S, _INTERVAL_S, _MAX_TIME_FRACTION = 0.02, 0.05, 1e-3
#: Seconds for which a reduction holds. It doubles, up to the maximum, when an increase led to
#: contention at once. After so many holds more threads are tried even if ``loadavg`` shows no free
#: processors.
_MIN_HOLD_S, _MAX_HOLD_S, _MAX_HOLDS = 0.1, 6.4, 50
#: A hold also ends once so many looks in a row have shown no thread but this process's: what was
#: there when it began (a compiler, a peer whose threads spun) has gone.
_LONELY_LOOKS = 5
#: Seconds without contention after which an increase counts as a success, and the hold is reset.
_SETTLED_S = 1.0

ThreadTimes = dict[str, tuple[int, int]]


class ContentionMonitor:
    """Tracks how many processors this process can use. One thread at a time may call it."""

    def __init__(self) -> None:
        #: How many threads find a processor.
        self.free: float = inf
        #: Times of the next check and of the last change, by ``time.monotonic``.
        self.next_check = self._changed = -inf
        self._last_times: ThreadTimes | None = None
        self._hold_s = _MIN_HOLD_S
        self._held_until, self._lonely_looks = -inf, 0
        #: Whether more threads are being tried since the last check.
        self._trying = False

    def usable(self, wanted: int) -> int:
        """How many of ``wanted`` threads to use now: all, a half, a quarter, ..."""
        now = time.monotonic()
        if now >= self.next_check:
            self._measure(now, wanted)
        return wanted if self.free >= wanted else _halve_to(wanted, self.free)

    def _measure(self, now: float, wanted: int) -> None:
        used = _halve_to(wanted, self.free)
        contended = self._is_contended()
        if contended is None:
            self.next_check = now + _FIRST_INTERVAL_S
        elif contended and used > 1:
            self._use_fewer(now, used)
        elif used < wanted:
            self._use_more(now, wanted, used, contended)
        else:
            self.next_check, self._trying = now + _INTERVAL_S, False
            if now - self._changed > _SETTLED_S:
                self._hold_s = _MIN_HOLD_S
        self.next_check = max(self.next_check, now + (time.monotonic() - now) / _MAX_TIME_FRACTION)

    def _is_contended(self) -> bool | None:
        """Whether a thread waited for long since the last check; None at the first check."""
        before, self._last_times = self._last_times, thread_times()
        if not self._last_times:
            return runnable_threads() > _processors()
        if before is None:
            return None
        for thread, (ran, waited) in self._last_times.items():
            if thread in before:
                ran, waited = ran - before[thread][0], waited - before[thread][1]
                if waited > _MIN_WAIT_S * 1e9 and waited > _MAX_WAIT_FRACTION * (ran + waited):
                    return True
        return False

    def _use_fewer(self, now: float, used: int) -> None:
        self._hold_s = min(2 * self._hold_s, _MAX_HOLD_S) if self._trying else self._hold_s
        self.free = max(1, min(used // 2, _processors() - max(1, runnable_threads() - used)))
        self._changed, self.next_check, self._trying = now, now + _MIN_HOLD_S, False
        self._held_until, self._lonely_looks = now + self._hold_s, 0

    def _use_more(self, now: float, wanted: int, used: int, contended: bool) -> None:
        """Try more threads if processors seem free, or after :data:`_MAX_HOLDS` holds anyway."""
        count = runnable_threads()
        self._lonely_looks = self._lonely_looks + 1 if 0 < count <= used else 0
        if now < self._held_until and self._lonely_looks < _LONELY_LOOKS:
            self.next_check = now + _MIN_HOLD_S
            return
        free = _processors() - max(0, count - used) if count else (used if contended else wanted)
        if now - self._changed > _MAX_HOLDS * self._hold_s:
            free = wanted
        if _halve_to(wanted, free) > used:
            self.free = free if free < wanted else inf
            self._changed, self.next_check, self._trying = now, now + _FIRST_INTERVAL_S, True
        else:
            self.next_check = now + _MIN_HOLD_S


#: The monitor of this process.
CONTENTION = ContentionMonitor()


def _halve_to(wanted: int, free: float) -> int:
    """``wanted`` halved until it is at most ``free``."""
    while wanted > 1 and wanted > free:
        wanted //= 2
    return wanted


def _processors() -> int:
    return len(os.sched_getaffinity(0))


def thread_times() -> ThreadTimes:
    """For each thread of this process the nanoseconds that it ran, and that it waited to run.

    Empty where the system does not count them. With more than 256 threads only the caller's.
    """
    found = {}
    try:
        threads = os.listdir("/proc/self/task")
        if len(threads) > 256:
            threads = [str(threading.get_native_id())]
        for each in threads:
            with (
                contextlib.suppress(FileNotFoundError, ProcessLookupError),  # the thread has ended
                open(f"/proc/self/task/{each}/schedstat", "rb", buffering=0) as file,
            ):
                ran, waited, _ = file.read(80).split()
                found[each] = int(ran), int(waited)
    except (OSError, ValueError):
        return {}
    return found if any(ran for ran, _ in found.values()) else {}


def runnable_threads() -> int:
    """How many threads of the whole machine are running or runnable; 0 where that is not known.

    It is not known either if this process may use only some of the machine's processors.
    """
    try:
        if _processors() < (os.cpu_count() or 1):
            return 0
        with open("/proc/loadavg", "rb", buffering=0) as file:
            return int(file.read(80).split()[3].partition(b"/")[0])
    except (OSError, ValueError, IndexError):
        return 0
