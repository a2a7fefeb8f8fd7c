"""NumPy's sorts of contiguous numbers, as C functions: vectorised for the processor at hand.

Each dtype's table of functions (``PyArray_ArrFuncs``, of NumPy's C API) has them. They sort in
place, without Python and its lock, so threads may call them.
"""

from __future__ import annotations

import contextlib
import ctypes
from functools import cache
from typing import Any

import numpy as np

#: Index of ``_PyDataType_GetArrFuncs`` in the table of NumPy 2's C API.
_GET_FUNCTIONS = 365
#: Functions in ``PyArray_ArrFuncs`` before the sorts: 21 casts and 12 others.
_BEFORE_SORTS = 33
#: The quicksort is first of three sorts and the stable one last, as of the argsorts behind them.
_QUICKSORT, _STABLE, _ARGSORTS = _BEFORE_SORTS, _BEFORE_SORTS + 2, 3

#: Lines shorter than this are not counted; of 16 bits, shorter ones than that go in vectors.
_LEAST_COUNTED, _MOST_IN_VECTORS = 192, 768
#: Lines shorter than this are sorted as packed numbers of 64 bits rather than by two digits.
_LEAST_OF_TWO_DIGITS = 1024


@cache
def problem() -> str | None:
    """Why NumPy's functions can't be called; None where they can."""
    if int(np.__version__.partition(".")[0]) < 2:
        return "its functions are called in NumPy 2"
    return None if _sorts_rightly() else "this NumPy has no such functions"


def counts(dtype: str, length: int) -> bool:
    """Whether stable sorts of such lines count: a pass for each of one or two bytes of integers."""
    number = np.dtype(dtype)
    return number.kind in "iub" and number.itemsize <= 2 and length >= _LEAST_COUNTED


def span_by_digits(length: int) -> int:
    """The widest span of places that are counted by digits of 16 bits; 0 if lines are too short.

    -1 has all bits: lines of any span.
    """
    if length >= _LEAST_OF_TWO_DIGITS:
        return -1
    return (1 << 16) - 1 if counts("uint16", length) else 0


def sort_address(dtype: str, length: int = 0) -> int:
    """The address of ``int sort(void *start, intptr_t n, void *unused)``, best for this length."""
    counted = counts(dtype, length)
    if np.dtype(dtype).itemsize == 2 and sorts_16_bits() and length < _MOST_IN_VECTORS:
        counted = False
    return _address(dtype, _STABLE if counted else _QUICKSORT)


def argsort_address(dtype: str, length: int = 0) -> int:
    """The address of ``int argsort(void *start, intptr_t *order, intptr_t n, void *unused)``.

    Equal elements come in any order, unless it :func:`counts`.
    """
    return _address(dtype, (_STABLE if counts(dtype, length) else _QUICKSORT) + _ARGSORTS)


@cache
def sorts_16_bits() -> bool:
    """Whether NumPy sorts numbers of 16 bits in vectors here."""
    return bool(_features().get("AVX512_ICL"))


@cache
def sorts_slowly() -> bool:
    """Whether NumPy takes longer for long lines of 32 and 64 bits than a sort by digits.

    Where it has no vectors for them; and with AVX-512 on AMD's processors, where storing chosen
    elements of a vector takes many times as long as with AVX2.
    """
    found = _features()
    if found.get("AVX512_SKX") or found.get("X86_V4"):
        with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
            return "AuthenticAMD" in file.read(1 << 12)
        return False
    return not any(found.get(name) for name in ("AVX2", "ASIMD", "VSX2", "VX"))


def _features() -> Any:
    """What NumPy uses of the processor."""
    from numpy._core import _multiarray_umath  # type: ignore[attr-defined]

    return getattr(_multiarray_umath, "__cpu_features__", {})


@cache
def _address(dtype: str, place: int) -> int:
    from numpy._core import _multiarray_umath  # type: ignore[attr-defined]

    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    table: Any = ctypes.cast(
        pointer(_multiarray_umath._ARRAY_API, None), ctypes.POINTER(ctypes.c_void_p)
    )
    functions = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)(table[_GET_FUNCTIONS])
    found = ctypes.cast(functions(np.dtype(dtype)), ctypes.POINTER(ctypes.c_void_p))
    return int(found[place] or 0)


def _sorts_rightly() -> bool:
    """Whether the functions are there and sort."""
    for dtype, length in (("float32", 3), ("int64", 3), ("int8", 999), ("uint16", 999)):
        addresses = sort_address(dtype, length), argsort_address(dtype, length)
        if not all(addresses):
            return False
        x, order = np.array([3, 1, 2], dtype), np.arange(3, dtype=np.intp)
        at = ctypes.c_void_p
        found = ctypes.CFUNCTYPE(ctypes.c_int, at, at, ctypes.c_ssize_t, at)
        found(addresses[1])(x.ctypes.data, order.ctypes.data, 3, None)
        sorted_ = ctypes.CFUNCTYPE(ctypes.c_int, at, ctypes.c_ssize_t, at)
        sorted_(addresses[0])(x.ctypes.data, 3, None)
        if order.tolist() != [1, 2, 0] or x.tolist() != [1, 2, 3]:
            return False
    return True
