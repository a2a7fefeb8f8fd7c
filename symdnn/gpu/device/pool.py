"""Memory that is taken in blocks and used again: of the device, and pinned memory of the host.

What the driver gives takes long to get, and giving it back waits for the device.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

__all__ = ["Block", "HostBlock", "Pool"]

#: Blocks have 8 sizes between powers of two, so that at most an eighth is not used, and less of
#: large ones: the driver hands out memory by 2 MiB.
_STEPS_LOG2 = 3
_LEAST_BYTES, _LARGEST_STEP_BYTES = 512, 2 << 20


class Block:
    """Bytes at ``address``; they go back to their pool when nobody has it any more.

    That may be in any thread, in the middle of anything, so it only leaves a note.
    """

    __slots__ = ("__weakref__", "_returned", "address", "nbytes", "size")

    def __init__(
        self, address: int, size: int, nbytes: int, returned: deque[tuple[int, int, int]]
    ) -> None:
        self.address, self.size, self.nbytes = address, size, nbytes
        self._returned = returned

    def __int__(self) -> int:
        return self.address

    def __del__(self) -> None:
        self._returned.append((self.address, self.size, self.nbytes))


class HostBlock(Block):
    """One that NumPy sees: ``np.asarray`` gives its bytes and keeps it alive."""

    __slots__ = ()

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """All of it as uint8."""
        return {
            "shape": (self.nbytes,),
            "typestr": "|u1",
            "data": (self.address, False),
            "version": 3,
        }


class Pool:
    """Blocks by size. ``take`` gets bytes from the driver, ``give`` gives them back."""

    def __init__(
        self,
        take: Callable[[int], int],
        give: Callable[[int], object],
        block: type[Block] = Block,
    ) -> None:
        self._take, self._give, self._block = take, give, block
        self._free: dict[int, list[int]] = {}
        self._returned: deque[tuple[int, int, int]] = deque()
        self._lock = threading.RLock()
        self._active = self._managed = 0

    def allocate(self, nbytes: int) -> Block:
        """A block of at least ``nbytes``; raises what ``take`` raises."""
        size = _size_class(nbytes)
        with self._lock:
            self._sweep()
            free = self._free.get(size)
            if free:
                address = free.pop()
            else:
                address = self._take(size)
                self._managed += size
            self._active += nbytes
        return self._block(address, size, nbytes, self._returned)

    @property
    def active_bytes(self) -> int:
        """Bytes that were asked for and are in use."""
        with self._lock:
            self._sweep()
            return self._active

    @property
    def managed_bytes(self) -> int:
        """Bytes that were taken from the driver, in use or not."""
        return self._managed

    def free_held(self) -> None:
        """Give back what is not in use. Work that reads it must have been waited for."""
        with self._lock:
            self._sweep()
            for size, free in self._free.items():
                while free:
                    self._give(free.pop())
                    self._managed -= size

    def _sweep(self) -> None:
        """Put blocks that came back where they are found."""
        returned = self._returned
        while returned:
            address, size, nbytes = returned.popleft()
            self._free.setdefault(size, []).append(address)
            self._active -= nbytes


def _size_class(nbytes: int) -> int:
    """The size of block that ``nbytes`` get.

    >>> [_size_class(n) for n in (1, 512, 513, 1024, 1025, 1 << 20)]
    [512, 512, 576, 1024, 1152, 1048576]
    """
    if nbytes <= _LEAST_BYTES:
        return _LEAST_BYTES
    step = min(1 << ((nbytes - 1).bit_length() - 1 - _STEPS_LOG2), _LARGEST_STEP_BYTES)
    return -(-nbytes // step) * step
