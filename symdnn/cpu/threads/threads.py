"""How many threads kernels use, all of them libgomp's: oneDNN and generated code share one pool."""

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
from symdnn.cpu.threads.crowd import CROWD

__all__ = [
    "allowed", "asked", "fitting", "kernel", "limit", "limited", "may_share", "most", "openmp",
    "problem", "threads",
]  # fmt: skip

_in_child = False
_asked = [0]
#: Time of the instructions ``pause`` in a wait; the whole takes twice as long. It has to be longer
#: than it takes to wake a thread up (0.1 ms in a virtual machine): else all sleep whenever one did.
_SPIN_US = 200.0
_OWN_SETTINGS = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
_wanted = config.reader("openmp.threads")


@cache
def _load() -> tuple[Any, str]:
    try:
        with _short_waits():
            return ctypes.CDLL("libgomp.so.1", ctypes.RTLD_GLOBAL), ""
    except OSError as error:
        return None, f"{error}. Install GNU's OpenMP runtime (Debian: apt install libgomp1)"


@contextlib.contextmanager
def _short_waits() -> Iterator[None]:
    """While libgomp is loaded: its threads are to sleep after :data:`_SPIN_US` without work.

    By itself they keep a processor busy for 300 000 rounds, 2 to 15 ms. Another pool (BLAS), or
    another process, that needs the processor then waits for the scheduler, and so do all who wait
    for that. Sleeping and waking up takes about as long as they now wait. The user's own settings
    stay, and a libgomp that is loaded already is as it is.
    """
    if any(name in os.environ for name in _OWN_SETTINGS):
        yield
        return
    rounds = _rounds(_SPIN_US)
    if rounds:
        os.environ["GOMP_SPINCOUNT"] = str(rounds)
    try:
        yield
    finally:
        os.environ.pop("GOMP_SPINCOUNT", None)


def _rounds(microseconds: float) -> int:
    """How many rounds of libgomp's waiting loop take so long; 0 where that is not known.

    A round is one instruction, ``pause``, of 10 to 150 cycles, by the processor.
    """
    try:
        wait = elf_loader.run_bytes(_WAIT, ctypes.c_void_p)
    except (elf_loader.CannotPlace, OSError):
        return 0
    count, least = ctypes.c_int64(500), float("inf")
    for _ in range(5):
        began = time.perf_counter()
        wait(ctypes.byref(count))
        least = min(least, time.perf_counter() - began)
    return round(microseconds * 1e-6 / (least / count.value))


#: Instructions of x86-64: mov rax, [rdi]; again: pause; dec rax; jne again; ret.
_WAIT = bytes.fromhex("488b07 f390 48ffc8 75f9 c3")


def openmp() -> Any:
    """libgomp; None where it is missing."""
    return _load()[0]


def problem() -> str:
    """Why there is no libgomp; empty when it is there."""
    return _load()[1]


#: Those that some plan holds.
_kernels: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()


def kernel(make: Callable[..., str], *given: Any) -> Any:
    """The function ``kernel`` of the module ``make(*given)``, whose loops libgomp's threads share.

    It takes the address of its block of words; see :func:`symdnn.cpu.compiler.jit.compile_made`.
    """
    found = _kernels.get((make, given))
    if found is None:
        openmp()  # its symbols must be known before the code is linked
        found = _kernels[make, given] = jit.compile_made(make, given, "kernel", ctypes.c_void_p)
    return found


def threads(work: int, least: int) -> int:
    """Threads for ``work`` units, of which one thread does at least ``least``.

    The flag ``openmp.threads`` is the most; 0 is as many as the process may use. In the child of a
    process that used OpenMP it is 1: the parent's threads do not exist there.
    """
    wanted = work // max(least, 1)
    if wanted > 1:
        _asked[0] += 1
    return max(1, min(allowed(), wanted))


def asked() -> int:
    """How often :func:`threads` was asked for work that may have more than one."""
    return _asked[0]


def allowed() -> int:
    """The most threads that a kernel may use here: :func:`most`, or what :class:`limited` says."""
    if _in_child:
        return 1
    found, limit = int(_wanted()) or _available(), _here.limit
    return limit if 0 < limit < found else found


def most() -> int:
    """The most threads that a kernel may use where other processes want no processor."""
    if _in_child:
        return 1
    return int(_wanted()) or _available()


def fitting(count: int) -> int:
    """How many of ``count`` threads are worth it now, beside what other processes do.

    Of more threads than processors it is all: that is somebody's wish.
    """
    return CROWD.fitting(count) if may_share(count) else count


def may_share(count: int) -> bool:
    """Whether so many threads may give way to others' (:func:`fitting`)."""
    return 1 < count <= _processors()


class _Here(threading.local):
    """What holds for this Python thread."""

    limit = 0


class limited:
    """While it is entered this Python thread's kernels use at most ``count`` threads; 0: all."""

    __slots__ = ("_before", "_count")

    def __init__(self, count: int) -> None:
        self._count = count

    def __enter__(self) -> None:
        self._before, _here.limit = _here.limit, self._count

    def __exit__(self, *_: object) -> None:
        _here.limit = self._before


def limit() -> int:
    """What :class:`limited` says here; 0 where it is not entered."""
    return _here.limit


_here = _Here()


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
