"""Scratch memory of launches, in parts aligned to cache lines."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from symdnn.graph.typing import Array

#: Bytes of a huge page. A kernel that reads some MB seldom misses the translation of an address
#: there, and more is prefetched.
_PAGE = 1 << 21
#: Long-lived parts of at most a fourth of it share a block. NumPy asks Linux for huge pages of it,
#: as of every array from 4 MB on.
_BLOCK = 1 << 24


_word_at: Any = ctypes.c_size_t.from_address
#: Where an array object has the pointer to its data (``PyArrayObject_fields``), in CPython.
_DATA_AT = object.__basicsize__


def _by_interface(array: Array) -> int:
    return array.__array_interface__["data"][0]


def _reads_objects() -> bool:
    """Whether array objects have that layout: reading it takes 0.1 us, NumPy's dictionary 0.9."""
    if sys.implementation.name != "cpython":
        return False
    return all(_word_at(id(a) + _DATA_AT).value == _by_interface(a) for a in map(np.empty, (1, 9)))


_ARRAY = np.ndarray if _reads_objects() else None


def address(array: Array) -> int:
    """The address of an array's data."""
    if type(array) is _ARRAY:
        return _word_at(id(array) + _DATA_AT).value
    return _by_interface(array)


def aligned(nbytes: int) -> int:
    """A number of bytes rounded up to a multiple of 64, a cache line."""
    return -(-nbytes // 64) * 64


def as_contiguous(array: Array) -> Any:
    """``array``, or a contiguous copy if it has other strides."""
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def empty_aligned(nbytes: int) -> Array:
    """New memory that begins at a cache line, as an array of uint8."""
    raw = np.empty(nbytes + 64, np.uint8)
    start = -address(raw) % 64
    return raw[start : start + nbytes]


def empty_kept(nbytes: int) -> Array:
    """As :func:`empty_aligned`, in huge pages, for memory that lives long and is not written again.

    Smaller parts lie side by side in a block, which is freed with the last of them.
    """
    if nbytes > _BLOCK // 4:
        return empty_aligned(nbytes)
    with _lock:
        if _block[0].nbytes < nbytes:
            raw = np.empty(_BLOCK + _PAGE, np.uint8)  # what is not touched takes no memory
            _block[0] = raw[-address(raw) % _PAGE :][:_BLOCK]
        found, _block[0] = _block[0][:nbytes], _block[0][aligned(nbytes) :]
    return found


_lock, _block = threading.Lock(), [np.empty(0, np.uint8)]


def _in_child() -> None:
    """A thread that a forked child has not may have had the lock."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_in_child)


class GrowingScratch:
    """The plan's workspace, or memory of its own where that is missing or too small."""

    def __init__(self) -> None:
        self._own = np.empty(0, np.uint8)

    def of(self, workspace: Array | None, nbytes: int) -> Array:
        """So much memory or more, aligned to a cache line."""
        if workspace is not None and workspace.nbytes >= nbytes:
            return workspace
        if self._own.nbytes < nbytes:
            self._own = empty_aligned(nbytes)
        return self._own


class Scratch:
    """Scratch memory in parts of these numbers of bytes, each aligned to 64 bytes.

    It is in the plan's workspace. If that is missing or too small (made for fewer threads), it is
    in memory of its own, allocated once.
    """

    def __init__(self, parts: Sequence[int]) -> None:
        #: Offset of each part, and the size of all, in bytes.
        self.places: list[int] = []
        self.nbytes = 0
        for part in parts:
            self.places.append(aligned(self.nbytes))
            self.nbytes = self.places[-1] + part
        self._own: Any = None

    def begin(self, workspace: Array | None) -> int:
        """The address of the first part, in this workspace if it is large enough."""
        if workspace is not None and workspace.nbytes >= self.nbytes:
            return address(workspace)
        return aligned(address(self.own()))

    def own(self) -> Any:
        """Memory of its own, 64 bytes larger than needed, so that it can be aligned."""
        if self._own is None:
            self._own = np.empty(self.nbytes + 64, np.uint8)
        return self._own
