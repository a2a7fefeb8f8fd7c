"""Detects whether a user still holds an array that shares a shared variable's memory.

While such an array exists, its memory may be written at any time. NumPy's views hold a reference to
their base, so one can detect when the last of them is gone. For lent memory there is a weak
reference to the object that is the base of all views. For a user's array its reference count is
compared. A raw address (``a.ctypes.data``) keeps nothing alive.
"""

from __future__ import annotations

import weakref
from sys import getrefcount
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


class _Base:
    """An object with an array's memory that is the base of all NumPy views of it."""

    __slots__ = ("__array_interface__", "__weakref__", "array")

    def __init__(self, array: Array) -> None:
        self.array = array
        self.__array_interface__ = array.__array_interface__

    def view(self) -> Array:
        """The array, with this object as its base."""
        seen = np.asarray(self)
        # NumPy reads dtypes that are not its own (bfloat16) as bytes.
        return seen if seen.dtype == self.array.dtype else seen.view(self.array.dtype)


class Lent:
    """Views of an array of symdnn."""

    def __init__(self, array: Array) -> None:
        self._array = array
        self._base: weakref.ref[_Base] | None = None
        self._last: weakref.ref[Array] | None = None

    def array(self) -> Array:
        """The user's view: the same object as long as somebody has it."""
        last = self._last() if self._last is not None else None
        if last is None:
            base = self._base() if self._base is not None else None
            base = base or _Base(self._array)
            last = base.view()
            self._base, self._last = weakref.ref(base), weakref.ref(last)
        return last

    @property
    def held(self) -> bool:
        """Whether somebody has a view."""
        return self._base is not None and self._base() is not None


class Given:
    """A user's array whose memory symdnn uses, by its view ``inside``."""

    def __init__(self, array: Array) -> None:
        self._array = array
        self.inside = _Base(array).view()
        #: Other views of a larger array can't be counted.
        self._owns = bool(array.flags.owndata)

    def array(self) -> Array:
        """The user's array."""
        return self._array

    @property
    def held(self) -> bool:
        """Whether the array or a view of it still exists."""
        return not self._owns or getrefcount(self._array) > _UNHELD


class _Probe(Given):
    def count(self) -> int:
        return getrefcount(self._array)


#: The reference count of an array that only its :class:`Given` has, in this interpreter.
_UNHELD = _Probe(np.zeros(1)).count()
