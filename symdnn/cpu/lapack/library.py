"""Routines of SciPy's BLAS and LAPACK by their addresses, and stacks of calls of them.

SciPy offers the addresses to compiled code by ``scipy.linalg.cython_blas`` and ``cython_lapack``.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from symdnn.cpu.lapack.calls_ir import calls_ir
from symdnn.cpu.launch.scratch import address
from symdnn.cpu.threads import thread_pools, threads
from symdnn.detect import mapped_files
from symdnn.graph.typing import Array

_PREFIXES = {"float32": "s", "float64": "d", "complex64": "c", "complex128": "z"}


def prefix(dtype: str) -> str:
    """The first letter of a routine's name."""
    return _PREFIXES[dtype]


@cache
def routine(name: str) -> int:
    """The address of a routine, such as ``dpotrf``."""
    from scipy.linalg import cython_blas, cython_lapack

    for module in (cython_lapack, cython_blas):
        capsule = module.__pyx_capi__.get(name)
        if capsule is not None:
            api = ctypes.pythonapi
            api.PyCapsule_GetName.restype = ctypes.c_char_p
            api.PyCapsule_GetName.argtypes = [ctypes.py_object]
            api.PyCapsule_GetPointer.restype = ctypes.c_void_p
            api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
            return int(api.PyCapsule_GetPointer(capsule, api.PyCapsule_GetName(capsule)))
    raise KeyError(f"SciPy has no routine {name}")


# -- arguments ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shared:
    """A word, an int or a factor that all calls read."""

    value: str | int | float
    dtype: str = "int32"

    def made(self) -> Any:
        """The value in memory."""
        if isinstance(self.value, str):
            return np.frombuffer(self.value.encode(), np.uint8)
        return np.array([self.value], self.dtype)


@dataclass(frozen=True)
class Each:
    """An array with a part of so many bytes for each call; 0: all calls share it."""

    step: int


@dataclass(frozen=True)
class Scratch:
    """Memory of so many bytes for each task."""

    nbytes: int


class Calls:
    """Calls of a routine for each of ``count`` matrices, in ``tasks`` tasks of threads.

    ``run`` takes the arrays of the arguments of type :class:`Each`, in their order.
    """

    def __init__(
        self, name: str, count: int, tasks: int, arguments: Sequence[Shared | Each | Scratch]
    ) -> None:
        per = -(-count // tasks)
        tasks = -(-count // per)
        words = [tasks, tasks, 1, per, count, routine(name)]
        self._keep: list[Any] = []
        self._at: list[int] = []
        for a in arguments:
            if isinstance(a, Each):
                self._at.append(len(words))
                words += [0, a.step, 0]
                continue
            shared = isinstance(a, Shared)
            made = a.made() if isinstance(a, Shared) else np.empty(a.nbytes * tasks, np.uint8)
            self._keep.append(made)
            words += [address(made), 0, 0 if shared else a.nbytes]  # type: ignore[union-attr]
        self._words = (ctypes.c_int64 * len(words))(*words)
        self._run = threads.kernel(calls_ir, len(arguments))

    def __call__(self, *arrays: Array) -> None:
        """Call the routine for each matrix."""
        words = self._words
        for at, array in zip(self._at, arrays, strict=True):
            words[at] = address(array)
        self._run(words)


# -- threads of BLAS itself -----------------------------------------------------------------------


@cache
def _blas() -> thread_pools.Blas | None:
    """SciPy's OpenBLAS; None where its BLAS is another."""
    routine("dpotrf")
    for path in mapped_files():
        if "openblas" in Path(path).name and "scipy.libs" in path:
            with contextlib.suppress(OSError, AttributeError):
                return thread_pools.Blas(path)
    return None


class blas_threads:
    """A context manager that gives SciPy's BLAS so many threads.

    A plan with compiled loops holds it at one (:class:`thread_pools.SingleThreadedBlas`), which is
    right for small matrices; a large one is as slow then as one thread.
    """

    __slots__ = ("_before", "_blas", "_count")

    def __init__(self, count: int) -> None:
        self._count = count

    def __enter__(self) -> None:
        self._blas = _blas()
        self._before = self._count if self._blas is None else self._blas.threads
        if self._blas is not None and self._before != self._count:
            self._blas.threads = self._count

    def __exit__(self, *_: object) -> None:
        if self._blas is not None and self._before != self._count:
            self._blas.threads = self._before
