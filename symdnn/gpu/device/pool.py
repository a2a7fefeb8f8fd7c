"""Pools of memory blocks: device memory, and pinned memory of the host.

Blocks are reused, because allocation by the driver is slow, and freeing waits for the device.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

#: Blocks have 8 sizes per power of two, so that at most an eighth of a block is unused. For large
#: blocks it is less: sizes are at most 2 MiB apart, the granularity of the driver.
_SIZES_PER_POWER_OF_TWO_LOG2 = 3
_MIN_BLOCK_BYTES, _MAX_STEP_BYTES = 512, 2 << 20


class Block:
    """Bytes at ``address``, which go back to their pool when the object is deleted.

    Deletion may happen in any thread and at any point of a program, so it takes no lock: it only
    appends to ``returned``, which the pool reads later.
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
    """A block of host memory: ``np.asarray`` gives its bytes and keeps it alive."""

    __slots__ = ()

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """The bytes as uint8."""
        return {
            "shape": (self.nbytes,),
            "typestr": "|u1",
            "data": (self.address, False),
            "version": 3,
        }


class Pool:
    """Free blocks by size. ``allocate_bytes`` and ``free_address`` are the driver's functions."""

    def __init__(
        self,
        allocate_bytes: Callable[[int], int],
        free_address: Callable[[int], object],
        block: type[Block] = Block,
    ) -> None:
        self._allocate, self._free_address, self._block = allocate_bytes, free_address, block
        self._free: dict[int, list[int]] = {}
        self._returned: deque[tuple[int, int, int]] = deque()
        self._lock = threading.RLock()
        self._active = self._managed = 0

    def allocate(self, nbytes: int) -> Block:
        """A block of at least ``nbytes``. Errors of ``allocate_bytes`` go to the caller."""
        size = _size_class(nbytes)
        with self._lock:
            self._sweep()
            free = self._free.get(size)
            if free:
                address = free.pop()
            else:
                address = self._allocate(size)
                self._managed += size
            self._active += nbytes
        return self._block(address, size, nbytes, self._returned)

    @property
    def active_bytes(self) -> int:
        """Requested bytes of all blocks in use."""
        with self._lock:
            self._sweep()
            return self._active

    @property
    def most_active_bytes(self) -> int:
        """Not less than :attr:`active_bytes`, and known at once."""
        return self._active

    @property
    def managed_bytes(self) -> int:
        """Bytes allocated by the driver, in use or free."""
        return self._managed

    def free_held(self) -> None:
        """Return free blocks to the driver. The device must have finished all work on them."""
        with self._lock:
            self._sweep()
            for size, free in self._free.items():
                while free:
                    self._free_address(free.pop())
                    self._managed -= size

    def _sweep(self) -> None:
        """Put deleted blocks among the free ones."""
        returned = self._returned
        while returned:
            address, size, nbytes = returned.popleft()
            self._free.setdefault(size, []).append(address)
            self._active -= nbytes


class _PartBlock(Block):
    """A block that is in the memory of a block of another pool, which it keeps alive."""

    __slots__ = ("whole",)

    whole: Block


class _Reusing(Pool):
    """What :func:`reusing` returns."""

    def __init__(self, taken: Callable[[int], int], wholes: dict[int, Block]) -> None:
        super().__init__(taken, lambda address: None, _PartBlock)
        self._wholes = wholes

    def allocate(self, nbytes: int) -> Block:
        """A block of at least ``nbytes``."""
        found = super().allocate(nbytes)
        assert isinstance(found, _PartBlock)
        found.whole = self._wholes[found.address]
        return found


def reusing(pool: Pool, kept: list[Any]) -> Pool:
    """A pool of blocks of ``pool``, which it uses again by itself and puts into ``kept``.

    Whoever keeps the list may use their addresses later, as a captured graph does.
    """
    wholes: dict[int, Block] = {}

    def taken(nbytes: int) -> int:
        block = pool.allocate(nbytes)
        kept.append(block)
        wholes[block.address] = block
        return block.address

    return _Reusing(taken, wholes)


def _size_class(nbytes: int) -> int:
    """The size of the block for a request of ``nbytes``.

    >>> [_size_class(n) for n in (1, 512, 513, 1024, 1025, 1 << 20)]
    [512, 512, 576, 1024, 1152, 1048576]
    """
    if nbytes <= _MIN_BLOCK_BYTES:
        return _MIN_BLOCK_BYTES
    step = min(1 << ((nbytes - 1).bit_length() - 1 - _SIZES_PER_POWER_OF_TWO_LOG2), _MAX_STEP_BYTES)
    return -(-nbytes // step) * step
