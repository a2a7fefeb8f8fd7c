"""Memory of a shared variable in the hands of a user: whether anybody still has it.

As long as someone has an array of it, that may be written at any time. NumPy's views keep alive
what they are views of, so it can be told when the last one is gone: of what is lent out, by a weak
reference to an object that every view has as its base; of an array that a user gave, by the number
of references to it. An address alone (``a.ctypes.data``) keeps nothing alive.
"""

from __future__ import annotations

import weakref
from sys import getrefcount
from typing import Any

import numpy as np

__all__ = ["Given", "Lent"]

Array = np.ndarray[Any, Any]


class _Base:
    """What NumPy takes an array's memory from, and keeps as the base of all its views."""

    __slots__ = ("__array_interface__", "__weakref__", "array")

    def __init__(self, array: Array) -> None:
        self.array = array
        self.__array_interface__ = array.__array_interface__

    def view(self) -> Array:
        """The array, as one that refers to this object."""
        seen = np.asarray(self)
        # Dtypes that NumPy does not know by itself (bfloat16) come out as bytes.
        return seen if seen.dtype == self.array.dtype else seen.view(self.array.dtype)


class Lent:
    """Views of an array of ours."""

    def __init__(self, array: Array) -> None:
        self._array = array
        self._base: weakref.ref[_Base] | None = None
        self._last: weakref.ref[Array] | None = None

    def array(self) -> Array:
        """The view that a user gets; the same one while it lives."""
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
    """An array of a user's, whose memory is used: ``inside`` is what to use it by."""

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
        """Whether somebody has it, or a view of it."""
        return not self._owns or getrefcount(self._array) > _UNHELD


class _Probe(Given):
    def count(self) -> int:
        return getrefcount(self._array)


#: References to an array that only its :class:`Given` has; how an interpreter counts is its own.
_UNHELD = _Probe(np.zeros(1)).count()
