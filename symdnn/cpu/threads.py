"""How many threads kernels use, all of them libgomp's: oneDNN and generated code share one pool."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import Any

from symdnn.config import config

__all__ = ["allowed", "openmp", "problem", "threads"]

_in_child = False
_wanted = config.reader("openmp.threads")


@cache
def _load() -> tuple[Any, str]:
    try:
        return ctypes.CDLL("libgomp.so.1", ctypes.RTLD_GLOBAL), ""
    except OSError as error:
        return None, f"{error}. Install GNU's OpenMP runtime (Debian: apt install libgomp1)"


def openmp() -> Any:
    """libgomp; None where it is missing."""
    return _load()[0]


def problem() -> str:
    """Why there is no libgomp; empty when it is there."""
    return _load()[1]


def threads(work: int, least: int) -> int:
    """Threads for ``work`` units, of which one thread does at least ``least``.

    The flag ``openmp.threads`` is the most; 0 is as many as the process may use. In the child of a
    process that used OpenMP it is 1: the parent's threads do not exist there.
    """
    return max(1, min(allowed(), work // max(least, 1)))


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
