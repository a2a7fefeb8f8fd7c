"""One pool of threads inside of a call: libgomp's, of as many threads as the flag allows.

oneDNN and compiled loops share it. NumPy's own BLAS has a pool of its own; two pools that spin on
the same cores stall each other by whole ticks of the scheduler, so BLAS gets one thread while a
plan runs that uses both (:class:`SingleThreadedBlas`).
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

__all__ = ["SingleThreadedBlas", "blas", "limited", "settle"]


class _Known(threading.local):
    """What libgomp was told for this Python thread."""

    count = 0


_known = _Known()


def settle() -> int:
    """Tell libgomp, for the calling thread, how many threads it may use; the number.

    That is the flag ``openmp.threads``, or what it is :func:`limited` to; 1 in the child of a
    process that may have used OpenMP.
    """
    wanted = threads.allowed()
    if _known.count != wanted:
        library = threads.openmp()
        if library is not None:
            library.omp_set_num_threads(ctypes.c_int(wanted))
        _known.count = wanted
    return wanted


@contextlib.contextmanager
def limited(count: int) -> Iterator[None]:
    """At most so many threads of libgomp for the calling thread; 0: as many as the flag allows."""
    try:
        with threads.limited(count):
            settle()
            yield
    finally:
        settle()


class Blas:
    """The number of threads of an OpenBLAS that is loaded."""

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
        """How many threads it uses."""
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
    """While it is entered, every OpenBLAS has one thread; afterwards as many as before."""

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
