"""Settings of the thread pools: libgomp's, which kernels share, and that of NumPy's BLAS.

oneDNN and compiled loops share libgomp's pool. NumPy's BLAS has a pool of its own. Two pools that
spin on the same cores stall each other for whole ticks of the scheduler, so BLAS gets one thread
while a plan runs that uses both (:class:`SingleThreadedBlas`).
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

from symdnn.cpu.threads import threads
from symdnn.detect import mapped_files


class _LastSetting(threading.local):
    """The number of threads that libgomp was last set to for this Python thread."""

    count = 0


_last_setting = _LastSetting()


def set_threads() -> int:
    """Set libgomp's number of threads for the calling thread; returns it.

    It is the flag ``openmp.threads``, lowered by :func:`limited`; 1 in a forked child.
    """
    wanted = threads.allowed()
    if _last_setting.count != wanted:
        library = threads.openmp()
        if library is not None:
            library.omp_set_num_threads(ctypes.c_int(wanted))
        _last_setting.count = wanted
    return wanted


@contextlib.contextmanager
def limited(count: int) -> Iterator[None]:
    """Limit libgomp's threads for the calling thread; 0: as many as the flag allows."""
    try:
        with threads.limited(count):
            set_threads()
            yield
    finally:
        set_threads()


class Blas:
    """A loaded OpenBLAS library, whose number of threads can be read and set."""

    def __init__(self, path: str) -> None:
        self.path = path
        dll = ctypes.CDLL(path)
        for prefix in ("scipy_openblas_", "openblas_"):
            for suffix in ("64_", ""):
                if hasattr(dll, f"{prefix}set_num_threads{suffix}"):
                    self._set = getattr(dll, f"{prefix}set_num_threads{suffix}")
                    self._get = getattr(dll, f"{prefix}get_num_threads{suffix}")
                    return
        raise AttributeError(f"{path} has no function that sets its threads")

    @property
    def threads(self) -> int:
        """Its number of threads."""
        return int(self._get())

    @threads.setter
    def threads(self, count: int) -> None:
        self._set(ctypes.c_int(count))


@cache
def blas() -> tuple[Blas, ...]:
    """Every OpenBLAS of this process, NumPy's among them; empty where there is none."""
    found = []
    for path in mapped_files():
        if "openblas" in Path(path).name:
            try:
                found.append(Blas(path))
            except (OSError, AttributeError):
                continue
    return tuple(found)


class SingleThreadedBlas:
    """A context manager in which every OpenBLAS has one thread."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = [(b, b.threads) for b in blas()]
        for b, count in self._before:
            if count != 1:
                b.threads = 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Any:
        for b, count in self._before:
            if count != 1:
                b.threads = count
