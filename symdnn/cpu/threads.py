"""How many threads kernels use, all of them libgomp's: oneDNN and generated code share one pool."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
import weakref
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from symdnn.config import config
from symdnn.cpu import jit, placed_code

__all__ = ["allowed", "asked", "crowded", "kernel", "openmp", "problem", "threads"]

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
        wait = placed_code.run_bytes(_WAIT, ctypes.c_void_p)
    except (placed_code.CannotPlace, OSError):
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

    It takes the address of its block of words; see :func:`symdnn.cpu.jit.compile_made`.
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


#: Seconds that an answer of :func:`crowded` holds.
_HOLDS = 0.02
_looked: list[Any] = [float("-inf"), False]


def crowded() -> bool:
    """Whether more is ready to run on this machine than it has processors.

    Then a thread that waits for others at a barrier waits for the scheduler, whole ticks of 4 ms:
    what meets often is faster by one thread. It is looked up every 20 ms at most.
    """
    now = time.monotonic()
    if now - _looked[0] > _HOLDS:
        _looked[:] = now, _runnable() > (os.cpu_count() or 1)
    return bool(_looked[1])


def _runnable() -> int:
    """How many threads of all processes run or could; 0 where that is not known."""
    try:
        with open("/proc/loadavg", "rb", buffering=0) as file:
            return int(file.read(80).split()[3].partition(b"/")[0])
    except (OSError, ValueError, IndexError):
        return 0


def asked() -> int:
    """How often :func:`threads` was asked for work that may have more than one."""
    return _asked[0]


def allowed() -> int:
    """The most threads that a kernel may use."""
    if _in_child:
        return 1
    return int(_wanted()) or _available()


@cache
def _available() -> int:
    found = os.environ.get("OMP_NUM_THREADS", "").split(",")[0]
    here = len(os.sched_getaffinity(0))
    return min(int(found), here) if found.isdigit() and int(found) > 0 else here


def _after_fork() -> None:
    global _in_child
    _in_child = True


os.register_at_fork(after_in_child=_after_fork)
