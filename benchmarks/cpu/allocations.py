"""Bytes that a call allocates: each library in a process whose ``malloc`` counts.

The number is what a call needs beside its arguments: the most that it has allocated at a time
beyond what the process had before, its results included. What a library keeps between calls counts
too: symdnn keeps arrays of NumPy (an arena), so those that came with a function and stay are added.
"""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["Kept", "counting", "grown", "is_counted"]

_SOURCE, _NAME = Path(__file__).with_suffix(".c"), "SYMDNN_BENCHMARK_ALLOCATIONS"
_CALLS = 5


def counting() -> dict[str, str]:
    """The environment of a process whose allocations are counted; it needs a C compiler."""
    made = Path(tempfile.gettempdir()) / f"symdnn-allocations-{os.getuid()}.so"
    if not made.exists() or made.stat().st_mtime < _SOURCE.stat().st_mtime:
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", made, _SOURCE], check=True)
    return {"LD_PRELOAD": str(made), _NAME: str(made)}


def is_counted() -> bool:
    """Whether this process counts."""
    return _NAME in os.environ


def grown(call: Callable[[], Any]) -> int:
    """The most bytes that a call has at a time beyond those before it; the least of some calls."""
    found = []
    for _ in range(_CALLS):
        gc.collect()
        before = _asked("now")
        _asked("forget")
        results = call()
        found.append(_asked("most") - before)
        del results
    return min(found)


class Kept:
    """Bytes of NumPy's arrays that were made since, and are still there."""

    def __init__(self) -> None:
        with open("/proc/self/maps", encoding="utf-8") as file:
            own = [line.split()[0].split("-") for line in file if "_multiarray_umath" in line]
        ends = [int(end, 16) for part in own for end in part]
        watch = ctypes.CDLL(os.environ[_NAME]).allocated_watch
        watch(ctypes.c_size_t(min(ends)), ctypes.c_size_t(max(ends)))
        self._before = _asked("by_library")

    def nbytes(self) -> int:
        """How many."""
        gc.collect()
        return _asked("by_library") - self._before


def _asked(what: str) -> int:
    function = getattr(ctypes.CDLL(os.environ[_NAME]), f"allocated_{what}")
    function.restype = ctypes.c_long
    return int(function())
