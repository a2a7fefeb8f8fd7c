"""NumPy's sorts of contiguous numbers, as C functions: vectorised for the processor at hand.

Each dtype's table of functions (``PyArray_ArrFuncs``, of NumPy's C API) has them. They sort in
place, without Python and its lock, so threads may call them.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np

__all__ = ["argsort_address", "problem", "sort_address"]

#: Index of ``_PyDataType_GetArrFuncs`` in the table of NumPy 2's C API.
_GET_FUNCTIONS = 365
#: Functions in ``PyArray_ArrFuncs`` before the sorts: 21 casts and 12 others.
_BEFORE_SORTS = 33
#: The quicksort is first of three sorts, its argsort first of the three behind them.
_QUICKSORT, _ARGSORT = _BEFORE_SORTS, _BEFORE_SORTS + 3


@cache
def problem() -> str | None:
    """Why NumPy's functions can't be called; None where they can."""
    if int(np.__version__.partition(".")[0]) < 2:
        return "its functions are called in NumPy 2"
    return None if _sorts_rightly() else "this NumPy has no such functions"


def sort_address(dtype: str) -> int:
    """The address of ``int sort(void *start, intptr_t n, void *unused)``."""
    return _address(dtype, _QUICKSORT)


def argsort_address(dtype: str) -> int:
    """The address of ``int argsort(void *start, intptr_t *order, intptr_t n, void *unused)``.

    Equal elements come in any order.
    """
    return _address(dtype, _ARGSORT)


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
    """Whether the functions of float32 and int64 are there and sort."""
    for dtype in ("float32", "int64"):
        if not (sort_address(dtype) and argsort_address(dtype)):
            return False
        x, order = np.array([3, 1, 2], dtype), np.arange(3, dtype=np.intp)
        at = ctypes.c_void_p
        found = ctypes.CFUNCTYPE(ctypes.c_int, at, at, ctypes.c_ssize_t, at)
        found(argsort_address(dtype))(x.ctypes.data, order.ctypes.data, 3, None)
        sorted_ = ctypes.CFUNCTYPE(ctypes.c_int, at, ctypes.c_ssize_t, at)
        sorted_(sort_address(dtype))(x.ctypes.data, 3, None)
        if order.tolist() != [1, 2, 0] or x.tolist() != [1, 2, 3]:
            return False
    return True
