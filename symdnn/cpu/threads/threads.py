"""How many threads kernels use. All are libgomp's: oneDNN and generated code share one pool."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from symdnn.config import config
from symdnn.cpu.compiler import elf_loader, jit
from symdnn.cpu.threads.contention import CONTENTION
from symdnn.disk import overlay

_in_child = False
_parallel_requests = [0]
#: Time of the ``pause`` instructions before a waiting thread sleeps; the whole wait takes twice as
#: long. It must be longer than waking up a thread takes (0.1 ms in a virtual machine), else all
#: threads sleep whenever one did.
_SPIN_MICROSECONDS = 200.0
_USER_SETTINGS = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
_wanted = config.reader("openmp.threads")


@cache
def _load() -> tuple[Any, str]:
    try:
        with _short_spins():
            return ctypes.CDLL("libgomp.so.1", ctypes.RTLD_GLOBAL), ""
    except OSError as error:
        return None, f"{error}. Install GNU's OpenMP runtime (Debian: apt install libgomp1)"


@contextlib.contextmanager
def _short_spins() -> Iterator[None]:
    """Load libgomp so that idle threads spin for :data:`_SPIN_MICROSECONDS`, then sleep.

    By default they spin for 300 000 rounds, 2 to 15 ms. Another pool (BLAS) or process that needs
    the processor then waits for the scheduler, and so does everything that waits for it. The time
    is about what sleeping and waking up takes. The user's settings have precedence, and a libgomp
    that is loaded already keeps its own.
    """
    if any(name in os.environ for name in _USER_SETTINGS):
        yield
        return
    rounds = _spin_rounds(_SPIN_MICROSECONDS)
    if rounds:
        os.environ["GOMP_SPINCOUNT"] = str(rounds)
    try:
        yield
    finally:
        os.environ.pop("GOMP_SPINCOUNT", None)


def _spin_rounds(microseconds: float) -> int:
    """How many rounds of libgomp's spin loop take so long; 0 where that cannot be measured.

    A round is one ``pause`` instruction, which takes 10 to 150 cycles, depending on the processor.
    """
    try:
        spin = elf_loader.run_bytes(_PAUSE_LOOP, ctypes.c_void_p)
    except (elf_loader.UnsupportedObject, OSError):
        return 0
    count, least = ctypes.c_int64(500), float("inf")
    for _ in range(5):
        began = time.perf_counter()
        spin(ctypes.byref(count))
        least = min(least, time.perf_counter() - began)
    return round(microseconds * 1e-6 / (least / count.value))


#: x86-64 instructions: mov rax, [rdi]; again: pause; dec rax; jne again; ret.
_PAUSE_LOOP = bytes.fromhex("488b07 f390 48ffc8 75f9 c3")


def openmp() -> Any:
    """libgomp; None where it is missing."""
    return _load()[0]


def problem() -> str:
    """Why there is no libgomp; empty when it is there."""
    return _load()[1]


#: Kernels in use, by generator and arguments.
_kernels: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()


def kernel(generate: Callable[..., str], *arguments: Any) -> Any:
    """The function ``kernel`` of the module ``generate(*arguments)``.

    It runs in libgomp's threads. Its parameter is the address of its block of words. See
    :func:`symdnn.cpu.compiler.jit.compile_generated`.
    """
    found = _kernels.get((generate, arguments))
    if found is None or overlay.is_noting():
        openmp()  # its symbols must be loaded before the code is linked
        found = jit.compile_generated(generate, arguments, "kernel", ctypes.c_void_p)
        _kernels[generate, arguments] = found
    return jit.ready(found)


def threads(work: int, per_thread: int) -> int:
    """How many threads share ``work`` units, at least ``per_thread`` units each.

    At most :func:`allowed`.
    """
    wanted = work // max(per_thread, 1)
    if wanted > 1:
        _parallel_requests[0] += 1
    return max(1, min(allowed(), wanted))


def parallel_requests() -> int:
    """How many calls of :func:`threads` had work for more than one thread."""
    return _parallel_requests[0]


def allowed() -> int:
    """The most threads that a kernel may use now: :func:`maximum`, lowered by :class:`limited`."""
    if _in_child:
        return 1
    found, limit = int(_wanted()) or _available(), _per_thread.limit
    return limit if 0 < limit < found else found


def maximum() -> int:
    """The most threads that a kernel may use while no other process wants the processors.

    It is the flag ``openmp.threads``; 0 stands for as many as the process may use. In a forked
    child it is 1, since the parent's threads do not exist there.
    """
    if _in_child:
        return 1
    return int(_wanted()) or _available()


def usable(count: int) -> int:
    """How many of ``count`` threads to use now, beside what other processes do.

    All of them if they are more than the processors: the user has asked for that.
    """
    return CONTENTION.usable(count) if may_yield(count) else count


def may_yield(count: int) -> bool:
    """Whether :func:`usable` may lower this number of threads."""
    return 1 < count <= _processors()


class _PerThread(threading.local):
    """The limit that :class:`limited` has set for this Python thread."""

    limit = 0


class limited:
    """A context manager in which this Python thread's kernels use at most ``count`` threads.

    0 lifts the limit.
    """

    __slots__ = ("_before", "_count")

    def __init__(self, count: int) -> None:
        self._count = count

    def __enter__(self) -> None:
        self._before, _per_thread.limit = _per_thread.limit, self._count

    def __exit__(self, *_: object) -> None:
        _per_thread.limit = self._before


def limit() -> int:
    """The limit of :class:`limited` that is in force; 0 for none."""
    return _per_thread.limit


_per_thread = _PerThread()


@cache
def _available() -> int:
    found = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    here = _processors()
    return min(int(found), here) if found.isdigit() and int(found) > 0 else here


@cache
def _processors() -> int:
    return len(os.sched_getaffinity(0))


def _after_fork() -> None:
    global _in_child
    _in_child = True


os.register_at_fork(after_in_child=_after_fork)
